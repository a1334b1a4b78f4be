/* worker_fault: a backend that breaks, for tests: what happens above it is then what happens when a
 * GPU does. Every forward pass begins with an embedding, so that is where it breaks. */
#include <stdatomic.h>
#include <unistd.h>

#include "common/log.h"
#include "common/worker_impl.h"

static td_ops faulty;
static const td_ops *real_ops;
static int64_t fault_at;
static _Atomic int64_t steps; /* ranks count in any order; nothing else is read by it */
static _Atomic bool begun;

static td_status faulty_embed(td_stream *s, const td_embed_args *a, td_error *err)
{
    int64_t n = atomic_load(&begun) ? atomic_fetch_add(&steps, 1) + 1 : 0;

    if (n != 0 && n == fault_at)
        return td_fail(err, TD_DEVICE, "step %lld was made to fail by --fault-step", (long long)n);
    if (n != 0 && n == -fault_at) {
        td_warn("fault_step", "step=%lld kind=hang", (long long)n);
        for (;;)
            pause();
    }
    return real_ops->embed(s, a, err);
}

const td_ops *worker_faulty_ops(const td_ops *real, int64_t n)
{
    real_ops = real;
    fault_at = n;
    faulty = *real;
    faulty.embed = faulty_embed;
    return &faulty;
}

void worker_faults_begin(void)
{
    atomic_store(&begun, true);
}
