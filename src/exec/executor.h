/* SPDX-License-Identifier: Apache-2.0 */
/* exec: how the steps of a call are carried out. An executor is tables of operations with a buffer's memory behind
 * them; cpu (worker threads over mapped memory) and cuda (kernels on the caller's stream) are the two that there are.
 *
 * Called by ep only; calls group, shmem (memory of peers, waiting), mem and base. ep writes each call once, as a
 * sequence of steps: arguments were checked, shapes and outputs were fixed there. When a step's facts are known is the
 * executor's answer: at once, or when the stream comes there.
 *
 * There are three tables. This one has what calls of every mode need: life, memory, a place among the rank's calls, an
 * end, and whoever is told of it. normal.h has the steps of normal mode, low_latency.h those of low latency; a buffer
 * is of one of the two.
 *
 * Making one is the only thing that differs from outside (executor_kind; exec/cpu/create.h, exec/cuda/create.h). Every
 * implementation passes tests/ep; tests/exec/recorder.h is a third, which writes down what it is asked
 * for. */
#ifndef EXPAR_EXEC_EXECUTOR_H
#define EXPAR_EXEC_EXECUTOR_H

#include "base/knobs.h"
#include "exec/event.h"
#include "link/link.h"
#include "mem/mem.h"
#include "mem/place.h"
#include "proto/normal.h"

#include <expar/tensor.h>
#include <string.h>

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

/* What all ranks have found out about a call: rank -1 when all agreed; else the lowest rank that refused (with its
   reason), or whose form differs from another one's. Then the status is EXPAR_ERR_MISMATCH, without text, and the bytes
   of the two forms are here; what they mean the mode of the buffer knows. */
#define EP_FORM_BYTES 64
typedef struct ep_verdict {
    int32_t rank;
    ep_refusal reason;
    uint32_t form_bytes;
    unsigned char form[EP_FORM_BYTES], other[EP_FORM_BYTES];
} ep_verdict;
static inline void ep_verdict_differ(ep_verdict *verdict, int32_t rank, const void *form, const void *other,
                                     size_t bytes)
{
    verdict->rank = rank;
    verdict->reason = (ep_refusal){.status = EXPAR_ERR_MISMATCH};
    verdict->form_bytes = (uint32_t)bytes;
    memcpy(verdict->form, form, bytes);
    memcpy(verdict->other, other, bytes);
}
/* A status with this thread's last error, cut to what fits, as a refusal. */
ep_refusal ep_refusal_of(expar_status status);

/* Told how a call ended, by any thread, once: a failure, else the verdict (rank -1: none) and how many rows were
   dropped. Must neither block nor call a driver. */
typedef void (*executor_done_fn)(void *context, expar_status status, const ep_verdict *verdict, int64_t dropped);

/* ---- operations -----------------------------------------------------------------------------------------------------
 *
 * Every slot is filled. A call begins with `begin`; nothing of it is put anywhere before `place`, and `end` comes
 * behind all of its steps, whatever failed. Between begin and end `keep` comes where a call needs it. A call that is
 * handed to a thread to finish there is copied, with its exec_call, between two steps; such a call has no `end`. Calls
 * of one buffer are begun one after another.
 *
 * Statuses: EXPAR_OK with a verdict where a step has one, for a refusal of some rank is no failure of the executor.
 * Else EXPAR_ERR_PEER or EXPAR_ERR_ABORTED (the buffer is then unusable), EXPAR_ERR_INTERRUPTED, EXPAR_ERR_MEMORY, or
 * an error of the device. */
typedef struct executor_ops {
    const char *name;
    /* Steps only put work on the caller's stream: a call's rest needs no thread of its own to finish by itself, `tell`
       says how it went, and a step that failed is not known to have reached the other ranks. */
    bool streams;

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
    /* This rank comes to no call from this one on: posts the refusal as its opening, as far as it may do so without
       waiting for anybody. No call of this rank's is under way, and none has been broken off. epoch: of normal mode.
       Without effect where kernels open calls. */
    void (*retire)(executor *self, uint32_t epoch, const ep_refusal *refusal);
    /* Until this rank's last call has ended; then as check. */
    expar_status (*await)(executor *self, const char *what);
    /* Times of calls from now on, or none any more; on also forgets the last one's. EXPAR_ERR_UNSUPPORTED where there
       are none to be had. */
    expar_status (*time)(executor *self, bool on);
    /* Ends what is left, and gives the buffer's memory back: collective while `sound`. quiet: none of this rank's calls
       has failed. Blocks of its pools, and routings, stay good. */
    void (*destroy)(executor *self, bool sound, bool quiet);
    /* Memory for results, for rows that peers need not reach, and for a call's own needs: other memory than the pool's
       where there is some. from: by these functions of the caller's alone, as mem_allocate asks them; NULL: the
       executor's own. */
    expar_status (*take)(executor *self, const mem_allocator *from, uint64_t bytes, mem_block **out);

    /* ---- a call begins ---- */

    /* Learns of the stream; nothing is put there yet. call->asked is set. On failure the call may still be refused. */
    expar_status (*begin)(executor *self, exec_call *call, void *stream);
    /* In a capture: the graph keeps these blocks as long as it lives, and all that is made of it. NULLs are skipped. */
    expar_status (*keep)(executor *self, const exec_call *call, mem_block *const *blocks, int32_t count);
    /* Whether the call's stream can wait for the event in the host's place, once the call has its place. */
    bool (*follows)(const executor *self, const exec_call *call, expar_event *event);
    /* Takes the call's place behind the calls of this rank before it, on any buffer of the group; those of other
       threads wait here until `end`. Without effect when it has one. */
    expar_status (*place)(executor *self, exec_call *call);
    /* Where `follows` said so, once the call has its place: its stream waits for the event. */
    expar_status (*join)(executor *self, const exec_call *call, expar_event *event);

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

struct normal_ops;
struct ll_ops;
struct executor {
    const executor_ops *ops;
    const struct normal_ops *normal; /* NULL: the buffer is of low latency */
    const struct ll_ops *ll;         /* NULL: it is of normal mode */
    const link_counts *sent;         /* what this rank has handed to a network; NULL: nothing goes there */
    /* Of normal mode: */
    mem_pool *pool;   /* where peers reach: outputs whose rows come directly */
    bool grows;       /* the pool: by all ranks together, in calls whose counts they wait for (normal_ops.grow_pool) */
    bool sends_ahead; /* a fresh dispatch's rows, into spare memory of the pool, before the host knows the counts */
    bool by_node;     /* its ranks are on several nodes: each makes its sum, and what it needs for it comes with rows */
};

/* ---- making ------------------------------------------------------------------------------------------------------ */

struct expar_group;
struct ep_count_step;
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
    expar_status (*count)(const struct ep_count_step *step);
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
