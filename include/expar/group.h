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

/* One rank's membership in a group. Unless a call says otherwise, any thread may use it. Only one thread at a time may
   be in a collective call, and no thread may use it while it is being destroyed. */
typedef struct expar_group expar_group;

/* The meeting place of a group: the address of a listening socket and a 128-bit secret. These are plain bytes. Send
   them to the other ranks by any means that strangers cannot read. */
#define EXPAR_UNIQUE_ID_BYTES 128
typedef struct expar_unique_id {
    unsigned char bytes[EXPAR_UNIQUE_ID_BYTES];
} expar_unique_id;

/* Makes an id and starts serving it from a thread of this process, until the process ends or
   expar_unique_id_retire() is called. Groups may be formed with it one after another. The socket is bound to
   the interface or address in EXPAR_BOOTSTRAP_INTERFACE (default: 127.0.0.1 only, which other hosts do not reach).
   Errors: EXPAR_ERR_NULL, EXPAR_ERR_SYSTEM. Any thread. */
EXPAR_API expar_status expar_unique_id_create(expar_unique_id *id);
/* Like expar_unique_id_create, on an interface that the caller names ("eth0", or one of its addresses), whatever the
   environment says. NULL or "": as expar_unique_id_create. EXPAR_ERR_ARGUMENT: there is no such interface, or it has no
   address. */
EXPAR_API expar_status expar_unique_id_create_on(const char *interface, expar_unique_id *id);
/* Stops serving an id that this process made. Groups that were formed with it continue. EXPAR_ERR_ARGUMENT: another id.
   EXPAR_ERR_NULL. Any thread. */
EXPAR_API expar_status expar_unique_id_retire(const expar_unique_id *id);
/* Writes the id as hexadecimal digits, for environment variables and files. The text has EXPAR_UNIQUE_ID_TEXT
   characters, the last of them 0. id NULL: text becomes "", which expar_unique_id_parse rejects. text NULL: nothing is
   written. In both cases expar_last_error says so. Any thread. */
#define EXPAR_UNIQUE_ID_TEXT (2 * EXPAR_UNIQUE_ID_BYTES + 1)
EXPAR_API void expar_unique_id_format(const expar_unique_id *id, char text[EXPAR_UNIQUE_ID_TEXT]);
/* Reads an id from the text that expar_unique_id_format writes. EXPAR_ERR_ARGUMENT: the text is not of that form.
   EXPAR_ERR_NULL. Any thread. */
EXPAR_API expar_status expar_unique_id_parse(const char *text, expar_unique_id *id);

/* The way in which the symmetric heap gets its memory. A dynamic heap gets it as allocations need it. A static heap
   gets all of it when the group is formed, so that no allocation lacks memory later. A static heap needs a size. */
typedef enum expar_heap_kind {
    EXPAR_HEAP_DEFAULT = 0, /* EXPAR_HEAP_KIND, else dynamic */
    EXPAR_HEAP_DYNAMIC = 1,
    EXPAR_HEAP_STATIC = 2
} expar_heap_kind;

/* The kind of pages that the heap of a process uses; each rank decides for itself. System: small pages, which the
   kernel may turn into huge ones. Huge: pages of 2 MiB that the administrator has reserved (vm.nr_hugepages). If too
   few are free at the start, the heap uses system pages, with a warning. An allocation for which they run out later
   fails with EXPAR_ERR_MEMORY, and variables of the program cannot be shared. docs/pgas.md, "The heap", has the
   details. */
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
    /* 0: the library finds it out. Else it must divide size; ranks are numbered node by node */
    int32_t ranks_per_node;

    /* how long a rank of the formed group may be silent; 0: EXPAR_TIMEOUT seconds, else 30 s. The library waits for a
       rank that answers, however late it is: docs/internals/waiting.md */
    int64_t timeout_ms;
    /* how long to wait for a rank that answers; 0: EXPAR_LATE_LIMIT seconds, else no limit */
    int64_t late_limit_ms;
    /* how long forming the group may take; 0: EXPAR_BOOTSTRAP_TIMEOUT seconds, else 30 s */
    int64_t bootstrap_timeout_ms;

    /* the most bytes that the symmetric heap of a rank may grow to, or the size of a static one; 0: EXPAR_HEAP_SIZE,
       else 16 GiB */
    size_t heap_bytes;
    expar_heap_kind heap_kind;
    expar_heap_pages heap_pages;
} expar_group_options;
#define EXPAR_GROUP_OPTIONS_INIT EXPAR_STRUCT_INIT(expar_group_options)

/* Joins a group. Collective: returns when all ranks have joined. `options` may be NULL (environment). The environment
   is read in this order: EXPAR_RANK/EXPAR_SIZE/EXPAR_UNIQUE_ID (set by `expar run`), torchrun's RANK/WORLD_SIZE/
   MASTER_ADDR/MASTER_PORT, PMIx (mpirun, srun --mpi=pmix), Open MPI's OMPI_COMM_WORLD_RANK/…. Without any of them a
   group of one rank is made. *group is set on success only. Errors: EXPAR_ERR_ARGUMENT, EXPAR_ERR_RANGE,
   EXPAR_ERR_BOOTSTRAP (which ranks came, which did not), EXPAR_ERR_AUTH, EXPAR_ERR_VERSION, EXPAR_ERR_MISMATCH,
   EXPAR_ERR_MEMORY, EXPAR_ERR_SYSTEM. */
EXPAR_API expar_status expar_group_create(const expar_group_options *options, expar_group **group);

/* Makes all `size` ranks of a group at once inside this process, one for each thread that will use it; no sockets. The
   rank groups[r] is used and destroyed by one thread, as a process would use its own. In `options` id and rank are
   ignored, and size must be 0 or `size`. Not collective: one thread calls it. The array `groups`, [size], belongs to
   the caller, and is written on success only. Errors: EXPAR_ERR_NULL, EXPAR_ERR_RANGE (size, 1 to 4096),
   EXPAR_ERR_ARGUMENT, EXPAR_ERR_UNSUPPORTED (a transport that this build lacks), EXPAR_ERR_MEMORY, EXPAR_ERR_SYSTEM. */
EXPAR_API expar_status expar_group_create_threads(int32_t size, const expar_group_options *options,
                                                  expar_group **groups);

/* Leaves the group and frees it. Collective unless the group has failed; after a failure each rank leaves by itself. EP
   buffers of the group must be destroyed before (EXPAR_ERR_STATE). NULL is allowed. EXPAR_ERR_BUSY: another thread is
   still in a call on it after the library has waited for the time-out. EXPAR_ERR_STATE also for a group that has been
   destroyed or abandoned, and in a child of fork, which is no rank; nothing happens then. */
EXPAR_API expar_status expar_group_destroy(expar_group *group);

/* Ends every pending and later call of this rank on the group with EXPAR_ERR_ABORTED; the other ranks see this
   rank as gone (EXPAR_ERR_PEER) when it destroys the group. Any thread, also while another one waits.
   EXPAR_ERR_NULL. */
EXPAR_API expar_status expar_group_abort(expar_group *group);

/* Leaves without the other ranks and waits for none: for finalisers, handlers of atexit, exceptions. Any thread, in any
   state, with live EP buffers, and while other threads are in calls. These calls end normally if everything that they
   wait for has come, else with EXPAR_ERR_ABORTED.

   The other ranks see within a second that this one has gone. Calls that have ended there stay valid; calls in progress
   and later ones end with EXPAR_ERR_PEER. On the CPU a call in progress on a buffer ends normally if this rank has done
   its part. That is so if its own call has ended, or in low-latency mode has sent. Any other call in progress on a rank
   ends normally only if everything that it waits for has come before that rank sees that this one has gone.

   Pointers into the symmetric heap are invalid from then on; tensors of outputs are not. Buffers of the group still
   have to be destroyed or abandoned, before or after. Memory that calls of other threads use is freed when these calls
   have ended. Calls that do not wait (puts, gets, atomics) must not run at the same time.

   The call has no effect with NULL, or on a group that has been abandoned or destroyed; the library knows this while
   fewer than 256 groups have ended since. Other calls on such a group return EXPAR_ERR_STATE where the library detects
   it. In a child of fork the child's copies of the control sockets are closed, and nothing else happens. Always
   EXPAR_OK. */
EXPAR_API expar_status expar_group_abandon(expar_group *group);

/* Facts of a group; 0 (rank: -1) for NULL. Any thread. */
EXPAR_API int32_t expar_group_rank(const expar_group *group);
EXPAR_API int32_t expar_group_size(const expar_group *group);
EXPAR_API int32_t expar_group_num_nodes(const expar_group *group);
EXPAR_API int32_t expar_group_ranks_per_node(const expar_group *group);
EXPAR_API int32_t expar_group_node(const expar_group *group);
EXPAR_API int32_t expar_group_local_rank(const expar_group *group);

/* Set-up helpers over the control sockets, for small host data; not for a hot path. Collective. allgather: every rank
   gives `bytes` bytes at `mine`. `all` has size·bytes, by rank; mine may be inside it. broadcast: copies root's `data`
   to that of all ranks. `bytes` must be the same on all ranks and ≤ EXPAR_CONTROL_MAX_BYTES; with 0 the pointers may be
   NULL. One thread of a rank at a time. Errors: EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT (bytes), EXPAR_ERR_RANGE (root),
   EXPAR_ERR_MISMATCH, EXPAR_ERR_PEER, EXPAR_ERR_ABORTED. */
#define EXPAR_CONTROL_MAX_BYTES (1 << 20)
EXPAR_API expar_status expar_group_allgather(expar_group *group, const void *mine, void *all, size_t bytes);
EXPAR_API expar_status expar_group_broadcast(expar_group *group, void *data, size_t bytes, int32_t root);
EXPAR_API expar_status expar_group_barrier(expar_group *group);

#ifdef __cplusplus
}
#endif
#endif
