/* comm_open: sets up collectives: peer access, memory that peers write, and a trial. */
#include "kernels/cuda/comm_impl.h"

#include <string.h>

enum { TRIAL = 4096 }; /* elements of the sums at open */

/* Every device may write the others' memory, both ways. */
static td_status let_peers_in(const comm_cuda *c, td_error *err)
{
    td_status st = TD_OK;

    for (int32_t i = 0; i < c->n; i++)
        for (int32_t j = 0; j < c->n; j++) {
            int a = c->index[i], b = c->index[j], possible = 0;
            cudaError_t e;

            if (a == b)
                continue;
            if ((st = td_cuda_status(err, cudaDeviceCanAccessPeer(&possible, a, b),
                                     "asking for peer access")) != TD_OK)
                return st;
            if (!possible)
                return td_fail_param(
                    err, "--tp",
                    "ranks %d and %d: device %d cannot reach the memory of device %d; use GPUs "
                    "that are linked (nvidia-smi topo -p2p w) or fewer ranks",
                    i, j, a, b);
            if ((st = td_cuda_comm_use(a, err)) != TD_OK)
                return st;
            e = cudaDeviceEnablePeerAccess(b, 0);
            if (e == cudaErrorPeerAccessAlreadyEnabled)
                (void)cudaGetLastError();
            else if ((st = td_cuda_status(err, e, "opening a peer's memory")) != TD_OK)
                return st;
        }
    return TD_OK;
}

static size_t round_up(size_t bytes)
{
    return (bytes + 4095) / 4096 * 4096;
}

static size_t take(size_t *at, size_t bytes)
{
    size_t from = *at;

    *at += round_up(bytes);
    return from;
}

/* Where things lie in an arena; the same in all of them, and room for the trial in any case.
 * Returns its size: with slices of 32 MiB some 130 MiB, less where reductions are smaller. */
size_t td_cuda_comm_place(comm_cuda *c, cuda_comm_view *v)
{
    size_t most = (c->max_elements + TD_COMM_UNIT - 1) / TD_COMM_UNIT, ranks = (size_t)c->n, at = 0;
    size_t packets = c->t.packet_bytes / 16, shots = c->t.one_shot_bytes / 16;
    size_t slice = c->t.slice_bytes / 16, segment;

    most = most > TRIAL / TD_COMM_UNIT ? most : TRIAL / TD_COMM_UNIT;
    packets = packets < most ? packets : most;
    shots = shots < most ? shots : most;
    slice = slice < most ? slice : most;
    packets = packets > TRIAL / TD_COMM_UNIT ? packets : TRIAL / TD_COMM_UNIT;
    shots = shots > TRIAL / TD_COMM_UNIT ? shots : TRIAL / TD_COMM_UNIT;
    segment = (slice + ranks - 1) / ranks;
    take(&at, sizeof(cuda_comm_state));
    c->flags_at = take(&at, sizeof(cuda_comm_flags));
    v->packets_source = round_up(packets * 32);
    v->packets_half = v->packets_source * ranks;
    v->packets = take(&at, 2 * v->packets_half);
    c->cleared = at - c->flags_at;
    v->parts_source = round_up(shots * 16);
    v->parts_half = v->parts_source * ranks;
    v->parts = take(&at, 2 * v->parts_half);
    v->pieces_source = round_up(segment * 16);
    v->pieces_half = v->pieces_source * ranks;
    v->pieces = take(&at, 2 * v->pieces_half);
    v->results_half = round_up(slice * 16);
    v->results = take(&at, 2 * v->results_half);
    return at;
}

static td_status make_arenas(comm_cuda *c, td_dev *const *dev, td_error *err)
{
    cuda_comm_view v = {.n = c->n,
                        .limit_ns = (unsigned long long)c->timeout_ms * 1000000,
                        .early = c->t.early,
                        .delay_mask = c->t.delay_mask};
    size_t bytes = td_cuda_comm_place(c, &v);
    void *host = NULL, *mapped = NULL;
    td_status st;

    /* The abort word has a line of its own: devices poll it over the bus. */
    if ((st = td_cuda_status(
             err, cudaHostAlloc(&host, 4096, cudaHostAllocPortable | cudaHostAllocMapped),
             "pinning memory")) != TD_OK)
        return st;
    memset(host, 0, 4096);
    c->abort = host;
    c->report = (cuda_comm_report *)((char *)host + 256);
    for (int32_t i = 0; i < c->n; i++) {
        td_buffer arena;

        if ((st = td_cuda_comm_use(c->index[i], err)) != TD_OK ||
            (st = td_cuda_alloc(dev[i], bytes, &arena, err)) != TD_OK)
            return td_wrap(err, "memory for collectives of rank %d", i);
        c->arena[i] = arena.ptr;
        v.flags[i] = (cuda_comm_flags *)((char *)arena.ptr + c->flags_at);
        v.arena[i] = arena.ptr;
    }
    for (int32_t i = 0; i < c->n; i++) {
        if ((st = td_cuda_comm_use(c->index[i], err)) != TD_OK ||
            (st = td_cuda_status(err, cudaHostGetDevicePointer(&mapped, host, 0),
                                 "mapping memory")) != TD_OK)
            return st;
        v.rank = i;
        v.state = c->arena[i];
        v.abort = mapped;
        v.report = (cuda_comm_report *)((char *)mapped + 256) + i;
        c->view[i] = v;
    }
    return td_cuda_comm_clear(c, err);
}

/* One sum each way: links that lose what is written to peers show here and not in a step. */
static td_status try_out(comm_cuda *c, td_dev *const *dev, td_error *err)
{
    const cuda_comm_launcher ways[] = {td_cuda_comm_packets, td_cuda_comm_one_shot,
                                       td_cuda_comm_two_shot};
    td_buffer memory[TD_COMM_RANKS] = {{0}};
    uint16_t part[TRIAL];
    float x[TRIAL];
    td_status st = TD_OK;

    for (int32_t i = 0; st == TD_OK && i < c->n; i++) {
        for (int k = 0; k < TRIAL; k++) {
            float f = (float)(k % 13 + i);
            uint32_t u;

            memcpy(&u, &f, sizeof u);
            part[k] = (uint16_t)(u >> 16); /* small integers are exact */
        }
        if ((st = td_cuda_comm_use(c->index[i], err)) == TD_OK &&
            (st = td_cuda_alloc(dev[i], sizeof part + sizeof x, &memory[i], err)) == TD_OK)
            st = td_cuda_status(
                err, cudaMemcpy(memory[i].ptr, part, sizeof part, cudaMemcpyHostToDevice),
                "copying in");
        if (st == TD_OK)
            st = td_cuda_status(err, cudaDeviceSynchronize(), "waiting for a device");
    }
    for (int32_t i = 0; st == TD_OK && i < c->n; i++) {
        cuda_comm_reduce r = {.n = TRIAL,
                              .part = memory[i].ptr,
                              .x = (float *)((char *)memory[i].ptr + sizeof part),
                              .blocks = 1};

        if ((st = td_cuda_comm_use(c->index[i], err)) != TD_OK)
            break;
        for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++)
            ways[w](dev[i]->stream.handle, &c->view[i], &r);
        st = td_cuda_launched(err, "trying collectives");
    }
    if (st != TD_OK)
        td_comm_abort(&c->base);
    for (int32_t i = 0; i < c->n; i++) { /* also after a failure: those enqueued must end */
        td_cuda_ignore(cudaSetDevice(c->index[i]), "cudaSetDevice");
        td_cuda_ignore(cudaStreamSynchronize(dev[i]->stream.handle), "cudaStreamSynchronize");
        if (st == TD_OK)
            st = td_comm_check(&c->base, i, err);
    }
    for (int32_t i = 0; st == TD_OK && i < c->n; i++) {
        if ((st = td_cuda_comm_use(c->index[i], err)) == TD_OK)
            st = td_cuda_status(err,
                                cudaMemcpy(x, (char *)memory[i].ptr + sizeof part, sizeof x,
                                           cudaMemcpyDeviceToHost),
                                "copying out");
        for (int k = 0; st == TD_OK && k < TRIAL; k++)
            if (x[k] != 3.0f * (float)(c->n * (k % 13) + c->n * (c->n - 1) / 2))
                st = td_fail(err, TD_DEVICE,
                             "device %d does not get what its peers write into its memory "
                             "(element %d of a sum over %d ranks is wrong)",
                             c->index[i], k, c->n);
    }
    for (int32_t i = 0; i < c->n; i++) {
        td_cuda_ignore(cudaSetDevice(c->index[i]), "cudaSetDevice");
        td_cuda_ignore(cudaFree(memory[i].ptr), "cudaFree");
    }
    return st;
}

td_status td_cuda_comm_set_up(comm_cuda *c, td_dev *const *dev, td_error *err)
{
    td_status st = let_peers_in(c, err);

    if (st == TD_OK)
        st = make_arenas(c, dev, err);
    if (st == TD_OK)
        st = try_out(c, dev, err);
    return st;
}
