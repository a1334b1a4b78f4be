/* attn: the steps of the attention half of a layer. */
#include "kernels/cpu/cpu.h"

#include <string.h>

typedef struct in_job {
    const td_cpu_hot *hot;
    const td_attn_in_args *a;
    const float *qkv; /* [T, (H + 2K) d] */
} in_job;

/* Half-split rotation of one head. */
static void rotate(const float *x, const float *cos, const float *sin, int32_t d, float *out)
{
    for (int32_t i = 0; i < d / 2; i++) {
        float lo = x[i], hi = x[i + d / 2];

        out[i] = lo * cos[i] - hi * sin[i];
        out[i + d / 2] = hi * cos[i] + lo * sin[i];
    }
}

static void store(const in_job *j, int32_t head, int32_t side, int32_t slot, const float *x)
{
    const td_kv_view *kv = &j->a->kv;
    int64_t at = head * kv->head_stride + side * kv->side_stride + (int64_t)slot * j->a->d;

    if (kv->elt == TD_ELT_BF16)
        j->hot->to_bf16(x, (uint16_t *)kv->base + at, j->a->d);
    else
        memcpy((float *)kv->base + at, x, (size_t)j->a->d * sizeof *x);
}

/* One token: rotate and place its heads. */
static void in_item(void *ctx, int32_t t, int32_t thread)
{
    const in_job *j = ctx;
    const td_attn_in_args *a = j->a;
    const float *x = j->qkv + (int64_t)t * (a->H + 2 * a->K) * a->d;
    const float *cos = a->cos + (int64_t)a->pos[t] * (a->d / 2);
    const float *sin = a->sin + (int64_t)a->pos[t] * (a->d / 2);
    float *q = (float *)a->q + (int64_t)t * a->H * a->d, k[1024];

    (void)thread;
    for (int32_t h = 0; h < a->H; h++)
        rotate(x + h * a->d, cos, sin, a->d, q + h * a->d);
    if (a->slot[t] < 0)
        return;
    for (int32_t h = 0; h < a->K; h++) {
        rotate(x + (a->H + h) * a->d, cos, sin, a->d, k);
        store(j, h, 0, a->slot[t], k);
        store(j, h, 1, a->slot[t], x + (a->H + a->K + h) * a->d);
    }
}

static td_status check_heads(const char *step, int32_t H, int32_t K, int32_t d, td_error *err)
{
    if (d < 2 || d > 1024 || d % 2 != 0 || K < 1 || H % K != 0 || H / K > CPU_ROWS)
        return td_fail(err, TD_INVALID,
                       "%s: %d query heads over %d kv heads of %d; wanted whole groups of at most "
                       "%d and an even head size up to 1024",
                       step, H, K, d, CPU_ROWS);
    return TD_OK;
}

td_status cpu_attn_in(td_stream *s, const td_attn_in_args *a, td_error *err)
{
    td_dev *dev = s->dev;
    int32_t N = (a->H + 2 * a->K) * a->d;
    cpu_ws ws = {a->ws};
    float *scratch = cpu_ws_take(&ws, (size_t)dev->n_threads * CPU_GEMM_SCRATCH * sizeof(float));
    float *t = cpu_ws_take(&ws, (size_t)a->T * (size_t)a->D * sizeof(float));
    float *qkv = cpu_ws_take(&ws, (size_t)a->T * (size_t)N * sizeof(float));
    in_job j = {dev->hot, a, qkv};
    td_status st;

    if ((st = check_heads("attn_in", a->H, a->K, a->d, err)) != TD_OK ||
        (st = cpu_check_matrix("attn_in", "norm", a->norm, 1, a->D, 1, err)) != TD_OK ||
        (st = cpu_check_matrix("attn_in", "qkv", a->qkv, 1, N, a->D, err)) != TD_OK ||
        (st = cpu_check_matrix("attn_in", "bias", a->bias, 1, N, 1, err)) != TD_OK)
        return st;
    cpu_rmsnorm(dev, a->x, NULL, a->norm, a->eps, a->T, a->D, t);
    cpu_gemm(dev, &(cpu_gemm_args){.w = a->qkv,
                                   .bias = cpu_vector(a->bias),
                                   .x = t,
                                   .ldx = a->D,
                                   .M = a->T,
                                   .y = qkv,
                                   .ldy = N,
                                   .scratch = scratch});
    cpu_pool_run(dev->pool, a->T, (int64_t)a->T * N * 8, in_item, &j);
    return TD_OK;
}

/* Both kinds of attention: a piece is some consecutive queries of one sequence and one kv head. */
typedef struct attn_job {
    const td_cpu_hot *hot;
    int32_t n_pieces, queries, H, K, d, window, wrap, table_stride, pos0, T;
    const int32_t *len, *table; /* len: decode; NULL: prefill */
    float scale, *out, *scratch;
    int64_t scratch_floats;
    const float *q, *sinks;
    const td_kv_view *kv;
} attn_job;

static void attn_item(void *ctx, int32_t item, int32_t thread)
{
    const attn_job *j = ctx;
    /* Prefill: late queries see the most keys, so they go first and the threads end together. */
    int32_t head = item % j->K, piece = item / j->K;
    int32_t first = j->len != NULL ? piece : (j->n_pieces - 1 - piece) * j->queries;
    int32_t G = j->H / j->K;
    size_t elt = td_elt_bytes(j->kv->elt);
    const char *k = (const char *)j->kv->base + (size_t)(head * j->kv->head_stride) * elt;
    int64_t at = ((int64_t)first * j->H + (int64_t)head * G) * j->d;

    if (j->len != NULL && j->len[first] == 0) { /* padding */
        memset(j->out + at, 0, (size_t)G * (size_t)j->d * sizeof *j->out);
        return;
    }

    j->hot->attn(&(cpu_attn_piece){
        .k = k,
        .v = k + (size_t)j->kv->side_stride * elt,
        .kv_bf16 = j->kv->elt == TD_ELT_BF16,
        .d = j->d,
        .G = G,
        .n = j->len != NULL              ? 1
             : j->T - first < j->queries ? j->T - first
                                         : j->queries,
        .pos0 = j->len != NULL ? j->len[first] - 1 : j->pos0 + first,
        .window = j->window,
        .wrap = j->wrap,
        .scale = j->scale,
        .table = j->table + (int64_t)(j->len != NULL ? first : 0) * j->table_stride,
        .q = j->q + at,
        .sinks = j->sinks + head * G,
        .out = j->out + at,
        .query_stride = (int64_t)j->H * j->d,
        .scratch = j->scratch + thread * j->scratch_floats,
    });
}

static int64_t visible(int64_t len, int32_t window)
{
    return window > 0 && len > window ? window : len;
}

td_status cpu_attn_prefill(td_stream *s, const td_attn_prefill_args *a, td_error *err)
{
    attn_job j = {.hot = s->dev->hot,
                  .H = a->H,
                  .K = a->K,
                  .d = a->d,
                  .window = a->window,
                  .wrap = a->wrap,
                  .table = a->table,
                  .pos0 = a->pos0,
                  .T = a->T,
                  .scale = a->scale,
                  .out = a->out,
                  .q = a->q,
                  .kv = &a->kv,
                  .scratch = a->ws};
    td_status st = check_heads("attn_prefill", a->H, a->K, a->d, err);

    if (st != TD_OK ||
        (st = cpu_check_matrix("attn_prefill", "sinks", a->sinks, 1, a->H, 1, err)) != TD_OK)
        return st;
    if (a->T == 0)
        return TD_OK;
    j.sinks = cpu_vector(a->sinks);
    j.queries = cpu_attn_queries(a->H / a->K);
    if (j.queries > 16) /* enough to share a page's conversion; more pieces to hand out */
        j.queries = 16;
    j.n_pieces = (a->T + j.queries - 1) / j.queries;
    j.scratch_floats = cpu_scratch_floats(a->H / a->K, a->d);
    cpu_pool_run(s->dev->pool, j.n_pieces * a->K,
                 2 * (int64_t)a->T * a->H * a->d * visible(a->pos0 + a->T, a->window), attn_item,
                 &j);
    return TD_OK;
}

td_status cpu_attn_decode(td_stream *s, const td_attn_decode_args *a, td_error *err)
{
    attn_job j = {.hot = s->dev->hot,
                  .H = a->H,
                  .K = a->K,
                  .d = a->d,
                  .window = a->window,
                  .wrap = a->wrap,
                  .table = a->table,
                  .table_stride = a->table_stride,
                  .len = a->len,
                  .T = a->T,
                  .scale = a->scale,
                  .out = a->out,
                  .q = a->q,
                  .kv = &a->kv,
                  .scratch = a->ws,
                  .queries = 1,
                  .n_pieces = a->T};
    td_status st = check_heads("attn_decode", a->H, a->K, a->d, err);
    int64_t keys = 0;

    if (st != TD_OK ||
        (st = cpu_check_matrix("attn_decode", "sinks", a->sinks, 1, a->H, 1, err)) != TD_OK)
        return st;
    j.sinks = cpu_vector(a->sinks);
    j.scratch_floats = cpu_scratch_floats(a->H / a->K, a->d);
    for (int32_t t = 0; t < a->T; t++)
        keys += visible(a->len[t], a->window);
    /* Turning a page into panels costs about as much as eight heads' arithmetic. */
    cpu_pool_run(s->dev->pool, a->T * a->K, 2 * keys * (a->H + 8 * a->K) * a->d, attn_item, &j);
    return TD_OK;
}

td_status cpu_attn_out(td_stream *s, const td_attn_out_args *a, td_error *err)
{
    td_status st = cpu_check_matrix("attn_out", "w", a->w, 1, a->D, a->Hd, err);

    if (st != TD_OK || (a->bias != NULL && (st = cpu_check_matrix("attn_out", "bias", a->bias, 1,
                                                                  a->D, 1, err)) != TD_OK))
        return st;
    cpu_gemm(s->dev, &(cpu_gemm_args){.w = a->w,
                                      .bias = a->bias != NULL ? cpu_vector(a->bias) : NULL,
                                      .x = a->o,
                                      .ldx = a->Hd,
                                      .M = a->T,
                                      .y = a->out,
                                      .ldy = a->D,
                                      .scratch = a->ws});
    return cpu_add_part(s, (size_t)a->T * (size_t)a->D, a->out, a->x, err);
}
