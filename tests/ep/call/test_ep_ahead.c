/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that wait for none of the other ranks: with async_finish, and an output whose size is known, a rank returns
 * from them while the others have not called. The first rank meets the others in a barrier after its calls, they meet
 * it before theirs: a call that waited would never end. "processes": on process ranks. */
#include "ep/harness/table.h"
#include "ep/normal/normal.h"
#include "oracle/unit.h"

#include <stdlib.h>
#include <string.h>

#define MOST_CALLS 4

static ranks_kind kind;

/* ---- rounds ------------------------------------------------------------------------------------------------------ */

/* Calls that one rank makes before the others come. */
typedef struct round {
    table *table;
    expar_ep *ep;
    int32_t first; /* that rank */
    random_source random;
    deal *deal;
    expar_ep_handle *handle;
    deal_move *moves[MOST_CALLS];
    deal_call calls[MOST_CALLS];
    int count;
} round;

static bool comes_first(const round *r)
{
    return r->table->rank == r->first;
}

static void meet(const round *r)
{
    CHECK_OK(expar_barrier_all(r->table->group));
}

static round round_begin(table *t, expar_ep *ep, int32_t first, const deal_choice *choice, uint64_t seed)
{
    round r = {.table = t, .ep = ep, .first = first, .random = random_start(seed)};
    r.deal = table_deal(t, choice, &r.random);
    if (!comes_first(&r)) meet(&r);
    return r;
}

static void round_start(round *r, const move_form *form, const deal_choice *choice)
{
    deal_choice choices[TABLE_MAX_RANKS];
    for (int32_t i = 0; i < TABLE_MAX_RANKS; i++)
        choices[i] = *choice;
    deal_move *m = move_make(r->deal, form, choices, &r->random);
    deal_call *call = &r->calls[r->count];
    r->moves[r->count++] = m;
    deal_call_start(call, r->ep, m, r->table->rank, &r->table->area, r->handle, NULL);
    if (form->kind == MOVE_DISPATCH) r->handle = call->result.handle;
}

static void check_not_done(const round *r)
{
    for (int i = 0; i < r->count; i++) {
        int done = 1;
        if (!r->calls[i].event) continue;
        CHECK_OK(expar_event_query(r->calls[i].event, &done));
        CHECK(!done, "call %d is done before the others have called", i);
    }
}

static void round_end(round *r)
{
    if (comes_first(r)) {
        check_not_done(r);
        meet(r);
    }
    for (int i = 0; i < r->count; i++) {
        deal_call_finish(&r->calls[i]);
        move_free(r->moves[i]);
    }
    expar_ep_handle_release(r->handle);
    deal_free(r->deal);
}

/* ---- calls that go through --------------------------------------------------------------------------------------- */

static const deal_choice ahead_choices[] = {
    {.async = true, .worst = WORST_LARGER, .counts = true},
    {.async = true, .worst = WORST_EXACT, .path = EXPAR_EP_PATH_QUEUE},
    {.async = true, .worst = WORST_ONE_SHORT, .counts = true},
    {.async = true, .worst = WORST_LARGER, .expert_major = true, .zero_padding = true, .alignment = 4, .counts = true},
    {.async = true, .worst = WORST_LARGER, .place = PLACE_PRIVATE, .own = ~UINT32_C(0)},
};

/* A layer there and back, and there again with the handle, whose counts nobody here has waited for. */
static void trial_layer(table *t, expar_ep *ep, int32_t first, const deal_choice *choice, int32_t hidden)
{
    const move_form there = {.kind = MOVE_DISPATCH, .type = ORACLE_BF16, .hidden = hidden, .src_tokens = true};
    const move_form again = {.kind = MOVE_REPEAT, .type = ORACLE_F32, .hidden = hidden, .with_topk = true};
    const move_form back = {.kind = MOVE_COMBINE, .type = ORACLE_BF16, .hidden = hidden};
    deal_choice same = *choice, home = {.async = true, .expert_major = choice->expert_major};
    same.place = PLACE_LIBRARY;
    round r = round_begin(t, ep, first, choice, 7);
    round_start(&r, &there, choice);
    round_start(&r, &back, &home);
    round_start(&r, &again, &same);
    round_end(&r);
}

/* The first call of each form makes records larger, which waits for the others, too. */
static void trial_ahead(table *t)
{
    const expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    expar_ep *ep = NULL;
    if (!CHECK_OK(expar_ep_create(t->group, &config, &ep))) return;
    for (int32_t i = 0; i < (int32_t)(sizeof ahead_choices / sizeof ahead_choices[0]) && !check_failures(); i++) {
        trial_layer(t, ep, i % t->what->plan.num_ranks, &ahead_choices[i], 16);
        trial_layer(t, ep, (i + 1) % t->what->plan.num_ranks, &ahead_choices[i], 256 << i);
    }
    CHECK(ep->growths >= 2, "records grew %d times", (int)ep->growths);
    CHECK_OK(expar_ep_destroy(ep));
}

static void run(table_body body)
{
    table_case c = table_case_make();
    assert_true(table_run(&c, kind, body, NULL));
}

static void test_a_layer_before_the_others_come(void **state)
{
    (void)state;
    run(trial_ahead);
}

/* ---- calls that do not ------------------------------------------------------------------------------------------- */

/* A rank that rejects tells the others, who hear of it at their events. So it is also where the call was to make
   records larger, and all ranks are in step after it. */
static void trial_rejected(table *t)
{
    const expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    const deal_choice *choice = &ahead_choices[0];
    expar_ep *ep = NULL;
    if (!CHECK_OK(expar_ep_create(t->group, &config, &ep))) return;
    for (int32_t i = 0; i < 4 && !check_failures(); i++) {
        const move_form there = {.kind = MOVE_DISPATCH,
                                 .type = ORACLE_BF16,
                                 .hidden = 16 << i / 2,
                                 .rejection = REJECTION_EARLY,
                                 .refuser = 2};
        round r = round_begin(t, ep, 0, choice, 8);
        round_start(&r, &there, choice);
        round_end(&r);
        if (i % 2) trial_layer(t, ep, 1, choice, 16 << i / 2);
    }
    CHECK_OK(expar_ep_destroy(ep));
}

static void test_rejected_by_another_rank(void **state)
{
    (void)state;
    run(trial_rejected);
}

/* One token a rank, for expert 0; its calls never say how many come. */
typedef struct single {
    _Alignas(16) uint16_t x[16];
    int32_t idx;
    expar_event *wait_event;
    expar_ep_dispatch_result result;
} single;

static expar_status single_dispatch(const table *t, single *one)
{
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    args.x = expar_tensor_2d(one->x, EXPAR_BF16, 1, 16);
    args.topk_idx = expar_tensor_2d(&one->idx, EXPAR_I32, 1, 1);
    args.num_experts = 6;
    args.num_worst_tokens = 3;
    args.async_finish = true;
    args.wait_event = one->wait_event;
    one->result = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    return expar_ep_dispatch(t->ep, &args, &one->result);
}

static expar_status single_end(single *one)
{
    const expar_status status = expar_event_wait(one->result.event);
    expar_event_release(one->result.event);
    expar_ep_output_release(one->result.output);
    expar_ep_handle_release(one->result.handle);
    return status;
}

static void trial_bad_index(table *t)
{
    single one = {.idx = t->rank == 1 ? 6 : 0};
    if (t->rank != 1) CHECK_OK(expar_barrier_all(t->group));
    CHECK_OK(single_dispatch(t, &one));
    if (t->rank == 1) CHECK_OK(expar_barrier_all(t->group));
    CHECK_STATUS(t->rank == 1 ? EXPAR_ERR_INDEX : EXPAR_ERR_REMOTE, single_end(&one));
    CHECK_TEXT("expar_ep_dispatch", "topk_idx[0][0] is 6");
    one.idx = 0;
    CHECK_OK(single_dispatch(t, &one));
    CHECK_OK(single_end(&one));
}

static void test_an_index_that_is_none(void **state)
{
    (void)state;
    run(trial_bad_index);
}

/* Rank 0 comes, before its event has happened; then rank 1's event ends badly. */
static void trial_events(table *t)
{
    single one = {0};
    if (t->rank == 0) CHECK_OK(expar_event_create(&one.wait_event));
    CHECK_OK(single_dispatch(t, &one));
    if (t->rank == 0) CHECK_OK(expar_event_signal(one.wait_event));
    CHECK_OK(single_end(&one));
    expar_event_release(one.wait_event);
    one.wait_event = t->rank == 1 ? table_failed_event() : NULL;
    CHECK_OK(single_dispatch(t, &one));
    CHECK_STATUS(t->rank == 1 ? EXPAR_ERR_STATE : EXPAR_ERR_REMOTE, single_end(&one));
    CHECK_TEXT("expar_ep_dispatch", "wait_event ended with an error", "three of five");
    expar_event_release(one.wait_event);
    one.wait_event = NULL;
    CHECK_OK(single_dispatch(t, &one));
    CHECK_OK(single_end(&one));
}

static void test_events_to_wait_for(void **state)
{
    (void)state;
    run(trial_events);
}

/* ---- routes ------------------------------------------------------------------------------------------------------ */

/* A route, and a dispatch with its handle that is not there yet; the caller's counts are there after the route. */
static void trial_route_ahead(table *t)
{
    expar_ep_route_args args = EXPAR_EP_ROUTE_ARGS_INIT;
    expar_ep_route_result route = EXPAR_EP_ROUTE_RESULT_INIT;
    expar_ep_recv_counts counts = EXPAR_EP_RECV_COUNTS_INIT;
    expar_ep_dispatch_args rows = EXPAR_EP_DISPATCH_ARGS_INIT;
    expar_ep_dispatch_result got = EXPAR_EP_DISPATCH_RESULT_INIT;
    const int32_t ranks = t->what->plan.num_ranks, idx = (int32_t)t->rank * 2;
    int32_t per_expert[2] = {-1, -1};
    int64_t come = -1;
    uint16_t x[16];
    memset(x, t->rank + 1, sizeof x);
    counts.tokens_per_expert = per_expert;
    counts.num_recv_tokens = &come;
    args.topk_idx = expar_tensor_2d((void *)(uintptr_t)&idx, EXPAR_I32, 1, 1);
    args.num_experts = 2 * ranks;
    args.num_worst_tokens = 2;
    args.async_finish = true;
    args.recv_counts = &counts;
    if (t->rank != 0) CHECK_OK(expar_barrier_all(t->group));
    if (!CHECK_OK(expar_ep_route(t->ep, &args, &route))) return;
    CHECK(route.num_recv_tokens == -1 && route.num_rows == 2 && !route.recv_tokens_per_expert, "R is %lld",
          (long long)route.num_recv_tokens);
    rows.x = expar_tensor_2d(x, EXPAR_BF16, 1, 16);
    rows.handle = route.handle;
    rows.async_finish = true;
    if (!CHECK_OK(expar_ep_dispatch(t->ep, &rows, &got))) return;
    if (t->rank == 0) CHECK_OK(expar_barrier_all(t->group));
    CHECK_OK(expar_event_wait(route.event));
    CHECK(come == 1 && per_expert[0] == 1 && per_expert[1] == 0, "%lld rows come, %d and %d", (long long)come,
          (int)per_expert[0], (int)per_expert[1]);
    CHECK_OK(expar_event_wait(got.event));
    CHECK(memcmp(got.recv_x.data, x, sizeof x) == 0, "another row has come");
    expar_event_release(got.event);
    expar_event_release(route.event);
    expar_ep_output_release(got.output);
    expar_ep_handle_release(route.handle);
}

static void test_a_route_before_the_others_come(void **state)
{
    (void)state;
    run(trial_route_ahead);
}

int main(int argc, char **argv)
{
    (void)argv;
    kind = argc > 1 ? RANKS_PROCESSES : RANKS_THREADS;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_layer_before_the_others_come), cmocka_unit_test(test_rejected_by_another_rank),
        cmocka_unit_test(test_an_index_that_is_none),          cmocka_unit_test(test_events_to_wait_for),
        cmocka_unit_test(test_a_route_before_the_others_come),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
