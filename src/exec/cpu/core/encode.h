/* SPDX-License-Identifier: Apache-2.0 */
/* Whole rows by the codec, in vectors. The bytes are those of codec_encode_row and codec_decode_row
 * (proto/codec/codec.h), which are slower.
 *
 * The CPU executor calls this, and so does bench/codec, which measures it. */
#ifndef EXPAR_EXEC_CPU_CORE_ENCODE_H
#define EXPAR_EXEC_CPU_CORE_ENCODE_H

#include "proto/codec/codec.h"

/* cpu_encode_row takes all formats but NVFP4. */
int64_t cpu_encode_row(int32_t format, int32_t dtype, int64_t hidden, const void *row, void *payload, void *scales);
void cpu_decode_row(int32_t format, int64_t hidden, const void *payload, const void *scales, float *out);
int64_t cpu_encode_nvfp4_row(int32_t dtype, int64_t hidden, float global, const void *row, void *payload, void *scales);

#endif
