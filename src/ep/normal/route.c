/* SPDX-License-Identifier: Apache-2.0 */
/* expar_ep_route: how a fresh dispatch opens, and nothing else. The headers bring all facts of the routing, so a call
 * that has opened has nothing to send. It only fills the results that the caller asks for. */
#include "ep/normal/prologue.h"

#include <stdlib.h>
#include <string.h>

typedef struct route_call {
    ep_call base;
    ep_requirements brings;
    expar_ep_route_args args;
    ep_prologue prologue;
    expar_ep_recv_counts counts; /* that the caller wants */
    expar_ep_handle *made;
} route_call;

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static ep_prologue route_prologue(const expar_ep_route_args *args)
{
    const expar_tensor *by = tensor_given(&args->topk_idx) ? &args->topk_idx : &args->token_in_rank;
    return (ep_prologue){.tokens = by->shape[0],
                         .topk_idx = args->topk_idx,
                         .token_in_rank = args->token_in_rank,
                         .tokens_per_expert = args->tokens_per_expert,
                         .counts_far = mem_is_far(args->tokens_per_expert),
                         .num_worst_tokens = args->num_worst_tokens,
                         .num_expert_rows = args->num_expert_rows,
                         .num_experts = args->num_experts,
                         .expert_alignment = args->expert_alignment,
                         .keep_slots = args->keep_slots != 0};
}

static expar_status route_check_tokens(const expar_ep *ep, const ep_prologue *prologue)
{
    if (prologue->tokens <= ep->limits.tokens) return EXPAR_OK;
    return error_set(EXPAR_ERR_LIMIT,
                     "%s has %lld tokens; this buffer was created for at most %lld (config.max_tokens)",
                     tensor_given(&prologue->topk_idx) ? "topk_idx" : "token_in_rank", (long long)prologue->tokens,
                     (long long)ep->limits.tokens);
}

static expar_status route_check_flags(const expar_ep_route_args *args)
{
    const ep_flag flags[] = {{"async_finish", args->async_finish}, {"keep_slots", args->keep_slots}};
    return ep_check_flags(flags, ARRAY_LENGTH(flags));
}

static expar_status route_check(route_call *call, const expar_ep_route_args *args, const expar_ep_route_result *result)
{
    expar_ep_route_result unused;
    ep_call *base = &call->base;
    expar_status status = ep_copy_struct("args", &call->args, sizeof call->args, args);
    bool asked = call->args.async_finish || !call->args.num_worst_tokens;
    if (status == EXPAR_OK) status = ep_call_learn(base, call->args.stream, call->args.num_sms, asked);
    if (status != EXPAR_OK) return status;
    base->wait_event = call->args.wait_event;
    ep_call_set_async(base, call->args.async_finish != 0, call->args.num_worst_tokens != 0);
    call->prologue = route_prologue(&call->args);
    status = ep_copy_struct("result", &unused, sizeof unused, result);
    const char *needs = call->args.num_worst_tokens  ? "num_worst_tokens"
                        : call->args.num_expert_rows ? "num_expert_rows"
                        : call->args.keep_slots      ? "keep_slots"
                                                     : NULL;
    if (status == EXPAR_OK) status = route_check_flags(&call->args);
    if (status == EXPAR_OK) status = prologue_check(ep_of(base), &call->prologue, needs);
    if (status == EXPAR_OK) status = route_check_tokens(ep_of(base), &call->prologue);
    if (status == EXPAR_OK) status = prologue_check_capture(base, &call->prologue);
    if (status == EXPAR_OK) status = prologue_check_counts(ep_of(base), call->args.recv_counts, &call->counts);
    if (status != EXPAR_OK) return status;
    return ep_call_check_events(base, call->args.wait_event, call->args.async_finish);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static void route_fill_form(route_call *call)
{
    const ep_prologue *prologue = &call->prologue;
    bool topk = tensor_given(&prologue->topk_idx);
    call->brings.form = (ep_form){.kind = EP_ROUTE,
                                  .topk = topk ? (int32_t)prologue->topk_idx.shape[1] : 0,
                                  .experts = prologue->num_experts,
                                  .options = prologue_slots_option(&call->base, prologue->keep_slots)};
}

/* In a capture: the graph keeps what its kernels fill. */
static expar_status route_keep_in_graph(const route_call *call)
{
    executor *exec = call->base.buffer->exec;
    mem_block *const blocks[] = {call->made->routing.own};
    return exec->ops->keep(exec, &call->base.exec, blocks, ARRAY_LENGTH(blocks));
}

/* It brings no rows. */
static expar_status route_fit(route_call *call)
{
    const ep_grow_step step = {.tokens = call->prologue.tokens};
    bool fits;
    route_fill_form(call);
    expar_status status = normal_fits(&call->base, &call->brings, &fits);
    return status != EXPAR_OK || fits ? status : normal_grow(&call->base, &call->brings, step);
}

/* Does everything that comes before the other ranks are asked. */
static expar_status route_prepare(route_call *call)
{
    /* As in a dispatch. */
    bool early = !call->base.exec.captured && !call->base.leaves;
    expar_status status = early ? ep_call_follow(&call->base) : EXPAR_OK;
    if (status == EXPAR_OK)
        status = prologue_make_handle(&call->base, &call->brings.form, &call->prologue, &call->made);
    if (status == EXPAR_OK) status = ep_handle_make_counts(call->made);
    if (status == EXPAR_OK && call->base.exec.captured && !call->base.leaves) status = ep_call_follow(&call->base);
    if (status == EXPAR_OK) status = route_keep_in_graph(call);
    if (status != EXPAR_OK) return status;
    call->made->expert_rows = prologue_worst_expert_rows(&call->prologue, call->made);
    return ep_call_promise(&call->base);
}

static void route_take_counts(route_call *call)
{
    expar_ep_handle *made = call->made;
    prologue_take_counts(&call->prologue, made);
    int64_t sum = prologue_round_counts(&call->prologue, &made->routing, made->tokens_per_expert);
    if (!call->prologue.num_worst_tokens && !call->prologue.num_expert_rows) made->expert_rows = sum;
}

static expar_status route_notify(route_call *call)
{
    ep_counts_step counts;
    ep_notify_step step = {
        .epoch = normal_epoch(&call->base),
        .form = call->brings.form,
        .routing = &call->made->routing,
        .route = prologue_view(&call->prologue),
        .growth = prologue_growth(&call->base, &call->prologue, call->args.async_finish || call->base.leaves),
        .deferred = call->prologue.num_worst_tokens != 0,
        .vote = {.rank = -1}};
    executor *exec = call->base.buffer->exec;
    if (prologue_counts_step(call->made, &call->counts, &counts)) step.counts = &counts;
    expar_status status = prologue_notify(&call->base, &step);
    if (step.told) call->counts = (expar_ep_recv_counts){0};
    if (status == EXPAR_OK && step.grows) status = ep_call_step(&call->base, exec->normal->grow_pool(exec, NULL, 0));
    /* Asynchronous calls: the result struct was filled when the call returned; do not write to it here. */
    if (status == EXPAR_OK && step.counted && !call->base.leaves) route_take_counts(call);
    return status;
}

static expar_status route_send(ep_call *base)
{
    if (!base->leaves) return EXPAR_OK;
    expar_status status = normal_make_space(base);
    if (status != EXPAR_OK) return status;
    status = ep_call_follow(base);
    return status == EXPAR_OK ? route_notify((route_call *)base) : ep_call_tell_rejection(base, status);
}

static expar_status route_receive(ep_call *base)
{
    const route_call *call = (route_call *)base;
    return ep_call_step(base, prologue_tell_counts(base, call->made, &call->counts));
}

static void route_hold(ep_call *base)
{
    ep_handle_hold(((route_call *)base)->made);
}

static void route_drop(ep_call *base)
{
    expar_ep_handle_release(((route_call *)base)->made);
}

static void route_list(const ep_call *base, exec_replay *replay)
{
    const route_call *call = (const route_call *)base;
    prologue_list(&call->prologue, &call->counts, replay);
}

static const ep_parts route_parts = {.bytes = sizeof(route_call),
                                     .send = route_send,
                                     .receive = route_receive,
                                     .reject = normal_reject,
                                     .judge = ep_call_judge,
                                     .hold = route_hold,
                                     .drop = route_drop,
                                     .list = route_list};

/* ---- the call ---------------------------------------------------------------------------------------------------- */

static void route_fill_result(const route_call *call, expar_ep_route_result *result)
{
    const expar_ep_handle *made = call->made;
    bool known = made->recv_tokens >= 0;
    expar_ep_route_result full = {.struct_size = result->struct_size,
                                  .handle = call->made,
                                  .num_recv_tokens = made->recv_tokens,
                                  .num_dropped_tokens = made->dropped,
                                  .num_rows = made->rows,
                                  .num_expert_rows = made->expert_rows,
                                  .recv_tokens_per_expert = known ? made->tokens_per_expert : NULL,
                                  .num_local_experts = made->routing.local_experts,
                                  .event = call->base.event};
    memcpy(result, &full, result->struct_size);
}

expar_status expar_ep_route(expar_ep *ep, const expar_ep_route_args *args, expar_ep_route_result *result)
{
    route_call call = {0};
    expar_status status = normal_begin(&call.base, "expar_ep_route", &route_parts, ep);
    if (status != EXPAR_OK) return ep_ended(ep, status);
    status = route_check(&call, args, result);
    if (status == EXPAR_OK) status = route_fit(&call);
    if (status == EXPAR_OK) status = route_prepare(&call);
    if (status == EXPAR_OK) {
        status = call.base.leaves ? EXPAR_OK : route_notify(&call);
        if (status == EXPAR_OK) status = ep_call_finish(&call.base);
    } else if (!call.base.told) {
        status = ep_call_tell_rejection(&call.base, status);
    }
    if (status == EXPAR_OK) {
        route_fill_result(&call, result);
    } else {
        ep_call_break_promise(&call.base);
        expar_ep_handle_release(call.made);
    }
    return ep_ended(ep, ep_call_end(&call.base, status));
}
