/* SPDX-License-Identifier: Apache-2.0 */
/* What both modes have on a GPU: a buffer's place there, the order of its calls, their launches and their ends.
 *
 *   home.c      the device heap that a rank's buffers on a GPU share (home.h)
 *   store.c     one store of blocks for the outputs of all of them; growth
 *   share.c     this rank's share of the GPU
 *   close.c     what ends with a buffer
 *   lend.c      memory beside the pool
 *   segments.h  memory of the caller's that peers read where it lies
 *   scratch.c   small memory, handed on from buffer to buffer
 *   programs.c  programs of kernels, and launches
 *   together.c  several programs compiled at the same time
 *   order.c     calls follow each other, on streams and in graphs
 *   waiting.c   waits of the host for what its GPU does
 *   places.c    places on streams that all later calls come after
 *   hold.c      blocks that are kept for a graph, or that a stream still uses
 *   guard.c     a thread for kernels' waits: asks those who are awaited how they stand
 *   stamps.c    what warps have written of their way, put together (stamps.h: the benchmark calls it, too)
 *   finish.c    how calls end: verdicts, failures
 *   endings.c   who is told of it, and when
 *
 * A buffer of normal mode (normal/normal_gpu.h) and one of low latency (low_latency/ll_gpu.h) have a gpu_core each.
 * kernels/core/args.h is what host and kernels know.
 *
 * A group's kernels wait for each other. Ranks that share a GPU must therefore fit on it side by side: num_sms of each,
 * added up, at most the GPU's SMs (share.c checks). */
#ifndef EXPAR_EXEC_CUDA_CORE_GPU_H
#define EXPAR_EXEC_CUDA_CORE_GPU_H

#include "base/knobs.h"
#include "exec/cuda/core/scratch.h"
#include "exec/cuda/core/segments.h"
#include "exec/cuda/kernels/core/args.h"
#include "exec/executor.h"
#include "shmem/device_heap.h"

#include <stdatomic.h>

/* What kernels take of the shared memory for records of their own, at most. */
#define GPU_STATIC_SHARED_BYTES 512

/* What a rank's buffers on one GPU share: the heap, and the store of their pools (home.c). */
typedef struct gpu_home gpu_home;

/* Memory beside the pool, and whoever gives it back (lend.c). */
typedef struct gpu_lender gpu_lender;

/* Who looks after kernels' waits, one a rank (guard.c). */
typedef struct gpu_guard gpu_guard;

/* What the guard knows of a buffer. */
typedef struct gpu_watch {
    gpu_guard *guard;
    struct gpu_core *next; /* guarded by the guard's lock */
    uint64_t *awaits;      /* [N] pinned: gpu_place.awaits, as the host sees it */
    /* Calls that have taken their places, and of these, those whose marks are on their streams. Written by whoever
       calls, read by the guard; in sequential order, with gpu_guard.sleeping. */
    atomic_uint begun, marked;
    /* A call was made in a capture: kernels may run at any time. Set by whoever calls, relaxed. */
    atomic_bool in_graphs;
    /* By the guard: */
    unsigned settled; /* so many calls are through */
    bool waits;       /* kernels wait: `wait` stands for them, in the call of this epoch */
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
    gpu_home *home;         /* NULL: not yet */
    device_heap *heap;      /* the home's */
    gpu_segments *segments; /* likewise */
    const cuda_device *device;
    expar_group *group;
    sym *sym;              /* the group's */
    int32_t num_sms;       /* of the buffer */
    int32_t most_sms;      /* of a call: this rank's share of its GPU */
    uint32_t number;       /* of the buffer, the same on all ranks */
    uint32_t topic_kind;   /* boot_kind of its calls */
    int64_t late_limit_ms; /* with masks: of waits for this buffer's ranks (boot_wait) */
    bool with_threads;     /* other ranks are threads of this process: the default stream is theirs, too */
    bool shares_gpu;       /* with such ranks: nothing is loaded once the buffer is made */
    gpu_place place;       /* as kernels get it, but for the call's ticket (gpu_place_of) */
    gpu_scratch *scratch;  /* device: heaps, state; pinned: the report */
    gpu_report *report;    /* the host's view */
    cu_stream own_stream;  /* for what the buffer itself does, and calls that are refused before theirs is known */
    bool unsettled;        /* nobody has waited for what stands there: its memory may still be written to */
    /* ---- the call that is being made, by the thread that makes it ---- */
    bool capturing;   /* it is part of a capture */
    void *called_on;  /* its stream; NULL: none, or the default one */
    uint64_t begun;   /* calls so far */
    uint64_t tickets; /* given out so far */
    gpu_order *order;
    gpu_lender *lender; /* the order's */
    /* ---- for benchmarks, by the thread that makes calls ---- */
    int32_t stamped_warps; /* of the last call's kernel, on the whole GPU */
    uint64_t *stamps;      /* device memory that kernels write times to; NULL: they do not */
    gpu_scratch *stamp_memory;
    /* ---- how its kernels' waits end ---- */
    gpu_watch watch;
    sym_listener listener;
    /* Why this rank has had kernels leave whose group is sound. Whoever has raised `ending` (acq_rel) writes, then
       raises `has_reason` (release), then the abort word; read behind has_reason (acquire). */
    atomic_bool ending, has_reason;
    atomic_bool halted; /* by any thread, once; read by waits of the host (relaxed: it publishes nothing) */
    error_kept reason;
    /* Goes on without a rank that the guard finds lost; why: for the log. NULL: a loss ends the buffer's waits. */
    void (*lose)(struct gpu_core *self, int32_t rank, const char *why);
    /* [N] pinned, of a low-latency buffer: what was missing of each rank when a wait was given up (ll_gpu_due); NULL:
       kernels do not say. */
    const uint64_t *dues;
    /* Calls whose ends are still to be told, and threads that look after such. The thread that makes a call, or looks,
       adds one (relaxed), the thread that has told it, or looked, takes one off (release), the thread that destroys the
       buffer waits for none (acquire). */
    atomic_int endings;
    struct gpu_ending *first_ending, **last_ending; /* endings.c, guarded by its lock: the oldest call first */
    struct gpu_core *left_next;                     /* endings.c: of those that were left behind */
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
/* A source with macros for the buffer's shape, or without where it serves any. */
expar_status gpu_program_load(const gpu_core *self, const char *source, const cuda_macro *macros, size_t num_macros,
                              cuda_program **out);
/* A program like that, and a kernel of it. */
typedef struct gpu_wish {
    const char *source, *name;
    const cuda_macro *macros;
    size_t num_macros;
    cuda_program **program; /* the wisher's to release, also where another wish has failed */
    cu_function *kernel;
} gpu_wish;
#define GPU_MOST_WISHES 4
/* So many, which are compiled at the same time (together.c). */
expar_status gpu_programs_wish(const gpu_core *self, const gpu_wish *wishes, size_t count);
/* A launch on the stream of the call; arguments: the kernel's one parameter. */
expar_status gpu_launch(gpu_core *self, const exec_call *call, cu_function function, uint32_t blocks, uint32_t threads,
                        uint32_t shared_bytes, void *arguments);

/* ---- home.c ------------------------------------------------------------------------------------------------------ */
/* Collective: a home on the GPU, which a buffer of this rank's may have already, and with it heap and device. */
expar_status gpu_home_enter(gpu_core *self, int32_t device);
/* Collective while the group is sound, once the buffer's memory has been given back. quiet: as in device_heap_destroy.
   Without effect before it was entered. */
void gpu_home_leave(gpu_core *self, bool quiet);
/* ---- create.c ---------------------------------------------------------------------------------------------------- */
/* All ranks learn whether all could; then uuids[r], where they are asked for, is that of rank r's GPU. Collective. */
expar_status gpu_agree(const gpu_core *self, expar_status own, cu_uuid *uuids);
/* How many ranks have this rank's GPU. Collective. */
expar_status gpu_count_sharers(const gpu_core *self, int32_t *sharers);
/* SMs of a buffer and the most of a call: asked (0: usual, or as many as there are), of what sharers leave each other.
   Also what the environment says of queues. */
expar_status gpu_choose_sms(gpu_core *self, int32_t asked, knob_id usual, int32_t sharers);
/* For kernels whose own host has stopped: place->orphan_ns. */
expar_status gpu_read_orphan_time(gpu_place *place);

/* ---- close.c ----------------------------------------------------------------------------------------------------- */
/* Until all calls have ended, and been told; then nothing looks after the buffer any more. Also of one that was made in
   part. */
void gpu_core_stop(gpu_core *self);
/* Its small memory, after that. */
void gpu_core_free(gpu_core *self);
/* Of a buffer whose rank goes alone. False: a call is still on its stream, which the log is told (`what`), and what its
   kernels use has to stay, the object too; nothing looks after it any more. */
bool gpu_core_abandon(gpu_core *self, const char *what);

/* ---- lend.c ------------------------------------------------------------------------------------------------------ */
/* For an order of calls, which has the event recorded behind each of them. The device has been entered. */
expar_status gpu_lender_make(const cuda_device *device, gpu_lender **out);
cu_event gpu_lender_event(const gpu_lender *lender);
/* What was lent keeps it; NULL is allowed. */
void gpu_lender_drop(gpu_lender *lender);
/* The mark of a call of this rank's has been put behind its last step; or (ended) no call is to come any more. What was
   let go before is given back once that has passed. By the thread that has the order. */
void gpu_lender_settle(gpu_lender *lender, bool ended);
/* A block beside the pool; from: of the caller's, NULL: of the driver's. EXPAR_ERR_BUFFER_SIZE while a capture goes on,
   which could not keep it; EXPAR_ERR_MEMORY; what mem_allocate finds wrong. */
expar_status gpu_lend(gpu_core *self, const mem_allocator *from, uint64_t bytes, mem_block **out);

/* ---- order.c ----------------------------------------------------------------------------------------------------- */
/* The device has been entered, for both. */
expar_status gpu_order_hold(gpu_core *self);
void gpu_order_release(gpu_core *self);
/* Until the last call has ended on the GPU, or the driver says why not. */
expar_status gpu_order_await(gpu_core *self);
/* Likewise, but for so long at most; false: it has not ended by then. Any thread. */
bool gpu_order_has_ended(const gpu_core *self, int64_t wait_ns);
/* EXPAR_OK while the context of the last call is sound, whether it has ended or not. From any thread. */
expar_status gpu_order_look(const gpu_core *self);
/* Who has launched a kernel that waits for other ranks says so, and again once all of them are known to run theirs; not
   by a call without a ticket, which has waited for nothing. */
void gpu_order_note_wait(gpu_core *self, bool may_wait);
/* Before a kernel, a copy or a wait is put on the stream, outside of captures, where ranks of this process share the
   GPU: until no kernel of this rank's may be waiting, for the time-out at most unless one is, and while the group is
   sound. The
   device has been entered. */
void gpu_order_settle(gpu_core *self, const exec_call *call);
/* Operations. */
expar_status gpu_begin(executor *base, exec_call *call, void *stream);
bool gpu_follows(const executor *base, const exec_call *call, expar_event *event);
expar_status gpu_take_place(executor *base, exec_call *call);
expar_status gpu_await(executor *base, const char *what);
expar_status gpu_end(executor *base, exec_call *call);
/* The stream for what the buffer itself does; and until that has come to its end. EXPAR_ERR_INTERRUPTED: the program
   did not want to wait, and self->unsettled is set from then on. */
expar_status gpu_own_stream_make(gpu_core *self);
expar_status gpu_own_stream_await(gpu_core *self);
/* Until all that stands on a stream of the library's has come to its end; EXPAR_ERR_INTERRUPTED as above. */
expar_status gpu_stream_await(const cuda_device *device, cu_stream stream, const char *what);
/* A place for a call that is refused before it has one; without a stream it gets the executor's. */
expar_status gpu_place_refused(gpu_core *self, exec_call *call);
/* What this thread does between the two is in no stream's order, so that captures need not be disturbed by it. */
expar_status gpu_leave_captures(int *mode);
void gpu_return_to_captures(int mode);

/* The stream waits for the event, in the place of the call, which it has; later calls come after it, too. */
expar_status gpu_join(executor *base, const exec_call *call, expar_event *event);
/* The places on streams that its calls come after. */
gpu_places *gpu_order_places(const gpu_order *order);

/* ---- places.c ---------------------------------------------------------------------------------------------------- */
gpu_places *gpu_places_make(void); /* NULL: no memory */
gpu_places *gpu_places_hold(gpu_places *places);
void gpu_places_drop(gpu_places *places); /* NULL is allowed */
/* All later calls come after marks of the stream that were made before the moment. By the thread that has the order. */
void gpu_places_note(gpu_places *places, unsigned long long stream, uint64_t until);
/* mem_covers_fn: whether all later calls come after the mark. Any thread. */
bool gpu_places_cover(void *places, const cuda_mark *mark);

/* ---- hold.c ------------------------------------------------------------------------------------------------------ */
/* An operation; and executor_kind.hold_until. */
expar_status gpu_keep(executor *base, const exec_call *call, mem_block *const *blocks, int32_t count);
expar_status gpu_hold_until(expar_device device, void *stream, mem_block *const *blocks, int32_t count);

/* ---- guard.c ----------------------------------------------------------------------------------------------------- */
/* The guard looks after the buffer's kernels from then on, and until then. Collective with those of other buffers only
   in that one thread of a rank makes and destroys them. */
expar_status gpu_guard_hold(gpu_core *self);
void gpu_guard_release(gpu_core *self);
/* A call takes its place; its mark is on its stream, or could not be put there. By whoever calls. */
void gpu_guard_note_begin(gpu_core *self);
void gpu_guard_note_end(gpu_core *self);
/* A call was made in a capture: from now on hosts and GPUs do not count the buffer's calls alike. */
void gpu_guard_note_captured(gpu_core *self);
/* The end of a call is to be told. */
void gpu_guard_note_told(gpu_core *self);
/* Whether a kernel of this rank's has waited for another one of late, for longer than a beat. Any thread. */
bool gpu_guard_sees_wait(const gpu_core *self);

/* ---- finish.c ---------------------------------------------------------------------------------------------------- */
void gpu_listen(gpu_core *self);
/* An operation. Kernels that run are not told: they are on their way. */
void gpu_halt(executor *base);
void gpu_retire(executor *base, uint32_t epoch, const ep_refusal *refusal);
/* Has the buffer's kernels leave their waits, for this status and with this thread's last error. Any thread. */
void gpu_end_waits(gpu_core *self, expar_status status);
/* What kernels see, too, while they wait: sym_check says why. From any thread. */
bool gpu_group_failed(const gpu_core *self);
/* Operations. gpu_check is EXPAR_OK while no wait of a kernel was given up; else it names who was awaited. */
expar_status gpu_check(executor *base, const char *what);
bool gpu_untold(executor *base, ep_verdict *verdict, int64_t *dropped);
/* Gives the call its ticket. By its first step. */
void gpu_ticket_take(gpu_core *self, exec_call *call);
/* Until a kernel has set the word of the report to this call's ticket; then gpu_check. A group that has failed ends it,
   too, also where the stream does not come to the kernel. */
expar_status gpu_ticket_await(gpu_core *self, const exec_call *call, const uint64_t *word, const char *what);
/* For whoever waits for what a kernel says, or for the end of a call: the group's failure once a kernel that runs would
   have told of it. *seen_ns: when the waiting one first saw that the group has failed; 0: not yet. From any thread. */
expar_status gpu_look_at_group(const gpu_core *self, int64_t *seen_ns, const char *what);
/* Fills the verdict from the report when the call with this ticket left one there; rows that it dropped. Once a
   call, or once a notify and once the call after it: a verdict that has been read makes place for another one. */
int32_t gpu_verdict_read(const gpu_core *self, uint64_t ticket, ep_verdict *verdict);
/* True when a kernel has told of something that did not go well and that nobody has read yet. Looks at host memory
   alone, from any thread. */
bool gpu_has_told(const gpu_core *self);
/* How the call with this ticket ended, which has: EXPAR_OK with a verdict, or what the kernels gave up. */
expar_status gpu_ending_read(gpu_core *self, uint64_t ticket, ep_verdict *verdict, int32_t *dropped);

/* ---- endings.c --------------------------------------------------------------------------------------------------- */
/* An operation. Nothing is put on the stream but a mark. */
expar_status gpu_tell(executor *base, const exec_call *call, executor_done_fn done, void *context,
                      event_keeper *keeper);
/* Tells the ends of calls that a later call's kernel shows to be over. With `all`, or where a kernel has told of
   something, the driver is asked about the others, too. Any thread, with no lock held. */
void gpu_endings_reap(gpu_core *self, bool all);
/* True when ends of calls are to be told, or looked after; then the executor stays until gpu_endings_leave. */
bool gpu_endings_enter(gpu_core *self);
void gpu_endings_leave(gpu_core *self);
/* Until no end of a call is to be told any more. The stream has the group's time-out for that, as long as its context
   is sound; what has not ended by then is told here, as lost. */
void gpu_endings_close(gpu_core *self);
/* Of a buffer whose rank goes alone: its calls have so long to end by themselves, and as long again once their kernels'
   waits are ended. False: something is still on a stream, where it finds the buffer no more; whoever was to be told of
   its end has been, by EXPAR_ERR_ABORTED. What its kernels use has to stay. */
bool gpu_endings_abandon(gpu_core *self, int64_t wait_ns);

#endif
