/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks are a node, and what goes between nodes. */
#include "bench/frame/device.h"
#include <stdint.h>

expar_group_options bench_group_options(const struct bench_options *options)
{
    expar_group_options group = EXPAR_GROUP_OPTIONS_INIT;
    if (options->nodes > 1) group.ranks_per_node = options->num_ranks / options->nodes;
    return group;
}

/* Ranks beside this one that it reaches by loads and stores: all of its node, or none. */
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

struct bench_sent bench_sent_between(const struct bench_sent *before, const struct bench_sent *now)
{
    return (struct bench_sent){.messages = now->messages - before->messages,
                               .flags = now->flags - before->flags,
                               .bytes = now->bytes - before->bytes,
                               .rows = now->rows - before->rows};
}

bool bench_sent_mean(const struct bench_world *world, const struct bench_sent *mine, struct bench_sent *mean)
{
    return bench_mean(world, mine->messages, &mean->messages) && bench_mean(world, mine->flags, &mean->flags) &&
           bench_mean(world, mine->bytes, &mean->bytes) && bench_mean(world, mine->rows, &mean->rows);
}
