/* guide: whatever is chosen from its masks is an answer that the request allows, wherever it is
 * taken up again. Requests go in as clients write them. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/guide_impl.h"
#include "router/guided.h"
#include "router/openai.h"
#include "router/tokenizer.h"
#include "tests/unit/harmony_fixture.h"

#define FOLDER "tests/data/harmony"
#define SCHEMA \
    "{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\"},\"w\":{\"enum\":[\"a\"," \
    "\"bc\"]}}," \
    "\"required\":[\"n\",\"w\"],\"additionalProperties\":false}"
#define FORMAT \
    "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"pair\"," \
    "\"schema\":" SCHEMA "}}"
#define TOOL(name, strict) \
    "{\"type\":\"function\",\"function\":{\"name\":\"" name "\",\"strict\":" strict \
    ",\"parameters\":" SCHEMA "}}"
#define TOOLS "\"tools\":[" TOOL("get", "true") "," TOOL("get_time", "false") "]"

enum { TEXT_TOKENS = 12, MAX_TOKENS = 4000 };

static td_guides *guides;
static int32_t n_ids;

static void parse(const char *members, generation *g)
{
    const openai_defaults d = {.date = "", .allow_ignore_eos = true, .vocab = n_ids};
    td_error err = {0};
    char body[4096];
    int n = snprintf(body, sizeof body,
                     "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},"
                     "{\"role\":\"assistant\",\"content\":\"So\"}],%s}",
                     members);

    assert_true(n > 0 && n < (int)sizeof body);
    if (openai_parse_chat(body, (size_t)n, &d, g, &err) != TD_OK ||
        generation_guide(g, &err) != TD_OK)
        fail_msg("%s: %s", members, err.text);
}

static td_guide *open_at(const generation *g, const td_tokens *answer)
{
    td_guide *out = NULL;
    td_error err = {0};

    assert_non_null(g->guide);
    if (td_guide_create(guides, guided_message(g->guide), answer->ptr, answer->len, &out, &err) !=
        TD_OK)
        fail_msg("%s", err.text);
    return out;
}

static bool in_mask(const uint32_t *mask, int32_t id)
{
    return mask[id / 32] >> id % 32 & 1;
}

static uint64_t next_random(uint64_t *seed)
{
    *seed += UINT64_C(0x9e3779b97f4a7c15);
    return (*seed ^ *seed >> 31) * UINT64_C(0xbf58476d1ce4e5b9) >> 16;
}

/* A token of the mask; in a hurry one that ends something, where there is one. */
static int32_t choose(const uint32_t *mask, bool hurry, uint64_t *seed)
{
    static const char *const ends[] = {"\"", "}", "]"}; /* a string first: in one all are text */
    const tokenizer *t = harmony_tokenizer(fixture_harmony());
    int32_t n = 0, at, chosen = -1;

    for (int32_t id = 0; id < n_ids; id++) {
        if (in_mask(mask, id) && tokenizer_is_special(t, id) && hurry)
            return id;
        n += in_mask(mask, id);
    }
    assert_true(n > 0);
    for (size_t i = 0; hurry && i < 3; i++)
        for (int32_t id = 0; id < n_ids; id++) {
            td_slice piece;

            if (in_mask(mask, id) && tokenizer_bytes(t, id, &piece) &&
                td_slice_eq(piece, td_slice_of(ends[i])))
                return id;
        }
    at = (int32_t)(next_random(seed) % (uint64_t)n);
    for (int32_t id = 0; chosen < 0; id++)
        if (in_mask(mask, id) && at-- == 0)
            chosen = id;
    return chosen;
}

/* The same place, come to in another way: same mask, and what is not in it is refused. */
static void check_resumed(const generation *g, const td_tokens *answer, const uint32_t *mask,
                          uint64_t *seed)
{
    td_guide *again = open_at(g, answer);
    int32_t other = (int32_t)(next_random(seed) % (uint64_t)n_ids);
    td_error err = {0};

    assert_memory_equal(td_guide_mask(again), mask, ((size_t)n_ids + 31) / 32 * 4);
    if (td_guide_accept(again, other, &err) != (in_mask(mask, other) ? TD_OK : TD_INVALID))
        fail_msg("token %d, in the mask: %d, %s", other, in_mask(mask, other), err.text);
    td_guide_free(again);
}

/* An answer of tokens drawn from the masks. */
static td_tokens walk(const generation *g, uint64_t seed)
{
    td_tokens ids = {0};
    td_guide *at = open_at(g, &ids);
    const uint32_t *mask;
    td_error err = {0};
    size_t since = 0;

    while ((mask = td_guide_mask(at)) != NULL) {
        bool hurry = ++since > TEXT_TOKENS || next_random(&seed) % 12 == 0;
        int32_t token = choose(mask, hurry, &seed);

        if (next_random(&seed) % 8 == 0)
            check_resumed(g, &ids, mask, &seed);
        if (tokenizer_is_special(harmony_tokenizer(fixture_harmony()), token))
            since = 0;
        td_tokens_push(&ids, token);
        if (td_guide_accept(at, token, &err) != TD_OK)
            fail_msg("token %zu is %d: %s", ids.len - 1, token, err.text);
        if (ids.len == MAX_TOKENS) {
            td_buf text = fixture_text(fixture_harmony(), &ids);

            fail_msg("no end: %.*s", 600, text.ptr);
        }
    }
    td_guide_free(at);
    return ids;
}

static void read_answer(const generation *g, const td_tokens *ids, record *r)
{
    record_run(r, fixture_harmony(), &g->chat, ids->ptr, ids->len, HARMONY_END_STOP);
    assert_true(r->stats.done);
    for (int i = 0; i < HARMONY_REPAIR_COUNT; i++)
        if (i != HARMONY_REPAIR_BAD_UTF8 && r->stats.repairs[i] > 0)
            fail_msg("%s: %s", harmony_repair_label((harmony_repair)i), r->events.ptr);
}

static cJSON *read_object(const td_buf *text)
{
    cJSON *v = cJSON_ParseWithLengthOpts(text->ptr, text->len + 1, NULL, 1);

    if (!cJSON_IsObject(v))
        fail_msg("no JSON object: %.*s", (int)text->len, text->ptr);
    return v;
}

/* What SCHEMA says. */
static void check_pair(const td_buf *text)
{
    cJSON *v = read_object(text);
    const cJSON *n = cJSON_GetObjectItem(v, "n"), *w = cJSON_GetObjectItem(v, "w");

    assert_int_equal(cJSON_GetArraySize(v), 2);
    assert_true(cJSON_IsNumber(n) && n->valuedouble == (double)(int64_t)n->valuedouble);
    assert_true(cJSON_IsString(w));
    assert_true(strcmp(w->valuestring, "a") == 0 || strcmp(w->valuestring, "bc") == 0);
    cJSON_Delete(v);
}

static void check_calls(const record *r)
{
    for (size_t i = 0; i < r->n_calls; i++) {
        if (strcmp(r->calls[i].name.ptr, "get") == 0)
            check_pair(&r->calls[i].arguments);
        else if (strcmp(r->calls[i].name.ptr, "get_time") == 0)
            cJSON_Delete(read_object(&r->calls[i].arguments));
        else
            fail_msg("a call of %s", r->calls[i].name.ptr);
    }
}

/* How many of a number of answers had what. */
typedef struct tally {
    size_t reasoning, content, get, get_time;
    size_t others; /* of get_time, with arguments that its schema does not have */
} tally;

static tally walk_many(const char *members, bool json, size_t n)
{
    static record r;
    tally t = {0};
    generation g;

    parse(members, &g);
    for (uint64_t seed = 0; seed < n; seed++) {
        td_tokens ids = walk(&g, seed);

        read_answer(&g, &ids, &r);
        check_calls(&r);
        assert_true(r.n_calls <= 1);
        if (json && r.n_calls == 0)
            check_pair(&r.content);
        t.reasoning += r.reasoning.len > 0;
        t.content += r.content.len > 0;
        t.get += r.n_calls == 1 && strcmp(r.calls[0].name.ptr, "get") == 0;
        t.get_time += r.n_calls == 1 && strcmp(r.calls[0].name.ptr, "get_time") == 0;
        t.others += r.n_calls == 1 && strstr(r.calls[0].arguments.ptr, "\"n\"") == NULL;
        record_fini(&r);
        td_tokens_free(&ids);
    }
    generation_free(&g);
    return t;
}

static void test_a_response_format_holds_the_final_channel_alone(void **state)
{
    tally t = walk_many(FORMAT, true, 60);

    (void)state;
    assert_int_equal(t.content, 60);
    assert_true(t.reasoning > 10);
    t = walk_many(FORMAT "," TOOLS, true, 60);
    assert_int_equal(t.content + t.get + t.get_time, 60);
    assert_true(t.content > 0 && t.get > 0 && t.get_time > 0);
}

static void test_json_object_is_any_object(void **state)
{
    static record r;
    generation g;

    (void)state;
    parse("\"response_format\":{\"type\":\"json_object\"}", &g);
    for (uint64_t seed = 0; seed < 40; seed++) {
        td_tokens ids = walk(&g, seed);

        read_answer(&g, &ids, &r);
        cJSON_Delete(read_object(&r.content));
        record_fini(&r);
        td_tokens_free(&ids);
    }
    generation_free(&g);
}

static void test_tool_choice_decides_which_calls_may_come(void **state)
{
    tally t = walk_many(TOOLS ",\"tool_choice\":\"required\"", false, 60);

    (void)state;
    assert_int_equal(t.get + t.get_time, 60);
    assert_true(t.get > 0 && t.get_time > 0 && t.reasoning > 0);
    assert_true(t.others > 0 && t.others <= t.get_time);
    assert_int_equal(t.content, 0);
    /* "get" begins "get_time": the name ends where the header goes on. */
    t = walk_many(TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"get\"}}",
                  false, 40);
    assert_int_equal(t.get, 40);
    t = walk_many(TOOLS ",\"tool_choice\":\"none\"", false, 40);
    assert_int_equal(t.get + t.get_time, 0);
    assert_true(t.content > 30);     /* an empty answer is one, too */
    t = walk_many(TOOLS, false, 60); /* one of them is strict */
    assert_true(t.get > 0 && t.get_time > 0 && t.content > 0 && t.reasoning > 0);
}

/* Of two functions with one name the first is meant, wherever the answer is taken up. */
static void add_text(td_tokens *ids, const char *text)
{
    td_error err = {0};

    assert_int_equal(
        tokenizer_encode(harmony_tokenizer(fixture_harmony()), text, strlen(text), ids, &err),
        TD_OK);
}

/* Routers refuse it; to a worker the first is the one that is meant. */
static void test_two_functions_of_one_name(void **state)
{
    static const char name[] = "get", none[] = "{\"type\":\"object\",\"maxProperties\":0}";
    const harmony_ids *special = harmony_ids_of(fixture_harmony());
    Tandem__Guide m = TANDEM__GUIDE__INIT;
    Tandem__GuideFunction f[2] = {TANDEM__GUIDE_FUNCTION__INIT, TANDEM__GUIDE_FUNCTION__INIT};
    Tandem__GuideFunction *list[] = {&f[0], &f[1]};
    td_tokens ids = {0};
    td_guide *at = NULL;
    td_error err = {0};

    (void)state;
    f[0].name = f[1].name = (ProtobufCBinaryData){3, (uint8_t *)(uintptr_t)name};
    m.functions = list;
    m.n_functions = 2;
    add_text(&ids, " to=functions.get");
    td_tokens_push(&ids, special->channel);
    add_text(&ids, "commentary");
    td_tokens_push(&ids, special->message);
    add_text(&ids, "{\"a\":1}");
    for (int first = 0; first < 2; first++) {
        f[first].schema = (ProtobufCBinaryData){sizeof none - 1, (uint8_t *)(uintptr_t)none};
        f[!first].schema = (ProtobufCBinaryData){0};
        assert_int_equal(td_guide_create(guides, &m, ids.ptr, ids.len, &at, &err),
                         first == 0 ? TD_INVALID : TD_OK);
    }
    td_guide_free(at);
    td_tokens_free(&ids);
}

static void test_only_what_must_be_held_is(void **state)
{
    static const char *const loose[] = {
        "\"n\":1",
        "\"response_format\":{\"type\":\"text\"}",
        "\"tool_choice\":\"none\"",
        "\"tools\":[" TOOL("get", "false") "]",
        "\"tools\":[" TOOL("get", "null") "],\"tool_choice\":\"auto\"",
        "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\",\"strict\":"
        "false,"
        "\"schema\":{\"not\":{}}}}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof loose / sizeof *loose; i++) {
        generation g;

        parse(loose[i], &g);
        assert_null(g.guide);
        generation_free(&g);
    }
}

static void test_a_continued_answer_begins_in_its_text(void **state)
{
    td_tokens ids = {0};
    generation g;
    td_guide *at;
    int32_t n = 0;

    (void)state;
    parse(TOOLS ",\"continue_final_message\":true", &g);
    at = open_at(&g, &ids);
    for (int32_t id = 0; id < n_ids; id++)
        n += in_mask(td_guide_mask(at), id) &&
             tokenizer_is_special(harmony_tokenizer(fixture_harmony()), id);
    assert_int_equal(n, 1);
    assert_true(in_mask(td_guide_mask(at), harmony_ids_of(fixture_harmony())->ret));
    td_guide_free(at);
    generation_free(&g);
}

static void test_reasoning_is_free_and_does_not_come_twice(void **state)
{
    const harmony *h = fixture_harmony();
    const tokenizer *t = harmony_tokenizer(h);
    td_tokens ids = fixture_tokens(h, "<|channel|>analysis<|message|>");
    td_tokens more = fixture_tokens(h, "x<|end|><|start|>assistant<|channel|>");
    generation g;
    td_guide *at;
    const uint32_t *mask;

    (void)state;
    parse(FORMAT, &g);
    at = open_at(&g, &ids);
    mask = td_guide_mask(at);
    for (int32_t id = 0; id < n_ids; id++) {
        td_slice piece;
        bool text = tokenizer_bytes(t, id, &piece) && !tokenizer_is_special(t, id);

        if (in_mask(mask, id) != (text || id == harmony_ids_of(h)->end))
            fail_msg("token %d", id);
    }
    td_guide_free(at);
    td_tokens_add(&ids, more.ptr, more.len);
    at = open_at(&g, &ids);
    mask = td_guide_mask(at);
    for (int32_t id = 0; id < n_ids; id++) {
        td_slice piece;

        if (in_mask(mask, id) && tokenizer_bytes(t, id, &piece))
            assert_memory_equal(piece.ptr, "final", piece.len < 5 ? piece.len : 5);
    }
    td_guide_free(at);
    generation_free(&g);
    td_tokens_free(&ids);
    td_tokens_free(&more);
}

/* In the mask or refused, for every token, at each place of a few headers. */
static void test_masks_of_headers_are_exact(void **state)
{
    static const char *const answers[] = {
        " to=functions.get_time<|channel|>commentary <|constrain|>json<|message|>{",
        "<|channel|>commentary to=functions.get json<|message|>{",
        "<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>final<|message|>x",
    };
    const harmony *h = fixture_harmony();
    generation g;

    (void)state;
    parse(TOOLS, &g);
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        td_tokens ids = fixture_tokens(h, answers[i]), bytes = fixture_bytes(h, &ids), at = ids;

        for (int cut = 0; cut < 2; cut++, at = bytes) { /* in words, and byte by byte */
            for (size_t n = cut ? at.len / 2 : 0; n < at.len; n++) {
                td_tokens so_far = {.ptr = at.ptr, .len = n};
                td_guide *here = open_at(&g, &so_far);

                for (int32_t id = -1; id < n_ids + 1; id++) {
                    td_guide *there = open_at(&g, &so_far);
                    bool in = id >= 0 && id < n_ids && in_mask(td_guide_mask(here), id);
                    td_error err = {0};

                    if ((td_guide_accept(there, id, &err) == TD_OK) != in)
                        fail_msg("%s, after %zu: token %d, in the mask: %d", answers[i], n, id, in);
                    td_guide_free(there);
                }
                assert_true(in_mask(td_guide_mask(here), at.ptr[n]));
                td_guide_free(here);
            }
        }
        td_tokens_free(&ids);
        td_tokens_free(&bytes);
    }
    generation_free(&g);
}

static void expect_refusal(const char *members, const char *param, const char *says)
{
    const openai_defaults d = {.date = "", .allow_ignore_eos = true, .vocab = n_ids};
    td_error err = {0};
    td_tokens prompt = {0};
    char body[4096];
    generation g;
    int n = snprintf(body, sizeof body,
                     "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},"
                     "{\"role\":\"assistant\",\"content\":\"So\"}],%s}",
                     members);
    td_status st = openai_parse_chat(body, (size_t)n, &d, &g, &err);

    if (st == TD_OK)
        st = generation_guide(&g, &err);
    if (st == TD_OK)
        st = generation_render(&g, fixture_harmony(), &prompt, &err);
    if (st != TD_INVALID || strcmp(err.param, param) != 0 || strstr(err.text, says) == NULL)
        fail_msg("%s: %d \"%s\" \"%s\"", members, (int)st, err.param, err.text);
    assert_int_equal(prompt.len, 0);
    generation_free(&g);
}

static void test_what_cannot_be_held_is_refused_by_name(void **state)
{
    (void)state;
    expect_refusal(FORMAT ",\"ignore_eos\":true", "ignore_eos", "response format");
    expect_refusal(FORMAT ",\"continue_final_message\":true", "continue_final_message",
                   "response format");
    expect_refusal(TOOLS ",\"tool_choice\":\"required\",\"continue_final_message\":true",
                   "continue_final_message", "call");
    expect_refusal("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\","
                   "\"schema\":{\"type\":\"object\",\"properties\":{\"p\":{\"not\":{}}}}}}",
                   "response_format.json_schema.schema", "#/properties/p");
    /* A number that fits no double is none that an answer could be held to, and not null. */
    expect_refusal("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\","
                   "\"schema\":{\"enum\":[1,-1e400]}}}",
                   "response_format.json_schema.schema", "2^53 or more");
    expect_refusal("\"tools\":[" TOOL(
                       "a", "true") ",{\"type\":\"function\",\"function\":{"
                                    "\"name\":\"b\",\"strict\":true,\"parameters\":{\"not\":{}}}}]",
                   "tools[1].function.parameters", "not");
}

static void expect_bad(const Tandem__Guide *m, const int32_t *answer, size_t n, const char *says)
{
    td_guide *out = NULL;
    td_error err = {0};

    assert_int_equal(td_guide_create(guides, m, answer, n, &out, &err), TD_INVALID);
    assert_null(out);
    if (strstr(err.text, says) == NULL)
        fail_msg("%s", err.text);
}

static void test_descriptions_from_the_wire_are_checked(void **state)
{
    Tandem__Guide m = TANDEM__GUIDE__INIT;
    Tandem__GuideFunction f = TANDEM__GUIDE_FUNCTION__INIT, *list[600];
    const int32_t end = harmony_ids_of(fixture_harmony())->end, far = n_ids + 5;

    (void)state;
    for (size_t i = 0; i < 600; i++)
        list[i] = &f;
    m.functions = list;
    expect_bad(&m, NULL, 0, "no answer end");
    m.n_functions = 1;
    expect_bad(&m, NULL, 0, "name");
    f.name = (ProtobufCBinaryData){4, (uint8_t *)(uintptr_t) "a b<"};
    expect_bad(&m, NULL, 0, "name");
    f.name = (ProtobufCBinaryData){1, (uint8_t *)(uintptr_t) "a"};
    m.n_functions = 600;
    expect_bad(&m, NULL, 0, "600 functions");
    m.n_functions = 1;
    f.schema = (ProtobufCBinaryData){3, (uint8_t *)(uintptr_t) "{]}"};
    expect_bad(&m, NULL, 0, "");
    f.schema.len = 0;
    m.begun = true;
    expect_bad(&m, NULL, 0, "begun");
    m.begun = false;
    expect_bad(&m, &end, 1, "in a header");
    expect_bad(&m, &far, 1, "in a header");
    expect_bad(&m, &(int32_t){-1}, 1, "in a header");
}

#ifndef __SANITIZE_THREAD__
/* {"enum":[...]} of many long words, none of which begins as another: a state a letter. */
static void add_many_words(td_buf *out, unsigned seed)
{
    td_buf_str(out, "{\"enum\":[");
    for (int i = 0; i < 300; i++) {
        td_buf_fmt(out, "%s\"%d_%u_", i > 0 ? "," : "", i, seed);
        for (int k = 0; k < 60; k++)
            td_buf_byte(out, (char)('a' + (i * 7 + k * (k + (int)seed)) % 26));
        td_buf_byte(out, '"');
    }
    td_buf_str(out, "]}");
}

static void test_large_requests_are_bounded(void **state)
{
    enum { N = 40 };
    Tandem__Guide m = TANDEM__GUIDE__INIT;
    Tandem__GuideFunction f[N], *list[N];
    td_buf words[N] = {0};
    td_guide *g = NULL;
    td_error err = {0};
    char *blank = malloc(TD_GUIDE_MAX_BYTES);

    (void)state;
    assert_non_null(blank);
    memset(blank, ' ', TD_GUIDE_MAX_BYTES);
    for (unsigned i = 0; i < N; i++) {
        tandem__guide_function__init(&f[i]);
        f[i].name = (ProtobufCBinaryData){1, (uint8_t *)(uintptr_t) "f"};
        add_many_words(&words[i], i);
        f[i].schema = (ProtobufCBinaryData){words[i].len, (uint8_t *)words[i].ptr};
        list[i] = &f[i];
    }
    m.functions = list;
    m.n_functions = N;
    expect_bad(&m, NULL, 0, "more than 400000 states");
    f[0].schema = (ProtobufCBinaryData){TD_GUIDE_MAX_BYTES, (uint8_t *)blank};
    expect_bad(&m, NULL, 0, "at most 4194304 are possible");
    /* What is large leaves the cache to others as it came: each time by itself. */
    m.n_functions = N / 3;
    for (unsigned i = 0; i < 6; i++) {
        f[0].schema = f[N - 1 - i].schema;
        if (td_guide_create(guides, &m, NULL, 0, &g, &err) != TD_OK)
            fail_msg("%s", err.text);
        td_guide_free(g);
    }
    for (unsigned i = 0; i < N; i++)
        td_buf_free(&words[i]);
    free(blank);
}
#endif

/* Answers whose schemas have nothing in common; the most that their masks took. */
static size_t masks_of_many(int from, int n)
{
    size_t most = 0;

    for (int i = from; i < from + n; i++) {
        char members[400];
        generation g;

        snprintf(members, sizeof members,
                 "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\","
                 "\"schema\":{\"type\":\"object\",\"properties\":{\"p%d\":{\"type\":\"string\","
                 "\"pattern\":\"^[a-z]{2,9}%d$\"}},\"required\":[\"p%d\"]}}}",
                 i, i, i);
        parse(members, &g);
        for (uint64_t seed = 0; seed < 3; seed++) {
            td_tokens ids = walk(&g, seed);

            assert_true(ids.len > 0);
            td_tokens_free(&ids);
        }
        generation_free(&g);
        if (td_grammar_mask_bytes() > most)
            most = td_grammar_mask_bytes();
    }
    return most;
}

static void test_masks_of_idle_requests_make_room(void **state)
{
    size_t before = td_grammar_mask_bytes(), one = masks_of_many(0, 1) - before;

    (void)state;
    assert_true(one > 0);
    guides->most_mask_bytes = td_grammar_mask_bytes() + 3 * one;
    assert_true(masks_of_many(1, 30) < guides->most_mask_bytes + 3 * one);
    /* Where there is no room at all, masks are made for one use. */
    before = td_grammar_mask_bytes();
    td_grammar_limit_masks(before);
    assert_true(masks_of_many(31, 2) <= before);
    td_grammar_limit_masks(TD_GRAMMAR_MASK_BYTES);
    guides->most_mask_bytes = GUIDE_CACHE_MASK_BYTES;
}

/* More kinds of requests than the cache holds, from several threads. */
static void *many_kinds(void *arg)
{
    const char *failed = NULL;

    for (int i = 0; i < 300 && failed == NULL; i++) {
        Tandem__Guide m = TANDEM__GUIDE__INIT;
        Tandem__GuideFunction f = TANDEM__GUIDE_FUNCTION__INIT, *list = &f;
        char name[16];
        td_guide *g = NULL;
        td_error err = {0};

        snprintf(name, sizeof name, "f%d", i * 7 % 100);
        f.name = (ProtobufCBinaryData){strlen(name), (uint8_t *)name};
        m.functions = &list;
        m.n_functions = 1;
        if (td_guide_create(guides, &m, NULL, 0, &g, &err) != TD_OK || td_guide_mask(g) == NULL)
            failed = "a guide";
        td_guide_free(g);
    }
    *(const char **)arg = failed;
    return NULL;
}

static void test_plans_are_shared_between_threads(void **state)
{
    pthread_t threads[3];
    const char *failed[3] = {"no thread", "no thread", "no thread"};

    (void)state;
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, many_kinds, &failed[i]), 0);
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        assert_null(failed[i]);
    }
}

static void test_a_folder_without_a_vocabulary_says_so(void **state)
{
    char folder[] = "/tmp/tandem-guide-XXXXXX", path[64], *text, *at;
    td_guides *g = NULL;
    td_error err = {0};
    size_t n;
    FILE *f;

    (void)state;
    assert_int_equal(td_guides_open("tests/unit", 100, &g, &err), TD_NOTFOUND);
    assert_non_null(strstr(err.text, "tokenizer.json"));
    assert_int_equal(td_guides_open(FOLDER, n_ids - 1, &g, &err), TD_INVALID);
    assert_non_null(strstr(err.text, "rows"));
    text = fixture_read(FOLDER "/tokenizer.json", &n);
    at = strstr(text, "<|call|>");
    assert_non_null(at);
    at[2] = 'C';
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
    assert_int_equal(td_guides_open(folder, n_ids, &g, &err), TD_INVALID);
    assert_non_null(strstr(err.text, "<|call|>"));
    unlink(path);
    rmdir(folder);
    free(text);
    assert_null(g);
}

static int set_up(void **state)
{
    td_error err = {0};

    (void)state;
    n_ids = tokenizer_vocab(harmony_tokenizer(fixture_harmony()));
    if (td_guides_open(FOLDER, n_ids, &guides, &err) == TD_OK)
        return 0;
    fprintf(stderr, "%s\n", err.text);
    return -1;
}

static int tear_down(void **state)
{
    (void)state;
    td_guides_close(guides);
    fixture_close();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_response_format_holds_the_final_channel_alone),
        cmocka_unit_test(test_json_object_is_any_object),
        cmocka_unit_test(test_tool_choice_decides_which_calls_may_come),
        cmocka_unit_test(test_two_functions_of_one_name),
        cmocka_unit_test(test_only_what_must_be_held_is),
        cmocka_unit_test(test_a_continued_answer_begins_in_its_text),
        cmocka_unit_test(test_reasoning_is_free_and_does_not_come_twice),
        cmocka_unit_test(test_masks_of_headers_are_exact),
        cmocka_unit_test(test_what_cannot_be_held_is_refused_by_name),
        cmocka_unit_test(test_descriptions_from_the_wire_are_checked),
#ifndef __SANITIZE_THREAD__ /* much work, of one thread */
        cmocka_unit_test(test_large_requests_are_bounded),
#endif
        cmocka_unit_test(test_masks_of_idle_requests_make_room),
        cmocka_unit_test(test_plans_are_shared_between_threads),
        cmocka_unit_test(test_a_folder_without_a_vocabulary_says_so),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
