/* engine: the prefill worker's thread. It owns the queue, this side's KV pages and the model, and
 * computes one prompt at a time; transfers of earlier prompts go on meanwhile on the sources'
 * threads. Everybody else talks to it by prefill_engine_*() calls, which only post. */
#ifndef TANDEM_PREFILL_ENGINE_H
#define TANDEM_PREFILL_ENGINE_H

#include "common/guide.h"
#include "common/kv_wire.h"
#include "common/metrics.h"
#include "common/model.h"
#include "common/worker.h"
#include "common/worker_watch.h"
#include "prefill/config.h"

typedef struct prefill_engine prefill_engine;

/* model, metrics and guides (NULL: no answer can be guided here) outlive the engine.
 * TD_NOMEM; TD_IO: no file descriptor. */
TD_MUST_CHECK td_status prefill_engine_create(const prefill_config *cfg, td_model *model,
                                              td_guides *guides, td_metrics *metrics,
                                              prefill_engine **out, td_error *err);
void prefill_engine_free(prefill_engine *e); /* after run; sources closed; NULL is fine */

/* What it sends through: the worker, and one source per rank. Before run. */
void prefill_engine_attach(prefill_engine *e, td_worker *worker, td_kv_source *const *sources,
                           int32_t n_sources, td_watch *watch);

/* For td_worker_start(); user is the engine. */
extern const td_worker_callbacks prefill_worker_callbacks;

/* Take nothing new, finish what is here, then return from run. Any thread. */
void prefill_engine_drain(prefill_engine *e);

/* Run until drained (TD_OK), or until the model fails (its status). The caller's thread becomes the
 * engine's. */
TD_MUST_CHECK td_status prefill_engine_run(prefill_engine *e, td_error *err);

/* Take in the ends of transfers that are still to come once the sources are closed. */
void prefill_engine_settle(prefill_engine *e);

#endif
