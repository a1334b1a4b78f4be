/* What a schema may not say, named with its place; bounds of schemas and answers; grammars that are
 * none of a schema. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "tests/unit/grammar_fixture.h"

static void test_refusals_name_the_keyword_and_the_place(void **state)
{
    static const struct {
        const char *schema, *text;
    } cases[] = {
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"not\":{}}}}",
         "#/properties/a: 'not' is not supported"},
        {"{\"properties\":{\"a/b\":{\"items\":{\"if\":true}}}}",
         "#/properties/a~1b/items: 'if' is not supported"},
        {"{\"dependentRequired\":{}}", "#: 'dependentRequired' is not supported"},
        {"{\"patternProperties\":{\"a\":{},\"b\":{}}}", "supported with one pattern"},
        {"{\"propertyNames\":{\"maxLength\":3},\"required\":[\"a\"]}",
         "'propertyNames' beside 'properties'"},
        {"{\"allOf\":[{\"patternProperties\":{\"a\":{}}},{\"required\":[\"a\"]}]}",
         "beside other parts about objects"},
        {"{\"type\":\"array\",\"uniqueItems\":true}", "'uniqueItems' is not supported"},
        {"{\"type\":\"foo\"}", "#: 'type' is \"foo\""},
        {"{\"type\":[]}", "'type' is []"},
        {"{\"enum\":[]}", "'enum' is empty"},
        {"{\"anyOf\":[]}", "'anyOf' is empty"},
        {"{\"$ref\":\"#/$defs/x\"}", "'$ref' is \"#/$defs/x\", which is not there"},
        {"{\"$ref\":\"http://x/y\"}", "only references into the schema itself"},
        {"{\"type\":\"string\",\"format\":\"iri\"}", "'format' of \"iri\" is not supported"},
        {"{\"type\":\"string\",\"pattern\":\"(?=a)\"}",
         "#: 'pattern': look-around (not supported)"},
        {"{\"type\":\"string\",\"pattern\":\"(a)\\\\1\"}", "a reference back"},
        {"{\"type\":\"string\",\"pattern\":\"a\\\\b\"}", "a word boundary"},
        {"{\"type\":\"string\",\"pattern\":\"\\\\p{L}\"}", "a Unicode property"},
        {"{\"type\":\"string\",\"pattern\":\"(a\"}", "a group without its end"},
        {"{\"type\":\"string\",\"pattern\":\"a)\"}", "a ')' without its group"},
        {"{\"type\":\"string\",\"pattern\":\"[a\"}", "a class without its end"},
        {"{\"type\":\"string\",\"pattern\":\"*\"}", "a quantifier of nothing"},
        {"{\"type\":\"string\",\"pattern\":\"(^a)\"}", "'^' not at the begin"},
        {"{\"type\":\"string\",\"pattern\":\"a{2000}\"}", "more than 1000 times"},
        {"{\"type\":\"string\",\"pattern\":\"x.{40}y.{40}z\"}", "too large"},
        {"{\"type\":\"string\",\"pattern\":\"((a{1000}){1000}){1000}\"}", "too large"},
        {"{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", "leave nothing"},
        {"{\"type\":\"string\",\"minLength\":-1}", "'minLength' is -1"},
        {"{\"type\":\"array\",\"minItems\":3,\"maxItems\":2}", "leave nothing"},
        {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", "no number is between"},
        {"{\"type\":\"integer\",\"minimum\":1.2,\"maximum\":1.8}", "no number is between"},
        {"{\"type\":\"integer\",\"minimum\":9007199254740993}", "'minimum' is 9007199254740992"},
        {"{\"type\":\"number\",\"multipleOf\":1e-10}", "'multipleOf' is 1e-10"},
        {"{\"type\":\"number\",\"multipleOf\":0.3333}", "'multipleOf' is 0.3333"},
        {"{\"type\":\"number\",\"multipleOf\":0}", "'multipleOf' is 0"},
        {"{\"type\":\"integer\",\"multipleOf\":5000}", "'multipleOf' is 5000"},
        {"{\"type\":\"integer\",\"minimum\":\"1\"}", "'minimum' is \"1\""},
        {"{\"enum\":[1],\"minimum\":3}", "matches no value"},
        {"{\"const\":\"a\",\"minLength\":-1}", "'minLength' is -1"},
        {"{\"enum\":[\"a\"],\"pattern\":\"a\"}", "'pattern' beside 'enum'"},
        {"{\"enum\":[9007199254740993]}", "2^53"},
        {"{\"minProperties\":2}", "'minProperties' over 1"},
        {"{\"items\":[{}]}", "use 'prefixItems'"},
        {"{\"properties\":{\"a\":1},\"required\":[\"a\"]}", "#/properties/a: expected a schema"},
        {"{\"properties\":{\"a\":{},\"a\":{}}}", "property 'a' appears twice"},
        {"{\"type\":\"string\",\"type\":\"null\"}", "'type' appears twice"},
        {"{\"type\":\"object\",\"required\":[\"a\"],\"additionalProperties\":false}",
         "'required' names 'a'"},
        {"{\"properties\":{\"a\":false},\"required\":[\"a\"]}", "matches no value"},
        {"{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", "matches no value"},
        {"{\"$ref\":\"#\"}", "matches no value"},
        {"{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"minItems\":1}", "matches no value"},
        {"{\"type\":\"string\",\"pattern\":\"^a$\",\"minLength\":2}", "matches no value"},
        {"{\"type\":\"integer\",\"multipleOf\":10,\"minimum\":1,\"maximum\":9}",
         "matches no value"},
        {"{\"allOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", "matches no value"},
        {"{\"type\":\"string\",\"pattern\":\"\\\\xg\"}", "without its hexadecimal digits"},
        {"{\"type\":\"string\",\"pattern\":\"a\\\\\"}", "a backslash at the end"},
        {"{\"type\":\"string\",\"pattern\":\"\\\\u{110000}\"}", "a wrong \\u{...}"},
        {"{\"type\":\"string\",\"pattern\":\"\\\\ud800\\\\u0041\"}", "half a surrogate pair"},
        {"{\"type\":\"string\",\"pattern\":\"\\\\e\"}", "an escape that is not known at byte 1"},
        {"{\"type\":\"string\",\"pattern\":\"[z-a]\"}", "whose end is before its begin"},
        {"{\"type\":\"string\",\"pattern\":\"[\\\\d-z]\"}", "a range that begins with a class"},
        {"{\"type\":\"string\",\"pattern\":\"[a-\\\\d]\"}", "a range that ends with a class"},
        {"{\"type\":\"string\",\"pattern\":\"a{2,1}\"}", "whose end is before its begin"},
        {"{\"type\":\"string\",\"pattern\":\"a**\"}", "a quantifier of a quantifier"},
        {"{\"type\":\"string\",\"pattern\":\"a{x\"}", "without its number"},
        {"{\"type\":\"string\",\"pattern\":\"(?i)a\"}", "a kind of group"},
        {"{\"type\":\"string\",\"pattern\":\"(?<n)a\"}", "a group's name without its end"},
        {"{\"type\":\"string\",\"pattern\":1}", "'pattern' is no string"},
        {"{\"type\":\"string\",\"pattern\":\"a\",\"format\":\"date\"}",
         "'pattern' beside 'format'"},
        {"{\"type\":\"string\",\"pattern\":\"^[a-z]*[0-9]$\",\"maxLength\":100000}",
         "needs too many states"},
        {"{\"properties\":[]}", "'properties' is no object"},
        {"{\"required\":{}}", "'required' is no list"},
        {"{\"required\":[1]}", "'required' has what is no string"},
        {"{\"additionalProperties\":1}", "'additionalProperties' is no schema"},
        {"{\"patternProperties\":1}", "'patternProperties' is no object"},
        {"{\"prefixItems\":{}}", "'prefixItems' is no list"},
        {"{\"properties\":{\"a\":{},\"b\":{}},\"maxProperties\":1}", "'maxProperties' beside"},
        {"{\"properties\":{\"a\":{},\"b\":{}},\"minProperties\":2}",
         "'minProperties' over 1 beside"},
        {"{\"allOf\":[1]}", "#/allOf/0: expected a schema"},
        {"{\"allOf\":{}}", "'allOf' is no list"},
        {"{\"allOf\":[{\"properties\":[{\"required\":[\"a\"]}]}]}", "'properties' is no object"},
        {"{\"properties\":{\"a\":[1]}}", "#/properties/a: expected a schema"},
        {"{\"anyOf\":[[{}],[{}]]}", "#/anyOf/0: expected a schema"},
        {"{\"items\":\"x\"}", "#/items: expected a schema"},
        {"{\"anyOf\":[{}],\"oneOf\":[{}]}", "'oneOf' beside 'anyOf'"},
        {"{\"allOf\":[{\"pattern\":\"a\"},{\"pattern\":\"b\"}]}", "two different 'pattern'"},
        {"{\"$ref\":1}", "'$ref' is no string"},
        {"{\"type\":\"number\",\"minimum\":1e-60}", "too many digits"},
        {"{\"type\":\"number\",\"exclusiveMinimum\":1234567890.1234567}", "more than 15 digits"},
        {"{\"type\":\"integer\",\"minimum\":1e18}", "matches no value"},
        {"{\"allOf\":[{\"type\":\"null\"},false]}", "matches no value"},
        {"{\"allOf\":[{\"$ref\":\"#\"}]}", "refers to itself"},
        {"{\"const\":1,\"anyOf\":[{\"$ref\":\"#\"}]}", "refers to itself"},
        {"[]", "expected a JSON object"},
        {"{", "not JSON"},
        {"", "not JSON"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_grammar *g = NULL;
        td_error err = {0};
        td_status st = td_grammar_from_schema(cases[i].schema, strlen(cases[i].schema), &g, &err);

        if (st != TD_INVALID || g != NULL || strstr(err.text, cases[i].text) == NULL)
            fail_msg("%s\n  %s: \"%s\", expected \"%s\"", cases[i].schema, td_status_name(st),
                     err.text, cases[i].text);
    }
}

static void test_a_list_of_required_names_is_bounded(void **state)
{
    td_buf schema = {0};
    td_grammar *g = NULL;
    td_error err = {0};

    (void)state;
    td_buf_str(&schema, "{\"properties\":{\"a\":{}},\"required\":[");
    for (int i = 0; i < 4000; i++)
        td_buf_str(&schema, i > 0 ? ",\"a\"" : "\"a\"");
    td_buf_str(&schema, "]}");
    assert_int_equal(td_grammar_from_schema(schema.ptr, schema.len, &g, &err), TD_INVALID);
    assert_non_null(strstr(err.text, "'required' has 4000 names, expected at most 3999"));
    td_buf_free(&schema);
}

static void test_strings_grammar(void **state)
{
    static const td_slice list[] = {TD_SLICE("to=a"), TD_SLICE("to=ab"), TD_SLICE("x")};
    td_grammar *g = NULL;
    td_error err;

    (void)state;
    assert_int_equal(td_grammar_from_strings(list, 3, &g, &err), TD_OK);
    assert_true(matches(g, "to=a"));
    assert_true(matches(g, "to=ab"));
    assert_true(matches(g, "x"));
    assert_false(matches(g, "to="));
    assert_false(matches(g, "xx"));
    td_grammar_free(g);
    assert_int_equal(td_grammar_any_object(&g, &err), TD_OK);
    assert_true(matches(g, "{\"a\": [1, null]}"));
    assert_false(matches(g, "[1]"));
    td_grammar_free(g);
    assert_int_equal(td_grammar_any_value(&g, &err), TD_OK);
    assert_true(matches(g, "[1]"));
    td_grammar_free(g);
}

static void test_accept_changes_nothing_on_failure(void **state)
{
    td_grammar *g = compile("{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}");
    td_matcher *m = NULL;
    td_error err;

    (void)state;
    assert_int_equal(td_matcher_create(g, NULL, &m, &err), TD_OK);
    assert_true(td_matcher_accept(m, (const uint8_t *)"[1,", 3));
    assert_false(td_matcher_accept(m, (const uint8_t *)"23,x", 4));
    assert_false(td_matcher_can_accept(m, (const uint8_t *)"23,x", 4));
    assert_true(td_matcher_can_accept(m, (const uint8_t *)"23,4]", 5));
    assert_false(td_matcher_may_end(m));
    assert_true(td_matcher_accept(m, (const uint8_t *)"2]", 2));
    assert_true(td_matcher_may_end(m));
    assert_false(td_matcher_accept(m, (const uint8_t *)"]", 1));
    assert_true(td_matcher_may_end(m));
    assert_true(td_matcher_accept(m, (const uint8_t *)"", 0));
    td_matcher_reset(m);
    assert_true(td_matcher_accept(m, (const uint8_t *)"[]", 2));
    td_matcher_free(m);
    td_grammar_free(g);
}

/* Unions that cannot be told apart by their first bytes: up to the bound all of them count. */
static void test_wide_unions(void **state)
{
    (void)state;
    for (int n = 90; n <= 110; n += 20) {
        td_buf b = {0};
        td_grammar *g = NULL;
        td_error err = {0};
        td_status st;

        td_buf_str(&b, "{\"anyOf\":[");
        for (int i = 0; i < n; i++)
            td_buf_fmt(&b,
                       "%s{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":"
                       "\"^a{%d}$\"}}",
                       i > 0 ? "," : "", i);
        td_buf_str(&b, "]}");
        st = td_grammar_from_schema(b.ptr, b.len, &g, &err);
        if (n > 100) {
            assert_int_equal(st, TD_INVALID);
            assert_non_null(strstr(err.text, "more than 100 alternatives"));
        } else {
            assert_int_equal(st, TD_OK);
            td_buf_clear(&b);
            td_buf_fmt(
                &b, "[\"%.*s\"]", n - 1,
                "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                "aaaaaaaaaaaaaaaaaaaa");
            assert_true(matches(g, b.ptr));
            b.ptr[b.len - 2] = 'a';
            b.ptr[b.len - 1] = '"';
            td_buf_byte(&b, ']');
            assert_false(matches(g, b.ptr));
        }
        td_grammar_free(g);
        td_buf_free(&b);
    }
}

/* Long lists drop the frames that they no longer need. */
static void test_long_answers(void **state)
{
    td_grammar *g = compile("{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"type\":"
                            "\"integer\"},\"maxItems\":5},\"maxItems\":100000}");
    td_matcher *m = NULL;
    td_error err;

    (void)state;
    assert_int_equal(td_matcher_create(g, NULL, &m, &err), TD_OK);
    assert_true(td_matcher_accept(m, (const uint8_t *)"[[]", 3));
    for (int i = 0; i < 20000; i++)
        assert_true(td_matcher_accept(m, (const uint8_t *)",[1, 23,4]", 10));
    assert_false(td_matcher_accept(m, (const uint8_t *)",[1,2,3,4,5,6", 13));
    assert_true(td_matcher_accept(m, (const uint8_t *)"]", 1));
    assert_true(td_matcher_may_end(m));
    td_matcher_free(m);
    td_grammar_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals_name_the_keyword_and_the_place),
        cmocka_unit_test(test_a_list_of_required_names_is_bounded),
        cmocka_unit_test(test_strings_grammar),
        cmocka_unit_test(test_accept_changes_nothing_on_failure),
        cmocka_unit_test(test_wide_unions),
        cmocka_unit_test(test_long_answers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
