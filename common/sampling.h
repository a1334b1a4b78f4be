/* sampling: from logits to one token, the same on every backend and in every batch.
 *
 * A draw is a pure function of (logits, params, seed, index): no state is kept between tokens. So a
 * request gives the same tokens whatever else is in its batch, and a request that moves to another
 * worker after a failure goes on with the token it would have had. */
#ifndef TANDEM_COMMON_SAMPLING_H
#define TANDEM_COMMON_SAMPLING_H

#include <stdbool.h>
#include <stdint.h>

enum { TD_TOP_LOGPROBS = 20 };

typedef struct td_id_range {
    int32_t first, last; /* both included */
} td_id_range;

typedef struct td_token_count {
    int32_t token, count;
} td_token_count;

typedef struct td_token_bias {
    int32_t token;
    float bias;
} td_token_bias;

/* How to choose a token. Zeroed: greedy over the whole vocabulary. Lists are the caller's and may
 * be NULL when empty; a token appears at most once in a list, and ids that are not in the
 * vocabulary are passed over.
 *
 * Before anything is chosen, a token's logit becomes, in this order,
 *
 *   logit - presence - frequency * count    for each of counts (count at least 1)
 *   logit + bias                            for each of bias
 *   NaN, which never wins                   outside the mask and in the banned ranges */
typedef struct td_sampling {
    float temperature; /* 0 .. 2; at or below 1e-4 means greedy */
    float top_p;       /* 0 < p <= 1: the smallest set of likeliest tokens with mass >= p */
    int32_t top_k;     /* 0: off */
    uint64_t seed;
    uint64_t index;            /* tokens generated before this one; picks the draw */
    const td_id_range *banned; /* ids never to be sampled */
    int32_t n_banned;
    float presence, frequency; /* penalties on what counts holds: the tokens generated so far */
    const td_token_count *counts;
    int32_t n_counts;
    const td_token_bias *bias;
    int32_t n_bias;
    const uint32_t *mask; /* bit i % 32 of word i / 32: token i may be sampled; NULL: all may */
    bool logprobs;        /* report the chosen token's, and the top_logprobs largest */
    int32_t top_logprobs; /* 0 .. TD_TOP_LOGPROBS */
} td_sampling;

/* Log-probabilities of a step's row: log softmax of the logits as the model gave them, before
 * penalties, bias, bans and temperature: what the model said, whatever a request makes of it. The
 * chosen token need not be among the top ones. */
typedef struct td_logprobs {
    int32_t n; /* entries of id and logprob, in falling order, ties to the lower id; -1: not asked
                * for, or no token could be sampled */
    float chosen;
    int32_t id[TD_TOP_LOGPROBS];
    float logprob[TD_TOP_LOGPROBS];
} td_logprobs;

/* Uniform in [0, 1) from (seed, index) by a counter-based generator (SplitMix64 finaliser over
 * both); 53 bits. Pure. */
double td_sampling_uniform(uint64_t seed, uint64_t index);

/* Choose a token from logits[vocab], which is scratch afterwards. Greedy: the largest, ties to the
 * lowest id. Otherwise: banned out, top_k, softmax at temperature in double, top_p, inverse CDF
 * over candidates in order of falling logit (ties: lowest id first). NaN logits never win. All
 * banned or all NaN: -1. Thread-safe; no allocation: scratch[vocab] is the caller's. */
int32_t td_sample(float *logits, int32_t vocab, const td_sampling *s, int32_t *scratch);

/* The log-probabilities of logits[vocab], which td_sample() has not touched yet, for the token that
 * it will choose (or chose from a copy). */
void td_logprobs_of(const float *logits, int32_t vocab, int32_t token, int32_t top,
                    td_logprobs *out);

#endif
