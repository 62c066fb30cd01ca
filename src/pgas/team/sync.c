/* SPDX-License-Identifier: Apache-2.0 */
/* Sync and barrier of a team: dissemination, as the group's barrier, by leaders where there are some. */
#include "pgas/team/collective.h"

static expar_status sync_circle(const circle *c, const char *call)
{
    expar_status status = EXPAR_OK;
    for (int64_t step = 1; step < c->count && status == EXPAR_OK; step *= 2) {
        status = channel_tell(c->team, circle_next(c, (int32_t)step));
        if (status == EXPAR_OK) status = channel_hear(c->team, circle_next(c, (int32_t)(c->count - step)), call);
    }
    return status;
}

static expar_status sync_by_leaders(const expar_team *team, const char *call)
{
    const circle node = circle_of_node(team), leaders = circle_of_leaders(team);
    expar_status status = fan_in(&node, call);
    if (status == EXPAR_OK && team_leads(team)) status = sync_circle(&leaders, call);
    return status == EXPAR_OK ? fan_out(&node, call, &(fan){.bytes = 0}) : status;
}

expar_status team_sync(const char *call, expar_team *team)
{
    const circle all = circle_of_all(team);
    expar_status status = team_turn_begin(call, team);
    if (status != EXPAR_OK) return status;
    return team_turn_met(team, team_has_leaders(team) ? sync_by_leaders(team, call) : sync_circle(&all, call));
}

expar_status expar_team_sync(expar_team *team)
{
    expar_status status = team_check("expar_team_sync", team);
    return team_ended(team, status == EXPAR_OK ? team_sync("expar_team_sync", team) : status);
}

expar_status expar_team_barrier(expar_team *team)
{
    static const char call[] = "expar_team_barrier";
    expar_status status = team_check(call, team);
    if (status != EXPAR_OK) return team_ended(team, status);
    expar_status sync, quiet = sym_quiet(team->group->sym);
    if (quiet == EXPAR_OK) return team_ended(team, team_sync(call, team));
    /* Failed operations may have gone to a rank that is no member; the members wait all the same. */
    error_kept kept;
    error_keep(&kept, quiet);
    sync = team_sync(call, team);
    return team_ended(team, sync == EXPAR_OK ? error_prefix(error_restore(&kept), "%s", call) : sync);
}
