#include "tests/unit/openai_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* The body is copied to a block of its own size, so that a sanitizer sees a read past its NUL. */
td_status parse_n(const char *body, size_t n, bool ignore_eos, generation *g, td_error *err)
{
    const openai_defaults d = {.date = "2025-06-28", .allow_ignore_eos = ignore_eos, .vocab = 1000};
    char *copy = malloc(n + 1);
    td_status st;

    assert_non_null(copy);
    memcpy(copy, body, n);
    copy[n] = '\0';
    st = openai_parse_chat(copy, n, &d, g, err);
    free(copy); /* nothing of the result may point into it */
    return st;
}

td_status parse(const char *body, generation *g, td_error *err)
{
    return parse_n(body, strlen(body), true, g, err);
}

void parse_with(const char *members, generation *g)
{
    char body[2048];
    td_error err = {0};

    snprintf(body, sizeof body, "{" MESSAGES "%s%s}", members[0] ? "," : "", members);
    if (parse(body, g, &err) != TD_OK)
        fail_msg("%s: %s", members, err.text);
}

void check_bad(const char *body, size_t n, const char *param, const char *says)
{
    generation g;
    td_error err = {0};

    if (parse_n(body, n, false, &g, &err) != TD_INVALID)
        fail_msg("taken: %.200s", body);
    if (strcmp(err.param, param) != 0 || strstr(err.text, says) == NULL)
        fail_msg("%.200s: param \"%s\", not \"%s\"; text: %s", body, err.param, param, err.text);
    generation_free(&g);
}

void fill(td_buf *b, const char *text, size_t times)
{
    for (size_t i = 0; i < times; i++)
        td_buf_str(b, text);
}

void assert_text(td_slice s, const char *text)
{
    assert_non_null(s.ptr);
    assert_int_equal(s.len, strlen(text));
    assert_memory_equal(s.ptr, text, s.len);
}
