/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatches of a deal against the oracle. */
#include "ep/deal.h"
#include "ep/pitched.h"
#include <stdlib.h>
#include <string.h>

/* Of the caller's own recv_x, where no row goes. */
#define SPARE_BYTE 0x5a
#define SPARE_ROWS 2
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

static int64_t row_bytes(const deal_move *m)
{
    return m->form.hidden * (int64_t)oracle_element_bytes(m->form.type);
}

/* The caller's own output, some rows longer than needed, in the area where it fits. */
static expar_tensor make_out(deal_call *call, const deal_choice *choice, const play_area *area)
{
    const deal_move *m = call->move;
    int64_t rows = move_num_x_rows(m, call->rank) + SPARE_ROWS;
    size_t bytes = (size_t)(rows * row_bytes(m));
    void *data = choice->place == PLACE_SYMMETRIC && bytes <= area->bytes ? area->out : NULL;
    if (data) call->area_used = (bytes + 127) / 128 * 128;
    if (choice->place == PLACE_PRIVATE) data = call->memory[0] = traffic_alloc(bytes, 1);
    if (!data) return EXPAR_TENSOR_NONE;
    memset(data, SPARE_BYTE, bytes);
    return expar_tensor_2d(data, deal_dtype(m->form.type), rows, m->form.hidden);
}

/* Likewise any other part. Senders are asked to write it only where they can. */
static expar_tensor make_own(deal_call *call, const play_area *area, expar_ep_part part, expar_dtype dtype,
                             int64_t rows, int64_t width)
{
    const deal_choice *choice = &call->move->choices[call->rank];
    size_t bytes = (size_t)((rows + SPARE_ROWS) * width) * expar_dtype_bytes(dtype);
    bool fits = choice->own_symmetric && call->area_used + bytes <= area->bytes;
    bool local = part == EXPAR_EP_PART_ROW_MAP || part == EXPAR_EP_PART_ROW_WEIGHTS ||
                 part == EXPAR_EP_PART_SRC_METADATA ||
                 (part == EXPAR_EP_PART_SCALES && (choice->expert_major || choice->column_scales));
    if (!(choice->own >> part & 1) || (!fits && !local && choice->path == EXPAR_PATH_DIRECT)) return EXPAR_TENSOR_NONE;
    void *data = fits ? (char *)area->out + call->area_used : NULL;
    if (fits) call->area_used += (bytes + 127) / 128 * 128;
    if (!data) data = call->own[part] = traffic_alloc(bytes, 1);
    memset(data, SPARE_BYTE, bytes);
    return expar_tensor_2d(data, dtype, rows + SPARE_ROWS, width);
}

static bool carries_topk(const deal_move *m)
{
    return m->job.topk && (m->form.kind == MOVE_DISPATCH || m->form.with_topk);
}

static bool tells_sources(const move_form *form)
{
    return form->src_tokens || form->src_stride;
}

static bool weighs_rows(const deal_call *call)
{
    const deal_choice *choice = &call->move->choices[call->rank];
    return choice->row_weights && choice->expert_major && carries_topk(call->move) && call->move->deal->with_weights;
}

/* Column-major, columns a multiple of 4 apart. */
static void turn_own_scales(expar_tensor *own, int64_t rows)
{
    own->shape[0] = rows + SPARE_ROWS;
    own->strides[0] = 1;
    own->strides[1] = (rows + SPARE_ROWS + 3) / 4 * 4;
}

static void add_own(deal_call *call, const play_area *area, expar_dispatch_args *args)
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
    if (tells_sources(&m->form)) {
        args->out_src_token = make_own(call, area, EXPAR_EP_PART_SRC_TOKEN, EXPAR_I32, rows, 1);
        if (args->out_src_token.ndim)
            args->out_src_token = expar_tensor_1d(args->out_src_token.data, EXPAR_I32, rows + SPARE_ROWS);
    }
    if (weighs_rows(call)) {
        args->row_weights = m->choices[call->rank].own & 1;
        args->out_row_weights = make_own(call, area, EXPAR_EP_PART_ROW_WEIGHTS, EXPAR_F32, x_rows, 1);
        if (args->out_row_weights.ndim)
            args->out_row_weights = expar_tensor_1d(args->out_row_weights.data, EXPAR_F32, x_rows + SPARE_ROWS);
        else
            args->row_weights = 1;
    }
    if (args->expert_major) args->out_row_map = make_own(call, area, EXPAR_EP_PART_ROW_MAP, EXPAR_I32, rows, topk);
}

static void add_topk(const deal_call *call, const deal_choice *choice, expar_dispatch_args *args)
{
    const deal *d = call->move->deal;
    const oracle_input *input = &d->inputs[call->rank];
    args->topk_idx =
        pitched_make_idx(input->topk_idx, d->wide, input->num_tokens, d->job.topk, choice->pad, choice->null_if_empty);
    if (input->weights)
        args->topk_weights = pitched_make_filled(input->weights, EXPAR_F32, input->num_tokens, d->job.topk, choice->pad,
                                                 choice->null_if_empty);
}

static void add_copy(const deal_call *call, const deal_choice *choice, expar_dispatch_args *args)
{
    const deal *d = call->move->deal;
    if (!choice->counts || !d->job.topk) return;
    args->topk_idx_copy = pitched_make(d->wide ? EXPAR_I64 : EXPAR_I32, d->inputs[call->rank].num_tokens, d->job.topk,
                                       0, choice->null_if_empty);
}

static void add_routing(const deal_call *call, const deal_choice *choice, expar_dispatch_args *args)
{
    const deal *d = call->move->deal;
    const oracle_input *input = &d->inputs[call->rank];
    args->num_experts = d->job.num_experts;
    args->expert_alignment = choice->alignment;
    args->num_worst_tokens = input->num_worst_tokens;
    args->tokens_per_expert = input->tokens_per_expert;
    if (input->token_in_rank)
        args->token_in_rank = pitched_make_filled(input->token_in_rank, EXPAR_U8, input->num_tokens, d->job.num_ranks,
                                                  choice->pad, choice->null_if_empty);
}

static expar_dispatch_args make_args(deal_call *call, const play_area *area)
{
    const deal_move *m = call->move;
    const deal_choice *choice = &m->choices[call->rank];
    const oracle_input *input = &m->inputs[call->rank];
    int64_t gap = choice->pad * 16 / (int64_t)oracle_element_bytes(m->form.type);
    expar_dispatch_args args = EXPAR_DISPATCH_ARGS_INIT;
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
    if (carries_topk(m)) add_topk(call, choice, &args);
    if (move_is_fresh(&m->form)) add_routing(call, choice, &args);
    if (move_is_fresh(&m->form)) add_copy(call, choice, &args);
    add_own(call, area, &args);
    return args;
}

/* Late: an output without room for what will come. */
static void spoil(deal_call *call)
{
    const move_form *form = &call->move->form;
    if (form->refusal == REFUSAL_NONE || form->refuser != call->rank) return;
    if (form->refusal == REFUSAL_EARLY)
        call->args.path = (expar_path)7;
    else
        call->args.out_x = expar_tensor_2d(NULL, deal_dtype(form->type), 0, form->hidden);
}

/* ---- counts where the tensors lie -------------------------------------------------------------------------------- */

static void make_counts(deal_call *call)
{
    const oracle_job *job = &call->move->job;
    size_t locals = (size_t)(job->num_experts / job->num_ranks), ranks = (size_t)job->num_ranks;
    call->counts = (expar_recv_counts)EXPAR_RECV_COUNTS_INIT;
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

static bool check_ends(const deal_call *call)
{
    oracle_job job = deal_job_of(call->move->deal, call->rank);
    int32_t locals = job.num_experts / job.num_ranks, *ends = traffic_alloc((size_t)locals, sizeof *ends);
    bool right = true;
    oracle_expert_ends(&job, call->rank, ends);
    for (int32_t e = 0; right && e < locals; e++)
        right = CHECK(call->counts.expert_ends[e] == ends[e], "the rows of expert %d are told to end at %d, not %d",
                      (int)e, (int)call->counts.expert_ends[e], (int)ends[e]);
    free(ends);
    return right;
}

static bool check_told(const deal_call *call)
{
    const expar_recv_counts *told = &call->counts;
    oracle_job aligned = deal_job_of(call->move->deal, call->rank), plain = aligned;
    int32_t locals = plain.num_experts / plain.num_ranks, before = 0;
    int32_t *counts = traffic_alloc((size_t)locals, 4), *rounded = traffic_alloc((size_t)locals, 4);
    int32_t *ranks = traffic_alloc((size_t)plain.num_ranks, 4);
    plain.expert_alignment = 1;
    oracle_received_per_expert(&plain, call->rank, counts);
    oracle_received_per_expert(&aligned, call->rank, rounded);
    oracle_rank_prefix(&plain, call->rank, ranks);
    bool right = CHECK(*told->num_recv_tokens == oracle_num_kept(&plain, call->rank), "R is told as %lld",
                       (long long)*told->num_recv_tokens);
    for (int32_t e = 0; right && e < locals; before += rounded[e++])
        right = CHECK(told->tokens_per_expert[e] == counts[e] && told->expert_prefix[e] == before,
                      "expert %d: %d tokens behind %d are told, expected %d behind %d", (int)e,
                      (int)told->tokens_per_expert[e], (int)told->expert_prefix[e], (int)counts[e], (int)before);
    right = right && CHECK(told->expert_prefix[locals] == before, "the experts' rows are told as %d, not %d",
                           (int)told->expert_prefix[locals], (int)before);
    for (int32_t r = 0; right && r < plain.num_ranks; r++)
        right = CHECK(told->rank_prefix[r] == ranks[r], "%d rows are told from ranks to %d, expected %d",
                      (int)told->rank_prefix[r], (int)r, (int)ranks[r]);
    free(counts);
    free(rounded);
    free(ranks);
    return right && check_ends(call);
}

/* ---- a route before it ------------------------------------------------------------------------------------------- */

/* Who has not waited for a route tells nothing of what comes. */
static bool check_untold(const expar_route_result *route)
{
    return CHECK(route->num_recv_tokens == -1 && route->num_dropped_tokens == 0 && !route->recv_tokens_per_expert,
                 "a route that has not been waited for tells R %lld and %lld dropped",
                 (long long)route->num_recv_tokens, (long long)route->num_dropped_tokens);
}

static bool check_route_counts(const deal_call *call)
{
    const deal_move *m = call->move;
    const expar_route_result *route = &call->route;
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
    const expar_route_result *route = &call->route;
    if (!ahead || COUNTS_ARE_SHOWN) return check_route_counts(call);
    return check_untold(route) & CHECK(route->num_rows == oracle_num_rows(&job, call->rank) &&
                                           route->num_expert_rows == oracle_num_expert_rows(&job, call->rank),
                                       "a route tells %lld rows, %lld of experts", (long long)route->num_rows,
                                       (long long)route->num_expert_rows);
}

/* Asynchronous where the dispatch is. */
static bool play_route(deal_call *call, expar_ep *ep)
{
    const deal_move *m = call->move;
    const deal_choice *choice = &m->choices[call->rank];
    expar_dispatch_args same = EXPAR_DISPATCH_ARGS_INIT;
    expar_route_args args = EXPAR_ROUTE_ARGS_INIT;
    if (m->job.topk) add_topk(call, choice, &same);
    add_routing(call, choice, &same);
    args.topk_idx = same.topk_idx;
    args.token_in_rank = same.token_in_rank;
    args.num_experts = same.num_experts;
    args.expert_alignment = same.expert_alignment;
    args.tokens_per_expert = same.tokens_per_expert;
    args.num_worst_tokens = same.num_worst_tokens;
    args.async_finish = choice->async;
    args.num_sms = choice->num_sms;
    args.keep_slots = m->deal->keep_slots;
    if (choice->counts) make_counts(call);
    if (choice->counts) args.recv_counts = &call->counts;
    call->route = (expar_route_result)EXPAR_ROUTE_RESULT_INIT;
    bool right = CHECK_OK(expar_ep_route(ep, &args, &call->route)) &&
                 CHECK(!call->route.event == !choice->async, "a route's event") &&
                 (!call->route.event || CHECK_OK(expar_event_wait(call->route.event))) &&
                 check_route(call, choice->async && args.num_worst_tokens) && (!choice->counts || check_told(call));
    if (choice->counts) free_counts(call);
    expar_event_destroy(call->route.event);
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
        expar_ep_handle_destroy(call->route.handle);
    return none;
}

/* Whether the host knew R when the call returned: not where a first dispatch, or the call that made the handle, went
   ahead of the others. */
static bool host_knows_counts(const deal_call *call)
{
    expar_handle_info info = EXPAR_HANDLE_INFO_INIT;
    if (COUNTS_ARE_SHOWN) return true;
    if (!call->args.handle) return !(call->args.async_finish && call->args.num_worst_tokens);
    return CHECK_OK(expar_ep_handle_info(call->args.handle, &info)) && info.num_recv_tokens >= 0;
}

bool deal_dispatch_start(deal_call *call, expar_ep *ep, const play_area *area, const expar_ep_handle *handle,
                         expar_event *wait_event)
{
    const deal_move *m = call->move;
    if (m->form.routed && !play_route(call, ep)) return false;
    call->args = make_args(call, area);
    call->args.wait_event = wait_event;
    bool counts = m->choices[call->rank].counts;
    if (counts) make_counts(call);
    if (counts) call->args.recv_counts = &call->counts;
    if (m->form.routed) call->args.handle = call->route.handle;
    if (m->form.kind == MOVE_REPEAT) call->args.handle = handle;
    call->result = (expar_dispatch_result)EXPAR_DISPATCH_RESULT_INIT;
    spoil(call);
    expar_status status = expar_dispatch(ep, &call->args, &call->result);
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

/* ---- results ----------------------------------------------------------------------------------------------------- */

static bool check_shape(const expar_tensor *tensor, bool given, expar_dtype dtype, int64_t rows, int64_t columns,
                        const char *name)
{
    if (!given) return CHECK(!tensor->data && tensor->ndim == 0, "%s is given, expected none", name);
    return CHECK(tensor->ndim == 2 && tensor->dtype == dtype && tensor->shape[0] == rows && tensor->shape[1] == columns,
                 "%s is %s [%lld][%lld], expected %s [%lld][%lld]", name, expar_dtype_string(tensor->dtype),
                 (long long)tensor->shape[0], (long long)tensor->shape[1], expar_dtype_string(dtype), (long long)rows,
                 (long long)columns) &&
           CHECK(rows == 0 || (tensor->data && tensor->strides[0] == columns && tensor->strides[1] == 1),
                 "%s has no data or is not contiguous", name);
}

/* What a rank must get, row by row. */
typedef struct expected {
    int64_t kept, rows, x_rows;
    int32_t *map;    /* [rows][K], of any dispatch with top-k */
    uint8_t *filled; /* [x_rows]: a row of the result belongs here */
} expected;

static expected expected_make(const deal_call *call)
{
    const deal_move *m = call->move;
    oracle_job job = m->job;
    job.expert_alignment = m->deal->choices[call->rank].alignment;
    expected e = {.kept = oracle_num_kept(&job, call->rank),
                  .rows = oracle_num_rows(&job, call->rank),
                  .x_rows = move_num_x_rows(m, call->rank)};
    int64_t slots = e.rows * job.topk;
    e.map = traffic_alloc((size_t)slots, sizeof *e.map);
    e.filled = traffic_alloc((size_t)e.x_rows, 1);
    if (!m->choices[call->rank].expert_major) {
        memset(e.filled, 1, (size_t)e.kept);
        return e;
    }
    oracle_expert_map(&job, call->rank, e.map);
    for (int64_t i = 0; i < slots; i++)
        if (e.map[i] >= 0) e.filled[e.map[i]] = 1;
    return e;
}

static void expected_free(expected *e)
{
    free(e->map);
    free(e->filled);
}

static bool all_bytes(const uint8_t *bytes, int64_t count, uint8_t value)
{
    for (int64_t i = 0; i < count; i++)
        if (bytes[i] != value) return false;
    return true;
}

/* rows: token-major, as the oracle gave them. blank: byte of rows that nobody fills, -1: any. */
static bool check_rows(const deal_call *call, const expected *e, const char *name, const void *got, int64_t bytes,
                       void *rows, int blank)
{
    oracle_job job = call->move->job;
    job.expert_alignment = call->move->deal->choices[call->rank].alignment;
    void *sorted = traffic_alloc((size_t)(e->x_rows * bytes), 1);
    if (call->move->choices[call->rank].expert_major)
        oracle_expert_expand(&job, call->rank, (size_t)bytes, rows, sorted);
    else
        memcpy(sorted, rows, (size_t)(e->kept * bytes));
    bool right = true;
    for (int64_t row = 0; right && row < e->x_rows; row++) {
        const uint8_t *at = (const uint8_t *)got + row * bytes;
        if (e->filled[row])
            right = CHECK(memcmp(at, (const uint8_t *)sorted + row * bytes, (size_t)bytes) == 0,
                          "%s differs in row %lld of %lld", name, (long long)row, (long long)e->x_rows);
        else if (blank >= 0)
            right = CHECK(all_bytes(at, bytes, (uint8_t)blank), "%s: row %lld, which nobody sent, is not %#x", name,
                          (long long)row, (unsigned)blank);
    }
    free(sorted);
    return right;
}

static bool check_x(const deal_call *call, const expected *e)
{
    const deal_move *m = call->move;
    const deal_choice *choice = &m->choices[call->rank];
    const expar_tensor *x = &call->result.recv_x, *out = &call->args.out_x;
    if (!check_shape(x, true, deal_dtype(m->form.type), e->x_rows, m->form.hidden, "recv_x")) return false;
    if (!CHECK(!out->data || x->data == out->data, "recv_x is not out_x")) return false;
    void *rows = traffic_alloc((size_t)(e->kept * row_bytes(m)), 1);
    oracle_dispatch(&m->job, call->rank, rows, NULL, NULL);
    int blank = choice->expert_major && choice->zero_padding ? 0 : out->data ? SPARE_BYTE : -1;
    bool right = check_rows(call, e, "recv_x", x->data, row_bytes(m), rows, blank);
    free(rows);
    if (!out->data) return right;
    const uint8_t *behind = (const uint8_t *)out->data + e->x_rows * row_bytes(m);
    return right & CHECK(all_bytes(behind, SPARE_ROWS * row_bytes(m), SPARE_BYTE), "rows behind recv_x were written");
}

/* Column by column, with what is said of the pitch; a copy of them in rows. */
static bool take_columns(const deal_call *call, const expected *e, uint32_t *rows)
{
    const expar_tensor *got = &call->result.recv_x_scales, *own = &call->args.out_scales;
    int64_t width = got->shape[1], pitch = own->ndim && width > 1 ? own->strides[1] : (e->x_rows + 3) / 4 * 4;
    if (!CHECK(got->strides[0] == 1 && got->strides[1] == pitch && (uintptr_t)got->data % 16 == 0,
               "recv_x_scales %p has strides (%lld, %lld), expected (1, %lld)", got->data, (long long)got->strides[0],
               (long long)got->strides[1], (long long)pitch))
        return false;
    for (int64_t row = 0; row < e->x_rows; row++)
        for (int64_t i = 0; i < width; i++)
            rows[row * width + i] = ((uint32_t *)got->data)[row + i * pitch];
    bool right = CHECK(!own->data || got->data == own->data, "recv_x_scales is not the caller's");
    for (int64_t i = 0; right && own->data && i < width; i++)
        right = CHECK(all_bytes((uint8_t *)own->data + 4 * (i * pitch + e->x_rows), 4 * (long)SPARE_ROWS, SPARE_BYTE),
                      "what is behind column %lld was written", (long long)i);
    return right;
}

static bool check_columns(const deal_call *call, const expected *e, uint32_t *scales)
{
    const deal_choice *choice = &call->move->choices[call->rank];
    const expar_tensor *got = &call->result.recv_x_scales;
    int64_t width = call->move->form.num_scales;
    if (!CHECK(got->ndim == 2 && got->dtype == call->args.x_scales.dtype && got->shape[0] == e->x_rows &&
                   got->shape[1] == width,
               "recv_x_scales is [%lld][%lld]", (long long)got->shape[0], (long long)got->shape[1]))
        return false;
    uint32_t *rows = traffic_alloc((size_t)(e->x_rows * width), sizeof *rows);
    bool right = take_columns(call, e, rows) && check_rows(call, e, "recv_x_scales by columns", rows, 4 * width, scales,
                                                           choice->expert_major && choice->zero_padding ? 0 : -1);
    free(rows);
    return right;
}

static bool check_scales(const deal_call *call, const expected *e)
{
    const deal_move *m = call->move;
    const deal_choice *choice = &m->choices[call->rank];
    int64_t width = m->form.num_scales;
    expar_dtype dtype = m->form.packed ? EXPAR_I32 : EXPAR_F32;
    const bool columns = width && choice->column_scales;
    if (!columns && !check_shape(&call->result.recv_x_scales, width > 0, dtype, e->x_rows, width, "recv_x_scales"))
        return false;
    if (!width) return true;
    uint32_t *scales = traffic_alloc((size_t)(e->kept * width), sizeof *scales);
    oracle_dispatch_scales(&m->job, call->rank, scales);
    bool right = columns ? check_columns(call, e, scales)
                         : check_rows(call, e, "recv_x_scales", call->result.recv_x_scales.data, 4 * width, scales,
                                      choice->expert_major && choice->zero_padding ? 0 : -1);
    free(scales);
    return right;
}

static bool check_idx_and_weights(const deal_call *call, const expected *e)
{
    const deal_move *m = call->move;
    const expar_tensor *idx = &call->result.recv_topk_idx, *weights = &call->result.recv_topk_weights;
    bool given = carries_topk(m), weighted = given && m->deal->with_weights;
    int64_t topk = m->job.topk, slots = e->rows * topk;
    if (!check_shape(idx, given, m->deal->wide ? EXPAR_I64 : EXPAR_I32, e->rows, topk, "recv_topk_idx") ||
        !check_shape(weights, weighted, EXPAR_F32, e->rows, topk, "recv_topk_weights"))
        return false;
    if (!given) return true;
    int64_t *right_idx = traffic_alloc((size_t)slots, sizeof *right_idx);
    uint32_t *right_weights = traffic_alloc((size_t)slots, sizeof *right_weights);
    memset(right_idx, 0xff, (size_t)slots * sizeof *right_idx);
    oracle_dispatch(&m->job, call->rank, NULL, right_idx, weighted ? right_weights : NULL);
    int64_t first = m->form.global_experts ? (int64_t)call->rank * (m->job.num_experts / m->job.num_ranks) : 0;
    for (int64_t i = 0; i < slots; i++)
        if (right_idx[i] >= 0) right_idx[i] += first;
    bool right = true;
    for (int64_t i = 0; right && i < slots; i++) {
        int64_t got = m->deal->wide ? ((int64_t *)idx->data)[i] : ((int32_t *)idx->data)[i];
        right = CHECK(got == right_idx[i], "recv_topk_idx[%lld][%lld] is %lld, expected %lld", (long long)(i / topk),
                      (long long)(i % topk), (long long)got, (long long)right_idx[i]);
    }
    if (weighted)
        right &= CHECK(memcmp(weights->data, right_weights, (size_t)(e->kept * topk) * sizeof *right_weights) == 0,
                       "recv_topk_weights differ");
    free(right_idx);
    free(right_weights);
    return right;
}

static bool check_row_weights(const deal_call *call, const expected *e)
{
    const deal_choice *choice = &call->move->choices[call->rank];
    const expar_tensor *got = &call->result.recv_row_weights;
    const void *own = call->args.out_row_weights.data;
    if (!weighs_rows(call)) return CHECK(!got->data && got->ndim == 0, "recv_row_weights is given");
    if (!CHECK(got->ndim == 1 && got->dtype == EXPAR_F32 && got->shape[0] == e->x_rows && got->strides[0] == 1,
               "recv_row_weights is of %d dimensions, [%lld]", (int)got->ndim, (long long)got->shape[0]))
        return false;
    oracle_job job = call->move->job;
    job.expert_alignment = call->move->deal->choices[call->rank].alignment;
    uint32_t *weights = traffic_alloc((size_t)e->x_rows, sizeof *weights);
    oracle_expert_weights(&job, call->rank, weights);
    bool right = CHECK(!own || got->data == own, "recv_row_weights is not the caller's");
    for (int64_t i = 0; right && i < e->x_rows; i++)
        if (e->filled[i] || choice->zero_padding)
            right = CHECK(memcmp((float *)got->data + i, weights + i, sizeof *weights) == 0,
                          "recv_row_weights[%lld] differs", (long long)i);
    free(weights);
    return right && (!own || CHECK(all_bytes((const uint8_t *)own + 4 * e->x_rows, 4L * SPARE_ROWS, SPARE_BYTE),
                                   "what is behind recv_row_weights was written"));
}

static bool check_sources(const deal_call *call, const expected *e)
{
    const deal_move *m = call->move;
    const expar_tensor *src = &call->result.recv_src_token;
    if (!tells_sources(&m->form)) return CHECK(!src->data && src->ndim == 0, "recv_src_token is given");
    if (!CHECK(src->ndim == 1 && src->dtype == EXPAR_I32 && src->shape[0] == e->rows && src->strides[0] == 1,
               "recv_src_token is of %d dimensions, [%lld]", (int)src->ndim, (long long)src->shape[0]))
        return false;
    int32_t *right = traffic_alloc((size_t)e->rows, sizeof *right);
    memset(right, 0xff, (size_t)e->rows * sizeof *right);
    oracle_dispatch_sources(&m->job, call->rank, right);
    bool same = true;
    for (int64_t i = 0; same && i < e->rows; i++)
        same = CHECK(((int32_t *)src->data)[i] == right[i], "recv_src_token[%lld] is %d, expected %d", (long long)i,
                     (int)((int32_t *)src->data)[i], (int)right[i]);
    free(right);
    return same & CHECK(!call->args.out_src_token.data || src->data == call->args.out_src_token.data,
                        "recv_src_token is not the caller's");
}

static bool check_metadata(const deal_call *call, const expected *e)
{
    const deal_move *m = call->move;
    const expar_tensor *got = &call->result.recv_src_metadata;
    int64_t width = 2 + m->job.topk;
    if (!check_shape(got, m->form.src_stride > 0, EXPAR_I32, e->rows, width, "recv_src_metadata")) return false;
    if (!m->form.src_stride) return true;
    int32_t *right = traffic_alloc((size_t)(e->rows * width), sizeof *right);
    memset(right, 0xff, (size_t)(e->rows * width) * sizeof *right);
    oracle_dispatch_metadata(&m->job, call->rank, m->form.src_stride,
                             m->choices[call->rank].expert_major ? e->map : NULL, right);
    bool same = true;
    for (int64_t i = 0; same && i < e->rows * width; i++)
        same = CHECK(((int32_t *)got->data)[i] == right[i], "recv_src_metadata[%lld][%lld] is %d, expected %d",
                     (long long)(i / width), (long long)(i % width), (int)((int32_t *)got->data)[i], (int)right[i]);
    free(right);
    return same;
}

static bool check_map(const deal_call *call, const expected *e)
{
    const expar_tensor *map = &call->result.recv_row_map;
    int64_t topk = call->move->job.topk;
    if (!check_shape(map, call->move->choices[call->rank].expert_major, EXPAR_I32, e->rows, topk, "recv_row_map"))
        return false;
    if (!map->data) return true;
    for (int64_t i = 0; i < e->rows * topk; i++)
        if (!CHECK(((int32_t *)map->data)[i] == e->map[i], "recv_row_map[%lld][%lld] is %d, expected %d",
                   (long long)(i / topk), (long long)(i % topk), (int)((int32_t *)map->data)[i], (int)e->map[i]))
            return false;
    return true;
}

/* What is dropped a call that has waited for its rows knows all the same. */
static bool check_unknown(const deal_call *call, int64_t dropped)
{
    const expar_dispatch_result *result = &call->result;
    if (call->args.async_finish) dropped = 0;
    return CHECK(result->num_recv_tokens == -1 && result->num_dropped_tokens == dropped &&
                     !result->recv_tokens_per_expert,
                 "R is %lld and %lld were dropped, which the host does not know", (long long)result->num_recv_tokens,
                 (long long)result->num_dropped_tokens);
}

static bool check_counts(const deal_call *call, const expected *e)
{
    const deal_move *m = call->move;
    const expar_dispatch_result *result = &call->result;
    oracle_job job = deal_job_of(m->deal, call->rank);
    int32_t locals = job.num_experts / job.num_ranks;
    int64_t dropped = oracle_num_received(&job, call->rank) - e->kept;
    if (!call->told) return check_unknown(call, dropped);
    bool right = CHECK(result->num_recv_tokens == e->kept && result->num_dropped_tokens == dropped,
                       "R is %lld and %lld were dropped, expected %lld and %lld", (long long)result->num_recv_tokens,
                       (long long)result->num_dropped_tokens, (long long)e->kept, (long long)dropped) &
                 CHECK(result->num_local_experts == locals, "L is %d", (int)result->num_local_experts);
    if (m->form.routed) return right;
    if (m->form.kind == MOVE_REPEAT)
        return right & CHECK(!result->recv_tokens_per_expert && !result->handle, "a repeat gave counts or a handle");
    int32_t *counts = traffic_alloc((size_t)locals, sizeof *counts);
    oracle_received_per_expert(&job, call->rank, counts);
    for (int32_t l = 0; right && l < locals; l++)
        right = CHECK(result->recv_tokens_per_expert[l] == counts[l], "recv_tokens_per_expert[%d] is %d, expected %d",
                      (int)l, (int)result->recv_tokens_per_expert[l], (int)counts[l]);
    free(counts);
    return right;
}

/* The caller's own parts are where it said, and nothing stands behind their rows. */
static bool check_own(const deal_call *call)
{
    const expar_dispatch_args *args = &call->args;
    const expar_dispatch_result *result = &call->result;
    const expar_tensor *own[] = {&args->out_scales, &args->out_topk_idx, &args->out_topk_weights, &args->out_row_map,
                                 &args->out_src_metadata};
    const expar_tensor *got[] = {&result->recv_x_scales, &result->recv_topk_idx, &result->recv_topk_weights,
                                 &result->recv_row_map, &result->recv_src_metadata};
    bool right = true;
    for (int i = 0; i < 5 && right; i++) {
        if (!own[i]->data || (i == 0 && args->column_scales)) continue;
        int64_t row = own[i]->shape[1] * (int64_t)expar_dtype_bytes(own[i]->dtype);
        right = CHECK(got[i]->data == own[i]->data, "part %d is not the caller's", i + 1) &&
                CHECK(all_bytes((const uint8_t *)own[i]->data + got[i]->shape[0] * row, SPARE_ROWS * row, SPARE_BYTE),
                      "rows behind part %d were written", i + 1);
    }
    return right;
}

static bool check_copy(const deal_call *call)
{
    const deal *d = call->move->deal;
    const expar_tensor *copy = &call->args.topk_idx_copy;
    const int64_t *right = d->inputs[call->rank].topk_idx;
    for (int64_t i = 0; copy->ndim && i < copy->shape[0] * copy->shape[1]; i++) {
        const int64_t got = d->wide ? ((int64_t *)copy->data)[i] : ((int32_t *)copy->data)[i];
        if (!CHECK(got == right[i], "entry %lld of topk_idx_copy is %lld, expected %lld", (long long)i, (long long)got,
                   (long long)right[i]))
            return false;
    }
    return true;
}

bool deal_dispatch_check(const deal_call *call)
{
    const deal_choice *choice = &call->move->choices[call->rank];
    expected e = expected_make(call);
    bool right = check_counts(call, &e) && check_x(call, &e) && check_scales(call, &e) &&
                 check_idx_and_weights(call, &e) && check_map(call, &e) && check_row_weights(call, &e) &&
                 check_metadata(call, &e) && check_sources(call, &e) && check_own(call) && check_copy(call) &&
                 (!choice->counts || check_told(call)) &&
                 CHECK(choice->path == EXPAR_PATH_AUTO || call->result.path == choice->path, "path is %d, expected %d",
                       (int)call->result.path, (int)choice->path) &&
                 CHECK(pitched_equals(&call->args.x, call->move->inputs[call->rank].x), "the dispatch changed x");
    expected_free(&e);
    return right;
}
