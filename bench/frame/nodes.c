/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of each node, and the traffic between nodes. */
#include "bench/frame/session.h"
#include <stdint.h>

expar_group_options bench_group_options(const struct bench_options *options)
{
    expar_group_options group = EXPAR_GROUP_OPTIONS_INIT;
    if (options->nodes > 1) group.ranks_per_node = options->num_ranks / options->nodes;
    return group;
}

/* Returns whether this rank reaches all ranks of its node by loads and stores. */
static bool reaches_node(const struct bench_world *world, const void *word)
{
    const int each = expar_group_ranks_per_node(world->group), first = world->rank / each * each;
    bool reaches = true;
    for (int rank = first; rank < first + each; rank++)
        reaches &= expar_ptr(world->group, word, rank) != NULL;
    return reaches;
}

bool bench_world_nodes(struct bench_world *world)
{
    void *word;
    if (!bench_good(world, expar_malloc(world->group, sizeof(uint64_t), &word))) return false;
    world->each = bench_all_true(world, reaches_node(world, word)) ? expar_group_ranks_per_node(world->group) : 1;
    world->nodes = world->size / world->each;
    if (world->nodes > 1) world->device = &bench_cpu_nodes;
    return bench_good(world, expar_free(world->group, word));
}

/* ---- what was sent ----------------------------------------------------------------------------------------------- */

void bench_traffic_begin(const struct bench_session *session, struct bench_traffic *traffic)
{
    const struct bench_site *site = bench_site_of(session);
    if (site->traffic) *traffic = site->traffic(session);
}

void bench_traffic_end(const struct bench_session *session, struct bench_traffic *traffic)
{
    const struct bench_site *site = bench_site_of(session);
    if (!site->traffic) return;
    const struct bench_sent before = traffic->sent;
    *traffic = site->traffic(session);
    traffic->counted = true;
    traffic->sent.messages -= before.messages;
    traffic->sent.flags -= before.flags;
    traffic->sent.bytes -= before.bytes;
    traffic->sent.rows -= before.rows;
}

bool bench_traffic_mean(const struct bench_world *world, const struct bench_traffic *mine, struct bench_traffic *mean)
{
    *mean = *mine;
    if (!mine->counted) return true;
    return bench_mean(world, mine->sent.messages, &mean->sent.messages) &&
           bench_mean(world, mine->sent.flags, &mean->sent.flags) &&
           bench_mean(world, mine->sent.bytes, &mean->sent.bytes) &&
           bench_mean(world, mine->sent.rows, &mean->sent.rows) &&
           bench_mean(world, mine->inside_rows, &mean->inside_rows);
}
