/* SPDX-License-Identifier: Apache-2.0 */
/* stream: copies by non-temporal stores, past the caches. */
#ifndef EXPAR_BENCH_FRAME_STREAM_H
#define EXPAR_BENCH_FRAME_STREAM_H

#include <stddef.h>

/* bytes and both addresses are multiples of 16; of 64, it is a few percent faster. */
void bench_stream_copy(void *target, const void *source, size_t bytes);
/* Call this after copies that others will read: they come before later stores. */
void stream_end(void);

#endif
