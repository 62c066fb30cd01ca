/* SPDX-License-Identifier: Apache-2.0 */
/* boot: how the ranks of a group find each other, talk during set-up, and notice that one is gone.
 *
 * Called by group, which opens one, by shmem and by the transports; calls base only. Two implementations of one table
 * of operations: sockets (processes: rendezvous, then a mesh of control sockets between all pairs) and threads (ranks
 * of one process: a shared block). Set-up data only: nothing here is on a hot path.
 *
 *   launch/    what a launcher has told this process       agree.c    agreement, by the operations of either
 *   meet/      processes come together                      notes.c    what a rank waits for, for peers who ask
 *   sockets/   their boot, once they have                   place.c, devices.c   where a rank is
 *   wire/      bytes between two of them                    ranks.c    sets of ranks as text
 *   join.c     the way of processes through these           threads.c  the boot of threads
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
    uint64_t host; /* hash of boot id, network namespace and pid namespace */
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

/* What a rank waits for, by subject: a number that the caller gives to each kind of wait, the same on all ranks. A rank
   notes it for itself; peers may ask. */
#define BOOT_SUBJECTS 72
typedef enum boot_doing {
    BOOT_IDLE,   /* waits for nobody there */
    BOOT_WAITS,  /* for a rank */
    BOOT_GAVE_UP /* a rank: it does not wait any more */
} boot_doing;

/* What a rank is asked and says. */
typedef struct boot_answer {
    bool asked; /* set by who asks */
    bool came;  /* else it was silent */
    boot_doing doing;
    int32_t rank;   /* that it is about, or -1 */
    int32_t blamed; /* the first rank that it gave up, whatever the subject; -1: none */
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
    /* Starts watching for peers that die or leave. `gone` is called at most once a peer. */
    expar_status (*watch)(boot *self, boot_gone_fn gone, void *context);
    /* Asks other ranks what they wait for in the subject: those with answers[r].asked of [size]. Their monitors answer
       whatever else they do. Returns when all have, or after wait_ns. Needs `watch` before. Any thread. */
    void (*ask)(boot *self, int32_t subject, boot_answer *answers, int64_t wait_ns);
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
    int64_t timeout_ms; /* for each collective operation here */
    boot_place *places; /* [size] */
    boot_notes *notes;
    bool threads;   /* ranks are threads of one process */
    bool timed_out; /* a collective has failed because somebody did not come; only the owner's thread */
    /* Threads in collectives here: by themselves, read by whoever frees what they use (release, acquire). */
    _Atomic int32_t inside;
    /* The address at which ranks of other hosts find this one: that by which it reached the place where they met. ""
       where they met without a network. */
    char ip[BOOT_IP_TEXT];
};

/* Ranks on the host of a rank, that one included. */
int32_t boot_host_ranks(const boot *self, int32_t rank);
/* The address at which other hosts find an interface of this one; false: no such interface, or no such address. */
bool boot_interface_ip(const char *name, char text[BOOT_IP_TEXT]);

/* Notes that this rank waits for another, or has given it up, or (rank -1) neither. For boot_ops.ask. */
void boot_note(boot *self, int32_t subject, boot_doing doing, int32_t rank);
/* Notes the first rank that this one gave up; later ones do not count. Any thread. */
void boot_note_blamed(boot *self, int32_t rank);

/* ---- agreement (agree.c) ----------------------------------------------------------------------------------------- */

#define BOOT_REASON_TEXT 232 /* bytes of a reason that others are told, its end included; longer ones are cut */
#define BOOT_FIELD_TEXT  64  /* likewise of a field's text */
#define BOOT_UNKNOWN     UINT64_MAX

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
    bool own_id;   /* id was made for this group alone, by this rank */
    char roll[40]; /* what this host's ranks of the job are called (meet/roll.c); "" where that is not known */
    int roll_fd;   /* with it: this rank's socket */
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
