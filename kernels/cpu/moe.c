/* moe: router and experts.
 *
 * Experts work on (token, choice) pairs sorted by expert, tokens in order within one: mlp1 and the
 * activation fill a[pair, I], mlp2 fills y[pair, D], and the last pass adds up each token's pairs
 * in the router's order. An item is one panel of one expert for up to 128 of its tokens, so the
 * weights of an expert are read once however many tokens chose it. */
#include "kernels/cpu/cpu.h"

#include <string.h>

typedef struct router_job {
    const td_router_args *a;
    const float *logits;
} router_job;

/* The k largest of logits[M] in falling order, ties to the lower index; NaN counts as -inf. */
static void top_k(const float *logits, int32_t M, int32_t k, int32_t *idx, float *prob)
{
    float sum = 0.0f;

    for (int32_t j = 0; j < k; j++) {
        int32_t best = -1;

        for (int32_t e = 0; e < M; e++) {
            bool taken = false;

            for (int32_t i = 0; i < j; i++)
                taken |= idx[i] == e;
            if (!taken && (best < 0 || logits[e] > logits[best] ||
                           (logits[best] != logits[best] && logits[e] == logits[e])))
                best = e;
        }
        idx[j] = best;
    }
    for (int32_t j = 0; j < k; j++) {
        prob[j] = __builtin_expf(logits[idx[j]] - logits[idx[0]]);
        sum += prob[j];
    }
    for (int32_t j = 0; j < k; j++)
        prob[j] /= sum;
}

static void router_item(void *ctx, int32_t t, int32_t thread)
{
    const router_job *j = ctx;
    const td_router_args *a = j->a;

    (void)thread;
    if (a->live != NULL && t >= *a->live) {
        for (int32_t i = 0; i < a->k; i++) {
            a->idx[(int64_t)t * a->k + i] = -1;
            a->prob[(int64_t)t * a->k + i] = 0.0f;
        }
        return;
    }
    top_k(j->logits + (int64_t)t * a->M, a->M, a->k, a->idx + (int64_t)t * a->k,
          a->prob + (int64_t)t * a->k);
}

td_status cpu_router(td_stream *s, const td_router_args *a, td_error *err)
{
    td_dev *dev = s->dev;
    cpu_ws ws = {a->ws};
    float *scratch = cpu_ws_take(&ws, (size_t)dev->n_threads * CPU_GEMM_SCRATCH * sizeof(float));
    float *logits = cpu_ws_take(&ws, (size_t)a->T * (size_t)a->M * sizeof(float));
    router_job j = {a, logits};
    td_status st;

    if ((st = cpu_check_matrix("router", "norm", a->norm, 1, a->D, 1, err)) != TD_OK ||
        (st = cpu_check_matrix("router", "w", a->w, 1, a->M, a->D, err)) != TD_OK ||
        (st = cpu_check_matrix("router", "bias", a->bias, 1, a->M, 1, err)) != TD_OK)
        return st;
    if (a->k < 1 || a->k > a->M)
        return td_fail(err, TD_INVALID, "router: %d of %d experts", a->k, a->M);
    cpu_rmsnorm(dev, a->x, NULL, a->norm, a->eps, a->T, a->D, a->t);
    cpu_gemm(dev, &(cpu_gemm_args){.w = a->w,
                                   .bias = cpu_vector(a->bias),
                                   .x = a->t,
                                   .ldx = a->D,
                                   .M = a->T,
                                   .y = logits,
                                   .ldy = a->M,
                                   .scratch = scratch});
    cpu_pool_run(dev->pool, a->T, (int64_t)a->T * a->M * a->k * 4, router_item, &j);
    return TD_OK;
}

typedef struct moe_job {
    td_dev *dev;
    const td_experts_args *a;
    int32_t n_pairs;
    int32_t *start; /* [E + 1]: expert e has pairs start[e] .. start[e + 1] */
    int32_t *token; /* [pairs] sorted by expert */
    int32_t *place; /* [T, k]: where a choice's pair is; -1: not on this rank */
    float *act, *y, *scratch;
    int32_t mlp; /* 1: t -> act, 2: act -> y */
    /* Pieces: expert by expert, 128 tokens by 128 tokens, panel by panel. */
    int32_t panels;
} moe_job;

static void sort_pairs(moe_job *j, int32_t *next)
{
    const td_experts_args *a = j->a;
    int32_t n = a->T * a->k;

    memset(j->start, 0, (size_t)(a->E + 1) * sizeof *j->start);
    for (int32_t i = 0; i < n; i++) {
        int32_t e = a->idx[i] - a->expert_first;
        if (e >= 0 && e < a->E)
            j->start[e + 1]++;
    }
    for (int32_t e = 0; e < a->E; e++) {
        j->start[e + 1] += j->start[e];
        next[e] = j->start[e];
    }
    for (int32_t i = 0; i < n; i++) {
        int32_t e = a->idx[i] - a->expert_first;

        j->place[i] = -1;
        if (e >= 0 && e < a->E) {
            j->place[i] = next[e]++;
            j->token[j->place[i]] = i / a->k;
        }
    }
    j->n_pairs = j->start[a->E];
}

static int32_t pieces_of(const moe_job *j, int32_t e)
{
    return (j->start[e + 1] - j->start[e] + CPU_ROWS - 1) / CPU_ROWS;
}

static void mlp_item(void *ctx, int32_t item, int32_t thread)
{
    const moe_job *j = ctx;
    const td_experts_args *a = j->a;
    const td_matrix *w = j->mlp == 1 ? a->gate_up : a->down;
    const td_matrix *b = j->mlp == 1 ? a->gate_up_bias : a->down_bias;
    int32_t panel = item % j->panels, piece = item / j->panels, e = 0;
    float bias[CPU_PANEL] = {0}, *scratch = j->scratch + (int64_t)thread * CPU_GEMM_SCRATCH;
    const float *rows[CPU_ROWS];
    cpu_gemm_piece p = {.n = CPU_PANEL, .x = rows, .scratch = scratch};
    int32_t p0, left;

    while (piece >= pieces_of(j, e))
        piece -= pieces_of(j, e++);
    p0 = j->start[e] + piece * CPU_ROWS;
    left = j->start[e + 1] - p0;
    p.M = left < CPU_ROWS ? left : CPU_ROWS;
    p.panel = cpu_matrix_panel(w, e, panel);
    for (int32_t m = 0; m < p.M; m++)
        rows[m] = j->mlp == 1 ? (const float *)a->t + (int64_t)j->token[p0 + m] * a->D
                              : j->act + (int64_t)(p0 + m) * a->I;
    if (j->mlp == 1) {
        int32_t c = panel * 16, n = a->I - c < 16 ? a->I - c : 16;
        const float *b1 = cpu_vector(b) + (int64_t)e * 2 * a->I + 2 * c;

        for (int32_t i = 0; i < n; i++) {
            bias[i] = b1[2 * i];
            bias[16 + i] = b1[2 * i + 1];
        }
        p.bias = bias;
        p.y = scratch + CPU_KB * CPU_PANEL;
        p.ldy = CPU_PANEL;
        j->dev->hot->gemm(&p);
        j->dev->hot->swiglu(p.y, p.M, n, a->limit, j->act + (int64_t)p0 * a->I + c, a->I);
        return;
    }
    left = a->D - panel * CPU_PANEL;
    p.n = left < CPU_PANEL ? left : CPU_PANEL;
    if (b != NULL) {
        memcpy(bias, cpu_vector(b) + (int64_t)e * a->D + panel * CPU_PANEL,
               (size_t)p.n * sizeof *bias);
        p.bias = bias;
    }
    p.y = j->y + (int64_t)p0 * a->D + panel * CPU_PANEL;
    p.ldy = a->D;
    j->dev->hot->gemm(&p);
}

static void combine_item(void *ctx, int32_t t, int32_t thread)
{
    const moe_job *j = ctx;
    const td_experts_args *a = j->a;
    float *out = (float *)a->out + (int64_t)t * a->D;

    (void)thread;
    memset(out, 0, (size_t)a->D * sizeof *out);
    for (int32_t i = 0; i < a->k; i++) {
        int32_t place = j->place[t * a->k + i];

        if (place >= 0)
            j->dev->hot->axpy(a->prob[t * a->k + i], j->y + (int64_t)place * a->D, out, a->D);
    }
}

static void mlp(moe_job *j, int32_t which, const td_matrix *w)
{
    int32_t pieces = 0;
    int64_t cost = 0;

    for (int32_t e = 0; e < j->a->E; e++) {
        int32_t n = j->start[e + 1] - j->start[e];

        pieces += pieces_of(j, e);
        cost += (int64_t)(n > 0 && n < 4 ? 4 : n) * w->N * w->K;
    }
    j->mlp = which;
    j->panels = cpu_panels(w->N);
    cpu_pool_run(j->dev->pool, pieces * j->panels, cost, mlp_item, j);
}

td_status cpu_experts(td_stream *s, const td_experts_args *a, td_error *err)
{
    td_dev *dev = s->dev;
    size_t pairs = (size_t)a->T * (size_t)a->k;
    cpu_ws ws = {a->ws};
    moe_job j = {.dev = dev, .a = a};
    td_status st;

    if ((st = cpu_check_matrix("experts", "gate_up", a->gate_up, a->E, 2 * a->I, a->D, err)) ||
        (st = cpu_check_matrix("experts", "gate_up_bias", a->gate_up_bias, 1, a->E * 2 * a->I, 1,
                               err)) ||
        (st = cpu_check_matrix("experts", "down", a->down, a->E, a->D, a->I, err)) ||
        (a->down_bias != NULL &&
         (st = cpu_check_matrix("experts", "down_bias", a->down_bias, 1, a->E * a->D, 1, err))))
        return st;
    j.scratch = cpu_ws_take(&ws, (size_t)dev->n_threads * CPU_GEMM_SCRATCH * sizeof(float));
    j.act = cpu_ws_take(&ws, pairs * (size_t)a->I * sizeof(float));
    j.y = cpu_ws_take(&ws, pairs * (size_t)a->D * sizeof(float));
    j.token = cpu_ws_take(&ws, pairs * sizeof(int32_t));
    j.place = cpu_ws_take(&ws, pairs * sizeof(int32_t));
    j.start = cpu_ws_take(&ws, (size_t)(a->E + 1) * sizeof(int32_t));
    sort_pairs(&j, cpu_ws_take(&ws, (size_t)a->E * sizeof(int32_t)));
    mlp(&j, 1, a->gate_up);
    mlp(&j, 2, a->down);
    cpu_pool_run(dev->pool, a->T, (int64_t)pairs * a->D, combine_item, &j);
    return cpu_add_part(s, (size_t)a->T * (size_t)a->D, a->out, a->x, err);
}
