/* comm_host: the calls of CUDA ranks' collectives, which kernel a message takes, and what happens
 * when a rank does not come. */
#include "kernels/cuda/comm_impl.h"

#include <stdlib.h>
#include <string.h>

enum {
    DEFAULT_TIMEOUT_MS = 2000,
    HELD = 64 /* most blocks of all ranks on one GPU; half its processors stay free of them */
};

/* Before main(), as these are read when CUDA starts and setenv() is not for threads.
 *
 * Kernels are loaded at the start: loading one at its first launch may wait for everything that
 * runs, and a kernel that runs may be waiting for another rank, whose thread waits for the loader.
 * Ranks that share a GPU need a hardware queue each, or one rank's waiting kernel keeps another's,
 * which it waits for, from starting. NVLink multicast is not used: on machines that are shared it
 * can take GPUs out of service. */
__attribute__((constructor)) static void set_environment(void)
{
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    setenv("NCCL_NVLS_ENABLE", "0", 0);
}

/* --- choices ---------------------------------------------------------------------------------- */

/* packet_bytes as measured, see comm.h. One shot gives way where its n - 1 messages take longer on
 * the link (0.37 TB/s each way) than two shot's second hop, some 2 us. */
cuda_comm_tuning td_cuda_comm_tuning(int32_t n, int32_t shared)
{
    return (cuda_comm_tuning){
        .packet_bytes = 48 << 10,
        .one_shot_bytes = n <= 2   ? 1 << 20
                          : n <= 4 ? 384 << 10
                                   : 192 << 10,
        .slice_bytes = 32 << 20,
        /* All blocks of all ranks on a GPU must be resident beside kernels that others wait for. */
        .blocks = shared > 1 ? HELD / shared : TD_COMM_BLOCKS,
        /* Elsewhere a dependent, resident and waiting, could keep out another rank's kernel. */
        .early = shared <= 1,
        .first_call = 1,
    };
}

static int32_t blocks_for(size_t work, size_t per_block, int32_t most)
{
    size_t n = (work + per_block - 1) / per_block;

    return n < 1 ? 1 : n < (size_t)most ? (int32_t)n : most;
}

static int32_t half(int32_t blocks)
{
    return blocks > 1 ? blocks / 2 : 1;
}

/* The kernel for so many units, and its grid. */
static cuda_comm_launcher choose(const comm_cuda *c, size_t units, int32_t *blocks)
{
    size_t bytes = units * 16;

    if (bytes <= c->t.packet_bytes) {
        *blocks = blocks_for(units, TD_COMM_SMALL_THREADS, half(c->t.blocks));
        return td_cuda_comm_packets;
    }
    if (bytes <= c->t.one_shot_bytes) {
        *blocks = blocks_for(units, TD_COMM_THREADS / 2, half(c->t.blocks));
        return td_cuda_comm_one_shot;
    }
    *blocks =
        blocks_for((units + (size_t)c->n - 1) / (size_t)c->n, TD_COMM_LONG_THREADS, c->t.blocks);
    return td_cuda_comm_two_shot;
}

/* --- calls ------------------------------------------------------------------------------------ */

/* The rank that all wait for: whoever was waited for may have been waiting for another. */
static const cuda_comm_report *root_of(const comm_cuda *c, int32_t rank)
{
    const cuda_comm_report *r = &c->report[rank];

    for (int32_t hops = 0; hops < c->n; hops++) {
        const cuda_comm_report *next = &c->report[r->source];

        if (__atomic_load_n(&next->waits, __ATOMIC_ACQUIRE) == 0)
            break;
        r = next;
    }
    return r;
}

/* For rank's calls and for the end of its step. The reason comes before the fact: a rank that gave
 * up says why, though the comm is aborted as well. */
static td_status usable(const comm_cuda *c, int32_t rank, td_error *err)
{
    if (c->broken.code != TD_OK) {
        if (err != NULL)
            *err = c->broken;
        return c->broken.code;
    }
    if (__atomic_load_n(&c->report[rank].gave_up, __ATOMIC_ACQUIRE) != 0) {
        const cuda_comm_report *r = root_of(c, rank);
        int32_t waiter = (int32_t)(r - c->report);

        return td_fail(err, TD_DEVICE,
                       "rank %d (device %d) did not come to %s %llu in %.1f s: rank %d (device %d) "
                       "waited for it, saw %llu and expected %llu",
                       r->source, c->index[r->source],
                       r->series == COMM_GATHER ? "gather" : "reduction", r->call,
                       c->timeout_ms / 1e3, waiter, c->index[waiter], r->seen, r->expected);
    }
    if (__atomic_load_n(c->abort, __ATOMIC_ACQUIRE) != 0)
        return td_fail(err, TD_CANCELED, "another rank gave up in this step");
    return TD_OK;
}

static td_status reduce_add(td_comm *base, int32_t rank, td_stream *s, const void *part, size_t n,
                            bool clear, void *x, td_error *err)
{
    comm_cuda *c = (comm_cuda *)base;
    size_t slice = c->t.slice_bytes / 2;
    td_status st = usable(c, rank, err);

    if (st != TD_OK)
        return st;
    if (n % TD_COMM_UNIT != 0 || n > c->max_elements || (uintptr_t)part % 16 != 0 ||
        (uintptr_t)x % 16 != 0)
        return td_fail(err, TD_INVALID,
                       "reduce: %zu elements at %p into %p; wanted a multiple of %d up to %zu, at "
                       "multiples of 16 bytes",
                       n, part, x, TD_COMM_UNIT, c->max_elements);
    for (size_t at = 0; st == TD_OK && at < n; at += slice) {
        cuda_comm_reduce r = {.n = n - at < slice ? n - at : slice,
                              .part = (const uint16_t *)part + at,
                              .x = (float *)x + at,
                              .clear = clear};
        cuda_comm_launcher launch = choose(c, r.n / TD_COMM_UNIT, &r.blocks);

        launch(s->handle, &c->view[rank], &r);
        st = td_cuda_launched(err, "reduce");
    }
    return st;
}

static td_status gather(td_comm *base, int32_t rank, td_stream *s, const td_gather_args *a,
                        td_error *err)
{
    comm_cuda *c = (comm_cuda *)base;
    td_status st = td_gather_check(rank, a, err);

    if (st == TD_OK)
        st = usable(c, rank, err);
    if (st != TD_OK || a->rows == 0)
        return st;
    /* The same grid on all ranks, whose columns may differ in number. */
    size_t share = (size_t)a->rows * (size_t)a->total_cols / (size_t)c->n;
    td_cuda_comm_gather(s->handle, &c->view[rank], a,
                        blocks_for(share, 4 * TD_COMM_THREADS, half(c->t.blocks)));
    return td_cuda_launched(err, "gather");
}

static td_status check(td_comm *base, int32_t rank, td_error *err)
{
    return usable((comm_cuda *)base, rank, err);
}

static void abort_all(td_comm *base)
{
    __atomic_store_n(((comm_cuda *)base)->abort, 1u, __ATOMIC_RELEASE);
}

/* --- opening, resetting, closing ---------------------------------------------------------------
 */

td_status td_cuda_comm_use(int32_t index, td_error *err)
{
    return td_cuda_status(err, cudaSetDevice(index), "choosing the device");
}

/* Peers write into arenas, so all devices are idle before the first is cleared. */
td_status td_cuda_comm_clear(comm_cuda *c, td_error *err)
{
    const cuda_comm_state fresh = {.call = {c->t.first_call, c->t.first_call}};
    td_status st = TD_OK;

    for (int32_t i = 0; st == TD_OK && i < c->n; i++)
        if ((st = td_cuda_comm_use(c->index[i], err)) == TD_OK)
            st = td_cuda_status(err, cudaDeviceSynchronize(), "waiting for a device");
    for (int32_t i = 0; st == TD_OK && i < c->n; i++) {
        if ((st = td_cuda_comm_use(c->index[i], err)) == TD_OK &&
            (st = td_cuda_status(err, cudaMemset((char *)c->arena[i] + c->flags_at, 0, c->cleared),
                                 "clearing flags")) == TD_OK &&
            (st = td_cuda_status(
                 err, cudaMemcpy(c->view[i].state, &fresh, sizeof fresh, cudaMemcpyHostToDevice),
                 "clearing counters")) == TD_OK)
            st = td_cuda_status(err, cudaDeviceSynchronize(), "waiting for a device");
    }
    if (st != TD_OK)
        return st;
    memset(c->report, 0, (size_t)c->n * sizeof *c->report);
    __atomic_store_n(c->abort, 0u, __ATOMIC_RELEASE);
    return TD_OK;
}

static void reset(td_comm *base)
{
    comm_cuda *c = (comm_cuda *)base;
    int current = 0;

    td_cuda_ignore(cudaGetDevice(&current), "cudaGetDevice");
    abort_all(base); /* whoever still waits stops, so that the devices become idle */
    if (c->broken.code == TD_OK && td_cuda_comm_clear(c, &c->broken) != TD_OK)
        td_wrap(&c->broken, "collectives cannot go on after a failed step");
    td_cuda_ignore(cudaSetDevice(current), "cudaSetDevice");
}

static void close_comm(td_comm *base)
{
    comm_cuda *c = (comm_cuda *)base;
    int current = 0;

    td_cuda_ignore(cudaGetDevice(&current), "cudaGetDevice");
    for (int32_t i = 0; i < c->n; i++)
        if (c->arena[i] != NULL) {
            td_cuda_ignore(cudaSetDevice(c->index[i]), "cudaSetDevice");
            td_cuda_ignore(cudaFree(c->arena[i]), "cudaFree"); /* waits for the device */
        }
    td_cuda_ignore(cudaFreeHost(c->abort), "cudaFreeHost");
    td_cuda_ignore(cudaSetDevice(current), "cudaSetDevice");
    free(c);
}

td_status td_cuda_comm_open_tuned(const td_comm_options *o, const cuda_comm_tuning *t,
                                  td_comm **out, td_error *err)
{
    static const td_comm_impl impl = {reduce_add, gather, check, abort_all, reset, close_comm};
    int current = 0;
    comm_cuda *c;
    td_status st;

    if (o->n < 1 || o->n > TD_COMM_RANKS)
        return td_fail_param(err, "--tp", "%d ranks; 1 to %d are possible", o->n, TD_COMM_RANKS);
    c = calloc(1, sizeof *c);
    if (c == NULL)
        return td_fail(err, TD_NOMEM, "collectives: no memory");
    c->base.impl = &impl;
    c->n = o->n;
    c->max_elements = o->max_elements;
    c->timeout_ms = o->timeout_ms > 0 ? o->timeout_ms : DEFAULT_TIMEOUT_MS;
    c->t = *t;
    for (int32_t i = 0; i < o->n; i++)
        c->index[i] = o->dev[i]->index;
    td_cuda_ignore(cudaGetDevice(&current), "cudaGetDevice");
    st = td_cuda_comm_set_up(c, o->dev, err);
    td_cuda_ignore(cudaSetDevice(current), "cudaSetDevice");
    if (st != TD_OK) {
        close_comm(&c->base);
        return td_wrap(err, "collectives of %d ranks", o->n);
    }
    *out = &c->base;
    return TD_OK;
}

/* Ranks that share rank i's GPU, itself included. */
static int32_t sharers(const td_comm_options *o, int32_t i)
{
    int32_t same = 0;

    for (int32_t j = 0; j < o->n; j++)
        same += o->dev[j]->index == o->dev[i]->index;
    return same;
}

size_t td_cuda_comm_bytes(const td_comm_options *o)
{
    comm_cuda c = {.n = o->n, .max_elements = o->max_elements};
    cuda_comm_view v;

    c.t = td_cuda_comm_tuning(o->n, 1); /* who shares a GPU changes no size */
    return td_cuda_comm_place(&c, &v);
}

/* Most ranks on one GPU, and the blocks of which each of its processors holds two. */
td_status td_cuda_comm_open(const td_comm_options *o, td_comm **out, td_error *err)
{
    cuda_comm_tuning t;
    int32_t shared = 1;

    for (int32_t i = 0; i < o->n; i++) {
        int32_t same = sharers(o, i);

        shared = same > shared ? same : shared;
        o->dev[i]->held = same > 1 ? HELD : 0;
    }
    t = td_cuda_comm_tuning(o->n, shared);
    for (int32_t i = 0; i < o->n; i++) {
        int processors = 0;
        td_status st = td_cuda_status(
            err,
            cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, o->dev[i]->index),
            "asking for the device's size");
        if (st != TD_OK)
            return st;
        t.blocks = t.blocks < 2 * processors ? t.blocks : 2 * processors;
    }
    return td_cuda_comm_open_tuned(o, &t, out, err);
}
