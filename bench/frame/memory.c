/* SPDX-License-Identifier: Apache-2.0 */
/* The check, before anything is measured, that a session's memory is there. It asks for the largest tensors, the buffer
 * and its outputs; smaller things are left out, so that no run is rejected that would fit. */
#include "bench/frame/session.h"
#include <stdio.h>
#include <stdlib.h>

/* Returns the bytes that a session takes on this rank. */
static uint64_t bytes_of(const struct bench_session *session)
{
    const struct problem *problem = session->problem;
    const uint64_t slots = (uint64_t)problem->tokens * (uint64_t)problem->topk;
    const uint64_t tensors = 2 * (uint64_t)problem->tokens * problem->row_bytes + 8 * slots;
    const uint64_t routing = session->world->place.type == EXPAR_CUDA ? 0 : 4 * slots * (uint64_t)problem->num_ranks;
    const uint64_t baseline = session->world->baseline ? 2 * (uint64_t)problem->most_received * problem->row_bytes : 0;
    return tensors + routing + baseline + session->mode->bytes(session);
}

/* Says on the lowest rank that lacks memory how much it lacks. */
static bool agree(const struct bench_session *session, bool enough, uint64_t bytes, const struct bench_memory *memory)
{
    const struct bench_world *world = session->world;
    unsigned char mine = enough, *all = calloc((size_t)world->size, 1);
    bool good = all && bench_good(world, expar_group_allgather(world->group, &mine, all, 1));
    int lacking = 0;
    while (good && lacking < world->size && all[lacking])
        lacking++;
    free(all);
    if (good && lacking == world->rank)
        fprintf(stderr,
                "expar bench: -n %d --tokens %lld --hidden %d takes about %.1f GB on each rank, and %.1f GB are left "
                "for each (%s); fewer tokens, ranks or elements are expected\n",
                world->size, (long long)session->problem->tokens, session->problem->hidden, (double)bytes * 1e-9,
                (double)memory->bytes * 1e-9, memory->limit);
    return good && lacking == world->size;
}

bool bench_memory_check(const struct bench_session *session)
{
    const struct bench_world *world = session->world;
    struct bench_memory memory = {.bytes = UINT64_MAX};
    if (!world->device->memory || !session->mode->bytes) return true;
    world->device->memory(world, session->options, &memory);
    const uint64_t bytes = bytes_of(session);
    return agree(session, bytes <= memory.bytes, bytes, &memory);
}
