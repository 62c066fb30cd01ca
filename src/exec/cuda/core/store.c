/* SPDX-License-Identifier: Apache-2.0 */
/* The store: the outputs of all buffers with the same per-GPU state have one, in the growing part of the device heap.
 * By CUDA IPC, where nothing grows, it is as large as the buffer's config says.
 *
 * All ranks together let it grow, between the counts of a call and its rows. The store remembers for what it lacked
 * memory, and the headers of the rank's calls then ask for growth. In the same way idle memory is freed after it was
 * trimmed. */
#include "base/knobs.h"
#include "exec/cuda/core/device_state.h"

#include <pthread.h>
#include <stdlib.h>

/* The store's context. It may outlive the per-GPU state. */
struct gpu_source {
    cuda_task task;
    device_part *part;
    gpu_places *places; /* tell the store what calls come after */
    /* Valid while a pool is open. */
    gpu_device_state *device_state;
    /* The thread that dropped the owner's reference of the store; valid once `closed`. */
    pthread_t closer;
    atomic_bool closed; /* set by that thread (release); read with acquire */
};

/* ---- the store --------------------------------------------------------------------------------------------------- */

static expar_status source_fill(void *context, uint64_t offset, uint64_t bytes)
{
    gpu_device_state *device_state = ((gpu_source *)context)->device_state;
    if (offset + bytes > atomic_load_explicit(&device_state->missed, memory_order_relaxed))
        atomic_store_explicit(&device_state->missed, offset + bytes, memory_order_relaxed);
    return error_set(EXPAR_ERR_MEMORY, "it grows when all ranks wait for the counts of a dispatch");
}

static void drop_part(cuda_task *task)
{
    gpu_source *source = (gpu_source *)task;
    device_part_drop(source->part);
    gpu_places_drop(source->places);
    free(source);
}

/* Ends the store's context. The thread that drops the last reference calls it. That may be in a function that the
   driver calls, unless it is the thread that closed the store. */
static void source_end(void *context)
{
    gpu_source *source = context;
    source->task.run = drop_part;
    if (atomic_load_explicit(&source->closed, memory_order_acquire) && pthread_equal(source->closer, pthread_self()))
        drop_part(&source->task);
    else
        cuda_later(&source->task);
}

expar_status gpu_store_open(gpu_device_state *device_state, gpu_places *places, uint64_t fixed_offset,
                            uint64_t fixed_bytes)
{
    if (device_state->store) return EXPAR_OK;
    const bool grows = device_heap_grows(device_state->heap);
    gpu_source *source = calloc(1, sizeof *source);
    if (!source) return error_set(EXPAR_ERR_MEMORY, "CUDA executor: no memory");
    *source = (gpu_source){.part = device_heap_hold(device_state->heap), .device_state = device_state};
    const mem_source table = {.fill = grows ? source_fill : NULL, .end = source_end, .context = source};
    expar_status status =
        mem_store_create((void *)(uintptr_t)device_heap_at(device_state->heap, 0),
                         grows ? device_heap_own_offset(device_state->heap) : fixed_offset,
                         grows ? device_heap_own_space(device_state->heap) : fixed_bytes, &table, &device_state->store);
    if (status == EXPAR_OK) {
        source->places = gpu_places_hold(places);
        mem_store_set_cover(device_state->store, gpu_places_cover, places);
        device_state->source = source;
        return EXPAR_OK;
    }
    device_part_drop(source->part);
    free(source);
    return status;
}

void gpu_store_close(gpu_device_state *device_state)
{
    if (!device_state->store) return;
    device_state->source->closer = pthread_self();
    atomic_store_explicit(&device_state->source->closed, true, memory_order_release);
    mem_store_close(device_state->store);
}

/* ---- growing ----------------------------------------------------------------------------------------------------- */

uint64_t gpu_store_bytes(const gpu_device_state *device_state)
{
    mem_store_stats stats;
    mem_store_get_stats(device_state->store, &stats);
    return device_heap_grows(device_state->heap) ? stats.filled_bytes : stats.reserved_bytes;
}

uint64_t gpu_store_end(const gpu_device_state *device_state)
{
    return device_heap_own_offset(device_state->heap) + device_heap_own_bytes(device_state->heap);
}

expar_status gpu_store_grow(gpu_device_state *device_state, uint64_t bytes)
{
    const uint64_t end = gpu_store_end(device_state);
    expar_status status = device_heap_grow(device_state->heap, "the pool", bytes);
    if (status == EXPAR_OK && gpu_store_end(device_state) > end)
        mem_store_filled(device_state->store, end, gpu_store_end(device_state) - end);
    return status;
}

static int get(const atomic_int *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

static void set(atomic_int *word, int value)
{
    atomic_store_explicit(word, value, memory_order_relaxed);
}

bool gpu_store_requests(gpu_device_state *device_state)
{
    if (get(&device_state->patience) > 0) {
        set(&device_state->patience, get(&device_state->patience) - 1);
        return false;
    }
    if (atomic_load_explicit(&device_state->trims, memory_order_relaxed)) return true;
    return atomic_load_explicit(&device_state->missed, memory_order_relaxed) > gpu_store_end(device_state);
}

/* Growth waits for some calls, and for twice as many each time. Only time is lost. */
void gpu_store_be_patient(gpu_device_state *device_state)
{
    const int first = (int)knob(KNOB_CUDA_PATIENCE_CALLS), most = (int)knob(KNOB_CUDA_MOST_PATIENCE_CALLS);
    int calls = 2 * get(&device_state->last_patience);
    calls = calls < first ? first : calls > most ? most : calls;
    set(&device_state->last_patience, calls);
    set(&device_state->patience, calls);
}

void gpu_store_forget_patience(gpu_device_state *device_state)
{
    set(&device_state->last_patience, 0);
}

bool gpu_store_may_grow(const gpu_device_state *device_state)
{
    return get(&device_state->patience) == 0;
}

/* Peers map this rank's memory, so all ranks shrink together. The thread of that call finds what can be freed, since
   another buffer may be growing now. */
void gpu_store_trim(gpu_device_state *device_state)
{
    if (!device_heap_grows(device_state->heap)) return;
    set(&device_state->patience, 0);
    atomic_store_explicit(&device_state->trims, true, memory_order_relaxed);
}

/* ---- resizing ---------------------------------------------------------------------------------------------------- */

/* Frees whole pieces after `end` and after the last block, but not the memory that the pools began with. Blocks may be
   taken meanwhile: from here on they find no memory there. Returns the bytes that are kept. */
static uint64_t let_go_after(gpu_device_state *device_state, uint64_t end)
{
    const uint64_t at = device_heap_own_offset(device_state->heap), held = device_heap_own_bytes(device_state->heap),
                   used_end = mem_store_used_end(device_state->store);
    uint64_t keep = device_state->start_bytes;
    if (end < used_end) end = used_end;
    if (end > at && end - at > keep) keep = end - at;
    keep = device_heap_own_kept(device_state->heap, keep);
    return mem_store_emptied(device_state->store, at + keep, held - keep) ? keep : held;
}

/* Frees idle memory. All ranks call it, even those with nothing to free. After the header exchange of a call, no kernel
   of any rank uses the idle memory of another rank. */
static expar_status device_state_shrink(gpu_device_state *device_state, bool trims, uint64_t end)
{
    const uint64_t at = device_heap_own_offset(device_state->heap), held = device_heap_own_bytes(device_state->heap),
                   keep = trims ? let_go_after(device_state, end) : held;
    expar_status status = device_heap_shrink(device_state->heap, "the pool", keep, true);
    const uint64_t left = device_heap_own_bytes(device_state->heap);
    if (left > keep) mem_store_filled(device_state->store, at + keep, left - keep);
    return status;
}

/* Shrinks before it grows: the freed memory may serve the growth of another rank on the same GPU. */
expar_status gpu_store_resize(gpu_device_state *device_state, uint64_t end)
{
    const bool trims = atomic_exchange_explicit(&device_state->trims, false, memory_order_relaxed);
    const uint64_t missed = atomic_exchange_explicit(&device_state->missed, 0, memory_order_relaxed);
    if (missed > end && !trims) end = missed;
    expar_status status = device_state_shrink(device_state, trims, end);
    const uint64_t held = gpu_store_end(device_state);
    return status == EXPAR_OK ? gpu_store_grow(device_state, end > held ? end - held : 0) : status;
}

/* ---- for a call -------------------------------------------------------------------------------------------------- */

enum { MOST_BLOCKS = 3 }; /* that a call takes at a time */

bool gpu_store_lacks(const gpu_core *self, uint64_t bytes)
{
    return bytes && self->base.grows && gpu_store_may_grow(self->device_state) &&
           mem_pool_reach(self->base.pool, &bytes, 1) > gpu_store_end(self->device_state);
}

/* Returns how far the store reaches with the blocks of a call and one more of the largest. Dispatches with a handle
   cannot let the store grow, and the output of an earlier dispatch is mostly still in use then. */
static uint64_t reach_with_spare(const gpu_core *self, const uint64_t *bytes, int32_t count)
{
    uint64_t all[MOST_BLOCKS + 1] = {0};
    for (int32_t i = 0; i < count; i++) {
        all[i] = bytes[i];
        all[count] = bytes[i] > all[count] ? bytes[i] : all[count];
    }
    return mem_pool_reach(self->base.pool, all, (size_t)count + 1);
}

expar_status gpu_store_grow_pool(const gpu_core *self, bool limited, const uint64_t *bytes, int32_t count, bool *failed)
{
    int mode;
    const uint64_t end = mem_pool_reach(self->base.pool, bytes, (size_t)count);
    const bool takes_spare = count && !limited && end > gpu_store_end(self->device_state);
    const uint64_t wanted = takes_spare ? reach_with_spare(self, bytes, count) : end;
    expar_status status = gpu_leave_captures(&mode);
    if (status != EXPAR_OK) return sym_out_of_step(self->sym, "the pool", status);
    status = gpu_store_resize(self->device_state, wanted);
    /* All ranks have agreed on this failure, and try again without spare memory. */
    if (status == EXPAR_ERR_MEMORY) status = gpu_store_resize(self->device_state, end);
    gpu_return_to_captures(mode);
    *failed = status == EXPAR_ERR_MEMORY;
    if (!*failed) {
        gpu_store_forget_patience(self->device_state);
        return status;
    }
    gpu_store_be_patient(self->device_state);
    LOG(LOG_INFO, "outputs come by the queue: %s", expar_last_error());
    return EXPAR_OK;
}
