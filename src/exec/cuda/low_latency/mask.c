/* SPDX-License-Identifier: Apache-2.0 */
/* Masks: the host's part. Masks are in GPU memory, and kernels make them during calls. Between calls a kernel of its
 * own changes or reads them for the host (ll_mask.cu), after the rank's calls. The guard finds the ranks that kernels
 * await in vain (gpu_core.lose). Hosts agree on cleans (group/members.c). */
#include "base/knobs.h"
#include "exec/cuda/low_latency/ll_gpu.h"
#include "group/group.h"

#include <stddef.h>
#include <string.h>

static const char clean_words_name[] = "the words of cleans";

/* ---- ranks that are lost ----------------------------------------------------------------------------------------- */

/* Kernels read it when they choose the region of a slot. */
void ll_gpu_note_dead(ll_gpu *self)
{
    const sym *symmetric = self->core.sym;
    for (int32_t r = 0; self->losses && r < self->shape.ranks; r++)
        if (atomic_load_explicit(&symmetric->gone[r], memory_order_acquire) == SYM_PEER_DIED)
            __atomic_store_n(&self->losses[r].dead, 1, __ATOMIC_RELAXED);
}

void ll_gpu_lose(gpu_core *core, int32_t rank, const char *why)
{
    ll_gpu *self = (ll_gpu *)(void *)((char *)core - offsetof(ll_gpu, core));
    const uint64_t pulse = __atomic_load_n(&core->report->orders, __ATOMIC_RELAXED) / GPU_BEAT;
    gpu_loss *loss = &self->losses[rank];
    const uint64_t told = __atomic_load_n(&loss->asked, __ATOMIC_RELAXED);
    /* Repeated at each beat, until all kernels that wait for the rank have seen it. */
    if (!told || told + knob_count(KNOB_CUDA_LOSS_LOG_BEATS) < pulse) LOG(LOG_WARN, "rank %d is masked: %s", rank, why);
    ll_gpu_note_dead(self);
    __atomic_store_n(&loss->asked, pulse + 1, __ATOMIC_RELAXED);
}

/* ---- requests to the mask kernel --------------------------------------------------------------------------------- */

/* Puts the kernel on the stream, after the rank's calls. */
static expar_status task_put(ll_gpu *self, ll_mask_args *args, void *stream)
{
    gpu_core *core = &self->core;
    exec_call exec = {0};
    error_kept kept;
    ll_gpu_note_dead(self);
    expar_status status = gpu_begin(&core->base, &exec, stream);
    if (status == EXPAR_OK) status = gpu_take_place(&core->base, &exec);
    if (status != EXPAR_OK) return status;
    args->call = (ll_gpu_call){.place = gpu_place_of(core, &exec),
                               .shape = self->shape,
                               .space = self->space,
                               .own = (uint8_t *)(uintptr_t)ll_gpu_own(self),
                               .state = self->state,
                               .copies = self->copies,
                               .masks = self->masks,
                               .mask_of = self->mask_of,
                               .decided = self->decided,
                               .far = self->far,
                               .maskers = self->maskers};
    args->answer = self->answer_there;
    status = gpu_launch(core, &exec, self->mask_kernel, 1, LL_GPU_THREADS,
                        (uint32_t)ll_gpu_combine_shared(&self->shape), args);
    error_keep(&kept, status);
    status = gpu_end(&core->base, &exec);
    return kept.status == EXPAR_OK ? status : error_restore(&kept);
}

/* Waits until the kernel is done. The answer has its result. */
static expar_status task_do(ll_gpu *self, ll_mask_args *args)
{
    *self->answer = (ll_gpu_answer){0};
    expar_status status = task_put(self, args, self->core.own_stream);
    if (status == EXPAR_OK) status = gpu_own_stream_await(&self->core);
    return status == EXPAR_OK ? gpu_check(&self->core.base, "masks") : status;
}

/* A rank that has a header after it was masked for a moment also has the word that this is over. */
static expar_status tell_rank(ll_gpu *self, int32_t rank, bool masked)
{
    if (!masked) return ll_gpu_words_await(self, rank);
    ll_gpu_words_linger(self, rank);
    return EXPAR_OK;
}

expar_status ll_gpu_mask_set(executor *base, int32_t rank, bool masked)
{
    ll_gpu *self = ll_gpu_of(base);
    ll_mask_args args = {.what = masked ? LL_TASK_SET : LL_TASK_UNSET, .rank = rank};
    if (!ll_gpu_is_shaped(self)) {
        ll_gpu_early_mask(self, rank, masked);
        return EXPAR_OK;
    }
    expar_status status = task_do(self, &args);
    if (status == EXPAR_OK && self->answer->status == EXPAR_OK) {
        ll_gpu_early_settle(self, rank, masked);
        status = tell_rank(self, rank, masked);
    }
    if (status != EXPAR_OK || self->answer->status == EXPAR_OK) return status;
    if (!masked)
        return error_set(EXPAR_ERR_STATE,
                         "rank %d has been left out of a call meanwhile, or has masked this one; expected "
                         "expar_ll_mask_clean to take it in again",
                         rank);
    return error_set(EXPAR_ERR_LIMIT,
                     "rank %d cannot be masked: masked ranks that are alive or silent may still write "
                     "to all %d regions of this buffer",
                     rank, self->shape.regions);
}

expar_status ll_gpu_mask_query(executor *base, int32_t *status, void *stream)
{
    ll_gpu *self = ll_gpu_of(base);
    ll_mask_args args = {.what = LL_TASK_QUERY, .status = status};
    return ll_gpu_is_shaped(self) ? task_put(self, &args, stream) : ll_gpu_early_query(self, status, stream);
}

/* Waits for nobody. If this rank's calls have not ended, others learn of its leaving when they ask. */
void ll_gpu_part(ll_gpu *self)
{
    ll_mask_args args = {.what = LL_TASK_PART};
    if (!self->masks || !gpu_order_has_ended(&self->core, knob(KNOB_CUDA_PART_NS))) return;
    if (task_do(self, &args) != EXPAR_OK) LOG(LOG_INFO, "a rank that leaves: %s", expar_last_error());
    for (int32_t r = 0; r < self->shape.ranks; r++)
        ll_gpu_words_linger(self, r);
}

/* ---- clean ------------------------------------------------------------------------------------------------------- */

/* Rejects a clean while calls await their hooks: the clean would lose those calls. */
static expar_status masks_check_closed(const ll_gpu *self)
{
    for (int kind = 0; kind < LL_KINDS; kind++)
        if (self->answer->open[kind])
            return error_set(EXPAR_ERR_STATE, "a %s is open; expected its hook to be called first",
                             kind == LL_DISPATCH ? "dispatch" : "combine");
    return EXPAR_OK;
}

expar_status ll_gpu_begin_anew(ll_gpu *self, const uint64_t epochs[LL_KINDS])
{
    ll_mask_args args = {.what = LL_TASK_BEGIN,
                         .view = self->view_there,
                         .epochs = {epochs[LL_DISPATCH], epochs[LL_COMBINE]},
                         .attempt = self->cleaner->attempt};
    memcpy(self->view, self->cleaner->view, (size_t)self->shape.ranks * sizeof *self->view);
    expar_status status = task_do(self, &args);
    if (status != EXPAR_OK || self->answer->status == EXPAR_OK) return status;
    return error_set(EXPAR_ERR_PEER,
                     "masked ranks that are alive or silent may still write to all %d regions of "
                     "this buffer",
                     self->shape.regions);
}

/* Carries out a clean before there is a shape. */
static expar_status clean_early(ll_gpu *self, ll_clean_step *step)
{
    uint64_t epochs[LL_KINDS] = {self->early->epochs[LL_DISPATCH], self->early->epochs[LL_COMBINE]};
    expar_status status = ll_clean_agree(self->cleaner, step, epochs);
    if (status == EXPAR_OK && step->call.vote.rank < 0) ll_gpu_early_begin(self, epochs);
    return status;
}

/* Waits for ranks that were unmasked, since no graph may be replayed to a rank without a shape. */
static expar_status meet_again(ll_gpu *self, const ll_clean_step *step)
{
    for (int32_t r = 0; r < self->shape.ranks; r++)
        ll_gpu_early_settle(self, r, self->cleaner->view[r] == 0);
    return ll_gpu_meet(self, step->call.number);
}

/* Agrees with the ranks that come. Those of the view have been told everything on return, or are lost. */
static expar_status agree_with_all(ll_gpu *self, ll_clean_step *step, uint64_t epochs[LL_KINDS])
{
    ll_gpu_words_clean(self, true);
    expar_status status = ll_clean_agree(self->cleaner, step, epochs);
    for (int32_t r = 0; r < self->shape.ranks && status == EXPAR_OK; r++)
        if (self->cleaner->view[r]) status = ll_gpu_words_await(self, r);
    ll_gpu_words_clean(self, false);
    return status;
}

expar_status ll_gpu_mask_clean(executor *base, ll_clean_step *step)
{
    ll_gpu *self = ll_gpu_of(base);
    if (!ll_gpu_is_shaped(self)) return clean_early(self, step);
    ll_mask_args args = {.what = LL_TASK_READ};
    expar_status status = task_do(self, &args);
    if (status != EXPAR_OK) return status;
    status = masks_check_closed(self);
    if (status != EXPAR_OK) step->call.rejection = ep_rejection_of(status);
    uint64_t epochs[LL_KINDS] = {self->answer->epochs[LL_DISPATCH], self->answer->epochs[LL_COMBINE]};
    status = agree_with_all(self, step, epochs);
    if (status != EXPAR_OK) return status;
    if (step->call.vote.rank >= 0) return EXPAR_OK;
    status = ll_gpu_far_forgive(self, self->cleaner->view);
    if (status == EXPAR_OK) status = ll_gpu_begin_anew(self, epochs);
    return status == EXPAR_OK ? meet_again(self, step) : status;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Returns the bytes of the words of cleans and, after them, of the words of shapes. */
static uint64_t words_bytes(const ll_gpu *self)
{
    return (uint64_t)self->shape.ranks * self->space.clean_bytes + ll_gpu_shapes_bytes(self);
}

/* Maps the words of cleans. They are in the host's heap, since hosts agree on them. */
static expar_status map_words(ll_gpu *self)
{
    sym *symmetric = self->core.sym;
    self->cleaner = members_make(symmetric, BOOT_KIND_LOW_LATENCY, self->core.number, self->space.clean_bytes);
    if (!self->cleaner) return error_set(EXPAR_ERR_MEMORY, "no memory for masks");
    self->cleaner->halted = &self->core.halted;
    self->cleaner->late_limit_ms = self->core.late_limit_ms;
    for (int32_t r = 0; r < self->shape.ranks; r++) {
        if (ll_gpu_is_far(self, r)) continue;
        self->cleaner->words[r] = sym_at(symmetric, r, self->clean_words);
        if (!self->cleaner->words[r])
            return error_set(EXPAR_ERR_UNSUPPORTED,
                             "rank %d's memory is not mapped on rank %d; expected all ranks to share memory: let "
                             "EXPAR_TRANSPORTS be unset, or name p2p",
                             r, symmetric->rank);
    }
    memset(self->cleaner->words[symmetric->rank], 0, (size_t)words_bytes(self));
    return EXPAR_OK;
}

expar_status ll_gpu_masks_take(ll_gpu *self)
{
    if (!self->shape.masking) return EXPAR_OK;
    expar_status status =
        sym_take(self->core.sym, clean_words_name, words_bytes(self), EP_LINE_BYTES, &self->clean_words);
    self->has_clean_words = status == EXPAR_OK;
    return status;
}

expar_status ll_gpu_masks_open(ll_gpu *self)
{
    if (!self->shape.masking) return EXPAR_OK;
    self->core.lose = ll_gpu_lose;
    expar_status status = map_words(self);
    return status == EXPAR_OK && self->across ? ll_gpu_words_open(self) : status;
}

void ll_gpu_masks_close(ll_gpu *self)
{
    members_free(self->cleaner);
    self->cleaner = NULL;
}

void ll_gpu_masks_give(ll_gpu *self)
{
    if (self->has_clean_words && sym_give(self->core.sym, clean_words_name, self->clean_words) != EXPAR_OK)
        LOG(LOG_WARN, "expar_ll_destroy: %s", expar_last_error());
    self->has_clean_words = false;
}
