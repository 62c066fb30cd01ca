/* SPDX-License-Identifier: Apache-2.0 */
/* The parts that both modes share on a GPU: a buffer's memory there, the order of its calls, their launches, their
 * ends.
 *
 *   device_state.c      the device heap that a rank's buffers on a GPU share (device_state.h)
 *   store.c     one store of blocks for the outputs of all of them; growth
 *   share.c     this rank's share of the GPU
 *   close.c     the end of a buffer
 *   fallback.c      memory beside the pool
 *   segments.h  the caller's memory that peers read in place
 *   scratch.c   small memory that one buffer after another uses
 *   programs.c  programs of kernels, and launches
 *   programs_load.c  several programs compiled at the same time
 *   order.c     the order of calls, on streams and in graphs
 *   waiting.c   waits of the host for work on its GPU
 *   places.c    places on streams that all later calls come after
 *   hold.c      blocks that a graph keeps, or that a stream still uses
 *   guard.c     a thread that asks awaited ranks for their state while kernels wait
 *   stamps.c    times from the stamps of all warps (stamps.h; the benchmark calls it, too)
 *   finish.c    how calls end: results and failures
 *   endings.c   reports of the ends of calls
 *
 * A buffer of normal mode (normal/normal_gpu.h) and one of low-latency mode (low_latency/ll_gpu.h) each have a
 * gpu_core. Host and kernels share the types of kernels/core/args.h.
 *
 * A group's kernels wait for each other, so ranks that share a GPU must run on it side by side. The sum of their
 * num_sms must not exceed the GPU's SMs (share.c checks). */
#ifndef EXPAR_EXEC_CUDA_CORE_GPU_H
#define EXPAR_EXEC_CUDA_CORE_GPU_H

#include "base/knobs.h"
#include "exec/cuda/core/scratch.h"
#include "exec/cuda/core/segments.h"
#include "exec/cuda/kernels/core/args.h"
#include "exec/executor.h"
#include "shmem/device_heap.h"

#include <stdatomic.h>

/* The most shared memory that kernels take for records of their own. */
#define GPU_STATIC_SHARED_BYTES 512

/* Per-GPU state: the heap and the store of pools that all buffers of a rank on one GPU share (device_state.c). */
typedef struct gpu_device_state gpu_device_state;

/* Gives out memory beside the pool and frees it (fallback.c). */
typedef struct gpu_fallback gpu_fallback;

/* Looks after kernels' waits; each rank has one (guard.c). */
typedef struct gpu_guard gpu_guard;

/* The guard's part of a buffer. */
typedef struct gpu_watch {
    gpu_guard *guard;
    struct gpu_core *next; /* guarded by the guard's lock */
    uint64_t *awaits;      /* [N] pinned: gpu_place.awaits, as the host sees it */
    /* The numbers of calls that have taken their places, and of calls whose marks are on their streams. The calling
       thread writes them, the guard reads them. Both are sequentially consistent, together with gpu_guard.sleeping. */
    atomic_uint begun, marked;
    /* A call was captured, so kernels may run at any time. The calling thread sets it (relaxed). */
    atomic_bool in_graphs;
    /* Only the guard uses the members below. */
    /* The number of calls that have ended. */
    unsigned settled;
    /* Kernels wait. `wait` describes it, in the call of this epoch. */
    bool waits;
    uint32_t epoch;
    boot_wait wait;
} gpu_watch;

/* Places on streams that a rank's calls on one GPU come after (places.c). */
typedef struct gpu_places gpu_places;

/* The order of a rank's calls on one GPU, shared by its buffers of the group (order.c). */
typedef struct gpu_order gpu_order;

typedef struct gpu_core {
    executor base;
    /* ---- where it is ---- */
    /* NULL: not entered yet */
    gpu_device_state *home;
    device_heap *heap;      /* that of the per-GPU state */
    gpu_segments *segments; /* likewise */
    const cuda_device *device;
    expar_group *group;
    sym *sym;              /* the group's */
    int32_t num_sms;       /* SMs of the buffer */
    int32_t most_sms;      /* the most SMs of a call: this rank's share of its GPU */
    uint32_t number;       /* number of the buffer, the same on all ranks */
    uint32_t topic_kind;   /* boot_kind of the buffer's calls */
    int64_t late_limit_ms; /* with masks: the limit of waits for this buffer's ranks (boot_wait) */
    bool with_threads;     /* other ranks are threads of this process and use the same default stream */
    bool shares_gpu;       /* with such ranks; no module is loaded once the buffer is made */
    gpu_place place;       /* as kernels get it, except the call's ticket (gpu_place_of) */
    gpu_scratch *scratch;  /* device: heaps, state; pinned: the report */
    gpu_report *report;    /* the host's view */
    /* For the buffer's own work, and for calls that are rejected before their stream is known. */
    cu_stream own_stream;
    /* Work on own_stream was not awaited and may still write to the buffer's memory. */
    bool unsettled;
    /* ---- the call that is being made, by the thread that makes it ---- */
    /* The call is part of a capture. */
    bool capturing;
    /* The call's stream; NULL: none, or the default stream. */
    void *called_on;
    /* The number of calls so far. */
    uint64_t begun;
    /* The number of tickets so far. */
    uint64_t tickets;
    gpu_order *order;
    gpu_fallback *lender; /* the order's */
    /* ---- for benchmarks, by the thread that makes calls ---- */
    /* The number of warps of the last call's kernel, on the whole GPU. */
    int32_t stamped_warps;
    /* Device memory that kernels write times to; NULL: they write none. */
    uint64_t *stamps;
    gpu_scratch *stamp_memory;
    /* ---- how its kernels' waits end ---- */
    gpu_watch watch;
    sym_listener listener;
    /* The reason why this rank ended its kernels' waits although the group is sound. The thread that has raised
       `ending` (acq_rel) writes it. Then that thread raises `has_reason` (release), and then the abort word. Readers
       load has_reason (acquire) before it. */
    atomic_bool ending, has_reason;
    /* Any thread sets it, once. Waits of the host read it (relaxed: it publishes nothing). */
    atomic_bool halted;
    error_kept reason;
    /* Goes on without a rank that the guard finds lost; `why` is for the log. NULL: a loss ends the buffer's waits. */
    void (*lose)(struct gpu_core *self, int32_t rank, const char *why);
    /* [N] pinned, of a low-latency buffer: what was missing from each rank when a wait was given up (ll_gpu_due). NULL:
       kernels do not say. */
    const uint64_t *progress;
    /* Counts the calls whose ends are not reported yet, and the threads that look after them. A thread that makes a
       call or looks adds one (relaxed). A thread that has reported or looked subtracts one (release). The thread that
       destroys the buffer waits for zero (acquire). */
    atomic_int endings;
    /* The oldest call comes first. Guarded by the lock of endings.c. */
    struct gpu_ending *first_ending, **last_ending;
    /* The list of executors that stay for ever (endings.c). */
    struct gpu_core *left_next;
} gpu_core;

static inline gpu_core *gpu_core_of(executor *base)
{
    return (gpu_core *)base;
}

static inline int32_t gpu_sms_of(const gpu_core *self, const exec_call *call)
{
    return call->num_sms ? call->num_sms : self->num_sms;
}

static inline gpu_place gpu_place_of(const gpu_core *self, const exec_call *call)
{
    gpu_place place = self->place;
    place.ticket = call->ticket;
    place.before = call->captured ? 0 : call->ticket ? call->ticket - 1 : self->tickets;
    return place;
}

/* ---- programs.c -------------------------------------------------------------------------------------------------- */
/* Tests: kernels loaded from now on hold threads back at random (link/device/delay.h); 0 ends it. Needs NVRTC. */
void gpu_programs_delay(uint32_t seed);
/* Loads a source with macros for the buffer's shape, or without them where it serves any shape. */
expar_status gpu_program_load(const gpu_core *self, const char *source, const cuda_macro *macros, size_t num_macros,
                              cuda_program **out);
/* A request for such a program and one of its kernels. */
typedef struct gpu_request {
    const char *source, *name;
    const cuda_macro *macros;
    size_t num_macros;
    /* The caller releases it, even if another request has failed. */
    cuda_program **program;
    cu_function *kernel;
} gpu_request;
#define GPU_MOST_REQUESTS 4
/* Loads several programs, which are compiled at the same time (programs_load.c). */
expar_status gpu_programs_request(const gpu_core *self, const gpu_request *requests, size_t count);
/* Launches a kernel on the call's stream. `arguments` points to its only parameter. */
expar_status gpu_launch(gpu_core *self, const exec_call *call, cu_function function, uint32_t blocks, uint32_t threads,
                        uint32_t shared_bytes, void *arguments);

/* ---- device_state.c ---------------------------------------------------------------------------------------------- */
/* Collective: takes the per-GPU state, with heap and device. Another buffer of this rank may have made it already. */
expar_status gpu_device_state_enter(gpu_core *self, int32_t device);
/* Collective while the group is sound. Call it after the buffer's memory has been given back. quiet: as in
   device_heap_destroy. It does nothing before gpu_device_state_enter. */
void gpu_device_state_leave(gpu_core *self, bool quiet);
/* ---- create.c ---------------------------------------------------------------------------------------------------- */
/* Collective: all ranks learn whether all succeeded. If uuids is not NULL, uuids[r] then is that of rank r's GPU. */
expar_status gpu_agree(const gpu_core *self, expar_status own, cu_uuid *uuids);
/* Collective: counts the ranks that use this rank's GPU. */
expar_status gpu_count_sharers(const gpu_core *self, int32_t *sharers);
/* Sets the SMs of the buffer and the most SMs of a call, within this rank's part of a GPU with so many sharers. If
   asked is 0, it takes the usual number, or as many as there are. Also checks the queues that the environment asks
   for. */
expar_status gpu_choose_sms(gpu_core *self, int32_t asked, knob_id usual, int32_t sharers);
/* Sets place->orphan_ns, the limit for kernels whose own host has stopped. */
expar_status gpu_read_orphan_time(gpu_place *place);

/* ---- close.c ----------------------------------------------------------------------------------------------------- */
/* Waits until all calls have ended and their ends are reported. Then nothing watches the buffer any more. A partly made
   buffer is allowed. */
void gpu_core_stop(gpu_core *self);
/* Call this after gpu_core_stop. Frees the buffer's small memory. */
void gpu_core_free(gpu_core *self);
/* Ends a buffer whose rank ends alone. False: a call is still on its stream, and `what` goes to the log. Then
   everything that its kernels use must stay, including the object. Nothing watches the buffer any more. */
bool gpu_core_abandon(gpu_core *self, const char *what);

/* ---- fallback.c -------------------------------------------------------------------------------------------------- */
/* Makes the lender of an order of calls, with the event that is recorded after each call. The device has been
   entered. */
expar_status gpu_fallback_make(const cuda_device *device, gpu_fallback **out);
cu_event gpu_fallback_event(const gpu_fallback *lender);
/* Blocks that are still out keep the lender. NULL is allowed. */
void gpu_fallback_drop(gpu_fallback *lender);
/* Call this after the mark of a call was put after its last step, or with `ended` when no more calls will come. Blocks
   that were released before it are freed once the mark has passed. The thread that holds the order calls it. */
void gpu_fallback_settle(gpu_fallback *lender, bool ended);
/* Returns a block beside the pool. from: the caller's allocator; NULL: the driver's. During a capture it returns
   EXPAR_ERR_BUFFER_SIZE, since a capture could not keep the block. Other errors: EXPAR_ERR_MEMORY, those of
   mem_allocate. */
expar_status gpu_fallback_allocate(gpu_core *self, const mem_allocator *from, uint64_t bytes, mem_block **out);

/* ---- order.c ----------------------------------------------------------------------------------------------------- */
/* For both: the device has been entered. */
expar_status gpu_order_hold(gpu_core *self);
void gpu_order_release(gpu_core *self);
/* Waits until the last call has ended on the GPU, or the driver says why it cannot. */
expar_status gpu_order_await(gpu_core *self);
/* Waits likewise, but for wait_ns at most. False: it has not ended by then. Any thread may call it. */
bool gpu_order_has_ended(const gpu_core *self, int64_t wait_ns);
/* Returns EXPAR_OK while the context of the last call is sound, even if the call is still running. Any thread may call
   it. */
expar_status gpu_order_look(const gpu_core *self);
/* Call this with true after launching a kernel that waits for other ranks, and with false once all ranks are known to
   run theirs. A call without a ticket does not pass false, since it has waited for nothing. */
void gpu_order_note_wait(gpu_core *self, bool may_wait);
/* Matters only where ranks of this process share the GPU, outside of captures. Call it before putting a kernel, a copy
   or a wait on the stream. It waits until no kernel of this rank may be waiting, while the group is sound. The time-out
   limits this wait, except while a kernel waits. The device has been entered. */
void gpu_order_settle(gpu_core *self, const exec_call *call);
/* Operations of the executor. */
expar_status gpu_begin(executor *base, exec_call *call, void *stream);
bool gpu_follows(const executor *base, const exec_call *call, expar_event *event);
expar_status gpu_take_place(executor *base, exec_call *call);
expar_status gpu_await(executor *base, const char *what);
expar_status gpu_end(executor *base, exec_call *call);
/* Make the stream for the buffer's own work, and wait until that work has ended. EXPAR_ERR_INTERRUPTED: the program
   interrupted the wait; self->unsettled is set from then on. */
expar_status gpu_own_stream_make(gpu_core *self);
expar_status gpu_own_stream_await(gpu_core *self);
/* Waits until all work on one of the library's streams has ended; EXPAR_ERR_INTERRUPTED as above. */
expar_status gpu_stream_await(const cuda_device *device, cu_stream stream, const char *what);
/* Takes a place for a call that is rejected before it has one. A call without a stream gets the executor's. */
expar_status gpu_place_rejected(gpu_core *self, exec_call *call);
/* Between the two, this thread's driver calls belong to no stream's order, and captures do not forbid them. */
expar_status gpu_leave_captures(int *mode);
void gpu_return_to_captures(int mode);

/* Makes the stream wait for the event. The call has its place already; later calls come after the event, too. */
expar_status gpu_join(executor *base, const exec_call *call, expar_event *event);
/* Returns the places on streams that the order's calls come after. */
gpu_places *gpu_order_places(const gpu_order *order);

/* ---- places.c ---------------------------------------------------------------------------------------------------- */
gpu_places *gpu_places_make(void); /* NULL: no memory */
gpu_places *gpu_places_hold(gpu_places *places);
void gpu_places_drop(gpu_places *places); /* NULL is allowed */
/* All later calls come after marks of the stream that were made before `until`. The thread that holds the order calls
   it. */
void gpu_places_note(gpu_places *places, unsigned long long stream, uint64_t until);
/* A mem_covers_fn: says whether all later calls come after the mark. Any thread may call it. */
bool gpu_places_cover(void *places, const cuda_mark *mark);

/* ---- hold.c ------------------------------------------------------------------------------------------------------ */
/* An operation of the executor, and executor_kind.hold_until. */
expar_status gpu_keep(executor *base, const exec_call *call, mem_block *const *blocks, int32_t count);
expar_status gpu_hold_until(expar_device device, void *stream, mem_block *const *blocks, int32_t count);

/* ---- guard.c ----------------------------------------------------------------------------------------------------- */
/* The guard watches the buffer's kernels between hold and release. One thread of a rank must make and destroy all its
   buffers. */
expar_status gpu_guard_hold(gpu_core *self);
void gpu_guard_release(gpu_core *self);
/* The calling thread reports that a call takes its place, and that the call's mark is on its stream or could not be put
   there. */
void gpu_guard_note_begin(gpu_core *self);
void gpu_guard_note_end(gpu_core *self);
/* Notifies the guard of a captured call: from now on hosts and GPUs count the buffer's calls differently. */
void gpu_guard_note_captured(gpu_core *self);
/* Call this when the end of a call is to be reported. */
void gpu_guard_note_told(gpu_core *self);
/* Says whether a kernel of this rank has lately waited for another rank for longer than a beat. Any thread may call
   it. */
bool gpu_guard_sees_wait(const gpu_core *self);

/* ---- finish.c ---------------------------------------------------------------------------------------------------- */
void gpu_listen(gpu_core *self);
/* An operation. It does not stop running kernels: they end by themselves. */
void gpu_halt(executor *base);
void gpu_retire(executor *base, uint32_t epoch, const ep_rejection *rejection);
/* Makes the buffer's kernels leave their waits. The reason is this status with this thread's last error. Any thread may
   call it. */
void gpu_end_waits(gpu_core *self, expar_status status);
/* Says whether the group has failed, as waiting kernels see it, too; sym_check says why. Any thread may call it. */
bool gpu_group_failed(const gpu_core *self);
/* Operations. gpu_check returns EXPAR_OK unless a kernel gave up a wait; then the error names the awaited rank. */
expar_status gpu_check(executor *base, const char *what);
bool gpu_untold(executor *base, ep_vote *vote, int64_t *dropped);
/* Gives the call its ticket. The call's first step calls it. */
void gpu_ticket_take(gpu_core *self, exec_call *call);
/* Waits until a kernel has set that word of the report to this call's ticket, then returns gpu_check. A failed group
   also ends the wait, even if the stream does not reach the kernel. */
expar_status gpu_ticket_await(gpu_core *self, const exec_call *call, const uint64_t *word, const char *what);
/* Looks at the group for a thread that waits for a kernel's word or for the end of a call. It reports the group's
   failure, but only after the time in which a running kernel would have reported it. *seen_ns: when the caller first
   saw the failure; 0: not yet. Any thread may call it. */
expar_status gpu_look_at_group(const gpu_core *self, int64_t *seen_ns, const char *what);
/* Fills the result if the call with this ticket left one in the report. Returns the number of rows that it dropped.
   Call it once for a call, or once for a notify and once for its call: reading frees the place in the report. */
int32_t gpu_vote_read(const gpu_core *self, uint64_t ticket, ep_vote *vote);
/* True if a kernel has reported a problem that nobody has read yet. It reads host memory only. Any thread may call
   it. */
bool gpu_has_told(const gpu_core *self);
/* Says how the call with this ticket ended, once it has: EXPAR_OK with its result, or the wait that kernels gave up. */
expar_status gpu_ending_read(gpu_core *self, uint64_t ticket, ep_vote *vote, int32_t *dropped);

/* ---- endings.c --------------------------------------------------------------------------------------------------- */
/* An operation. It puts nothing on the stream but a mark. */
expar_status gpu_tell(executor *base, const exec_call *call, executor_done_fn done, void *context,
                      event_keeper *keeper);
/* Reports the ends of calls that a later call's kernel shows to have ended. With `all`, or if a kernel has reported a
   problem, it asks the driver about the others, too. Any thread may call it, with no lock held. */
void gpu_endings_reap(gpu_core *self, bool all);
/* True if ends of calls are to be reported or watched. Then the executor stays until gpu_endings_leave. */
bool gpu_endings_enter(gpu_core *self);
void gpu_endings_leave(gpu_core *self);
/* Waits until all ends of calls are reported. The stream has the group's time-out for that while its context is sound;
   calls that have not ended by then are reported as lost. */
void gpu_endings_close(gpu_core *self);
/* Ends the calls of a buffer whose rank ends alone. They have wait_ns to end by themselves, and as long again after
   their kernels' waits were ended. False: a stream still has work that uses the buffer. Then the ends of these calls
   have been reported as EXPAR_ERR_ABORTED, and everything that their kernels use must stay. */
bool gpu_endings_abandon(gpu_core *self, int64_t wait_ns);

/* Operations of a table of either mode. */
#define GPU_CALL_OPS                                                                                                   \
    .streams = true, .halt = gpu_halt, .begin = gpu_begin, .keep = gpu_keep, .follows = gpu_follows,                   \
    .place = gpu_take_place, .join = gpu_join, .end = gpu_end, .tell = gpu_tell

#endif
