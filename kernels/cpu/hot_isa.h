/* hot_isa: what the hot_*.c files of one instruction set share. */
#ifndef TANDEM_KERNELS_CPU_HOT_ISA_H
#define TANDEM_KERNELS_CPU_HOT_ISA_H

#include "kernels/cpu/hot.h"

#ifndef TD_ISA
#error "compile with -DTD_ISA=generic, avx2 or avx512"
#endif

void HOT(cpu_gemm)(const cpu_gemm_piece *p);
void HOT(cpu_attn)(const cpu_attn_piece *p);

/* y[m] (32 columns) += x[m][x0 + k] * w[k] for k0 <= k < k1; starts from init if it is not NULL. */
void HOT(cpu_panel_f32)(const float *w, int32_t k0, int32_t k1, const float *const *x, int32_t x0,
                        int32_t M, const float *init, float *y, int64_t ldy);

#endif
