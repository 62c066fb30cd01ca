/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between the members of a team. */
#include "pgas/team/team.h"

static team_channel *channel_of(const expar_team *team)
{
    return &team->table->channels[team->slot];
}

static team_peer *peer_of(const expar_team *team, int32_t member)
{
    return &channel_of(team)->peers[team_rank(team, member)];
}

/* Makes the link of data to that memory of the rank, and of flags, which are in its heap. local: the data here. */
static expar_status channel_link(const expar_team *team, int32_t rank, transport_memory memory, const void *local,
                                 link_peer *out)
{
    sym *self = team->group->sym;
    expar_status status = link_reach(self, rank, memory, local ? LINK_DATA : 0, NULL, out);
    if (status == EXPAR_OK && memory != TRANSPORT_HOST) status = link_aim_words(out, TRANSPORT_HOST);
    if (status == EXPAR_OK && local && kinds_is_device(self, local)) link_take_device(out);
    return status;
}

expar_status channel_put(const expar_team *team, int32_t to, kinds_place at, const void *source, size_t bytes)
{
    link_peer peer;
    const link_data put = {.offset = at.offset, .source = source, .bytes = bytes, .copies = true};
    if (bytes == 0) return EXPAR_OK;
    expar_status status = channel_link(team, team_rank(team, to), at.memory, source, &peer);
    return status == EXPAR_OK ? link_put(&peer, &put, &channel_of(team)->sent) : status;
}

expar_status channel_get(const expar_team *team, int32_t from, void *dest, kinds_place at, size_t bytes)
{
    link_peer peer;
    if (bytes == 0) return EXPAR_OK;
    expar_status status = channel_link(team, team_rank(team, from), at.memory, dest, &peer);
    return status == EXPAR_OK ? link_get_now(&peer, dest, at.offset, bytes) : status;
}

/* The offset at which a receiver counts this rank's messages in its heap. */
static uint64_t own_flag(const expar_team *team)
{
    return channel_of(team)->flags + (uint64_t)team->group->rank * sizeof(uint64_t);
}

/* Raises the flag at a rank: by a store, or by the transport of its atomics. */
static expar_status raise_flag(const expar_team *team, int32_t rank, uint64_t value)
{
    link_peer peer;
    sym *self = team->group->sym;
    const link_flag flag = {.offset = own_flag(team), .word = value};
    if (self->peers[rank]) return sym_word_set(self, rank, flag.offset, value);
    expar_status status = link_reach(self, rank, TRANSPORT_HOST, LINK_WORDS, NULL, &peer);
    return status == EXPAR_OK ? link_set_flag(&peer, &flag, &channel_of(team)->sent) : status;
}

/* A network may let a later operation overtake an earlier one: what the channel has put and told has arrived first. */
static expar_status settle_sent(const expar_team *team)
{
    return link_quiet(team->group->sym, &channel_of(team)->sent);
}

expar_status channel_tell(const expar_team *team, int32_t to)
{
    expar_status status = settle_sent(team);
    return status == EXPAR_OK ? raise_flag(team, team_rank(team, to), ++peer_of(team, to)->told) : status;
}

expar_status channel_send(const expar_team *team, int32_t to, kinds_place at, const void *source, size_t bytes,
                          channel_batch *batch)
{
    link_peer peer;
    const int32_t rank = team_rank(team, to);
    expar_status status = channel_link(team, rank, at.memory, bytes > 0 ? source : NULL, &peer);
    if (status != EXPAR_OK) return status;
    /* A network that carries both data and flag orders the flag after the data by itself, and meanwhile this rank sends
       on. */
    if (bytes == 0 || team->group->sym->peers[rank] || peer.data != peer.words) {
        status = channel_put(team, to, at, source, bytes);
        return status == EXPAR_OK ? channel_tell(team, to) : status;
    }
    status = settle_sent(team);
    if (status != EXPAR_OK) return status;
    const link_data put = {.offset = at.offset, .source = source, .bytes = bytes, .copies = batch->copies};
    const link_flag flag = {.offset = own_flag(team), .word = ++peer_of(team, to)->told};
    return link_put_flag(&peer, &put, &flag, &batch->sent);
}

expar_status channel_finish(const expar_team *team, channel_batch *batch, expar_status status)
{
    error_kept kept;
    error_keep(&kept, status);
    expar_status sent = link_quiet(team->group->sym, &batch->sent);
    return status == EXPAR_OK ? sent : error_restore(&kept);
}

expar_status channel_hear(const expar_team *team, int32_t from, const char *call)
{
    sym *self = team->group->sym;
    int32_t rank = team_rank(team, from);
    uint64_t awaited = ++peer_of(team, from)->heard;
    const _Atomic uint64_t *flags = (const _Atomic uint64_t *)sym_at(self, self->rank, channel_of(team)->flags);
    const sym_rest_goal goal = {.word = &flags[rank], .least = awaited};
    const boot_topic topic = team_topic(team);
    expar_status status = EXPAR_OK;
    boot_note_call(self->boot, &topic, call);
    sym_rest rest = sym_rest_begin_among(self, call, team_awaited(team));
    sym_rest_expect(&rest, &topic, rank);
    sym_rest_until(&rest, &goal);
    while (atomic_load_explicit(&flags[rank], memory_order_acquire) < awaited &&
           (status = sym_rest_turn(&rest)) == EXPAR_OK) {
    }
    sym_rest_end(&rest);
    if (status == EXPAR_OK) status = sym_check_count(&flags[rank], awaited, rank, call);
    /* The members are out of step from now on: the blamed rank is one of them. */
    return status == EXPAR_OK ? EXPAR_OK : sym_rest_blame(&rest, status);
}

size_t channel_piece_bytes(const expar_team *team)
{
    return channel_of(team)->piece_bytes;
}

/* The offset of a rank's pieces in the heap of their receiver. */
static uint64_t piece_offset(const expar_team *team, int32_t giver_rank, uint64_t count)
{
    return channel_of(team)->scratch + ((uint64_t)giver_rank * 2 + count % 2) * channel_piece_bytes(team);
}

expar_status channel_give(const expar_team *team, int32_t to, const void *piece, size_t bytes, channel_batch *batch)
{
    const kinds_place at = {.memory = TRANSPORT_HOST,
                            .offset = piece_offset(team, team->group->rank, peer_of(team, to)->given++)};
    return channel_send(team, to, at, piece, bytes, batch);
}

expar_status channel_take(const expar_team *team, int32_t from, const char *call, const void **piece)
{
    peer_of(team, from)->taken++;
    expar_status status = channel_hear(team, from, call);
    if (status == EXPAR_OK) *piece = channel_taken(team, from);
    return status;
}

const void *channel_taken(const expar_team *team, int32_t from)
{
    uint64_t offset = piece_offset(team, team_rank(team, from), peer_of(team, from)->taken - 1);
    return (const uint8_t *)team->group->sym->heap.base + offset;
}

void *channel_own_piece(const expar_team *team, uint64_t number)
{
    return (uint8_t *)team->group->sym->heap.base + piece_offset(team, team->group->rank, number);
}

expar_status circle_hear(const circle *c, const char *call)
{
    expar_status status = EXPAR_OK;
    for (int32_t place = 0; place < c->count && status == EXPAR_OK; place++)
        if (place != c->me) status = channel_hear(c->team, circle_member(c, place), call);
    return status;
}
