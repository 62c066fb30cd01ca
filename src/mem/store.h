/* SPDX-License-Identifier: Apache-2.0 */
/* The interface of a store for its pools. Private to mem. */
#ifndef EXPAR_MEM_STORE_H
#define EXPAR_MEM_STORE_H

#include "mem/mem.h"
#include <pthread.h>

#define SMALL_ALIGNMENT 128u
#define LARGE_ALIGNMENT MEM_POOL_LARGE_BYTES
/* Memory comes and goes in granules of `unit_bytes`; this is the size if the source gives none. */
#define STORE_UNIT_BYTES ((uint64_t)64 << 10)

/* A block's record; while it is unused, it is in the store's list of spare ones. */
typedef struct store_record {
    mem_block block; /* first: a mem_block of a pool is a store_record */
    struct store_record *next;
} store_record;

struct mem_store {
    /* guards the members below, and the counts of the pools */
    pthread_mutex_t lock;
    /* offsets from origin on, which is a multiple of LARGE_ALIGNMENT from the base */
    mem_arena *arena;
    uint8_t *base;
    uint64_t origin;
    /* offsets from the base */
    uint64_t begin, end;
    /* references of the owner and the pools */
    int32_t holders;
    store_record *spare;
    /* Blocks without references that streams still use, the oldest first (marks.c). */
    store_record *waiting, **waiting_end;
    /* NULL: nothing is known */
    mem_covers_fn covers;
    void *covers_context;
    /* task that looks after waiting blocks of a closed pool */
    cuda_task drain;
    /* the task is queued or runs, and has a reference to the store */
    bool draining;
    /* fill NULL: everything has memory */
    mem_source source;
    /* One bit for each granule, counted from origin: it has memory. */
    uint64_t *filled;
    /* number of granules */
    uint64_t units;
    uint64_t filled_units, filled_high_units;
    /* granules that the source has filled in total */
    uint64_t fills;
    /* in blocks, as pools count them */
    uint64_t used_bytes, used_high_bytes;
    /* sum of the pools' start sizes */
    uint64_t floor_bytes;
};

/* Returns how many bytes the store counts for a block. */
uint64_t store_charge(uint64_t bytes);

/* With the lock held. Takes a filled block for the pool; rejects as mem_pool_take does. */
expar_status store_take(mem_store *store, mem_pool *pool, uint64_t bytes, mem_block **out);
bool store_take_whole(mem_store *store, mem_pool *pool, uint64_t least, uint64_t most, mem_block **out);
/* Implements mem_pool_reach, for at most MEM_POOL_MOST_REACHED blocks. */
uint64_t store_reach(mem_store *store, const uint64_t *bytes, size_t count);
void store_give(mem_store *store, mem_block *block);

/* ---- blocks that wait for streams (marks.c) ---------------------------------------------------------------------- */

/* With the lock held. Adds a block that has no reference any more, and has marks. */
void store_wait(mem_store *store, mem_block *block);
/* Without the lock. Frees the blocks whose marks have passed; asks the driver about the oldest block, or about all. */
void store_settle(mem_store *store, bool all);
bool store_has_waiting(mem_store *store);
/* With the lock held. Arranges that the waiting blocks of a closed pool are freed, since later calls may take no
   block. */
void store_drain(mem_store *store);
/* With the lock held. Takes the block off its pool's accounts, and returns it to the store. True: the pool has gone
   with it; call store_drop for it, without the lock. */
bool pool_settle(mem_pool *pool, mem_block *block);
bool pool_is_closed(const mem_pool *pool);
/* Fills the store so far that floor_bytes of memory are there even if no block is in use. */
expar_status store_keep_floor(mem_store *store);

/* ---- filled memory (fill.c); offsets of the arena ---------------------------------------------------------------- */

uint64_t store_unit_bytes(const mem_store *store);
expar_status store_table_make(mem_store *store);
/* Returns the number of granules of the range that have no memory. */
uint64_t store_lacking(const mem_store *store, uint64_t offset, uint64_t bytes);
/* Returns how many bytes of the range have memory, counted from its start. */
uint64_t store_filled_from(const mem_store *store, uint64_t offset, uint64_t bytes);
/* Gets memory for the range of a new block, as far as it has none. Idle memory is freed if the store would hold too
   much otherwise, or if no memory is left. */
expar_status store_fill(mem_store *store, uint64_t offset, uint64_t bytes);

/* Without the lock. Dropping the last reference frees the store. */
void store_drop(mem_store *store);

#endif
