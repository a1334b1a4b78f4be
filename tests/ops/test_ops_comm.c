/* Collectives of CUDA ranks: every element of every round checked on the device, in replays of two
 * graphs; ranks that dawdle, pause, stay away or give up.
 *
 * Ranks go to the devices there are, several to one where there are fewer: own kernels work there
 * too. Rounds are TANDEM_TEST_ROUNDS (100000 for each number of ranks), few everywhere with
 * TANDEM_TEST_SMALL. TANDEM_TEST_WAIT_MS is how long a rank waits for another where no test depends
 * on it, for tools that make ranks late. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/clock.h"
#include "common/comm.h"
#include "common/rank.h"
#include "kernels/cuda/comm.h"
#include "tests/ops/backend.h"
#include "tests/ops/choose.h"
#include "tests/ops/comm_probe.h"

enum { MOST = 160000, ROWS = 3, TOTAL = 5000, GRAPHS = 2, SUMS = 8, BEHIND = 16 };

static const td_ops *ops;
static int devices;

/* Sums of both graphs, in units of 8: packets, one shot, two shot, several slices (tuning()). */
static const size_t sums[GRAPHS][SUMS] = {
    {1, 360, 512, 1080, 2047, 2049, 12345, MOST / 8},
    {2880, 3, 511, 2048, 20000 - 1, 513, 5001, 64},
};

typedef struct world {
    int32_t n;
    td_comm *comm;
    td_ranks *ranks;
    td_dev *dev[TD_COMM_RANKS];
    td_stream *s[TD_COMM_RANKS];
    td_buffer part[TD_COMM_RANKS], x[TD_COMM_RANKS], probe[TD_COMM_RANKS];
    td_buffer columns[TD_COMM_RANKS], out;
    td_graph *graph[TD_COMM_RANKS][GRAPHS];
    int32_t rounds;      /* of one graph */
    unsigned int dawdle; /* most ns before a push */
    int32_t slow;        /* this rank pauses for a second before the first replay; -1: none */
    int32_t absent;      /* does not take part; -1: all do */
    bool gathers;        /* what `absent` stays away from */
} world;

static int32_t first_column(const world *w, int32_t rank)
{
    return rank == w->n ? TOTAL : TOTAL / w->n * rank / 4 * 4 + (rank == 1); /* some odd */
}

/* early: dependent launches, which ranks on one GPU do without; here they do no harm, as nothing
 * large waits behind a sum. */
static cuda_comm_tuning tuning(int32_t n, bool early)
{
    cuda_comm_tuning t = td_cuda_comm_tuning(n, (n + devices - 1) / devices);

    t.early = early;
    t.packet_bytes = 512 * 16;
    t.one_shot_bytes = 2048 * 16;
    t.slice_bytes = 12000 * 16;
    return t;
}

static world open_world(int32_t n, const cuda_comm_tuning *t, uint32_t timeout_ms)
{
    world w = {.n = n, .slow = -1, .absent = -1};
    const char *wait = getenv("TANDEM_TEST_WAIT_MS");
    td_error err = {0};

    if (timeout_ms == 0 && wait != NULL)
        timeout_ms = (uint32_t)atoi(wait);

    for (int32_t i = 0; i < n; i++) {
        check_ok(
            ops->dev_open(&(td_dev_options){.index = i % devices, .threads = 1}, &w.dev[i], &err),
            &err);
        check_ok(ops->dev_bind(w.dev[i], &err), &err);
        w.s[i] = ops->dev_stream(w.dev[i]);
        check_ok(ops->alloc(w.dev[i], MOST * 2 * GRAPHS, &w.part[i], &err), &err);
        check_ok(ops->alloc(w.dev[i], MOST * 4, &w.x[i], &err), &err);
        check_ok(ops->alloc(w.dev[i], sizeof(probe), &w.probe[i], &err), &err);
        check_ok(ops->alloc(w.dev[i], ROWS * TOTAL * 4, &w.columns[i], &err), &err);
    }
    check_ok(ops->dev_bind(w.dev[0], &err), &err);
    check_ok(ops->alloc(w.dev[0], ROWS * TOTAL * 4, &w.out, &err), &err);
    check_ok(td_ranks_create(n, &w.ranks, &err), &err);
    check_ok(td_cuda_comm_open_tuned(
                 &(td_comm_options){
                     .dev = w.dev, .n = n, .max_elements = MOST, .timeout_ms = timeout_ms},
                 t, &w.comm, &err),
             &err);
    return w;
}

static void close_world(world *w)
{
    for (int32_t i = 0; i < w->n; i++) {
        for (int g = 0; g < GRAPHS; g++)
            ops->graph_free(w->graph[i][g]);
        ops->release(&w->part[i]);
        ops->release(&w->x[i]);
        ops->release(&w->probe[i]);
        ops->release(&w->columns[i]);
    }
    ops->release(&w->out);
    td_comm_close(w->comm);
    for (int32_t i = 0; i < w->n; i++)
        ops->dev_close(w->dev[i]);
    td_ranks_free(w->ranks);
}

/* One sum and the check of it. */
static td_status sum_once(world *w, int32_t rank, int turn, size_t n, td_error *err)
{
    cudaStream_t s = w->s[rank]->handle;
    probe *p = w->probe[rank].ptr;
    char *part = (char *)w->part[rank].ptr + (size_t)(turn % 2) * MOST * 2;
    bool clear = turn % 3 == 0;
    td_status st;

    if (w->dawdle > 0)
        probe_dawdle(s, p, rank, w->dawdle);
    probe_fill(s, p, rank, n, part, w->x[rank].ptr);
    st = td_comm_reduce_add(w->comm, rank, w->s[rank], part, n, clear, w->x[rank].ptr, err);
    for (int i = 0; st == TD_OK && clear && i < 2; i++) /* one behind the other, and no harm done */
        st = td_comm_reduce_add(w->comm, rank, w->s[rank], part, n, clear, w->x[rank].ptr, err);
    probe_check(s, p, w->n, n, clear, w->x[rank].ptr);
    return st;
}

static td_status gather_once(world *w, int32_t rank, td_error *err)
{
    cudaStream_t s = w->s[rank]->handle;
    probe *p = w->probe[rank].ptr;
    int32_t first = first_column(w, rank), cols = first_column(w, rank + 1) - first;
    td_status st;

    probe_fill_columns(s, p, ROWS, cols, first, w->columns[rank].ptr);
    st = td_comm_gather(w->comm, rank, w->s[rank], w->columns[rank].ptr, ROWS, cols, first, TOTAL,
                        w->out.ptr, err);
    probe_check_columns(s, p, rank == 0 ? ROWS : 0, TOTAL, w->out.ptr);
    return st;
}

static td_status capture(void *ctx, int32_t rank, td_error *err)
{
    world *w = ctx;
    td_status st = ops->dev_bind(w->dev[rank], err);

    for (int g = 0; st == TD_OK && g < GRAPHS; g++) {
        if ((st = ops->graph_begin(w->s[rank], err)) != TD_OK)
            return st;
        for (int i = 0; st == TD_OK && i < SUMS; i++) {
            st = sum_once(w, rank, i, sums[g][i] * 8, err);
            if (st == TD_OK && i % 4 == 2 + g) /* one after another, too, with no sum between */
                st = gather_once(w, rank, err);
            if (st == TD_OK && i % 4 == 2 + g)
                st = gather_once(w, rank, err);
        }
        td_status end = ops->graph_end(w->s[rank], st == TD_OK ? &w->graph[rank][g] : NULL, err);
        st = st == TD_OK ? end : st;
    }
    return st;
}

static td_status replay(void *ctx, int32_t rank, td_error *err)
{
    world *w = ctx;
    td_status st = ops->dev_bind(w->dev[rank], err);

    if (rank == w->slow)
        probe_wait(w->s[rank]->handle, 1000000000);
    for (int32_t i = 0; st == TD_OK && i < w->rounds; i++) {
        st = ops->graph_launch(w->s[rank], w->graph[rank][i % GRAPHS], err);
        if (st == TD_OK && i % BEHIND == BEHIND - 1) /* a full queue would hold up all threads */
            st = ops->sync(w->s[rank], err);
    }
    if (st == TD_OK)
        st = ops->sync(w->s[rank], err);
    return st == TD_OK ? td_comm_check(w->comm, rank, err) : st;
}

static void check_probes(world *w, uint32_t want_rounds)
{
    td_error err = {0};
    probe p;

    for (int32_t i = 0; i < w->n; i++) {
        check_ok(ops->dev_bind(w->dev[i], &err), &err);
        check_ok(ops->copy_out(w->s[i], &p, sizeof p, w->probe[i].ptr, sizeof p, sizeof p, 1, &err),
                 &err);
        check_ok(ops->sync(w->s[i], &err), &err);
        if (p.wrong != 0)
            fail_msg("%d ranks: rank %d has %u wrong elements; the first, %u of round %u, is %.9g, "
                     "wanted %.9g",
                     w->n, i, p.wrong, p.first_index, p.first_round, p.got, p.want);
        assert_int_equal(p.round, want_rounds);
    }
}

/* Sums and gathers of `rounds` in all, in two graphs by turns. */
static void run_rounds(world *w, int32_t rounds)
{
    td_usec began = td_now_us();
    td_error err = {0};

    w->rounds = (rounds + SUMS + 3) / (SUMS + 4); /* each graph: 8 sums, 4 gathers */
    check_ok(td_ranks_run(w->ranks, capture, w, &err), &err);
    check_ok(td_ranks_run(w->ranks, replay, w, &err), &err);
    check_probes(w, (uint32_t)w->rounds * (SUMS + 4));
    print_message("report: %d ranks on %d devices: %d rounds in %.2f s\n", w->n,
                  w->n < devices ? w->n : devices, w->rounds * (SUMS + 4),
                  (double)(td_now_us() - began) / 1e6);
}

static const int32_t counts[] = {2, 4, 8, 3, 1};

/* Enough for counters to wrap that begin a hundred calls before. */
static int32_t rounds(int32_t n)
{
    return getenv("TANDEM_TEST_SMALL") != NULL ? 200 : n;
}

static void test_comm_rounds(void **state)
{
    const char *set = getenv("TANDEM_TEST_ROUNDS");

    (void)state;
    for (size_t i = 0; i < 2 * (sizeof counts / sizeof counts[0]); i++) {
        int32_t n = counts[i / 2];
        cuda_comm_tuning t = tuning(n, i % 2 == 1);
        world w = open_world(n, &t, 0);

        run_rounds(&w, set != NULL ? atoi(set) : rounds(100000));
        close_world(&w);
    }
}

static void test_comm_ranks_that_dawdle(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        cuda_comm_tuning t = tuning(counts[i], i % 2 == 0);

        t.delay_mask = 0x3fff; /* up to 16 us between push and wait, and as long before */
        world w = open_world(counts[i], &t, 0);
        w.dawdle = 0x3fff;
        run_rounds(&w, rounds(4000));
        close_world(&w);
    }
}

static void test_comm_counters_wrap(void **state)
{
    const unsigned long long near[] = {(1ull << 32) - 100, (1ull << 31) - 100};

    (void)state;
    for (size_t i = 0; i < sizeof near / sizeof near[0]; i++) {
        cuda_comm_tuning t = tuning(4, true);

        t.first_call = near[i];
        world w = open_world(4, &t, 0);
        run_rounds(&w, rounds(1200));
        close_world(&w);
    }
}

static void test_comm_a_rank_that_pauses(void **state)
{
    cuda_comm_tuning t = tuning(4, true);
    world w = open_world(4, &t, 0);

    (void)state;
    w.slow = 2;
    run_rounds(&w, 100);
    close_world(&w);
}

/* The numbers themselves, on the host: all ranks alike, and the sum in rank order. */
static td_status sum_one(void *ctx, int32_t rank, td_error *err)
{
    world *w = ctx;
    td_status st = ops->dev_bind(w->dev[rank], err);

    if (st == TD_OK)
        st = td_comm_reduce_add(w->comm, rank, w->s[rank], w->part[rank].ptr, (size_t)w->rounds,
                                false, w->x[rank].ptr, err);
    if (st == TD_OK)
        st = ops->sync(w->s[rank], err);
    return st == TD_OK ? td_comm_check(w->comm, rank, err) : st;
}

static float as_float(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof f);
    return f;
}

static float to_bf16(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof u);
    return as_float((u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u);
}

static void test_comm_sums_in_rank_order(void **state)
{
    static uint16_t part[TD_COMM_RANKS][MOST];
    static float x[MOST], want[MOST];
    const int32_t sizes[] = {8, 2880, 4096 + 8, 16384, 16392, 40000, MOST};
    td_error err = {0};
    uint32_t rng = 12345;

    (void)state;
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        cuda_comm_tuning t = tuning(counts[c], c % 2 == 1);
        world w = open_world(counts[c], &t, 0);

        for (size_t z = 0; z < sizeof sizes / sizeof sizes[0]; z++) {
            size_t n = (size_t)sizes[z];

            for (size_t i = 0; i < n; i++) {
                float sum = 0;

                for (int32_t r = 0; r < w.n; r++) {
                    rng = rng * 1664525 + 1013904223;
                    part[r][i] = (uint16_t)((rng >> 16 & 0x87ff) + 0x3c00);
                    sum += as_float((uint32_t)part[r][i] << 16);
                }
                x[i] = (float)i;
                want[i] = (float)i + to_bf16(sum);
            }
            for (int32_t r = 0; r < w.n; r++) {
                check_ok(ops->dev_bind(w.dev[r], &err), &err);
                check_ok(ops->copy_in(w.s[r], w.part[r].ptr, part[r], n * 2, &err), &err);
                check_ok(ops->copy_in(w.s[r], w.x[r].ptr, x, n * 4, &err), &err);
                check_ok(ops->sync(w.s[r], &err), &err);
            }
            w.rounds = (int32_t)n;
            check_ok(td_ranks_run(w.ranks, sum_one, &w, &err), &err);
            for (int32_t r = 0; r < w.n; r++) {
                check_ok(ops->dev_bind(w.dev[r], &err), &err);
                check_ok(ops->copy_out(w.s[r], x, n * 4, w.x[r].ptr, n * 4, n * 4, 1, &err), &err);
                check_ok(ops->sync(w.s[r], &err), &err);
                for (size_t i = 0; i < n; i++)
                    if (memcmp(&x[i], &want[i], sizeof x[i]) != 0)
                        fail_msg("%d ranks, %zu elements: rank %d has %.9g at %zu, wanted %.9g",
                                 w.n, n, r, x[i], i, want[i]);
            }
        }
        close_world(&w);
    }
}

/* --- failures --------------------------------------------------------------------------------- */

typedef struct outcome {
    world *w;
    td_status st[TD_COMM_RANKS];
    td_error err[TD_COMM_RANKS];
} outcome;

/* A few calls, of which the rank that is absent makes only the first. */
static td_status run_short(void *ctx, int32_t rank, td_error *err)
{
    outcome *o = ctx;
    world *w = o->w;
    td_status st = ops->dev_bind(w->dev[rank], err);

    if (st == TD_OK)
        st = sum_once(w, rank, 0, 2880, err);
    for (int i = 1; st == TD_OK && i < 6 && rank != w->absent; i++) {
        if (w->gathers)
            st = gather_once(w, rank, err);
        if (st == TD_OK)
            st = sum_once(w, rank, i, sums[0][i + 2] * 8, err);
    }
    if (st == TD_OK)
        st = ops->sync(w->s[rank], err);
    if (st == TD_OK)
        st = td_comm_check(w->comm, rank, err);
    o->st[rank] = st;
    if (err != NULL)
        o->err[rank] = *err;
    return st;
}

static void test_comm_a_rank_that_stays_away(void **state)
{
    (void)state;
    for (int round = 0; round < 8; round++) {
        cuda_comm_tuning t = tuning(4, true);
        world w = open_world(4, &t, 300);
        outcome o = {.w = &w};
        char name[64];
        td_error err = {0};
        td_usec began = td_now_us();

        w.gathers = round % 2 == 1;
        w.absent = round / 2;
        assert_int_equal(td_ranks_run(w.ranks, run_short, &o, &err), TD_DEVICE);
        snprintf(name, sizeof name, "rank %d (device %d) did not come to ", w.absent,
                 w.absent % devices);
        print_message("report: %s\n", err.text);
        assert_non_null(strstr(err.text, name));
        assert_non_null(strstr(err.text, "in 0.3 s"));
        for (int32_t r = 0; r < w.n; r++) /* nobody accuses anybody else */
            if (o.st[r] == TD_DEVICE)
                assert_non_null(strstr(o.err[r].text, name));
        assert_true(td_now_us() - began < 5000000);
        td_comm_reset(w.comm);
        w.absent = -1;
        check_ok(td_ranks_run(w.ranks, run_short, &o, &err), &err);
        close_world(&w);
    }
}

static td_status wait_for_nobody(void *ctx, int32_t rank, td_error *err)
{
    world *w = ctx;
    td_event *begun = NULL;
    td_status st = ops->dev_bind(w->dev[rank], err);

    if (rank == w->absent) {
        td_comm_abort(w->comm);
        return td_fail(err, TD_INTERNAL, "rank %d fell over", rank);
    }
    if (st == TD_OK)
        st = ops->event_record(w->s[rank], &begun, err);
    if (st == TD_OK)
        st = td_comm_reduce_add(w->comm, rank, w->s[rank], w->part[rank].ptr, 2880, true,
                                w->x[rank].ptr, err);
    if (st == TD_OK)
        st = ops->sync(w->s[rank], err);
    return st == TD_OK ? td_comm_check(w->comm, rank, err) : st;
}

static void test_comm_an_abort_ends_all_waits(void **state)
{
    cuda_comm_tuning t = tuning(4, true);
    world w = open_world(4, &t, 60000);
    outcome o = {.w = &w};
    td_usec began = td_now_us();
    td_error err = {0};

    (void)state;
    for (int32_t round = 0; round < 20; round++) {
        w.absent = round % 4;
        assert_int_equal(td_ranks_run(w.ranks, wait_for_nobody, &w, &err), TD_INTERNAL);
        for (int32_t r = 0; r < w.n; r++)
            assert_int_equal(td_comm_check(w.comm, r, &err), TD_CANCELED);
        assert_int_equal(
            td_comm_reduce_add(w.comm, 0, w.s[0], w.part[0].ptr, 8, true, w.x[0].ptr, &err),
            TD_CANCELED);
        td_comm_reset(w.comm);
        w.absent = -1;
        check_ok(td_ranks_run(w.ranks, run_short, &o, &err), &err);
    }
    assert_true(td_now_us() - began < 10000000);
    close_world(&w);
}

static void test_comm_refusals(void **state)
{
    cuda_comm_tuning t = tuning(2, false);
    world w = open_world(2, &t, 0);
    td_dev *dev[9] = {w.dev[0], w.dev[1], w.dev[0], w.dev[0], w.dev[0],
                      w.dev[0], w.dev[0], w.dev[0], w.dev[0]};
    td_comm *none = NULL;
    td_error err = {0};

    (void)state;
    assert_int_equal(
        td_comm_reduce_add(w.comm, 0, w.s[0], w.part[0].ptr, 12, true, w.x[0].ptr, &err),
        TD_INVALID);
    assert_int_equal(
        td_comm_reduce_add(w.comm, 0, w.s[0], w.part[0].ptr, MOST + 8, true, w.x[0].ptr, &err),
        TD_INVALID);
    assert_non_null(strstr(err.text, "160000"));
    assert_int_equal(
        td_comm_reduce_add(w.comm, 0, w.s[0], (char *)w.part[0].ptr + 2, 8, true, w.x[0].ptr, &err),
        TD_INVALID);
    check_ok(td_comm_reduce_add(w.comm, 0, w.s[0], w.part[0].ptr, 0, true, w.x[0].ptr, &err), &err);
    assert_int_equal(
        td_comm_open(ops, &(td_comm_options){.dev = dev, .n = 9, .max_elements = 8}, &none, &err),
        TD_INVALID);
    assert_string_equal(err.param, "--tp");
    assert_null(none);
    close_world(&w);
}

int main(void)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_sums_in_rank_order),
        cmocka_unit_test(test_comm_rounds),
        cmocka_unit_test(test_comm_ranks_that_dawdle),
        cmocka_unit_test(test_comm_counters_wrap),
        cmocka_unit_test(test_comm_a_rank_that_pauses),
        cmocka_unit_test(test_comm_a_rank_that_stays_away),
        cmocka_unit_test(test_comm_an_abort_ends_all_waits),
        cmocka_unit_test(test_comm_refusals),
    };
    td_error err = {0};

    check_ok(td_ops_find("cuda", &ops, &err), &err);
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 1) {
        print_message("[  SKIPPED ] no CUDA device\n");
        return BACKEND_NOT_RUN;
    }
    return RUN_CHOSEN_TESTS(tests, NULL, NULL);
}
