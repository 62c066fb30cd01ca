/* SPDX-License-Identifier: Apache-2.0 */
/* Per-GPU state: the memory of a rank's buffers on one GPU. It has the device heap, the callers' segments that peers
 * read, and one store of blocks in the growing part of the heap. Private to core, and to pools of normal mode.
 *
 * The group keeps these states. A buffer enters one and leaves it (device_state.c). All ranks together let the store
 * grow and shrink (store.c). */
#ifndef EXPAR_EXEC_CUDA_CORE_DEVICE_STATE_H
#define EXPAR_EXEC_CUDA_CORE_DEVICE_STATE_H

#include "exec/cuda/core/gpu.h"

typedef struct gpu_device_states gpu_device_states;
typedef struct gpu_source gpu_source;

struct gpu_device_state {
    gpu_device_state *next;
    gpu_device_states *device_states;
    /* The same on all ranks that share this state; from 1. */
    uint64_t number;
    int32_t device;     /* index */
    int32_t references; /* buffers that are in it */
    device_heap *heap;
    gpu_segments *segments;
    mem_store *store; /* NULL: not yet */
    gpu_source *source;
    /* The sum of the initial bytes of all its buffers' pools. */
    uint64_t start_bytes;
    /* A buffer left it after calls that had failed on some rank. */
    bool loud;
    /* The end of the last block that found no memory, as an offset in the heap; 0: none since the last growth. A thread
       that takes a block writes it under the store's lock. A thread that makes a call reads and resets it (relaxed: a
       request that is seen late still counts). */
    _Atomic uint64_t missed;
    /* Idle memory shall be freed. gpu_store_trim sets it, and a thread that makes a call reads and resets it (relaxed,
       likewise). */
    atomic_bool trims;
    /* After growths that failed: how many calls come before the next request, and how many there were at first. Threads
       that make calls write them. Two threads of different buffers may lose a count, which does no harm (relaxed). */
    atomic_int patience, last_patience;
};

/* ---- store.c ----------------------------------------------------------------------------------------------------- */
/* Makes the store unless there is one. It covers the growing part of the heap, or by CUDA IPC these bytes of the
   heap. */
expar_status gpu_store_open(gpu_device_state *device_state, gpu_places *places, uint64_t fixed_offset,
                            uint64_t fixed_bytes);
/* Call it with the end of the per-GPU state. Blocks that are out stay valid. */
void gpu_store_close(gpu_device_state *device_state);
/* Returns how much pools may have now without growing. */
uint64_t gpu_store_bytes(const gpu_device_state *device_state);
/* Returns the offset of the end of the memory. */
uint64_t gpu_store_end(const gpu_device_state *device_state);
/* Collective: adds at least that many bytes. Ranks may pass different numbers. */
expar_status gpu_store_grow(gpu_device_state *device_state, uint64_t bytes);
/* Collective: adds memory up to `end`, and up to the last block that found none. Frees idle memory if a rank has
   trimmed. */
expar_status gpu_store_resize(gpu_device_state *device_state, uint64_t end);
/* Says whether this rank's header asks for growing or shrinking. Call it once for each call. */
bool gpu_store_requests(gpu_device_state *device_state);
/* Call this after a growth that failed or was requested in vain: the next one is not tried at once. */
void gpu_store_be_patient(gpu_device_state *device_state);
/* Call this after a growth that succeeded. */
void gpu_store_forget_patience(gpu_device_state *device_state);
/* False: no growth is tried now. */
bool gpu_store_may_grow(const gpu_device_state *device_state);
/* Says whether growth would let the buffer's pool hold a block of that size; 0: no block is wanted. */
bool gpu_store_lacks(const gpu_core *self, uint64_t bytes);
/* Collective, as normal_ops.grow_pool: gets memory for the buffer's pool, which may have a limit. Sets `*failed` if
   there is none. Ranks that are out of step get another status than EXPAR_OK. */
expar_status gpu_store_grow_pool(const gpu_core *self, bool limited, const uint64_t *bytes, int32_t count,
                                 bool *failed);
/* Idle memory is freed in the next call in which all ranks see that all of them wait. */
void gpu_store_trim(gpu_device_state *device_state);

#endif
