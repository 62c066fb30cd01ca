/* SPDX-License-Identifier: Apache-2.0 */
/* The transports of a group as tools see them: the public calls of expar/info.h. */
#include "group/group.h"
#include <expar/info.h>

#include <assert.h>
#include <stdio.h>

static_assert((int)EXPAR_REACH_MAP == (int)TRANSPORT_MAP && (int)EXPAR_REACH_PUT == (int)TRANSPORT_PUT &&
                  (int)EXPAR_REACH_GET == (int)TRANSPORT_GET && (int)EXPAR_REACH_ATOMIC == (int)TRANSPORT_ATOMIC,
              "the public set is the transports' own");
#define PUBLIC_REACH ((unsigned)(EXPAR_REACH_MAP | EXPAR_REACH_PUT | EXPAR_REACH_GET | EXPAR_REACH_ATOMIC))

static bool has(const expar_group *group, int32_t index)
{
    return group && index >= 0 && index < group->sym->num_transports;
}

static bool is_rank(const expar_group *group, int32_t rank)
{
    return rank >= 0 && rank < group->size;
}

bool expar_transport_describe(const expar_group *group, int32_t index, const char **name, char *text, size_t text_bytes)
{
    if (!has(group, index)) return false;
    const transport *t = group->sym->transports[index];
    if (name) *name = t->ops->name;
    if (text && text_bytes > 0) {
        text[0] = '\0';
        if (t->ops->describe) t->ops->describe(t, text, text_bytes);
    }
    return true;
}

const char *expar_transport_summary(const expar_group *group, int32_t index)
{
    return has(group, index) ? group->sym->transports[index]->ops->summary : NULL;
}

const char *expar_transport_missing(const expar_group *group)
{
    return group ? group->sym->unreached : NULL;
}

unsigned expar_transport_reach(const expar_group *group, int32_t index, int32_t rank, int32_t pe)
{
    if (!has(group, index) || !is_rank(group, rank) || !is_rank(group, pe)) return 0;
    return sym_reach(group->sym, rank, pe, TRANSPORT_HOST, index) & PUBLIC_REACH;
}

unsigned expar_transport_selected(const expar_group *group, int32_t index, int32_t pe)
{
    if (!has(group, index) || !is_rank(group, pe)) return 0;
    const sym *self = group->sym;
    const transport *t = self->transports[index];
    const transport_ways *ways = sym_ways(self, TRANSPORT_HOST, pe);
    unsigned uses = 0;
    if (ways->map == t) uses |= EXPAR_REACH_MAP;
    if (ways->data == t) uses |= EXPAR_REACH_PUT | EXPAR_REACH_GET;
    if (ways->words == t) uses |= EXPAR_REACH_ATOMIC;
    return uses;
}

/* Only the transport of a node reaches memory of GPUs by itself. All others stage it. */
static const char *way_to_device(const transport_ops *ops)
{
    int64_t stages = 0;
    const bool known = env_int("EXPAR_STAGE", 0, 1, &stages) == EXPAR_OK;
    return ops->node_local && known && !stages ? "copies by the driver" : "staged in pinned memory";
}

const char *expar_transport_way(const expar_group *group, int32_t index, expar_memory_kind kind)
{
    if (!has(group, index)) return NULL;
    const transport_ops *ops = group->sym->transports[index]->ops;
    switch (kind) {
    case EXPAR_MEMORY_HOST:
    case EXPAR_MEMORY_PINNED:
        return ops->node_local ? "loads and stores" : "network";
    case EXPAR_MEMORY_DEVICE:
        return way_to_device(ops);
    }
    return NULL;
}

static expar_network_stats add_traffic(const sym *self)
{
    transport_traffic sum = {0};
    for (int32_t t = 0; t < self->num_transports; t++)
        if (self->transports[t]->ops->add_traffic) self->transports[t]->ops->add_traffic(self->transports[t], &sum);
    return (expar_network_stats){.puts = sum.puts.operations,
                                 .put_bytes = sum.puts.bytes,
                                 .gets = sum.gets.operations,
                                 .get_bytes = sum.gets.bytes,
                                 .atomics = sum.atomics.operations,
                                 .atomic_bytes = sum.atomics.bytes,
                                 .requests = sum.requests.operations,
                                 .request_bytes = sum.requests.bytes,
                                 .doorbells = sum.doorbells,
                                 .completions = sum.completions,
                                 .device_ns = sum.device_ns};
}

expar_status expar_network_get_stats(const expar_group *group, expar_network_stats *stats)
{
    static const char what[] = "expar_network_get_stats";
    if (!group) return group_ended(group, error_set(EXPAR_ERR_NULL, "%s: group is NULL", what));
    const expar_network_stats now = add_traffic(group->sym);
    return group_ended(group, struct_give(what, "stats", "EXPAR_NETWORK_STATS_INIT", &now, sizeof now, stats));
}
