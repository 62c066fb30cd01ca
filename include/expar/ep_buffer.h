/* SPDX-License-Identifier: Apache-2.0 */
/* EP buffers: what dispatch and combine work in. */
#ifndef EXPAR_EP_BUFFER_H
#define EXPAR_EP_BUFFER_H

#include <expar/group.h>
#include <expar/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct expar_ep expar_ep; /* an EP buffer: queues and records in the symmetric heap */

/* Memory of the caller's for outputs that the pool has no room for, at least `bytes` long and aligned to `alignment` (a
   power of two, at most 128): asked for by the thread that makes a call, of a buffer on a GPU on that GPU, which is
   current then, for use on `stream` (the call's; NULL on the CPU, and of expar_ep_alloc). NULL: there is none; the call
   fails then on all ranks, with EXPAR_ERR_MEMORY here, as with memory that lies elsewhere or is not aligned
   (EXPAR_ERR_DEVICE, EXPAR_ERR_ALIGNMENT), which goes back at once. It may release outputs and handles; calls on
   buffers that it makes are EXPAR_ERR_BUSY. A call that is captured does not ask for any. */
typedef void *(*expar_ep_alloc_fn)(void *context, size_t bytes, size_t alignment, void *stream);
/* Gives such memory back, by any thread, when its output's last reference goes: also when buffer and group have gone.
   On a GPU by a thread of the library's, once this rank's calls have ended there that were made by then, the next one
   included: nothing on `stream`, which is the one that alloc was given and may be gone, uses it any more; where the
   context is lost it is given back all the same. It makes no call of the library's. */
typedef void (*expar_ep_free_fn)(void *context, void *data, size_t bytes, void *stream);

/* Any max_… may be 0: there is no limit, and nothing is reserved (across nodes: for 65536 experts, and more are
   EXPAR_ERR_LIMIT). Records and rings grow then with the forms of calls: the first call whose
   rows, scales, K or E are larger than those before it makes them larger, by all ranks together. It waits for this
   rank's calls on the buffer before it, also with async_finish, and what went wrong with the growing, or with another
   rank's arguments, it returns itself; on the CPU a call that returns at once (expar/ep.h) leaves that to the buffer's
   thread, and to its event. On a GPU pools grow with them for an output of num_worst_tokens rows, or of a handle's. On
   a GPU that is EXPAR_ERR_LIMIT in a capture, and where processes share memory by CUDA IPC. A limit that is given
   reserves what it needs when the buffer is created; a call beyond it is EXPAR_ERR_LIMIT. */
typedef struct expar_ep_config {
    /* set by EXPAR_EP_CONFIG_INIT */
    size_t struct_size;

    /* ---- what calls may be ---- */
    /* largest T of any rank */
    int64_t max_tokens;
    /* largest H · bytes of an element */
    int64_t max_row_bytes;
    /* largest K */
    int32_t max_topk;
    /* largest E, a multiple of N */
    int32_t max_experts;
    /* largest S: scales of 4 bytes a token; 0, with max_row_bytes: room for max_row_bytes / 64, rounded up */
    int32_t max_scales;

    /* ---- workers and rings ---- */
    /* C: 0 chooses. Channels share out a rank's tokens among workers */
    int32_t num_channels;
    /* rows in each queue ring, ≥ 1; 0: as many as fit 64 KiB, 4 to 64. Across nodes also rows in each ring over the
       network, 4 at least (without max_row_bytes: of 4 KiB); 0: 4 chunks of 128 KiB. Rows that are longer go in
       pieces */
    int32_t ring_slots;
    /* worker threads of this rank; 0: EXPAR_THREADS, else 1 when the host's ranks outnumber its cores, else cores /
       ranks of the host, and fewer for calls of few bytes. May differ between ranks */
    int32_t num_threads;
    /* CUDA: SMs for the kernels of a call that wait for other ranks, layout included; 0 chooses. Those beside them,
       rows to expert-major order and back, are as large as their work. Ranks that share a GPU must fit on it side by
       side. May differ between ranks */
    int32_t num_sms;

    /* ---- memory ---- */
    /* type 0 or EXPAR_CPU: the CPU. EXPAR_CUDA with an index: that GPU; then all tensors of all calls lie there. The
       type is the same on all ranks, the GPU need not be */
    expar_device device;
    /* memory for outputs that is taken now and kept as long as the buffer lives; more is taken as outputs need it
       (0: all of it). On a GPU 0 is, where max_tokens, max_row_bytes and max_topk are given, twice the largest
       output as its rows come, with handles and a combine's copies (docs/gpu.md), expert-major outputs not included;
       more comes when all ranks wait in a dispatch or route: for its counts, or with num_worst_tokens for this
       alone, but with async_finish never */
    int64_t pool_bytes;
    /* The most that outputs of this buffer may hold at a time of the memory that peers reach; 0: no limit but the
       machine's; else at least pool_bytes. What does not fit comes by the queue, to memory of alloc's. */
    int64_t pool_limit_bytes;
    /* With free; both NULL: private memory, which is kept from call to call, on a GPU the driver's stream-ordered
       allocator's. May differ between ranks. */
    expar_ep_alloc_fn alloc;
    expar_ep_free_fn free;
    /* of both; has to last until free has been called for all that alloc has given */
    void *alloc_context;

    /* ---- sizes alone ---- */
    /* For expar_ep_get_buffer_size: P, where the ranks are on several nodes; 0: they are on one. expar_ep_create
       knows it, and does not look here. */
    int32_t ranks_per_node;
} expar_ep_config;
#define EXPAR_EP_CONFIG_INIT EXPAR_STRUCT_INIT(expar_ep_config)

/* Bytes of symmetric heap that expar_ep_create takes on each of num_ranks ranks: records and rings, on a GPU also the
   pool. Outputs on the CPU lie in memory of each rank's own behind the heap, which peers map with it. Local, no group
   needed. Errors: EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT (also when a size overflows 64 bits). */
EXPAR_API expar_status expar_ep_get_buffer_size(const expar_ep_config *config, int32_t num_ranks, size_t *bytes);

/* Collective; every member of config but num_threads, num_sms and device.index must be the same on all ranks
   (EXPAR_ERR_MISMATCH). One thread of a rank makes and destroys the group's buffers at a time. *ep is set on success
   only; the group must outlive it. Errors: EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT (names the member and what is expected),
   EXPAR_ERR_UNSUPPORTED (ranks on several nodes, or that do not map each other's memory, with a buffer on GPUs; no
   CUDA, no compiler of kernels),
   EXPAR_ERR_MEMORY, EXPAR_ERR_SYSTEM, EXPAR_ERR_CUDA; on the other ranks then EXPAR_ERR_REMOTE; EXPAR_ERR_PEER,
   EXPAR_ERR_ABORTED. */
EXPAR_API expar_status expar_ep_create(expar_group *group, const expar_ep_config *config, expar_ep **ep);
/* Collective while the group is sound, whatever became of calls on the buffer, on this rank or others. Waits for
   calls in flight, and for the other ranks as collective calls do; who will not come is logged, and the group has
   failed, unless that rank has abandoned the buffer. Where the group has failed nobody is waited for. Outputs stay as
   they are until they are released, also when the group has gone; outputs and handles still have to be freed. NULL is
   allowed. EXPAR_ERR_BUSY: another thread is in a call on it. EXPAR_ERR_STATE: in a child of fork, which is no rank.
   EXPAR_ERR_INTERRUPTED: while calls were in flight. The buffer is as it was then. */
EXPAR_API expar_status expar_ep_destroy(expar_ep *ep);
/* Gives the buffer up on this rank alone, and waits for nobody: for finalisers, handlers of atexit, exceptions. Any
   thread, in any state. A call that another thread is in ends well, if all that it waits for has come, or with
   EXPAR_ERR_ABORTED, and so do calls with async_finish that it comes behind. Where no thread is in one, calls with
   async_finish come to their end by themselves, as do those that lie on streams; what they use is freed then. Outputs
   and handles stay good. What this rank has finished stays good on the others. On the CPU their next call on the buffer
   ends with EXPAR_ERR_PEER at once and says that this rank has abandoned it; on a GPU it does so as soon as they have
   asked, as does a call that this rank has broken off: seconds later at most. Their destroy of it, also one that they
   are in already, ends at once as well, and their log says who has gone. The group goes on. The buffer's place in the
   symmetric heap stays taken until the group ends. Once it is abandoned or destroyed, and for NULL, it has no effect,
   as long as fewer than 256 buffers have ended since; other calls on the buffer are EXPAR_ERR_STATE where that can be
   seen. In a child of fork it has no effect. Always EXPAR_OK. */
EXPAR_API expar_status expar_ep_abandon(expar_ep *ep);

/* Memory and calls of a buffer on this rank. */
typedef struct expar_ep_stats {
    /* set by EXPAR_EP_STATS_INIT */
    size_t struct_size;
    /* memory for outputs that peers reach, of all buffers of the group together */
    uint64_t reserved_bytes;
    /* the most that it has been. docs/internals/memory.md has the bound */
    uint64_t reserved_high_bytes;
    /* of it in outputs of this buffer that are alive */
    uint64_t used_bytes;
    /* the most that these have been at a time */
    uint64_t used_high_bytes;
    /* in outputs, records and rings of all buffers of the group */
    uint64_t group_used_bytes;
    /* times that records and rings were made larger for a call */
    uint64_t growths;
    /* dispatches and combines whose rows other ranks write here, or read here */
    uint64_t direct_calls;
    /* those whose rows come here, or go from here, by the queue */
    uint64_t queue_calls;
    /* blocks taken beside the pool: of alloc, or private memory */
    uint64_t other_blocks;
    /* of direct_calls: combines whose x other ranks read in the caller's own memory */
    uint64_t mapped_calls;
    /* of direct_calls: combines whose x was copied first, to where other ranks read it */
    uint64_t copied_calls;
} expar_ep_stats;
#define EXPAR_EP_STATS_INIT EXPAR_STRUCT_INIT(expar_ep_stats)
/* Any thread, also while a call is running; then numbers may be of different moments. EXPAR_ERR_NULL,
   EXPAR_ERR_ARGUMENT (struct_size). */
EXPAR_API expar_status expar_ep_get_stats(expar_ep *ep, expar_ep_stats *stats);
/* Gives memory that no output uses back to the system, beyond the pool_bytes of the group's buffers: that of all
   buffers of the group on this rank, and private memory of this one. Local; other ranks need not call it, and outputs
   stay as they are. The next outputs cost page faults. On a GPU, where other ranks map it, what is idle by then goes
   with the next dispatch or route of the group's buffers there in which all ranks wait for their counts: from behind
   the last output, and graph's, that is alive, in the pieces by which it came. By CUDA IPC nothing goes.
   EXPAR_ERR_NULL, EXPAR_ERR_BUSY (another thread is in a call on the buffer, or config.alloc calls). */
EXPAR_API expar_status expar_ep_trim(expar_ep *ep);

/* What went wrong in calls that nobody asked about: EXPAR_OK, or the first such failure, as the call would have
   returned it, with its text. Those are calls without an event that had returned before it was known how they end (in
   graphs, with num_worst_tokens, or once all ranks went on), and those with one that was destroyed before anybody had
   waited for it. Telling a failure makes room for the next one; of several between two queries the first is told, and
   those of calls without an event are logged, too. A buffer that cannot be used any more says so every time. Never
   waits: what is still under way is not known yet. Any thread, also while a call is running. */
EXPAR_API expar_status expar_ep_query(expar_ep *ep);

#ifdef __cplusplus
}
#endif
#endif
