/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a script of low-latency mode on one rank. */
#include "ep/low_latency/script.h"
#include "ep/low_latency/tools.h"
#include "group/group.h"
#include <stdlib.h>
#include <string.h>

typedef struct player {
    const lowlat_script *script;
    expar_ll *ll;
    expar_ep *ep;
    int32_t rank;
    lowlat_call *calls; /* of each op, with no buffer where it is not alive */
    const expar_group *group;
    uint64_t dispatches, combines, messages, rows; /* that went well */
    uint64_t far_rows;                             /* of both, to ranks that are not mapped */
} player;

/* ---- being wrong ------------------------------------------------------------------------------------------------- */

/* Each is EXPAR_ERR_ARGUMENT. */
static void spoil(const lowlat_op *op, lowlat_call *call)
{
    if (op->kind == LOWLAT_DISPATCH && op->manner == 0)
        call->there_args.format = (expar_ll_format)9;
    else if (op->kind == LOWLAT_DISPATCH)
        call->there_args.hook = 2;
    else if (op->manner == 0)
        call->back_args.sum = (expar_ll_sum)5;
    else
        call->back_args.format = (expar_ll_format)9;
}

static void set_index(const lowlat_call *call, int64_t row, int32_t k, int64_t expert)
{
    const expar_tensor *idx = &call->there_args.topk_idx;
    if (idx->dtype == EXPAR_I64)
        ((int64_t *)idx->data)[row * idx->strides[0] + k] = expert;
    else
        ((int32_t *)idx->data)[row * idx->strides[0] + k] = (int32_t)expert;
}

static void make_index_wrong(const lowlat_op *op, const lowlat_call *call)
{
    const llo_job *job = &call->traffic->job;
    int64_t row = call->traffic->inputs[call->rank].num_tokens / 2;
    set_index(call, row, job->topk - 1, op->manner == 1 ? -2 : job->num_experts);
}

/* The others' form, but for its format, its weights, its dtype, or its sum. */
static void make_other_form(const lowlat_op *op, lowlat_call *call)
{
    int64_t tokens = call->traffic->inputs[call->rank].num_tokens;
    const llo_format format = call->traffic->job.format;
    if (call->answers && call->answers->logfmt) {
        call->back_args.format = EXPAR_LL_FORMAT_PLAIN;
    } else if (call->answers && call->answers->job.type != ORACLE_F32) {
        call->back_args.x.dtype = call->answers->job.type == ORACLE_BF16 ? EXPAR_F16 : EXPAR_BF16;
    } else if (call->answers) {
        call->back_args.sum = call->answers->sum == EXPAR_LL_SUM_EXACT ? EXPAR_LL_SUM_REDUCED : EXPAR_LL_SUM_EXACT;
    } else if (format != LLO_PLAIN && op->manner % 2) {
        call->there_args.format = lowlat_format(format >= LLO_INT8 ? LLO_FP8 : format + 1);
        call->there_args.global_scale = EXPAR_TENSOR_NONE;
    } else if (call->traffic->with_weights) {
        free(call->there_args.topk_weights.data);
        call->there_args.topk_weights = EXPAR_TENSOR_NONE;
    } else {
        int32_t topk = call->traffic->job.topk;
        call->there_args.topk_weights =
            expar_tensor_2d(traffic_alloc((size_t)(tokens * topk), sizeof(float)), EXPAR_F32, tokens, topk);
    }
}

static void go_wrong(const lowlat_op *op, lowlat_call *call)
{
    if (call->rank != op->culprit) return;
    if (op->trouble == LOWLAT_REJECTED) spoil(op, call);
    if (op->trouble == LOWLAT_WRONG) make_index_wrong(op, call);
    if (op->trouble == LOWLAT_MISMATCH) make_other_form(op, call);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static bool trial_normal(player *p, const lowlat_op *op)
{
    trial_choice plain = {0};
    trial_area none = {0};
    trial_arrival arrival;
    bool right = trial_dispatch(p->ep, op->normal, p->rank, &plain, &none, NULL, &arrival) &&
                 trial_combine(p->ep, op->normal, op->normal_answers, p->rank, &plain, &none, arrival.handle, &arrival);
    trial_release(&arrival, true);
    return right;
}

static bool is_far(const player *p, int32_t rank)
{
    return rank != p->rank && (p->script->config.unmapped || !sym_maps(p->group->sym, p->rank, rank));
}

/* Messages of this rank to ranks that are not mapped. */
static uint64_t far_messages(const player *p, const lowlat_op *op)
{
    const llo_job *job = &op->traffic->job;
    const oracle_input *input = &job->inputs[p->rank];
    uint64_t messages = 0;
    for (int64_t t = 0; t < input->num_tokens; t++)
        for (int32_t r = 0; r < job->num_ranks; r++) {
            bool goes = false;
            for (int32_t k = 0; k < job->topk; k++) {
                const int64_t expert = input->topk_idx[t * job->topk + k];
                goes = goes || (expert >= 0 && expert / lowlat_locals(job) == r);
            }
            messages += goes && is_far(p, r);
        }
    return messages;
}

/* Rows that this rank sends back: one a slot, or one a token of each rank. far: to ranks that are not mapped. */
static uint64_t rows_back(const player *p, const lowlat_op *op, bool far)
{
    const int32_t rank = p->rank;
    const llo_job *job = &op->traffic->job;
    const int64_t locals = lowlat_locals(job);
    uint64_t rows = 0, tokens = 0;
    for (int64_t i = 0; i < lowlat_places(job); i++) {
        const oracle_input *input = &job->inputs[i / job->max_tokens];
        if (far && !is_far(p, (int32_t)(i / job->max_tokens))) continue;
        const int64_t t = i % job->max_tokens;
        uint64_t here = 0;
        for (int32_t k = 0; k < job->topk && t < input->num_tokens; k++)
            here += op->traffic->map[i * job->topk + k] >= 0 && input->topk_idx[t * job->topk + k] / locals == rank;
        rows += here;
        tokens += here > 0;
    }
    return op->answers->sum == EXPAR_LL_SUM_EXACT ? rows : tokens;
}

static void count(player *p, const lowlat_op *op)
{
    if (op->kind == LOWLAT_DISPATCH) {
        p->dispatches++;
        p->messages += (uint64_t)op->traffic->arrivals[p->rank].messages;
        p->far_rows += far_messages(p, op);
    } else {
        p->combines++;
        p->rows += rows_back(p, op, false);
        p->far_rows += rows_back(p, op, true);
    }
}

/* Once it has ended, by an error or well. What a slot keeps stays. */
static bool settle_call(player *p, int32_t number, expar_status status)
{
    const lowlat_op *op = &p->script->ops[number];
    lowlat_call *call = &p->calls[number];
    bool right = CHECK(status == op->statuses[p->rank], "op %d ended with %s (%s), expected %s", (int)number,
                       expar_status_string(status), status == EXPAR_OK ? "" : expar_last_error(),
                       expar_status_string(op->statuses[p->rank]));
    bool well = right && status == EXPAR_OK;
    if (well) right = CHECK(lowlat_is_right(call), "what came of op %d", (int)number);
    if (!well || op->kind == LOWLAT_COMBINE) lowlat_clean(call);
    return right;
}

static bool start_op(player *p, int32_t number)
{
    const lowlat_op *op = &p->script->ops[number];
    lowlat_call *call = &p->calls[number];
    const lowlat_choice *choice = &op->choices[p->rank];
    if (op->kind == LOWLAT_NORMAL) return trial_normal(p, op);
    if (op->kind == LOWLAT_DISPATCH)
        lowlat_prepare_dispatch(call, p->ll, op->traffic, p->rank, choice);
    else
        lowlat_prepare_combine(call, p->ll, op->traffic, op->answers, p->rank, choice,
                               p->calls[op->source].there.handle);
    go_wrong(op, call);
    expar_status status = lowlat_start(call);
    if (op->trouble == LOWLAT_WELL) count(p, op);
    return (status == EXPAR_OK && call->wants_finish) || settle_call(p, number, status);
}

/* Calls that were reported at the start need no end. */
static bool end_op(player *p, int32_t number)
{
    lowlat_call *call = &p->calls[number];
    return !call->ll || settle_call(p, number, lowlat_end(call));
}

/* Nobody may have written to it since. */
static bool forget_op(player *p, int32_t number)
{
    lowlat_call *call = &p->calls[number];
    bool right = CHECK(lowlat_is_right(call), "what came of op %d has changed", (int)number);
    lowlat_clean(call);
    return right;
}

static bool trial_step(player *p, const lowlat_step *step)
{
    return step->deed == LOWLAT_START ? start_op(p, step->op)
           : step->deed == LOWLAT_END ? end_op(p, step->op)
                                      : forget_op(p, step->op);
}

static bool trial_steps(player *p)
{
    const lowlat_script *s = p->script;
    bool right = true;
    for (int32_t i = 0; right && i < s->num_steps[p->rank]; i++) {
        const lowlat_step *step = &s->steps[p->rank][i];
        if (s->around) s->around(s->around_context, p->rank, i, true);
        right = CHECK(trial_step(p, step), "step %d: %c of op %d", (int)i, "seF"[step->deed], (int)step -> op);
        if (s->around) s->around(s->around_context, p->rank, i, false);
    }
    if (!right && s->around) s->around(s->around_context, p->rank, -1, false);
    return right;
}

static bool check_stats(const player *p)
{
    expar_ll_stats stats = EXPAR_LL_STATS_INIT;
    return CHECK_OK(expar_ll_get_stats(p->ll, &stats)) &&
           (p->script->with_trouble ||
            (CHECK(stats.dispatches == p->dispatches && stats.combines == p->combines,
                   "%llu dispatches and %llu combines are counted, expected %llu and %llu",
                   (unsigned long long)stats.dispatches, (unsigned long long)stats.combines,
                   (unsigned long long)p->dispatches, (unsigned long long)p->combines) &&
             CHECK(stats.dispatch_messages == p->messages, "%llu messages, expected %llu",
                   (unsigned long long)stats.dispatch_messages, (unsigned long long)p->messages) &&
             CHECK(stats.combine_rows == p->rows, "%llu rows came back, expected %llu",
                   (unsigned long long)stats.combine_rows, (unsigned long long)p->rows)));
}

/* The same on CPUs and GPUs, whatever messages carry the rows. */
static bool check_sent(const player *p)
{
    const link_sent sent = ll_sent_so_far(p->ll);
    if (p->script->with_trouble) return true;
    return CHECK(sent.rows == p->far_rows, "%llu rows went to unmapped ranks, expected %llu",
                 (unsigned long long)sent.rows, (unsigned long long)p->far_rows) &&
           CHECK((sent.messages > 0) == (sent.bytes > 0) && sent.bytes >= sent.rows, "%llu messages of %llu bytes",
                 (unsigned long long)sent.messages, (unsigned long long)sent.bytes);
}

/* Results outlive the buffer; hooks say that it has gone. */
static void retire_calls(player *p, bool right)
{
    for (int32_t i = 0; i < p->script->num_ops; i++) {
        lowlat_call *call = &p->calls[i];
        if (!call->ll) continue;
        if (right && call->wants_finish)
            CHECK_STATUS(EXPAR_ERR_STATE, lowlat_end(call));
        else if (right)
            CHECK(lowlat_is_right(call), "what came of op %d, behind the buffer's end", (int)i);
        lowlat_clean(call);
    }
}

void lowlat_script_trial(expar_group *group, void *shared)
{
    const lowlat_script *s = shared;
    player p = {.script = s, .rank = expar_group_rank(group), .group = group};
    expar_ep_config normal = EXPAR_EP_CONFIG_INIT;
    normal.max_tokens = 12;
    normal.max_row_bytes = 64;
    normal.max_topk = 2;
    normal.max_experts = 2 * s->ranks.size;
    p.calls = traffic_alloc((size_t)s->num_ops, sizeof *p.calls);
    bool right = CHECK_OK(expar_ll_create(group, &s->config, &p.ll)) &&
                 (!s->with_normal || CHECK_OK(expar_ep_create(group, &normal, &p.ep)));
    if (right && s->prepare) s->prepare(s->prepare_context, p.ll, p.rank);
    right = right && trial_steps(&p) && check_stats(&p) && check_sent(&p);
    if (!right) expar_group_abort(group);
    CHECK_OK(expar_ep_destroy(p.ep));
    CHECK_OK(expar_ll_destroy(p.ll));
    retire_calls(&p, right);
    free(p.calls);
}
