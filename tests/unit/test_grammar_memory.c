/* Without memory: whichever allocation fails, there is a status or a false, and nothing is lost
 * (AddressSanitizer looks). The program is linked so that its own allocations come through here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/grammar.h"

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);

static long left = -1; /* allocations until they fail; -1: they do not */

static bool fails(void)
{
    if (left > 0)
        left--;
    return left == 0;
}

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}

static const char *const pieces[] = {"{", "}", "[",    "]",        "\"",    ":",  ",",  "a",
                                     "b", "c", "1",    ".",        "5",     "4",  "2",  "x",
                                     "n", "z", "null", "\"a\":\"", "\",\"", "ab", "\":"};

enum { N = sizeof pieces / sizeof *pieces };

/* True: all went well. */
static bool attempt(const char *schema, const char *text)
{
    const uint8_t *piece[N];
    uint32_t length[N], mask[(N + 31) / 32];
    td_token_set *set = NULL;
    td_grammar *g = NULL;
    td_matcher *m = NULL;
    td_error err = {0};
    td_status st;
    bool ok;

    for (int i = 0; i < N; i++) {
        piece[i] = (const uint8_t *)pieces[i];
        length[i] = (uint32_t)strlen(pieces[i]);
    }
    st = td_token_set_create(piece, length, N, &set, &err);
    if (st == TD_OK)
        st = td_grammar_from_schema(schema, strlen(schema), &g, &err);
    if (st == TD_OK)
        st = td_matcher_create(g, set, &m, &err);
    ok = st == TD_OK;
    for (const char *c = text; ok && *c != '\0'; c++) {
        ok = td_matcher_mask(m, mask);
        if (!ok)
            assert_int_equal(mask[0], 0);
        ok = ok && td_matcher_accept(m, (const uint8_t *)c, 1);
    }
    left = -1;
    if (st != TD_OK) {
        assert_int_equal(st, TD_NOMEM);
        assert_null(m);
    }
    td_matcher_free(m);
    td_grammar_free(g);
    td_token_set_free(set);
    return ok;
}

static void every_allocation(const char *schema, const char *text)
{
    long n = 1;

    assert_true(attempt(schema, text));
    for (;; n += 1 + n / 40) {
        left = n;
        if (attempt(schema, text))
            break;
    }
    assert_true(n > 100);
}

static void test_no_memory(void **state)
{
    (void)state;
    every_allocation(
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":5},\"b\":{"
        "\"type\":\"string\",\"pattern\":\"^[a-c]{2}$\",\"minLength\":1},\"c\":{\"type\":\"array\","
        "\"items\":{\"$ref\":\"#/$defs/x\"},\"maxItems\":4},\"n\":{\"type\":\"number\",\"minimum\":"
        "0.5,\"maximum\":12}},\"required\":[\"a\",\"b\",\"c\"],\"additionalProperties\":{\"type\":"
        "\"null\"},\"$defs\":{\"x\":{\"anyOf\":[{\"type\":\"integer\",\"minimum\":3},{\"enum\":["
        "\"x\",{\"n\":[1]}]},{\"allOf\":[{\"type\":\"object\",\"properties\":{\"z\":{\"type\":"
        "\"integer\"}}},{\"properties\":{\"z\":{\"minimum\":1},\"x\":true},\"required\":[\"x\"]}]}"
        "]}}}",
        "{\"a\":\"abcab\",\"b\":\"ab\",\"c\":[4,\"x\",{\"n\":[1]},{\"z\":2,\"x\":[]}],\"n\":1.5,"
        "\"zz\":null}");
    every_allocation("{\"propertyNames\":{\"pattern\":\"^a\"},\"maxProperties\":3}",
                     "{\"a1\":1,\"a2\":[]}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_memory)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
