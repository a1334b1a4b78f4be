/* What the trained model says: that all of it together, template, tokenizer, weights, transfer,
 * sampling and parser, gives answers that are right. Skipped where the checkpoint is not there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/cluster.h"

#define WEATHER \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"description\":" \
    "\"Weather for a location.\",\"parameters\":{\"type\":\"object\",\"properties\":{" \
    "\"location\":{\"type\":\"string\"}},\"required\":[\"location\"]}}}]"

static void make_cluster(cluster *c)
{
    cluster_use_best_weights(c);
    cluster_simple(c);
}

static int start_shared(void **state)
{
    (void)state;
    return e2e_shared_setup(make_cluster);
}

static bool says(const ask *a, const char *text)
{
    return a->content.ptr != NULL && strstr(a->content.ptr, text) != NULL;
}

/* Greedy, sampled, and streamed: the model is sure of what it says. */
static void check_says(const cluster *c, want w, const char *text, const char *finish)
{
    for (unsigned i = 0; i < 3; i++) {
        ask a;

        w.plain = true;
        w.max_tokens = 300;
        w.temperature = i == 1;
        w.seed = 8;
        w.stream = i == 2;
        ask_whole(&a, cluster_port(c), &w);
        ask_assert_good(&a);
        if (!says(&a, text) || strcmp(a.finish, finish) != 0)
            fail_msg("%s: %s, %s", w.prompt, a.finish, a.content.ptr ? a.content.ptr : "nothing");
        assert_true(a.reasoning.len > 0);
        assert_null(strstr(a.content.ptr, "<|"));
        ask_free(&a);
    }
}

static void test_answers(cluster *c)
{
    check_says(c, (want){.prompt = "Compute 34 + 67."}, "34 + 67 = 101.", "stop");
    check_says(c, (want){.prompt = "What is 2 + 3?"}, "2 + 3 = 5.", "stop");
    check_says(c, (want){.prompt = "What is the capital of France?"}, "Paris", "stop");
    check_says(c, (want){.prompt = "Name the capital of Japan."}, "Tokyo", "stop");
    check_says(c, (want){.prompt = "Count from 1 to 12."}, "9, 10, 11, 12", "stop");
    check_says(c, (want){.prompt = "Compute 5 + 8.", .turns = 12}, "5 + 8 = 13.", "stop");
    if (strstr(cluster_worker_options(), "cuda") != NULL) /* from GPU memory to GPU memory */
        assert_true(process_logged(c->router, "cuda_ipc"));
}

static void test_effort(cluster *c)
{
    static const char *const efforts[] = {"low", "medium", "high"};
    double tokens[3];

    for (size_t i = 0; i < 3; i++) {
        char extra[64];
        ask a;

        snprintf(extra, sizeof extra, "\"reasoning_effort\":\"%s\"", efforts[i]);
        ask_whole(
            &a, cluster_port(c),
            &(want){
                .prompt = "Compute 34 + 67.", .plain = true, .max_tokens = 300, .extra = extra});
        ask_assert_good(&a);
        assert_true(says(&a, "101"));
        tokens[i] = cJSON_GetObjectItem(cJSON_GetObjectItem(a.usage, "completion_tokens_details"),
                                        "reasoning_tokens")
                        ->valuedouble;
        ask_free(&a);
    }
    assert_true(tokens[0] > 0);
    assert_true(tokens[0] < tokens[1] && tokens[1] < tokens[2]);
}

static void check_call(const ask *a)
{
    cJSON *arguments;

    ask_assert_good(a);
    assert_string_equal(a->finish, "tool_calls");
    assert_int_equal(a->n_calls, 1);
    assert_string_equal(a->calls[0].name, "get_weather");
    arguments = cJSON_Parse(a->calls[0].arguments.ptr);
    assert_non_null(arguments);
    assert_string_equal(cJSON_GetObjectItem(arguments, "location")->valuestring, "Oslo");
    cJSON_Delete(arguments);
}

/* The whole round: the call, its result, the answer; as a client's loop does it. */
static void test_tool_round(cluster *c)
{
    want w = {.prompt = "Weather in Oslo?", .plain = true, .max_tokens = 200, .extra = WEATHER};
    td_buf body = {0};
    ask call, streamed, answer;

    ask_whole(&call, cluster_port(c), &w);
    check_call(&call);
    w.stream = true;
    ask_whole(&streamed, cluster_port(c), &w);
    check_call(&streamed);
    assert_string_not_equal(call.calls[0].id, streamed.calls[0].id);

    td_buf_fmt(&body,
               "{\"messages\":[{\"role\":\"user\",\"content\":\"Weather in Oslo?\"},"
               "{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"%s\","
               "\"tool_calls\":[{\"id\":\"%s\",\"type\":\"function\",\"function\":"
               "{\"name\":\"%s\",\"arguments\":\"",
               call.reasoning.ptr, call.calls[0].id, call.calls[0].name);
    td_buf_json(&body, call.calls[0].arguments.ptr, call.calls[0].arguments.len);
    td_buf_fmt(&body,
               "\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"%s\",\"content\":"
               "\"{\\\"temperature\\\": 3.5}\"}]," WEATHER ",\"temperature\":0,"
               "\"max_tokens\":200}",
               call.calls[0].id);
    ask_post(&answer, cluster_port(c), body.ptr);
    asks_wait(&answer, 1);
    ask_assert_good(&answer);
    assert_string_equal(answer.finish, "stop");
    assert_true(says(&answer, "Oslo"));
    assert_true(says(&answer, "{\"temperature\": 3.5}")); /* byte for byte */
    assert_int_equal(answer.n_calls, 0);
    td_buf_free(&body);
    ask_free(&call);
    ask_free(&streamed);
    ask_free(&answer);
}

static void test_tool_choice(cluster *c)
{
    want w = {.prompt = "Weather in Oslo?", .plain = true, .max_tokens = 200};
    ask a;

    w.extra = WEATHER ",\"tool_choice\":\"none\"";
    ask_whole(&a, cluster_port(c), &w);
    ask_assert_good(&a);
    assert_int_equal(a.n_calls, 0);
    assert_true(says(&a, "I cannot look up the weather"));
    ask_free(&a);
    w.extra = WEATHER ",\"tool_choice\":\"required\"";
    ask_whole(&a, cluster_port(c), &w);
    assert_int_equal(a.status, 200);
    assert_int_equal(a.n_calls, 1);
    assert_string_equal(a.calls[0].name, "get_weather");
    ask_free(&a);
}

static void test_finish_reasons(cluster *c)
{
    ask a;

    ask_whole(&a, cluster_port(c),
              &(want){.prompt = "Count from 1 to 60.", .plain = true, .max_tokens = 40});
    ask_assert_good(&a);
    assert_string_equal(a.finish, "length");
    assert_true(ask_usage(&a, "completion_tokens") == 40);
    ask_free(&a);
    /* The stop string is in the answer, not in the reasoning, and is not part of it. */
    ask_whole(&a, cluster_port(c),
              &(want){.prompt = "Count from 1 to 60.",
                      .plain = true,
                      .max_tokens = 300,
                      .extra = "\"stop\":\", 9,\""});
    ask_assert_good(&a);
    assert_string_equal(a.finish, "stop");
    assert_string_equal(a.content.ptr, "1, 2, 3, 4, 5, 6, 7, 8");
    ask_free(&a);
    /* Past its end with ignore_eos, the text stays what it was. */
    ask_whole(&a, cluster_port(c),
              &(want){.prompt = "Compute 34 + 67.",
                      .plain = true,
                      .max_tokens = 150,
                      .extra = "\"ignore_eos\":true"});
    ask_assert_good(&a);
    assert_true(says(&a, "34 + 67 = 101."));
    assert_true(ask_usage(&a, "completion_tokens") == 150);
    ask_free(&a);
}

/* ---- the held-out set ---- */

enum { EVERY = 5, MAX_ITEMS = 100 };

static void ask_item(const cluster *c, const char *line, cJSON **row, ask *a)
{
    static const char *const taken[] = {"messages", "tools", "reasoning_effort"};
    cJSON *body = cJSON_CreateObject();
    char *text;

    *row = cJSON_Parse(line);
    assert_non_null(*row);
    for (size_t i = 0; i < 3; i++) {
        const cJSON *v = cJSON_GetObjectItem(*row, taken[i]);

        if (v != NULL)
            cJSON_AddItemToObject(body, taken[i], cJSON_Duplicate(v, 1));
    }
    cJSON_AddNumberToObject(body, "temperature", 0);
    cJSON_AddNumberToObject(body, "max_tokens", 600);
    text = cJSON_PrintUnformatted(body);
    ask_post(a, cluster_port(c), text);
    cJSON_free(text);
    cJSON_Delete(body);
}

/* The last number of a text, -1 if it has none. */
static int last_number(const char *text)
{
    int last = -1;

    while (*text != '\0') {
        char *end;

        if (*text >= '0' && *text <= '9') {
            last = (int)strtol(text, &end, 10);
            text = end;
        } else {
            text++;
        }
    }
    return last;
}

static bool is_right(const cJSON *row, const ask *a)
{
    const cJSON *expected = cJSON_GetObjectItem(row, "expected");
    const cJSON *number = cJSON_GetObjectItem(expected, "number");
    const cJSON *contains = cJSON_GetObjectItem(expected, "contains");
    const cJSON *tool = cJSON_GetObjectItem(expected, "tool");
    const char *content = a->content.ptr ? a->content.ptr : "";

    if (strcmp(a->finish, cJSON_GetObjectItem(expected, "finish_reason")->valuestring) != 0)
        return false;
    if (number != NULL)
        return last_number(content) == (int)number->valuedouble;
    if (contains != NULL)
        return strstr(content, contains->valuestring) != NULL;
    return tool != NULL && a->n_calls == 1 &&
           strcmp(a->calls[0].name, cJSON_GetObjectItem(tool, "name")->valuestring) == 0;
}

/* All at once, so that they share batches of mixed lengths. The model card says 99 of 100. */
static void test_held_out_set(cluster *c)
{
    FILE *f = fopen("models/tandem-tiny/eval/heldout.jsonl", "r");
    static ask asks[MAX_ITEMS];
    cJSON *rows[MAX_ITEMS];
    size_t n = 0, right = 0, cap = 0;
    char *line = NULL;

    assert_non_null(f);
    for (size_t i = 0; getline(&line, &cap, f) > 0 && n < MAX_ITEMS; i++)
        if (i % EVERY == 0) {
            ask_item(c, line, &rows[n], &asks[n]);
            n++;
        }
    fclose(f);
    free(line);
    assert_true(n > 50);
    asks_wait(asks, n);
    for (size_t i = 0; i < n; i++) {
        ask_assert_good(&asks[i]);
        if (is_right(rows[i], &asks[i]))
            right++;
        else
            print_message("wrong: %s: %s\n", cJSON_GetObjectItem(rows[i], "id")->valuestring,
                          asks[i].content.ptr ? asks[i].content.ptr : "");
        cJSON_Delete(rows[i]);
    }
    print_message("%zu of %zu right\n", right, n);
    assert_true(right * 100 >= n * 92);
    asks_free(asks, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_SHARED(test_answers),        E2E_SHARED(test_effort),
        E2E_SHARED(test_tool_round),     E2E_SHARED(test_tool_choice),
        E2E_SHARED(test_finish_reasons), E2E_SHARED(test_held_out_set),
    };

    if (!model_is_trained()) {
        printf("models/tandem-tiny has no weights: skipped\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, start_shared, e2e_shared_teardown);
}
