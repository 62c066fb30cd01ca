/* SPDX-License-Identifier: Apache-2.0 */
/* Locks: a queue of ranks. The lock's copy on one rank (lock_call.home) names the last rank in the queue. Every rank's
 * own copy names the rank after it, and says when its turn has come. So every rank waits for a word of its own.
 *
 * A rank that gives up waiting cannot leave the queue by itself, because only that rank knows which one comes after it.
 * It leaves a mark in its own copy. The rank that passes the lock on to it finds the mark, takes the rank out, and
 * passes the lock on to the next one. Until then the rank may come back to its place. */
#include "base/interrupt.h"
#include "pgas/ops.h"
#include "pgas/target.h"
#include <expar/lock.h>

/* The two words of a lock, low address first.
      tail: 0, or 1 + the rank that asked last. It is used on the rank lock_call.home; all ranks change it with atomics.
      mine: 0, or 1 + the rank after this one. GRANTED is set when the lock has been passed on, AWAY while the rank is
      in the queue and does not wait. Every rank has one. The rank itself clears it, sets AWAY and removes it. The rank
      after it adds its number. The rank that passes the lock on sets GRANTED. All use atomics. A rank that sets GRANTED
      and finds AWAY takes this rank out of the queue and then clears the word; this rank does not touch it until
   then. */
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
    kinds_place place;
    if (!call->group) return error_set(EXPAR_ERR_NULL, "%s: group is NULL", call->name);
    expar_status status = sym_check_self(call->group->sym, call->name);
    if (status == EXPAR_OK) status = target_check_word(call->name, call->group, "lock", lock, sizeof *lock, &place);
    if (status != EXPAR_OK) return status;
    call->words = (lock_words *)lock;
    call->home = (int32_t)(place.offset / sizeof *lock % (uint64_t)call->group->size);
    return EXPAR_OK;
}

/* No interrupt ends this: if it were given up half-way, no rank would know this rank's place in the queue. */
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

/* Checks a ticket that was read on pe. Other values come from memory that is no lock, or has been overwritten. */
static expar_status lock_check_ticket(const lock_call *call, uint32_t ticket, int32_t pe)
{
    if (ticket <= (uint32_t)call->group->size) return EXPAR_OK;
    return error_set(
        EXPAR_ERR_PEER,
        "%s: the lock's word on rank %d holds 0x%x, expected 0 or 1 + the rank of %d: it was not 0 at first, "
        "or has been overwritten",
        call->name, pe, ticket, call->group->size);
}

/* before: the rank right before this one in the queue, or the holder of the lock; -1: that is not known. */
static expar_status wait_mine(const lock_call *call, int32_t before, expar_cmp cmp, uint32_t value, uint32_t *seen)
{
    expar_status status = expar_wait_until_u32(call->group, &call->words->mine, cmp, value, seen);
    if (status == EXPAR_OK) return EXPAR_OK;
    return before < 0 ? error_prefix(status, "%s", call->name)
                      : error_prefix(status, "%s: after rank %d", call->name, before);
}

/* ---- in the queue ------------------------------------------------------------------------------------------------ */

/* The wait for this rank's turn has failed. The turn may have come after all: then no other rank has it. */
static expar_status go_away(const lock_call *call, expar_status failed)
{
    uint32_t old = 0;
    if (change_mine(call, TRANSPORT_OR, AWAY, &old) != EXPAR_OK || !(old & GRANTED)) return failed;
    return change_mine(call, TRANSPORT_AND, TICKET, NULL);
}

static expar_status await_turn(const lock_call *call, int32_t before)
{
    uint32_t old = 0;
    expar_status status = wait_mine(call, before, EXPAR_CMP_GE, GRANTED, NULL);
    if (status != EXPAR_OK) return go_away(call, status);
    status = change_mine(call, TRANSPORT_AND, TICKET, &old);
    return status == EXPAR_OK ? lock_check_ticket(call, old & ~GRANTED, call->group->rank) : status;
}

/* Takes the place after `before`: tells it, and waits until it passes the lock on. */
static expar_status queue_after(const lock_call *call, int32_t before)
{
    expar_status status = lock_change(call, &call->words->mine, before, TRANSPORT_ADD, own_ticket(call), 0, NULL);
    return status == EXPAR_OK ? await_turn(call, before) : go_away(call, status);
}

static expar_status is_away(const lock_call *call, int *away)
{
    return expar_test_u32(call->group, &call->words->mine, EXPAR_CMP_GE, AWAY, away);
}

/* Removes the mark of a rank that went away. It is in the queue again (*back), unless the turn was passed to it; then
   it waits until it has been taken out. Other ranks change the word at most twice, so this ends. */
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

/* ---- passing the lock on ----------------------------------------------------------------------------------------- */

/* Another rank comes after `rank`, which is away, and has told it or is about to. Waits for that ticket. */
static expar_status await_ticket(const lock_call *call, int32_t rank, uint32_t *after)
{
    uint32_t seen = 0;
    expar_status status = EXPAR_OK;
    sym_rest rest = sym_rest_begin_open(call->group->sym, call->name, 0, 1);
    do
        status = lock_change(call, &call->words->mine, rank, TRANSPORT_FETCH, 0, 0, &seen);
    while (status == EXPAR_OK && !(seen & TICKET) && (status = sym_rest_turn(&rest)) == EXPAR_OK);
    sym_rest_end(&rest);
    *after = seen & TICKET;
    return status == EXPAR_OK ? lock_check_ticket(call, *after, rank) : status;
}

/* Does what a rank that is away would do itself if it had the lock: frees it, or finds the next rank. */
static expar_status take_out(const lock_call *call, uint32_t ticket, uint32_t *after)
{
    uint32_t last = 0;
    const int32_t rank = (int32_t)ticket - 1;
    *after = 0;
    expar_status status = lock_change(call, &call->words->tail, call->home, TRANSPORT_COMPARE_SWAP, 0, ticket, &last);
    if (status == EXPAR_OK && last != ticket) status = await_ticket(call, rank, after);
    return status == EXPAR_OK ? lock_change(call, &call->words->mine, rank, TRANSPORT_SET, 0, 0, NULL) : status;
}

/* Passes the lock on to the first waiting rank, beginning with this ticket. If all are away, the lock is free. */
static expar_status lock_hand_over(const lock_call *call, uint32_t ticket)
{
    uint32_t old = AWAY, after = 0;
    expar_status status = EXPAR_OK;
    while (ticket != 0) {
        status = lock_change(call, &call->words->mine, (int32_t)ticket - 1, TRANSPORT_OR, GRANTED, 0, &old);
        if (status == EXPAR_OK && !(old & AWAY)) return EXPAR_OK;
        if (status == EXPAR_OK) status = take_out(call, ticket, &after);
        if (status != EXPAR_OK) break;
        ticket = after;
    }
    /* Another clear continues with the same rank. */
    if (status != EXPAR_OK) change_mine(call, TRANSPORT_SET, ticket, NULL);
    return status;
}

/* ---- the calls --------------------------------------------------------------------------------------------------- */

/* Takes the place at the end of the queue. */
static expar_status queue_up(const lock_call *call)
{
    uint32_t last = 0;
    expar_status status = change_mine(call, TRANSPORT_SET, 0, NULL);
    if (status == EXPAR_OK)
        status = lock_change(call, &call->words->tail, call->home, TRANSPORT_SWAP, own_ticket(call), 0, &last);
    if (status != EXPAR_OK || last == 0) return status;
    status = lock_check_ticket(call, last, call->home);
    if (status == EXPAR_OK) return queue_after(call, (int32_t)last - 1);
    /* The next rank that asks shall find it, too, and not wait for this one. */
    lock_change(call, &call->words->tail, call->home, TRANSPORT_SET, last, 0, NULL);
    return status;
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
    uint32_t last = 1; /* for a rank in the queue: another rank has the lock */
    lock_call call = {.name = "expar_lock_test", .group = group};
    if (!taken) return group_ended(group, error_set(EXPAR_ERR_NULL, "%s: taken is NULL", call.name));
    expar_status status = lock_begin(&call, lock);
    if (status == EXPAR_OK) status = is_away(&call, &away);
    if (status == EXPAR_OK && !away) status = change_mine(&call, TRANSPORT_SET, 0, NULL);
    if (status == EXPAR_OK && !away)
        status = lock_change(&call, &call.words->tail, call.home, TRANSPORT_COMPARE_SWAP, own_ticket(&call), 0, &last);
    if (status == EXPAR_OK) status = lock_check_ticket(&call, last, call.home);
    if (status == EXPAR_OK) *taken = last == 0;
    return group_ended(group, status);
}

expar_status expar_lock_clear(expar_group *group, uint64_t *lock)
{
    int away = 0;
    uint32_t last = 0, after = 0;
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
    status = lock_check_ticket(&call, last, call.home);
    /* Another rank has asked, and is about to write its ticket. */
    if (status == EXPAR_OK) status = wait_mine(&call, -1, EXPAR_CMP_NE, 0, &after);
    if (status == EXPAR_OK) status = lock_check_ticket(&call, after, group->rank);
    return group_ended(group, status == EXPAR_OK ? lock_hand_over(&call, after) : status);
}
