/* SPDX-License-Identifier: Apache-2.0 */
#include "exec/recorder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POOL_BYTES ((uint64_t)1 << 20)

/* ---- writing down ------------------------------------------------------------------------------------------------ */

static void note(executor *base, const char *what)
{
    recorder *self = recorder_of(base);
    size_t used = strlen(self->text);
    snprintf(self->text + used, sizeof self->text - used, "%s ", what);
}

static void note_step(executor *base, const char *what, uint32_t epoch, const char *extra)
{
    char text[64];
    snprintf(text, sizeof text, "%s#%u%s", what, epoch, extra);
    note(base, text);
}

static expar_status answer(executor *base, const char *step)
{
    const recorder *self = recorder_of(base);
    if (!self->fails || strcmp(self->fails, step) != 0) return EXPAR_OK;
    return error_set(EXPAR_ERR_MEMORY, "%s was told to fail", step);
}

static void judge(executor *base, const char *step, ep_vote *vote)
{
    const recorder *self = recorder_of(base);
    if (!self->rejected || strcmp(self->rejected, step) != 0) return;
    vote->rank = 0;
    vote->reason = (ep_rejection){.status = EXPAR_ERR_SHAPE, .text = "as the test says"};
}

/* ---- the buffer and its memory ----------------------------------------------------------------------------------- */

static expar_status check(executor *base, const char *what)
{
    (void)what;
    return answer(base, "check");
}

static bool untold(executor *base, ep_vote *vote, int64_t *dropped)
{
    (void)base, (void)vote, (void)dropped;
    return false;
}

static expar_status time_calls(executor *base, bool on)
{
    note(base, on ? "time" : "time-off");
    return EXPAR_OK;
}

static bool times(executor *base, executor_times *out)
{
    (void)base, (void)out;
    return false;
}

static void destroy(executor *base, bool sound, bool quiet)
{
    (void)sound, (void)quiet;
    recorder *self = recorder_of(base);
    mem_pool_close(base->pool);
    free(self->memory);
    free(self);
}

static exec_reach reach(executor *base, const exec_call *call, const void *data, uint64_t bytes, bool maps,
                        exec_mapping *out)
{
    (void)call, (void)maps;
    const recorder *self = recorder_of(base);
    uintptr_t at = (uintptr_t)data, begin = (uintptr_t)self->memory;
    if (at < begin || at + bytes > begin + POOL_BYTES) return EXEC_REACH_NONE;
    out->offset = at - begin;
    return EXEC_REACH_HEAP;
}

static void unmap(executor *base, exec_mapping *mapping)
{
    (void)base, (void)mapping;
}

static expar_status take(executor *base, const mem_allocator *from, uint64_t bytes, mem_block **out)
{
    (void)from;
    note(base, "take");
    return mem_block_private(bytes, out);
}

static expar_status routing_make(executor *base, ep_routing *routing, int32_t most_targets)
{
    (void)most_targets;
    note(base, "routing");
    size_t cells = (size_t)routing->ranks * (size_t)routing->channels, n = (size_t)routing->ranks;
    routing->local_experts = routing->experts / routing->ranks;
    int32_t *arrays = calloc(cells + n + (size_t)routing->local_experts, sizeof *arrays);
    if (!arrays) return error_set(EXPAR_ERR_MEMORY, "no memory for a routing");
    routing->arrays = arrays;
    routing->channel_prefix = arrays;
    routing->rank_prefix = arrays + cells;
    routing->recv_expert_counts = arrays + cells + n;
    return EXPAR_OK;
}

static void trim(executor *base)
{
    note(base, "trim");
}

static expar_status map_make(executor *base, int64_t slots, mem_block **out)
{
    note(base, "map-room");
    return mem_block_private((uint64_t)slots * sizeof(int32_t), out);
}

/* ---- a call ------------------------------------------------------------------------------------------------------ */

static expar_status begin(executor *base, exec_call *call, void *stream)
{
    note(base, call->asked ? "begin" : "begin-unasked");
    call->stream = stream;
    return answer(base, "begin");
}

static expar_status prepare(executor *base, const ep_form *form, int64_t row_bytes)
{
    (void)form, (void)row_bytes;
    note(base, "prepare");
    return answer(base, "prepare");
}

/* As long as "fits" is not to fail. */
static bool fits(executor *base, const ep_form *form, int64_t row_bytes)
{
    (void)form, (void)row_bytes;
    return answer(base, "fits") == EXPAR_OK;
}

static expar_status grow(executor *base, exec_call *call, const ep_grow_step *step, ep_vote *vote)
{
    (void)call;
    note_step(base, "grow", step->epoch, "");
    judge(base, "grow", vote);
    return answer(base, "grow");
}

static expar_status keep(executor *base, const exec_call *call, mem_block *const *blocks, int32_t count)
{
    (void)call, (void)blocks, (void)count;
    note(base, "keep");
    return EXPAR_OK;
}

static expar_status place(executor *base, exec_call *call)
{
    expar_status status = answer(base, "place");
    note(base, "place");
    call->placed = status == EXPAR_OK;
    return status;
}

static void fill_counts(const recorder *self, ep_routing *routing)
{
    for (int32_t r = 0; r < routing->ranks; r++)
        routing->rank_prefix[r] = self->coming;
    memset(routing->recv_expert_counts, 0, (size_t)routing->local_experts * sizeof(int32_t));
    routing->recv_expert_counts[0] = self->coming;
}

static expar_status notify(executor *base, exec_call *call, ep_notify_step *step)
{
    (void)call;
    note_step(base, "notify", step->epoch, step->rejection.status ? "-refused" : step->rows ? "+rows" : "");
    if (answer(base, "notify") != EXPAR_OK) return EXPAR_ERR_MEMORY;
    judge(base, "notify", &step->vote);
    step->counted = step->routing && step->vote.rank < 0 && !(base->ops->streams && step->deferred);
    if (step->counted) fill_counts(recorder_of(base), step->routing);
    return EXPAR_OK;
}

static expar_status grow_pool(executor *base, const uint64_t *bytes, int32_t count)
{
    (void)bytes, (void)count;
    note_step(base, "grow-pool", 0, "");
    return answer(base, "grow-pool");
}

static expar_status dispatch_send(executor *base, exec_call *call, ep_dispatch_step *step)
{
    (void)call;
    note_step(base, "send", step->epoch, step->rejection.status ? "-refused" : step->sent_ahead ? "-ahead" : "");
    judge(base, "send", &step->vote);
    return answer(base, "send");
}

static expar_status dispatch_receive(executor *base, exec_call *call, ep_dispatch_step *step)
{
    (void)call;
    note_step(base, "receive", step->epoch, "");
    return answer(base, "receive");
}

static expar_status combine_send(executor *base, exec_call *call, ep_combine_step *step)
{
    (void)call;
    note_step(base, "send-back", step->epoch, step->rejection.status ? "-refused" : "");
    judge(base, "send-back", &step->vote);
    return answer(base, "send-back");
}

static expar_status combine_receive(executor *base, exec_call *call, ep_combine_step *step)
{
    (void)call;
    note_step(base, "receive-back", step->epoch, "");
    return answer(base, "receive-back");
}

static expar_status map(executor *base, exec_call *call, const ep_map_step *step)
{
    (void)call, (void)step;
    note(base, "map");
    return answer(base, "map");
}

static expar_status arrange(executor *base, exec_call *call, const ep_arrange_step *step)
{
    (void)call;
    const char *const what = step->map ? "expand" : "columns";
    note(base, what);
    if (answer(base, what) != EXPAR_OK) return EXPAR_ERR_MEMORY;
    if (step->pads) note(base, "pad");
    return EXPAR_OK;
}

static expar_status reduce(executor *base, exec_call *call, const ep_reduce_step *step)
{
    (void)call, (void)step;
    note(base, "reduce");
    return answer(base, "reduce");
}

static expar_status sources(executor *base, exec_call *call, const ep_sources_step *step)
{
    (void)call, (void)step;
    note(base, "sources");
    return answer(base, "sources");
}

static expar_status tell_counts(executor *base, exec_call *call, const ep_counts_step *step)
{
    (void)call, (void)step;
    note(base, "counts");
    return answer(base, "counts");
}

static expar_status copy(executor *base, exec_call *call, void *dest, const void *source, uint64_t bytes)
{
    (void)call, (void)dest, (void)source, (void)bytes;
    note(base, "copy");
    return answer(base, "copy");
}

static expar_status end(executor *base, exec_call *call)
{
    if (call->placed) note(base, "end");
    call->placed = false;
    return answer(base, "end");
}

static void nothing(void *context)
{
    (void)context;
}

static expar_status tell(executor *base, const exec_call *call, executor_done_fn done, void *context,
                         event_keeper *keeper)
{
    (void)call;
    recorder *self = recorder_of(base);
    note(base, "tell");
    *keeper = (event_keeper){.look = nothing, .drop = nothing};
    self->done = done;
    self->context = context;
    return answer(base, "tell");
}

static bool follows(const executor *base, const exec_call *call, expar_event *event)
{
    (void)base, (void)call, (void)event;
    return false;
}

static expar_status join(executor *base, const exec_call *call, expar_event *event)
{
    (void)base, (void)call, (void)event;
    return EXPAR_OK;
}

/* It has no stream. */
static void depart(executor *base, exec_call *call, expar_event *event, event_keeper *keeper)
{
    (void)base, (void)call, (void)event;
    keeper->mark = NULL;
}

/* It is in no graph. */
static expar_status record(executor *base, const exec_call *call, expar_event *event, exec_replay *replay)
{
    (void)base, (void)call, (void)event, (void)replay;
    return EXPAR_ERR_STATE;
}

/* It has no peers. */
static void retire(executor *base, uint32_t epoch, const ep_rejection *rejection)
{
    (void)base, (void)epoch, (void)rejection;
}

/* It has no waits. */
static void halt(executor *base)
{
    (void)base;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

static const executor_ops recorder_ops = {
    .name = "recorder",
    .check = check,
    .untold = untold,
    .halt = halt,
    .retire = retire,
    .await = check,
    .time = time_calls,
    .destroy = destroy,
    .take = take,
    .begin = begin,
    .keep = keep,
    .follows = follows,
    .place = place,
    .join = join,
    .depart = depart,
    .record = record,
    .end = end,
    .tell = tell,
};

static const normal_ops recorder_normal_ops = {
    .unit_bytes = 1,
    .times = times,
    .reach = reach,
    .unmap = unmap,
    .trim = trim,
    .routing_make = routing_make,
    .map_make = map_make,
    .prepare = prepare,
    .fits = fits,
    .grow = grow,
    .notify = notify,
    .grow_pool = grow_pool,
    .dispatch_send = dispatch_send,
    .dispatch_receive = dispatch_receive,
    .combine_send = combine_send,
    .combine_receive = combine_receive,
    .map = map,
    .arrange = arrange,
    .reduce = reduce,
    .sources = sources,
    .tell_counts = tell_counts,
    .copy = copy,
};

static expar_status make(const executor_plan *plan, bool streams, executor **out)
{
    recorder *self = calloc(1, sizeof *self);
    void *memory = aligned_alloc(4096, POOL_BYTES);
    if (!self || !memory) {
        free(self);
        free(memory);
        return error_set(EXPAR_ERR_MEMORY, "no memory for a recorder");
    }
    self->shape = *plan->shape;
    self->memory = memory;
    self->ops = recorder_ops;
    self->normal = recorder_normal_ops;
    self->ops.streams = self->normal.stages = self->normal.grows_apart = self->base.sends_ahead = streams;
    self->base.ops = &self->ops;
    self->base.normal = &self->normal;
    *out = &self->base;
    return mem_pool_create(memory, 0, POOL_BYTES, &self->base.pool);
}

static expar_status make_at_once(const executor_plan *plan, executor **out)
{
    return make(plan, false, out);
}

static expar_status make_on_streams(const executor_plan *plan, executor **out)
{
    return make(plan, true, out);
}

/* Streams of this executor come past everything at once. */
static expar_status hold_until_nothing(expar_device device, void *stream, mem_block *const *blocks, int32_t count)
{
    (void)device, (void)stream, (void)blocks, (void)count;
    return EXPAR_OK;
}

const executor_kind recorder_at_once = {.create = make_at_once, .hold_until = hold_until_nothing};
const executor_kind recorder_on_streams = {.create = make_on_streams, .hold_until = hold_until_nothing};
