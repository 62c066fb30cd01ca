/* SPDX-License-Identifier: Apache-2.0 */
/* A home: where a rank's buffers on one GPU have their memory. It has the device heap, the segments of the callers that
 * peers read, and one store of blocks in the part of the heap that grows. Private to core, and to pools of normal mode.
 *
 * Homes are residents of the group. A buffer enters one and leaves it (home.c). The store grows and shrinks by all
 * ranks together (store.c). */
#ifndef EXPAR_EXEC_CUDA_CORE_HOME_H
#define EXPAR_EXEC_CUDA_CORE_HOME_H

#include "exec/cuda/core/gpu.h"

typedef struct gpu_homes gpu_homes;
typedef struct gpu_source gpu_source;

struct gpu_home {
    gpu_home *next;
    gpu_homes *homes;
    uint64_t number;    /* the same on all ranks, for whom it is the same home; from 1 */
    int32_t device;     /* index */
    int32_t references; /* buffers that are in it */
    device_heap *heap;
    gpu_segments *segments;
    mem_store *store; /* NULL: not yet */
    gpu_source *source;
    uint64_t start_bytes; /* of the pools of all buffers that are in it */
    bool loud;            /* a buffer left it with calls that had failed on some rank */
    /* Behind the last block that found no memory: an offset in the heap; 0: none since the last growth. By whoever
       takes a block, under the store's lock, and whoever makes a call (relaxed: a wish that comes late is one all the
       same). */
    _Atomic uint64_t missed;
    /* Idle memory is to go. By who trims and by whoever makes a call (relaxed: a wish, too). */
    atomic_bool trims;
    /* Of growths that failed: calls that are still to come before another wish, and how many there were at first. By
       whoever makes a call: two buffers' threads may count at once, and lose a count (relaxed). */
    atomic_int patience, last_patience;
};

/* ---- store.c ----------------------------------------------------------------------------------------------------- */
/* The home's store, unless it has one: over the part that grows; or, by CUDA IPC, over these bytes of the heap. */
expar_status gpu_store_open(gpu_home *home, gpu_places *places, uint64_t fixed_offset, uint64_t fixed_bytes);
/* With the home. Blocks that are out stay good. */
void gpu_store_close(gpu_home *home);
/* What pools may have now without growing. */
uint64_t gpu_store_bytes(const gpu_home *home);
/* The offset behind what has memory. */
uint64_t gpu_store_end(const gpu_home *home);
/* Collective: more memory; these bytes, as far as there are none yet. */
expar_status gpu_store_grow(gpu_home *home, uint64_t bytes);
/* Collective: memory up to `end`, and up to what found none; idle memory goes where a rank has trimmed. */
expar_status gpu_store_resize(gpu_home *home, uint64_t end);
/* What hellos say of this rank's pools: whether they wish to grow or to shrink. For each call once. */
bool gpu_store_wishes(gpu_home *home);
/* After a growth that failed or was wished for in vain: it is not tried again at once. */
void gpu_store_be_patient(gpu_home *home);
/* After one that did not. */
void gpu_store_forget_patience(gpu_home *home);
/* False: no growth is tried now. */
bool gpu_store_may_grow(const gpu_home *home);
/* Idle memory goes with the next call of which all ranks see that all of them wait. */
void gpu_store_trim(gpu_home *home);

#endif
