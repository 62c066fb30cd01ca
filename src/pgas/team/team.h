/* SPDX-License-Identifier: Apache-2.0 */
/* pgas/team: teams, their collectives, and the messages from which collectives are built.
 *
 * Programs, the tools and openshmem call it through include/expar (team, collective). pgas, whose contexts use the
 * numbers of a team, calls it through this header: teams and their table. It calls pgas (pgas.h), link, group, shmem
 * and base.
 *
 * A team owns a *channel*: for every rank a flag that this rank's peers raise, and two pieces of scratch memory. All
 * collectives are built of three steps: put into a peer's memory, tell the peer, hear a peer. A flag counts the
 * messages from one rank to another. No flag is ever cleared, and a channel that goes from one team to the next keeps
 * its counts. */
#ifndef EXPAR_PGAS_TEAM_TEAM_H
#define EXPAR_PGAS_TEAM_TEAM_H

#include "group/group.h"
#include "link/link.h"
#include "shmem/kinds.h"
#include <expar/team.h>
#include <stdbool.h>

/* One for each of EXPAR_TEAM_MAX teams, and one for all teams that were formed without communication. */
#define TEAM_SLOTS       (EXPAR_TEAM_MAX + 1)
#define TEAM_WORLD_SLOT  0
#define TEAM_SHARED_SLOT 1
#define TEAM_RAIL_SLOT   2
#define TEAM_FORMED_SLOT 3
#define TEAM_FIRST_SLOT  4 /* the first slot of teams that are split off */
/* Collectives on streams have channels of their own, so that they need no order with those of the host: a team's second
   channel comes so many slots after its first. */
#define TEAM_ON_STREAM ((int32_t)TEAM_SLOTS)
#define TEAM_CHANNELS  (2 * TEAM_SLOTS)
/* The state of one peer on a channel: this rank's own counts, in private memory. */
typedef struct team_peer {
    uint64_t told, heard;  /* messages to and from it */
    uint64_t given, taken; /* scratch pieces to and from it: their parity says which of the two is next */
} team_peer;

typedef struct team_channel {
    /* Offset of `size` flags, one for each rank of the group. Rank r raises flag r (release) after its puts; the owner
       reads it (acquire). */
    uint64_t flags;
    /* Offset of size pairs of pieces. Rank r writes pair r before it raises its flag; the owner reads it after that. */
    uint64_t scratch;
    size_t piece_bytes;
    team_peer *peers; /* [size of the group]; made when the channel is first used */
    /* Puts and flags on their way. They are completed apart from the program's own operations. So failures of those,
       above all with ranks outside the team, are not failures of the team. */
    link_batch sent;
} team_channel;

/* Which members of a team reach each other by loads and stores: members that map each other's heaps make a *node* of
 * the team. Ranks are numbered node by node, so the members of a node have consecutive numbers, whatever the team's
 * stride. All members find the same. A node's first member is its *leader*. */
typedef struct team_reach {
    int32_t *first;    /* [num_nodes + 1] first member of each node; the last one is the team's size */
    int32_t num_nodes; /* each member is a node of its own where no memory is mapped */
    int32_t node;      /* the node of this member */
    int32_t largest;   /* members of the largest node */
    int32_t smallest;  /* members of the smallest node that has more than one; 0: none has */
} team_reach;

struct expar_team {
    expar_team *next;            /* list of all formed teams that the group ever had; changed under the table's lock */
    expar_group *group;          /* NULL: destroyed; in formed teams written under the table's lock */
    struct team_table *table;    /* the group's */
    int32_t start, stride, size; /* members in ranks of the group; a single member's stride means nothing */
    int32_t me;                  /* this rank's number */
    int32_t slot;                /* of its channel */
    uint64_t number;             /* no other team of the process has it */
    team_reach reach;            /* on a rank that is a member */
    expar_team_config config;
};

/* Returns whether the team was formed without communication; also for its calls on streams. */
static inline bool team_is_formed(const expar_team *team)
{
    return team->slot == TEAM_FORMED_SLOT || team->slot == TEAM_FORMED_SLOT + TEAM_ON_STREAM;
}

/* Returns the topic of waits on a team's channel. Formed teams share one channel, and are distinguished by their
   members. */
static inline boot_topic team_topic(const expar_team *team)
{
    boot_topic topic = {.kind = BOOT_KIND_TEAM, .object = (uint32_t)team->slot};
    if (team_is_formed(team))
        topic.number = (uint64_t)team->start << 32 | (uint64_t)team->size << 16 | (uint16_t)team->stride;
    return topic;
}

/* Returns the topic of barriers of kernels, by handles of one target, on the team that has the slot. */
static inline boot_topic team_kernel_topic(int32_t slot, bool on_gpu)
{
    const uint32_t target = on_gpu ? 2 : 1;
    return (boot_topic){.kind = BOOT_KIND_TEAM, .object = (uint32_t)slot | target << 16};
}

/* Ends a public call on a team, which may be NULL or destroyed. */
static inline expar_status team_ended(const expar_team *team, expar_status status)
{
    return status == EXPAR_OK ? status : group_ended(team ? team->group : NULL, status);
}

/* A rank's knowledge of all teams; an object attached to its group. */
typedef struct team_table {
    group_attachment attachment;
    uint64_t offset; /* of the channels' memory, which is freed with the heap */
    pthread_mutex_t lock;
    /* Both are guarded by the lock. Bit s of `used`: a team that this rank is a member of has slot s. Bit s of
       `claimed`: a split of this rank asks whether the other ranks can take slot s, too; no other split may take it
       meanwhile. */
    uint64_t used, claimed;
    /* Words of the teams' barriers for kernels on the CPU (pgas/device). kernel_flags is the offset of TEAM_SLOTS rows
       of flags in the heap, one flag for each rank. */
    uint64_t kernel_flags;
    uint64_t *kernel_counts;
    team_channel channels[TEAM_CHANNELS];
    expar_team teams[TEAM_SLOTS];
    /* Formed teams, guarded by the lock. They live as long as the group, so that a destroyed one can be told from a
       live one. A new one takes the place of a destroyed one. */
    expar_team *formed;
    /* Held by the thread whose collective has the channel of the formed teams. */
    pthread_mutex_t turn;
    struct expar_ctx *contexts; /* all that were ever made; guarded by the lock (pgas/context.c) */
} team_table;

/* ---- teams (team.c) ---------------------------------------------------------------------------------------------- */

expar_status team_check(const char *call, const expar_team *team);
/* Records the result of checking the other arguments of a member's call on a team that has not failed. A member whose
   arguments are rejected does not come to the collective that the others are in; the next call is another one. Returns
   status. collective_check, collective_bytes and splits call it, and callers do for what these do not check. */
expar_status team_note(const expar_team *team, expar_status status);
static inline int32_t team_rank(const expar_team *team, int32_t member)
{
    return team->start + member * team->stride;
}
/* Returns the ranks whose loss ends the team's collectives: its members. For a formed team it returns all ranks. Formed
   teams share one channel, so a rank that broke off a collective of one may be out of step with members of another. */
sym_ranks team_awaited(const expar_team *team);
/* Returns the member that is this rank of the group; -1: none. */
int32_t team_member(const expar_team *team, int32_t rank);

/* ---- reach (reach.c) --------------------------------------------------------------------------------------------- */

/* Finds the reach of a team whose members are known and whose `me` is one of them. EXPAR_ERR_MEMORY. */
expar_status team_reach_find(const char *call, expar_team *team);
void team_reach_free(team_reach *reach);

/* Members that act together, in order: all of a team, those of a node, or the leaders of all nodes. */
typedef struct circle {
    const expar_team *team;
    const int32_t *members; /* [count]; NULL: `first` and those after it */
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
/* Returns the member `step` places after this one (step >= 0). So each member starts with another one. */
static inline int32_t circle_next(const circle *c, int32_t step)
{
    return circle_member(c, (int32_t)(((int64_t)c->me + step) % c->count));
}

/* Says whether there are several nodes, and some have several members. Then it pays that leaders act for their
   nodes. */
static inline bool team_has_leaders(const expar_team *team)
{
    return team->reach.num_nodes > 1 && team->reach.largest > 1;
}
static inline bool team_leads(const expar_team *team)
{
    return team->reach.first[team->reach.node] == team->me;
}

/* ---- table (table.c) --------------------------------------------------------------------------------------------- */

/* Returns the group's table; NULL until teams are first used. */
team_table *team_table_of(const expar_group *group);
/* Returns the table, and makes it if there is none yet: then it is collective. */
expar_status team_table_open(const char *call, expar_group *group, team_table **out);

/* Returns a number for a new team. */
uint64_t team_number(void);
/* Makes the counts for any slot that will be used. */
expar_status team_slot_prepare(const char *call, int32_t group_size, team_peer **peers);
/* Returns the free slots. Bit s: slot s is not taken; another thread may have claimed it. */
uint64_t team_slots_free(team_table *table);
/* Claims a slot. False: it is taken, or another thread has claimed it. */
bool team_slot_claim(team_table *table, int32_t slot);
/* Gives a claim up. */
void team_slot_drop(team_table *table, int32_t slot);
/* Marks a slot as taken. A slot that was never used gets those counts; otherwise they are freed. */
void team_slot_use(team_table *table, int32_t slot, team_peer *peers);

/* Fills the team whose collectives use the second channel of this one. It is good as long as this one is. All formed
   teams share that channel, too; one thread of the rank uses it. EXPAR_ERR_MEMORY. */
expar_status team_on_stream(const char *call, const expar_team *team, expar_team *out);

/* These enclose each use of a team's channel. Different threads may use different teams at once. Formed teams share one
   channel, so threads wait for each other there. `begin` fails if earlier calls have left the channel out of step.
   `end` and `met` return `status`. For `met`, EXPAR_OK says that all members have come. */
expar_status team_turn_begin(const char *call, const expar_team *team);
expar_status team_turn_end(const expar_team *team, expar_status status);
expar_status team_turn_met(const expar_team *team, expar_status status);

/* ---- messages (channel.c) ---------------------------------------------------------------------------------------- */

/* Messages on their way through a network, so that several members can be sent to at once. */
typedef struct channel_batch {
    link_batch sent;
    bool copies; /* the source may be changed at once; else after the batch is finished */
} channel_batch;

/* Puts into member `to`'s memory and tells it: the data has arrived when it hears. The place may be of any kind, and so
   may the source. */
expar_status channel_send(const expar_team *team, int32_t to, kinds_place at, const void *source, size_t bytes,
                          channel_batch *batch);
/* Waits for everything that was sent with the batch, whatever became of it. Returns `status`, or, if that is EXPAR_OK,
   the result of sending. Call it on every way out, and before anything more is sent to the same members. */
expar_status channel_finish(const expar_team *team, channel_batch *batch, expar_status status);
/* Puts into member `to`'s memory. That member may read the data after it has been told. */
expar_status channel_put(const expar_team *team, int32_t to, kinds_place at, const void *source, size_t bytes);
expar_status channel_get(const expar_team *team, int32_t from, void *dest, kinds_place at, size_t bytes);
/* Tells member `to`: everything that was put there before has arrived when it hears. */
expar_status channel_tell(const expar_team *team, int32_t to);
/* Waits for the next message of member `from`. `call` is for the error text. A time-out fails the group. */
expar_status channel_hear(const expar_team *team, int32_t from, const char *call);

/* Sends member `to` a scratch piece of at most piece_bytes. A pair of members has two pieces and takes turns. Two are
   enough under this rule: before a member gives its next piece, it hears something that the taker has sent after it
   came to the same exchange. So the taker has finished with the piece before. */
expar_status channel_give(const expar_team *team, int32_t to, const void *piece, size_t bytes, channel_batch *batch);
/* Waits for the next piece of member `from`; it stays until this rank has given twice more. */
expar_status channel_take(const expar_team *team, int32_t from, const char *call, const void **piece);
/* Returns the piece that was last taken from member `from`. */
const void *channel_taken(const expar_team *team, int32_t from);
size_t channel_piece_bytes(const expar_team *team);
/* Returns a piece in this rank's own heap that no other rank writes; number 0 or 1. */
void *channel_own_piece(const expar_team *team, uint64_t number);

/* Hears all others of the circle. */
expar_status circle_hear(const circle *c, const char *call);

/* ---- sync (sync.c) ----------------------------------------------------------------------------------------------- */

expar_status team_sync(const char *call, expar_team *team);

/* ---- reductions (reduce.c) --------------------------------------------------------------------------------------- */

/* The bitwise and of a word of each member. */
expar_status team_and(const char *call, expar_team *team, uint64_t *word);

#endif
