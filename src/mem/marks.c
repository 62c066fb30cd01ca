/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks that are freed while streams still use their memory.
 *
 * Such a block waits in its store, in the order in which blocks were freed. Before the next block is taken the store
 * looks at the waiting ones. A mark is done with if the store's next user comes after it anyway (mem_covers_fn); that
 * costs nothing to find out. It is also done with if the driver says that it has passed. The driver is asked only about
 * the oldest block, and about all of them when memory is short. If no block will be taken any more, because the pool is
 * closed, a thread of the library asks. */
#include "mem/store.h"

#include <time.h>

/* Pause between two looks of that thread. */
#define DRAIN_NS 5000000

void mem_block_follow(mem_block *block, cuda_mark *mark)
{
    cuda_mark *first = atomic_load_explicit(&block->marks, memory_order_relaxed);
    do {
        cuda_mark_link(mark, first);
    } while (!atomic_compare_exchange_weak_explicit(&block->marks, &first, mark, memory_order_release,
                                                    memory_order_relaxed));
}

/* Nothing runs in a context that has failed or gone. */
static bool has_passed(const cuda_mark *mark)
{
    bool passed = false;
    return cuda_mark_query(mark, &passed) != EXPAR_OK || passed;
}

/* Removes the marks that are covered; with `ask` also those that the driver says have passed. True: none is left. */
static bool strip(mem_block *block, mem_covers_fn covers, void *context, bool ask)
{
    cuda_mark *left = NULL, *mark = atomic_load_explicit(&block->marks, memory_order_acquire);
    while (mark) {
        cuda_mark *next = cuda_mark_next(mark);
        if ((covers && covers(context, mark)) || (ask && has_passed(mark))) {
            cuda_mark_give(mark);
        } else {
            cuda_mark_link(mark, left);
            left = mark;
        }
        mark = next;
    }
    atomic_store_explicit(&block->marks, left, memory_order_relaxed);
    return !left;
}

bool mem_block_is_free(mem_block *block, mem_covers_fn covers, void *context)
{
    return strip(block, covers, context, true);
}

/* ---- with the lock ----------------------------------------------------------------------------------------------- */

void store_wait(mem_store *store, mem_block *block)
{
    store_record *record = (store_record *)block;
    record->next = NULL;
    *store->waiting_end = record;
    store->waiting_end = &record->next;
}

static void unlink_at(mem_store *store, store_record **place)
{
    store_record *record = *place;
    *place = record->next;
    if (!*place) store->waiting_end = place;
}

static void put_first(mem_store *store, store_record *record)
{
    if (!store->waiting) store->waiting_end = &record->next;
    record->next = store->waiting;
    store->waiting = record;
}

/* Frees what the store knows to be free. Returns the number of pools that have gone with their last block. */
static int settle_covered(mem_store *store)
{
    int gone = 0;
    for (store_record **place = &store->waiting; *place;) {
        mem_block *block = &(*place)->block;
        if (!strip(block, store->covers, store->covers_context, false)) {
            place = &(*place)->next;
            continue;
        }
        unlink_at(store, place);
        gone += pool_settle(block->pool, block);
    }
    return gone;
}

/* ---- without it -------------------------------------------------------------------------------------------------- */

static void drop_times(mem_store *store, int times)
{
    while (times-- > 0)
        store_drop(store);
}

/* Takes the oldest block; no other thread sees it meanwhile. */
static store_record *take_first(mem_store *store)
{
    store_record *record = store->waiting;
    if (record) unlink_at(store, &store->waiting);
    return record;
}

/* Asks about blocks from the oldest on, up to the first one that is still used, or about `most` of them. */
static int settle_passed(mem_store *store, uint64_t most, bool all)
{
    int gone = 0;
    store_record *used = NULL, **used_end = &used;
    for (; most > 0; most--) {
        pthread_mutex_lock(&store->lock);
        store_record *record = take_first(store);
        pthread_mutex_unlock(&store->lock);
        if (!record) break;
        const bool free_now = strip(&record->block, NULL, NULL, true);
        pthread_mutex_lock(&store->lock);
        if (free_now) gone += pool_settle(record->block.pool, &record->block);
        pthread_mutex_unlock(&store->lock);
        if (free_now) continue;
        record->next = NULL;
        *used_end = record;
        used_end = &record->next;
        if (!all) break;
    }
    pthread_mutex_lock(&store->lock);
    while (used) {
        store_record *next = used->next;
        put_first(store, used);
        used = next;
    }
    pthread_mutex_unlock(&store->lock);
    return gone;
}

static uint64_t count_waiting(const mem_store *store)
{
    uint64_t count = 0;
    for (const store_record *record = store->waiting; record; record = record->next)
        count++;
    return count;
}

bool store_has_waiting(mem_store *store)
{
    pthread_mutex_lock(&store->lock);
    const bool waiting = store->waiting != NULL;
    pthread_mutex_unlock(&store->lock);
    return waiting;
}

void store_settle(mem_store *store, bool all)
{
    pthread_mutex_lock(&store->lock);
    int gone = store->waiting ? settle_covered(store) : 0;
    const uint64_t waiting = count_waiting(store);
    pthread_mutex_unlock(&store->lock);
    if (waiting) gone += settle_passed(store, waiting, all);
    drop_times(store, gone);
}

/* ---- of closed pools --------------------------------------------------------------------------------------------- */

/* Blocks of closed pools: no later call looks after them. */
static bool has_orphans(const mem_store *store)
{
    const store_record *record = store->waiting;
    while (record && !pool_is_closed(record->block.pool))
        record = record->next;
    return record != NULL;
}

static void store_run_drain(cuda_task *task)
{
    mem_store *store = (mem_store *)((char *)task - offsetof(mem_store, drain));
    store_settle(store, true);
    pthread_mutex_lock(&store->lock);
    const bool again = store->draining = has_orphans(store);
    pthread_mutex_unlock(&store->lock);
    if (again) {
        nanosleep(&(struct timespec){.tv_nsec = DRAIN_NS}, NULL);
        cuda_later(task);
    } else {
        store_drop(store);
    }
}

void store_drain(mem_store *store)
{
    if (store->draining) return;
    store->draining = true;
    store->holders++;
    store->drain.run = store_run_drain;
    cuda_later(&store->drain);
}
