/* Tensors that config.json does not lead one to expect: missing ones, others' types and shapes, and
 * more of them. The message names the tensor and its file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/checkpoint_refusal.h"

static void test_checkpoint_every_tensor_missing(void **state)
{
    tiny_model *m = *state;
    const size_t n = m->n_tensors;

    for (size_t i = 0; i < n; i++) {
        char name[128];
        tiny_tensor saved;

        memcpy(name, m->tensor[0].name, sizeof name);
        saved = m->tensor[0];
        memmove(m->tensor, m->tensor + 1, (n - 1) * sizeof *m->tensor);
        m->n_tensors = n - 1;
        tiny_write(m); /* files and index agree that it is not there */
        EXPECT(m, TD_INVALID, INDEX, name, AGAIN);
        m->tensor[n - 1] = saved;
        m->n_tensors = n;
    }
}

static void test_checkpoint_every_tensor_of_another_type_or_shape(void **state)
{
    tiny_model *m = *state;

    for (size_t i = 0; i < m->n_tensors; i++) {
        tiny_tensor *t = &m->tensor[i];
        const tiny_tensor good = *t;
        char file[64];

        tiny_file_name(m, t->shard, file, sizeof file);
        t->dtype = strcmp(good.dtype, "U8") == 0 ? "I8" : "F16"; /* as many bytes */
        tiny_write(m);
        EXPECT(m, TD_INVALID, file, t->name, "expected", t->dtype, good.dtype);
        *t = good;
        if (t->n_dims > 1 && t->dim[0] != t->dim[1]) {
            t->dim[0] = good.dim[1];
            t->dim[1] = good.dim[0];
            tiny_write(m);
            EXPECT(m, TD_INVALID, file, t->name, "expected", "found");
        }
        *t = good;
        if (t->n_dims < 4) { /* one more dimension, of 1 */
            t->dim[t->n_dims++] = 1;
            tiny_write(m);
            EXPECT(m, TD_INVALID, file, t->name, "expected", ", 1]", "found");
        }
        *t = good;
        if (t->n_dims > 1) { /* one dimension less: what is left agrees */
            t->n_dims--;
            t->bytes /= (size_t)good.dim[t->n_dims];
            tiny_write(m);
            EXPECT(m, TD_INVALID, file, t->name, "expected", "found");
        }
        *t = good;
        t->dim[0] = 0;
        t->bytes = 0;
        tiny_write(m);
        EXPECT(m, TD_INVALID, file, t->name, "[0");
        *t = good;
    }
}

static void test_checkpoint_type_named_as_found(void **state)
{
    tiny_model *m = *state;
    const int64_t dim[] = {4, 64};

    tiny_remove(m, "model.layers.1.mlp.router.weight");
    tiny_add(m, "model.layers.1.mlp.router.weight", "F32", 2, dim, 1024);
    tiny_write(m);
    EXPECT(m, TD_INVALID, SHARD_0, "model.layers.1.mlp.router.weight", "expected BF16 [4, 64]",
           "found F32 [4, 64]");
}

static void test_checkpoint_every_config_number_against_the_tensors(void **state)
{
    tiny_model *m = *state;
    const td_model_config good = m->cfg;

#define DISAGREES(change, tensor) \
    do { \
        m->cfg = good; \
        change; \
        EXPECT(m, TD_INVALID, tensor, ".safetensors"); \
    } while (0)
    DISAGREES(m->cfg.hidden = 96, "model.embed_tokens.weight");
    DISAGREES(m->cfg.vocab = 98, "model.embed_tokens.weight");
    DISAGREES(m->cfg.n_q_heads = 8, "self_attn.q_proj.weight");
    DISAGREES(m->cfg.n_kv_heads = 4, "self_attn.k_proj.weight");
    DISAGREES(m->cfg.head_dim = 32, "self_attn.q_proj.weight");
    /* 8 heads of 8 have the same projections as 4 of 16: only the sinks tell. */
    DISAGREES((m->cfg.n_q_heads = 8, m->cfg.n_kv_heads = 4, m->cfg.head_dim = 8),
              "self_attn.sinks");
    DISAGREES(m->cfg.n_experts = 8, "mlp.router.weight");
    DISAGREES(m->cfg.inter = 64, "gate_up_proj_blocks");
    DISAGREES(m->cfg.n_layers = 4, "model.layers.3.");
    DISAGREES(m->cfg.n_layers = 2, "num_hidden_layers 2");
    DISAGREES(m->cfg.n_layers = 1, "num_hidden_layers 1");
#undef DISAGREES
    m->cfg = good;
}

static void test_checkpoint_bad_config_struct_is_refused(void **state)
{
    tiny_model *m = *state;
    td_checkpoint *c = NULL;
    td_model_config bad = m->cfg;
    td_error err = {0};

    bad.n_layers = TD_MAX_LAYERS + 1;
    assert_int_equal(td_checkpoint_open(m->dir, &bad, &c, &err), TD_INVALID);
    assert_non_null(strstr(err.text, "num_hidden_layers"));
    assert_int_equal(td_checkpoint_random(&bad, 1, &c, &err), TD_INVALID);
    assert_null(c);
}

static void test_checkpoint_extra_tensors_are_accepted(void **state)
{
    tiny_model *m = *state;
    const int64_t dim[] = {3}, none[] = {0, 7};
    td_error err = {0};

    tiny_add(m, "model.rotary.inv_freq", "F32", 1, dim, 12);
    tiny_add(m, "model.layers.0.self_attn.k_scale", "F32", 1, dim, 12);
    tiny_add(m, "empty", "I64", 2, none, 0);
    tiny_add(m, "model.layers.x.y", "U8", 1, dim, 3)->shard = 2;
    tiny_add(m, "model.layers.99999999999999999999", "U8", 1, dim, 3)->shard = 2;
    tiny_write(m);
    if (open_dir(m, &err) != TD_OK)
        fail_msg("%s", err.text);
}

static void test_checkpoint_layers_past_the_config_are_refused(void **state)
{
    tiny_model *m = *state;
    const int64_t dim[] = {64};

    tiny_add(m, "model.layers.3.input_layernorm.weight", "BF16", 1, dim, 128);
    tiny_write(m);
    EXPECT(m, TD_INVALID, SHARD_0, "model.layers.3.input_layernorm.weight", "num_hidden_layers 3",
           "layers 0 to 2");
}

static void test_checkpoint_layout_of_config_and_tensors_differ(void **state)
{
    tiny_model *m = *state;

    m->cfg.original_layout = true;
    EXPECT(m, TD_INVALID, "embedding.weight", "original layout");
    m->cfg.original_layout = false;
}

static void test_checkpoint_dequantised_copy_is_explained(void **state)
{
    tiny_model *m = *state;
    const int64_t dim[] = {4, 64, 64};

    for (int l = 0; l < 3; l++) {
        char name[128];

        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.gate_up_proj_blocks", l);
        tiny_remove(m, name);
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.gate_up_proj", l);
        tiny_add(m, name, "BF16", 3, dim, 4 * 64 * 64 * 2);
    }
    tiny_write(m);
    EXPECT(m, TD_INVALID, "gate_up_proj_blocks", "dequantised", "expected the MXFP4 checkpoint");
}

static void test_checkpoint_original_layout_refusals(void **state)
{
    tiny_model om, *m = &om;
    int64_t rows;

    (void)state;
    tiny_make(m, true, 1);
    rows = tiny_find(m, "block.1.attn.qkv.weight")->dim[0];
    assert_int_equal(rows, 128);
    tiny_find(m, "block.1.attn.qkv.weight")->dim[0] = 64;
    tiny_find(m, "block.1.attn.qkv.weight")->bytes /= 2;
    tiny_write(m);
    EXPECT(m, TD_INVALID, "model.safetensors", "block.1.attn.qkv.weight", "expected BF16 [128, 64]",
           "found BF16 [64, 64]");
    tiny_find(m, "block.1.attn.qkv.weight")->dim[0] = 128;
    tiny_find(m, "block.1.attn.qkv.weight")->bytes *= 2;
    tiny_remove(m, "block.2.mlp.mlp2_weight.scales");
    tiny_write(m);
    EXPECT(m, TD_INVALID, "model.safetensors", "block.2.mlp.mlp2_weight.scales", AGAIN);
    tiny_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        REFUSAL_CASE(test_checkpoint_every_tensor_missing),
        REFUSAL_CASE(test_checkpoint_every_tensor_of_another_type_or_shape),
        REFUSAL_CASE(test_checkpoint_type_named_as_found),
        REFUSAL_CASE(test_checkpoint_every_config_number_against_the_tensors),
        REFUSAL_CASE(test_checkpoint_bad_config_struct_is_refused),
        REFUSAL_CASE(test_checkpoint_extra_tensors_are_accepted),
        REFUSAL_CASE(test_checkpoint_layers_past_the_config_are_refused),
        REFUSAL_CASE(test_checkpoint_layout_of_config_and_tensors_differ),
        REFUSAL_CASE(test_checkpoint_dequantised_copy_is_explained),
        REFUSAL_CASE(test_checkpoint_original_layout_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
