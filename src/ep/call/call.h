/* SPDX-License-Identifier: Apache-2.0 */
/* ep/call: what calls of both modes share: phases, poison, epochs, an end that may come later, and what ranks tell each
 * other about bad arguments.
 *
 * Called by ep/normal and ep/low_latency; calls exec, group and mem. A call is written once, as a sequence of steps.
 * Which device carries them out is settled when the buffer is made, and when their facts are known is the executor's
 * answer: no call branches on it (check.c and the modes' shape.c look at where tensors lie).
 *
 *   buffer.c    a buffer's life: who is in, and how it ends; parting.c whether all ranks come to its end
 *   call.c      a call, from its beginning to its end; refusal.c how it is refused
 *   verdict.c   what all ranks have found out of a call; unheard.c what went wrong in calls that nobody asked about
 *   issuer.c    a buffer's own thread, for calls that finish there
 *   check.c     tensors as arguments; names.c enumerations by name, for texts; output.c the memory of results, which is
 *               counted (base/life.h)
 *
 * A call goes through phases. It is *begun* in the caller's thread: arguments are looked at, memory is taken, and a
 * fresh dispatch learns there how many rows come. It is *sent* when all ranks know that all of them go on, and this
 * rank's part is on its way as far as it needs nobody's help; *received* when all that comes to this rank is in its
 * place; *ended* when whoever waits for it has been told. The halves between (ep_halves) run in the caller's thread,
 * or, with async_finish, by themselves: on the stream, or on the buffer's own thread (issuer.c).
 *
 * So a buffer may have any number of calls begun, and two open at a time. They keep the order of their epochs: a call
 * opens, which is to say posts its first record, when the one before it is sent and the one before that has ended; it
 * sends when all before it have ended. That is what two parities of records bear (proto/normal.h): all hellos of call
 * n + 1 are posted by ranks that have judged those of n, and a rank has heard the end of n from all before it opens
 * n + 2. The buffer's thread carries out one call after the other, so calls that open there keep to this by themselves;
 * those that open in the caller's thread wait (ep_call_open). */
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

/* ---- the thread of a buffer's (issuer.c) ------------------------------------------------------------------------- */

typedef struct ep_issuer ep_issuer;
/* Gives the call back and returns how it ended. */
typedef expar_status (*ep_issuer_run)(void *call);
/* The rest of a call, for that thread; lies in the call. */
typedef struct ep_issuer_job {
    struct ep_issuer_job *next; /* the issuer's */
    void *call;                 /* the thread's from when it begins to carry it out */
    expar_event *event;         /* is finished behind run; NULL: nobody waits */
    ep_issuer_run run;
} ep_issuer_job;
expar_status ep_issuer_start(ep_issuer **out);
/* Hands it over, behind all before it. */
void ep_issuer_put(ep_issuer *issuer, ep_issuer_job *job);
/* The call that is being carried out there has come to a phase. */
void ep_issuer_reach(ep_issuer *issuer, ep_phase phase);
/* Until all calls that were handed to it have come to the phase. EXPAR_ERR_INTERRUPTED. NULL: there is none. */
expar_status ep_issuer_await(ep_issuer *issuer, ep_phase phase);
/* Until all have ended; ends the thread, and frees what is left of it. */
void ep_issuer_stop(ep_issuer *issuer);
/* The thread ends by itself when all have ended, and gives the buffer back. */
void ep_issuer_let_go(ep_issuer *issuer, void (*leave)(void *owner), void *owner);
/* What is left of it then. NULL is allowed. */
void ep_issuer_free(ep_issuer *issuer);

/* ---- unheard.c --------------------------------------------------------------------------------------------------- */
typedef struct ep_unheard ep_unheard;
/* NULL: no memory. */
ep_unheard *ep_unheard_make(void);
void ep_unheard_release(ep_unheard *unheard); /* NULL is allowed */
/* Keeps the failure, unless there is one already that expar_ep_query has not told. Any thread. */
void ep_unheard_note(ep_unheard *unheard, const error_kept *ended);
/* The failure that is kept, as this thread's last error, and none is any more. */
expar_status ep_unheard_take(ep_unheard *unheard);
/* The call's failure is noted if the event goes and nobody has waited for it. Before anybody but its call knows the
   event. */
void ep_unheard_hear(ep_unheard *unheard, expar_event *event);

/* ---- parting.c --------------------------------------------------------------------------------------------------- */
/* How a buffer's ranks come to its end (parting.c). */
typedef struct ep_parting {
    expar_group *group;
    const char *call; /* that ends it: "expar_ep_destroy" */
    uint64_t offset;  /* in the heap, where ranks tell */
    uint32_t number;  /* of the buffer in its group */
} ep_parting;
/* Memory of the heap for the buffer's end, and back; collective. */
static inline uint64_t ep_parting_bytes(int32_t ranks)
{
    return (uint64_t)ranks * sizeof(uint64_t);
}
expar_status ep_parting_make(ep_parting *parting);
expar_status ep_parting_give(ep_parting *parting);
/* Tells all ranks that this one comes to no end of the buffer's; once, and not behind ep_parting_meet. Waits for
   nobody; any thread. */
void ep_parting_leave(ep_parting *parting);
/* This rank does not come to the end, for its group has failed, as the last error says; that stays. */
void ep_parting_fail(ep_parting *parting);
/* This rank comes to the end. EXPAR_OK: so do all, and the buffer is given back together. EXPAR_ERR_PEER: a rank has
   abandoned the buffer, which all learn alike, and the group is sound. Else it is not: EXPAR_ERR_PEER,
   EXPAR_ERR_ABORTED, EXPAR_ERR_INTERRUPTED. */
expar_status ep_parting_meet(ep_parting *parting);

/* ---- buffer.c ---------------------------------------------------------------------------------------------------- */

/* What differs by mode, of buffers. */
typedef struct ep_buffer_kind {
    uint64_t magic;
    boot_kind topic;        /* of what its calls' waits are noted for */
    const char *destroying; /* the public call */
    bool overlaps;          /* two calls may be open at a time, one in each half; else one begins when all have ended */
    bool asks_twice;        /* a failed call of before is told by the name of the call that found it, too */
    /* Of the buffer's so-manieth call, in its topic; a call of halves.second has the number behind it. */
    uint64_t (*number)(uint64_t calls);
    /* The error of a verdict by forms that differ, which names the first member; own: this rank. */
    expar_status (*mismatch)(const ep_verdict *verdict, int32_t own);
    void (*let_go)(ep_buffer *buffer); /* of what calls have left in it, before the executor goes; NULL: of nothing */
    void (*free)(ep_buffer *buffer);   /* the record, when nobody is in: executor and group have gone */
} ep_buffer_kind;

/* The first member of a buffer of either mode. */
struct ep_buffer {
    life_record life; /* the owner's reference, and one for each call and the buffer's thread */
    /* Who destroys or abandons it sets it first (exchange, relaxed: references order the rest); destroy takes it back
       where it is refused. Read by ep_buffer_enter. */
    atomic_bool ended;
    const ep_buffer_kind *kind;
    expar_group *group;  /* held; NULL once the buffer has come to its end */
    int32_t rank;        /* in it */
    expar_device device; /* where the buffer and all tensors of its calls lie */
    const executor_kind *exec_kind;
    executor *exec;
    ep_issuer *issuer; /* made by the first call that is to finish on it */
    bool last_issued;  /* the last call finishes on it. Touched by the calling thread only */
    uint32_t number;   /* of the buffers of its group, from 1: the same on all ranks */
    ep_parting parting;
    uint64_t calls;       /* that were made: advances alike on all ranks. Touched by the calling thread only */
    _Atomic int32_t busy; /* 1 while a call is begun, or runs in the caller's thread: set and cleared by that thread
                             (acquire, release) */
    ep_unheard *unheard;  /* NULL: each call tells of those before it that did not end well */
    pthread_mutex_t poison_lock;
    ep_refusal own_refusal; /* the last one that a call of this rank returned. Guarded by poison_lock */
    error_kept poison;      /* not OK after a call that failed on its way, which other ranks may not know. Guarded by
                               poison_lock; set once */
};

/* Fills the record, which is zero; the executor is still to come. */
void ep_buffer_begin(ep_buffer *buffer, const ep_buffer_kind *kind, expar_group *group, expar_device device,
                     uint32_t number);
/* Makes parting words and the executor: on all ranks, or on none. */
typedef expar_status (*ep_executor_maker)(ep_buffer *buffer, const void *plan);
expar_status ep_buffer_make_parts(ep_buffer *buffer, ep_executor_maker make, const void *plan);
/* What ep_buffer_begin has made, and the thread. */
void ep_buffer_free_parts(ep_buffer *buffer);
/* "…: the buffer has been destroyed or abandoned": EXPAR_ERR_STATE. */
expar_status ep_buffer_has_ended(const char *call);
/* One more reference, or that. */
expar_status ep_buffer_enter(ep_buffer *buffer, const char *call);
/* Gives it back; the last one frees what an abandoned buffer has. */
void ep_buffer_leave(ep_buffer *buffer);
/* Enters, and takes the buffer for this thread alone: else EXPAR_ERR_BUSY. On failure nothing is held. */
expar_status ep_buffer_take(ep_buffer *buffer, const char *call);
/* Gives it back. Returns status. */
expar_status ep_buffer_give(ep_buffer *buffer, expar_status status);
/* The public calls. */
expar_status ep_buffer_destroy(ep_buffer *buffer);
expar_status ep_buffer_abandon(ep_buffer *buffer);
/* A topic of the buffer's. */
static inline boot_topic ep_buffer_topic(const ep_buffer *buffer, uint64_t number)
{
    return (boot_topic){.kind = (uint16_t)buffer->kind->topic, .object = buffer->number, .number = number};
}

/* ---- a call ------------------------------------------------------------------------------------------------------ */

/* The rest of a call once it is begun. */
typedef struct ep_halves {
    size_t bytes; /* of the whole call, whose first member is its ep_call */
    bool second;  /* of two kinds of call that have numbers */
    expar_status (*send)(ep_call *call);
    expar_status (*receive)(ep_call *call);
    /* Opens the call with nothing but this rank's refusal, so that the others do not wait for it. OK, or a failure. */
    expar_status (*refuse)(ep_call *call);
    /* What an executor says of the call's end, as this rank's error. */
    expar_status (*judge)(const ep_call *call, expar_status status, const ep_verdict *verdict);
    /* Of a call that runs by itself, or has its second half to come: what it uses is held for it before (the caller may
       give its own references back at any time), and let go when it has ended. */
    void (*hold)(ep_call *call);
    void (*drop)(ep_call *call);
} ep_halves;

struct ep_call {
    ep_buffer *buffer;
    const char *name; /* "expar_ep_dispatch" */
    const ep_halves *halves;
    uint64_t number;    /* of its topic (ep_buffer_kind) */
    ep_phase phase;     /* by the thread that carries the call out */
    ep_refusal refusal; /* this rank's own; status 0: none */
    exec_call exec;
    expar_event *wait_event; /* the caller's; NULL: none */
    expar_event *event;      /* with async_finish; else NULL */
    bool by_itself;          /* with async_finish, once that is known */
    bool leaves;             /* all of it is for the buffer's own thread, which begins with records that hold it */
    bool hooked;             /* its second half comes when the caller likes (ep_call_receive) */
    ep_phase behind;         /* before it opens all calls before it have come to this phase */
    ep_call *own;            /* room for the call where the buffer's own thread is to finish it; else NULL */
    ep_issuer_job job;       /* of that copy */
    bool issued;             /* it does; of that copy, and of the call that it was made from */
    bool followed;           /* it has its place, after wait_event, or has failed to get it (ep_call_follow) */
    bool opened;             /* others may have seen it */
    bool withdrawn;          /* interrupted before that: as if it had not been made */
    bool told;               /* it has failed in a way that the others know of: there is nothing to tell them */
};

/* ---- in this order (call.c) -------------------------------------------------------------------------------------- */

/* Takes the buffer for the beginning of a call, which is zero, and has its number then. On failure nothing is held. */
expar_status ep_call_begin(ep_call *call, const char *name, const ep_halves *halves, ep_buffer *buffer);
/* The call's stream, and its SMs or threads (0: the buffer's); nothing is put there yet. asked: somebody will ask how
   the call ended. */
expar_status ep_call_learn(ep_call *call, void *stream, int32_t num_sms, bool asked);
/* A wait_event that nobody holds any more; and what a graph cannot hold: an event to wait for or to signal. */
expar_status ep_call_check_events(const ep_call *call, const expar_event *wait_event, bool async_finish);
/* With async_finish the call's rest runs by itself. sized: so does all of it, where the buffer's own thread is to
   finish it, for nothing of what the others bring is to be known when the call returns. */
void ep_call_set_async(ep_call *call, bool async_finish, bool sized);
/* With async_finish: the event, and whatever else the call needs to finish by itself. */
expar_status ep_call_promise(ep_call *call);
/* Waits for wait_event, if any, or has the call's stream wait for it where that can; its failure is this rank's
   refusal. The call takes its place behind this rank's earlier ones, which exec.placed tells: where the thread waits
   not before, since the event may be another call's. */
expar_status ep_call_follow(ep_call *call);
/* Before the first record that is posted from the caller's thread: until the call before is sent, and the one before
   that has ended. Whoever is interrupted here, or in ep_call_await and ep_call_finish where nothing has been posted,
   can make the call again. On the buffer's own thread it waits for nobody. */
expar_status ep_call_open(ep_call *call);
/* Until this rank's earlier calls have come to the phase. */
expar_status ep_call_await(ep_call *call, ep_phase phase);
/* The halves, here or by themselves. In the latter case the call has been copied, and this one holds nothing any more
   (own is NULL). A refusal, which is told with the offers, is told from here. Of a call that is hooked the first. */
expar_status ep_call_finish(ep_call *call);
/* The second half of one that is hooked, of which this is the copy that holds what it uses: in another public call,
   which has taken the buffer. */
expar_status ep_call_receive(ep_call *call, const char *name, void *stream);
/* Poisons the buffer if status means that the group has failed, and gives it back. Returns status. */
expar_status ep_call_end(ep_call *call, expar_status status);
/* Of a call that failed before it could finish by itself: what ep_call_promise made. */
void ep_call_break_promise(ep_call *call);

/* ---- what steps come to ------------------------------------------------------------------------------------------ */

/* Puts the call's name and this rank before the last error's text. Returns status. */
expar_status ep_call_prefix(const ep_call *call, expar_status status);
/* How a step ended that all ranks take part in. Where steps are put on streams one that failed, for whatever reason, is
   not known to have reached the others: the ranks are out of step, and the buffer is poisoned; not in a capture, where
   nothing runs yet. The error's text names the call and the rank. Returns status. */
expar_status ep_call_step(const ep_call *call, expar_status status);
/* The ranks are out of step: later calls fail with status and the last error's text. Returns status. */
expar_status ep_call_poison(const ep_call *call, expar_status status);
/* EXPAR_OK, or why the buffer cannot be used any more. */
expar_status ep_call_check_poison(const ep_call *call);
/* Likewise, with what is known by now of calls that have returned. */
expar_status ep_call_check_earlier(const ep_call *call);
/* Likewise, once this rank's calls have ended. */
expar_status ep_call_settle(const ep_call *call);

/* In refusal.c. This rank cannot carry out the call: keeps status and the last error's text for the other ranks, and
   adds the call's name to the text. Returns status. */
expar_status ep_call_refuse(ep_call *call, expar_status status);
/* Likewise, of what a step found that has told the others already. */
expar_status ep_call_refused(ep_call *call, const ep_refusal *refusal);
/* ep_call_refuse, and opens the call with nothing but this rank's refusal: here, or by itself, in its turn, where the
   call was to finish so. */
expar_status ep_call_tell_refusal(ep_call *call, expar_status status);
/* Of a call that no graph of this rank's has, while those of others may. */
void ep_call_note_uncaptured(const ep_call *call, expar_status status);
/* In call.c: hands the rest of the call, of which `own` is a copy, to the buffer's own thread. */
void ep_call_issue(ep_call *call, ep_call *own);
/* Starts that thread, which holds the buffer, unless it runs. */
expar_status ep_call_prepare_issue(ep_buffer *buffer);

/* In verdict.c. OK when all ranks agreed; else this rank's own refusal, EXPAR_ERR_REMOTE or EXPAR_ERR_MISMATCH. */
expar_status ep_call_verdict(const ep_call *call, const ep_verdict *verdict);
/* The judge of a mode whose failures its next call finds: the status with the call's name, or the verdict. */
expar_status ep_call_judge(const ep_call *call, expar_status status, const ep_verdict *verdict);
/* There, too. Logs how earlier calls ended that nobody asked for, if one did not end well, and keeps it for
   expar_ep_query. */
void ep_call_tell_untold(const ep_call *call);

/* ---- check.c ----------------------------------------------------------------------------------------------------- */
/* Copies a versioned struct of the caller: members that it does not have are zero. `what` names it. */
expar_status ep_copy_struct(const char *what, void *dest, size_t size, const void *source);
bool tensor_given(const expar_tensor *tensor);
/* What a tensor of the caller's says its dtype is, for texts of errors: its name, or the number where it is none. What
   bindings have a name for, and the library no number, they hand on as -(DLPack's code << 8 | bits), which is told by
   that name: f64. */
typedef struct ep_dtype_text {
    char text[16];
} ep_dtype_text;
ep_dtype_text ep_tell_dtype(expar_dtype dtype);
/* [rows][H] of bf16, f16 or f32 (quantised: or f8e4m3 or i8) on the device: rows of 16-byte units, each contiguous,
   none longer than max_row_bytes. */
expar_status ep_check_rows(expar_device device, const char *name, const expar_tensor *tensor, int64_t max_row_bytes,
                           bool quantised);
/* Of a tensor that has passed one of the others: every row begins at a multiple of 16 bytes. */
expar_status ep_check_units(const char *name, const expar_tensor *tensor);
/* [rows][1 to max_scales] of 4-byte elements on the device, any strides. */
expar_status ep_check_scales(expar_device device, const expar_tensor *scales, int64_t rows, int32_t max_scales);
/* Rows of as many elements of the same dtype as those of `like`, on the device, at a multiple of 16 bytes; any strides.
 */
expar_status ep_check_columns(expar_device device, const char *name, const expar_tensor *tensor,
                              const expar_tensor *like);
/* [rows][columns], each row contiguous, dtype one of two. */
expar_status ep_check_matrix(expar_device device, const char *name, const expar_tensor *tensor, int64_t rows,
                             int64_t columns, expar_dtype dtype, expar_dtype other);
/* [any] contiguous, of the dtype. */
expar_status ep_check_vector(expar_device device, const char *name, const expar_tensor *tensor, expar_dtype dtype);
/* Arrays of the caller's, each aligned to its elements, and where the device's tensors lie; NULL is not wanted. */
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
/* That somebody holds it; NULL: none is given. */
expar_status ep_check_wait_event(const expar_event *wait_event);
static inline int64_t tensor_pitch(const expar_tensor *tensor)
{
    return tensor->shape[0] > 1 ? tensor->strides[0] : tensor->shape[1];
}

/* Where an object's memory comes from, which outlives its buffer. */
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
    mem_block *block;           /* all tensors of the result, but for the caller's own recv_x */
    mem_block *arrival;         /* expert-major: token-major rows on their way; NULL once expanded, and else */
    int32_t *tokens_per_expert; /* [L]; NULL where the host does not know them */
    /* By expar_ep_part; those in `block`. Written before the caller has the output. */
    expar_tensor parts[EP_OUTPUT_PARTS];
    /* Streams that may still read when the last reference goes. Guarded by a lock of output.c's; whoever gives that one
       back is alone with them. */
    void *readers[EP_OUTPUT_READERS];
    int32_t num_readers;
};
#define EP_OUTPUT_MAGIC 0x74757074756f7065u

/* Empty, with one reference; NULL: no memory. */
expar_ep_output *ep_output_make(const ep_buffer *buffer);
expar_ep_output *ep_output_hold(expar_ep_output *output);

#endif
