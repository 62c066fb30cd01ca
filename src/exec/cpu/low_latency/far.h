/* SPDX-License-Identifier: Apache-2.0 */
/* A table of operations for ranks that are not mapped. Low-latency calls use it; far/ fills it. It is NULL if all ranks
 * map each other. Private to low_latency.
 *
 * ll_is_far says whether a rank is far. To near ranks calls send by stores, as in headers.c, dispatch.c and combine.c.
 * At the points named here they ask for data that go to far ranks, or have come from them. The state of these
 * operations is the executor's `links`, which no other code opens.
 *
 * Threads. The thread in the call calls all of them. Workers also call `row_came` and `row`. A thread that asks what a
 * wait is for calls `found` and `row_came`.
 *
 * Errors. The first failure to send is kept until the phase asks (`check`); with masks the rank is masked for it. So
 * most operations return nothing, and send nothing to a masked rank. */
#ifndef EXPAR_EXEC_CPU_LOW_LATENCY_FAR_H
#define EXPAR_EXEC_CPU_LOW_LATENCY_FAR_H

#include "exec/cpu/low_latency/combine.h"
#include "exec/cpu/low_latency/dispatch.h"

struct ll_far_ops {
    /* ---- headers and acknowledgements (headers.c) ---- */

    /* Sends this rank's header of the call to the far rank, whether its slot is free or not, after all headers of the
       kind before. It may be put off until it leaves with the call's only piece, or until `flush`. sends: NULL if no
       data follow. */
    void (*unit)(const ll_cpu *self, const ll_call *call, const ll_sends *sends, int32_t pe);
    /* Acknowledges the call: sends the word to the offset there. whole: the call was received where it was sent, and
       the word may leave with this rank's next call. */
    void (*read)(const ll_cpu *self, ll_kind kind, int32_t pe, uint64_t at, uint64_t word, bool whole);
    /* Says whether a word of the epoch has come from a far rank to an offset here. Then everything that came before it
       is visible, and all of a header whose last word it is. */
    bool (*found)(const ll_cpu *self, uint64_t at, uint64_t epoch);
    /* Neither the rank's acknowledgement of the epoch nor its header of the next call has come. Asks for it, anew in
       each turn of a wait. LL_CREDIT_GIVEN: the rank has stored it; LL_CREDIT_REJECTS: something could not be sent.
       Never waits. */
    ll_credit (*ask)(const ll_cpu *self, ll_kind kind, int32_t pe, uint64_t epoch);
    /* Comes before a call waits for any rank, and at its end: everything that was put off leaves. */
    void (*flush)(const ll_cpu *self);
    /* Comes when a call opens, or sends messages. Waits until data that this rank sends from now on come after all that
       it has sent to the slot of the epoch. */
    void (*await)(const ll_cpu *self, ll_kind kind, uint64_t epoch);
    /* Comes at the end of a phase. Returns EXPAR_OK, or why something could not be sent, with the phase before the
       text. */
    expar_status (*check)(const ll_cpu *self, const char *what);
    /* A slot was read, no rank may write its next data, and its flags are old. Sets the flags of pieces to 0: of
       messages or, in the region, of rows. */
    void (*clear)(const ll_cpu *self, ll_kind kind, int32_t slot, int32_t region);
    /* The buffer is given up: between the two calls (true, false) this thread's waits for the network end soon. */
    void (*part)(const ll_cpu *self, bool begins);

    /* ---- dispatch (dispatch.c) ---- */

    /* Comes before headers leave, which contain the result. Finds where rows for this call's tokens come back that far
       ranks send. goes: this rank sends messages. */
    void (*dispatch_plan)(const ll_cpu *self, bool goes);
    /* Sends all messages to the far ranks of this round (SEND_NOW). */
    void (*dispatch_send)(const ll_dispatch *d);
    /* The first returns how many messages of a far source have come, of `all`, when `came` had come before. The second
       returns where one of those lies. */
    int32_t (*messages_came)(const ll_dispatch *d, int32_t source, int32_t came, int32_t all);
    const uint8_t *(*message)(const ll_dispatch *d, int32_t source, int32_t message);

    /* ---- combine (combine.c) ---- */

    /* Comes before headers leave. goes: this rank sends rows. */
    void (*combine_plan)(const ll_combine *c, bool goes);
    /* Send all weights, and all rows, to a far rank whose credit check has passed. */
    void (*send_weights)(const ll_combine *c, int32_t pe);
    void (*send_rows)(const ll_combine *c, int32_t pe);
    /* Comes before rows are received: finds where those of far ranks come to, for each token. */
    void (*combine_expect)(const ll_combine *c);
    /* The first says whether a part of a token's sum has come from its far rank. The second returns, after ll_see,
       where it lies. */
    bool (*row_came)(const ll_combine *c, int32_t token, const ll_part *part);
    const void *(*row)(const ll_combine *c, int32_t token, const ll_part *part);

    /* ---- masks (mask.c, clean.c) ---- */

    /* Words about masks and cleans go to a far rank after everything that was sent to it, one thing at a time. In each
       turn of a wait, and when a call opens, the next ones leave as far as they can. Keeps the caller's error text. */
    void (*spread)(const ll_cpu *self);
    /* Sets the new value of this rank's masker word at the far rank. */
    void (*masker)(const ll_cpu *self, int32_t rank, uint64_t word);
    /* Waits until the far rank has been told everything, but only for a short time: it may be stopped, and then learns
       the rest later. */
    void (*linger)(const ll_cpu *self, int32_t rank);
    /* The rank is masked now: data under way to it keep their memory. EXPAR_ERR_PEER: there is not so much other
       memory. */
    expar_status (*set_aside)(const ll_cpu *self, int32_t rank);
    /* A clean has ended. Waits until the ranks of its view have been told everything, or are lost. EXPAR_ERR_ABORTED,
       EXPAR_ERR_INTERRUPTED. */
    expar_status (*conclude)(const ll_cpu *self, const uint32_t *view);
};

#endif
