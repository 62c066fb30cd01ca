/* SPDX-License-Identifier: Apache-2.0 */
/* alltoall and alltoalls: everybody puts each member's block where it belongs, tells all, and hears all. */
#include "shmem/collective.h"

/* A block as it stands in source and dest; plain blocks are one element of `bytes`. */
typedef struct blocks {
    size_t element_bytes, count;   /* of a block */
    size_t dest_step, source_step; /* from one element to the next */
} blocks;

static expar_status put_block(const collective *c, const blocks *b, int32_t to)
{
    const uint8_t *source = (const uint8_t *)c->source + (size_t)to * b->count * b->source_step;
    uint64_t dest = c->dest_offset + (uint64_t)c->team->me * b->count * b->dest_step;
    expar_status status = EXPAR_OK;
    for (size_t i = 0; i < b->count && status == EXPAR_OK; i++)
        status = channel_put(c->team, to, dest + i * b->dest_step, source + i * b->source_step, b->element_bytes);
    return status;
}

static expar_status exchange(const collective *c, const blocks *b)
{
    expar_status status = EXPAR_OK;
    for (int32_t step = 1; step < c->team->size && status == EXPAR_OK; step++) {
        int32_t to = collective_next(c->team, step);
        status = put_block(c, b, to);
        if (status == EXPAR_OK) status = channel_tell(c->team, to);
    }
    const size_t first = (size_t)c->team->me * b->count;
    for (size_t i = first; i < first + b->count && status == EXPAR_OK; i++)
        collective_copy((uint8_t *)c->dest + i * b->dest_step, (const uint8_t *)c->source + i * b->source_step,
                        b->element_bytes);
    return status == EXPAR_OK ? collective_hear_others(c) : status;
}

expar_status expar_alltoall(expar_team *team, void *dest, const void *source, size_t bytes)
{
    size_t all_bytes;
    collective c = {.call = "expar_alltoall", .team = team, .dest = dest, .source = source};
    expar_status status = team_check(c.call, team);
    if (status == EXPAR_OK) status = collective_bytes(c.call, (size_t)team->size, bytes, &all_bytes);
    if (status == EXPAR_OK) status = collective_check(&c, all_bytes, bytes);
    const blocks b = {.element_bytes = bytes, .count = 1, .dest_step = bytes, .source_step = bytes};
    return status == EXPAR_OK ? exchange(&c, &b) : status;
}

/* Bytes from dest's start to the end of its last element; 0 when there is none. */
static expar_status strided_bytes(const char *call, size_t elements, const blocks *b, size_t *bytes)
{
    *bytes = 0;
    if (elements == 0) return EXPAR_OK;
    expar_status status = collective_bytes(call, elements - 1, b->dest_step, bytes);
    if (status == EXPAR_OK && size_add_overflows(*bytes, b->element_bytes, bytes))
        status = error_set(EXPAR_ERR_ARGUMENT, "%s: %zu elements overflow", call, elements);
    return status;
}

expar_status expar_alltoalls(expar_team *team, void *dest, const void *source, ptrdiff_t dest_stride,
                             ptrdiff_t source_stride, size_t element_bytes, size_t count)
{
    size_t elements, bytes = 0;
    collective c = {.call = "expar_alltoalls", .team = team, .dest = dest, .source = source};
    blocks b = {.element_bytes = element_bytes, .count = count};
    expar_status status = team_check(c.call, team);
    if (status == EXPAR_OK && (dest_stride < 1 || source_stride < 1))
        status = error_set(EXPAR_ERR_ARGUMENT, "%s: dest_stride %td and source_stride %td, expected 1 or more", c.call,
                           dest_stride, source_stride);
    if (status == EXPAR_OK) status = collective_bytes(c.call, (size_t)dest_stride, element_bytes, &b.dest_step);
    if (status == EXPAR_OK) status = collective_bytes(c.call, (size_t)source_stride, element_bytes, &b.source_step);
    if (status == EXPAR_OK) status = collective_bytes(c.call, (size_t)team->size, count, &elements);
    if (status == EXPAR_OK) status = strided_bytes(c.call, elements, &b, &bytes);
    if (status == EXPAR_OK) status = collective_check(&c, bytes, bytes);
    return status == EXPAR_OK ? exchange(&c, &b) : status;
}
