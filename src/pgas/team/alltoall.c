/* SPDX-License-Identifier: Apache-2.0 */
/* alltoall and alltoalls. Pairwise: everybody puts each member's block where it belongs, tells all, and hears all. By
 * leaders (relay.c), where that is cheaper. */
#include "pgas/team/blocks.h"

/* ---- pairwise ---------------------------------------------------------------------------------------------------- */

static expar_status send_block(const collective *c, const blocks *b, int32_t to, channel_batch *batch)
{
    const uint8_t *source = (const uint8_t *)c->source + (size_t)to * b->count * b->source_step;
    const kinds_place dest = place_after(c->dest_place, (uint64_t)c->team->me * b->count * b->dest_step);
    if (blocks_plain(b)) return channel_send(c->team, to, dest, source, b->count * b->element_bytes, batch);
    expar_status status = EXPAR_OK;
    for (size_t i = 0; i < b->count && status == EXPAR_OK; i++)
        status = channel_put(c->team, to, place_after(dest, i * b->dest_step), source + i * b->source_step,
                             b->element_bytes);
    return status == EXPAR_OK ? channel_tell(c->team, to) : status;
}

static expar_status copy_own_block(const collective *c, const blocks *b)
{
    const size_t first = (size_t)c->team->me * b->count;
    uint8_t *dest = (uint8_t *)c->dest + first * b->dest_step;
    const uint8_t *source = (const uint8_t *)c->source + first * b->source_step;
    if (blocks_plain(b)) return collective_copy(c->team, dest, source, b->count * b->element_bytes);
    expar_status status = EXPAR_OK;
    for (size_t i = 0; i < b->count && status == EXPAR_OK; i++)
        status = collective_copy(c->team, dest + i * b->dest_step, source + i * b->source_step, b->element_bytes);
    return status;
}

static expar_status exchange_pairwise(const collective *c, const blocks *b)
{
    const circle all = circle_of_all(c->team);
    channel_batch batch = {.copies = false};
    expar_status status = EXPAR_OK;
    for (int32_t step = 1; step < all.count && status == EXPAR_OK; step++)
        status = send_block(c, b, circle_next(&all, step), &batch);
    if (status == EXPAR_OK) status = copy_own_block(c, b);
    if (status == EXPAR_OK) status = circle_hear(&all, c->call);
    return channel_finish(c->team, &batch, status);
}

/* ---- choice ------------------------------------------------------------------------------------------------------ */

/* Leaders send one message a node and round, where members would send one to each member of other nodes. Strided blocks
   would cross the network element by element. Leaders store into the memory of their nodes, which for device memory
   they cannot. */
static bool is_for_leaders(const collective *c, const blocks *b)
{
    const expar_team *team = c->team;
    const team_reach *reach = &team->reach;
    const size_t part = relay_elements(team, b);
    if (reach->num_nodes == 1 || part == 0 || b->count == 0 || c->dest_place.memory == TRANSPORT_DEVICE) return false;
    if (!blocks_plain(b)) return true;
    const size_t rounds = b->count / part + (b->count % part != 0), others = (size_t)(team->size - reach->largest);
    return reach->largest > 1 && rounds * (size_t)(reach->num_nodes - 1) * CHOICE_RELAY_COST <= others;
}

static expar_status exchange_by_leaders(const collective *c, const blocks *b)
{
    expar_status status = EXPAR_OK;
    const size_t part = relay_elements(c->team, b);
    for (size_t first = 0; first < b->count && status == EXPAR_OK; first += part)
        status = relay_round(c, b, first, b->count - first < part ? b->count - first : part);
    return status;
}

static expar_status blocks_exchange(const collective *c, const blocks *b)
{
    expar_status status = team_turn_begin(c->call, c->team);
    if (status != EXPAR_OK) return status;
    return team_turn_met(c->team, is_for_leaders(c, b) ? exchange_by_leaders(c, b) : exchange_pairwise(c, b));
}

static blocks plain_blocks(size_t bytes)
{
    return (blocks){.element_bytes = 1, .count = bytes, .dest_step = 1, .source_step = 1};
}

expar_status expar_alltoall(expar_team *team, void *dest, const void *source, size_t bytes)
{
    size_t all_bytes;
    collective c = {.call = "expar_alltoall", .team = team, .dest = dest, .source = source};
    expar_status status = team_check(c.call, team);
    if (status == EXPAR_OK) status = collective_bytes(&c, "bytes", bytes, (size_t)team->size, &all_bytes);
    if (status == EXPAR_OK) status = collective_check(&c, all_bytes, bytes);
    const blocks b = plain_blocks(bytes);
    return team_ended(team, status == EXPAR_OK ? blocks_exchange(&c, &b) : status);
}

/* Bytes from the start of dest, or of source, to the end of its last element; 0 when there is none. */
static expar_status strided_bytes(const collective *c, const blocks *b, size_t step, size_t *bytes)
{
    size_t elements;
    expar_status status = collective_bytes(c, "count", b->count, (size_t)c->team->size, &elements);
    *bytes = 0;
    if (status != EXPAR_OK || elements == 0) return status;
    if (!size_mul_overflows(elements - 1, step, bytes) && !size_add_overflows(*bytes, b->element_bytes, bytes))
        return EXPAR_OK;
    return team_note(c->team, error_set(EXPAR_ERR_ARGUMENT,
                                        "%s: count %zu, expected fewer: %zu elements of %zu bytes, %zu bytes apart, "
                                        "overflow",
                                        c->call, b->count, elements, b->element_bytes, step));
}

static expar_status alltoalls_check_strides(const collective *c, ptrdiff_t dest_stride, ptrdiff_t source_stride)
{
    if (dest_stride >= 1 && source_stride >= 1) return EXPAR_OK;
    return team_note(c->team,
                     error_set(EXPAR_ERR_ARGUMENT, "%s: dest_stride %td and source_stride %td, expected 1 or more",
                               c->call, dest_stride, source_stride));
}

expar_status expar_alltoalls(expar_team *team, void *dest, const void *source, ptrdiff_t dest_stride,
                             ptrdiff_t source_stride, size_t element_bytes, size_t count)
{
    size_t dest_bytes = 0, source_bytes = 0;
    collective c = {.call = "expar_alltoalls", .team = team, .dest = dest, .source = source};
    blocks b = {.element_bytes = element_bytes, .count = count};
    expar_status status = team_check(c.call, team);
    if (status == EXPAR_OK) status = alltoalls_check_strides(&c, dest_stride, source_stride);
    if (status == EXPAR_OK)
        status = collective_bytes(&c, "dest_stride", (size_t)dest_stride, element_bytes, &b.dest_step);
    if (status == EXPAR_OK)
        status = collective_bytes(&c, "source_stride", (size_t)source_stride, element_bytes, &b.source_step);
    if (status == EXPAR_OK) status = strided_bytes(&c, &b, b.dest_step, &dest_bytes);
    if (status == EXPAR_OK) status = strided_bytes(&c, &b, b.source_step, &source_bytes);
    if (status == EXPAR_OK) status = collective_check(&c, dest_bytes, source_bytes);
    if (dest_stride == 1 && source_stride == 1) b = plain_blocks(count * element_bytes);
    return team_ended(team, status == EXPAR_OK ? blocks_exchange(&c, &b) : status);
}
