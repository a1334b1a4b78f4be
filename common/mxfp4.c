#include "common/mxfp4.h"

#include <math.h>
#include <string.h>

#include "common/model_config.h"

static const float values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                 -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

float td_mxfp4_code(unsigned code)
{
    return values[code & 15];
}

float td_e8m0_to_float(uint8_t scale)
{
    /* 0 has no normal float: 2^-127 is half the smallest one. 255 << 23 would be infinity. */
    uint32_t bits = scale == 0             ? UINT32_C(0x00400000)
                    : scale == TD_E8M0_NAN ? UINT32_C(0x7fc00000)
                                           : (uint32_t)scale << 23;
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

uint8_t td_e8m0_of_exponent(int exponent)
{
    int s = exponent + TD_E8M0_BIAS;

    return (uint8_t)(s < 0 ? 0 : s > 254 ? 254 : s);
}

void td_mxfp4_decode_row(const uint8_t *codes, const uint8_t *scales, size_t n, float *out)
{
    for (size_t b = 0; b < n / TD_MXFP4_BLOCK; b++) {
        float s = td_e8m0_to_float(scales[b]);

        for (size_t i = 0; i < TD_MXFP4_BLOCK / 2; i++) {
            uint8_t byte = codes[b * (TD_MXFP4_BLOCK / 2) + i];

            out[b * TD_MXFP4_BLOCK + 2 * i] = values[byte & 15] * s;
            out[b * TD_MXFP4_BLOCK + 2 * i + 1] = values[byte >> 4] * s;
        }
    }
}

/* The code nearest to x, a value already divided by the scale. Between two magnitudes the bound is
 * their middle; a tie goes to the code whose mantissa bit is 0, which is the even code. */
static unsigned encode(float x)
{
    static const float middle[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    float a = fabsf(x);
    unsigned code = 0;

    while (code < 7 && (a > middle[code] || (a == middle[code] && code % 2 == 1)))
        code++;
    return code | (signbit(x) ? 8u : 0u);
}

static uint8_t block_scale(const float *x)
{
    float amax = 0.0f;
    int exponent = 0;

    for (size_t i = 0; i < TD_MXFP4_BLOCK; i++) {
        if (!isfinite(x[i]))
            return TD_E8M0_NAN;
        amax = fmaxf(amax, fabsf(x[i]));
    }
    if (amax == 0.0f)
        return TD_E8M0_BIAS;
    frexpf(amax, &exponent); /* amax = f * 2^exponent, f in [0.5, 1) */
    return td_e8m0_of_exponent(exponent - 1 - 2);
}

void td_mxfp4_quantize_row(const float *x, size_t n, uint8_t *codes, uint8_t *scales)
{
    for (size_t b = 0; b < n / TD_MXFP4_BLOCK; b++, x += TD_MXFP4_BLOCK) {
        uint8_t scale = block_scale(x);
        int exponent = TD_E8M0_BIAS - (int)scale;

        scales[b] = scale;
        for (size_t i = 0; i < TD_MXFP4_BLOCK / 2; i++) {
            unsigned lo = 0, hi = 0;

            /* ldexpf, not a product: 2^127 times a subnormal is exact, 1 / 2^-127 is not finite. */
            if (scale != TD_E8M0_NAN) {
                lo = encode(ldexpf(x[2 * i], exponent));
                hi = encode(ldexpf(x[2 * i + 1], exponent));
            }
            codes[b * (TD_MXFP4_BLOCK / 2) + i] = (uint8_t)(lo | hi << 4);
        }
    }
}

size_t td_e8m0_count_nan(const uint8_t *scales, size_t n)
{
    size_t bad = 0;

    for (size_t i = 0; i < n; i++)
        bad += scales[i] == TD_E8M0_NAN;
    return bad;
}
