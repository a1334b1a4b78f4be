/* The keywords of a JSON Schema: which texts a grammar accepts, byte by byte. What is refused, and
 * bounds: test_grammar_bounds.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "tests/unit/grammar_fixture.h"

/* A string literal's bytes are taken whole; texts are separated by newlines, schemas hold none. */
typedef struct keyword_case {
    const char *schema;
    const char *good[16], *bad[16];
} keyword_case;

static void check_cases(const keyword_case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        td_grammar *g = compile(cases[i].schema);

        for (size_t k = 0; k < 16 && cases[i].good[k] != NULL; k++) {
            if (!matches(g, cases[i].good[k]))
                fail_msg("%s\n  should allow %s", cases[i].schema, cases[i].good[k]);
        }
        for (size_t k = 0; k < 16 && cases[i].bad[k] != NULL; k++) {
            if (matches(g, cases[i].bad[k]))
                fail_msg("%s\n  should not allow %s", cases[i].schema, cases[i].bad[k]);
        }
        td_grammar_free(g);
    }
}

#define CHECK_CASES(...) \
    do { \
        static const keyword_case cases[] = {__VA_ARGS__}; \
        check_cases(cases, sizeof cases / sizeof *cases); \
    } while (0)

static void test_types(void **state)
{
    (void)state;
    CHECK_CASES(
        {"{\"type\":\"null\"}", {"null"}, {"nul", "nullx", "true", ""}},
        {"{\"type\":\"boolean\"}", {"true", "false"}, {"null", "1", "True"}},
        {"{\"type\":\"integer\"}",
         {"0", "7", "-1", "123456789012345678"},
         {"-0", "01", "1.0", "1e3", "+1", "-", "", "1234567890123456789"}},
        {"{\"type\":\"number\"}",
         {"0", "-0", "1.5", "-0.25", "1e5", "1E-5", "12.5e+10", "0.30000000000000004"},
         {"01", ".5", "1.", "1e", "--1", "1e100", "NaN", "Infinity"}},
        {"{\"type\":\"string\"}",
         {"\"\"", "\"abc\"", "\"\\n\\u00e9\\\"\"", "\"\xc3\xa9\xe4\xbd\xa0\xf0\x9f\x98\x80\"",
          "\"\\ud83d\\ude00\"", "\"\\uD7FF\\ue000\"", "\"\x7f\""},
         {"\"", "abc", "\"a", "\"\n\"", "\"\\x\"", "\"\\ud83d\"", "\"\\ude00\"", "\"\\ud83dx\"",
          "\"\xff\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "\"\xc3\"",
          "\"\\u12g4\"", "'a'"}},
        {"{\"type\":[\"string\",\"null\"]}", {"null", "\"x\""}, {"1", "[]"}},
        {"{\"type\":[\"integer\",\"number\"]}", {"1", "1.5"}, {"null"}},
        {"{\"type\":\"string\",\"nullable\":true}", {"null", "\"x\""}, {"1"}},
        {"{}",
         {"1", "\"a\"", "[1,{\"a\":[]}]", "{}", "null", "{\"a\":1,\"b\":[true,false]}"},
         {"", "[1", "{a:1}", "{\"a\"}", "[1,]", "{\"a\":1,}"}},
        {"{\"type\":\"object\"}", {"{}", "{\"a\":{\"b\":[1]}}"}, {"[]", "1"}},
        {"{\"type\":\"array\"}", {"[]", "[1,\"a\",[]]"}, {"{}", "[,]"}});
}

static void test_white_space_is_bounded(void **state)
{
    (void)state;
    CHECK_CASES(
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"items\":{\"type\":"
         "\"integer\"}},\"b\":{\"type\":\"integer\"}},\"required\":[\"a\",\"b\"]}",
         {"{\"a\":[1,2],\"b\":3}", "{\"a\": [1, 2], \"b\": 3}", "{ \"a\": [ 1, 2 ], \"b\": 3 }",
          "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": 3\n}",
          "{\n                                \"a\":[],\"b\":3}"},
         {"{  \"a\":[],\"b\":3}", "{\"a\" :[],\"b\":3}", "{\"a\":[] ,\"b\":3}",
          " {\"a\":[],\"b\":3}", "{\"a\":[],\"b\":3} ", "{\n\n\"a\":[],\"b\":3}",
          "{\t\"a\":[],\"b\":3}", "{\n                                 \"a\":[],\"b\":3}"}});
}

static void test_objects(void **state)
{
    (void)state;
    CHECK_CASES(
        {"{\"type\":\"object\",\"properties\":{},\"maxProperties\":3}", {"{}"}, {"{\"a\":1}"}},
        {"{\"allOf\":[{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[a-z]$\"}},{\"title\":"
         "\"t\"}]}",
         {"{\"a\":1}"},
         {"{\"A\":1}"}},
        {"{\"allOf\":[{\"type\":\"object\",\"patternProperties\":{\"^x\":{\"type\":\"null\"}},"
         "\"additionalProperties\":false},{\"maxItems\":3}]}",
         {"{\"x\":null}", "{}"},
         {"{\"x\":1}", "{\"a\":null}"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":"
         "\"integer\"},\"c\":{\"type\":\"integer\"}},\"required\":[\"b\"],"
         "\"additionalProperties\":false}",
         {"{\"b\":1}", "{\"a\":1,\"b\":2}", "{\"b\":1,\"c\":2}", "{\"a\":1,\"b\":2,\"c\":3}"},
         {"{}", "{\"a\":1}", "{\"b\":1,\"a\":2}", "{\"b\":1,\"b\":2}", "{\"b\":1,\"d\":2}",
          "{\"b\":\"x\"}", "{,\"b\":1}", "{\"b\":1,}"}},
        {"{\"properties\":{\"a\":{\"type\":\"integer\"},\"ab\":{\"type\":\"integer\"}}}",
         {"{}", "{\"a\":1}", "{\"ab\":1}", "{\"a\":1,\"ab\":2}"},
         {"{\"b\":1}", "{\"ab\":1,\"a\":2}", "{\"abc\":1}"}},
        {"{\"type\":\"object\",\"properties\":{\"a\\\"\\n\\u00e9\":{\"type\":\"null\"}}}",
         {"{\"a\\\"\\n\xc3\xa9\":null}"},
         {"{\"a\\\"\\n\\u00e9\":null}"}},
        {"{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"integer\"},\"idx\":{\"type\":"
         "\"integer\"},\"\xc3\xa9\":{\"type\":\"null\"}},\"additionalProperties\":{\"type\":"
         "\"boolean\"}}",
         {"{}", "{\"id\":1}", "{\"i\":true}", "{\"id\":1,\"ida\":true,\"\":false}",
          "{\"idxx\":true}", "{\"\xc3\xaa\":true}", "{\"\xc3\xa9\xc3\xa9\":true}",
          "{\"\xf0\x9f\x98\x80\":true}", "{\"a\\n\":true}"},
         {"{\"id\":true}", "{\"idx\":true}", "{\"\xc3\xa9\":true}", "{\"a\":1}",
          "{\"a\":true,\"id\":1}", "{\"\\u0069d\":true}", "{\"\xc3\":true}",
          "{\"\xed\xa0\x80\":true}"}},
        {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}",
         {"{}", "{\"x\":1,\"y\":2}"},
         {"{\"x\":true}"}},
        {"{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}",
         {"{}", "{ }"},
         {"{\"a\":1}"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":false,\"b\":true}}",
         {"{}", "{\"b\":[1]}"},
         {"{\"a\":1}"}},
        {"{\"type\":\"object\",\"required\":[\"a\"]}",
         {"{\"a\":1}", "{\"a\":1,\"b\":2}"},
         {"{}", "{\"b\":2}", "{\"a\":1,\"a\":2}"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":"
         "\"integer\"}},\"minProperties\":1}",
         {"{\"a\":1}", "{\"b\":1}"},
         {"{}"}},
        {"{\"type\":\"object\",\"minProperties\":1,\"maxProperties\":3,\"additionalProperties\":"
         "{\"type\":\"integer\"}}",
         {"{\"a\":1}", "{\"a\":1,\"b\":2,\"c\":3}"},
         {"{}", "{\"a\":1,\"b\":2,\"c\":3,\"d\":4}"}});
}

static void test_names(void **state)
{
    (void)state;
    CHECK_CASES(
        {"{\"propertyNames\":{\"type\":\"string\"},\"additionalProperties\":{\"type\":\"null\"}}",
         {"{}", "{\"x\":null}"},
         {"{\"x\":1}"}},
        {"{\"propertyNames\":{\"enum\":[\"a\",\"b\"]},\"additionalProperties\":{\"type\":"
         "\"integer\"},\"maxProperties\":2}",
         {"{}", "{\"a\":1}", "{\"b\":1,\"a\":2}"},
         {"{\"c\":1}", "{\"a\":null}", "{\"a\":1,\"b\":2,\"a\":3}"}},
        {"{\"propertyNames\":{\"pattern\":\"^[a-z]+$\"}}",
         {"{\"ab\":[1]}"},
         {"{\"\":1}", "{\"A\":1}"}},
        {"{\"patternProperties\":{\"^x-\":{\"type\":\"boolean\"}},\"additionalProperties\":false}",
         {"{}", "{\"x-\":true,\"x-y\": false}"},
         {"{\"y\":true}", "{\"x-\":1}"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"}},\"patternProperties\":{}"
         "}",
         {"{\"a\":null}"},
         {"{\"b\":null}"}});
}

static void test_arrays(void **state)
{
    (void)state;
    CHECK_CASES(
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}",
         {"[]", "[1]", "[1, 2,3]"},
         {"[\"a\"]", "[1,]", "[,1]"}},
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}",
         {"[1,2]", "[1,2,3]", "[1,2 ]"},
         {"[]", "[1]", "[1 ", "[1,2,3,4]", "[1,2,3,"}},
        {"{\"type\":\"array\",\"maxItems\":0}", {"[]", "[ ]"}, {"[1]", "[null"}},
        {"{\"type\":\"array\",\"minItems\":1}", {"[1]", "[[],{}]"}, {"[]", "[ ]"}},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}]}",
         {"[]", "[1]", "[1,\"a\"]"},
         {"[\"a\"]", "[1,2]", "[1,\"a\",3]"}},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"}],\"items\":{\"type\":"
         "\"null\"},\"minItems\":2,\"maxItems\":3}",
         {"[1,null]", "[1,null,null]"},
         {"[]", "[1]", "[1,null,null,null]", "[null,null]"}},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"}],\"items\":false,"
         "\"minItems\":1}",
         {"[1]"},
         {"[]", "[1,2]"}},
        {"{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"},"
         "\"maxItems\":2},\"minItems\":2,\"maxItems\":2,\"uniqueItems\":false}",
         {"[[],[1,2]]"},
         {"[[1,2,3],[]]", "[[]]", "[[],[],[]]"}},
        {"{\"type\":\"array\",\"items\":{\"type\":\"null\"},\"maxItems\":1000000000}",
         {"[]", "[null,null,null,null]"},
         {"[1]"}});
}

static void test_strings(void **state)
{
    (void)state;
    CHECK_CASES(
        {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
         {"\"ab\"", "\"abc\"", "\"\xc3\xa9\xf0\x9f\x98\x80\"", "\"\\u00e9\\n\"",
          "\"\\ud83d\\ude00x\""},
         {"\"\"", "\"a\"", "\"abcd\"", "\"\xc3\xa9\"", "\"\\u00e9\"", "\"\\ud83d\\ude00\""}},
        {"{\"type\":\"string\",\"maxLength\":1000000000}", {"\"\"", "\"abc\""}, {"1"}},
        {"{\"type\":\"string\",\"pattern\":\"^[a-z]+$\"}",
         {"\"a\"", "\"abc\""},
         {"\"\"", "\"A\"", "\"a1\"", "\"ab "}},
        {"{\"type\":\"string\",\"pattern\":\"b\"}",
         {"\"b\"", "\"abc\"",
          "\"\xc3\xa9"
          "b\\n\"",
          "\"bb\""},
         {"\"\"", "\"ac\""}},
        {"{\"type\":\"string\",\"pattern\":\"^(\\\\d{3}-)?\\\\d{4}$\"}",
         {"\"1234\"", "\"123-1234\""},
         {"\"123\"", "\"123-123\"", "\"1231234\""}},
        {"{\"type\":\"string\",\"pattern\":\"^a|b$\"}",
         {"\"a\"", "\"ax\"", "\"xb\"", "\"b\""},
         {"\"xa\"", "\"bx\""}},
        {"{\"type\":\"string\",\"pattern\":\"^[^a]$\"}",
         {"\"b\"", "\"\\\"\"", "\"\\\\\"", "\"\\n\"", "\"\\u0001\"", "\"\xe4\xbd\xa0\"",
          "\"\xf0\x9f\x98\x80\""},
         {"\"a\"", "\"\"", "\"bb\"", "\"\xed\xa0\x80\"", "\"\n\""}},
        {"{\"type\":\"string\",\"pattern\":\"^[^a-zc-d]$\"}",
         {"\"A\"", "\"{\"", "\"\\u007f\""},
         {"\"a\"", "\"x\"", "\"c\"", "\"\x7f\""}},
        {"{\"type\":\"string\",\"pattern\":\"^.$\"}",
         {"\"b\"", "\"\xe4\xbd\xa0\""},
         {"\"\\n\"", "\"\xe2\x80\xa8\""}},
        {"{\"type\":\"string\",\"pattern\":\"^\\\\w+@\\\\w+\\\\.com$\",\"maxLength\":8}",
         {"\"a@b.com\"", "\"aa@b.com\""},
         {"\"aaa@b.com\"", "\"aaa@"}},
        {"{\"type\":\"string\",\"pattern\":\"^a*$\",\"minLength\":2}",
         {"\"aa\"", "\"aaaaa\""},
         {"\"\"", "\"a\""}},
        {"{\"type\":\"string\",\"pattern\":\"^(?:x|yz){2,3}?\\\\x41[\\\\u0042-D-]\\\\/$\"}",
         {"\"xxAB/\"", "\"xyzxAD/\"", "\"yzyzA-/\""},
         {"\"xAB/\"", "\"xxxxAB/\"", "\"xxAE/\""}},
        {"{\"type\":\"string\",\"pattern\":\"^\xc3\xa9[\xce\xb1-\xcf\x89]+$\"}",
         {"\"\xc3\xa9\xce\xb1\xcf\x89\""},
         {"\"\xc3\xa9\"",
          "\"\xc3\xa9"
          "a\"",
          "\"\xc3\xa9\xcf\x8a\""}});
}

static void test_pattern_escapes(void **state)
{
    (void)state;
    CHECK_CASES({"{\"type\":\"string\",\"pattern\":\"^\\\\D\\\\W\\\\s\\\\S$\"}",
                 {"\"a- x\"", "\"\\n!\\t\xc3\xa9\""},
                 {"\"1- x\"", "\"aa x\"", "\"a-xx\"", "\"a-  \"", "\"a- \xc2\x85\""}},
                {"{\"type\":\"string\",\"pattern\":\"^[\\\\D][^\\\\W_][\\\\s-][\\\\S]$\"}",
                 {"\"xa-y\"", "\"-9 .\""},
                 {"\"1a-y\"", "\"x_-y\"", "\"xa.y\"", "\"xa- \""}},
                {"{\"type\":\"string\",\"pattern\":\"^\\\\u{1f600}"
                 "\\\\ud83d\\\\ude01\\\\x4a\\\\u00e9\\\\t\\\\cJ[\\\\b]\\\\.$\"}",
                 {"\"\xf0\x9f\x98\x80\xf0\x9f\x98\x81J\xc3\xa9\\t\\n\\u0008.\""},
                 {"\"\xf0\x9f\x98\x80\xf0\x9f\x98\x81J\xc3\xa9\\t\\n\\u0008x\""}},
                {"{\"type\":\"string\",\"pattern\":\"^(?<year>a|(b|c)+?)d{2}e{1,}f{0,1}$\"}",
                 {"\"adde\"", "\"bcbddeef\""},
                 {"\"de\"", "\"ade\"", "\"abdde\"", "\"addeff\""}},
                {"{\"type\":\"string\",\"pattern\":\"\"}", {"\"\"", "\"x\""}, {"1"}},
                {"{\"type\":\"string\",\"pattern\":\"^$|^(x|)$\"}", {"\"\"", "\"x\""}, {"\"y\""}});
}

static void test_formats(void **state)
{
    (void)state;
    CHECK_CASES(
        {"{\"type\":\"string\",\"format\":\"date\"}",
         {"\"2024-02-29\"", "\"2026-11-30\"", "\"2000-02-29\""},
         {"\"2023-02-29\"", "\"1900-02-29\"", "\"2026-11-31\"", "\"2026-13-01\"", "\"0000-01-01\"",
          "\"2026-1-1\""}},
        {"{\"type\":\"string\",\"format\":\"date-time\"}",
         {"\"2026-11-30T14:00:00Z\"", "\"2026-11-30T14:00:00.125+02:00\""},
         {"\"2026-11-30 14:00:00Z\"", "\"2026-11-30T24:00:00Z\"", "\"2026-11-30T14:00:00\""}},
        {"{\"type\":\"string\",\"format\":\"time\"}", {"\"23:59:59Z\""}, {"\"23:60:00Z\""}},
        {"{\"type\":\"string\",\"format\":\"duration\"}",
         {"\"P1D\"", "\"PT1H30M\"", "\"P2W\"", "\"P1Y2M3D\""},
         {"\"P\"", "\"PT\"", "\"1D\""}},
        {"{\"type\":\"string\",\"format\":\"email\"}",
         {"\"a.b+c@example.org\""},
         {"\"a@\"", "\"@b.c\"", "\"a..b@c.d\"", "\"a@b\""}},
        {"{\"type\":\"string\",\"format\":\"hostname\"}",
         {"\"a-b.example\"", "\"x\""},
         {"\"-a\"", "\"a-\"", "\"a..b\"", "\"\""}},
        {"{\"type\":\"string\",\"format\":\"ipv4\"}",
         {"\"0.0.0.0\"", "\"255.250.199.9\""},
         {"\"256.0.0.0\"", "\"1.2.3\"", "\"01.2.3.4\""}},
        {"{\"type\":\"string\",\"format\":\"ipv6\"}",
         {"\"::\"", "\"::1\"", "\"2001:db8::1\"", "\"1:2:3:4:5:6:7:8\"", "\"1::\""},
         {"\"1:2:3:4:5:6:7\"", "\"1::2::3\"", "\":::\"", "\"12345::\""}},
        {"{\"type\":\"string\",\"format\":\"uuid\"}",
         {"\"123e4567-e89b-12d3-a456-426614174000\""},
         {"\"123e4567e89b12d3a456426614174000\"", "\"\""}},
        {"{\"type\":\"string\",\"format\":\"uri\"}",
         {"\"https://example.org/a?b=c#d\""},
         {"\"example\"", "\"http://\"", "\"http://a b\""}},
        {"{\"type\":\"integer\",\"format\":\"int32\"}", {"1"}, {"\"1\""}});
}

static void test_numbers(void **state)
{
    (void)state;
    CHECK_CASES({"{\"type\":\"integer\",\"minimum\":-12,\"maximum\":105}",
                 {"-12", "-9", "-1", "0", "9", "99", "100", "105"},
                 {"-13", "-20", "106", "110", "200", "1000", "-0", "1.0"}},
                {"{\"type\":\"integer\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":10}",
                 {"1", "9"},
                 {"0", "10", "-1"}},
                {"{\"type\":\"integer\",\"minimum\":1.5}", {"2", "999"}, {"1", "0", "-2"}},
                {"{\"type\":\"integer\",\"maximum\":-5}", {"-5", "-6", "-100"}, {"-4", "0", "5"}},
                {"{\"type\":\"integer\",\"minimum\":0,\"maximum\":9223372036854775807}",
                 {"0", "123456789012345678"},
                 {"-1"}},
                {"{\"type\":\"integer\",\"multipleOf\":5,\"minimum\":-10,\"maximum\":200}",
                 {"-10", "-5", "0", "5", "100", "195"},
                 {"3", "-15", "205", "7", "101"}},
                {"{\"type\":\"number\",\"multipleOf\":0.25,\"maximum\":100}",
                 {"0", "0.25", "99.50", "99.5", "-3.0", "7"},
                 {"0.2", "0.250", "100.25", "1.1"}},
                {"{\"type\":\"integer\",\"multipleOf\":2.5}", {"0", "5", "-10"}, {"2", "2.5"}},
                {"{\"type\":\"number\",\"multipleOf\":7}", {"0", "7", "49", "-14"}, {"8", "7.5"}},
                {"{\"type\":\"number\",\"minimum\":0,\"maximum\":1}",
                 {"0", "0.5", "1", "1.0", "0.123456789", "0.0"},
                 {"-0.1", "1.1", "1.01", "2", "1e-3", "-1"}},
                {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":1}",
                 {"0.1", "0.001", "0.99"},
                 {"0", "0.0", "1", "1.0", "-0.1", "-0"}},
                {"{\"type\":\"number\",\"minimum\":-2.5,\"maximum\":12.25}",
                 {"-2.5", "-2.49", "-2.50", "-1", "0", "-0.0", "12.25", "12.2", "12", "9.999"},
                 {"-2.51", "-3", "12.26", "12.250000001", "13", "100"}},
                {"{\"type\":\"number\",\"exclusiveMaximum\":-1}",
                 {"-1.01", "-2", "-10"},
                 {"-1", "-1.0", "0"}},
                {"{\"type\":\"number\",\"minimum\":100}",
                 {"100", "100.5", "1000"},
                 {"99.9", "-100", "1e3"}});
}

static void test_literals(void **state)
{
    (void)state;
    CHECK_CASES(
        {"{\"enum\":[\"a\",\"ab\",\"\xc3\xa9\xc3\xa9\xc3\xa9\",7,null],\"minLength\":2,"
         "\"maxLength\":3}",
         {"\"ab\"", "\"\xc3\xa9\xc3\xa9\xc3\xa9\"", "7", "null"},
         {"\"a\""}},
        {"{\"enum\":[1,2,3,4.5,\"x\"],\"minimum\":2,\"exclusiveMaximum\":4.5}",
         {"2", "3", "\"x\""},
         {"1", "4.5"}},
        {"{\"allOf\":[{\"enum\":[\"a\",\"abc\"]},{\"maxLength\":2}]}", {"\"a\""}, {"\"abc\""}},
        {"{\"enum\":[\"a\",\"ab\",1,12,-0.5,null,true,[1,{\"b\":2}]]}",
         {"\"a\"", "\"ab\"", "1", "12", "-0.5", "null", "true", "[1,{\"b\":2}]", "[1, {\"b\": 2}]"},
         {"\"b\"", "\"abc\"", "2", "false", "[1]", "123"}},
        {"{\"type\":\"string\",\"enum\":[\"a\",1]}", {"\"a\""}, {"1"}},
        {"{\"const\":\"x\\u0001\\\"\"}", {"\"x\\u0001\\\"\""}, {"\"x\""}},
        {"{\"enum\":[1,2],\"const\":2}", {"2"}, {"1"}},
        {"{\"const\":{\"a\":[],\"b\":1.5}}", {"{\"a\":[],\"b\":1.5}"}, {"{\"b\":1.5,\"a\":[]}"}},
        {"{\"enum\":[0.1,100000,1e15,3],\"type\":\"integer\"}", {"3", "100000"}, {"0.1"}});
}

static void test_alternatives_and_references(void **state)
{
    (void)state;
    CHECK_CASES(
        {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\"},{\"type\":\"array\",\"items\":{"
         "\"type\":\"null\"},\"maxItems\":1}]}",
         {"1", "\"a\"", "[null]"},
         {"null", "[1]", "[null,null]"}},
        {"{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"t\":{\"const\":\"a\"},\"x\":{\"type\":"
         "\"integer\"}},\"required\":[\"t\",\"x\"]},{\"type\":\"object\",\"properties\":{\"t\":{"
         "\"const\":\"b\"},\"y\":{\"type\":\"string\"}},\"required\":[\"t\",\"y\"]}]}",
         {"{\"t\":\"a\",\"x\":1}", "{\"t\": \"b\", \"y\": \"z\"}"},
         {"{\"t\":\"a\",\"y\":\"z\"}", "{\"t\":\"b\",\"x\":1}", "{\"t\":\"c\"}"}},
        {"{\"$defs\":{\"node\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},"
         "\"next\":{\"anyOf\":[{\"$ref\":\"#/$defs/node\"},{\"type\":\"null\"}]}},\"required\":["
         "\"v\",\"next\"]}},\"$ref\":\"#/$defs/node\"}",
         {"{\"v\":1,\"next\":null}",
          "{\"v\":1,\"next\":{\"v\":2,\"next\":{\"v\":3,\"next\":null}}}"},
         {"{\"v\":1}", "{\"v\":1,\"next\":{}}", "{\"v\":1,\"next\":{\"v\":2}}"}},
        {"{\"type\":\"object\",\"properties\":{\"kids\":{\"type\":\"array\",\"items\":{\"$ref\":"
         "\"#\"}}},\"required\":[\"kids\"]}",
         {"{\"kids\":[]}", "{\"kids\":[{\"kids\":[]},{\"kids\":[{\"kids\":[]}]}]}"},
         {"{\"kids\":[1]}", "{\"kids\":[{}]}"}},
        {"{\"definitions\":{\"a/b\":{\"type\":\"integer\"},\"c~d\":{\"$ref\":\"#/definitions/"
         "a~1b\"}},\"type\":\"array\",\"items\":{\"$ref\":\"#/definitions/c~0d\",\"description\":"
         "\"x\"}}",
         {"[1]"},
         {"[\"a\"]"}},
        {"{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", {"null"}, {"1"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":"
         "\"integer\"}},\"anyOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}",
         {"{\"a\":1}", "{\"b\":1}", "{\"a\":1,\"b\":2}"},
         {"{}"}},
        {"{\"anyOf\":[{\"type\":\"number\",\"minimum\":5},{\"const\":\"x\"}],\"type\":[\"string\","
         "\"number\"]}",
         {"5", "\"x\""},
         {"4", "\"y\""}},
        {"{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"c\":{"
         "\"minimum\":3}},\"required\":[\"a\"]},{\"properties\":{\"b\":{\"type\":\"string\"},\"c\":"
         "{"
         "\"type\":\"integer\",\"maximum\":5}},\"required\":[\"b\"]}]}",
         {"{\"a\":1,\"b\":\"x\"}", "{\"a\":1,\"c\":4,\"b\":\"x\"}"},
         {"{\"a\":1}", "{\"b\":\"x\"}", "{\"a\":1,\"c\":6,\"b\":\"x\"}",
          "{\"a\":1,\"c\":2,\"b\":\"x\"}"}},
        {"{\"$defs\":{\"p\":{\"type\":\"string\",\"minLength\":2}},\"$ref\":\"#/$defs/p\","
         "\"maxLength\":3}",
         {"\"ab\"", "\"abc\""},
         {"\"a\"", "\"abcd\""}},
        {"{\"allOf\":[{\"type\":[\"integer\",\"null\"]},{\"type\":[\"number\",\"string\"]}]}",
         {"1"},
         {"1.5", "null", "\"a\""}},
        {"{\"allOf\":[{\"items\":{\"type\":\"integer\"},\"minItems\":1},{\"items\":{\"maximum\":5},"
         "\"minItems\":2,\"maxItems\":3},{\"type\":\"array\"}]}",
         {"[1,5]", "[1,2,-3]"},
         {"[1]", "[1,6]", "[1,2.5]", "[1,2,3,4]"}},
        {"{\"allOf\":[{\"additionalProperties\":{\"type\":\"integer\"}},{\"additionalProperties\":{"
         "\"minimum\":3}},{\"additionalProperties\":true}]}",
         {"{}", "{\"x\":3}"},
         {"{\"x\":2}", "{\"x\":3.5}"}},
        {"{\"allOf\":[{\"properties\":{\"a\":{}},\"additionalProperties\":false},{\"properties\":{"
         "\"a\":{\"type\":\"null\"},\"b\":{}}}]}",
         {"{}", "{\"a\":null}"},
         {"{\"a\":1}", "{\"b\":1}"}},
        {"{\"allOf\":[{\"enum\":[1,2,3]},{\"enum\":[2,3,4]}]}", {"2", "3"}, {"1", "4"}});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_white_space_is_bounded),
        cmocka_unit_test(test_objects),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_pattern_escapes),
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_literals),
        cmocka_unit_test(test_alternatives_and_references),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
