/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of one group with different numbers of SMs, few of them: blocks then take several channels, one after another,
 * and many tokens each, at other paces than their peers. Dispatches, fresh and with a handle, and combines, by both
 * paths, against the oracle. */
#include "cuda/cuda.h"
#include "ep/harness/ranks.h"
#include "ep/harness/stage.h"
#include "gpu/mirror.h"
#include "oracle/unit.h"
#include <stdio.h>
#include <stdlib.h>

#define TRIALS     10
#define MOST_RANKS 4
#define ROUNDS     3

typedef struct trial {
    int32_t sms[MOST_RANKS], channels, slots;
    expar_ep_path paths[ROUNDS][MOST_RANKS]; /* of each rank's dispatch; its combine takes the next rank's */
    traffic *first, *second;                 /* the second has the first one's routing */
    answers *answers[2];
} trial;

/* One rank with a single SM beside one with seven, or all with one. */
static void draw_sms(trial *t, int32_t ranks, bool differ, random_source *random)
{
    static const int32_t few[] = {1, 2, 3, 7, 16};
    int32_t slow = (int32_t)random_between(random, 0, ranks - 1);
    for (int32_t r = 0; r < ranks; r++)
        t->sms[r] = differ ? few[random_between(random, 0, 4)] : 1;
    t->sms[slow] = 1;
    if (differ) t->sms[(slow + 1) % ranks] = 7;
}

static trial trial_draw(uint64_t seed, bool differ)
{
    random_source random = random_start(seed);
    int32_t ranks = (int32_t)random_between(&random, 2, MOST_RANKS);
    int64_t tokens[MOST_RANKS];
    trial t = {.channels = (int32_t)random_between(&random, 1, 40), .slots = (int32_t)random_between(&random, 1, 4)};
    draw_sms(&t, ranks, differ, &random);
    for (int i = 0; i < ROUNDS; i++)
        for (int32_t r = 0; r < ranks; r++)
            t.paths[i][r] = random_once_in(&random, 2) ? EXPAR_EP_PATH_AUTO : EXPAR_EP_PATH_QUEUE;
    bool many = random_once_in(&random, 3); /* laid out by as many blocks as there are SMs */
    for (int32_t r = 0; r < ranks; r++) {
        tokens[r] = random_once_in(&random, 6) ? 0 : random_between(&random, 1, many ? 2000 : 300);
        /* Two rounds by one path, the last by both. */
        t.paths[0][r] = EXPAR_EP_PATH_AUTO;
        t.paths[1][r] = EXPAR_EP_PATH_QUEUE;
    }
    traffic_plan plan = {.num_ranks = ranks,
                         .hidden = 8 * (int32_t)random_between(&random, 1, many ? 20 : 200),
                         .topk = (int32_t)random_between(&random, 1, 6),
                         .num_experts = ranks * (int32_t)random_between(&random, 1, 6),
                         .with_weights = random_once_in(&random, 2),
                         .disturb = 8,
                         .num_tokens = tokens};
    t.first = traffic_make(&plan, &random);
    t.second = traffic_repeat(t.first, &random);
    t.answers[0] = answers_make(t.first, plan.with_weights, &random);
    t.answers[1] = answers_make(t.second, false, &random);
    return t;
}

static void trial_free(trial *t)
{
    traffic_free(t->first);
    traffic_free(t->second);
    answers_free(t->answers[0]);
    answers_free(t->answers[1]);
}

static bool trial_round(const trial *t, expar_ep *ep, int32_t rank, int round)
{
    const trial_area none = {0};
    const trial_choice there = {.path = t->paths[round][rank]};
    const trial_choice back = {.path = t->paths[round][(rank + 1) % t->first->job.num_ranks]};
    trial_arrival first, again = {0};
    bool good =
        CHECK(trial_dispatch(ep, t->first, rank, &there, &none, NULL, &first), "the first dispatch of round %d", round);
    good = good && CHECK(trial_combine(ep, t->first, t->answers[0], rank, &back, &none, first.handle, &first),
                         "its combine in round %d", round);
    bool repeated = good && CHECK(trial_dispatch(ep, t->second, rank, &back, &none, first.handle, &again),
                                  "the dispatch with a handle of round %d", round);
    good = repeated && CHECK(trial_combine(ep, t->second, t->answers[1], rank, &there, &none, first.handle, &again),
                             "the combine of that in round %d", round);
    if (repeated) trial_release(&again, true);
    trial_release(&first, true);
    return good;
}

/* As many as were drawn, where the GPU has so many for each of its ranks. */
static int32_t sms_of(const trial *t, int32_t rank)
{
    int32_t gpus = 1;
    cuda_device gpu = {.num_sms = 1};
    CHECK_OK(cuda_device_count(&gpus));
    CHECK_OK(cuda_device_read(rank % gpus, &gpu));
    int32_t sharers = (t->first->job.num_ranks + gpus - 1) / gpus, most = gpu.num_sms / sharers;
    return t->sms[rank] < most ? t->sms[rank] : most;
}

static void perform(expar_group *group, void *shared)
{
    const trial *t = shared;
    int32_t rank = expar_group_rank(group);
    stage_plan plan = stage_plan_for(t->first, RANKS_THREADS);
    expar_ep *ep = NULL;
    plan.config.num_sms = sms_of(t, rank);
    plan.config.num_channels = t->channels;
    plan.config.ring_slots = t->slots;
    if (!CHECK_OK(mirror_ep_create(group, &plan.config, &ep))) return;
    for (int round = 0; round < ROUNDS; round++)
        if (!trial_round(t, ep, rank, round)) break;
    if (check_failures()) expar_group_abort(group);
    CHECK_OK(mirror_ep_destroy(ep));
}

static void run(bool differ, const char *name)
{
    uint64_t seed = random_test_seed(name);
    for (int64_t left = random_test_rounds(TRIALS); left > 0; left--, seed++) {
        trial t = trial_draw(seed, differ);
        ranks_plan plan = {.kind = RANKS_THREADS, .size = t.first->job.num_ranks};
        bool passed = ranks_run(&plan, perform, &t);
        if (!passed)
            printf("EXPAR_TEST_SEED=%llu: %d ranks with %d, %d, %d, %d SMs, C %d S %d H %d K %d\n",
                   (unsigned long long)seed, plan.size, t.sms[0], t.sms[1], t.sms[2], t.sms[3], t.channels, t.slots,
                   t.first->job.hidden, t.first->job.topk);
        trial_free(&t);
        assert_true(passed);
    }
}

static void test_one_sm_each(void **state)
{
    (void)state;
    run(false, "one SM a rank");
}

static void test_different_numbers_of_sms(void **state)
{
    (void)state;
    run(true, "different numbers of SMs");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_sm_each),
        cmocka_unit_test(test_different_numbers_of_sms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
