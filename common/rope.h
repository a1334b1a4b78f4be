/* rope: YaRN's frequencies and the cos/sin tables of all positions.
 *
 * Frequencies are computed in double and rounded to f32 once; the angle is position * frequency in
 * f32, as the reference implementations have it (the model was trained with those angles, and far
 * out the rounding shows); cos and sin are taken of that angle in double. The attention factor is
 * multiplied into both. */
#ifndef TANDEM_COMMON_ROPE_H
#define TANDEM_COMMON_ROPE_H

#include <stdint.h>

#include "common/model_config.h"
#include "common/status.h"

typedef struct td_rope {
    int32_t n_positions, half; /* half = head_dim / 2 */
    float *cos, *sin;          /* [n_positions, half] */
} td_rope;

/* f[half]: radians a position. */
void td_rope_frequencies(const td_model_config *c, double *f);

/* YaRN's attention factor: 0.1 ln(factor) + 1. */
double td_rope_factor(const td_model_config *c);

TD_MUST_CHECK td_status td_rope_init(td_rope *r, const td_model_config *c, int32_t n_positions,
                                     td_error *err);
void td_rope_fini(td_rope *r); /* a zeroed one is fine */

#endif
