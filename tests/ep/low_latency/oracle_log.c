/* SPDX-License-Identifier: Apache-2.0 */
/* LogFMT from its definition: logarithms and powers are those of libm in long double, and what the library's own may be
 * off by makes of each number an interval. */
#include "ep/low_latency/oracle.h"
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Bounds of docs/reference/low-latency-formats.md: two logarithms, their difference and the product with it; and a
 * number. */
#define LOG_ERROR   8e-7L /* of a difference of logarithms, absolute */
#define ROUND_ERROR 3e-7L /* of it and of its product, relative */
#define VALUE_ERROR 4e-6L

#define STEPS 510 /* from the least magnitude of a group to its largest one */

/* A group that is coded, or goes as BF16. */
typedef struct log_group {
    bool coded;
    long double least, span; /* log2(most / least) */
} log_group;

/* Zeros do not count. What the library's logarithms could take for one number, a test must not draw. */
static log_group look_at_group(oracle_type type, const void *x, int64_t begin)
{
    double least = INFINITY, most = 0;
    for (int64_t i = begin; i < begin + LLO_GROUP; i++) {
        const double magnitude = fabs((double)oracle_widen(type, oracle_load(type, x, i)));
        if (!(magnitude < 1)) return (log_group){.coded = false};
        if (magnitude > most) most = magnitude;
        if (magnitude > 0 && magnitude < least) least = magnitude;
    }
    if (most < 0x1p-94 || least == most) return (log_group){.coded = false};
    if (least < most * 0x1p-32) least = most * 0x1p-32;
    const log_group group = {.coded = true, .least = least, .span = log2l((long double)most / least)};
    if (group.span < 1e-5L) abort();
    return group;
}

/* The code of a magnitude, and those before and after it where its logarithm is so near the middle of two. */
static void find_codes(const log_group *group, long double magnitude, long double *low, long double *high)
{
    const long double above = magnitude > group->least ? log2l(magnitude / group->least) : 0;
    const long double steps = above * STEPS / group->span;
    const long double error = LOG_ERROR * STEPS / group->span + ROUND_ERROR * STEPS;
    *low = nearbyintl(fmaxl(steps - error, 0));
    *high = nearbyintl(fminl(steps + error, STEPS));
}

static long double value_of_steps(const log_group *group, long double steps)
{
    return group->least * exp2l(steps * group->span / STEPS);
}

/* Not beyond the exact number. */
static float float_below(long double value)
{
    const float near = (float)value;
    return (long double)near > value ? nextafterf(near, 0) : near;
}
static float float_above(long double value)
{
    const float near = (float)value;
    return (long double)near < value ? nextafterf(near, INFINITY) : near;
}

/* One element of a coded group. */
static void code_element(oracle_type type, const log_group *group, float value, uint32_t *low, uint32_t *high)
{
    const long double magnitude = fabsl((long double)value);
    long double first = 0, last = 0;
    float least = 0, most = 0;
    if (magnitude > 0) {
        find_codes(group, magnitude, &first, &last);
        least = float_below(value_of_steps(group, first) * (1 - VALUE_ERROR));
        most = float_above(value_of_steps(group, last) * (1 + VALUE_ERROR));
    }
    *low = oracle_round(type, signbit(value) ? -most : least);
    *high = oracle_round(type, signbit(value) ? -least : most);
}

int64_t llo_log_row(oracle_type type, int32_t hidden, const void *x, void *low, void *high)
{
    int64_t unsure = 0;
    for (int64_t begin = 0; begin < hidden; begin += LLO_GROUP) {
        const log_group group = look_at_group(type, x, begin);
        for (int64_t i = begin; i < begin + LLO_GROUP; i++) {
            const float value = oracle_widen(type, oracle_load(type, x, i));
            uint32_t least = 0, most = 0;
            if (group.coded)
                code_element(type, &group, value, &least, &most);
            else
                least = most = oracle_round(type, oracle_widen(ORACLE_BF16, oracle_round(ORACLE_BF16, value)));
            oracle_store(type, low, i, least);
            oracle_store(type, high, i, most);
            unsure += least != most;
        }
    }
    return unsure;
}
