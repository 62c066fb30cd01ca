/* SPDX-License-Identifier: Apache-2.0 */
/* Calls on what has come to its end, is something else or is not there, and with structs of no size: each has its own
 * error, and nothing is written. Wrong arguments of dispatch, combine and route: test_ep_bad_dispatch and others. */
#include "ep/harness/check.h"
#include "ep/harness/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

enum { TOKENS = 4, HIDDEN = 8, TOPK = 2, EXPERTS = 2 };

/* Every call on a buffer, with arguments that would do. */
static expar_status call_dispatch(expar_ep *ep)
{
    static _Alignas(16) float x[TOKENS][HIDDEN];
    static int32_t idx[TOKENS][TOPK];
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    args.x = expar_tensor_2d(x, EXPAR_F32, TOKENS, HIDDEN);
    args.topk_idx = expar_tensor_2d(idx, EXPAR_I32, TOKENS, TOPK);
    args.num_experts = EXPERTS;
    expar_status status = expar_ep_dispatch(ep, &args, &result);
    CHECK(status == EXPAR_OK || (!result.handle && !result.output), "a dispatch that failed wrote its result");
    expar_ep_output_release(result.output);
    expar_ep_handle_release(result.handle);
    return status;
}

static expar_status call_route(expar_ep *ep)
{
    static int32_t idx[TOKENS][TOPK];
    expar_ep_route_args args = EXPAR_EP_ROUTE_ARGS_INIT;
    expar_ep_route_result result = EXPAR_EP_ROUTE_RESULT_INIT;
    args.topk_idx = expar_tensor_2d(idx, EXPAR_I32, TOKENS, TOPK);
    args.num_experts = EXPERTS;
    expar_status status = expar_ep_route(ep, &args, &result);
    CHECK(status == EXPAR_OK || !result.handle, "a route that failed wrote its result");
    expar_ep_handle_release(result.handle);
    return status;
}

static expar_status call_combine(expar_ep *ep)
{
    const expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
    return expar_ep_combine(ep, &args, NULL);
}

static expar_status call_alloc(expar_ep *ep)
{
    expar_ep_output *output = NULL;
    expar_status status = expar_ep_alloc(ep, 64, &output);
    CHECK(status == EXPAR_OK || !output, "expar_ep_alloc failed, and wrote its output");
    expar_ep_output_release(output);
    return status;
}

static expar_status call_get_stats(expar_ep *ep)
{
    expar_ep_stats stats = EXPAR_EP_STATS_INIT;
    stats.growths = 77;
    expar_status status = expar_ep_get_stats(ep, &stats);
    CHECK(status == EXPAR_OK || stats.growths == 77, "expar_ep_get_stats failed, and wrote its numbers");
    return status;
}

static const struct {
    const char *name;
    expar_status (*call)(expar_ep *ep);
} calls[] = {{"expar_ep_dispatch", call_dispatch}, {"expar_ep_route", call_route},
             {"expar_ep_combine", call_combine},   {"expar_ep_alloc", call_alloc},
             {"expar_ep_trim", expar_ep_trim},     {"expar_ep_get_stats", call_get_stats},
             {"expar_ep_query", expar_ep_query}};

static void check_all(expar_ep *ep, expar_status status, const char *text)
{
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        CHECK_STATUS(status, calls[i].call(ep));
        CHECK_TEXT(calls[i].name, text);
    }
}

static expar_ep *buffer_make(expar_group *group)
{
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    expar_ep *ep = NULL;
    config.max_row_bytes = sizeof(float[HIDDEN]);
    CHECK_OK(expar_ep_create(group, &config, &ep));
    CHECK_OK(call_dispatch(ep));
    return ep;
}

static void trial_buffers(expar_group *group, void *shared)
{
    static const char ended[] = "the buffer has been destroyed or abandoned";
    static uint64_t foreign[256];
    (void)shared;
    check_all(NULL, EXPAR_ERR_NULL, "ep is NULL");
    check_all((expar_ep *)(void *)foreign, EXPAR_ERR_STATE, ended);
    check_all((expar_ep *)(void *)group, EXPAR_ERR_STATE, ended);
    expar_ep *ep = buffer_make(group);
    CHECK_OK(expar_ep_destroy(ep));
    check_all(ep, EXPAR_ERR_STATE, ended);
    CHECK_STATUS(EXPAR_ERR_STATE, expar_ep_destroy(ep));
    CHECK_TEXT("expar_ep_destroy", ended);
    CHECK_OK(expar_ep_abandon(ep));
    ep = buffer_make(group);
    CHECK_OK(expar_ep_abandon(ep));
    check_all(ep, EXPAR_ERR_STATE, ended);
    CHECK_STATUS(EXPAR_ERR_STATE, expar_ep_destroy(ep));
}

static void buffers_that_have_ended(void **state)
{
    const ranks_plan plan = {.kind = RANKS_THREADS, .size = 1};
    (void)state;
    assert_true(ranks_run(&plan, trial_buffers, NULL));
}

/* ---- configs ----------------------------------------------------------------------------------------------------- */

static void reject_config(expar_group *group, const expar_ep_config *config, const char *text)
{
    size_t bytes = 77;
    expar_ep *ep = NULL;
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ep_get_buffer_size(config, 1, &bytes));
    CHECK_TEXT("expar_ep_get_buffer_size", text);
    CHECK(bytes == 77, "the size was written");
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ep_create(group, config, &ep));
    CHECK_TEXT("expar_ep_create", text);
    CHECK(!ep, "the buffer was written");
}

static void trial_devices(expar_group *group, void *shared)
{
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    (void)shared;
    config.device.type = (expar_device_type)9; /* whose bounds nobody knows */
    reject_config(group, &config, "config.device.type is 9; expected 0 to 2");
    config.device = (expar_device){EXPAR_CPU, 3};
    reject_config(group, &config, "config.device.index is 3; expected 0 on the CPU");
    config.device = (expar_device){EXPAR_CPU, -1};
    reject_config(group, &config, "config.device.index is -1");
}

static void devices_that_are_none(void **state)
{
    const ranks_plan plan = {.kind = RANKS_THREADS, .size = 1};
    (void)state;
    assert_true(ranks_run(&plan, trial_devices, NULL));
}

/* ---- layouts ----------------------------------------------------------------------------------------------------- */

static void trial_layouts(expar_group *group, void *shared)
{
    _Alignas(8) unsigned char counts[64];
    int32_t idx[2] = {0, 1};
    expar_tensor topk = expar_tensor_2d(idx, EXPAR_I32, 1, 2);
    expar_ep_layout layout = EXPAR_EP_LAYOUT_INIT;
    (void)shared;
    memset(counts, 77, sizeof counts);
    layout.tokens_per_expert = (int32_t *)(void *)(counts + 4);
    layout.tokens_per_rank = (int32_t *)(void *)(counts + 33);
    CHECK_STATUS(EXPAR_ERR_ALIGNMENT, expar_ep_get_layout(group, &topk, 2, &layout));
    CHECK_TEXT("expar_ep_get_layout: layout.tokens_per_rank is ", "expected a multiple of 4");
    layout.tokens_per_rank = NULL;
    topk.shape[1] = topk.strides[0] = ((int64_t)1 << 32) + 2; /* 2, to who looks at 32 bits */
    CHECK_STATUS(EXPAR_ERR_SHAPE, expar_ep_get_layout(group, &topk, 2, &layout));
    CHECK_TEXT("topk_idx has shape [1][4294967298]; expected at most 2^31 - 1 slots");
    topk.shape[0] = 1 << 20;
    topk.shape[1] = topk.strides[0] = 1 << 11;
    CHECK_STATUS(EXPAR_ERR_SHAPE, expar_ep_get_layout(group, &topk, 2, &layout));
    CHECK_TEXT("topk_idx has shape [1048576][2048]");
    for (size_t i = 0; i < sizeof counts; i++)
        CHECK(counts[i] == 77, "a layout that failed wrote its counts");
    topk = expar_tensor_2d(idx, EXPAR_I32, 1, 2);
    CHECK_OK(expar_ep_get_layout(group, &topk, 2, &layout));
    CHECK_OK(expar_group_destroy(group));
    CHECK_STATUS(EXPAR_ERR_STATE, expar_ep_get_layout(group, &topk, 2, &layout));
    CHECK_TEXT("expar_ep_get_layout: the group has been destroyed or abandoned");
}

static void layouts(void **state)
{
    const ranks_plan plan = {.kind = RANKS_THREADS, .size = 1, .ends_itself = true};
    (void)state;
    assert_true(ranks_run(&plan, trial_layouts, NULL));
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

static void check_no_event(expar_event *event)
{
    static const char text[] = "is not a living event; it has been released as often as retained";
    int done = 77;
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_event_wait(event));
    CHECK_TEXT("expar_event_wait: event ", text);
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_event_signal(event));
    CHECK_TEXT("expar_event_signal: event ", text);
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_event_query(event, &done));
    CHECK_TEXT("expar_event_query: event ", text);
    CHECK(done == 77, "expar_event_query failed, and wrote its answer");
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_event_stream_wait(event, NULL));
    CHECK_TEXT("expar_event_stream_wait: event ", text);
    expar_event_release(event); /* told in the log, and nothing else happens */
}

static void events_that_have_ended(void **state)
{
    static uint64_t foreign[512];
    expar_event *event;
    (void)state;
    check_begin(0);
    CHECK_OK(expar_event_create(&event));
    CHECK_OK(expar_event_signal(event));
    expar_event_release(event);
    check_no_event(event);
    check_no_event(event);
    check_no_event((expar_event *)(void *)foreign);
    assert_int_equal(check_failures(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_that_have_ended),
        cmocka_unit_test(devices_that_are_none),
        cmocka_unit_test(layouts),
        cmocka_unit_test(events_that_have_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
