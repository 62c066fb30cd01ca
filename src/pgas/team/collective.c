/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the collectives: checks, and putting into everybody's dest. */
#include "pgas/team/collective.h"

#include <string.h>

expar_status collective_check(collective *c, size_t dest_bytes, size_t source_bytes)
{
    expar_status status = team_check(c->call, c->team);
    if (status != EXPAR_OK) return status;
    if (dest_bytes > 0)
        status = target_check_place(c->call, c->team->group, "dest", c->dest, dest_bytes, &c->dest_place);
    if (status == EXPAR_OK && source_bytes > 0 && !c->source)
        status = error_set(EXPAR_ERR_NULL, "%s: source is NULL", c->call);
    return team_note(c->team, status);
}

expar_status collective_bytes(const collective *c, const char *argument, size_t count, size_t each, size_t *bytes)
{
    if (!size_mul_overflows(count, each, bytes)) return EXPAR_OK;
    return team_note(c->team, error_set(EXPAR_ERR_ARGUMENT, "%s: %s %zu, expected at most %zu", c->call, argument,
                                        count, SIZE_MAX / each));
}

expar_status collective_copy(const expar_team *team, void *to, const void *from, size_t bytes)
{
    const sym *self = team->group->sym;
    if (bytes == 0 || to == from) return EXPAR_OK;
    const bool to_device = kinds_is_device(self, to), from_device = kinds_is_device(self, from);
    if (to_device || from_device)
        return mem_copier_copy(kinds_copier(self), kinds_side(self, to, bytes, to_device),
                               kinds_side(self, from, bytes, from_device), bytes);
    memmove(to, from, bytes);
    return EXPAR_OK;
}

expar_status collective_spread(const collective *c, const circle *among, const void *source, span part)
{
    channel_batch batch = {.copies = false};
    expar_status status = EXPAR_OK;
    for (int32_t step = 1; step < among->count && status == EXPAR_OK; step++)
        status = channel_send(c->team, circle_next(among, step), place_after(c->dest_place, part.at), source,
                              part.bytes, &batch);
    if (status == EXPAR_OK) status = circle_hear(among, c->call);
    return channel_finish(c->team, &batch, status);
}
