/* engine: the decode worker's thread. It owns the pool, the reservations, the scheduler and the
 * model; everybody else talks to it by engine_*() calls, which only post to its mailbox. */
#ifndef TANDEM_DECODE_ENGINE_H
#define TANDEM_DECODE_ENGINE_H

#include "common/guide.h"
#include "common/kv_wire.h"
#include "common/metrics.h"
#include "common/model.h"
#include "common/worker.h"
#include "common/worker_watch.h"
#include "decode/config.h"

typedef struct engine engine;

/* cfg, model, metrics and guides (NULL: no answer can be guided here) outlive the engine.
 * TD_NOMEM; TD_IO: no file descriptor. */
TD_MUST_CHECK td_status engine_create(const decode_config *cfg, td_model *model, td_guides *guides,
                                      td_metrics *metrics, engine **out, td_error *err);
void engine_free(engine *e); /* after engine_run(), worker and sink closed; NULL is fine */

/* What the engine sends through and receives from; set before engine_run(). */
void engine_attach(engine *e, td_worker *worker, td_kv_sink *sink, td_watch *watch);
/* The callbacks for td_worker_start() and td_kv_sink_open(); user is the engine. */
extern const td_worker_callbacks engine_worker_callbacks;
void engine_on_notice(void *user, const td_kv_notice *n);

/* Take no new requests, finish what is here, then return from engine_run(). Any thread. */
void engine_drain(engine *e);

/* Run until drained (TD_OK), or until the model fails (its status). The caller's thread becomes the
 * engine's. */
TD_MUST_CHECK td_status engine_run(engine *e, td_error *err);

/* After engine_run(): whether requests have ended here whose sources have not reported, and so may
 * be in the middle of something. */
bool engine_awaits_sources(const engine *e);

#endif
