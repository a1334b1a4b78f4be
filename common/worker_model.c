/* Bringing a model up for a worker: read, load, and compute one token before anyone relies on it.
 */
#include "common/worker.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/json_file.h"
#include "common/log.h"
#include "common/kv_wire.h"
#include "common/worker_impl.h"
#include "common/worker_watch.h"

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

int64_t td_worker_step_timeout_ms(const td_worker_options *opt)
{
    if (opt->step_timeout_ms > 0 || strcmp(td_backend_words[opt->backend], "cpu") == 0)
        return opt->step_timeout_ms;
    return 30 * 1000;
}

/* The first run of every kernel on every rank, and a token that is one. */
static td_status self_test(td_model *m, td_watch *watch, td_error *err)
{
    int32_t prompt = 0;
    uint32_t page = 0;
    td_sampling greedy = {.top_p = 1};
    td_prefill_step step = {
        .tokens = &prompt, .n = 1, .seq = {.pages = &page, .n_pages = 1}, .sampling = &greedy};
    td_status st;

    td_watch_ask(watch, td_model_late, m);
    td_watch_begin_first(watch, "self-test", 1);
    st = td_model_prefill(m, &step, err);
    td_watch_end(watch);
    if (st != TD_OK)
        return td_wrap(err, "self-test");
    if (step.token < 0 || step.token >= td_model_config_of(m)->vocab)
        return td_fail(err, TD_INTERNAL,
                       "self-test: token %d is not in the vocabulary of %d; the weights give no "
                       "finite logits",
                       step.token, td_model_config_of(m)->vocab);
    return TD_OK;
}

/* "--kv-memory": TD_OK and 0 for auto. */
static td_status kv_bytes(const char *text, uint64_t *bytes, td_error *err)
{
    *bytes = 0;
    if (strcmp(text, "auto") == 0)
        return TD_OK;
    if (!td_parse_bytes(text, bytes) || *bytes < 1 << 20 || *bytes > (uint64_t)1 << 50)
        return td_fail_param(err, "--kv-memory",
                             "is \"%s\", expected auto or bytes from 1MiB on, such as 24GiB", text);
    return TD_OK;
}

/* How much KV the model is opened with: ring_pages, kv_pages and kv_pages_least of mo. Reads
 * nothing but cfg. TD_INVALID: memory for not one page; the text says how much is needed. */
static td_status size_kv(const td_worker_options *opt, const td_worker_needs *needs,
                         const td_model_config *cfg, td_model_options *mo, td_error *err)
{
    td_kv_geometry one, two;
    uint64_t bytes, all, page_bytes, fixed, most;
    td_status st = kv_bytes(needs->kv_memory, &bytes, err);

    if (st != TD_OK)
        return st;
    mo->kv_rings = needs->rings;
    mo->ring_pages = td_kv_ring_pages(cfg->window, (int32_t)needs->chunk);
    /* More pages than all rings' longest sequences can fill would never be used. */
    most = (uint64_t)needs->rings * td_kv_pages_for((uint64_t)cfg->max_positions);
    mo->kv_pages =
        (uint32_t)(most < INT32_MAX / TD_PAGE_TOKENS ? most : INT32_MAX / TD_PAGE_TOKENS);
    if (bytes == 0 && mo->device_bytes > 0)
        return TD_OK; /* what the weights leave */
    if (bytes == 0)
        bytes = TD_WORKER_KV_AUTO_BYTES;
    st = td_kv_geometry_init(&one, cfg, mo->tp, mo->kv_dtype, 1, needs->rings, mo->ring_pages, err);
    if (st == TD_OK)
        st = td_kv_geometry_init(&two, cfg, mo->tp, mo->kv_dtype, 2, needs->rings, mo->ring_pages,
                                 err);
    if (st != TD_OK)
        return st;
    /* One page more costs page_bytes on each rank; rings and rounding are the rest. */
    page_bytes = two.region_bytes - one.region_bytes;
    fixed = one.region_bytes - page_bytes;
    all = bytes / opt->tp;
    if (all < fixed + page_bytes)
        return td_fail_param(err, "--kv-memory",
                             "%llu bytes; %u window rings take %llu on each of %u ranks and one "
                             "page %llu: give at least %llu",
                             (unsigned long long)bytes, needs->rings, (unsigned long long)fixed,
                             opt->tp, (unsigned long long)page_bytes,
                             (unsigned long long)(opt->tp * (fixed + page_bytes)));
    all = page_bytes > 0 ? (all - fixed) / page_bytes : most;
    if (all < mo->kv_pages)
        mo->kv_pages = (uint32_t)all;
    mo->kv_pages_least = mo->kv_pages;
    return TD_OK;
}

td_status worker_devices(const td_worker_options *opt, const td_ops *ops, int32_t *devices,
                         td_error *err)
{
    uint64_t left, all;

    if (opt->devices.len > 0 && ops->dev_memory == NULL)
        return td_fail_param(err, "--devices", "names GPUs, and --backend %s has none", ops->name);
    if (opt->devices.len > 0 && opt->devices.len != opt->tp)
        return td_fail_param(err, "--devices", "names %zu GPUs for --tp %u ranks", opt->devices.len,
                             opt->tp);
    for (uint32_t i = 0; i < opt->tp; i++) {
        const char *text = opt->devices.len > 0 ? opt->devices.ptr[i] : NULL;
        char *end = NULL;
        long n = text != NULL ? strtol(text, &end, 10) : (long)i;

        if (text != NULL && (end == text || *end != '\0' || n < 0 || n > INT16_MAX))
            return td_fail_param(err, "--devices", "\"%s\" is not the number of a GPU", text);
        devices[i] = (int32_t)n;
        if (ops->dev_memory == NULL)
            continue;
        td_status st = ops->dev_memory(devices[i], &left, &all, err);
        if (st != TD_OK)
            return text != NULL ? td_wrap(err, "--devices")
                                : td_wrap(err, "--tp %u without --devices", opt->tp);
    }
    return TD_OK;
}

/* What each rank may take of its GPU: the share of what is free now; ranks on one GPU divide it. */
static td_status budget(const td_worker_options *opt, const td_ops *ops, const int32_t *devices,
                        uint64_t *bytes, td_error *err)
{
    *bytes = 0;
    for (uint32_t i = 0; ops->dev_memory != NULL && i < opt->tp; i++) {
        uint64_t left, all, mine;
        uint32_t sharers = 0;
        td_status st = ops->dev_memory(devices[i], &left, &all, err);

        if (st != TD_OK)
            return st;
        for (uint32_t j = 0; j < opt->tp; j++)
            sharers += devices[j] == devices[i];
        mine = (uint64_t)(opt->gpu_memory * (double)left) / sharers;
        if (*bytes == 0 || mine < *bytes)
            *bytes = mine;
        td_info("gpu",
                "rank=%u device=%d total_mib=%llu free_mib=%llu gpu_memory=%.2f "
                "budget_mib=%llu",
                i, devices[i], (unsigned long long)(all >> 20), (unsigned long long)(left >> 20),
                opt->gpu_memory, (unsigned long long)(mine >> 20));
    }
    return TD_OK;
}

/* mxfp4 reads the fewest bytes, which bound decode; fp8 has twice the matrix rate, which bounds
 * prefill. */
static td_expert_format expert_format(const td_worker_options *opt, const td_ops *ops,
                                      Tandem__Role role)
{
    const char *word = td_expert_format_words[opt->expert_format];

    if (strcmp(word, "auto") != 0)
        return strcmp(word, "fp8") == 0 ? TD_EXPERTS_FP8 : TD_EXPERTS_MXFP4;
    return ops->dev_memory != NULL && role == TANDEM__ROLE__ROLE_PREFILL ? TD_EXPERTS_FP8
                                                                         : TD_EXPERTS_MXFP4;
}

static td_status open_checkpoint(const td_worker_options *opt, const td_model_config *cfg,
                                 td_checkpoint **out, td_error *err)
{
    char *end;
    unsigned long long seed;

    if (opt->random_weights[0] == '\0')
        return td_checkpoint_open(opt->model, cfg, out, err);
    errno = 0;
    seed = strtoull(opt->random_weights, &end, 10);
    if (*end != '\0' || errno != 0 || strchr("0123456789", opt->random_weights[0]) == NULL)
        return td_fail_param(err, "--random-weights",
                             "\"%.100s\" is not a seed: give a whole number below 2^64",
                             opt->random_weights);
    return td_checkpoint_random(cfg, seed, out, err);
}

/* What workers must agree in to exchange KV: its bytes, and whose memory they are in. */
static uint64_t wire_hash(const td_model *m, const td_ops *ops)
{
    uint64_t h = td_kv_wire_hash(td_model_kv(m));

    return ops->dev_memory == NULL ? h : td_hash_end(td_hash_str(h, "GPU memory"));
}

static void log_loaded(const td_model *m, const td_worker_options *opt, const td_ops *ops,
                       const int32_t *devices, const char *name)
{
    const td_kv_geometry *g = td_model_kv(m);

    for (uint32_t i = 0; ops->dev_memory != NULL && i < opt->tp; i++) {
        td_model_memory has = td_model_memory_of(m, (int32_t)i);
        uint64_t left = 0, all = 0;
        td_error err = {0};

        if (ops->dev_memory(devices[i], &left, &all, &err) != TD_OK)
            td_warn("gpu_memory", "device=%d error=\"%s\"", devices[i], err.text);
        td_info("gpu_memory",
                "model=%s rank=%u device=%d weights_mib=%llu workspace_mib=%llu "
                "collectives_mib=%llu graphs_mib=%llu rounding_mib=%llu kv_mib=%llu kv_pages=%u "
                "kv_rings=%u "
                "free_mib=%llu",
                name, i, devices[i], (unsigned long long)(has.weights >> 20),
                (unsigned long long)(has.work >> 20), (unsigned long long)(has.comm >> 20),
                (unsigned long long)(has.graphs >> 20), (unsigned long long)(has.rounding >> 20),
                (unsigned long long)(has.kv >> 20), g->n_pages, g->n_rings,
                (unsigned long long)(left >> 20));
    }
}

/* A flag that is at fault says all. */
static td_status say_what_loads(const td_worker_options *opt, td_error *err)
{
    return err->param[0] != '\0' ? err->code : td_wrap(err, "loading %s", td_path_tail(opt->model));
}

static td_status check_name(const td_worker_options *opt, td_error *err)
{
    const char *name = opt->model_name;
    size_t n = strlen(name), bad;

    if (n >= sizeof((td_model_identity *)0)->name || !td_utf8_valid(name, n, &bad) ||
        strpbrk(name, "\n\r\t\"") != NULL)
        return td_fail_param(err, "--model-name",
                             "'%.100s' is not a text of up to %zu bytes without quotes and breaks",
                             name, sizeof((td_model_identity *)0)->name - 1);
    return TD_OK;
}

/* The backend, its devices and what of them is ours. */
static td_status choose(const td_worker_options *opt, const td_worker_needs *needs,
                        const td_model_config *cfg, int32_t *devices, td_model_options *mo,
                        td_error *err)
{
    td_status st = td_ops_find(td_backend_words[opt->backend], &mo->ops, err);

    if (st == TD_OK)
        st = worker_devices(opt, mo->ops, devices, err);
    if (st == TD_OK)
        st = budget(opt, mo->ops, devices, &mo->device_bytes, err);
    if (st != TD_OK)
        return st;
    mo->experts = expert_format(opt, mo->ops, needs->role);
    if (mo->experts == TD_EXPERTS_FP8 && mo->ops->dev_memory == NULL)
        return td_fail_param(err, "--expert-format", "fp8 needs --backend cuda");
    if (opt->fault_step != 0)
        mo->ops = worker_faulty_ops(mo->ops, opt->fault_step);
    return size_kv(opt, needs, cfg, mo, err);
}

td_status td_worker_load_model(const td_worker_options *opt, const td_worker_needs *needs,
                               td_model **model, td_model_identity *identity, td_error *err)
{
    td_usec t0 = td_now_us(), t1, t2;
    td_model_config cfg;
    td_checkpoint *ckpt = NULL;
    int32_t devices[TD_KV_MAX_RANKS];
    td_model_options mo = {.tp = (int32_t)opt->tp,
                           .ep = (int32_t)(opt->ep ? opt->ep : opt->tp),
                           .devices = devices,
                           .threads = (int32_t)opt->threads,
                           .kv_dtype = (td_kv_dtype)opt->kv_dtype,
                           .max_tokens = needs->max_tokens,
                           .head_rows = needs->role == TANDEM__ROLE__ROLE_PREFILL ? 1 : 0,
                           .no_graphs = !opt->graphs,
                           .comm_timeout_ms = (uint32_t)opt->comm_timeout_ms};
    td_status st = check_name(opt, err);

    if (st == TD_OK)
        st = td_model_config_read(opt->model, &cfg, err);
    if (st == TD_OK)
        st = choose(opt, needs, &cfg, devices, &mo, err);
    if (st == TD_OK)
        st = open_checkpoint(opt, &cfg, &ckpt, err);
    if (st != TD_OK)
        return say_what_loads(opt, err);
    t1 = td_now_us();
    st = td_model_open(ckpt, &cfg, &mo, model, err);
    if (st == TD_OK) {
        t2 = td_now_us();
        st = self_test(*model, needs->watch, err);
        if (st != TD_OK)
            td_model_close(*model);
    }
    if (st == TD_OK) {
        *identity = (td_model_identity){.config_hash = td_model_config_hash(&cfg),
                                        .checkpoint_hash = td_checkpoint_hash(ckpt),
                                        .kv_wire_hash = wire_hash(*model, mo.ops),
                                        .vocab = cfg.vocab,
                                        .max_positions = cfg.max_positions};
        if (opt->model_name[0] != '\0')
            snprintf(identity->name, sizeof identity->name, "%s", opt->model_name);
        else
            folder_name(opt->model, identity->name, sizeof identity->name);
        log_loaded(*model, opt, mo.ops, devices, identity->name);
        td_info("model_loaded",
                "model=%s params=%llu weights_bytes=%llu kv_bytes_per_rank=%llu kv_pages=%u "
                "tp=%d ep=%d backend=%s experts=%s kv_dtype=%s open_ms=%lld load_ms=%lld "
                "self_test_ms=%lld",
                identity->name, (unsigned long long)td_model_config_params(&cfg),
                (unsigned long long)td_model_weight_bytes(*model),
                (unsigned long long)td_model_kv(*model)->region_bytes, td_model_kv(*model)->n_pages,
                mo.tp, mo.ep, mo.ops->name, mo.experts == TD_EXPERTS_FP8 ? "fp8" : "mxfp4",
                td_kv_dtype_words[mo.kv_dtype], (long long)(t1 - t0) / 1000,
                (long long)(t2 - t1) / 1000, (long long)(td_now_us() - t2) / 1000);
    } else {
        say_what_loads(opt, err);
        *model = NULL;
    }
    td_checkpoint_close(ckpt);
    return st;
}
