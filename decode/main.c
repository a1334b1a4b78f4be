/* tandem-decode: continuous batching over KV that prefill workers push into this process. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/config.h"
#include "common/kv_wire.h"
#include "common/log.h"
#include "common/metrics.h"
#include "common/signals.h"
#include "common/worker.h"
#include "decode/config.h"
#include "decode/engine.h"

static _Atomic(engine *) running; /* for the signal thread; release/acquire by default order */

static void on_signal(void *user, int signo)
{
    engine *e = atomic_load(&running);

    (void)user;
    (void)signo;
    if (e == NULL)
        _exit(0); /* still loading: nothing to finish */
    engine_drain(e);
}

static td_status open_sink(const decode_config *cfg, td_model *model, engine *e, td_kv_sink **out,
                           td_error *err)
{
    const td_kv_geometry *g = td_model_kv(model);
    td_kv_wire_options wo = {.transport = td_kv_transport_words[cfg->worker.kv_transport]};
    td_kv_region regions[TD_KV_MAX_RANKS] = {0};

    for (int32_t r = 0; r < g->tp; r++)
        regions[r] = (td_kv_region){.base = td_model_kv_base(model, r),
                                    .bytes = g->region_bytes,
                                    .memory = TD_KV_HOST,
                                    .device = r};
    return td_kv_sink_open(&wo, td_kv_wire_hash(g), regions, g->tp, engine_on_notice, e, out, err);
}

static td_status serve(const decode_config *cfg, td_metrics *metrics, td_error *err)
{
    td_model *model = NULL;
    td_model_identity identity = {0};
    engine *e = NULL;
    td_kv_sink *sink = NULL;
    td_worker *worker = NULL;
    uint32_t pages, ring_pages;
    td_status st;

    st = td_worker_kv_pages(&cfg->worker, cfg->kv_memory, cfg->max_reservations, 1, &pages,
                            &ring_pages, err);
    if (st == TD_OK)
        st = td_worker_load_model(&cfg->worker, pages, cfg->max_reservations, ring_pages,
                                  (int32_t)cfg->max_batch, &model, &identity, err);
    if (st == TD_OK)
        st = engine_create(&(engine_options){.config = cfg, .model = model, .metrics = metrics},
                           &e, err);
    if (st == TD_OK)
        st = open_sink(cfg, model, e, &sink, err);
    if (st == TD_OK)
        st = td_metrics_check(metrics, err);
    if (st == TD_OK)
        st = td_worker_start(&cfg->worker, TANDEM__ROLE__ROLE_DECODE, &identity,
                             td_model_kv(model)->tp,
                             (int32_t)(cfg->worker.ep ? cfg->worker.ep : cfg->worker.tp),
                             &engine_worker_callbacks, e, metrics, &worker, err);
    if (st == TD_OK) {
        engine_attach(e, worker, sink);
        atomic_store(&running, e);
        st = engine_run(e, err);
    }
    /* Callbacks first, then what they post to; the sink before the pages that it lets others write. */
    td_worker_stop(worker);
    td_kv_sink_close(sink);
    if (e != NULL)
        engine_detach(e);
    atomic_store(&running, NULL);
    engine_free(e);
    td_model_close(model);
    return st;
}

int main(int argc, char **argv)
{
    decode_config cfg = {0};
    td_config_action action;
    td_metrics *metrics;
    td_error err = {0};
    td_status st;

    if (td_config_parse(decode_options, decode_n_options, "tandem-decode",
                        "Writes answers: one token a step for every request in its batch.", argc,
                        argv, &cfg, &action, &err) != TD_OK) {
        fprintf(stderr, "tandem-decode: %s\n", err.text);
        return 2;
    }
    if (action == TD_CONFIG_EXIT_OK)
        return 0;
    td_log_init("decode", (td_log_level)cfg.worker.log_level);
    metrics = td_metrics_create(NULL);
    st = metrics == NULL ? td_fail(&err, TD_NOMEM, "no memory for metrics")
                         : td_signals_start(on_signal, NULL, &err);
    if (st == TD_OK)
        st = serve(&cfg, metrics, &err);
    if (st != TD_OK)
        td_logerr("decode_failed", "status=%s error=\"%s\"", td_status_name(st), err.text);
    else
        td_info("stopped", "status=OK");
    td_metrics_free(metrics);
    td_config_free(decode_options, decode_n_options, &cfg);
    return st == TD_OK ? 0 : st == TD_INVALID ? 2 : 1;
}
