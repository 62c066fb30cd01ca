/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks and handles that have come to their end, that are another rank's, or whose buffer is poisoned; and calls of one
 * rank that no others make. The buffer and its traffic are those of wrong.h. */
#include "ep/harness/simulated_list.h"
#include "ep/low_latency/hold.h"
#include "ep/low_latency/ll.h"
#include "ep/low_latency/wrong.h"

#include <string.h>

typedef struct seat {
    const lowlat_traffic *traffic;
    lowlat_answers *back;
    expar_group *group;
    expar_ll *ll;
    int32_t rank;
} seat;

typedef struct hall {
    lowlat_traffic *traffic;
    lowlat_answers *back;
    void (*body)(seat *s);
    const expar_ll_handle *handles[WRONG_RANKS]; /* each written by its rank before a barrier, read after it */
} hall;

static hall *open_hall; /* of the test that runs; ranks are threads */

static const lowlat_choice plain = {0}, hooked = {.hook = true}, alone = {.async = true};

static void trial_seat(expar_group *group, void *shared)
{
    const expar_ll_config config = wrong_config();
    hall *h = shared;
    seat s = {.traffic = h->traffic, .back = h->back, .group = group, .rank = expar_group_rank(group)};
    if (!CHECK_OK(expar_ll_create(group, &config, &s.ll))) return;
    h->body(&s);
    if (check_failures()) expar_group_abort(group);
    if (s.ll) CHECK_OK(expar_ll_destroy(s.ll));
}

static void run(void (*body)(seat *s))
{
    random_source random = random_start(21);
    const ranks_plan ranks = {.kind = RANKS_THREADS, .size = WRONG_RANKS, .heap_bytes = (size_t)32 << 20};
    hall h = {.traffic = wrong_traffic(true, &random), .body = body};
    h.back = lowlat_answers_make(h.traffic, ORACLE_BF16, EXPAR_LL_SUM_EXACT, &random);
    open_hall = &h;
    const bool passed = ranks_run(&ranks, trial_seat, &h);
    lowlat_answers_free(h.back, h.traffic);
    lowlat_traffic_free(h.traffic);
    assert_true(passed);
}

static void prepare_there(lowlat_call *call, const seat *s, const lowlat_choice *choice)
{
    lowlat_prepare_dispatch(call, s->ll, s->traffic, s->rank, choice);
}

static void prepare_back(lowlat_call *call, const seat *s, const lowlat_choice *choice, const expar_ll_handle *handle)
{
    lowlat_prepare_combine(call, s->ll, s->traffic, s->back, s->rank, choice, handle);
}

static bool all_is_well(const seat *s)
{
    return lowlat_round_trip(s->ll, s->traffic, &s->back, 1, s->rank, &plain);
}

/* ---- hooks ------------------------------------------------------------------------------------------------------- */

/* A hook that was let go, called or not, is none any more; letting it go once more says so and does nothing. */
static void call_hooks_that_are_gone(seat *s)
{
    lowlat_call there;
    static _Alignas(16) const char nothing[1024];
    prepare_there(&there, s, &hooked);
    CHECK(lowlat_trial(&there), "a dispatch with a hook");
    expar_ll_hook *gone = there.there.hook;
    there.there.hook = NULL;
    CHECK_OK(expar_ll_hook_retain(gone));
    expar_ll_hook_release(gone);
    CHECK_STATUS(EXPAR_ERR_STATE, expar_ll_hook_call(gone, NULL)); /* called before, but still there */
    CHECK_TEXT("expar_ll_hook_call", "has been called already");
    expar_ll_hook_release(gone);
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ll_hook_retain(gone));
    CHECK_TEXT("expar_ll_hook_retain", "not a living hook");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ll_hook_retain(NULL));
    CHECK_TEXT("expar_ll_hook_retain", "hook is NULL");
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ll_hook_call(gone, NULL));
    CHECK_TEXT("expar_ll_hook_call", "not a living hook");
    expar_ll_hook_release(gone);
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ll_hook_call((expar_ll_hook *)(uintptr_t)nothing, NULL));
    CHECK(lowlat_is_right(&there), "what came has changed");
    lowlat_clean(&there);
    all_is_well(s);
}

static void test_hooks_that_are_gone(void **state)
{
    (void)state;
    run(call_hooks_that_are_gone);
}

/* All that was sent has come, and yet: the buffer has gone for good, and each hook says why, whenever it is asked. */
static void call_hooks_of_a_poisoned_buffer(seat *s)
{
    lowlat_call done, there[2], back, next;
    expar_tensor x = EXPAR_TENSOR_NONE;
    prepare_there(&done, s, &plain);
    CHECK(lowlat_trial(&done), "a dispatch");
    for (int i = 0; i < 2; i++) {
        prepare_there(&there[i], s, &hooked);
        CHECK_OK(lowlat_start(&there[i]));
    }
    prepare_back(&back, s, &hooked, done.there.handle);
    CHECK_OK(lowlat_start(&back));
    CHECK_OK(expar_group_barrier(s->group));
    if (s->rank == WRONG_RANK) {
        CHECK_OK(expar_ll_abandon(s->ll));
        s->ll = NULL;
    } else {
        CHECK(lowlat_end(&there[1]) == EXPAR_OK && lowlat_is_right(&there[1]), "a hook before the buffer is poisoned");
        prepare_back(&next, s, &plain, done.there.handle);
        CHECK_STATUS(EXPAR_ERR_PEER, lowlat_start(&next));
        CHECK_TEXT("expar_ll_combine", "rank 1", "abandoned");
        lowlat_clean(&next);
        for (int again = 0; again < 2; again++) {
            CHECK_STATUS(EXPAR_ERR_PEER, expar_ll_hook_call(there[0].there.hook, NULL));
            CHECK_TEXT("expar_ll_hook_call", "poisoned", "rank 1");
            CHECK_STATUS(EXPAR_ERR_PEER, expar_ll_hook_call(back.back.hook, NULL));
            CHECK_TEXT("expar_ll_hook_call", "poisoned", "rank 1");
        }
        CHECK_STATUS(EXPAR_ERR_PEER, expar_ll_hook_call(there[1].there.hook, NULL));
        CHECK_STATUS(EXPAR_ERR_PEER, expar_ll_query(s->ll));
        CHECK_TEXT("expar_ll_query", "poisoned", "rank 1");
        prepare_there(&next, s, &alone);
        CHECK_STATUS(EXPAR_ERR_PEER, lowlat_start(&next));
        CHECK_TEXT("expar_ll_dispatch", "poisoned", "rank 1");
        lowlat_clean(&next);
        CHECK_STATUS(EXPAR_ERR_PEER, expar_ll_get_combine_buffer(s->ll, done.there.handle, EXPAR_BF16, &x));
    }
    lowlat_clean(&back);
    lowlat_clean(&there[0]);
    lowlat_clean(&there[1]);
    CHECK(lowlat_is_right(&done), "what came before has changed");
    lowlat_clean(&done);
}

static void test_hooks_of_a_poisoned_buffer(void **state)
{
    (void)state;
    run(call_hooks_of_a_poisoned_buffer);
}

/* ---- three of a kind --------------------------------------------------------------------------------------------- */

/* Calls that finish by themselves, after one whose hook is not called: the second is well, the third is told that two
   are open, and the hook stays good. */
static void queue_after_a_hook(seat *s)
{
    lowlat_call first, calls[3];
    prepare_there(&first, s, &plain);
    CHECK(lowlat_trial(&first), "a dispatch");
    for (int kind = 0; kind < 2; kind++) {
        for (int i = 0; i < 3; i++) {
            if (kind == 0)
                prepare_there(&calls[i], s, i ? &alone : &hooked);
            else
                prepare_back(&calls[i], s, i ? &alone : &hooked, first.there.handle);
            CHECK_OK(lowlat_start(&calls[i]));
        }
        CHECK_STATUS(EXPAR_ERR_STATE, lowlat_end(&calls[2]));
        CHECK_TEXT(kind ? "expar_ll_combine" : "expar_ll_dispatch", "two are open at most");
        for (int i = 1; i >= 0; i--)
            CHECK(lowlat_end(&calls[i]) == EXPAR_OK && lowlat_is_right(&calls[i]), "call %d of three", i);
        for (int i = 0; i < 3; i++)
            lowlat_clean(&calls[i]);
        all_is_well(s);
    }
    lowlat_clean(&first);
}

static void test_third_in_the_queue(void **state)
{
    (void)state;
    run(queue_after_a_hook);
}

/* ---- handles ----------------------------------------------------------------------------------------------------- */

/* One rank's combine is refused for its handle, and the others learn of it; then all combine. */
static void reject_handle(const seat *s, const lowlat_call *there, const expar_ll_handle *wrong)
{
    lowlat_call back;
    const bool bad = s->rank == WRONG_RANK;
    prepare_back(&back, s, &plain, bad ? wrong : there->there.handle);
    CHECK_STATUS(bad ? EXPAR_ERR_HANDLE : EXPAR_ERR_REMOTE, lowlat_start(&back));
    CHECK_TEXT("expar_ll_combine", "handle");
    if (!bad) CHECK_TEXT("rank 1", "EXPAR_ERR_HANDLE");
    lowlat_clean(&back);
    prepare_back(&back, s, &plain, there->there.handle);
    CHECK(lowlat_trial(&back), "a combine behind a refused one");
    lowlat_clean(&back);
}

/* Handles are counted. One that was given back is none any more, not even to be held again. */
static void combine_with_handles_that_are_gone(seat *s)
{
    lowlat_call there, gone;
    expar_ll_handle_info info = EXPAR_LL_HANDLE_INFO_INIT;
    prepare_there(&there, s, &plain);
    prepare_there(&gone, s, &plain);
    CHECK(lowlat_trial(&there) && lowlat_trial(&gone), "two dispatches");
    expar_ll_handle *handle = gone.there.handle;
    gone.there.handle = NULL;
    CHECK_OK(expar_ll_handle_retain(handle));
    expar_ll_handle_release(handle);
    CHECK_OK(expar_ll_handle_get_info(handle, &info));
    expar_ll_handle_release(handle);
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ll_handle_get_info(handle, &info));
    CHECK_TEXT("expar_ll_handle_get_info", "not a living handle");
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ll_handle_retain(handle));
    CHECK_TEXT("expar_ll_handle_retain", "not a living handle");
    expar_ll_handle_release(handle);
    expar_ll_handle_release(NULL);
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ll_handle_retain(NULL));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ll_handle_get_info(NULL, &info));
    reject_handle(s, &there, handle);
    lowlat_clean(&gone);
    lowlat_clean(&there);
    all_is_well(s);
}

static void test_handles_that_are_gone(void **state)
{
    (void)state;
    run(combine_with_handles_that_are_gone);
}

/* A program in Python gets tensors that hold the handle; none that was not made does. */
static void hold_a_handle_by_capsules(seat *s)
{
    lowlat_call there;
    expar_ll_handle_info info = EXPAR_LL_HANDLE_INFO_INIT;
    simulated_list list = {.length = 2}, shorter = {.length = 1};
    prepare_there(&there, s, &plain);
    if (!CHECK(lowlat_trial(&there), "a dispatch")) return;
    expar_ll_handle *handle = there.there.handle;
    CHECK_OK(expar_ll_handle_get_info(handle, &info));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_python_put_ll_handle(NULL, &simulated_python, &list));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_python_put_ll_handle(handle, NULL, &list));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_python_put_ll_handle(handle, &simulated_python, NULL));
    CHECK_STATUS(EXPAR_ERR_MEMORY, expar_python_put_ll_handle(handle, &simulated_python_without_memory, &list));
    CHECK_STATUS(EXPAR_ERR_MEMORY, expar_python_put_ll_handle(handle, &simulated_python, &shorter));
    CHECK_TEXT("expar_python_put_ll_handle", "no item 1");
    if (!CHECK_OK(expar_python_put_ll_handle(handle, &simulated_python, &list))) return;
    /* The test sees copies of a GPU's. */
    if (!hold_finds_late())
        CHECK(list.items[0]->tensor.data == info.src_info.data && list.items[1]->tensor.data == info.range.data,
              "items are not src_info and range");
    simulated_delete(shorter.items[0]);
    simulated_delete(list.items[0]);
    there.there.handle = NULL;
    expar_ll_handle_release(handle);
    CHECK_OK(expar_ll_handle_get_info(handle, &info));
    simulated_delete(list.items[1]);
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_python_put_ll_handle(handle, &simulated_python, &list));
    CHECK_TEXT("expar_python_put_ll_handle", "not a living handle");
    lowlat_clean(&there);
    all_is_well(s);
}

static void test_capsules_hold_their_handle(void **state)
{
    (void)state;
    run(hold_a_handle_by_capsules);
}

/* The handle of the same dispatch, but another rank's: ranks that are threads can come by one. */
static void combine_with_a_neighbours_handle(seat *s)
{
    lowlat_call there;
    prepare_there(&there, s, &plain);
    CHECK(lowlat_trial(&there), "a dispatch");
    open_hall->handles[s->rank] = there.there.handle;
    CHECK_OK(expar_group_barrier(s->group));
    reject_handle(s, &there, open_hall->handles[0]);
    CHECK_OK(expar_group_barrier(s->group));
    lowlat_clean(&there);
}

static void test_handles_of_other_ranks(void **state)
{
    (void)state;
    run(combine_with_a_neighbours_handle);
}

/* ---- memory for rows --------------------------------------------------------------------------------------------- */

/* It is taken when it is first asked for, and not with LogFMT. The buffer is of rows of 128. */
static void ask_late_for_memory(expar_group *group, void *shared)
{
    const lowlat_traffic *t = shared;
    const int32_t rank = expar_group_rank(group);
    expar_ll_config config = wrong_config();
    lowlat_call there;
    expar_ll *ll = NULL;
    expar_tensor x = EXPAR_TENSOR_NONE;
    config.hidden = 128;
    if (!CHECK_OK(expar_ll_create(group, &config, &ll))) return;
    lowlat_prepare_dispatch(&there, ll, t, rank, &plain);
    CHECK(lowlat_trial(&there) && !ll->combine_memory, "memory is taken before it is asked for");
    CHECK_OK(expar_ll_get_combine_buffer(ll, there.there.handle, EXPAR_BF16, &x));
    CHECK(ll->combine_memory && (hold_finds_late() || x.data == ll->combine_memory->data), "the memory is another");
    expar_ll_combine_args args = EXPAR_LL_COMBINE_ARGS_INIT;
    expar_ll_combine_result result = EXPAR_LL_COMBINE_RESULT_INIT;
    args.x = x;
    args.topk_idx = there.there_args.topk_idx;
    args.topk_weights = there.there_args.topk_weights;
    args.handle = there.there.handle;
    args.format = EXPAR_LL_FORMAT_LOGFMT;
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, expar_ll_combine(ll, &args, &result));
    CHECK_TEXT("expar_ll_combine on rank", "LOGFMT", "expar_ll_get_combine_buffer");
    args.format = EXPAR_LL_FORMAT_PLAIN;
    CHECK_OK(expar_ll_combine(ll, &args, &result));
    expar_ep_output_release(result.output);
    lowlat_clean(&there);
    CHECK_OK(expar_ll_destroy(ll));
}

static void test_memory_is_taken_late(void **state)
{
    static const int64_t num_tokens[WRONG_RANKS] = {4, 5, 6};
    random_source random = random_start(3);
    const ranks_plan ranks = {.kind = RANKS_THREADS, .size = WRONG_RANKS, .heap_bytes = (size_t)32 << 20};
    const lowlat_plan plan = {.num_ranks = WRONG_RANKS,
                              .max_tokens = WRONG_TOKENS,
                              .hidden = 128,
                              .topk = WRONG_TOPK,
                              .num_experts = WRONG_EXPERTS,
                              .with_weights = true,
                              .num_tokens = num_tokens};
    lowlat_traffic *t = lowlat_traffic_make(&plan, &random);
    (void)state;
    const bool passed = ranks_run(&ranks, ask_late_for_memory, t);
    lowlat_traffic_free(t);
    assert_true(passed);
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* A buffer that was made for one manner of sums refuses the other. */
static void combine_by_other_sums(expar_group *group, void *shared)
{
    const hall *h = shared;
    const int32_t rank = expar_group_rank(group);
    for (int sum = EXPAR_LL_SUM_EXACT; sum <= EXPAR_LL_SUM_REDUCED; sum++) {
        expar_ll_config config = wrong_config();
        lowlat_call there, back;
        expar_ll *ll = NULL;
        config.sums = 1 << sum;
        if (!CHECK_OK(expar_ll_create(group, &config, &ll))) return;
        lowlat_prepare_dispatch(&there, ll, h->traffic, rank, &plain);
        CHECK(lowlat_trial(&there), "a dispatch");
        for (int made = EXPAR_LL_SUM_EXACT; made <= EXPAR_LL_SUM_REDUCED; made++) {
            lowlat_prepare_combine(&back, ll, h->traffic, h->back, rank, &plain, there.there.handle);
            back.back_args.sum = (expar_ll_sum)made;
            CHECK_STATUS(made == sum ? EXPAR_OK : EXPAR_ERR_LIMIT, lowlat_start(&back));
            if (made != sum) CHECK_TEXT("expar_ll_combine", "config.sums");
            lowlat_clean(&back);
        }
        lowlat_clean(&there);
        CHECK_OK(expar_ll_destroy(ll));
    }
}

static void test_sums_of_the_config(void **state)
{
    random_source random = random_start(22);
    const ranks_plan ranks = {.kind = RANKS_THREADS, .size = WRONG_RANKS, .heap_bytes = (size_t)32 << 20};
    hall h = {.traffic = wrong_traffic(true, &random)};
    (void)state;
    h.back = lowlat_answers_make(h.traffic, ORACLE_BF16, EXPAR_LL_SUM_EXACT, &random);
    const bool passed = ranks_run(&ranks, combine_by_other_sums, &h);
    lowlat_answers_free(h.back, h.traffic);
    lowlat_traffic_free(h.traffic);
    assert_true(passed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hooks_that_are_gone),    cmocka_unit_test(test_hooks_of_a_poisoned_buffer),
        cmocka_unit_test(test_third_in_the_queue),     cmocka_unit_test(test_handles_that_are_gone),
        cmocka_unit_test(test_handles_of_other_ranks), cmocka_unit_test(test_memory_is_taken_late),
        cmocka_unit_test(test_sums_of_the_config),     cmocka_unit_test(test_capsules_hold_their_handle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
