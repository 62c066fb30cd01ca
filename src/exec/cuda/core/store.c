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
    gpu_device_state *home;
    /* The thread that dropped the owner's reference of the store; valid once `closed`. */
    pthread_t closer;
    atomic_bool closed; /* set by that thread (release); read with acquire */
};

/* ---- the store --------------------------------------------------------------------------------------------------- */

static expar_status source_fill(void *context, uint64_t offset, uint64_t bytes)
{
    gpu_device_state *home = ((gpu_source *)context)->home;
    if (offset + bytes > atomic_load_explicit(&home->missed, memory_order_relaxed))
        atomic_store_explicit(&home->missed, offset + bytes, memory_order_relaxed);
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

expar_status gpu_store_open(gpu_device_state *home, gpu_places *places, uint64_t fixed_offset, uint64_t fixed_bytes)
{
    if (home->store) return EXPAR_OK;
    const bool grows = device_heap_grows(home->heap);
    gpu_source *source = calloc(1, sizeof *source);
    if (!source) return error_set(EXPAR_ERR_MEMORY, "CUDA executor: no memory");
    *source = (gpu_source){.part = device_heap_hold(home->heap), .home = home};
    const mem_source table = {.fill = grows ? source_fill : NULL, .end = source_end, .context = source};
    expar_status status = mem_store_create(
        (void *)(uintptr_t)device_heap_at(home->heap, 0), grows ? device_heap_own_offset(home->heap) : fixed_offset,
        grows ? device_heap_own_space(home->heap) : fixed_bytes, &table, &home->store);
    if (status == EXPAR_OK) {
        source->places = gpu_places_hold(places);
        mem_store_set_cover(home->store, gpu_places_cover, places);
        home->source = source;
        return EXPAR_OK;
    }
    device_part_drop(source->part);
    free(source);
    return status;
}

void gpu_store_close(gpu_device_state *home)
{
    if (!home->store) return;
    home->source->closer = pthread_self();
    atomic_store_explicit(&home->source->closed, true, memory_order_release);
    mem_store_close(home->store);
}

/* ---- growing ----------------------------------------------------------------------------------------------------- */

uint64_t gpu_store_bytes(const gpu_device_state *home)
{
    mem_store_stats stats;
    mem_store_get_stats(home->store, &stats);
    return device_heap_grows(home->heap) ? stats.filled_bytes : stats.reserved_bytes;
}

uint64_t gpu_store_end(const gpu_device_state *home)
{
    return device_heap_own_offset(home->heap) + device_heap_own_bytes(home->heap);
}

expar_status gpu_store_grow(gpu_device_state *home, uint64_t bytes)
{
    const uint64_t end = gpu_store_end(home);
    expar_status status = device_heap_grow(home->heap, "the pool", bytes);
    if (status == EXPAR_OK && gpu_store_end(home) > end) mem_store_filled(home->store, end, gpu_store_end(home) - end);
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

bool gpu_store_requests(gpu_device_state *home)
{
    if (get(&home->patience) > 0) {
        set(&home->patience, get(&home->patience) - 1);
        return false;
    }
    if (atomic_load_explicit(&home->trims, memory_order_relaxed)) return true;
    return atomic_load_explicit(&home->missed, memory_order_relaxed) > gpu_store_end(home);
}

/* Growth waits for some calls, and for twice as many each time. Only time is lost. */
void gpu_store_be_patient(gpu_device_state *home)
{
    const int first = (int)knob(KNOB_CUDA_PATIENCE_CALLS), most = (int)knob(KNOB_CUDA_MOST_PATIENCE_CALLS);
    int calls = 2 * get(&home->last_patience);
    calls = calls < first ? first : calls > most ? most : calls;
    set(&home->last_patience, calls);
    set(&home->patience, calls);
}

void gpu_store_forget_patience(gpu_device_state *home)
{
    set(&home->last_patience, 0);
}

bool gpu_store_may_grow(const gpu_device_state *home)
{
    return get(&home->patience) == 0;
}

/* Peers map this rank's memory, so all ranks shrink together. The thread of that call finds what can be freed, since
   another buffer may be growing now. */
void gpu_store_trim(gpu_device_state *home)
{
    if (!device_heap_grows(home->heap)) return;
    set(&home->patience, 0);
    atomic_store_explicit(&home->trims, true, memory_order_relaxed);
}

/* ---- resizing ---------------------------------------------------------------------------------------------------- */

/* Frees whole pieces after `end` and after the last block, but not the memory that the pools began with. Blocks may be
   taken meanwhile: from here on they find no memory there. Returns the bytes that are kept. */
static uint64_t let_go_after(gpu_device_state *home, uint64_t end)
{
    const uint64_t at = device_heap_own_offset(home->heap), held = device_heap_own_bytes(home->heap),
                   used_end = mem_store_used_end(home->store);
    uint64_t keep = home->start_bytes;
    if (end < used_end) end = used_end;
    if (end > at && end - at > keep) keep = end - at;
    keep = device_heap_own_kept(home->heap, keep);
    return mem_store_emptied(home->store, at + keep, held - keep) ? keep : held;
}

/* Frees idle memory. All ranks call it, even those with nothing to free. After the header exchange of a call, no kernel
   of any rank uses the idle memory of another rank. */
static expar_status device_state_shrink(gpu_device_state *home, bool trims, uint64_t end)
{
    const uint64_t at = device_heap_own_offset(home->heap), held = device_heap_own_bytes(home->heap),
                   keep = trims ? let_go_after(home, end) : held;
    expar_status status = device_heap_shrink(home->heap, "the pool", keep, true);
    const uint64_t left = device_heap_own_bytes(home->heap);
    if (left > keep) mem_store_filled(home->store, at + keep, left - keep);
    return status;
}

/* Shrinks before it grows: the freed memory may serve the growth of another rank on the same GPU. */
expar_status gpu_store_resize(gpu_device_state *home, uint64_t end)
{
    const bool trims = atomic_exchange_explicit(&home->trims, false, memory_order_relaxed);
    const uint64_t missed = atomic_exchange_explicit(&home->missed, 0, memory_order_relaxed);
    if (missed > end && !trims) end = missed;
    expar_status status = device_state_shrink(home, trims, end);
    const uint64_t held = gpu_store_end(home);
    return status == EXPAR_OK ? gpu_store_grow(home, end > held ? end - held : 0) : status;
}
