/* load: weights from a checkpoint's rows to device memory, by way of staging.h. bf16 rows land at
 * their final pitch; MXFP4 rows land in a raw buffer on the device, from which a kernel writes the
 * units of mxfp4.h. */
#include "kernels/cuda/backend.h"
#include "kernels/cuda/experts_fp8.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/staging.h"

/* Every row of the blocks, one after the other, at dst and every `pitch` bytes on. */
static td_status upload_rows(td_dev *dev, char *dst, size_t pitch, size_t width, size_t elt,
                             const td_host_block *blocks, int32_t n_blocks, td_error *err)
{
    int32_t most = (int32_t)(TD_CUDA_STAGING / (width > 0 ? width : 1));
    td_status st = TD_OK;
    cuda_stage *stage;

    for (int32_t b = 0; st == TD_OK && b < n_blocks; b++)
        for (int32_t r = 0, n; st == TD_OK && r < blocks[b].rows; r += n) {
            int64_t stride = blocks[b].row_stride * (int64_t)elt;

            n = blocks[b].rows - r < most ? blocks[b].rows - r : most;
            if ((st = td_cuda_stage_take(dev, false, &stage, err)) != TD_OK)
                break;
            td_cuda_gather(dev, stage->pinned, width, (const char *)blocks[b].ptr + r * stride,
                           stride, n);
            st = td_cuda_stage_copy(dev, stage, dst, pitch, width, n, err);
            if (st == TD_OK)
                st = td_cuda_stage_give(dev, stage, err);
            dst += (size_t)n * pitch;
        }
    return st;
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

/* Vectors are small and become f32 on the host. */
static td_status upload_vector(td_dev *dev, td_elt elt, const td_host_block *blocks,
                               int32_t n_blocks, int32_t n, float *dst, td_error *err)
{
    float *all = malloc(((size_t)n + 1) * sizeof *all), *out = all;
    td_host_block one;
    td_status st;

    if (all != NULL && (size_t)n * sizeof *all > TD_CUDA_STAGING) {
        free(all);
        return td_fail(err, TD_INVALID, "cuda: a vector of %d elements", n);
    }
    if (all == NULL)
        return td_fail(err, TD_NOMEM, "cuda: no memory for a vector of %d", n);
    for (int32_t b = 0; b < n_blocks; b++)
        for (int32_t i = 0; i < blocks[b].rows; i++) {
            const char *at = (const char *)blocks[b].ptr +
                             (size_t)(i * blocks[b].row_stride) * td_elt_bytes(elt);
            if (elt == TD_ELT_BF16)
                *out++ = bf16_at(at);
            else
                memcpy(out++, at, sizeof *out);
        }
    one = (td_host_block){all, 1, n};
    st = upload_rows(dev, (char *)dst, (size_t)n * sizeof *all, (size_t)n * sizeof *all,
                     sizeof *all, &one, 1, err);
    free(all); /* it is in pinned memory by now */
    return st;
}

/* The end of every load: what was enqueued has happened, or the error is reported here. */
static td_status finish(td_dev *dev, td_status st, td_matrix *m, td_matrix *out, td_error *err)
{
    if (st == TD_OK)
        st = td_cuda_status(err, cudaStreamSynchronize(dev->stream.handle), "loading weights");
    if (st != TD_OK) {
        td_cuda_unload(m);
        return st;
    }
    *out = *m;
    return TD_OK;
}

size_t td_cuda_matrix_bytes(td_form form, int32_t E, int32_t N, int32_t K)
{
    if (form == TD_FORM_VECTOR)
        return (size_t)N * sizeof(float);
    return (size_t)E * (size_t)N * (size_t)(form == TD_FORM_ROWS ? K : td_cuda_pitch(K)) * 2;
}

size_t td_cuda_mxfp4_bytes(td_expert_format format, int32_t E, int32_t N, int32_t K)
{
    return format == TD_EXPERTS_FP8 ? td_fp8_layout_of(E, N, K).bytes
                                    : (size_t)E * td_mx_bytes(N, K);
}

td_status td_cuda_load(td_dev *dev, td_form form, td_elt elt, const td_host_block *blocks,
                       int32_t n_blocks, int32_t cols, td_matrix *out, td_error *err)
{
    bool experts = form == TD_FORM_GATE_UP || form == TD_FORM_DOWN;
    td_matrix m = {.form = form, .E = experts ? n_blocks : 1, .K = cols};
    size_t eb = td_elt_bytes(elt), width = (size_t)cols * eb, pitch = width;
    td_status st;

    *out = (td_matrix){0};
    for (int32_t b = 0; b < n_blocks; b++)
        m.N = experts ? blocks[b].rows : m.N + blocks[b].rows;
    m.encoding = td_cuda_encode(CUDA_BF16, 0);
    if (form == TD_FORM_VECTOR) {
        m.encoding = td_cuda_encode(CUDA_F32, 0);
        pitch = sizeof(float);
    } else if (form == TD_FORM_ROWS) {
        m.encoding = td_cuda_encode(elt == TD_ELT_F32 ? CUDA_F32 : CUDA_BF16, 0);
    } else if (elt == TD_ELT_F32) {
        return td_fail(err, TD_INVALID,
                       "cuda: a matrix of f32 weights; its kernels multiply bf16 and MXFP4");
    } else {
        pitch = (size_t)td_cuda_pitch(cols) * eb;
    }
    if (cols < 1 || width > TD_CUDA_STAGING)
        return td_fail(err, TD_INVALID, "cuda: rows of %d elements; 1 to %zu are possible", cols,
                       TD_CUDA_STAGING / eb);
    st = td_cuda_alloc(dev, (size_t)m.E * (size_t)m.N * pitch, &m.mem, err);
    if (st == TD_OK && form == TD_FORM_VECTOR)
        st = upload_vector(dev, elt, blocks, n_blocks, m.N, m.mem.ptr, err);
    else if (st == TD_OK)
        st = upload_rows(dev, m.mem.ptr, pitch, width, eb, blocks, n_blocks, err);
    return finish(dev, st, &m, out, err);
}

/* The largest scale of an expert, one item each. */
typedef struct scan {
    const td_host_mxfp4 *src;
    uint8_t *largest; /* [E] */
} scan;

static void scan_expert(void *ctx, int32_t e, int32_t thread)
{
    const td_host_mxfp4 *src = ((scan *)ctx)->src;
    int32_t blocks = src->K / 32;
    uint8_t top = 0;

    (void)thread;
    for (int32_t r = 0; r < src->N; r++) {
        const uint8_t *s = src->scales + e * src->expert_scales + r * src->row_scales;

        for (int32_t i = 0; i < blocks; i++)
            top = s[i] > top ? s[i] : top;
    }
    ((scan *)ctx)->largest[e] = top;
}

/* The largest scale of all experts; 255 is not a number. */
static td_status largest_scale(td_dev *dev, const td_host_mxfp4 *src, int32_t *largest,
                               td_error *err)
{
    scan s = {src, malloc((size_t)src->E + 1)};
    int32_t all = 0, nan = -1;

    if (s.largest == NULL)
        return td_fail(err, TD_NOMEM, "cuda: no memory for %d experts", src->E);
    td_cuda_staging_run(dev, src->E, (int64_t)src->E * src->N * (src->K / 32), scan_expert, &s);
    for (int32_t e = 0; e < src->E; e++) {
        all = s.largest[e] > all ? s.largest[e] : all;
        if (s.largest[e] == 255 && nan < 0)
            nan = e;
    }
    free(s.largest);
    if (nan >= 0)
        return td_fail(err, TD_INVALID, "MXFP4 weights: a scale of expert %d is 255, which is NaN",
                       nan);
    *largest = all;
    return TD_OK;
}

/* Rows r .. r + n of expert e, on the device as shipped, into the form that kernels read. */
static td_status convert(td_dev *dev, const uint8_t *blocks, const uint8_t *scales,
                         const td_matrix *m, int32_t e, int32_t r, int32_t n, td_error *err)
{
    char *units = (char *)m->mem.ptr + (size_t)e * td_mx_bytes(m->N, m->K) + td_mx_bytes(r, m->K);

    if (td_cuda_format(m) == CUDA_FP8)
        return td_cuda_pack_fp8(dev->stream.handle, blocks, scales, m, e, r, n, err);
    return td_cuda_pack_mxfp4(dev->stream.handle, blocks, scales, n, m->K, td_cuda_mxfp4_shift(m),
                              units, err);
}

/* Rows r .. r + n of expert e. */
static td_status upload_mxfp4(td_dev *dev, const td_host_mxfp4 *src, int32_t e, int32_t r,
                              int32_t n, const td_matrix *m, td_error *err)
{
    size_t code = (size_t)src->K / 2, scale = (size_t)src->K / 32;
    size_t codes = code * (size_t)n, bytes = codes + scale * (size_t)n;
    cuda_stage *b;
    td_status st = td_cuda_stage_take(dev, true, &b, err);

    if (st != TD_OK)
        return st;
    td_cuda_gather(dev, b->pinned, code,
                   (const char *)src->blocks + e * src->expert_blocks + r * src->row_blocks,
                   src->row_blocks, n);
    td_cuda_gather(dev, b->pinned + codes, scale,
                   (const char *)src->scales + e * src->expert_scales + r * src->row_scales,
                   src->row_scales, n);
    st = td_cuda_stage_copy(dev, b, b->raw.ptr, bytes, bytes, 1, err);
    if (st == TD_OK)
        st = convert(dev, b->raw.ptr, (const uint8_t *)b->raw.ptr + codes, m, e, r, n, err);
    return st == TD_OK ? td_cuda_stage_give(dev, b, err) : st;
}

td_status td_cuda_load_mxfp4(td_dev *dev, td_form form, const td_host_mxfp4 *src,
                             td_expert_format format, td_matrix *out, td_error *err)
{
    td_matrix m = {.form = form, .E = src->E, .N = src->N, .K = src->K};
    size_t row = (size_t)src->K / 2 + (size_t)src->K / 32;
    bool fp8 = format == TD_EXPERTS_FP8;
    int32_t group = fp8 ? TD_FP8_GROUP : TD_MX_ROWS; /* rows that are converted together */
    int32_t most, largest = 0;
    td_status st;

    *out = (td_matrix){0};
    if (src->K < 32 || src->K % 32 != 0 || row * (size_t)group > TD_CUDA_STAGING)
        return td_fail(err, TD_INVALID,
                       "MXFP4 weights: %d columns are not 1 to %d whole blocks of 32", src->K,
                       TD_CUDA_STAGING / group / 17);
    if ((st = td_cuda_staging_open(dev, err)) != TD_OK ||
        (st = largest_scale(dev, src, &largest, err)) != TD_OK)
        return st;
    m.encoding = td_cuda_encode(fp8 ? CUDA_FP8 : CUDA_MXFP4, fp8 ? 0 : largest - 127);
    most = (int32_t)(TD_CUDA_STAGING / row) / group * group;
    st = td_cuda_alloc(dev, td_cuda_mxfp4_bytes(format, m.E, m.N, m.K), &m.mem, err);
    for (int32_t e = 0; st == TD_OK && e < m.E; e++)
        for (int32_t r = 0, n; st == TD_OK && r < m.N; r += n) {
            n = m.N - r < most ? m.N - r : most;
            st = upload_mxfp4(dev, src, e, r, n, &m, err);
        }
    if (st == TD_OK && fp8)
        st = td_cuda_status(
            err,
            cudaMemcpyAsync(&m.inexact,
                            (const char *)m.mem.ptr + td_fp8_layout_of(m.E, m.N, m.K).inexact,
                            sizeof m.inexact, cudaMemcpyDeviceToHost, dev->stream.handle),
            "copying weights");
    return finish(dev, st, &m, out, err);
}
