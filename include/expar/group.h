/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: the ranks of one job, how they find each other, and how they end. */
#ifndef EXPAR_GROUP_H
#define EXPAR_GROUP_H

#include <expar/status.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One rank's membership in a group. Unless a call says otherwise any thread may use it, one at a time for collective
   calls, and none while it is being destroyed. */
typedef struct expar_group expar_group;

/* Where a group meets: the address of a listening socket and a 128-bit secret. Plain bytes, to be shipped
   to the other ranks by any means that strangers cannot read. */
#define EXPAR_UNIQUE_ID_BYTES 128
typedef struct expar_unique_id {
    unsigned char bytes[EXPAR_UNIQUE_ID_BYTES];
} expar_unique_id;

/* Makes an id and starts serving it from a thread of this process, until the process ends or
   expar_unique_id_retire() is called. Groups may be formed with it one after another. The socket is bound to
   the interface or address in EXPAR_BOOTSTRAP_INTERFACE (default: 127.0.0.1 only, which other hosts do not reach).
   Errors: EXPAR_ERR_NULL, EXPAR_ERR_SYSTEM. Any thread. */
EXPAR_API expar_status expar_unique_id_create(expar_unique_id *id);
/* The same on an interface that the caller names ("eth0", or one of its addresses), whatever the environment says. NULL
   or "": as expar_unique_id_create. EXPAR_ERR_ARGUMENT: there is no such interface, or it has no address. */
EXPAR_API expar_status expar_unique_id_create_on(const char *interface, expar_unique_id *id);
/* Stops serving an id that this process made; EXPAR_ERR_ARGUMENT for any other, EXPAR_ERR_NULL. Groups that stand go
   on. Any thread. */
EXPAR_API expar_status expar_unique_id_retire(const expar_unique_id *id);
/* As hexadecimal digits, for environment variables and files: writes 2·EXPAR_UNIQUE_ID_BYTES + 1 characters, the last
   of them 0. id NULL: text becomes "", which expar_unique_id_parse refuses; text NULL: nothing is written. Either way
   expar_last_error says so. Any thread. */
#define EXPAR_UNIQUE_ID_TEXT (2 * EXPAR_UNIQUE_ID_BYTES + 1)
EXPAR_API void expar_unique_id_format(const expar_unique_id *id, char text[EXPAR_UNIQUE_ID_TEXT]);
/* Reads that form back. EXPAR_ERR_ARGUMENT when it is not one, EXPAR_ERR_NULL. Any thread. */
EXPAR_API expar_status expar_unique_id_parse(const char *text, expar_unique_id *id);

/* How the symmetric heap gets its memory. Dynamic: as allocations need it. Static: all when the group is formed, so
   that none is missing later; it needs a size. */
typedef enum expar_heap_kind {
    EXPAR_HEAP_DEFAULT = 0, /* EXPAR_HEAP_KIND, else dynamic */
    EXPAR_HEAP_DYNAMIC = 1,
    EXPAR_HEAP_STATIC = 2
} expar_heap_kind;

/* What pages the heap of a process consists of; each rank by itself. System: small ones, which the kernel may make huge
   by itself. Huge: those of 2 MiB that the administrator has set aside (vm.nr_hugepages), where enough are free for the
   start, else system, with a warning. An allocation for which they run out later fails with EXPAR_ERR_MEMORY, and
   variables of the program cannot be shared. docs/pgas.md, "The heap". */
typedef enum expar_heap_pages {
    EXPAR_HEAP_PAGES_DEFAULT = 0, /* EXPAR_HEAP_PAGES, else system */
    EXPAR_HEAP_PAGES_SYSTEM = 1,
    EXPAR_HEAP_PAGES_HUGE = 2
} expar_heap_pages;

typedef struct expar_group_options {
    /* set by EXPAR_GROUP_OPTIONS_INIT */
    size_t struct_size;

    /* NULL: rank, size and meeting place come from the environment */
    const expar_unique_id *id;
    /* with id: 0 … size-1 */
    int32_t rank;
    /* with id: ≥ 1 */
    int32_t size;
    /* 0: found out. Else it must divide size; ranks are numbered node by node */
    int32_t ranks_per_node;

    /* 0: EXPAR_TIMEOUT seconds, else 30 s. How long a rank may be silent, once formed. One that answers is waited
       for, however late it is: docs/internals/waiting.md */
    int64_t timeout_ms;
    /* 0: EXPAR_LATE_LIMIT seconds, else none. How long a rank that answers is waited for */
    int64_t late_limit_ms;
    /* 0: EXPAR_BOOTSTRAP_TIMEOUT seconds, else 30 s. For forming the group */
    int64_t bootstrap_timeout_ms;

    /* 0: EXPAR_HEAP_SIZE, else 16 GiB. The most that the symmetric heap of a rank may grow to; of a static one, what
       it has */
    size_t heap_bytes;
    expar_heap_kind heap_kind;
    expar_heap_pages heap_pages;
} expar_group_options;
#define EXPAR_GROUP_OPTIONS_INIT EXPAR_STRUCT_INIT(expar_group_options)

/* Joins a group; collective: returns when all ranks have. `options` may be NULL (environment). The environment
   is read in this order: EXPAR_RANK/EXPAR_SIZE/EXPAR_UNIQUE_ID (set by `expar run`), torchrun's RANK/WORLD_SIZE/
   MASTER_ADDR/MASTER_PORT, PMIx (mpirun, srun --mpi=pmix), Open MPI's OMPI_COMM_WORLD_RANK/…; with none of them a group
   of one rank is made. *group is set on success only. Errors: EXPAR_ERR_ARGUMENT, EXPAR_ERR_RANGE, EXPAR_ERR_BOOTSTRAP
   (who came, who did not), EXPAR_ERR_AUTH, EXPAR_ERR_VERSION, EXPAR_ERR_MISMATCH, EXPAR_ERR_MEMORY, EXPAR_ERR_SYSTEM.
 */
EXPAR_API expar_status expar_group_create(const expar_group_options *options, expar_group **group);

/* Makes all `size` ranks of a group at once inside this process, one for each thread that will use it; no
   sockets. groups[r] is rank r; each is used and destroyed by one thread, as a process would use its own.
   In `options` id and rank are ignored, and size must be 0 or `size`. Not collective: one thread calls it. groups is
   the caller's, [size], and written on success only. Errors: EXPAR_ERR_NULL, EXPAR_ERR_RANGE (size, 1 to 4096),
   EXPAR_ERR_ARGUMENT, EXPAR_ERR_UNSUPPORTED (a transport that this build has not), EXPAR_ERR_MEMORY,
   EXPAR_ERR_SYSTEM. */
EXPAR_API expar_status expar_group_create_threads(int32_t size, const expar_group_options *options,
                                                  expar_group **groups);

/* Leaves and frees. Collective while the group is sound; once it has failed each rank goes by itself. EP buffers of
   the group must be destroyed before (EXPAR_ERR_STATE). NULL is allowed. EXPAR_ERR_BUSY: another thread is in a call on
   it, which is waited for for the time-out. EXPAR_ERR_STATE also for a group that has been destroyed or abandoned, and
   in a child of fork, which is no rank: nothing happens then. */
EXPAR_API expar_status expar_group_destroy(expar_group *group);

/* Ends every pending and later call of this rank on the group with EXPAR_ERR_ABORTED; the other ranks see this
   rank as gone (EXPAR_ERR_PEER) when it destroys the group. Any thread, also while another one waits.
   EXPAR_ERR_NULL. */
EXPAR_API expar_status expar_group_abort(expar_group *group);

/* Leaves without the others and waits for nobody: for finalisers, handlers of atexit, exceptions. Any thread, in any
   state, with EP buffers alive, while other threads are in calls: these end well, if all that they wait for has come,
   or with EXPAR_ERR_ABORTED. The other ranks see this one as gone within a second: calls that have ended there stay
   good, and those that they are in, or call later, end with EXPAR_ERR_PEER. On the CPU a call on a buffer that they are
   in goes on, and ends well, where this rank's part in it is done: its own call has ended, or in low-latency mode has
   sent; any other call that they are in ends so even then, if what it waits for has not come from all others by then.
   Pointers into the symmetric heap are invalid from then on; tensors of outputs are not. Buffers of the group are still
   to be destroyed or abandoned, before or after. What other threads are in a call on is freed when they are out; calls
   that do not wait (puts, gets, atomics) must not run beside it. Once it is abandoned or destroyed, and for NULL, it
   has no effect, as long as fewer than 256 groups have ended since; other calls on the group are EXPAR_ERR_STATE where
   that can be seen. In a child of fork the child's copies of the control sockets are closed, and nothing else happens.
   Always EXPAR_OK. */
EXPAR_API expar_status expar_group_abandon(expar_group *group);

/* Facts of a group; 0 (rank: -1) for NULL. Any thread. */
EXPAR_API int32_t expar_group_rank(const expar_group *group);
EXPAR_API int32_t expar_group_size(const expar_group *group);
EXPAR_API int32_t expar_group_num_nodes(const expar_group *group);
EXPAR_API int32_t expar_group_ranks_per_node(const expar_group *group);
EXPAR_API int32_t expar_group_node(const expar_group *group);
EXPAR_API int32_t expar_group_local_rank(const expar_group *group);

/* Set-up helpers over the control sockets, for small host data; not for a hot path. Collective.
   allgather: every rank gives `bytes` bytes at mine; `all` has size·bytes, by rank. mine may lie inside all.
   broadcast: root's `data` to everybody's. bytes must be the same on all ranks and ≤ EXPAR_CONTROL_MAX_BYTES; with 0
   the pointers may be NULL. One thread of a rank at a time. Errors: EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT (bytes),
   EXPAR_ERR_RANGE (root), EXPAR_ERR_MISMATCH, EXPAR_ERR_PEER, EXPAR_ERR_ABORTED. */
#define EXPAR_CONTROL_MAX_BYTES (1 << 20)
EXPAR_API expar_status expar_group_allgather(expar_group *group, const void *mine, void *all, size_t bytes);
EXPAR_API expar_status expar_group_broadcast(expar_group *group, void *data, size_t bytes, int32_t root);
EXPAR_API expar_status expar_group_barrier(expar_group *group);

#ifdef __cplusplus
}
#endif
#endif
