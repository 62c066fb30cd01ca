/* SPDX-License-Identifier: Apache-2.0 */
/* Handles on other buffers than that of their dispatch. They serve any of their group, also after the end of their own,
 * and ranks that mean different ones hear of it. */
#include "ep/harness/pitched.h"
#include "ep/harness/stage.h"
#include "oracle/unit.h"
#include "shmem/kind.h"

#include <string.h>

#define RANKS    3
#define ODD_RANK 2

typedef struct scene {
    traffic *traffic, *repeat;
    answers *answers, *repeat_answers;
    stage_plan plan;
} scene;

static const trial_choice plain = {0};

static expar_ep *make(const stage *s, const expar_ep_config *config)
{
    expar_ep *ep = NULL;
    CHECK_OK(expar_ep_create(s->group, config, &ep));
    return ep;
}

/* A repeat and a combine with the handle, by both paths. */
static void trial_with(const stage *s, const scene *c, expar_ep *ep, const expar_ep_handle *handle)
{
    for (expar_ep_path path = EXPAR_EP_PATH_AUTO; path <= EXPAR_EP_PATH_QUEUE; path++) {
        trial_arrival again;
        const trial_choice choice = {.path = path,
                                     .place = path == EXPAR_EP_PATH_DIRECT ? PLACE_SYMMETRIC : PLACE_LIBRARY};
        if (!trial_dispatch(ep, c->repeat, s->rank, &choice, &s->area, handle, &again)) return;
        trial_combine(ep, c->repeat, c->repeat_answers, s->rank, &choice, &s->area, handle, &again);
        trial_release(&again, true);
    }
}

/* Three buffers in turn, and a dispatch of their own between. */
static void serve_others(stage *s, void *shared)
{
    const scene *c = shared;
    expar_ep_config larger = c->plan.config;
    larger.max_tokens += 5;
    larger.max_topk += 2;
    larger.max_experts += 2 * RANKS;
    expar_ep *second = make(s, &c->plan.config), *third = make(s, &larger);
    trial_arrival first;
    if (!second || !third || !trial_dispatch(s->ep, c->traffic, s->rank, &plain, &s->area, NULL, &first)) return;
    trial_with(s, c, second, first.handle);
    stage_round_trip(s, c->traffic, c->answers, EXPAR_EP_PATH_AUTO);
    trial_with(s, c, third, first.handle);
    trial_with(s, c, s->ep, first.handle);
    trial_combine(third, c->traffic, c->answers, s->rank, &plain, &s->area, first.handle, &first);
    trial_release(&first, false);
    CHECK_OK(expar_ep_destroy(second));
    CHECK_OK(expar_ep_destroy(third));
}

/* With fewer channels than the handle's four, whose rows then share rings, or with more. */
static void serve_with_other_channels(stage *s, void *shared)
{
    static const int32_t num_channels[] = {1, 2, 3, 5, 9};
    const scene *c = shared;
    trial_arrival first;
    if (!trial_dispatch(s->ep, c->traffic, s->rank, &plain, &s->area, NULL, &first)) return;
    for (size_t i = 0; i < sizeof num_channels / sizeof *num_channels; i++) {
        expar_ep_config config = c->plan.config;
        config.num_channels = num_channels[i];
        expar_ep *other = make(s, &config);
        if (!other) return;
        trial_with(s, c, other, first.handle);
        CHECK_OK(expar_ep_destroy(other));
    }
    trial_with(s, c, s->ep, first.handle);
    trial_release(&first, true);
}

/* Engines replace a buffer while handles are held. */
static void outlive_their_buffer(stage *s, void *shared)
{
    const scene *c = shared;
    trial_arrival first;
    if (!trial_dispatch(s->ep, c->traffic, s->rank, &plain, &s->area, NULL, &first)) return;
    expar_ep_output_release(first.result.output);
    if (!CHECK_OK(expar_ep_destroy(s->ep)) || !(s->ep = make(s, &c->plan.config))) return;
    trial_with(s, c, s->ep, first.handle);
    expar_ep_handle_release(first.handle);
}

/* Handles of two buffers whose calls have the same epochs. */
static void differ_by_buffer(stage *s, void *shared)
{
    const scene *c = shared;
    expar_ep *other = make(s, &c->plan.config);
    trial_arrival here, there;
    trial_dispatch(s->ep, c->traffic, s->rank, &plain, &s->area, NULL, &here);
    trial_dispatch(other, c->traffic, s->rank, &plain, &s->area, NULL, &there);
    expar_ep_dispatch_args given = trial_dispatch_args(c->repeat, s->rank, &plain, &s->area, NULL), args = given;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    args.topk_idx = args.topk_weights = EXPAR_TENSOR_NONE;
    args.handle = s->rank == ODD_RANK ? there.handle : here.handle;
    CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_ep_dispatch(s->ep, &args, &result));
    CHECK_TEXT("expar_ep_dispatch", "handle (number of the buffer that it was made on) is 2 on rank 2 and 1 on rank 0");
    trial_dispatch_args_free(&given);
    trial_with(s, c, s->ep, there.handle);
    trial_with(s, c, other, here.handle);
    trial_release(&here, true);
    trial_release(&there, true);
    CHECK_OK(expar_ep_destroy(other));
}

/* ---- what does not fit ------------------------------------------------------------------------------------------- */

typedef struct misfit {
    expar_status status;
    const char *words;
    void (*shrink)(expar_ep_config *config);
} misfit;

static void fewer_tokens(expar_ep_config *config)
{
    config->max_tokens = 8;
}

static void fewer_slots(expar_ep_config *config)
{
    config->max_topk = 2;
}

static void fewer_experts(expar_ep_config *config)
{
    config->max_experts = RANKS;
}

static const misfit misfits[] = {
    {EXPAR_ERR_LIMIT, "handle has 9 tokens; this buffer was created for at most 8 (config.max_tokens)", fewer_tokens},
    {EXPAR_ERR_LIMIT, "handle has 3 slots a token; this buffer was created for at most 2 (config.max_topk)",
     fewer_slots},
    {EXPAR_ERR_LIMIT, "handle has 6 experts; this buffer was created for at most 3 (config.max_experts)",
     fewer_experts},
};

/* All ranks have the same; tokens are too many on rank 0 alone. */
static void do_not_fit(stage *s, void *shared)
{
    const scene *c = shared;
    trial_arrival first;
    if (!trial_dispatch(s->ep, c->traffic, s->rank, &plain, &s->area, NULL, &first)) return;
    for (size_t i = 0; i < sizeof misfits / sizeof *misfits; i++) {
        expar_ep_config config = c->plan.config;
        misfits[i].shrink(&config);
        expar_ep *other = make(s, &config);
        expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
        args.x = pitched_make(traffic_dtype(c->traffic), c->traffic->arrivals[s->rank].num_rows, 16, 0, false);
        args.out_y = pitched_make(traffic_dtype(c->traffic), c->traffic->inputs[s->rank].num_tokens, 16, 0, false);
        args.handle = first.handle;
        bool all = misfits[i].shrink != fewer_tokens;
        CHECK_STATUS(all || s->rank == 0 ? misfits[i].status : EXPAR_ERR_REMOTE, expar_ep_combine(other, &args, NULL));
        CHECK_TEXT("expar_ep_combine", misfits[i].words);
        pitched_free(&args.x);
        pitched_free(&args.out_y);
        CHECK_OK(expar_ep_destroy(other));
    }
    trial_with(s, c, s->ep, first.handle);
    trial_release(&first, true);
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static void run(stage_body body)
{
    static const int64_t num_tokens[RANKS] = {9, 5, 7};
    traffic_plan plan = {.num_ranks = RANKS,
                         .hidden = 16,
                         .topk = 3,
                         .num_experts = 6,
                         .type = ORACLE_F32,
                         .disturb = 4,
                         .num_tokens = num_tokens};
    random_source random = random_start(21);
    scene c = {.traffic = traffic_make(&plan, &random)};
    c.repeat = traffic_repeat(c.traffic, &random);
    c.answers = answers_make(c.traffic, true, &random);
    c.repeat_answers = answers_make(c.repeat, false, &random);
    c.plan = stage_plan_for(c.traffic, kind_of_ranks);
    c.plan.config.num_channels = 4;
    c.plan.spare_heap_bytes = (size_t)192 << 20;
    bool passed = stage_run(&c.plan, body, &c);
    answers_free(c.answers);
    answers_free(c.repeat_answers);
    traffic_free(c.repeat);
    traffic_free(c.traffic);
    assert_true(passed);
}

static void test_other_buffers(void **state)
{
    (void)state;
    run(serve_others);
}

static void test_after_the_end_of_their_buffer(void **state)
{
    (void)state;
    run(outlive_their_buffer);
}

static void test_other_channels(void **state)
{
    (void)state;
    run(serve_with_other_channels);
}

static void test_named_by_buffer_and_epoch(void **state)
{
    (void)state;
    run(differ_by_buffer);
}

static void test_what_does_not_fit(void **state)
{
    (void)state;
    run(do_not_fit);
}

/* Thread ranks each have a group of their own: that of another rank is as foreign as that of another group. */
static void test_of_another_group(void **state)
{
    (void)state;
    static _Alignas(16) float x[2][4];
    int64_t idx[2][1] = {{0}, {1}};
    expar_group *groups[2];
    expar_ep *buffers[2];
    expar_ep_dispatch_result results[2] = {EXPAR_EP_DISPATCH_RESULT_INIT, EXPAR_EP_DISPATCH_RESULT_INIT};
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = 2;
    config.max_row_bytes = sizeof x[0];
    config.max_topk = 1;
    config.max_experts = 2;
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    args.x = expar_tensor_2d(x, EXPAR_F32, 2, 4);
    args.topk_idx = expar_tensor_2d(idx, EXPAR_I64, 2, 1);
    args.num_experts = 2;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(expar_group_create_threads(1, NULL, &groups[i]), EXPAR_OK);
        assert_int_equal(expar_ep_create(groups[i], &config, &buffers[i]), EXPAR_OK);
        assert_int_equal(expar_ep_dispatch(buffers[i], &args, &results[i]), EXPAR_OK);
    }
    expar_ep_dispatch_result none = EXPAR_EP_DISPATCH_RESULT_INIT;
    args.topk_idx = EXPAR_TENSOR_NONE;
    args.handle = results[0].handle;
    assert_int_equal(expar_ep_dispatch(buffers[1], &args, &none), EXPAR_ERR_HANDLE);
    assert_non_null(strstr(expar_last_error(), "handle was made in another group, or by another rank of this one"));
    for (int i = 0; i < 2; i++) {
        expar_ep_output_release(results[i].output);
        expar_ep_handle_release(results[i].handle);
        assert_int_equal(expar_ep_destroy(buffers[i]), EXPAR_OK);
        assert_int_equal(expar_group_destroy(groups[i]), EXPAR_OK);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_buffers),
        cmocka_unit_test(test_other_channels),
        cmocka_unit_test(test_after_the_end_of_their_buffer),
        cmocka_unit_test(test_named_by_buffer_and_epoch),
        cmocka_unit_test(test_what_does_not_fit),
        cmocka_unit_test(test_of_another_group),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
