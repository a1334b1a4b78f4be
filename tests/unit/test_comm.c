/* Collectives of ranks that are threads (the CPU's): the gather. Sums and ranks that fail are in
 * test_model.c, those of the CUDA backend in tests/ops/test_ops_comm.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "common/comm.h"
#include "common/rank.h"

enum { RANKS = 4, ROWS = 3, TOTAL = 11, ROUNDS = 2000 };

static const int32_t first[RANKS + 1] = {0, 2, 2, 7, TOTAL}; /* rank 1 has no column */

typedef struct gathering {
    td_comm *comm;
    td_stream *stream;
    float part[RANKS][ROWS * TOTAL], out[ROWS * TOTAL];
    int32_t wrong, bad; /* rank 0's; the rank that fails, or -1 */
} gathering;

static void check_ok(td_status st, const td_error *err)
{
    if (st != TD_OK)
        fail_msg("%s: %s", td_status_name(st), err->text);
}

static float value(int32_t round, int32_t row, int32_t col)
{
    return (float)(round * 100 + row * TOTAL + col);
}

/* Rank 0 looks at each matrix while the others are already on their way to the next one. */
static td_status gather_rounds(void *ctx, int32_t rank, td_error *err)
{
    gathering *g = ctx;
    int32_t cols = first[rank + 1] - first[rank];

    for (int32_t round = 0; round < ROUNDS; round++) {
        for (int32_t i = 0; i < ROWS * cols; i++)
            g->part[rank][i] = value(round, i / cols, first[rank] + i % cols);
        td_status st = td_comm_gather(g->comm, rank, g->stream, g->part[rank], ROWS, cols,
                                      first[rank], TOTAL, g->out, err);
        if (st != TD_OK)
            return st;
        for (int32_t i = 0; rank == 0 && i < ROWS * TOTAL; i++)
            g->wrong += g->out[i] != value(round, i / TOTAL, i % TOTAL);
    }
    return td_comm_check(g->comm, rank, err);
}

static td_status gather_with_a_failure(void *ctx, int32_t rank, td_error *err)
{
    gathering *g = ctx;

    if (rank == g->bad) {
        td_comm_abort(g->comm);
        return td_fail(err, TD_DEVICE, "rank %d fell over", rank);
    }
    return td_comm_gather(g->comm, rank, g->stream, g->part[rank], ROWS, 1, rank, TOTAL, g->out,
                          err);
}

static void test_comm_gather(void **state)
{
    static gathering g = {.bad = -1};
    const td_ops *ops;
    td_dev *dev;
    td_ranks *ranks = NULL;
    td_error err = {0};

    (void)state;
    check_ok(td_ops_find("cpu", &ops, &err), &err);
    check_ok(ops->dev_open(&(td_dev_options){.threads = 1}, &dev, &err), &err);
    g.stream = ops->dev_stream(dev);
    check_ok(td_ranks_create(RANKS, &ranks, &err), &err);
    check_ok(td_comm_open(ops, &(td_comm_options){.n = RANKS}, &g.comm, &err), &err);
    check_ok(td_ranks_run(ranks, gather_rounds, &g, &err), &err);
    assert_int_equal(g.wrong, 0);
    for (g.bad = 0; g.bad < RANKS; g.bad++) {
        assert_int_equal(td_ranks_run(ranks, gather_with_a_failure, &g, &err), TD_DEVICE);
        assert_non_null(strstr(err.text, "fell over"));
        assert_int_equal(td_comm_check(g.comm, 0, &err), TD_CANCELED);
        td_comm_reset(g.comm);
        check_ok(td_comm_check(g.comm, 0, &err), &err);
    }
    check_ok(td_ranks_run(ranks, gather_rounds, &g, &err), &err);
    assert_int_equal(g.wrong, 0);
    td_comm_close(g.comm);
    td_ranks_free(ranks);
    ops->dev_close(dev);
}

static void test_comm_gather_refuses_columns_that_are_not_there(void **state)
{
    const td_ops *ops;
    td_comm *comm = NULL;
    float x[4] = {0};
    td_error err = {0};

    (void)state;
    check_ok(td_ops_find("cpu", &ops, &err), &err);
    check_ok(td_comm_open(ops, &(td_comm_options){.n = 1}, &comm, &err), &err);
    assert_int_equal(td_comm_gather(comm, 0, NULL, x, 1, 3, 2, 4, x, &err), TD_INVALID);
    assert_non_null(strstr(err.text, "columns 2 to 4"));
    assert_int_equal(td_comm_gather(comm, 0, NULL, x, 1, 1, -1, 4, x, &err), TD_INVALID);
    td_comm_close(comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_gather),
        cmocka_unit_test(test_comm_gather_refuses_columns_that_are_not_there),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
