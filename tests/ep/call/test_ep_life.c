/* SPDX-License-Identifier: Apache-2.0 */
/* How long things live: handles, outputs, buffers and groups, several of each, in any order. */
#include "ep/harness/stage.h"
#include "oracle/unit.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define ROUTINGS 4
#define REPEATS  3

static ranks_kind kind;

/* Some routings on 3 ranks, each with repeats that have other rows, and with answers. */
typedef struct family {
    traffic *first[ROUTINGS];
    answers *first_answers[ROUTINGS];
    traffic *repeat[ROUTINGS][REPEATS];
    answers *repeat_answers[ROUTINGS][REPEATS];
} family;

static family family_make(uint64_t seed)
{
    static const int64_t num_tokens[ROUTINGS][3] = {{9, 4, 7}, {0, 12, 1}, {12, 12, 12}, {3, 0, 0}};
    random_source random = random_start(seed);
    family f;
    for (int i = 0; i < ROUTINGS; i++) {
        traffic_plan plan = {.num_ranks = 3,
                             .hidden = 8 * (i + 1),
                             .topk = 2 + i,
                             .num_experts = 12,
                             .type = (oracle_type)(i % 3),
                             .wide = i & 1,
                             .with_weights = i & 2,
                             .disturb = 6,
                             .num_tokens = num_tokens[i]};
        f.first[i] = traffic_make(&plan, &random);
        f.first_answers[i] = answers_make(f.first[i], true, &random);
        for (int k = 0; k < REPEATS; k++) {
            f.repeat[i][k] = traffic_repeat(f.first[i], &random);
            f.repeat_answers[i][k] = answers_make(f.repeat[i][k], k & 1, &random);
        }
    }
    return f;
}

static void family_free(family *f)
{
    for (int i = 0; i < ROUTINGS; i++) {
        for (int k = 0; k < REPEATS; k++) {
            traffic_free(f->repeat[i][k]);
            answers_free(f->repeat_answers[i][k]);
        }
        traffic_free(f->first[i]);
        answers_free(f->first_answers[i]);
    }
}

/* Large enough for every routing. */
static stage_plan plan_for(const family *f)
{
    stage_plan plan = stage_plan_for(f->first[2], kind);
    plan.config.max_topk = 2 + ROUTINGS;
    plan.config.max_row_bytes = 4 * 8 * ROUTINGS;
    plan.area_bytes *= ROUTINGS;
    plan.spare_heap_bytes = (size_t)160 << 20;
    return plan;
}

static void run(stage_body body)
{
    family f = family_make(3);
    stage_plan plan = plan_for(&f);
    bool passed = stage_run(&plan, body, &f);
    family_free(&f);
    assert_true(passed);
}

static const trial_choice plain = {0};

static bool dispatch(stage *s, const traffic *t, const expar_ep_handle *handle, trial_arrival *arrival)
{
    return trial_dispatch(s->ep, t, s->rank, &plain, &s->area, handle, arrival);
}

static bool combine(stage *s, const traffic *t, const answers *a, const expar_ep_handle *handle, trial_arrival *arrival)
{
    return trial_combine(s->ep, t, a, s->rank, &plain, &s->area, handle, arrival);
}

/* ---- handles and outputs ----------------------------------------------------------------------------------------- */

/* All routings first; then repeats and combines of all of them, in turns. */
static void trial_interleaved(stage *s, void *shared)
{
    const family *f = shared;
    trial_arrival first[ROUTINGS], repeat;
    for (int i = 0; i < ROUTINGS; i++)
        dispatch(s, f->first[i], NULL, &first[i]);
    for (int k = 0; k < REPEATS; k++)
        for (int i = 0; i < ROUTINGS; i++) {
            dispatch(s, f->repeat[i][k], first[i].handle, &repeat);
            trial_check_arrival(&first[i], s->rank);
            combine(s, f->repeat[i][k], f->repeat_answers[i][k], first[i].handle, &repeat);
            trial_release(&repeat, false);
        }
    for (int i = 0; i < ROUTINGS; i++)
        trial_release(&first[i], i & 1);
}

static void test_repeats_interleaved(void **state)
{
    (void)state;
    run(trial_interleaved);
}

/* Released in another order on every rank, while the others are looked at. */
static void trial_any_order(stage *s, void *shared)
{
    static const int orders[3][ROUTINGS] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}};
    const family *f = shared;
    trial_arrival first[ROUTINGS];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < ROUTINGS; i++)
            dispatch(s, f->first[i], NULL, &first[i]);
        for (int i = 0; i < ROUTINGS; i++) {
            trial_release(&first[orders[s->rank][i]], round & 1);
            for (int k = i + 1; k < ROUTINGS; k++)
                trial_check_arrival(&first[orders[s->rank][k]], s->rank);
        }
    }
}

static void test_released_in_any_order(void **state)
{
    (void)state;
    run(trial_any_order);
}

static void trial_several_combines(stage *s, void *shared)
{
    const family *f = shared;
    trial_arrival first;
    dispatch(s, f->first[0], NULL, &first);
    combine(s, f->first[0], f->first_answers[0], first.handle, &first);
    for (int k = 0; k < REPEATS; k++) /* a repeat has the same shape: its answers do for the first as well */
        combine(s, f->repeat[0][k], f->repeat_answers[0][k], first.handle, &first);
    combine(s, f->first[0], f->first_answers[0], first.handle, &first);
    trial_release(&first, true);
}

static void test_several_combines_of_one_handle(void **state)
{
    (void)state;
    run(trial_several_combines);
}

/* The handle does not need its output. */
static void trial_handle_alone(stage *s, void *shared)
{
    const family *f = shared;
    const trial_choice private_rows = {.place = PLACE_PRIVATE};
    trial_arrival first, repeat;
    dispatch(s, f->first[0], NULL, &first);
    expar_ep_output_release(first.result.output);
    first.result.output = NULL;
    trial_combine(s->ep, f->first[0], f->first_answers[0], s->rank, &private_rows, &s->area, first.handle, &first);
    dispatch(s, f->repeat[0][0], first.handle, &repeat);
    trial_release(&first, true);
    trial_check_arrival(&repeat, s->rank);
    trial_release(&repeat, true);
}

static void test_handle_outlives_its_output(void **state)
{
    (void)state;
    run(trial_handle_alone);
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

/* Handles and outputs are freed after their buffer; the handle still tells its numbers. */
static void trial_after_destroy(stage *s, void *shared)
{
    const family *f = shared;
    const stage_plan plan = plan_for(f);
    trial_arrival first, repeat;
    stage other = *s;
    if (!CHECK_OK(expar_ep_create(s->group, &plan.config, &other.ep))) return;
    dispatch(&other, f->first[0], NULL, &first);
    dispatch(&other, f->repeat[0][0], first.handle, &repeat);
    CHECK_OK(expar_ep_destroy(other.ep));
    expar_ep_handle_info info = EXPAR_EP_HANDLE_INFO_INIT;
    CHECK_OK(expar_ep_handle_get_info(first.handle, &info));
    CHECK(info.num_recv_tokens == f->first[0]->arrivals[s->rank].num_rows, "the handle says R %lld",
          (long long)info.num_recv_tokens);
    trial_release(&repeat, false);
    trial_release(&first, s->rank & 1);
    stage_round_trip(s, f->first[1], f->first_answers[1], EXPAR_EP_PATH_AUTO);
}

static void test_freed_after_the_buffer(void **state)
{
    (void)state;
    run(trial_after_destroy);
}

static void trial_two_buffers(stage *s, void *shared)
{
    const family *f = shared;
    stage_plan plan = plan_for(f);
    trial_arrival here, there;
    stage other = *s;
    plan.config.num_channels = 3;
    plan.config.ring_slots = 1;
    if (!CHECK_OK(expar_ep_create(s->group, &plan.config, &other.ep))) return;
    for (int i = 0; i < ROUTINGS; i++) {
        int k = (i + 1) % ROUTINGS;
        dispatch(s, f->first[i], NULL, &here);
        dispatch(&other, f->first[k], NULL, &there);
        combine(s, f->first[i], f->first_answers[i], here.handle, &here);
        combine(&other, f->first[k], f->first_answers[k], there.handle, &there);
        trial_release(&there, true);
        trial_release(&here, false);
    }
    CHECK_OK(expar_ep_destroy(other.ep));
}

static void test_two_buffers_in_one_group(void **state)
{
    (void)state;
    run(trial_two_buffers);
}

/* Each takes the memory that the one before left, with its flags. */
static void trial_one_after_another(stage *s, void *shared)
{
    const family *f = shared;
    stage_plan plan = plan_for(f);
    for (int round = 0; round < 12; round++) {
        stage other = *s;
        plan.config.num_channels = 1 + round % 3;
        if (!CHECK_OK(expar_ep_create(s->group, &plan.config, &other.ep))) return;
        for (int i = 0; i < ROUTINGS; i++)
            stage_round_trip(&other, f->first[i], f->first_answers[i],
                             i & 1 ? EXPAR_EP_PATH_QUEUE : EXPAR_EP_PATH_DIRECT);
        CHECK_OK(expar_ep_destroy(other.ep));
    }
}

static void test_buffers_one_after_another(void **state)
{
    (void)state;
    run(trial_one_after_another);
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

static void trial_all(stage *s, void *shared)
{
    const family *f = shared;
    for (int round = 0; round < 5; round++)
        for (int i = 0; i < ROUTINGS; i++)
            stage_round_trip(s, f->first[i], f->first_answers[i], (expar_ep_path)(i % 3));
}

/* One group for each of these threads; they have nothing in common. */
typedef struct own_group {
    pthread_t thread;
    uint64_t seed;
    bool passed;
} own_group;

static void *run_own_group(void *argument)
{
    own_group *self = argument;
    family f = family_make(self->seed);
    stage_plan plan = plan_for(&f);
    plan.ranks.kind = RANKS_THREADS;
    self->passed = stage_run(&plan, trial_all, &f);
    family_free(&f);
    return NULL;
}

static void test_two_groups_at_once(void **state)
{
    (void)state;
    own_group groups[2] = {{.seed = 11}, {.seed = 12}};
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&groups[i].thread, NULL, run_own_group, &groups[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(groups[i].thread, NULL);
    assert_true(groups[0].passed && groups[1].passed);
}

/* The inner group's ranks are the threads that are ranks of the outer one: both are used in turns by
   the same threads. */
typedef struct nested {
    const family *family;
    stage *outer[3];
    pthread_barrier_t all_here;
} nested;

static void trial_inner(stage *inner, void *shared)
{
    nested *n = shared;
    const family *f = n->family;
    stage *outer = n->outer[inner->rank];
    trial_arrival here, there;
    check_begin(inner->rank);
    dispatch(outer, f->first[0], NULL, &here);
    dispatch(inner, f->first[2], NULL, &there);
    combine(outer, f->first[0], f->first_answers[0], here.handle, &here);
    combine(inner, f->first[2], f->first_answers[2], there.handle, &there);
    trial_release(&here, false);
    trial_release(&there, false);
}

/* Rank 0 makes the inner group; the outer ranks wait until it is done, so that each buffer has one user at a time. */
static void trial_outer(stage *s, void *shared)
{
    nested *n = shared;
    n->outer[s->rank] = s;
    pthread_barrier_wait(&n->all_here);
    if (s->rank == 0) {
        stage_plan plan = plan_for(n->family);
        bool passed = stage_run(&plan, trial_inner, n);
        check_begin(0);
        CHECK(passed, "the inner group went wrong");
    }
    pthread_barrier_wait(&n->all_here);
}

static void test_two_groups_in_turns(void **state)
{
    (void)state;
    if (kind != RANKS_THREADS) skip();
    family f = family_make(4);
    nested n = {.family = &f};
    stage_plan plan = plan_for(&f);
    plan.ranks.kind = RANKS_THREADS;
    if (kind != RANKS_THREADS) skip();
    pthread_barrier_init(&n.all_here, NULL, 3);
    bool passed = stage_run(&plan, trial_outer, &n);
    pthread_barrier_destroy(&n.all_here);
    family_free(&f);
    assert_true(passed);
}

int main(int argc, char **argv)
{
    kind = stage_kind(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_repeats_interleaved),
        cmocka_unit_test(test_released_in_any_order),
        cmocka_unit_test(test_several_combines_of_one_handle),
        cmocka_unit_test(test_handle_outlives_its_output),
        cmocka_unit_test(test_freed_after_the_buffer),
        cmocka_unit_test(test_two_buffers_in_one_group),
        cmocka_unit_test(test_buffers_one_after_another),
        cmocka_unit_test(test_two_groups_at_once),
        cmocka_unit_test(test_two_groups_in_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
