/* SPDX-License-Identifier: Apache-2.0 */
/* One wrong argument on one rank. */
#include "ep/harness/rejection.h"
#include "ep/harness/pitched.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct rejection {
    const rejection_case *what;
    traffic *traffic;
    answers *answers;
} rejection;

static expar_status call_dispatch(const rejection_scene *scene, const rejection_case *what)
{
    trial_choice choice = {0};
    expar_ep_dispatch_args given =
        trial_dispatch_args(scene->traffic, scene->stage->rank, &choice, &scene->stage->area, NULL);
    expar_ep_dispatch_args args = given;
    expar_ep_dispatch_result result;
    check_fill(&result, sizeof result);
    result.struct_size = sizeof result;
    if (what) setting_apply(&what->set, &args);
    if (what && what->spoil_dispatch) what->spoil_dispatch(&args, scene);
    expar_status status = expar_ep_dispatch(scene->stage->ep, &args, &result);
    CHECK_RESULT_LEFT(&result, "a dispatch");
    trial_dispatch_args_free(&given);
    return status;
}

static expar_status call_combine(const rejection_scene *scene, const rejection_case *what)
{
    const traffic *t = scene->traffic;
    int32_t rank = scene->stage->rank;
    int64_t num_tokens = t->inputs[rank].num_tokens, num_rows = t->arrivals[rank].num_rows;
    expar_ep_combine_args given = EXPAR_EP_COMBINE_ARGS_INIT;
    given.x = pitched_make(traffic_dtype(t), num_rows, t->job.hidden, 0, false);
    given.topk_weights = pitched_make(EXPAR_F32, num_rows, t->job.topk, 0, false);
    given.out_y = pitched_make(traffic_dtype(t), num_tokens, t->job.hidden, 0, false);
    given.out_topk_weights = pitched_make(EXPAR_F32, num_tokens, t->job.topk, 0, false);
    given.handle = scene->handle;
    size_t y_bytes = (size_t)num_tokens * traffic_row_bytes(t);
    check_fill(given.out_y.data, y_bytes);
    expar_ep_combine_args args = given;
    if (what) setting_apply(&what->set, &args);
    if (what && what->spoil_combine) what->spoil_combine(&args, scene);
    expar_status status = expar_ep_combine(scene->stage->ep, &args, NULL);
    check_filled(given.out_y.data, y_bytes, "a combine");
    pitched_free(&given.x);
    pitched_free(&given.topk_weights);
    pitched_free(&given.out_y);
    pitched_free(&given.out_topk_weights);
    return status;
}

static expar_status call_route(const rejection_scene *scene, const rejection_case *what)
{
    trial_choice choice = {0};
    expar_ep_dispatch_args given =
        trial_dispatch_args(scene->traffic, scene->stage->rank, &choice, &scene->stage->area, NULL);
    expar_ep_route_args args = EXPAR_EP_ROUTE_ARGS_INIT;
    expar_ep_route_result result;
    args.topk_idx = given.topk_idx;
    args.num_experts = given.num_experts;
    check_fill(&result, sizeof result);
    result.struct_size = sizeof result;
    if (what) setting_apply(&what->set, &args);
    if (what && what->spoil_route) what->spoil_route(&args, scene);
    expar_status status = expar_ep_route(scene->stage->ep, &args, &result);
    CHECK_RESULT_LEFT(&result, "a route");
    trial_dispatch_args_free(&given);
    return status;
}

static void check_own_text(const rejection_case *what)
{
    const char *words[REJECTION_WORDS + 1] = {0};
    memcpy(words, what->words, sizeof what->words);
    check_text(__FILE__, __LINE__, words);
}

/* The call of the ranks. */
typedef struct rejection_call {
    const char *name;
    expar_status (*call)(const rejection_scene *scene, const rejection_case *what);
} rejection_call;

static rejection_call call_of(const rejection_case *what)
{
    if (what->spoil_route || what->is_route) return (rejection_call){"expar_ep_route", call_route};
    if (what->spoil_combine || what->is_combine) return (rejection_call){"expar_ep_combine", call_combine};
    return (rejection_call){"expar_ep_dispatch", call_dispatch};
}

/* Each rank's error begins with the call and the rank itself. */
static void check_title(const rejection_scene *scene, const char *name)
{
    char title[64];
    snprintf(title, sizeof title, "%s on rank %d: ", name, scene->stage->rank);
    CHECK(strncmp(expar_last_error(), title, strlen(title)) == 0, "\"%s\" does not begin with \"%s\"",
          expar_last_error(), title);
}

static void make_calls(const rejection_scene *scene, const rejection_case *what)
{
    const rejection_call of = call_of(what);
    if (scene->stage->rank != REJECTION_RANK) {
        CHECK_STATUS(EXPAR_ERR_REMOTE, of.call(scene, NULL));
        CHECK_TEXT(of.name, "rank 1", expar_status_string(what->status), what->words[0]);
        check_title(scene, of.name);
        return;
    }
    CHECK_STATUS(what->status, what->call ? what->call(scene) : of.call(scene, what));
    check_own_text(what);
    check_title(scene, of.name);
}

static void trial_rejection(stage *s, void *shared)
{
    const rejection *r = shared;
    trial_choice plain = {0};
    trial_arrival before;
    if (!trial_dispatch(s->ep, r->traffic, s->rank, &plain, &s->area, NULL, &before)) return;
    rejection_scene scene = {s, r->traffic, before.handle};
    make_calls(&scene, r->what);
    trial_check_arrival(&before, s->rank);
    stage_round_trip(s, r->traffic, r->answers, EXPAR_EP_PATH_AUTO);
    trial_combine(s->ep, r->traffic, r->answers, s->rank, &plain, &s->area, before.handle, &before);
    trial_release(&before, true);
}

expar_event *rejection_event_gone(void)
{
    expar_event *event = NULL;
    CHECK_OK(expar_event_create(&event));
    expar_event_release(event);
    return event;
}

void rejection_test(void **state)
{
    const int64_t num_tokens[] = {4, 5, 6};
    traffic_plan plan = traffic_plan_small(3, 0, num_tokens);
    plan.hidden = 16;
    plan.wide = plan.with_weights = true;
    random_source random = random_start(5);
    rejection r = {.what = *state, .traffic = traffic_make(&plan, &random)};
    r.answers = answers_make(r.traffic, true, &random);
    stage_plan setting = stage_plan_for(r.traffic, RANKS_THREADS);
    setting.config.max_scales = 1;
    bool passed = stage_run(&setting, trial_rejection, &r);
    answers_free(r.answers);
    traffic_free(r.traffic);
    assert_true(passed);
}

int rejection_run(const char *program, const rejection_case *cases, size_t count)
{
    struct CMUnitTest *tests = traffic_alloc(count, sizeof *tests);
    for (size_t i = 0; i < count; i++)
        tests[i] = (struct CMUnitTest){
            .name = cases[i].name, .test_func = rejection_test, .initial_state = (void *)(uintptr_t)&cases[i]};
    int failed = _cmocka_run_group_tests(program, tests, count, NULL, NULL);
    free(tests);
    return failed;
}
