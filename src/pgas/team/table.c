/* SPDX-License-Identifier: Apache-2.0 */
/* The table of a rank's teams and the memory of their channels, made at the first use of teams. */
#include "base/interrupt.h"
#include "pgas/pgas.h"
#include "pgas/team/team.h"

#include <stdlib.h>

/* All channels together take this or a sixteenth of the heap, whichever is less; pieces are as large as that allows,
   within bounds. */
#define CHANNELS_BYTES    ((uint64_t)16 << 20)
#define LEAST_PIECE_BYTES 256u
#define MOST_PIECE_BYTES  (32u << 10)

static uint64_t flags_bytes_of(const sym *self)
{
    return align_up((uint64_t)self->size * sizeof(uint64_t), 64);
}

/* The pieces of TEAM_SLOTS channels that share so much memory. */
static size_t piece_bytes_for(const sym *self, uint64_t all)
{
    const uint64_t flags = flags_bytes_of(self), slot = all / TEAM_SLOTS;
    const uint64_t piece = slot < flags ? 0 : (slot - flags) / (2 * (uint64_t)self->size) & ~UINT64_C(63);
    if (piece < LEAST_PIECE_BYTES) return LEAST_PIECE_BYTES;
    return piece < MOST_PIECE_BYTES ? piece : MOST_PIECE_BYTES;
}

static uint64_t channel_bytes_of(const sym *self, size_t piece_bytes)
{
    return flags_bytes_of(self) + 2 * (uint64_t)self->size * piece_bytes;
}

/* Flags of kernels' barriers come after the channels. */
static uint64_t kernel_flags_bytes(const sym *self)
{
    return TEAM_SLOTS * (uint64_t)self->size * sizeof(uint64_t);
}

/* Places the channels one after the other, and returns their bytes. Those of streams get a fifth, or their least. */
static uint64_t channels_lay_out(team_table *table, const sym *self)
{
    const uint64_t all = self->heap.bytes / 16 < CHANNELS_BYTES ? self->heap.bytes / 16 : CHANNELS_BYTES;
    const size_t on_stream = piece_bytes_for(self, all / 5);
    const uint64_t taken = TEAM_SLOTS * channel_bytes_of(self, on_stream) + kernel_flags_bytes(self);
    const size_t on_host = piece_bytes_for(self, taken < all ? all - taken : 0);
    uint64_t offset = table->offset;
    for (int32_t s = 0; s < TEAM_CHANNELS; s++) {
        team_channel *channel = &table->channels[s];
        channel->piece_bytes = s >= TEAM_ON_STREAM ? on_stream : on_host;
        channel->flags = offset;
        channel->scratch = offset + flags_bytes_of(self);
        offset += channel_bytes_of(self, channel->piece_bytes);
    }
    return offset - table->offset;
}

static void clear_flags(const team_table *table, sym *self)
{
    sym_clear(self, table->kernel_flags, kernel_flags_bytes(self));
    for (int32_t s = 0; s < TEAM_CHANNELS; s++)
        sym_clear(self, table->channels[s].flags, (uint64_t)self->size * sizeof(uint64_t));
}

uint64_t team_number(void)
{
    static _Atomic uint64_t last;
    return atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
}

/* Every rank is a member of one world, one node and one rail. */
static expar_status add_standing(const char *call, expar_group *group, team_table *table)
{
    const int32_t per_node = group->ranks_per_node, local = group->rank % per_node;
    const expar_team standing[] = {
        [TEAM_WORLD_SLOT] = {.start = 0, .stride = 1, .size = group->size, .me = group->rank},
        [TEAM_SHARED_SLOT] = {.start = group->rank - local, .stride = 1, .size = per_node, .me = local},
        [TEAM_RAIL_SLOT] = {.start = local, .stride = per_node, .size = group->num_nodes, .me = group->rank / per_node},
    };
    for (int32_t s = 0; s < (int32_t)ARRAY_LENGTH(standing); s++) {
        table->teams[s] = standing[s];
        table->teams[s].group = group;
        table->teams[s].table = table;
        table->teams[s].slot = s;
        table->teams[s].number = team_number();
        expar_status status = team_reach_find(call, &table->teams[s]);
        if (status != EXPAR_OK) return status;
    }
    for (int32_t s = 0; s < TEAM_FIRST_SLOT; s++) {
        team_peer *peers;
        expar_status status = team_slot_prepare(call, group->size, &peers);
        if (status != EXPAR_OK) return status;
        team_slot_use(table, s, peers);
    }
    return EXPAR_OK;
}

expar_status team_slot_prepare(const char *call, int32_t group_size, team_peer **peers)
{
    *peers = calloc((size_t)group_size, sizeof **peers);
    if (!*peers) return error_set(EXPAR_ERR_MEMORY, "%s: no memory for %d records", call, group_size);
    return EXPAR_OK;
}

uint64_t team_slots_free(team_table *table)
{
    pthread_mutex_lock(&table->lock);
    const uint64_t free = ~table->used;
    pthread_mutex_unlock(&table->lock);
    return free;
}

bool team_slot_claim(team_table *table, int32_t slot)
{
    const uint64_t bit = UINT64_C(1) << slot;
    pthread_mutex_lock(&table->lock);
    const bool claimed = !((table->used | table->claimed) & bit);
    if (claimed) table->claimed |= bit;
    pthread_mutex_unlock(&table->lock);
    return claimed;
}

void team_slot_drop(team_table *table, int32_t slot)
{
    pthread_mutex_lock(&table->lock);
    table->claimed &= ~(UINT64_C(1) << slot);
    pthread_mutex_unlock(&table->lock);
}

void team_slot_use(team_table *table, int32_t slot, team_peer *peers)
{
    const uint64_t bit = UINT64_C(1) << slot;
    team_channel *channel = &table->channels[slot];
    pthread_mutex_lock(&table->lock);
    if (channel->peers)
        free(peers);
    else
        channel->peers = peers;
    table->used |= bit;
    table->claimed &= ~bit;
    pthread_mutex_unlock(&table->lock);
}

expar_status team_on_stream(const char *call, const expar_team *team, expar_team *out)
{
    team_peer *peers = NULL;
    team_table *table = team->table;
    const int32_t slot = team->slot + TEAM_ON_STREAM;
    expar_status status = team_slot_prepare(call, team->group->size, &peers);
    if (status != EXPAR_OK) return status;
    pthread_mutex_lock(&table->lock);
    if (table->channels[slot].peers)
        free(peers);
    else
        table->channels[slot].peers = peers;
    pthread_mutex_unlock(&table->lock);
    *out = *team;
    out->slot = slot;
    return EXPAR_OK;
}

expar_status team_turn_begin(const char *call, const expar_team *team)
{
    if (team->slot != TEAM_FORMED_SLOT) return EXPAR_OK;
    expar_status status = interrupt_lock(&team->table->turn, call);
    if (status != EXPAR_OK) return status;
    status = team_check(call, team);
    return status == EXPAR_OK ? EXPAR_OK : team_turn_end(team, status);
}

expar_status team_turn_met(const expar_team *team, expar_status status)
{
    const boot_topic topic = team_topic(team);
    if (status == EXPAR_OK) boot_note_met(team->group->boot, &topic);
    return team_turn_end(team, status);
}

expar_status team_turn_end(const expar_team *team, expar_status status)
{
    if (team->slot == TEAM_FORMED_SLOT) pthread_mutex_unlock(&team->table->turn);
    return status;
}

static void free_formed(expar_team *list)
{
    while (list) {
        expar_team *next = list->next;
        team_reach_free(&list->reach);
        free(list);
        list = next;
    }
}

static void table_end(group_attachment *attachment)
{
    team_table *table = (team_table *)attachment;
    for (int32_t s = 0; s < TEAM_CHANNELS; s++)
        free(table->channels[s].peers);
    for (int32_t s = 0; s < TEAM_SLOTS; s++)
        team_reach_free(&table->teams[s].reach);
    free(table->kernel_counts);
    context_free_list(table->contexts);
    free_formed(table->formed);
    pthread_mutex_destroy(&table->turn);
    pthread_mutex_destroy(&table->lock);
    free(table);
}

team_table *team_table_of(const expar_group *group)
{
    return (team_table *)group_kept(group, table_end);
}

expar_status team_table_open(const char *call, expar_group *group, team_table **out)
{
    sym *self = group->sym;
    team_table *table = team_table_of(group);
    *out = table;
    if (table) return EXPAR_OK;
    table = calloc(1, sizeof *table);
    if (table) table->kernel_counts = calloc(1, kernel_flags_bytes(self));
    if (!table || !table->kernel_counts) {
        free(table);
        return sym_reject(self, call, error_set(EXPAR_ERR_MEMORY, "%s: no memory for the table of teams", call));
    }
    table->attachment.end = table_end;
    pthread_mutex_init(&table->turn, NULL);
    pthread_mutex_init(&table->lock, NULL);
    const uint64_t channels_bytes = channels_lay_out(table, self);
    const expar_status taken = sym_take(self, call, channels_bytes + kernel_flags_bytes(self), 128, &table->offset);
    expar_status status = taken;
    table->kernel_flags = table->offset + channels_bytes;
    if (status == EXPAR_OK) {
        channels_lay_out(table, self);
        clear_flags(table, self);
        status = add_standing(call, group, table);
    }
    /* Nobody raises a flag before it is clear, and all ranks have a table or none has. */
    const boot_matter matter = {.what = call,
                                .rejected = "could not make its table of teams",
                                .common = EXPAR_ERR_MEMORY,
                                .lacks = "has no memory for the table of teams"};
    if (taken == EXPAR_OK) status = sym_agree(self, &matter, status);
    if (status != EXPAR_OK) {
        table_end(&table->attachment);
        return status;
    }
    group_keep(group, &table->attachment);
    *out = table;
    return EXPAR_OK;
}
