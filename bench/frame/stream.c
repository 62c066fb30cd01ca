/* SPDX-License-Identifier: Apache-2.0 */
/* Non-temporal stores of 16 bytes, or of whole cache lines. */
#include "bench/frame/stream.h"
#include <simde/x86/sse2.h>
#include <stdbool.h>
#include <stdint.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

static void stream_words(unsigned char *target, const unsigned char *source, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 16)
        simde_mm_stream_si128((simde__m128i *)(target + i), simde_mm_load_si128((const simde__m128i *)(source + i)));
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static void stream_lines(unsigned char *target, const unsigned char *source,
                                                            size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        _mm512_stream_si512((void *)(target + i), _mm512_load_si512(source + i));
}

static bool can_stream_lines(const void *target, const void *source, size_t bytes)
{
    uintptr_t misaligned = ((uintptr_t)source | (uintptr_t)target | bytes) % 64;
    return !misaligned && __builtin_cpu_supports("avx512f");
}
#endif

void bench_stream_copy(void *target, const void *source, size_t bytes)
{
#if defined(__x86_64__)
    if (can_stream_lines(target, source, bytes)) {
        stream_lines(target, source, bytes);
        return;
    }
#endif
    stream_words(target, source, bytes);
}

void stream_end(void)
{
    simde_mm_sfence();
}
