/* SPDX-License-Identifier: Apache-2.0 */
/* Locks: a queue of ranks. The lock's copy on its home rank names the last rank in the queue; every rank's own copy
 * names the one behind it, and says when its turn has come, so that everybody waits for a word of its own. */
#include "shmem/ops.h"
#include "shmem/target.h"
#include <expar/lock.h>

/* The two words of a lock, low address first.
   tail: 0, or 1 + the rank that asked last. On the home rank; changed by all with atomics.
   mine: 0, or 1 + the rank behind this one; GRANTED is added when the lock is handed over. On every rank; the owner
   clears it, the rank behind and the one before add to it, all with atomics. */
typedef struct lock_words {
    uint32_t tail, mine;
} lock_words;
#define GRANTED UINT32_C(0x80000000)

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

static expar_status change(const lock_call *call, const uint32_t *word, int32_t pe, transport_atomic_op op,
                           uint32_t operand, uint32_t compare, uint32_t *old)
{
    uint64_t before;
    const ops_atomic atomic = {call->name, op, sizeof *word, operand, compare};
    expar_status status = ops_atomic_run(&atomic, call->group, word, pe, &before);
    if (status == EXPAR_OK && old) *old = (uint32_t)before;
    return status;
}

static uint32_t own_ticket(const lock_call *call)
{
    return (uint32_t)call->group->rank + 1;
}

static expar_status clear_mine(const lock_call *call)
{
    return change(call, &call->words->mine, call->group->rank, TRANSPORT_SET, 0, 0, NULL);
}

static expar_status wait_mine(const lock_call *call, expar_cmp cmp, uint32_t value, uint32_t *seen)
{
    expar_status status = expar_wait_until_u32(call->group, &call->words->mine, cmp, value, seen);
    return status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "%s", call->name);
}

/* Behind `before`: says so, and waits for it to hand over. */
static expar_status queue_behind(const lock_call *call, int32_t before)
{
    expar_status status = change(call, &call->words->mine, before, TRANSPORT_ADD, own_ticket(call), 0, NULL);
    if (status == EXPAR_OK) status = wait_mine(call, EXPAR_CMP_GE, GRANTED, NULL);
    if (status == EXPAR_OK)
        status = change(call, &call->words->mine, call->group->rank, TRANSPORT_AND, ~GRANTED, 0, NULL);
    return status;
}

expar_status expar_lock_set(expar_group *group, uint64_t *lock)
{
    uint32_t last = 0;
    lock_call call = {.name = "expar_lock_set", .group = group};
    expar_status status = lock_begin(&call, lock);
    if (status == EXPAR_OK) status = clear_mine(&call);
    if (status == EXPAR_OK)
        status = change(&call, &call.words->tail, call.home, TRANSPORT_SWAP, own_ticket(&call), 0, &last);
    return status == EXPAR_OK && last != 0 ? queue_behind(&call, (int32_t)last - 1) : status;
}

expar_status expar_lock_test(expar_group *group, uint64_t *lock, int *taken)
{
    uint32_t last;
    lock_call call = {.name = "expar_lock_test", .group = group};
    if (!taken) return error_set(EXPAR_ERR_NULL, "%s: taken is NULL", call.name);
    expar_status status = lock_begin(&call, lock);
    if (status == EXPAR_OK) status = clear_mine(&call);
    if (status == EXPAR_OK)
        status = change(&call, &call.words->tail, call.home, TRANSPORT_COMPARE_SWAP, own_ticket(&call), 0, &last);
    if (status == EXPAR_OK) *taken = last == 0;
    return status;
}

expar_status expar_lock_clear(expar_group *group, uint64_t *lock)
{
    uint32_t last = 0, behind = 0;
    lock_call call = {.name = "expar_lock_clear", .group = group};
    expar_status status = lock_begin(&call, lock);
    if (status == EXPAR_OK) status = sym_quiet(group->sym);
    if (status == EXPAR_OK)
        status = change(&call, &call.words->tail, call.home, TRANSPORT_COMPARE_SWAP, 0, own_ticket(&call), &last);
    if (status != EXPAR_OK || last == own_ticket(&call)) return status;
    if (last == 0) return error_set(EXPAR_ERR_STATE, "%s: nobody holds the lock", call.name);
    /* Somebody has asked, and is about to say who it is. */
    status = wait_mine(&call, EXPAR_CMP_NE, 0, &behind);
    return status == EXPAR_OK ? change(&call, &call.words->mine, (int32_t)behind - 1, TRANSPORT_ADD, GRANTED, 0, NULL)
                              : status;
}
