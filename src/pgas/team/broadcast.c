/* SPDX-License-Identifier: Apache-2.0 */
/* Broadcast. Data go down a binomial tree from the root to one leader on every node, and so cross the network once a
 * node. They go from each leader to its node (fan.c). The root leads its own node. */
#include "pgas/team/collective.h"
#include "shmem/tree.h"

typedef struct broadcast {
    collective c;
    size_t bytes;
    int32_t root, root_node;
    kinds_place source_place;
} broadcast;

static int32_t node_of(const expar_team *team, int32_t member)
{
    int32_t node = 0;
    while (team->reach.first[node + 1] <= member)
        node++;
    return node;
}

static int32_t leader_of(const broadcast *b, int32_t node)
{
    return node == b->root_node ? b->root : b->c.team->reach.first[node];
}

static expar_status down_the_leaders(const broadcast *b)
{
    const expar_team *team = b->c.team;
    const tree t = tree_of(team->reach.num_nodes, team->reach.node, b->root_node, 0);
    const void *data = t.parent < 0 ? b->c.source : b->c.dest;
    channel_batch batch = {.copies = false};
    expar_status status = EXPAR_OK;
    if (t.parent >= 0) status = channel_hear(team, leader_of(b, t.parent), b->c.call);
    for (int32_t i = 0; i < t.num_children && status == EXPAR_OK; i++)
        status = channel_send(team, leader_of(b, t.children[i]), b->c.dest_place, data, b->bytes, &batch);
    return channel_finish(team, &batch, status);
}

static expar_status down(const broadcast *b)
{
    const expar_team *team = b->c.team;
    const circle node = circle_of_node(team);
    const int32_t leader = leader_of(b, team->reach.node);
    const fan inside = {.lead = leader - node.first,
                        .from = leader == b->root ? b->source_place : b->c.dest_place,
                        .to = b->c.dest_place,
                        .bytes = b->bytes};
    expar_status status = team->me == leader ? down_the_leaders(b) : EXPAR_OK;
    return status == EXPAR_OK ? fan_out(&node, b->c.call, &inside) : status;
}

static expar_status broadcast_run(broadcast *b, bool own_too)
{
    const expar_team *team = b->c.team;
    expar_status status = collective_check(&b->c, b->bytes, b->bytes);
    if (status != EXPAR_OK) return status;
    if (b->root < 0 || b->root >= team->size)
        status = error_set(EXPAR_ERR_RANGE, "%s: root %d, expected 0 to %d", b->c.call, b->root, team->size - 1);
    if (status == EXPAR_OK && b->bytes > 0)
        status = target_check_place(b->c.call, team->group, "source", b->c.source, b->bytes, &b->source_place);
    if (status != EXPAR_OK) return team_note(b->c.team, status);
    b->root_node = node_of(team, b->root);
    status = team_turn_begin(b->c.call, team);
    if (status == EXPAR_OK) status = team_turn_end(team, down(b));
    if (status != EXPAR_OK || !own_too || team->me != b->root) return status;
    return collective_copy(team, b->c.dest, b->c.source, b->bytes);
}

expar_status expar_broadcast(expar_team *team, void *dest, const void *source, size_t bytes, int32_t root)
{
    broadcast b = {
        .c = {.call = "expar_broadcast", .team = team, .dest = dest, .source = source}, .bytes = bytes, .root = root};
    return team_ended(team, broadcast_run(&b, true));
}

expar_status expar_broadcast_others(expar_team *team, void *dest, const void *source, size_t bytes, int32_t root)
{
    broadcast b = {.c = {.call = "expar_broadcast_others", .team = team, .dest = dest, .source = source},
                   .bytes = bytes,
                   .root = root};
    return team_ended(team, broadcast_run(&b, false));
}
