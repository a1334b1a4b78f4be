/* Several answers to one question (n), and the log-probabilities of raw answers: each choice is the
 * answer that it would be alone, all are admitted or none, and none outlives the others' failure.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/cluster.h"

enum { N = 4 };

#define STREAM ",\"stream\":true,\"stream_options\":{\"include_usage\":true}"
/* A seed whose answers have no NUL in them: cJSON's strings end there. */
#define SEEDED ",\"max_tokens\":40,\"temperature\":1,\"seed\":11,\"ignore_eos\":true"

static int start_shared(void **state)
{
    (void)state;
    return e2e_shared_setup(cluster_simple);
}

/* What came for each choice, from a body of either kind. */
typedef struct choices {
    td_buf text[N]; /* content, reasoning and raw text, as they came */
    char finish[N][16];
    size_t n_roles[N], n, after[N];
} choices;

static void take_text(td_buf *b, const cJSON *v)
{
    if (cJSON_IsString(v))
        td_buf_str(b, v->valuestring);
}

static void take_choice(choices *out, const cJSON *choice)
{
    const cJSON *m = cJSON_GetObjectItem(choice, "delta");
    const cJSON *finish = cJSON_GetObjectItem(choice, "finish_reason");
    size_t i = (size_t)cJSON_GetObjectItem(choice, "index")->valueint;

    assert_true(i < N);
    if (m == NULL)
        m = cJSON_GetObjectItem(choice, "message");
    if (i >= out->n)
        out->n = i + 1;
    out->after[i] += out->finish[i][0] != '\0';
    take_text(&out->text[i], cJSON_GetObjectItem(choice, "text"));
    take_text(&out->text[i], cJSON_GetObjectItem(m, "reasoning"));
    take_text(&out->text[i], cJSON_GetObjectItem(m, "content"));
    out->n_roles[i] += cJSON_GetObjectItem(m, "role") != NULL;
    if (cJSON_IsString(finish))
        snprintf(out->finish[i], sizeof out->finish[i], "%s", finish->valuestring);
}

static void take_json(choices *out, const char *json)
{
    cJSON *root = cJSON_Parse(json);
    const cJSON *choice;

    assert_non_null(root);
    cJSON_ArrayForEach(choice, cJSON_GetObjectItem(root, "choices")) take_choice(out, choice);
    cJSON_Delete(root);
}

/* The answer of a good request. */
static void read_choices(const ask *a, choices *out)
{
    char *copy, *line, *rest;

    *out = (choices){0};
    if (a->status != 200 || a->cut || a->error != NULL || (a->stream && !a->done))
        fail_msg("status %d: %.500s", a->status, a->body.ptr ? a->body.ptr : "");
    if (!a->stream) {
        take_json(out, a->body.ptr);
        return;
    }
    copy = strdup(a->body.ptr);
    for (line = strtok_r(copy, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
        if (strncmp(line, "data: {", 7) == 0)
            take_json(out, line + 6);
    free(copy);
}

static void free_choices(choices *c)
{
    for (size_t i = 0; i < N; i++)
        td_buf_free(&c->text[i]);
}

static void start(ask *a, uint16_t port, const char *path, const char *body)
{
    ask_start(a, port, "POST", path, "Content-Type: application/json\r\n", body, strlen(body));
}

/* Ask for n choices and read them. */
static void ask_choices(cluster *c, bool raw, int n, const char *extra, ask *a, choices *out)
{
    char body[1024];

    if (raw)
        snprintf(body, sizeof body, "{\"prompt\":\"Once upon\",\"n\":%d%s}", n, extra);
    else
        snprintf(body, sizeof body,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"n\":%d%s}", n, extra);
    start(a, cluster_port(c), raw ? "/v1/completions" : "/v1/chat/completions", body);
    asks_wait(a, 1);
    read_choices(a, out);
    assert_int_equal(out->n, n);
}

static void check_choices(cluster *c, bool raw)
{
    ask alone, whole, again, stream;
    choices one, w, g, s;

    ask_choices(c, raw, 1, SEEDED, &alone, &one);
    ask_choices(c, raw, N, SEEDED, &whole, &w);
    ask_choices(c, raw, N, SEEDED, &again, &g);
    ask_choices(c, raw, N, SEEDED STREAM, &stream, &s);
    assert_string_equal(w.text[0].ptr, one.text[0].ptr);
    for (size_t i = 0; i < N; i++) {
        assert_string_equal(w.text[i].ptr, g.text[i].ptr);
        assert_string_equal(w.text[i].ptr, s.text[i].ptr);
        assert_string_equal(w.finish[i], "length");
        assert_string_equal(s.finish[i], "length");
        assert_int_equal(s.n_roles[i], raw ? 0 : 1);
        assert_int_equal(s.after[i], 0);
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(w.text[i].ptr, w.text[k].ptr);
    }
    assert_true(ask_usage(&whole, "prompt_tokens") == ask_usage(&alone, "prompt_tokens"));
    assert_true(ask_usage(&whole, "completion_tokens") == N * 40);
    assert_true(ask_usage(&whole, "total_tokens") == ask_usage(&whole, "prompt_tokens") + N * 40);
    assert_true(ask_usage(&stream, "completion_tokens") == N * 40);
    assert_int_equal(stream.n_usages, 1);
    assert_false(stream.after_done);
    free_choices(&one);
    free_choices(&w);
    free_choices(&g);
    free_choices(&s);
    ask_free(&alone);
    ask_free(&whole);
    ask_free(&again);
    ask_free(&stream);
}

static void test_choices_of_a_chat(cluster *c)
{
    check_choices(c, false);
}

static void test_choices_of_a_prompt(cluster *c)
{
    check_choices(c, true);
}

/* Greedy answers are one answer; without a seed they are still drawn apart. */
static void test_choices_without_a_seed(cluster *c)
{
    ask a, b;
    choices greedy, free_;

    ask_choices(c, true, 2, ",\"max_tokens\":20,\"temperature\":0,\"ignore_eos\":true", &a,
                &greedy);
    assert_string_equal(greedy.text[0].ptr, greedy.text[1].ptr);
    ask_choices(c, true, 2, ",\"max_tokens\":40,\"ignore_eos\":true", &b, &free_);
    assert_string_not_equal(free_.text[0].ptr, free_.text[1].ptr);
    free_choices(&greedy);
    free_choices(&free_);
    ask_free(&a);
    ask_free(&b);
}

/* Each choice ends for its own reason. */
static void test_choices_end_each_for_itself(cluster *c)
{
    char extra[256], stop[16];
    ask a, b;
    choices all, some;
    size_t n = 0, at = 0;

    ask_choices(c, true, N, SEEDED, &a, &all);
    /* A character that the second has in its middle, and with luck not all others. */
    at = all.text[1].len / 2;
    while (((unsigned char)all.text[1].ptr[at] & 0xc0) == 0x80)
        at++;
    while (n < 12 && at + n < all.text[1].len &&
           (n < 8 || ((unsigned char)all.text[1].ptr[at + n] & 0xc0) == 0x80)) {
        stop[n] = all.text[1].ptr[at + n];
        n++;
    }
    stop[n] = '\0';
    {
        cJSON *s = cJSON_CreateString(stop);
        char *json = cJSON_PrintUnformatted(s);

        snprintf(extra, sizeof extra, SEEDED STREAM ",\"stop\":%s", json);
        free(json);
        cJSON_Delete(s);
    }
    ask_choices(c, true, N, extra, &b, &some);
    for (size_t i = 0; i < N; i++) {
        const char *found = strstr(all.text[i].ptr, stop);
        size_t len = found != NULL ? (size_t)(found - all.text[i].ptr) : all.text[i].len;

        assert_string_equal(some.finish[i], found != NULL ? "stop" : "length");
        assert_int_equal(some.text[i].len, len);
        assert_memory_equal(some.text[i].ptr ? some.text[i].ptr : "", all.text[i].ptr, len);
    }
    assert_string_equal(some.finish[1], "stop");
    free_choices(&all);
    free_choices(&some);
    ask_free(&a);
    ask_free(&b);
}

/* ---- bounds ---- */

static void refused(cluster *c, const char *body, int status, const char *param, const char *says)
{
    ask a;

    start(&a, cluster_port(c), "/v1/chat/completions", body);
    asks_wait(&a, 1);
    if (a.status != status || strcmp(ask_error(&a, "param"), param) != 0 ||
        strstr(ask_error(&a, "message"), says) == NULL)
        fail_msg("not a %d of \"%s\": status %d, %s", status, param, a.status, a.body.ptr);
    ask_free(&a);
}

#define HI "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"ignore_eos\":true,"

/* Each counts; all come in or none. */
static void test_choices_are_admitted_together(cluster *c)
{
    ask running, fits;
    choices two;

    cluster_router(c, "--max-requests 3 --max-tokens-inside 1500");
    cluster_prefill(c, "");
    cluster_decode(c, "");
    cluster_ready(c);
    refused(c, HI "\"n\":4}", 400, "n", "at most 3");
    refused(c, HI "\"n\":2.5}", 400, "n", "whole");
    ask_chat(&running, cluster_port(c), &(want){.max_tokens = 900, .stream = true});
    ASKS_UNTIL(running.n_pieces > 1, &running, 1);
    refused(c, HI "\"n\":3,\"max_tokens\":5}", 429, "", "full");
    refused(c, HI "\"n\":2,\"max_tokens\":400}", 429, "", "tokens");
    assert_true(process_metric(c->router, "vllm:num_requests_running") == 1);
    ask_choices(c, false, 2, ",\"max_tokens\":10,\"ignore_eos\":true", &fits, &two);
    assert_true(process_metric(c->router, "vllm:num_requests_running") == 1);
    free_choices(&two);
    ask_free(&fits);
    ask_free(&running);
}

/* Where there is room for one at a time the others wait for it, past --queue-timeout. */
static void test_choices_wait_for_each_other(cluster *c)
{
    ask a;
    choices three;

    cluster_router(c, "--queue-timeout 50ms");
    cluster_prefill(c, "");
    cluster_decode(c, "--max-batch 1 --max-reservations 1");
    cluster_ready(c);
    ask_choices(c, true, 3, ",\"max_tokens\":300,\"seed\":1,\"ignore_eos\":true", &a, &three);
    assert_true(ask_usage(&a, "completion_tokens") == 900);
    free_choices(&three);
    ask_free(&a);
}

/* ---- ends before the time ---- */

/* Long enough not to be over before something happens to it. */
static void start_long(cluster *c, ask *a, int max_tokens, const char *extra)
{
    char body[512];

    snprintf(body, sizeof body, HI "\"n\":%d,\"max_tokens\":%d,\"temperature\":1,\"seed\":3%s}", N,
             max_tokens, extra);
    start(a, cluster_port(c), "/v1/chat/completions", body);
}

static void test_choices_go_with_their_client(cluster *c)
{
    process *decode;
    ask a, b;

    cluster_router(c, "");
    cluster_prefill(c, "");
    decode = cluster_decode(c, "");
    cluster_ready(c);
    start_long(c, &a, 6000, STREAM);
    ASKS_UNTIL(a.n_roles == N && a.n_pieces > 20, &a, 1);
    ask_free(&a);
    cluster_await_nothing_held(c, decode);
    start_long(c, &b, 6000, ""); /* a whole answer */
    E2E_AWAIT(process_metric(decode, "vllm:num_requests_running") == N);
    ask_free(&b);
    cluster_await_nothing_held(c, decode);
    assert_true(process_metric(c->router,
                               "vllm:request_success_total{finished_reason=\"abort\"}") == 2 * N);
}

/* A router that ends at once cuts its connections after its loop has stopped. */
static void test_choices_go_with_their_router(cluster *c)
{
    process *router = cluster_router(c, "");
    ask a[2];

    cluster_prefill(c, "");
    cluster_decode(c, "");
    cluster_ready(c);
    start_long(c, &a[0], 6000, STREAM);
    start_long(c, &a[1], 6000, "");
    ASKS_UNTIL(a[0].n_roles == N && a[0].n_pieces > 20, a, 2);
    process_signal(router, SIGTERM);
    E2E_AWAIT(process_logged(router, " draining "));
    assert_int_equal(process_insist(router, SIGTERM, EXIT_DEADLINE_MS), 0);
    asks_wait(a, 2);
    assert_true(a[0].cut && a[1].cut);
    asks_free(a, 2);
}

/* Two decode workers, a part of the choices on each; one dies, and there is no retry. */
static void lose_one(cluster *c, bool stream)
{
    process *one = cluster_decode(c, "--max-batch 2"), *other;
    ask a;

    other = cluster_decode(c, "--max-batch 2");
    cluster_ready(c);
    start_long(c, &a, 6000, stream ? STREAM : "");
    if (stream)
        ASKS_UNTIL(a.n_roles == N, &a, 1);
    E2E_AWAIT(process_metric(one, "vllm:num_requests_running") > 0 &&
              process_metric(other, "vllm:num_requests_running") > 0);
    process_kill(one);
    asks_wait(&a, 1);
    if (stream) {
        assert_true(a.status == 200 && a.error != NULL && a.cut);
        assert_false(a.done);
    } else {
        assert_int_equal(a.status, 503);
        assert_string_equal(ask_error(&a, "type"), "service_unavailable_error");
    }
    cluster_await_nothing_held(c, other);
    process_stop(other, EXIT_DEADLINE_MS);
    ask_free(&a);
}

static void test_choices_fail_together(cluster *c)
{
    cluster_router(c, "--retries 0");
    cluster_prefill(c, "");
    lose_one(c, true);
    lose_one(c, false);
}

/* With a retry each goes on elsewhere, as what it would have been. */
static void test_choices_survive_a_worker(cluster *c)
{
    process *one, *other;
    ask a, b;
    choices before, after;

    cluster_router(c, "");
    cluster_prefill(c, "");
    one = cluster_decode(c, "");
    cluster_ready(c);
    start_long(c, &a, 800, STREAM);
    asks_wait(&a, 1);
    read_choices(&a, &before);
    other = cluster_decode(c, "");
    cluster_ready(c);
    start_long(c, &b, 800, STREAM);
    ASKS_UNTIL(b.n_roles == N, &b, 1);
    E2E_AWAIT(process_metric(one, "vllm:num_requests_running") > 0 ||
              process_metric(other, "vllm:num_requests_running") > 0);
    process_kill(process_metric(one, "vllm:num_requests_running") > 0 ? one : other);
    asks_wait(&b, 1);
    read_choices(&b, &after);
    for (size_t i = 0; i < N; i++)
        assert_string_equal(before.text[i].ptr, after.text[i].ptr);
    assert_true(process_metric(c->router, "tandem:request_retries_total") >= 1);
    free_choices(&before);
    free_choices(&after);
    ask_free(&a);
    ask_free(&b);
}

/* ---- log-probabilities of /v1/completions ---- */

static const cJSON *list_of(const ask *a, const char *name)
{
    const cJSON *choice = cJSON_GetArrayItem(cJSON_GetObjectItem(a->root, "choices"), 0);

    return cJSON_GetObjectItem(cJSON_GetObjectItem(choice, "logprobs"), name);
}

static size_t count_chars(const char *text, size_t n)
{
    size_t chars = 0;

    for (size_t i = 0; i < n; i++)
        chars += ((unsigned char)text[i] & 0xc0) != 0x80;
    return chars;
}

/* Four lists that fit together: up to the first token that is a part of a character, the tokens are
 * the text, and each is where it says. */
static void test_logprobs_of_a_completion(cluster *c)
{
    ask a, stream;
    choices text;
    const cJSON *tokens, *values, *top, *offsets, *t, *rival;
    const char *e;
    size_t bytes = 0, n, i = 0, streamed = 0;
    bool valid = true;

    ask_choices(c, true, 1, SEEDED ",\"logprobs\":3", &a, &text);
    tokens = list_of(&a, "tokens");
    values = list_of(&a, "token_logprobs");
    top = list_of(&a, "top_logprobs");
    offsets = list_of(&a, "text_offset");
    n = (size_t)cJSON_GetArraySize(tokens);
    assert_in_range(n, 30, 40); /* special tokens are not shown */
    assert_int_equal(cJSON_GetArraySize(values), n);
    assert_int_equal(cJSON_GetArraySize(top), n);
    assert_int_equal(cJSON_GetArraySize(offsets), n);
    cJSON_ArrayForEach(t, tokens)
    {
        const cJSON *rivals = cJSON_GetArrayItem(top, (int)i);
        double value = cJSON_GetArrayItem(values, (int)i)->valuedouble;
        int at = cJSON_GetArrayItem(offsets, (int)i)->valueint;

        assert_in_range(cJSON_GetArraySize(rivals), 3, 4);
        assert_non_null(cJSON_GetObjectItemCaseSensitive(rivals, t->valuestring));
        assert_true(cJSON_GetObjectItemCaseSensitive(rivals, t->valuestring)->valuedouble == value);
        cJSON_ArrayForEach(rival, rivals) assert_true(rival->valuedouble <= 0);
        valid = valid && strncmp(t->valuestring, "bytes:", 6) != 0;
        if (valid) {
            size_t len = strlen(t->valuestring);

            assert_int_equal(at, count_chars(text.text[0].ptr, bytes));
            assert_memory_equal(text.text[0].ptr + bytes, t->valuestring, len);
            bytes += len;
        }
        assert_true(i == 0 || at >= cJSON_GetArrayItem(offsets, (int)i - 1)->valueint);
        i++;
    }
    /* A stream has the same, piece by piece. */
    {
        char body[512];

        snprintf(body, sizeof body, "{\"prompt\":\"Once upon\"%s}",
                 SEEDED STREAM ",\"logprobs\":3");
        start(&stream, cluster_port(c), "/v1/completions", body);
        asks_wait(&stream, 1);
        assert_true(stream.done);
    }
    for (e = stream.body.ptr; (e = strstr(e, "\"text_offset\":[")) != NULL; e++) {
        for (const char *p = e + 15; *p != ']'; p++) {
            char *end;

            assert_int_equal(strtol(p, &end, 10),
                             cJSON_GetArrayItem(offsets, (int)streamed)->valueint);
            streamed++;
            p = end;
            if (*p == ']')
                break;
        }
    }
    assert_int_equal(streamed, n);
    assert_true(bytes > 0);
    free_choices(&text);
    ask_free(&a);
    ask_free(&stream);
}

int main(void)
{
    const struct CMUnitTest shared[] = {
        E2E_SHARED(test_choices_of_a_chat),        E2E_SHARED(test_choices_of_a_prompt),
        E2E_SHARED(test_choices_without_a_seed),   E2E_SHARED(test_choices_end_each_for_itself),
        E2E_SHARED(test_logprobs_of_a_completion),
    };
    const struct CMUnitTest alone[] = {
        E2E_TEST(test_choices_are_admitted_together), E2E_TEST(test_choices_wait_for_each_other),
        E2E_TEST(test_choices_go_with_their_client),  E2E_TEST(test_choices_go_with_their_router),
        E2E_TEST(test_choices_fail_together),         E2E_TEST(test_choices_survive_a_worker),
    };
    int failed = cmocka_run_group_tests(shared, start_shared, e2e_shared_teardown);

    return failed + cmocka_run_group_tests(alone, NULL, NULL);
}
