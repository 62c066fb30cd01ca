/* SPDX-License-Identifier: Apache-2.0 */
/* Decisions from the words of ranks: whether a slot may be written, whether a slot or region is free, and what the
 * headers of all ranks mean for a call. They are pure functions. The CPU's executors and the kernels call them, and
 * each loads the words in its own way. tests/proto/test_decisions.c tests them against tables that follow from the
 * models in tests/models.
 *
 * This header compiles as C17, under NVRTC and under nvcc. */
#ifndef EXPAR_PROTO_DECISIONS_H
#define EXPAR_PROTO_DECISIONS_H

#include "proto/low_latency.h"

/* ---- normal mode: headers ---------------------------------------------------------------------------------------- */

EP_FUNC int32_t ep_is_same_form(const ep_form *a, const ep_form *b)
{
    uint32_t differs = 0;
    for (uint32_t i = 0; i < sizeof *a / 4; i++)
        differs |= ((const uint32_t *)a)[i] ^ ((const uint32_t *)b)[i];
    return differs == 0;
}

/* The meaning of a rank's header for a call. The lowest value among all ranks decides, and all ranks report it. */
typedef enum ep_stand {
    /* The rank has given up the buffer. It comes first, because other ranks may not have waited for the remaining
       headers. */
    EP_STAND_GONE = 0,
    EP_STAND_REJECTS = 1,
    /* The rank's form differs from that of rank 0. */
    EP_STAND_DIFFERS = 2,
    EP_STAND_AGREES = 3
} ep_stand;

EP_FUNC ep_stand ep_header_stands(int32_t status, const ep_form *form, const ep_form *form0)
{
    if (status == EXPAR_STATUS_PEER) return EP_STAND_GONE;
    if (status) return EP_STAND_REJECTS;
    return ep_is_same_form(form, form0) ? EP_STAND_AGREES : EP_STAND_DIFFERS;
}

/* A ballot is the ep_stand of a rank's header together with the rank. The lowest ballot of all names the rank that
   prevents the call, and the reason. */
EP_FUNC int32_t ep_ballot(ep_stand stand, int32_t rank)
{
    return (int32_t)stand << 16 | rank;
}
EP_FUNC ep_stand ep_ballot_stand(int32_t ballot)
{
    return (ep_stand)(ballot >> 16);
}
/* Returns -1 if all ranks agree. */
EP_FUNC int32_t ep_ballot_rank(int32_t ballot)
{
    return ep_ballot_stand(ballot) == EP_STAND_AGREES ? -1 : ballot & 0xffff;
}

/* ---- normal mode: rings ------------------------------------------------------------------------------------------ */

/* Returns how many rows one end of a ring may move now, from the word that the other end has stored. It is 0 if the
   word is impossible. `moved` counts the rows that this end has moved in this call. The source puts rows in: the word
   is the receiver's head, and `spare` is the number of slots. The receiver takes rows out: the word is the source's
   tail, and `spare` is 0. */
EP_FUNC int32_t ep_ring_may_move(uint64_t word, uint32_t epoch, uint32_t moved, int32_t spare, int32_t slots)
{
    const uint32_t may = ep_word_value(word, epoch) - moved + (uint32_t)spare;
    return may > (uint32_t)slots ? 0 : (int32_t)may;
}
EP_FUNC int32_t ep_ring_free(uint64_t head, uint32_t epoch, uint32_t put, int32_t slots)
{
    return ep_ring_may_move(head, epoch, put, slots, slots);
}
EP_FUNC int32_t ep_ring_ready(uint64_t tail, uint32_t epoch, uint32_t taken, int32_t slots)
{
    return ep_ring_may_move(tail, epoch, taken, 0, slots);
}

/* ---- low latency: credit checks ---------------------------------------------------------------------------------- */

/* Says whether a rank whose header has this status takes part in the call. A rank with an index out of range does: the
   error is reported, and its other tokens go on. */
EP_FUNC int32_t ll_status_goes_on(int32_t status)
{
    return status == 0 || status == EXPAR_STATUS_INDEX;
}

/* Says whether data of a call may go to a peer. */
typedef enum ll_credit { LL_CREDIT_AWAITED = 0, LL_CREDIT_GIVEN = 1, LL_CREDIT_REJECTS = 2 } ll_credit;

/* Makes the credit check by the peer's acknowledgement of this slot of the double buffer. It passes if the
   acknowledgement is that of the call before the last, which used the same slot and has the stamp `before`. Stamp 0
   means that there was no such call. */
EP_FUNC int32_t ll_read_opens(uint64_t read, uint32_t before)
{
    return before == 0 || (uint32_t)(read >> 32) == before;
}
/* Makes the credit check by the status word of the peer's header, which must have this call's stamp. A rank sends its
   header only when it needs no data of the call before the last any more. */
EP_FUNC ll_credit ll_header_opens(uint64_t status, uint32_t stamp)
{
    if ((uint32_t)(status >> 32) != stamp) return LL_CREDIT_AWAITED;
    return ll_status_goes_on((int32_t)(uint32_t)status) ? LL_CREDIT_GIVEN : LL_CREDIT_REJECTS;
}

/* ---- low latency: masks and regions ------------------------------------------------------------------------------ */

/* A buffer with masks has several regions for data, of which a slot uses one, so that a masked rank's late writes do no
   harm (proto/low_latency.h). Returns the region that a peer has named in an acknowledgement, or in the header of a
   combine. A number that does not exist becomes 0. */
EP_FUNC int32_t ll_region_told(uint64_t word, int32_t regions)
{
    return (uint32_t)word < (uint32_t)regions ? (int32_t)(uint32_t)word : 0;
}

/* Returns the region that a slot uses from its next acknowledgement on. `known` has a bit for each region that a masked
   rank knows and may still write to. The slot keeps the region `now` if its bit is clear; else it gets the first region
   with a clear bit, or -1 if there is none. */
EP_FUNC int32_t ll_region_choose(int32_t now, uint32_t known, int32_t regions)
{
    if (!(known >> now & 1)) return now;
    for (int32_t region = 0; region < regions; region++)
        if (!(known >> region & 1)) return region;
    return -1;
}

/* Returns the word by which a rank tells another whether it has masked it. If it has, the word is the number of its
   latest attempt at a clean (group/members.h), plus 1. That stays valid until both ranks take part in the same clean.
   parted: LL_MASKER_PARTED or 0. */
EP_FUNC uint64_t ll_masker_word(int32_t masked, uint32_t attempt, uint64_t parted)
{
    return (masked ? (uint64_t)attempt + 1 : 0) | parted;
}
/* Says whether the word masks this rank. `with` is the masker's attempt in the last clean that had both ranks. */
EP_FUNC int32_t ll_masker_masks(uint64_t word, uint64_t with)
{
    return (word & ~LL_MASKER_PARTED) > with;
}

/* ---- low latency: message headers -------------------------------------------------------------------------------- */

/* Returns the value of a word of this rank's header, other than its status. In a call that goes on, `messages` and the
   counts of the peer's L experts say what goes to the peer. */
EP_FUNC uint32_t ll_header_value(int32_t word, const ll_form *form, uint32_t route, int32_t goes, uint32_t messages,
                                 const int32_t *counts)
{
    uint32_t value = 0;
    if (word == LL_HEADER_TAG) value = ll_form_tag(form);
    if (word == LL_HEADER_ROUTE) value = route;
    if (word == LL_HEADER_MESSAGES && goes) value = messages;
    if (word >= LL_HEADER_COUNTS && goes) value = (uint32_t)counts[word - LL_HEADER_COUNTS];
    return value;
}

/* The largest counts that headers of a buffer may have. `words` is the limit for the messages of a small batch in words
   (LL_HEADER_IN_WORDS). It is -1 if the buffer has no such batches. */
typedef struct ll_header_bounds {
    int32_t messages, words, rows;
} ll_header_bounds;

/* A count in a message header, and its largest valid value. */
typedef struct ll_header_count {
    uint32_t told, most;
} ll_header_count;
EP_FUNC ll_header_count ll_count_told(int32_t word, uint32_t value, ll_header_bounds bounds)
{
    const int32_t in_words = bounds.words >= 0 && word == LL_HEADER_MESSAGES && (value & LL_HEADER_IN_WORDS);
    ll_header_count count;
    count.told = in_words ? value & ~LL_HEADER_MARKS : value;
    count.most = (uint32_t)(word != LL_HEADER_MESSAGES ? bounds.rows : in_words ? bounds.words : bounds.messages);
    return count;
}
EP_FUNC int32_t ll_count_can_be(int32_t word, uint32_t value, ll_header_bounds bounds)
{
    const ll_header_count count = ll_count_told(word, value, bounds);
    return count.told <= count.most;
}

/* Returns how many of a source's `count` rows an expert still has places for. It has `places` in all, of which `taken`
   are in use. */
EP_FUNC int32_t ll_rows_that_fit(int32_t places, int32_t taken, int32_t count)
{
    return count < places - taken ? count : places - taken;
}

/* Says whether another rank's header has the same call tag and route as this rank's. */
EP_FUNC int32_t ll_is_same_call(uint32_t tag, uint32_t route, uint32_t own_tag, uint32_t own_route)
{
    return tag == own_tag && route == own_route;
}

#endif
