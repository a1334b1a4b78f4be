/* sampling: from logits to one token, the same on every backend and in every batch.
 *
 * A draw is a pure function of (logits, params, seed, index): no state is kept between tokens. So a
 * request gives the same tokens whatever else is in its batch, and a request that moves to another
 * worker after a failure goes on with the token it would have had. */
#ifndef TANDEM_COMMON_SAMPLING_H
#define TANDEM_COMMON_SAMPLING_H

#include <stdint.h>

typedef struct td_id_range {
    int32_t first, last; /* both included */
} td_id_range;

typedef struct td_sampling {
    float temperature; /* 0 .. 2; at or below 1e-4 means greedy */
    float top_p;       /* 0 < p <= 1: the smallest set of likeliest tokens with mass >= p */
    int32_t top_k;     /* 0: off */
    uint64_t seed;
    uint64_t index;    /* tokens generated before this one; picks the draw */
    const td_id_range *banned; /* ids never to be sampled; the caller's, may be NULL */
    int32_t n_banned;
} td_sampling;

/* Uniform in [0, 1) from (seed, index) by a counter-based generator (SplitMix64 finaliser over both);
 * 53 bits. Pure. */
double td_sampling_uniform(uint64_t seed, uint64_t index);

/* Choose a token from logits[vocab], which is scratch afterwards. Greedy: the largest, ties to the
 * lowest id. Otherwise: banned out, top_k, softmax at temperature in double, top_p, inverse CDF over
 * candidates in order of falling logit (ties: lowest id first). NaN logits never win. All banned or
 * all NaN: -1. Thread-safe; no allocation: scratch[vocab] is the caller's. */
int32_t td_sample(float *logits, int32_t vocab, const td_sampling *s, int32_t *scratch);

#endif
