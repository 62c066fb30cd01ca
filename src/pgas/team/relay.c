/* SPDX-License-Identifier: Apache-2.0 */
/* alltoall by leaders. Each member packs its blocks for everybody into one piece for its leader. Leaders send each
 * other one piece with all blocks from one node for the other, and unpack arrived pieces into the dest of their node's
 * members.
 *
 * A member's piece has a part for each member of the team, in their order. A leader's piece for another node has, for
 * each member there, a part from each member here. */
#include "pgas/team/blocks.h"

#include <stdlib.h>
#include <string.h>

size_t relay_elements(const expar_team *team, const blocks *b)
{
    const size_t pair = (size_t)team->reach.largest * (size_t)team->reach.largest, all = (size_t)team->size;
    return b->element_bytes == 0 ? 0 : channel_piece_bytes(team) / (pair > all ? pair : all) / b->element_bytes;
}

/* A round: elements of all blocks that are on their way. */
typedef struct relay {
    const collective *c;
    const blocks *b;
    size_t first, count, part_bytes;
    circle node;
} relay;

static void copy_elements(uint8_t *to, size_t to_step, const uint8_t *from, size_t from_step, const relay *r)
{
    const size_t bytes = r->b->element_bytes;
    if (to_step == bytes && from_step == bytes) {
        memcpy(to, from, r->part_bytes);
        return;
    }
    for (size_t i = 0; i < r->count; i++)
        memcpy(to + i * to_step, from + i * from_step, bytes);
}

static void pack_parts(const relay *r, uint8_t *piece, const uint8_t *source)
{
    for (int32_t to = 0; to < r->c->team->size; to++)
        copy_elements(piece + (size_t)to * r->part_bytes, r->b->element_bytes,
                      source + (size_t)to * r->b->count * r->b->source_step, r->b->source_step, r);
}

/* Packs from a copy of all blocks, because the CPU does not read memory of GPUs. */
static expar_status pack_from_device(const relay *r, uint8_t *piece, const uint8_t *source)
{
    const size_t blocks_before = (size_t)(r->c->team->size - 1) * r->b->count * r->b->source_step;
    const size_t bytes = blocks_before + (r->count - 1) * r->b->source_step + r->b->element_bytes;
    uint8_t *copy = malloc(bytes);
    if (!copy) return error_set(EXPAR_ERR_MEMORY, "%s: no memory for a copy of %zu bytes", r->c->call, bytes);
    expar_status status = collective_copy(r->c->team, copy, source, bytes);
    if (status == EXPAR_OK) pack_parts(r, piece, copy);
    free(copy);
    return status;
}

/* Own piece 0 gets this member's parts for all. */
static expar_status pack_own(const relay *r, uint8_t *piece)
{
    const uint8_t *source = (const uint8_t *)r->c->source + r->first * r->b->source_step;
    if (kinds_is_device(r->c->team->group->sym, source)) return pack_from_device(r, piece, source);
    pack_parts(r, piece, source);
    return EXPAR_OK;
}

/* The part that the leader's node mate at `place` has for member `to`. */
static const uint8_t *part_of(const relay *r, int32_t place, int32_t to)
{
    const void *piece =
        place == 0 ? channel_own_piece(r->c->team, 0) : channel_taken(r->c->team, r->node.first + place);
    return (const uint8_t *)piece + (size_t)to * r->part_bytes;
}

/* Own piece 1 gets all that this node has for another one. */
static expar_status send_to_node(const relay *r, int32_t node, channel_batch *batch)
{
    const team_reach *reach = &r->c->team->reach;
    uint8_t *piece = channel_own_piece(r->c->team, 1), *at = piece;
    for (int32_t to = reach->first[node]; to < reach->first[node + 1]; to++)
        for (int32_t place = 0; place < r->node.count; place++, at += r->part_bytes)
            memcpy(at, part_of(r, place, to), r->part_bytes);
    return channel_give(r->c->team, reach->first[node], piece, (size_t)(at - piece), batch);
}

/* The part that member `from` has for member `to` of this node, into the latter's dest. */
static void relay_deliver(const relay *r, int32_t from, int32_t to, const uint8_t *part)
{
    const expar_team *team = r->c->team;
    const uint64_t element = (uint64_t)from * r->b->count + r->first;
    const kinds_place at = place_after(r->c->dest_place, element * r->b->dest_step);
    uint8_t *dest = kinds_peer_at(team->group->sym, &at, team_rank(team, to));
    copy_elements(dest, r->b->dest_step, part, r->b->element_bytes, r);
}

static void deliver_inside(const relay *r)
{
    for (int32_t place = 0; place < r->node.count; place++)
        for (int32_t to = r->node.first; to < r->node.first + r->node.count; to++)
            relay_deliver(r, r->node.first + place, to, part_of(r, place, to));
}

static expar_status take_from_node(const relay *r, int32_t node)
{
    const team_reach *reach = &r->c->team->reach;
    const void *piece;
    expar_status status = channel_take(r->c->team, reach->first[node], r->c->call, &piece);
    if (status != EXPAR_OK) return status;
    const uint8_t *part = piece;
    for (int32_t to = r->node.first; to < r->node.first + r->node.count; to++)
        for (int32_t from = reach->first[node]; from < reach->first[node + 1]; from++, part += r->part_bytes)
            relay_deliver(r, from, to, part);
    return EXPAR_OK;
}

static expar_status take_from_mates(const relay *r)
{
    const void *piece; /* part_of finds it again */
    expar_status status = EXPAR_OK;
    for (int32_t place = 1; place < r->node.count && status == EXPAR_OK; place++)
        status = channel_take(r->c->team, r->node.first + place, r->c->call, &piece);
    return status;
}

static expar_status lead(const relay *r)
{
    const circle leaders = circle_of_leaders(r->c->team);
    channel_batch batch = {.copies = true}; /* one piece is packed for all nodes, one after the other */
    expar_status status = take_from_mates(r);
    for (int32_t step = 1; step < leaders.count && status == EXPAR_OK; step++)
        status = send_to_node(r, (leaders.me + step) % leaders.count, &batch);
    if (status == EXPAR_OK) deliver_inside(r);
    for (int32_t node = 0; node < leaders.count && status == EXPAR_OK; node++)
        if (node != leaders.me) status = take_from_node(r, node);
    status = channel_finish(r->c->team, &batch, status);
    return status == EXPAR_OK ? fan_out(&r->node, r->c->call, &(fan){.bytes = 0}) : status;
}

static expar_status follow(const relay *r, const uint8_t *piece)
{
    channel_batch batch = {.copies = false};
    expar_status status =
        channel_give(r->c->team, r->node.first, piece, (size_t)r->c->team->size * r->part_bytes, &batch);
    status = channel_finish(r->c->team, &batch, status);
    return status == EXPAR_OK ? fan_out(&r->node, r->c->call, &(fan){.bytes = 0}) : status;
}

expar_status relay_round(const collective *c, const blocks *b, size_t first, size_t count)
{
    const relay r = {.c = c,
                     .b = b,
                     .first = first,
                     .count = count,
                     .part_bytes = count * b->element_bytes,
                     .node = circle_of_node(c->team)};
    uint8_t *piece = channel_own_piece(c->team, 0);
    expar_status status = pack_own(&r, piece);
    if (status != EXPAR_OK) return status;
    return r.node.me == 0 ? lead(&r) : follow(&r, piece);
}
