/* tandem-prefill: reads prompts and pushes their KV into decode workers while it does. */
#include <string.h>

#include "common/kv_wire.h"
#include "common/worker_guides.h"
#include "common/worker_kv.h"
#include "common/worker_main.h"
#include "common/worker_watch.h"
#include "prefill/config.h"
#include "prefill/engine.h"

enum { CPU_CHUNK = 256, GPU_CHUNK = 8192 }; /* what --chunk 0 means */

static prefill_config cfg;

static void drain(void *e)
{
    prefill_engine_drain(e);
}

/* One source per rank; sources[0..*n) are open also when it fails. */
static td_status open_sources(const td_kv_wire_options *wo, td_model *model, td_kv_source **sources,
                              int32_t *n, td_error *err)
{
    const td_kv_geometry *g = td_model_kv(model);

    for (*n = 0; *n < g->tp; ++*n) {
        td_kv_region region = td_worker_kv_region(&cfg.worker, model, *n);
        td_status st = td_kv_source_open(wo, g, *n, &region, &sources[*n], err);

        if (st != TD_OK)
            return st;
    }
    return TD_OK;
}

static td_status serve(td_metrics *metrics, td_error *err)
{
    td_model *model = NULL;
    td_model_identity identity = {0};
    prefill_engine *e = NULL;
    td_kv_source *sources[TD_KV_MAX_RANKS] = {NULL};
    td_worker *worker = NULL;
    td_watch *watch = NULL;
    td_guides_loading *loading = NULL;
    td_guides *guides = NULL;
    td_kv_wire_options wo = {0};
    td_worker_needs needs = {
        .role = TANDEM__ROLE__ROLE_PREFILL, .kv_memory = cfg.kv_memory, .rings = cfg.max_transfers};
    int32_t n_sources = 0;
    td_status st;

    if (cfg.chunk == 0)
        cfg.chunk =
            strcmp(td_backend_words[cfg.worker.backend], "cpu") == 0 ? CPU_CHUNK : GPU_CHUNK;
    needs.chunk = cfg.chunk;
    needs.max_tokens = (int32_t)cfg.chunk;
    st = td_worker_kv_wire(&cfg.worker, &wo, err);
    wo.stall_us = cfg.kv_stall_ms * TD_USEC_PER_MSEC;
    wo.fail_put_number = (uint32_t)cfg.fault_put;
    if (st == TD_OK)
        st = td_watch_start(td_worker_step_timeout_ms(&cfg.worker), &watch, err);
    needs.watch = watch;
    if (st == TD_OK)
        st = td_guides_load(cfg.worker.model, &loading, err);
    if (st == TD_OK)
        st = td_worker_load_model(&cfg.worker, &needs, &model, &identity, err);
    guides = td_guides_loaded(loading);
    if (st == TD_OK)
        st = prefill_engine_create(&cfg, model, guides, metrics, &e, err);
    if (st == TD_OK)
        td_worker_runs(drain, e);
    if (st == TD_OK)
        st = open_sources(&wo, model, sources, &n_sources, err);
    if (st == TD_OK)
        st = td_metrics_check(metrics, err);
    if (st == TD_OK)
        st = td_worker_start(&cfg.worker, TANDEM__ROLE__ROLE_PREFILL, &identity,
                             &prefill_worker_callbacks, e, metrics, &worker, err);
    if (st == TD_OK) {
        prefill_engine_attach(e, worker, sources, n_sources, watch);
        st = prefill_engine_run(e, err);
    }
    td_worker_leaves(st);
    if (st != TD_OK && watch != NULL) /* what closes things must not wait for a device for ever */
        td_watch_leave(watch, TD_LEAVE_MS, td_worker_exit_code(st));
    /* Sources end their transfers, which read from the model's memory and report to the engine. */
    for (int32_t i = 0; i < n_sources; i++)
        td_kv_source_close(sources[i]);
    if (e != NULL)
        prefill_engine_settle(e);
    td_worker_stop(worker);
    prefill_engine_free(e);
    td_guides_close(guides);
    td_model_close(model);
    td_watch_stop(watch);
    return st;
}

int main(int argc, char **argv)
{
    const td_worker_program program = {
        .name = "tandem-prefill",
        .component = "prefill",
        .purpose = "Reads prompts and pushes their KV into decode workers while it does.",
        .options = prefill_options,
        .n_options = prefill_n_options,
        .config = &cfg,
        .worker = &cfg.worker,
        .serve = serve,
    };

    return td_worker_main(&program, argc, argv);
}
