/* SPDX-License-Identifier: Apache-2.0 */
/* fcollect and collect: everybody puts its block where it belongs in everybody's dest, tells all, and hears all. For
 * collect the members first give each other their sizes. */
#include "shmem/collective.h"

/* Own block to `at` bytes behind everybody's dest. */
static expar_status spread(const collective *c, size_t at, size_t bytes)
{
    expar_status status = EXPAR_OK;
    for (int32_t step = 1; step < c->team->size && status == EXPAR_OK; step++) {
        int32_t to = collective_next(c->team, step);
        status = channel_put(c->team, to, c->dest_offset + at, c->source, bytes);
        if (status == EXPAR_OK) status = channel_tell(c->team, to);
    }
    if (status == EXPAR_OK) collective_copy((uint8_t *)c->dest + at, c->source, bytes);
    return status == EXPAR_OK ? collective_hear_others(c) : status;
}

expar_status expar_fcollect(expar_team *team, void *dest, const void *source, size_t bytes)
{
    size_t all_bytes;
    collective c = {.call = "expar_fcollect", .team = team, .dest = dest, .source = source};
    expar_status status = team_check(c.call, team);
    if (status == EXPAR_OK) status = collective_bytes(c.call, (size_t)team->size, bytes, &all_bytes);
    if (status == EXPAR_OK) status = collective_check(&c, all_bytes, bytes);
    return status == EXPAR_OK ? spread(&c, (size_t)team->me * bytes, bytes) : status;
}

/* Gives everybody this member's size; *before gets the sum of the sizes of the members before it, *all that of all. */
static expar_status exchange_sizes(const collective *c, uint64_t bytes, size_t *before, size_t *all)
{
    expar_status status = EXPAR_OK;
    for (int32_t step = 1; step < c->team->size && status == EXPAR_OK; step++)
        status = channel_give(c->team, collective_next(c->team, step), &bytes, sizeof bytes);
    *before = *all = 0;
    for (int32_t member = 0; member < c->team->size && status == EXPAR_OK; member++) {
        const void *piece = &bytes;
        if (member != c->team->me) status = channel_take(c->team, member, c->call, &piece);
        if (status != EXPAR_OK) return status;
        if (member == c->team->me) *before = *all;
        if (size_add_overflows(*all, *(const uint64_t *)piece, all))
            status = error_set(EXPAR_ERR_ARGUMENT, "%s: the members' sizes overflow", c->call);
    }
    return status;
}

expar_status expar_collect(expar_team *team, void *dest, const void *source, size_t bytes)
{
    size_t before = 0, all = 0;
    collective c = {.call = "expar_collect", .team = team, .dest = dest, .source = source};
    expar_status status = collective_check(&c, 0, bytes);
    if (status == EXPAR_OK) status = exchange_sizes(&c, bytes, &before, &all);
    if (status == EXPAR_OK) status = collective_check(&c, all, bytes);
    return status == EXPAR_OK ? spread(&c, before, bytes) : status;
}
