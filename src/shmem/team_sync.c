/* SPDX-License-Identifier: Apache-2.0 */
/* Sync and barrier of a team: dissemination, as the group's barrier. */
#include "shmem/team.h"

expar_status team_sync(const char *call, expar_team *team)
{
    expar_status status = EXPAR_OK;
    for (int64_t step = 1; step < team->size && status == EXPAR_OK; step *= 2) {
        status = channel_tell(team, (int32_t)((team->me + step) % team->size));
        if (status == EXPAR_OK)
            status = channel_hear(team, (int32_t)((team->me - step + team->size) % team->size), call);
    }
    return status;
}

expar_status expar_team_sync(expar_team *team)
{
    expar_status status = team_check("expar_team_sync", team);
    return status == EXPAR_OK ? team_sync("expar_team_sync", team) : status;
}

expar_status expar_team_barrier(expar_team *team)
{
    static const char call[] = "expar_team_barrier";
    expar_status status = team_check(call, team);
    if (status == EXPAR_OK) status = sym_quiet(team->group->sym);
    return status == EXPAR_OK ? team_sync(call, team) : status;
}
