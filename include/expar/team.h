/* SPDX-License-Identifier: Apache-2.0 */
/* Teams: subsets of a group's ranks that act together (model: OpenSHMEM 1.5, section 9.4). A team numbers its members
 * from 0; they are ranks of the group at equal distances.
 *
 * Collective over a team: all members call, in the same order on each team, one thread of a rank at a time; different
 * teams may be used, split and destroyed by different threads at once. A member that is refused its arguments does not
 * take part, and the others end with EXPAR_ERR_PEER and its reason; one that is late is waited for
 * (docs/internals/waiting.md). The loss of a rank ends what teams with it do, and every formed team's calls; other
 * teams go on (docs/pgas.md, "Who is named" and "Loss of a member"). Errors of all calls: EXPAR_ERR_NULL,
 * EXPAR_ERR_HANDLE (the team was destroyed, and none has taken its place), EXPAR_ERR_PEER, EXPAR_ERR_ABORTED. */
#ifndef EXPAR_TEAM_H
#define EXPAR_TEAM_H

#include <expar/memory.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct expar_team expar_team;

/* The most teams that a rank can be a member of at a time, the three standing ones included. */
#define EXPAR_TEAM_MAX 63

/* The standing teams: all ranks; the ranks of this node; and the ranks with this one's number on all nodes. They live
   as long as the group. The first of these calls on a group is collective over the group, since it takes the teams'
   memory from the symmetric heap: a sixteenth of it or 16 MiB at most, whichever is less, but up to 36 KiB for each
   rank of the group where that is more. Later ones are local. EXPAR_ERR_MEMORY. */
EXPAR_API expar_status expar_team_get_world(expar_group *group, expar_team **team);
EXPAR_API expar_status expar_team_get_shared(expar_group *group, expar_team **team);
EXPAR_API expar_status expar_team_get_rail(expar_group *group, expar_team **team);

typedef struct expar_team_config {
    /* set by EXPAR_TEAM_CONFIG_INIT */
    size_t struct_size;
    /* contexts that the team's members mean to make; a hint */
    int32_t num_contexts;
} expar_team_config;
#define EXPAR_TEAM_CONFIG_INIT EXPAR_STRUCT_INIT(expar_team_config)

/* Members start, start + stride, … of `parent`, `size` of them, in this order. Collective over the parent; *team is
   NULL on ranks that are not members. config may be NULL. EXPAR_ERR_RANGE (a member that the parent has not got, a
   stride of 0), EXPAR_ERR_LIMIT (EXPAR_TEAM_MAX), EXPAR_ERR_MEMORY; on the other members of the parent then
   EXPAR_ERR_REMOTE. */
EXPAR_API expar_status expar_team_split_strided(expar_team *parent, int32_t start, int32_t stride, int32_t size,
                                                const expar_team_config *config, expar_team **team);
/* Lays the parent out in rows of x_range members: *x_team is this rank's row, *y_team its column. Collective over the
   parent. An x_range above the parent's size counts as that size. */
EXPAR_API expar_status expar_team_split_2d(expar_team *parent, int32_t x_range, const expar_team_config *x_config,
                                           const expar_team_config *y_config, expar_team **x_team, expar_team **y_team);
/* Forms a team without asking anybody; *team is NULL on ranks that are not members. Local, but as
   expar_team_get_world when it is the first use of teams. After that several threads may form, use and destroy such
   teams at once. All such teams share one channel, and threads of a rank take turns on it, a collective at a time.
   So all ranks keep to one order of these collectives: those that are together in several teams call them in the
   same order, whichever threads do, and threads of several ranks must not wait for each other in a circle, which
   ends with EXPAR_ERR_PEER. Teams that are split off know no such bounds. EXPAR_ERR_RANGE. */
EXPAR_API expar_status expar_team_form(expar_group *group, int32_t start, int32_t stride, int32_t size,
                                       expar_team **team);
/* Collective over the team (formed ones: local). Completes and destroys the team's contexts, too; what fails there is
   told, and the team is gone all the same. EXPAR_ERR_STATE for a standing team. NULL is allowed. */
EXPAR_API expar_status expar_team_destroy(expar_team *team);

/* Facts of a team; 0 (my_pe: -1, group: NULL) for NULL. Any thread. */
EXPAR_API int32_t expar_team_my_pe(const expar_team *team);
EXPAR_API int32_t expar_team_n_pes(const expar_team *team);
EXPAR_API expar_group *expar_team_group(const expar_team *team);
EXPAR_API expar_status expar_team_get_config(const expar_team *team, expar_team_config *config);
/* *dest_pe is the number in `dest` of member pe of `source`, or -1 when it is no member there. Local. */
EXPAR_API expar_status expar_team_translate_pe(const expar_team *source, int32_t pe, const expar_team *dest,
                                               int32_t *dest_pe);

/* No member leaves before all have come. */
EXPAR_API expar_status expar_team_sync(expar_team *team);
/* The same, after expar_quiet: what members put has arrived. */
EXPAR_API expar_status expar_team_barrier(expar_team *team);

#ifdef __cplusplus
}
#endif
#endif
