/* Answers that are held to a schema or a tool_choice, through a whole system: whatever the model
 * would say, in whatever pieces it comes, and wherever it goes on. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/gateway.h"
#include "tests/e2e/cluster.h"

#define PLAN \
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\",\"maxLength\":12}," \
    "\"degrees\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2," \
    "\"maxItems\":3}," \
    "\"sky\":{\"enum\":[\"clear\",\"rain\"]}},\"required\":[\"city\",\"degrees\",\"sky\"]," \
    "\"additionalProperties\":false}"
#define FORMAT(schema) \
    "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"plan\",\"strict\":" \
    "true," \
    "\"schema\":" schema "}}"
#define TOOL(name, strict) \
    "{\"type\":\"function\",\"function\":{\"name\":\"" name "\",\"strict\":" strict \
    ",\"parameters\":" PLAN "}}"
#define TOOLS "\"tools\":[" TOOL("plan", "true") "," TOOL("plan_b", "false") "]"

enum { MAX_TOKENS = 400 };

static process *few_at_a_time; /* a second router, whose reservations hold 16 tokens */

static void make_cluster(cluster *c)
{
    cluster_use_best_weights(c);
    cluster_router(c, "--rpc-listen tcp://127.0.0.1:0");
    few_at_a_time = cluster_second_router(c, "--reserve-tokens 16");
    cluster_prefill(c, "");
    cluster_decode(c, "");
    cluster_ready(c);
    E2E_AWAIT(http_get(few_at_a_time->port, "/ready", NULL) == 200);
}

/* On a GPU prefill sums in another order than decode, so that an answer which goes on elsewhere may
 * differ in its words; what it is held to is the same. */
static void assert_goes_on_as(const ask *alone, const ask *hit)
{
    if (strstr(cluster_worker_options(), "cuda") == NULL)
        ask_assert_same(alone, hit);
    else
        ask_assert_good(hit);
}

static int start_shared(void **state)
{
    (void)state;
    return e2e_shared_setup(make_cluster);
}

static want seeded(const char *extra, unsigned seed)
{
    return (want){.prompt = "Weather in Oslo?",
                  .plain = true,
                  .max_tokens = MAX_TOKENS,
                  .temperature = 1.2,
                  .seed = seed,
                  .extra = extra};
}

static cJSON *object_of(const td_buf *text)
{
    cJSON *v = text->len > 0 ? cJSON_ParseWithLengthOpts(text->ptr, text->len + 1, NULL, 1) : NULL;

    if (!cJSON_IsObject(v))
        fail_msg("no JSON object: %.*s", (int)text->len, text->ptr ? text->ptr : "");
    return v;
}

/* What PLAN says. */
static void check_plan(const td_buf *text)
{
    cJSON *v = object_of(text);
    const cJSON *city = cJSON_GetObjectItem(v, "city"), *sky = cJSON_GetObjectItem(v, "sky");
    const cJSON *degrees = cJSON_GetObjectItem(v, "degrees"), *d;

    assert_int_equal(cJSON_GetArraySize(v), 3);
    assert_true(cJSON_IsString(city) && strlen(city->valuestring) <= 4 * 12);
    assert_true(cJSON_IsString(sky) &&
                (strcmp(sky->valuestring, "clear") == 0 || strcmp(sky->valuestring, "rain") == 0));
    assert_true(cJSON_IsArray(degrees));
    assert_in_range(cJSON_GetArraySize(degrees), 2, 3);
    cJSON_ArrayForEach(d, degrees)
        assert_true(cJSON_IsNumber(d) && d->valuedouble == (double)(long long)d->valuedouble);
    cJSON_Delete(v);
}

/* An answer that came to its end; a model that is drawn from may also talk until it is cut. */
static bool came_to_its_end(const ask *a)
{
    ask_assert_good(a);
    return strcmp(a->finish, "length") != 0;
}

static void test_a_schema_holds_whatever_is_drawn(cluster *c)
{
    unsigned ended = 0;

    for (unsigned seed = 1; seed <= 8; seed++) {
        want w = seeded(FORMAT(PLAN), seed);
        ask whole, stream, parts;

        ask_whole(&whole, cluster_port(c), &w);
        ask_whole(&parts, few_at_a_time->port, &w);
        w.stream = true;
        ask_whole(&stream, cluster_port(c), &w);
        ask_assert_same(&whole, &stream);
        assert_goes_on_as(&whole, &parts); /* prefilled again, in the middle of a value */
        if (came_to_its_end(&parts))
            check_plan(&parts.content);
        assert_int_equal(whole.n_calls, 0);
        if (came_to_its_end(&whole)) {
            assert_string_equal(whole.finish, "stop");
            check_plan(&whole.content);
            ended++;
        }
        ask_free(&whole);
        ask_free(&stream);
        ask_free(&parts);
    }
    assert_true(ended >= 5);
    assert_true(process_metric(few_at_a_time, "tandem:request_continuations_total") > 8);
}

static void test_reasoning_can_be_left_out(cluster *c)
{
    for (int stream = 0; stream < 2; stream++) {
        want w = seeded(FORMAT(PLAN), 1);
        ask with, without;

        w.stream = stream;
        ask_whole(&with, cluster_port(c), &w);
        w.extra = FORMAT(PLAN) ",\"include_reasoning\":false";
        ask_whole(&without, cluster_port(c), &w);
        ask_assert_good(&without);
        assert_true(with.reasoning.len > 0 && without.reasoning.len == 0);
        assert_true(with.content.len > 0 && with.content.len == without.content.len);
        ask_free(&with);
        ask_free(&without);
    }
}

static void test_json_object(cluster *c)
{
    want w = seeded("\"response_format\":{\"type\":\"json_object\"}", 0);
    ask a;

    w.temperature = 0;
    ask_whole(&a, cluster_port(c), &w);
    if (came_to_its_end(&a))
        cJSON_Delete(object_of(&a.content));
    assert_true(a.content.len > 0 && a.content.ptr[0] == '{');
    ask_free(&a);
}

static void test_calls_that_must_come(cluster *c)
{
    static const char *const choices[] = {
        ",\"tool_choice\":\"required\"",
        ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"plan\"}}"};
    unsigned ended = 0;

    for (unsigned seed = 1; seed <= 6; seed++) {
        char extra[4096];
        want w = seeded(extra, seed);
        ask a, stream;

        snprintf(extra, sizeof extra, "%s%s", TOOLS, choices[seed % 2]);
        ask_whole(&a, cluster_port(c), &w);
        w.stream = true;
        ask_whole(&stream, few_at_a_time->port, &w);
        assert_goes_on_as(&a, &stream);
        assert_int_equal(a.content.len, 0);
        if (came_to_its_end(&a)) {
            assert_int_equal(a.n_calls, 1);
            assert_string_equal(a.finish, "tool_calls");
            if (strcmp(a.calls[0].name, "plan") == 0)
                check_plan(&a.calls[0].arguments);
            else
                cJSON_Delete(object_of(&a.calls[0].arguments));
            assert_true(seed % 2 == 0 || strcmp(a.calls[0].name, "plan") == 0);
            ended++;
        }
        ask_free(&a);
        ask_free(&stream);
    }
    assert_true(ended >= 3);
}

static void test_calls_that_must_not_come(cluster *c)
{
    for (unsigned seed = 1; seed <= 4; seed++) {
        want w = seeded(TOOLS ",\"tool_choice\":\"none\"", seed);
        ask a;

        ask_whole(&a, cluster_port(c), &w);
        ask_assert_good(&a);
        assert_int_equal(a.n_calls, 0);
        ask_free(&a);
    }
}

/* Bias, penalties and masks together: what a mask leaves is chosen from, however unlikely the rest
 * of a request makes it; max_tokens ends it where it stands; a stop string as well. */
static void test_masks_beside_what_else_a_request_wants(cluster *c)
{
    char extra[4096];
    want w = seeded(extra, 3);
    size_t n = (size_t)snprintf(extra, sizeof extra, "%s", FORMAT(PLAN));
    ask a;

    n += (size_t)snprintf(extra + n, sizeof extra - n,
                          ",\"frequency_penalty\":2,\"presence_penalty\":2,\"logit_bias\":{");
    for (int byte = 0; byte < 128; byte++) /* the bytes that JSON is written with */
        n += (size_t)snprintf(extra + n, sizeof extra - n, "%s\"%d\":-100", byte > 0 ? "," : "",
                              byte);
    snprintf(extra + n, sizeof extra - n, "}");
    ask_whole(&a, cluster_port(c), &w);
    ask_assert_good(&a);
    if (came_to_its_end(&a))
        check_plan(&a.content);
    ask_free(&a);

    w = seeded(FORMAT(PLAN) ",\"stop\":\"\\\"sky\"", 1);
    ask_whole(&a, cluster_port(c), &w);
    if (came_to_its_end(&a)) {
        td_buf_byte(&a.content, '\0');
        assert_non_null(strstr(a.content.ptr, "\"degrees\""));
        assert_null(strstr(a.content.ptr, "sky"));
    }
    ask_free(&a);

    w = seeded(FORMAT(PLAN), 1);
    w.max_tokens = 50;
    w.temperature = 0;
    ask_whole(&a, cluster_port(c), &w);
    assert_string_equal(a.finish, "length");
    ask_free(&a);
}

/* Guided and free answers in one batch are those that they are alone. */
static void test_a_mixed_batch(cluster *c)
{
    enum { N = 6 };
    ask alone[N], together[N];
    const process *d = &c->all[3];

    for (unsigned i = 0; i < N; i++) {
        want w = seeded(i % 2 == 0 ? FORMAT(PLAN) : "\"n\":1", 20 + i);

        ask_whole(&alone[i], cluster_port(c), &w);
    }
    for (unsigned i = 0; i < N; i++) {
        want w = seeded(i % 2 == 0 ? FORMAT(PLAN) : "\"n\":1", 20 + i);

        w.stream = i % 3 == 0;
        ask_chat(&together[i], cluster_port(c), &w);
    }
    asks_wait(together, N);
    for (unsigned i = 0; i < N; i++) {
        ask_assert_good(&together[i]);
        ask_assert_same(&alone[i], &together[i]);
    }
    assert_string_equal(d->program, "decode");
    assert_true(process_metric(d, "tandem:guided_requests_total") > 20);
    assert_true(process_metric(d, "tandem:guide_mask_seconds_count") > 100);
    E2E_AWAIT(decode_is_empty(d));
    asks_free(alone, N);
    asks_free(together, N);
}

static void test_what_cannot_be_held_is_a_400(cluster *c)
{
    want w = seeded(FORMAT("{\"type\":\"object\",\"properties\":{\"p\":{\"not\":{}}}}"), 1);
    ask a;

    for (int stream = 0; stream < 2; stream++) {
        w.stream = stream;
        ask_whole(&a, cluster_port(c), &w);
        assert_int_equal(a.status, 400);
        assert_string_equal(ask_error(&a, "param"), "response_format.json_schema.schema");
        assert_non_null(strstr(ask_error(&a, "message"), "#/properties/p"));
        ask_free(&a);
    }
}

static void test_gateways_get_it_too(cluster *c)
{
    want w = seeded(FORMAT(PLAN), 1);
    td_buf body = {0}, content = {0}, log = {0};
    char url[64] = "";
    gateway *g;
    gateway_event e = {0};
    uint64_t stream;
    td_error err = {0};
    const char *at;
    ask a;

    ask_whole(&a, cluster_port(c), &w);
    process_log(c->router, &log);
    at = strstr(log.ptr, "rpc_listening url=");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "rpc_listening url=%63s", url), 1);
    if (gateway_open(&(gateway_options){.router = url}, &g, &err) != TD_OK)
        fail_msg("%s: %s", url, err.text);
    want_body(&w, &body);
    assert_int_equal(gateway_generate(g, (td_slice){body.ptr, body.len}, NULL, &stream, &err),
                     TD_OK);
    while (e.kind != GATEWAY_FINISHED && e.kind != GATEWAY_FAILED) {
        assert_int_equal(gateway_next(g, e2e_deadline(), &e, &err), TD_OK);
        if (e.kind == GATEWAY_CONTENT)
            td_buf_add(&content, e.text.ptr, e.text.len);
    }
    assert_int_equal(e.kind, GATEWAY_FINISHED);
    assert_int_equal(content.len, a.content.len);
    assert_memory_equal(content.ptr, a.content.ptr, content.len);

    /* A schema is looked at after the request was taken: the event names the field. */
    w = seeded(FORMAT("{\"not\":{}}"), 1);
    td_buf_clear(&body);
    want_body(&w, &body);
    assert_int_equal(gateway_generate(g, (td_slice){body.ptr, body.len}, NULL, &stream, &err),
                     TD_OK);
    assert_int_equal(gateway_next(g, e2e_deadline(), &e, &err), TD_OK);
    assert_int_equal(e.kind, GATEWAY_FAILED);
    assert_int_equal(e.status, TD_INVALID);
    assert_true(td_slice_eq(e.param, TD_SLICE("response_format.json_schema.schema")));
    gateway_close(g);
    td_buf_free(&body);
    td_buf_free(&content);
    td_buf_free(&log);
    ask_free(&a);
}

/* ---- clusters of their own ---- */

/* A list that is long enough to be in the middle of when its decode worker dies. */
static void test_the_answer_outlives_its_worker(cluster *c)
{
    enum { N = 3 };
    const char *extra =
        FORMAT("{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":1000,"
               "\"maximum\":9999},\"minItems\":80,\"maxItems\":80}");
    ask alone[N], hit[N];
    process *d;

    cluster_use_best_weights(c);
    cluster_router(c, "--recovery-timeout 10s");
    cluster_prefill(c, "");
    d = cluster_decode(c, "--heartbeat 300ms");
    cluster_ready(c);
    for (unsigned i = 0; i < N; i++) {
        want w = seeded(extra, 40 + i);

        w.max_tokens = 1000;
        w.temperature = i == 0 ? 0 : 1;
        ask_whole(&alone[i], cluster_port(c), &w);
    }
    for (unsigned i = 0; i < N; i++) {
        want w = seeded(extra, 40 + i);

        w.max_tokens = 1000;
        w.temperature = i == 0 ? 0 : 1;
        w.stream = true;
        ask_chat(&hit[i], cluster_port(c), &w);
    }
    ASKS_UNTIL(hit[0].content.len > 40 && hit[1].content.len > 40 && hit[2].content.len > 40, hit,
               N);
    cluster_decode(c, "--heartbeat 300ms");
    process_kill(d);
    asks_wait(hit, N);
    for (unsigned i = 0; i < N; i++) {
        cJSON *v;

        assert_goes_on_as(&alone[i], &hit[i]);
        assert_string_equal(hit[i].finish, "stop");
        v = cJSON_ParseWithLength(hit[i].content.ptr, hit[i].content.len);
        assert_int_equal(cJSON_GetArraySize(v), 80);
        cJSON_Delete(v);
    }
    assert_true(process_metric(c->router, "tandem:request_retries_total") >= 1);
    asks_free(alone, N);
    asks_free(hit, N);
}

/* Workers whose folder has no vocabulary serve everything else. */
static void test_workers_without_a_vocabulary(cluster *c)
{
    want w = seeded(FORMAT(PLAN), 1);
    char folder[72], path[256], target[256], here[128];
    const char *const names[] = {"config.json", "generation_config.json"};
    process *d;
    ask a;

    assert_non_null(getcwd(here, sizeof here));
    snprintf(folder, sizeof folder, "%s/bare", c->folder);
    assert_int_equal(mkdir(folder, 0700), 0);
    for (size_t i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        snprintf(target, sizeof target, "%s/models/tandem-tiny/%s", here, names[i]);
        assert_int_equal(symlink(target, path), 0);
    }
    cluster_router(c, "");
    snprintf(c->model, sizeof c->model, "--model %s --model-name tandem-tiny --random-weights 1",
             folder);
    cluster_prefill(c, "");
    d = cluster_decode(c, "");
    cluster_ready(c);
    assert_true(process_logged(d, "no_guides"));
    ask_whole(&a, cluster_port(c), &w);
    assert_int_equal(a.status, 503);
    assert_non_null(strstr(ask_error(&a, "message"), "tokenizer.json"));
    ask_free(&a);
    w.extra = NULL;
    w.max_tokens = 5;
    ask_whole(&a, cluster_port(c), &w);
    ask_assert_good(&a);
    ask_free(&a);
}

int main(void)
{
    const struct CMUnitTest shared[] = {
        E2E_SHARED(test_a_schema_holds_whatever_is_drawn),
        E2E_SHARED(test_json_object),
        E2E_SHARED(test_reasoning_can_be_left_out),
        E2E_SHARED(test_calls_that_must_come),
        E2E_SHARED(test_calls_that_must_not_come),
        E2E_SHARED(test_masks_beside_what_else_a_request_wants),
        E2E_SHARED(test_a_mixed_batch),
        E2E_SHARED(test_what_cannot_be_held_is_a_400),
        E2E_SHARED(test_gateways_get_it_too),
    };
    const struct CMUnitTest own[] = {
        E2E_TEST(test_the_answer_outlives_its_worker),
        E2E_TEST(test_workers_without_a_vocabulary),
    };

    if (!model_is_trained())
        return 77;
    return cmocka_run_group_tests(shared, start_shared, e2e_shared_teardown) +
           cmocka_run_group_tests(own, NULL, NULL);
}
