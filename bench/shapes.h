/* shapes: the two published models, what a step of one must move and multiply, and the least time
 * that takes. Shared by the benches. */
#ifndef TANDEM_BENCH_SHAPES_H
#define TANDEM_BENCH_SHAPES_H

#include "common/model_config.h"
#include "common/status.h"
#include "kernels/ops.h"

/* Rates of one H200, per second. "Paper" is what floors are made of: the memory rate as measured,
 * the tensor cores' as the datasheet has them. "Reached" is the best that was measured on random
 * data with NVIDIA's own libraries: bf16 and block-scaled FP8 GEMMs of 8192 rows, and causal
 * attention with heads of 64. */
typedef struct bench_rates {
    double hbm, bf16, fp8, attention;
} bench_rates;

extern const bench_rates bench_paper;   /* 4.3 TB/s, 1000, 2000, 1000 TFLOP/s */
extern const bench_rates bench_reached; /* 4.3 TB/s, 800, 1220, 460 TFLOP/s */

/* The published configuration "20b" or "120b", or the config.json of a folder. */
TD_MUST_CHECK td_status bench_config(const char *name, td_model_config *out, td_error *err);

typedef struct bench_split {
    int32_t tp, ep;
    td_expert_format experts;
    int32_t kv_bytes; /* of one element: 2 or 1 */
} bench_split;

/* Bytes of an expert's two matrices with biases and scales. */
double bench_expert_bytes(const td_model_config *c, td_expert_format experts);

/* Experts of n that T tokens with k different choices each touch, on average over even choices. */
double bench_touched(int32_t T, int32_t k, int32_t n);

/* Bytes of all weights that one rank holds. */
double bench_weight_bytes(const td_model_config *c, const bench_split *s);

/* Least seconds for one decode step of `batch` sequences that each see `context` positions: bytes
 * of the rank that has most to read, over the memory rate. Sums over ranks are not counted. */
double bench_decode_floor(const td_model_config *c, const bench_split *s, int32_t batch,
                          int32_t context);

/* Least seconds for the prefill of n tokens in one pass: each phase the larger of its arithmetic
 * and its weights' bytes. Sums over ranks are not counted. */
double bench_prefill_floor(const td_model_config *c, const bench_split *s, int32_t n,
                           const bench_rates *r);

/* Positions that n queries at positions first .. first + n - 1 see, summed; window 0: all before.
 */
double bench_visible(int32_t first, int32_t n, int32_t window);

/* USD for a million tokens at usd an hour for each of `devices`. */
double bench_usd_per_million(double usd, int32_t devices, double tokens_per_second);

/* The middle of n numbers, which are sorted in passing. */
double bench_median(double *x, int n);

/* "1k,2k,64" as numbers, at most cap of them; the count, or -1 if the text is not such a list. */
int bench_parse_list(const char *text, int32_t *out, int cap);

#endif
