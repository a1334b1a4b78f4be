/* harness: what the tests of the steps share: a device, its memory filled from host floats, results
 * that start as NaN, and random numbers that both sides agree on.
 *
 * TANDEM_TEST_BACKEND names the backend, "cpu" if unset; where its device is missing, a test
 * program exits with BACKEND_NOT_RUN. With TANDEM_TEST_REPORT set, the worst errors are printed at
 * the end. With TANDEM_TEST_SMALL set, sweeps take a few of their cases, of every kernel some, for
 * tools that make kernels a hundred times slower (2: for those that make them a thousand); and a
 * GPU's workspace is memory that nothing has written, so that a tool can tell who reads of it what
 * no step has left there. */
#ifndef TANDEM_TESTS_OPS_HARNESS_H
#define TANDEM_TESTS_OPS_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "kernels/ops.h"
#include "tests/ops/backend.h"
#include "tests/ops/cases.h"
#include "tests/ops/choose.h"

bool harness_small(void);    /* TANDEM_TEST_SMALL */
bool harness_smallest(void); /* it is 2: fewer yet */

/* Slow tests over many shapes are left out where they would show the same threads again. */
#ifdef __SANITIZE_THREAD__
enum { HARNESS_FEW = 1 };
#else
enum { HARNESS_FEW = 0 };
#endif

typedef struct harness {
    const td_ops *ops;
    td_dev *dev;
    td_stream *s;
    const ops_tolerance *tol;
    td_buffer held[64]; /* freed by harness_clear() */
    td_matrix matrices[32];
    int n_held, n_matrices;
    void *host[64];
    int n_host;
    uint64_t rng;
} harness;

int harness_open(void **state);  /* cmocka group setup: *state is the harness */
int harness_close(void **state); /* group teardown */
void harness_clear(harness *h);  /* between cases: everything below is freed */

/* Host memory. Values are multiples of 2^-8 of bf16 where bf16 is true, so that no rounding of
 * inputs has to be modelled. */
float *host_floats(harness *h, size_t n);
float *random_floats(harness *h, size_t n, double scale, bool bf16);
uint32_t random_bits(harness *h);
double round_bf16(double x);

/* Device memory. */
void *dev_act(harness *h, const float *x, size_t n);   /* as activations */
void *dev_resid(harness *h, const float *x, size_t n); /* as residual stream */
void *dev_f32(harness *h, const float *x, size_t n);
void *dev_i32(harness *h, const int32_t *x, size_t n);
void *dev_bytes(harness *h, const void *x, size_t bytes);
void *dev_poison(harness *h, size_t bytes); /* all bits set: NaN in every float type */
void *dev_ws(harness *h, const td_dims *dims);
void read_elts(harness *h, const void *dev, td_elt elt, size_t n, float *out);
void read_i32(harness *h, const void *dev, size_t n, int32_t *out);

/* A residual stream of n numbers that draws none of `rng`; as host floats; and that x holds
 * `before` with `part` added to it, in f32. */
void *some_resid(harness *h, size_t n);
float *read_resid(harness *h, const void *x, size_t n);
void check_added(harness *h, const void *x, const float *before, const float *part, size_t n);
/* A step of experts that gave `part` adds the same to a residual stream, if it is given one. */
void check_experts_add(harness *h, const td_experts_args *all, const float *part);

/* Weights: loaded as bf16 (the values must be exact there) unless f32 is asked for. */
const td_matrix *dev_matrix(harness *h, td_form form, td_elt elt, const float *x, int32_t E,
                            int32_t N, int32_t K);
const td_matrix *keep_matrix(harness *h, const td_matrix *m); /* unloaded by harness_clear() */

/* Largest difference over the largest reference value. Fails above tol, or if a result is NaN. */
void check_close(const char *what, const float *got, const double *want, size_t n, double tol);

#endif
