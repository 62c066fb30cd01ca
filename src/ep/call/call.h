/* SPDX-License-Identifier: Apache-2.0 */
/* ep/call: the parts that calls of both modes share: phases, poison, epochs, an end that may come later, and the errors
 * that ranks tell each other about arguments.
 *
 * ep/normal and ep/low_latency call it; it calls exec, group and mem. A call is written once, as a sequence of steps.
 * The device that carries them out is chosen when the buffer is made. The executor says when the facts of a step are
 * known. No call branches on either (check.c and the modes' shape.c look at the device of tensors).
 *
 * buffer.c    a buffer's lifetime: which threads are inside, and how it ends; teardown.c whether all ranks come to it
 * call.c      a call, from its beginning to its end; rejection.c how it is rejected vote.c   the result of the vote of
 * all ranks; unread.c failures of calls that no caller has asked about issuer.c    a buffer's own thread, for calls
 * that finish there check.c     tensors as arguments; names.c enumerations by name, for texts; output.c the memory of
 * results, which is
 *               counted (base/life.h)
 *
 * A call goes through phases. It is *begun* in the caller's thread: arguments are checked and memory is taken, and a
 * fresh dispatch learns there how many rows come. It is *sent* when all ranks know that all of them go on, and when
 * this rank has sent everything that needs no other rank. It is *received* when everything that comes to this rank is
 * in its place. It is *ended* when its waiter has been told. The two parts between (ep_parts), send and receive, run
 * in the caller's thread. With async_finish they run by themselves: on the stream, or on the buffer's own thread
 * (issuer.c).
 *
 * So a buffer may have any number of begun calls, and two open ones at a time. They keep the order of their epochs. A
 * call opens, which means that it posts its first record, when the call before it is sent and the one before that has
 * ended. It sends when all calls before it have ended. Two parities of records suffice for that (proto/normal.h). Ranks
 * post their headers of call n + 1 after they have judged those of call n. A rank has heard of the end of n from all
 * ranks before it opens n + 2. The buffer's thread carries out one call after the other, so calls that open there keep
 * to this order by themselves. Calls that open in the caller's thread wait (ep_call_open). */
#ifndef EXPAR_EP_CALL_CALL_H
#define EXPAR_EP_CALL_CALL_H

#include "base/life.h"
#include "ep/call/names.h"
#include "exec/executor.h"
#include "group/group.h"
#include <expar/ep.h>

typedef struct ep_buffer ep_buffer;
typedef struct ep_call ep_call;
typedef enum ep_phase { EP_CALL_BEGUN, EP_CALL_SENT, EP_CALL_RECEIVED, EP_CALL_ENDED } ep_phase;

/* ---- a buffer's own thread (issuer.c) ---------------------------------------------------------------------------- */

typedef struct ep_issuer ep_issuer;
/* Runs the call, frees it, and returns how it ended. */
typedef expar_status (*ep_issuer_run)(void *call);
/* The rest of a call, for that thread. It is stored in the call. */
typedef struct ep_issuer_job {
    struct ep_issuer_job *next; /* for the issuer */
    void *call;                 /* owned by the thread from the moment when it begins to carry it out */
    expar_event *event;         /* finished after run; NULL: nothing waits */
    ep_issuer_run run;
} ep_issuer_job;
expar_status ep_issuer_start(ep_issuer **out);
/* Queues a job after all earlier ones. */
void ep_issuer_put(ep_issuer *issuer, ep_issuer_job *job);
/* Says that the running call has reached a phase. */
void ep_issuer_reach(ep_issuer *issuer, ep_phase phase);
/* Waits until all queued calls have reached the phase. EXPAR_ERR_INTERRUPTED. NULL: there is no issuer. */
expar_status ep_issuer_await(ep_issuer *issuer, ep_phase phase);
/* Waits until all calls have ended, ends the thread, and frees the issuer. */
void ep_issuer_stop(ep_issuer *issuer);
/* The thread ends by itself when all calls have ended. It then calls leave(owner), which gives the buffer back. */
void ep_issuer_let_go(ep_issuer *issuer, void (*leave)(void *owner), void *owner);
/* Frees what is left of the issuer then. NULL is allowed. */
void ep_issuer_free(ep_issuer *issuer);

/* ---- unread.c ---------------------------------------------------------------------------------------------------- */
typedef struct ep_unread ep_unread;
/* Returns NULL if there is no memory. */
ep_unread *ep_unread_make(void);
void ep_unread_release(ep_unread *unread); /* NULL is allowed */
/* Keeps the failure, unless it already keeps one that expar_ep_query has not reported. Any thread. */
void ep_unread_note(ep_unread *unread, const error_kept *ended);
/* Sets this thread's last error to the kept failure, returns its status, and keeps none. */
expar_status ep_unread_take(ep_unread *unread);
/* Keeps the call's failure if the event is freed and no thread has waited for it. Call this before anything but the
   event's call knows the event. */
void ep_unread_hear(ep_unread *unread, expar_event *event);

/* ---- teardown.c -------------------------------------------------------------------------------------------------- */
/* The data with which a buffer's ranks come to its end (teardown.c). */
typedef struct ep_teardown {
    expar_group *group;
    const char *call; /* the public call that ends the buffer: "expar_ep_destroy" */
    uint64_t offset;  /* of the words in the heap by which ranks tell each other */
    uint32_t number;  /* of the buffer in its group */
} ep_teardown;
/* Takes and frees memory of the heap for the buffer's end; collective. */
static inline uint64_t ep_teardown_bytes(int32_t ranks)
{
    return (uint64_t)ranks * sizeof(uint64_t);
}
expar_status ep_teardown_make(ep_teardown *teardown);
expar_status ep_teardown_give(ep_teardown *teardown);
/* Tells all ranks that this one does not come to the buffer's end. Call it once, and not after ep_teardown_meet. Waits
   for no rank; any thread. */
void ep_teardown_leave(ep_teardown *teardown);
/* Tells all ranks that this one does not come to the end because its group has failed, as the last error says. The last
   error is kept. */
void ep_teardown_fail(ep_teardown *teardown);
/* This rank comes to the end. EXPAR_OK: all ranks do, and the buffer is freed together. EXPAR_ERR_PEER while the group
   has not failed: a rank has abandoned the buffer, and all ranks learn this alike. If the group has failed:
   EXPAR_ERR_PEER, EXPAR_ERR_ABORTED, EXPAR_ERR_INTERRUPTED. */
expar_status ep_teardown_meet(ep_teardown *teardown);

/* ---- buffer.c ---------------------------------------------------------------------------------------------------- */

/* The properties of a buffer that depend on its mode. */
typedef struct ep_buffer_kind {
    uint64_t magic;
    boot_kind topic;        /* topic of the waits of its calls */
    const char *destroying; /* the public call */
    /* two calls may be open at a time, one in each slot; else a call begins when all before it have ended */
    bool overlaps;
    bool asks_twice; /* the call that finds an earlier failure puts its own name before the text, too */
    /* Returns the number, in its topic, of the buffer's call with that count. A call that is `second` has the number
       after it. */
    uint64_t (*number)(uint64_t calls);
    /* Returns the error of a vote in which forms differ; it names the first member that does. own: this rank. */
    expar_status (*mismatch)(const ep_vote *vote, int32_t own);
    /* frees what calls have left in the buffer, before the executor is destroyed; NULL: nothing */
    void (*let_go)(ep_buffer *buffer);
    /* frees the record when no thread is inside; executor and group are already destroyed */
    void (*free)(ep_buffer *buffer);
} ep_buffer_kind;

/* The first member of a buffer of either mode. */
struct ep_buffer {
    /* references: the owner's, one for each call, and one for the buffer's thread */
    life_record life;
    /* Set by the thread that destroys or abandons the buffer, before anything else (exchange, relaxed: references order
       the rest). A destroy that is rejected clears it again. ep_buffer_enter reads it. */
    atomic_bool ended;
    const ep_buffer_kind *kind;
    expar_group *group;  /* held; NULL once the buffer has ended */
    int32_t rank;        /* in the group */
    expar_device device; /* where the buffer and all tensors of its calls are */
    const executor_kind *exec_kind;
    executor *exec;
    ep_issuer *issuer; /* made by the first call that finishes on it */
    bool last_issued;  /* the last call finishes on it. Touched by the calling thread only */
    uint32_t number;   /* number of the buffer in its group, from 1: the same on all ranks */
    ep_teardown teardown;
    uint64_t calls;       /* calls that were made: equal on all ranks. Touched by the calling thread only */
    _Atomic int32_t busy; /* 1 while a call is begun, or runs in the caller's thread: set and cleared by that thread
                             (acquire, release) */
    ep_unread *unread;    /* NULL: each call reports earlier ones that did not end well */
    pthread_mutex_t poison_lock;
    ep_rejection own_rejection; /* the last rejection that a call of this rank returned. Guarded by poison_lock */
    error_kept poison; /* not OK after a call that failed on its way, which other ranks may not know. Guarded by
                               poison_lock; set once */
};

/* Fills the record, which is zero. The executor is made later. */
void ep_buffer_begin(ep_buffer *buffer, const ep_buffer_kind *kind, expar_group *group, expar_device device,
                     uint32_t number);
/* Makes the parting words and the executor: on all ranks, or on none. */
typedef expar_status (*ep_executor_maker)(ep_buffer *buffer, const void *plan);
expar_status ep_buffer_make_parts(ep_buffer *buffer, ep_executor_maker make, const void *plan);
/* Frees what ep_buffer_begin has made, and the thread. */
void ep_buffer_free_parts(ep_buffer *buffer);
/* Returns EXPAR_ERR_STATE with "…: the buffer has been destroyed or abandoned". */
expar_status ep_buffer_has_ended(const char *call);
/* Adds a reference, or returns the error of ep_buffer_has_ended. */
expar_status ep_buffer_enter(ep_buffer *buffer, const char *call);
/* Drops a reference; the last one frees what an abandoned buffer has. */
void ep_buffer_leave(ep_buffer *buffer);
/* Enters, and takes the buffer for this thread alone: else EXPAR_ERR_BUSY. On failure nothing is held. */
expar_status ep_buffer_take(ep_buffer *buffer, const char *call);
/* Ends what ep_buffer_take began. Returns status. */
expar_status ep_buffer_give(ep_buffer *buffer, expar_status status);
/* The public calls. */
expar_status ep_buffer_destroy(ep_buffer *buffer);
expar_status ep_buffer_abandon(ep_buffer *buffer);
/* Returns a topic of the buffer. */
static inline boot_topic ep_buffer_topic(const ep_buffer *buffer, uint64_t number)
{
    return (boot_topic){.kind = (uint16_t)buffer->kind->topic, .object = buffer->number, .number = number};
}

/* ---- a call ------------------------------------------------------------------------------------------------------ */

/* The rest of a call once it is begun: its send and its receive, and the mode's functions around them. */
typedef struct ep_parts {
    size_t bytes; /* size of the whole call, whose first member is its ep_call */
    expar_status (*send)(ep_call *call);
    expar_status (*receive)(ep_call *call);
    /* Opens the call with only this rank's rejection, so that the others do not wait for it. Returns OK, or a
       failure. */
    expar_status (*reject)(ep_call *call);
    /* Turns the executor's status of the call's end into this rank's error. */
    expar_status (*judge)(const ep_call *call, expar_status status, const ep_vote *vote);
    /* These are for a call that runs by itself, or whose receive comes later. `hold` takes references to what the call
       uses, since the caller may drop its own at any time. `drop` releases them when the call has ended. */
    void (*hold)(ep_call *call);
    void (*drop)(ep_call *call);
} ep_parts;

struct ep_call {
    ep_buffer *buffer;
    const char *name; /* "expar_ep_dispatch" */
    const ep_parts *halves;
    bool second;            /* the second of two kinds of call that have numbers */
    uint64_t number;        /* in its topic (ep_buffer_kind) */
    ep_phase phase;         /* set by the thread that carries the call out */
    ep_rejection rejection; /* this rank's own rejection; status 0: none */
    exec_call exec;
    expar_event *wait_event; /* the caller's; NULL: none */
    expar_event *event;      /* with async_finish; else NULL */
    bool by_itself;          /* with async_finish, once that is known */
    bool leaves;             /* all of it runs on the buffer's own thread, which begins with records that fit it */
    bool hooked;             /* its receive comes when the caller asks for it (ep_call_receive) */
    ep_phase after;          /* before it opens, all calls before it have reached this phase */
    ep_call *own;            /* memory for a copy of the call if the buffer's own thread is to finish it; else NULL */
    ep_issuer_job job;       /* of that copy */
    /* the buffer's own thread finishes it; set in that copy, and in the call that it was made from */
    bool issued;
    bool followed;  /* it has its place, after wait_event, or has failed to get it (ep_call_follow) */
    bool opened;    /* other ranks may have seen it */
    bool withdrawn; /* interrupted before that: as if it had not been made */
    bool told;      /* it has failed in a way that the other ranks know of: nothing has to be told to them */
};

/* ---- steps of a call, in this order (call.c) --------------------------------------------------------------------- */

/* Takes the buffer for the beginning of a call, and gives the call its number. The call is zero before, but for
   `second`. On failure nothing is held. */
expar_status ep_call_begin(ep_call *call, const char *name, const ep_parts *halves, ep_buffer *buffer);
/* Sets the call's stream, and its SMs or threads (0: as the buffer says). Nothing is put on the stream yet. asked:
   something will ask how the call ended. */
expar_status ep_call_learn(ep_call *call, void *stream, int32_t num_sms, bool asked);
/* Rejects a wait_event whose last reference was dropped. Also rejects what a graph cannot have: an event to wait for or
   to signal. */
expar_status ep_call_check_events(const ep_call *call, const expar_event *wait_event, bool async_finish);
/* With async_finish the rest of the call runs by itself. With `sized` the whole call does if the buffer's own thread
   finishes it, because the caller need not know anything from the other ranks when the call returns. */
void ep_call_set_async(ep_call *call, bool async_finish, bool sized);
/* With async_finish: makes the event, and everything else that the call needs to finish by itself. */
expar_status ep_call_promise(ep_call *call);
/* Waits for wait_event, if any, or makes the call's stream wait for it if that is possible. A failure of that is this
   rank's rejection. Then the call takes its place after this rank's earlier ones, which exec.placed says. A waiting
   thread takes it after the wait, since the event may be another call's. */
expar_status ep_call_follow(ep_call *call);
/* Call this before the first record is posted from the caller's thread. Waits until the call before is sent, and the
   one before that has ended. A call that is interrupted here can be made again. So can one that is interrupted in
   ep_call_await or ep_call_finish before anything was posted. On the buffer's own thread this does not wait. */
expar_status ep_call_open(ep_call *call);
/* Waits until this rank's earlier calls have reached the phase. */
expar_status ep_call_await(ep_call *call, ep_phase phase);
/* Runs send and receive, here or by themselves. If they run by themselves, the call has been copied, and this one holds
   nothing any more (own is NULL). A rejection that travels with the buffer advertisements is told from here. A hooked
   call only sends here. */
expar_status ep_call_finish(ep_call *call);
/* Receives for a hooked call, in another public call, which has taken the buffer. `call` is the copy that holds what
   the call uses. */
expar_status ep_call_receive(ep_call *call, const char *name, void *stream);
/* Poisons the buffer if status means that the group has failed, and gives it back. Returns status. */
expar_status ep_call_end(ep_call *call, expar_status status);
/* Frees what ep_call_promise made, for a call that failed before it could finish by itself. */
void ep_call_break_promise(ep_call *call);

/* ---- results of steps -------------------------------------------------------------------------------------------- */

/* Puts the call's name and this rank before the last error's text. Returns status. */
expar_status ep_call_prefix(const ep_call *call, expar_status status);
/* Judges a step that all ranks take part in. If steps are put on streams, a failed step may not have reached the other
   ranks, whatever the reason. The ranks are then out of step, and the buffer is poisoned. In a capture it is not, since
   nothing runs yet. The error's text names the call and the rank. Returns status. */
expar_status ep_call_step(const ep_call *call, expar_status status);
/* Poisons the buffer because the ranks are out of step: later calls fail with status and the last error's text. Returns
   status. */
expar_status ep_call_poison(const ep_call *call, expar_status status);
/* EXPAR_OK, or why the buffer cannot be used any more. */
expar_status ep_call_check_poison(const ep_call *call);
/* Like ep_call_check_poison, including what is known by now of calls that have returned. */
expar_status ep_call_check_earlier(const ep_call *call);
/* Like ep_call_check_poison, after this rank's calls have ended. */
expar_status ep_call_settle(const ep_call *call);

/* Rejects the call on this rank (rejection.c): keeps status and the last error's text for the other ranks, and adds the
   call's name to the text. Returns status. */
expar_status ep_call_reject(ep_call *call, expar_status status);
/* Rejects the call for a reason that a step found and has already told the other ranks. */
expar_status ep_call_rejected(ep_call *call, const ep_rejection *rejection);
/* Rejects the call as ep_call_reject does, and opens it with only this rank's rejection. That happens here, or by
   itself in its turn if the call was to finish so. */
expar_status ep_call_tell_rejection(ep_call *call, expar_status status);
/* Reports a call that no graph of this rank has, while graphs of other ranks may have it. */
void ep_call_note_uncaptured(const ep_call *call, expar_status status);
/* Queues the rest of the call, of which `own` is a copy, for the buffer's own thread (call.c). */
void ep_call_issue(ep_call *call, ep_call *own);
/* Starts that thread, which holds the buffer, unless it runs. */
expar_status ep_call_prepare_issue(ep_buffer *buffer);

/* Returns OK when all ranks agreed; else this rank's own rejection, EXPAR_ERR_REMOTE or EXPAR_ERR_MISMATCH
   (vote.c). */
expar_status ep_call_vote(const ep_call *call, const ep_vote *vote);
/* The judge of a mode whose failures are found by its next call. Returns the status with the call's name, or the result
   of the vote. */
expar_status ep_call_judge(const ep_call *call, expar_status status, const ep_vote *vote);
/* Logs the failure of an earlier call that no caller has asked about, and keeps it for expar_ep_query (vote.c). */
void ep_call_tell_untold(const ep_call *call);

/* ---- check.c ----------------------------------------------------------------------------------------------------- */
/* Copies a versioned struct of the caller. Members that the caller's version lacks are zero. `what` names it. */
expar_status ep_copy_struct(const char *what, void *dest, size_t size, const void *source);
bool tensor_given(const expar_tensor *tensor);
/* Names the dtype of a caller's tensor, for texts of errors: its name, or the number if it has none. Bindings pass
   dtypes that they can name, but that have no number here, as -(DLPack's code << 8 | bits). Such a dtype is told by
   that name: f64. */
typedef struct ep_dtype_text {
    char text[16];
} ep_dtype_text;
ep_dtype_text ep_tell_dtype(expar_dtype dtype);
/* Checks for [rows][H] of bf16, f16 or f32 (quantised: or f8e4m3 or i8) on the device. Rows consist of 16-byte pieces,
   are contiguous, and are at most max_row_bytes long. */
expar_status ep_check_rows(expar_device device, const char *name, const expar_tensor *tensor, int64_t max_row_bytes,
                           bool quantised);
/* Checks that every row begins at a multiple of 16 bytes. The tensor has passed another check. */
expar_status ep_check_units(const char *name, const expar_tensor *tensor);
/* Checks for [rows][1 to max_scales] of 4-byte elements on the device, any strides. */
expar_status ep_check_scales(expar_device device, const expar_tensor *scales, int64_t rows, int32_t max_scales);
/* Checks for rows with as many elements of the same dtype as those of `like`, on the device, at a multiple of 16 bytes;
 * any strides. */
expar_status ep_check_columns(expar_device device, const char *name, const expar_tensor *tensor,
                              const expar_tensor *like);
/* Checks for [rows][columns], each row contiguous, with one of two dtypes. */
expar_status ep_check_matrix(expar_device device, const char *name, const expar_tensor *tensor, int64_t rows,
                             int64_t columns, expar_dtype dtype, expar_dtype other);
/* Checks for a contiguous vector of any length and that dtype. */
expar_status ep_check_vector(expar_device device, const char *name, const expar_tensor *tensor, expar_dtype dtype);
/* Arrays of the caller, each aligned to its elements, and where the device's tensors are; NULL is not wanted. */
typedef struct ep_array {
    const char *name;
    const void *data;
    size_t unit; /* bytes of an element */
} ep_array;
expar_status ep_check_arrays(expar_device device, const ep_array *arrays, size_t count);
expar_status ep_check_experts(int32_t num_experts, int32_t ranks);
/* The largest E of any call. */
#define EP_MOST_EXPERTS (1 << 22)
/* Members that say yes or no, each 0 or 1. */
typedef struct ep_flag {
    const char *name;
    int32_t value;
} ep_flag;
expar_status ep_check_flags(const ep_flag *flags, size_t count);
/* Checks that the event has a reference; NULL: no event is given. */
expar_status ep_check_wait_event(const expar_event *wait_event);
static inline int64_t tensor_pitch(const expar_tensor *tensor)
{
    return tensor->shape[0] > 1 ? tensor->strides[0] : tensor->shape[1];
}

/* Where the memory of an object comes from. The object may outlive its buffer. */
typedef struct ep_origin {
    const executor_kind *kind;
    expar_device device;
    uint64_t group; /* its number */
} ep_origin;
static inline ep_origin ep_origin_of(const ep_buffer *buffer)
{
    return (ep_origin){.kind = buffer->exec_kind, .device = buffer->device, .group = buffer->group->number};
}

/* ---- output.c ---------------------------------------------------------------------------------------------------- */
#define EP_OUTPUT_PARTS   (EXPAR_EP_PART_SRC_METADATA + 1)
#define EP_DISPATCH_PARTS EP_OUTPUT_PARTS /* all but EXPAR_EP_PART_COUNT are a dispatch's of normal mode, too */
enum { EP_OUTPUT_READERS = 8 };
struct expar_ep_output {
    life_record life; /* EP_OUTPUT_MAGIC */
    ep_origin origin;
    mem_block *block; /* all tensors of the result, except the caller's own recv_x */
    /* expert-major: token-major rows on their way; NULL after they were expanded, and in other cases */
    mem_block *arrival;
    int32_t *tokens_per_expert; /* [L]; NULL if the host does not know them */
    /* Indexed by expar_ep_part; views into `block`. Written before the caller gets the output. */
    expar_tensor parts[EP_OUTPUT_PARTS];
    /* Streams that may still read when the last reference is dropped. Guarded by a lock in output.c. The thread that
       drops the last reference is alone with them. */
    void *readers[EP_OUTPUT_READERS];
    int32_t num_readers;
};
#define EP_OUTPUT_MAGIC 0x74757074756f7065u

/* Makes an empty output with one reference. Returns NULL if there is no memory. */
expar_ep_output *ep_output_make(const ep_buffer *buffer);
expar_ep_output *ep_output_hold(expar_ep_output *output);

#endif
