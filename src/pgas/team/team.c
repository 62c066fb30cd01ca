/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls of expar/team.h that make, end and describe teams. */
#include "pgas/team/team.h"
#include "pgas/device/handles.h"
#include "pgas/pgas.h"

#include <stdlib.h>

/* This rank comes to no later call of a team that has lost a member: those who are in one learn of it. */
static expar_status loss_check(const char *call, const expar_team *team)
{
    const sym_ranks awaited = team_awaited(team);
    const boot_topic topic = team_topic(team);
    expar_status status = sym_check_ranks(team->group->sym, &awaited, call);
    if (status != EXPAR_OK) boot_note_ended(team->group->boot, &topic, status, expar_last_error());
    return status;
}

/* `name`: the call's argument. */
static expar_status check_team_named(const char *call, const char *name, const expar_team *team)
{
    if (!team) return error_set(EXPAR_ERR_NULL, "%s: %s is NULL", call, name);
    if (!team->group) return error_set(EXPAR_ERR_HANDLE, "%s: %s was destroyed", call, name);
    return loss_check(call, team);
}

expar_status team_check(const char *call, const expar_team *team)
{
    return check_team_named(call, "team", team);
}

expar_status team_note(const expar_team *team, expar_status status)
{
    const boot_topic topic = team_topic(team);
    boot *ctl = team->group->boot;
    boot_note_new(ctl, &topic);
    if (status != EXPAR_OK) boot_note_rejected(ctl, &topic, status, expar_last_error());
    return status;
}

sym_ranks team_awaited(const expar_team *team)
{
    if (team_is_formed(team)) return (sym_ranks){.start = 0, .stride = 1, .size = team->group->size};
    return (sym_ranks){.start = team->start, .stride = team->stride, .size = team->size};
}

int32_t team_member(const expar_team *team, int32_t rank)
{
    if (team->size == 1) return rank == team->start ? 0 : -1;
    int32_t distance = rank - team->start;
    if (distance % team->stride != 0) return -1;
    int32_t member = distance / team->stride;
    return member >= 0 && member < team->size ? member : -1;
}

/* ---- standing teams ---------------------------------------------------------------------------------------------- */

static expar_status get_standing(const char *call, expar_group *group, int32_t slot, expar_team **team)
{
    team_table *table;
    if (!group) return error_set(EXPAR_ERR_NULL, "%s: group is NULL", call);
    if (!team) return error_set(EXPAR_ERR_NULL, "%s: team is NULL", call);
    expar_status status = team_table_of(group) ? sym_check_self(group->sym, call) : sym_check_come(group->sym, call);
    if (status == EXPAR_OK) status = team_table_open(call, group, &table);
    if (status == EXPAR_OK) *team = &table->teams[slot];
    return status;
}

expar_status expar_team_get_world(expar_group *group, expar_team **team)
{
    return group_ended(group, get_standing("expar_team_get_world", group, TEAM_WORLD_SLOT, team));
}

expar_status expar_team_get_shared(expar_group *group, expar_team **team)
{
    return group_ended(group, get_standing("expar_team_get_shared", group, TEAM_SHARED_SLOT, team));
}

expar_status expar_team_get_rail(expar_group *group, expar_team **team)
{
    return group_ended(group, get_standing("expar_team_get_rail", group, TEAM_RAIL_SLOT, team));
}

/* ---- splitting --------------------------------------------------------------------------------------------------- */

/* Members in ranks of the group; not yet a team. */
typedef struct selection {
    int32_t start, stride, size;
} selection;

/* Checks what is asked of `total` ranks in a row. */
static expar_status check_selection(const char *call, const selection *s, int32_t total)
{
    if (s->size < 1 || s->size > total)
        return error_set(EXPAR_ERR_RANGE, "%s: size %d, expected 1 to %d", call, s->size, total);
    if (s->start < 0 || s->start >= total)
        return error_set(EXPAR_ERR_RANGE, "%s: start %d, expected 0 to %d", call, s->start, total - 1);
    int64_t last = s->start + (int64_t)(s->size - 1) * s->stride;
    if (s->size > 1 && s->stride == 0) return error_set(EXPAR_ERR_RANGE, "%s: stride 0", call);
    if (last < 0 || last >= total)
        return error_set(EXPAR_ERR_RANGE, "%s: %d members from %d in steps of %d end with %lld, expected 0 to %d", call,
                         s->size, s->start, s->stride, (long long)last, total - 1);
    return EXPAR_OK;
}

/* `name`: the call's argument. */
static expar_status check_config(const char *call, const char *name, const expar_team_config *config)
{
    if (config && config->struct_size != sizeof *config)
        return error_set(EXPAR_ERR_ARGUMENT, "%s: %s.struct_size %zu, expected %zu (EXPAR_TEAM_CONFIG_INIT)", call,
                         name, config->struct_size, sizeof *config);
    if (config && config->num_contexts < 0)
        return error_set(EXPAR_ERR_RANGE, "%s: %s.num_contexts %d, expected 0 or more", call, name,
                         config->num_contexts);
    return EXPAR_OK;
}

/* Which slots are free on a member; that of the world, which none ever gets, says that it is able to use one. */
#define ABLE (UINT64_C(1) << TEAM_WORLD_SLOT)

/* Slots that are free on all members of the parent, each of which has said how it could prepare for the team.
   Collective over the parent. */
static expar_status find_free_slots(const char *call, expar_team *parent, expar_status prepared, uint64_t *slots)
{
    error_kept kept;
    error_keep(&kept, prepared);
    *slots = (team_slots_free(parent->table) & ~ABLE) | (prepared == EXPAR_OK ? ABLE : 0);
    expar_status status = team_and(call, parent, slots);
    if (status != EXPAR_OK) return status;
    if (prepared != EXPAR_OK) return error_restore(&kept);
    if (!(*slots & ABLE))
        return error_set(EXPAR_ERR_REMOTE, "%s: some member of the parent has no memory for the team", call);
    if ((*slots &= ~ABLE) == 0)
        return error_set(EXPAR_ERR_LIMIT, "%s: some member of the parent is in %d teams already", call, EXPAR_TEAM_MAX);
    return EXPAR_OK;
}

/* Chooses a free slot, the same on all members of the parent. It is the lowest at first. After a meeting with a split
   of another parent it is any, or none (-1), so that the two come apart. */
static int32_t choose_slot(const expar_team *parent, uint64_t slots, uint32_t attempt)
{
    const boot_topic topic = team_topic(parent);
    uint64_t mixed = (topic.object + topic.number + ((uint64_t)attempt << 32) + 1) * UINT64_C(0x9e3779b97f4a7c15);
    mixed = (mixed ^ mixed >> 32) * UINT64_C(0xbf58476d1ce4e5b9);
    int32_t skip = attempt ? (int32_t)((mixed >> 32) % ((uint32_t)__builtin_popcountll(slots) + 1)) : 0;
    while (slots && skip--)
        slots &= slots - 1;
    return slots ? __builtin_ctzll(slots) : -1;
}

/* Whether all members of the team to be have it, or claim it. Collective over the parent. */
static expar_status claim_slot(const char *call, expar_team *parent, bool member, int32_t slot, bool *claimed)
{
    const bool own = member && team_slot_claim(parent->table, slot);
    uint64_t all = own || !member;
    expar_status status = team_and(call, parent, &all);
    *claimed = status == EXPAR_OK && all;
    if (own && !*claimed) team_slot_drop(parent->table, slot);
    return status;
}

/* A slot that is free on all members of the parent, and claimed by those of the team. Other threads of theirs may be
   about to split other teams. Some of these have other members, so that none can wait for the others. Where two ask for
   the same slot neither gets it if each meets the other somewhere, and both ask again. Collective over the parent. */
static expar_status agree_on_slot(const char *call, expar_team *parent, bool member, expar_status prepared,
                                  int32_t *slot)
{
    bool claimed = false;
    expar_status status = EXPAR_OK;
    for (uint32_t attempt = 0; status == EXPAR_OK && !claimed; attempt++) {
        uint64_t slots;
        status = find_free_slots(call, parent, prepared, &slots);
        if (status != EXPAR_OK) return status;
        *slot = choose_slot(parent, slots, attempt);
        if (*slot >= 0) status = claim_slot(call, parent, member, *slot, &claimed);
    }
    return status;
}

/* The team is no more, and its slot free; the slot of formed teams is none that others get. */
static void team_retire(expar_team *team)
{
    team_table *table = team->table;
    handles_end_of_team(team);
    pthread_mutex_lock(&table->lock);
    if (team->slot != TEAM_FORMED_SLOT) table->used &= ~(UINT64_C(1) << team->slot);
    team_reach_free(&team->reach);
    team->group = NULL;
    pthread_mutex_unlock(&table->lock);
}

/* Records of the team that had the slot before are over. */
static void slot_begin(const expar_team *made)
{
    boot_topic topic = team_topic(made);
    boot_note_new(made->group->boot, &topic);
    boot_note_met(made->group->boot, &topic);
    topic.object += (uint32_t)TEAM_ON_STREAM;
    boot_note_new(made->group->boot, &topic);
    boot_note_met(made->group->boot, &topic);
    for (int target = 0; target < 2; target++) {
        const boot_topic kernels = team_kernel_topic(made->slot, target == 1);
        boot_note_new(made->group->boot, &kernels);
    }
}

/* Collective over the parent, with one selection for each rank; all are checked. What may fail comes before all agree,
   so that all have the team or none has. */
static expar_status split(const char *call, expar_team *parent, const selection *members,
                          const expar_team_config *config, expar_team **team)
{
    int32_t slot = -1;
    expar_group *group = parent->group;
    team_table *table = parent->table;
    team_peer *peers = NULL;
    expar_team made = {.group = group,
                       .table = table,
                       .start = team_rank(parent, members->start),
                       .stride = members->size == 1 ? 1 : members->stride * parent->stride,
                       .size = members->size};
    made.me = team_member(&made, group->rank);
    const bool member = made.me >= 0;
    expar_status status = member ? team_reach_find(call, &made) : EXPAR_OK;
    if (status == EXPAR_OK && member) status = team_slot_prepare(call, group->size, &peers);
    status = agree_on_slot(call, parent, member, status, &slot);
    if (status != EXPAR_OK) {
        free(peers);
        team_reach_free(&made.reach);
        return status;
    }
    made.slot = slot;
    made.number = team_number();
    made.config = config ? *config : (expar_team_config)EXPAR_TEAM_CONFIG_INIT;
    if (member) {
        slot_begin(&made);
        table->teams[slot] = made;
        team_slot_use(table, slot, peers);
    }
    *team = member ? &table->teams[slot] : NULL;
    return EXPAR_OK;
}

expar_status expar_team_split_strided(expar_team *parent, int32_t start, int32_t stride, int32_t size,
                                      const expar_team_config *config, expar_team **team)
{
    static const char call[] = "expar_team_split_strided";
    const selection members = {start, stride, size};
    expar_status status = check_team_named(call, "parent", parent);
    if (status != EXPAR_OK) return team_ended(parent, status);
    if (!team) status = error_set(EXPAR_ERR_NULL, "%s: team is NULL", call);
    if (status == EXPAR_OK) status = check_config(call, "config", config);
    if (status == EXPAR_OK) status = check_selection(call, &members, parent->size);
    status = team_note(parent, status);
    return team_ended(parent, status == EXPAR_OK ? split(call, parent, &members, config, team) : status);
}

/* Rows follow each other, and so do columns; every rank is in one of each. All rows share one slot, as their members
   are apart. */
static expar_status split_rows_and_columns(const char *call, expar_team *parent, int32_t x_range,
                                           const expar_team_config *x_config, const expar_team_config *y_config,
                                           expar_team **x_team, expar_team **y_team)
{
    const int32_t x = parent->me % x_range, y = parent->me / x_range, left = parent->size - y * x_range;
    const selection row = {.start = y * x_range, .stride = 1, .size = left < x_range ? left : x_range};
    const selection column = {.start = x, .stride = x_range, .size = (parent->size - x + x_range - 1) / x_range};
    expar_team *made;
    expar_status status = split(call, parent, &row, x_config, &made);
    if (status != EXPAR_OK) return status;
    status = split(call, parent, &column, y_config, y_team);
    if (status == EXPAR_OK)
        *x_team = made;
    else
        team_retire(made);
    return status;
}

expar_status expar_team_split_2d(expar_team *parent, int32_t x_range, const expar_team_config *x_config,
                                 const expar_team_config *y_config, expar_team **x_team, expar_team **y_team)
{
    static const char call[] = "expar_team_split_2d";
    expar_status status = check_team_named(call, "parent", parent);
    if (status != EXPAR_OK) return team_ended(parent, status);
    if (!x_team || !y_team) status = error_set(EXPAR_ERR_NULL, "%s: %s is NULL", call, x_team ? "y_team" : "x_team");
    if (status == EXPAR_OK && x_range < 1)
        status = error_set(EXPAR_ERR_RANGE, "%s: x_range %d, expected 1 or more", call, x_range);
    if (status == EXPAR_OK) status = check_config(call, "x_config", x_config);
    if (status == EXPAR_OK) status = check_config(call, "y_config", y_config);
    if (team_note(parent, status) != EXPAR_OK) return team_ended(parent, status);
    if (x_range > parent->size) x_range = parent->size;
    return team_ended(parent, split_rows_and_columns(call, parent, x_range, x_config, y_config, x_team, y_team));
}

/* ---- forming ----------------------------------------------------------------------------------------------------- */

/* One that was destroyed, or a new one; the lock is held. */
static expar_team *team_find_unused(team_table *table)
{
    expar_team *team = table->formed;
    while (team && team->group)
        team = team->next;
    if (team || !(team = calloc(1, sizeof *team))) return team;
    team->next = table->formed;
    table->formed = team;
    return team;
}

static expar_status keep_formed(const char *call, expar_team *made, expar_team **copy)
{
    team_table *table = made->table;
    expar_status status = team_reach_find(call, made);
    if (status != EXPAR_OK) return status;
    pthread_mutex_lock(&table->lock);
    *copy = team_find_unused(table);
    if (*copy) {
        made->next = (*copy)->next;
        **copy = *made;
    }
    pthread_mutex_unlock(&table->lock);
    if (*copy) return EXPAR_OK;
    team_reach_free(&made->reach);
    return error_set(EXPAR_ERR_MEMORY, "%s: no memory for a team", call);
}

expar_status expar_team_form(expar_group *group, int32_t start, int32_t stride, int32_t size, expar_team **team)
{
    static const char call[] = "expar_team_form";
    const selection members = {start, stride, size};
    team_table *table;
    if (!group) return group_ended(group, error_set(EXPAR_ERR_NULL, "%s: group is NULL", call));
    if (!team) return group_ended(group, error_set(EXPAR_ERR_NULL, "%s: team is NULL", call));
    expar_status status = check_selection(call, &members, group->size);
    if (status == EXPAR_OK) status = sym_check(group->sym, call);
    if (status == EXPAR_OK) status = team_table_open(call, group, &table);
    if (status != EXPAR_OK) return group_ended(group, status);
    expar_team made = {
        .group = group, .table = table, .start = start, .stride = stride, .size = size, .slot = TEAM_FORMED_SLOT};
    made.me = team_member(&made, group->rank);
    made.number = team_number();
    made.config = (expar_team_config)EXPAR_TEAM_CONFIG_INIT;
    expar_team *copy = NULL;
    if (made.me >= 0) status = keep_formed(call, &made, &copy);
    if (status == EXPAR_OK) *team = copy;
    return group_ended(group, status);
}

expar_status expar_team_destroy(expar_team *team)
{
    static const char call[] = "expar_team_destroy";
    if (!team) return EXPAR_OK;
    bool formed = team->group && team->slot == TEAM_FORMED_SLOT;
    expar_status status = formed ? EXPAR_OK : team_check(call, team);
    if (status != EXPAR_OK) return team_ended(team, status);
    if (team->slot < TEAM_FORMED_SLOT)
        return team_ended(team,
                          error_set(EXPAR_ERR_STATE,
                                    "%s: team is a standing one, which ends with the group; expected one that was "
                                    "split off or formed",
                                    call));
    expar_status unfinished = context_quiet_all(call, team);
    if (!formed) status = team_sync(call, team);
    if (status != EXPAR_OK) return team_ended(team, status);
    context_end_all(team);
    team_retire(team);
    return team_ended(team, unfinished);
}

/* ---- facts ------------------------------------------------------------------------------------------------------- */

int32_t expar_team_my_pe(const expar_team *team)
{
    return team && team->group ? team->me : -1;
}

int32_t expar_team_n_pes(const expar_team *team)
{
    return team && team->group ? team->size : 0;
}

expar_group *expar_team_group(const expar_team *team)
{
    return team ? team->group : NULL;
}

expar_status expar_team_get_config(const expar_team *team, expar_team_config *config)
{
    static const char call[] = "expar_team_get_config";
    expar_status status = team_check(call, team);
    if (status == EXPAR_OK && !config) status = error_set(EXPAR_ERR_NULL, "%s: config is NULL", call);
    if (status == EXPAR_OK) status = check_config(call, "config", config);
    if (status == EXPAR_OK) config->num_contexts = team->config.num_contexts;
    return team_ended(team, status);
}

expar_status expar_team_translate_pe(const expar_team *source, int32_t pe, const expar_team *dest, int32_t *dest_pe)
{
    static const char call[] = "expar_team_translate_pe";
    expar_status status = check_team_named(call, "source", source);
    if (status == EXPAR_OK) status = check_team_named(call, "dest", dest);
    if (status != EXPAR_OK) return team_ended(source, status);
    if (!dest_pe) return team_ended(source, error_set(EXPAR_ERR_NULL, "%s: dest_pe is NULL", call));
    if (source->group != dest->group)
        return team_ended(source, error_set(EXPAR_ERR_HANDLE, "%s: teams of two groups", call));
    if (pe < 0 || pe >= source->size)
        return team_ended(source,
                          error_set(EXPAR_ERR_RANGE, "%s: pe %d, expected 0 to %d", call, pe, source->size - 1));
    *dest_pe = team_member(dest, team_rank(source, pe));
    return EXPAR_OK;
}
