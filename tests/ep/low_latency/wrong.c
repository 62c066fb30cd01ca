/* SPDX-License-Identifier: Apache-2.0 */
/* One wrong argument on one rank. */
#include "ep/low_latency/wrong.h"
#include "ep/low_latency/reach.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct wrong_trial {
    const wrong_case *what;
    lowlat_traffic *traffic;
    lowlat_answers *back;
} wrong_trial;

expar_event *wrong_event_gone(void)
{
    expar_event *event = NULL;
    CHECK_OK(expar_event_create(&event));
    expar_event_release(event);
    return event;
}

expar_ll_config wrong_config(void)
{
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    config.max_tokens = WRONG_TOKENS;
    config.hidden = WRONG_HIDDEN;
    config.max_topk = WRONG_TOPK;
    config.num_experts = WRONG_EXPERTS;
    config.unmapped = reach_unmapped();
    return config;
}

lowlat_traffic *wrong_traffic(bool with_weights, random_source *random)
{
    static const int64_t num_tokens[WRONG_RANKS] = {4, 5, 6};
    lowlat_plan plan = {.num_ranks = WRONG_RANKS,
                        .max_tokens = WRONG_TOKENS,
                        .hidden = WRONG_HIDDEN,
                        .topk = WRONG_TOPK,
                        .num_experts = WRONG_EXPERTS,
                        .wide = true,
                        .with_weights = with_weights,
                        .num_tokens = num_tokens};
    return lowlat_traffic_make(&plan, random);
}

/* ---- the calls --------------------------------------------------------------------------------------------------- */

/* With a hook the others learn by it. The status, with the text of the error. */
static expar_status call_dispatch(const wrong_scene *scene, const wrong_case *spoiler, bool hook)
{
    const lowlat_choice choice = {.hook = hook};
    lowlat_call call;
    lowlat_prepare_dispatch(&call, scene->ll, scene->traffic, scene->rank, &choice);
    expar_ll_dispatch_args args = call.there_args;
    expar_ll_dispatch_result result;
    check_fill(&result, sizeof result);
    result.struct_size = sizeof result;
    if (spoiler) setting_apply(&spoiler->set, &args);
    if (spoiler && spoiler->spoil_dispatch) spoiler->spoil_dispatch(&args, scene);
    expar_status status = expar_ll_dispatch(scene->ll, &args, &result);
    if (status == EXPAR_OK && hook) {
        status = expar_ll_hook_call(result.hook, NULL);
        call.there = result;
    } else {
        CHECK_RESULT_LEFT(&result, "a dispatch");
    }
    lowlat_clean(&call);
    return status;
}

static expar_status call_combine(const wrong_scene *scene, const wrong_case *spoiler, const lowlat_answers *back,
                                 bool hook)
{
    const lowlat_choice choice = {.hook = hook, .own_x = true};
    lowlat_call call;
    lowlat_prepare_combine(&call, scene->ll, scene->traffic, back, scene->rank, &choice, scene->handle);
    expar_ll_combine_args args = call.back_args;
    expar_ll_combine_result result;
    check_fill(&result, sizeof result);
    result.struct_size = sizeof result;
    if (spoiler) setting_apply(&spoiler->set, &args);
    if (spoiler && spoiler->spoil_combine) spoiler->spoil_combine(&args, scene);
    expar_status status = expar_ll_combine(scene->ll, &args, &result);
    if (status == EXPAR_OK && hook) {
        status = expar_ll_hook_call(result.hook, NULL);
        call.back = result;
    } else {
        CHECK_RESULT_LEFT(&result, "a combine");
    }
    lowlat_clean(&call);
    return status;
}

static void check_text_of(const wrong_case *what)
{
    const char *words[WRONG_WORDS + 1] = {0};
    memcpy(words, what->words, sizeof what->words);
    check_text(__FILE__, __LINE__, words);
}

static void make_calls(const wrong_scene *scene, const wrong_trial *trial, bool hook)
{
    const wrong_case *what = trial->what;
    const bool combine = what->spoil_combine || what->is_combine, wrong = scene->rank == WRONG_RANK;
    const wrong_case *spoiler = wrong && !what->call ? what : NULL;
    expar_status status = wrong && what->call ? what->call(scene)
                          : combine           ? call_combine(scene, spoiler, trial->back, hook)
                                              : call_dispatch(scene, spoiler, hook);
    CHECK(status == (wrong ? what->status : EXPAR_ERR_REMOTE), "the call gave %s (%s)", expar_status_string(status),
          expar_last_error());
    CHECK_TEXT(combine && !hook ? "expar_ll_combine" : hook ? "expar_ll_" : "expar_ll_dispatch");
    if (wrong)
        check_text_of(what);
    else
        CHECK_TEXT("rank 1", expar_status_string(what->status), what->words[0]);
}

static void trial_case(expar_group *group, void *shared)
{
    const wrong_trial *trial = shared;
    const expar_ll_config config = wrong_config();
    const lowlat_choice plain = {0};
    wrong_scene scene = {.rank = expar_group_rank(group), .traffic = trial->traffic};
    lowlat_call before, elsewhere;
    if (!CHECK_OK(expar_ll_create(group, &config, &scene.ll)) ||
        !CHECK_OK(expar_ll_create(group, &config, &scene.other)))
        return;
    lowlat_prepare_dispatch(&before, scene.ll, trial->traffic, scene.rank, &plain);
    lowlat_prepare_dispatch(&elsewhere, scene.other, trial->traffic, scene.rank, &plain);
    if (lowlat_trial(&before) && lowlat_trial(&elsewhere)) {
        scene.handle = before.there.handle;
        scene.foreign = elsewhere.there.handle;
        for (int hook = 0; hook < 2; hook++) {
            make_calls(&scene, trial, hook);
            lowlat_round_trip(scene.ll, trial->traffic, &trial->back, 1, scene.rank, &plain);
        }
        CHECK(lowlat_is_right(&before), "what an earlier dispatch gave has changed");
    }
    lowlat_clean(&before);
    lowlat_clean(&elsewhere);
    CHECK_OK(expar_ll_destroy(scene.other));
    CHECK_OK(expar_ll_destroy(scene.ll));
}

static void test_case(void **state)
{
    random_source random = random_start(5);
    const ranks_plan ranks = {.kind = RANKS_THREADS, .size = WRONG_RANKS, .heap_bytes = (size_t)32 << 20};
    wrong_trial trial = {.what = *state, .traffic = wrong_traffic(true, &random)};
    trial.back = lowlat_answers_make(trial.traffic, ORACLE_BF16, EXPAR_LL_SUM_EXACT, &random);
    bool passed = ranks_run(&ranks, trial_case, &trial);
    lowlat_answers_free(trial.back, trial.traffic);
    lowlat_traffic_free(trial.traffic);
    assert_true(passed);
}

int wrong_run(const char *program, const wrong_case *cases, size_t count)
{
    struct CMUnitTest *tests = traffic_alloc(count, sizeof *tests);
    for (size_t i = 0; i < count; i++)
        tests[i] = (struct CMUnitTest){
            .name = cases[i].name, .test_func = test_case, .initial_state = (void *)(uintptr_t)&cases[i]};
    int failed = _cmocka_run_group_tests(program, tests, count, NULL, NULL);
    free(tests);
    return failed;
}
