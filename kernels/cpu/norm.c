/* norm: the steps around the layers: embedding, sum over ranks, norm, head. */
#include "kernels/cpu/cpu.h"

#include <string.h>

td_status cpu_embed(td_stream *s, const td_embed_args *a, td_error *err)
{
    float *out = a->out;
    td_status st = cpu_check_matrix("embed", "table", a->table, 1, a->table->N, a->D, err);

    (void)s;
    if (st != TD_OK)
        return st;
    for (int32_t t = 0; t < a->T; t++, out += a->D) {
        int64_t row = (int64_t)a->tokens[t] - a->first;

        if (row < 0 || row >= a->table->N) {
            memset(out, 0, (size_t)a->D * sizeof *out);
        } else if (a->table->encoding == CPU_F32) {
            memcpy(out, (const float *)a->table->mem.ptr + row * a->D, (size_t)a->D * sizeof *out);
        } else {
            const uint16_t *h = (const uint16_t *)a->table->mem.ptr + row * a->D;

            for (int32_t i = 0; i < a->D; i++) {
                uint32_t u = (uint32_t)h[i] << 16;
                memcpy(out + i, &u, sizeof u);
            }
        }
    }
    return TD_OK;
}

enum { ADD_ITEM = 4096 };

static void add_item(void *ctx, int32_t item, int32_t thread)
{
    const td_add_args *a = ctx;
    size_t i = (size_t)item * ADD_ITEM, end = i + ADD_ITEM < a->n ? i + ADD_ITEM : a->n;
    float *x = a->x;

    (void)thread;
    if (a->n_parts == 1 && !a->clear) { /* one rank: the case worth a loop of its own */
        const float *p = a->part[0];

        for (; i < end; i++)
            x[i] += p[i];
        return;
    }
    for (; i < end; i++) {
        float sum = 0.0f;

        for (int32_t r = 0; r < a->n_parts; r++)
            sum += ((const float *)a->part[r])[i];
        x[i] = a->clear ? sum : x[i] + sum;
    }
}

td_status cpu_add(td_stream *s, const td_add_args *a, td_error *err)
{
    (void)err;
    cpu_pool_run(s->dev->pool, (int32_t)((a->n + ADD_ITEM - 1) / ADD_ITEM),
                 (int64_t)a->n * (1 + a->n_parts), add_item, (void *)a);
    return TD_OK;
}

td_status cpu_add_part(td_stream *s, size_t n, const void *part, void *x, td_error *err)
{
    if (x == NULL)
        return TD_OK;
    return cpu_add(s, &(td_add_args){.n = n, .n_parts = 1, .part = &part, .x = x}, err);
}

typedef struct norm_job {
    const td_cpu_hot *hot;
    const float *x, *g;
    const int32_t *row;
    float eps, *t;
    int32_t M, D;
} norm_job;

enum { NORM_ROWS = 8 };

static void norm_item(void *ctx, int32_t item, int32_t thread)
{
    const norm_job *j = ctx;
    int32_t end = (item + 1) * NORM_ROWS < j->M ? (item + 1) * NORM_ROWS : j->M;

    (void)thread;
    for (int32_t m = item * NORM_ROWS; m < end; m++) {
        int64_t from = j->row != NULL ? j->row[m] : m;
        j->hot->rmsnorm(j->x + from * j->D, j->g, j->eps, j->D, j->t + (int64_t)m * j->D);
    }
}

void cpu_rmsnorm(td_dev *dev, const float *x, const int32_t *row, const td_matrix *g, float eps,
                 int32_t M, int32_t D, float *t)
{
    norm_job j = {dev->hot, x, cpu_vector(g), row, eps, t, M, D};

    cpu_pool_run(dev->pool, (M + NORM_ROWS - 1) / NORM_ROWS, (int64_t)M * D * 8, norm_item, &j);
}

td_status cpu_head(td_stream *s, const td_head_args *a, td_error *err)
{
    td_dev *dev = s->dev;
    cpu_ws ws = {a->ws};
    float *scratch = cpu_ws_take(&ws, (size_t)dev->n_threads * CPU_GEMM_SCRATCH * sizeof(float));
    float *t = cpu_ws_take(&ws, (size_t)a->n * (size_t)a->D * sizeof(float));
    td_status st;

    if ((st = cpu_check_matrix("head", "norm", a->norm, 1, a->D, 1, err)) != TD_OK ||
        (st = cpu_check_matrix("head", "w", a->w, 1, a->V, a->D, err)) != TD_OK)
        return st;
    cpu_rmsnorm(dev, a->x, a->rows, a->norm, a->eps, a->n, a->D, t);
    cpu_gemm(dev, &(cpu_gemm_args){.w = a->w,
                                   .x = t,
                                   .ldx = a->D,
                                   .M = a->n,
                                   .y = a->out,
                                   .ldy = a->V,
                                   .scratch = scratch});
    return TD_OK;
}

/* The steps take their buffers from one workspace in turn, so the largest step decides. */
size_t cpu_workspace_bytes(const td_dev *dev, const td_dims *m)
{
    size_t f = sizeof(float), n = (size_t)dev->n_threads, T = (size_t)m->T;
    size_t gemm = n * CPU_GEMM_SCRATCH * f, pad = 16 * 64;
    size_t attn = n * (size_t)cpu_scratch_floats(m->H / m->K, m->d) * f;
    size_t qkv = gemm + T * (size_t)(m->D + (m->H + 2 * m->K) * m->d) * f;
    size_t router = gemm + T * (size_t)m->M * f;
    size_t pairs = T * (size_t)m->k;
    size_t experts = gemm + pairs * (size_t)(m->I + m->D) * f + 2 * pairs * sizeof(int32_t) +
                     (size_t)(2 * m->E + 1) * sizeof(int32_t);
    size_t head = gemm + (size_t)m->head_rows * (size_t)m->D * f;
    size_t best = attn;

    best = qkv > best ? qkv : best;
    best = router > best ? router : best;
    best = experts > best ? experts : best;
    best = head > best ? head : best;
    best = cpu_sample_ws(dev, m->sample_V) > best ? cpu_sample_ws(dev, m->sample_V) : best;
    return best + pad;
}
