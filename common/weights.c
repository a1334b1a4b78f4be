/* weights: see weights.h. */
#include "common/weights.h"

#include <stdlib.h>

#include "common/log.h"

static td_status checkpoint_get(void *user, td_weight role, int32_t layer, td_tensor *out,
                                td_error *err)
{
    return td_checkpoint_get(user, role, layer, out, err);
}

static void checkpoint_release(void *user, td_weight role, int32_t layer)
{
    td_checkpoint_release(user, role, layer);
}

td_weight_source td_checkpoint_source(td_checkpoint *c)
{
    return (td_weight_source){c, checkpoint_get, checkpoint_release};
}

td_status td_rank_weights_init(td_rank_weights *w, const td_ops *ops, td_dev *dev, int32_t n_layers,
                               td_error *err)
{
    *w = (td_rank_weights){.ops = ops, .dev = dev, .n_layers = n_layers, .started = td_now_us()};
    w->reported = w->started;
    w->layer = calloc((size_t)n_layers, sizeof *w->layer);
    if (w->layer == NULL)
        return td_fail(err, TD_NOMEM, "weights: no memory for %d layers", n_layers);
    return TD_OK;
}

/* All matrices of a layer, for what is done to each. */
static int list_layer(td_layer_weights *l, td_matrix *out[13])
{
    td_matrix *all[] = {&l->attn_norm,    &l->qkv,      &l->qkv_bias, &l->sinks,       &l->o,
                        &l->o_bias,       &l->mlp_norm, &l->router,   &l->router_bias, &l->gate_up,
                        &l->gate_up_bias, &l->down,     &l->down_bias};

    for (int i = 0; i < 13; i++)
        out[i] = all[i];
    return 13;
}

void td_rank_weights_fini(td_rank_weights *w)
{
    td_matrix *m[13];

    if (w->layer == NULL)
        return;
    for (int32_t l = 0; l < w->n_layers; l++)
        for (int n = list_layer(&w->layer[l], m), i = 0; i < n; i++)
            w->ops->unload(m[i]);
    w->ops->unload(&w->embed);
    w->ops->unload(&w->final_norm);
    w->ops->unload(&w->unembed);
    free(w->layer);
    *w = (td_rank_weights){0};
}

uint64_t td_rank_weights_bytes(const td_rank_weights *w)
{
    uint64_t sum = w->embed.mem.bytes + w->final_norm.mem.bytes + w->unembed.mem.bytes;
    td_matrix *m[13];

    for (int32_t l = 0; l < w->n_layers; l++)
        for (int n = list_layer(&w->layer[l], m), i = 0; i < n; i++)
            sum += m[i]->mem.bytes;
    return sum;
}

/* The shapes are those of td_rank_weights_load(), below. */
td_weights_plan td_rank_weights_plan(const td_ops *ops, const td_model_config *c, const td_shard *s,
                                     td_expert_format experts)
{
    const int32_t D = c->hidden, M = c->n_experts, E = s->n_experts, I2 = 2 * s->n_inner;
    const int32_t qkv = (s->n_q + 2 * s->n_kv) * c->head_dim;
    const uint64_t layers = (uint64_t)c->n_layers;
    const struct {
        uint64_t times, bytes;
    } all[] = {
        {layers, ops->matrix_bytes(TD_FORM_VECTOR, 1, D, 1)},                        /* attn_norm */
        {layers, ops->matrix_bytes(TD_FORM_DENSE, 1, qkv, D)},                       /* qkv */
        {layers, ops->matrix_bytes(TD_FORM_VECTOR, 1, qkv, 1)},                      /* qkv_bias */
        {layers, ops->matrix_bytes(TD_FORM_VECTOR, 1, s->n_q, 1)},                   /* sinks */
        {layers, ops->matrix_bytes(TD_FORM_DENSE, 1, D, s->n_q * c->head_dim)},      /* o */
        {s->adds_out_bias ? layers : 0, ops->matrix_bytes(TD_FORM_VECTOR, 1, D, 1)}, /* o_bias */
        {layers, ops->matrix_bytes(TD_FORM_VECTOR, 1, D, 1)},                        /* mlp_norm */
        {layers, ops->matrix_bytes(TD_FORM_DENSE, 1, M, D)},                         /* router */
        {layers, ops->matrix_bytes(TD_FORM_VECTOR, 1, M, 1)},      /* router_bias */
        {layers, ops->mxfp4_bytes(experts, E, I2, D)},             /* gate_up */
        {layers, ops->matrix_bytes(TD_FORM_VECTOR, 1, E * I2, 1)}, /* gate_up_bias */
        {layers, ops->mxfp4_bytes(experts, E, D, s->n_inner)},     /* down */
        {s->adds_down_bias ? layers : 0, ops->matrix_bytes(TD_FORM_VECTOR, 1, E * D, 1)}, /* bias */
        {1, ops->matrix_bytes(TD_FORM_ROWS, 1, s->n_vocab, D)},  /* embed */
        {1, ops->matrix_bytes(TD_FORM_VECTOR, 1, D, 1)},         /* final_norm */
        {1, ops->matrix_bytes(TD_FORM_DENSE, 1, s->n_vocab, D)}, /* unembed */
    };
    td_weights_plan p = {0, 0};

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        p.bytes += all[i].times * all[i].bytes;
        p.rounding += all[i].times * td_alloc_rounding(ops, all[i].bytes);
    }
    return p;
}

void td_weight_source_release_layer(const td_weight_source *src, int32_t layer)
{
    int first = layer < 0 ? 0 : TD_W_ATTN_NORM, end = layer < 0 ? TD_W_ATTN_NORM : TD_W_COUNT;

    if (src->release != NULL)
        for (int role = first; role < end; role++)
            src->release(src->user, (td_weight)role, layer < 0 ? 0 : layer);
}

/* One load: the rank, the layer, and the first failure, after which nothing more is done. */
typedef struct loader {
    td_rank_weights *w;
    const td_weight_source *src;
    int32_t layer;
    td_error *err;
    td_status st;
} loader;

static td_tensor get(loader *l, td_weight role)
{
    td_tensor t = {0};

    if (l->st == TD_OK)
        l->st = l->src->get(l->src->user, role, l->layer < 0 ? 0 : l->layer, &t, l->err);
    return t;
}

static size_t elt_bytes(const td_tensor *t)
{
    return t->dtype == TD_F32 ? 4 : t->dtype == TD_BF16 ? 2 : 1;
}

/* Rows first.. of a tensor [rows, row], columns from `col`. */
static td_host_block block(const td_tensor *t, int64_t row, int64_t first, int32_t rows,
                           int64_t col)
{
    if (t->data == NULL) /* get() failed; load() will do nothing */
        return (td_host_block){0};
    return (td_host_block){(const char *)t->data + (size_t)(first * row + col) * elt_bytes(t), rows,
                           row};
}

static void load(loader *l, td_form form, const td_tensor *t, const td_host_block *blocks,
                 int32_t n_blocks, int32_t cols, const char *what, td_matrix *out)
{
    if (l->st != TD_OK)
        return;
    if (t->dtype == TD_U8) {
        l->st = td_fail(l->err, TD_INVALID, "loading %s of layer %d: bytes where numbers belong",
                        what, l->layer);
        return;
    }
    l->st = l->w->ops->load(l->w->dev, form, t->dtype == TD_F32 ? TD_ELT_F32 : TD_ELT_BF16, blocks,
                            n_blocks, cols, out, l->err);
    if (l->st != TD_OK)
        l->st = td_wrap(l->err, "loading %s of layer %d", what, l->layer);
}

/* Elements first.. of a vector. */
static void load_vector(loader *l, td_weight role, int32_t first, int32_t n, td_matrix *out)
{
    td_tensor t = get(l, role);
    td_host_block b = block(&t, 1, first, n, 0);

    load(l, TD_FORM_VECTOR, &t, &b, 1, 1, td_weight_name(role), out);
}

/* Rows first.. and columns col.. of a matrix whose rows have `row` elements. */
static void load_matrix(loader *l, td_form form, td_weight role, int32_t row, int32_t first,
                        int32_t n, int32_t col, int32_t cols, td_matrix *out)
{
    td_tensor t = get(l, role);
    td_host_block b = block(&t, row, first, n, col);

    load(l, form, &t, &b, 1, cols, td_weight_name(role), out);
}

/* This rank's q, k and v rows (or bias elements, with row = 1) as one. */
static void load_qkv(loader *l, const td_model_config *c, const td_shard *s, bool bias,
                     td_matrix *out)
{
    td_tensor q = get(l, bias ? TD_W_Q_BIAS : TD_W_Q), k = get(l, bias ? TD_W_K_BIAS : TD_W_K);
    td_tensor v = get(l, bias ? TD_W_V_BIAS : TD_W_V);
    int32_t row = bias ? 1 : c->hidden, d = c->head_dim;
    td_host_block b[3] = {block(&q, row, (int64_t)s->q_first * d, s->n_q * d, 0),
                          block(&k, row, (int64_t)s->kv_first * d, s->n_kv * d, 0),
                          block(&v, row, (int64_t)s->kv_first * d, s->n_kv * d, 0)};

    if (l->st == TD_OK && (q.dtype != k.dtype || k.dtype != v.dtype))
        l->st = td_fail(l->err, TD_INVALID, "layer %d: q, k and v have different types", l->layer);
    load(l, bias ? TD_FORM_VECTOR : TD_FORM_DENSE, &q, b, 3, row, bias ? "qkv_bias" : "qkv", out);
}

/* Experts' matrices: rows `first_row`.., columns `first_col`.. of each of the rank's experts, from
 * a tensor [E, rows, cols] dense or MXFP4. */
static void load_experts(loader *l, td_form form, td_weight blocks, td_weight scales, int64_t rows,
                         int64_t cols, const td_shard *s, int32_t first_row, int32_t n_rows,
                         int32_t first_col, int32_t n_cols, td_matrix *out)
{
    td_tensor t = get(l, blocks), sc = {0};
    const char *what = td_weight_name(blocks);
    int64_t e = s->expert_first;

    if (l->st == TD_OK && t.dtype == TD_U8) {
        sc = get(l, scales);
        if (l->st != TD_OK)
            return;
        td_host_mxfp4 m = {
            .expert_blocks = rows * (cols / 2),
            .row_blocks = cols / 2,
            .expert_scales = rows * (cols / 32),
            .row_scales = cols / 32,
            .E = s->n_experts,
            .N = n_rows,
            .K = n_cols,
        };
        m.blocks = (const uint8_t *)t.data + e * m.expert_blocks + first_row * m.row_blocks +
                   first_col / 2;
        m.scales = (const uint8_t *)sc.data + e * m.expert_scales + first_row * m.row_scales +
                   first_col / 32;
        l->st = l->w->ops->load_mxfp4(l->w->dev, form, &m, l->w->experts, out, l->err);
        if (l->st != TD_OK)
            l->st = td_wrap(l->err, "loading %s of layer %d", what, l->layer);
    } else if (l->st == TD_OK) {
        td_host_block *b = calloc((size_t)s->n_experts, sizeof *b);

        if (b == NULL) {
            l->st = td_fail(l->err, TD_NOMEM, "loading %s: no memory", what);
            return;
        }
        for (int32_t i = 0; i < s->n_experts; i++)
            b[i] = block(&t, cols, (e + i) * rows + first_row, n_rows, first_col);
        load(l, form, &t, b, s->n_experts, n_cols, what, out);
        free(b);
    }
}

/* Elements first.. of each of the rank's experts, from a tensor [E, n]. */
static void load_expert_bias(loader *l, td_weight role, int32_t n, const td_shard *s, int32_t first,
                             int32_t count, td_matrix *out)
{
    td_tensor t = get(l, role);
    td_host_block *b = calloc((size_t)s->n_experts, sizeof *b);

    if (b == NULL && l->st == TD_OK)
        l->st = td_fail(l->err, TD_NOMEM, "loading %s: no memory", td_weight_name(role));
    if (l->st == TD_OK) {
        for (int32_t i = 0; i < s->n_experts; i++)
            b[i] = block(&t, 1, (int64_t)(s->expert_first + i) * n + first, count, 0);
        load(l, TD_FORM_VECTOR, &t, b, s->n_experts, 1, td_weight_name(role), out);
    }
    free(b);
}

static void load_tables(loader *l, const td_model_config *c, const td_shard *s)
{
    td_rank_weights *w = l->w;

    load_matrix(l, TD_FORM_ROWS, TD_W_EMBED, c->hidden, s->vocab_first, s->n_vocab, 0, c->hidden,
                &w->embed);
    load_vector(l, TD_W_FINAL_NORM, 0, c->hidden, &w->final_norm);
    load_matrix(l, TD_FORM_DENSE, TD_W_UNEMBED, c->hidden, s->vocab_first, s->n_vocab, 0, c->hidden,
                &w->unembed);
}

/* Who waits for a large model sees that it moves. */
static void report(td_rank_weights *w, const td_shard *s, int32_t layers_done)
{
    td_usec now = td_now_us();

    if (s->rank != 0 || now - w->reported < TD_USEC_PER_SEC)
        return;
    w->reported = now;
    td_info("weights_loading", "layers=%d of=%d rank_bytes=%llu elapsed_ms=%lld", layers_done,
            w->n_layers, (unsigned long long)td_rank_weights_bytes(w),
            (long long)(now - w->started) / 1000);
}

td_status td_rank_weights_load(td_rank_weights *w, const td_weight_source *src,
                               const td_model_config *c, const td_shard *s, int32_t layer,
                               td_error *err)
{
    loader l = {w, src, layer, err, TD_OK};
    int32_t D = c->hidden, I = c->inter, d = c->head_dim;
    td_layer_weights *y;

    if (layer < 0) {
        load_tables(&l, c, s);
        report(w, s, 0);
        return l.st;
    }
    y = &w->layer[layer];
    load_vector(&l, TD_W_ATTN_NORM, 0, D, &y->attn_norm);
    load_qkv(&l, c, s, false, &y->qkv);
    load_qkv(&l, c, s, true, &y->qkv_bias);
    load_vector(&l, TD_W_SINKS, s->q_first, s->n_q, &y->sinks);
    load_matrix(&l, TD_FORM_DENSE, TD_W_O, c->n_q_heads * d, 0, D, s->q_first * d, s->n_q * d,
                &y->o);
    if (s->adds_out_bias)
        load_vector(&l, TD_W_O_BIAS, 0, D, &y->o_bias);
    load_vector(&l, TD_W_MLP_NORM, 0, D, &y->mlp_norm);
    load_matrix(&l, TD_FORM_DENSE, TD_W_ROUTER, D, 0, c->n_experts, 0, D, &y->router);
    load_vector(&l, TD_W_ROUTER_BIAS, 0, c->n_experts, &y->router_bias);
    load_experts(&l, TD_FORM_GATE_UP, TD_W_GATE_UP_BLOCKS, TD_W_GATE_UP_SCALES, 2 * (int64_t)I, D,
                 s, 2 * s->inner_first, 2 * s->n_inner, 0, D, &y->gate_up);
    load_expert_bias(&l, TD_W_GATE_UP_BIAS, 2 * I, s, 2 * s->inner_first, 2 * s->n_inner,
                     &y->gate_up_bias);
    load_experts(&l, TD_FORM_DOWN, TD_W_DOWN_BLOCKS, TD_W_DOWN_SCALES, D, I, s, 0, D,
                 s->inner_first, s->n_inner, &y->down);
    if (s->adds_down_bias)
        load_expert_bias(&l, TD_W_DOWN_BIAS, D, s, 0, D, &y->down_bias);
    report(w, s, layer + 1);
    return l.st;
}
