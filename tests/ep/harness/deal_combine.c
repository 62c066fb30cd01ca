/* SPDX-License-Identifier: Apache-2.0 */
/* Combines of a deal against the oracle. */
#include "ep/harness/deal.h"
#include "ep/harness/pitched.h"
#include <stdlib.h>
#include <string.h>

static int64_t gap_of(const deal_move *m, const deal_choice *choice)
{
    return choice->pad * 16 / (int64_t)oracle_element_bytes(m->form.type);
}

/* x, and after it the weights, in symmetric memory. False when they do not fit. */
static bool place_in_area(deal_call *call, const trial_area *area)
{
    const deal_move *m = call->move;
    const deal_choice *choice = &m->choices[call->rank];
    int64_t rows = move_num_x_rows(m, call->rank), gap = gap_of(m, choice), width = move_weights_width(m, call->rank);
    size_t pitch = (size_t)(m->form.hidden + gap) * oracle_element_bytes(m->form.type);
    size_t bytes = ((size_t)rows * pitch + 127) / 128 * 128;
    int64_t weights_rows = move_num_weights_rows(m, call->rank);
    if (bytes + (size_t)(weights_rows * (width + choice->pad)) * sizeof(float) > area->bytes) return false;
    call->back.x = pitched_view(area->in, deal_dtype(m->form.type), rows, m->form.hidden, gap);
    pitched_fill(&call->back.x, m->x[call->rank]);
    if (!m->form.with_weights) return true;
    call->back.topk_weights = pitched_view((char *)area->in + bytes, EXPAR_F32, weights_rows, width, choice->pad);
    pitched_fill(&call->back.topk_weights, m->weights[call->rank]);
    return true;
}

static void place_in_private(deal_call *call)
{
    const deal_move *m = call->move;
    const deal_choice *choice = &m->choices[call->rank];
    call->back.x = pitched_make_filled(m->x[call->rank], deal_dtype(m->form.type), move_num_x_rows(m, call->rank),
                                       m->form.hidden, gap_of(m, choice), choice->null_if_empty);
    call->memory[0] = call->back.x.data;
    if (!m->form.with_weights) return;
    call->back.topk_weights =
        pitched_make_filled(m->weights[call->rank], EXPAR_F32, move_num_weights_rows(m, call->rank),
                            move_weights_width(m, call->rank), choice->pad, choice->null_if_empty);
    call->memory[1] = call->back.topk_weights.data;
}

static const expar_ep_sum_order sum_orders[ORDERS] = {[ORDER_BY_RANK] = EXPAR_EP_SUM_ORDER_BY_RANK,
                                                      [ORDER_BY_SLOT] = EXPAR_EP_SUM_ORDER_BY_SLOT,
                                                      [ORDER_EACH_SLOT] = EXPAR_EP_SUM_ORDER_EACH_SLOT};

static const expar_ep_nodes_sum nodes_sums[ORACLE_NODES_KINDS] = {
    [ORACLE_NODES_ROUNDED] = EXPAR_EP_NODES_SUM_ROUNDED,
    [ORACLE_NODES_EXACT] = EXPAR_EP_NODES_SUM_EXACT,
    [ORACLE_NODES_ONE_ORDER] = EXPAR_EP_NODES_SUM_ONE_ORDER,
    [ORACLE_NODES_OWN_FIRST] = EXPAR_EP_NODES_SUM_OWN_FIRST};

bool deal_combine_start(deal_call *call, expar_ep *ep, const trial_area *area, const expar_ep_handle *handle,
                        expar_event *wait_event)
{
    const deal_move *m = call->move;
    const deal_choice *choice = &m->choices[call->rank];
    expar_dtype dtype = deal_dtype(m->form.type);
    int64_t tokens = m->inputs[call->rank].num_tokens, gap = gap_of(m, choice);
    call->back = (expar_ep_combine_args)EXPAR_EP_COMBINE_ARGS_INIT;
    expar_ep_combine_args *args = &call->back;
    args->path = choice->path;
    if (choice->place != PLACE_SYMMETRIC || !place_in_area(call, area)) {
        place_in_private(call);
        bool reduced = choice->expert_major && m->form.order != ORDER_EACH_SLOT;
        if (args->path == EXPAR_EP_PATH_DIRECT && !reduced) args->path = EXPAR_EP_PATH_QUEUE;
    }
    args->handle = handle;
    args->out_y = pitched_make(dtype, tokens, m->form.hidden, gap, choice->null_if_empty);
    if (m->form.with_weights)
        args->out_topk_weights = pitched_make(EXPAR_F32, tokens, m->job.topk, choice->pad, choice->null_if_empty);
    for (int i = 0; i < 2; i++)
        if (m->bias[i][call->rank])
            args->bias[i] =
                pitched_make_filled(m->bias[i][call->rank], dtype, tokens, m->form.hidden, gap, choice->null_if_empty);
    args->expert_major = choice->expert_major;
    args->sum_order = sum_orders[m->form.order];
    args->nodes_sum = nodes_sums[m->form.nodes];
    args->weights_of = m->form.owners_weights ? EXPAR_EP_WEIGHTS_OF_OWNER : EXPAR_EP_WEIGHTS_OF_ALL;
    if (m->expert_weights[call->rank])
        args->expert_weights =
            pitched_make_filled(m->expert_weights[call->rank], EXPAR_F32, oracle_num_rows(&m->job, call->rank),
                                m->job.topk, choice->pad, choice->null_if_empty);
    args->wait_event = wait_event;
    args->async_finish = choice->async;
    args->num_sms = choice->num_sms;
    if (m->form.rejection == REJECTION_EARLY && m->form.refuser == call->rank) args->path = (expar_ep_path)7;
    expar_ep_combine_result done = EXPAR_EP_COMBINE_RESULT_INIT;
    expar_status status = expar_ep_combine(ep, args, choice->async ? &done : NULL);
    const expar_status expected = deal_call_returning_on(call, ep, status);
    call->event = done.event;
    call->issued = expected == EXPAR_OK;
    return CHECK_STATUS(expected, status) &&
           CHECK(!call->event == !(choice->async && call->issued), "an event is %s", call->event ? "given" : "missing");
}

void deal_combine_clean(deal_call *call)
{
    free(call->memory[0]);
    free(call->memory[1]);
    pitched_free(&call->back.out_y);
    pitched_free(&call->back.out_topk_weights);
    pitched_free(&call->back.bias[0]);
    pitched_free(&call->back.bias[1]);
    pitched_free(&call->back.expert_weights);
}

/* Each rank's answer for its tokens: its rows, or the sums of its expert-major ones. */
static void *returned_rows(const deal_move *m, int32_t rank)
{
    oracle_job job = m->job;
    job.expert_alignment = m->deal->choices[rank].alignment;
    size_t bytes = (size_t)job.hidden * oracle_element_bytes(job.type);
    size_t kept = (size_t)oracle_num_kept(&job, rank);
    void *rows = traffic_alloc(kept, bytes);
    if (m->choices[rank].expert_major)
        oracle_expert_reduce(&job, rank, m->x[rank], m->expert_weights[rank], rows);
    else
        memcpy(rows, m->x[rank], kept * bytes);
    return rows;
}

static int32_t *row_map(const deal_move *m, int32_t rank)
{
    oracle_job job = m->job;
    job.expert_alignment = m->deal->choices[rank].alignment;
    int32_t *map = traffic_alloc((size_t)(oracle_num_rows(&job, rank) * job.topk), sizeof *map);
    oracle_expert_map(&job, rank, map);
    return map;
}

static void free_all(void **each, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        free(each[i]);
    free(each);
}

static void fill_expected(const deal_move *m, int32_t rank, void *expected)
{
    const int32_t n = m->job.num_ranks;
    const void *const biases[2] = {m->bias[0][rank], m->bias[1][rank]};
    void **each = traffic_alloc((size_t)n, sizeof *each);
    const void *const *rows = (const void *const *)each;
    for (int32_t r = 0; r < n; r++)
        each[r] = m->form.order == ORDER_EACH_SLOT ? (void *)row_map(m, r) : returned_rows(m, r);
    if (m->form.order == ORDER_EACH_SLOT)
        oracle_combine_each_slot(&m->job, rank, biases, (const int32_t *const *)each, (const void *const *)m->x,
                                 expected);
    else if (m->form.order == ORDER_BY_SLOT)
        oracle_combine_by_slot(&m->job, rank, biases, rows, expected);
    else
        oracle_combine_biased(&m->job, rank, biases, rows, expected);
    free_all(each, n);
}

/* Names the first element that differs. */
static bool check_y(const deal_call *call)
{
    const deal_move *m = call->move;
    const expar_tensor *y = &call->back.out_y;
    void *expected = traffic_alloc((size_t)(y->shape[0] * y->shape[1]), oracle_element_bytes(m->form.type));
    fill_expected(m, call->rank, expected);
    bool right = CHECK(pitched_gaps_intact(y), "the combine wrote beyond the rows of y");
    for (int64_t i = 0; right && i < y->shape[0] * y->shape[1]; i++) {
        int64_t row = i / y->shape[1], column = i % y->shape[1];
        uint32_t got = oracle_load(m->form.type, y->data, row * y->strides[0] + column);
        uint32_t wanted = oracle_load(m->form.type, expected, i);
        right =
            CHECK(got == wanted, "y[%lld][%lld] is %#x, expected %#x", (long long)row, (long long)column, got, wanted);
    }
    free(expected);
    return right;
}

/* [rows][K] of what the rank gave, at the slots of its rows. */
static uint32_t *weights_of_slots(const deal_move *m, int32_t rank)
{
    int64_t slots = oracle_num_rows(&m->job, rank) * m->job.topk;
    uint32_t *weights = traffic_alloc((size_t)slots, sizeof *weights);
    if (!move_weighs_rows(m, rank)) {
        memcpy(weights, m->weights[rank], (size_t)slots * sizeof *weights);
        return weights;
    }
    int32_t *map = row_map(m, rank);
    for (int64_t i = 0; i < slots; i++)
        weights[i] = map[i] < 0 ? 0 : m->weights[rank][map[i]];
    free(map);
    return weights;
}

static void fill_expected_weights(const deal_move *m, int32_t rank, uint32_t *expected)
{
    if (!m->form.owners_weights) {
        oracle_combine_weights(&m->job, rank, (const uint32_t *const *)m->weights, expected);
        return;
    }
    void **each = traffic_alloc((size_t)m->job.num_ranks, sizeof *each);
    for (int32_t r = 0; r < m->job.num_ranks; r++)
        each[r] = weights_of_slots(m, r);
    oracle_owners_weights(&m->job, rank, (const uint32_t *const *)each, expected);
    free_all(each, m->job.num_ranks);
}

static bool check_summed(const deal_call *call)
{
    const deal_move *m = call->move;
    const expar_tensor *summed = &call->back.out_topk_weights;
    if (!m->form.with_weights) return true;
    uint32_t *expected = traffic_alloc((size_t)(summed->shape[0] * summed->shape[1]), sizeof *expected);
    fill_expected_weights(m, call->rank, expected);
    bool right = CHECK(pitched_equals(summed, expected), "out_topk_weights differ") &
                 CHECK(pitched_gaps_intact(summed), "the combine wrote beyond out_topk_weights");
    free(expected);
    return right;
}

bool deal_combine_check(const deal_call *call)
{
    return check_y(call) & check_summed(call) &
           CHECK(pitched_equals(&call->back.x, call->move->x[call->rank]), "the combine changed x");
}
