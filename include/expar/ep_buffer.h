/* SPDX-License-Identifier: Apache-2.0 */
/* EP buffers: the memory in which dispatch and combine work. */
#ifndef EXPAR_EP_BUFFER_H
#define EXPAR_EP_BUFFER_H

#include <expar/group.h>
#include <expar/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An EP buffer: queues and records in the symmetric heap. */
typedef struct expar_ep expar_ep;

/* Allocates memory of the caller for outputs that do not fit into the pool: at least `bytes` long and aligned to
   `alignment` (a power of two, at most 128). The thread that makes a call asks for it. For a buffer on a GPU the memory
   is on that GPU, which is then current. It is used on `stream`: the call's stream, or NULL on the CPU and for
   expar_ep_alloc. NULL says that there is none: the call then fails on all ranks, here with EXPAR_ERR_MEMORY. Memory
   that lies elsewhere or is not aligned also fails the call (EXPAR_ERR_DEVICE, EXPAR_ERR_ALIGNMENT) and is freed at
   once. The function leaves the current device as it finds it. It may release outputs and handles; its calls on buffers
   are EXPAR_ERR_BUSY. A captured call does not ask for memory. */
typedef void *(*expar_ep_alloc_fn)(void *context, size_t bytes, size_t alignment, void *stream);
/* Frees such memory, on any thread, when the last reference of its output is dropped: also after buffer and group have
   gone. On a GPU a thread of the library calls it, after all calls that this rank made there by then have ended, and
   the next one, too. Nothing on `stream` uses the memory any more; that is the stream that alloc was given, and it may
   be gone. If the context is lost, the memory is freed all the same. The function makes no call of the library. */
typedef void (*expar_ep_free_fn)(void *context, void *data, size_t bytes, void *stream);

/* Any max_… may be 0: there is no limit, and nothing is reserved. (Across nodes 65536 experts are reserved, and more
   are EXPAR_ERR_LIMIT.) Records and rings then grow with the forms of calls. The first call whose rows, scales, K or E
   are larger than before enlarges them, on all ranks together. It waits for this rank's earlier calls on the buffer,
   also with async_finish. It returns errors of the growth, and of another rank's arguments, itself. On the CPU a call
   that returns at once (expar/ep.h) leaves this to the buffer's thread and reports by its event. On a GPU pools grow as
   well, for an output of num_worst_tokens rows or of a handle's rows. On a GPU growth is EXPAR_ERR_LIMIT in a capture,
   and if processes share memory by CUDA IPC. A limit that is given reserves its memory when the buffer is created; a
   call beyond it is EXPAR_ERR_LIMIT. */
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
    /* largest S: scales of 4 bytes in a token. 0, with max_row_bytes: space for max_row_bytes / 64, rounded up */
    int32_t max_scales;

    /* ---- workers and rings ---- */
    /* C; 0: the library chooses. Channels divide a rank's tokens among workers */
    int32_t num_channels;
    /* rows in each queue ring, ≥ 1; 0: as many as fit 64 KiB, 4 to 64. Across nodes also rows in each ring over the
       network, at least 4 (without max_row_bytes: of 4 KiB); 0: 4 chunks of 128 KiB. Longer rows go in pieces */
    int32_t ring_slots;
    /* worker threads of this rank; 0: EXPAR_THREADS. Without that variable: 1 when the host's ranks outnumber its
       cores, else cores / ranks of the host, and fewer for calls of few bytes. May differ between ranks */
    int32_t num_threads;
    /* CUDA: SMs for the kernels of a call that wait for other ranks, layout included; 0: the library chooses. The
       kernels that move rows to expert-major order and back are as large as their work. Kernels of ranks that share a
       GPU must fit on it side by side. May differ between ranks */
    int32_t num_sms;

    /* ---- memory ---- */
    /* type 0 or EXPAR_CPU: the CPU. EXPAR_CUDA with an index: that GPU; all tensors of all calls are then on it. The
       type is the same on all ranks, the index may differ */
    expar_device device;
    /* bytes for outputs that are taken at once and kept as long as the buffer lives. More is taken when outputs need
       it. On the CPU, 0 takes nothing at once. On a GPU with max_tokens, max_row_bytes and max_topk, 0 is twice the
       largest output in the order of rows, with handles and a combine's copies (docs/reference/gpu.md). Expert-major
       outputs are not included. More is taken when all ranks wait in a dispatch or route: for its counts, or with
       num_worst_tokens for this alone; never with async_finish */
    int64_t pool_bytes;
    /* the most bytes of memory that peers reach which outputs of this buffer may hold at a time; 0: no limit but the
       machine's; else at least pool_bytes. Other outputs come by the queue, into memory from alloc */
    int64_t pool_limit_bytes;
    /* to be given with free. Both NULL: private memory, which is kept from call to call; on a GPU that of the driver's
       stream-ordered allocator. May differ between ranks */
    expar_ep_alloc_fn alloc;
    expar_ep_free_fn free;
    /* the context of both functions; must last until free has been called for all memory from alloc */
    void *alloc_context;

    /* ---- sizes alone ---- */
    /* For expar_ep_get_buffer_size: P if the ranks are on several nodes; 0: they are on one. expar_ep_create knows it
       and ignores this member. */
    int32_t ranks_per_node;
} expar_ep_config;
#define EXPAR_EP_CONFIG_INIT EXPAR_STRUCT_INIT(expar_ep_config)

/* Computes the bytes of symmetric heap that expar_ep_create takes on each of num_ranks ranks: records and rings, on a
   GPU of one node also the pool. On the CPU outputs are in memory of each rank after the heap, which peers map with the
   heap. Local; needs no group. Errors: EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT (also when a size overflows 64 bits). */
EXPAR_API expar_status expar_ep_get_buffer_size(const expar_ep_config *config, int32_t num_ranks, size_t *bytes);

/* Creates a buffer. Collective. Every member of config except num_threads, num_sms and device.index must be the same on
   all ranks (EXPAR_ERR_MISMATCH). Only one thread of a rank at a time may create or destroy the group's buffers. *ep is
   set on success only. The group must outlive it. Errors: EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT (names the member and what
   is expected), EXPAR_ERR_MEMORY, EXPAR_ERR_SYSTEM, EXPAR_ERR_CUDA. EXPAR_ERR_UNSUPPORTED: no CUDA, no compiler of
   kernels; or ranks do not map each other's memory, and no transport reaches one, or a GPU's driver has no virtual
   memory management. After such an error the other ranks return EXPAR_ERR_REMOTE. Also EXPAR_ERR_PEER,
   EXPAR_ERR_ABORTED.
   If ranks on GPUs do not all map each other's memory, the host carries calls out, also those of graphs. A kernel on
   the call's stream copies rows. Threads of a process that share a GPU, and ranks that can compile no kernel, have no
   such kernel. There a call waits for its stream, and has ended when it returns, also with async_finish. While the
   stream is being captured it is EXPAR_ERR_UNSUPPORTED. */
EXPAR_API expar_status expar_ep_create(expar_group *group, const expar_ep_config *config, expar_ep **ep);
/* Destroys the buffer. Collective unless the group has failed, whatever became of calls on the buffer, on this rank or
   others. Waits for calls in flight, and for the other ranks as collective calls do. A rank that does not come is
   logged, and the group has failed, unless that rank has abandoned the buffer. If the group has failed, no rank is
   waited for. Outputs stay as they are until they are released, also after the group has gone. Outputs and handles
   still have to be released. NULL is allowed. EXPAR_ERR_BUSY: another thread is in a call on it. EXPAR_ERR_STATE: in a
   child of fork, which is no rank. EXPAR_ERR_INTERRUPTED: while calls were in flight. After an error the buffer is
   unchanged. */
EXPAR_API expar_status expar_ep_destroy(expar_ep *ep);
/* Gives the buffer up on this rank alone, and waits for no rank: for finalisers, handlers of atexit, exceptions. Any
   thread, in any state.

   A call that another thread is in ends normally if everything that it waits for has come, else with EXPAR_ERR_ABORTED.
   So do the calls with async_finish that it waits for. If no thread is in a call, calls with async_finish end by
   themselves, and so do calls on streams; what they use is then freed. Outputs and handles stay valid.

   On the other ranks, what this rank has finished stays valid. On the CPU their next call on the buffer ends at once
   with EXPAR_ERR_PEER, and its text says that this rank has abandoned the buffer. On a GPU it does so as soon as they
   have asked, and so does a call that this rank has aborted: seconds later at most. Their destroy of the buffer, even
   one in progress, also ends at once, and their log names the rank that has gone. The group continues. The buffer's
   place in the symmetric heap stays taken until the group ends.

   A second abandon, one after destroy, and one of NULL have no effect, as long as fewer than 256 buffers have ended
   since. Other calls on the buffer are then EXPAR_ERR_STATE as far as the library can see it. In a child of fork it has
   no effect. Always EXPAR_OK. */
EXPAR_API expar_status expar_ep_abandon(expar_ep *ep);

/* Memory and calls of a buffer on this rank. */
typedef struct expar_ep_stats {
    /* set by EXPAR_EP_STATS_INIT */
    size_t struct_size;
    /* memory for outputs that peers reach, of all buffers of the group together */
    uint64_t reserved_bytes;
    /* the most that it has been. docs/internals/memory.md has the bound */
    uint64_t reserved_high_bytes;
    /* bytes of it in live outputs of this buffer */
    uint64_t used_bytes;
    /* the largest value that used_bytes has had */
    uint64_t used_high_bytes;
    /* bytes in outputs, records and rings of all buffers of the group */
    uint64_t group_used_bytes;
    /* the number of times that records and rings were enlarged for a call */
    uint64_t growths;
    /* dispatches and combines whose rows other ranks write or read directly in this rank's memory */
    uint64_t direct_calls;
    /* dispatches and combines whose rows come to or go from this rank by the queue */
    uint64_t queue_calls;
    /* blocks taken beside the pool: from alloc, or private memory */
    uint64_t other_blocks;
    /* the part of direct_calls that are combines whose x other ranks read in the caller's own memory */
    uint64_t mapped_calls;
    /* the part of direct_calls that are combines whose x was first copied to memory that other ranks read */
    uint64_t copied_calls;
} expar_ep_stats;
#define EXPAR_EP_STATS_INIT EXPAR_STRUCT_INIT(expar_ep_stats)
/* Fills *stats. Any thread, also while a call is running; then numbers may be of different moments. EXPAR_ERR_NULL,
   EXPAR_ERR_ARGUMENT (struct_size). */
EXPAR_API expar_status expar_ep_get_stats(expar_ep *ep, expar_ep_stats *stats);
/* Gives memory that no output uses back to the system, except the pool_bytes of the group's buffers. This covers the
   memory of all buffers of the group on this rank, and private memory of this buffer. Local; other ranks need not call
   it, and outputs stay as they are. The next outputs cost page faults. On a GPU whose memory other ranks map, idle
   memory goes with a later call. This is the next dispatch or route of the group's buffers there in which all ranks
   wait for their counts. It is freed from the end of the last live output or graph on, in the pieces in which it was
   taken. Memory that is shared by CUDA IPC is never freed. EXPAR_ERR_NULL, EXPAR_ERR_BUSY (another thread is in a call
   on the buffer, or config.alloc calls). */
EXPAR_API expar_status expar_ep_trim(expar_ep *ep);

/* Reports failures that no other call has reported. Returns EXPAR_OK, or the first such failure as the call would have
   returned it, with its text. It covers calls without an event that returned before their end was known: in graphs,
   with num_worst_tokens, or once all ranks went on. It also covers calls whose event was released before anybody had
   waited for it. Reporting a failure makes space for the next one. Of several failures between two queries the first is
   reported, and those of calls without an event are also logged. A buffer that cannot be used any more reports that
   every time. Never waits: the end of pending calls is not known yet. Any thread, also while a call is running. */
EXPAR_API expar_status expar_ep_query(expar_ep *ep);

#ifdef __cplusplus
}
#endif
#endif
