/* SPDX-License-Identifier: Apache-2.0 */
/* splitmix: random bits from a counter, the same on every machine for the same seed. Routings and the contents of rows
 * come from it. (The oracle of the tests has its own, on purpose.)
 *
 * Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014; the constants are
 * Stafford's variant 13. */
#ifndef EXPAR_BENCH_FRAME_SPLITMIX_H
#define EXPAR_BENCH_FRAME_SPLITMIX_H

#include <stdint.h>

/* The next 64 bits of the stream whose counter this is. */
static inline uint64_t splitmix_next(uint64_t *counter)
{
    uint64_t value = *counter += UINT64_C(0x9e3779b97f4a7c15);
    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31);
}

/* A number scrambled, one to one: the first bits of the stream that begins there. */
static inline uint64_t splitmix_of(uint64_t number)
{
    return splitmix_next(&number);
}

#endif
