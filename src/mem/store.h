/* SPDX-License-Identifier: Apache-2.0 */
/* What a pool sees of its store. Private to mem. */
#ifndef EXPAR_MEM_STORE_H
#define EXPAR_MEM_STORE_H

#include "mem/mem.h"
#include <pthread.h>

#define SMALL_ALIGNMENT 128u
#define LARGE_ALIGNMENT MEM_POOL_LARGE_BYTES
/* Memory comes and goes in units of so many bytes where the source does not say. */
#define STORE_UNIT_BYTES ((uint64_t)64 << 10)

/* A block's record, in the store's list of spare ones while it is not in use. */
typedef struct store_record {
    mem_block block; /* first: a mem_block of a pool is a store_record */
    struct store_record *next;
} store_record;

struct mem_store {
    pthread_mutex_t lock; /* guards all below, and the counts of the pools */
    mem_arena *arena;     /* of offsets from origin on, a multiple of LARGE_ALIGNMENT from the base */
    uint8_t *base;
    uint64_t origin;
    uint64_t begin, end; /* offsets from the base */
    int32_t holders;     /* the owner and the pools */
    store_record *spare;
    /* Blocks that nobody holds and streams still use, the oldest first (marks.c). */
    store_record *waiting, **waiting_end;
    mem_covers_fn covers; /* NULL: nothing is known */
    void *covers_context;
    cuda_task drain;   /* looks after blocks that wait when their pool is closed */
    bool draining;     /* it is under way, and holds the store */
    mem_source source; /* fill NULL: all has memory */
    uint64_t *filled;  /* a bit for each unit from origin on: it has memory */
    uint64_t units;    /* bits */
    uint64_t filled_units, filled_high_units;
    uint64_t fills;                       /* units that the source has filled, all in all */
    uint64_t used_bytes, used_high_bytes; /* in blocks, as pools count them */
    uint64_t floor_bytes;                 /* start sizes of the pools together */
};

/* What the store counts for a block. */
uint64_t store_charge(uint64_t bytes);

/* With the lock held. A block for the pool, filled; refusals as mem_pool_take. */
expar_status store_take(mem_store *store, mem_pool *pool, uint64_t bytes, mem_block **out);
bool store_take_whole(mem_store *store, mem_pool *pool, uint64_t least, uint64_t most, mem_block **out);
/* As mem_pool_reach, of MEM_POOL_MOST_REACHED blocks at most. */
uint64_t store_reach(mem_store *store, const uint64_t *bytes, size_t count);
void store_give(mem_store *store, mem_block *block);

/* ---- blocks that wait for streams (marks.c) ---------------------------------------------------------------------- */

/* With the lock held: a block whose last holder has gone, and which has marks. */
void store_wait(mem_store *store, mem_block *block);
/* Without it. Gives back what waits for nothing any more; asks the driver about the oldest block, or about all. */
void store_settle(mem_store *store, bool all);
bool store_has_waiting(mem_store *store);
/* With it: what is to happen to blocks of a closed pool that wait, where nobody may take a block again. */
void store_drain(mem_store *store);
/* With it: takes the block off its pool's accounts, and gives it to the store. True: the pool has gone with it, and
   store_drop is to be called for it, without the lock. */
bool pool_settle(mem_pool *pool, mem_block *block);
bool pool_is_closed(const mem_pool *pool);
/* Fills the store so far that floor_bytes of it are there when nothing is held. */
expar_status store_keep_floor(mem_store *store);

/* ---- what has memory (fill.c); offsets of the arena -------------------------------------------------------------- */

uint64_t store_unit_bytes(const mem_store *store);
expar_status store_table_make(mem_store *store);
/* Units of the range that have none. */
uint64_t store_lacking(const mem_store *store, uint64_t offset, uint64_t bytes);
/* Of the range, what has memory from its start on. */
uint64_t store_filled_from(const mem_store *store, uint64_t offset, uint64_t bytes);
/* Memory for the range, which is to be a block's, as far as there is none; what is idle goes where the store would hold
   too much with it, or where there is none left. */
expar_status store_fill(mem_store *store, uint64_t offset, uint64_t bytes);

/* Without it. The last one frees the store. */
void store_drop(mem_store *store);

#endif
