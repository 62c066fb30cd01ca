/* SPDX-License-Identifier: Apache-2.0 */
/* boot: how the ranks of a group find each other, talk during set-up, and notice that a rank is gone.
 *
 * Called by group, which opens it, by shmem and by the transports; calls base only. Two implementations fill one table
 * of operations. Processes use sockets: a rendezvous, then a mesh of control sockets between all pairs. Ranks that are
 * threads of one process share a block. Only set-up data goes this way; nothing here is on a hot path.
 *
 *   launch/    what a launcher has told this process       agree.c    agreement, by the operations of either
 *   meet/      processes come together                      registry.c wait registry: what a rank waits for, for peers
 *                                                           wait.c     a wait, and the state of the awaited ranks
 *   sockets/   the boot of processes that have met         place.c, devices.c   where a rank is
 *   wire/      bytes between two of them                    ranks.c    sets of ranks as text
 *   join.c     the way of processes through these           threads.c  the boot of threads
 *   bounded.c  calls into a library that may never return
 *
 * Order on the wire, for every connection: first both sides prove that they know the secret (challenge and HMAC), and
 * neither parses anything before. Then versions are compared. Then records flow, each with a bounded length. */
#ifndef EXPAR_BOOT_BOOT_H
#define EXPAR_BOOT_BOOT_H

#include "base/base.h"
#include <expar/group.h>
#include <stdatomic.h>

typedef struct boot boot;

#define BOOT_MAX_RANKS      4096 /* every pair has a socket: descriptors limit it further */
#define BOOT_MAX_TIMEOUT_MS ((int64_t)24 * 3600 * 1000)

/* The place of a rank; every rank learns those of all at the start. Two ranks with equal `host` can send each other
   file descriptors: same kernel (boot id), same network and IPC reach. */
#define BOOT_NICS_TEXT 64

typedef struct boot_place {
    /* hash of boot id, network namespace and pid namespace */
    uint64_t host;
    /* hash of the boot id alone: ranks in other namespaces may still run on the same cores */
    uint64_t machine;
    int32_t pid;
    /* cores this process may run on (its affinity mask) */
    int32_t num_cores;
    /* NUMA node of all these cores; -1: they are of several nodes, or it is not known */
    int32_t numa_node;
    /* 0 */
    int32_t reserved;
    /* Names of the host's RDMA devices; without any, its interfaces that are up. Commas separate the names, and names
       that do not fit are left out. Terminated; a peer's text is checked. */
    char nics[BOOT_NICS_TEXT];
} boot_place;

#define BOOT_IP_TEXT 64 /* an IP address as text */

/* Called once for a peer, from the monitor's thread, when it has died or left (clean: it said good-bye). This rank has
   seen that, or another rank has told it. */
typedef void (*boot_gone_fn)(void *context, int32_t rank, bool clean);

/* ---- which rank waits for which ---------------------------------------------------------------------------------- */

/* Kinds of operations that ranks do together, with numbers that are equal on all of them. */
typedef enum boot_kind {
    BOOT_KIND_NONE,    /* nothing in which others take part: a wait for words, or for a lock */
    BOOT_KIND_CONTROL, /* a collective over control sockets; number: counts from 1 */
    BOOT_KIND_BARRIER, /* a barrier over the heaps; number: its epoch */
    /* A collective of a team; object: the team's slot; number: 0, or which of the teams that share the slot. These come
       in no order: a wait in one of them keeps the rank from all others. */
    BOOT_KIND_TEAM,
    BOOT_KIND_BUFFER, /* a call on an EP buffer; object: the buffer's number; number: epoch */
    /* A call on a low-latency buffer; object: the buffer's number; number: twice the call's, plus 1 for a combine,
       because ranks that make calls of different kinds do not meet. */
    BOOT_KIND_LOW_LATENCY,
    BOOT_KIND_END, /* the end of an EP buffer, which all ranks reach; object: the buffer's number; number: 0 */
    /* For ends only: all operations in which others take part. This rank still changes other ranks' words, and
       locks. */
    BOOT_KIND_MEETINGS,
    BOOT_KIND_ALL /* for ends only: all of these */
} boot_kind;
#define BOOT_KINDS (BOOT_KIND_ALL + 1)

typedef struct boot_topic {
    /* boot_kind */
    uint16_t kind;
    /* in a registered wait: how many collectives the waiting rank has rejected there (boot_note_rejected) */
    uint16_t rejected;
    /* 0 if there is none */
    uint32_t object;
    uint64_t number;
} boot_topic;

#define BOOT_REASON_TEXT 232 /* bytes of a reason that others are told, its end included; longer ones are cut */
#define BOOT_DOING_TEXT  160 /* the same for the description of what a rank is doing */

/* A question to a rank about a topic, and its answer. */
typedef struct boot_answer {
    /* set by the rank that asks */
    bool asked;
    /* it has answered; false: not yet, or it is gone */
    bool came;
    /* if it has not answered: for how long it owes an answer; 0: it is gone */
    int64_t silent_ns;
    /* EXPAR_OK: the rank may still come to the topic, or is there. Else it will not come: its call there has ended so,
       or an earlier call that makes it lost. `reason` is its error. */
    expar_status ended;
    /* The rank waits, either in the topic or in `topic`, which keeps it from coming. Else `rank` is -1; if it has left
       a circle, `rank` is the rank for which it had waited in `topic`. */
    bool waits;
    boot_topic topic;
    /* the rank for which it waits; -1: no particular one */
    int32_t rank;
    /* how long it has waited there without success */
    int64_t waited_ns;
    /* the first rank that it gave up, whatever the topic; -1: none */
    int32_t blamed;
    /* "in expar_ep_combine: …(call 7 on buffer 1), waiting for rank 2" */
    char doing[BOOT_DOING_TEXT];
    char reason[BOOT_REASON_TEXT];
} boot_answer;

typedef struct boot_registry boot_registry;

typedef struct boot_ops {
    const char *name; /* "sockets" or "threads" */
    /* Every rank gives `bytes` bytes; all gets size·bytes, in order of ranks. `mine` may lie inside `all`.
       Collective. */
    expar_status (*allgather)(boot *self, const void *mine, void *all, size_t bytes);
    /* send: size records of `bytes` bytes, one for each rank; receive: the same, in order of senders. Collective. */
    expar_status (*alltoall)(boot *self, const void *send, void *receive, size_t bytes);
    expar_status (*broadcast)(boot *self, void *data, size_t bytes, int32_t root);
    expar_status (*barrier)(boot *self);
    /* Sends a file descriptor to every rank of the same host and receives theirs. The caller closes the new descriptors
       fds[r]; they are -1 for ranks of other hosts and for this rank. Collective. Not for threads. */
    expar_status (*exchange_fds)(boot *self, int fd, int *fds);
    /* Reports peers that die or leave from now on, and those that already have. `gone` is called at most once for a
       peer. */
    expar_status (*watch)(boot *self, boot_gone_fn gone, void *context);
    /* Returns the first rank that this one knows to have died or left; -1: none. Also works before `watch`, for waits
       while the group forms. *clean: it said good-bye. Any thread. */
    int32_t (*first_gone)(boot *self, bool *clean);
    /* Tells all ranks which rank this one has given up; this rank may end as soon as this returns. Only
       boot_note_blamed calls it. NULL: the wait registry is enough. Any thread. */
    void (*tell_blame)(boot *self, int32_t rank);
    /* Returns the rank that another one, now gone, had given up first. It is -1 if that is not known, or if it had
       given up this rank or itself. Any thread. */
    int32_t (*blame_of)(boot *self, int32_t rank);
    /* Asks the ranks with answers[r].asked, of [size], for their state with respect to the topic. Their monitors answer
       whatever else they do. Returns after wait_ns; earlier when all have answered, except those known to be late with
       an answer. Any thread. */
    void (*ask)(boot *self, const boot_topic *topic, boot_answer *answers, int64_t wait_ns);
    /* The last collective of a rank that leaves in order. It is a barrier, so that no rank takes a good-bye for a
       failure; ranks that go afterwards are not reported. */
    expar_status (*finish)(boot *self);
    /* Says good-bye at once, whatever this rank's other threads do here, and waits for no rank: the others see it as
       gone. Its collectives fail from then on. Any thread, once; `leave` must still be called. */
    void (*part)(boot *self);
    /* In a child of fork, which is no rank: closes its copies of the sockets that show the others that this rank lives.
       Takes no lock, frees nothing. */
    void (*forsake)(boot *self);
    /* Leaves; calls `finish` first if `sound`. Frees self. */
    void (*leave)(boot *self, bool sound);
    /* Ends this rank's pending and later collectives with EXPAR_ERR_ABORTED. Any thread, also while
       another one waits. */
    void (*abort)(boot *self);
} boot_ops;

struct boot {
    const boot_ops *ops;
    int32_t rank, size;
    /* time-out for silent ranks; the monitor reads it too, and tests set it while the monitor runs */
    _Atomic int64_t timeout_ms;
    /* how long a wait lasts for a rank that answers; 0: without a limit */
    _Atomic int64_t late_limit_ms;
    /* [size] */
    boot_place *places;
    boot_registry *registry;
    /* ranks are threads of one process */
    bool threads;
    /* name of the call that makes the collectives, of static storage, or NULL; only the owner's thread */
    const char *call;
    /* a collective has failed because a rank was silent; only the owner's thread */
    bool timed_out;
    /* Counts the threads in collectives here. Each thread counts itself (release); the thread that frees what they use
       reads it (acquire). */
    _Atomic int32_t inside;
    /* The address at which ranks of other hosts find this one: the one by which it reached the meeting place. "" if the
       ranks met without a network. */
    char ip[BOOT_IP_TEXT];
};

/* Number of ranks on a rank's host, that rank included; and the same for its machine. */
int32_t boot_host_ranks(const boot *self, int32_t rank);
int32_t boot_machine_ranks(const boot *self, int32_t rank);
/* Gives the address at which other hosts find an interface of this host. Returns false if it does not exist, is down,
   or has none. */
bool boot_interface_ip(const char *name, char text[BOOT_IP_TEXT]);

#define BOOT_PLACE_TEXT 160
/* Connects to the place where an id is served, and leaves again, as a port scanner would. Returns 0, or an errno.
   `text` gets the place; *loopback says whether only this host can reach it. */
int boot_id_reach(const expar_unique_id *id, char text[BOOT_PLACE_TEXT], bool *loopback);

/* The calling thread begins a call in the topic, with this `name` (of static storage). While the same thread waits in
   another topic, this rank does not come to this one before that wait has ended. */
void boot_note_call(boot *self, const boot_topic *topic, const char *name);
/* The calls so far do not show which thread makes later ones: any thread may make a group. */
void boot_note_made(boot *self);
/* Records that this rank takes part in the topic no more, from its number on, and why. A call there has ended without
   what others await, or all calls are rejected from now on. The first such record of an object stays. Any thread. */
void boot_note_ended(boot *self, const boot_topic *topic, expar_status status, const char *reason);
/* Records that this rank has rejected one call and could not tell the others. There are two cases.
 *
 * A call in a capture: the others may have a graph with that call. A rank learns that this one does not come if it
 * awaits it in the call of that number. It also learns so by boot_graph_number, if this rank has rejected more such
 * calls than it. boot_note_came takes the record back at this rank's next call there.
 *
 * A collective (CONTROL, TEAM) whose arguments were rejected: a rank that waits there learns it if it had fewer
 * rejections since all last met. If all ranks rejected alike, each is awaited in the next collective. boot_note_met
 * says that a collective has ended well. */
void boot_note_rejected(boot *self, const boot_topic *topic, expar_status status, const char *reason);
void boot_note_came(boot *self, boot_kind kind, uint32_t object);
void boot_note_met(boot *self, const boot_topic *topic);
/* Returns the number of a topic for calls of graphs, because hosts do not know how often those run. It is greater than
   any call's. */
uint64_t boot_graph_number(const boot *self, boot_kind kind, uint32_t object);
/* Forgets the recorded ends of the object: it has become another one, or a call that this rank rejected is followed by
   one in which it takes part. Only topics of teams use the number. */
void boot_note_new(boot *self, const boot_topic *topic);
/* Records the first rank that this one gave up, or for which another rank had gone, and tells all ranks of it. Later
   ones do not count. Call it before this rank acts on the loss, since it may end then. Any thread. */
void boot_note_blamed(boot *self, int32_t rank);

/* ---- waits (wait.c) ---------------------------------------------------------------------------------------------- */

/* A long wait for ranks. The waiting thread looks at it at least every INTERRUPT_NS, between two checks of what it
 * waits for. The wait lasts as long as the awaited ranks answer on their lines. It ends with EXPAR_ERR_PEER when a rank
 *
 *   - has been silent for the time-out, 3 s at least: a busy machine must not make a rank silent;
 *   - has recorded that it will not come;
 *   - waits for this rank in another call, directly or through others, for the time-out: a deadlock;
 *   - is late by more than late_limit_ms, of the wait or of boot.
 *
 * It ends with EXPAR_ERR_INTERRUPTED when the program says so. From 10 s on it logs, ever more rarely, the awaited
 * ranks. The wait is registered meanwhile, for other ranks that ask. */
typedef enum boot_verdict { BOOT_GOES_ON, BOOT_SILENT, BOOT_WILL_NOT_COME, BOOT_DEADLOCK, BOOT_LATE } boot_verdict;

typedef struct boot_wait {
    boot *boot;
    /* next in the wait registry; guarded by its lock */
    struct boot_wait *next;
    boot_topic topic;
    /* opens texts */
    const char *what;
    /* the ranks whose silence ends it; size 0: all */
    int32_t first, stride, size;
    /* NULL: the wait is for `awaited` only. Else it returns whether a rank has still to come. `awaited` is then one of
       those at the last look: `reason`, or the first. */
    bool (*misses)(const void *context, int32_t rank);
    /* For `awaited` only, set by the function that begins the wait: returns whether the awaited event has happened
       meanwhile. NULL: only the caller knows. */
    bool (*has_come)(const void *context);
    const void *context;
    /* Set by the function that begins the wait: ranks that are not missed are not asked, and their silence ends
       nothing. */
    bool missed_alone;
    /* Set by the function that begins the wait: its failure ends no call. The caller goes on without the missed ranks,
       and comes where others await it as before. */
    bool tolerant;
    /* set likewise: limit of this wait, if it is less than boot's; 0: no limit of its own */
    int64_t late_limit_ms;
    /* a missed rank that did not wait in the topic itself at the last questions; -1: not known */
    int32_t reason;
    /* Set by the function that begins the wait: the work is the caller's, and all its later calls come after it. */
    bool for_caller;
    /* thread_number of the waiting thread, and of the thread that made the call */
    uint32_t thread, caller;
    /* The waiting thread writes these, the monitor reads them; relaxed, because each stands for itself. */
    /* -1: not known */
    _Atomic int32_t awaited;
    /* when the wait began, or last made progress */
    _Atomic int64_t since_ns;
    /* The awaited event was last checked at this time or later: the waiting thread may have been delayed between that
       check and boot_wait_look. */
    _Atomic int64_t looked_ns;
    /* when boot_wait_look last returned, or something came: the waiting thread checked after that */
    int64_t left_ns;
    int64_t ask_ns, ask_pause_ns, log_ns, log_pause_ns, interrupt_ns;
    bool noted;
    /* The last answered questions found this rank in a circle, old enough for a deadlock or not; or in one that another
       rank has broken. */
    bool circled;
    /* where other ranks of the circle await this rank */
    boot_topic circle;
    /* Valid after a look has failed. `verdict` is the reason; BOOT_GOES_ON: interrupted. `culprit` is the rank to
       blame; -1: not known. `silent`, [boot->size], has the silent ranks with BOOT_SILENT. With BOOT_LATE it has the
       late ranks, if the wait has a limit of its own. */
    boot_verdict verdict;
    int32_t culprit;
    bool *silent;
} boot_wait;

/* The first look registers the wait, so it must not move before boot_wait_end. Only looks call misses and has_come. */
void boot_wait_begin(boot_wait *wait, boot *self, const boot_topic *topic, const char *what);
/* Sets the rank that is awaited now. */
static inline void boot_wait_for(boot_wait *wait, int32_t rank)
{
    atomic_store_explicit(&wait->awaited, rank, memory_order_relaxed);
}
/* Something came: time counts from now on. */
void boot_wait_progress(boot_wait *wait);
/* Call this when the awaited event has not happened. Now and then it takes some milliseconds, while other ranks are
   asked. The text of an error starts with `what`. */
expar_status boot_wait_look(boot_wait *wait);
void boot_wait_end(boot_wait *wait);
/* Says what ends a wait for ranks that answer; for texts about a wait that goes on. */
const char *boot_limit_text(const boot *self);
/* Returns the time without an answer after which a rank is silent. */
int64_t boot_silence_ns(const boot *self);

/* ---- agreement (agree.c) ----------------------------------------------------------------------------------------- */

#define BOOT_FIELD_TEXT 64 /* bytes of a field's text, its end included */
#define BOOT_UNKNOWN    UINT64_MAX

/* A value that must be equal on all ranks: a number or, if text is not NULL, a text. A rank that does not know it
   passes BOOT_UNKNOWN or "", and is not compared. */
typedef struct boot_field {
    const char *name;
    uint64_t value;
    const char *text;
} boot_field;

/* The subject of an agreement. All members are equal on all ranks, except those that only this rank can know (values,
   `mine`). */
typedef struct boot_matter {
    /* opens texts that tell of other ranks: "expar_malloc"; NULL: nothing */
    const char *what;
    /* what a rank does that cannot take part: "rank 3 <rejected its arguments>: why" */
    const char *rejected;
    /* A status that all ranks return as soon as one rank has it, in place of EXPAR_ERR_REMOTE, unless a field differs.
       `lacks` then stands in place of `rejected`. EXPAR_OK: there is no such status. */
    expar_status common;
    const char *lacks;
    /* [num_fields] */
    const boot_field *fields;
    size_t num_fields;
    /* Data that is gathered as well if all agree: `bytes` of each rank, all[size] in order of ranks. */
    const void *mine;
    void *all;
    size_t bytes;
} boot_matter;

/* All ranks reach one result, whatever each one's part was. `own` is EXPAR_OK, or why this rank cannot, with the last
 * error's text. Returns EXPAR_OK on all ranks, or one of these:
 *
 *   - on a rank that cannot, its own error; on the others EXPAR_ERR_REMOTE with the lowest such rank and its reason;
 *   - EXPAR_ERR_MISMATCH with the first field that differs, its values and their ranks, or with a rank that is at
 *     another matter.
 *
 * *out_of_step (may be NULL): this rank could not take part (no memory), or the exchange failed, with its status. It is
 * then unknown what the others know, and later collectives may meet them in another order. Collective. */
expar_status boot_agree(boot *self, const boot_matter *matter, expar_status own, bool *out_of_step);

/* ---- joining ----------------------------------------------------------------------------------------------------- */

/* The group that a rank wants to join; filled from the caller's options or from the environment. Call boot_request_end
   once all have met, or after a failure. */
typedef struct boot_request {
    expar_unique_id id;
    /* else `meeting` says where rank 0 listens */
    bool have_id;
    /* "unix:NAME" (abstract, this host) or "tcp:HOST:PORT"; its secret stands in id.bytes */
    char meeting[128];
    int32_t rank, size;
    int64_t timeout_ms;
    /* late limit of the new group */
    int64_t late_limit_ms;
    /* this rank made the id, only for this group */
    bool own_id;
    /* name of this host's ranks of the job (meet/roll.c); "" if it is not known */
    char roll[40];
    /* with `roll`: this rank's socket */
    int roll_fd;
    /* Values on which all ranks must agree. The rendezvous compares them and rejects a mismatch, naming rank and
       field. */
    int32_t ranks_per_node;
    uint64_t heap_bytes;
} boot_request;

/* Fills rank, size, id or meeting from the environment. The order is expar run, torchrun, PMIx, Open MPI; without any
   the size is 1. With nested launchers, the innermost wins. torchrun passes on the PMIx variables of srun or mpirun
   that were only for itself. timeout_ms says how long to wait for rank 0 (PMIx). */
expar_status boot_request_from_env(boot_request *request);
void boot_request_end(boot_request *request);

/* Joins; collective. EXPAR_ERR_BOOTSTRAP says which ranks came and which did not. */
expar_status boot_join_sockets(const boot_request *request, boot **out);
/* Joins all `size` ranks of one process. outs[r] belongs to rank r. */
expar_status boot_join_threads(int32_t size, int64_t timeout_ms, boot **outs);

#endif
