/* harness: see harness.h. */
#include "tests/ops/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef TANDEM_HAS_CUDA
#include "kernels/cuda/backend.h"
#endif

/* The worst error of each thing compared, for TANDEM_TEST_REPORT. */
static struct worst {
    const char *what;
    double error, tol;
    int cases;
} worst[32];

static void note_error(const char *what, double error, double tol)
{
    struct worst *w = worst;

    while (w->what != NULL && strcmp(w->what, what) != 0)
        w++;
    assert_true(w < worst + sizeof worst / sizeof worst[0] - 1);
    w->what = what;
    w->cases++;
    if (error / tol >= (w->tol > 0 ? w->error / w->tol : 0)) {
        w->error = error;
        w->tol = tol;
    }
}

static void report(const char *of)
{
    for (const struct worst *w = worst; w->what != NULL; w++)
        print_message("report: %s %s: %d cases, worst error %.3g, allowed %.3g\n", of, w->what,
                      w->cases, w->error, w->tol);
}

int harness_open(void **state)
{
    harness *h = calloc(1, sizeof *h);
    td_error err = {0};
    td_status st = TD_INTERNAL;

    if (h == NULL || td_ops_find(backend(), &h->ops, &err) != TD_OK ||
        (st = h->ops->dev_open(&(td_dev_options){.threads = 2}, &h->dev, &err)) != TD_OK ||
        h->ops->dev_bind(h->dev, &err) != TD_OK) {
        free(h);
        if (st == TD_UNAVAILABLE) { /* no device in this machine: nothing can be said of it */
            print_message("[  SKIPPED ] backend %s: %s\n", backend(), err.text);
            exit(BACKEND_NOT_RUN);
        }
        print_error("%s\n", err.text);
        return -1;
    }
    h->s = h->ops->dev_stream(h->dev);
    h->tol = h->ops->act == TD_ELT_F32 ? &tolerance_f32 : &tolerance_bf16;
    h->rng = 1;
    *state = h;
    return 0;
}

int harness_close(void **state)
{
    harness *h = *state;

    harness_clear(h);
    if (getenv("TANDEM_TEST_REPORT") != NULL)
        report(h->ops->name);
    h->ops->dev_close(h->dev);
    free(h);
    return 0;
}

void harness_clear(harness *h)
{
    while (h->n_matrices > 0)
        h->ops->unload(&h->matrices[--h->n_matrices]);
    while (h->n_held > 0)
        h->ops->release(&h->held[--h->n_held]);
    while (h->n_host > 0)
        free(h->host[--h->n_host]);
}

float *host_floats(harness *h, size_t n)
{
    float *p = calloc(n > 0 ? n : 1, sizeof *p);

    assert_non_null(p);
    assert_true(h->n_host < 64);
    h->host[h->n_host++] = p;
    return p;
}

uint32_t random_bits(harness *h)
{
    h->rng ^= h->rng << 13;
    h->rng ^= h->rng >> 7;
    h->rng ^= h->rng << 17;
    return (uint32_t)(h->rng >> 16);
}

double round_bf16(double x)
{
    float f = (float)x;
    uint32_t u;

    memcpy(&u, &f, 4);
    u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
    memcpy(&f, &u, 4);
    return f;
}

float *random_floats(harness *h, size_t n, double scale, bool bf16)
{
    float *p = host_floats(h, n);

    for (size_t i = 0; i < n; i++) {
        double x = ((double)random_bits(h) / 2147483648.0 - 1) * scale;
        p[i] = bf16 ? (float)round_bf16(x) : (float)x;
    }
    return p;
}

static void *hold(harness *h, size_t bytes)
{
    td_error err = {0};

    assert_true(h->n_held < 64);
    check_ok(h->ops->alloc(h->dev, bytes, &h->held[h->n_held], &err), &err);
    return h->held[h->n_held++].ptr;
}

void *dev_bytes(harness *h, const void *x, size_t bytes)
{
    void *p = hold(h, bytes);
    td_error err = {0};

    check_ok(h->ops->copy_in(h->s, p, x, bytes, &err), &err);
    check_ok(h->ops->sync(h->s, &err), &err);
    return p;
}

static void *dev_elts(harness *h, const float *x, size_t n, td_elt elt)
{
    uint16_t *half;
    void *p;

    if (elt == TD_ELT_F32)
        return dev_bytes(h, x, n * 4);
    half = calloc(n, 2);
    assert_non_null(half);
    for (size_t i = 0; i < n; i++) {
        float f = (float)round_bf16(x[i]);
        uint32_t u;
        memcpy(&u, &f, 4);
        half[i] = (uint16_t)(u >> 16);
    }
    p = dev_bytes(h, half, n * 2);
    free(half);
    return p;
}

void *dev_act(harness *h, const float *x, size_t n)
{
    return dev_elts(h, x, n, h->ops->act);
}

void *dev_resid(harness *h, const float *x, size_t n)
{
    return dev_elts(h, x, n, h->ops->resid);
}

void *dev_f32(harness *h, const float *x, size_t n)
{
    return dev_bytes(h, x, n * 4);
}

void *dev_i32(harness *h, const int32_t *x, size_t n)
{
    return dev_bytes(h, x, n * 4);
}

void *dev_poison(harness *h, size_t bytes)
{
    char *ones = malloc(bytes + 1);
    void *p;

    assert_non_null(ones);
    memset(ones, 0xff, bytes);
    p = dev_bytes(h, ones, bytes);
    free(ones);
    return p;
}

bool harness_small(void)
{
    static int small = -1;

    if (small < 0)
        small = getenv("TANDEM_TEST_SMALL") != NULL;
    return small != 0;
}

bool harness_smallest(void)
{
    return harness_small() && strcmp(getenv("TANDEM_TEST_SMALL"), "2") == 0;
}

void *dev_ws(harness *h, const td_dims *dims)
{
#ifdef TANDEM_HAS_CUDA
    /* Rows that are no multiple of 16 bytes are read beyond their end, to be blanked: as NaN they
     * show that this happens, as memory that nothing wrote they would be reported for nothing. So
     * would be what attention's products of large steps write, by a library. */
    if (harness_small() && strcmp(h->ops->name, "cuda") == 0 && dims->D % 8 == 0 &&
        dims->I % 8 == 0 && (dims->E > 0 || dims->T <= TD_SMALL_STEP)) {
        td_error err = {0};

        assert_true(h->n_held < 64);
        check_ok(td_cuda_alloc_raw(h->dev, h->ops->workspace_bytes(h->dev, dims),
                                   &h->held[h->n_held], &err),
                 &err);
        return h->held[h->n_held++].ptr;
    }
#endif
    return dev_poison(h, h->ops->workspace_bytes(h->dev, dims));
}

void read_elts(harness *h, const void *dev, td_elt elt, size_t n, float *out)
{
    size_t bytes = n * td_elt_bytes(elt);
    td_error err = {0};

    check_ok(h->ops->copy_out(h->s, out, bytes, dev, bytes, bytes, 1, &err), &err);
    check_ok(h->ops->sync(h->s, &err), &err);
    if (elt == TD_ELT_BF16)
        for (size_t i = n; i-- > 0;) { /* widened in place, from the end */
            uint32_t u = (uint32_t)((const uint16_t *)(const void *)out)[i] << 16;
            memcpy(out + i, &u, 4);
        }
}

void *some_resid(harness *h, size_t n)
{
    float *x = host_floats(h, n);

    for (size_t i = 0; i < n; i++)
        x[i] = (float)((i * 37 + 11) % 256) / 31 - 4;
    return dev_resid(h, x, n);
}

float *read_resid(harness *h, const void *x, size_t n)
{
    float *out = host_floats(h, n);

    read_elts(h, x, h->ops->resid, n, out);
    return out;
}

void check_added(harness *h, const void *x, const float *before, const float *part, size_t n)
{
    const float *after = read_resid(h, x, n);

    for (size_t i = 0; i < n; i++)
        if (after[i] != before[i] + part[i])
            fail_msg("element %zu: %a and %a added up to %a", i, (double)before[i], (double)part[i],
                     (double)after[i]);
}

void check_experts_add(harness *h, const td_experts_args *all, const float *part)
{
    size_t n = (size_t)all->T * (size_t)all->D;
    td_experts_args a = *all;
    td_error err = {0};
    float *before;

    a.x = some_resid(h, n);
    before = read_resid(h, a.x, n);
    check_ok(h->ops->experts(h->s, &a, &err), &err);
    check_added(h, a.x, before, part, n);
}

void read_i32(harness *h, const void *dev, size_t n, int32_t *out)
{
    td_error err = {0};

    check_ok(h->ops->copy_out(h->s, out, n * 4, dev, n * 4, n * 4, 1, &err), &err);
    check_ok(h->ops->sync(h->s, &err), &err);
}

const td_matrix *keep_matrix(harness *h, const td_matrix *m)
{
    assert_true(h->n_matrices < 32);
    h->matrices[h->n_matrices] = *m;
    return &h->matrices[h->n_matrices++];
}

const td_matrix *dev_matrix(harness *h, td_form form, td_elt elt, const float *x, int32_t E,
                            int32_t N, int32_t K)
{
    size_t n = (size_t)E * (size_t)N * (size_t)K;
    char *odd = malloc(n * td_elt_bytes(elt) + 1),
         *src = odd + 1; /* checkpoints may be unaligned */
    td_host_block *blocks = calloc((size_t)E, sizeof *blocks);
    td_matrix m;
    td_error err = {0};

    assert_non_null(odd);
    assert_non_null(blocks);
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, x + i, 4);
        if (elt == TD_ELT_BF16) {
            uint16_t half = (uint16_t)(u >> 16);
            assert_int_equal(u & 0xffff, 0);
            memcpy(src + 2 * i, &half, 2);
        } else {
            memcpy(src + 4 * i, &u, 4);
        }
    }
    for (int32_t e = 0; e < E; e++)
        blocks[e] =
            (td_host_block){src + (size_t)e * (size_t)N * (size_t)K * td_elt_bytes(elt), N, K};
    check_ok(h->ops->load(h->dev, form, elt, blocks, E, K, &m, &err), &err);
    free(blocks);
    free(odd);
    return keep_matrix(h, &m);
}

void check_close(const char *what, const float *got, const double *want, size_t n, double tol)
{
    double top = 1e-30, error = 0;
    size_t at = 0;

    for (size_t i = 0; i < n; i++)
        top = fmax(top, fabs(want[i]));
    for (size_t i = 0; i < n; i++) {
        double e = fabs(got[i] - want[i]) / top;

        if (!(e <= error)) {
            error = e;
            at = i;
        }
        if (isnan(got[i]))
            break;
    }
    note_error(what, error, tol);
    if (!(error <= tol))
        fail_msg("%s: element %zu of %zu is %.9g, wanted %.9g; error %.2g of the largest, %.2g is "
                 "allowed",
                 what, at, n, got[at], want[at], error, tol);
}
