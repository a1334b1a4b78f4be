/* router: what all of the router's modules share. One loop thread owns all of it; other threads
 * (NNG's, render_pool's) only post to the loop. */
#ifndef TANDEM_ROUTER_ROUTER_H
#define TANDEM_ROUTER_ROUTER_H

#include "common/loop.h"
#include "common/metrics.h"
#include "common/sampling.h"
#include "router/admission.h"
#include "router/config.h"
#include "router/harmony_render.h"
#include "router/openai.h"
#include "router/render_pool.h"
#include "router/request.h"
#include "router/tokenizer.h"
#include "router/workers.h"

/* Workers take 64 ranges; ignore_eos adds the stop ids to these. */
enum { ROUTER_MAX_BANNED = 64 - HARMONY_MAX_STOPS };

typedef struct router_metrics {
    td_gauge *running, *waiting;
    td_counter *prompt_tokens, *generation_tokens;
    td_counter *finished_stop, *finished_length, *finished_calls, *finished_error, *finished_abort;
    td_counter *refused, *retried, *continued, *lost_workers;
    td_counter *repairs[HARMONY_REPAIR_COUNT];
    td_histogram *ttft, *itl, *e2e, *queue, *prompt, *generation, *kv_tail;
} router_metrics;

struct router {
    td_loop *loop;
    const router_config *cfg;
    tokenizer *tokenizer;
    harmony *harmony;
    render_pool *pool;
    workers *workers;
    admission admission;
    td_metrics *metrics;
    router_metrics m;

    int32_t stop_ids[HARMONY_MAX_STOPS];
    size_t n_stop_ids;
    td_id_range banned[ROUTER_MAX_BANNED];
    size_t n_banned;

    request *by_id;       /* uthash */
    request *waiting;     /* utlist, in order of arrival: those that wait for room */
    td_loop_task dismiss; /* cancels the requests that nobody hears any more */
    uint64_t next_id;
    struct tokenize_job *tokenizing; /* utlist: of tokenize_api.c */
    uint32_t n_tokenizing;
    size_t tokenizing_bytes; /* of their bodies */
    td_timer *timer;         /* deadlines of requests */
    bool draining;
    td_loop_fn on_idle; /* draining, and the last request has gone */
    void *on_idle_arg;
};

/* Open the tokenizer, listen for workers. cfg, loop and metrics outlive it. TD_INVALID: a folder or
 * URL that does not do; TD_IO: it cannot be read or listened on; TD_NOMEM. */
TD_MUST_CHECK td_status router_create(td_loop *loop, const router_config *cfg, td_metrics *metrics,
                                      router **out, td_error *err);
void router_free(router *r); /* after the loop has stopped; ends what is left without a word */

/* Refuse new requests; call fn once when the last one has gone (maybe at once, from the loop).
 * NULL: nobody waits for that, or no longer. */
void router_drain(router *r, td_loop_fn fn, void *arg);

/* Whether a request could be served now; *why if not. */
bool router_ready(const router *r, const char **why);

/* Model name as the workers report it; "" before the first has. */
const char *router_model(const router *r);

/* What a body is read with; date stays the caller's. */
openai_defaults router_defaults(const router *r, char date[16]);

/* For request.c: a request has left. */
void router_request_gone(router *r);

/* For router.c, by request.c. */
void request_on_tokens(router *r, const Tandem__TokenEvent *e);
void request_on_prefill(router *r, const Tandem__PrefillEvent *e);
void request_on_transfer(router *r, const Tandem__TransferEvent *e);
void request_on_lost(router *r, const char *worker_id, uint64_t incarnation, const char *why);
void request_on_change(router *r);            /* room may have come free: serve the waiting */
void request_on_tick(router *r, td_usec now); /* deadlines */
void request_end_all(router *r, const td_error *err);
size_t request_count(const router *r);
request *request_next_waiting(const request *q);
void request_free_all(router *r); /* without a word to anyone; the pool is gone */

#endif
