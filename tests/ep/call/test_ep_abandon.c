/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that abandons a buffer, or a group with buffers alive. */
#include "ep/harness/stage.h"
#include "ep/normal/normal.h"
#include "oracle/unit.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LEAVER 1
#define LATE   2

static ranks_kind kind;

typedef struct scene {
    traffic *t;
    answers *a;
} scene;

static void run(stage_body body)
{
    static const int64_t num_tokens[] = {9, 4, 7};
    random_source random = random_start(8);
    const traffic_plan traffic_of = {
        .num_ranks = 3, .hidden = 64, .topk = 3, .num_experts = 6, .type = ORACLE_F32, .num_tokens = num_tokens};
    scene one = {.t = traffic_make(&traffic_of, &random)};
    one.a = answers_make(one.t, false, &random);
    stage_plan plan = stage_plan_for(one.t, kind);
    plan.spare_heap_bytes = (size_t)160 << 20;
    bool passed = stage_run(&plan, body, &one);
    traffic_free(one.t);
    answers_free(one.a);
    assert_true(passed);
}

/* Another buffer beside the stage's. */
static bool other_buffer(stage *s, const scene *one, stage *other)
{
    const stage_plan plan = stage_plan_for(one->t, kind);
    *other = *s;
    return CHECK_OK(expar_ep_create(s->group, &plan.config, &other->ep));
}

static expar_status dispatch_alone(stage *s, const scene *one)
{
    static const trial_choice plain = {0};
    void *own_out = NULL;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_ep_dispatch_args args = trial_dispatch_args(one->t, s->rank, &plain, &s->area, &own_out);
    expar_status status = expar_ep_dispatch(s->ep, &args, &result);
    trial_dispatch_args_free(&args);
    return status;
}

/* Ended calls stay good; the next call names who has gone; the group goes on. */
static void trial_one_leaves(stage *s, void *shared)
{
    const scene *one = shared;
    stage other;
    if (!other_buffer(s, one, &other)) return;
    stage_round_trip(&other, one->t, one->a, EXPAR_EP_PATH_AUTO);
    if (s->rank == LEAVER) {
        CHECK_OK(expar_ep_abandon(other.ep));
    } else {
        CHECK_STATUS(EXPAR_ERR_PEER, dispatch_alone(&other, one));
        CHECK_TEXT("expar_ep_dispatch", "rank 1 has abandoned the buffer");
        CHECK_STATUS(EXPAR_ERR_PEER, dispatch_alone(&other, one));
        CHECK_OK(expar_ep_destroy(other.ep));
    }
    CHECK_OK(expar_group_barrier(s->group));
    stage_round_trip(s, one->t, one->a, EXPAR_EP_PATH_AUTO);
    if (!other_buffer(s, one, &other)) return;
    stage_round_trip(&other, one->t, one->a, EXPAR_EP_PATH_AUTO);
    CHECK_OK(expar_ep_destroy(other.ep));
}

static void test_the_others_learn_in_their_next_call(void **state)
{
    (void)state;
    run(trial_one_leaves);
}

/* A rank that has heard of it waits for nobody else: one comes to that call only when the others' has ended. */
static void trial_one_leaves_and_one_is_late(stage *s, void *shared)
{
    const scene *one = shared;
    stage other;
    if (!other_buffer(s, one, &other)) return;
    stage_round_trip(&other, one->t, one->a, EXPAR_EP_PATH_AUTO);
    if (s->rank == LATE) CHECK_OK(expar_group_barrier(s->group));
    if (s->rank == LEAVER) {
        CHECK_OK(expar_ep_abandon(other.ep));
    } else {
        CHECK_STATUS(EXPAR_ERR_PEER, dispatch_alone(&other, one));
        CHECK_TEXT("expar_ep_dispatch", "rank 1 has abandoned the buffer");
        CHECK_OK(expar_ep_destroy(other.ep));
    }
    if (s->rank != LATE) CHECK_OK(expar_group_barrier(s->group));
    stage_round_trip(s, one->t, one->a, EXPAR_EP_PATH_AUTO);
}

static void test_nobody_else_is_waited_for(void **state)
{
    (void)state;
    run(trial_one_leaves_and_one_is_late);
}

/* ---- others who are in destroy already --------------------------------------------------------------------------- */

/* Whether that rank's destroy waits for this one's, by the word that it has told this one in (ep/call/teardown.c). */
static bool has_told(const stage *s, int32_t rank)
{
    const uint64_t offset = s->ep->base.teardown.offset + (uint64_t)rank * sizeof(uint64_t);
    return atomic_load((const _Atomic uint64_t *)sym_at(s->group->sym, s->rank, offset)) != 0;
}

static void await_destroys(const stage *s)
{
    const int64_t end_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS / 3;
    for (int32_t rank = 0; rank < expar_group_size(s->group); rank++) {
        if (rank == s->rank) continue;
        while (!has_told(s, rank) && ranks_clock_ms() < end_ms)
            sched_yield();
        CHECK(has_told(s, rank), "rank %d is not in destroy", rank);
    }
}

/* A line of this rank's log, which its own thread takes, has named who has gone. */
static _Thread_local bool heard_of_leaver;

static void hear(void *context, expar_log_level level, int32_t rank, const char *place, const char *text)
{
    (void)context, (void)rank, (void)place;
    if (level == EXPAR_LOG_WARN && strstr(text, "expar_ep_destroy") && strstr(text, "rank 1 has abandoned the buffer"))
        heard_of_leaver = true;
}

/* Until the others wait for nobody else. Their destroy ends, and the group goes on: it has its next buffer. */
static void trial_late_leaver(stage *s, void *shared)
{
    const scene *one = shared;
    stage other;
    if (!other_buffer(s, one, &other)) return;
    stage_round_trip(&other, one->t, one->a, EXPAR_EP_PATH_AUTO);
    if (s->rank == LEAVER) {
        await_destroys(&other);
        CHECK_OK(expar_ep_abandon(other.ep));
    } else {
        CHECK_OK(expar_ep_destroy(other.ep));
        CHECK(heard_of_leaver, "the log does not say who has gone");
    }
    CHECK_OK(expar_group_barrier(s->group));
    stage_round_trip(s, one->t, one->a, EXPAR_EP_PATH_AUTO);
    if (!other_buffer(s, one, &other)) return;
    stage_round_trip(&other, one->t, one->a, EXPAR_EP_PATH_AUTO);
    CHECK_OK(expar_ep_destroy(other.ep));
}

static void test_who_is_in_destroy_learns(void **state)
{
    (void)state;
    expar_log_set(hear, NULL);
    run(trial_late_leaver);
    expar_log_set(NULL, NULL);
}

/* ---- calls that are under way ------------------------------------------------------------------------------------ */

/* Issued calls come to their ends without the buffer's owner; outputs are held all the while. */
static void trial_issued(stage *s, void *shared)
{
    const scene *one = shared;
    static const trial_choice plain = {0};
    stage other;
    trial_arrival arrival;
    expar_ep_combine_result done = EXPAR_EP_COMBINE_RESULT_INIT;
    if (!other_buffer(s, one, &other)) return;
    if (!trial_dispatch(other.ep, one->t, s->rank, &plain, &s->area, NULL, &arrival)) return;
    const expar_tensor *came = &arrival.result.recv_x;
    size_t bytes = (size_t)one->t->inputs[s->rank].num_tokens * traffic_row_bytes(one->t);
    void *y = traffic_alloc(bytes, 1);
    memcpy(came->data, one->a->x[s->rank], (size_t)came->shape[0] * traffic_row_bytes(one->t));
    expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
    args.x = *came;
    args.handle = arrival.handle;
    args.out_y = expar_tensor_2d(y, came->dtype, one->t->inputs[s->rank].num_tokens, came->shape[1]);
    args.async_finish = 1;
    CHECK_OK(expar_ep_combine(other.ep, &args, &done));
    CHECK_OK(expar_ep_abandon(other.ep));
    CHECK_OK(expar_event_wait(done.event));
    CHECK(memcmp(y, one->a->y[s->rank], bytes) == 0, "the sums differ");
    expar_event_release(done.event);
    free(y);
    arrival.overwritten = true;
    trial_check_arrival(&arrival, s->rank);
    trial_release(&arrival, s->rank & 1);
}

static void test_issued_calls_come_to_their_end(void **state)
{
    (void)state;
    run(trial_issued);
}

static void trial_again(stage *s, void *shared)
{
    const scene *one = shared;
    stage other;
    if (!other_buffer(s, one, &other)) return;
    CHECK_OK(expar_ep_abandon(other.ep));
    CHECK_OK(expar_ep_abandon(other.ep));
    CHECK_OK(expar_ep_abandon(NULL));
    CHECK_STATUS(EXPAR_ERR_STATE, dispatch_alone(&other, one));
    CHECK_TEXT("destroyed or abandoned");
    CHECK_STATUS(EXPAR_ERR_STATE, expar_ep_query(other.ep));
    CHECK_STATUS(EXPAR_ERR_STATE, expar_ep_destroy(other.ep));
    if (!other_buffer(s, one, &other)) return;
    CHECK_OK(expar_ep_destroy(other.ep));
    CHECK_OK(expar_ep_abandon(other.ep));
    CHECK_STATUS(EXPAR_ERR_STATE, expar_ep_destroy(other.ep));
}

static void test_twice_has_no_effect(void **state)
{
    (void)state;
    run(trial_again);
}

/* ---- the group, with buffers alive ------------------------------------------------------------------------------- */

typedef struct left {
    scene one;
    stage_plan plan;
} left;

/* Tensors of outputs stay good, with every byte; the buffer is abandoned or destroyed after it. */
static void leave_group(expar_group *group, void *shared)
{
    const left *l = shared;
    static const trial_choice plain = {0};
    stage s = {.group = group, .rank = expar_group_rank(group)};
    trial_arrival arrival;
    if (!CHECK_OK(expar_ep_create(group, &l->plan.config, &s.ep))) return;
    if (!trial_dispatch(s.ep, l->one.t, s.rank, &plain, &s.area, NULL, &arrival)) return;
    CHECK_OK(expar_group_barrier(group));
    CHECK_OK(expar_group_abandon(group));
    trial_check_arrival(&arrival, s.rank);
    CHECK_STATUS(EXPAR_ERR_ABORTED, dispatch_alone(&s, &l->one));
    if (s.rank & 1)
        CHECK_OK(expar_ep_abandon(s.ep));
    else
        CHECK_OK(expar_ep_destroy(s.ep));
    trial_check_arrival(&arrival, s.rank);
    memset(arrival.result.recv_x.data, 0x5a, (size_t)arrival.result.num_recv_tokens * traffic_row_bytes(l->one.t));
    trial_release(&arrival, s.rank & 1);
}

static void test_a_group_with_buffers_alive(void **state)
{
    (void)state;
    static const int64_t num_tokens[] = {9, 4, 7};
    random_source random = random_start(9);
    const traffic_plan traffic_of = {
        .num_ranks = 3, .hidden = 64, .topk = 3, .num_experts = 6, .type = ORACLE_F32, .num_tokens = num_tokens};
    left l = {.one = {.t = traffic_make(&traffic_of, &random)}};
    l.plan = stage_plan_for(l.one.t, kind);
    l.plan.ranks.ends_itself = true;
    assert_true(ranks_run(&l.plan.ranks, leave_group, &l));
    traffic_free(l.one.t);
}

/* ---- an overwritten word ----------------------------------------------------------------------------------------- */

static _Thread_local bool heard_of_garbage;

static void hear_garbage(void *context, expar_log_level level, int32_t rank, const char *place, const char *text)
{
    (void)context, (void)rank, (void)place;
    if (level == EXPAR_LOG_WARN && strstr(text, "expar_ep_destroy") &&
        strstr(text, "rank 1's word here holds 0x700000001: its memory has been overwritten"))
        heard_of_garbage = true;
}

/* Rank 0 does not take it for rank 1's coming, and waits no more. The group has failed: the others cannot know whether
   rank 0 has given the buffer back. */
static void overwrite_word(expar_group *group, void *shared)
{
    const left *l = shared;
    expar_ep *ep = NULL;
    if (!CHECK_OK(expar_ep_create(group, &l->plan.config, &ep))) return;
    const uint64_t word_of_1 = ep->base.teardown.offset + sizeof(uint64_t);
    if (group->rank == 1) CHECK_OK(sym_word_set(group->sym, 0, word_of_1, UINT64_C(0x700000001)));
    CHECK_OK(expar_group_barrier(group));
    if (group->rank == 0) {
        CHECK_OK(expar_ep_destroy(ep));
        CHECK(heard_of_garbage, "the log does not say which word is wrong");
        CHECK_STATUS(EXPAR_ERR_PEER, expar_group_barrier(group));
        return;
    }
    CHECK_STATUS(EXPAR_ERR_PEER, expar_group_barrier(group));
    CHECK_OK(expar_ep_destroy(ep));
}

static void test_an_overwritten_word_ends_the_wait(void **state)
{
    (void)state;
    static const int64_t num_tokens[] = {9, 4, 7};
    random_source random = random_start(9);
    const traffic_plan traffic_of = {
        .num_ranks = 3, .hidden = 64, .topk = 3, .num_experts = 6, .type = ORACLE_F32, .num_tokens = num_tokens};
    left l = {.one = {.t = traffic_make(&traffic_of, &random)}};
    l.plan = stage_plan_for(l.one.t, kind);
    expar_log_set(hear_garbage, NULL);
    const bool passed = ranks_run(&l.plan.ranks, overwrite_word, &l);
    expar_log_set(NULL, NULL);
    traffic_free(l.one.t);
    assert_true(passed);
}

/* ---- children of fork -------------------------------------------------------------------------------------------- */

static bool child_is_rejected(expar_ep *ep)
{
    return expar_ep_destroy(ep) == EXPAR_ERR_STATE && strstr(expar_last_error(), "expar_ep_destroy: this process, ") &&
           expar_ep_destroy(ep) == EXPAR_ERR_STATE;
}

/* A child that exits ends what its parent's handlers of atexit end: nothing of it is its own. */
static void trial_child_destroys(stage *s, void *shared)
{
    const scene *one = shared;
    pid_t child = s->rank == LEAVER ? fork() : -1;
    if (child == 0) _exit(child_is_rejected(s->ep) ? 0 : 1);
    if (child > 0) {
        const int status = ranks_wait(child, ranks_clock_ms() + RANKS_TIMEOUT_MS, NULL);
        CHECK(status == 0, "the child ended with wait status %#x", (unsigned)status);
    }
    stage_round_trip(s, one->t, one->a, EXPAR_EP_PATH_AUTO);
}

static void test_a_child_of_fork_destroys_nothing(void **state)
{
    (void)state;
    if (kind != RANKS_PROCESSES) skip();
    run(trial_child_destroys);
}

int main(int argc, char **argv)
{
    kind = stage_kind(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_others_learn_in_their_next_call),
        cmocka_unit_test(test_nobody_else_is_waited_for),
        cmocka_unit_test(test_who_is_in_destroy_learns),
        cmocka_unit_test(test_issued_calls_come_to_their_end),
        cmocka_unit_test(test_twice_has_no_effect),
        cmocka_unit_test(test_a_group_with_buffers_alive),
        cmocka_unit_test(test_an_overwritten_word_ends_the_wait),
        cmocka_unit_test(test_a_child_of_fork_destroys_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
