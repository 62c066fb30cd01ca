/* SPDX-License-Identifier: Apache-2.0 */
/* Draws deals and moves. */
#include "ep/harness/deal.h"
#include "ep/normal/normal.h"
#include <stdlib.h>
#include <string.h>

expar_dtype deal_dtype(oracle_type type)
{
    static const expar_dtype dtypes[] = {[ORACLE_BF16] = EXPAR_BF16,
                                         [ORACLE_F16] = EXPAR_F16,
                                         [ORACLE_F32] = EXPAR_F32,
                                         [ORACLE_F8E4M3] = EXPAR_F8E4M3,
                                         [ORACLE_I8] = EXPAR_I8};
    return dtypes[type];
}

oracle_job deal_job_of(const deal *d, int32_t rank)
{
    oracle_job job = d->job;
    job.expert_alignment = d->choices[rank].alignment;
    return job;
}

/* ---- routing ----------------------------------------------------------------------------------------------------- */

/* Mostly where the experts are, now and then elsewhere or nowhere; any value but 0 means yes. */
static uint8_t *draw_ranks(const deal *d, int32_t rank, random_source *random)
{
    static const uint8_t yes[] = {1, 1, 7, 255};
    int64_t count = d->inputs[rank].num_tokens;
    uint8_t *in_rank = traffic_alloc((size_t)(count * d->job.num_ranks), 1);
    for (int64_t t = 0; t < count; t++)
        for (int32_t r = 0; r < d->job.num_ranks; r++) {
            bool goes =
                d->inputs[rank].topk_idx ? oracle_token_in_rank(&d->job, rank, t, r) : random_once_in(random, 2);
            if (random_once_in(random, 8)) goes = !goes;
            if (goes) in_rank[t * d->job.num_ranks + r] = yes[random_between(random, 0, 3)];
        }
    return in_rank;
}

static int32_t *draw_counts(const deal *d, random_source *random)
{
    int32_t *counts = traffic_alloc((size_t)d->job.num_experts, sizeof *counts);
    for (int32_t e = 0; e < d->job.num_experts; e++)
        counts[e] = (int32_t)random_between(random, 0, 40);
    return counts;
}

static uint32_t *draw_weights(int64_t rows, int64_t width, random_source *random)
{
    uint32_t *weights = traffic_alloc((size_t)(rows * width), sizeof *weights);
    traffic_fill_rows(random, ORACLE_F32, rows, width, weights);
    return weights;
}

static void draw_routing(deal *d, const deal_plan *plan, int32_t rank, random_source *random)
{
    oracle_input *input = &d->inputs[rank];
    input->num_tokens = plan->num_tokens[rank];
    if (plan->topk) {
        int64_t *idx = traffic_alloc((size_t)(input->num_tokens * plan->topk), sizeof *idx);
        routing_fill(plan->routing, random, input->num_tokens, plan->topk, plan->num_experts, idx);
        if (plan->disturb) routing_disturb(random, plan->disturb, input->num_tokens, plan->topk, idx);
        input->topk_idx = idx;
        if (plan->with_weights) input->weights = draw_weights(input->num_tokens, plan->topk, random);
    }
    if (plan->by_hand) input->token_in_rank = draw_ranks(d, rank, random);
    if (plan->with_counts && !plan->topk) input->tokens_per_expert = draw_counts(d, random);
}

static int64_t worst_tokens(const deal *d, int32_t rank)
{
    int64_t coming = oracle_num_received(&d->job, rank);
    switch (d->choices[rank].worst) {
    case WORST_EXACT:
        return coming;
    case WORST_ONE_SHORT:
        return coming > 0 ? coming - 1 : 0;
    case WORST_ONE:
        return 1;
    case WORST_LARGER:
        return coming + 3;
    default:
        return 0;
    }
}

static int64_t expert_rows(const deal *d, int32_t rank)
{
    const oracle_job job = deal_job_of(d, rank);
    const int64_t all = oracle_num_expert_rows(&job, rank);
    switch (d->choices[rank].limit) {
    case LIMIT_EXACT:
        return all;
    case LIMIT_ONE_SHORT:
        return all > 0 ? all - 1 : 0;
    case LIMIT_HALF:
        return all / 2;
    case LIMIT_LARGER:
        return all + 3;
    default:
        return 0;
    }
}

deal *deal_make(const deal_plan *plan, random_source *random)
{
    size_t n = (size_t)plan->num_ranks;
    deal *d = traffic_alloc(1, sizeof *d);
    d->job = (oracle_job){.num_ranks = plan->num_ranks,
                          .ranks_per_node = plan->ranks_per_node ? plan->ranks_per_node : plan->num_ranks,
                          .topk = plan->topk,
                          .num_experts = plan->num_experts};
    d->wide = plan->wide;
    d->with_weights = plan->with_weights && plan->topk;
    d->keep_slots = plan->keep_slots && plan->topk;
    d->inputs = traffic_alloc(n, sizeof *d->inputs);
    d->job.inputs = d->inputs;
    d->choices = traffic_alloc(n, sizeof *d->choices);
    memcpy(d->choices, plan->choices, n * sizeof *d->choices);
    for (int32_t r = 0; r < plan->num_ranks; r++)
        draw_routing(d, plan, r, random);
    for (int32_t r = 0; plan->topk && r < plan->num_ranks; r++)
        d->inputs[r].num_worst_tokens = worst_tokens(d, r);
    for (int32_t r = 0; plan->topk && r < plan->num_ranks; r++)
        if (d->choices[r].expert_major) d->inputs[r].num_expert_rows = expert_rows(d, r);
    return d;
}

void deal_free(deal *d)
{
    if (!d) return;
    for (int32_t r = 0; r < d->job.num_ranks; r++) {
        free((void *)(uintptr_t)d->inputs[r].topk_idx);
        free((void *)(uintptr_t)d->inputs[r].weights);
        free((void *)(uintptr_t)d->inputs[r].token_in_rank);
        free((void *)(uintptr_t)d->inputs[r].tokens_per_expert);
    }
    free(d->inputs);
    free(d->choices);
    free(d);
}

/* ---- moves ------------------------------------------------------------------------------------------------------- */

static void *draw_rows(const deal_move *m, int64_t rows, random_source *random)
{
    size_t bytes = oracle_element_bytes(m->form.type);
    void *x = traffic_alloc((size_t)(rows * m->form.hidden), bytes);
    if (bytes > 1)
        traffic_fill_rows(random, m->form.type, rows, m->form.hidden, x);
    else
        for (int64_t i = 0; i < rows * m->form.hidden; i++)
            ((uint8_t *)x)[i] = (uint8_t)random_bits(random);
    return x;
}

/* Any bits: they are carried, never looked at. */
static uint32_t *draw_scales(const deal_move *m, int64_t rows, random_source *random)
{
    int64_t count = rows * m->form.num_scales;
    uint32_t *scales = traffic_alloc((size_t)count, sizeof *scales);
    for (int64_t i = 0; i < count; i++)
        scales[i] = (uint32_t)random_bits(random);
    return scales;
}

int64_t move_num_x_rows(const deal_move *m, int32_t rank)
{
    oracle_job job = deal_job_of(m->deal, rank);
    return m->choices[rank].expert_major ? oracle_num_expert_rows(&job, rank) : oracle_num_rows(&job, rank);
}

bool move_weighs_rows(const deal_move *m, int32_t rank)
{
    return m->form.owners_weights && m->choices[rank].expert_major;
}

int64_t move_num_weights_rows(const deal_move *m, int32_t rank)
{
    return move_weighs_rows(m, rank) ? move_num_x_rows(m, rank) : oracle_num_rows(&m->job, rank);
}

int64_t move_weights_width(const deal_move *m, int32_t rank)
{
    return move_weighs_rows(m, rank) ? 1 : m->job.topk;
}

static void draw_answers(deal_move *m, int32_t rank, random_source *random)
{
    const deal_choice *choice = &m->choices[rank];
    int64_t rows = oracle_num_rows(&m->job, rank);
    m->x[rank] = draw_rows(m, move_num_x_rows(m, rank), random);
    m->weights[rank] = draw_weights(move_num_weights_rows(m, rank), move_weights_width(m, rank), random);
    if (choice->expert_major && choice->expert_weights && m->form.order != ORDER_EACH_SLOT)
        m->expert_weights[rank] = draw_weights(rows, m->job.topk, random);
    for (int i = 0; i < 2; i++)
        if (choice->biases & 1 << i) m->bias[i][rank] = draw_rows(m, m->inputs[rank].num_tokens, random);
}

deal_move *move_make(const deal *d, const move_form *form, const deal_choice *choices, random_source *random)
{
    size_t n = (size_t)d->job.num_ranks;
    deal_move *m = traffic_alloc(1, sizeof *m);
    *m = (deal_move){.deal = d, .form = *form, .job = d->job};
    m->inputs = traffic_alloc(n, sizeof *m->inputs);
    memcpy(m->inputs, d->inputs, n * sizeof *m->inputs);
    m->choices = traffic_alloc(n, sizeof *m->choices);
    memcpy(m->choices, choices, n * sizeof *m->choices);
    m->job.inputs = m->inputs;
    m->job.type = form->type;
    m->job.nodes = form->nodes;
    m->job.hidden = form->hidden;
    m->job.num_scales = form->num_scales;
    m->x = traffic_alloc(n, sizeof *m->x);
    m->weights = traffic_alloc(n, sizeof *m->weights);
    m->expert_weights = traffic_alloc(n, sizeof *m->expert_weights);
    for (int i = 0; i < 2; i++)
        m->bias[i] = traffic_alloc(n, sizeof *m->bias[i]);
    for (int32_t r = 0; r < d->job.num_ranks; r++) {
        if (form->kind == MOVE_COMBINE) {
            draw_answers(m, r, random);
            continue;
        }
        m->inputs[r].x = draw_rows(m, m->inputs[r].num_tokens, random);
        if (form->num_scales) m->inputs[r].scales = draw_scales(m, m->inputs[r].num_tokens, random);
    }
    return m;
}

void move_free(deal_move *m)
{
    if (!m) return;
    for (int32_t r = 0; r < m->job.num_ranks; r++) {
        free((void *)(uintptr_t)m->inputs[r].x);
        free((void *)(uintptr_t)m->inputs[r].scales);
        free(m->x[r]);
        free(m->weights[r]);
        free(m->expert_weights[r]);
        free(m->bias[0][r]);
        free(m->bias[1][r]);
    }
    free(m->inputs);
    free(m->choices);
    free(m->x);
    free(m->weights);
    free(m->expert_weights);
    free(m->bias[0]);
    free(m->bias[1]);
    free(m);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

bool deal_call_start(deal_call *call, expar_ep *ep, const deal_move *m, int32_t rank, const trial_area *area,
                     const expar_ep_handle *handle, expar_event *wait_event)
{
    *call = (deal_call){.move = m, .rank = rank};
    call->started = m->form.kind == MOVE_COMBINE ? deal_combine_start(call, ep, area, handle, wait_event)
                                                 : deal_dispatch_start(call, ep, area, handle, wait_event);
    return call->started;
}

static bool is_refuser(const deal_call *call)
{
    return call->move->form.refuser == call->rank;
}

expar_status deal_call_ending(const deal_call *call)
{
    const deal_move *m = call->move;
    if (m->form.rejection != REJECTION_NONE && !is_refuser(call)) return EXPAR_ERR_REMOTE;
    if (m->form.rejection == REJECTION_EARLY) return EXPAR_ERR_ARGUMENT;
    if (m->form.rejection == REJECTION_LATE) return EXPAR_ERR_BUFFER_SIZE;
    bool dropped = oracle_num_kept(&m->job, call->rank) < oracle_num_received(&m->job, call->rank);
    return dropped && m->form.kind != MOVE_COMBINE ? EXPAR_ERR_DROPPED : EXPAR_OK;
}

/* A worst-case output is made before the others are told anything: an error in it is an early rejection. */
static bool has_worst(const deal_call *call, int32_t rank)
{
    const deal_move *m = call->move;
    return move_is_fresh(&m->form) && m->deal->inputs[rank].num_worst_tokens;
}

/* A first dispatch hears of early rejections before it returns; with num_worst_tokens it waits for none of the others,
   and hears of them at its event. */
static bool hears_of_rejection(const deal_call *call)
{
    const move_form *form = &call->move->form;
    if (!move_is_fresh(form) || form->rejection == REJECTION_NONE) return false;
    if (has_worst(call, call->rank)) return false;
    return form->rejection == REJECTION_EARLY || has_worst(call, form->refuser);
}

expar_status deal_call_returning(const deal_call *call)
{
    bool rejected = call->move->form.rejection != REJECTION_NONE && is_refuser(call);
    bool at_once = !call->move->choices[call->rank].async || rejected || hears_of_rejection(call);
    return at_once ? deal_call_ending(call) : EXPAR_OK;
}

expar_status deal_call_returning_on(const deal_call *call, const expar_ep *ep, expar_status status)
{
    expar_status expected = deal_call_returning(call);
    bool may_grow = ep->shape.row_bytes == 0 && call->move->form.rejection == REJECTION_EARLY;
    return may_grow && expected == EXPAR_OK && status != EXPAR_OK ? deal_call_ending(call) : expected;
}

static bool await_end(deal_call *call)
{
    int done = 0;
    bool right = CHECK_STATUS(deal_call_ending(call), expar_event_wait(call->event)) &
                 CHECK_OK(expar_event_query(call->event, &done)) &
                 CHECK(done == 1, "an event is not done after a wait");
    expar_event_release(call->event);
    return right;
}

bool deal_call_finish(deal_call *call)
{
    if (!call->started) return false;
    bool combine = call->move->form.kind == MOVE_COMBINE;
    bool right = !call->event || await_end(call);
    if (right && call->issued && call->move->form.rejection == REJECTION_NONE)
        right = combine ? deal_combine_check(call) : deal_dispatch_check(call);
    if (combine)
        deal_combine_clean(call);
    else
        deal_dispatch_clean(call);
    call->started = false;
    return right;
}

bool deal_call_make(deal_call *call, expar_ep *ep, const deal_move *m, int32_t rank, const trial_area *area,
                    const expar_ep_handle *handle)
{
    return deal_call_start(call, ep, m, rank, area, handle, NULL) && deal_call_finish(call);
}
