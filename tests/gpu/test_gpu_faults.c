/* SPDX-License-Identifier: Apache-2.0 */
/* Process ranks on GPUs, each with its own context: one is killed or stopped, before a call, in it, or while many rows
 * move. The others name it, are told the same again at once, find that their GPU serves other work, destroy buffer and
 * group, and end. With the argument "nodes" each rank is a node; after it may stand a pattern of tests. */
#include "ep/normal/normal.h"
#include "faults/fault.h"
#include "gpu/layer.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

/* Long enough for ranks that have done two rounds. */
#define SILENCE_MS 4000

/* 0: the library finds out; 1, with the argument "nodes": each rank is a node. */
static int32_t ranks_per_node;

static void strike(fault_place place, int32_t victim, int signal)
{
    const fault_plan plan = {.size = 3,
                             .ranks_per_node = ranks_per_node,
                             .victim = victim,
                             .place = place,
                             .round = 2,
                             .held_back = (victim + 1) % 3,
                             .signal = signal,
                             .timeout_ms = signal == SIGSTOP ? SILENCE_MS : 0};
    assert_true(fault_run(&plan));
}

static void test_killed_inside_a_dispatch(void **state)
{
    (void)state;
    strike(FAULT_DISPATCHES, 0, SIGKILL);
    strike(FAULT_DISPATCHES, 2, SIGKILL);
}

static void test_killed_inside_a_combine(void **state)
{
    (void)state;
    strike(FAULT_COMBINES, 1, SIGKILL);
}

static void test_stopped_inside_a_combine(void **state)
{
    (void)state;
    strike(FAULT_COMBINES, 1, SIGSTOP);
}

/* A run that went wrong says which it was. */
static void run_drawn(const fault_plan *plan)
{
    if (!fault_run(plan))
        fail_msg("rank %d, in place %s of round %lld%s, %lld us later", plan->victim, fault_place_name(plan->place),
                 (long long)plan->round, plan->by_itself ? " by itself" : "", (long long)plan->delay_us);
}

/* From when kernels run on; set-up of a context alone takes longer than the CPU's tests give a rank. */
static void test_killed_right_before_a_call(void **state)
{
    (void)state;
    random_source random = random_start(random_test_seed("kills on GPUs"));
    for (int64_t i = random_test_rounds(4); i > 0; i--) {
        const fault_plan plan = {.size = 3,
                                 .ranks_per_node = ranks_per_node,
                                 .victim = (int32_t)random_between(&random, 0, 2),
                                 .place = random_once_in(&random, 2) ? FAULT_DISPATCHES : FAULT_COMBINES,
                                 .by_itself = true,
                                 .round = random_between(&random, 0, 20),
                                 .held_back = -1,
                                 .signal = SIGKILL};
        run_drawn(&plan);
    }
}

/* ---- while rows move ------------------------------------------------------------------------------------------------
 *
 * Many long rows that lie on the GPU, so that kernels take most of a round. */

typedef struct freight {
    const traffic *traffic;
    expar_ep *ep;
    int32_t rank;
    card card;
    layer layer;
} freight;

/* Rows are whatever lies in their memory; only the routing counts. */
static void *freight_open(expar_ep *ep, const traffic *t, int32_t rank)
{
    freight *f = traffic_alloc(1, sizeof *f);
    *f = (freight){.traffic = t, .ep = ep, .rank = rank};
    if (!card_open(&f->card, rank) || !layer_open(&f->layer, &f->card, t, rank)) abort();
    card_put(&f->layer.idx, f->layer.idx.shape[0], t->inputs[rank].topk_idx, f->card.streams[0]);
    CHECK_OK(CUDA_CALL(StreamSynchronize, f->card.streams[0]));
    return f;
}

static expar_status freight_trial(void *work, expar_ep_path path)
{
    freight *f = work;
    f->layer.path = path;
    expar_status status = layer_dispatch(&f->layer, f->ep, f->traffic, f->card.streams[0]);
    if (status == EXPAR_OK) status = layer_combine(&f->layer, f->ep, f->card.streams[0]);
    layer_release(&f->layer);
    return status;
}

static void look_at_copies(freight *f)
{
    cu_stream stream = f->card.streams[1];
    const int64_t *idx = f->traffic->inputs[f->rank].topk_idx;
    size_t bytes = (size_t)(f->layer.idx.shape[0] * f->layer.idx.shape[1]) * sizeof *idx;
    CHECK_OK(CUDA_CALL(MemsetD8Async, (cu_address)(uintptr_t)f->layer.idx.data, 0x5a, bytes, stream));
    CHECK_OK(CUDA_CALL(StreamSynchronize, stream));
    card_put(&f->layer.idx, f->layer.idx.shape[0], idx, stream);
    void *back = card_fetch(&f->layer.idx, stream);
    CHECK(memcmp(back, idx, bytes) == 0, "what was copied to the GPU does not come back");
    free(back);
}

static void look_at_layout(freight *f, const expar_group *group)
{
    const oracle_job *job = &f->traffic->job;
    size_t bytes = (size_t)job->num_experts * sizeof(int32_t);
    int32_t *expected = traffic_alloc(1, bytes);
    expar_tensor counts;
    expar_ep_layout layout = EXPAR_EP_LAYOUT_INIT;
    oracle_tokens_per_expert(job, f->rank, expected);
    if (card_take(&f->card, &counts, EXPAR_I32, 1, job->num_experts)) {
        layout.tokens_per_expert = counts.data;
        layout.stream = f->card.streams[1];
        CHECK_OK(expar_ep_get_layout(group, &f->layer.idx, job->num_experts, &layout));
        int32_t *got = card_fetch(&counts, f->card.streams[1]);
        CHECK(memcmp(got, expected, bytes) == 0, "expar_ep_get_layout counts %d tokens for expert 0, expected %d",
              got[0], expected[0]);
        free(got);
        card_give(&counts);
    }
    free(expected);
}

static void freight_look(void *work, const expar_group *group)
{
    CHECK_OK(CUDA_CALL(StreamSynchronize, ((freight *)work)->card.streams[0]));
    look_at_copies(work);
    look_at_layout(work, group);
}

static void kill_while_rows_move(expar_ep_path path, const char *name)
{
    static const fault_load load = {
        .num_tokens = 1024, .hidden = 4096, .open = freight_open, .trial = freight_trial, .look = freight_look};
    random_source random = random_start(random_test_seed(name));
    for (int64_t i = random_test_rounds(2); i > 0; i--) {
        const fault_plan plan = {.size = 3,
                                 .ranks_per_node = ranks_per_node,
                                 .victim = (int32_t)random_between(&random, 0, 2),
                                 .place = FAULT_DISPATCHES,
                                 .round = random_between(&random, 1, 15),
                                 .held_back = -1,
                                 .signal = SIGKILL,
                                 .in_passing = true,
                                 .delay_us = random_between(&random, 0, 2000),
                                 .path = path,
                                 .load = &load};
        run_drawn(&plan);
    }
}

static void test_killed_while_rows_move(void **state)
{
    (void)state;
    kill_while_rows_move(EXPAR_EP_PATH_AUTO, "kills while rows move");
}

static void test_killed_while_rows_move_by_the_queue(void **state)
{
    (void)state;
    kill_while_rows_move(EXPAR_EP_PATH_QUEUE, "kills while rows move by the queue");
}

/* ---- with calls pending ------------------------------------------------------------------------------------------ */

#define PENDING 6

/* The first failure; *failed is its event. Calls after one that failed fail, too. */
static expar_status await_all(expar_event *const *events, int count, expar_event **failed)
{
    expar_status first = EXPAR_OK;
    for (int i = 0; i < count; i++) {
        const expar_status status = expar_event_wait(events[i]);
        if (first != EXPAR_OK) CHECK(status == EXPAR_ERR_PEER, "event %d ended with %d after a failed one", i, status);
        if (first != EXPAR_OK || status == EXPAR_OK) continue;
        first = status;
        *failed = events[i];
    }
    return first;
}

/* Many combines at a time, whose events are waited for after the last call. */
static expar_status pending_trial(void *work, expar_ep_path path)
{
    freight *f = work;
    expar_event *events[PENDING], *failed = NULL;
    int count = 0;
    f->layer.path = path;
    expar_status status = layer_dispatch(&f->layer, f->ep, f->traffic, f->card.streams[0]);
    for (; status == EXPAR_OK && count < PENDING; count += status == EXPAR_OK)
        status = layer_combine_async(&f->layer, f->ep, f->card.streams[0], &events[count]);
    const expar_status ended = await_all(events, count, &failed);
    /* Once more, for the text. A call that failed has its own. */
    if (failed) CHECK_STATUS(ended, expar_event_wait(failed));
    if (ended != EXPAR_OK) status = ended;
    for (int i = 0; i < count; i++)
        expar_event_release(events[i]);
    layer_release(&f->layer);
    return status;
}

static void test_killed_with_calls_pending(void **state)
{
    (void)state;
    static const fault_load load = {
        .num_tokens = 64, .hidden = 1024, .open = freight_open, .trial = pending_trial, .look = freight_look};
    random_source random = random_start(random_test_seed("kills with calls pending"));
    for (int64_t i = random_test_rounds(3); i > 0; i--) {
        const fault_plan plan = {.size = 3,
                                 .ranks_per_node = ranks_per_node,
                                 .victim = (int32_t)random_between(&random, 0, 2),
                                 .place = FAULT_DISPATCHES,
                                 .round = random_between(&random, 1, 6),
                                 .held_back = -1,
                                 .signal = SIGKILL,
                                 .in_passing = true,
                                 .delay_us = random_between(&random, 0, 2000),
                                 .path = EXPAR_EP_PATH_AUTO,
                                 .load = &load};
        run_drawn(&plan);
    }
}

static void test_no_process_is_left(void **state)
{
    (void)state;
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

int main(int argc, char **argv)
{
    ranks_per_node = argc > 1 && strcmp(argv[1], "nodes") == 0;
    if (argc > 2) cmocka_set_test_filter(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_inside_a_dispatch),  cmocka_unit_test(test_killed_inside_a_combine),
        cmocka_unit_test(test_stopped_inside_a_combine),  cmocka_unit_test(test_killed_right_before_a_call),
        cmocka_unit_test(test_killed_while_rows_move),    cmocka_unit_test(test_killed_while_rows_move_by_the_queue),
        cmocka_unit_test(test_killed_with_calls_pending), cmocka_unit_test(test_no_process_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
