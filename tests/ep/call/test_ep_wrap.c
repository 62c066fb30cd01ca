/* SPDX-License-Identifier: Apache-2.0 */
/* Epochs run on from 2^32 - 1 to 0: calls of every kind, by every path, before, at and after the wrap. On thread ranks,
 * or with the argument "processes" on process ranks. */
#include "ep/harness/epochs.h"
#include "ep/harness/options_script.h"
#include "ep/harness/stage.h"
#include "ep/normal/normal.h"
#include "oracle/unit.h"

/* Epoch of the first call that is made, before the wrap. */
#define FIRSTS 5
#define RANKS  3
#define BEFORE (UINT32_MAX - FIRSTS)

static ranks_kind kind;

typedef struct wrap {
    traffic *traffic;
    answers *answers;
    expar_ep_path path;
    uint32_t after; /* the epoch that the first call's follows */
} wrap;

/* ---- a call of each kind ----------------------------------------------------------------------------------------- */

/* One rank's arguments are wrong: told to all with the headers. */
static bool trial_rejection(const stage *s, const traffic *t)
{
    trial_choice plain = {0};
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_ep_dispatch_args given = trial_dispatch_args(t, s->rank, &plain, &s->area, NULL), args = given;
    if (s->rank == 1) args.num_experts = -1;
    bool right =
        CHECK_STATUS(s->rank == 1 ? EXPAR_ERR_ARGUMENT : EXPAR_ERR_REMOTE, expar_ep_dispatch(s->ep, &args, &result)) &&
        CHECK_TEXT("num_experts");
    trial_dispatch_args_free(&given);
    return right;
}

/* Two dispatches alive, the first one's handle used again, combines of both, and a rejection: seven calls. */
static bool trial_kinds(stage *s, const wrap *w, const trial_area *again)
{
    const traffic *t = w->traffic;
    trial_arrival first, repeat = {0};
    trial_choice there = {.path = w->path, .sure_of_pool = true};
    trial_choice back = {.path = w->path, .place = w->path == EXPAR_EP_PATH_DIRECT ? PLACE_SYMMETRIC : PLACE_LIBRARY};
    bool right = trial_dispatch(s->ep, t, s->rank, &there, &s->area, NULL, &first) &&
                 trial_dispatch(s->ep, t, s->rank, &there, again, first.handle, &repeat) &&
                 trial_combine(s->ep, t, w->answers, s->rank, &back, &s->area, first.handle, &first) &&
                 trial_rejection(s, t) && stage_round_trip(s, t, w->answers, w->path) &&
                 trial_combine(s->ep, t, w->answers, s->rank, &back, &s->area, first.handle, &first);
    trial_release(&repeat, false);
    trial_release(&first, true);
    return right;
}

static void trial_over_the_wrap(stage *s, void *shared)
{
    const wrap *w = shared;
    trial_area again;
    if (!trial_area_take(s->group, 64 << 10, &again) || !epochs_begin_after(s->ep, w->after)) return;
    for (int i = 0; i < 2; i++)
        if (!CHECK(trial_kinds(s, w, &again), "round %d behind epoch %#x", i, (unsigned)w->after)) return;
    CHECK(epochs_last(s->ep) == w->after + 14, "the last epoch is %#x", (unsigned)epochs_last(s->ep));
    trial_area_give(s->group, &again);
}

static void run_path(expar_ep_path path)
{
    static const int64_t num_tokens[RANKS] = {5, 0, 9};
    traffic_plan plan = {.num_ranks = RANKS,
                         .hidden = 16,
                         .topk = 2,
                         .num_experts = 6,
                         .wide = true,
                         .with_weights = true,
                         .num_tokens = num_tokens};
    random_source random = random_start(1);
    wrap w = {.traffic = traffic_make(&plan, &random), .path = path};
    w.answers = answers_make(w.traffic, true, &random);
    stage_plan setting = stage_plan_for(w.traffic, kind);
    setting.config.ring_slots = 2;
    setting.config.num_channels = 2;
    setting.spare_heap_bytes = 256 << 10;
    bool passed = true;
    for (uint32_t i = 0; passed && i < FIRSTS; i++) {
        w.after = BEFORE + i;
        passed = stage_run(&setting, trial_over_the_wrap, &w);
    }
    answers_free(w.answers);
    traffic_free(w.traffic);
    assert_true(passed);
}

static void test_direct(void **state)
{
    (void)state;
    run_path(EXPAR_EP_PATH_DIRECT);
}

static void test_queue(void **state)
{
    (void)state;
    run_path(EXPAR_EP_PATH_QUEUE);
}

static void test_auto(void **state)
{
    (void)state;
    run_path(EXPAR_EP_PATH_AUTO);
}

/* ---- all options ------------------------------------------------------------------------------------------------- */

#define MOVES_PER_SCRIPT    24
#define ROUNDS_OF_THREADS   480
#define ROUNDS_OF_PROCESSES 240

static void begin_before_the_wrap(void *context, expar_ep *ep, int32_t rank)
{
    const options_script *s = context;
    (void)rank;
    epochs_begin_after(ep, UINT32_MAX - (uint32_t)(s->seed % 16));
}

static bool trial_script(uint64_t seed)
{
    options_script s = options_script_make(seed, kind, 0, MOVES_PER_SCRIPT);
    s.prepare = begin_before_the_wrap;
    s.prepare_context = &s;
    return options_script_run(&s);
}

static void test_scripts(void **state)
{
    (void)state;
    int64_t rounds = random_test_rounds(kind == RANKS_THREADS ? ROUNDS_OF_THREADS : ROUNDS_OF_PROCESSES);
    uint64_t seed = random_test_seed(kind == RANKS_THREADS ? "the wrap, threads" : "the wrap, processes");
    for (int64_t done = 0; done < rounds; done += MOVES_PER_SCRIPT)
        assert_true(trial_script(seed++));
}

int main(int argc, char **argv)
{
    kind = stage_kind(argc, argv);
    routing_recorded();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_direct), cmocka_unit_test(test_queue),
                                       cmocka_unit_test(test_auto), cmocka_unit_test(test_scripts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
