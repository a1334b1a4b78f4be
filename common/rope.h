/* rope: YaRN's frequencies (Peng et al., arXiv:2309.00071, section 3.2) and the cos/sin tables of
 * all positions.
 *
 * Frequencies and angles are computed in f32, operation by operation as the reference
 * implementations do it: the model was trained with those angles, and a last bit of a frequency is
 * 1e-4 of a radian after a thousand positions. cos and sin of an angle are taken in double, times
 * YaRN's attention factor, and rounded once. */
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
void td_rope_frequencies(const td_model_config *c, float *f);

/* YaRN's attention factor: 0.1 ln(factor) + 1. */
double td_rope_factor(const td_model_config *c);

/* The tables of positions 0 .. n_positions - 1, to td_rope_fini(). TD_NOMEM; *r is then zero. */
TD_MUST_CHECK td_status td_rope_init(td_rope *r, const td_model_config *c, int32_t n_positions,
                                     td_error *err);
void td_rope_fini(td_rope *r); /* a zeroed one is fine */

#endif
