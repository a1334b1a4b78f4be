/* model: a gpt-oss model on one worker: all its ranks, their weights, their KV memory.
 *
 * Weights are split over `tp` ranks: attention by heads, the head by vocabulary rows, experts by
 * groups: `ep` divides tp; ep groups of tp / ep ranks each own n_experts / ep whole experts, and
 * the ranks of a group split those experts' inner width. Activations are replicated. Each rank is a
 * thread with its own device; reductions run in rank order, so replicas stay bit-identical.
 *
 * The caller owns the pages: it says which pages and which ring a sequence uses, and nothing here
 * allocates them. One thread at a time may call the step functions. */
#ifndef TANDEM_COMMON_MODEL_H
#define TANDEM_COMMON_MODEL_H

#include "common/checkpoint.h"
#include "common/kv_layout.h"
#include "common/model_config.h"
#include "common/sampling.h"
#include "common/status.h"
#include "kernels/ops.h"

typedef struct td_model td_model;

typedef struct td_model_options {
    const char *backend; /* "cpu" or "cuda" */
    int32_t tp, ep;
    const int32_t *devices;   /* [tp] the device of each rank; NULL: rank i on device i */
    int32_t threads;          /* over all ranks: td_dev_options.threads; 0: all usable cores */
    td_expert_format experts; /* how MXFP4 experts are kept */
    td_kv_dtype kv_dtype;
    uint32_t kv_pages; /* full-layer pages per rank; with device_bytes: the most that are wanted */
    uint32_t kv_rings; /* requests with a window ring at once */
    uint32_t ring_pages; /* see td_kv_ring_pages() */
    int32_t max_tokens;  /* most tokens in one step: the prefill chunk, or the decode batch */
    int32_t head_rows; /* rows that get logits at once, which bounds their memory (4 bytes for each
                        * row and token of the vocabulary); more take turns. 0: 128 */
    bool no_graphs;    /* run every decode step as it is, on backends with graphs too */
    uint32_t comm_timeout_ms; /* td_comm_options.timeout_ms */
    /* What a rank may take of its device, all in all. KV gets what is left by weights, workspace,
     * collectives and graphs, at least kv_pages_least pages; where that is too little, opening
     * fails before weights are read. 0: no limit, and kv_pages as given. */
    uint64_t device_bytes;
    uint32_t kv_pages_least;
    const td_ops *ops; /* a backend of the caller's own (tests); NULL: the one called `backend` */
} td_model_options;

/* Load the checkpoint onto every rank and start the rank threads. The checkpoint may be closed
 * afterwards. *out is the caller's, to td_model_close(). TD_INVALID: a split that does not fit the
 * model, with the numbers; an option by its flag. TD_NOMEM, TD_DEVICE, and what reading tensors
 * gives. */
TD_MUST_CHECK td_status td_model_open(td_checkpoint *ckpt, const td_model_config *cfg,
                                      const td_model_options *opt, td_model **out, td_error *err);
void td_model_close(td_model *m); /* NULL is fine */

/* The same from any source of tensors (common/weights.h), for weights that no checkpoint holds. */
struct td_weight_source;
TD_MUST_CHECK td_status td_model_open_source(const struct td_weight_source *src,
                                             const td_model_config *cfg,
                                             const td_model_options *opt, td_model **out,
                                             td_error *err);

const td_model_config *td_model_config_of(const td_model *m);
const td_kv_geometry *td_model_kv(const td_model *m);
void *td_model_kv_base(const td_model *m, int32_t rank); /* region of td_kv_geometry.region_bytes */
uint64_t td_model_weight_bytes(const td_model *m);       /* on all ranks, as loaded */

/* For whom the step waits that runs now, as text ("rank 1 (device 1) waits for its device"): for a
 * step that does not end. From any thread until td_model_close(); m is a td_model. */
void td_model_late(const void *m, char *out, size_t size);

/* What a rank's device holds. graphs is an estimate: the driver does not say. */
typedef struct td_model_memory {
    uint64_t weights, work, kv;      /* work: activations, tables, the steps' workspace */
    uint64_t comm, graphs, rounding; /* rounding: what the allocator adds to all but kv */
} td_model_memory;
td_model_memory td_model_memory_of(const td_model *m, int32_t rank);

/* One sequence's place in the KV memory. */
typedef struct td_seq {
    const uint32_t
        *pages; /* full-layer pages in order of position; covers pos + tokens of the step */
    uint32_t n_pages;
    uint32_t ring;
    int32_t pos; /* position of the step's first token: how many are cached before it */
} td_seq;

/* Called on rank `rank`'s thread (rank 0's is the one that called the step) as soon as the keys and
 * values of this step are written (CUDA: enqueued; `ready` says when, by td_event_query()) in
 * `layer`. Layers come in order. Must not block and must not call into the model. */
typedef void (*td_layer_hook)(void *user, int32_t rank, int32_t layer, td_event *ready);

/* TD_OK: reached (as is NULL); TD_PENDING; TD_DEVICE: it never will be. Any thread, never waits. */
td_status td_event_query(td_event *e);

typedef struct td_prefill_step {
    const int32_t *tokens;
    int32_t n; /* 1 .. max_tokens */
    td_seq seq;
    const td_sampling *sampling; /* NULL: not the last chunk, no token wanted */
    td_layer_hook on_layer;      /* may be NULL */
    void *user;
    float *logits; /* NULL, or [n, vocab] for tests: logits of every position */
    int32_t token; /* out: the sampled token, if sampling was given; -1: none can be sampled */
    td_logprobs logprobs; /* out: where sampling asks for them */
} td_prefill_step;

/* One chunk of one prompt. Writes KV for positions pos .. pos + n - 1. TD_INVALID: a token id out
 * of range, or pages that do not cover the chunk; nothing was written. TD_DEVICE, TD_NOMEM: the
 * model is of no more use. */
TD_MUST_CHECK td_status td_model_prefill(td_model *m, td_prefill_step *step, td_error *err);

typedef struct td_decode_step {
    int32_t n;                   /* sequences, 1 .. max_tokens, and at most kv_rings */
    const td_seq *seqs;          /* [n] no two with the same ring or a page in common */
    const int32_t *tokens;       /* [n] the token at position seqs[i].pos */
    const td_sampling *sampling; /* [n] */
    float *logits;               /* NULL, or [n, vocab] for tests */
    int32_t *out;                /* [n] sampled tokens; -1 where nothing could be sampled */
    td_logprobs *logprobs;       /* NULL, or [n] out: where sampling asks for them */
} td_decode_step;

/* Decode steps of every size once, on no sequence, and their graphs, so that no request waits for
 * either: a few milliseconds a size. Without it they are made as they are met. TD_NOMEM, TD_DEVICE.
 */
TD_MUST_CHECK td_status td_model_warm_up(td_model *m, td_error *err);

/* One token for each of n sequences. A row's result does not depend on the other rows. Errors as
 * td_model_prefill(). */
TD_MUST_CHECK td_status td_model_decode(td_model *m, const td_decode_step *step, td_error *err);

#endif
