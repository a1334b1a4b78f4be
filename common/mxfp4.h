/* mxfp4: the 4-bit weights of a checkpoint, to and from float (OCP Microscaling Formats, v1.0).
 *
 * A block is 32 consecutive elements of a row: 16 bytes of codes (element 2i in the low nibble of
 * byte i, 2i+1 in the high one) and one scale byte. A code is E2M1 (sign, two exponent bits, one
 * mantissa bit); the scale is E8M0: 2^(byte - 127), 255 is NaN. Plain loops, for reference, tests
 * and conversion at load: the kernels have their own. Pure functions. */
#ifndef TANDEM_COMMON_MXFP4_H
#define TANDEM_COMMON_MXFP4_H

#include <stddef.h>
#include <stdint.h>

enum { TD_E8M0_BIAS = 127, TD_E8M0_NAN = 255 };

/* The value of a code; only the low nibble is looked at. Code 8 is -0. */
float td_mxfp4_code(unsigned code);

/* 2^(scale - 127), exactly, 0 being the subnormal 2^-127; NaN for 255. */
float td_e8m0_to_float(uint8_t scale);

/* The scale byte of 2^exponent, cut to what a byte can say: 0 .. 254. */
uint8_t td_e8m0_of_exponent(int exponent);

/* n elements, a multiple of 32: codes [n/2], scales [n/32], out [n]. Exact wherever the product is
 * a float, which is every scale from 0 to 252; larger ones may give infinity. */
void td_mxfp4_decode_row(const uint8_t *codes, const uint8_t *scales, size_t n, float *out);

/* The other way, as the OCP format says: a block's exponent is that of its largest magnitude less
 * 2, codes are the nearest (ties to even), magnitudes past 6 become 6. A block of zeros gets scale
 * 127; a block with a value that is not finite gets 255. Decoding a row and quantising it again
 * gives the same values, not always the same bytes. */
void td_mxfp4_quantize_row(const float *x, size_t n, uint8_t *codes, uint8_t *scales);

/* How many of n scale bytes are NaN; a sound checkpoint has none. */
size_t td_e8m0_count_nan(const uint8_t *scales, size_t n);

#endif
