/* hist: a latency histogram for tools: exact enough to quote, small enough to keep one a thread.
 *
 * Log-linear: each power of two is cut into 128 equal buckets, so a recorded value is known to
 * within 1/256 of itself (values below 256 exactly); any uint64_t fits. Not thread-safe: one a
 * thread, merged at the end. About 58 KiB, so do not put it on a small stack. */
#ifndef TANDEM_COMMON_HIST_H
#define TANDEM_COMMON_HIST_H

#include <stddef.h>
#include <stdint.h>

enum { TD_HIST_BUCKETS = 256 + 56 * 128 };

/* Zero-initialise to start empty. */
typedef struct td_hist {
    uint64_t count, min, max;
    double sum,
        sum_sq; /* of the values themselves: mean and deviation are not rounded to buckets */
    uint64_t bucket[TD_HIST_BUCKETS];
} td_hist;

void td_hist_add(td_hist *h, uint64_t us);
void td_hist_merge(td_hist *into, const td_hist *from);

/* The smallest recorded value v (to within its bucket) such that at least q of all records are
 * <= v; q in 0..1, so 0.5 is the median. Never below min or above max. 0 when empty. */
uint64_t td_hist_quantile(const td_hist *h, double q);
double td_hist_mean(const td_hist *h);   /* 0 when empty */
double td_hist_stddev(const td_hist *h); /* of the population; 0 when empty */

#endif
