/* SPDX-License-Identifier: Apache-2.0 */
/* exec: how the steps of a call are carried out. An executor is a table of operations with a buffer's memory behind it;
 * cpu (worker threads over mapped memory) and cuda (kernels on the caller's stream) are the two that there are.
 *
 * Called by ep only; calls group, shmem (memory of peers, waiting), mem and base. ep writes each call once, as a
 * sequence of steps: arguments were checked, shapes and outputs were fixed there. When a step's facts are known is the
 * executor's answer: at once, or when the stream comes there.
 *
 * Making one is the only thing that differs from outside (executor_kind; exec/cpu/create.h, exec/cuda/create.h). Every
 * implementation passes tests/ep; tests/exec/recorder.h is a third, which writes down what it is asked
 * for. */
#ifndef EXPAR_EXEC_EXECUTOR_H
#define EXPAR_EXEC_EXECUTOR_H

#include "base/knobs.h"
#include "exec/event.h"
#include "exec/step.h"
#include "link/link.h"
#include "mem/place.h"

typedef struct executor executor;

/* ---- a call, as executors see it ------------------------------------------------------------------------------------
 *
 * Lives in the call (ep_call), from begin to end; a buffer may have several at a time, in different phases. ep sets
 * `asked` and num_sms before begin; from then on all is the executor's to write. */
typedef struct exec_call {
    int32_t num_sms; /* SMs, or worker threads, of this call; 0: the buffer's */
    bool asked;      /* somebody will ask how it ended: by waiting for it, or by its event */
    bool captured;   /* nothing runs now: the call becomes part of a graph */
    bool placed;     /* it has its place behind the calls before it; steps may follow */
    /* Where work is put on a stream: */
    void *stream;
    bool has_stream;            /* known, and whether a capture goes on there */
    unsigned long long capture; /* number of the capture */
    uint64_t ticket;            /* by which kernels tell of the call; 0: nobody asks */
} exec_call;

/* Told how a call ended, by any thread, once: a failure, else the verdict (rank -1: none) and how many rows were
   dropped. Must neither block nor call a driver. */
typedef void (*executor_done_fn)(void *context, expar_status status, const ep_verdict *verdict, int64_t dropped);

/* Where the time of a call went on this rank, by clocks that its kernels read. For benchmarks. A dispatch or a combine,
   from its first warp's start: until the last warp knows the peers' places, until the median warp and the last one
   have their last row on its way, and until all ranks are through. The notify before it (a fresh dispatch), span by
   span: the layout, until this rank's hellos are on their way, until all hellos are here, until the counts are with
   handle and host; and the gap between the two kernels. */
typedef struct executor_times {
    bool notified; /* the next five count */
    double layout_us, hellos_us, wait_us, counts_us, gap_us;
    double open_us, sent_middle_us, sent_us, ended_us;
} executor_times;
/* Memory of the caller's that all ranks read where it lies: rank r at offset + shifts[r] from where it has this rank's
   heap, modulo 2^64. */
typedef struct exec_mapping {
    uint64_t offset;
    const uint64_t *shifts; /* [N]; NULL: all are 0 */
    void *held;             /* the executor's; NULL: nothing is to be given back */
} exec_mapping;

/* ---- operations -----------------------------------------------------------------------------------------------------
 *
 * Every slot is filled. A call begins with `begin`; nothing of it is put anywhere before `place`; a notify
 * comes before a send, each send before its receive, and `end` behind all, whatever failed. Between begin and end
 * prepare, keep and the steps on one rank come where a call needs them. A call that is handed to a thread to finish
 * there is copied, with its exec_call, between two steps; such a call has no `end`. Calls of one buffer are begun one
 * after another; of two that are open at a time no step of the second that all ranks take part in comes before the
 * first is sent, and none but a notify before the first is received.
 *
 * Statuses: EXPAR_OK with a verdict where a step has one, for a refusal of some rank is no failure of the executor.
 * Else EXPAR_ERR_PEER or EXPAR_ERR_ABORTED (the buffer is then unusable), EXPAR_ERR_MEMORY, or an error
 * of the device. */
typedef struct executor_ops {
    const char *name;
    /* Steps only put work on the caller's stream: a call's rest needs no thread of its own to finish by itself, `tell`
       says how it went, and a step that failed is not known to have reached the other ranks. */
    bool streams;
    /* Rows for or from memory that peers cannot reach pass through the pool where it has room: a copy costs less there
       than the queue. */
    bool stages;
    int32_t unit_bytes; /* rows that a combine writes, or adds as biases, begin at multiples of it */
    bool grows_apart;   /* `grow` is a call of its own: where all have grown its epoch is spent */

    /* ---- the buffer ---- */

    /* How the calls went that have returned before it was known: EXPAR_OK, or why the buffer cannot be used any more.
       `what` is for the error's text. From any thread. */
    expar_status (*check)(executor *self, const char *what);
    /* Of calls that nobody asks for: the first since the last look that did not end well, as executor_done_fn is told.
       False: there is none. */
    bool (*untold)(executor *self, ep_verdict *verdict, int64_t *dropped);
    /* The buffer has been abandoned: whoever waits here in a call of this rank's ends with EXPAR_ERR_ABORTED. What is
       on its way by itself comes to its end. Any thread, once; `destroy` is still to come, not sound. */
    void (*halt)(executor *self);
    /* This rank comes to no call from this one on: posts the refusal as its opening, and waits for nobody. No call of
       this rank's is under way, and none has been broken off. Without effect where kernels open calls. */
    void (*retire)(executor *self, uint32_t epoch, const ep_refusal *refusal);
    /* Until this rank's last call has ended; then as check. */
    expar_status (*await)(executor *self, const char *what);
    /* Times of calls from now on, or none any more; on also forgets the last one's. EXPAR_ERR_UNSUPPORTED where there
       are none to be had. */
    expar_status (*time)(executor *self, bool on);
    /* Of the last call, which must be done. False: there are none. */
    bool (*times)(executor *self, executor_times *out);
    /* Ends what is left, and gives the buffer's memory back: collective while `sound`. quiet: none of this rank's calls
       has failed. Blocks of its pools, and routings, stay good. */
    void (*destroy)(executor *self, bool sound, bool quiet);

    /* ---- memory, local to the rank ---- */

    /* Whether this rank's peers can reach the range, and its offset in the heap. */
    bool (*reaches)(const executor *self, const void *data, uint64_t bytes, uint64_t *offset);
    /* True when they read the range where it lies in other memory, in this call: then the mapping holds until `unmap`,
       which comes once the call's steps have been carried out or put on its stream. If not, they may in a later call.
       Waits for nobody; call has its stream. */
    bool (*map_caller)(executor *self, const exec_call *call, const void *data, uint64_t bytes, exec_mapping *out);
    /* Gives a mapping back that holds something. */
    void (*unmap_caller)(executor *self, exec_mapping *mapping);
    /* For rows that peers need not reach, and a call's own needs: other memory than the pool's where there is some.
       from: by these functions of the caller's alone, as mem_allocate asks them; NULL: the executor's own. */
    expar_status (*take)(executor *self, const mem_allocator *from, uint64_t bytes, mem_block **out);
    /* Whether growth would make the room in the pool for such a block that there is none for now. */
    bool (*lacks)(executor *self, uint64_t bytes);
    /* Gives idle memory of the pool, and of its own, back to the system; where peers map it, with grow_pool of a later
       call. */
    void (*trim)(executor *self);
    /* Room for a routing whose tokens, ranks, ranks_per_node, channels, topk and experts are set, with at most
       most_targets targets each; its arrays are not filled. Given back by ep_routing_free. */
    expar_status (*routing_make)(executor *self, ep_routing *routing, int32_t most_targets);
    /* Room for a row map of so many slots. What nothing has been written to names no row, unless steps are carried out
       in any case once they are put on a stream. */
    expar_status (*map_make)(executor *self, int64_t slots, mem_block **out);

    /* ---- a call begins ---- */

    /* Learns of the stream; nothing is put there yet. call->asked is set. On failure the call may still be refused. */
    expar_status (*begin)(executor *self, exec_call *call, void *stream);
    /* Gets ready for rows of this form, before any rank can be waiting for this one's steps. */
    expar_status (*prepare)(executor *self, const ep_form *form, int64_t row_bytes);
    /* Whether records and rings hold calls of this form as they are: the same on all ranks. Asked once a call, by the
       thread that is to make them larger, while no other can be at it. */
    bool (*fits)(executor *self, const ep_form *form, int64_t row_bytes);
    /* In a capture: the graph keeps these blocks as long as it lives, and all that is made of it. NULLs are skipped. */
    expar_status (*keep)(executor *self, const exec_call *call, mem_block *const *blocks, int32_t count);
    /* Whether the call's stream can wait for the event in the host's place, once the call has its place. */
    bool (*follows)(const executor *self, const exec_call *call, expar_event *event);
    /* Takes the call's place behind the calls of this rank before it, on any buffer of the group; those of other
       threads wait here until `end`. Without effect when it has one. */
    expar_status (*place)(executor *self, exec_call *call);
    /* Where `follows` said so, once the call has its place: its stream waits for the event. */
    expar_status (*join)(executor *self, const exec_call *call, expar_event *event);

    /* ---- steps that all ranks take part in ---- */

    /* For a call that does not fit, while no other of the buffer is under way on this rank: opens with a hello without
       counts; where all ranks come with the same form, all make room for it, or none does. What came of it is the
       verdict: a rank that has no memory refuses, and the call has been told of. Records that have grown know nothing
       of the epoch yet, in which the call itself opens then (unless grows_apart). Pools that grow do so for what the
       step says of them, if they can. */
    expar_status (*grow)(executor *self, const ep_grow_step *step, ep_verdict *verdict);

    /* Opens a fresh dispatch or a route, or any call that this rank refuses (without routing; it needs no place then):
       makes the layout, exchanges hellos with counts, fills the routing. An index out of range is this rank's
       refusal. */
    expar_status (*notify)(executor *self, exec_call *call, ep_notify_step *step);
    /* Where notify said so (step->grows), behind it and before anything else of the call, on all ranks, whatever became
       of the call on this one: more memory for pools, so that `count` blocks of these sizes (0 to
       MEM_POOL_MOST_REACHED) find room beside what is held, and what found none in earlier calls; where a rank has
       trimmed, memory of its that is idle goes. EXPAR_OK where there
       is no such memory: nothing has changed then. */
    expar_status (*grow_pool)(executor *self, const uint64_t *bytes, int32_t count);
    /* Exchanges offers (cached: with the hellos; an index out of range is this rank's refusal), unless they stand
       (room); where all ranks go on, and nothing of this rank's goes by the queue, its rows are put on their way,
       too. */
    expar_status (*dispatch_send)(executor *self, exec_call *call, ep_dispatch_step *step);
    /* The rest, until all rows are here and this rank's have left; idx of rows that nobody sent is -1. */
    expar_status (*dispatch_receive)(executor *self, exec_call *call, ep_dispatch_step *step);
    /* Likewise. After receive the caller may use x again. */
    expar_status (*combine_send)(executor *self, exec_call *call, ep_combine_step *step);
    expar_status (*combine_receive)(executor *self, exec_call *call, ep_combine_step *step);

    /* ---- steps on one rank ---- */

    expar_status (*map)(executor *self, exec_call *call, const ep_map_step *step);
    expar_status (*expand)(executor *self, exec_call *call, const ep_expand_step *step);
    expar_status (*pad)(executor *self, exec_call *call, const ep_padding_step *step);
    expar_status (*reduce)(executor *self, exec_call *call, const ep_reduce_step *step);
    expar_status (*columns)(executor *self, exec_call *call, const ep_columns_step *step);
    expar_status (*sources)(executor *self, exec_call *call, const ep_sources_step *step);
    /* Whatever the host knows of them. */
    expar_status (*tell_counts)(executor *self, exec_call *call, const ep_counts_step *step);
    expar_status (*copy)(executor *self, exec_call *call, void *dest, const void *source, uint64_t bytes);

    /* ---- a call ends ---- */

    /* Behind all of its steps: what comes later may follow. Without effect for a call that has no place, or has come
       here. */
    expar_status (*end)(executor *self, exec_call *call);
    /* Then, only where the executor streams: calls done once the call's work has ended, and whatever other threads have
       put on its stream meanwhile. `keeper` is filled for whoever
       waits for that, since a device that is lost calls nobody: looking may call done, and it is to be dropped, after
       that also. On failure done is not called. */
    expar_status (*tell)(executor *self, const exec_call *call, executor_done_fn done, void *context,
                         event_keeper *keeper);
} executor_ops;

struct executor {
    const executor_ops *ops;
    mem_pool *pool;   /* where peers reach: outputs whose rows come directly */
    bool grows;       /* the pool: by all ranks together, in calls whose counts they wait for (ops.grow_pool) */
    bool offers_room; /* takes rooms: a fresh dispatch's rows can be sent ahead of the host's knowing the counts */
    bool by_node;     /* its ranks are on several nodes: each makes its sum, and what it needs for it comes with rows */
    const link_counts *sent; /* what this rank has handed to a network; NULL: nothing goes there */
};

/* ---- making ------------------------------------------------------------------------------------------------------ */

struct expar_group;
typedef struct executor_plan {
    struct expar_group *group;
    uint32_t number; /* of the buffer, the same on all ranks: what its calls' waits are noted for (boot_topic) */
    expar_device device;
    const ep_shape *shape; /* the same on all ranks */
    int32_t num_threads;   /* of calls on the CPU, the caller's counted in; 0: the library's choice */
    int32_t num_sms;       /* of calls on a GPU; 0: the library's choice */
    int32_t ring_slots;    /* given by the caller; 0: the library's choice, by the rows of each call */
    /* Of a pool that is not part of the buffer: what it begins with, and the most that it holds (0: no limit). */
    uint64_t pool_bytes, pool_limit_bytes;
} executor_plan;
/* What there is to know of the executor of a device before one is made. */
typedef struct executor_kind {
    /* Collective: takes the buffer's memory and makes this rank's part, with its pool. All ranks are made, and have
       cleared their records, or none is: EXPAR_ERR_REMOTE names a rank that could not. */
    expar_status (*create)(const executor_plan *plan, executor **out);
    /* The layout by itself, for callers without a buffer, made where the indices lie. On a GPU put on the stream and
       not waited for; indices out of range count as -1 there, and are EXPAR_ERR_INDEX on the CPU. */
    expar_status (*count)(const ep_count_step *step);
    bool grows;           /* its buffers need no limits */
    bool spans_nodes;     /* its buffers serve ranks that do not all map each other */
    knob_id num_channels; /* whose value is the library's choice */
    int32_t least_sms;    /* of executor_plan.num_sms; what is wrong with others the executor says */
    /* The pool is a part of the buffer, of shape->pool_bytes; this is what it has to hold beside the outputs of the
       largest dispatches, of `rows` rows. NULL: outputs lie in the group's memory. */
    uint64_t (*beside_outputs)(const ep_shape *shape, int64_t rows);
    /* Keeps these blocks, of a buffer on the device, until the stream has come past what it holds now; the caller's
       references may go then. In a capture the graph keeps them. NULLs are skipped. The buffer and its group may be
       gone. On failure nothing is kept. Any thread. */
    expar_status (*hold_until)(expar_device device, void *stream, mem_block *const *blocks, int32_t count);
} executor_kind;
/* NULL: there is none for such a device. */
const executor_kind *executor_kind_of(expar_device_type type);

#endif
