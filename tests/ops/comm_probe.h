/* comm_probe: kernels that feed collectives and check every element of what comes out, on the
 * device: a function of rank, round and index that the checker works out again.
 *
 * The round is a number in device memory that the last check of a round raises, so that a captured
 * graph sends other data in every replay. */
#ifndef TANDEM_TESTS_OPS_COMM_PROBE_H
#define TANDEM_TESTS_OPS_COMM_PROBE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct probe { /* device memory, one a rank; zeroed at the start */
    unsigned int round, through;
    unsigned int wrong; /* elements so far */
    unsigned int first_round, first_index;
    float got, want; /* of the first */
} probe;

/* part[i] = a bf16 of this rank and round; x[i] = what x holds before the sum. */
void probe_fill(cudaStream_t s, const probe *p, int32_t rank, size_t n, void *part, float *x);
/* x against the sum over ranks in rank order, rounded to bf16; then the next round. */
void probe_check(cudaStream_t s, probe *p, int32_t ranks, size_t n, bool clear, const float *x);
/* Columns for a gather, and rank 0's matrix. */
void probe_fill_columns(cudaStream_t s, const probe *p, int32_t rows, int32_t cols, int32_t first,
                        float *part);
void probe_check_columns(cudaStream_t s, probe *p, int32_t rows, int32_t total, const float *out);
/* The stream waits for ns nanoseconds, or at random for up to mask. */
void probe_wait(cudaStream_t s, unsigned long long ns);
void probe_dawdle(cudaStream_t s, const probe *p, int32_t rank, unsigned int mask);

#ifdef __cplusplus
}
#endif
#endif
