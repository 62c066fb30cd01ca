/* SPDX-License-Identifier: Apache-2.0 */
/* rogue.h where calls are carried out by kernels. The rogue's writes go to the victim's GPU by the driver's copies, at
 * the addresses at which the rogue's own kernels would store them. Each is there before the next one goes. Words of
 * cleans lie in the memory of hosts, which agree on them. */
#include "ep/harness/check.h"
#include "ep/low_latency/ll.h"
#include "ep/low_latency/rogue.h"
#include "exec/cuda/low_latency/ll_gpu.h"
#include "gpu/worker.h"

#include <stdlib.h>

static const ll_gpu *gpu_of_ll(const expar_ll *ll)
{
    return ll_gpu_of(ll->base.exec);
}

const ll_shape *rogue_shape(const expar_ll *ll)
{
    return &gpu_of_ll(ll)->shape;
}

const ll_space *rogue_space(const expar_ll *ll)
{
    return &gpu_of_ll(ll)->space;
}

bool rogue_is_found_out(void)
{
    return false;
}

bool rogue_is_far(const expar_ll *ll)
{
    (void)ll;
    return false;
}

/* ---- the victim's ------------------------------------------------------------------------------------------------ */

void rogue_put(const expar_ll *ll, uint64_t at, const void *source, size_t bytes)
{
    const gpu_core *core = &gpu_of_ll(ll)->core;
    const cu_address there = device_heap_bases(core->heap)[ROGUE_VICTIM] + core->place.buffer + at;
    CHECK_OK(CUDA_CALL(MemcpyHtoD, there, source, bytes));
    CHECK_OK(cuda_synchronize());
}

void rogue_put_word(const expar_ll *ll, uint64_t at, uint64_t word)
{
    rogue_put(ll, at, &word, sizeof word);
}

void rogue_put_clean_word(const expar_ll *ll, int32_t word, uint64_t value)
{
    const ll_gpu *gpu = gpu_of_ll(ll);
    uint8_t *said = gpu->cleaner->words[ROGUE_VICTIM] + ROGUE_PEER * gpu->space.clean_bytes;
    atomic_store_explicit((_Atomic uint64_t *)(void *)(said + 8 * word), value, memory_order_release);
}

/* ---- this rank's own --------------------------------------------------------------------------------------------- */

static cu_address own_at(const expar_ll *ll, uint64_t at)
{
    const gpu_core *core = &gpu_of_ll(ll)->core;
    return device_heap_at(core->heap, core->place.buffer + at);
}

void rogue_fill(const expar_ll *ll, uint64_t at, uint8_t value, size_t bytes)
{
    CHECK_OK(CUDA_CALL(MemsetD8, own_at(ll, at), value, bytes));
    CHECK_OK(cuda_synchronize());
}

void rogue_fetch(const expar_ll *ll, void *to, uint64_t at, size_t bytes)
{
    CHECK_OK(CUDA_CALL(MemcpyDtoH, to, own_at(ll, at), bytes));
}

/* ---- memory for calls -------------------------------------------------------------------------------------------- */

#define GUARDED_BYTES ((size_t)1 << 20)

static worker *own_hand(void)
{
    return worker_of(worker_device(ROGUE_VICTIM).index);
}

void rogue_guard_lent(uint8_t value)
{
    CHECK_OK(CUDA_CALL(MemsetD8, own_hand()->own.at, value, GUARDED_BYTES));
    CHECK_OK(cuda_synchronize());
}

/* The arena begins anew with the next call, and until then tells how much of it is in use. */
bool rogue_lent_is_sound(uint8_t value)
{
    const worker *h = own_hand();
    const size_t lent = h->own.used;
    uint8_t *bytes = malloc(GUARDED_BYTES);
    if (!bytes) abort();
    bool sound = CHECK(lent < GUARDED_BYTES, "a call is lent %zu bytes", lent);
    worker_fetch(h, bytes, h->own.at, GUARDED_BYTES);
    for (size_t i = lent; i < GUARDED_BYTES && sound; i++)
        sound = CHECK(bytes[i] == value, "byte %zu behind what was lent is %#x", i - lent, bytes[i]);
    free(bytes);
    return sound;
}
