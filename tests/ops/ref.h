/* ref: the steps in float64, written from the specification's formulas and nothing else. */
#ifndef TANDEM_TESTS_OPS_REF_H
#define TANDEM_TESTS_OPS_REF_H

#include <stdint.h>

/* out [T, N] = x [T, K] w [N, K]^T + bias; bias may be NULL */
void ref_dense(int32_t T, int32_t N, int32_t K, const double *x, const float *w, const float *bias,
               double *out);
void ref_rmsnorm(int32_t T, int32_t D, double eps, const float *x, const float *g, double *out);
/* one head, in place */
void ref_rope(int32_t d, const float *cos, const float *sin, double *x);
/* one query q [d] over keys and values [n][d], a sink */
void ref_attention(int32_t n, int32_t d, double scale, const double *q, const double *k,
                   const double *v, double sink, double *out);
double ref_swiglu(double gate, double up, double limit);
/* idx in falling order, ties to the lower index */
void ref_top_k(int32_t M, int32_t k, const double *logits, int32_t *idx, double *prob);
/* One MXFP4 weight: code 0..15, scale byte. */
double ref_mxfp4(int code, int scale);

#endif
