/* SPDX-License-Identifier: Apache-2.0 */
/* The parts that both modes share on a GPU: a buffer's memory there, and the order, launches and ends of its calls.
 *
 *   device_state.c   the device heap that a rank's buffers on a GPU share (device_state.h)
 *   store.c          the store of blocks for the outputs of all these buffers, and its growth
 *   share.c          this rank's share of the GPU
 *   close.c          the end of a buffer
 *   fallback.c       memory beside the pool
 *   segments.h       the caller's memory that peers read in place
 *   scratch.c        small memory that one buffer after another uses
 *   programs.c       programs of kernels, and launches
 *   programs_load.c  several programs compiled at the same time
 *   order.c          the order of calls, on streams and in graphs
 *   waiting.c        waits of the host for work on its GPU
 *   places.c         places on streams that all later calls come after
 *   hold.c           blocks that a graph keeps, or that a stream still uses
 *   guard.c          a thread that asks awaited ranks for their state while kernels wait
 *   stamps.c         times that the warps of a kernel have recorded (stamps.h; the benchmark calls it, too)
 *   finish.c         how calls end: results and failures
 *   endings.c        reports of the ends of calls
 *
 * A buffer of normal mode (normal/normal_gpu.h) and one of low-latency mode (low_latency/ll_gpu.h) each have a
 * gpu_core. Host and kernels share the types of kernels/core/args.h.
 *
 * A group's kernels wait for each other, so kernels of ranks that share a GPU must run side by side. The sum of these
 * ranks' num_sms must not exceed the GPU's SMs (share.c checks it). */
#ifndef EXPAR_EXEC_CUDA_CORE_GPU_H
#define EXPAR_EXEC_CUDA_CORE_GPU_H

#include "base/knobs.h"
#include "exec/cuda/core/scratch.h"
#include "exec/cuda/core/segments.h"
#include "exec/cuda/kernels/core/args.h"
#include "exec/executor.h"
#include "shmem/device_heap.h"

#include <stdatomic.h>

/* The most shared memory that a kernel has for variables that it declares itself, beside what a launch gives it. */
#define GPU_STATIC_SHARED_BYTES 512

/* Per-GPU state: the heap and the store of pools that all buffers of a rank on one GPU share (device_state.c). */
typedef struct gpu_device_state gpu_device_state;

/* The source of memory beside the pool (fallback.c). Members and parameters of this type are called `fallback`. */
typedef struct gpu_fallback gpu_fallback;

/* The thread that looks at the ranks for which kernels wait. Each rank has one guard (guard.c). */
typedef struct gpu_guard gpu_guard;

/* The guard's state for one buffer. */
typedef struct gpu_watch {
    gpu_guard *guard;
    struct gpu_core *next; /* guarded by the guard's lock */
    uint64_t *awaits;      /* [N] pinned memory: gpu_place.awaits, at the host's address */
    /* `begun` counts the calls that have taken their places. `marked` counts those of them that have ended on the host:
       a mark was put on the stream, or that failed. The calling thread writes both, and the guard reads them. Together
       with gpu_guard.sleeping they are sequentially consistent. */
    atomic_uint begun, marked;
    /* A call was captured, so kernels may run at any time. The calling thread sets it (relaxed). */
    atomic_bool in_graphs;
    /* Only the guard uses the members below. */
    /* The value of `marked` when the GPU was last seen to have ended all calls. */
    unsigned settled;
    /* Kernels of the call with this epoch wait for a rank, and `wait` describes that. */
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
    /* NULL before gpu_device_state_enter */
    gpu_device_state *device_state;
    device_heap *heap;      /* that of the per-GPU state; NULL: the buffer has none (ll_gpu_far_take) */
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
    bool shares_gpu;       /* such ranks use the same GPU, so no module is loaded once the buffer is made */
    gpu_place place;       /* the kernels' argument, except what depends on the call (gpu_place_of) */
    gpu_scratch *scratch;  /* device memory for heaps and state, pinned memory for the report */
    gpu_report *report;    /* the report, at the host's address */
    /* A stream for the buffer's own work, and for calls that are rejected before their stream is known. */
    cu_stream own_stream;
    /* A wait for work on own_stream has failed, so that work may still write to the buffer's memory. */
    bool unsettled;
    /* ---- the call that is being made, by the thread that makes it ---- */
    /* The call is part of a capture. */
    bool capturing;
    /* The call's stream; NULL: none, or the default stream. */
    void *called_on;
    /* The number of calls so far. */
    uint64_t begun;
    /* The last ticket: 1 for the first call that gets one, and so on. */
    uint64_t tickets;
    gpu_order *order;
    gpu_fallback *fallback; /* that of the order */
    /* ---- for benchmarks, by the thread that makes calls ---- */
    /* The number of warps of the last call's kernel, in all blocks. */
    int32_t stamped_warps;
    /* Device memory that kernels write times to; NULL: they write none. */
    uint64_t *stamps;
    gpu_scratch *stamp_memory;
    /* ---- how its kernels' waits end ---- */
    gpu_watch watch;
    sym_listener listener;
    /* `reason` says why this rank ended its kernels' waits although the group is sound. The first thread that sets
       `ending` (acq_rel) writes `reason`. It then sets `has_reason` (release), and then the abort bit of the orders.
       Readers load has_reason (acquire) before they read `reason`. */
    atomic_bool ending, has_reason;
    /* This rank has abandoned the buffer. Any thread sets it, once. Waits of the host read it (relaxed: it publishes
       nothing). */
    atomic_bool halted;
    error_kept reason;
    /* The guard calls it for a rank that it finds lost, so that the buffer goes on without that rank. `why` is for the
       log. NULL: the loss of a rank ends the buffer's waits. */
    void (*lose)(struct gpu_core *self, int32_t rank, const char *why);
    /* The guard calls it at each beat, if it is not NULL. It may call gpu_guard_end_calls. */
    void (*look)(struct gpu_core *self);
    /* [N] pinned memory: how much was missing from each rank when a wait was given up (ll_gpu_due). NULL: kernels do
       not report it, as in normal mode. */
    const uint64_t *progress;
    /* Counts the calls whose ends are not reported yet, and the threads that check for such ends. A thread that makes a
       call, or starts to check, adds one (relaxed). A thread that has reported an end, or has checked, subtracts one
       (release). The thread that destroys the buffer waits for zero (acquire). */
    atomic_int endings;
    /* The list of those calls, the oldest first. Guarded by the lock of endings.c. */
    struct gpu_ending *first_ending, **last_ending;
    /* The next one in the list of executors that are never freed. Guarded by the same lock. */
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
/* For tests: kernels that are loaded from now on delay threads at random (link/device/delay.h). seed 0 turns this off.
   It needs NVRTC. */
void gpu_programs_delay(uint32_t seed);
/* Loads the program of a source. The macros compile it for the buffer's shape. Without macros it serves any shape. */
expar_status gpu_program_load(const gpu_core *self, const char *source, const cuda_macro *macros, size_t num_macros,
                              cuda_program **out);
/* A request to load such a program and to find one of its kernels. */
typedef struct gpu_request {
    const char *source, *name;
    const cuda_macro *macros;
    size_t num_macros;
    /* Output. The caller releases it, even if another request has failed. */
    cuda_program **program;
    cu_function *kernel;
} gpu_request;
#define GPU_MOST_REQUESTS 5
/* Loads several programs, which are compiled at the same time (programs_load.c). */
expar_status gpu_programs_request(const gpu_core *self, const gpu_request *requests, size_t count);
/* Launches a kernel on the call's stream. `arguments` points to its only parameter. */
expar_status gpu_launch(gpu_core *self, const exec_call *call, cu_function function, uint32_t blocks, uint32_t threads,
                        uint32_t shared_bytes, void *arguments);

/* ---- device_state.c ---------------------------------------------------------------------------------------------- */
/* Collective: takes a reference to the per-GPU state, and sets `heap`, `segments` and `device`. Another buffer of this
   rank may have made the state already. for_node: its heap reaches the ranks of this node alone, and there are no
   segments. Where not all ranks of a group map each other, all its buffers have such a state. */
expar_status gpu_device_state_enter(gpu_core *self, int32_t device, bool for_node);
/* Drops the reference. Collective while the group is sound. Call it after the buffer's memory has been given back.
   quiet: as in device_heap_destroy. It does nothing before gpu_device_state_enter. */
void gpu_device_state_leave(gpu_core *self, bool quiet);
/* ---- share.c ----------------------------------------------------------------------------------------------------- */
/* Collective: returns EXPAR_OK if all ranks pass EXPAR_OK as `own`, else an error on all ranks. If uuids is not NULL,
   uuids[r] is then the UUID of rank r's GPU. */
expar_status gpu_agree(const gpu_core *self, expar_status own, cu_uuid *uuids);
/* Collective: counts the ranks that use this rank's GPU, with this rank. */
expar_status gpu_count_sharers(const gpu_core *self, int32_t *sharers);
/* Sets num_sms and most_sms, within this rank's share of a GPU that so many ranks use. asked: the config's num_sms. If
   that is 0, num_sms becomes the usual number, or this rank's share if that is less. Also checks that the GPU has a
   queue for each of these ranks (CUDA_DEVICE_MAX_CONNECTIONS). */
expar_status gpu_choose_sms(gpu_core *self, int32_t asked, knob_id usual, int32_t sharers);
/* Sets place->orphan_ns, after which kernels end their waits if their own host has stopped. */
expar_status gpu_read_orphan_time(gpu_place *place);

/* ---- close.c ----------------------------------------------------------------------------------------------------- */
/* Waits until all calls have ended and their ends are reported. Then the guard no longer looks at the buffer. A
   partly made buffer is allowed. */
void gpu_core_stop(gpu_core *self);
/* Call this after gpu_core_stop. Frees the buffer's small memory. */
void gpu_core_free(gpu_core *self);
/* Ends the calls of a buffer that this rank has abandoned. Returns false if a call is still on its stream, and then
   logs `what`. In that case everything that the call's kernels use must stay, including the object. The guard no
   longer looks at the buffer then. */
bool gpu_core_abandon(gpu_core *self, const char *what);

/* ---- fallback.c -------------------------------------------------------------------------------------------------- */
/* Makes the source of memory for an order of calls, and the event that the order records after each call. The device
   has been entered. */
expar_status gpu_fallback_make(const cuda_device *device, gpu_fallback **out);
cu_event gpu_fallback_event(const gpu_fallback *fallback);
/* Drops the order's reference. Each block in use has one, too. NULL is allowed. */
void gpu_fallback_drop(gpu_fallback *fallback);
/* Call this when the event has been recorded after a call's last step. Blocks that were released before are freed once
   the event has passed. With `ended` no more calls will come, and blocks are freed once the GPU has no work. The thread
   that holds the order calls it. */
void gpu_fallback_settle(gpu_fallback *fallback, bool ended);
/* Returns a block beside the pool. from: the caller's allocator; NULL: the driver's. In a capture it returns
   EXPAR_ERR_BUFFER_SIZE, since a graph could not keep the block. Other errors are EXPAR_ERR_MEMORY and those of
   mem_allocate. */
expar_status gpu_fallback_allocate(gpu_core *self, const mem_allocator *from, uint64_t bytes, mem_block **out);
struct ep_grow_step;
/* Returns EXPAR_ERR_LIMIT: in a capture, records are too small for the call. */
expar_status gpu_reject_growth(const struct ep_grow_step *step);

/* ---- order.c ----------------------------------------------------------------------------------------------------- */
/* Take and drop the buffer's reference to the order of this rank's calls on its GPU. The device has been entered. */
expar_status gpu_order_hold(gpu_core *self);
void gpu_order_release(gpu_core *self);
/* Waits until the last call has ended on the GPU. If the driver reports an error, returns that at once. */
expar_status gpu_order_await(gpu_core *self);
/* Does the same, but waits for wait_ns at most. False: the last call has not ended. Any thread may call it. */
bool gpu_order_has_ended(const gpu_core *self, int64_t wait_ns);
/* Returns EXPAR_OK while the context of the last call is sound, even if the call is still running. Any thread may call
   it. */
expar_status gpu_order_look(const gpu_core *self);
/* Does the same, and says whether the last call has ended, which is valid with EXPAR_OK. */
expar_status gpu_order_query(const gpu_core *self, bool *ended);
/* Call this with true after launching a kernel that waits for other ranks, and with false once all ranks are known to
   run their kernels. In a call without a ticket do not pass false, since the host has not waited for its kernel. */
void gpu_order_note_wait(gpu_core *self, bool may_wait);
/* Call this before putting a kernel, a copy or a wait on the stream. If ranks of this process share the GPU, it waits
   until no kernel of this rank can be waiting for another rank. Otherwise, and in a capture, it does nothing. The wait
   also ends when the group has failed, and at the time-out, unless a kernel is waiting then. The device has been
   entered. */
void gpu_order_settle(gpu_core *self, const exec_call *call);
/* Operations of the executor. */
expar_status gpu_begin(executor *base, exec_call *call, void *stream);
bool gpu_follows(const executor *base, const exec_call *call, expar_event *event);
expar_status gpu_take_place(executor *base, exec_call *call);
void gpu_depart(executor *base, exec_call *call, expar_event *event, event_keeper *keeper);
expar_status gpu_record(executor *base, const exec_call *call, expar_event *event, exec_replay *replay);
expar_status gpu_await(executor *base, const char *what);
expar_status gpu_end(executor *base, exec_call *call);
/* Make the stream for the buffer's own work, and wait until that work has ended. If the program interrupts the wait, it
   returns EXPAR_ERR_INTERRUPTED. After any failed wait self->unsettled is set. */
expar_status gpu_own_stream_make(gpu_core *self);
expar_status gpu_own_stream_await(gpu_core *self);
/* The parts of gpu_take_place and gpu_end that order calls on the GPU, for a buffer without a guard. The thread has
   entered the device from one to the other. */
expar_status gpu_order_enter(gpu_core *self, exec_call *call);
expar_status gpu_order_leave(gpu_core *self, exec_call *call);
/* Enter and leave the device for a step of the call, on the call's thread. A call that has its place has entered it. */
expar_status gpu_enter(const gpu_core *self, const exec_call *call);
void gpu_leave(const exec_call *call);
/* Between these two no call of this rank is put on a stream of the GPU. They enclose calls of the driver that wait for
   kernels. Otherwise a kernel might wait for a thread that has launched it, and that now waits for the driver. */
void gpu_order_close(gpu_order *order);
void gpu_order_open(gpu_order *order);
/* Like gpu_order_close, but returns false instead of waiting. */
bool gpu_order_try_close(gpu_order *order);
/* Rejects the default stream where ranks of a process share it. */
expar_status gpu_check_stream(const gpu_core *self, const void *stream);
/* Rests between two looks of a thread that waits for its GPU; the longer, the more looks there were. */
void gpu_rest_between(int64_t looks);
/* Waits until all work on one of the library's streams has ended. If the program interrupts the wait, it returns
   EXPAR_ERR_INTERRUPTED. */
expar_status gpu_stream_await(const cuda_device *device, cu_stream stream, const char *what);
/* Takes a place for a call that is rejected before it has one. If the call's stream is not known, it uses
   own_stream. */
expar_status gpu_place_rejected(gpu_core *self, exec_call *call);
/* Between these two calls captures do not forbid this thread's calls of the driver. They are for driver calls that
   belong to no stream's order. */
expar_status gpu_leave_captures(int *mode);
void gpu_return_to_captures(int mode);

/* Makes the call's stream wait for the event. The call has its place already. Later calls come after the event, too. */
expar_status gpu_join(executor *base, const exec_call *call, expar_event *event);
/* Returns the places on streams that the order's calls come after. */
gpu_places *gpu_order_places(const gpu_order *order);

/* ---- places.c ---------------------------------------------------------------------------------------------------- */
gpu_places *gpu_places_make(void); /* NULL: no memory */
gpu_places *gpu_places_hold(gpu_places *places);
void gpu_places_drop(gpu_places *places); /* NULL is allowed */
/* Records that all later calls come after the marks of the stream that were made before `until`. The thread that holds
   the order calls it. */
void gpu_places_note(gpu_places *places, unsigned long long stream, uint64_t until);
/* A mem_covers_fn: says whether all later calls come after the mark. Any thread may call it. */
bool gpu_places_cover(void *places, const cuda_mark *mark);

/* ---- hold.c ------------------------------------------------------------------------------------------------------ */
/* Has the graph of the stream, which is being captured, keep an object until it and all that was made of it are gone.
   let_go then gets the object, in a thread of the driver's, also if this fails. The device has been entered. */
expar_status gpu_give_to_graph(cu_stream stream, void *object, void (*let_go)(void *object));
/* Operations of the executor (executor_ops.keep) and of its kind (executor_kind.hold_until). */
expar_status gpu_keep(executor *base, const exec_call *call, mem_block *const *blocks, int32_t count);
expar_status gpu_hold_until(expar_device device, void *stream, mem_block *const *blocks, int32_t count);

/* ---- guard.c ----------------------------------------------------------------------------------------------------- */
/* Between hold and release the guard looks at the waits of the buffer's kernels. A rank makes and destroys its buffers
   one at a time. */
expar_status gpu_guard_hold(gpu_core *self);
void gpu_guard_release(gpu_core *self);
/* The calling thread calls the first when a call has taken its place. It calls the second when the call's mark is on
   its stream or could not be put there. */
void gpu_guard_note_begin(gpu_core *self);
void gpu_guard_note_end(gpu_core *self);
/* Tells the guard that a call was captured. From now on hosts and GPUs do not count the buffer's calls alike. */
void gpu_guard_note_captured(gpu_core *self);
/* Ends the waits of the buffer's kernels for the reason that the thread's last error has, and tells others that this
   rank does not come to its calls. gpu_core.look calls it. */
void gpu_guard_end_calls(gpu_core *self, expar_status status);
/* Wakes the guard if it sleeps, since it has to find out when a call ends. */
void gpu_guard_note_told(gpu_core *self);
/* Says whether a kernel of this rank has just been waiting for another rank, for longer than one beat of the guard. Any
   thread may call it. */
bool gpu_guard_sees_wait(const gpu_core *self);

/* ---- finish.c ---------------------------------------------------------------------------------------------------- */
/* From now on the buffer's kernels leave their waits when the group fails. */
void gpu_listen(gpu_core *self);
/* Operations of the executor. gpu_halt does not stop running kernels: they end by themselves. gpu_retire does
   nothing. */
void gpu_halt(executor *base);
void gpu_retire(executor *base, uint32_t epoch, const ep_rejection *rejection);
/* Makes the buffer's kernels leave their waits, and keeps this status and the thread's last error as the reason. Any
   thread may call it. */
void gpu_end_waits(gpu_core *self, expar_status status);
/* Says whether kernels must leave their waits, because the group has failed or only this buffer has. Any thread may
   call it. */
bool gpu_group_failed(const gpu_core *self);
/* Operations of the executor. gpu_check returns EXPAR_OK unless a kernel gave up a wait. Then the error names the
   awaited rank. */
expar_status gpu_check(executor *base, const char *what);
bool gpu_untold(executor *base, ep_vote *vote, int64_t *dropped);
/* Gives the call a ticket if a thread will ask how the call ended. The call's first step calls it. */
void gpu_ticket_take(gpu_core *self, exec_call *call);
/* Waits until a kernel has set that word of the report to this call's ticket or a later one. Then returns the result of
   gpu_check. A failed group also ends the wait, even if the stream does not reach the kernel. */
expar_status gpu_ticket_await(gpu_core *self, const exec_call *call, const uint64_t *word, const char *what);
/* Checks the group for a thread that waits for a kernel's word or for the end of a call. It returns the group's failure
   only after the time in which a running kernel would have reported it. *seen_ns: when the caller first saw the
   failure; 0: not yet. If this rank has abandoned the buffer, it returns EXPAR_ERR_ABORTED at once. Any thread may call
   it. */
expar_status gpu_look_at_group(const gpu_core *self, int64_t *seen_ns, const char *what);
/* Fills the result of the vote if the call with this ticket left one in the report. Returns the number of rows that the
   call dropped. Reading frees the place in the report. So call it once for a call, or once for a notify and once for
   its call. */
int32_t gpu_vote_read(const gpu_core *self, uint64_t ticket, ep_vote *vote);
/* Says whether a kernel has reported a problem that no thread has read yet. It reads host memory only. Any thread may
   call it. */
bool gpu_has_told(const gpu_core *self);
/* Says how the call with this ticket ended; call it after that. EXPAR_OK comes with the result of the vote. Else the
   error names the wait that a kernel gave up, or is EXPAR_ERR_LIMIT if the result did not fit the report. */
expar_status gpu_ending_read(gpu_core *self, uint64_t ticket, ep_vote *vote, int32_t *dropped);

/* ---- endings.c --------------------------------------------------------------------------------------------------- */
/* Operation of the executor. It puts nothing on the stream but a mark. */
expar_status gpu_tell(executor *base, const exec_call *call, executor_done_fn done, void *context,
                      event_keeper *keeper);
/* Reports the ends of calls. A call has ended if the kernel of a later call has opened. With `all`, or if a kernel has
   reported a problem, it asks the driver about the other calls, too. Any thread may call it, with no lock held. */
void gpu_endings_reap(gpu_core *self, bool all);
/* Returns whether an end is not reported yet, or a thread checks for one. If true, the executor stays until
   gpu_endings_leave. */
bool gpu_endings_enter(gpu_core *self);
void gpu_endings_leave(gpu_core *self);
/* Waits until the ends of all calls are reported. It waits for the group's time-out at most, while the context is sound
   and the program does not interrupt it. Then it reports the calls that are left as lost. */
void gpu_endings_close(gpu_core *self);
/* Ends the calls of a buffer that this rank has abandoned. They have wait_ns to end by themselves. Then it ends their
   kernels' waits and gives them wait_ns once more. False: a stream still has work that uses the buffer. The ends of
   these calls have then been reported as EXPAR_ERR_ABORTED, and everything that their kernels use must stay. */
bool gpu_endings_abandon(gpu_core *self, int64_t wait_ns);

/* Operations of a table of either mode. */
#define GPU_CALL_OPS                                                                                                   \
    .streams = true, .halt = gpu_halt, .begin = gpu_begin, .keep = gpu_keep, .follows = gpu_follows,                   \
    .place = gpu_take_place, .join = gpu_join, .depart = gpu_depart, .record = gpu_record, .end = gpu_end,             \
    .tell = gpu_tell

#endif
