/* SPDX-License-Identifier: Apache-2.0 */
/* What a low-latency call asks for ranks that are not mapped: a table of operations, which far/ fills, and which is
 * NULL where all ranks map each other. Private to low_latency.
 *
 * A rank is far where ll_is_far says so. To near ranks calls go by stores, as unit.c, dispatch.c and combine.c have it;
 * at the places that are named here they ask for what goes to far ranks, or has come from them. What these operations
 * keep is the executor's `links`, which nobody else opens.
 *
 * Threads. All are called by the thread that is in the call. Workers call `row_came` and `row`, too, and whoever asks
 * what a wait is for calls `found` and `row_came`.
 * Errors. What cannot be sent is kept, the first of it, until the phase asks (`check`); with masks the rank is masked
 * for it. So most operations return nothing, and send nothing to a masked rank. */
#ifndef EXPAR_EXEC_CPU_LOW_LATENCY_FAR_H
#define EXPAR_EXEC_CPU_LOW_LATENCY_FAR_H

#include "exec/cpu/low_latency/combine.h"
#include "exec/cpu/low_latency/dispatch.h"

struct ll_far_ops {
    /* ---- units and read words (unit.c) ---- */

    /* This rank's unit of the call to the far rank, whose half is free or not; after all units of the kind before. It
       may be put off until the call's only piece takes it along, or until `flush`. sends: NULL where nothing comes. */
    void (*unit)(const ll_cpu *self, const ll_call *call, ll_kind kind, const ll_sends *sends, int32_t pe);
    /* This rank has read the call: the word, to the offset there. whole: the call was received where it was sent, and
       this rank's next call may take the word along. */
    void (*read)(const ll_cpu *self, ll_kind kind, int32_t pe, uint64_t at, uint64_t word, bool whole);
    /* Whether a word of the epoch has come from a far rank to an offset here. Then all that came before it is seen, and
       all of a unit whose last word it is. */
    bool (*found)(const ll_cpu *self, uint64_t at, uint64_t epoch);
    /* The rank's read word of the epoch has not come, nor its unit of the call after: asks for it, in each turn of a
       wait anew. OPEN: the rank has it; REFUSES: something could not be sent. Never waits. */
    ll_door (*ask)(const ll_cpu *self, ll_kind kind, int32_t pe, uint64_t epoch);
    /* Before a call waits for anybody, and at its end: all that was put off leaves. */
    void (*flush)(const ll_cpu *self);
    /* A call opens, or sends messages: waits until what this rank sends from now on comes after all that it has sent
       to the half of the epoch. */
    void (*await)(const ll_cpu *self, ll_kind kind, uint64_t epoch);
    /* At the end of a phase: EXPAR_OK, or why something could not be sent, with the phase before the text. */
    expar_status (*check)(const ll_cpu *self, const char *what);
    /* A half was read, nobody has leave for the next, and its flags are old: those of pieces become 0, of messages or,
       in the region, of rows. */
    void (*clear)(const ll_cpu *self, ll_kind kind, int32_t half, int32_t region);
    /* The buffer is given up: between the two (true, false) this thread's waits for the network end soon. */
    void (*part)(const ll_cpu *self, bool begins);

    /* ---- dispatch (dispatch.c) ---- */

    /* Before units leave, which tell it: where rows are to come back that far ranks send for this call's tokens. goes:
       this rank sends messages. */
    void (*dispatch_plan)(const ll_cpu *self, bool goes);
    /* All messages to the far ranks of this round (SEND_NOW). */
    void (*dispatch_send)(const ll_dispatch *d);
    /* How many messages of a far source have come after `came`, of `all`; and where one of those stands. */
    int32_t (*messages_came)(const ll_dispatch *d, int32_t source, int32_t came, int32_t all);
    const uint8_t *(*message)(const ll_dispatch *d, int32_t source, int32_t message);

    /* ---- combine (combine.c) ---- */

    /* Before units leave. goes: this rank sends rows. */
    void (*combine_plan)(const ll_combine *c, bool goes);
    /* All weights, and all rows, to a far rank whose door is open. */
    void (*send_weights)(const ll_combine *c, int32_t pe);
    void (*send_rows)(const ll_combine *c, int32_t pe);
    /* Before rows are received: finds where those of far ranks come to, for each token. */
    void (*combine_expect)(const ll_combine *c);
    /* Whether a part of a token's sum has come from its far rank; and, once ll_see has followed, where it stands. */
    bool (*row_came)(const ll_combine *c, int32_t token, const ll_part *part);
    const void *(*row)(const ll_combine *c, int32_t token, const ll_part *part);

    /* ---- masks (mask.c, clean.c) ---- */

    /* What a far rank is told of masks and cleans goes after all that was sent to it, one thing at a time: in each
       turn of a wait, and when a call opens, the next of it leaves as far as it can. Keeps the caller's error text. */
    void (*spread)(const ll_cpu *self);
    /* This rank's masker word at the far rank is to be this. */
    void (*masker)(const ll_cpu *self, int32_t rank, uint64_t word);
    /* Until the far rank has been told all, but for a short time only: it may be stopped, and learns the rest later. */
    void (*linger)(const ll_cpu *self, int32_t rank);
    /* The rank is masked now: what is under way to it keeps its memory. EXPAR_ERR_PEER: there is not so much other. */
    expar_status (*set_aside)(const ll_cpu *self, int32_t rank);
    /* A clean has ended: until those of its view have been told all, or are lost. EXPAR_ERR_ABORTED,
       EXPAR_ERR_INTERRUPTED. */
    expar_status (*conclude)(const ll_cpu *self, const uint32_t *view);
};

#endif
