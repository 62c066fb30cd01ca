/* SPDX-License-Identifier: Apache-2.0 */
/* Outputs that outlive their buffer and their group. */
#include "ep/harness/stage.h"
#include "oracle/unit.h"
#include <expar/dlpack.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static ranks_kind kind;

#define RANKS 3

typedef struct load {
    traffic *traffic;
    answers *answers;
    expar_ep_config config;
} load;

static _Thread_local trial_arrival kept; /* what this rank holds when its group has gone */
static _Thread_local int32_t kept_rank;
static _Thread_local expar_dl_versioned *kept_tensor; /* recv_x, by DLPack */

static const trial_choice plain = {.sure_of_pool = true};
static const trial_choice by_queue = {.path = EXPAR_EP_PATH_QUEUE};

/* A buffer, one arrival, and the buffer's end. */
static void leave_arrival(expar_group *group, const load *l, const trial_choice *choice)
{
    expar_ep *ep = NULL;
    kept_rank = expar_group_rank(group);
    if (!CHECK_OK(expar_ep_create(group, &l->config, &ep))) return;
    trial_dispatch(ep, l->traffic, kept_rank, choice, NULL, NULL, &kept);
    CHECK_OK(expar_ep_destroy(ep));
    trial_check_arrival(&kept, kept_rank);
}

static void leave_direct(expar_group *group, void *shared)
{
    leave_arrival(group, shared, &plain);
}

static void leave_queued(expar_group *group, void *shared)
{
    leave_arrival(group, shared, &by_queue);
}

/* The tensor is all that holds the rows when the buffer has gone. */
static void leave_tensor(expar_group *group, void *shared)
{
    void *managed = NULL;
    leave_arrival(group, shared, &plain);
    if (!kept.result.output) return;
    CHECK_OK(expar_ep_output_to_dlpack(kept.result.output, EXPAR_EP_PART_X, EXPAR_DLPACK_VERSION(1, 0), &managed));
    kept_tensor = managed;
    expar_ep_output_release(kept.result.output);
    expar_ep_handle_release(kept.handle);
}

static void *delete_tensor(void *argument)
{
    expar_dl_versioned *tensor = argument;
    tensor->deleter(tensor);
    return NULL;
}

/* Read when its group has gone, too, and deleted by a thread that was never in a call. */
static void read_and_delete(expar_group *none, void *shared)
{
    const load *l = shared;
    const traffic_arrival *arrival = &l->traffic->arrivals[kept_rank];
    pthread_t thread;
    (void)none;
    if (!kept_tensor) return;
    const char *rows = (const char *)kept_tensor->tensor.data + kept_tensor->tensor.byte_offset;
    CHECK(kept_tensor->tensor.shape[0] == arrival->num_rows, "%lld rows", (long long)kept_tensor->tensor.shape[0]);
    CHECK(memcmp(rows, arrival->x, (size_t)arrival->num_rows * traffic_row_bytes(l->traffic)) == 0, "rows differ");
    if (pthread_create(&thread, NULL, delete_tensor, kept_tensor)) abort();
    pthread_join(thread, NULL);
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ep_output_retain(kept.result.output));
}

/* Written to once more, as a program might. */
static void read_and_release(expar_group *none, void *shared)
{
    const load *l = shared;
    (void)none;
    if (!kept.result.output) return;
    trial_check_arrival(&kept, kept_rank);
    memset(kept.result.recv_x.data, 1, (size_t)kept.result.recv_x.shape[0] * traffic_row_bytes(l->traffic));
    trial_release(&kept, kept_rank & 1);
}

/* While the output of a buffer that has gone is held, another one's lie elsewhere; and a combine reads it in place. */
static void outlive_buffer(expar_group *group, void *shared)
{
    const load *l = shared;
    trial_arrival other;
    expar_ep *ep = NULL;
    leave_arrival(group, l, &plain);
    if (!CHECK_OK(expar_ep_create(group, &l->config, &ep))) return;
    trial_dispatch(ep, l->traffic, kept_rank, &plain, NULL, NULL, &other);
    trial_check_arrival(&kept, kept_rank);
    const trial_choice in_place = {.path = EXPAR_EP_PATH_DIRECT};
    trial_combine(ep, l->traffic, l->answers, kept_rank, &in_place, NULL, other.handle, &kept);
    trial_check_arrival(&other, kept_rank);
    trial_release(&other, false);
    CHECK_OK(expar_ep_destroy(ep));
    trial_release(&kept, false);
}

/* Rows of a group that has gone are the caller's memory to another one's combine, and go by the queue. */
static void combine_in_another_group(expar_group *group, void *shared)
{
    const load *l = shared;
    trial_arrival other;
    expar_ep *ep = NULL;
    expar_ep_stats stats = EXPAR_EP_STATS_INIT;
    expar_group *second = ranks_join_again(group);
    if (!second) return;
    leave_arrival(second, l, &plain);
    CHECK_OK(expar_group_destroy(second));
    if (!CHECK_OK(expar_ep_create(group, &l->config, &ep))) return;
    trial_dispatch(ep, l->traffic, kept_rank, &plain, NULL, NULL, &other);
    trial_check_arrival(&kept, kept_rank);
    trial_combine(ep, l->traffic, l->answers, kept_rank, &plain, NULL, other.handle, &kept);
    CHECK_OK(expar_ep_get_stats(ep, &stats));
    CHECK(stats.direct_calls == 1 && stats.queue_calls == 1, "%llu direct calls and %llu by the queue",
          (unsigned long long)stats.direct_calls, (unsigned long long)stats.queue_calls);
    trial_release(&other, false);
    trial_release(&kept, false);
    CHECK_OK(expar_ep_destroy(ep));
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

static void test_rows_of_a_group_that_has_gone(void **state)
{
    (void)state;
    run_bodies(combine_in_another_group, NULL);
}

static void test_tensors_outlive_group(void **state)
{
    (void)state;
    run_bodies(leave_tensor, read_and_delete);
}

static void test_queued_outputs_outlive_group(void **state)
{
    (void)state;
    run_bodies(leave_queued, read_and_release);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_outputs_outlive_buffer),        cmocka_unit_test(test_outputs_outlive_group),
        cmocka_unit_test(test_queued_outputs_outlive_group),  cmocka_unit_test(test_tensors_outlive_group),
        cmocka_unit_test(test_rows_of_a_group_that_has_gone),
    };
    kind = stage_kind(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
