/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of ep as sequences of steps: which ones, in which order, on an executor that writes them down (recorder.h)
 * and says when facts are known. One rank, so that nobody else decides. */
#include "ep/normal/normal.h"
#include "exec/recorder.h"
#include "oracle/unit.h"
#include <expar/expar.h>

#include <string.h>

enum { TOKENS = 4, HIDDEN = 8, TOPK = 2, EXPERTS = 4, COMING = 3 };

typedef struct scene {
    expar_group *group;
    expar_ep *ep;
    recorder *said;
    _Alignas(16) float x[TOKENS][HIDDEN], y[TOKENS][HIDDEN], own[COMING][HIDDEN];
    int32_t idx[TOKENS][TOPK];
} scene;

static scene *set(const executor_kind *kind)
{
    static scene s;
    memset(&s, 0, sizeof s);
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = TOKENS;
    config.max_row_bytes = HIDDEN * sizeof(float);
    config.max_topk = TOPK;
    config.max_experts = EXPERTS;
    assert_int_equal(expar_group_create_threads(1, NULL, &s.group), EXPAR_OK);
    assert_int_equal(ep_create_with(s.group, &config, kind, &s.ep), EXPAR_OK);
    s.said = recorder_of(s.ep->base.exec);
    s.said->coming = COMING;
    return &s;
}

static void clear(scene *s)
{
    assert_int_equal(expar_ep_destroy(s->ep), EXPAR_OK);
    assert_int_equal(expar_group_destroy(s->group), EXPAR_OK);
}

/* Everything since the last look. */
static void assert_said(scene *s, const char *expected)
{
    assert_string_equal(s->said->text, expected);
    s->said->text[0] = '\0';
}

static expar_ep_dispatch_args fresh(scene *s)
{
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    args.x = expar_tensor_2d(s->x, EXPAR_F32, TOKENS, HIDDEN);
    args.topk_idx = expar_tensor_2d(s->idx, EXPAR_I32, TOKENS, TOPK);
    args.num_experts = EXPERTS;
    return args;
}

static expar_ep_dispatch_args cached(scene *s, const expar_ep_dispatch_result *from)
{
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    args.x = expar_tensor_2d(s->x, EXPAR_F32, TOKENS, HIDDEN);
    args.handle = from->handle;
    return args;
}

static expar_ep_combine_args back(scene *s, const expar_ep_dispatch_result *from)
{
    expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
    args.x = from->recv_x;
    args.handle = from->handle;
    args.out_y = expar_tensor_2d(s->y, EXPAR_F32, TOKENS, HIDDEN);
    return args;
}

static void assert_dispatch(scene *s, const expar_ep_dispatch_args *args, expar_ep_dispatch_result *result)
{
    *result = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    assert_int_equal(expar_ep_dispatch(s->ep, args, result), EXPAR_OK);
}

static void give_back(expar_ep_dispatch_result *result)
{
    expar_ep_output_release(result->output);
    expar_ep_handle_release(result->handle);
}

/* ---- whole calls ------------------------------------------------------------------------------------------------- */

/* Rows are sent ahead of the counts where the executor has that; nothing else depends on when facts are known. */
static void dispatch_repeat_and_combine(void **state)
{
    (void)state;
    for (int streams = 0; streams < 2; streams++) {
        scene *s = set(streams ? &recorder_on_streams : &recorder_at_once);
        expar_ep_dispatch_result first, again;
        expar_ep_dispatch_args args = fresh(s);
        assert_dispatch(s, &args, &first);
        assert_int_equal(first.num_recv_tokens, COMING);
        assert_int_equal(first.recv_tokens_per_expert[0], COMING);
        assert_said(s, streams ? "begin place prepare routing notify#1+rows keep send#1-ahead receive#1 end "
                               : "begin place prepare routing notify#1 keep send#1 receive#1 end ");
        args = cached(s, &first);
        assert_dispatch(s, &args, &again);
        assert_said(s, streams ? "begin place prepare keep send#2 receive#2 end "
                               : "begin prepare keep place send#2 receive#2 end ");
        expar_ep_combine_args to = back(s, &first);
        assert_int_equal(expar_ep_combine(s->ep, &to, NULL), EXPAR_OK);
        assert_said(s, streams ? "begin place prepare keep send-back#3 receive-back#3 end "
                               : "begin prepare keep place send-back#3 receive-back#3 end ");
        give_back(&again);
        give_back(&first);
        clear(s);
    }
}

/* Records that do not hold the call grow first, in its epoch or in one of their own; where they cannot, that is all
   there is. */
static void records_that_grow(void **state)
{
    (void)state;
    for (int streams = 0; streams < 2; streams++) {
        scene *s = set(streams ? &recorder_on_streams : &recorder_at_once);
        expar_ep_dispatch_result first;
        expar_ep_dispatch_args args = fresh(s);
        s->said->fails = "fits";
        assert_dispatch(s, &args, &first);
        assert_said(s, streams ? "begin grow#1 place prepare routing notify#2+rows keep send#2-ahead receive#2 end "
                               : "begin grow#1 place prepare routing notify#1 keep send#1 receive#1 end ");
        expar_ep_combine_args to = back(s, &first);
        assert_int_equal(expar_ep_combine(s->ep, &to, NULL), EXPAR_OK);
        assert_said(s, streams ? "begin grow#3 place prepare keep send-back#4 receive-back#4 end "
                               : "begin grow#2 prepare keep place send-back#2 receive-back#2 end ");
        s->said->rejected = "grow";
        assert_int_equal(expar_ep_combine(s->ep, &to, NULL), EXPAR_ERR_SHAPE);
        assert_said(s, streams ? "begin grow#5 " : "begin grow#3 ");
        give_back(&first);
        clear(s);
    }
}

/* Rows sent ahead that did not fit had no effect: they are sent again, to an output of their size. */
static void spare_memory_that_is_too_small(void **state)
{
    (void)state;
    scene *s = set(&recorder_on_streams);
    expar_ep_dispatch_result first;
    expar_ep_dispatch_args args = fresh(s);
    s->said->coming = 40000; /* rows of the pool's megabyte */
    args.path = EXPAR_EP_PATH_QUEUE;
    assert_dispatch(s, &args, &first);
    assert_said(s, "begin place prepare routing notify#1+rows take keep send#1 receive#1 end ");
    give_back(&first);
    clear(s);
}

/* The output is made before the others are asked; its counts stay unknown where they are on a stream. */
static void worst_case(void **state)
{
    (void)state;
    for (int streams = 0; streams < 2; streams++) {
        scene *s = set(streams ? &recorder_on_streams : &recorder_at_once);
        expar_ep_dispatch_result first;
        expar_ep_dispatch_args args = fresh(s);
        args.num_worst_tokens = COMING + 1;
        assert_dispatch(s, &args, &first);
        assert_int_equal(first.recv_x.shape[0], COMING + 1);
        assert_int_equal(first.num_recv_tokens, streams ? -1 : COMING);
        assert_int_equal(first.recv_tokens_per_expert != NULL, !streams);
        assert_said(s, "begin-unasked place prepare routing keep notify#1 send#1 receive#1 end ");
        give_back(&first);
        clear(s);
    }
}

static void expert_major(void **state)
{
    (void)state;
    for (int streams = 0; streams < 2; streams++) {
        scene *s = set(streams ? &recorder_on_streams : &recorder_at_once);
        expar_ep_dispatch_result first, again;
        expar_ep_dispatch_args args = fresh(s);
        args.expert_major = 1;
        args.zero_padding = 1;
        assert_dispatch(s, &args, &first);
        assert_said(s, "begin place prepare routing notify#1 map-room keep send#1 receive#1 map copy expand pad end ");
        args = cached(s, &first);
        args.expert_major = 1;
        assert_dispatch(s, &args, &again);
        assert_said(s, streams ? "begin place prepare keep send#2 receive#2 copy expand end "
                               : "begin prepare keep place send#2 receive#2 copy expand end ");
        expar_ep_combine_args to = back(s, &first);
        to.expert_major = 1;
        assert_int_equal(expar_ep_combine(s->ep, &to, NULL), EXPAR_OK);
        assert_said(s, streams ? "begin place prepare keep reduce send-back#3 receive-back#3 end "
                               : "begin prepare keep place reduce send-back#3 receive-back#3 end ");
        give_back(&again);
        give_back(&first);
        clear(s);
    }
}

/* All of them: what arrives is theirs, and there is nothing to take; staged parts are copied each. */
static void all_memory_of_the_callers(void **state)
{
    (void)state;
    for (int streams = 0; streams < 2; streams++) {
        scene *s = set(streams ? &recorder_on_streams : &recorder_at_once);
        expar_ep_dispatch_result first;
        expar_ep_dispatch_args args = fresh(s);
        int32_t idx[COMING][TOPK];
        args.out_x = expar_tensor_2d(s->own, EXPAR_F32, COMING, HIDDEN);
        args.out_topk_idx = expar_tensor_2d(idx, EXPAR_I32, COMING, TOPK);
        assert_dispatch(s, &args, &first);
        assert_ptr_equal(first.recv_topk_idx.data, idx);
        assert_said(s, streams ? "begin place prepare routing notify#1 keep send#1 receive#1 copy copy end "
                               : "begin place prepare routing notify#1 keep send#1 receive#1 end ");
        give_back(&first);
        clear(s);
    }
}

/* The opening of a fresh dispatch, and the rest when rows are to come. The first expert-major dispatch with top-k makes
   and fills the map. */
static void route_and_dispatch(void **state)
{
    (void)state;
    for (int streams = 0; streams < 2; streams++) {
        scene *s = set(streams ? &recorder_on_streams : &recorder_at_once);
        expar_ep_dispatch_args same = fresh(s);
        expar_ep_dispatch_result rows;
        expar_ep_route_args args = EXPAR_EP_ROUTE_ARGS_INIT;
        expar_ep_route_result route = EXPAR_EP_ROUTE_RESULT_INIT;
        args.topk_idx = same.topk_idx;
        args.num_experts = same.num_experts;
        assert_int_equal(expar_ep_route(s->ep, &args, &route), EXPAR_OK);
        assert_int_equal(route.num_recv_tokens, COMING);
        assert_int_equal(route.num_expert_rows, COMING);
        assert_said(s, "begin place routing keep notify#1 end ");
        same.handle = route.handle;
        same.expert_major = 1;
        for (int again = 0; again < 2; again++) {
            assert_dispatch(s, &same, &rows);
            if (streams)
                assert_said(s, again ? "begin place prepare keep send#3 receive#3 copy expand end "
                                     : "begin place prepare map-room keep send#2 receive#2 map copy expand end ");
            else
                assert_said(s, again ? "begin prepare keep place send#3 receive#3 copy expand end "
                                     : "begin prepare map-room keep place send#2 receive#2 map copy expand end ");
            give_back(&rows);
        }
        expar_ep_handle_release(route.handle);
        clear(s);
    }
}

/* Memory that peers cannot reach: rows pass through the pool where the executor stages them, else by the queue. */
static void memory_of_the_callers(void **state)
{
    (void)state;
    for (int streams = 0; streams < 2; streams++) {
        scene *s = set(streams ? &recorder_on_streams : &recorder_at_once);
        expar_ep_dispatch_result first;
        expar_ep_dispatch_args args = fresh(s);
        args.out_x = expar_tensor_2d(s->own, EXPAR_F32, COMING, HIDDEN);
        assert_dispatch(s, &args, &first);
        assert_int_equal(first.path, streams ? EXPAR_EP_PATH_DIRECT : EXPAR_EP_PATH_QUEUE);
        assert_said(s, streams ? "begin place prepare routing notify#1 keep send#1 receive#1 copy end "
                               : "begin place prepare routing notify#1 take keep send#1 receive#1 end ");
        expar_ep_combine_args to = back(s, &first);
        to.x = args.out_x;
        assert_int_equal(expar_ep_combine(s->ep, &to, NULL), EXPAR_OK);
        assert_said(s, streams ? "begin place prepare keep copy send-back#2 receive-back#2 end "
                               : "begin prepare keep place send-back#2 receive-back#2 end ");
        give_back(&first);
        clear(s);
    }
}

/* ---- calls that finish by themselves ----------------------------------------------------------------------------- */

static void by_a_thread(void **state)
{
    (void)state;
    scene *s = set(&recorder_at_once);
    expar_ep_dispatch_result first;
    expar_ep_dispatch_args args = fresh(s);
    args.async_finish = 1;
    assert_dispatch(s, &args, &first);
    assert_int_equal(expar_event_wait(first.event), EXPAR_OK);
    ep_issuer_await(s->ep->base.issuer, EP_CALL_ENDED);
    assert_said(s, "begin place prepare routing notify#1 keep send#1 receive#1 end ");
    expar_event_release(first.event);
    give_back(&first);
    clear(s);
}

/* A call without counts leaves all steps to the thread: growth and notify are its, too. */
static void by_a_thread_from_the_beginning(void **state)
{
    (void)state;
    scene *s = set(&recorder_at_once);
    expar_ep_dispatch_result first, again;
    expar_ep_dispatch_args args = fresh(s);
    args.num_worst_tokens = COMING + 1;
    args.async_finish = 1;
    s->said->fails = "fits";
    assert_dispatch(s, &args, &first);
    assert_int_equal(first.num_recv_tokens, -1);
    assert_null(first.recv_tokens_per_expert);
    assert_int_equal(expar_event_wait(first.event), EXPAR_OK);
    ep_issuer_await(s->ep->base.issuer, EP_CALL_ENDED);
    assert_said(s, "begin prepare routing keep grow#1 place notify#1 send#1 receive#1 end ");
    args = cached(s, &first);
    args.async_finish = 1;
    assert_dispatch(s, &args, &again);
    ep_issuer_await(s->ep->base.issuer, EP_CALL_ENDED);
    assert_said(s, "begin prepare keep grow#2 place send#2 receive#2 end ");
    expar_event_release(again.event);
    give_back(&again);
    expar_event_release(first.event);
    give_back(&first);
    clear(s);
}

/* The executor tells of the end, with what came of it. */
static void by_the_stream(void **state)
{
    (void)state;
    scene *s = set(&recorder_on_streams);
    const ep_vote none = {.rank = -1};
    expar_ep_dispatch_result first;
    expar_ep_dispatch_args args = fresh(s);
    args.async_finish = 1;
    int done = 1;
    assert_dispatch(s, &args, &first);
    assert_said(s, "begin place prepare routing notify#1+rows keep send#1-ahead receive#1 end tell ");
    assert_int_equal(expar_event_query(first.event, &done), EXPAR_OK);
    assert_int_equal(done, 0);
    s->said->done(s->said->context, EXPAR_OK, &none, 2);
    assert_int_equal(expar_event_wait(first.event), EXPAR_ERR_DROPPED);
    assert_string_equal(expar_last_error(),
                        "expar_ep_dispatch on rank 0: 2 rows were dropped: num_worst_tokens is too small");
    expar_event_release(first.event);
    give_back(&first);
    clear(s);
}

/* ---- rejections and failures ------------------------------------------------------------------------------------- */

/* Wrong arguments are told by a notify without a routing; nothing else is done. */
static void rejected_at_once(void **state)
{
    (void)state;
    for (int streams = 0; streams < 2; streams++) {
        scene *s = set(streams ? &recorder_on_streams : &recorder_at_once);
        expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
        expar_ep_dispatch_args args = fresh(s);
        args.num_experts = 0;
        assert_int_equal(expar_ep_dispatch(s->ep, &args, &result), EXPAR_ERR_ARGUMENT);
        assert_said(s, "begin notify#1-refused ");
        assert_null(result.handle);
        clear(s);
    }
}

/* Errors found after the counts are told with the advertisements. */
static void rejected_with_the_adverts(void **state)
{
    (void)state;
    scene *s = set(&recorder_at_once);
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_ep_dispatch_args args = fresh(s);
    args.async_finish = 1;
    args.out_x = expar_tensor_2d(s->own, EXPAR_F32, COMING - 1, HIDDEN);
    assert_int_equal(expar_ep_dispatch(s->ep, &args, &result), EXPAR_ERR_BUFFER_SIZE);
    assert_said(s, "begin place prepare routing notify#1 send#1-refused end ");
    assert_null(result.output);
    clear(s);
}

/* The result of a vote ends a call before its second phase. */
static void rejected_by_a_rank(void **state)
{
    (void)state;
    static const struct {
        const char *step, *said;
    } cases[] = {{"notify", "begin place prepare routing notify#1 end "},
                 {"send", "begin place prepare routing notify#1 keep send#1 end "}};
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        scene *s = set(&recorder_at_once);
        expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
        expar_ep_dispatch_args args = fresh(s);
        s->said->rejected = cases[i].step;
        assert_int_equal(expar_ep_dispatch(s->ep, &args, &result), EXPAR_ERR_SHAPE);
        assert_string_equal(expar_last_error(), "expar_ep_dispatch on rank 0: as the test says");
        assert_said(s, cases[i].said);
        s->said->rejected = NULL;
        assert_dispatch(s, &args, &result);
        give_back(&result);
        clear(s);
    }
}

/* A step that fails ends the call. Where steps are put on streams it is not known to have reached the others, and the
   buffer is poisoned. */
static void failing_steps(void **state)
{
    (void)state;
    static const char *const steps[] = {"notify", "send", "receive"};
    static const char *const said[] = {"begin place prepare routing notify#1 end ",
                                       "begin place prepare routing notify#1 keep send#1 end ",
                                       "begin place prepare routing notify#1 keep send#1 receive#1 end "};
    for (int i = 0; i < 6; i++) {
        bool streams = i >= 3;
        scene *s = set(streams ? &recorder_on_streams : &recorder_at_once);
        s->said->base.sends_ahead = false;
        expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
        expar_ep_dispatch_args args = fresh(s);
        s->said->fails = steps[i % 3];
        assert_int_equal(expar_ep_dispatch(s->ep, &args, &result), EXPAR_ERR_MEMORY);
        assert_said(s, said[i % 3]);
        s->said->fails = NULL;
        assert_int_equal(expar_ep_dispatch(s->ep, &args, &result), streams ? EXPAR_ERR_MEMORY : EXPAR_OK);
        if (streams)
            assert_non_null(strstr(expar_last_error(), "the buffer is poisoned"));
        else
            give_back(&result);
        clear(s);
    }
}

/* The executor's report of earlier calls keeps later ones out, whatever it is. */
static void earlier_calls_that_failed(void **state)
{
    (void)state;
    scene *s = set(&recorder_on_streams);
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_ep_dispatch_args args = fresh(s);
    s->said->fails = "check";
    for (int i = 0; i < 2; i++) {
        assert_int_equal(expar_ep_dispatch(s->ep, &args, &result), EXPAR_ERR_MEMORY);
        assert_non_null(strstr(expar_last_error(), "expar_ep_dispatch on rank 0: the buffer is poisoned: "));
        assert_said(s, "");
        s->said->fails = NULL;
    }
    clear(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dispatch_repeat_and_combine),
        cmocka_unit_test(records_that_grow),
        cmocka_unit_test(spare_memory_that_is_too_small),
        cmocka_unit_test(worst_case),
        cmocka_unit_test(expert_major),
        cmocka_unit_test(all_memory_of_the_callers),
        cmocka_unit_test(route_and_dispatch),
        cmocka_unit_test(memory_of_the_callers),
        cmocka_unit_test(by_a_thread),
        cmocka_unit_test(by_a_thread_from_the_beginning),
        cmocka_unit_test(by_the_stream),
        cmocka_unit_test(rejected_at_once),
        cmocka_unit_test(rejected_with_the_adverts),
        cmocka_unit_test(rejected_by_a_rank),
        cmocka_unit_test(failing_steps),
        cmocka_unit_test(earlier_calls_that_failed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
