/* ref: see ref.h. */
#include "tests/ops/ref.h"

#include <math.h>
#include <stdlib.h>

void ref_dense(int32_t T, int32_t N, int32_t K, const double *x, const float *w, const float *bias,
               double *out)
{
    for (int32_t t = 0; t < T; t++)
        for (int32_t n = 0; n < N; n++) {
            double sum = bias != NULL ? bias[n] : 0;

            for (int32_t k = 0; k < K; k++)
                sum += x[(int64_t)t * K + k] * w[(int64_t)n * K + k];
            out[(int64_t)t * N + n] = sum;
        }
}

void ref_rmsnorm(int32_t T, int32_t D, double eps, const float *x, const float *g, double *out)
{
    for (int32_t t = 0; t < T; t++, x += D, out += D) {
        double sum = 0;

        for (int32_t i = 0; i < D; i++)
            sum += (double)x[i] * x[i];
        for (int32_t i = 0; i < D; i++)
            out[i] = x[i] / sqrt(sum / D + eps) * g[i];
    }
}

void ref_rope(int32_t d, const float *cos, const float *sin, double *x)
{
    for (int32_t i = 0; i < d / 2; i++) {
        double lo = x[i], hi = x[i + d / 2];

        x[i] = lo * cos[i] - hi * sin[i];
        x[i + d / 2] = hi * cos[i] + lo * sin[i];
    }
}

void ref_attention(int32_t n, int32_t d, double scale, const double *q, const double *k,
                   const double *v, double sink, double *out)
{
    double *s = malloc((size_t)n * sizeof *s), top = sink, total;

    for (int32_t j = 0; j < n; j++) {
        s[j] = 0;
        for (int32_t i = 0; i < d; i++)
            s[j] += q[i] * k[(int64_t)j * d + i];
        s[j] *= scale;
        top = fmax(top, s[j]);
    }
    total = exp(sink - top);
    for (int32_t j = 0; j < n; j++)
        total += exp(s[j] - top);
    for (int32_t i = 0; i < d; i++) {
        out[i] = 0;
        for (int32_t j = 0; j < n; j++)
            out[i] += exp(s[j] - top) / total * v[(int64_t)j * d + i];
    }
    free(s);
}

double ref_swiglu(double gate, double up, double limit)
{
    double g = fmin(gate, limit), u = fmax(-limit, fmin(up, limit));

    return g / (1 + exp(-1.702 * g)) * (u + 1);
}

void ref_top_k(int32_t M, int32_t k, const double *logits, int32_t *idx, double *prob)
{
    double total = 0;

    for (int32_t j = 0; j < k; j++) {
        idx[j] = -1;
        for (int32_t e = 0; e < M; e++) {
            int taken = 0;

            for (int32_t i = 0; i < j; i++)
                taken |= idx[i] == e;
            if (!taken && (idx[j] < 0 || logits[e] > logits[idx[j]]))
                idx[j] = e;
        }
    }
    for (int32_t j = 0; j < k; j++)
        total += exp(logits[idx[j]] - logits[idx[0]]);
    for (int32_t j = 0; j < k; j++)
        prob[j] = exp(logits[idx[j]] - logits[idx[0]]) / total;
}

double ref_mxfp4(int code, int scale)
{
    static const double value[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

    return ldexp(code & 8 ? -value[code & 7] : value[code & 7], scale - 127);
}
