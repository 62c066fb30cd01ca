/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes: which ranks can share memory. Found from the hosts, or set by ranks_per_node. */
#include "group/parts.h"
#include <expar/info.h>

#include <string.h>

/* Returns the first of the ranks on the host of rank r. */
static int32_t first_on_host(const boot *ctl, int32_t r)
{
    int32_t first = 0;
    while (ctl->places[first].host != ctl->places[r].host)
        first++;
    return first;
}

/* Every host is a node: its ranks must be consecutive, and as many as on the first host. */
static expar_status topology_check_hosts(const boot *ctl, int32_t ranks_per_node)
{
    for (int32_t r = 0; r < ctl->size; r++) {
        int32_t first = first_on_host(ctl, r);
        int32_t count = boot_host_ranks(ctl, r);
        if (r - first >= count)
            return error_set(
                EXPAR_ERR_BOOTSTRAP,
                "ranks %d and %d share a host, but ranks of other hosts lie between them: number the ranks host "
                "by host",
                first, r);
        if (count != ranks_per_node)
            return error_set(
                EXPAR_ERR_BOOTSTRAP,
                "the host of rank %d has %d ranks, that of rank 0 has %d: set ranks_per_node to a number that "
                "divides both",
                r, count, ranks_per_node);
    }
    return EXPAR_OK;
}

/* Nodes have a given size: none may span two hosts. */
static expar_status topology_check_nodes(const boot *ctl, int32_t ranks_per_node)
{
    if (ctl->size % ranks_per_node != 0)
        return error_set(EXPAR_ERR_ARGUMENT, "ranks_per_node %d does not divide the group's %d ranks", ranks_per_node,
                         ctl->size);
    for (int32_t r = 0; r < ctl->size; r++) {
        int32_t first = r - r % ranks_per_node;
        if (ctl->places[r].host != ctl->places[first].host)
            return error_set(EXPAR_ERR_BOOTSTRAP,
                             "ranks_per_node %d puts ranks %d and %d on one node, but they are on two hosts",
                             ranks_per_node, first, r);
    }
    return EXPAR_OK;
}

expar_status group_topology_find(const boot *ctl, int32_t ranks_per_node, int32_t *nodes, group_topology *out)
{
    int32_t each = ranks_per_node > 0 ? ranks_per_node : boot_host_ranks(ctl, 0);
    expar_status status = ranks_per_node > 0 ? topology_check_nodes(ctl, each) : topology_check_hosts(ctl, each);
    if (status != EXPAR_OK) return status;
    for (int32_t r = 0; r < ctl->size; r++)
        nodes[r] = r / each;
    *out = (group_topology){
        .num_nodes = ctl->size / each,
        .ranks_per_node = each,
        .host_ranks = boot_host_ranks(ctl, ctl->rank),
        .host_cores = ctl->places[ctl->rank].num_cores,
    };
    return EXPAR_OK;
}

expar_status expar_group_get_place(const expar_group *group, int32_t rank, expar_group_place *place)
{
    static const char what[] = "expar_group_get_place";
    if (!group) return group_ended(group, error_set(EXPAR_ERR_NULL, "%s: group is NULL", what));
    if (rank < 0 || rank >= group->size)
        return group_ended(group,
                           error_set(EXPAR_ERR_RANGE, "%s: rank %d, expected 0 to %d", what, rank, group->size - 1));
    const boot_place *known = &group->boot->places[rank];
    expar_group_place full = {.node = group->nodes[rank], .cores = known->num_cores, .numa_node = known->numa_node};
    _Static_assert(sizeof full.nics == BOOT_NICS_TEXT, "one length of names");
    memcpy(full.nics, known->nics, sizeof full.nics);
    return group_ended(group, struct_give(what, "place", "EXPAR_GROUP_PLACE_INIT", &full, sizeof full, place));
}
