/* SPDX-License-Identifier: Apache-2.0 */
/* Phases become launches on the caller's stream. A call without a hook is one kernel, which its send launches. */
#include "exec/cuda/low_latency/ll_gpu.h"
#include <expar/low_latency.h>

/* ---- a call on a stream ------------------------------------------------------------------------------------------ */

static ll_gpu_call arguments_of(const ll_gpu *self, const exec_call *exec, const ll_call *call, int32_t phases)
{
    ll_gpu_call arguments = {.place = gpu_place_of(&self->core, exec),
                             .shape = self->shape,
                             .space = self->space,
                             .form = call->form,
                             .rejection = call->rejection,
                             .own = (uint8_t *)(uintptr_t)ll_gpu_own(self),
                             .state = self->state,
                             .told = self->told,
                             .tally = self->tally,
                             .counts = self->counts,
                             .progress = self->progress,
                             .kept = self->kept,
                             .near = self->near,
                             .stamps = self->core.stamps,
                             .wait_ns = call->wait_ns,
                             .waits = self->waits,
                             .phases = phases,
                             .kind = (int32_t)call->kind,
                             .copies = self->copies,
                             .masks = self->masks,
                             .mask_of = self->mask_of,
                             .decided = self->decided,
                             .far = self->far,
                             .maskers = self->maskers};
    if (call->record) arguments.record = call->record->data;
    return arguments;
}

static ll_gpu_routing device_routing(const ll_gpu *self, const ll_routing *routing)
{
    const ll_route_map map = ll_route_map_of(&self->shape);
    if (!routing) return (ll_gpu_routing){.header_bytes = map.header_bytes};
    return (ll_gpu_routing){.range = routing->range,
                            .src_info = routing->src_info,
                            .messages = routing->messages,
                            .idx = routing->idx,
                            .headers = routing->headers,
                            .stamp = (uint64_t *)(void *)((uint8_t *)routing->block->data + map.stamp),
                            .header_bytes = map.header_bytes,
                            .tokens = routing->tokens,
                            .topk = routing->topk};
}

static gpu_route device_route(const ep_route_view *route)
{
    return (gpu_route){.idx = route->idx,
                       .idx_pitch = route->idx_pitch,
                       .weights = route->weights,
                       .weights_pitch = route->weights_pitch,
                       .idx_bytes = route->idx_bytes};
}

static expar_status launch_call(ll_gpu *self, const exec_call *exec, cu_function kernel, uint64_t shared_bytes,
                                void *arguments)
{
    gpu_core *core = &self->core;
    const int32_t blocks = gpu_sms_of(core, exec);
    core->stamped_warps = blocks * LL_GPU_BLOCK_WARPS;
    ll_gpu_far_rouse(self);
    expar_status status =
        gpu_launch(core, exec, kernel, (uint32_t)blocks, LL_GPU_THREADS, (uint32_t)shared_bytes, arguments);
    if (status == EXPAR_OK) gpu_order_note_wait(core, true);
    return status;
}

/* Takes the memory that both phases of a call with a hook share. A call without one needs none. */
static expar_status call_take_record(ll_gpu *self, ll_call *call)
{
    if (call->whole || call->rejection.status) return EXPAR_OK;
    return ll_gpu_cache_take(self, sizeof(ll_gpu_record), &call->record);
}

expar_status ll_gpu_prepare(executor *base, ll_call *call)
{
    ll_gpu *self = ll_gpu_of(base);
    expar_status status = ll_gpu_meet(self, call->number);
    if (status != EXPAR_OK) return status;
    status = call_take_record(self, call);
    if (status != EXPAR_OK) call->rejection = ep_rejection_of(status);
    return EXPAR_OK;
}

/* ---- dispatch ---------------------------------------------------------------------------------------------------- */

static expar_status launch_dispatch(ll_gpu *self, const exec_call *exec, const ll_dispatch_step *step, int32_t phases)
{
    const int32_t codec = ll_codec_of(&step->call.form);
    ll_dispatch_args args = {.call = arguments_of(self, exec, &step->call, phases),
                             .route = device_route(&step->route),
                             .routing = device_routing(self, step->routing),
                             .codec = codec,
                             .scales = (int32_t)codec_scales(codec, self->shape.hidden),
                             .global_scale = step->global_scale,
                             .x = step->x,
                             .x_pitch_bytes = step->x_pitch_bytes,
                             .row_bytes = codec_row_bytes(codec, self->shape.hidden),
                             .out_x = step->out_x,
                             .out_scales = step->out_scales,
                             .out_count = step->out_count,
                             .stats = step->stats};
    return launch_call(
        self, exec, args.scales ? self->scaled_kernel : self->dispatch_kernel,
        ll_gpu_dispatch_shared(&self->shape, args.routing.tokens) + (self->across ? LL_GPU_HEADS_BYTES : 0), &args);
}

/* ---- combine ----------------------------------------------------------------------------------------------------- */

/* Puts the wait for signals on the stream, before the kernel that sends. A wait that is given up ends the calls that
   follow, since the buffer has failed then. */
static expar_status launch_signals(ll_gpu *self, const exec_call *exec, const ll_signals *signals)
{
    ll_signals_args args = {.place = gpu_place_of(&self->core, exec), .signals = *signals};
    return gpu_launch(&self->core, exec, self->signals_kernel, 1, LL_GPU_SIGNAL_THREADS, 0, &args);
}

static expar_status launch_combine(ll_gpu *self, const exec_call *exec, const ll_combine_step *step, int32_t phases)
{
    if (step->signals.words && phases & LL_GPU_SEND && !step->call.rejection.status) {
        expar_status status = launch_signals(self, exec, &step->signals);
        if (status != EXPAR_OK) return status;
    }
    const int64_t element = step->call.form.dtype == EXPAR_F32 ? 4 : 2;
    ll_combine_args args = {.call = arguments_of(self, exec, &step->call, phases),
                            .route = device_route(&step->route),
                            .routing = device_routing(self, step->routing),
                            .x = step->x,
                            .x_expert_pitch_bytes = step->x_expert_pitch_bytes,
                            .x_row_pitch_bytes = step->x_row_pitch_bytes,
                            .row_bytes = self->shape.hidden * element,
                            .y = step->y,
                            .y_pitch_bytes = step->y_pitch_bytes,
                            .coded = step->call.form.format == EXPAR_LL_FORMAT_LOGFMT};
    return launch_call(self, exec, args.coded ? self->log_kernel : self->combine_kernel,
                       ll_gpu_combine_shared(&self->shape), &args);
}

/* ---- the two phases, of either kind ------------------------------------------------------------------------------ */

/* Launches phases of a step that begins with the call. */
static expar_status launch_phases(ll_gpu *self, const exec_call *exec, const ll_call *call, int32_t phases)
{
    const void *step = call;
    return call->kind == LL_DISPATCH ? launch_dispatch(self, exec, step, phases)
                                     : launch_combine(self, exec, step, phases);
}

expar_status ll_gpu_send(executor *base, exec_call *exec, ll_call *call)
{
    ll_gpu *self = ll_gpu_of(base);
    const bool rejected = call->rejection.status != EXPAR_OK;
    ll_counts *totals = &self->totals;
    if (!rejected)
        atomic_fetch_add_explicit(call->kind == LL_DISPATCH ? &totals->dispatches : &totals->combines, 1,
                                  memory_order_relaxed);
    ll_gpu_note_dead(self);
    expar_status status = exec->placed ? EXPAR_OK : gpu_place_rejected(&self->core, exec);
    if (status != EXPAR_OK) return status;
    gpu_ticket_take(&self->core, exec);
    if (!rejected) status = gpu_keep(&self->core.base, exec, &call->record, 1);
    if (status == EXPAR_OK)
        status = launch_phases(self, exec, call, call->whole && !rejected ? LL_GPU_SEND | LL_GPU_RECEIVE : LL_GPU_SEND);
    call->open = !rejected;
    return status;
}

/* Launches the receive of a call with a hook. */
expar_status ll_gpu_receive(executor *base, exec_call *exec, ll_call *call)
{
    ll_gpu *self = ll_gpu_of(base);
    call->vote = (ep_vote){.rank = -1};
    if (call->whole) return EXPAR_OK;
    expar_status status = gpu_keep(&self->core.base, exec, &call->record, 1);
    return status == EXPAR_OK ? launch_phases(self, exec, call, LL_GPU_RECEIVE) : status;
}

/* ---- counts ------------------------------------------------------------------------------------------------------ */

/* Before there is a shape there are no calls. */
const ll_counts *ll_gpu_count(executor *base)
{
    ll_gpu *self = ll_gpu_of(base);
    ll_counts *totals = &self->totals;
    if (!ll_gpu_is_shaped(self)) return totals;
    _Atomic uint64_t *const to[] = {&totals->dispatch_messages, &totals->combine_rows, &totals->bytes_sent};
    uint64_t sums[ARRAY_LENGTH(to)] = {0};
    for (int32_t r = 0; r < self->shape.ranks; r++) {
        const ll_gpu_counts *one = &self->counted[r];
        const uint64_t *const from[] = {&one->messages, &one->rows, &one->bytes};
        for (size_t i = 0; i < ARRAY_LENGTH(to); i++)
            sums[i] += __atomic_load_n(from[i], __ATOMIC_RELAXED);
    }
    for (size_t i = 0; i < ARRAY_LENGTH(to); i++)
        atomic_store_explicit(to[i], sums[i], memory_order_relaxed);
    return totals;
}
