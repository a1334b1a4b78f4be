/* Failures that users of comparable servers reported and that come in by a request body: each gets
 * the answer that it should have had. Small bodies are in tests/data/cases and tests/data/harmony,
 * large ones are made here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/cluster.h"

#define CASE_MODEL "gpt-oss-20b" /* as the cases name it */

static void make_cluster(cluster *c)
{
    cluster_router(c, "");
    cluster_prefill(c, "--model-name " CASE_MODEL);
    cluster_decode(c, "--model-name " CASE_MODEL);
    cluster_ready(c);
}

static int start_shared(void **state)
{
    (void)state;
    return e2e_shared_setup(make_cluster);
}

static char *read_case(const char *name)
{
    static const char *const folders[] = {"tests/data/cases", "tests/data/harmony"};
    char path[96], *text = calloc(1, 65536);

    assert_non_null(text);
    for (size_t i = 0; i < 2; i++) {
        FILE *f;

        snprintf(path, sizeof path, "%s/%s.json", folders[i], name);
        f = fopen(path, "r");
        if (f == NULL)
            continue;
        assert_true(fread(text, 1, 65535, f) > 0);
        fclose(f);
        return text;
    }
    fail_msg("case %s is missing", name);
    return NULL;
}

static void post_case(cluster *c, const char *name, ask *a)
{
    char *body = read_case(name);

    ask_post(a, cluster_port(c), body);
    asks_wait(a, 1);
    free(body);
}

/* Those that must be taken, and answered whole. */
static void test_cases_accepted(cluster *c)
{
    static const char *const names[] = {"C005", "C013", "C015", "C017",  "C018", "C020",
                                        "C023", "C042", "C044", "C054a", "C054d"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        ask a;

        post_case(c, names[i], &a);
        if (a.status != 200)
            fail_msg("%s: status %d, %s", names[i], a.status, a.body.ptr);
        ask_assert_good(&a);
        assert_null(strstr(a.content.ptr ? a.content.ptr : "", "<|"));
        assert_null(strstr(a.content.ptr ? a.content.ptr : "", "DEFGHIJ"));
        ask_free(&a);
    }
}

static void test_cases_refused(cluster *c)
{
    static const struct {
        const char *name, *param, *says;
    } refused[] = {
        {"C046a", "max_tokens", "131072"},           {"C046c", "max_tokens", "between 1"},
        {"C052c", "stream_options", "stream"},       {"C054b", "", "JSON"},
        {"C054c", "temperature", "between 0 and 2"}, {"C060", "max_tokens", "a string"}};

    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        ask a;

        post_case(c, refused[i].name, &a);
        if (a.status != 400 || strcmp(ask_error(&a, "param"), refused[i].param) != 0 ||
            strstr(ask_error(&a, "message"), refused[i].says) == NULL)
            fail_msg("%s: status %d, %s", refused[i].name, a.status, a.body.ptr);
        ask_free(&a);
    }
}

/* C048 and C060b set no limit: the answer may fill the context, so only its beginning is waited
 * for. */
static void test_cases_without_a_limit(cluster *c)
{
    static const char *const names[] = {"C048", "C060b"};

    for (size_t i = 0; i < 2; i++) {
        char *body = read_case(names[i]);
        char *brace = strrchr(body, '}');
        ask a;

        snprintf(brace, 64, ",\"stream\":true}");
        ask_post(&a, cluster_port(c), body);
        ASKS_UNTIL(a.n_events > 0, &a, 1);
        assert_int_equal(a.status, 200);
        ask_free(&a);
        free(body);
    }
}

/* A named tool is called, and nothing else, in both modes alike. */
static void test_case_named_tool(cluster *c)
{
    char *body = read_case("C050");
    ask a[2];

    for (int streamed = 0; streamed < 2; streamed++) {
        /* The second is the first and one member more. */
        snprintf(strrchr(body, '}'), 64, ",%s}",
                 streamed ? "\"stream\":true" : "\"temperature\":0");
        ask_post(&a[streamed], cluster_port(c), body);
        asks_wait(&a[streamed], 1);
        ask_assert_good(&a[streamed]);
        assert_int_equal(a[streamed].n_calls, 1);
        assert_string_equal(a[streamed].calls[0].name, "calc");
        assert_int_equal(a[streamed].content.len, 0);
    }
    assert_true(a[0].content_null);
    ask_assert_same(&a[0], &a[1]);
    asks_free(a, 2);
    free(body);
}

static void test_cases_of_usage(cluster *c)
{
    ask a;

    post_case(c, "C052a", &a);
    ask_assert_good(&a);
    assert_null(strstr(a.body.ptr, "usage"));
    ask_free(&a);

    post_case(c, "C052b", &a);
    ask_assert_good(&a);
    assert_int_equal(a.n_usages, 1);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(a.root, "choices")), 0);
    assert_true(ask_usage(&a, "completion_tokens") >= 1);
    assert_true(ask_usage(&a, "completion_tokens") <= 64);
    ask_free(&a);
}

/* C058: nesting. C046b, C003, C001: length, while other requests go on. */
static void test_cases_of_size(cluster *c)
{
    td_buf deep = {0}, long_prompt = {0}, zs = {0}, carets = {0};
    td_buf *const bodies[] = {&deep, &long_prompt, &zs, &carets};
    ask a[4], other;
    int n_tokens;

    td_buf_str(&deep, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"x\":");
    for (int i = 0; i < 20000; i++)
        td_buf_byte(&deep, '[');
    for (int i = 0; i < 20000; i++)
        td_buf_byte(&deep, ']');
    td_buf_byte(&deep, '}');

    td_buf_str(&long_prompt, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < 140000; i++)
        td_buf_str(&long_prompt, "a ");
    td_buf_str(&long_prompt, "\"}]}");

    td_buf_str(&zs, "{\"messages\":[{\"role\":\"user\",\"content\":\"Run it.\"},{\"role\":"
                    "\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"c1\",\"type\":"
                    "\"function\",\"function\":{\"name\":\"run\",\"arguments\":\"{}\"}}]},"
                    "{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"");
    for (int i = 0; i < 131072; i++)
        td_buf_byte(&zs, 'Z');
    td_buf_str(&zs, "\"}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"run\"}}],"
                    "\"max_tokens\":8}");

    td_buf_str(&carets, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < 200000; i++)
        td_buf_byte(&carets, '^');
    td_buf_str(&carets, "\"}],\"max_tokens\":8}");

    for (size_t i = 0; i < 4; i++)
        ask_post(&a[i], cluster_port(c), bodies[i]->ptr);
    ask_whole(&other, cluster_port(c), &(want){.max_tokens = 4});
    ask_assert_good(&other);
    asks_wait(a, 4);
    assert_int_equal(a[0].status, 400);
    assert_non_null(strstr(ask_error(&a[0], "message"), "nests deeper"));
    assert_int_equal(a[1].status, 400);
    assert_string_equal(ask_error(&a[1], "param"), "messages");
    assert_int_equal(sscanf(ask_error(&a[1], "message"), "the prompt is %d tokens", &n_tokens), 1);
    assert_true(n_tokens >= 140000); /* the real number, not one cut off at the limit */
    assert_non_null(strstr(ask_error(&a[1], "message"), "131072"));
    for (size_t i = 2; i < 4; i++) { /* longer than the workers' pools of pages */
        assert_int_equal(a[i].status, 400);
        assert_non_null(strstr(ask_error(&a[i], "message"), "tokens"));
    }
    asks_free(a, 4);
    ask_free(&other);
    for (size_t i = 0; i < 4; i++)
        td_buf_free(bodies[i]);
}

/* C056: the client's id is a label, ours tell requests apart. */
static void test_case_same_request_id(cluster *c)
{
    static const char header[] = "X-Request-Id: the-same\r\n";
    td_buf one = {0}, two = {0};
    ask a[2], alone[2];

    want_body(&(want){.prompt = "first", .max_tokens = 30}, &one);
    want_body(&(want){.prompt = "second", .max_tokens = 30}, &two);
    ask_post(&alone[0], cluster_port(c), one.ptr);
    asks_wait(&alone[0], 1);
    ask_post(&alone[1], cluster_port(c), two.ptr);
    asks_wait(&alone[1], 1);
    for (int round = 0; round < 2; round++) { /* the second is a retry right after the first */
        ask_start(&a[0], cluster_port(c), "POST", "/v1/chat/completions", header, one.ptr, one.len);
        ask_start(&a[1], cluster_port(c), "POST", "/v1/chat/completions", header, two.ptr, two.len);
        asks_wait(a, 2);
        for (int i = 0; i < 2; i++) {
            ask_assert_same(&a[i], &alone[i]);
            assert_string_equal(ask_header(&a[i], "X-Request-Id"), "the-same");
        }
        assert_string_not_equal(a[0].id, a[1].id);
        asks_free(a, 2);
    }
    asks_free(alone, 2);
    td_buf_free(&one);
    td_buf_free(&two);
}

/* Whatever went on before: nothing is left of it. */
static void test_nothing_is_left(cluster *c)
{
    E2E_AWAIT(process_metric(c->router, "vllm:num_requests_running") == 0);
    for (size_t i = 0; i < c->n; i++) {
        process *p = &c->all[i];

        if (strcmp(p->program, "decode") == 0)
            E2E_AWAIT(decode_is_empty(p));
        if (strcmp(p->program, "prefill") == 0)
            E2E_AWAIT(prefill_is_empty(p));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_SHARED(test_cases_accepted),        E2E_SHARED(test_cases_refused),
        E2E_SHARED(test_cases_without_a_limit), E2E_SHARED(test_case_named_tool),
        E2E_SHARED(test_cases_of_usage),        E2E_SHARED(test_cases_of_size),
        E2E_SHARED(test_case_same_request_id),  E2E_SHARED(test_nothing_is_left),
    };

    return cmocka_run_group_tests(tests, start_shared, e2e_shared_teardown);
}
