/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatches of a deal: arguments, outputs of the caller's own, a route before, and what a call returns. */
#include "ep/harness/deal.h"
#include "ep/harness/pitched.h"
#include <stdlib.h>
#include <string.h>

/* Rounds columns up. */
#define COLUMN_SPARE 4

/* ---- arguments --------------------------------------------------------------------------------------------------- */

/* The scales in their order, in memory of their own. */
static expar_tensor make_scales(deal_call *call, const deal_choice *choice)
{
    const oracle_input *input = &call->move->inputs[call->rank];
    int64_t tokens = input->num_tokens, width = call->move->form.num_scales;
    const int64_t pitches[SCALES_ORDERS][2] = {
        {width, 1}, {1, tokens > 1 ? tokens : 1}, {3 * width + 1, 2}, {width, -1}};
    const int64_t *pitch = pitches[choice->scales];
    uint32_t *memory = traffic_alloc((size_t)((3 * width + 1) * (tokens + 1)), sizeof *memory);
    expar_tensor scales = expar_tensor_2d(memory + (pitch[1] < 0 ? width - 1 : 0),
                                          call->move->form.packed ? EXPAR_I32 : EXPAR_F32, tokens, width);
    memcpy(scales.strides, pitch, sizeof pitches[0]);
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0; i < width; i++)
            ((uint32_t *)scales.data)[t * pitch[0] + i * pitch[1]] = input->scales[t * width + i];
    call->memory[1] = memory;
    return scales;
}

/* The caller's own output, some rows longer than needed, in the area where it fits. */
static expar_tensor make_out(deal_call *call, const deal_choice *choice, const trial_area *area)
{
    const deal_move *m = call->move;
    int64_t rows = move_num_x_rows(m, call->rank) + DEAL_SPARE_ROWS;
    size_t bytes = (size_t)(rows * move_row_bytes(m));
    void *data = choice->place == PLACE_SYMMETRIC && bytes <= area->bytes ? area->out : NULL;
    if (data) call->area_used = (bytes + 127) / 128 * 128;
    if (choice->place == PLACE_PRIVATE) data = call->memory[0] = traffic_alloc(bytes, 1);
    if (!data) return EXPAR_TENSOR_NONE;
    memset(data, DEAL_SPARE_BYTE, bytes);
    return expar_tensor_2d(data, deal_dtype(m->form.type), rows, m->form.hidden);
}

/* Likewise any other part. Senders are asked to write it only where they can. */
static expar_tensor make_own(deal_call *call, const trial_area *area, expar_ep_part part, expar_dtype dtype,
                             int64_t rows, int64_t width)
{
    const deal_choice *choice = &call->move->choices[call->rank];
    size_t bytes = (size_t)((rows + DEAL_SPARE_ROWS) * width) * expar_dtype_bytes(dtype);
    bool fits = choice->own_symmetric && call->area_used + bytes <= area->bytes;
    bool local = part == EXPAR_EP_PART_ROW_MAP || part == EXPAR_EP_PART_ROW_WEIGHTS ||
                 part == EXPAR_EP_PART_SRC_METADATA ||
                 (part == EXPAR_EP_PART_SCALES && (choice->expert_major || choice->column_scales));
    if (!(choice->own >> part & 1) || (!fits && !local && choice->path == EXPAR_EP_PATH_DIRECT))
        return EXPAR_TENSOR_NONE;
    void *data = fits ? (char *)area->out + call->area_used : NULL;
    if (fits) call->area_used += (bytes + 127) / 128 * 128;
    if (!data) data = call->own[part] = traffic_alloc(bytes, 1);
    memset(data, DEAL_SPARE_BYTE, bytes);
    return expar_tensor_2d(data, dtype, rows + DEAL_SPARE_ROWS, width);
}

/* Column-major, columns a multiple of 4 apart. */
static void turn_own_scales(expar_tensor *own, int64_t rows)
{
    own->shape[0] = rows + DEAL_SPARE_ROWS;
    own->strides[0] = 1;
    own->strides[1] = (rows + DEAL_SPARE_ROWS + 3) / 4 * 4;
}

static void add_own(deal_call *call, const trial_area *area, expar_ep_dispatch_args *args)
{
    const deal_move *m = call->move;
    int64_t rows = oracle_num_rows(&m->job, call->rank), x_rows = move_num_x_rows(m, call->rank);
    int64_t topk = m->job.topk, scales = m->form.num_scales;
    if (scales) {
        const bool columns = m->choices[call->rank].column_scales;
        args->column_scales = columns;
        args->out_scales = make_own(call, area, EXPAR_EP_PART_SCALES, args->x_scales.dtype,
                                    x_rows + (columns ? COLUMN_SPARE : 0), scales);
        if (columns && args->out_scales.ndim) turn_own_scales(&args->out_scales, x_rows);
    }
    if (args->topk_idx.ndim)
        args->out_topk_idx = make_own(call, area, EXPAR_EP_PART_TOPK_IDX, args->topk_idx.dtype, rows, topk);
    if (args->topk_weights.ndim)
        args->out_topk_weights = make_own(call, area, EXPAR_EP_PART_TOPK_WEIGHTS, EXPAR_F32, rows, topk);
    if (m->form.src_stride)
        args->out_src_metadata = make_own(call, area, EXPAR_EP_PART_SRC_METADATA, EXPAR_I32, rows, 2 + topk);
    if (move_tells_sources(&m->form)) {
        args->out_src_token = make_own(call, area, EXPAR_EP_PART_SRC_TOKEN, EXPAR_I32, rows, 1);
        if (args->out_src_token.ndim)
            args->out_src_token = expar_tensor_1d(args->out_src_token.data, EXPAR_I32, rows + DEAL_SPARE_ROWS);
    }
    if (deal_call_weighs_rows(call)) {
        args->row_weights = m->choices[call->rank].own & 1;
        args->out_row_weights = make_own(call, area, EXPAR_EP_PART_ROW_WEIGHTS, EXPAR_F32, x_rows, 1);
        if (args->out_row_weights.ndim)
            args->out_row_weights = expar_tensor_1d(args->out_row_weights.data, EXPAR_F32, x_rows + DEAL_SPARE_ROWS);
        else
            args->row_weights = 1;
    }
    if (args->expert_major) args->out_row_map = make_own(call, area, EXPAR_EP_PART_ROW_MAP, EXPAR_I32, rows, topk);
}

static void add_topk(const deal_call *call, const deal_choice *choice, expar_ep_dispatch_args *args)
{
    const deal *d = call->move->deal;
    const oracle_input *input = &d->inputs[call->rank];
    args->topk_idx =
        pitched_make_idx(input->topk_idx, d->wide, input->num_tokens, d->job.topk, choice->pad, choice->null_if_empty);
    if (input->weights)
        args->topk_weights = pitched_make_filled(input->weights, EXPAR_F32, input->num_tokens, d->job.topk, choice->pad,
                                                 choice->null_if_empty);
}

static void add_copy(const deal_call *call, const deal_choice *choice, expar_ep_dispatch_args *args)
{
    const deal *d = call->move->deal;
    if (!choice->counts || !d->job.topk) return;
    args->topk_idx_copy = pitched_make(d->wide ? EXPAR_I64 : EXPAR_I32, d->inputs[call->rank].num_tokens, d->job.topk,
                                       0, choice->null_if_empty);
}

static void add_routing(const deal_call *call, const deal_choice *choice, expar_ep_dispatch_args *args)
{
    const deal *d = call->move->deal;
    const oracle_input *input = &d->inputs[call->rank];
    args->num_experts = d->job.num_experts;
    args->expert_alignment = choice->alignment;
    args->num_worst_tokens = input->num_worst_tokens;
    args->num_expert_rows = input->num_expert_rows;
    args->tokens_per_expert = input->tokens_per_expert;
    if (input->token_in_rank)
        args->token_in_rank = pitched_make_filled(input->token_in_rank, EXPAR_U8, input->num_tokens, d->job.num_ranks,
                                                  choice->pad, choice->null_if_empty);
}

static expar_ep_dispatch_args make_args(deal_call *call, const trial_area *area)
{
    const deal_move *m = call->move;
    const deal_choice *choice = &m->choices[call->rank];
    const oracle_input *input = &m->inputs[call->rank];
    int64_t gap = choice->pad * 16 / (int64_t)oracle_element_bytes(m->form.type);
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    args.x = pitched_make_filled(input->x, deal_dtype(m->form.type), input->num_tokens, m->form.hidden, gap,
                                 choice->null_if_empty);
    if (m->form.num_scales) args.x_scales = make_scales(call, choice);
    args.out_x = make_out(call, choice, area);
    args.path = choice->path;
    args.expert_major = choice->expert_major;
    args.zero_padding = choice->zero_padding;
    args.keep_slots = move_is_fresh(&m->form) && m->deal->keep_slots;
    args.async_finish = choice->async;
    args.src_tokens = m->form.src_tokens;
    args.src_stride = m->form.src_stride;
    args.num_sms = choice->num_sms;
    args.global_experts = m->form.global_experts;
    if (move_carries_topk(m)) add_topk(call, choice, &args);
    if (move_is_fresh(&m->form)) add_routing(call, choice, &args);
    if (move_is_fresh(&m->form)) add_copy(call, choice, &args);
    add_own(call, area, &args);
    return args;
}

/* Late: an output too small for what will come. */
static void spoil(deal_call *call)
{
    const move_form *form = &call->move->form;
    if (form->rejection == REJECTION_NONE || form->refuser != call->rank) return;
    if (form->rejection == REJECTION_EARLY)
        call->args.path = (expar_ep_path)7;
    else
        call->args.out_x = expar_tensor_2d(NULL, deal_dtype(form->type), 0, form->hidden);
}

/* ---- counts where the tensors lie -------------------------------------------------------------------------------- */

static void make_counts(deal_call *call)
{
    const oracle_job *job = &call->move->job;
    size_t locals = (size_t)(job->num_experts / job->num_ranks), ranks = (size_t)job->num_ranks;
    call->counts = (expar_ep_recv_counts)EXPAR_EP_RECV_COUNTS_INIT;
    call->counts.tokens_per_expert = traffic_alloc(locals, sizeof(int32_t));
    call->counts.expert_prefix = traffic_alloc(locals + 1, sizeof(int32_t));
    call->counts.rank_prefix = traffic_alloc(ranks, sizeof(int32_t));
    call->counts.num_recv_tokens = traffic_alloc(1, sizeof(int64_t));
    call->counts.expert_ends = traffic_alloc(locals, sizeof(int32_t));
}

static void free_counts(deal_call *call)
{
    free(call->counts.tokens_per_expert);
    free(call->counts.expert_prefix);
    free(call->counts.rank_prefix);
    free(call->counts.num_recv_tokens);
    free(call->counts.expert_ends);
}

/* ---- a route before it ------------------------------------------------------------------------------------------- */

/* A caller that has not waited for a route tells nothing of what comes. */
static bool check_untold(const expar_ep_route_result *route)
{
    return CHECK(route->num_recv_tokens == -1 && route->num_dropped_tokens == 0 && !route->recv_tokens_per_expert,
                 "a route that has not been waited for tells R %lld and %lld dropped",
                 (long long)route->num_recv_tokens, (long long)route->num_dropped_tokens);
}

static bool check_route_counts(const deal_call *call)
{
    const deal_move *m = call->move;
    const expar_ep_route_result *route = &call->route;
    oracle_job job = deal_job_of(m->deal, call->rank);
    int64_t kept = oracle_num_kept(&job, call->rank), all = oracle_num_received(&job, call->rank), sum = 0;
    int32_t locals = job.num_experts / job.num_ranks;
    int32_t *counts = traffic_alloc((size_t)locals, sizeof *counts);
    oracle_received_per_expert(&job, call->rank, counts);
    bool right =
        CHECK(route->num_recv_tokens == kept && route->num_dropped_tokens == all - kept,
              "a route tells R %lld and %lld dropped, expected %lld and %lld", (long long)route->num_recv_tokens,
              (long long)route->num_dropped_tokens, (long long)kept, (long long)(all - kept)) &
        CHECK(route->num_rows == oracle_num_rows(&job, call->rank) && route->num_local_experts == locals,
              "a route tells %lld rows, %d experts", (long long)route->num_rows, (int)route->num_local_experts);
    for (int32_t l = 0; right && l < locals; sum += counts[l++])
        right = CHECK(route->recv_tokens_per_expert[l] == counts[l], "a route tells %d tokens for expert %d, not %d",
                      (int)route->recv_tokens_per_expert[l], (int)l, (int)counts[l]);
    if (m->job.topk) sum = oracle_num_expert_rows(&job, call->rank);
    free(counts);
    return right & CHECK(route->num_expert_rows == sum, "a route tells %lld rows of experts, expected %lld",
                         (long long)route->num_expert_rows, (long long)sum);
}

static bool check_route(const deal_call *call, bool ahead)
{
    oracle_job job = deal_job_of(call->move->deal, call->rank);
    const expar_ep_route_result *route = &call->route;
    if (!ahead || COUNTS_ARE_SHOWN) return check_route_counts(call);
    return check_untold(route) & CHECK(route->num_rows == oracle_num_rows(&job, call->rank) &&
                                           route->num_expert_rows == oracle_num_expert_rows(&job, call->rank),
                                       "a route tells %lld rows, %lld of experts", (long long)route->num_rows,
                                       (long long)route->num_expert_rows);
}

/* Asynchronous where the dispatch is. */
static bool trial_route(deal_call *call, expar_ep *ep)
{
    const deal_move *m = call->move;
    const deal_choice *choice = &m->choices[call->rank];
    expar_ep_dispatch_args same = EXPAR_EP_DISPATCH_ARGS_INIT;
    expar_ep_route_args args = EXPAR_EP_ROUTE_ARGS_INIT;
    if (m->job.topk) add_topk(call, choice, &same);
    add_routing(call, choice, &same);
    args.topk_idx = same.topk_idx;
    args.token_in_rank = same.token_in_rank;
    args.num_experts = same.num_experts;
    args.expert_alignment = same.expert_alignment;
    args.tokens_per_expert = same.tokens_per_expert;
    args.num_worst_tokens = same.num_worst_tokens;
    args.num_expert_rows = same.num_expert_rows;
    args.async_finish = choice->async;
    args.num_sms = choice->num_sms;
    args.keep_slots = m->deal->keep_slots;
    if (choice->counts) make_counts(call);
    if (choice->counts) args.recv_counts = &call->counts;
    call->route = (expar_ep_route_result)EXPAR_EP_ROUTE_RESULT_INIT;
    bool right = CHECK_OK(expar_ep_route(ep, &args, &call->route)) &&
                 CHECK(!call->route.event == !choice->async, "a route's event") &&
                 (!call->route.event || CHECK_OK(expar_event_wait(call->route.event))) &&
                 check_route(call, choice->async && args.num_worst_tokens) &&
                 (!choice->counts || deal_told_check(call));
    if (choice->counts) free_counts(call);
    expar_event_release(call->route.event);
    pitched_free(&same.topk_idx);
    pitched_free(&same.topk_weights);
    pitched_free(&same.token_in_rank);
    return right;
}

/* The route's handle is the deal's, as one that the dispatch made; where it was refused nobody has one. */
static bool adopt_handle(deal_call *call)
{
    if (!call->move->form.routed) return true;
    bool none = CHECK(!call->result.handle && !call->result.recv_tokens_per_expert, "a routed dispatch made a handle");
    if (call->issued)
        call->result.handle = call->route.handle;
    else
        expar_ep_handle_release(call->route.handle);
    return none;
}

/* Whether the host knew R when the call returned: not where a first dispatch, or the call that made the handle, went
   ahead of the others. */
static bool host_knows_counts(const deal_call *call)
{
    expar_ep_handle_info info = EXPAR_EP_HANDLE_INFO_INIT;
    if (COUNTS_ARE_SHOWN) return true;
    if (!call->args.handle) return !(call->args.async_finish && call->args.num_worst_tokens);
    return CHECK_OK(expar_ep_handle_get_info(call->args.handle, &info)) && info.num_recv_tokens >= 0;
}

bool deal_dispatch_start(deal_call *call, expar_ep *ep, const trial_area *area, const expar_ep_handle *handle,
                         expar_event *wait_event)
{
    const deal_move *m = call->move;
    if (m->form.routed && !trial_route(call, ep)) return false;
    call->args = make_args(call, area);
    call->args.wait_event = wait_event;
    bool counts = m->choices[call->rank].counts;
    if (counts) make_counts(call);
    if (counts) call->args.recv_counts = &call->counts;
    if (m->form.routed) call->args.handle = call->route.handle;
    if (m->form.kind == MOVE_REPEAT) call->args.handle = handle;
    call->result = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    spoil(call);
    expar_status status = expar_ep_dispatch(ep, &call->args, &call->result);
    expar_status expected = deal_call_returning_on(call, ep, status);
    if (!CHECK_STATUS(expected, status)) return false;
    call->issued = expected == EXPAR_OK || expected == EXPAR_ERR_DROPPED;
    if (!call->issued)
        return adopt_handle(call) &
               CHECK(!call->result.output && !call->result.handle, "a refused dispatch gave results");
    if (!adopt_handle(call)) return false;
    call->told = host_knows_counts(call);
    call->event = call->result.event;
    return CHECK(!call->event == !call->args.async_finish, "an event is %s", call->event ? "given" : "missing");
}

void deal_dispatch_clean(deal_call *call)
{
    expar_ep_output_release(call->result.output);
    if (call->args.recv_counts) free_counts(call);
    pitched_free(&call->args.x);
    pitched_free(&call->args.topk_idx);
    pitched_free(&call->args.topk_weights);
    pitched_free(&call->args.token_in_rank);
    pitched_free(&call->args.topk_idx_copy);
    free(call->memory[0]);
    free(call->memory[1]);
    for (size_t i = 0; i < sizeof call->own / sizeof *call->own; i++)
        free(call->own[i]);
}
