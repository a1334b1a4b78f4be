/* config.json in each of its spellings, with keys left out; and the hash of what it says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/checkpoint.h"
#include "tests/unit/published_config.h"
#include "tests/unit/tiny_checkpoint.h"

static td_model_config parse_ok(const char *text, const char *gen)
{
    td_model_config c;
    td_error err = {0};

    if (parse_config(text, gen, &c, &err) != TD_OK)
        fail_msg("%s", err.text);
    return c;
}

static void check_published(const td_model_config *c, int n_layers, int n_experts)
{
    assert_int_equal(c->n_layers, n_layers);
    assert_int_equal(c->hidden, 2880);
    assert_int_equal(c->n_q_heads, 64);
    assert_int_equal(c->n_kv_heads, 8);
    assert_int_equal(c->head_dim, 64);
    assert_int_equal(c->n_experts, n_experts);
    assert_int_equal(c->top_k, 4);
    assert_int_equal(c->inter, 2880);
    assert_int_equal(c->vocab, 201088);
    assert_int_equal(c->window, 128);
    assert_int_equal(c->max_positions, 131072);
    assert_true(c->eps == 1e-5f);
    assert_true(c->swiglu_limit == 7.0f);
    assert_true(c->rope_theta == 150000 && c->yarn_factor == 32);
    assert_true(c->yarn_beta_fast == 32 && c->yarn_beta_slow == 1);
    assert_int_equal(c->yarn_original_positions, 4096);
    assert_false(c->yarn_truncate);
    for (int l = 0; l < n_layers; l++)
        assert_int_equal(c->windowed[l], l % 2 == 0);
    assert_int_equal(c->n_eos, 3);
    assert_int_equal(c->eos[0], 200002);
    assert_int_equal(c->eos[1], 199999);
    assert_int_equal(c->eos[2], 200012);
}

static void test_model_config_reads_published_20b_and_120b(void **state)
{
    static const struct {
        int n_layers, n_experts;
        uint64_t params, bytes;
    } models[] = {
        {24, 32, UINT64_C(20914757184), UINT64_C(13761264768)},
        {36, 128, UINT64_C(116829156672), UINT64_C(65248815744)},
    };

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char *text = published_config(models[i].n_layers, models[i].n_experts);
        td_model_config c = parse_ok(text, published_generation);
        td_checkpoint *w = NULL;

        check_published(&c, models[i].n_layers, models[i].n_experts);
        assert_false(c.original_layout);
        assert_int_equal(td_model_config_params(&c), models[i].params);
        /* What the published index says the tensors sum to; nothing is made until asked for. */
        assert_int_equal(td_checkpoint_random(&c, 1, &w, NULL), TD_OK);
        assert_int_equal(td_checkpoint_bytes(w), models[i].bytes);
        td_checkpoint_close(w);
        free(text);
    }
}

static void test_model_config_layouts_describe_the_same_model(void **state)
{
    char *text = published_config(36, 128);
    td_model_config hf = parse_ok(text, published_generation);
    td_model_config original = parse_ok(original_120b, NULL);

    (void)state;
    check_published(&original, 36, 128);
    assert_true(original.original_layout);
    assert_int_equal(td_model_config_hash(&hf), td_model_config_hash(&original));
    free(text);
}

static void test_model_config_rope_parameters_equal_rope_scaling(void **state)
{
    static const char scaling[] =
        "\"rope_scaling\": {\"beta_fast\": 32.0, \"beta_slow\": 1.0, \"factor\": 32.0, "
        "\"original_max_position_embeddings\": 4096, \"rope_type\": \"yarn\", "
        "\"truncate\": false}, \"rope_theta\": 150000";
    static const char *const same[] = {
        "\"rope_parameters\": {\"beta_fast\": 32.0, \"beta_slow\": 1.0, \"factor\": 32.0, "
        "\"original_max_position_embeddings\": 4096, \"rope_theta\": 150000, "
        "\"rope_type\": \"yarn\", \"truncate\": false}",
        "\"rope_theta\": 150000.0, \"rope_parameters\": {\"factor\": 32, "
        "\"rope_type\": \"yarn\", \"truncate\": false}",
        "\"rope_theta\": 150000, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 32, "
        "\"truncate\": false, \"attention_factor\": 1.3465735902799727}",
        "\"rope_scaling\": null, \"rope_parameters\": {\"factor\": 32, \"rope_theta\": 15e4, "
        "\"rope_type\": \"yarn\", \"truncate\": false, \"attention_factor\": null}",
        "\"rope_theta\": 150000, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 32, "
        "\"truncate\": false}, \"rope_parameters\": {\"factor\": 32, \"rope_theta\": 15e4, "
        "\"rope_type\": \"yarn\", \"truncate\": false}",
    };
    char *text = published_config(24, 32);
    td_model_config want = parse_ok(text, NULL);

    (void)state;
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        char *other = strdup(text);
        td_model_config c;

        tiny_replace(&other, scaling, same[i]);
        c = parse_ok(other, NULL);
        assert_int_equal(td_model_config_hash(&c), td_model_config_hash(&want));
        free(other);
    }
    free(text);
}

static td_model_config edited(const char *from, const char *to, const char *gen)
{
    char *text = published_config(24, 32);
    td_model_config c;

    tiny_replace(&text, from, to);
    c = parse_ok(text, gen);
    free(text);
    return c;
}

static void test_model_config_defaults_of_absent_keys(void **state)
{
    td_model_config c;

    (void)state;
    c = edited(", \"truncate\": false", "", NULL);
    assert_true(c.yarn_truncate); /* as in Transformers */
    c = edited("\"swiglu_limit\": 7.0, ", "", NULL);
    assert_true(c.swiglu_limit == 7.0f);
    c = edited("\"layer_types\"", "\"ignored\"", NULL);
    for (int l = 0; l < 24; l++)
        assert_int_equal(c.windowed[l], l % 2 == 0);
    c = edited("\"num_experts_per_tok\": 4, ", "", NULL);
    assert_int_equal(c.top_k, 4);
    c = edited("\"experts_per_token\": 4, ", "", NULL);
    assert_int_equal(c.top_k, 4);
    c = edited("\"quantization_config\"", "\"ignored\"", NULL);
    assert_int_equal(c.n_layers, 24);
}

static void test_model_config_layer_types_are_read(void **state)
{
    td_model_config c = edited("[\"sliding_attention\", \"full_attention\", \"sliding_attention\", "
                               "\"full_attention\", \"sliding_attention\", \"full_attention\", "
                               "\"sliding_attention\", \"full_attention\", \"sliding_attention\", "
                               "\"full_attention\", \"sliding_attention\", \"full_attention\", "
                               "\"sliding_attention\", \"full_attention\", \"sliding_attention\", "
                               "\"full_attention\", \"sliding_attention\", \"full_attention\", "
                               "\"sliding_attention\", \"full_attention\", \"sliding_attention\", "
                               "\"full_attention\", \"sliding_attention\", \"full_attention\"], "
                               "\"max_position_embeddings\": 131072, \"model_type\": \"gpt_oss\", "
                               "\"num_attention_heads\": 64, \"num_experts_per_tok\": 4, "
                               "\"num_hidden_layers\": 24",
                               "[\"full_attention\", \"full_attention\", \"sliding_attention\"], "
                               "\"max_position_embeddings\": 131072, \"model_type\": \"gpt_oss\", "
                               "\"num_attention_heads\": 64, \"num_experts_per_tok\": 4, "
                               "\"num_hidden_layers\": 3",
                               NULL);

    (void)state;
    assert_false(c.windowed[0]);
    assert_false(c.windowed[1]);
    assert_true(c.windowed[2]);
    assert_false(c.windowed[3]); /* past the end */
}

static void test_model_config_eos_sources(void **state)
{
    td_model_config c;

    (void)state;
    c = edited("\"eos_token_id\": 200002", "\"eos_token_id\": [1, 2, 1]", NULL);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos[1], 2);
    c = edited("\"eos_token_id\": 200002", "\"eos_token_id\": null", "{\"eos_token_id\": 9}");
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos[0], 9);
    c = edited("\"eos_token_id\": 200002", "\"eos_token_id\": 3", "{\"do_sample\": true}");
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos[0], 3);
    c = edited("\"eos_token_id\": 200002", "\"eos_token_id\": 3", "{\"eos_token_id\": []}");
    assert_int_equal(c.eos[0], 3);
}

static void test_model_config_hash_sees_every_field_but_eos(void **state)
{
    td_model_config c = parse_ok(original_120b, NULL), d;
    const uint64_t h = td_model_config_hash(&c);

    (void)state;
#define DIFFERS(change) \
    do { \
        d = c; \
        change; \
        assert_int_not_equal(td_model_config_hash(&d), h); \
    } while (0)
    DIFFERS(d.n_layers++);
    DIFFERS(d.hidden += 32);
    DIFFERS(d.n_q_heads = 32);
    DIFFERS(d.n_kv_heads = 4);
    DIFFERS(d.head_dim = 32);
    DIFFERS(d.n_experts = 32);
    DIFFERS(d.top_k = 2);
    DIFFERS(d.inter += 32);
    DIFFERS(d.vocab++);
    DIFFERS(d.window++);
    DIFFERS(d.windowed[35] = true);
    DIFFERS(d.max_positions--);
    DIFFERS(d.eps = 1e-6f);
    DIFFERS(d.swiglu_limit = 6.0f);
    DIFFERS(d.rope_theta += 1);
    DIFFERS(d.yarn_factor = 16);
    DIFFERS(d.yarn_beta_fast = 31);
    DIFFERS(d.yarn_beta_slow = 2);
    DIFFERS(d.yarn_original_positions = 8192);
    DIFFERS(d.yarn_truncate = true);
#undef DIFFERS
    d = c;
    d.n_eos = 1;
    d.eos[0] = 7;
    d.original_layout = false;
    d.windowed[36] = true; /* past the end */
    assert_int_equal(td_model_config_hash(&d), h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_config_reads_published_20b_and_120b),
        cmocka_unit_test(test_model_config_layouts_describe_the_same_model),
        cmocka_unit_test(test_model_config_rope_parameters_equal_rope_scaling),
        cmocka_unit_test(test_model_config_defaults_of_absent_keys),
        cmocka_unit_test(test_model_config_layer_types_are_read),
        cmocka_unit_test(test_model_config_eos_sources),
        cmocka_unit_test(test_model_config_hash_sees_every_field_but_eos),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
