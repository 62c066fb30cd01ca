/* SPDX-License-Identifier: Apache-2.0 */
/* What the collectives share: checks, and telling and hearing everybody. */
#include "shmem/collective.h"

#include <string.h>

expar_status collective_check(collective *c, size_t dest_bytes, size_t source_bytes)
{
    expar_status status = team_check(c->call, c->team);
    if (status == EXPAR_OK && dest_bytes > 0)
        status = target_check_range(c->call, c->team->group, "dest", c->dest, dest_bytes, &c->dest_offset);
    if (status == EXPAR_OK && source_bytes > 0 && !c->source)
        status = error_set(EXPAR_ERR_NULL, "%s: source is NULL", c->call);
    return status;
}

expar_status collective_bytes(const char *call, size_t count, size_t bytes, size_t *product)
{
    if (size_mul_overflows(count, bytes, product))
        return error_set(EXPAR_ERR_ARGUMENT, "%s: %zu times %zu bytes overflow", call, count, bytes);
    return EXPAR_OK;
}

expar_status collective_tell_others(const collective *c)
{
    expar_status status = EXPAR_OK;
    for (int32_t step = 1; step < c->team->size && status == EXPAR_OK; step++)
        status = channel_tell(c->team, collective_next(c->team, step));
    return status;
}

expar_status collective_hear_others(const collective *c)
{
    expar_status status = EXPAR_OK;
    for (int32_t member = 0; member < c->team->size && status == EXPAR_OK; member++)
        if (member != c->team->me) status = channel_hear(c->team, member, c->call);
    return status;
}

void collective_copy(void *to, const void *from, size_t bytes)
{
    if (bytes > 0 && to != from) memmove(to, from, bytes);
}
