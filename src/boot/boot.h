/* SPDX-License-Identifier: Apache-2.0 */
/* boot: how the ranks of a group find each other, talk during set-up, and notice that one is gone.
 *
 * Called by group, which opens one, by shmem and by the transports; calls base only. Two implementations of one table
 * of operations: sockets (processes: rendezvous, then a mesh of control sockets between all pairs) and threads (ranks
 * of one process: a shared block). Set-up data only: nothing here is on a hot path.
 *
 *   launch/    what a launcher has told this process       agree.c    agreement, by the operations of either
 *   meet/      processes come together                      notes.c    what a rank waits for, for peers who ask
 *                                                           wait.c     a wait, and how those stand who are awaited
 *   sockets/   their boot, once they have                   place.c, devices.c   where a rank is
 *   wire/      bytes between two of them                    ranks.c    sets of ranks as text
 *   join.c     the way of processes through these           threads.c  the boot of threads
 *   bounded.c  calls into a library that may never return
 *
 * Order on the wire, for every connection: both sides prove that they know the secret (challenge and HMAC) before
 * either parses anything else; then versions are compared; then records flow, each with a bounded length. */
#ifndef EXPAR_BOOT_BOOT_H
#define EXPAR_BOOT_BOOT_H

#include "base/base.h"
#include <expar/group.h>
#include <stdatomic.h>

typedef struct boot boot;

#define BOOT_MAX_RANKS      4096 /* every pair has a socket: descriptors limit it further */
#define BOOT_MAX_TIMEOUT_MS ((int64_t)24 * 3600 * 1000)

/* Where a rank is, told to all at the start. Two ranks with equal `host` can hand each other file descriptors: same
   kernel (boot id), same network and IPC reach. */
#define BOOT_NICS_TEXT 64

typedef struct boot_place {
    uint64_t host;    /* hash of boot id, network namespace and pid namespace */
    uint64_t machine; /* of the boot id alone: whose namespaces are others runs on the same cores all the same */
    int32_t pid;
    int32_t num_cores; /* cores this process may run on (its affinity mask) */
    int32_t numa_node; /* of all of these cores; -1: they are of several, or it is not known */
    int32_t reserved;  /* 0 */
    /* RDMA devices of the host, or where there are none its interfaces that are up: names with commas between them, as
       many as there is room for. Terminated; what a peer sent is checked. */
    char nics[BOOT_NICS_TEXT];
} boot_place;

#define BOOT_IP_TEXT 64 /* an IP address as text */

/* Called once, from the monitor's thread, when a peer is seen, or told by another, to have died, or has left (clean: it
   said good-bye). */
typedef void (*boot_gone_fn)(void *context, int32_t rank, bool clean);

/* ---- who waits for whom ------------------------------------------------------------------------------------------ */

/* What ranks do together, in numbers that are the same on all of them. */
typedef enum boot_kind {
    BOOT_KIND_NONE,    /* nothing that others come to: a wait for words, or for a lock */
    BOOT_KIND_CONTROL, /* a collective over control sockets; number: counted from the first, which is 1 */
    BOOT_KIND_BARRIER, /* over the heaps; number: its epoch */
    /* A collective of a team; object: the team's slot; number: 0, or which of the teams that share the slot. These come
       in no order: a wait of one of them keeps the rank from all. */
    BOOT_KIND_TEAM,
    BOOT_KIND_BUFFER, /* a call on an EP buffer; object: the buffer's number; number: epoch */
    /* A call on a low-latency buffer: likewise; number: twice the call's, and one more for a combine, since ranks that
       make calls of different kinds do not meet. */
    BOOT_KIND_LOW_LATENCY,
    BOOT_KIND_END, /* the end of an EP buffer, to which all ranks come; object: the buffer's number; number: 0 */
    /* Of what has ended: all to which others come. Words of others, and locks, this rank changes as before. */
    BOOT_KIND_MEETINGS,
    BOOT_KIND_ALL /* likewise: all of these */
} boot_kind;
#define BOOT_KINDS (BOOT_KIND_ALL + 1)

typedef struct boot_topic {
    uint16_t kind;    /* boot_kind */
    uint16_t refused; /* in a wait that is noted: collectives that who waits has refused there (boot_note_refused) */
    uint32_t object;  /* 0 without */
    uint64_t number;
} boot_topic;

#define BOOT_REASON_TEXT 232 /* bytes of a reason that others are told, its end included; longer ones are cut */
#define BOOT_DOING_TEXT  160 /* likewise of what a rank is doing */

/* What a rank is asked, about a topic, and says. */
typedef struct boot_answer {
    bool asked;        /* set by who asks */
    bool came;         /* else it has not answered yet, or is gone */
    int64_t silent_ns; /* it has not: for how long it owes an answer; 0: it is gone */
    /* EXPAR_OK: it may come to the topic, or is there. Else it will not: that is how its call there has ended, or an
       earlier one by which it is lost; `reason` is its error. */
    expar_status ended;
    /* It waits: in the topic, or in `topic`, which keeps it from coming. Else rank is -1, or where it has left a circle
       for whom it had waited, in `topic`. */
    bool waits;
    boot_topic topic;
    int32_t rank;                /* for whom; -1: for nobody in particular */
    int64_t waited_ns;           /* how long it has looked in vain there */
    int32_t blamed;              /* the first rank that it gave up, whatever the topic; -1: none */
    char doing[BOOT_DOING_TEXT]; /* "in expar_ep_combine: offers (call 7 on buffer 1), waiting for rank 2" */
    char reason[BOOT_REASON_TEXT];
} boot_answer;

typedef struct boot_notes boot_notes;

typedef struct boot_ops {
    const char *name; /* "sockets" or "threads" */
    /* Every rank gives `bytes` bytes, all gets size·bytes by rank; `mine` may lie inside `all`. Collective. */
    expar_status (*allgather)(boot *self, const void *mine, void *all, size_t bytes);
    /* send: size records of `bytes`, one for each rank; receive: likewise, by sender. Collective. */
    expar_status (*alltoall)(boot *self, const void *send, void *receive, size_t bytes);
    expar_status (*broadcast)(boot *self, void *data, size_t bytes, int32_t root);
    expar_status (*barrier)(boot *self);
    /* Hands a file descriptor to every rank of the same host and receives theirs: fds[r] is a new descriptor of this
       process that the caller closes, or -1 for ranks of other hosts and for itself. Collective. Not for threads. */
    expar_status (*exchange_fds)(boot *self, int fd, int *fds);
    /* Tells of peers that die or leave, and of those that have. `gone` is called at most once a peer. */
    expar_status (*watch)(boot *self, boot_gone_fn gone, void *context);
    /* The first rank that this one knows to have died or left; -1: none. Before `watch`, too: for waits while the group
       forms. *clean: it said good-bye. Any thread. */
    int32_t (*first_gone)(boot *self, bool *clean);
    /* Tells all of whom this rank has given up, which may end as soon as this returns; by boot_note_blamed alone. NULL:
       the notes say enough. Any thread. */
    void (*tell_blame)(boot *self, int32_t rank);
    /* Whom a rank, which has gone, had given up first, as far as it could still say so; -1: nobody, or this rank or
       itself. Any thread. */
    int32_t (*blame_of)(boot *self, int32_t rank);
    /* Asks other ranks how they stand to the topic: those with answers[r].asked of [size]. Their monitors answer
       whatever else they do. Returns when all have that are not known to be behind with an answer, or after wait_ns.
       Any thread. */
    void (*ask)(boot *self, const boot_topic *topic, boot_answer *answers, int64_t wait_ns);
    /* The last collective of a rank that leaves in order: a barrier, so that nobody takes a good-bye for a failure; who
       goes from then on is not told of. */
    expar_status (*finish)(boot *self);
    /* Says good-bye at once, whatever this rank's other threads do here, and waits for nobody: the others see it gone.
       Its collectives fail from then on. Any thread, once; `leave` is still to come. */
    void (*part)(boot *self);
    /* In a child of fork, which is no rank: closes its copies of what tells the others that this rank lives. Takes no
       lock, frees nothing. */
    void (*forsake)(boot *self);
    /* Leaves: when `sound`, `finish` first. Frees self. */
    void (*leave)(boot *self, bool sound);
    /* Ends this rank's pending and later collectives with EXPAR_ERR_ABORTED. Any thread, also while
       another one waits. */
    void (*abort)(boot *self);
} boot_ops;

struct boot {
    const boot_ops *ops;
    int32_t rank, size;
    _Atomic int64_t timeout_ms;    /* of silence; read by the monitor, too, and set by tests while that runs */
    _Atomic int64_t late_limit_ms; /* how long a rank that answers is waited for; 0: as long as it does */
    boot_place *places;            /* [size] */
    boot_notes *notes;
    bool threads;     /* ranks are threads of one process */
    const char *call; /* the call whose collectives these are, of static storage, or NULL; only the owner's thread */
    bool timed_out;   /* a collective has failed because somebody was silent; only the owner's thread */
    /* Threads in collectives here: by themselves, read by whoever frees what they use (release, acquire). */
    _Atomic int32_t inside;
    /* The address at which ranks of other hosts find this one: that by which it reached the place where they met. ""
       where they met without a network. */
    char ip[BOOT_IP_TEXT];
};

/* Ranks on the host of a rank, that one included; on its machine. */
int32_t boot_host_ranks(const boot *self, int32_t rank);
int32_t boot_machine_ranks(const boot *self, int32_t rank);
/* The address at which other hosts find an interface of this one; false: it is not there, is down, or has none. */
bool boot_interface_ip(const char *name, char text[BOOT_IP_TEXT]);

/* The calling thread begins a call in the topic, which `name` (of static storage) calls so. Where the same thread waits
   in another one meanwhile, this rank comes to the topic no more until that has ended. */
void boot_note_call(boot *self, const boot_topic *topic, const char *name);
/* What was called so far says nothing of who calls: a group is made by any thread. */
void boot_note_made(boot *self);
/* This rank comes no more to the topic from its number on, and why: a call there has ended without what others
   await, or all of them are refused from now on. The first such note of an object stays. Any thread. */
void boot_note_ended(boot *self, const boot_topic *topic, expar_status status, const char *reason);
/* This rank has refused one call, where it could not be told: in a capture, of which the others may have a graph with
   that call. Whoever awaits it in the call of that number, or by boot_graph_number where this rank has refused more
   such calls than it, learns that it does not come; boot_note_came takes that back, at this rank's next call there.
   Or it was refused its arguments of a collective (CONTROL, TEAM): then whoever waits there, and was refused fewer
   since all last met, learns it. Where all were refused alike each is waited for in the next one; boot_note_met says
   that one has ended well. */
void boot_note_refused(boot *self, const boot_topic *topic, expar_status status, const char *reason);
void boot_note_came(boot *self, boot_kind kind, uint32_t object);
void boot_note_met(boot *self, const boot_topic *topic);
/* Number of a topic for calls of graphs, of which hosts do not know how often they run: greater than any call's. */
uint64_t boot_graph_number(const boot *self, boot_kind kind, uint32_t object);
/* The object has become another, or a call that this rank refused is followed by one that it comes to: what was
   noted of its ends counts no more. Of the topic only teams look at the number. */
void boot_note_new(boot *self, const boot_topic *topic);
/* Notes the first rank that this one gave up, or that another one had gone for, and tells all of it; later ones do not
   count. To be called before this rank acts on it, for it may end then. Any thread. */
void boot_note_blamed(boot *self, int32_t rank);

/* ---- waits (wait.c) ---------------------------------------------------------------------------------------------- */

/* A long wait for ranks. Whoever waits looks at it at least every INTERRUPT_NS, between two looks at what it waits for.
   As long as those who are awaited answer on their lines it goes on. It ends with EXPAR_ERR_PEER when somebody

     - has been silent for the time-out, 3 s at least: a busy machine must not make a rank silent;
     - has noted that it will not come;
     - waits for this rank in another call, directly or by way of others, for the time-out: a deadlock;
     - is late by more than late_limit_ms, of the wait or of boot;

   and with EXPAR_ERR_INTERRUPTED when the program says so. From 10 s on it tells, ever more rarely, whom it waits for.
   What this rank waits for is noted meanwhile, for others who ask. */
typedef enum boot_verdict { BOOT_GOES_ON, BOOT_SILENT, BOOT_WILL_NOT_COME, BOOT_DEADLOCK, BOOT_LATE } boot_verdict;

typedef struct boot_wait {
    boot *boot;
    struct boot_wait *next; /* noted; guarded by the notes' lock */
    boot_topic topic;
    const char *what;            /* for texts */
    int32_t first, stride, size; /* the ranks whose silence ends it; size 0: all */
    /* NULL: `awaited` alone. Else whether a rank has still to come; `awaited` is one of them at the last look, `reason`
       or the first. */
    bool (*misses)(const void *context, int32_t rank);
    /* For `awaited` alone, set by who begins it: whether what it is for has come meanwhile; NULL: only the caller
       knows. */
    bool (*has_come)(const void *context);
    const void *context;
    bool
        missed_alone; /* set by who begins it: those who are not missed are not asked, and their silence ends nothing */
    /* Likewise: its failure ends no call, for who waits goes on without those who are missed, and comes to where others
       await it as before. */
    bool tolerant;
    int64_t late_limit_ms; /* likewise: of this wait, where it is less than that of boot; 0: none of its own */
    int32_t reason;        /* -1: not known; who is missed without waiting in the topic itself, at the last questions */
    /* Set by who begins it, for work of the caller's behind which all comes that it calls later. */
    bool for_caller;
    uint32_t thread, caller; /* thread_number of who waits, and of whoever made the call */
    /* Written by who waits, read by the monitor (relaxed: each by itself). */
    _Atomic int32_t awaited;   /* -1: not known */
    _Atomic int64_t since_ns;  /* of the beginning, or of the last progress */
    _Atomic int64_t looked_ns; /* what is waited for was last looked at then, or later: whoever waits may have been held
                                  up between that and boot_wait_look */
    int64_t left_ns;           /* when boot_wait_look last returned, or something came: who waits looked behind that */
    int64_t ask_ns, ask_pause_ns, log_ns, log_pause_ns, interrupt_ns;
    bool noted;
    bool circled;      /* the last questions that were answered have found this rank in a circle, long enough for a
                          deadlock or not; or in one that another rank has broken */
    boot_topic circle; /* where this rank is awaited in it */
    /* Once a look has failed: why (BOOT_GOES_ON: interrupted), who is to blame (-1: nobody knows), and [boot->size] who
       is silent, with BOOT_SILENT, or who is late, with BOOT_LATE of a wait that has a limit of its own. */
    boot_verdict verdict;
    int32_t culprit;
    bool *silent;
} boot_wait;

/* The first look notes it; so it must stay where it is until boot_wait_end. misses and has_come are called by looks
   alone. */
void boot_wait_begin(boot_wait *wait, boot *self, const boot_topic *topic, const char *what);
/* Whom it is for now. */
static inline void boot_wait_for(boot_wait *wait, int32_t rank)
{
    atomic_store_explicit(&wait->awaited, rank, memory_order_relaxed);
}
/* Something came: time counts from now on. */
void boot_wait_progress(boot_wait *wait);
/* What is waited for has not come. Takes some milliseconds now and then, while others are asked. The text of an error
   has `what` in front. */
expar_status boot_wait_look(boot_wait *wait);
void boot_wait_end(boot_wait *wait);
/* What ends a wait for ranks that answer, for texts that tell of one that goes on. */
const char *boot_limit_text(const boot *self);
/* What has to be known for somebody to be silent. */
int64_t boot_silence_ns(const boot *self);

/* ---- agreement (agree.c) ----------------------------------------------------------------------------------------- */

#define BOOT_FIELD_TEXT 64 /* bytes of a field's text, its end included */
#define BOOT_UNKNOWN    UINT64_MAX

/* What must be the same on all ranks: a number or, where text is not NULL, a text. A rank that does not know it, with
   BOOT_UNKNOWN or "", is compared with nobody. */
typedef struct boot_field {
    const char *name;
    uint64_t value;
    const char *text;
} boot_field;

/* What ranks agree on. All but what only this rank can say (values, `mine`) is the same on all of them. */
typedef struct boot_matter {
    const char *what;    /* before texts that tell of others: "expar_malloc"; NULL: nothing */
    const char *refused; /* what a rank does that cannot: "rank 3 <refused its arguments>: why" */
    /* A reason that is everybody's as soon as one has it: all return it, in place of EXPAR_ERR_REMOTE, and only when no
       field differs. EXPAR_OK: there is none. `lacks` stands in place of `refused` then. */
    expar_status common;
    const char *lacks;
    const boot_field *fields; /* [num_fields] */
    size_t num_fields;
    /* Gathered beside it, where all agree: `bytes` of each rank, all[size] by rank. */
    const void *mine;
    void *all;
    size_t bytes;
} boot_matter;

/* All ranks come to one end, whatever each one's part came to: `own` is EXPAR_OK, or why this rank cannot, with the
   last error's text. Returns EXPAR_OK on all; or on a rank that cannot its own error, on the others EXPAR_ERR_REMOTE
   with the lowest such rank and its reason; or EXPAR_ERR_MISMATCH with the first field that differs, its values and
   their ranks, or with a rank that is at another matter. *out_of_step (may be NULL): this rank could not take part (no
   memory), or the exchange failed, with its status: what the others know is not known, and later collectives may meet
   them in another order. Collective. */
expar_status boot_agree(boot *self, const boot_matter *matter, expar_status own, bool *out_of_step);

/* ---- joining ----------------------------------------------------------------------------------------------------- */

/* What a rank wants to join; filled from the caller's options or from the environment. To be ended by boot_request_end
   once all have met, or it failed. */
typedef struct boot_request {
    expar_unique_id id;
    bool have_id;      /* else `meeting` says where rank 0 listens */
    char meeting[128]; /* "unix:NAME" (abstract, this host) or "tcp:HOST:PORT"; its secret is in id.bytes' place */
    int32_t rank, size;
    int64_t timeout_ms;
    int64_t late_limit_ms; /* of the group that is made */
    bool own_id;           /* id was made for this group alone, by this rank */
    char roll[40];         /* what this host's ranks of the job are called (meet/roll.c); "" where that is not known */
    int roll_fd;           /* with it: this rank's socket */
    /* What all ranks must agree on, compared at the rendezvous: a mismatch is refused there, naming rank and field. */
    int32_t ranks_per_node;
    uint64_t heap_bytes;
} boot_request;

/* Fills rank, size, id or meeting from the environment (order: expar run, torchrun, PMIx, Open MPI; none: size 1): of
   launchers inside each other the inner one counts, and torchrun hands on what srun's or mpirun's PMIx told it alone.
   timeout_ms says how long it may wait for rank 0 (PMIx). */
expar_status boot_request_from_env(boot_request *request);
void boot_request_end(boot_request *request);

/* Joins; collective. EXPAR_ERR_BOOTSTRAP says which ranks came and which did not. */
expar_status boot_join_sockets(const boot_request *request, boot **out);
/* All `size` ranks of one process. outs[r] belongs to rank r. */
expar_status boot_join_threads(int32_t size, int64_t timeout_ms, boot **outs);

#endif
