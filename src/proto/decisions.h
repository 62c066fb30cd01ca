/* SPDX-License-Identifier: Apache-2.0 */
/* What a set of words between ranks comes to: may a slot be written, is a half or a region free, what do the headers of
 * all ranks make of a call. Pure functions, called by the CPU's executors and by kernels, each of which loads the words
 * in its own way. Tested against tables that follow from the models (tests/proto/test_decisions.c).
 *
 * Compiles as C17, under NVRTC and under nvcc. */
#ifndef EXPAR_PROTO_DECISIONS_H
#define EXPAR_PROTO_DECISIONS_H

#include "proto/low_latency.h"

/* ---- normal mode: hellos ----------------------------------------------------------------------------------------- */

EP_FUNC int32_t ep_is_same_form(const ep_form *a, const ep_form *b)
{
    uint32_t differs = 0;
    for (uint32_t i = 0; i < sizeof *a / 4; i++)
        differs |= ((const uint32_t *)a)[i] ^ ((const uint32_t *)b)[i];
    return differs == 0;
}

/* What a hello says to a call; the first that some rank says is what all ranks report. */
typedef enum ep_stand {
    EP_STAND_GONE = 0, /* the rank has given the buffer up: others may not have waited for the rest */
    EP_STAND_REFUSES = 1,
    EP_STAND_DIFFERS = 2, /* its form is not rank 0's */
    EP_STAND_AGREES = 3
} ep_stand;

EP_FUNC ep_stand ep_hello_stands(int32_t status, const ep_form *form, const ep_form *form0)
{
    if (status == EXPAR_STATUS_PEER) return EP_STAND_GONE;
    if (status) return EP_STAND_REFUSES;
    return ep_is_same_form(form, form0) ? EP_STAND_AGREES : EP_STAND_DIFFERS;
}

/* The least of all ranks' ballots names the rank in the way of the call, and what it said. */
EP_FUNC int32_t ep_ballot(ep_stand stand, int32_t rank)
{
    return (int32_t)stand << 16 | rank;
}
EP_FUNC ep_stand ep_ballot_stand(int32_t ballot)
{
    return (ep_stand)(ballot >> 16);
}
/* -1: all agree. */
EP_FUNC int32_t ep_ballot_rank(int32_t ballot)
{
    return ep_ballot_stand(ballot) == EP_STAND_AGREES ? -1 : ballot & 0xffff;
}

/* ---- normal mode: rings ------------------------------------------------------------------------------------------ */

/* How many rows an end of a ring may move now, by the word that the other end has stored. A source, which has put so
   many rows in, goes by the receiver's head: its `room` is the ring's slots. A receiver, which has taken so many out,
   goes by the source's tail: its room is 0. A word that cannot be gives 0, too. */
EP_FUNC int32_t ep_ring_may_move(uint64_t word, uint32_t epoch, uint32_t moved, int32_t room, int32_t slots)
{
    const uint32_t may = ep_word_value(word, epoch) - moved + (uint32_t)room;
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

/* ---- low latency: doors ------------------------------------------------------------------------------------------ */

/* A rank whose unit has this status takes part in the call: an index out of range is reported, and the rest goes on. */
EP_FUNC int32_t ll_status_goes_on(int32_t status)
{
    return status == 0 || status == EXPAR_STATUS_INDEX;
}

/* Whether data of a call may go to a peer. */
typedef enum ll_door { LL_DOOR_SHUT = 0, LL_DOOR_OPEN = 1, LL_DOOR_REFUSES = 2 } ll_door;

/* By the peer's read word of this half: what this rank sent in the call before the last, of this stamp, was read. A
   stamp of 0: there was no such call. */
EP_FUNC int32_t ll_read_opens(uint64_t read, uint32_t before)
{
    return before == 0 || (uint32_t)(read >> 32) == before;
}
/* Else by the status word of the peer's unit of this call, of this stamp: a rank opens a call only once it needs
   nothing of the call before the last any more. */
EP_FUNC ll_door ll_unit_opens(uint64_t status, uint32_t stamp)
{
    if ((uint32_t)(status >> 32) != stamp) return LL_DOOR_SHUT;
    return ll_status_goes_on((int32_t)(uint32_t)status) ? LL_DOOR_OPEN : LL_DOOR_REFUSES;
}

/* ---- low latency: masks and regions ------------------------------------------------------------------------------ */

/* The region that a peer has told, in a read word or a unit of a combine; 0 for one that there is not. */
EP_FUNC int32_t ll_region_told(uint64_t word, int32_t regions)
{
    return (uint32_t)word < (uint32_t)regions ? (int32_t)(uint32_t)word : 0;
}

/* Where a half lies from its next read word on: where it does now, if no masked rank may still write there, else the
   first free region. known: a bit for each region that some such rank knows. -1: none is free. */
EP_FUNC int32_t ll_region_choose(int32_t now, uint32_t known, int32_t regions)
{
    if (!(known >> now & 1)) return now;
    for (int32_t region = 0; region < regions; region++)
        if (!(known >> region & 1)) return region;
    return -1;
}

/* "You are masked here", in an attempt; parted: LL_MASKER_PARTED or 0. It counts until both ranks are in a clean
   together again. */
EP_FUNC uint64_t ll_masker_word(int32_t masked, uint32_t attempt, uint64_t parted)
{
    return (masked ? (uint64_t)attempt + 1 : 0) | parted;
}
/* Whether it says so to a rank that was last in a clean with the masker in its attempt `with`. */
EP_FUNC int32_t ll_masker_masks(uint64_t word, uint64_t with)
{
    return (word & ~LL_MASKER_PARTED) > with;
}

/* ---- low latency: units ------------------------------------------------------------------------------------------ */

/* What units of a buffer may count at most; words: messages of a small batch in words, -1 where there are none such. */
typedef struct ll_unit_bounds {
    int32_t messages, words, rows;
} ll_unit_bounds;

/* A count in a unit, and how much it may be. */
typedef struct ll_unit_count {
    uint32_t told, most;
} ll_unit_count;
EP_FUNC ll_unit_count ll_count_told(int32_t word, uint32_t value, ll_unit_bounds bounds)
{
    const int32_t in_words = bounds.words >= 0 && word == LL_UNIT_MESSAGES && (value & LL_UNIT_IN_WORDS);
    ll_unit_count count;
    count.told = in_words ? value & ~LL_UNIT_MARKS : value;
    count.most = (uint32_t)(word != LL_UNIT_MESSAGES ? bounds.rows : in_words ? bounds.words : bounds.messages);
    return count;
}
EP_FUNC int32_t ll_count_can_be(int32_t word, uint32_t value, ll_unit_bounds bounds)
{
    const ll_unit_count count = ll_count_told(word, value, bounds);
    return count.told <= count.most;
}

/* How many of a source's `count` rows fit an expert's places, of which `taken` are taken. */
EP_FUNC int32_t ll_rows_that_fit(int32_t places, int32_t taken, int32_t count)
{
    return count < places - taken ? count : places - taken;
}

/* Whether a rank makes the call that another one makes. */
EP_FUNC int32_t ll_is_same_call(uint32_t tag, uint32_t route, uint32_t own_tag, uint32_t own_route)
{
    return tag == own_tag && route == own_route;
}

#endif
