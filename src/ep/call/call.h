/* SPDX-License-Identifier: Apache-2.0 */
/* ep/call: the parts that calls of both modes share: phases, poison, epochs, asynchronous ends, and the errors of
 * arguments that ranks tell each other.
 *
 * ep/normal and ep/low_latency call it; it calls exec, group and mem. A call is written once, as a sequence of steps.
 * The buffer's executor carries them out; it is chosen when the buffer is made. No call tests on which device it runs
 * (check.c and the modes' shape.c test the device of tensors). Calls do test whether the executor `streams`. A step
 * then only puts work on a stream, and its result is known later (exec/executor.h).
 *
 *   buffer.c     creation, use and destruction of a buffer
 *   teardown.c   finds out whether all ranks come to a buffer's end
 *   call.c       the steps of a call, from its beginning to its end
 *   rejection.c  rejection of a call by this rank
 *   vote.c       the result of the vote of all ranks, as an error
 *   unread.c     failures of calls that no caller has asked about
 *   issuer.c     a buffer's own thread, for calls that finish there
 *   replay.c     calls of graphs that the host carries out
 *   check.c      checks of tensors and other arguments
 *   names.c      names of enumerations, for error texts
 *   output.c     the memory of results, which has references (base/life.h)
 *
 * A call goes through phases. It is *begun* in the caller's thread: arguments are checked and memory is taken, and a
 * fresh dispatch learns there how many rows come. It is *sent* when all ranks know that all of them go on, and this
 * rank has sent everything that needs no other rank. It is *received* when everything that comes to this rank is
 * in its place. It is *ended* when its waiter has been told. Two functions (ep_parts) lead from phase to phase: after
 * `send` a call is sent, after `receive` it is received. They run in the caller's thread. With async_finish they run
 * without it: on the stream, or on the buffer's own thread (issuer.c).
 *
 * A buffer may have any number of begun calls. They run in the order of their epochs. A call *opens* when it posts its
 * first record. If a buffer's calls overlap (ep_buffer_kind), two may be open at a time. A call may then open when the
 * call before it is sent and the one before that has ended. It may send when all calls before it have ended.
 *
 * Two parities of records suffice for that (proto/normal.h). A rank posts its header of call n + 1 only after it has
 * judged all headers of call n. It opens call n + 2 only after all ranks have told it that call n has ended. The
 * buffer's thread carries out one call after the other, so calls that open there keep this order by themselves. Calls
 * that open in the caller's thread wait (ep_call_open). */
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
/* A job for that thread: the rest of a call, in which the job is stored. */
typedef struct ep_issuer_job {
    struct ep_issuer_job *next; /* used by the issuer only */
    void *call;                 /* the argument of `run`, which frees it */
    expar_event *event;         /* the issuer finishes it after `run`; NULL: there is none */
    ep_issuer_run run;
} ep_issuer_job;
expar_status ep_issuer_start(ep_issuer **out);
/* Queues a job after all earlier ones. */
void ep_issuer_put(ep_issuer *issuer, ep_issuer_job *job);
/* Records that the running call has reached the phase, and wakes the threads that wait for it. */
void ep_issuer_reach(ep_issuer *issuer, ep_phase phase);
/* Waits until all queued calls have reached the phase. An interrupted wait returns EXPAR_ERR_INTERRUPTED. issuer: NULL
   if there is none; then nothing is waited for. */
expar_status ep_issuer_await(ep_issuer *issuer, ep_phase phase);
/* Waits until all calls have ended, ends the thread, and frees the issuer. */
void ep_issuer_stop(ep_issuer *issuer);
/* Returns at once. The thread ends by itself when all calls have ended. It then calls leave(owner), which drops the
   thread's reference to the buffer. */
void ep_issuer_let_go(ep_issuer *issuer, void (*leave)(void *owner), void *owner);
/* Frees the issuer after that. NULL is allowed. */
void ep_issuer_free(ep_issuer *issuer);

/* ---- unread.c ---------------------------------------------------------------------------------------------------- */
typedef struct ep_unread ep_unread;
/* Returns NULL if there is no memory. */
ep_unread *ep_unread_make(void);
void ep_unread_release(ep_unread *unread); /* NULL is allowed */
/* Keeps the failure, unless it already keeps one that expar_ep_query has not reported. Any thread may call it. */
void ep_unread_note(ep_unread *unread, const error_kept *ended);
/* Sets this thread's last error to the kept failure, returns its status, and keeps none. */
expar_status ep_unread_take(ep_unread *unread);
/* Keeps the call's failure if the event is freed and no thread has waited for it. Call this before the event is shown
   to the caller or to another thread. */
void ep_unread_hear(ep_unread *unread, expar_event *event);

/* ---- teardown.c -------------------------------------------------------------------------------------------------- */
/* This rank's part of finding out whether all ranks come to a buffer's end. */
typedef struct ep_teardown {
    expar_group *group;
    const char *call; /* the public call that ends the buffer: "expar_ep_destroy" */
    uint64_t offset;  /* where the heap has one word for each rank, which says whether that rank comes */
    uint32_t number;  /* number of the buffer in its group */
} ep_teardown;
/* Returns the size of these words. */
static inline uint64_t ep_teardown_bytes(int32_t ranks)
{
    return (uint64_t)ranks * sizeof(uint64_t);
}
/* Collective: take the words from the heap, and give them back. */
expar_status ep_teardown_make(ep_teardown *teardown);
expar_status ep_teardown_give(ep_teardown *teardown);
/* Tells all ranks that this one has abandoned the buffer, so it does not come to the buffer's end. Call it once, and
   not after ep_teardown_meet. It waits for no rank. Any thread may call it. */
void ep_teardown_leave(ep_teardown *teardown);
/* Tells all ranks that this one does not come to the end because its group has failed. The last error is the reason,
   and stays the last error. */
void ep_teardown_fail(ep_teardown *teardown);
/* Tells all ranks that this one comes to the end, and waits until all come or one is known not to come.
     EXPAR_OK                                  all ranks come, so they free the buffer together
     EXPAR_ERR_PEER, and the group is sound    a rank does not come; all ranks that come get this result
     another error, or the group has failed    EXPAR_ERR_PEER, EXPAR_ERR_ABORTED or EXPAR_ERR_INTERRUPTED */
expar_status ep_teardown_meet(ep_teardown *teardown);

/* ---- buffer.c ---------------------------------------------------------------------------------------------------- */

/* The properties of a buffer that depend on its mode. */
typedef struct ep_buffer_kind {
    uint64_t magic;
    boot_kind topic;        /* kind of the topics in which its calls wait */
    const char *destroying; /* name of the public call that destroys the buffer */
    /* Two calls may be open at a time, one in each slot. Else a call opens when all calls before it have ended. */
    bool overlaps;
    /* A call that finds an earlier failure puts its own name before that text twice: once when it poisons the buffer,
       once when it returns. */
    bool asks_twice;
    /* Returns the number in the topic for the buffer's call with that count. A call with `second` set adds 1 to it. */
    uint64_t (*number)(uint64_t calls);
    /* Returns the error of a vote in which forms differ. It names the first member that differs. own: this rank. */
    expar_status (*mismatch)(const ep_vote *vote, int32_t own);
    /* Frees memory that calls have left in the buffer, before the executor is destroyed. NULL: they leave none. */
    void (*let_go)(ep_buffer *buffer);
    /* Frees the record when no thread is inside. The executor is already destroyed, and `group` is NULL. */
    void (*free)(ep_buffer *buffer);
} ep_buffer_kind;

/* The first member of a buffer of either mode. */
struct ep_buffer {
    /* References: the owner has one, each call one, and the buffer's thread one. */
    life_record life;
    /* The thread that destroys or abandons the buffer sets it before anything else. A destroy that is rejected clears
       it again. ep_buffer_enter reads it. These accesses are relaxed, since references order the rest. Others are
       sequentially consistent: ep_buffer_abandon sets it and then reads `busy`, and ep_buffer_take sets `busy` and then
       reads it. So at least one of these two threads sees the other. */
    atomic_bool ended;
    const ep_buffer_kind *kind;
    expar_group *group;  /* the buffer has a reference; NULL once it has ended */
    int32_t rank;        /* this rank's number in the group */
    expar_device device; /* where the buffer and all tensors of its calls are */
    const executor_kind *exec_kind;
    executor *exec;
    /* The buffer's own thread. The first call that finishes there starts it. */
    ep_issuer *issuer;
    /* The last call finishes on the buffer's own thread. Only the calling thread uses it. */
    bool last_issued;
    uint32_t number; /* number of the buffer in its group, from 1: the same on all ranks */
    ep_teardown teardown;
    /* The number of calls so far, equal on all ranks. Only the calling thread uses it. */
    uint64_t calls;
    /* 1 while one thread has the buffer: from ep_buffer_take to ep_buffer_give, in local calls (ep/normal/memory.c),
       and from the start of a destroy. That thread sets it (acquire; as `ended` says, in ep_buffer_take sequentially
       consistent) and clears it (release). */
    _Atomic int32_t busy;
    /* Failures that no caller has asked about. NULL: each call reports those of earlier calls. */
    ep_unread *unread;
    pthread_mutex_t poison_lock;
    /* The last rejection that a call of this rank returned. Guarded by poison_lock. */
    ep_rejection own_rejection;
    /* Not OK once a call has failed midway, so that the ranks may be out of step. Set once. Guarded by poison_lock. */
    error_kept poison;
};

/* Fills the record, which the caller has set to zero. The executor is made later. */
void ep_buffer_begin(ep_buffer *buffer, const ep_buffer_kind *kind, expar_group *group, expar_device device,
                     uint32_t number);
typedef expar_status (*ep_executor_maker)(ep_buffer *buffer, const void *plan);
/* Collective: makes the words of the teardown and the executor, on all ranks or on none. `plan` goes to `make`. */
expar_status ep_buffer_make_parts(ep_buffer *buffer, ep_executor_maker make, const void *plan);
/* Frees the parts that ep_buffer_begin has made, the issuer and `unread`. */
void ep_buffer_free_parts(ep_buffer *buffer);
/* Returns EXPAR_ERR_STATE with "…: the buffer has been destroyed or abandoned". */
expar_status ep_buffer_has_ended(const char *call);
/* Adds a reference, or returns the error of ep_buffer_has_ended. */
expar_status ep_buffer_enter(ep_buffer *buffer, const char *call);
/* Drops a reference. The last drop frees the buffer, including the executor if the buffer was abandoned. */
void ep_buffer_leave(ep_buffer *buffer);
/* Adds a reference and makes this thread the only one with a call on the buffer. Returns EXPAR_ERR_BUSY if another
   thread has one. On failure no reference is added. */
expar_status ep_buffer_take(ep_buffer *buffer, const char *call);
/* Undoes ep_buffer_take. Returns status. */
expar_status ep_buffer_give(ep_buffer *buffer, expar_status status);
/* The public calls of both modes that destroy and abandon a buffer. */
expar_status ep_buffer_destroy(ep_buffer *buffer);
expar_status ep_buffer_abandon(ep_buffer *buffer);
/* Returns the topic of the buffer with that number. */
static inline boot_topic ep_buffer_topic(const ep_buffer *buffer, uint64_t number)
{
    return (boot_topic){.kind = (uint16_t)buffer->kind->topic, .object = buffer->number, .number = number};
}

/* ---- a call ------------------------------------------------------------------------------------------------------ */

/* The functions of a mode that carry out a call after it has begun. */
typedef struct ep_parts {
    size_t bytes; /* size of the mode's own struct for a call, whose first member is the ep_call */
    expar_status (*send)(ep_call *call);
    expar_status (*receive)(ep_call *call);
    /* Opens the call with only this rank's rejection, so that the others do not wait for it. Returns OK, or a
       failure. */
    expar_status (*reject)(ep_call *call);
    /* Turns the executor's status at the end of the call, and the result of the vote, into this rank's error. */
    expar_status (*judge)(const ep_call *call, expar_status status, const ep_vote *vote);
    /* These are for a call that runs without the caller's thread, or that is hooked. `hold` takes references to all
       objects that the call uses, since the caller may drop its own at any time. `drop` releases them when the call has
       ended. */
    void (*hold)(ep_call *call);
    void (*drop)(ep_call *call);
    /* For a call of a graph: lists the addresses that its steps will have (exec_replay_list). NULL: no host carries out
       calls of the mode. */
    void (*list)(const ep_call *call, exec_replay *replay);
} ep_parts;

struct ep_call {
    ep_buffer *buffer;
    const char *name; /* "expar_ep_dispatch" */
    const ep_parts *parts;
    bool second;            /* true for a combine of low-latency mode: its number is one more (ep_buffer_kind) */
    uint64_t number;        /* number of the call in its topic (ep_buffer_kind) */
    ep_phase phase;         /* set by the thread that carries the call out */
    ep_rejection rejection; /* this rank's own rejection; status 0: none */
    exec_call exec;
    expar_event *wait_event; /* the caller's; NULL: none */
    expar_event *event;      /* with async_finish; else NULL */
    bool by_itself;          /* async_finish is 1: the rest of the call runs without the caller's thread */
    /* Nobody wants the event of this call by itself, whose steps go on a stream: none is made. expar_ep_query tells how
       it failed. */
    bool forgets;
    /* All of it runs without the caller's thread. The buffer's own thread first enlarges records that do not fit the
       call. A call of a graph that does not fit is rejected. */
    bool leaves;
    bool hooked;       /* its receive comes when the caller asks for it (ep_call_receive) */
    ep_phase after;    /* the phase that all earlier calls must reach before this one opens */
    ep_call *own;      /* memory for a copy of the call if the buffer's own thread is to finish it; else NULL */
    ep_issuer_job job; /* the job of that copy */
    /* The buffer's own thread finishes the call, or it is a part of a graph whose calls the host carries out. Set in
       that copy and in the original. */
    bool issued;
    bool replayed; /* a copy of a call of a graph; a stream comes to it any number of times */
    bool followed; /* ep_call_follow has run, with or without success */
    bool opened;   /* other ranks may have seen the call */
    /* The call ended before it opened. It counts as not made, and the next call gets its number. */
    bool withdrawn;
    bool told; /* the call has failed, and no other rank has to be told of it */
};

/* ---- steps of a call, in this order (call.c) --------------------------------------------------------------------- */

/* Takes the buffer (ep_buffer_take) and gives the call its number. Before, all members but `second` are zero. On
   failure the buffer is not taken. */
expar_status ep_call_begin(ep_call *call, const char *name, const ep_parts *parts, ep_buffer *buffer);
/* Sets the call's stream, and its number of SMs or threads (0: the buffer's). Nothing is put on the stream yet. asked:
   a thread will ask how the call ended. */
expar_status ep_call_learn(ep_call *call, void *stream, int32_t num_sms, bool asked);
/* Rejects a wait_event whose last reference was dropped. In a capture it also rejects a wait_event from outside the
   capture, and async_finish. */
expar_status ep_call_check_events(const ep_call *call, const expar_event *wait_event, bool async_finish);
/* With async_finish, or in a capture, the rest of the call runs without the caller's thread. If it runs on a thread of
   the library's and is `sized`, the whole call runs there: nothing that the call returns depends on other ranks. */
void ep_call_set_async(ep_call *call, bool async_finish, bool sized);
/* Makes everything that the call needs to finish without the caller's thread. With async_finish it also makes the
   event, unless the call forgets it. Other calls need nothing. */
expar_status ep_call_promise(ep_call *call);
/* Waits for wait_event, if any, or makes the call's stream wait for it if that is possible. If the wait fails, the
   caller rejects the call with the status that this returns. In any case the call takes its place after this rank's
   earlier calls, which sets exec.placed. If the thread waits, it takes the place after the wait, since the event may be
   that of another call. */
expar_status ep_call_follow(ep_call *call);
/* Call this before the first record is posted from the caller's thread. It waits until the earlier calls have reached
   the phase `after`, so that this call may open. On the buffer's own thread it does not wait. A call that is
   interrupted here can be made again. So can one that is interrupted in ep_call_await or ep_call_finish before anything
   was posted. */
expar_status ep_call_open(ep_call *call);
/* Waits until this rank's earlier calls have reached the phase. */
expar_status ep_call_await(ep_call *call, ep_phase phase);
/* Runs send and receive, or queues them for the buffer's own thread. In the second case that thread has a copy of the
   call, and this one holds nothing any more (`own` is NULL). A rejected call is not queued: send tells the rejection
   with the buffer advertisements. A hooked call only sends here. */
expar_status ep_call_finish(ep_call *call);
/* Carries out the steps of a copy of a call of a graph, whose turn has come (replay.c). */
expar_status ep_call_replay(ep_call *call);
/* Makes a call that is being captured a part of the graph. It holds nothing any more then, as after ep_call_finish. */
expar_status ep_call_record(ep_call *call);
/* Receives for a hooked call. Another public call, which has taken the buffer, calls it. `call` is the copy that has
   the references (ep_parts.hold). */
expar_status ep_call_receive(ep_call *call, const char *name, void *stream);
/* Poisons the buffer if status means that the call was broken off while other ranks wait in it. Then gives the buffer
   back. Returns status. */
expar_status ep_call_end(ep_call *call, expar_status status);
/* Frees what ep_call_promise made, for a call that failed before ep_call_finish could use it. */
void ep_call_break_promise(ep_call *call);

/* ---- results of steps -------------------------------------------------------------------------------------------- */

/* Puts the call's name and this rank before the last error's text. Returns status. */
expar_status ep_call_prefix(const ep_call *call, expar_status status);
/* Call this after a step that all ranks take part in, with the step's status. If the executor puts steps on streams, a
   failed step may not have reached the other ranks. The ranks are then out of step, so this poisons the buffer. In a
   capture it does not, since nothing runs yet. The error's text names the call and the rank. Returns status. */
expar_status ep_call_step(const ep_call *call, expar_status status);
/* Poisons the buffer because the ranks are out of step: later calls fail with status and the last error's text. Returns
   status. */
expar_status ep_call_poison(const ep_call *call, expar_status status);
/* Returns EXPAR_OK, or the error that has poisoned the buffer. */
expar_status ep_call_check_poison(const ep_call *call);
/* Poisons the buffer if a call failed after it had returned and this is known by now. Then checks as
   ep_call_check_poison does. */
expar_status ep_call_check_earlier(const ep_call *call);
/* Waits until this rank's calls on the buffer's own thread have ended. Then checks as ep_call_check_earlier does. */
expar_status ep_call_settle(const ep_call *call);

/* Rejects the call on this rank (rejection.c). Keeps status and the last error's text for the other ranks, and puts the
   call's name before the text. Returns status. */
expar_status ep_call_reject(ep_call *call, expar_status status);
/* Rejects the call for a reason that a step has found and told the other ranks. Returns the rejection's status. */
expar_status ep_call_rejected(ep_call *call, const ep_rejection *rejection);
/* Rejects the call as ep_call_reject does, and opens it with only this rank's rejection. A call that was to finish on
   the buffer's own thread is opened by that thread in its turn. In a capture nothing is opened. */
expar_status ep_call_tell_rejection(ep_call *call, expar_status status);
/* Records a call that is in no graph of this rank, so that ranks with a graph that has it learn it
   (boot_note_rejected). */
void ep_call_note_uncaptured(const ep_call *call, expar_status status);
/* Copies the call to `own` and makes the copy's job, which the caller then queues (call.c). */
void ep_call_issue(ep_call *call, ep_call *own);
/* Starts the buffer's own thread, unless it runs. The thread has a reference to the buffer. */
expar_status ep_call_prepare_issue(ep_buffer *buffer);

/* Returns OK when all ranks agreed; else this rank's own rejection, EXPAR_ERR_REMOTE or EXPAR_ERR_MISMATCH
   (vote.c). */
expar_status ep_call_vote(const ep_call *call, const ep_vote *vote);
/* An ep_parts.judge. Puts the call's name before a failure, or else returns ep_call_vote. */
expar_status ep_call_judge(const ep_call *call, expar_status status, const ep_vote *vote);
/* Logs the failure of an earlier call that no caller has asked about, and keeps it for expar_ep_query (vote.c). */
void ep_call_tell_untold(const ep_call *call);

/* ---- check.c ----------------------------------------------------------------------------------------------------- */
/* Copies a versioned struct of the caller. Members that the caller's version lacks are zero. `what` names it. */
expar_status ep_copy_struct(const char *what, void *dest, size_t size, const void *source);
bool tensor_given(const expar_tensor *tensor);
/* Returns the name of the dtype of a caller's tensor, for error texts, or its number if it has no name. Some dtypes
   have a name but no number here, for example f64. Bindings pass these as -(DLPack's code << 8 | bits). */
typedef struct ep_dtype_text {
    char text[16];
} ep_dtype_text;
ep_dtype_text ep_tell_dtype(expar_dtype dtype);
/* Checks for [rows][H] of bf16, f16 or f32 on the device; with `quantised` also f8e4m3 or i8. Each row is contiguous,
   at most max_row_bytes long, and consists of 16-byte pieces. */
expar_status ep_check_rows(expar_device device, const char *name, const expar_tensor *tensor, int64_t max_row_bytes,
                           bool quantised);
/* Checks that every row begins at a multiple of 16 bytes. The tensor has passed another check. */
expar_status ep_check_units(const char *name, const expar_tensor *tensor);
/* Checks for [rows][1 to max_scales] of 4-byte elements on the device, any strides. */
expar_status ep_check_scales(expar_device device, const expar_tensor *scales, int64_t rows, int32_t max_scales);
/* Checks for a tensor on the device with the columns and the dtype of `like`. Its data begin at a multiple of 16 bytes.
   Any strides are allowed. */
expar_status ep_check_columns(expar_device device, const char *name, const expar_tensor *tensor,
                              const expar_tensor *like);
/* Checks for [rows][columns] on the device with one of two dtypes; each row is contiguous. */
expar_status ep_check_matrix(expar_device device, const char *name, const expar_tensor *tensor, int64_t rows,
                             int64_t columns, expar_dtype dtype, expar_dtype other);
/* Checks for a contiguous vector of that dtype on the device, of any length. */
expar_status ep_check_vector(expar_device device, const char *name, const expar_tensor *tensor, expar_dtype dtype);
/* While this thread vouches for its caller's memory, checks take tensors to lie where they say, and do not ask the
   driver. Calls with PyTorch's tensors do so, since PyTorch knows where it has allocated them. */
void ep_vouch_for_places(bool vouches);
/* As mem_check_place, unless the thread vouches. */
expar_status ep_check_place(expar_device device, const char *name, const char *member, const void *data);
/* A plain array of the caller. */
typedef struct ep_array {
    const char *name;
    const void *data; /* NULL: the caller does not want it */
    size_t unit;      /* bytes of an element */
} ep_array;
/* Checks that each array is aligned to its elements and that the device can use it. */
expar_status ep_check_arrays(expar_device device, const ep_array *arrays, size_t count);
expar_status ep_check_experts(int32_t num_experts, int32_t ranks);
/* The largest E of any call. */
#define EP_MOST_EXPERTS (1 << 22)
/* A member of the arguments that must be 0 or 1. */
typedef struct ep_flag {
    const char *name;
    int32_t value;
} ep_flag;
expar_status ep_check_flags(const ep_flag *flags, size_t count);
/* Checks that the event has a reference; NULL: no event is given. */
expar_status ep_check_wait_event(const expar_event *wait_event);
/* Returns the number of elements from row to row. */
static inline int64_t tensor_pitch(const expar_tensor *tensor)
{
    return tensor->shape[0] > 1 ? tensor->strides[0] : tensor->shape[1];
}

/* Says where the memory of an object comes from. It is kept in the object, which may outlive its buffer. */
typedef struct ep_origin {
    const executor_kind *kind;
    expar_device device;
    uint64_t group; /* the group's number */
} ep_origin;
static inline ep_origin ep_origin_of(const ep_buffer *buffer)
{
    return (ep_origin){.kind = buffer->exec_kind, .device = buffer->device, .group = buffer->group->number};
}

/* ---- output.c ---------------------------------------------------------------------------------------------------- */
#define EP_OUTPUT_PARTS   (EXPAR_EP_PART_SRC_METADATA + 1)
#define EP_DISPATCH_PARTS EP_OUTPUT_PARTS /* a dispatch of normal mode has all of them but EXPAR_EP_PART_COUNT */
enum { EP_OUTPUT_READERS = 8 };
struct expar_ep_output {
    life_record life; /* EP_OUTPUT_MAGIC */
    ep_origin origin;
    mem_block *block; /* all tensors of the result, except the caller's own recv_x */
    /* For expert-major outputs: the rows as they come, token-major. NULL after they were expanded, and for other
       outputs. */
    mem_block *arrival;
    int32_t *tokens_per_expert; /* [L]; NULL if the host does not know them */
    /* Views into `block`, indexed by expar_ep_part. Written before the caller gets the output. */
    expar_tensor parts[EP_OUTPUT_PARTS];
    /* Streams that may still read the output when the last reference is dropped. Guarded by a lock in output.c, which
       the thread that drops the last reference does not need. */
    void *readers[EP_OUTPUT_READERS];
    int32_t num_readers;
};
#define EP_OUTPUT_MAGIC 0x74757074756f7065u

/* Makes an empty output with one reference. Returns NULL if there is no memory. */
expar_ep_output *ep_output_make(const ep_buffer *buffer);
expar_ep_output *ep_output_hold(expar_ep_output *output);

#endif
