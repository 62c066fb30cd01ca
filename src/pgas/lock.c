/* SPDX-License-Identifier: Apache-2.0 */
/* Locks: a queue of ranks. The lock's copy on its home rank names the last rank in the queue; every rank's own copy
 * names the one behind it, and says when its turn has come, so that everybody waits for a word of its own.
 *
 * Who gives up waiting cannot step out of the queue by itself: the one behind it has told it alone. It leaves a mark in
 * its own copy. Whoever hands over to it then finds the mark, takes it out, and hands over to the one behind. Until
 * that the rank may come back to its place. */
#include "base/interrupt.h"
#include "pgas/ops.h"
#include "pgas/target.h"
#include <expar/lock.h>

/* The two words of a lock, low address first.
   tail: 0, or 1 + the rank that asked last. On the home rank; changed by all with atomics.
   mine: 0, or 1 + the rank behind this one; GRANTED is there when the lock has been handed over, AWAY while the owner
   stands in the queue and does not wait. On every rank; the owner clears it, sets AWAY and takes it off, the rank
   behind adds its number, whoever hands over sets GRANTED, all with atomics. Who sets GRANTED beside AWAY takes the
   owner out of the queue and then clears the word; the owner leaves it alone until then. */
typedef struct lock_words {
    uint32_t tail, mine;
} lock_words;
#define GRANTED UINT32_C(0x80000000)
#define AWAY    UINT32_C(0x40000000)
#define TICKET  (AWAY - 1)

typedef struct lock_call {
    const char *name;
    expar_group *group;
    lock_words *words;
    int32_t home;
} lock_call;

static expar_status lock_begin(lock_call *call, uint64_t *lock)
{
    uint64_t offset;
    if (!call->group) return error_set(EXPAR_ERR_NULL, "%s: group is NULL", call->name);
    expar_status status = sym_check_self(call->group->sym, call->name);
    if (status == EXPAR_OK) status = target_check_word(call->name, call->group, "lock", lock, sizeof *lock, &offset);
    if (status != EXPAR_OK) return status;
    call->words = (lock_words *)lock;
    call->home = (int32_t)(offset / sizeof *lock % (uint64_t)call->group->size);
    return EXPAR_OK;
}

/* Given up half-way nobody would know this rank's place in the queue: no interrupt ends it. */
static expar_status lock_change(const lock_call *call, const uint32_t *word, int32_t pe, transport_atomic_op op,
                                uint32_t operand, uint32_t compare, uint32_t *old)
{
    uint32_t before = 0;
    const ops_origin from = {.call = call->name, .group = call->group};
    const link_change change = {
        .op = op, .bytes = sizeof *word, .operand = operand, .compare = compare, .old = &before};
    interrupt_defer();
    expar_status status = ops_atomic_run(&from, &change, word, pe);
    interrupt_undefer();
    if (status == EXPAR_OK && old) *old = before;
    return status;
}

static uint32_t own_ticket(const lock_call *call)
{
    return (uint32_t)call->group->rank + 1;
}

static expar_status change_mine(const lock_call *call, transport_atomic_op op, uint32_t operand, uint32_t *old)
{
    return lock_change(call, &call->words->mine, call->group->rank, op, operand, 0, old);
}

/* before: who stands in the queue right before this rank, or has the lock; -1: that is not known. */
static expar_status wait_mine(const lock_call *call, int32_t before, expar_cmp cmp, uint32_t value, uint32_t *seen)
{
    expar_status status = expar_wait_until_u32(call->group, &call->words->mine, cmp, value, seen);
    if (status == EXPAR_OK) return EXPAR_OK;
    return before < 0 ? error_prefix(status, "%s", call->name)
                      : error_prefix(status, "%s: behind rank %d", call->name, before);
}

/* ---- in the queue ------------------------------------------------------------------------------------------------ */

/* The wait for this rank's turn has failed. The turn may have come after all: then nobody else has it. */
static expar_status go_away(const lock_call *call, expar_status failed)
{
    uint32_t old = 0;
    if (change_mine(call, TRANSPORT_OR, AWAY, &old) != EXPAR_OK || !(old & GRANTED)) return failed;
    return change_mine(call, TRANSPORT_AND, TICKET, NULL);
}

static expar_status await_turn(const lock_call *call, int32_t before)
{
    expar_status status = wait_mine(call, before, EXPAR_CMP_GE, GRANTED, NULL);
    return status == EXPAR_OK ? change_mine(call, TRANSPORT_AND, TICKET, NULL) : go_away(call, status);
}

/* Behind `before`: says so, and waits for it to hand over. */
static expar_status queue_behind(const lock_call *call, int32_t before)
{
    expar_status status = lock_change(call, &call->words->mine, before, TRANSPORT_ADD, own_ticket(call), 0, NULL);
    return status == EXPAR_OK ? await_turn(call, before) : go_away(call, status);
}

static expar_status is_away(const lock_call *call, int *away)
{
    return expar_test_u32(call->group, &call->words->mine, EXPAR_CMP_GE, AWAY, away);
}

/* Of a rank that went away: takes its mark off, and is in the queue again (*back), unless the turn was handed to it;
   then it waits until it has been taken out. Others change the word twice at most, so this ends. */
static expar_status come_back(const lock_call *call, bool *back)
{
    uint32_t seen, old;
    *back = false;
    expar_status status = change_mine(call, TRANSPORT_FETCH, 0, &old);
    do {
        seen = old;
        if (status != EXPAR_OK || !(seen & AWAY)) return status;
        if (seen & GRANTED) return wait_mine(call, -1, EXPAR_CMP_LT, AWAY, NULL);
        status =
            lock_change(call, &call->words->mine, call->group->rank, TRANSPORT_COMPARE_SWAP, seen & TICKET, seen, &old);
    } while (status == EXPAR_OK && old != seen);
    *back = status == EXPAR_OK;
    return status;
}

/* ---- handing over ------------------------------------------------------------------------------------------------ */

/* Somebody stands behind `rank`, which is away, and has told it or is about to. */
static expar_status await_ticket(const lock_call *call, int32_t rank, uint32_t *behind)
{
    uint32_t seen = 0;
    expar_status status = EXPAR_OK;
    sym_rest rest = sym_rest_begin_open(call->group->sym, call->name, 0, 1);
    do
        status = lock_change(call, &call->words->mine, rank, TRANSPORT_FETCH, 0, 0, &seen);
    while (status == EXPAR_OK && !(seen & TICKET) && (status = sym_rest_turn(&rest)) == EXPAR_OK);
    sym_rest_end(&rest);
    *behind = seen & TICKET;
    return status;
}

/* Does for a rank that is away what it would do itself, had it the lock: lets go, or finds the one behind. */
static expar_status take_out(const lock_call *call, uint32_t ticket, uint32_t *behind)
{
    uint32_t last = 0;
    const int32_t rank = (int32_t)ticket - 1;
    *behind = 0;
    expar_status status = lock_change(call, &call->words->tail, call->home, TRANSPORT_COMPARE_SWAP, 0, ticket, &last);
    if (status == EXPAR_OK && last != ticket) status = await_ticket(call, rank, behind);
    return status == EXPAR_OK ? lock_change(call, &call->words->mine, rank, TRANSPORT_SET, 0, 0, NULL) : status;
}

/* To the first rank from this one on that waits; where all are away, the lock is free. */
static expar_status lock_hand_over(const lock_call *call, uint32_t ticket)
{
    uint32_t old = AWAY, behind = 0;
    expar_status status = EXPAR_OK;
    while (ticket != 0) {
        status = lock_change(call, &call->words->mine, (int32_t)ticket - 1, TRANSPORT_OR, GRANTED, 0, &old);
        if (status == EXPAR_OK && !(old & AWAY)) return EXPAR_OK;
        if (status == EXPAR_OK) status = take_out(call, ticket, &behind);
        if (status != EXPAR_OK) break;
        ticket = behind;
    }
    /* Another clear goes on with the same rank. */
    if (status != EXPAR_OK) change_mine(call, TRANSPORT_SET, ticket, NULL);
    return status;
}

/* ---- the calls --------------------------------------------------------------------------------------------------- */

/* At the end of the queue. */
static expar_status queue_up(const lock_call *call)
{
    uint32_t last = 0;
    expar_status status = change_mine(call, TRANSPORT_SET, 0, NULL);
    if (status == EXPAR_OK)
        status = lock_change(call, &call->words->tail, call->home, TRANSPORT_SWAP, own_ticket(call), 0, &last);
    return status == EXPAR_OK && last != 0 ? queue_behind(call, (int32_t)last - 1) : status;
}

expar_status expar_lock_set(expar_group *group, uint64_t *lock)
{
    int away = 0;
    bool back = false;
    lock_call call = {.name = "expar_lock_set", .group = group};
    expar_status status = lock_begin(&call, lock);
    if (status == EXPAR_OK) status = is_away(&call, &away);
    if (status == EXPAR_OK && away) status = come_back(&call, &back);
    if (status != EXPAR_OK) return group_ended(group, status);
    return group_ended(group, back ? await_turn(&call, -1) : queue_up(&call));
}

expar_status expar_lock_test(expar_group *group, uint64_t *lock, int *taken)
{
    int away = 0;
    uint32_t last = 1; /* of a rank that is in the queue: somebody has the lock */
    lock_call call = {.name = "expar_lock_test", .group = group};
    if (!taken) return group_ended(group, error_set(EXPAR_ERR_NULL, "%s: taken is NULL", call.name));
    expar_status status = lock_begin(&call, lock);
    if (status == EXPAR_OK) status = is_away(&call, &away);
    if (status == EXPAR_OK && !away) status = change_mine(&call, TRANSPORT_SET, 0, NULL);
    if (status == EXPAR_OK && !away)
        status = lock_change(&call, &call.words->tail, call.home, TRANSPORT_COMPARE_SWAP, own_ticket(&call), 0, &last);
    if (status == EXPAR_OK) *taken = last == 0;
    return group_ended(group, status);
}

expar_status expar_lock_clear(expar_group *group, uint64_t *lock)
{
    int away = 0;
    uint32_t last = 0, behind = 0;
    lock_call call = {.name = "expar_lock_clear", .group = group};
    expar_status status = lock_begin(&call, lock);
    if (status == EXPAR_OK) status = is_away(&call, &away);
    if (status == EXPAR_OK && away)
        status = error_set(EXPAR_ERR_STATE, "%s: this rank has not got the lock", call.name);
    if (status == EXPAR_OK) status = sym_quiet(group->sym);
    if (status == EXPAR_OK)
        status = lock_change(&call, &call.words->tail, call.home, TRANSPORT_COMPARE_SWAP, 0, own_ticket(&call), &last);
    if (status != EXPAR_OK || last == own_ticket(&call)) return group_ended(group, status);
    if (last == 0) return group_ended(group, error_set(EXPAR_ERR_STATE, "%s: nobody holds the lock", call.name));
    /* Somebody has asked, and is about to say who it is. */
    status = wait_mine(&call, -1, EXPAR_CMP_NE, 0, &behind);
    return group_ended(group, status == EXPAR_OK ? lock_hand_over(&call, behind) : status);
}
