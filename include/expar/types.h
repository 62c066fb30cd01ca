/* SPDX-License-Identifier: Apache-2.0 */
/* The element types of typed calls, as tables: X(type, suffix). expar_put_f32 puts floats. */
#ifndef EXPAR_TYPES_H
#define EXPAR_TYPES_H

#include <stdint.h>

/* Types that the atomics know. */
#define EXPAR_WORD_TYPES(X) X(int32_t, i32) X(int64_t, i64) X(uint32_t, u32) X(uint64_t, u64)
/* Types that the waits know; a word of 16 bits is changed by puts alone. */
#define EXPAR_WAIT_TYPES(X) X(int16_t, i16) X(uint16_t, u16) EXPAR_WORD_TYPES(X)
/* Types that are atomically fetched, set and swapped only. */
#define EXPAR_FLOAT_TYPES(X) X(float, f32) X(double, f64)
/* All integers. */
#define EXPAR_INTEGER_TYPES(X) X(int8_t, i8) X(int16_t, i16) X(uint8_t, u8) X(uint16_t, u16) EXPAR_WORD_TYPES(X)
/* All types of typed puts, gets and arithmetic reductions. */
#define EXPAR_DATA_TYPES(X) EXPAR_INTEGER_TYPES(X) EXPAR_FLOAT_TYPES(X)

#endif
