/* SPDX-License-Identifier: Apache-2.0 */
/* Outputs that outlive their buffer and their group. */
#include "ep/stage.h"
#include "oracle/unit.h"
#include <string.h>

static ranks_kind kind;

#define RANKS 3

typedef struct load {
    traffic *traffic;
    answers *answers;
    expar_ep_config config;
} load;

static _Thread_local play_arrival kept; /* what this rank holds when its group has gone */
static _Thread_local int32_t kept_rank;

static const play_choice plain = {.sure_of_pool = true};
static const play_choice by_queue = {.path = EXPAR_PATH_QUEUE};

/* A buffer, one arrival, and the buffer's end. */
static void leave_arrival(expar_group *group, const load *l, const play_choice *choice)
{
    expar_ep *ep = NULL;
    kept_rank = expar_group_rank(group);
    if (!CHECK_OK(expar_ep_create(group, &l->config, &ep))) return;
    play_dispatch(ep, l->traffic, kept_rank, choice, NULL, NULL, &kept);
    CHECK_OK(expar_ep_destroy(ep));
    play_check_arrival(&kept, kept_rank);
}

static void leave_direct(expar_group *group, void *shared)
{
    leave_arrival(group, shared, &plain);
}

static void leave_queued(expar_group *group, void *shared)
{
    leave_arrival(group, shared, &by_queue);
}

/* Written to once more, as a program might. */
static void read_and_release(expar_group *none, void *shared)
{
    const load *l = shared;
    (void)none;
    if (!kept.result.output) return;
    play_check_arrival(&kept, kept_rank);
    memset(kept.result.recv_x.data, 1, (size_t)kept.result.recv_x.shape[0] * traffic_row_bytes(l->traffic));
    play_release(&kept, kept_rank & 1);
}

/* While the output of a buffer that has gone is held, another one's lie elsewhere; and a combine reads it in place. */
static void outlive_buffer(expar_group *group, void *shared)
{
    const load *l = shared;
    play_arrival other;
    expar_ep *ep = NULL;
    leave_arrival(group, l, &plain);
    if (!CHECK_OK(expar_ep_create(group, &l->config, &ep))) return;
    play_dispatch(ep, l->traffic, kept_rank, &plain, NULL, NULL, &other);
    play_check_arrival(&kept, kept_rank);
    const play_choice in_place = {.path = EXPAR_PATH_DIRECT};
    play_combine(ep, l->traffic, l->answers, kept_rank, &in_place, NULL, other.handle, &kept);
    play_check_arrival(&other, kept_rank);
    play_release(&other, false);
    CHECK_OK(expar_ep_destroy(ep));
    play_release(&kept, false);
}

static void run_bodies(ranks_body body, ranks_body after)
{
    static const int64_t num_tokens[RANKS] = {40, 0, 57};
    random_source random = random_start(11);
    const traffic_plan plan = {
        .num_ranks = RANKS, .hidden = 512, .topk = 3, .num_experts = 6, .with_weights = true, .num_tokens = num_tokens};
    load l = {.traffic = traffic_make(&plan, &random)};
    l.answers = answers_make(l.traffic, false, &random);
    l.config = stage_plan_for(l.traffic, kind).config;
    const ranks_plan ranks = {.kind = kind, .size = RANKS, .after = after};
    const bool passed = ranks_run(&ranks, body, &l);
    answers_free(l.answers);
    traffic_free(l.traffic);
    assert_true(passed);
}

static void test_outputs_outlive_buffer(void **state)
{
    (void)state;
    run_bodies(outlive_buffer, NULL);
}

static void test_outputs_outlive_group(void **state)
{
    (void)state;
    run_bodies(leave_direct, read_and_release);
}

static void test_queued_outputs_outlive_group(void **state)
{
    (void)state;
    run_bodies(leave_queued, read_and_release);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_outputs_outlive_buffer),
        cmocka_unit_test(test_outputs_outlive_group),
        cmocka_unit_test(test_queued_outputs_outlive_group),
    };
    kind = stage_kind(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
