/* SPDX-License-Identifier: Apache-2.0 */
/* limit: one way of the copy roofline: lists of copies and sums that a turn goes through. Private to limit*.c. */
#ifndef EXPAR_BENCH_LOW_LATENCY_LIMIT_H
#define EXPAR_BENCH_LOW_LATENCY_LIMIT_H

#include "bench/low_latency/mode.h"

#define LIMIT_LINE 64

/* One copy. Rows that arrive have their scales and token number placed as well. */
struct limit_copy {
    const uint8_t *source;
    uint8_t *target;
    size_t bytes;
    bool small;       /* it is always copied by memcpy */
    uint32_t *scales; /* words after the source go there, with the way's stride; NULL: none */
    int32_t *info;    /* gets the token; NULL: none */
    int32_t token;
};

struct limit_list {
    struct limit_copy *items;
    size_t count;
};

struct limit_sum {
    const void **rows; /* [count], in the list's arrays */
    float *weights;    /* NULL: all 1 */
    int count;
    void *out;
};

struct limit_sums {
    struct limit_sum *items;
    size_t count;
    const void **rows; /* of all sums, one after the other */
    float *weights;
    size_t num_rows;
};

/* Each way has its own memory, so that one way's effect on the caches does not change another's time. */
struct limit_way {
    const struct bench_session *session;
    bool combine, reduced, stream_messages, stream_rows;
    /* Slots [N][B] of messages, or places [T][K] of rows. It lies on the device, as all members below except the
       lists. */
    void *symmetric;
    size_t symmetric_bytes;
    uint8_t **bases;        /* [N] that of each rank */
    void *kept;             /* of the device's turns */
    struct bench_late late; /* of its turns */
    /* A turn runs these lists in this order. Dispatch has the first two. An exact combine has messages and sums, a
       reduced one the two lists of sums. */
    struct limit_list messages, rows;
    struct limit_sums partial, sums;
    uint8_t *headers, *coded;     /* dispatch: of each message; [T] coded rows of x, or NULL: x itself */
    size_t coded_bytes;           /* of one coded row with its scales, whole lines */
    uint8_t *received, *sum_rows; /* dispatch: [L][N*B][H]; combine: y [T][H] */
    uint32_t *scales;             /* dispatch: [L][words][N*B] */
    int32_t *src_info;            /* dispatch: [L][N*B] */
    size_t received_bytes, scales_bytes, info_bytes;
    int64_t *sent; /* [N] messages, while they are listed */
    size_t headers_bytes;
    int num_scales;
};

static inline size_t limit_whole_lines(size_t bytes)
{
    return (bytes + LIMIT_LINE - 1) / LIMIT_LINE * LIMIT_LINE;
}

/* ---- limit.c ----------------------------------------------------------------------------------------------------- */

/* Allocates a list. False: no memory. */
bool limit_list_make(struct limit_list *list, size_t spare);
struct limit_copy *limit_list_add(struct limit_list *list, const void *source, void *target, size_t bytes);

/* ---- limit_dispatch.c, limit_combine.c --------------------------------------------------------------------------- */

/* For each operation, these allocate the rank's own memory (false: no memory), return the bytes of symmetric memory,
   and make the lists. The last one sets contents that follow from x or the rows (false after saying why not). */
bool limit_dispatch_memory(struct limit_way *way);
size_t limit_dispatch_symmetric_bytes(const struct limit_way *way);
void limit_dispatch_fill(struct limit_way *way);
bool limit_dispatch_refill(struct limit_way *way);
bool limit_combine_memory(struct limit_way *way);
size_t limit_combine_symmetric_bytes(const struct limit_way *way);
void limit_combine_fill(struct limit_way *way);
bool limit_combine_refill(struct limit_way *way);

#endif
