/* comm_probe: see comm_probe.h. Slow and plain: what is tested is elsewhere. */
#include "tests/ops/comm_probe.h"

#include <cuda_bf16.h>

static const int THREADS = 256, BLOCKS = 16;

static __device__ unsigned int mix(unsigned int h)
{
    h ^= h >> 16;
    h *= 0x7feb352du;
    h ^= h >> 15;
    h *= 0x846ca68bu;
    return h ^ h >> 16;
}

/* Signs and 16 binades, so that the order of additions shows. */
static __device__ float value(unsigned int rank, unsigned int round, unsigned int i)
{
    const unsigned int h = mix(i + 0x9e3779b9u * mix(round * 16 + rank));

    return __uint_as_float((h & 0x80000000u) | (120 + (h >> 8 & 15)) << 23 | (h & 0x7f) << 16);
}

static __device__ float before(unsigned int round, unsigned int i)
{
    return value(15, round, i);
}

static __device__ void compare(probe *p, unsigned int round, unsigned int i, float got, float want)
{
    if (__float_as_uint(got) == __float_as_uint(want))
        return;
    if (atomicAdd(&p->wrong, 1u) == 0) {
        p->first_round = round;
        p->first_index = i;
        p->got = got;
        p->want = want;
    }
}

static __device__ void next_round(probe *p, unsigned int round)
{
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(&p->through, 1u) == gridDim.x - 1) {
        p->through = 0;
        p->round = round + 1;
    }
}

static __global__ void fill(const probe *p, int rank, unsigned int n, __nv_bfloat16 *part, float *x)
{
    const unsigned int round = *(const volatile unsigned int *)&p->round;

    for (unsigned int i = blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS) {
        part[i] = __float2bfloat16_rn(value(rank, round, i));
        x[i] = before(round, i);
    }
}

static __global__ void check(probe *p, int ranks, unsigned int n, bool clear, const float *x)
{
    const unsigned int round = *(const volatile unsigned int *)&p->round;

    for (unsigned int i = blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS) {
        float sum = 0.0f;

        for (int r = 0; r < ranks; r++)
            sum = __fadd_rn(sum, value(r, round, i));
        sum = __bfloat162float(__float2bfloat16_rn(sum));
        compare(p, round, i, x[i], clear ? sum : __fadd_rn(before(round, i), sum));
    }
    next_round(p, round);
}

static __global__ void fill_columns(const probe *p, int rows, int cols, int first, float *part)
{
    const unsigned int round = *(const volatile unsigned int *)&p->round;

    for (int i = blockIdx.x * THREADS + threadIdx.x; i < rows * cols; i += gridDim.x * THREADS)
        part[i] = value(i / cols, round, first + i % cols);
}

static __global__ void check_columns(probe *p, int rows, int total, const float *out)
{
    const unsigned int round = *(const volatile unsigned int *)&p->round;

    for (int i = blockIdx.x * THREADS + threadIdx.x; i < rows * total; i += gridDim.x * THREADS)
        compare(p, round, i, out[i], value(i / total, round, i % total));
    next_round(p, round);
}

static __device__ void wait_ns(unsigned long long ns)
{
    unsigned long long began, now;

    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(began));
    do
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (now - began < ns);
}

static __global__ void wait(unsigned long long ns)
{
    wait_ns(ns);
}

static __global__ void dawdle(const probe *p, int rank, unsigned int mask)
{
    wait_ns(mix(p->round * 8 + rank) & mask);
}

static int blocks(size_t n)
{
    const size_t b = (n + THREADS - 1) / THREADS;

    return b < 1 ? 1 : b < (size_t)BLOCKS ? (int)b : BLOCKS;
}

void probe_fill(cudaStream_t s, const probe *p, int32_t rank, size_t n, void *part, float *x)
{
    fill<<<blocks(n), THREADS, 0, s>>>(p, rank, (unsigned int)n, (__nv_bfloat16 *)part, x);
}

void probe_check(cudaStream_t s, probe *p, int32_t ranks, size_t n, bool clear, const float *x)
{
    check<<<blocks(n), THREADS, 0, s>>>(p, ranks, (unsigned int)n, clear, x);
}

void probe_fill_columns(cudaStream_t s, const probe *p, int32_t rows, int32_t cols, int32_t first,
                        float *part)
{
    fill_columns<<<blocks((size_t)rows * cols), THREADS, 0, s>>>(p, rows, cols, first, part);
}

void probe_check_columns(cudaStream_t s, probe *p, int32_t rows, int32_t total, const float *out)
{
    check_columns<<<blocks((size_t)rows * total), THREADS, 0, s>>>(p, rows, total, out);
}

void probe_wait(cudaStream_t s, unsigned long long ns)
{
    wait<<<1, 1, 0, s>>>(ns);
}

void probe_dawdle(cudaStream_t s, const probe *p, int32_t rank, unsigned int mask)
{
    dawdle<<<1, 1, 0, s>>>(p, rank, mask);
}
