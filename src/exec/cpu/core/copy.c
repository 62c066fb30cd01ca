/* SPDX-License-Identifier: Apache-2.0 */
/* Moves rows. A row that no thread reads again soon is written by non-temporal stores. They save the read of the line
   that is about to be overwritten, and leave the cache to rows that still have destinations to reach. */
#include "exec/cpu/core/rows.h"

#include <simde/x86/sse2.h>
#include <string.h>

static void copy_streaming(simde__m128i *dest, const simde__m128i *source, size_t units)
{
    size_t i = 0;
    for (; i + 4 <= units; i += 4) {
        simde__m128i a = simde_mm_load_si128(source + i), b = simde_mm_load_si128(source + i + 1);
        simde__m128i c = simde_mm_load_si128(source + i + 2), d = simde_mm_load_si128(source + i + 3);
        simde_mm_stream_si128(dest + i, a);
        simde_mm_stream_si128(dest + i + 1, b);
        simde_mm_stream_si128(dest + i + 2, c);
        simde_mm_stream_si128(dest + i + 3, d);
    }
    for (; i < units; i++)
        simde_mm_stream_si128(dest + i, simde_mm_load_si128(source + i));
}

void cpu_copy_row(void *dest, const void *source, size_t bytes, bool streaming)
{
    if (streaming)
        copy_streaming(dest, source, bytes / 16);
    else
        memcpy(dest, source, bytes);
}

void cpu_copy_fence(void)
{
    simde_mm_sfence();
}
