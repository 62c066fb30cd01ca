/* SPDX-License-Identifier: Apache-2.0 */
/* Setting and clearing the stage. */
#include "ep/harness/stage.h"
#include <stdlib.h>
#include <string.h>

#define POOL_BYTES  ((int64_t)64 << 20)
#define SLACK_BYTES ((size_t)16 << 20)

stage_plan stage_plan_for(const traffic *t, ranks_kind kind)
{
    stage_plan plan = {.ranks = {.kind = kind, .size = t->job.num_ranks}, .config = EXPAR_EP_CONFIG_INIT};
    int64_t total = 0;
    for (int32_t r = 0; r < t->job.num_ranks; r++) {
        int64_t count = t->inputs[r].num_tokens;
        total += count;
        if (count > plan.config.max_tokens) plan.config.max_tokens = count;
    }
    if (t->job.ranks_per_node < t->job.num_ranks)
        plan.ranks.ranks_per_node = plan.config.ranks_per_node = t->job.ranks_per_node;
    plan.config.max_row_bytes = (int64_t)traffic_row_bytes(t);
    plan.config.max_topk = t->job.topk;
    plan.config.max_experts = t->job.num_experts;
    plan.config.pool_limit_bytes = POOL_BYTES;
    plan.area_bytes = (size_t)(total + 8) * (traffic_row_bytes(t) + 4 * (size_t)t->job.topk) + 4096;
    return plan;
}

typedef struct staged {
    const stage_plan *plan;
    stage_body body;
    void *shared;
} staged;

static void stage_rank(expar_group *group, void *shared)
{
    const staged *show = shared;
    stage s = {.group = group, .rank = expar_group_rank(group)};
    if (!CHECK_OK(expar_ep_create(group, &show->plan->config, &s.ep))) return;
    if (trial_area_take(group, show->plan->area_bytes, &s.area)) show->body(&s, show->shared);
    if (check_failures())
        expar_group_abort(group);
    else
        trial_area_give(group, &s.area);
    CHECK_OK(expar_ep_destroy(s.ep));
}

bool stage_run(const stage_plan *plan, stage_body body, void *shared)
{
    staged show = {plan, body, shared};
    ranks_plan ranks = plan->ranks;
    size_t bytes = 0;
    check_begin(-1);
    if (!CHECK_OK(expar_ep_get_buffer_size(&plan->config, ranks.size, &bytes))) return false;
    ranks.heap_bytes = bytes + 2 * plan->area_bytes + SLACK_BYTES + plan->spare_heap_bytes;
    return ranks_run(&ranks, stage_rank, &show);
}

bool stage_round_trip(stage *s, const traffic *t, const answers *a, expar_ep_path path)
{
    trial_arrival arrival;
    trial_choice there = {.path = path, .sure_of_pool = true};
    trial_choice back = {.path = path, .place = path == EXPAR_EP_PATH_DIRECT ? PLACE_SYMMETRIC : PLACE_LIBRARY};
    bool right = trial_dispatch(s->ep, t, s->rank, &there, &s->area, NULL, &arrival) &&
                 trial_combine(s->ep, t, a, s->rank, &back, &s->area, arrival.handle, &arrival);
    trial_release(&arrival, true);
    return right;
}

ranks_kind stage_kind(int argc, char **argv)
{
    return argc > 1 && strcmp(argv[1], "processes") == 0 ? RANKS_PROCESSES : RANKS_THREADS;
}
