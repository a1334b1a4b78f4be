/* What a request may change about the choice of tokens, and log-probabilities, through a whole
 * system: bias, penalties that outlive a worker, values that belong to the text beside them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/e2e/cluster.h"

static process *few_at_a_time; /* a second router, whose reservations hold 16 tokens */

static void make_cluster(cluster *c)
{
    cluster_router(c, "");
    few_at_a_time = cluster_second_router(c, "--reserve-tokens 16");
    cluster_prefill(c, "");
    cluster_decode(c, "");
    cluster_ready(c);
    E2E_AWAIT(http_get(few_at_a_time->port, "/ready", NULL) == 200);
}

static int start_shared(void **state)
{
    (void)state;
    return e2e_shared_setup(make_cluster);
}

/* ---- log-probabilities of an answer, whole or streamed ---- */

enum { MAX_TOKENS = 64 };

typedef struct token_list {
    cJSON *roots[4 * MAX_TOKENS];
    size_t n_roots;
    const cJSON *tokens[MAX_TOKENS];
    size_t n;
} token_list;

static void add_tokens(token_list *l, cJSON *root)
{
    const cJSON *choice = cJSON_GetArrayItem(cJSON_GetObjectItem(root, "choices"), 0);
    const cJSON *logprobs = cJSON_GetObjectItem(choice, "logprobs"), *t;

    assert_true(l->n_roots < 4 * MAX_TOKENS);
    l->roots[l->n_roots++] = root;
    if (choice == NULL)
        return;
    assert_non_null(logprobs);
    cJSON_ArrayForEach(t, cJSON_GetObjectItem(logprobs, "content"))
    {
        assert_true(l->n < MAX_TOKENS);
        l->tokens[l->n++] = t;
    }
}

static void list_tokens(const ask *a, token_list *l)
{
    const char *at = a->body.ptr;

    ask_assert_good(a);
    *l = (token_list){0};
    if (!a->stream) {
        add_tokens(l, cJSON_Parse(at));
        return;
    }
    while ((at = strstr(at, "data: {")) != NULL) {
        at += strlen("data: ");
        add_tokens(l, cJSON_ParseWithOpts(at, NULL, 0));
    }
}

static void free_tokens(token_list *l)
{
    for (size_t i = 0; i < l->n_roots; i++)
        cJSON_Delete(l->roots[i]);
}

static double logprob_of(const cJSON *t)
{
    const cJSON *v = cJSON_GetObjectItem(t, "logprob");

    assert_true(cJSON_IsNumber(v));
    return v->valuedouble;
}

static const cJSON *top_of(const cJSON *t, int i)
{
    return cJSON_GetArrayItem(cJSON_GetObjectItem(t, "top_logprobs"), i);
}

/* Each distribution makes sense, and all bytes together are the content. */
static void check_tokens(const token_list *l, const ask *a, int top, bool greedy)
{
    td_buf all = {0};

    for (size_t i = 0; i < l->n; i++) {
        const cJSON *t = l->tokens[i], *byte;
        double sum = 0, last = 0;

        assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(t, "top_logprobs")), top);
        for (int k = 0; k < top; k++) {
            assert_true(logprob_of(top_of(t, k)) <= last);
            last = logprob_of(top_of(t, k));
            sum += exp(last);
        }
        assert_true(sum > 0 && sum < 1 + 1e-5);
        assert_true(logprob_of(t) <= logprob_of(top_of(t, 0)));
        if (greedy)
            assert_true(logprob_of(t) == logprob_of(top_of(t, 0)));
        cJSON_ArrayForEach(byte, cJSON_GetObjectItem(t, "bytes"))
            td_buf_byte(&all, (char)byte->valueint);
    }
    if (td_utf8_valid(all.ptr, all.len, &(size_t){0})) {
        assert_int_equal(all.len, a->content.len);
        assert_memory_equal(all.ptr, a->content.ptr, all.len);
    }
    td_buf_free(&all);
}

static void assert_same_tokens(const token_list *a, const token_list *b)
{
    assert_int_equal(a->n, b->n);
    for (size_t i = 0; i < a->n; i++)
        assert_true(cJSON_Compare(a->tokens[i], b->tokens[i], 1));
}

static void test_logprobs(cluster *c)
{
    want w = {.max_tokens = 24, .extra = "\"logprobs\":true,\"top_logprobs\":5"};

    for (int seeded = 0; seeded < 2; seeded++) {
        ask whole, stream, parts;
        token_list a, b, d;

        w.temperature = seeded;
        w.seed = seeded ? 5 : 0;
        w.stream = false;
        ask_whole(&whole, cluster_port(c), &w);
        ask_whole(&parts, few_at_a_time->port, &w);
        w.stream = true;
        ask_whole(&stream, cluster_port(c), &w);
        list_tokens(&whole, &a);
        list_tokens(&stream, &b);
        list_tokens(&parts, &d);
        assert_int_equal(a.n, 24);
        check_tokens(&a, &whole, 5, !seeded);
        assert_same_tokens(&a, &b);
        assert_same_tokens(&a, &d);
        ask_assert_same(&whole, &stream);
        free_tokens(&a);
        free_tokens(&b);
        free_tokens(&d);
        ask_free(&whole);
        ask_free(&stream);
        ask_free(&parts);
    }
}

/* Without top_logprobs the chosen ones alone; without logprobs none, and the answer is the same. */
static void test_logprobs_change_nothing(cluster *c)
{
    want w = {.max_tokens = 16};
    ask without, with;
    token_list a, b;

    ask_whole(&without, cluster_port(c), &w);
    w.extra = "\"logprobs\":true";
    ask_whole(&with, cluster_port(c), &w);
    ask_assert_same(&without, &with);
    list_tokens(&without, &a);
    list_tokens(&with, &b);
    assert_int_equal(a.n, 0);
    assert_int_equal(b.n, 16);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(b.tokens[0], "top_logprobs")), 0);
    free_tokens(&a);
    free_tokens(&b);
    ask_free(&without);
    ask_free(&with);
}

/* ---- bias and penalties; ids 0, 1 and 2 are "!", a quotation mark and "#" in every vocabulary of
 * the kind
 * ---- */

static size_t count_of(const ask *a, char what)
{
    size_t n = 0;

    for (size_t i = 0; i < a->content.len; i++)
        n += a->content.ptr[i] == what;
    return n;
}

static void test_bias_forces_and_bans(cluster *c)
{
    want w = {.max_tokens = 12, .extra = "\"logit_bias\":{\"0\":100}"};
    ask a;

    ask_whole(&a, cluster_port(c), &w);
    ask_assert_good(&a);
    assert_string_equal(a.content.ptr, "!!!!!!!!!!!!");
    ask_free(&a);
    w.temperature = 2;
    w.extra = "\"logit_bias\":{\"0\":-100,\"1\":100}";
    ask_whole(&a, few_at_a_time->port, &w);
    ask_assert_good(&a);
    assert_int_equal(count_of(&a, '"'), 12);
    ask_free(&a);
}

/* Three tokens, 5 apart: a penalty of 2 each time lets the others catch up with the first, and from
 * then on they take turns; so of the tokens at which a part of 16 begins, not all are the first. */
static void test_penalties(cluster *c)
{
    enum { N = 6 };
    want w = {.max_tokens = 64, .extra = "\"logit_bias\":{\"0\":100,\"1\":95,\"2\":90}"};
    ask alone, together[N], parts;

    ask_whole(&alone, cluster_port(c), &w);
    ask_assert_good(&alone);
    assert_int_equal(count_of(&alone, '!'), 64);
    ask_free(&alone);

    w.extra = "\"logit_bias\":{\"0\":100,\"1\":95,\"2\":90},\"presence_penalty\":-2";
    ask_whole(&alone, cluster_port(c), &w);
    ask_assert_good(&alone);
    assert_int_equal(count_of(&alone, '!'), 64);
    ask_free(&alone);

    w.extra = "\"logit_bias\":{\"0\":100,\"1\":95,\"2\":90},\"frequency_penalty\":2";
    ask_whole(&alone, cluster_port(c), &w);
    ask_assert_good(&alone);
    assert_int_equal(alone.content.ptr[0], '!');
    assert_int_equal(count_of(&alone, '!') + count_of(&alone, '"') + count_of(&alone, '#'), 64);
    assert_in_range(count_of(&alone, '#'), 8, 21);
    assert_in_range(count_of(&alone, '!') - count_of(&alone, '#'), 1, 12);
    assert_true(alone.content.ptr[16] != '!' || alone.content.ptr[32] != '!' ||
                alone.content.ptr[48] != '!');
    ask_whole(&parts, few_at_a_time->port, &w); /* each part knows what came before it */
    ask_assert_same(&alone, &parts);
    for (size_t i = 0; i < N; i++) {
        want other = w;

        if (i % 2 == 1)
            other.extra = "\"logit_bias\":{\"0\":100,\"1\":95,\"2\":90}";
        other.stream = i % 4 == 0;
        ask_chat(&together[i], cluster_port(c), &other);
    }
    asks_wait(together, N);
    for (size_t i = 0; i < N; i += 2)
        ask_assert_same(&alone, &together[i]);
    for (size_t i = 1; i < N; i += 2)
        assert_int_equal(count_of(&together[i], '!'), 64);
    asks_free(together, N);
    ask_free(&parts);
    ask_free(&alone);
}

/* A stop string cuts the list where it cuts the text. */
static void test_logprobs_before_a_stop_string(cluster *c)
{
    want w = {.max_tokens = 40,
              .extra = "\"logit_bias\":{\"0\":100,\"1\":90},\"frequency_penalty\":2,"
                       "\"logprobs\":true,\"stop\":\"!\\\"\""};

    for (int stream = 0; stream < 2; stream++) {
        ask a;
        token_list l;

        w.stream = stream;
        ask_whole(&a, cluster_port(c), &w);
        list_tokens(&a, &l);
        assert_string_equal(a.finish, "stop");
        assert_int_equal(l.n, a.content.len); /* tokens of one byte each */
        free_tokens(&l);
        ask_free(&a);
    }
}

/* An answer as a client would have it: reasoning, the final channel, the end. Each chunk of a
 * stream has the values of its own text. */
static void test_logprobs_are_of_the_content_alone(cluster *c)
{
    want w = {.prompt = "What is 12 plus 30?",
              .plain = true,
              .max_tokens = 300,
              .usage = true,
              .extra = "\"logprobs\":true,\"top_logprobs\":3"};

    if (!model_is_trained())
        skip();
    cluster_use_best_weights(c);
    cluster_simple(c);
    for (int stream = 0; stream < 2; stream++) {
        ask a;
        token_list l;

        w.stream = stream;
        ask_whole(&a, cluster_port(c), &w);
        list_tokens(&a, &l);
        assert_true(a.reasoning.len > 0);
        assert_non_null(strstr(a.content.ptr, "12 + 30 = 42"));
        assert_true(l.n > 3 && (double)l.n < ask_usage(&a, "completion_tokens"));
        check_tokens(&l, &a, 3, true);
        free_tokens(&l);
        ask_free(&a);
    }
}

/* The worker that has the counts is lost: the next one has them too. */
static void test_penalties_outlive_a_worker(cluster *c)
{
    want w = {.max_tokens = 400,
              .stream = true,
              .extra = "\"logit_bias\":{\"0\":100,\"1\":95,\"2\":90},\"frequency_penalty\":0.25"};
    process *d[2];
    ask alone, hit;

    cluster_router(c, "");
    cluster_prefill(c, "");
    d[0] = cluster_decode(c, "");
    cluster_ready(c);
    ask_whole(&alone, cluster_port(c), &w);
    ask_chat(&hit, cluster_port(c), &w);
    ASKS_UNTIL(hit.n_pieces > 20, &hit, 1);
    d[1] = cluster_decode(c, "");
    process_kill(d[0]);
    asks_wait(&hit, 1);
    ask_assert_same(&alone, &hit);
    assert_true(process_metric(c->router, "tandem:request_retries_total") >= 1);
    cluster_ready(c);
    E2E_AWAIT(decode_is_empty(d[1]));
    ask_free(&alone);
    ask_free(&hit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_SHARED(test_logprobs),
        E2E_SHARED(test_logprobs_change_nothing),
        E2E_SHARED(test_bias_forces_and_bans),
        E2E_SHARED(test_penalties),
        E2E_SHARED(test_logprobs_before_a_stop_string),
    };
    const struct CMUnitTest lone[] = {E2E_TEST(test_logprobs_are_of_the_content_alone),
                                      E2E_TEST(test_penalties_outlive_a_worker)};
    int failed = cmocka_run_group_tests(tests, start_shared, e2e_shared_teardown);

    return failed + cmocka_run_group_tests(lone, NULL, NULL);
}
