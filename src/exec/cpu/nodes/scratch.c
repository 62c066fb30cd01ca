/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of this rank's own for calls across nodes. It has scratch for tokens that are added, and slots that are larger
 * than a place of a ring, which go in pieces. It grows with a buffer's records (exec/cpu/normal/records.c). Memory in
 * the heap, which the network reaches, keeps its size. */
#include "exec/cpu/nodes/rails.h"

#include <stdlib.h>

/* Scratch has a row, in FP32 too; weights; owners of slots, in words of four; and addresses of rows. */
static rail_scratch scratch_map_of(const ep_shape *shape)
{
    const uint64_t topk = (uint64_t)shape->topk;
    rail_scratch map = {.weights = 2 * (uint64_t)shape->row_bytes};
    map.owners = ep_round(map.weights + topk * sizeof(float), sizeof(uint64_t));
    map.gathered = ep_round(map.owners + topk * sizeof(uint16_t), EP_LINE_BYTES) + EP_LINE_BYTES;
    const uint64_t rows = 2 + 2 * (uint64_t)shape->ranks + topk;
    map.bytes = ep_round(map.gathered + sizeof(rail_gathered) + rows * sizeof(void *), EP_LINE_BYTES) + EP_LINE_BYTES;
    return map;
}

static uint64_t wide_slot_bytes(const ep_rails *rails, const ep_shape *shape)
{
    const uint64_t largest = ep_largest_rail_slot(rails->each, shape->row_bytes, shape->scales, shape->topk);
    return largest > rails->chunk_bytes ? ep_round(largest, EP_ALIGN_BYTES) : 0;
}

expar_status rail_space_make(const cpu_executor *self, const ep_shape *shape, rail_space *out)
{
    const ep_rails *rails = &self->rails->shape;
    const size_t channels = (size_t)shape->channels, slots = 2 * channels * (size_t)rails->nodes;
    rail_space spare = {
        .map = scratch_map_of(shape), .row_bytes = shape->row_bytes, .wide_bytes = wide_slot_bytes(rails, shape)};
    spare.scratch = calloc(channels, (size_t)spare.map.bytes);
    if (spare.wide_bytes) spare.wide = calloc(slots, (size_t)spare.wide_bytes);
    *out = spare;
    if (spare.scratch && (spare.wide || !spare.wide_bytes)) return EXPAR_OK;
    rail_space_free(out);
    return error_set(EXPAR_ERR_MEMORY, "CPU executor: no memory for rows of %lld bytes across nodes",
                     (long long)shape->row_bytes);
}

void rail_space_free(rail_space *spare)
{
    free(spare->scratch);
    free(spare->wide);
    *spare = (rail_space){0};
}

bool rail_fits(const cpu_executor *self, const ep_form *form, int64_t row_bytes)
{
    const cpu_rails *rails = self->rails;
    const uint64_t slot = ep_largest_rail_slot(rails->shape.each, row_bytes, form->scales, form->topk);
    return row_bytes <= rails->spare.row_bytes && (slot <= rails->shape.chunk_bytes || slot <= rails->spare.wide_bytes);
}

expar_status rail_grow(cpu_executor *self, const ep_shape *shape)
{
    return rail_space_make(self, shape, &self->rails->grown);
}

void rail_grown(cpu_executor *self, uint32_t epoch, bool all)
{
    cpu_rails *rails = self->rails;
    rail_space_free(all ? &rails->spare : &rails->grown);
    if (!all) return;
    rails->spare = rails->grown;
    rails->grown = (rail_space){0};
    rails->again = ep_word(epoch, 2);
}
