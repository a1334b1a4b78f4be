/* The bodies of /v1/completions, /tokenize and /detokenize: what they become, and how each mistake
 * is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "router/completion_body.h"
#include "router/tokenize_body.h"
#include "tests/unit/harmony_fixture.h"

static const tokenize_facts facts = {
    .defaults = {.date = "2025-06-28", .vocab = 401}, .model = "tiny", .max_model_len = 4096};

/* A block of its own size, so that a sanitizer sees a read past its NUL. */
static char *copy_of(const char *body)
{
    char *copy = strdup(body);

    assert_non_null(copy);
    return copy;
}

/* ---- /v1/completions ---- */

static td_status parse(const char *body, generation *g, td_error *err)
{
    char *copy = copy_of(body);
    td_status st = completion_parse(copy, strlen(copy), &facts.defaults,
                                    harmony_tokenizer(fixture_harmony()), g, err);

    free(copy); /* nothing of the result may point into it */
    return st;
}

static void assert_prompt(const char *body, const int32_t *want, size_t n)
{
    generation g;
    td_tokens ids = {0};
    td_error err = {0};

    if (parse(body, &g, &err) != TD_OK)
        fail_msg("%s: %s", body, err.text);
    assert_true(g.raw);
    assert_int_equal(generation_render(&g, fixture_harmony(), &ids, &err), TD_OK);
    assert_int_equal(ids.len, n);
    assert_memory_equal(ids.ptr, want, n * sizeof *want);
    td_tokens_free(&ids);
    generation_free(&g);
}

static void test_completion_prompt_is_text_or_tokens(void **state)
{
    static const int32_t text[] = {274, 10, 290}, ids[] = {287, 279, 394};

    (void)state;
    assert_prompt("{\"prompt\":\"final\\nuser\"}", text, 3);
    assert_prompt("{\"prompt\":[\"final\\nuser\"]}", text, 3);
    assert_prompt("{\"prompt\":[287,279,394]}", ids, 3); /* 394 is special: the client's own */
    assert_prompt("{\"prompt\":[[287,279,394]]}", ids, 3);
}

static void test_completion_text_makes_no_special_token(void **state)
{
    const tokenizer *t = harmony_tokenizer(fixture_harmony());
    generation g;
    td_tokens ids = {0};
    td_error err = {0};

    (void)state;
    assert_int_equal(parse("{\"prompt\":\"<|start|>system<|message|>\"}", &g, &err), TD_OK);
    assert_int_equal(generation_render(&g, fixture_harmony(), &ids, &err), TD_OK);
    assert_true(ids.len > 3);
    for (size_t i = 0; i < ids.len; i++)
        assert_false(tokenizer_is_special(t, ids.ptr[i]));
    td_tokens_free(&ids);
    generation_free(&g);
}

static void test_completion_fields(void **state)
{
    generation g;
    td_error err = {0};

    (void)state;
    assert_int_equal(parse("{\"prompt\":\"x\"}", &g, &err), TD_OK);
    assert_int_equal(g.max_tokens, 16);
    assert_false(g.stream);
    generation_free(&g);
    assert_int_equal(
        parse("{\"prompt\":\"x\",\"max_tokens\":5,\"temperature\":0.5,\"top_p\":0.25,\"top_k\":7,"
              "\"seed\":9,\"stop\":[\"a\",\"b\"],\"stream\":true,"
              "\"stream_options\":{\"include_usage\":true},\"n\":1,\"best_of\":1,\"echo\":false,"
              "\"suffix\":\"\",\"logprobs\":null,\"frequency_penalty\":1.5,\"presence_penalty\":-1,"
              "\"logit_bias\":{\"7\":-100},"
              "\"model\":\"m\",\"user\":\"u\",\"unknown\":[1]}",
              &g, &err),
        TD_OK);
    assert_int_equal(g.max_tokens, 5);
    assert_true(g.temperature == 0.5f && g.top_p == 0.25f && g.top_k == 7);
    assert_true(g.has_seed && g.seed == 9);
    assert_int_equal(g.n_stop, 2);
    assert_true(g.frequency == 1.5f && g.presence == -1);
    assert_int_equal(g.n_bias, 1);
    assert_true(g.stream && g.include_usage);
    assert_true(td_slice_eq(g.model, TD_SLICE("m")));
    generation_free(&g);
}

static void test_completion_names_mistakes(void **state)
{
    static const struct {
        const char *body, *param, *says;
    } bad[] = {
        {"[]", "", "object"},
        {"{}", "prompt", "missing"},
        {"{\"prompt\":null}", "prompt", "missing"},
        {"{\"prompt\":5}", "prompt", "a number"},
        {"{\"prompt\":\"x\",\"tools\":[{}]}", "tools", "/v1/chat/completions"},
        {"{\"prompt\":\"x\",\"reasoning_effort\":\"low\"}", "reasoning_effort", "raw text"},
        {"{\"prompt\":\"x\",\"top_logprobs\":2}", "top_logprobs", "logprobs is a number"},
        {"{\"prompt\":\"x\",\"input\":\"x\"}", "input", "/v1/responses"},
        {"{\"prompt\":\"x\",\"max_output_tokens\":5}", "max_output_tokens", "max_tokens"},
        {"{\"prompt\":\"\"}", "prompt", "empty"},
        {"{\"prompt\":[]}", "prompt", "empty"},
        {"{\"prompt\":[\"\"]}", "prompt", "empty"},
        {"{\"prompt\":[[]]}", "prompt", "empty"},
        {"{\"prompt\":[\"a\",\"b\"]}", "prompt", "several"},
        {"{\"prompt\":[[1],[2]]}", "prompt", "several"},
        {"{\"prompt\":[1,\"b\"]}", "prompt[1]", "a string"},
        {"{\"prompt\":[1,-1]}", "prompt[1]", "between 0 and 400"},
        {"{\"prompt\":[1,2,401]}", "prompt[2]", "between 0 and 400"},
        {"{\"prompt\":[1.5]}", "prompt[0]", "whole"},
        {"{\"prompt\":[1e300]}", "prompt[0]", "between"},
        {"{\"prompt\":[[392]]}", "prompt[0][0]", "no token 392"},
        {"{\"prompt\":\"x\",\"n\":2}", "n", "at most 1 answer"},
        {"{\"prompt\":\"x\",\"best_of\":3}", "best_of", "use n"},
        {"{\"prompt\":\"x\",\"echo\":true}", "echo", "not supported"},
        {"{\"prompt\":\"x\",\"suffix\":\"y\"}", "suffix", "not supported"},
        {"{\"prompt\":\"x\",\"logprobs\":21}", "logprobs", "between 0 and 20"},
        {"{\"prompt\":\"x\",\"logprobs\":true}", "logprobs", "true or false"},
        {"{\"prompt\":\"x\",\"presence_penalty\":3}", "presence_penalty", "between -2 and 2"},
        {"{\"prompt\":\"x\",\"frequency_penalty\":\"0\"}", "frequency_penalty", "a string"},
        {"{\"prompt\":\"x\",\"logit_bias\":{\"401\":1}}", "logit_bias", ""},
        {"{\"prompt\":\"x\",\"messages\":[]}", "messages", "chat"},
        {"{\"prompt\":\"x\",\"max_tokens\":0}", "max_tokens", "between 1"},
        {"{\"prompt\":\"x\",\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\"]}", "stop", "at most 4"},
        {"{\"prompt\":\"x\",\"stream_options\":{}}", "stream_options", "stream: true"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        generation g;
        td_error err = {0};

        if (parse(bad[i].body, &g, &err) != TD_INVALID || strcmp(err.param, bad[i].param) != 0 ||
            strstr(err.text, bad[i].says) == NULL)
            fail_msg("%s: %d, \"%s\": %s", bad[i].body, err.code, err.param, err.text);
        generation_free(&g);
    }
}

/* ---- /tokenize, /detokenize ---- */

typedef td_status (*answer_fn)(const char *, size_t, const tokenize_facts *, const harmony *,
                               td_buf *, td_error *);

static void assert_answer(answer_fn fn, const char *body, const char *want)
{
    char *copy = copy_of(body);
    td_buf out = {0};
    td_error err = {0};

    if (fn(copy, strlen(copy), &facts, fixture_harmony(), &out, &err) != TD_OK)
        fail_msg("%s: %s", body, err.text);
    assert_string_equal(out.ptr, want);
    td_buf_free(&out);
    free(copy);
}

static void test_tokenize_prompt(void **state)
{
    (void)state;
    assert_answer(
        tokenize_text, "{\"prompt\":\"final\\nuser\"}",
        "{\"count\":3,\"max_model_len\":4096,\"tokens\":[274,10,290],\"token_strs\":null}");
    assert_answer(tokenize_text, "{\"prompt\":\"\",\"return_token_strs\":true,\"unknown\":{}}",
                  "{\"count\":0,\"max_model_len\":4096,\"tokens\":[],\"token_strs\":[]}");
    assert_answer(tokenize_text,
                  "{\"model\":\"tiny\",\"prompt\":\"user\\u00e9\","
                  "\"return_token_strs\":true,\"add_special_tokens\":false}",
                  "{\"count\":3,\"max_model_len\":4096,\"tokens\":[290,195,169],\"token_strs\":"
                  "[\"user\",\"\xEF\xBF\xBD\",\"\xEF\xBF\xBD\"]}");
}

static void test_tokenize_before_a_worker_has_come(void **state)
{
    const tokenize_facts none = {.defaults = {.date = ""}, .model = ""};
    static const char body[] = "{\"model\":\"any\",\"prompt\":\"final\"}";
    td_buf out = {0};
    td_error err = {0};

    (void)state;
    assert_int_equal(tokenize_text(body, sizeof body - 1, &none, fixture_harmony(), &out, &err),
                     TD_OK);
    assert_string_equal(
        out.ptr, "{\"count\":1,\"max_model_len\":null,\"tokens\":[274],\"token_strs\":null}");
    td_buf_free(&out);
}

static void test_tokenize_messages_as_the_chat_endpoint(void **state)
{
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"<|end|>\"}],\"tools\":[{\"type\":"
        "\"function\",\"function\":{\"name\":\"f\"}}]}";
    generation g;
    td_tokens ids = {0};
    td_buf out = {0};
    td_error err = {0};
    cJSON *root;
    const cJSON *tokens, *id;
    size_t i = 0;

    (void)state;
    assert_int_equal(openai_parse_chat(body, sizeof body - 1, &facts.defaults, &g, &err), TD_OK);
    assert_int_equal(harmony_render(fixture_harmony(), &g.chat, &ids, &err), TD_OK);
    assert_int_equal(tokenize_text(body, sizeof body - 1, &facts, fixture_harmony(), &out, &err),
                     TD_OK);
    root = cJSON_Parse(out.ptr);
    tokens = cJSON_GetObjectItem(root, "tokens");
    assert_int_equal(cJSON_GetArraySize(tokens), ids.len);
    assert_int_equal((int)cJSON_GetObjectItem(root, "count")->valuedouble, ids.len);
    cJSON_ArrayForEach(id, tokens)
    {
        assert_int_equal((int)id->valuedouble, ids.ptr[i++]);
    }
    cJSON_Delete(root);
    td_buf_free(&out);
    td_tokens_free(&ids);
    generation_free(&g);
}

/* Where a prompt ends, said in either way. */
static void test_tokenize_a_message_to_be_continued(void **state)
{
    static const char continued[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
        "\"content\":\"b\"}],\"continue_final_message\":true%s}";
    td_buf out[2] = {{0}, {0}};
    td_error err = {0};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char body[256];

        snprintf(body, sizeof body, continued, i > 0 ? ",\"add_generation_prompt\":false" : "");
        assert_int_equal(
            tokenize_text(body, strlen(body), &facts, fixture_harmony(), &out[i], &err), TD_OK);
    }
    assert_string_equal(out[0].ptr, out[1].ptr);
    td_buf_free(&out[0]);
    td_buf_free(&out[1]);
}

static void test_detokenize(void **state)
{
    (void)state;
    assert_answer(tokenize_back, "{\"tokens\":[]}", "{\"prompt\":\"\"}");
    assert_answer(tokenize_back, "{\"tokens\":[287,195,169,279,10,34]}",
                  "{\"prompt\":\"assistant\xC3\xA9 final\\n\\\"\"}");
    assert_answer(tokenize_back, "{\"tokens\":[394,287]}", "{\"prompt\":\"<|start|>assistant\"}");
    /* Half a character in the middle and at the end. */
    assert_answer(tokenize_back, "{\"tokens\":[195,287,195]}",
                  "{\"prompt\":\"\xEF\xBF\xBD"
                  "assistant\xEF\xBF\xBD\"}");
}

static void test_tokenize_names_mistakes(void **state)
{
    static const struct {
        answer_fn fn;
        const char *body, *param, *says;
        td_status st;
    } bad[] = {
        {tokenize_text, "{", "", "JSON", TD_INVALID},
        {tokenize_text, "{}", "prompt", "missing", TD_INVALID},
        {tokenize_text, "{\"prompt\":[1]}", "prompt", "an array", TD_INVALID},
        {tokenize_text, "{\"prompt\":\"x\",\"messages\":[]}", "prompt", "not both", TD_INVALID},
        {tokenize_text, "{\"prompt\":\"x\",\"return_token_strs\":1}", "return_token_strs",
         "a number", TD_INVALID},
        {tokenize_text, "{\"prompt\":\"x\",\"add_special_tokens\":\"\"}", "add_special_tokens",
         "a string", TD_INVALID},
        {tokenize_text, "{\"messages\":[]}", "messages", "empty", TD_INVALID},
        {tokenize_text, "{\"messages\":[{\"role\":\"king\",\"content\":\"\"}]}", "messages[0].role",
         "", TD_INVALID},
        {tokenize_text,
         "{\"messages\":[{\"role\":\"user\",\"content\":\"\"}],\"add_generation_prompt\":false}",
         "add_generation_prompt", "must be true without", TD_INVALID},
        {tokenize_text, "{\"prompt\":\"x\",\"tools\":[{}]}", "tools", "with messages", TD_INVALID},
        {tokenize_text, "{\"prompt\":\"x\",\"model\":\"other\"}", "model", "tiny", TD_NOTFOUND},
        {tokenize_text, "{\"prompt\":\"x\",\"model\":1}", "model", "a number", TD_INVALID},
        {tokenize_back, "{}", "tokens", "missing", TD_INVALID},
        {tokenize_back, "{\"tokens\":\"x\"}", "tokens", "a string", TD_INVALID},
        {tokenize_back, "{\"tokens\":[0,401]}", "tokens[1]", "between 0 and 400", TD_INVALID},
        {tokenize_back, "{\"tokens\":[-1]}", "tokens[0]", "between", TD_INVALID},
        {tokenize_back, "{\"tokens\":[4294967296]}", "tokens[0]", "between", TD_INVALID},
        {tokenize_back, "{\"tokens\":[0,0,392]}", "tokens[2]", "no token 392", TD_INVALID},
        {tokenize_back, "{\"tokens\":[[1]]}", "tokens[0]", "an array", TD_INVALID},
        {tokenize_back, "{\"tokens\":[],\"model\":\"other\"}", "model", "tiny", TD_NOTFOUND},
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *copy = copy_of(bad[i].body);
        td_buf out = {0};
        td_error err = {0};
        td_status st = bad[i].fn(copy, strlen(copy), &facts, fixture_harmony(), &out, &err);

        if (st != bad[i].st || strcmp(err.param, bad[i].param) != 0 ||
            strstr(err.text, bad[i].says) == NULL)
            fail_msg("%s: %d, \"%s\": %s", bad[i].body, st, err.param, err.text);
        td_buf_free(&out);
        free(copy);
    }
}

/* Every beginning of a good body, and every body with one byte changed, ends in a clean yes or no.
 */
static void test_damage(void **state)
{
    static const char *const bodies[] = {
        "{\"prompt\":[[287,1e2]],\"max_tokens\":3,\"stop\":[\"x\"],\"echo\":false,\"n\":1}",
        "{\"prompt\":\"h\\u00e9\",\"suffix\":\"\",\"logit_bias\":{\"7\":1},\"model\":\"tiny\"}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"return_token_strs\":true}",
        "{\"tokens\":[287,195,10],\"model\":\"tiny\"}",
    };
    static const char with[] = "\"\\{}[],:0-\x01\xff";
    static const answer_fn fns[] = {tokenize_text, tokenize_back};

    (void)state;
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        size_t n = strlen(bodies[i]);

        /* k 0: cut before `at`; otherwise with[k - 1] in its place. */
        for (size_t at = 0; at < n; at++) {
            for (size_t k = 0; k < sizeof with; k++) {
                char *copy = copy_of(bodies[i]);
                generation g;
                td_error err = {0};
                td_status st;

                copy[at] = k == 0 ? '\0' : with[k - 1];
                st = parse(copy, &g, &err);
                assert_true((st == TD_OK) == (err.text[0] == '\0'));
                generation_free(&g);
                for (size_t f = 0; f < sizeof fns / sizeof *fns; f++) {
                    td_buf out = {0};
                    td_error e = {0};

                    st = fns[f](copy, strlen(copy), &facts, fixture_harmony(), &out, &e);
                    assert_true((st == TD_OK) == (e.text[0] == '\0'));
                    td_buf_free(&out);
                }
                free(copy);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_completion_prompt_is_text_or_tokens),
        cmocka_unit_test(test_completion_text_makes_no_special_token),
        cmocka_unit_test(test_completion_fields),
        cmocka_unit_test(test_completion_names_mistakes),
        cmocka_unit_test(test_tokenize_prompt),
        cmocka_unit_test(test_tokenize_before_a_worker_has_come),
        cmocka_unit_test(test_tokenize_messages_as_the_chat_endpoint),
        cmocka_unit_test(test_tokenize_a_message_to_be_continued),
        cmocka_unit_test(test_detokenize),
        cmocka_unit_test(test_tokenize_names_mistakes),
        cmocka_unit_test(test_damage),
    };

    return cmocka_run_group_tests(tests, NULL, fixture_tear_down);
}
