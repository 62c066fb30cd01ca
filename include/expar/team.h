/* SPDX-License-Identifier: Apache-2.0 */
/* Teams: subsets of a group's ranks that act together (model: OpenSHMEM 1.5, section 9.4). A team numbers its members
 * from 0; they are ranks of the group at equal distances.
 *
 * Collective over a team: all members call, in the same order on each team, one thread of a rank at a time. Different
 * threads may use, split and destroy different teams at once. If the arguments of a member are rejected, it does not
 * take part, and the others end with EXPAR_ERR_PEER and its reason. The others wait for a late member
 * (docs/internals/waiting.md). The loss of a rank ends the calls of its teams, and the calls of every formed team.
 * Other teams go on (docs/reference/pgas.md, "Who is named" and "Loss of a member"). Errors of all calls:
 * EXPAR_ERR_NULL, EXPAR_ERR_HANDLE (the team was destroyed, and none has taken its place), EXPAR_ERR_PEER,
 * EXPAR_ERR_ABORTED. */
#ifndef EXPAR_TEAM_H
#define EXPAR_TEAM_H

#include <expar/memory.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct expar_team expar_team;

/* The most teams that a rank can be a member of at a time, including the three standing ones. */
#define EXPAR_TEAM_MAX 63

/* The standing teams: all ranks; the ranks of this node; and the ranks that have this one's number on all nodes. They
   live as long as the group. The first of these calls on a group is collective over the group, since it takes the
   teams' memory from the symmetric heap. It takes a sixteenth of the heap, at most 16 MiB; or up to 72 KiB for each
   rank of the group if that is more. Later calls are local. EXPAR_ERR_MEMORY. */
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

/* Splits off a team of `size` members: start, start + stride, … of `parent`, in this order. Collective over the parent;
   *team is NULL on ranks that are not members. config may be NULL. EXPAR_ERR_RANGE (a member that the parent does not
   have, a stride of 0), EXPAR_ERR_LIMIT (EXPAR_TEAM_MAX), EXPAR_ERR_MEMORY; the other members of the parent then return
   EXPAR_ERR_REMOTE. */
EXPAR_API expar_status expar_team_split_strided(expar_team *parent, int32_t start, int32_t stride, int32_t size,
                                                const expar_team_config *config, expar_team **team);
/* Lays the parent out in rows of x_range members: *x_team is this rank's row, *y_team its column. Collective over the
   parent. An x_range above the parent's size counts as that size. */
EXPAR_API expar_status expar_team_split_2d(expar_team *parent, int32_t x_range, const expar_team_config *x_config,
                                           const expar_team_config *y_config, expar_team **x_team, expar_team **y_team);
/* Forms a team without communication; *team is NULL on ranks that are not members. Local, except that the first use of
   teams is collective as in expar_team_get_world. After that several threads may form, use and destroy such teams at
   once. All such teams share one channel. Threads of a rank take turns on it, one collective at a time. So all ranks
   must keep to one order of these collectives: ranks that are together in several teams call them in the same order,
   whichever threads do. Threads of several ranks must not wait for each other in a circle, which ends with
   EXPAR_ERR_PEER. Teams that are split off have no such limits. EXPAR_ERR_RANGE. */
EXPAR_API expar_status expar_team_form(expar_group *group, int32_t start, int32_t stride, int32_t size,
                                       expar_team **team);
/* Destroys a team. Collective over the team (formed ones: local). Completes and destroys the team's contexts, too. A
   failure of that is returned, and the team is destroyed all the same. EXPAR_ERR_STATE for a standing team. NULL is
   allowed. */
EXPAR_API expar_status expar_team_destroy(expar_team *team);

/* Facts of a team; 0 (my_pe: -1, group: NULL) for NULL. Any thread. */
EXPAR_API int32_t expar_team_my_pe(const expar_team *team);
EXPAR_API int32_t expar_team_n_pes(const expar_team *team);
EXPAR_API expar_group *expar_team_group(const expar_team *team);
EXPAR_API expar_status expar_team_get_config(const expar_team *team, expar_team_config *config);
/* Sets *dest_pe to the number in `dest` of member pe of `source`, or to -1 when it is no member there. Local. */
EXPAR_API expar_status expar_team_translate_pe(const expar_team *source, int32_t pe, const expar_team *dest,
                                               int32_t *dest_pe);

/* Waits until all members have come. */
EXPAR_API expar_status expar_team_sync(expar_team *team);
/* Like expar_team_sync, after expar_quiet: everything that members put has arrived. */
EXPAR_API expar_status expar_team_barrier(expar_team *team);

#ifdef __cplusplus
}
#endif
#endif
