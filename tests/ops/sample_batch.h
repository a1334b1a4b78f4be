/* sample_batch: a batch for the sample step: logits of several kinds, rows that are sampled in as
 * many ways, their lists; and what becomes of it against td_sample() and the exact distribution. */
#ifndef TANDEM_TESTS_OPS_SAMPLE_BATCH_H
#define TANDEM_TESTS_OPS_SAMPLE_BATCH_H

#include "common/sampling.h"
#include "tests/ops/harness.h"

#define N_OF(x) (sizeof(x) / sizeof(x)[0])

enum { ROWS = 64, LIST = 24 };

/* Of logits. */
typedef enum kind {
    NORMAL,
    TIES,   /* few values */
    EQUAL,  /* one value, and nothing else to go by than ids */
    PEAKED, /* one token has nearly all of the mass */
    BAND,   /* neighbours in float */
    ODD,    /* infinities, NaN, zeros of both signs */
    KINDS
} kind;

/* A batch: how each row is sampled, the memory of its lists, and what the step made of it. */
typedef struct batch {
    int32_t n, V;
    float *logits;
    td_sampling s[ROWS];
    td_id_range banned[ROWS][LIST];
    td_token_count counts[ROWS][LIST];
    td_token_bias bias[ROWS][LIST];
    uint32_t *masks; /* [ROWS, words] */
    int32_t token[ROWS];
    td_logprobs logprobs[ROWS];
} batch;

void fill_logits(harness *h, float *l, int32_t V, kind k);

/* n rows of random kinds; harness_clear() frees it. */
batch *make_batch(harness *h, int32_t n, int32_t V);

/* Run rows first .. first + n of the batch as one step. */
void run_batch(harness *h, batch *b, int32_t first, int32_t n);

/* A token of the exact distribution, and its part of the mass. */
typedef struct candidate {
    int32_t id;
    float logit;
    double p;
} candidate;

int by_logit(const void *a, const void *b); /* of qsort(): the largest first */

/* Tokens and log-probabilities of all rows; how many tokens td_sample() would have chosen
 * otherwise, all of them by rounding. `work` and `scratch` are for b->V numbers. */
int32_t check_rows(const batch *b, float *work, int32_t *scratch);

#endif
