/* What the tests of /v1/responses bodies share: items as JSON, and a body parsed from a block of
 * its own size. */
#ifndef TANDEM_TESTS_RESPONSES_FIXTURE_H
#define TANDEM_TESTS_RESPONSES_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "router/responses_body.h"

#define USER "{\"role\":\"user\",\"content\":\"hi\"}"
#define CALL(id) \
    "{\"type\":\"function_call\",\"call_id\":\"" id "\",\"name\":\"f\",\"arguments\":\"{}\"}"
#define OUTPUT(id, text) \
    "{\"type\":\"function_call_output\",\"call_id\":\"" id "\",\"output\":\"" text "\"}"
#define REASONING(text) \
    "{\"type\":\"reasoning\",\"id\":\"rs_1\",\"summary\":[],\"content\":[" \
    "{\"type\":\"reasoning_text\",\"text\":\"" text "\"}]}"
#define MESSAGE(more, text) \
    "{\"type\":\"message\",\"role\":\"assistant\",\"status\":\"completed\",\"id\":\"m\"" more \
    ",\"content\":[{\"type\":\"output_text\",\"annotations\":[],\"text\":\"" text "\"}]}"

/* Nothing of the result may point into the body, whose block has its own size. */
static inline td_status parse(const char *body, const responses_history *h, responses_request *q,
                              td_error *err)
{
    const openai_defaults d = {.date = "2025-06-28", .allow_ignore_eos = true, .vocab = 401};
    char *copy = strdup(body);
    td_status st;

    assert_non_null(copy);
    st = responses_parse(copy, strlen(copy), &d, h, q, err);
    free(copy);
    return st;
}

static inline void parse_well(const char *body, responses_request *q)
{
    td_error err = {0};

    if (parse(body, NULL, q, &err) != TD_OK)
        fail_msg("%s: %s: %s", body, err.param, err.text);
}

#endif
