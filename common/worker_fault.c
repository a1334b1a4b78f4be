/* worker_fault: a backend that breaks, for tests: what happens above it is then what happens when a
 * GPU does. Every forward pass begins with an embedding, or is a graph that was made of one, so
 * that is where it breaks. */
#include <stdatomic.h>
#include <unistd.h>

#include "common/log.h"
#include "common/worker_impl.h"

static td_ops faulty;
static const td_ops *real_ops;
static int64_t fault_at;
static _Atomic int64_t steps; /* ranks count in any order; nothing else is read by it */
static _Atomic bool begun;

static td_status count_step(td_error *err)
{
    int64_t n = atomic_load(&begun) ? atomic_fetch_add(&steps, 1) + 1 : 0;

    if (n != 0 && n == fault_at)
        return td_fail(err, TD_DEVICE, "step %lld was made to fail by --fault-step", (long long)n);
    if (n != 0 && n == -fault_at) {
        td_warn("fault_step", "step=%lld kind=hang", (long long)n);
        for (;;)
            pause();
    }
    return TD_OK;
}

static td_status faulty_embed(td_stream *s, const td_embed_args *a, td_error *err)
{
    td_status st = count_step(err);

    return st == TD_OK ? real_ops->embed(s, a, err) : st;
}

static td_status faulty_graph_launch(td_stream *s, td_graph *g, td_error *err)
{
    td_status st = count_step(err);

    return st == TD_OK ? real_ops->graph_launch(s, g, err) : st;
}

const td_ops *worker_faulty_ops(const td_ops *real, int64_t n)
{
    real_ops = real;
    fault_at = n;
    faulty = *real;
    faulty.embed = faulty_embed;
    if (real->graph_launch != NULL)
        faulty.graph_launch = faulty_graph_launch;
    return &faulty;
}

void worker_faults_begin(void)
{
    atomic_store(&begun, true);
}
