/* SPDX-License-Identifier: Apache-2.0 */
/* Between the leader of a node and its members, who map each other: a star or a tree of small messages, or, for large
 * data, everybody fetches from the leader. */
#include "pgas/team/collective.h"
#include "shmem/tree.h"

expar_status fan_in(const circle *node, const char *call)
{
    const tree t = tree_of_node(node->count, node->me, 0);
    expar_status status = EXPAR_OK;
    for (int32_t i = t.num_children - 1; i >= 0 && status == EXPAR_OK; i--)
        status = channel_hear(node->team, circle_member(node, t.children[i]), call);
    if (status == EXPAR_OK && t.parent >= 0) status = channel_tell(node->team, circle_member(node, t.parent));
    return status;
}

static void *here(const circle *node, kinds_place place)
{
    return kinds_at(node->team->group->sym, &place);
}

static expar_status push(const circle *node, const char *call, const fan *what)
{
    const tree t = tree_of_node(node->count, node->me, what->lead);
    const void *data = what->bytes > 0 ? here(node, t.parent < 0 ? what->from : what->to) : NULL;
    channel_batch batch = {.copies = false};
    expar_status status = EXPAR_OK;
    if (t.parent >= 0) status = channel_hear(node->team, circle_member(node, t.parent), call);
    for (int32_t i = 0; i < t.num_children && status == EXPAR_OK; i++)
        status = channel_send(node->team, circle_member(node, t.children[i]), what->to, data, what->bytes, &batch);
    return channel_finish(node->team, &batch, status);
}

/* The leader returns when all have fetched. */
static expar_status pull(const circle *node, const char *call, const fan *what)
{
    const int32_t leader = circle_member(node, what->lead);
    expar_status status = EXPAR_OK;
    if (node->me == what->lead) {
        for (int32_t step = 1; step < node->count && status == EXPAR_OK; step++)
            status = channel_tell(node->team, circle_next(node, step));
        return status == EXPAR_OK ? circle_hear(node, call) : status;
    }
    status = channel_hear(node->team, leader, call);
    if (status == EXPAR_OK) status = channel_get(node->team, leader, here(node, what->to), what->from, what->bytes);
    return status == EXPAR_OK ? channel_tell(node->team, leader) : status;
}

expar_status fan_out(const circle *node, const char *call, const fan *what)
{
    if (node->count == 1) return EXPAR_OK;
    return what->bytes < CHOICE_PULL_BYTES ? push(node, call, what) : pull(node, call, what);
}

expar_status fan_out_dest(const collective *c, span part)
{
    const circle node = circle_of_node(c->team);
    const kinds_place at = place_after(c->dest_place, part.at);
    return fan_out(&node, c->call, &(fan){.from = at, .to = at, .bytes = part.bytes});
}
