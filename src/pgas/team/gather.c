/* SPDX-License-Identifier: Apache-2.0 */
/* fcollect and collect: everybody puts its block where it belongs in everybody's dest. By leaders: members put theirs
 * into their leader's dest, where those of a node then stand side by side. Leaders put these stretches into each
 * other's dest, and pass the whole to their nodes. For collect the members first learn where theirs belong. */
#include "pgas/team/collective.h"

/* Where blocks belong in dest. */
typedef struct place {
    span own;  /* this member's */
    span node; /* those of its node; known to the leader */
    size_t all_bytes;
} place;

/* The leader gets the blocks of its node. */
static expar_status gather_node(const collective *c, const circle *node, const place *p)
{
    channel_batch batch = {.copies = false};
    if (node->me == 0) {
        expar_status copied = collective_copy(c->team, (uint8_t *)c->dest + p->own.at, c->source, p->own.bytes);
        return copied == EXPAR_OK ? circle_hear(node, c->call) : copied;
    }
    expar_status status =
        channel_send(c->team, node->first, place_after(c->dest_place, p->own.at), c->source, p->own.bytes, &batch);
    return channel_finish(c->team, &batch, status);
}

static expar_status gather_by_leaders(const collective *c, const place *p)
{
    const circle node = circle_of_node(c->team), leaders = circle_of_leaders(c->team);
    expar_status status = gather_node(c, &node, p);
    if (status == EXPAR_OK && node.me == 0)
        status = collective_spread(c, &leaders, (const uint8_t *)c->dest + p->node.at, p->node);
    return status == EXPAR_OK ? fan_out_dest(c, (span){.bytes = p->all_bytes}) : status;
}

static expar_status gather(const collective *c, const place *p)
{
    const circle all = circle_of_all(c->team);
    if (team_has_leaders(c->team)) return gather_by_leaders(c, p);
    expar_status status = collective_spread(c, &all, c->source, p->own);
    if (status != EXPAR_OK) return status;
    return collective_copy(c->team, (uint8_t *)c->dest + p->own.at, c->source, p->own.bytes);
}

expar_status expar_fcollect(expar_team *team, void *dest, const void *source, size_t bytes)
{
    place p;
    collective c = {.call = "expar_fcollect", .team = team, .dest = dest, .source = source};
    expar_status status = team_check(c.call, team);
    if (status == EXPAR_OK) status = collective_bytes(&c, "bytes", bytes, (size_t)team->size, &p.all_bytes);
    if (status == EXPAR_OK) status = collective_check(&c, p.all_bytes, bytes);
    if (status != EXPAR_OK) return team_ended(team, status);
    const circle node = circle_of_node(team);
    p.own = (span){.at = (size_t)team->me * bytes, .bytes = bytes};
    p.node = (span){.at = (size_t)node.first * bytes, .bytes = (size_t)node.count * bytes};
    status = team_turn_begin(c.call, team);
    return team_ended(team, status == EXPAR_OK ? team_turn_met(team, gather(&c, &p)) : status);
}

/* ---- collect: whose block belongs where -------------------------------------------------------------------------- */

/* SIZE_MAX stands for all sums that overflow. */
static uint64_t sizes_add(uint64_t a, uint64_t b)
{
    return a > SIZE_MAX - b ? SIZE_MAX : a + b;
}

/* Everybody in the circle gives all others a size; *before gets the sum of those of the places before, *all of all. */
static expar_status exchange_sizes(const circle *among, const char *call, uint64_t bytes, uint64_t *before,
                                   uint64_t *all)
{
    const expar_team *team = among->team;
    channel_batch batch = {.copies = true};
    expar_status status = EXPAR_OK;
    for (int32_t step = 1; step < among->count && status == EXPAR_OK; step++)
        status = channel_give(team, circle_next(among, step), &bytes, sizeof bytes, &batch);
    *before = *all = 0;
    for (int32_t i = 0; i < among->count && status == EXPAR_OK; i++) {
        const void *piece = &bytes;
        if (i == among->me) *before = *all;
        if (i != among->me) status = channel_take(team, circle_member(among, i), call, &piece);
        if (status == EXPAR_OK) *all = sizes_add(*all, *(const uint64_t *)piece);
    }
    return channel_finish(team, &batch, status);
}

/* A leader's message to a member of its node. */
typedef struct answer {
    uint64_t before, all; /* bytes: before its block, and of all blocks */
} answer;

static expar_status ask_leader(const circle *node, const char *call, uint64_t bytes, answer *mine)
{
    const void *piece = mine;
    channel_batch batch = {.copies = true};
    expar_status status = channel_give(node->team, node->first, &bytes, sizeof bytes, &batch);
    if (status == EXPAR_OK) status = channel_take(node->team, node->first, call, &piece);
    if (status == EXPAR_OK) *mine = *(const answer *)piece;
    return channel_finish(node->team, &batch, status);
}

static expar_status take_sizes(const circle *node, const char *call, uint64_t *sum)
{
    const void *piece;
    expar_status status = EXPAR_OK;
    for (int32_t i = 1; i < node->count && status == EXPAR_OK; i++) {
        status = channel_take(node->team, node->first + i, call, &piece);
        if (status == EXPAR_OK) *sum = sizes_add(*sum, *(const uint64_t *)piece);
    }
    return status;
}

/* `next` is the leader's own answer, moved on past its block. */
static expar_status answer_node(const circle *node, answer next)
{
    channel_batch batch = {.copies = true};
    expar_status status = EXPAR_OK;
    for (int32_t i = 1; i < node->count && status == EXPAR_OK; i++) {
        uint64_t bytes = *(const uint64_t *)channel_taken(node->team, node->first + i);
        status = channel_give(node->team, node->first + i, &next, sizeof next, &batch);
        next.before = sizes_add(next.before, bytes);
    }
    return channel_finish(node->team, &batch, status);
}

static expar_status find_place(const collective *c, uint64_t bytes, answer *mine, span *node_blocks)
{
    const circle all = circle_of_all(c->team), node = circle_of_node(c->team), leaders = circle_of_leaders(c->team);
    uint64_t sum = bytes;
    if (!team_has_leaders(c->team)) return exchange_sizes(&all, c->call, bytes, &mine->before, &mine->all);
    if (node.me > 0) return ask_leader(&node, c->call, bytes, mine);
    expar_status status = take_sizes(&node, c->call, &sum);
    if (status == EXPAR_OK) status = exchange_sizes(&leaders, c->call, sum, &mine->before, &mine->all);
    if (status != EXPAR_OK) return status;
    *node_blocks = (span){.at = mine->before, .bytes = sum};
    return answer_node(&node, (answer){.before = sizes_add(mine->before, bytes), .all = mine->all});
}

static expar_status blocks_collect(collective *c, size_t bytes)
{
    answer mine = {0};
    place p = {.own = {.bytes = bytes}};
    expar_status status = find_place(c, bytes, &mine, &p.node);
    if (status == EXPAR_OK && mine.all == SIZE_MAX)
        status =
            error_set(EXPAR_ERR_ARGUMENT, "%s: bytes %zu, expected less: the members' sizes overflow", c->call, bytes);
    if (status == EXPAR_OK) status = collective_check(c, mine.all, bytes);
    p.own.at = mine.before;
    p.all_bytes = mine.all;
    return status == EXPAR_OK ? gather(c, &p) : status;
}

expar_status expar_collect(expar_team *team, void *dest, const void *source, size_t bytes)
{
    collective c = {.call = "expar_collect", .team = team, .dest = dest, .source = source};
    expar_status status = collective_check(&c, 0, bytes);
    if (status == EXPAR_OK) status = team_turn_begin(c.call, team);
    return team_ended(team, status == EXPAR_OK ? team_turn_met(team, blocks_collect(&c, bytes)) : status);
}
