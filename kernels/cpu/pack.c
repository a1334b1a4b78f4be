/* pack: weights from a checkpoint's rows into panels of 32 rows, k by k, as hot.h describes.
 *
 * Rows past N in the last panel are zeros. In a gate_up matrix a panel holds 16 inner columns:
 * their 16 gate rows, then their 16 up rows, so that the activation finds both in the same lanes;
 * the checkpoint has them interleaved. */
#include "kernels/cpu/cpu.h"

#include <string.h>

/* Which row of the checkpoint lands in lane j of panel i; -1: none. */
static int32_t source_row(td_form form, int32_t N, int32_t i, int32_t j)
{
    int32_t row = i * CPU_PANEL + j;

    if (form == TD_FORM_GATE_UP)
        row = 2 * (i * (CPU_PANEL / 2) + j % (CPU_PANEL / 2)) + j / (CPU_PANEL / 2);
    return row < N ? row : -1;
}

static size_t panel_bytes(int32_t encoding, int32_t K)
{
    size_t k = (size_t)K;

    if (encoding == CPU_MXFP4)
        return (k * (CPU_PANEL / 2) + k / 32 * CPU_PANEL + 63) / 64 * 64;
    return k * CPU_PANEL * (encoding == CPU_F32 ? 4 : 2);
}

cpu_panel cpu_matrix_panel(const td_matrix *m, int32_t e, int32_t i)
{
    const char *base = m->mem.ptr;
    cpu_panel p = {.encoding = (cpu_encoding)m->encoding, .K = m->K};

    p.w =
        base + panel_bytes(m->encoding, m->K) * ((size_t)e * (size_t)cpu_panels(m->N) + (size_t)i);
    if (m->encoding == CPU_MXFP4)
        p.scales = (const uint8_t *)p.w + (size_t)m->K * (CPU_PANEL / 2);
    return p;
}

static float bf16_at(const void *p)
{
    uint16_t h;
    uint32_t u;
    float f;

    memcpy(&h, p, sizeof h);
    u = (uint32_t)h << 16;
    memcpy(&f, &u, sizeof f);
    return f;
}

static size_t vector_bytes(int32_t n)
{
    return ((size_t)n + CPU_PANEL) * sizeof(float);
}

static size_t panels_bytes(int32_t encoding, int32_t E, int32_t N, int32_t K)
{
    return panel_bytes(encoding, K) * (size_t)cpu_panels(N) * (size_t)E;
}

size_t cpu_matrix_bytes(td_form form, int32_t E, int32_t N, int32_t K)
{
    if (form == TD_FORM_VECTOR)
        return vector_bytes(N);
    return form == TD_FORM_ROWS ? (size_t)N * (size_t)K * 2 : panels_bytes(CPU_BF16, E, N, K);
}

size_t cpu_mxfp4_bytes(td_expert_format format, int32_t E, int32_t N, int32_t K)
{
    (void)format; /* it has one */
    return panels_bytes(CPU_MXFP4, E, N, K);
}

static td_status load_vector(td_dev *dev, td_elt elt, const td_host_block *blocks, int32_t n_blocks,
                             int32_t n, td_matrix *m, td_error *err)
{
    td_status st = cpu_alloc(dev, vector_bytes(n), &m->mem, err);
    float *out = m->mem.ptr;

    if (st != TD_OK)
        return st;
    for (int32_t b = 0; b < n_blocks; b++)
        for (int32_t i = 0; i < blocks[b].rows; i++) {
            const char *at = (const char *)blocks[b].ptr +
                             (size_t)(i * blocks[b].row_stride) * td_elt_bytes(elt);
            if (elt == TD_ELT_BF16)
                *out++ = bf16_at(at);
            else
                memcpy(out++, at, sizeof *out);
        }
    return TD_OK;
}

/* Row r of the blocks stacked from top to bottom. */
static const char *stacked_row(const td_host_block *blocks, int32_t n_blocks, int32_t r, size_t elt)
{
    for (int32_t b = 0; b < n_blocks; b++) {
        if (r < blocks[b].rows)
            return (const char *)blocks[b].ptr + (size_t)(r * blocks[b].row_stride) * elt;
        r -= blocks[b].rows;
    }
    return NULL;
}

static td_status load_rows(td_dev *dev, td_elt elt, const td_host_block *blocks, int32_t n_blocks,
                           td_matrix *m, td_error *err)
{
    size_t row = (size_t)m->K * td_elt_bytes(elt);
    td_status st = cpu_alloc(dev, (size_t)m->N * row, &m->mem, err);
    char *out = m->mem.ptr;

    for (int32_t r = 0; st == TD_OK && r < m->N; r++, out += row)
        memcpy(out, stacked_row(blocks, n_blocks, r, td_elt_bytes(elt)), row);
    return st;
}

/* Lane j of a panel: every 32nd element, from one row. */
static void fill_lane(const char *row, size_t elt, int32_t K, char *lane)
{
    if (elt == 2)
        for (int32_t k = 0; k < K; k++)
            memcpy(lane + (size_t)k * CPU_PANEL * 2, row + (size_t)k * 2, 2);
    else
        for (int32_t k = 0; k < K; k++)
            memcpy(lane + (size_t)k * CPU_PANEL * 4, row + (size_t)k * 4, 4);
}

td_status cpu_load(td_dev *dev, td_form form, td_elt elt, const td_host_block *blocks,
                   int32_t n_blocks, int32_t cols, td_matrix *out, td_error *err)
{
    bool experts = form == TD_FORM_GATE_UP || form == TD_FORM_DOWN;
    td_matrix m = {.form = form, .E = experts ? n_blocks : 1, .K = cols};
    size_t eb = td_elt_bytes(elt);
    td_status st;

    *out = (td_matrix){0};
    m.encoding = elt == TD_ELT_F32 ? CPU_F32 : CPU_BF16;
    for (int32_t b = 0; b < n_blocks; b++)
        m.N = experts ? blocks[b].rows : m.N + blocks[b].rows;
    if (form == TD_FORM_VECTOR)
        st = load_vector(dev, elt, blocks, n_blocks, m.N, &m, err);
    else if (form == TD_FORM_ROWS)
        st = load_rows(dev, elt, blocks, n_blocks, &m, err);
    else
        st = cpu_alloc(dev, panels_bytes(m.encoding, m.E, m.N, cols), &m.mem, err);
    if (st != TD_OK)
        return st;
    cpu_wish_huge_pages(&m.mem);
    if (form != TD_FORM_VECTOR && form != TD_FORM_ROWS)
        for (int32_t e = 0; e < m.E; e++)
            for (int32_t i = 0; i < cpu_panels(m.N); i++) {
                char *panel = (char *)cpu_matrix_panel(&m, e, i).w;

                for (int32_t j = 0; j < CPU_PANEL; j++) {
                    int32_t r = source_row(form, m.N, i, j);
                    if (r >= 0)
                        fill_lane(experts ? stacked_row(blocks + e, 1, r, eb)
                                          : stacked_row(blocks, n_blocks, r, eb),
                                  eb, cols, panel + (size_t)j * eb);
                }
            }
    *out = m;
    return TD_OK;
}

/* One panel: the nibbles of 32 rows turned from k-major to lane-major. */
static bool fill_mxfp4(const td_host_mxfp4 *src, td_form form, int32_t e, int32_t i, char *panel)
{
    uint8_t *w = (uint8_t *)panel, *scales = w + (size_t)src->K * (CPU_PANEL / 2);

    memset(scales, 127, (size_t)src->K / 32 * CPU_PANEL); /* absent rows: 0 * 1 */
    for (int32_t j = 0; j < CPU_PANEL; j++) {
        int32_t r = source_row(form, src->N, i, j);
        const uint8_t *b, *s;
        uint8_t *lane = w + j % 16;
        int shift = j < 16 ? 0 : 4;

        if (r < 0)
            continue;
        b = src->blocks + e * src->expert_blocks + r * src->row_blocks;
        s = src->scales + e * src->expert_scales + r * src->row_scales;
        for (int32_t k = 0; k < src->K / 32; k++) {
            if (s[k] == 255)
                return false;
            scales[(size_t)k * CPU_PANEL + (size_t)j] = s[k];
        }
        for (int32_t k = 0; k < src->K / 2; k++, lane += 32) {
            lane[0] |= (uint8_t)((b[k] & 15) << shift);
            lane[16] |= (uint8_t)((b[k] >> 4) << shift);
        }
    }
    return true;
}

td_status cpu_load_mxfp4(td_dev *dev, td_form form, const td_host_mxfp4 *src,
                         td_expert_format format, td_matrix *out, td_error *err)
{
    td_matrix m = {.form = form, .E = src->E, .N = src->N, .K = src->K, .encoding = CPU_MXFP4};
    td_status st;

    *out = (td_matrix){0};
    if (format != TD_EXPERTS_MXFP4)
        return td_fail(err, TD_INVALID, "experts in FP8: the CPU backend keeps them as MXFP4");
    if (src->K % 32 != 0)
        return td_fail(err, TD_INVALID, "MXFP4 weights: %d columns are not whole blocks of 32",
                       src->K);
    st = cpu_alloc(dev, panels_bytes(CPU_MXFP4, m.E, m.N, m.K), &m.mem, err);
    if (st != TD_OK)
        return st;
    cpu_wish_huge_pages(&m.mem);
    for (int32_t e = 0; e < m.E; e++)
        for (int32_t i = 0; i < cpu_panels(m.N); i++)
            if (!fill_mxfp4(src, form, e, i, (char *)cpu_matrix_panel(&m, e, i).w)) {
                td_ops_cpu.unload(&m);
                return td_fail(err, TD_INVALID,
                               "MXFP4 weights: a scale of expert %d is 255, which is NaN", e);
            }
    *out = m;
    return TD_OK;
}
