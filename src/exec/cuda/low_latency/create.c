/* SPDX-License-Identifier: Apache-2.0 */
/* The object: its part of the device heap, its small memory, its kernels. */
#include "exec/cuda/low_latency/ll_gpu.h"
#include "group/group.h"
#include <expar/low_latency.h>

#include <stdlib.h>

_Static_assert(EXPAR_STATUS_LIMIT == EXPAR_ERR_LIMIT, "kernels and library disagree");
_Static_assert(EXPAR_STATUS_HANDLE == EXPAR_ERR_HANDLE, "kernels and library disagree");
_Static_assert(EXPAR_STATUS_STATE == EXPAR_ERR_STATE, "kernels and library disagree");
_Static_assert(EXPAR_STATUS_PEER == EXPAR_ERR_PEER, "kernels and library disagree");
_Static_assert(EXPAR_LL_SUM_REDUCED == 1, "kernels know this value (ll_combine.cu)");
_Static_assert(sizeof(ll_form) <= sizeof(ep_form), "what kernels tell carries either");

static const char ll_buffer_name[] = "the low-latency buffer";

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* Ends all but the heap, also for a partly made executor. */
static void ll_gpu_close_part(ll_gpu *self)
{
    gpu_core_stop(&self->core);
    ll_gpu_cache_close(self->cache);
    cuda_program_release(self->dispatch_program);
    cuda_program_release(self->scaled_program);
    cuda_program_release(self->combine_program);
    cuda_program_release(self->log_program);
    cuda_program_release(self->signals_program);
    cuda_program_release(self->mask_program);
    ll_gpu_words_close(self);
    ll_gpu_masks_close(self);
    ll_gpu_far_close(self);
    ll_gpu_early_free(self->early);
    self->early = NULL;
    gpu_core_free(&self->core);
}

static void ll_gpu_destroy(executor *base, bool sound, bool quiet)
{
    ll_gpu *self = ll_gpu_of(base);
    gpu_core *core = &self->core;
    if (!sound && ll_gpu_is_shaped(self) && !gpu_core_abandon(core, "a low-latency call of this rank's")) return;
    ll_gpu_close_part(self);
    /* Peers' kernels may write here until all ranks have come and have waited for theirs. */
    bool all_quiet = sound && quiet && !core->unsettled;
    if (sound && self->across)
        ll_gpu_far_give(self, &all_quiet);
    else if (sound && device_heap_give(core->heap, ll_buffer_name, core->place.buffer, &all_quiet) != EXPAR_OK)
        LOG(LOG_WARN, "expar_ll_destroy: %s", expar_last_error());
    if (sound) ll_gpu_masks_give(self);
    gpu_device_state_leave(core, all_quiet);
    free(self);
}

/* ---- operations that are not calls ------------------------------------------------------------------------------- */

/* Kernels open calls, so a rank that leaves has none to wait for. Others learn of it when they ask. With masks they
   also learn that it writes no more. */
static void ll_gpu_retire(executor *base, uint32_t epoch, const ep_rejection *rejection)
{
    (void)epoch, (void)rejection;
    ll_gpu_part(ll_gpu_of(base));
}

static expar_status ll_gpu_take(executor *base, const mem_allocator *from, uint64_t bytes, mem_block **out)
{
    (void)from;
    return ll_gpu_cache_take(ll_gpu_of(base), bytes, out);
}

/* Before there is a shape there are no calls that could have failed. */
static expar_status check_shaped(executor *base, const char *what)
{
    return ll_gpu_is_shaped(ll_gpu_of(base)) ? gpu_check(base, what) : EXPAR_OK;
}

static expar_status await_shaped(executor *base, const char *what)
{
    return ll_gpu_is_shaped(ll_gpu_of(base)) ? gpu_await(base, what) : EXPAR_OK;
}

static bool untold_shaped(executor *base, ep_vote *vote, int64_t *dropped)
{
    return ll_gpu_is_shaped(ll_gpu_of(base)) && gpu_untold(base, vote, dropped);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Offsets of the parts of the one block of device memory, and of pinned memory. */
typedef struct ll_gpu_parts {
    size_t state, ll_state, tally, told, waits, noted, lost, masks, mask_of, decided, far, near, kept, device_bytes;
    size_t awaits, progress, counts, losses, answer, maskers, view, pinned_bytes;
} ll_gpu_parts;

static ll_gpu_parts parts_of(const ll_gpu *self)
{
    const size_t ranks = (size_t)self->shape.ranks, masked = self->shape.masking ? ranks : 0;
    const size_t reached = self->across ? ranks : 0;
    ll_gpu_parts parts;
    parts.state = (size_t)ep_round(ranks * sizeof(cu_address), EP_ALIGN_BYTES);
    parts.ll_state = parts.state + (size_t)ep_round(sizeof(gpu_state), EP_ALIGN_BYTES);
    parts.tally = parts.ll_state + (size_t)ep_round((size_t)self->copies * sizeof(ll_gpu_state), EP_ALIGN_BYTES);
    parts.told = parts.tally + (size_t)ep_round(ranks * sizeof(ll_gpu_tally), EP_ALIGN_BYTES);
    parts.waits = parts.told + (size_t)ep_round(sizeof(uint32_t), EP_ALIGN_BYTES);
    parts.noted = parts.waits + (size_t)ep_round(ranks * sizeof(uint64_t), EP_ALIGN_BYTES);
    parts.lost = parts.noted + (size_t)ep_round(ranks * sizeof(uint64_t), EP_ALIGN_BYTES);
    parts.masks = parts.lost + (size_t)ep_round(masked * sizeof(uint64_t), EP_ALIGN_BYTES);
    parts.mask_of = parts.masks + (size_t)ep_round(masked ? sizeof(ll_gpu_masks) : 0, EP_ALIGN_BYTES);
    parts.decided = parts.mask_of + (size_t)ep_round(masked * sizeof(ll_gpu_mask), EP_ALIGN_BYTES);
    parts.far = parts.decided + (size_t)ep_round(LL_KINDS * LL_SLOTS * masked * sizeof(uint64_t), EP_ALIGN_BYTES);
    const size_t headers = LL_KINDS * LL_SLOTS * ranks * (size_t)self->space.unit_bytes[LL_DISPATCH];
    parts.near = parts.far + (size_t)ep_round(reached * sizeof(ll_gpu_far), EP_ALIGN_BYTES);
    parts.kept = parts.near + (self->across ? headers : 0);
    parts.device_bytes = parts.kept + headers;
    parts.awaits = (size_t)ep_round(sizeof(gpu_report), EP_ALIGN_BYTES);
    parts.progress = parts.awaits + (size_t)ep_round(ranks * sizeof(uint64_t), EP_ALIGN_BYTES);
    parts.counts = parts.progress + (size_t)ep_round(ranks * sizeof(uint64_t), EP_ALIGN_BYTES);
    parts.losses = parts.counts + (size_t)ep_round(ranks * sizeof(ll_gpu_counts), EP_ALIGN_BYTES);
    parts.answer = parts.losses + (size_t)ep_round(masked * sizeof(gpu_loss), EP_ALIGN_BYTES);
    parts.maskers = parts.answer + (size_t)ep_round(masked ? sizeof(ll_gpu_answer) : 0, EP_ALIGN_BYTES);
    parts.view = parts.maskers + (size_t)ep_round((self->across ? masked : 0) * sizeof(ll_gpu_masker), EP_ALIGN_BYTES);
    parts.pinned_bytes = parts.view + masked * sizeof(uint32_t);
    return parts;
}

/* Fills the states, and the buffer's words, whose memory may have served another buffer. */
static expar_status fill_device(const ll_gpu *self, const ll_gpu_parts *parts)
{
    const gpu_core *core = &self->core;
    const cu_address memory = core->scratch->memory, buffer = ll_gpu_own(self);
    const cu_stream own = core->own_stream;
    const gpu_state state = {.bad_slot = ~0ull};
    const size_t ranks = (size_t)self->shape.ranks;
    const void *heaps = self->across ? (const void *)self->reach.heaps : device_heap_bases(core->heap);
    expar_status status = CUDA_CALL(MemcpyHtoDAsync, memory, heaps, ranks * sizeof(cu_address), own);
    if (status == EXPAR_OK) status = CUDA_CALL(MemcpyHtoDAsync, memory + parts->state, &state, sizeof state, own);
    if (status == EXPAR_OK)
        status = CUDA_CALL(MemsetD8Async, memory + parts->ll_state, 0, parts->kept - parts->ll_state, own);
    if (status == EXPAR_OK && self->across)
        return CUDA_CALL(MemcpyHtoDAsync, memory + parts->far, self->reach.ranks, ranks * sizeof(ll_gpu_far), own);
    /* Other ranks may have written masks to a reserve already. It was cleared when it was made. */
    if (status != EXPAR_OK || self->early) return status;
    return CUDA_CALL(MemsetD8Async, buffer, 0, self->space.words_bytes, own);
}

static void set_addresses(ll_gpu *self, const ll_gpu_parts *parts)
{
    gpu_core *core = &self->core;
    const cu_address memory = core->scratch->memory, pinned = core->scratch->pinned.device;
    char *host = core->scratch->pinned.host;
    core->place.heaps = (const uint64_t *)(uintptr_t)memory;
    core->place.state = (gpu_state *)(uintptr_t)(memory + parts->state);
    core->place.report = (gpu_report *)(uintptr_t)pinned;
    core->place.noted = (uint64_t *)(uintptr_t)(memory + parts->noted);
    core->place.awaits = (uint64_t *)(uintptr_t)(pinned + parts->awaits);
    core->report = (gpu_report *)(void *)host;
    core->watch.awaits = (uint64_t *)(void *)(host + parts->awaits);
    core->progress = (const uint64_t *)(const void *)(host + parts->progress);
    self->state = (ll_gpu_state *)(uintptr_t)(memory + parts->ll_state);
    self->tally = (ll_gpu_tally *)(uintptr_t)(memory + parts->tally);
    self->told = (uint32_t *)(uintptr_t)(memory + parts->told);
    self->waits = (uint64_t *)(uintptr_t)(memory + parts->waits);
    self->kept = (uint8_t *)(uintptr_t)(memory + parts->kept);
    self->progress = (uint64_t *)(uintptr_t)(pinned + parts->progress);
    self->counts = (ll_gpu_counts *)(uintptr_t)(pinned + parts->counts);
    self->counted = (ll_gpu_counts *)(void *)(host + parts->counts);
    if (self->across) self->far = (ll_gpu_far *)(uintptr_t)(memory + parts->far);
    if (self->across) self->near = (uint8_t *)(uintptr_t)(memory + parts->near);
    if (!self->shape.masking) return;
    self->masks = (ll_gpu_masks *)(uintptr_t)(memory + parts->masks);
    self->mask_of = (ll_gpu_mask *)(uintptr_t)(memory + parts->mask_of);
    self->decided = (uint64_t *)(uintptr_t)(memory + parts->decided);
    core->place.losses = (const gpu_loss *)(uintptr_t)(pinned + parts->losses);
    core->place.lost = (uint64_t *)(uintptr_t)(memory + parts->lost);
    self->losses = (gpu_loss *)(void *)(host + parts->losses);
    self->answer_there = (ll_gpu_answer *)(uintptr_t)(pinned + parts->answer);
    self->answer = (ll_gpu_answer *)(void *)(host + parts->answer);
    if (self->across) self->maskers = (ll_gpu_masker *)(uintptr_t)(pinned + parts->maskers);
    if (self->across) self->maskers_told = (const ll_gpu_masker *)(const void *)(host + parts->maskers);
    self->view_there = (uint32_t *)(uintptr_t)(pinned + parts->view);
    self->view = (uint32_t *)(void *)(host + parts->view);
}

static expar_status ll_gpu_memory_open(ll_gpu *self)
{
    gpu_core *core = &self->core;
    const ll_gpu_parts parts = parts_of(self);
    expar_status status = gpu_scratch_take(core->device, parts.device_bytes, parts.pinned_bytes, &core->scratch);
    if (status != EXPAR_OK) return status;
    set_addresses(self, &parts);
    status = cuda_enter(core->device);
    if (status != EXPAR_OK) return status;
    status = fill_device(self, &parts);
    if (status == EXPAR_OK) status = gpu_order_hold(core);
    cuda_leave();
    return status == EXPAR_OK ? gpu_own_stream_await(core) : status;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

static int32_t shared_space(const ll_gpu *self)
{
    return self->core.device->shared_bytes - GPU_STATIC_SHARED_BYTES;
}

static bool ll_gpu_fits(executor *base, const ll_shape *shape)
{
    const uint64_t spare = (uint64_t)shared_space(ll_gpu_of(base));
    return ll_gpu_dispatch_shared(shape, shape->tokens) <= spare && ll_gpu_combine_shared(shape) <= spare;
}

/* Checks that a block's shared memory suffices. It holds the indices of all tokens, or for a combine in LogFMT what it
   needs to know of its rows' groups. */
static expar_status check_shared(const ll_gpu *self)
{
    const ll_shape *shape = &self->shape;
    const uint64_t heads = self->across ? LL_GPU_HEADS_BYTES : 0;
    const uint64_t dispatch = ll_gpu_dispatch_shared(shape, shape->tokens) + heads;
    const uint64_t combine = ll_gpu_combine_shared(shape);
    const int32_t spare = shared_space(self);
    if (dispatch > (uint64_t)spare)
        return error_set(
            EXPAR_ERR_UNSUPPORTED,
            "config.max_tokens is %d with max_topk %d and %d local experts on %d ranks, for which a dispatch "
            "takes %llu bytes of shared memory; GPU %d has %d",
            shape->tokens, shape->topk, shape->local_experts, shape->ranks, (unsigned long long)dispatch,
            self->core.device->index, spare);
    if (combine > (uint64_t)spare)
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "config.hidden is %d, for which a combine takes %llu bytes of shared memory; GPU %d has %d",
                         shape->hidden, (unsigned long long)combine, self->core.device->index, spare);
    return EXPAR_OK;
}

/* Loads the kernels for the buffer's whole shape (kernels/low_latency/places.h). It loads all of them now: the driver
   loads no module while other ranks' kernels run on the GPU. */
static expar_status load_kernels(ll_gpu *self)
{
    const ll_shape *shape = &self->shape;
    const cuda_macro macros[] = {
        {"EXPAR_RANKS", shape->ranks},         {"EXPAR_TOPK", shape->topk},
        {"EXPAR_LL_TOKENS", shape->tokens},    {"EXPAR_LL_LOCALS", shape->local_experts},
        {"EXPAR_LL_HIDDEN", shape->hidden},    {"EXPAR_LL_ELEMENT_BYTES", shape->element_bytes},
        {"EXPAR_LL_EXACT", shape->exact},      {"EXPAR_LL_REDUCED_TOO", shape->reduced},
        {"EXPAR_LL_MASKING", shape->masking},  {"EXPAR_LL_REGION_COUNT", shape->regions},
        {"EXPAR_LL_WORDS", shape->word_tokens}};
    const size_t all = ARRAY_LENGTH(macros);
    /* It serves any shape. */
    const gpu_request signals = {
        "low_latency/ll_await_signals.cu", "ll_await_signals", NULL, 0, &self->signals_program, &self->signals_kernel};
    const gpu_request plain[] = {
        {"low_latency/ll_dispatch.cu", "ll_dispatch_impl", macros, all, &self->dispatch_program,
         &self->dispatch_kernel},
        {"low_latency/ll_dispatch_scaled.cu", "ll_dispatch_impl_scaled", macros, all, &self->scaled_program,
         &self->scaled_kernel},
        {"low_latency/ll_combine.cu", "ll_combine_impl", macros, all, &self->combine_program, &self->combine_kernel},
        {"low_latency/ll_combine_log.cu", "ll_combine_impl_log", macros, all, &self->log_program, &self->log_kernel},
        signals};
    const gpu_request masks[] = {
        {"low_latency/ll_dispatch_masks.cu", "ll_dispatch_impl_masks", macros, all, &self->dispatch_program,
         &self->dispatch_kernel},
        {"low_latency/ll_combine_masks.cu", "ll_combine_impl_masks", macros, all, &self->combine_program,
         &self->combine_kernel},
        {"low_latency/ll_mask.cu", "ll_mask", macros, all, &self->mask_program, &self->mask_kernel},
        signals};
    const gpu_request far[] = {{"low_latency/ll_dispatch_far.cu", "ll_dispatch_impl_far", macros, all,
                                &self->dispatch_program, &self->dispatch_kernel},
                               {"low_latency/ll_combine_far.cu", "ll_combine_impl_far", macros, all,
                                &self->combine_program, &self->combine_kernel},
                               signals};
    const gpu_request far_masks[] = {
        {"low_latency/ll_dispatch_far_masks.cu", "ll_dispatch_impl_far_masks", macros, all, &self->dispatch_program,
         &self->dispatch_kernel},
        {"low_latency/ll_combine_far_masks.cu", "ll_combine_impl_far_masks", macros, all, &self->combine_program,
         &self->combine_kernel},
        {"low_latency/ll_mask_far.cu", "ll_mask_far", macros, all, &self->mask_program, &self->mask_kernel},
        signals};
    const struct {
        const gpu_request *programs;
        size_t count;
    } sets[2][2] = {{{plain, ARRAY_LENGTH(plain)}, {masks, ARRAY_LENGTH(masks)}},
                    {{far, ARRAY_LENGTH(far)}, {far_masks, ARRAY_LENGTH(far_masks)}}};
    const gpu_request *wanted = sets[self->across][shape->masking != 0].programs;
    const size_t count = sets[self->across][shape->masking != 0].count;
    expar_status status = check_shared(self);
    if (status == EXPAR_OK) status = gpu_programs_request(&self->core, wanted, count);
    if (status != EXPAR_OK || wanted == plain) return status;
    /* One kernel takes all formats. */
    self->scaled_kernel = self->dispatch_kernel;
    self->log_kernel = self->combine_kernel;
    return status;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

static expar_status reject_no_memory(void)
{
    return error_set(EXPAR_ERR_MEMORY, "no memory for a low-latency buffer");
}

/* Makes the parts that depend on the shape. */
static expar_status ll_gpu_make_shaped(ll_gpu *self)
{
    gpu_core *core = &self->core;
    self->copies = core->most_sms;
    expar_status status = ll_gpu_memory_open(self);
    if (status == EXPAR_OK) status = load_kernels(self);
    if (status == EXPAR_OK) gpu_listen(core);
    if (status == EXPAR_OK) status = gpu_guard_hold(core);
    if (status != EXPAR_OK) return status;
    self->cache = ll_gpu_cache_make();
    if (!self->cache) return reject_no_memory();
    atomic_store_explicit(&self->shaped, true, memory_order_release);
    return EXPAR_OK;
}

/* Makes the buffer without a shape. */
static expar_status ll_gpu_make_reserve(ll_gpu *self)
{
    gpu_core *core = &self->core;
    const cu_address buffer = device_heap_at(core->heap, core->place.buffer);
    self->early = ll_gpu_early_make(self->shape.ranks, core->sym->rank);
    if (!self->early) return reject_no_memory();
    expar_status status = cuda_enter(core->device);
    if (status != EXPAR_OK) return status;
    status = CUDA_CALL(MemsetD8Async, buffer, 0, self->reserve.bytes, core->own_stream);
    cuda_leave();
    return status == EXPAR_OK ? gpu_own_stream_await(core) : status;
}

static expar_status ll_gpu_make_part(ll_gpu *self, const ll_plan *plan, int32_t sharers)
{
    gpu_core *core = &self->core;
    expar_status status = gpu_choose_sms(core, plan->num_sms, KNOB_CUDA_LL_SMS, sharers);
    if (status == EXPAR_OK) status = gpu_read_orphan_time(&core->place);
    if (status == EXPAR_OK) status = gpu_own_stream_make(core);
    if (status == EXPAR_OK && self->across) status = ll_gpu_far_open(self);
    if (status == EXPAR_OK) status = ll_gpu_masks_open(self);
    if (status != EXPAR_OK) return status;
    return self->reserve.bytes ? ll_gpu_make_reserve(self) : ll_gpu_make_shaped(self);
}

/* A lay-out that has failed leaves parts, which are freed with the buffer. */
static expar_status ll_gpu_lay_out(executor *base, const ll_shape *shape)
{
    ll_gpu *self = ll_gpu_of(base);
    if (self->early->failed)
        return error_set(EXPAR_ERR_STATE, "an earlier lay-out of this buffer has failed; expected another buffer");
    self->early->failed = true;
    self->shape = *shape;
    self->space = ll_space_of(shape);
    expar_status status = ll_gpu_make_shaped(self);
    if (status == EXPAR_OK) status = ll_gpu_early_end(self);
    if (status != EXPAR_OK) return status;
    self->early->failed = false;
    ll_gpu_meet_say(self);
    return EXPAR_OK;
}

static const executor_ops ll_gpu_ops = {
    GPU_CALL_OPS,
    .name = "cuda",
    .check = check_shaped,
    .untold = untold_shaped,
    .retire = ll_gpu_retire,
    .await = await_shaped,
    .time = ll_gpu_time,
    .destroy = ll_gpu_destroy,
    .take = ll_gpu_take,
};

static const ll_ops ll_gpu_phases = {
    .prepare = ll_gpu_prepare,
    .send = ll_gpu_send,
    .receive = ll_gpu_receive,
    .count = ll_gpu_count,
    .count_sent = ll_gpu_count_sent,
    .times = ll_gpu_times,
    .mask_set = ll_gpu_mask_set,
    .mask_query = ll_gpu_mask_query,
    .mask_clean = ll_gpu_mask_clean,
    .fits = ll_gpu_fits,
    .lay_out = ll_gpu_lay_out,
};

/* Undoes a failed making. All ranks come here, or none. Other buffers may use the same per-GPU state. */
static void ll_gpu_unmake(ll_gpu *self)
{
    bool quiet = !self->core.unsettled;
    if (self->core.device) ll_gpu_close_part(self);
    if (self->across)
        ll_gpu_far_give(self, &quiet);
    else if (self->core.place.buffer)
        device_heap_give(self->core.heap, ll_buffer_name, self->core.place.buffer, &quiet);
    ll_gpu_masks_give(self);
    gpu_device_state_leave(&self->core, quiet);
}

/* Collective: takes the buffer's memory. */
static expar_status ll_gpu_take_memory(ll_gpu *self, int32_t device)
{
    gpu_core *core = &self->core;
    expar_status status = self->across ? ll_gpu_far_take(self, device) : gpu_device_state_enter(core, device, false);
    if (status != EXPAR_OK) return status;
    if (self->across) return ll_gpu_masks_take(self);
    status = device_heap_take(core->heap, ll_buffer_name, self->totals.heap_bytes, 4096, &core->place.buffer);
    return status == EXPAR_OK ? ll_gpu_masks_take(self) : status;
}

/* Takes the memory, and makes all parts or none. On failure no kernel has used it on any rank. */
static expar_status ll_gpu_make(ll_gpu *self, const ll_plan *plan)
{
    gpu_core *core = &self->core;
    int32_t sharers = 0;
    expar_status status = ll_gpu_take_memory(self, plan->device.index);
    if (status == EXPAR_OK) status = gpu_count_sharers(core, &sharers);
    if (status == EXPAR_OK) status = gpu_agree(core, ll_gpu_make_part(self, plan, sharers), NULL);
    if (status == EXPAR_OK) return EXPAR_OK;
    error_kept kept;
    error_keep(&kept, status);
    ll_gpu_unmake(self);
    return error_restore(&kept);
}

expar_status ll_executor_cuda_create(const ll_plan *plan, executor **out)
{
    sym *symmetric = plan->group->sym;
    ll_gpu *self = calloc(1, sizeof *self);
    if (!self)
        return sym_out_of_step(symmetric, ll_buffer_name,
                               error_set(EXPAR_ERR_MEMORY, "no memory for a low-latency buffer"));
    self->shape = *plan->shape;
    self->space = ll_space_of(plan->shape);
    self->reserve = ll_reserved_of(plan->shape->ranks, plan->reserve_bytes);
    self->totals.heap_bytes = plan->reserve_bytes ? self->reserve.bytes : self->space.total_bytes;
    self->core = (gpu_core){.base = {.ops = &ll_gpu_ops, .ll = &ll_gpu_phases},
                            .group = plan->group,
                            .sym = symmetric,
                            .number = plan->number,
                            .topic_kind = BOOT_KIND_LOW_LATENCY,
                            .late_limit_ms = plan->shape->masking ? plan->late_limit_ms : 0,
                            .with_threads = plan->group->threads && plan->group->size > 1,
                            .place = {.rank = symmetric->rank, .ranks = plan->shape->ranks}};
    /* It is collective. */
    expar_status status = ll_gpu_choose_reach(self, plan);
    if (status == EXPAR_OK) status = ll_gpu_make(self, plan);
    if (status != EXPAR_OK) {
        free(self);
        return status;
    }
    *out = &self->core.base;
    return EXPAR_OK;
}
