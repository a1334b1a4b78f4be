/* hopper: single instructions of sm_90a, each named after itself: mbarriers, bulk and tensor
 * copies, warpgroup matrix multiplies, register hand-over, dependent launches.
 *
 * Shared addresses are 32-bit, as smem_addr() of ptx.cuh gives them. An instruction that must be
 * issued once (copies, arrivals with a byte count, mbarrier_init) is issued by one elected thread;
 * the caller sees to that. The matrix multiplies themselves are with the kernels that choose their
 * shapes; here is what orders them and how their operands in shared memory are described. */
#ifndef TANDEM_KERNELS_CUDA_HOPPER_CUH
#define TANDEM_KERNELS_CUDA_HOPPER_CUH

#include <cuda.h> /* CUtensorMap; types only, nothing of libcuda is called */
#include <stdint.h>

#include "kernels/cuda/ptx.cuh"

/* --- mbarriers: 8 bytes of shared memory each ------------------------------------------------
 *
 * A phase ends when `count` arrivals and all announced bytes have come. Waiting names the phase's
 * parity: whoever consumes starts with 0; a producer that may fill at once starts with 1, which a
 * fresh barrier counts as past. Parity flips each time round the ring. */

__device__ __forceinline__ void mbarrier_init(uint32_t bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(bar), "r"(count) : "memory");
}
/* After the inits, before the __syncthreads() (or cluster barrier) that shows them to others; the
 * copy engine sees them too. */
__device__ __forceinline__ void fence_mbarrier_init()
{
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(bar) : "memory");
}
/* A warp's arrivals at a barrier that says it has read or written: by lane 0, once all lanes have
 * come to __syncwarp(). compute-sanitizer's racecheck does not see through that, and takes every
 * access of the other lanes for a race; in a build for it (TANDEM_RACECHECK) every lane arrives. */
#ifdef TANDEM_RACECHECK
constexpr int WARP_ARRIVALS = 32;
#else
constexpr int WARP_ARRIVALS = 1;
#endif
__device__ __forceinline__ void mbarrier_arrive_warp(uint32_t bar, int lane)
{
    __syncwarp();
    if (lane < WARP_ARRIVALS)
        mbarrier_arrive(bar);
}
/* One arrival that also announces bytes of copies. Boxes of a tensor copy count in full, whatever
 * of them lies outside the tensor. */
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(bar), "r"(bytes)
                 : "memory");
}
/* Arrive at the barrier at the same offset in a block of the cluster. Tells it that shared memory
 * has been read, no more: a release to the whole cluster would be a fence of the whole device,
 * every time. */
__device__ __forceinline__ void mbarrier_arrive_cluster(uint32_t bar, uint32_t rank)
{
    asm volatile("{\n"
                 ".reg .b32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
                 "}\n" ::"r"(bar),
                 "r"(rank)
                 : "memory");
}
__device__ __forceinline__ bool mbarrier_test_wait(uint32_t bar, uint32_t parity)
{
    uint32_t done;

    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}\n"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return done != 0;
}
/* May suspend the thread for a while that the hardware bounds. */
__device__ __forceinline__ bool mbarrier_try_wait(uint32_t bar, uint32_t parity)
{
    uint32_t done;

    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}\n"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return done != 0;
}
/* Until the phase of that parity has ended. Also orders what the copies brought before what
 * follows, for every proxy. */
__device__ __forceinline__ void mbarrier_wait(uint32_t bar, uint32_t parity)
{
    while (!mbarrier_try_wait(bar, parity)) {
    }
}

/* Where one is in a ring of N stages. */
template <int N> struct ring_place {
    uint32_t stage, parity;

    __device__ __forceinline__ void next()
    {
        if (++stage == N) {
            stage = 0;
            parity ^= 1;
        }
    }
};

/* --- fences and roles ---------------------------------------------------------------------- */

/* Shared memory written by ordinary stores is about to be read by wgmma or a copy, or the other way
 * round: each thread that touched it, before the barrier. */
__device__ __forceinline__ void fence_proxy_async_shared()
{
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}
/* The same for global memory: ordinary stores, then tensor or bulk copies that read. */
__device__ __forceinline__ void fence_proxy_async()
{
    asm volatile("fence.proxy.async;\n" ::: "memory");
}
/* Takes effect in kernels with __launch_bounds__(threads, 1) only; multiples of 8. */
template <int REGS> __device__ __forceinline__ void setmaxnreg_inc()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(REGS));
}
template <int REGS> __device__ __forceinline__ void setmaxnreg_dec()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(REGS));
}
/* Named barrier 1 .. 15 (0 is __syncthreads) among `threads`, a multiple of 32. */
__device__ __forceinline__ void bar_sync(uint32_t id, uint32_t threads)
{
    asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void bar_arrive(uint32_t id, uint32_t threads)
{
    asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
/* True in one lane of a converged warp. */
__device__ __forceinline__ bool elect_one()
{
    uint32_t elected;

    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "elect.sync _|p, 0xffffffff;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}\n"
                 : "=r"(elected));
    return elected != 0;
}
/* Dependent launches: the next kernel of the stream may start its preamble; wait until the previous
 * one has ended and its memory is visible. Only wait promises anything about memory. */
__device__ __forceinline__ void griddepcontrol_launch_dependents()
{
    asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
}
__device__ __forceinline__ void griddepcontrol_wait()
{
    asm volatile("griddepcontrol.wait;\n" ::: "memory");
}

/* --- copies -------------------------------------------------------------------------------- */

/* What L2 should think of the bytes, as an operand of the copies. */
enum : uint64_t {
    L2_EVICT_NORMAL = 0x1000000000000000ull,
    L2_EVICT_FIRST = 0x12f0000000000000ull,
    L2_EVICT_LAST = 0x14f0000000000000ull
};

/* Global to shared, both at 16-byte boundaries, a multiple of 16 bytes; completes on bar. */
__device__ __forceinline__ void cp_async_bulk(uint32_t dst, const void *src, uint32_t bytes,
                                              uint32_t bar, uint64_t hint)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;\n" ::"r"(dst),
                 "l"(src), "r"(bytes), "r"(bar), "l"(hint)
                 : "memory");
}
/* Global memory into L2 only; the same rules for address and size. */
__device__ __forceinline__ void cp_async_bulk_prefetch(const void *src, uint32_t bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;\n" ::"l"(src), "r"(bytes) : "memory");
}

__device__ __forceinline__ void tensor_map_prefetch(const CUtensorMap *m)
{
    asm volatile("prefetch.tensormap [%0];\n" ::"l"(m) : "memory");
}
/* A box of the tensor whose first element is (c0, c1[, c2]), c0 along the contiguous side. c0 times
 * the element's size must be a multiple of 16; otherwise this is an illegal instruction. */
__device__ __forceinline__ void cp_async_tensor_2d(uint32_t dst, const CUtensorMap *m, int c0,
                                                   int c1, uint32_t bar, uint64_t hint)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;\n" ::"r"(dst),
                 "l"(m), "r"(c0), "r"(c1), "r"(bar), "l"(hint)
                 : "memory");
}
__device__ __forceinline__ void cp_async_tensor_3d(uint32_t dst, const CUtensorMap *m, int c0,
                                                   int c1, int c2, uint32_t bar, uint64_t hint)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;\n" ::"r"(dst),
                 "l"(m), "r"(c0), "r"(c1), "r"(c2), "r"(bar), "l"(hint)
                 : "memory");
}
/* The same to every block of the cluster in `blocks` (a bit each), at the same offset in its shared
 * memory, completing on the barrier at the same offset. */
__device__ __forceinline__ void cp_async_tensor_3d_multicast(uint32_t dst, const CUtensorMap *m,
                                                             int c0, int c1, int c2, uint32_t bar,
                                                             uint16_t blocks, uint64_t hint)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6, %7;\n" ::"r"(dst),
        "l"(m), "r"(c0), "r"(c1), "r"(c2), "r"(bar), "h"(blocks), "l"(hint)
        : "memory");
}
__device__ __forceinline__ void cp_async_tensor_2d_multicast(uint32_t dst, const CUtensorMap *m,
                                                             int c0, int c1, uint32_t bar,
                                                             uint16_t blocks, uint64_t hint)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;\n" ::"r"(dst),
        "l"(m), "r"(c0), "r"(c1), "r"(bar), "h"(blocks), "l"(hint)
        : "memory");
}
/* Shared to global; rows and columns outside the tensor are not written. Then commit and wait. */
__device__ __forceinline__ void cp_async_tensor_2d_store(const CUtensorMap *m, uint32_t src, int c0,
                                                         int c1)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], "
                 "[%3];\n" ::"l"(m),
                 "r"(c0), "r"(c1), "r"(src)
                 : "memory");
}
__device__ __forceinline__ void cp_async_bulk_commit()
{
    asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}
/* All but the newest N groups of stores have read their shared memory, which may be written again.
 */
template <int N> __device__ __forceinline__ void cp_async_bulk_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(N) : "memory");
}

/* --- clusters ------------------------------------------------------------------------------ */

__device__ __forceinline__ uint32_t cluster_ctarank()
{
    uint32_t r;

    asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(r));
    return r;
}
/* At the same offset in the shared memory of a block of the cluster. */
__device__ __forceinline__ void st_cluster_b32(uint32_t addr, uint32_t rank, uint32_t x)
{
    asm volatile("{\n"
                 ".reg .b32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %0, %1;\n"
                 "st.shared::cluster.b32 [remote], %2;\n"
                 "}\n" ::"r"(addr),
                 "r"(rank), "r"(x)
                 : "memory");
}
/* The two halves of a barrier that promises nothing about memory, only that all have come. */
__device__ __forceinline__ void barrier_cluster_arrive_relaxed()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void barrier_cluster_wait()
{
    asm volatile("barrier.cluster.wait.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void barrier_cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;\n" ::
                     : "memory");
}

/* --- wgmma --------------------------------------------------------------------------------- */

/* Before the first multiply, and whenever other code wrote its registers. */
__device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
/* All but the newest N groups are done: their accumulators may be read, their operands overwritten.
 */
template <int N> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(N) : "memory");
}
/* Keeps the compiler from moving uses of an accumulator over a fence or a wait. */
template <int N> __device__ __forceinline__ void wgmma_pin(float (&r)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(r[i])::"memory");
}

/* An operand with 128-byte swizzle, at a 1024-byte boundary (chunk c of 16 bytes of row r lies at
 * c ^ (r & 7), as tensor copies with that swizzle write it).
 *
 * K-major: rows of 128 bytes along K; groups of 8 rows lie one after the other. The next step along
 * K within a row is `desc + bytes / 16`; 64 rows further are `desc + 512`. */
__device__ __forceinline__ uint64_t wgmma_desc(uint32_t addr)
{
    return (uint64_t)((addr & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}
/* MN-major (16-bit types): rows of 128 bytes along M or N, 64 elements, one row a step of K; groups
 * of 8 rows lie one after the other, so 16 of K are `desc + 128`. The next 64 elements along M or N
 * begin `mn_stride` bytes on (not used by an operand of 64). */
__device__ __forceinline__ uint64_t wgmma_desc_mn(uint32_t addr, uint32_t mn_stride)
{
    return (uint64_t)((addr & 0x3ffff) >> 4) | (uint64_t)((mn_stride & 0x3ffff) >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

__device__ __forceinline__ uint4 ld_shared_128(uint32_t addr)
{
    uint4 v;

    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(addr)
                 : "memory");
    return v;
}

#endif
