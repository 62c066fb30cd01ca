/* SPDX-License-Identifier: Apache-2.0 */
/* A rank leaves the group as soon as its part in a call is complete, while others are in that call still. It ends well
 * for them. The order is planted. The slow rank has told the leaver that its rows are through. It tells the one that
 * waits for it only when that one has seen the group fail, and waits on. */
#include "ep/harness/stage.h"
#include "ep/normal/normal.h"
#include "exec/cpu/create.h"
#include "exec/cpu/normal/cpu.h"
#include "oracle/unit.h"

#include <sched.h>
#include <sys/mman.h>

enum { LEAVER, WAITER, SLOW, RANKS };

static ranks_kind kind;

/* In memory that processes share. */
typedef struct scene {
    traffic *t;
    answers *a;
    stage_plan plan;
    expar_ep_path path;
    bool combine;        /* it is a combine that is left behind, else a dispatch */
    _Atomic int32_t saw; /* 1: the waiter has looked again since the group failed, or its call has ended; by it */
} scene;

/* One rank's state, between the steps of its protocol. */
typedef struct hold {
    scene *s;
    const cpu_executor *cpu;
    uint32_t epoch; /* of the call */
    int32_t turns;
} hold;

/* ---- the order --------------------------------------------------------------------------------------------------- */

static bool has_told(const hold *h, int32_t rank)
{
    const _Atomic uint64_t *done = cpu_at(h->cpu, rank, ep_completion_at(&h->cpu->space, RANKS, h->epoch, SLOW));
    return ep_word_value(atomic_load(done), h->epoch) == 1;
}

static void hold_slow(void *context)
{
    const hold *h = context;
    const int64_t end_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    if (!has_told(h, LEAVER) || has_told(h, WAITER)) return;
    while (!atomic_load(&h->s->saw) && ranks_clock_ms() < end_ms)
        sched_yield();
}

static void look_again(void *context)
{
    hold *h = context;
    if (!sym_is_sound(h->cpu->sym) && ++h->turns == 3) atomic_store(&h->s->saw, 1);
}

/* For the call that comes next. */
static void plant(hold *h, scene *s, const stage *on)
{
    *h = (hold){.s = s, .cpu = (const cpu_executor *)on->ep->base.exec, .epoch = (uint32_t)on->ep->base.calls + 1};
    if (on->rank == WAITER) executor_cpu_delay(on->ep->base.exec, look_again, h);
    if (on->rank == SLOW) executor_cpu_delay(on->ep->base.exec, hold_slow, h);
}

/* ---- the calls --------------------------------------------------------------------------------------------------- */

static void make_calls(stage *on, scene *s, trial_arrival *arrival)
{
    hold h;
    const trial_choice choice = {.path = s->path};
    if (!s->combine) plant(&h, s, on);
    CHECK(trial_dispatch(on->ep, s->t, on->rank, &choice, &on->area, NULL, arrival), "the dispatch");
    if (s->combine) {
        plant(&h, s, on);
        CHECK(trial_combine(on->ep, s->t, s->a, on->rank, &choice, &on->area, arrival->handle, arrival), "the combine");
    }
    executor_cpu_delay(on->ep->base.exec, NULL, NULL);
    if (on->rank == WAITER) atomic_store(&s->saw, 1);
}

/* A rank that stays learns of it in the next call. */
static void learn_of_it(stage *on, const scene *s)
{
    static const trial_choice plain = {0};
    void *own_out = NULL;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_ep_dispatch_args args = trial_dispatch_args(s->t, on->rank, &plain, &on->area, &own_out);
    CHECK_STATUS(EXPAR_ERR_PEER, expar_ep_dispatch(on->ep, &args, &result));
    trial_dispatch_args_free(&args);
}

static void trial_leaver(expar_group *group, void *shared)
{
    scene *s = shared;
    stage on = {.group = group, .rank = expar_group_rank(group)};
    trial_arrival arrival;
    expar_ep_config config = s->plan.config;
    config.num_threads = 1;
    if (!CHECK_OK(expar_ep_create(group, &config, &on.ep))) return;
    make_calls(&on, s, &arrival);
    if (on.rank != LEAVER) learn_of_it(&on, s);
    CHECK_OK(expar_group_abandon(group));
    CHECK_OK(expar_ep_destroy(on.ep));
    trial_release(&arrival, false);
}

static void run(bool combine, expar_ep_path path)
{
    static const int64_t num_tokens[] = {9, 4, 7};
    random_source random = random_start(8);
    const traffic_plan traffic_of = {
        .num_ranks = RANKS, .hidden = 64, .topk = 3, .num_experts = 6, .type = ORACLE_F32, .num_tokens = num_tokens};
    scene *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(s != MAP_FAILED);
    s->t = traffic_make(&traffic_of, &random);
    s->a = answers_make(s->t, false, &random);
    s->plan = stage_plan_for(s->t, kind);
    s->plan.ranks.ends_itself = true;
    s->path = path;
    s->combine = combine;
    const bool passed = ranks_run(&s->plan.ranks, trial_leaver, s);
    traffic_free(s->t);
    answers_free(s->a);
    munmap(s, sizeof *s);
    assert_true(passed);
}

static void test_dispatch(void **state)
{
    (void)state;
    run(false, EXPAR_EP_PATH_AUTO);
}

static void test_dispatch_by_the_queue(void **state)
{
    (void)state;
    run(false, EXPAR_EP_PATH_QUEUE);
}

static void test_combine(void **state)
{
    (void)state;
    run(true, EXPAR_EP_PATH_AUTO);
}

static void test_combine_by_the_queue(void **state)
{
    (void)state;
    run(true, EXPAR_EP_PATH_QUEUE);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dispatch),
        cmocka_unit_test(test_dispatch_by_the_queue),
        cmocka_unit_test(test_combine),
        cmocka_unit_test(test_combine_by_the_queue),
    };
    kind = stage_kind(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
