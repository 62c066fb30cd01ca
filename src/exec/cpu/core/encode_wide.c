/* SPDX-License-Identifier: Apache-2.0 */
/* Finds which of the hand-written vectors this processor can run. */
#include "exec/cpu/core/encode_wide.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#if defined(TESTS_ONE_CLONE) && defined(__AVX512BW__)
#define ENCODE_WIDE &encode_wide_avx512
#elif defined(TESTS_ONE_CLONE) && defined(__AVX2__)
#define ENCODE_WIDE &encode_wide_avx2
#elif defined(TESTS_ONE_CLONE) || !defined(__x86_64__)
#define ENCODE_WIDE NULL
#endif

#ifdef ENCODE_WIDE
const encode_wide *encode_wide_here(void)
{
    return ENCODE_WIDE;
}
#else
#include <cpuid.h>

/* Not all compilers know F16C by name. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static int32_t find_width(void)
{
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) return 512;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c() ? 256 : 1;
}

const encode_wide *encode_wide_here(void)
{
    /* 0: not found yet. The first thread writes it, always with the same value (relaxed: it publishes nothing else). */
    static _Atomic int32_t found;
    int32_t width = atomic_load_explicit(&found, memory_order_relaxed);
    if (width == 0) {
        width = find_width();
        atomic_store_explicit(&found, width, memory_order_relaxed);
    }
    return width == 512 ? &encode_wide_avx512 : width == 256 ? &encode_wide_avx2 : NULL;
}
#endif
