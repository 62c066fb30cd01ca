/* SPDX-License-Identifier: Apache-2.0 */
/* Where a rank's buffers on one GPU have their memory: the device heap, with their records in its symmetric part, and
 * one store of blocks for the outputs of all of them, in the part behind. By CUDA IPC, where nothing grows, each buffer
 * has a heap of its own, and a store as large as its config says.
 *
 * The store grows by all ranks together (gpu_grow_pool), between the counts of a call and its rows. What a rank's pool
 * had no room for is noted as it comes up; the hellos of its calls then wish for growth. In the same way idle memory
 * goes once it has been trimmed. */
#include "exec/cuda/core/gpu.h"
#include "group/group.h"

#include <pthread.h>
#include <stdlib.h>

/* After a growth that failed so many calls do not wish for another; then twice as many, and so on up to the most. */
#define FIRST_PATIENCE 16
#define MOST_PATIENCE  4096
/* Calls that wait behind another rank's wish, where they need not; and such calls of the rank that wishes, all in vain,
   until it is patient. */
#define CALLS_OF_A_WISH 8
#define MOST_IN_VAIN    64

/* A rank's homes: a resident of its group. Changed as buffers are made and destroyed, which the rank does one at a
   time. */
typedef struct gpu_homes {
    group_resident resident;
    gpu_home *first;
    uint64_t made; /* so far; the same on all ranks */
} gpu_homes;

/* What the store knows of; it may outlive the home. */
typedef struct gpu_source {
    cuda_task task;
    device_part *part;
    gpu_places *places; /* which tell the store what calls come after */
    gpu_home *home;     /* there as long as a pool is open */
    pthread_t closer;   /* the thread that gave the owner's hold of the store back; once `closed` */
    atomic_bool closed; /* release, by that thread; acquire */
} gpu_source;

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

/* ---- the store --------------------------------------------------------------------------------------------------- */

static expar_status source_fill(void *context, uint64_t offset, uint64_t bytes)
{
    gpu_home *home = ((gpu_source *)context)->home;
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

/* By whoever gives the last hold back: perhaps a function that the driver calls, which the thread that closed the store
   is none of. */
static void source_end(void *context)
{
    gpu_source *source = context;
    source->task.run = drop_part;
    if (atomic_load_explicit(&source->closed, memory_order_acquire) && pthread_equal(source->closer, pthread_self()))
        drop_part(&source->task);
    else
        cuda_later(&source->task);
}

/* Over the part that grows; or, by CUDA IPC, over what the buffer has taken for it. */
static expar_status store_make(gpu_home *home, gpu_places *places, uint64_t fixed_offset, uint64_t fixed_bytes)
{
    const bool grows = device_heap_grows(home->heap);
    gpu_source *source = calloc(1, sizeof *source);
    if (!source) return error_set(EXPAR_ERR_MEMORY, "CUDA executor: no memory");
    *source = (gpu_source){.part = device_heap_hold(home->heap), .home = home};
    const mem_source table = {.fill = grows ? source_fill : NULL, .end = source_end, .context = source};
    expar_status status = mem_store_create(
        (void *)(uintptr_t)device_heap_at(home->heap, 0), grows ? device_heap_own_offset(home->heap) : fixed_offset,
        grows ? device_heap_own_room(home->heap) : fixed_bytes, &table, &home->store);
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

static void store_close(gpu_home *home)
{
    if (!home->store) return;
    home->source->closer = pthread_self();
    atomic_store_explicit(&home->source->closed, true, memory_order_release);
    mem_store_close(home->store);
}

/* ---- making and leaving ------------------------------------------------------------------------------------------ */

/* The homes have gone with the last buffers, without which no group ends. */
static void homes_end(group_resident *resident)
{
    free((gpu_homes *)resident);
}

/* NULL: no memory. */
static gpu_homes *homes_of(expar_group *group)
{
    gpu_homes *homes = (gpu_homes *)group_kept(group, homes_end);
    if (homes || !(homes = calloc(1, sizeof *homes))) return homes;
    homes->resident.end = homes_end;
    group_keep(group, &homes->resident);
    return homes;
}

/* The home that this rank's buffers on the GPU have; NULL: none yet. */
static gpu_home *home_on(const gpu_homes *homes, int32_t device)
{
    gpu_home *home = homes ? homes->first : NULL;
    while (home && (home->device != device || !device_heap_grows(home->heap)))
        home = home->next;
    return home;
}

/* Collective. Whether all ranks have a home on the GPU that they want, and it is the same one. */
static expar_status agree_on_home(sym *symmetric, const gpu_homes *homes, uint64_t number, bool *same)
{
    const size_t size = (size_t)symmetric->size;
    uint64_t *numbers = calloc(size, sizeof *numbers);
    expar_status own = homes && numbers ? EXPAR_OK : error_set(EXPAR_ERR_MEMORY, "CUDA executor: no memory");
    if (!numbers) return sym_out_of_step(symmetric, "the buffer", own);
    const boot_matter matter = {.what = "the buffer",
                                .refused = "could not make its part",
                                .mine = &number,
                                .all = numbers,
                                .bytes = sizeof number};
    expar_status status = sym_agree(symmetric, &matter, own);
    *same = number != 0;
    for (size_t r = 0; r < size && status == EXPAR_OK; r++)
        *same = *same && numbers[r] == number;
    free(numbers);
    return status;
}

static void home_end(gpu_home *home, bool quiet)
{
    gpu_home **place = &home->homes->first;
    while (*place != home)
        place = &(*place)->next;
    *place = home->next;
    store_close(home);
    gpu_segments_end(home->segments, quiet);
    device_heap_destroy(home->heap, quiet);
    free(home);
}

static expar_status home_make(sym *symmetric, gpu_homes *homes, int32_t device, gpu_home **out)
{
    device_heap *heap = NULL;
    gpu_segments *segments = NULL;
    expar_status status = device_heap_create(symmetric, device, &heap);
    homes->made++;
    if (status == EXPAR_OK) status = gpu_segments_make(symmetric, heap, &segments);
    if (status != EXPAR_OK) {
        device_heap_destroy(heap, true);
        return status;
    }
    gpu_home *home = calloc(1, sizeof *home);
    if (!home) {
        gpu_segments_end(segments, false);
        device_heap_destroy(heap, true);
        return sym_out_of_step(symmetric, "the buffer", error_set(EXPAR_ERR_MEMORY, "CUDA executor: no memory"));
    }
    home->heap = heap;
    home->segments = segments;
    home->device = device;
    home->number = homes->made;
    home->homes = homes;
    home->next = homes->first;
    *out = homes->first = home;
    return EXPAR_OK;
}

expar_status gpu_home_enter(gpu_executor *self, int32_t device)
{
    gpu_homes *homes = homes_of(self->group);
    gpu_home *home = home_on(homes, device);
    bool same = false;
    expar_status status = agree_on_home(self->sym, homes, home ? home->number : 0, &same);
    if (status != EXPAR_OK) return status;
    if (!same) status = home_make(self->sym, homes, device, &home);
    if (status != EXPAR_OK) return status;
    home->references++;
    self->home = home;
    self->heap = home->heap;
    self->segments = home->segments;
    self->device = device_heap_device(home->heap);
    return EXPAR_OK;
}

void gpu_home_leave(gpu_executor *self, bool quiet)
{
    gpu_home *home = self->home;
    if (!home) return;
    self->home = NULL;
    home->loud |= !quiet;
    home->start_bytes -= self->start_bytes;
    if (--home->references == 0) home_end(home, !home->loud);
}

/* ---- records and pool -------------------------------------------------------------------------------------------- */

expar_status gpu_home_take(gpu_executor *self, const char *what, uint64_t *offset)
{
    const ep_space *space = &self->world.space;
    const uint64_t bytes = device_heap_grows(self->heap) ? space->pool : space->total_bytes;
    return device_heap_take(self->heap, what, bytes, 4096, offset);
}

expar_status gpu_home_pool(gpu_executor *self, uint64_t limit_bytes)
{
    gpu_home *home = self->home;
    const gpu_world *world = &self->world;
    expar_status status = home->store ? EXPAR_OK
                                      : store_make(home, gpu_order_places(self->order),
                                                   world->buffer + world->space.pool, world->shape.pool_bytes);
    self->limit_bytes = limit_bytes;
    return status == EXPAR_OK ? mem_pool_create_in(home->store, limit_bytes, 0, &self->base.pool) : status;
}

uint64_t gpu_home_bytes(const gpu_executor *self)
{
    mem_store_stats stats;
    if (self->limit_bytes) return self->limit_bytes;
    mem_store_get_stats(self->home->store, &stats);
    return device_heap_grows(self->heap) ? stats.filled_bytes : stats.reserved_bytes;
}

/* Behind what has memory. */
static uint64_t filled_end(const gpu_home *home)
{
    return device_heap_own_offset(home->heap) + device_heap_own_bytes(home->heap);
}

static expar_status home_grow(gpu_home *home, uint64_t bytes)
{
    const uint64_t end = filled_end(home);
    expar_status status = device_heap_grow(home->heap, "the pool", bytes);
    if (status == EXPAR_OK && filled_end(home) > end) mem_store_filled(home->store, end, filled_end(home) - end);
    return status;
}

expar_status gpu_home_start(gpu_executor *self)
{
    gpu_home *home = self->home;
    if (!device_heap_grows(home->heap)) return EXPAR_OK;
    const uint64_t held = device_heap_own_bytes(home->heap), start = self->world.shape.pool_bytes;
    self->base.grows = true;
    self->start_bytes = start;
    home->start_bytes += start;
    return home_grow(home, home->start_bytes > held ? home->start_bytes - held : 0);
}

/* ---- growing ----------------------------------------------------------------------------------------------------- */

static int get(const atomic_int *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

static void set(atomic_int *word, int value)
{
    atomic_store_explicit(word, value, memory_order_relaxed);
}

bool gpu_home_wishes(gpu_executor *self)
{
    gpu_home *home = self->home;
    if (get(&home->patience) > 0) {
        set(&home->patience, get(&home->patience) - 1);
        return false;
    }
    if (atomic_load_explicit(&home->trims, memory_order_relaxed)) return true;
    return atomic_load_explicit(&home->missed, memory_order_relaxed) > filled_end(home);
}

bool gpu_lacks(executor *base, uint64_t bytes)
{
    const gpu_home *home = gpu_of(base)->home;
    return base->grows && get(&home->patience) == 0 && mem_pool_reach(base->pool, &bytes, 1) > filled_end(home);
}

/* Nothing is lost but time: so it is not tried again at once. */
static void be_patient(gpu_home *home)
{
    int calls = 2 * get(&home->last_patience);
    calls = calls < FIRST_PATIENCE ? FIRST_PATIENCE : calls > MOST_PATIENCE ? MOST_PATIENCE : calls;
    set(&home->last_patience, calls);
    set(&home->patience, calls);
}

/* ---- calls that need not wait --------------------------------------------------------------------------------------
 *
 * Pools grow in a call in which all hosts wait. Whoever wishes for growth waits; the others learn of it as their
 * kernels have read its hello, and then wait in their next calls, however far behind they have come to know: the wish
 * is repeated until it is met. */

bool gpu_home_awaits_growth(gpu_executor *self, ep_growth growth)
{
    const uint64_t wished = __atomic_load_n(&self->report->wished, __ATOMIC_RELAXED);
    if (wished != self->wish_seen) self->waits = CALLS_OF_A_WISH;
    self->wish_seen = wished;
    if (growth == EP_GROWTH_NONE) return false;
    if (growth == EP_GROWTH_WISHED) return true;
    return self->waits > 0 && self->waits--;
}

void gpu_home_note_vain(gpu_executor *self)
{
    if (++self->vain < MOST_IN_VAIN) return;
    self->vain = self->waits = 0;
    self->wish_seen = __atomic_load_n(&self->report->wished, __ATOMIC_RELAXED);
    be_patient(self->home);
}

/* ---- resizing ---------------------------------------------------------------------------------------------------- */

/* All that lies behind `end` and behind the last block, beyond what the pools have begun with; as far as it is whole
   pieces. Blocks may be taken meanwhile: nobody finds memory there from here on. Returns what is kept. */
static uint64_t let_go_behind(gpu_home *home, uint64_t end)
{
    const uint64_t at = device_heap_own_offset(home->heap), held = device_heap_own_bytes(home->heap),
                   used_end = mem_store_used_end(home->store);
    uint64_t keep = home->start_bytes;
    if (end < used_end) end = used_end;
    if (end > at && end - at > keep) keep = end - at;
    keep = device_heap_own_kept(home->heap, keep);
    return mem_store_emptied(home->store, at + keep, held - keep) ? keep : held;
}

/* By all ranks, whether they have anything to give or not: behind the hellos of a call no kernel of any rank uses what
   is idle on another one. */
static expar_status home_shrink(gpu_home *home, bool trims, uint64_t end)
{
    const uint64_t at = device_heap_own_offset(home->heap), held = device_heap_own_bytes(home->heap),
                   keep = trims ? let_go_behind(home, end) : held;
    expar_status status = device_heap_shrink(home->heap, "the pool", keep, true);
    const uint64_t left = device_heap_own_bytes(home->heap);
    if (left > keep) mem_store_filled(home->store, at + keep, left - keep);
    return status;
}

/* What goes may serve the growth of another rank on the same GPU. */
static expar_status home_resize(gpu_home *home, uint64_t end)
{
    const bool trims = atomic_exchange_explicit(&home->trims, false, memory_order_relaxed);
    const uint64_t missed = atomic_exchange_explicit(&home->missed, 0, memory_order_relaxed);
    if (missed > end && !trims) end = missed;
    expar_status status = home_shrink(home, trims, end);
    const uint64_t held = filled_end(home);
    return status == EXPAR_OK ? home_grow(home, end > held ? end - held : 0) : status;
}

expar_status gpu_grow_pool(executor *base, const uint64_t *bytes, int32_t count)
{
    gpu_executor *self = gpu_of(base);
    int mode;
    const uint64_t end = mem_pool_reach(base->pool, bytes, (size_t)count);
    expar_status status = gpu_leave_captures(&mode);
    if (status != EXPAR_OK) return sym_out_of_step(self->sym, "the pool", status);
    status = home_resize(self->home, end);
    gpu_return_to_captures(mode);
    self->waits = self->vain = 0;
    if (status != EXPAR_ERR_MEMORY) {
        set(&self->home->last_patience, 0);
        return status;
    }
    be_patient(self->home);
    LOG(LOG_INFO, "outputs come by the queue: %s", expar_last_error());
    return EXPAR_OK;
}

/* Peers map what a rank has: it goes with the next call of which all ranks see that all of them wait. What there is to
   give is seen then, by who makes that call: another buffer's may be growing now. */
void gpu_trim(executor *base)
{
    gpu_home *home = gpu_of(base)->home;
    if (!device_heap_grows(home->heap)) return;
    set(&home->patience, 0);
    atomic_store_explicit(&home->trims, true, memory_order_relaxed);
}
