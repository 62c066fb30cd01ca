/* SPDX-License-Identifier: Apache-2.0 */
/* LogFMT: 10 bits an element, a sign and a code of 9 bits. Code 0 is zero. Codes 1 … 511 are evenly spaced in log2 of
 * the magnitude, between the least and the largest magnitude of a group of 128. Zeros do not count for the least one,
 * and it is raised to at least 2^-32 of the largest one. These two are the group's head.
 *
 * A group goes as BF16, with the head {0, 0}, if its largest magnitude is not in [2^-94, 1) or all its magnitudes are
 * equal. So infinity and NaN pass one by one. The limit of 2^-94 keeps all numbers here normal.
 *
 * A coded group has the low bytes of its 128 elements, then 32 bytes. Each of these has the two upper bits of four
 * elements, the first one lowest. Other groups are 256 bytes of BF16. Groups of a row follow each other without gaps.
 *
 * Logarithms and powers are polynomials, in products and sums that are rounded one by one. For a difference of two
 * logarithms, the whole parts are subtracted apart from the fractions, so a small difference keeps its bits. This
 * header compiles where number.h does, and codec.h includes it. */
#ifndef EXPAR_PROTO_CODEC_LOGFMT_H
#define EXPAR_PROTO_CODEC_LOGFMT_H

#include "proto/codec/number.h"

#define LOGFMT_GROUP       128
#define LOGFMT_STEPS       510 /* from the least magnitude to the largest one */
#define LOGFMT_CODED_BYTES 160 /* a group */
#define LOGFMT_BF16_BYTES  256
#define LOGFMT_LOW_BYTES   128 /* of a coded group, before the upper bits */

/* 1.5 · 2^23. A number plus this has the nearest whole number in its lowest bits. */
#define LOGFMT_ROUND 12582912.0f

/* ---- logarithms and powers --------------------------------------------------------------------------------------- */

/* log2 of a positive number: exponent + fraction, the fraction in [-1/2, 1/2]. */
typedef struct logfmt_log {
    int32_t exponent;
    float fraction;
} logfmt_log;

/* Horner's rule. */
PORTABLE_FUNC float logfmt_next_term(float sum, float x, float coefficient)
{
    return number_add(number_multiply(sum, x), coefficient);
}
/* Terms of log2(1 + z) / z, the highest power first, in Chebyshev's approximation of degree 7. Its error is less than
   3.2e-7. */
#define LOGFMT_LOG_FIRST -0x1.245f38p-3f
#define LOGFMT_LOG_TERMS(ADD)                                                                                          \
    ADD(0x1.dc78f4p-3f)                                                                                                \
    ADD(-0x1.fe823ap-3f)                                                                                               \
    ADD(0x1.262f0ep-2f) ADD(-0x1.70dedep-2f) ADD(0x1.ec756ep-2f) ADD(-0x1.71552cp-1f) ADD(0x1.715476p+0f)
#define LOGFMT_ADD_TERM(coefficient) sum = logfmt_next_term(sum, z, coefficient);

/* Returns the log2 of a normal number. The number is a power of two times a number between √½ and √2, which the
   polynomial takes. */
PORTABLE_FUNC logfmt_log logfmt_log_of(uint32_t magnitude)
{
    const uint32_t root_half = 0x3f3504f3u;
    logfmt_log log;
    uint32_t beyond = magnitude - root_half;
    log.exponent = (int32_t)beyond >> 23;
    float z = number_add(number_of_bits((beyond & 0x7fffffu) + root_half), -1.0f);
    float sum = LOGFMT_LOG_FIRST;
    LOGFMT_LOG_TERMS(LOGFMT_ADD_TERM)
    log.fraction = number_multiply(sum, z);
    return log;
}
/* Returns 2^(exponent + fraction), for a fraction of any size. r is the fraction less the nearest whole number, |r| ≤
   1/2. 2^r is 1 + r · (2^r - 1) / r in Chebyshev's approximation of degree 4, whose error is less than 3.2e-7. */
PORTABLE_FUNC float logfmt_power(int32_t exponent, float fraction)
{
    float rounded = number_add(fraction, LOGFMT_ROUND);
    float r = number_add(fraction, -number_add(rounded, -LOGFMT_ROUND));
    float sum = 0x1.5ec866p-10f;
    sum = logfmt_next_term(sum, r, 0x1.3cbf60p-7f);
    sum = logfmt_next_term(sum, r, 0x1.c6afeep-5f);
    sum = logfmt_next_term(sum, r, 0x1.ebfa4cp-3f);
    sum = logfmt_next_term(sum, r, 0x1.62e430p-1f);
    sum = logfmt_next_term(sum, r, 1.0f);
    return number_of_bits(number_bits(sum) + ((uint32_t)exponent << 23) + (number_bits(rounded) << 23));
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

typedef struct logfmt_range {
    float least, most; /* the head; 0, 0: the group goes as BF16 */
    logfmt_log start;  /* log2 of least */
    float span;        /* log2(most) - log2(least); 0: the group goes as BF16 */
} logfmt_range;

/* log2(magnitude) - log2(least). */
PORTABLE_FUNC float logfmt_above_log(const logfmt_range *range, logfmt_log log)
{
    float whole = (float)(log.exponent - range->start.exponent);
    return number_add(whole, number_add(log.fraction, -range->start.fraction));
}
PORTABLE_FUNC float logfmt_above(const logfmt_range *range, uint32_t magnitude)
{
    return logfmt_above_log(range, logfmt_log_of(magnitude));
}
/* least_below: the least of (magnitude - 1) as uint32, so that zero has the largest; most: the largest magnitude; both
   as bits. logfmt_range_of_head makes a head into a range in the same way. */
PORTABLE_FUNC logfmt_range logfmt_range_of(uint32_t least_below, uint32_t most)
{
    logfmt_range range;
    range.least = range.most = range.span = range.start.fraction = 0.0f;
    range.start.exponent = 0;
    if (most >= 127u << 23 || most < 33u << 23) return range;
    uint32_t floor = most - (32u << 23), least = least_below + 1 > floor ? least_below + 1 : floor;
    range.start = logfmt_log_of(least);
    float span = logfmt_above(&range, most);
    if (!(span > 0.0f)) return range;
    range.least = number_of_bits(least);
    range.most = number_of_bits(most);
    range.span = span;
    return range;
}
PORTABLE_FUNC logfmt_range logfmt_range_of_head(float least, float most)
{
    return logfmt_range_of(number_bits(least) - 1, number_bits(most));
}
PORTABLE_FUNC int32_t logfmt_group_bytes(const logfmt_range *range)
{
    return range->span > 0.0f ? LOGFMT_CODED_BYTES : LOGFMT_BF16_BYTES;
}

/* ---- elements of a coded group ----------------------------------------------------------------------------------- */

/* The first function returns the factor from logarithms to codes, the second the one from codes to logarithms. */
PORTABLE_FUNC float logfmt_steps_per_unit(const logfmt_range *range)
{
    return number_divide((float)LOGFMT_STEPS, range->span);
}
PORTABLE_FUNC float logfmt_units_per_step(const logfmt_range *range)
{
    return number_divide(range->span, (float)LOGFMT_STEPS);
}

/* Returns the code of an element of the group: the sign in bit 9, the code below it. Logarithms never fall where
   numbers rise, so no element's logarithm exceeds that of the largest one. */
PORTABLE_FUNC uint32_t logfmt_code_of(const logfmt_range *range, float steps_per_unit, float value)
{
    uint32_t magnitude = number_magnitude(value), least = number_bits(range->least);
    float steps = number_multiply(logfmt_above(range, magnitude > least ? magnitude : least), steps_per_unit);
    uint32_t code = (number_bits(number_add(steps, LOGFMT_ROUND)) & 0x1ffu) + 1;
    uint32_t known = 0u - ((0u - magnitude) >> 31); /* all bits, but none for zero */
    return (number_bits(value) >> 22 & 0x200u) | (code & known);
}
PORTABLE_FUNC float logfmt_value_of(const logfmt_range *range, float units_per_step, uint32_t code)
{
    int32_t steps = (int32_t)(code & 0x1ffu) - 1;
    float above = number_multiply((float)steps, units_per_step);
    float magnitude = logfmt_power(range->start.exponent, number_add(above, range->start.fraction));
    uint32_t known = ((uint32_t)steps >> 31) - 1; /* all bits, but none for zero */
    return number_of_bits((code & 0x200u) << 22 | (number_bits(magnitude) & known));
}

/* Returns the code of element i, from the group's bytes. */
PORTABLE_FUNC uint32_t logfmt_load_code(const uint8_t *bytes, int32_t i)
{
    return bytes[i] | ((uint32_t)bytes[LOGFMT_LOW_BYTES + i / 4] >> (i % 4 * 2) & 3u) << 8;
}
/* Returns the upper bits of four elements, from their codes. */
PORTABLE_FUNC uint8_t logfmt_bits_above(uint32_t first, uint32_t second, uint32_t third, uint32_t fourth)
{
    return (uint8_t)(first >> 8 | second >> 8 << 2 | third >> 8 << 4 | fourth >> 8 << 6);
}

#endif
