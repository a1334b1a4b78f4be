/* comm: collectives between GPUs of one process, over each other's memory. Shared by comm_host.c,
 * which opens them and chooses, and the files of kernels.
 *
 * Every rank has an arena that all ranks may write: they push, and a rank reads only its own
 * memory. Calls are numbered in device memory by the kernels themselves, so nothing changes from
 * one replay of a graph to the next. Call e uses half e & 1 of the receive buffers. Two halves are
 * enough: a kernel ends when every other rank's data of its call has come; whoever sends data of
 * call e + 1 has finished call e, so who starts call e + 2 knows that nobody reads call e's half
 * any more. Flags are 64-bit numbers that only grow (call << 16 | step), compared with >=: nothing
 * is reset between calls, and a stale flag is always a smaller one.
 *
 * Which way a reduction goes depends on its size alone, and the sum is the same to the bit in all
 * of them: parts added in rank order in f32, rounded to bf16 once.
 *
 *   packets   each 8 bytes carry 4 of data and the call's tag, so data is its own flag: twice the
 *             bytes, and one trip instead of data, fence and flag. The smallest sizes.
 *   one shot  every rank gets every part, then a flag a block.
 *   two shot  rank r gets the parts of the r-th segment, sums it and pushes the result: two hops,
 *             2 (n - 1) / n of the bytes instead of n - 1 times. In slices of slice_bytes.
 *
 * NCCL is not used: two shot moves the bytes that NCCL's rings move, adds in rank order, rounds
 * once instead of at every hop, writes x itself, and has one way to fail; bench/comm_cuda.c prints
 * NCCL's times beside these.
 *
 * On one H200 that ranks share (bench/comm_cuda 2 and 4), so without links, one token of gpt-oss
 * takes 2.5 us with two ranks and 3.6 with four, of which 1.2 are a launch; packets beat one shot
 * up to 8 tokens. */
#ifndef TANDEM_KERNELS_CUDA_COMM_H
#define TANDEM_KERNELS_CUDA_COMM_H

#include "kernels/cuda/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TD_COMM_RANKS = 8,    /* one host's GPUs */
    TD_COMM_BLOCKS = 264, /* most blocks of a collective kernel: two on each SM */
};

typedef enum cuda_comm_flag {
    COMM_PARTS,   /* parts of this step of this call have been pushed */
    COMM_RESULTS, /* sums have */
    COMM_ROOM,    /* gather: rank 0's matrix may be written */
    COMM_COLUMNS, /* gather: this block's share has been written */
    COMM_KINDS
} cuda_comm_flag;

/* Which sequence of calls: each has its own numbers, because their halves are argued apart. */
typedef enum cuda_comm_series { COMM_REDUCE, COMM_GATHER, COMM_SERIES } cuda_comm_series;

/* In device memory, written by the rank's own kernels only. */
typedef struct cuda_comm_state {
    unsigned long long call[COMM_SERIES]; /* number of the next call, from 1 on */
    unsigned int through[COMM_SERIES];    /* blocks of the running call that have finished */
    unsigned int dead;                    /* a wait failed: later kernels do nothing */
    unsigned int told;                    /* a wait is in the report */
} cuda_comm_state;

/* In device memory, written by all ranks. A block's flags share a line, so that one request polls
 * them all. */
typedef struct cuda_comm_flags {
    unsigned long long at[COMM_KINDS][TD_COMM_BLOCKS][TD_COMM_RANKS];
} cuda_comm_flags;

/* In host memory that the devices map: for whom a rank has been waiting for long. */
typedef struct cuda_comm_report {
    unsigned long long call, expected, seen;
    int32_t series, source;
    unsigned int waits;   /* release: the rest is there; partner: the host's check */
    unsigned int gave_up; /* it waited to the limit, and aborted the comm */
} cuda_comm_report;

/* What a rank's kernels are told; fixed from open to close. */
typedef struct cuda_comm_view {
    int32_t rank, n;
    bool early;                  /* dependent launches: never where ranks share a GPU */
    unsigned long long limit_ns; /* of one wait */
    unsigned int delay_mask;     /* tests: ns to wait at random between push and wait; 0: none */
    cuda_comm_state *state;
    unsigned int *abort; /* mapped host memory: somebody gave up */
    cuda_comm_report *report;
    cuda_comm_flags *flags[TD_COMM_RANKS];
    char *arena[TD_COMM_RANKS];
    /* Offsets in every arena; one half and one source's share of it, in bytes. */
    size_t packets, packets_half, packets_source;
    size_t parts, parts_half, parts_source;    /* one shot */
    size_t pieces, pieces_half, pieces_source; /* two shot */
    size_t results, results_half;
} cuda_comm_view;

typedef struct cuda_comm_reduce {
    size_t n; /* elements, a multiple of TD_COMM_UNIT */
    const void *part;
    float *x;
    bool clear;
    int32_t blocks;
} cuda_comm_reduce;

void td_cuda_comm_packets(cudaStream_t s, const cuda_comm_view *v, const cuda_comm_reduce *r);
void td_cuda_comm_one_shot(cudaStream_t s, const cuda_comm_view *v, const cuda_comm_reduce *r);
void td_cuda_comm_two_shot(cudaStream_t s, const cuda_comm_view *v, const cuda_comm_reduce *r);
void td_cuda_comm_gather(cudaStream_t s, const cuda_comm_view *v, const td_gather_args *a,
                         int32_t blocks);

/* Units of 8 elements: 16 bytes of bf16. */
enum {
    TD_COMM_UNIT = 8,
    TD_COMM_SMALL_THREADS = 128, /* packets */
    TD_COMM_THREADS = 512,       /* one shot, gather */
    TD_COMM_LONG_THREADS = 256   /* two shot: two blocks on an SM, one copies while one waits */
};

typedef struct cuda_comm_tuning {
    size_t packet_bytes;           /* messages up to this size go as packets */
    size_t one_shot_bytes;         /* up to this, in one shot */
    size_t slice_bytes;            /* most of one two-shot launch */
    int32_t blocks;                /* most of one kernel */
    bool early;                    /* see cuda_comm_view */
    unsigned int delay_mask;       /* see cuda_comm_view */
    unsigned long long first_call; /* tests: the number of the first call; at least 1 */
} cuda_comm_tuning;

/* shared: most ranks on one GPU. */
cuda_comm_tuning td_cuda_comm_tuning(int32_t n, int32_t shared);

td_status td_cuda_comm_open(const td_comm_options *o, td_comm **out, td_error *err);
size_t td_cuda_comm_bytes(const td_comm_options *o); /* a rank's arena, some 130 MiB at most */
td_status td_cuda_comm_open_tuned(const td_comm_options *o, const cuda_comm_tuning *t,
                                  td_comm **out, td_error *err);

#ifdef __cplusplus
}
#endif
#endif
