/* tandem-decode: continuous batching over KV that prefill workers push into this process. */
#include <unistd.h>

#include "common/kv_wire.h"
#include "common/worker_guides.h"
#include "common/worker_kv.h"
#include "common/worker_main.h"
#include "common/worker_watch.h"
#include "decode/config.h"
#include "decode/engine.h"

static decode_config cfg;
static bool kv_left; /* by td_kv_sink_leave() */

static void drain(void *e)
{
    engine_drain(e);
}

static td_status open_sink(const td_kv_wire_options *wo, td_model *model, engine *e,
                           td_kv_sink **out, td_error *err)
{
    const td_kv_geometry *g = td_model_kv(model);
    td_kv_region regions[TD_KV_MAX_RANKS] = {0};

    for (int32_t r = 0; r < g->tp; r++)
        regions[r] = td_worker_kv_region(&cfg.worker, model, r);
    return td_kv_sink_open(wo, td_kv_wire_hash(g), regions, g->tp, engine_on_notice, e, out, err);
}

static td_status serve(td_metrics *metrics, td_error *err)
{
    td_model *model = NULL;
    td_model_identity identity = {0};
    engine *e = NULL;
    td_kv_sink *sink = NULL;
    td_worker *worker = NULL;
    td_watch *watch = NULL;
    td_guides_loading *loading = NULL;
    td_guides *guides = NULL;
    td_kv_wire_options wo = {0};
    td_worker_needs needs = {.role = TANDEM__ROLE__ROLE_DECODE,
                             .kv_memory = cfg.kv_memory,
                             .rings = cfg.max_reservations,
                             .chunk = 1,
                             .max_tokens = (int32_t)cfg.max_batch};
    td_status st;

    st = td_worker_kv_wire(&cfg.worker, &wo, err);
    if (st == TD_OK)
        st = td_watch_start(td_worker_step_timeout_ms(&cfg.worker), &watch, err);
    needs.watch = watch;
    if (st == TD_OK)
        st = td_guides_load(cfg.worker.model, &loading, err);
    if (st == TD_OK)
        st = td_worker_load_model(&cfg.worker, &needs, &model, &identity, err);
    if (st == TD_OK) {
        td_watch_begin_first(watch, "warm-up", 0);
        st = td_model_warm_up(model, err);
        td_watch_end(watch);
    }
    guides = td_guides_loaded(loading);
    if (st == TD_OK && guides != NULL)
        st = td_guides_work_ahead(guides, err);
    if (st == TD_OK)
        st = engine_create(&cfg, model, guides, metrics, &e, err);
    if (st == TD_OK)
        td_worker_runs(drain, e);
    if (st == TD_OK)
        st = open_sink(&wo, model, e, &sink, err);
    if (st == TD_OK)
        st = td_metrics_check(metrics, err);
    if (st == TD_OK)
        st = td_worker_start(&cfg.worker, TANDEM__ROLE__ROLE_DECODE, &identity,
                             &engine_worker_callbacks, e, metrics, &worker, err);
    if (st == TD_OK) {
        engine_attach(e, worker, sink, watch);
        st = engine_run(e, err);
    }
    td_worker_leaves(st);
    if (st != TD_OK && watch != NULL) /* what closes things must not wait for a device for ever */
        td_watch_leave(watch, TD_LEAVE_MS, td_worker_exit_code(st));
    /* Callbacks first, then what they post to; the sink before the pages that it lets others write.
     */
    td_worker_stop(worker);
    kv_left = e != NULL && engine_awaits_sources(e);
    if (kv_left)
        td_kv_sink_leave(sink);
    else
        td_kv_sink_close(sink);
    engine_free(e);
    td_guides_close(guides);
    td_model_close(model);
    td_watch_stop(watch);
    return st;
}

int main(int argc, char **argv)
{
    const td_worker_program program = {
        .name = "tandem-decode",
        .component = "decode",
        .purpose = "Writes answers: one token a step for every request in its batch.",
        .options = decode_options,
        .n_options = decode_n_options,
        .config = &cfg,
        .worker = &cfg.worker,
        .serve = serve,
    };

    int code = td_worker_main(&program, argc, argv);

    if (kv_left)
        _exit(code);
    return code;
}
