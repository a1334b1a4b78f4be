/* What the ranks of a split load, counted byte by byte on the checkpoint's own tensors: together
 * they must take every byte exactly once, or once each where a rank needs a copy. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/weights.h"

/* 2880 = 90 blocks of 32, as published: 4 and 8 do not divide it. */
static const td_model_config config = {.n_layers = 1,
                                       .hidden = 32,
                                       .n_q_heads = 16,
                                       .n_kv_heads = 8,
                                       .head_dim = 2,
                                       .n_experts = 8,
                                       .top_k = 2,
                                       .inter = 2880,
                                       .vocab = 101,
                                       .window = 8,
                                       .max_positions = 4096,
                                       .eps = 1e-5f,
                                       .swiglu_limit = 7,
                                       .rope_theta = 150000,
                                       .yarn_factor = 32,
                                       .yarn_beta_fast = 32,
                                       .yarn_beta_slow = 1,
                                       .yarn_original_positions = 128};

/* How often each byte of each role was taken. */
typedef struct byte_count {
    td_checkpoint *weights;
    td_tensor tensor[TD_W_COUNT];
    uint8_t *taken[TD_W_COUNT];
} byte_count;

static byte_count *counting; /* the backend's calls carry no user pointer */

static void take(const void *ptr, size_t bytes)
{
    for (int r = 0; r < TD_W_COUNT; r++) {
        const uintptr_t base = (uintptr_t)counting->tensor[r].data;
        const size_t at = (uintptr_t)ptr - base;

        if ((uintptr_t)ptr < base || at >= counting->tensor[r].bytes)
            continue;
        if (at + bytes > counting->tensor[r].bytes)
            fail_msg("%s: %zu bytes from %zu of %llu", td_weight_name((td_weight)r), bytes, at,
                     (unsigned long long)counting->tensor[r].bytes);
        for (size_t i = 0; i < bytes; i++)
            counting->taken[r][at + i]++;
        return;
    }
    fail_msg("%zu bytes of no tensor", bytes);
}

static td_status count_load(td_dev *dev, td_form form, td_elt elt, const td_host_block *blocks,
                            int32_t n_blocks, int32_t cols, td_matrix *out, td_error *err)
{
    (void)dev;
    (void)err;
    assert_int_equal(elt, TD_ELT_BF16);
    for (int32_t b = 0; b < n_blocks; b++)
        for (int32_t r = 0; r < blocks[b].rows; r++)
            take((const char *)blocks[b].ptr + (size_t)r * (size_t)blocks[b].row_stride * 2,
                 (size_t)cols * 2);
    *out = (td_matrix){.form = form};
    return TD_OK;
}

static td_status count_load_mxfp4(td_dev *dev, td_form form, const td_host_mxfp4 *m,
                                  td_expert_format format, td_matrix *out, td_error *err)
{
    (void)dev;
    assert_int_equal(format, TD_EXPERTS_MXFP4);
    (void)err;
    assert_int_equal(m->K % TD_MXFP4_BLOCK, 0);
    for (int64_t e = 0; e < m->E; e++) {
        for (int64_t n = 0; n < m->N; n++) {
            take(m->blocks + e * m->expert_blocks + n * m->row_blocks, (size_t)m->K / 2);
            take(m->scales + e * m->expert_scales + n * m->row_scales,
                 (size_t)m->K / TD_MXFP4_BLOCK);
        }
    }
    *out = (td_matrix){.form = form, .E = m->E, .N = m->N, .K = m->K};
    return TD_OK;
}

static void count_unload(td_matrix *m)
{
    (void)m;
}

static void count_init(byte_count *c)
{
    memset(c, 0, sizeof *c);
    assert_int_equal(td_checkpoint_random(&config, 1, &c->weights, NULL), TD_OK);
    for (int r = 0; r < TD_W_COUNT; r++) {
        assert_int_equal(td_checkpoint_get(c->weights, (td_weight)r, 0, &c->tensor[r], NULL),
                         TD_OK);
        c->taken[r] = calloc(1, c->tensor[r].bytes);
        assert_non_null(c->taken[r]);
    }
}

static void count_fini(byte_count *c)
{
    for (int r = 0; r < TD_W_COUNT; r++)
        free(c->taken[r]);
    td_checkpoint_close(c->weights);
}

static int expected_copies(td_weight role, int32_t tp)
{
    switch (role) {
    case TD_W_FINAL_NORM:
    case TD_W_ATTN_NORM:
    case TD_W_MLP_NORM:
    case TD_W_ROUTER:
    case TD_W_ROUTER_BIAS: return tp; /* every rank norms and routes for itself */
    default: return 1;
    }
}

static void load_rank(const td_weight_source *src, int32_t tp, int32_t ep, int32_t rank)
{
    static const td_ops ops = {.name = "count",
                               .load = count_load,
                               .load_mxfp4 = count_load_mxfp4,
                               .unload = count_unload};
    td_rank_weights w = {0};
    td_error err = {0};
    td_shard s;

    if (td_shard_of(&config, tp, ep, rank, &s, &err) != TD_OK)
        fail_msg("tp %d ep %d: %s", tp, ep, err.text);
    assert_int_equal(s.n_experts, config.n_experts / ep);
    assert_int_equal(s.expert_first, rank / (tp / ep) * s.n_experts);
    assert_int_equal(td_rank_weights_init(&w, &ops, NULL, 1, &err), TD_OK);
    assert_int_equal(td_rank_weights_load(&w, src, &config, &s, -1, &err), TD_OK);
    assert_int_equal(td_rank_weights_load(&w, src, &config, &s, 0, &err), TD_OK);
    assert_int_equal(w.layer[0].gate_up.E, s.n_experts);
    assert_int_equal(w.layer[0].gate_up.N, 2 * s.n_inner);
    assert_int_equal(w.layer[0].down.K, s.n_inner);
    td_rank_weights_fini(&w);
}

static void takes_everything_once(int32_t tp, int32_t ep)
{
    byte_count c;
    td_weight_source src;

    count_init(&c);
    counting = &c;
    src = td_checkpoint_source(c.weights);
    for (int32_t rank = 0; rank < tp; rank++)
        load_rank(&src, tp, ep, rank);
    for (int r = 0; r < TD_W_COUNT; r++)
        for (uint64_t i = 0; i < c.tensor[r].bytes; i++)
            if (c.taken[r][i] != expected_copies((td_weight)r, tp))
                fail_msg("tp %d ep %d: byte %llu of %s taken %d times", tp, ep,
                         (unsigned long long)i, td_weight_name((td_weight)r), c.taken[r][i]);
    count_fini(&c);
}

static void test_rank_loads_cover_every_byte_once(void **state)
{
    (void)state;
    for (int32_t tp = 1; tp <= 8; tp *= 2)
        for (int32_t ep = 1; ep <= tp; ep *= 2)
            takes_everything_once(tp, ep);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rank_loads_cover_every_byte_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
