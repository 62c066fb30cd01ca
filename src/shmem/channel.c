/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between the members of a team. */
#include "shmem/team.h"

static team_channel *channel_of(const expar_team *team)
{
    return &team->group->sym->teams->channels[team->slot];
}

static team_peer *peer_of(const expar_team *team, int32_t member)
{
    return &channel_of(team)->peers[team_rank(team, member)];
}

static expar_status way_to(transport *const *table, int32_t rank, transport **via)
{
    *via = table[rank];
    return *via ? EXPAR_OK : error_set(EXPAR_ERR_UNSUPPORTED, "no transport reaches rank %d", rank);
}

expar_status channel_put(const expar_team *team, int32_t to, uint64_t offset, const void *source, size_t bytes)
{
    transport *via;
    int32_t rank = team_rank(team, to);
    if (bytes == 0) return EXPAR_OK;
    expar_status status = way_to(team->group->sym->reach_rma, rank, &via);
    return status == EXPAR_OK ? via->ops->put(via, rank, offset, source, bytes) : status;
}

expar_status channel_get(const expar_team *team, int32_t from, void *dest, uint64_t offset, size_t bytes)
{
    transport *via;
    int32_t rank = team_rank(team, from);
    if (bytes == 0) return EXPAR_OK;
    expar_status status = way_to(team->group->sym->reach_rma, rank, &via);
    return status == EXPAR_OK ? via->ops->get(via, rank, dest, offset, bytes) : status;
}

/* A flag that goes another way than the data could overtake it. */
static expar_status complete_data(const sym *self, int32_t rank)
{
    transport *data = self->reach_rma[rank];
    transport *flag = self->peers[rank] ? self->reach_map[rank] : self->reach_atomic[rank];
    return data && data != flag ? data->ops->quiet(data) : EXPAR_OK;
}

expar_status channel_tell(const expar_team *team, int32_t to)
{
    sym *self = team->group->sym;
    int32_t rank = team_rank(team, to);
    uint64_t flag = channel_of(team)->flags + (uint64_t)self->rank * sizeof(uint64_t);
    expar_status status = complete_data(self, rank);
    return status == EXPAR_OK ? sym_word_set(self, rank, flag, ++peer_of(team, to)->told) : status;
}

expar_status channel_hear(const expar_team *team, int32_t from, const char *call)
{
    sym *self = team->group->sym;
    int32_t rank = team_rank(team, from);
    uint64_t awaited = ++peer_of(team, from)->heard;
    const _Atomic uint64_t *flags = (const _Atomic uint64_t *)sym_at(self, self->rank, channel_of(team)->flags);
    expar_status status = EXPAR_OK;
    sym_rest rest = sym_rest_begin(self, call);
    while (atomic_load_explicit(&flags[rank], memory_order_acquire) < awaited &&
           (status = sym_rest_turn(&rest)) == EXPAR_OK) {
    }
    sym_rest_end(&rest);
    if (!rest.timed_out) return status;
    /* The members are out of step from now on. */
    sym_fail(self, SYM_PEER_SILENT, rank);
    return error_set(status, "%s: timed out after %lld ms: nothing from rank %d, member %d of %d", call,
                     (long long)self->timeout_ms, rank, from, team->size);
}

size_t channel_piece_bytes(const expar_team *team)
{
    return team->group->sym->teams->piece_bytes;
}

/* Where the pieces of a rank lie in the heap of whoever takes them. */
static uint64_t piece_offset(const expar_team *team, int32_t giver_rank, uint64_t count)
{
    return channel_of(team)->scratch + ((uint64_t)giver_rank * 2 + count % 2) * channel_piece_bytes(team);
}

expar_status channel_give(const expar_team *team, int32_t to, const void *piece, size_t bytes)
{
    uint64_t offset = piece_offset(team, team->group->rank, peer_of(team, to)->given++);
    expar_status status = channel_put(team, to, offset, piece, bytes);
    return status == EXPAR_OK ? channel_tell(team, to) : status;
}

expar_status channel_take(const expar_team *team, int32_t from, const char *call, const void **piece)
{
    uint64_t offset = piece_offset(team, team_rank(team, from), peer_of(team, from)->taken++);
    expar_status status = channel_hear(team, from, call);
    if (status == EXPAR_OK) *piece = (const uint8_t *)team->group->sym->heap.base + offset;
    return status;
}

void *channel_own_piece(const expar_team *team)
{
    return (uint8_t *)team->group->sym->heap.base + piece_offset(team, team->group->rank, 0);
}
