/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of a buffer that gets its shape later (proto/reserve.h). Their hosts meet by words in the host's heap, after
 * those of cleans. A rank that has laid its shape out says so. A call is launched only when all ranks have said the
 * same shape, or are masked here. Until there is a shape there are no kernels, and the host keeps the masks. */
#include "exec/cuda/low_latency/ll_gpu.h"
#include "group/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- words ------------------------------------------------------------------------------------------------------- */

uint64_t ll_gpu_shapes_bytes(const ll_gpu *self)
{
    return self->reserve.bytes ? (uint64_t)self->shape.ranks * EP_LINE_BYTES : 0;
}

static _Atomic uint64_t *shape_word(const ll_gpu *self, int32_t at, int32_t source, int32_t word)
{
    const uint64_t cleans = (uint64_t)self->shape.ranks * self->space.clean_bytes;
    uint8_t *first = self->cleaner->words[at] + cleans + (uint64_t)source * EP_LINE_BYTES;
    return (_Atomic uint64_t *)(void *)first + word;
}

void ll_gpu_meet_say(const ll_gpu *self)
{
    const ll_shape_words words = ll_shape_say(&self->shape);
    for (int32_t r = 0; r < self->shape.ranks; r++) {
        for (int32_t w = 0; w < LL_SHAPE_WORDS; w++)
            atomic_store_explicit(shape_word(self, r, self->core.sym->rank, w), words.words[w], memory_order_release);
        sym_ring(self->core.sym, r);
    }
}

static bool hear_host(const ll_gpu *self, int32_t rank, ll_shape_words *out)
{
    bool said = true;
    for (int32_t w = 0; w < LL_SHAPE_WORDS; w++) {
        out->words[w] = atomic_load_explicit(shape_word(self, self->core.sym->rank, rank, w), memory_order_acquire);
        said = said && (out->words[w] & LL_SHAPE_IS_SAID);
    }
    return said;
}

/* ---- meeting ----------------------------------------------------------------------------------------------------- */

static bool shape_is_awaited(const void *context, int32_t rank)
{
    const ll_gpu *self = context;
    ll_shape_words words;
    return !self->early->settled[rank] && !hear_host(self, rank, &words);
}

static bool any_is_awaited(const ll_gpu *self)
{
    for (int32_t r = 0; r < self->shape.ranks; r++)
        if (shape_is_awaited(self, r)) return true;
    return false;
}

static expar_status mask_lost(ll_gpu *self, const sym_rest *rest)
{
    char why[512];
    bool any = false;
    expar_status status = EXPAR_OK;
    snprintf(why, sizeof why, "%s", expar_last_error());
    for (int32_t pass = 0; pass < 2 && !any; pass++)
        for (int32_t r = 0; r < self->shape.ranks && status == EXPAR_OK; r++) {
            const bool lost = pass == 0 ? sym_rest_has_lost(rest, r) : !any && shape_is_awaited(self, r);
            if (!lost) continue;
            LOG(LOG_WARN, "rank %d is masked: %s", r, why);
            status = ll_gpu_mask_set(&self->core.base, r, true);
            any = true;
        }
    return status;
}

static expar_status await_host_shapes(ll_gpu *self, uint64_t number)
{
    const boot_topic topic = {.kind = BOOT_KIND_LOW_LATENCY, .object = self->core.number, .number = number};
    expar_status status = EXPAR_OK;
    while (status == EXPAR_OK && any_is_awaited(self)) {
        sym_rest rest = sym_rest_begin(self->core.sym, "low latency: first calls");
        rest.halt = &self->core.halted;
        sym_rest_expect_all(&rest, &topic, shape_is_awaited, self);
        sym_rest_tolerate(&rest);
        rest.wait.late_limit_ms = self->core.late_limit_ms;
        while (status == EXPAR_OK && any_is_awaited(self))
            status = sym_rest_turn(&rest);
        if (status == EXPAR_ERR_PEER) status = mask_lost(self, &rest);
        sym_rest_end(&rest);
    }
    return status;
}

expar_status ll_gpu_meet(ll_gpu *self, uint64_t number)
{
    ll_early *early = self->early;
    const ll_shape_words own = ll_shape_say(&self->shape);
    ll_shape_words words;
    if (!early || early->all_settled) return EXPAR_OK;
    expar_status status = await_host_shapes(self, number);
    for (int32_t r = 0; r < self->shape.ranks && status == EXPAR_OK; r++) {
        if (early->settled[r]) continue;
        early->settled[r] = hear_host(self, r, &words);
        if (!ll_shapes_are_same(&words, &own)) return ll_shape_differs(&self->shape, self->core.sym->rank, &words, r);
    }
    early->all_settled = status == EXPAR_OK;
    return status;
}

/* ---- masks ------------------------------------------------------------------------------------------------------- */

ll_early *ll_gpu_early_make(int32_t ranks, int32_t own)
{
    const size_t n = (size_t)ranks;
    ll_early *early = calloc(1, sizeof *early);
    if (!early) return NULL;
    early->settled = calloc(n, sizeof *early->settled);
    early->masked = calloc(n, sizeof *early->masked);
    if (early->settled && early->masked) {
        early->settled[own] = true;
        return early;
    }
    ll_gpu_early_free(early);
    return NULL;
}

void ll_gpu_early_free(ll_early *early)
{
    if (!early) return;
    free(early->settled);
    free(early->masked);
    free(early);
}

/* A masked rank is not awaited. A rank whose mask was cleared may have no shape yet. */
void ll_gpu_early_settle(ll_gpu *self, int32_t rank, bool masked)
{
    ll_shape_words words;
    if (!self->early) return;
    self->early->settled[rank] = masked || rank == self->core.sym->rank || hear_host(self, rank, &words);
    self->early->all_settled = self->early->all_settled && self->early->settled[rank];
}

void ll_gpu_early_mask(ll_gpu *self, int32_t rank, bool masked)
{
    self->early->masked[rank] = masked;
    ll_gpu_early_settle(self, rank, masked);
}

/* The values are part of the stream's operations, since the host's may change meanwhile. */
expar_status ll_gpu_early_query(const ll_gpu *self, int32_t *status, void *stream)
{
    const cu_address there = (cu_address)(uintptr_t)status;
    expar_status put = cuda_enter(self->core.device);
    if (put != EXPAR_OK) return put;
    put = CUDA_CALL(MemsetD8Async, there, 0, (size_t)self->shape.ranks * sizeof *status, stream);
    for (int32_t r = 0; r < self->shape.ranks && put == EXPAR_OK; r++)
        if (self->early->masked[r]) put = CUDA_CALL(MemsetD8Async, there + (uint64_t)r * sizeof *status, 1, 1, stream);
    cuda_leave();
    return put;
}

/* Keeps the results of a clean that comes before the shape. */
void ll_gpu_early_begin(ll_gpu *self, const uint64_t epochs[LL_KINDS])
{
    ll_early *early = self->early;
    early->cleaned = true;
    memcpy(early->epochs, epochs, sizeof early->epochs);
    for (int32_t r = 0; r < self->shape.ranks; r++)
        ll_gpu_early_mask(self, r, self->cleaner->view[r] == 0);
}

/* Call this after the lay-out: kernels have the masks from now on. */
expar_status ll_gpu_early_end(ll_gpu *self)
{
    ll_early *early = self->early;
    expar_status status = early->cleaned ? ll_gpu_begin_anew(self, early->epochs) : EXPAR_OK;
    for (int32_t r = 0; r < self->shape.ranks && status == EXPAR_OK; r++)
        if (early->masked[r]) status = ll_gpu_mask_set(&self->core.base, r, true);
    return status;
}
