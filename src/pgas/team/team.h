/* SPDX-License-Identifier: Apache-2.0 */
/* pgas/team: teams, their collectives, and the messages that those are made of.
 *
 * Called by programs, the tools and openshmem through include/expar (team, collective), and by pgas, whose contexts go
 * by the numbers of a team, through this header, of which it uses teams and their table. Calls pgas (pgas.h), link,
 * group, shmem and base.
 *
 * A team owns a *channel*: for every rank a flag that this rank's peers raise, and two pieces of scratch memory. All
 * collectives are built of three steps: put into a peer's memory, tell the peer, hear a peer. A flag counts the
 * messages from one rank to another; nothing is ever cleared, and a channel that goes from one team to the next keeps
 * its counts. */
#ifndef EXPAR_PGAS_TEAM_TEAM_H
#define EXPAR_PGAS_TEAM_TEAM_H

#include "group/group.h"
#include "link/link.h"
#include <expar/team.h>
#include <stdbool.h>

/* One an EXPAR_TEAM_MAX, and one for all teams that were formed without asking. */
#define TEAM_SLOTS       (EXPAR_TEAM_MAX + 1)
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
    /* Puts and flags on their way. They are completed apart from what the program does itself, so that its failures,
       with ranks outside the team above all, are not the team's. */
    link_batch sent;
} team_channel;

/* Who of a team reaches whom by loads and stores: members that map each other's heaps make a *node* of the team. Ranks
 * are numbered node by node, so the members of a node stand side by side, whatever the team's stride. All members find
 * the same. A node's first member is its *leader*. */
typedef struct team_reach {
    int32_t *first;    /* [num_nodes + 1] first member of each node; the last one is the team's size */
    int32_t num_nodes; /* each member is a node of its own where no memory is mapped */
    int32_t node;      /* this member's */
    int32_t largest;   /* members of the largest node */
    int32_t smallest;  /* of the smallest that has more than one; 0: none has */
} team_reach;

struct expar_team {
    expar_team *next;            /* of the formed ones that the group ever had; changed under the table's lock */
    expar_group *group;          /* NULL: destroyed; of formed ones written under the table's lock */
    struct team_table *table;    /* the group's */
    int32_t start, stride, size; /* members in ranks of the group; the stride of a single one means nothing */
    int32_t me;                  /* this rank's number */
    int32_t slot;
    team_reach reach; /* of a rank that is a member */
    expar_team_config config;
};

/* What waits on a team's channel are for. Formed teams share one, and are told apart by their members. */
static inline boot_topic team_topic(const expar_team *team)
{
    boot_topic topic = {.kind = BOOT_KIND_TEAM, .object = (uint32_t)team->slot};
    if (team->slot == TEAM_FORMED_SLOT)
        topic.number = (uint64_t)team->start << 32 | (uint64_t)team->size << 16 | (uint16_t)team->stride;
    return topic;
}

/* How a public call on a team ends, which may be NULL or destroyed. */
static inline expar_status team_ended(const expar_team *team, expar_status status)
{
    return status == EXPAR_OK ? status : group_ended(team ? team->group : NULL, status);
}

/* All that a rank knows of teams; a resident of its group. */
typedef struct team_table {
    group_resident resident;
    uint64_t offset; /* of the channels' memory, which goes with the heap */
    size_t piece_bytes;
    pthread_mutex_t lock;
    /* Bit s, guarded by the lock: slot s is taken by a team that this rank is a member of; or a split of this rank's
       asks whether the others can take it, too, and no other split may meanwhile. */
    uint64_t used, claimed;
    team_channel channels[TEAM_SLOTS];
    expar_team teams[TEAM_SLOTS];
    /* Formed teams, guarded by the lock. They live as long as the group, so that one that is gone can still be told
       from one that is there; a new one takes the place of one that is gone. */
    expar_team *formed;
    /* Held by the thread whose collective has the channel of the formed teams. */
    pthread_mutex_t turn;
    struct expar_ctx *contexts; /* all that were ever made; guarded by the lock (pgas/context.c) */
} team_table;

/* ---- teams (team.c) ---------------------------------------------------------------------------------------------- */

expar_status team_check(const char *call, const expar_team *team);
/* What the other arguments of a member's call on a team that is sound were found to be: one that is refused does not
   come to what the others are in, which is noted; the next call is another one. Returns status. By collective_check,
   collective_bytes and splits, and for what they do not check. */
expar_status team_note(const expar_team *team, expar_status status);
static inline int32_t team_rank(const expar_team *team, int32_t member)
{
    return team->start + member * team->stride;
}
/* Those whose loss ends what the team does: its members. Formed teams share one channel, and whoever broke off a
   collective of one may be out of step with members of another: there it is all ranks. */
sym_ranks team_awaited(const expar_team *team);
/* The member that is this rank of the group; -1: none. */
int32_t team_member(const expar_team *team, int32_t rank);

/* ---- reach (reach.c) --------------------------------------------------------------------------------------------- */

/* For a team whose members are known and whose `me` is one of them. EXPAR_ERR_MEMORY. */
expar_status team_reach_find(const char *call, expar_team *team);
void team_reach_free(team_reach *reach);

/* Members that act together, in order: all of a team, those of a node, or the leaders of all nodes. */
typedef struct circle {
    const expar_team *team;
    const int32_t *members; /* [count]; NULL: `first` and those behind it */
    int32_t first, count;
    int32_t me; /* this member's place; -1: it has none */
} circle;
circle circle_of_all(const expar_team *team);
circle circle_of_node(const expar_team *team);
circle circle_of_leaders(const expar_team *team);
static inline int32_t circle_member(const circle *c, int32_t place)
{
    return c->members ? c->members[place] : c->first + place;
}
/* The member `step` places behind this one (step >= 0); so each one starts with another. */
static inline int32_t circle_next(const circle *c, int32_t step)
{
    return circle_member(c, (int32_t)(((int64_t)c->me + step) % c->count));
}

/* Several nodes, and some of them with several members: what is worth to be done by leaders. */
static inline bool team_has_leaders(const expar_team *team)
{
    return team->reach.num_nodes > 1 && team->reach.largest > 1;
}
static inline bool team_leads(const expar_team *team)
{
    return team->reach.first[team->reach.node] == team->me;
}

/* ---- table (table.c) --------------------------------------------------------------------------------------------- */

/* The group's; NULL until teams are first used. */
team_table *team_table_of(const expar_group *group);
/* The same, made where there is none yet: then it is collective. */
expar_status team_table_open(const char *call, expar_group *group, team_table **out);

/* Makes counts for a slot that is to be used, any. */
expar_status team_slot_prepare(const char *call, int32_t group_size, team_peer **peers);
/* Bit s: slot s is not taken; another thread may have claimed it. */
uint64_t team_slots_free(team_table *table);
/* False: it is taken, or another thread has claimed it. */
bool team_slot_claim(team_table *table, int32_t slot);
/* Gives a claim up. */
void team_slot_drop(team_table *table, int32_t slot);
/* Marks a slot as taken; one that was never used gets those counts, which are given up in any case. */
void team_slot_use(team_table *table, int32_t slot, team_peer *peers);

/* Around what uses a team's channel. Different teams may be used by different threads at once, and formed teams have
   one channel: there threads wait for each other. Begin fails when what came before has left the channel out of step;
   end and met return `status`. Met: where that is EXPAR_OK all members have come. */
expar_status team_turn_begin(const char *call, const expar_team *team);
expar_status team_turn_end(const expar_team *team, expar_status status);
expar_status team_turn_met(const expar_team *team, expar_status status);

/* ---- messages (channel.c) ---------------------------------------------------------------------------------------- */

/* Messages on their way through a network, so that several members can be sent to at once. */
typedef struct channel_batch {
    link_batch sent;
    bool copies; /* what is sent may be changed at once; else once the batch is finished */
} channel_batch;

/* Puts into member `to`'s heap and tells it: what was put is there when it hears. */
expar_status channel_send(const expar_team *team, int32_t to, uint64_t offset, const void *source, size_t bytes,
                          channel_batch *batch);
/* Waits for all that was sent with the batch, whatever became of it; returns `status`, or, when that is EXPAR_OK, how
   the sending went. To be called on every way out, and before anything more is sent to the same members. */
expar_status channel_finish(const expar_team *team, channel_batch *batch, expar_status status);
/* Puts into member `to`'s heap; it may read after it has been told. */
expar_status channel_put(const expar_team *team, int32_t to, uint64_t offset, const void *source, size_t bytes);
expar_status channel_get(const expar_team *team, int32_t from, void *dest, uint64_t offset, size_t bytes);
/* Tells member `to`: all that was put there before has arrived when it hears. */
expar_status channel_tell(const expar_team *team, int32_t to);
/* Waits for the next message of member `from`. `call` is for the error text. A time-out fails the group. */
expar_status channel_hear(const expar_team *team, int32_t from, const char *call);

/* Sends member `to` a scratch piece of at most piece_bytes. There are two pieces a pair of members, taken in turns, and
   that is enough as long as this holds: whoever gives a piece hears, before its next one, something that the taker has
   sent after it came to the same exchange; so the taker is done with the piece before. */
expar_status channel_give(const expar_team *team, int32_t to, const void *piece, size_t bytes, channel_batch *batch);
/* Waits for the next piece of member `from`; it stays until this rank has given twice more. */
expar_status channel_take(const expar_team *team, int32_t from, const char *call, const void **piece);
/* The piece that was last taken from member `from`. */
const void *channel_taken(const expar_team *team, int32_t from);
size_t channel_piece_bytes(const expar_team *team);
/* A piece in this rank's own heap that nobody else writes; number 0 or 1. */
void *channel_own_piece(const expar_team *team, uint64_t number);

/* Hears all others of the circle. */
expar_status circle_hear(const circle *c, const char *call);

/* ---- sync (sync.c) ----------------------------------------------------------------------------------------------- */

expar_status team_sync(const char *call, expar_team *team);

/* ---- reductions (reduce.c) --------------------------------------------------------------------------------------- */

/* The bitwise and of a word of each member. */
expar_status team_and(const char *call, expar_team *team, uint64_t *word);

#endif
