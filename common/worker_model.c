/* Bringing a model up for a worker: read, load, and compute one token before anyone relies on it.
 */
#include "common/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"

/* "a/b/tandem-tiny/" -> "tandem-tiny" */
static void folder_name(const char *path, char *out, size_t cap)
{
    size_t end = strlen(path), start;

    while (end > 1 && path[end - 1] == '/')
        end--;
    start = end;
    while (start > 0 && path[start - 1] != '/')
        start--;
    snprintf(out, cap, "%.*s", (int)(end - start), path + start);
}

/* The first run of every kernel on every rank, and a token that is one. */
static td_status self_test(td_model *m, td_error *err)
{
    int32_t prompt = 0;
    uint32_t page = 0;
    td_sampling greedy = {.top_p = 1};
    td_prefill_step step = {
        .tokens = &prompt, .n = 1, .seq = {.pages = &page, .n_pages = 1}, .sampling = &greedy};

    if (td_model_prefill(m, &step, err) != TD_OK)
        return td_wrap(err, "self-test");
    if (step.token < 0 || step.token >= td_model_config_of(m)->vocab)
        return td_fail(err, TD_INTERNAL,
                       "self-test: token %d is not in the vocabulary of %d; the weights give no "
                       "finite logits",
                       step.token, td_model_config_of(m)->vocab);
    return TD_OK;
}

td_status td_worker_kv_pages(const td_worker_options *opt, uint64_t memory_bytes, uint32_t rings,
                             uint32_t chunk, uint32_t *pages, uint32_t *ring_pages, td_error *err)
{
    td_model_config cfg;
    td_kv_geometry one, two;
    uint64_t all, page_bytes, fixed, most;
    td_status st = td_model_config_read(opt->model, &cfg, err);

    if (st != TD_OK)
        return td_wrap(err, "loading %s", opt->model);
    *ring_pages = td_kv_ring_pages(cfg.window, (int32_t)chunk);
    st = td_kv_geometry_init(&one, &cfg, (int32_t)opt->tp, (td_kv_dtype)opt->kv_dtype, 1, rings,
                             *ring_pages, err);
    if (st == TD_OK)
        st = td_kv_geometry_init(&two, &cfg, (int32_t)opt->tp, (td_kv_dtype)opt->kv_dtype, 2, rings,
                                 *ring_pages, err);
    if (st != TD_OK)
        return st;
    /* One page more costs page_bytes on each rank; rings and rounding are the rest. */
    page_bytes = two.region_bytes - one.region_bytes;
    fixed = one.region_bytes - page_bytes;
    all = memory_bytes / opt->tp;
    if (all < fixed + page_bytes)
        return td_fail_param(err, "--kv-memory",
                             "%llu bytes; %u window rings take %llu on each of %u ranks and one "
                             "page %llu: give at least %llu",
                             (unsigned long long)memory_bytes, rings, (unsigned long long)fixed,
                             opt->tp, (unsigned long long)page_bytes,
                             (unsigned long long)(opt->tp * (fixed + page_bytes)));
    /* More pages than all rings' longest sequences can fill would never be used. */
    most = (uint64_t)rings * td_kv_pages_for((uint64_t)cfg.max_positions);
    all = page_bytes > 0 ? (all - fixed) / page_bytes : most;
    *pages = (uint32_t)(all < most ? all : most);
    return TD_OK;
}

static td_status open_checkpoint(const td_worker_options *opt, const td_model_config *cfg,
                                 td_checkpoint **out, td_error *err)
{
    char *end;
    unsigned long long seed;

    if (opt->random_weights[0] == '\0')
        return td_checkpoint_open(opt->model, cfg, out, err);
    seed = strtoull(opt->random_weights, &end, 10);
    if (*end != '\0' || opt->random_weights[0] == '-')
        return td_fail_param(err, "--random-weights", "\"%s\" is not a seed: give a whole number",
                             opt->random_weights);
    return td_checkpoint_random(cfg, seed, out, err);
}

td_status td_worker_load_model(const td_worker_options *opt, uint32_t kv_pages, uint32_t kv_rings,
                               uint32_t ring_pages, int32_t max_tokens, td_model **model,
                               td_model_identity *identity, td_error *err)
{
    td_usec t0 = td_now_us(), t1, t2;
    td_model_config cfg;
    td_checkpoint *ckpt = NULL;
    td_model_options mo = {.backend = td_backend_words[opt->backend],
                           .tp = (int32_t)opt->tp,
                           .ep = (int32_t)(opt->ep ? opt->ep : opt->tp),
                           .threads = (int32_t)opt->threads,
                           .kv_dtype = (td_kv_dtype)opt->kv_dtype,
                           .kv_pages = kv_pages,
                           .kv_rings = kv_rings,
                           .ring_pages = ring_pages,
                           .max_tokens = max_tokens};
    td_status st;

    /* The backend computes on a device, but the transfer would take its KV memory for the host's.
     */
    if (strcmp(mo.backend, "cpu") != 0)
        return td_fail_param(err, "--backend",
                             "\"%s\" does not serve yet: KV transfer between devices is not there; "
                             "use cpu",
                             mo.backend);
    st = td_model_config_read(opt->model, &cfg, err);
    if (st == TD_OK)
        st = open_checkpoint(opt, &cfg, &ckpt, err);
    if (st != TD_OK)
        return td_wrap(err, "loading %s", opt->model);
    t1 = td_now_us();
    st = td_model_open(ckpt, &cfg, &mo, model, err);
    if (st == TD_OK) {
        t2 = td_now_us();
        st = self_test(*model, err);
        if (st != TD_OK)
            td_model_close(*model);
    }
    if (st == TD_OK) {
        *identity = (td_model_identity){.config_hash = td_model_config_hash(&cfg),
                                        .checkpoint_hash = td_checkpoint_hash(ckpt),
                                        .kv_wire_hash = td_kv_wire_hash(td_model_kv(*model)),
                                        .vocab = cfg.vocab,
                                        .max_positions = cfg.max_positions};
        if (opt->model_name[0] != '\0')
            snprintf(identity->name, sizeof identity->name, "%s", opt->model_name);
        else
            folder_name(opt->model, identity->name, sizeof identity->name);
        td_info("model_loaded",
                "model=%s params=%llu weights_bytes=%llu kv_bytes_per_rank=%llu kv_pages=%u "
                "tp=%d ep=%d backend=%s open_ms=%lld load_ms=%lld self_test_ms=%lld",
                identity->name, (unsigned long long)td_model_config_params(&cfg),
                (unsigned long long)td_model_weight_bytes(*model),
                (unsigned long long)td_model_kv(*model)->region_bytes, kv_pages, mo.tp, mo.ep,
                mo.backend, (long long)(t1 - t0) / 1000, (long long)(t2 - t1) / 1000,
                (long long)(td_now_us() - t2) / 1000);
    } else {
        td_wrap(err, "loading %s", opt->model);
        *model = NULL;
    }
    td_checkpoint_close(ckpt);
    return st;
}
