/* SPDX-License-Identifier: Apache-2.0 */
/* exec: how the steps of a call are carried out. An executor is a set of tables of operations, and a buffer's memory.
 * There are two: cpu (worker threads over mapped memory) and cuda (kernels on the caller's stream).
 *
 * Only ep calls it. It calls group, shmem (memory of peers, waiting), mem and base. Each call is written once, in ep,
 * as a sequence of steps. They follow after arguments were checked, and shapes and outputs were fixed. The executor
 * decides when the results of a step are known: at once, or when the stream reaches it.
 *
 * There are three tables. This one has what calls of every mode need: creation and destruction, memory, a place among
 * the rank's calls, the end of a call, and notification of its end. The steps of normal mode are in normal.h, and those
 * of low latency in low_latency.h. A buffer has one of the two modes.
 *
 * From outside, executors differ only in how they are made (executor_kind; exec/cpu/create.h, exec/cuda/create.h).
 * Every implementation passes tests/ep. tests/exec/recorder.h is a third one, which records the operations that it is
 * asked for. */
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
 * It is part of the call (ep_call), from begin to end; a buffer may have several calls at a time, in different phases.
 * ep sets `asked` and num_sms before begin. After that only the executor writes to it. */
typedef struct exec_call {
    int32_t num_sms; /* SMs, or worker threads, of this call; 0: those of the buffer */
    bool asked;      /* a thread will ask how the call ended: it waits for the call, or for its event */
    bool captured;   /* nothing runs now: the call becomes part of a graph */
    bool placed;     /* the call has its place after the calls before it; steps may follow */
    bool lost;       /* set by a failed step: it was broken off, though other ranks may wait in it */
    /* for executors that put work on a stream: */
    void *stream;
    bool has_stream;            /* the stream is known, and whether it is being captured */
    unsigned long long capture; /* number of the capture */
    uint64_t ticket;            /* kernels report on the call under this number; 0: no thread asks */
    void *own;                  /* what the executor keeps of the call from begin to end; NULL: nothing */
} exec_call;

/* The result of the vote: what all ranks have found out about a call. rank is -1 if all agreed. Else it is the lowest
   rank that rejected the call (with its reason), or whose form differs from another one's. Then the status is
   EXPAR_ERR_MISMATCH, without text, and the bytes of the two forms are here. The mode of the buffer knows what they
   mean. */
#define EP_FORM_BYTES 64
typedef struct ep_vote {
    int32_t rank;
    ep_rejection reason;
    unsigned char form[EP_FORM_BYTES], other[EP_FORM_BYTES];
} ep_vote;
static inline void ep_vote_differ(ep_vote *vote, int32_t rank, const void *form, const void *other, size_t bytes)
{
    vote->rank = rank;
    vote->reason = (ep_rejection){.status = EXPAR_ERR_MISMATCH};
    memcpy(vote->form, form, bytes);
    memcpy(vote->other, other, bytes);
}
/* Makes a rejection from a status and this thread's last error, cut to what fits. */
ep_rejection ep_rejection_of(expar_status status);

/* A call of a graph, for an executor whose host carries calls out (executor_ops.record). It is the first member of its
   maker's object. A thread of the executor calls both functions. */
enum { EXEC_REPLAY_PLACES = 40 };
typedef struct exec_replay {
    /* Carries the call out once more, with the executor's part of it, and calls `end` for that. The call has its
       turn. */
    void (*run)(struct exec_replay *self, const exec_call *call);
    /* Frees the object. Nothing has the call any more, or the executor is destroyed. */
    void (*drop)(struct exec_replay *self);
    /* Addresses that the call's steps have. The executor asks the driver in the capture where these lie. */
    int32_t num_places;
    const void *places[EXEC_REPLAY_PLACES];
} exec_replay;
static inline void exec_replay_list(exec_replay *replay, const void *data)
{
    if (data && replay->num_places < EXEC_REPLAY_PLACES) replay->places[replay->num_places++] = data;
}

/* A function that is called once, by any thread, when a call has ended. It gets a failure, or else the result of the
   vote (rank -1: none) and how many rows were dropped. It must neither block nor call a driver. */
typedef void (*executor_done_fn)(void *context, expar_status status, const ep_vote *vote, int64_t dropped);

/* ---- operations -----------------------------------------------------------------------------------------------------
 *
 * Every slot is filled. A call begins with `begin`. Nothing of it is put on a stream or sent before `place`, and `end`
 * comes after all of its steps, even if some failed. A call that needs it calls `keep` between begin and end. A call
 * that a thread is to finish is copied, with its exec_call, between two steps; then the copy has the `end`. Calls of
 * one buffer are begun one after another.
 *
 * Statuses: EXPAR_OK, with the result of the vote where a step has one: a rejection by some rank is no failure of the
 * executor. Else EXPAR_ERR_PEER or EXPAR_ERR_ABORTED (the buffer is then unusable), EXPAR_ERR_INTERRUPTED,
 * EXPAR_ERR_MEMORY, or an error of the device. */
typedef struct executor_ops {
    const char *name;
    /* Steps only put work on the caller's stream. So the rest of a call needs no thread of its own to finish by itself,
       and `tell` reports how it went. A failed step may not have reached the other ranks. */
    bool streams;

    /* ---- the buffer ---- */

    /* Returns how the calls went that returned before their result was known: EXPAR_OK, or why the buffer cannot be
       used any more. `what` is for the error's text. From any thread. */
    expar_status (*check)(executor *self, const char *what);
    /* For calls whose result no thread asks for: reports the first since the last look that failed, as executor_done_fn
       gets it. Returns false if there is none. */
    bool (*untold)(executor *self, ep_vote *vote, int64_t *dropped);
    /* The buffer has been abandoned: threads that wait here in a call of this rank end with EXPAR_ERR_ABORTED. Work
       that needs no thread runs to its end. Any thread may call this, once; `destroy` comes later, not sound. */
    void (*halt)(executor *self);
    /* This rank makes no call from this one on. Posts the rejection as its header, as far as that waits for no rank. No
       call of this rank is under way, and none has been broken off. epoch: of normal mode. Does nothing if kernels open
       calls. */
    void (*retire)(executor *self, uint32_t epoch, const ep_rejection *rejection);
    /* Waits until this rank's last call has ended, then does the same as check. */
    expar_status (*await)(executor *self, const char *what);
    /* Turns the measuring of calls on or off. Turning it on also drops the times of the last call.
       EXPAR_ERR_UNSUPPORTED if the executor has no times. */
    expar_status (*time)(executor *self, bool on);
    /* Ends what is left, and frees the buffer's memory: collective while `sound`. quiet: none of this rank's calls has
       failed. Blocks of its pools, and routings, stay valid. */
    void (*destroy)(executor *self, bool sound, bool quiet);
    /* Takes memory for results, for rows that peers need not reach, and for a call's own needs. It is not the pool's
       memory if there is other memory. from: the caller's functions, which alone are used then, as mem_allocate calls
       them; NULL: the executor's own. */
    expar_status (*take)(executor *self, const mem_allocator *from, uint64_t bytes, mem_block **out);

    /* ---- a call begins ---- */

    /* Records the stream of the call; nothing is put on it yet. call->asked is set. If this fails, the call may still
       be rejected. */
    expar_status (*begin)(executor *self, exec_call *call, void *stream);
    /* In a capture: the graph keeps these blocks as long as it exists, and so does everything made from it. NULLs are
       skipped. */
    expar_status (*keep)(executor *self, const exec_call *call, mem_block *const *blocks, int32_t count);
    /* Says whether the call's stream can wait for the event instead of the host, once the call has its place. */
    bool (*follows)(const executor *self, const exec_call *call, expar_event *event);
    /* Takes the call's place after the earlier calls of this rank, on any buffer of the group. Calls of other threads
       wait here until `end`. Does nothing if the call has a place. */
    expar_status (*place)(executor *self, exec_call *call);
    /* Makes the call's stream wait for the event, if `follows` allowed that. The call has its place. */
    expar_status (*join)(executor *self, const exec_call *call, expar_event *event);
    /* Comes before another thread carries out the rest of the call, with a copy of `call`. Puts work on the stream that
       lasts until the call ends, so later work there comes after the call. keeper->mark gets a mark after that work;
       NULL: there is none. A failure is the result of the call's next step. event: the thread waits for it; NULL: for
       none. The work comes after the event if that is on a stream. */
    void (*depart)(executor *self, exec_call *call, expar_event *event, event_keeper *keeper);

    /* For executors that do not stream: makes a call whose stream is being captured a part of the graph, after the
       event (NULL: none). From then on `replay` carries the call out whenever a stream comes to it in the graph. On
       failure the caller keeps `replay`. */
    expar_status (*record)(executor *self, const exec_call *call, expar_event *event, exec_replay *replay);

    /* ---- a call ends ---- */

    /* Call this after all steps of a call; later calls may then start. It does nothing for a call without a place, and
       nothing the second time. */
    expar_status (*end)(executor *self, exec_call *call);
    /* Comes next, and only if the executor streams. It calls `done` after the call's work, and work that other threads
       have put on its stream meanwhile, has ended. It fills `keeper` for threads that wait for that, since a lost
       device calls no function. Such a thread looks, which may call `done`; the keeper is dropped in any case. If this
       fails, `done` is not called. */
    expar_status (*tell)(executor *self, const exec_call *call, executor_done_fn done, void *context,
                         event_keeper *keeper);
} executor_ops;

struct normal_ops;
struct ll_ops;
struct executor {
    const executor_ops *ops;
    const struct normal_ops *normal; /* NULL: the buffer is of low latency */
    const struct ll_ops *ll;         /* NULL: it is of normal mode */
    const link_counts *sent;         /* bytes and messages that this rank has sent by a network; NULL: it sends none */
    /* normal mode: */
    mem_pool *pool; /* memory that peers reach: outputs whose rows come directly */
    /* The pool grows by all ranks together, in calls whose counts they wait for (normal_ops.grow_pool). */
    bool grows;
    /* A fresh dispatch sends rows into spare memory of the pool before the host knows the counts. */
    bool sends_ahead;
    /* The host carries out calls whose results a stream may use next, and the stream does not wait for the host. So a
       call with async_finish has ended when it returns. */
    bool ends_first;
    /* Graphs have calls of the buffer. So each call opens in its turn on the GPU, and waits for that, also one that is
       rejected. Set once; the calling thread uses it. */
    bool in_turns;
    /* The ranks are on several nodes. Each node makes its own sum, and what it needs for it comes with the rows. */
    bool by_node;
};

/* ---- making ------------------------------------------------------------------------------------------------------ */

struct expar_group;
struct ep_count_step;
struct ep_terms_step;
struct ep_sum_step;
typedef struct executor_plan {
    struct expar_group *group;
    /* number of the buffer, the same on all ranks: the wait registry names the waits of its calls by it (boot_topic) */
    uint32_t number;
    expar_device device;
    const ep_shape *shape; /* the same on all ranks */
    /* threads of a call on the CPU, the caller's included; 0: the library chooses */
    int32_t num_threads;
    int32_t num_sms; /* SMs of a call on a GPU; 0: the library chooses */
    /* given by the caller; 0: the library chooses, by the rows of each call */
    int32_t ring_slots;
    /* for a pool that is not part of the buffer: its first size, and the most that it holds (0: no limit) */
    uint64_t pool_bytes, pool_limit_bytes;
} executor_plan;
/* Facts about the executor of a device that are needed before one is made. */
typedef struct executor_kind {
    /* Collective: takes the buffer's memory and makes this rank's part, with its pool. Either all ranks are made and
       have cleared their records, or none is: EXPAR_ERR_REMOTE names a rank that could not. */
    expar_status (*create)(const executor_plan *plan, executor **out);
    /* Computes the layout alone, for callers without a buffer, where the indices lie. On a GPU it is put on the stream
       and not waited for. Indices out of range count as -1 there; on the CPU they are EXPAR_ERR_INDEX. */
    expar_status (*count)(const struct ep_count_step *step);
    /* Both likewise. */
    expar_status (*terms)(const struct ep_terms_step *step);
    expar_status (*sum)(const struct ep_sum_step *step);
    bool grows; /* its buffers need no limits */
    /* the knobs with the default number of channels: for ranks that all map each other, and for others */
    knob_id num_channels, num_channels_across;
    /* The least executor_plan.num_sms. The executor itself rejects other bad values. */
    int32_t least_sms;
    /* If all ranks map each other, the pool is a part of the buffer, of shape->pool_bytes. This returns what it has to
       hold beside the outputs of the largest dispatches, of `rows` rows. NULL: outputs lie in the group's memory. */
    uint64_t (*beside_outputs)(const ep_shape *shape, int64_t rows);
    /* Keeps these blocks, of a buffer on the device, until the stream has passed all that it holds now; the caller may
       drop its references at once. In a capture the graph keeps them. NULLs are skipped. The buffer and its group may
       be gone. If this fails, nothing is kept. Any thread. */
    expar_status (*hold_until)(expar_device device, void *stream, mem_block *const *blocks, int32_t count);
} executor_kind;
/* Returns NULL if there is none for such a device. */
const executor_kind *executor_kind_of(expar_device_type type);

#endif
