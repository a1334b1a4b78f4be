/* ops_rank: what ops_cuda times: one rank's share of a layer on one GPU, with random numbers, and
 * its steps as functions that can be repeated, each time on other memory. */
#ifndef TANDEM_BENCH_OPS_RANK_H
#define TANDEM_BENCH_OPS_RANK_H

#include "bench/shapes.h"
#include "common/shard.h"
#include "kernels/ops.h"

enum {
    MOST = 8192,      /* rows of a step */
    SMALL = 128,      /* rows of a decode step */
    SETS = 16,        /* choices of experts */
    MOST_STEPS = 512, /* repeated before memory is used again */
};

/* Copies of a matrix, to be used in turn. */
typedef struct rotation {
    td_matrix *m;
    int n;
} rotation;

typedef struct ops_rank {
    const td_ops *ops;
    td_dev *dev;
    td_stream *s;
    td_model_config c;
    td_shard shard;
    char *noise;     /* random bytes, on the host */
    uint64_t random; /* state of a generator */

    rotation qkv, o, router;
    td_matrix norm, qkv_bias, o_bias, sinks, router_bias, embed, unembed;
    td_matrix gate_up[2], gate_up_bias, down[2], down_bias; /* [td_expert_format] */
    bool have[2];
    void *x, *q, *act, *out, *kv, *ws;
    int32_t *count, *perm, *tokens, *set[SETS], *set_host[SETS], *idx, *len, *slot, *token;
    float *rope, *prob, *set_prob, *logits;
    td_logprobs *logprobs;
    td_sample_row *sample_rows;
    int32_t n_pages; /* of bf16 keys; twice as many of e4m3 */
} ops_rank;

extern ops_rank rank; /* the only one */

/* One line of the table. */
typedef struct row {
    const char *name, *variant; /* variant may be NULL */
    int32_t T, keys, window;
    td_expert_format format;
    td_elt elt;
    double bytes, flops, peak;
} row;

/* Print why and exit, unless st is TD_OK. */
void check(td_status st, const td_error *err);

/* All of it, for rank.c and rank.shard on GPU `device`; formats: 0 MXFP4, 1 FP8, 2 both. Caches
 * hold as many positions as 128 sequences of `context` have. */
void open_rank(int32_t device, int formats, int32_t context);

/* Step number i of some that follow each other. */
typedef td_status (*run_fn)(const row *r, int i, td_error *err);

td_status run_embed(const row *r, int i, td_error *err);
td_status run_attn_in(const row *r, int i, td_error *err);
td_status run_attn_prefill(const row *r, int i, td_error *err);
td_status run_attn_decode(const row *r, int i, td_error *err);
td_status run_attn_out(const row *r, int i, td_error *err);
td_status run_add(const row *r, int i, td_error *err); /* keys < 0: x is cleared first */
td_status run_router(const row *r, int i, td_error *err);
td_status run_experts(const row *r, int i, td_error *err);
td_status run_head(const row *r, int i, td_error *err);
td_status run_sample(const row *r, int i, td_error *err); /* keys: 0 greedy, 1 drawn */

#endif
