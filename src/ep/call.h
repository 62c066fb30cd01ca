/* SPDX-License-Identifier: Apache-2.0 */
/* What every call on a buffer has: phases, poison, epochs, an end that may come later, and what ranks tell each other
 * about bad arguments.
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
#ifndef EXPAR_EP_CALL_H
#define EXPAR_EP_CALL_H

#include "exec/executor.h"

typedef enum ep_phase { EP_CALL_BEGUN, EP_CALL_SENT, EP_CALL_RECEIVED, EP_CALL_ENDED } ep_phase;

typedef struct ep_call ep_call;

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

/* ---- a call ------------------------------------------------------------------------------------------------------ */

/* The rest of a call once it is begun. */
typedef struct ep_halves {
    size_t bytes; /* of the whole call, whose first member is its ep_call */
    expar_status (*send)(ep_call *call);
    expar_status (*receive)(ep_call *call);
    /* Of a call that runs by itself: what it uses is held for it before (the caller may give its own references back at
       any time), and let go when it has ended. */
    void (*hold)(ep_call *call);
    void (*drop)(ep_call *call);
} ep_halves;

struct ep_call {
    struct expar_ep *ep;
    const char *name; /* "expar_dispatch" */
    const ep_halves *halves;
    uint32_t epoch;
    ep_phase phase; /* by the thread that carries the call out */
    ep_form form;
    ep_refusal refusal; /* this rank's own; status 0: none */
    exec_call exec;
    expar_event *wait_event; /* the caller's; NULL: none */
    expar_event *event;      /* with async_finish; else NULL */
    bool by_itself;          /* with async_finish, once that is known */
    bool leaves;             /* all of it is for the buffer's own thread, which begins with records that hold it */
    int64_t row_bytes;       /* with the form: of the rows that it brings */
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

/* Takes the buffer for the beginning of a call and advances its epoch. On failure nothing is held. */
expar_status ep_call_begin(ep_call *call, const char *name, const ep_halves *halves, struct expar_ep *ep);
/* The call's stream, and its SMs or threads (0: the buffer's); nothing is put there yet. asked: somebody will ask how
   the call ended. */
expar_status ep_call_learn(ep_call *call, void *stream, int32_t num_sms, bool asked);
/* A wait_event that nobody holds any more; and what a graph cannot hold: an event to wait for or to signal. */
expar_status ep_call_check_events(const ep_call *call, const expar_event *wait_event, bool async_finish);
/* With async_finish the call's rest runs by itself. sized: so does all of it, where the buffer's own thread is to
   finish it, for nothing of what the others bring is to be known when the call returns. */
void ep_call_set_async(ep_call *call, bool async_finish, bool sized);
/* Whether records and rings hold a call as they are, whose form is filled; of one that leaves: true, for its thread
   asks. Once a call, behind those before it that may make them larger. EXPAR_ERR_INTERRUPTED, as by ep_call_open. */
expar_status ep_call_fits(ep_call *call, bool *fits);
/* Where they do not: they are made larger, by all ranks together, in the call's epoch; where that is a call of its own
   the call has the next one then. No call of the buffer is under way meanwhile: this rank's earlier ones have ended
   first. A failure has been told to the others, and leaves the buffer as it was. step: what the call takes. */
expar_status ep_call_grow(ep_call *call, ep_grow_step step);
/* Both, of a call that leaves, on the thread that carries it out; else without effect. Whoever fails here is done. */
expar_status ep_call_make_room(ep_call *call);
/* With async_finish: the event, and whatever else the call needs to finish by itself. */
expar_status ep_call_promise(ep_call *call);
/* Waits for wait_event, if any, or has the call's stream wait for it where that can; its failure is this rank's
   refusal. The call takes its place behind this rank's earlier ones, which exec.placed tells: where the thread waits
   not before, since the event may be another call's. */
expar_status ep_call_follow(ep_call *call);
/* Before the first record that is posted from the caller's thread: until the call before is sent, and the one before
   that has ended. Whoever is interrupted here, or where nothing has been posted in ep_call_fits, ep_call_grow and
   ep_call_finish, can make the call again. On the buffer's own thread it waits for nobody. */
expar_status ep_call_open(ep_call *call);
/* The halves, here or by themselves. In the latter case the call has been copied, and this one holds nothing any more
   (own is NULL). A refusal, which is told with the offers, is told from here. */
expar_status ep_call_finish(ep_call *call);
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
/* This rank cannot carry out the call: keeps status and the last error's text for the other ranks, and adds the call's
   name to the text. Returns status. */
expar_status ep_call_refuse(ep_call *call, expar_status status);
/* Likewise, of what a step found that has told the others already. */
expar_status ep_call_refused(ep_call *call, const ep_refusal *refusal);
/* ep_call_refuse, and opens the call with nothing but this rank's refusal, so that the others do not wait for it: here,
   or by itself, in its turn, where the call was to finish so. */
expar_status ep_call_tell_refusal(ep_call *call, expar_status status);
/* In verdict.c. OK when all ranks agreed; else this rank's own refusal, EXPAR_ERR_REMOTE or EXPAR_ERR_MISMATCH. */
expar_status ep_call_verdict(const ep_call *call, const ep_verdict *verdict);
/* There, too. Logs how earlier calls ended that nobody asked for, if one did not end well, and keeps it for
   expar_ep_query. */
void ep_call_tell_untold(const ep_call *call);
/* EXPAR_OK, or why the buffer cannot be used any more, with what is known by now of calls that have returned. */
expar_status ep_call_check_earlier(const ep_call *call);
/* EXPAR_OK, or why the buffer cannot be used any more. */
expar_status ep_call_check_poison(const ep_call *call);

/* ---- calls that finish by themselves (issue.c) ------------------------------------------------------------------- */

/* Starts the buffer's own thread, which holds the buffer, unless it runs. */
expar_status ep_issue_prepare(struct expar_ep *ep);
/* Hands the rest of a call to it. */
void ep_issue(ep_call *call, ep_issuer_run run);
/* The call that is being carried out there has come to a phase. */
void ep_issue_reach(struct expar_ep *ep, ep_phase phase);
/* Until all calls that were issued have come to the phase. EXPAR_ERR_INTERRUPTED. */
expar_status ep_issue_await(struct expar_ep *ep, ep_phase phase);
/* Until all have ended; ends the thread. */
void ep_issue_stop(struct expar_ep *ep);
/* The thread ends by itself when all have ended. */
void ep_issue_let_go(struct expar_ep *ep);
/* What is left of it then. */
void ep_issue_free(struct expar_ep *ep);

#endif
