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

/* Makes an id, and starts a thread of this process that serves it until the process ends or expar_unique_id_retire() is
   called. Several groups may be formed with the id, one after another. The socket is bound to the interface or address
   in EXPAR_BOOTSTRAP_INTERFACE (default: 127.0.0.1 only, which other hosts do not reach). Errors: EXPAR_ERR_NULL,
   EXPAR_ERR_SYSTEM. Any thread. */
EXPAR_API expar_status expar_unique_id_create(expar_unique_id *id);
/* Like expar_unique_id_create, but on the interface that the caller names ("eth0", or one of its addresses), whatever
   the environment says. With NULL or "" it does the same as expar_unique_id_create. EXPAR_ERR_ARGUMENT: there is no
   such interface, or it has no address. */
EXPAR_API expar_status expar_unique_id_create_on(const char *interface, expar_unique_id *id);
/* Stops serving an id that this process made. Groups that were formed with it continue. EXPAR_ERR_ARGUMENT: this
   process does not serve that id. EXPAR_ERR_NULL. Any thread. */
EXPAR_API expar_status expar_unique_id_retire(const expar_unique_id *id);
/* Writes the id as hexadecimal digits, for environment variables and files. The text has EXPAR_UNIQUE_ID_TEXT
   characters, the last of them 0. If id is NULL, text becomes "", which expar_unique_id_parse rejects. If text is NULL,
   nothing is written. In both cases expar_last_error names the argument that is NULL. Any thread. */
#define EXPAR_UNIQUE_ID_TEXT (2 * EXPAR_UNIQUE_ID_BYTES + 1)
EXPAR_API void expar_unique_id_format(const expar_unique_id *id, char text[EXPAR_UNIQUE_ID_TEXT]);
/* Reads an id from the text that expar_unique_id_format writes. EXPAR_ERR_ARGUMENT: the text is not of that form.
   EXPAR_ERR_NULL. Any thread. */
EXPAR_API expar_status expar_unique_id_parse(const char *text, expar_unique_id *id);

/* Says when the symmetric heap gets its memory. A dynamic heap gets it as allocations need it. A static heap gets all
   of it when the group is formed, so that no allocation lacks memory later. A static heap needs a size. */
typedef enum expar_heap_kind {
    EXPAR_HEAP_DEFAULT = 0, /* EXPAR_HEAP_KIND, else dynamic */
    EXPAR_HEAP_DYNAMIC = 1,
    EXPAR_HEAP_STATIC = 2
} expar_heap_kind;

/* The kind of pages that the heap of a process uses; each rank decides for itself. System: small pages, which the
   kernel may turn into huge ones. Huge: pages of 2 MiB that the administrator has reserved (vm.nr_hugepages). If too
   few of these are free at the start, the heap uses system pages, with a warning. If they run out later, the allocation
   fails with EXPAR_ERR_MEMORY. With huge pages, variables of the program cannot be shared. docs/reference/pgas.md, "The
   heap", has the details. */
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
    /* 0: the library finds this number out. Any other number must divide size; ranks are numbered node by node */
    int32_t ranks_per_node;

    /* how long a rank of the formed group may be silent; 0: EXPAR_TIMEOUT seconds, else 30 s. For a rank that answers
       the library waits longer: see late_limit_ms, and docs/internals/waiting.md */
    int64_t timeout_ms;
    /* how long to wait for a rank that answers but is late; 0: EXPAR_LATE_LIMIT seconds, else no limit */
    int64_t late_limit_ms;
    /* how long forming the group may take; 0: EXPAR_BOOTSTRAP_TIMEOUT seconds, else 30 s */
    int64_t bootstrap_timeout_ms;

    /* the largest size in bytes of a rank's dynamic symmetric heap, or the size of a static one; 0: EXPAR_HEAP_SIZE,
       else 16 GiB */
    size_t heap_bytes;
    expar_heap_kind heap_kind;
    expar_heap_pages heap_pages;
} expar_group_options;
#define EXPAR_GROUP_OPTIONS_INIT EXPAR_STRUCT_INIT(expar_group_options)

/* Joins a group. Collective: returns when all ranks have joined. If `options` is NULL, the environment has rank, size
   and meeting place. The library reads it in this order: EXPAR_RANK/EXPAR_SIZE/EXPAR_UNIQUE_ID (set by `expar run`),
   torchrun's RANK/WORLD_SIZE/MASTER_ADDR/MASTER_PORT, PMIx (mpirun, srun --mpi=pmix), Open MPI's
   OMPI_COMM_WORLD_RANK/…. Without any of them the group has one rank. *group is set on success only. Errors:
   EXPAR_ERR_ARGUMENT, EXPAR_ERR_RANGE, EXPAR_ERR_BOOTSTRAP (the text names the ranks that came and those that did not),
   EXPAR_ERR_AUTH, EXPAR_ERR_VERSION, EXPAR_ERR_MISMATCH, EXPAR_ERR_MEMORY, EXPAR_ERR_SYSTEM. */
EXPAR_API expar_status expar_group_create(const expar_group_options *options, expar_group **group);

/* Makes all `size` ranks of a group at once inside this process, without sockets. Each rank is for one thread: that
   thread uses and destroys groups[r], as a process would use its own group. In `options`, id and rank are ignored, and
   size must be 0 or equal to the argument `size`. Not collective: one thread calls it. The array `groups`, [size],
   belongs to the caller, and is written on success only. Errors: EXPAR_ERR_NULL, EXPAR_ERR_RANGE (size, 1 to 4096),
   EXPAR_ERR_ARGUMENT, EXPAR_ERR_UNSUPPORTED (a transport that this build lacks), EXPAR_ERR_MEMORY, EXPAR_ERR_SYSTEM. */
EXPAR_API expar_status expar_group_create_threads(int32_t size, const expar_group_options *options,
                                                  expar_group **groups);

/* Leaves the group and frees it. Collective unless the group has failed; after a failure each rank leaves by itself.
   The EP buffers of the group must be destroyed first. NULL is allowed. EXPAR_ERR_BUSY: the library has waited for the
   time-out, and another thread is still in a call on the group. EXPAR_ERR_STATE: EP buffers are alive, the group has
   been destroyed or abandoned, or the caller is a child of fork, which is no rank. After an error the group is
   unchanged. */
EXPAR_API expar_status expar_group_destroy(expar_group *group);

/* Ends every pending and later call of this rank on the group with EXPAR_ERR_ABORTED. The other ranks see this rank as
   gone (EXPAR_ERR_PEER) when it destroys the group. Any thread, also while another one waits. EXPAR_ERR_NULL,
   EXPAR_ERR_STATE (the group has been destroyed or abandoned). */
EXPAR_API expar_status expar_group_abort(expar_group *group);

/* Leaves the group on this rank alone, and waits for no other rank. It is for finalisers, handlers of atexit, and
   exceptions. Any thread may call it, in any state, with live EP buffers, and while other threads are in calls. Calls
   of those threads end normally if everything that they wait for has come, else with EXPAR_ERR_ABORTED.

   The other ranks see within a second that this one has gone. Results of calls that have ended there stay valid; calls
   in progress and later ones end with EXPAR_ERR_PEER, with two exceptions. On the CPU a call in progress on a buffer
   ends normally if this rank has done its part. It has done so if its own call has ended, or, in low-latency mode, has
   sent. Any other call in progress ends normally only if everything that it waits for comes before its rank sees that
   this one has gone.

   After this call pointers into the symmetric heap are invalid; tensors of outputs stay valid. Buffers of the group
   must still be destroyed or abandoned, before or after this call. Memory that calls of other threads use is freed when
   these calls have ended. Calls that do not wait (puts, gets, atomics) must not run at the same time as this call.

   The call has no effect with NULL, or on a group that has been abandoned or destroyed. The library recognises such a
   group until 256 more groups have ended. Other calls on it return EXPAR_ERR_STATE if the library recognises it. In a
   child of fork this call closes the child's copies of the control sockets, and does nothing else. Always returns
   EXPAR_OK. */
EXPAR_API expar_status expar_group_abandon(expar_group *group);

/* Each returns a fact about the group. With NULL, expar_group_rank returns -1 and the others return 0. Any thread. */
EXPAR_API int32_t expar_group_rank(const expar_group *group);
EXPAR_API int32_t expar_group_size(const expar_group *group);
EXPAR_API int32_t expar_group_num_nodes(const expar_group *group);
EXPAR_API int32_t expar_group_ranks_per_node(const expar_group *group);
EXPAR_API int32_t expar_group_node(const expar_group *group);
EXPAR_API int32_t expar_group_local_rank(const expar_group *group);

/* Helpers for set-up, which send small host data over the control sockets; they are too slow for a hot path.
   Collective. allgather: every rank gives `bytes` bytes at `mine`. `all` gets size·bytes bytes, ordered by rank; `mine`
   may lie inside `all`. broadcast: copies root's `data` to `data` of all ranks. barrier: returns when all ranks have
   called it. `bytes` must be the same on all ranks and ≤ EXPAR_CONTROL_MAX_BYTES; with 0 the pointers may be NULL. One
   thread of a rank at a time. Errors: EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT (bytes), EXPAR_ERR_RANGE (root),
   EXPAR_ERR_MISMATCH, EXPAR_ERR_PEER, EXPAR_ERR_ABORTED. */
#define EXPAR_CONTROL_MAX_BYTES (1 << 20)
EXPAR_API expar_status expar_group_allgather(expar_group *group, const void *mine, void *all, size_t bytes);
EXPAR_API expar_status expar_group_broadcast(expar_group *group, void *data, size_t bytes, int32_t root);
EXPAR_API expar_status expar_group_barrier(expar_group *group);

#ifdef __cplusplus
}
#endif
#endif
