/* SPDX-License-Identifier: Apache-2.0 */
/* format: payload formats by name, coded from their definitions (docs/reference/low-latency-formats.md). So received
 * data can be compared byte by byte. */
#ifndef EXPAR_BENCH_LOW_LATENCY_FORMAT_H
#define EXPAR_BENCH_LOW_LATENCY_FORMAT_H

#include <expar/low_latency.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LL_MOST_ROWS    32    /* of a sum: the largest K */
#define LL_NVFP4_GLOBAL 64.0f /* the global scale of NVFP4 */

struct ll_format {
    const char *name;
    expar_ll_format wire;
    bool plain;        /* rows of `dtype` as they are; others take x in any dtype */
    expar_dtype dtype; /* of plain ones */
    bool dispatched, combined;
};
/* All, and the plain one of a dtype. ll_format_names: with '|' between them, in that order. */
extern const struct ll_format ll_formats[];
extern const char ll_format_names[];
const struct ll_format *ll_format_plain(expar_dtype dtype);

/* Return the bytes of a coded row without its scales, and the words of the scales. */
size_t ll_format_row_bytes(const struct ll_format *format, expar_dtype dtype, int hidden);
int ll_format_scales(const struct ll_format *format, int hidden);
static inline bool ll_format_is_nvfp4(const struct ll_format *format)
{
    return format->wire == EXPAR_LL_FORMAT_NVFP4;
}
/* Say where the scales of an expert stand, which has so many rows of so many words each. The results are: all words,
   the place of a row's first word, and how far apart the row's words are. */
int64_t ll_format_scale_words(const struct ll_format *format, int words, int64_t rows);
int64_t ll_format_scale_at(const struct ll_format *format, int words, int64_t row);
int64_t ll_format_scale_stride(const struct ll_format *format, int64_t rows);
/* Encodes one row of x as it arrives: elements, then scales. LogFMT is excluded, because its rows arrive unchanged. */
void ll_format_encode(const struct ll_format *format, expar_dtype dtype, int hidden, const void *row, void *coded);
/* Returns an element of x's type as a number. */
float ll_element(expar_dtype dtype, const void *row, int j);

#endif
