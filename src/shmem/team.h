/* SPDX-License-Identifier: Apache-2.0 */
/* Teams and the messages that their collectives are made of. Private to shmem.
 *
 * A team owns a *channel*: for every rank a flag that this rank's peers raise, and two pieces of scratch memory. All
 * collectives are built of three steps: put into a peer's memory, tell the peer, hear a peer. A flag counts the
 * messages from one rank to another; nothing is ever cleared, and a channel that goes from one team to the next keeps
 * its counts. */
#ifndef EXPAR_SHMEM_TEAM_H
#define EXPAR_SHMEM_TEAM_H

#include "group/group.h"
#include <expar/team.h>

/* One an EXPAR_MAX_TEAMS, and one for all teams that were formed without asking. */
#define TEAM_SLOTS       (EXPAR_MAX_TEAMS + 1)
#define TEAM_WORLD_SLOT  0
#define TEAM_SHARED_SLOT 1
#define TEAM_RAIL_SLOT   2
#define TEAM_FORMED_SLOT 3
#define TEAM_FIRST_SLOT  4 /* of those that are split off */

/* What is known of one peer on a channel: own counts, in private memory. */
typedef struct team_peer {
    uint64_t told, heard;  /* messages to and from it */
    uint64_t given, taken; /* scratch pieces to and from it: their parity says which of the two is next */
} team_peer;

typedef struct team_channel {
    /* Offset of `size` flags, one for each rank of the group. Flag r is raised by rank r (release), after what it put,
       and read by the owner (acquire). */
    uint64_t flags;
    /* Offset of size pairs of pieces. Pair r is written by rank r before it raises its flag, and read by the owner
       after. */
    uint64_t scratch;
    team_peer *peers; /* [size of the group]; made when the channel is first used */
} team_channel;

struct expar_team {
    expar_group *group;          /* NULL: destroyed */
    int32_t start, stride, size; /* members in ranks of the group */
    int32_t me;                  /* this rank's number */
    int32_t slot;
    expar_team_config config;
};

/* All that a rank knows of teams; owned by its sym. */
typedef struct team_table {
    uint64_t offset; /* of the channels' memory */
    size_t piece_bytes;
    uint64_t used; /* bit s: slot s is taken by a team that this rank is a member of */
    team_channel channels[TEAM_SLOTS];
    expar_team teams[TEAM_SLOTS];
    struct expar_ctx *contexts; /* all that were ever made; guarded by sym's lock (context.c) */
} team_table;

/* ---- teams (team.c) ---------------------------------------------------------------------------------------------- */

expar_status team_check(const char *call, const expar_team *team);
static inline int32_t team_rank(const expar_team *team, int32_t member)
{
    return team->start + member * team->stride;
}
/* The member that is this rank of the group; -1: none. */
int32_t team_member(const expar_team *team, int32_t rank);

/* ---- table (team_table.c) ---------------------------------------------------------------------------------------- */

/* Collective when the table does not exist yet. */
expar_status team_table_open(const char *call, expar_group *group, team_table **out);

/* Marks a slot as taken, and makes its counts when it is used for the first time. */
expar_status team_slot_use(const char *call, team_table *table, int32_t slot, int32_t group_size);

/* ---- messages (channel.c) ---------------------------------------------------------------------------------------- */

/* Puts into member `to`'s heap; it may read after it has heard of it. */
expar_status channel_put(const expar_team *team, int32_t to, uint64_t offset, const void *source, size_t bytes);
expar_status channel_get(const expar_team *team, int32_t from, void *dest, uint64_t offset, size_t bytes);
/* Tells member `to`: all that was put there before has arrived when it hears. */
expar_status channel_tell(const expar_team *team, int32_t to);
/* Waits for the next message of member `from`. `call` is for the error text. A time-out fails the group. */
expar_status channel_hear(const expar_team *team, int32_t from, const char *call);
/* Gives member `to` a scratch piece of at most piece_bytes, and tells it. To be used only where all members give to all
   others, and take from them before they give again: that is what makes two pieces a pair enough. */
expar_status channel_give(const expar_team *team, int32_t to, const void *piece, size_t bytes);
/* Waits for the next piece of member `from`; it stays until this rank has given twice more. */
expar_status channel_take(const expar_team *team, int32_t from, const char *call, const void **piece);
size_t channel_piece_bytes(const expar_team *team);
/* A piece in this rank's own heap that nobody else writes. */
void *channel_own_piece(const expar_team *team);

/* ---- sync (team_sync.c) ------------------------------------------------------------------------------------------ */

expar_status team_sync(const char *call, expar_team *team);

/* ---- reductions (reduce.c) --------------------------------------------------------------------------------------- */

/* The bitwise and of a word of each member. */
expar_status team_and(const char *call, expar_team *team, uint64_t *word);

#endif
