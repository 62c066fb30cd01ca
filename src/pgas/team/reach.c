/* SPDX-License-Identifier: Apache-2.0 */
/* Which members of a team map each other's heaps, and the circles of members that follow from it. */
#include "pgas/team/team.h"

#include <stdlib.h>

static bool together(const expar_team *team, int32_t member, int32_t other)
{
    const sym *self = team->group->sym;
    int32_t rank = team_rank(team, member), pe = team_rank(team, other);
    return self->nodes[rank] == self->nodes[pe] && sym_maps(self, rank, pe) && sym_maps(self, pe, rank);
}

/* One node more, whose members are [first, end). */
static void add_node(team_reach *reach, int32_t first, int32_t end, int32_t me)
{
    int32_t members = end - first;
    if (me >= first && me < end) reach->node = reach->num_nodes;
    if (members > reach->largest) reach->largest = members;
    if (members > 1 && (reach->smallest == 0 || members < reach->smallest)) reach->smallest = members;
    reach->first[reach->num_nodes++] = first;
    reach->first[reach->num_nodes] = end;
}

expar_status team_reach_find(const char *call, expar_team *team)
{
    team_reach reach = {.first = malloc(((size_t)team->size + 1) * sizeof *reach.first)};
    if (!reach.first) return error_set(EXPAR_ERR_MEMORY, "%s: no memory for %d members", call, team->size);
    for (int32_t first = 0, end; first < team->size; first = end) {
        for (end = first + 1; end < team->size && together(team, first, end);)
            end++;
        add_node(&reach, first, end, team->me);
    }
    team->reach = reach;
    return EXPAR_OK;
}

void team_reach_free(team_reach *reach)
{
    free(reach->first);
    *reach = (team_reach){0};
}

circle circle_of_all(const expar_team *team)
{
    return (circle){.team = team, .count = team->size, .me = team->me};
}

circle circle_of_node(const expar_team *team)
{
    const team_reach *reach = &team->reach;
    int32_t first = reach->first[reach->node], end = reach->first[reach->node + 1];
    return (circle){.team = team, .first = first, .count = end - first, .me = team->me - first};
}

circle circle_of_leaders(const expar_team *team)
{
    const team_reach *reach = &team->reach;
    return (circle){
        .team = team, .members = reach->first, .count = reach->num_nodes, .me = team_leads(team) ? reach->node : -1};
}
