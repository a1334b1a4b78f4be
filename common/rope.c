/* rope: see rope.h. */
#define _GNU_SOURCE /* sincos */
#include "common/rope.h"

#include <math.h>
#include <stdlib.h>

/* The dimension that turns `rotations` times over the original context. */
static double correction_dim(const td_model_config *c, double rotations)
{
    return c->head_dim * log(c->yarn_original_positions / (rotations * 2 * M_PI)) /
           (2 * log(c->rope_theta));
}

void td_rope_frequencies(const td_model_config *c, float *f)
{
    double low = correction_dim(c, c->yarn_beta_fast), high = correction_dim(c, c->yarn_beta_slow);

    if (c->yarn_truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, c->head_dim - 1);
    if (low == high)
        high += 0.001;
    for (int32_t i = 0; i < c->head_dim / 2; i++) {
        float exponent = (float)(2 * i) / (float)c->head_dim;
        float turn = (float)pow(c->rope_theta, exponent); /* positions a radian */
        float ramp = fminf(fmaxf(((float)i - (float)low) / (float)(high - low), 0), 1);
        float keep = 1 - ramp;
        float stretched = 1 / ((float)c->yarn_factor * turn) * (1 - keep), kept = 1 / turn * keep;

        f[i] = stretched + kept;
    }
}

double td_rope_factor(const td_model_config *c)
{
    return c->yarn_factor > 1 ? 0.1 * log(c->yarn_factor) + 1 : 1;
}

td_status td_rope_init(td_rope *r, const td_model_config *c, int32_t n_positions, td_error *err)
{
    int32_t half = c->head_dim / 2;
    size_t n = (size_t)n_positions * (size_t)half;
    double factor = td_rope_factor(c);
    float *f = malloc((size_t)half * sizeof *f);

    *r = (td_rope){.n_positions = n_positions, .half = half};
    r->cos = malloc(n * sizeof *r->cos);
    r->sin = malloc(n * sizeof *r->sin);
    if (f == NULL || r->cos == NULL || r->sin == NULL) {
        free(f);
        td_rope_fini(r);
        return td_fail(err, TD_NOMEM, "rope: no memory for %d positions", n_positions);
    }
    td_rope_frequencies(c, f);
    for (int32_t p = 0; p < n_positions; p++)
        for (int32_t i = 0; i < half; i++) {
            float angle = (float)p * f[i]; /* rounded to f32 */
            double s, co;

            sincos(angle, &s, &co);
            r->cos[(size_t)p * (size_t)half + (size_t)i] = (float)(factor * co);
            r->sin[(size_t)p * (size_t)half + (size_t)i] = (float)(factor * s);
        }
    free(f);
    return TD_OK;
}

void td_rope_fini(td_rope *r)
{
    free(r->cos);
    free(r->sin);
    *r = (td_rope){0};
}
