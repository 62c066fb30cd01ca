/* SPDX-License-Identifier: Apache-2.0 */
/* How a routing is opened: see prologue.h. */
#include "ep/normal/prologue.h"

/* ---- checks ------------------------------------------------------------------------------------------------------ */

expar_status prologue_check_topk(const expar_ep *ep, const ep_prologue *prologue)
{
    int64_t tokens = prologue->tokens, topk = prologue->topk_idx.shape[1];
    expar_status status =
        ep_check_matrix(ep->base.device, "topk_idx", &prologue->topk_idx, tokens, topk, EXPAR_I64, EXPAR_I32);
    if (status != EXPAR_OK) return status;
    if (topk < 1 || topk > ep->limits.topk)
        return error_set(EXPAR_ERR_LIMIT,
                         "topk_idx has %lld slots a token; this buffer was created for 1 to %d (config.max_topk)",
                         (long long)topk, ep->limits.topk);
    if (tokens > ep_most_of_expert(ep->shape.ranks) / topk)
        return error_set(EXPAR_ERR_SHAPE,
                         "topk_idx has %lld tokens of %lld slots; expected at most %d slots in all on each of %d ranks",
                         (long long)tokens, (long long)topk, ep_most_of_expert(ep->shape.ranks), ep->shape.ranks);
    if (!tensor_given(&prologue->topk_weights)) return EXPAR_OK;
    return ep_check_matrix(ep->base.device, "topk_weights", &prologue->topk_weights, tokens, topk, EXPAR_F32,
                           EXPAR_F32);
}

/* topk_idx is right. */
static expar_status check_copy(const expar_ep *ep, const ep_prologue *prologue)
{
    const expar_tensor *copy = &prologue->topk_idx_copy, *idx = &prologue->topk_idx;
    if (!tensor_given(copy)) return EXPAR_OK;
    expar_status status =
        ep_check_matrix(ep->base.device, "topk_idx_copy", copy, idx->shape[0], idx->shape[1], idx->dtype, idx->dtype);
    if (status == EXPAR_OK && tensor_pitch(copy) != copy->shape[1])
        return error_set(EXPAR_ERR_STRIDE, "topk_idx_copy.strides[0] is %lld; expected %lld (contiguous)",
                         (long long)copy->strides[0], (long long)copy->shape[1]);
    return status;
}

/* Numbers on the host are looked at here, others by the executor. */
static expar_status check_numbers(const expar_ep *ep, const ep_prologue *prologue)
{
    const int32_t *numbers = prologue->tokens_per_expert, most = ep_most_of_expert(ep->shape.ranks);
    for (int32_t e = 0; numbers && e < prologue->num_experts; e++)
        if (numbers[e] < 0 || numbers[e] > most)
            return error_set(EXPAR_ERR_ARGUMENT, "tokens_per_expert[%d] is %d; expected 0 to %d", e, numbers[e], most);
    return EXPAR_OK;
}

/* Routing by hand alone: there is nothing that needs topk_idx. */
static expar_status check_without_topk(const expar_ep *ep, const ep_prologue *prologue, const char *needs)
{
    if (needs) return error_set(EXPAR_ERR_NULL, "topk_idx is not given, but %s is, which needs it", needs);
    const int32_t *numbers = prologue->tokens_per_expert;
    if ((uintptr_t)numbers % sizeof *numbers)
        return error_set(EXPAR_ERR_ALIGNMENT, "tokens_per_expert is %p; expected a multiple of %zu",
                         (const void *)numbers, sizeof *numbers);
    return prologue->counts_far ? mem_check_place(ep->base.device, "tokens_per_expert", "", numbers)
                                : check_numbers(ep, prologue);
}

static expar_status check_routing(const expar_ep *ep, const ep_prologue *prologue, const char *needs)
{
    expar_status status = ep_check_experts(prologue->num_experts, ep->shape.ranks);
    if (status != EXPAR_OK) return status;
    if (prologue->num_experts > ep->limits.experts)
        return error_set(EXPAR_ERR_LIMIT,
                         "num_experts is %d; this buffer was created for at most %d (config.max_experts)",
                         prologue->num_experts, ep->limits.experts);
    bool by_hand = tensor_given(&prologue->token_in_rank);
    if (by_hand)
        status = ep_check_matrix(ep->base.device, "token_in_rank", &prologue->token_in_rank, prologue->tokens,
                                 ep->shape.ranks, EXPAR_U8, EXPAR_U8);
    if (status != EXPAR_OK) return status;
    if (by_hand && !tensor_given(&prologue->topk_idx)) return check_without_topk(ep, prologue, needs);
    status = prologue_check_topk(ep, prologue);
    return status == EXPAR_OK ? check_copy(ep, prologue) : status;
}

expar_status prologue_check_sizes(const ep_prologue *prologue)
{
    if (prologue->expert_alignment < 0 || prologue->expert_alignment > EP_MOST_ALIGNMENT)
        return error_set(EXPAR_ERR_ARGUMENT, "expert_alignment is %d; expected 0 to %d", prologue->expert_alignment,
                         EP_MOST_ALIGNMENT);
    if (prologue->num_worst_tokens < 0 || prologue->num_worst_tokens > INT32_MAX)
        return error_set(EXPAR_ERR_ARGUMENT, "num_worst_tokens is %lld; expected 0 (none) to 2^31 - 1",
                         (long long)prologue->num_worst_tokens);
    if (prologue->num_expert_rows < 0 || prologue->num_expert_rows > INT32_MAX)
        return error_set(EXPAR_ERR_ARGUMENT, "num_expert_rows is %lld; expected 0 (none) to 2^31 - 1",
                         (long long)prologue->num_expert_rows);
    return EXPAR_OK;
}

expar_status prologue_check(const expar_ep *ep, const ep_prologue *prologue, const char *needs)
{
    expar_status status = check_routing(ep, prologue, needs);
    return status == EXPAR_OK ? prologue_check_sizes(prologue) : status;
}

expar_status prologue_check_capture(const ep_call *call, const ep_prologue *prologue)
{
    if (!call->exec.captured || prologue->num_worst_tokens) return EXPAR_OK;
    return error_set(EXPAR_ERR_ARGUMENT,
                     "num_worst_tokens is 0 while the stream is being captured; expected a worst-case size, or a "
                     "handle: a graph cannot tell the host how many rows come");
}

void prologue_list(const ep_prologue *prologue, const expar_ep_recv_counts *counts, exec_replay *replay)
{
    const void *const all[] = {prologue->topk_idx.data,      prologue->topk_weights.data, prologue->topk_idx_copy.data,
                               prologue->token_in_rank.data, prologue->tokens_per_expert, counts->tokens_per_expert,
                               counts->expert_prefix,        counts->rank_prefix,         counts->num_recv_tokens,
                               counts->expert_ends};
    for (size_t i = 0; i < ARRAY_LENGTH(all); i++)
        exec_replay_list(replay, all[i]);
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

/* A tensor without elements may have no address; its view has one. */
ep_route_view prologue_view(const ep_prologue *prologue)
{
    ep_route_view route = {.expert_counts = prologue->tokens_per_expert, .counts_far = prologue->counts_far};
    if (tensor_given(&prologue->topk_idx)) {
        route.idx = prologue->topk_idx.data ? prologue->topk_idx.data : "";
        route.idx_bytes = (int32_t)expar_dtype_bytes(prologue->topk_idx.dtype);
        route.idx_pitch = tensor_pitch(&prologue->topk_idx);
        route.weights = prologue->topk_weights.data;
        route.weights_pitch = tensor_pitch(&prologue->topk_weights);
        route.idx_copy = prologue->topk_idx_copy.data;
    }
    if (tensor_given(&prologue->token_in_rank)) {
        route.token_in_rank = prologue->token_in_rank.data ? prologue->token_in_rank.data : (const uint8_t *)"";
        route.token_in_rank_pitch = tensor_pitch(&prologue->token_in_rank);
    }
    return route;
}

int32_t prologue_slots_option(const ep_call *call, bool keeps_slots)
{
    return keeps_slots && call->buffer->exec->by_node ? EP_OPTION_KEEP_SLOTS : 0;
}

expar_status prologue_make_handle(const ep_call *call, const ep_form *form, const ep_prologue *prologue,
                                  expar_ep_handle **out)
{
    const ep_shape *shape = &ep_of(call)->shape;
    bool by_hand = tensor_given(&prologue->token_in_rank);
    int32_t most_targets = by_hand || form->topk > shape->ranks ? shape->ranks : form->topk;
    const ep_routing wanted = {.tokens = prologue->tokens,
                               .topk = form->topk,
                               .experts = form->experts,
                               .keeps_slots = prologue->keep_slots,
                               .strangers = by_hand};
    expar_status status = ep_handle_create(ep_of(call), normal_epoch(call), &wanted, most_targets, out);
    if (status != EXPAR_OK) return status;
    (*out)->rows = prologue->num_worst_tokens;
    (*out)->recv_tokens = -1;
    (*out)->alignment = (int32_t)prologue_alignment(prologue);
    return EXPAR_OK;
}

/* A stream of a call with async_finish may wait for what this thread does later. */
ep_growth prologue_growth(const ep_call *call, const ep_prologue *prologue, bool async_finish)
{
    const bool never_waits = prologue->num_worst_tokens && (async_finish || call->exec.captured);
    return call->buffer->exec->grows && !never_waits ? EP_GROWTH_CAN : EP_GROWTH_NONE;
}

expar_status prologue_notify(ep_call *call, ep_notify_step *step)
{
    executor *exec = call->buffer->exec;
    expar_status status = ep_call_open(call);
    if (status == EXPAR_OK) status = ep_call_step(call, exec->normal->notify(exec, &call->exec, step));
    if (status != EXPAR_OK) return status;
    if (step->rejection.status != EXPAR_OK) return ep_call_rejected(call, &step->rejection);
    return ep_call_vote(call, &step->vote);
}

/* ---- counts ------------------------------------------------------------------------------------------------------ */

void prologue_take_counts(const ep_prologue *prologue, expar_ep_handle *made)
{
    int64_t coming = made->routing.rank_prefix[made->routing.ranks - 1], worst = prologue->num_worst_tokens;
    made->rows = worst ? worst : coming;
    made->recv_tokens = worst && worst < coming ? worst : coming;
    made->dropped = coming - made->recv_tokens;
}

int64_t prologue_round_counts(const ep_prologue *prologue, const ep_routing *routing, int32_t *counts)
{
    int64_t unit = prologue_alignment(prologue), sum = 0;
    for (int32_t e = 0; e < routing->local_experts; e++) {
        int64_t rounded = (routing->recv_expert_counts[e] + unit - 1) / unit * unit;
        counts[e] = (int32_t)rounded;
        sum += rounded;
    }
    return sum;
}

int64_t prologue_worst_expert_rows(const ep_prologue *prologue, const expar_ep_handle *made)
{
    if (prologue->num_expert_rows) return prologue->num_expert_rows;
    return made->rows * made->routing.topk + (prologue_alignment(prologue) - 1) * made->routing.local_experts;
}

expar_status prologue_check_counts(const expar_ep *ep, const expar_ep_recv_counts *given, expar_ep_recv_counts *out)
{
    *out = (expar_ep_recv_counts){0};
    expar_status status = given ? ep_copy_struct("recv_counts", out, sizeof *out, given) : EXPAR_OK;
    const ep_array arrays[] = {{"recv_counts.tokens_per_expert", out->tokens_per_expert, sizeof(int32_t)},
                               {"recv_counts.expert_prefix", out->expert_prefix, sizeof(int32_t)},
                               {"recv_counts.rank_prefix", out->rank_prefix, sizeof(int32_t)},
                               {"recv_counts.num_recv_tokens", out->num_recv_tokens, sizeof(int64_t)},
                               {"recv_counts.expert_ends", out->expert_ends, sizeof(int32_t)}};
    return status == EXPAR_OK ? ep_check_arrays(ep->base.device, arrays, ARRAY_LENGTH(arrays)) : status;
}

bool prologue_counts_step(const expar_ep_handle *handle, const expar_ep_recv_counts *counts, ep_counts_step *out)
{
    *out = (ep_counts_step){.routing = &handle->routing,
                            .rows = handle->rows ? handle->rows : INT64_MAX, /* not known yet, or none come */
                            .alignment = handle->alignment,
                            .tokens_per_expert = counts->tokens_per_expert,
                            .expert_prefix = counts->expert_prefix,
                            .rank_prefix = counts->rank_prefix,
                            .num_recv_tokens = counts->num_recv_tokens,
                            .expert_ends = counts->expert_ends};
    return out->tokens_per_expert || out->expert_prefix || out->rank_prefix || out->num_recv_tokens || out->expert_ends;
}

expar_status prologue_tell_counts(ep_call *call, const expar_ep_handle *handle, const expar_ep_recv_counts *counts)
{
    executor *exec = call->buffer->exec;
    ep_counts_step step;
    return prologue_counts_step(handle, counts, &step) ? exec->normal->tell_counts(exec, &call->exec, &step) : EXPAR_OK;
}
