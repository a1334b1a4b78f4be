/* What an answer says, and whether it is a good one. */
#include "tests/e2e/client.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

static double number_of(const cJSON *o, const char *what, const char *name)
{
    const cJSON *v = cJSON_GetObjectItem(o, name);

    if (!cJSON_IsNumber(v))
        fail_msg("the answer has no %s.%s", what, name);
    return v->valuedouble;
}

double ask_usage(const ask *a, const char *name)
{
    return number_of(a->usage, "usage", name);
}

double ask_tandem(const ask *a, const char *name)
{
    return number_of(a->tandem, "tandem", name);
}

const char *ask_error(const ask *a, const char *name)
{
    const cJSON *v = cJSON_GetObjectItem(a->error, name);

    return cJSON_IsString(v) ? v->valuestring : "";
}

static const char *text_of(const td_buf *b)
{
    return b->ptr ? b->ptr : "";
}

void ask_assert_good(const ask *a)
{
    if (a->status != 200 || !a->ended || a->cut || a->error != NULL || a->finish[0] == '\0')
        fail_msg("not a good answer: status %d%s, finish \"%s\": %.600s", a->status,
                 a->cut ? ", cut" : "", a->finish, text_of(&a->body));
    assert_int_equal(a->n_roles, 1);
    if (!a->stream)
        return;
    assert_true(a->role_first);
    assert_true(a->done);
    assert_false(a->after_done);
    assert_int_equal(a->after_finish, 0);
}

size_t ask_said(const ask *a)
{
    return a->content.len + a->reasoning.len;
}

static size_t alike(const td_buf *a, const td_buf *b)
{
    size_t n = 0;

    while (n < a->len && n < b->len && a->ptr[n] == b->ptr[n])
        n++;
    return n;
}

void ask_assert_carried(const ask *alone, const ask *carried, size_t said, bool cuda)
{
    size_t same =
        alike(&alone->content, &carried->content) + alike(&alone->reasoning, &carried->reasoning);

    if (!cuda) {
        ask_assert_same(alone, carried);
        return;
    }
    ask_assert_good(alone);
    ask_assert_good(carried);
    if (same < said)
        fail_msg("an answer changed %zu bytes in; it had said %zu when its worker was lost", same,
                 said);
    assert_string_equal(alone->finish, carried->finish);
    if (alone->usage != NULL && carried->usage != NULL) {
        assert_true(ask_usage(alone, "prompt_tokens") == ask_usage(carried, "prompt_tokens"));
        assert_true(ask_usage(alone, "completion_tokens") ==
                    ask_usage(carried, "completion_tokens"));
    }
}

void ask_assert_same(const ask *a, const ask *b)
{
    ask_assert_good(a);
    ask_assert_good(b);
    assert_string_equal(text_of(&a->content), text_of(&b->content));
    assert_string_equal(text_of(&a->reasoning), text_of(&b->reasoning));
    assert_string_equal(a->finish, b->finish);
    assert_int_equal(a->n_calls, b->n_calls);
    for (size_t i = 0; i < a->n_calls; i++) {
        assert_string_equal(a->calls[i].name, b->calls[i].name);
        assert_string_equal(text_of(&a->calls[i].arguments), text_of(&b->calls[i].arguments));
    }
    if (a->usage != NULL && b->usage != NULL) {
        assert_true(ask_usage(a, "prompt_tokens") == ask_usage(b, "prompt_tokens"));
        assert_true(ask_usage(a, "completion_tokens") == ask_usage(b, "completion_tokens"));
    }
}
