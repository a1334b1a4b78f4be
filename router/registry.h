/* registry: the workers that this router knows, alive or being waited for.
 *
 * Fed by worker reports and by what the router itself sends them; asked by placement. Owned by the
 * loop's thread; nothing here locks, does I/O or reads a clock: the caller passes `now`. */
#ifndef TANDEM_ROUTER_REGISTRY_H
#define TANDEM_ROUTER_REGISTRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/clock.h"
#include "common/status.h"
#include "proto/tandem.pb-c.h"

enum { REGISTRY_ID_BYTES = 96, REGISTRY_URL_BYTES = 160, REGISTRY_NAME_BYTES = 128 };

typedef enum worker_role { WORKER_PREFILL = 1, WORKER_DECODE = 2 } worker_role;

typedef enum worker_state {
    WORKER_LOADING,
    WORKER_READY,
    WORKER_DRAINING, /* finishes what it has, takes nothing new */
    WORKER_REFUSED,  /* registered with something that does not fit; see refused */
} worker_state;

/* What is known of one worker; plain data, so that placement can be tested on made-up views. */
typedef struct worker_view {
    char id[REGISTRY_ID_BYTES];
    uint64_t incarnation; /* of its process; a new one is a new worker under the same name */
    worker_role role;
    worker_state state;
    bool greeted; /* it has answered our Hello: requests may be sent */
    char rpc_url[REGISTRY_URL_BYTES];
    uint32_t link;
    uint32_t tp, ep;
    char refused[200]; /* why, when state is WORKER_REFUSED */
    td_usec last_seen;
    td_usec deadline; /* silent past this: dead */
    td_usec twin_at;  /* since when another process reports under its id; 0: none has */
    uint64_t last_seq;

    /* Load, as of the last report, plus what we have sent since and the report cannot know. */
    uint32_t pages_total, pages_free;
    uint32_t rings_total, rings_free;
    uint32_t max_batch, running, reserved;
    uint32_t queued_requests;
    uint64_t queued_tokens;
    uint32_t max_prompt_tokens;
    bool guides;                        /* it can hold an answer to a guide */
    uint32_t sent_pages, sent_requests; /* decode: reserved by us since the report */
    uint64_t sent_tokens;               /* prefill: sent by us since the report */
    uint64_t last_sent; /* number of the last message that gave it work; 0: none yet */
} worker_view;

typedef struct registry registry;

/* What the router requires of every worker; learnt from the first accepted report, and fixed. */
typedef struct registry_model {
    bool known;
    char name[REGISTRY_NAME_BYTES];
    uint64_t config_hash, checkpoint_hash, kv_wire_hash;
    int32_t vocab, max_positions;
} registry_model;

typedef enum registry_change {
    REGISTRY_NONE,      /* load only */
    REGISTRY_JOINED,    /* a new worker, or a new incarnation: greet it */
    REGISTRY_RESTARTED, /* as JOINED, and what the old incarnation held is lost */
    REGISTRY_GAP,       /* events were lost between us: its streams are in doubt */
    REGISTRY_REFUSED,   /* it does not fit: tell it why */
    REGISTRY_TWIN,      /* it has the id of another worker, which is alive: tell it so */
    REGISTRY_STATE,     /* ready, draining: placement may decide otherwise now */
} registry_change;

/* vocab: ids that the tokenizer knows, to refuse workers of another model; 0: any. TD_NOMEM. */
TD_MUST_CHECK td_status registry_create(int32_t vocab, registry **out, td_error *err);
void registry_free(registry *r); /* NULL is fine */

/* Take in the head of a worker's message (id, incarnation, seq) and its report if it has one. *view
 * is the worker, or NULL when the message is malformed (TD_INVALID; nothing changed) or of nobody
 * who has registered: one that was given up, as after a pause, sends on for a moment. Sequence
 * numbers are checked for gaps whether or not there is a report.
 *
 * A worker keeps its id until it has been removed or is silent past its deadline: two processes
 * that were given the same would else take it from each other with every heartbeat, and with it all
 * that runs. A second one gets NULL in *view at first, since it may only be faster than the news of
 * the first one's end; then REGISTRY_TWIN, and a *view that says why and is good until the next
 * call. */
TD_MUST_CHECK td_status registry_message(registry *r, const Tandem__WorkerMessage *msg, td_usec now,
                                         const worker_view **view, registry_change *change,
                                         td_error *err);

/* It answered our Hello. false: it is gone or another incarnation by now. */
bool registry_greeted(registry *r, const char *id, uint64_t incarnation);

/* Requests that we sent, so that a burst between two reports does not all go to one worker. */
void registry_sent_reserve(registry *r, const char *id, uint32_t pages);
void registry_sent_prefill(registry *r, const char *id, uint32_t tokens);

/* Remove a worker; false: not there. */
bool registry_remove(registry *r, const char *id);

/* The first worker silent past its deadline, or NULL. Call until NULL, removing each. */
const worker_view *registry_expired(const registry *r, td_usec now);

/* NULL: not there. Valid until the next call that changes the registry, as all views. */
const worker_view *registry_find(const registry *r, const char *id);

/* All workers, contiguous; valid until the next call that changes the registry. */
const worker_view *registry_view(const registry *r, size_t *n);

const registry_model *registry_model_of(const registry *r);

/* At least one greeted, ready worker of each role. Otherwise *why, if not NULL, says what is
 * missing. */
bool registry_can_serve(const registry *r, const char **why);

#endif
