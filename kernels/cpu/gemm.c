/* gemm: y = x W^T + bias over the threads, one item a panel of 32 columns (and 128 rows). */
#include "kernels/cpu/cpu.h"

typedef struct job {
    const td_cpu_hot *hot;
    const cpu_gemm_args *a;
    int32_t panels;
} job;

static void run(void *ctx, int32_t item, int32_t thread)
{
    const job *j = ctx;
    const cpu_gemm_args *a = j->a;
    int32_t panel = item % j->panels, m0 = item / j->panels * CPU_ROWS;
    int32_t col = panel * CPU_PANEL, left = a->w->N - col;
    const float *rows[CPU_ROWS];
    float bias[CPU_PANEL] = {0};
    cpu_gemm_piece p = {
        .panel = cpu_matrix_panel(a->w, 0, panel),
        .M = a->M - m0 < CPU_ROWS ? a->M - m0 : CPU_ROWS,
        .n = left < CPU_PANEL ? left : CPU_PANEL,
        .x = rows,
        .y = a->y + m0 * a->ldy + col,
        .ldy = a->ldy,
        .scratch = a->scratch + (int64_t)thread * CPU_GEMM_SCRATCH,
    };

    for (int32_t m = 0; m < p.M; m++)
        rows[m] = a->x + (m0 + m) * a->ldx;
    if (a->bias != NULL) {
        for (int32_t c = 0; c < p.n; c++)
            bias[c] = a->bias[col + c];
        p.bias = bias;
    }
    j->hot->gemm(&p);
}

void cpu_gemm(td_dev *dev, const cpu_gemm_args *a)
{
    job j = {dev->hot, a, cpu_panels(a->w->N)};
    int64_t cost = (int64_t)a->M * a->w->N * a->w->K;

    if (a->M <= 4) /* reading the weights, not the arithmetic, is the work */
        cost = (int64_t)4 * a->w->N * a->w->K;
    cpu_pool_run(dev->pool, j.panels * ((a->M + CPU_ROWS - 1) / CPU_ROWS), cost, run, &j);
}
