/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks, handles and buffers at the ends of their lives, and what several ranks get wrong together: forms that differ,
 * indices that are none. The buffer and its traffic are those of wrong.h. */
#include "ep/low_latency/hold.h"
#include "ep/low_latency/wrong.h"
#include "oracle/unit.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct setting {
    lowlat_traffic *traffic;
    lowlat_answers *back;
    const void *what; /* the test's own */
} setting;

/* On each rank. */
typedef struct desk {
    const setting *set;
    expar_group *group;
    expar_ll *ll;
    int32_t rank;
} desk;

typedef void (*desk_body)(desk *d);
static desk_body body; /* of the test that runs; ranks are threads */

static const lowlat_choice plain = {0}, hooked = {.hook = true};

static void sit_down(expar_group *group, void *shared)
{
    const expar_ll_config config = wrong_config();
    desk d = {.set = shared, .group = group, .rank = expar_group_rank(group)};
    if (!CHECK_OK(expar_ll_create(group, &config, &d.ll))) return;
    body(&d);
    if (check_failures()) expar_group_abort(group);
    if (d.ll) CHECK_OK(expar_ll_destroy(d.ll));
}

static bool run(desk_body of, const void *what, bool with_weights)
{
    random_source random = random_start(11);
    const ranks_plan ranks = {.kind = RANKS_THREADS, .size = WRONG_RANKS, .heap_bytes = (size_t)32 << 20};
    setting set = {.traffic = wrong_traffic(with_weights, &random), .what = what};
    set.back = lowlat_answers_make(set.traffic, ORACLE_BF16, EXPAR_LL_SUM_EXACT, &random);
    body = of;
    bool passed = ranks_run(&ranks, sit_down, &set);
    lowlat_answers_free(set.back, set.traffic);
    lowlat_traffic_free(set.traffic);
    return passed;
}

static bool all_is_well(const desk *d)
{
    return lowlat_round_trip(d->ll, d->set->traffic, &d->set->back, 1, d->rank, &plain);
}

/* ---- hooks ------------------------------------------------------------------------------------------------------- */

static void call_hooks_twice(desk *d)
{
    lowlat_call there, back;
    lowlat_prepare_dispatch(&there, d->ll, d->set->traffic, d->rank, &hooked);
    CHECK(lowlat_trial(&there), "a dispatch with a hook");
    CHECK_STATUS(EXPAR_ERR_STATE, expar_ll_hook_call(there.there.hook, NULL));
    CHECK_TEXT("expar_ll_hook_call", "called already");
    lowlat_prepare_combine(&back, d->ll, d->set->traffic, d->set->back, d->rank, &hooked, there.there.handle);
    CHECK(lowlat_trial(&back), "a combine with a hook");
    CHECK_STATUS(EXPAR_ERR_STATE, expar_ll_hook_call(back.back.hook, NULL));
    CHECK_TEXT("expar_ll_hook_call", "called already");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ll_hook_call(NULL, NULL));
    CHECK_TEXT("hook is NULL");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ll_query(NULL));
    CHECK_TEXT("expar_ll_query");
    CHECK(lowlat_is_right(&there) && lowlat_is_right(&back), "what came has changed");
    expar_ll_hook_release(NULL);
    lowlat_clean(&back);
    lowlat_clean(&there);
    all_is_well(d);
}

static void test_hooks_are_called_once(void **state)
{
    (void)state;
    assert_true(run(call_hooks_twice, NULL, true));
}

/* Rank 1 makes a third dispatch, and a third combine; the others have called their hooks. */
static void make_third_calls(desk *d)
{
    const bool third = d->rank == 1;
    lowlat_call first, calls[2], last;
    lowlat_prepare_dispatch(&first, d->ll, d->set->traffic, d->rank, &plain);
    CHECK(lowlat_trial(&first), "a dispatch");
    for (int kind = 0; kind < 2; kind++) {
        for (int i = 0; i < 3; i++) {
            lowlat_call *call = i < 2 ? &calls[i] : &last;
            if (kind == 0)
                lowlat_prepare_dispatch(call, d->ll, d->set->traffic, d->rank, i < 2 ? &hooked : &plain);
            else
                lowlat_prepare_combine(call, d->ll, d->set->traffic, d->set->back, d->rank, i < 2 ? &hooked : &plain,
                                       first.there.handle);
            if (i < 2 && CHECK_OK(lowlat_start(call)) && !third)
                CHECK(lowlat_end(call) == EXPAR_OK && lowlat_is_right(call), "a call with a hook");
        }
        CHECK_STATUS(third ? EXPAR_ERR_STATE : EXPAR_ERR_REMOTE, lowlat_start(&last));
        CHECK_TEXT(kind ? "expar_ll_combine" : "expar_ll_dispatch", "two are open at most");
        if (!third) CHECK_TEXT("rank 1", "EXPAR_ERR_STATE");
        for (int i = 1; third && i >= 0; i--)
            CHECK(lowlat_end(&calls[i]) == EXPAR_OK && lowlat_is_right(&calls[i]), "a hook that is still good");
        lowlat_clean(&calls[0]);
        lowlat_clean(&calls[1]);
        lowlat_clean(&last);
    }
    CHECK(lowlat_is_right(&first), "what came first has changed");
    lowlat_clean(&first);
    all_is_well(d);
}

static void test_two_of_a_kind_are_open(void **state)
{
    (void)state;
    assert_true(run(make_third_calls, NULL, false));
}

/* A combine with the handle of a dispatch that is still open is refused, and its hook stays good. */
static void combine_too_early(desk *d)
{
    lowlat_call there, back;
    lowlat_prepare_dispatch(&there, d->ll, d->set->traffic, d->rank, d->rank == 1 ? &hooked : &plain);
    if (!CHECK_OK(lowlat_start(&there))) return;
    lowlat_prepare_combine(&back, d->ll, d->set->traffic, d->set->back, d->rank, &plain, there.there.handle);
    CHECK_STATUS(d->rank == 1 ? EXPAR_ERR_HANDLE : EXPAR_ERR_REMOTE, lowlat_start(&back));
    CHECK_TEXT("expar_ll_combine", "handle", "hook");
    lowlat_clean(&back);
    CHECK(lowlat_end(&there) == EXPAR_OK && lowlat_is_right(&there), "a dispatch whose handle was used too early");
    lowlat_prepare_combine(&back, d->ll, d->set->traffic, d->set->back, d->rank, &plain, there.there.handle);
    CHECK(lowlat_trial(&back), "a combine in time");
    lowlat_clean(&back);
    lowlat_clean(&there);
}

static void test_handles_are_filled_by_hooks(void **state)
{
    (void)state;
    assert_true(run(combine_too_early, NULL, true));
}

/* Where the dispatch had no weights they go ahead of a reduced combine, and are waited for: not with a hook. */
static void combine_with_weights_ahead(desk *d)
{
    lowlat_call there, back;
    lowlat_prepare_dispatch(&there, d->ll, d->set->traffic, d->rank, &plain);
    CHECK(lowlat_trial(&there), "a dispatch");
    lowlat_prepare_combine(&back, d->ll, d->set->traffic, d->set->back, d->rank, d->rank == 1 ? &hooked : &plain,
                           there.there.handle);
    back.back_args.sum = EXPAR_LL_SUM_REDUCED;
    CHECK_STATUS(d->rank == 1 ? EXPAR_ERR_UNSUPPORTED : EXPAR_ERR_REMOTE, lowlat_start(&back));
    CHECK_TEXT("expar_ll_combine", "hook is 1", "topk_weights");
    lowlat_clean(&back);
    lowlat_clean(&there);
    all_is_well(d);
}

static void test_weights_ahead_take_no_hook(void **state)
{
    (void)state;
    assert_true(run(combine_with_weights_ahead, NULL, false));
}

/* The caller lets go of hook, handle and results while a combine is open. */
static void let_go_of_a_handle(desk *d)
{
    lowlat_call there, back;
    lowlat_prepare_dispatch(&there, d->ll, d->set->traffic, d->rank, &hooked);
    CHECK(lowlat_trial(&there), "a dispatch");
    lowlat_prepare_combine(&back, d->ll, d->set->traffic, d->set->back, d->rank, &hooked, there.there.handle);
    CHECK_OK(lowlat_start(&back));
    lowlat_clean(&there);
    CHECK(lowlat_end(&back) == EXPAR_OK && lowlat_is_right(&back), "a combine whose handle its caller gave back");
    lowlat_clean(&back);
    all_is_well(d);
}

static void test_hooks_keep_handles(void **state)
{
    (void)state;
    assert_true(run(let_go_of_a_handle, NULL, true));
}

/* ---- memory for rows --------------------------------------------------------------------------------------------- */

/* The same for every handle and dtype, as long as the buffer lives. */
static void ask_for_memory(desk *d)
{
    lowlat_call there, open;
    expar_tensor x = EXPAR_TENSOR_NONE, again = EXPAR_TENSOR_NONE;
    lowlat_prepare_dispatch(&there, d->ll, d->set->traffic, d->rank, &plain);
    CHECK(lowlat_trial(&there), "a dispatch");
    lowlat_prepare_dispatch(&open, d->ll, d->set->traffic, d->rank, &hooked);
    CHECK_OK(lowlat_start(&open));
    const expar_ll_handle *handle = there.there.handle;
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ll_get_combine_buffer(d->ll, NULL, EXPAR_BF16, &x));
    CHECK_TEXT("expar_ll_get_combine_buffer", "handle is NULL");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ll_get_combine_buffer(d->ll, handle, EXPAR_BF16, NULL));
    CHECK_TEXT("expar_ll_get_combine_buffer", "x is NULL");
    CHECK_STATUS(EXPAR_ERR_DTYPE, expar_ll_get_combine_buffer(d->ll, handle, EXPAR_I8, &x));
    CHECK_STATUS(EXPAR_ERR_LIMIT, expar_ll_get_combine_buffer(d->ll, handle, EXPAR_F32, &x));
    CHECK_TEXT("config.max_row_bytes");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ll_get_combine_buffer(NULL, handle, EXPAR_BF16, &x));
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ll_get_combine_buffer(d->ll, open.there.handle, EXPAR_BF16, &x));
    CHECK_TEXT("expar_ll_get_combine_buffer", "was not received whole");
    CHECK(!x.data && x.ndim == 0, "a call that failed gave memory");
    CHECK_OK(expar_ll_get_combine_buffer(d->ll, handle, EXPAR_BF16, &x));
    CHECK(lowlat_end(&open) == EXPAR_OK && lowlat_is_right(&open), "a dispatch that was open meanwhile");
    CHECK_OK(expar_ll_get_combine_buffer(d->ll, open.there.handle, EXPAR_F16, &again));
    CHECK(x.data && x.data == again.data && (uintptr_t)x.data % 16 == 0, "the memory has moved, or is not aligned");
    CHECK(again.dtype == EXPAR_F16 && again.ndim == 3 && again.shape[0] == WRONG_EXPERTS / WRONG_RANKS &&
              again.shape[1] == WRONG_RANKS * WRONG_TOKENS && again.shape[2] == WRONG_HIDDEN,
          "the memory's shape");
    lowlat_clean(&open);
    lowlat_clean(&there);
    all_is_well(d);
}

static void test_memory_for_rows(void **state)
{
    (void)state;
    assert_true(run(ask_for_memory, NULL, true));
}

/* ---- facts ------------------------------------------------------------------------------------------------------- */

/* And a call that succeeds leaves the text of the last failure as it was. */
static void ask_for_facts(desk *d)
{
    lowlat_call there;
    expar_ll_stats stats = {0};
    expar_ll_handle_info info = {0};
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ll_get_stats(NULL, &stats));
    CHECK_TEXT("expar_ll_get_stats: ll is NULL");
    CHECK_OK(expar_ll_abandon(NULL));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ll_get_stats(d->ll, NULL));
    CHECK_TEXT("expar_ll_get_stats: stats is NULL");
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ll_get_stats(d->ll, &stats));
    CHECK_TEXT("expar_ll_get_stats: stats.struct_size 0, expected 8 to", "EXPAR_LL_STATS_INIT");
    lowlat_prepare_dispatch(&there, d->ll, d->set->traffic, d->rank, &hooked);
    CHECK_OK(lowlat_start(&there));
    CHECK(strncmp(expar_last_error(), "expar_ll_get_stats: ", 20) == 0, "a call that succeeded left '%s'",
          expar_last_error());
    CHECK(lowlat_end(&there) == EXPAR_OK && lowlat_is_right(&there), "a dispatch");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ll_handle_get_info(there.there.handle, NULL));
    CHECK_TEXT("expar_ll_handle_get_info: info is NULL");
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ll_handle_get_info(there.there.handle, &info));
    CHECK_TEXT("expar_ll_handle_get_info: info.struct_size 0, expected 8 to", "EXPAR_LL_HANDLE_INFO_INIT");
    lowlat_clean(&there);
    all_is_well(d);
}

static void test_facts(void **state)
{
    (void)state;
    assert_true(run(ask_for_facts, NULL, true));
}

/* ---- the end of a buffer ----------------------------------------------------------------------------------------- */

static void use_what_is_left(desk *d)
{
    lowlat_call done, open, after;
    expar_ll *gone = d->ll;
    expar_ll_stats stats = EXPAR_LL_STATS_INIT;
    lowlat_prepare_dispatch(&done, d->ll, d->set->traffic, d->rank, &plain);
    CHECK(lowlat_trial(&done), "a dispatch");
    lowlat_prepare_dispatch(&open, d->ll, d->set->traffic, d->rank, &hooked);
    CHECK_OK(lowlat_start(&open));
    CHECK_OK(expar_ll_destroy(d->ll));
    d->ll = NULL;
    CHECK_STATUS(EXPAR_ERR_STATE, lowlat_end(&open));
    CHECK_TEXT("expar_ll_hook_call", "destroyed or abandoned");
    lowlat_prepare_dispatch(&after, gone, d->set->traffic, d->rank, &plain);
    CHECK_STATUS(EXPAR_ERR_STATE, lowlat_start(&after));
    CHECK_TEXT("expar_ll_dispatch", "destroyed or abandoned");
    lowlat_clean(&after);
    lowlat_prepare_combine(&after, gone, d->set->traffic, d->set->back, d->rank, &plain, done.there.handle);
    CHECK_STATUS(EXPAR_ERR_STATE, lowlat_start(&after));
    CHECK_TEXT("expar_ll_combine", "destroyed or abandoned");
    lowlat_clean(&after);
    CHECK_STATUS(EXPAR_ERR_STATE, expar_ll_get_stats(gone, &stats));
    CHECK_STATUS(EXPAR_ERR_STATE, expar_ll_destroy(gone));
    CHECK_OK(expar_ll_destroy(NULL));
    CHECK(lowlat_is_right(&done), "results behind their buffer's end");
    lowlat_clean(&open);
    lowlat_clean(&done);
}

static void test_calls_after_the_end(void **state)
{
    (void)state;
    assert_true(run(use_what_is_left, NULL, true));
}

/* Rank 1 gives the buffer up: the others' next calls name it, and fail at once from then on. */
static void abandon_it(desk *d)
{
    lowlat_call call;
    all_is_well(d);
    if (d->rank == 1) {
        CHECK_OK(expar_ll_abandon(d->ll));
        lowlat_prepare_dispatch(&call, d->ll, d->set->traffic, d->rank, &plain);
        CHECK_STATUS(EXPAR_ERR_STATE, lowlat_start(&call));
        lowlat_clean(&call);
        d->ll = NULL;
        return;
    }
    for (int i = 0; i < 2; i++) {
        lowlat_prepare_dispatch(&call, d->ll, d->set->traffic, d->rank, &plain);
        CHECK_STATUS(EXPAR_ERR_PEER, lowlat_start(&call));
        CHECK_TEXT("expar_ll_dispatch", "rank 1", i ? "poisoned" : "abandoned");
        lowlat_clean(&call);
    }
}

static void test_abandoned(void **state)
{
    (void)state;
    assert_true(run(abandon_it, NULL, true));
}

/* Calls of the thread that is in a call, from between two steps of it. */
static void call_again(void *context)
{
    desk *d = context;
    lowlat_call call;
    expar_ll_stats stats = EXPAR_LL_STATS_INIT;
    expar_tensor x;
    hold_install(d->ll, NULL, NULL);
    lowlat_prepare_dispatch(&call, d->ll, d->set->traffic, d->rank, &plain);
    CHECK_STATUS(EXPAR_ERR_BUSY, lowlat_start(&call));
    CHECK_TEXT("expar_ll_dispatch", "still running");
    lowlat_clean(&call);
    CHECK_STATUS(EXPAR_ERR_BUSY, expar_ll_get_combine_buffer(d->ll, NULL, EXPAR_BF16, &x));
    CHECK_STATUS(EXPAR_ERR_BUSY, expar_ll_destroy(d->ll));
    CHECK_OK(expar_ll_get_stats(d->ll, &stats));
}

static void call_while_busy(desk *d)
{
    hold_install(d->ll, call_again, d);
    all_is_well(d);
}

static void test_busy(void **state)
{
    (void)state;
    assert_true(run(call_while_busy, NULL, true));
}

/* ---- forms that differ ------------------------------------------------------------------------------------------- */

typedef struct other_form {
    const char *name;
    const char *word;                            /* in everybody's text */
    void (*dispatch)(lowlat_call *call);         /* changes rank 1's dispatch, */
    void (*combine)(lowlat_call *call, desk *d); /* or its combine */
} other_form;

static void other_dtype(lowlat_call *call)
{
    call->there_args.x.dtype = EXPAR_F16;
}

static void fewer_slots(lowlat_call *call)
{
    call->there_args.topk_idx.shape[1] = call->there_args.topk_weights.shape[1] = WRONG_TOPK - 1;
}

static void no_weights(lowlat_call *call)
{
    free(call->there_args.topk_weights.data);
    call->there_args.topk_weights = EXPAR_TENSOR_NONE;
}

static void other_dtype_back(lowlat_call *call, desk *d)
{
    (void)d;
    call->back_args.x.dtype = EXPAR_F16;
}

static void other_sum_back(lowlat_call *call, desk *d)
{
    (void)d;
    call->back_args.sum = EXPAR_LL_SUM_REDUCED;
}

static void trial_other_dispatch(desk *d, const other_form *form)
{
    lowlat_call call;
    for (int hook = 0; hook < 2; hook++) {
        lowlat_prepare_dispatch(&call, d->ll, d->set->traffic, d->rank, hook ? &hooked : &plain);
        if (d->rank == 1) form->dispatch(&call);
        expar_status status = lowlat_start(&call);
        CHECK_STATUS(EXPAR_ERR_MISMATCH, status == EXPAR_OK ? lowlat_end(&call) : status);
        CHECK_TEXT(form->word, "rank 1", "expected the same");
        CHECK_OK(expar_ll_query(d->ll));
        lowlat_clean(&call);
        all_is_well(d);
    }
}

static void trial_other_combine(desk *d, const other_form *form)
{
    lowlat_call there, back;
    lowlat_prepare_dispatch(&there, d->ll, d->set->traffic, d->rank, &plain);
    CHECK(lowlat_trial(&there), "a dispatch");
    for (int hook = 0; hook < 2; hook++) {
        lowlat_prepare_combine(&back, d->ll, d->set->traffic, d->set->back, d->rank, hook ? &hooked : &plain,
                               there.there.handle);
        if (d->rank == 1) form->combine(&back, d);
        expar_status status = lowlat_start(&back);
        CHECK_STATUS(EXPAR_ERR_MISMATCH, status == EXPAR_OK ? lowlat_end(&back) : status);
        CHECK_TEXT(form->word, "rank 1", "expected the same");
        lowlat_clean(&back);
        lowlat_prepare_combine(&back, d->ll, d->set->traffic, d->set->back, d->rank, &plain, there.there.handle);
        CHECK(lowlat_trial(&back), "a combine behind a mismatch");
        lowlat_clean(&back);
    }
    lowlat_clean(&there);
}

static void differ(desk *d)
{
    const other_form *form = d->set->what;
    if (form->dispatch)
        trial_other_dispatch(d, form);
    else
        trial_other_combine(d, form);
}

static void test_forms_differ(void **state)
{
    (void)state;
    static const other_form forms[] = {
        {"dtype of x", "dtype of x is", .dispatch = other_dtype},
        {"slots", "top-k is", .dispatch = fewer_slots},
        {"weights", "topk_weights", .dispatch = no_weights},
        {"sum", "sum is", .combine = other_sum_back},
        {"dtype of answers", "dtype of x is", .combine = other_dtype_back},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        print_message("%s\n", forms[i].name);
        assert_true(run(differ, &forms[i], true));
    }
}

/* Ranks combine with handles of different dispatches. */
static void combine_others(desk *d)
{
    lowlat_call one, two, back;
    lowlat_prepare_dispatch(&one, d->ll, d->set->traffic, d->rank, &plain);
    lowlat_prepare_dispatch(&two, d->ll, d->set->traffic, d->rank, &plain);
    CHECK(lowlat_trial(&one) && lowlat_trial(&two), "two dispatches");
    lowlat_prepare_combine(&back, d->ll, d->set->traffic, d->set->back, d->rank, &plain,
                           d->rank == 1 ? one.there.handle : two.there.handle);
    CHECK_STATUS(EXPAR_ERR_MISMATCH, lowlat_start(&back));
    CHECK_TEXT("expar_ll_combine", "handle", "1 on rank 1", "expected the same");
    lowlat_clean(&back);
    lowlat_prepare_combine(&back, d->ll, d->set->traffic, d->set->back, d->rank, &plain, one.there.handle);
    CHECK(lowlat_trial(&back), "a combine behind a mismatch");
    lowlat_clean(&back);
    lowlat_clean(&two);
    lowlat_clean(&one);
}

static void test_handles_differ(void **state)
{
    (void)state;
    assert_true(run(combine_others, NULL, true));
}

/* ---- indices ----------------------------------------------------------------------------------------------------- */

typedef struct wrong_index {
    int32_t token, slot;
    int64_t expert;
    const char *word;
} wrong_index;

/* The token goes nowhere; all others arrive in the callers' memory. */
static void send_wrong_index(desk *d)
{
    const wrong_index *what = d->set->what;
    const lowlat_choice lent = {.own_x = true, .own_count = true};
    const lowlat_arrival *expected = &d->set->traffic->arrivals[d->rank];
    const size_t row_bytes = WRONG_HIDDEN * 2, places = WRONG_RANKS * WRONG_TOKENS;
    char where[64];
    lowlat_call call;
    lowlat_prepare_dispatch(&call, d->ll, d->set->traffic, d->rank, &lent);
    CHECK_STATUS(d->rank == 1 ? EXPAR_ERR_INDEX : EXPAR_ERR_REMOTE, lowlat_start(&call));
    snprintf(where, sizeof where, "topk_idx[%d][%d] is %lld", (int)what->token, (int)what->slot,
             (long long)what->expert);
    CHECK_TEXT("expar_ll_dispatch", where, what->word);
    if (d->rank != 1) CHECK_TEXT("rank 1", "EXPAR_ERR_INDEX");
    for (size_t e = 0; e < WRONG_EXPERTS / WRONG_RANKS; e++) {
        size_t count = (size_t)expected->count[e], at = e * places * row_bytes;
        CHECK(((int32_t *)call.there_args.out_count.data)[e] == expected->count[e], "the count of expert %d", (int)e);
        CHECK(memcmp((char *)call.there_args.out_x.data + at, (char *)expected->x + at, count * row_bytes) == 0,
              "the rows of expert %d", (int)e);
    }
    lowlat_clean(&call);
}

static void trial_wrong_index(const wrong_index *what)
{
    random_source random = random_start(12);
    const ranks_plan ranks = {.kind = RANKS_THREADS, .size = WRONG_RANKS, .heap_bytes = (size_t)32 << 20};
    setting set = {.traffic = wrong_traffic(true, &random), .what = what};
    int64_t *idx = (int64_t *)(uintptr_t)set.traffic->inputs[1].topk_idx + what->token * WRONG_TOPK;
    idx[0] = 4;
    idx[1] = 2;
    idx[2] = -1;
    idx[what->slot] = what->expert;
    lowlat_traffic_settle(set.traffic);
    assert_true(llo_token_is_wrong(&set.traffic->job, 1, what->token));
    body = send_wrong_index;
    bool passed = ranks_run(&ranks, sit_down, &set);
    lowlat_traffic_free(set.traffic);
    assert_true(passed);
}

static void test_indices(void **state)
{
    (void)state;
    static const wrong_index cases[] = {
        {0, 0, WRONG_EXPERTS, "expected -1 to 5"},    {4, 2, -2, "expected -1 to 5"},
        {2, 1, INT64_MAX, "expected -1 to 5"},        {2, 1, INT64_MIN, "expected -1 to 5"},
        {2, 2, (int64_t)1 << 32, "expected -1 to 5"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        trial_wrong_index(&cases[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hooks_are_called_once),
        cmocka_unit_test(test_two_of_a_kind_are_open),
        cmocka_unit_test(test_handles_are_filled_by_hooks),
        cmocka_unit_test(test_hooks_keep_handles),
        cmocka_unit_test(test_weights_ahead_take_no_hook),
        cmocka_unit_test(test_memory_for_rows),
        cmocka_unit_test(test_facts),
        cmocka_unit_test(test_calls_after_the_end),
        cmocka_unit_test(test_abandoned),
        cmocka_unit_test(test_busy),
        cmocka_unit_test(test_forms_differ),
        cmocka_unit_test(test_handles_differ),
        cmocka_unit_test(test_indices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
