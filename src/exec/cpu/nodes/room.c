/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of this rank's own for calls across nodes. It has scratch for tokens that are added, and slots that are larger
 * than a place of a ring, which go in pieces. It grows with a buffer's records (exec/cpu/normal/records.c). Memory in
 * the heap, which the network reaches, keeps its size. */
#include "exec/cpu/nodes/rails.h"

#include <stdlib.h>

/* Scratch has a row, in FP32 too; weights; and owners of slots, in words of four. */
static rail_scratch scratch_map_of(const ep_shape *shape)
{
    const uint64_t topk = (uint64_t)shape->topk;
    rail_scratch map = {.weights = 2 * (uint64_t)shape->row_bytes};
    map.owners = ep_round(map.weights + topk * sizeof(float), sizeof(uint64_t));
    map.bytes = ep_round(map.owners + topk * sizeof(uint16_t), EP_LINE_BYTES) + EP_LINE_BYTES;
    return map;
}

static uint64_t wide_slot_bytes(const ep_rails *rails, const ep_shape *shape)
{
    const uint64_t largest = ep_largest_rail_slot(rails->each, shape->row_bytes, shape->scales, shape->topk);
    return largest > rails->chunk_bytes ? ep_round(largest, EP_ALIGN_BYTES) : 0;
}

expar_status rail_room_make(const cpu_executor *self, const ep_shape *shape, rail_room *out)
{
    const ep_rails *rails = &self->rails->shape;
    const size_t channels = (size_t)shape->channels, slots = 2 * channels * (size_t)rails->nodes;
    rail_room room = {
        .map = scratch_map_of(shape), .row_bytes = shape->row_bytes, .wide_bytes = wide_slot_bytes(rails, shape)};
    room.scratch = calloc(channels, (size_t)room.map.bytes);
    if (room.wide_bytes) room.wide = calloc(slots, (size_t)room.wide_bytes);
    *out = room;
    if (room.scratch && (room.wide || !room.wide_bytes)) return EXPAR_OK;
    rail_room_free(out);
    return error_set(EXPAR_ERR_MEMORY, "CPU executor: no memory for rows of %lld bytes across nodes",
                     (long long)shape->row_bytes);
}

void rail_room_free(rail_room *room)
{
    free(room->scratch);
    free(room->wide);
    *room = (rail_room){0};
}

bool rail_fits(const cpu_executor *self, const ep_form *form, int64_t row_bytes)
{
    const cpu_rails *rails = self->rails;
    const uint64_t slot = ep_largest_rail_slot(rails->shape.each, row_bytes, form->scales, form->topk);
    return row_bytes <= rails->room.row_bytes && (slot <= rails->shape.chunk_bytes || slot <= rails->room.wide_bytes);
}

expar_status rail_grow(cpu_executor *self, const ep_shape *shape)
{
    return rail_room_make(self, shape, &self->rails->grown);
}

void rail_grown(cpu_executor *self, uint32_t epoch, bool all)
{
    cpu_rails *rails = self->rails;
    rail_room_free(all ? &rails->room : &rails->grown);
    if (!all) return;
    rails->room = rails->grown;
    rails->grown = (rail_room){0};
    rails->again = ep_word(epoch, 2);
}
