/* ops_rank: memory, weights, choices of experts and tables of pages: see ops_rank.h. */
#include "bench/ops_rank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    L2_BYTES = 60 << 20, /* rotate through twice as much */
    BLOCK = 16 << 20,    /* of noise */
};

ops_rank rank;

void check(td_status st, const td_error *err)
{
    if (st == TD_OK)
        return;
    fprintf(stderr, "ops_cuda: %s: %s\n", td_status_name(st), err->text);
    exit(1);
}

static uint32_t bits(void)
{
    rank.random ^= rank.random << 13;
    rank.random ^= rank.random >> 7;
    rank.random ^= rank.random << 17;
    return (uint32_t)(rank.random >> 16);
}

static void *memory(size_t bytes)
{
    td_buffer buf;
    td_error err = {0};

    check(rank.ops->alloc(rank.dev, bytes, &buf, &err), &err);
    return buf.ptr; /* until the process ends */
}

static void *random_memory(size_t bytes)
{
    char *p = memory(bytes);
    td_error err = {0};

    for (size_t at = 0; at < bytes; at += BLOCK)
        check(rank.ops->copy_in(rank.s, p + at, rank.noise, bytes - at < BLOCK ? bytes - at : BLOCK,
                                &err),
              &err);
    check(rank.ops->sync(rank.s, &err), &err);
    return p;
}

static void *to_device(const void *host, size_t bytes)
{
    void *p = memory(bytes);
    td_error err = {0};

    check(rank.ops->copy_in(rank.s, p, host, bytes, &err), &err);
    check(rank.ops->sync(rank.s, &err), &err);
    return p;
}

/* Rows of noise, over and over. */
static td_matrix matrix(td_form form, int32_t rows, int32_t cols)
{
    int32_t most = BLOCK / 2 / cols, n = (rows + most - 1) / most;
    td_host_block *block = calloc((size_t)n, sizeof *block);
    td_matrix m;
    td_error err = {0};

    for (int32_t i = 0; i < n; i++)
        block[i] =
            (td_host_block){rank.noise, rows - i * most < most ? rows - i * most : most, cols};
    check(rank.ops->load(rank.dev, form, TD_ELT_BF16, block, n, cols, &m, &err), &err);
    free(block);
    return m;
}

static rotation rotate(int32_t rows, int32_t cols)
{
    int64_t bytes = 2 * (int64_t)rows * cols;
    rotation r = {.n = (int)(2 * (int64_t)L2_BYTES / bytes) + 1};

    r.n = r.n > MOST_STEPS ? MOST_STEPS : r.n;
    r.m = calloc((size_t)r.n, sizeof *r.m);
    for (int i = 0; i < r.n; i++)
        r.m[i] = matrix(TD_FORM_DENSE, rows, cols);
    return r;
}

/* Experts that all come from the same bytes; on the device each has its own. */
static bool packed(td_form form, td_expert_format format, int32_t rows, int32_t cols,
                   td_matrix *out)
{
    size_t n = (size_t)rows * (size_t)cols / 32;
    uint8_t *codes = malloc(n * 16), *scales = malloc(n);
    td_host_mxfp4 src = {.blocks = codes,
                         .scales = scales,
                         .row_blocks = cols / 2,
                         .row_scales = cols / 32,
                         .E = rank.shard.n_experts,
                         .N = rows,
                         .K = cols};
    td_error err = {0};
    td_status st;

    for (size_t i = 0; i < n * 16; i++)
        codes[i] = (uint8_t)bits();
    for (size_t i = 0; i < n; i++)
        scales[i] = (uint8_t)(118 + bits() % 5);
    st = rank.ops->load_mxfp4(rank.dev, form, &src, format, out, &err);
    if (st != TD_OK)
        printf("%s: %s\n", td_status_name(st), err.text);
    free(codes);
    free(scales);
    return st == TD_OK;
}
static void choose_experts(void)
{
    size_t n = (size_t)MOST * (size_t)rank.c.top_k;
    float *prob = malloc(n * sizeof *prob);

    for (int set = 0; set < SETS; set++) {
        int32_t *idx = rank.set_host[set] = malloc(n * sizeof *idx);

        for (int32_t *at = idx; at < idx + n; at += rank.c.top_k)
            for (int32_t j = 0; j < rank.c.top_k;) {
                bool again = false;

                at[j] = (int32_t)(bits() % (uint32_t)rank.c.n_experts);
                for (int32_t i = 0; i < j; i++)
                    again |= at[i] == at[j];
                j += again ? 0 : 1;
            }
        rank.set[set] = to_device(idx, n * sizeof *idx);
    }
    for (size_t i = 0; i < n; i++)
        prob[i] = 1.0f / (float)rank.c.top_k;
    rank.set_prob = to_device(prob, n * sizeof *prob);
    free(prob);
}

static void load_weights(int formats)
{
    const td_model_config *c = &rank.c;
    const td_shard *s = &rank.shard;
    int32_t D = c->hidden, N = (s->n_q + 2 * s->n_kv) * c->head_dim;

    rank.norm = matrix(TD_FORM_VECTOR, D, 1);
    rank.qkv_bias = matrix(TD_FORM_VECTOR, N, 1);
    rank.o_bias = matrix(TD_FORM_VECTOR, D, 1);
    rank.sinks = matrix(TD_FORM_VECTOR, s->n_q, 1);
    rank.router_bias = matrix(TD_FORM_VECTOR, c->n_experts, 1);
    rank.gate_up_bias = matrix(TD_FORM_VECTOR, s->n_experts * 2 * s->n_inner, 1);
    rank.down_bias = matrix(TD_FORM_VECTOR, s->n_experts * D, 1);
    rank.qkv = rotate(N, D);
    rank.o = rotate(D, s->n_q * c->head_dim);
    rank.router = rotate(c->n_experts, D);
    rank.embed = matrix(TD_FORM_ROWS, s->n_vocab, D);
    rank.unembed = matrix(TD_FORM_DENSE, s->n_vocab, D);
    for (int f = 0; f < 2; f++)
        if (formats == 2 || formats == f)
            rank.have[f] =
                packed(TD_FORM_GATE_UP, (td_expert_format)f, 2 * s->n_inner, D, &rank.gate_up[f]) &&
                packed(TD_FORM_DOWN, (td_expert_format)f, D, s->n_inner, &rank.down[f]);
    if (rank.ops->load_done != NULL)
        rank.ops->load_done(rank.dev);
}

static void make_lists(void)
{
    int32_t *n =
        malloc((size_t)(rank.n_pages > SETS * MOST ? rank.n_pages : SETS * MOST) * sizeof *n);

    for (int32_t i = 0; i < SETS * MOST; i++)
        n[i] = (int32_t)(bits() % (uint32_t)rank.shard.n_vocab);
    rank.tokens = to_device(n, SETS * MOST * sizeof *n);
    for (int32_t i = 0; i < MOST; i++)
        n[i] = i;
    rank.count = to_device(n, MOST * sizeof *n);
    for (int32_t i = 0; i < rank.n_pages; i++) { /* a page stands anywhere before or at its turn */
        int32_t j = (int32_t)(bits() % (uint32_t)(i + 1));

        n[i] = n[j];
        n[j] = i;
    }
    rank.perm = to_device(n, (size_t)rank.n_pages * sizeof *n);
    for (int32_t i = MOST - 1; i >= 0; i--) /* in place: page i / 64 is read last for row i = 0 */
        n[i] = n[i / TD_KV_PAGE] * TD_KV_PAGE + i % TD_KV_PAGE;
    rank.slot = to_device(n, MOST * sizeof *n);
    rank.len = memory(MOST * sizeof *n);
    free(n);
}

void open_rank(int32_t device, int formats, int32_t context)
{
    size_t page = 4 * TD_KV_PAGE * (size_t)rank.c.head_dim * (size_t)rank.shard.n_kv;
    size_t kv = (size_t)SMALL * (size_t)context / TD_KV_PAGE * page;
    size_t qd = (size_t)rank.shard.n_q * (size_t)rank.c.head_dim, D = (size_t)rank.c.hidden;
    td_dims dims = {.T = MOST,
                    .D = rank.c.hidden,
                    .H = rank.shard.n_q,
                    .K = rank.shard.n_kv,
                    .d = rank.c.head_dim,
                    .M = rank.c.n_experts,
                    .E = rank.shard.n_experts,
                    .I = rank.shard.n_inner,
                    .k = rank.c.top_k,
                    .V = rank.shard.n_vocab,
                    .head_rows = SMALL,
                    .sample_V = rank.c.vocab};
    td_sample_row rows[2 * SMALL];
    td_error err = {0};

    check(rank.ops->dev_open(&(td_dev_options){.index = device, .threads = 8}, &rank.dev, &err),
          &err);
    check(rank.ops->dev_bind(rank.dev, &err), &err);
    rank.s = rank.ops->dev_stream(rank.dev);
    rank.random = 1;
    rank.noise = malloc(BLOCK);
    for (size_t i = 0; i < BLOCK; i += 2) { /* bf16 of 2^-7 to 2, either sign, or two such e4m3 */
        uint32_t x = bits();
        uint16_t h = (uint16_t)((x & 0x8000) | (0x3c00 + (x & 0x3bf)));

        memcpy(rank.noise + i, &h, 2);
    }
    load_weights(formats);
    rank.n_pages = (int32_t)(kv / page);
    rank.kv = random_memory(kv);
    make_lists();
    rank.x = memory(MOST * D * 4);
    rank.act = random_memory(MOST * D * 2);
    rank.q = random_memory(MOST * qd * 2);
    rank.out = memory(MOST * (qd > D ? qd : D) * 2);
    rank.rope = random_memory((size_t)MOST * (size_t)rank.c.head_dim / 2 * 4);
    rank.logits = random_memory((size_t)SMALL * (size_t)rank.c.vocab * 4);
    rank.idx = memory(MOST * (size_t)rank.c.top_k * 4);
    rank.prob = memory(MOST * (size_t)rank.c.top_k * 4);
    rank.token = memory(SMALL * 4);
    rank.logprobs = memory(SMALL * sizeof *rank.logprobs);
    for (uint32_t i = 0; i < 2 * SMALL; i++) /* the second half draws */
        rows[i] = (td_sample_row){.seed = i,
                                  .temperature = i < SMALL ? 0 : 1,
                                  .top_p = i < SMALL ? 1 : 0.95f,
                                  .mask = -1,
                                  .top_logprobs = -1};
    rank.sample_rows = to_device(rows, sizeof rows);
    rank.ws = memory(rank.ops->workspace_bytes(rank.dev, &dims));
    choose_experts();
    check(run_add(&(row){.T = MOST, .keys = -1}, 0, &err), &err); /* x = noise */
    check(rank.ops->sync(rank.s, &err), &err);
}
