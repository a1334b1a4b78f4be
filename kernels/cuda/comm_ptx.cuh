/* comm_ptx: loads and stores that order memory between devices, each named after itself. */
#ifndef TANDEM_KERNELS_CUDA_COMM_PTX_CUH
#define TANDEM_KERNELS_CUDA_COMM_PTX_CUH

#include <stdint.h>

/* What this thread, and through a barrier its block, wrote before is there for whoever acquires. */
__device__ __forceinline__ void st_release_sys(unsigned long long *p, unsigned long long v)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;\n" ::"l"(p), "l"(v) : "memory");
}
__device__ __forceinline__ unsigned long long ld_acquire_sys(const unsigned long long *p)
{
    unsigned long long v;

    asm volatile("ld.acquire.sys.global.u64 %0, [%1];\n" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ unsigned int ld_relaxed_sys(const unsigned int *p)
{
    unsigned int v;

    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];\n" : "=r"(v) : "l"(p) : "memory");
    return v;
}
/* Each aligned half of 8 bytes arrives whole. */
__device__ __forceinline__ void st_volatile_128(void *p, uint4 v)
{
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"l"(p), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
}
__device__ __forceinline__ uint4 ld_volatile_128(const void *p)
{
    uint4 v;

    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
__device__ __forceinline__ unsigned long long globaltimer_ns()
{
    unsigned long long t;

    asm volatile("mov.u64 %0, %globaltimer;\n" : "=l"(t)::"memory");
    return t;
}

#endif
