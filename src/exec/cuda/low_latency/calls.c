/* SPDX-License-Identifier: Apache-2.0 */
/* Phases become launches on the caller's stream. A call without a hook is one kernel, put there by its send. */
#include "exec/cuda/low_latency/ll_gpu.h"
#include <expar/low_latency.h>

/* ---- a call on a stream ------------------------------------------------------------------------------------------ */

/* A wait that the stream does not do is the host's. Another status than the event's: its failure says nothing about
   this group. */
static expar_status await_here(const gpu_core *core, const exec_call *exec, expar_event *event)
{
    if (!event || gpu_follows(&core->base, exec, event)) return EXPAR_OK;
    expar_status status = expar_event_wait(event);
    if (status == EXPAR_OK || status == EXPAR_ERR_INTERRUPTED) return status;
    return error_prefix(error_set(EXPAR_ERR_STATE, "%s", expar_last_error()), "wait_event ended badly");
}

static expar_status check_captured(const ll_call *call)
{
    const exec_call *exec = &call->exec;
    if (!exec->captured) return EXPAR_OK;
    const bool outside = call->wait_event && !event_in_capture(call->wait_event, exec->capture);
    if (!outside && !exec->asked) return EXPAR_OK;
    return error_set(EXPAR_ERR_ARGUMENT, "%s while the stream is being captured; a graph has its own order",
                     outside ? "wait_event is given, and not of the capture," : "async_finish is 1");
}

static void ll_gpu_refuse(ll_call *call, expar_status status)
{
    if (status != EXPAR_OK && call->refusal.status == EXPAR_OK) call->refusal = ep_refusal_of(status);
}

/* Learns of the stream, and takes the call's place there; what is wrong with it becomes the refusal. call->open: there
   is something to launch. */
static expar_status call_begin(ll_gpu *self, ll_call *call)
{
    gpu_core *core = &self->core;
    exec_call *exec = &call->exec;
    ll_gpu_refuse(call, gpu_begin(&core->base, exec, call->stream));
    ll_gpu_refuse(call, check_captured(call));
    expar_event *event = call->refusal.status == EXPAR_OK ? call->wait_event : NULL;
    const bool follows = event && gpu_follows(&core->base, exec, event);
    if (event && !follows) ll_gpu_refuse(call, await_here(core, exec, event));
    /* A graph would tell the refusal again and again: it is noted instead. */
    call->open = !(exec->captured && call->refusal.status);
    if (!call->open) {
        const boot_topic topic = {.kind = BOOT_KIND_LOW_LATENCY, .object = core->number, .number = call->number};
        boot_note_refused(core->sym->boot, &topic, (expar_status)call->refusal.status, call->refusal.text);
        return gpu_end(&core->base, exec);
    }
    expar_status status = call->refusal.status ? gpu_place_refused(core, exec) : gpu_take_place(&core->base, exec);
    return status == EXPAR_OK && follows ? gpu_join(&core->base, exec, event) : status;
}

/* Behind its kernel. */
static expar_status call_end(ll_gpu *self, ll_call *call, expar_status launched)
{
    error_kept kept;
    error_keep(&kept, launched);
    expar_status ended = gpu_end(&self->core.base, &call->exec);
    return kept.status == EXPAR_OK ? ended : error_restore(&kept);
}

static uint8_t *own_buffer(const ll_gpu *self)
{
    return (uint8_t *)(uintptr_t)device_heap_at(self->core.heap, self->core.place.buffer);
}

static ll_gpu_call arguments_of(const ll_gpu *self, const ll_call *call, ll_kind kind, int32_t phases)
{
    ll_gpu_call arguments = {.place = gpu_place_of(&self->core, &call->exec),
                             .shape = self->shape,
                             .space = self->space,
                             .form = call->form,
                             .refusal = call->refusal,
                             .own = own_buffer(self),
                             .state = self->state,
                             .told = self->told,
                             .tally = self->tally,
                             .counts = self->counts,
                             .dues = self->dues,
                             .kept = self->kept,
                             .stamps = self->core.stamps,
                             .wait_ns = call->wait_ns,
                             .waits = self->waits,
                             .phases = phases,
                             .kind = (int32_t)kind,
                             .copies = self->copies,
                             .masks = self->masks,
                             .mask_of = self->mask_of,
                             .decided = self->decided};
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

static expar_status launch_call(ll_gpu *self, const ll_call *call, cu_function kernel, uint64_t shared_bytes,
                                void *arguments)
{
    gpu_core *core = &self->core;
    const int32_t blocks = gpu_sms_of(core, &call->exec);
    core->stamped_warps = blocks * LL_GPU_BLOCK_WARPS;
    expar_status status =
        gpu_launch(core, &call->exec, kernel, (uint32_t)blocks, LL_GPU_THREADS, (uint32_t)shared_bytes, arguments);
    if (status == EXPAR_OK) gpu_order_note_wait(core, true);
    return status;
}

/* What both phases of a call with a hook know; a call without one needs none. */
static expar_status call_take_record(ll_gpu *self, ll_call *call)
{
    if (call->whole || call->refusal.status) return EXPAR_OK;
    return ll_gpu_cache_take(self, sizeof(ll_gpu_record), &call->record);
}

/* Blocks that a graph's kernels use. */
static expar_status keep_blocks(ll_gpu *self, const ll_call *call, const ll_routing *routing)
{
    mem_block *blocks[] = {routing ? routing->block : NULL, call->record, call->results};
    return gpu_keep(&self->core.base, &call->exec, blocks, ARRAY_LENGTH(blocks));
}

/* Counts the call, and refuses the third of a kind that would be open; kernels know it in any case. */
static void count_open(ll_gpu *self, ll_call *call, ll_kind kind)
{
    const bool alike = !atomic_load_explicit(&self->core.watch.in_graphs, memory_order_relaxed);
    call->epoch = ++self->made[kind];
    bool *open = &self->open[kind][ll_half(call->epoch)];
    if (alike && *open && call->refusal.status == EXPAR_OK)
        ll_gpu_refuse(call, error_set(EXPAR_ERR_STATE,
                                      "the %s before the last is still open; expected its hook to be called first: two "
                                      "are open at most",
                                      kind == LL_DISPATCH ? "dispatch" : "combine"));
    if (call->refusal.status == EXPAR_OK) *open = !call->whole;
}

/* The send of a call: from its place to its mark on the stream. */
typedef expar_status (*launch_fn)(ll_gpu *self, void *step, int32_t phases);

static expar_status call_send(ll_gpu *self, ll_call *call, ll_kind kind, const ll_routing *routing, launch_fn launch,
                              void *step)
{
    expar_status met = ll_gpu_meet(self, call->number);
    if (met != EXPAR_OK) return met;
    ll_gpu_refuse(call, call_take_record(self, call));
    ll_gpu_note_dead(self);
    count_open(self, call, kind);
    expar_status status = call_begin(self, call);
    if (status != EXPAR_OK || !call->open) {
        call->open = false;
        return status == EXPAR_OK ? EXPAR_OK : call_end(self, call, status);
    }
    gpu_ticket_take(&self->core, &call->exec);
    if (call->refusal.status == EXPAR_OK) status = keep_blocks(self, call, routing);
    const int32_t phases = call->whole && !call->refusal.status ? LL_GPU_SEND | LL_GPU_RECEIVE : LL_GPU_SEND;
    if (status == EXPAR_OK) status = launch(self, step, phases);
    call->open = call->refusal.status == EXPAR_OK;
    return call_end(self, call, status);
}

/* The receive of a call with a hook, on the stream that the hook was called with. */
static expar_status call_receive(ll_gpu *self, ll_call *call, ll_kind kind, const ll_routing *routing, launch_fn launch,
                                 void *step)
{
    call->verdict = (ll_verdict){.rank = -1};
    if (call->whole) return EXPAR_OK;
    gpu_core *core = &self->core;
    self->open[kind][ll_half(call->epoch)] = false;
    call->exec = (exec_call){.num_sms = call->exec.num_sms};
    expar_status status = gpu_begin(&core->base, &call->exec, call->stream);
    if (status == EXPAR_OK) status = gpu_take_place(&core->base, &call->exec);
    if (status == EXPAR_OK) status = keep_blocks(self, call, routing);
    if (status == EXPAR_OK) status = launch(self, step, LL_GPU_RECEIVE);
    return call_end(self, call, status);
}

/* ---- dispatch ---------------------------------------------------------------------------------------------------- */

static expar_status launch_dispatch(ll_gpu *self, void *dispatch, int32_t phases)
{
    const ll_dispatch_step *step = dispatch;
    const int32_t codec = ll_codec_of(&step->call.form);
    ll_dispatch_args args = {.call = arguments_of(self, &step->call, LL_DISPATCH, phases),
                             .route = device_route(&step->route),
                             .routing = device_routing(self, step->routing),
                             .codec = codec,
                             .scales = (int32_t)codec_scales(codec, self->shape.hidden),
                             .x = step->x,
                             .x_pitch_bytes = step->x_pitch_bytes,
                             .row_bytes = codec_row_bytes(codec, self->shape.hidden),
                             .out_x = step->out_x,
                             .out_scales = step->out_scales,
                             .out_count = step->out_count,
                             .stats = step->stats};
    return launch_call(self, &step->call, args.scales ? self->scaled_kernel : self->dispatch_kernel,
                       ll_gpu_dispatch_shared(&self->shape, args.routing.tokens), &args);
}

expar_status ll_gpu_dispatch_send(ll_executor *base, ll_dispatch_step *step)
{
    ll_gpu *self = ll_gpu_of(base);
    if (step->call.refusal.status == EXPAR_OK)
        atomic_fetch_add_explicit(&base->counts.dispatches, 1, memory_order_relaxed);
    if (step->routing) step->routing->era = self->era;
    return call_send(self, &step->call, LL_DISPATCH, step->routing, launch_dispatch, step);
}

expar_status ll_gpu_dispatch_receive(ll_executor *base, ll_dispatch_step *step)
{
    return call_receive(ll_gpu_of(base), &step->call, LL_DISPATCH, step->routing, launch_dispatch, step);
}

/* ---- combine ----------------------------------------------------------------------------------------------------- */

static expar_status launch_combine(ll_gpu *self, void *combine, int32_t phases)
{
    const ll_combine_step *step = combine;
    const int64_t element = step->call.form.dtype == EXPAR_F32 ? 4 : 2;
    ll_combine_args args = {.call = arguments_of(self, &step->call, LL_COMBINE, phases),
                            .route = device_route(&step->route),
                            .routing = device_routing(self, step->routing),
                            .x = step->x,
                            .x_expert_pitch_bytes = step->x_expert_pitch_bytes,
                            .x_row_pitch_bytes = step->x_row_pitch_bytes,
                            .row_bytes = self->shape.hidden * element,
                            .y = step->y,
                            .y_pitch_bytes = step->y_pitch_bytes,
                            .coded = step->call.form.format == EXPAR_LL_LOGFMT};
    return launch_call(self, &step->call, args.coded ? self->log_kernel : self->combine_kernel,
                       ll_gpu_combine_shared(&self->shape), &args);
}

/* Ranks that a clean has taken in again know nothing of the dispatches before. */
static expar_status ll_gpu_check_era(const ll_gpu *self, const ll_combine_step *step)
{
    if (!step->routing || step->routing->era == self->era) return EXPAR_OK;
    return error_set(EXPAR_ERR_HANDLE, "handle is of a dispatch before expar_ll_mask_clean; expected one behind it");
}

expar_status ll_gpu_combine_send(ll_executor *base, ll_combine_step *step)
{
    ll_gpu *self = ll_gpu_of(base);
    ll_gpu_refuse(&step->call, ll_gpu_check_era(self, step));
    if (step->call.refusal.status == EXPAR_OK)
        atomic_fetch_add_explicit(&base->counts.combines, 1, memory_order_relaxed);
    return call_send(self, &step->call, LL_COMBINE, step->routing, launch_combine, step);
}

expar_status ll_gpu_combine_receive(ll_executor *base, ll_combine_step *step)
{
    return call_receive(ll_gpu_of(base), &step->call, LL_COMBINE, step->routing, launch_combine, step);
}

/* ---- how calls went ---------------------------------------------------------------------------------------------- */

expar_status ll_gpu_check(ll_executor *base, const char *what)
{
    return gpu_check(&ll_gpu_of(base)->core.base, what);
}

bool ll_gpu_untold(ll_executor *base, ll_verdict *verdict)
{
    ep_verdict found;
    int64_t dropped;
    if (!gpu_untold(&ll_gpu_of(base)->core.base, &found, &dropped)) return false;
    *verdict = ll_verdict_of(&found);
    return true;
}

expar_status ll_gpu_tell(ll_executor *base, const ll_call *call, executor_done_fn done, void *context,
                         event_keeper *keeper)
{
    return gpu_tell(&ll_gpu_of(base)->core.base, &call->exec, done, context, keeper);
}

void ll_gpu_count(ll_executor *base)
{
    const ll_gpu *self = ll_gpu_of(base);
    _Atomic uint64_t *const to[] = {&base->counts.dispatch_messages, &base->counts.combine_rows,
                                    &base->counts.bytes_sent};
    uint64_t sums[ARRAY_LENGTH(to)] = {0};
    for (int32_t r = 0; r < self->shape.ranks; r++) {
        const ll_gpu_counts *one = &self->counted[r];
        const uint64_t *const from[] = {&one->messages, &one->rows, &one->bytes};
        for (size_t i = 0; i < ARRAY_LENGTH(to); i++)
            sums[i] += __atomic_load_n(from[i], __ATOMIC_RELAXED);
    }
    for (size_t i = 0; i < ARRAY_LENGTH(to); i++)
        atomic_store_explicit(to[i], sums[i], memory_order_relaxed);
}
