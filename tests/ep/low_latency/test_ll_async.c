/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that finish by themselves: their events, later calls, errors in them. */
#include "ep/harness/check.h"
#include "ep/harness/stage.h"
#include "ep/low_latency/case.h"
#include "ep/low_latency/hold.h"
#include "ep/low_latency/ll.h"
#include "oracle/unit.h"

static ranks_kind kind;

#define ROUNDS 30
#define BAD    1 /* the rank whose arguments are wrong */

typedef bool (*async_body)(const ll_case *c, int32_t rank, expar_ll *ll);
static async_body trial;

static void trial_async(expar_group *group, void *shared)
{
    const ll_case *c = shared;
    const expar_ll_config config = case_config(c);
    expar_ll *ll = NULL;
    if (!CHECK_OK(expar_ll_create(group, &config, &ll))) return;
    if (trial(c, expar_group_rank(group), ll)) CHECK_OK(expar_ll_destroy(ll));
}

static void run_body(async_body body)
{
    ll_case c = case_example;
    const ranks_plan plan = {.kind = kind, .size = c.ranks};
    trial = body;
    assert_true(ranks_run(&plan, trial_async, &c));
}

static ll_round *make(const ll_case *c, int32_t rank, uint32_t number)
{
    ll_round *round = round_make(c, rank, number);
    round->dispatch.async_finish = 1;
    return round;
}

static bool issue_dispatch(ll_round *round, expar_ll *ll)
{
    return CHECK_OK(expar_ll_dispatch(ll, &round->dispatch, &round->received)) &&
           CHECK(round->received.event && round->received.handle && round->received.recv_x.data,
                 "what is known is given");
}

static bool await_dispatch(ll_round *round, expar_status status)
{
    const bool good = CHECK_STATUS(status, expar_event_wait(round->received.event));
    expar_event_release(round->received.event);
    return good && (status != EXPAR_OK || round_check_dispatch(round));
}

static bool issue_combine(ll_round *round, expar_ll *ll, expar_event *after)
{
    round_prepare_combine(round);
    round->combine.async_finish = 1;
    round->combine.wait_event = after;
    return CHECK_OK(expar_ll_combine(ll, &round->combine, &round->combined)) &&
           CHECK(round->combined.event != NULL, "an event");
}

static bool await_combine(ll_round *round)
{
    const bool good = CHECK_OK(expar_event_wait(round->combined.event));
    expar_event_release(round->combined.event);
    return good && round_check_combine(round);
}

/* Two on their way; the second combine after the first's event; then one in the caller's thread, after both. */
static bool trial_pairs(const ll_case *c, int32_t rank, expar_ll *ll)
{
    bool good = true;
    for (uint32_t i = 0; i < ROUNDS && good; i++) {
        ll_round *a = make(c, rank, i), *b = make(c, rank, i + 1), *last = round_make(c, rank, i + 2);
        good = issue_dispatch(a, ll) && issue_dispatch(b, ll) && round_dispatch(last, ll);
        good = good && await_dispatch(b, EXPAR_OK) && await_dispatch(a, EXPAR_OK);
        good = good && issue_combine(a, ll, NULL) && issue_combine(b, ll, a->combined.event);
        if (good) round_prepare_combine(last);
        good = good && (i % 2 || round_combine(last, ll)) && await_combine(a) && await_combine(b);
        round_free(a);
        round_free(b);
        round_free(last);
    }
    return good;
}

static void test_pairs(void **state)
{
    (void)state;
    run_body(trial_pairs);
}

/* ---- any number -------------------------------------------------------------------------------------------------- */

enum { MANY = 17 };

static bool all_open(ll_round **rounds, int count)
{
    int done = 0;
    for (int i = 0; i < count; i++)
        if (!CHECK_OK(expar_event_query(rounds[i]->received.event, &done)) ||
            !CHECK(!done, "dispatch %d of %d is done while the first is held", i, count))
            return false;
    return true;
}

/* After one that a rank delays all return at once; a call in the caller's thread and its hook come after them, and then
   as many combines. */
static bool trial_queue(const ll_case *c, int32_t rank, expar_ll *ll, int count)
{
    ll_round *rounds[MANY], *hooked = round_make(c, rank, MANY);
    expar_event *late = NULL;
    bool good = CHECK_OK(expar_event_create(&late));
    for (int i = 0; i < count; i++) {
        rounds[i] = make(c, rank, (uint32_t)i);
        if (i == 0 && rank == BAD) rounds[i]->dispatch.wait_event = late;
        good = good && issue_dispatch(rounds[i], ll);
    }
    good = good && (rank != BAD || all_open(rounds, count));
    CHECK_OK(expar_event_signal(late));
    hooked->dispatch.hook = 1;
    good = good && CHECK_OK(expar_ll_dispatch(ll, &hooked->dispatch, &hooked->received));
    for (int i = count - 1; i >= 0; i--)
        good = good && await_dispatch(rounds[i], EXPAR_OK);
    for (int i = 0; i < count; i++)
        good = good && issue_combine(rounds[i], ll, NULL);
    good = good && CHECK_OK(expar_ll_hook_call(hooked->received.hook, NULL)) && round_check_dispatch(hooked);
    for (int i = count - 1; i >= 0; i--)
        good = good && await_combine(rounds[i]);
    for (int i = 0; i < count; i++)
        round_free(rounds[i]);
    round_free(hooked);
    expar_event_release(late);
    return good;
}

static bool trial_any_number(const ll_case *c, int32_t rank, expar_ll *ll)
{
    static const int counts[] = {1, 2, 3, MANY};
    bool good = true;
    for (size_t i = 0; i < sizeof counts / sizeof *counts && good; i++)
        good = trial_queue(c, rank, ll, counts[i]);
    return good;
}

static void test_any_number(void **state)
{
    (void)state;
    run_body(trial_any_number);
}

/* A rank delays one call and rejects the next. It gets the error at once; the others get it from their event. */
static bool trial_rejected_in_queue(const ll_case *c, int32_t rank, expar_ll *ll)
{
    ll_round *held = make(c, rank, 0), *rejected = make(c, rank, 1), *fine = make(c, rank, 2);
    expar_event *late = NULL;
    bool good = CHECK_OK(expar_event_create(&late));
    if (rank == BAD) {
        held->dispatch.wait_event = late;
        rejected->dispatch.x.shape[1] = 8;
    }
    good = good && issue_dispatch(held, ll);
    if (rank == BAD)
        good = good && CHECK_STATUS(EXPAR_ERR_SHAPE, expar_ll_dispatch(ll, &rejected->dispatch, &rejected->received)) &&
               CHECK_TEXT("expar_ll_dispatch on rank 1");
    else
        good = good && issue_dispatch(rejected, ll);
    good = good && issue_dispatch(fine, ll) && (rank != BAD || all_open(&held, 1));
    CHECK_OK(expar_event_signal(late));
    if (rank != BAD) good = good && await_dispatch(rejected, EXPAR_ERR_REMOTE) && CHECK_TEXT("rank 1 rejected");
    good = good && await_dispatch(fine, EXPAR_OK) && await_dispatch(held, EXPAR_OK);
    round_free(held);
    round_free(rejected);
    round_free(fine);
    expar_event_release(late);
    return good;
}

static void test_rejected_in_queue(void **state)
{
    (void)state;
    run_body(trial_rejected_in_queue);
}

/* The caller's references go at once. */
static bool trial_unheld(const ll_case *c, int32_t rank, expar_ll *ll)
{
    bool good = true;
    for (uint32_t i = 0; i < ROUNDS && good; i++) {
        ll_round *a = make(c, rank, i);
        good = issue_dispatch(a, ll);
        expar_ll_handle_release(a->received.handle);
        expar_ep_output_release(a->received.output);
        a->received.handle = NULL;
        a->received.output = NULL;
        good = good && CHECK_OK(expar_event_wait(a->received.event));
        expar_event_release(a->received.event);
        round_free(a);
    }
    return good;
}

static void test_unheld(void **state)
{
    (void)state;
    run_body(trial_unheld);
}

/* An error that one rank alone finds it returns; an index, and what others learn, comes by the event. */
static bool trial_rejections(const ll_case *c, int32_t rank, expar_ll *ll)
{
    bool good = true;
    for (uint32_t i = 0; i < ROUNDS && good; i++) {
        ll_round *shape = make(c, rank, i), *index = make(c, rank, i), *fine = make(c, rank, i);
        if (rank == BAD) {
            shape->dispatch.x.shape[1] = 8;
            ((int32_t *)index->idx)[0] = 99;
            good = CHECK_STATUS(EXPAR_ERR_SHAPE, expar_ll_dispatch(ll, &shape->dispatch, &shape->received));
            good = good && CHECK(!shape->received.event, "no event");
        } else {
            good =
                issue_dispatch(shape, ll) && await_dispatch(shape, EXPAR_ERR_REMOTE) && CHECK_TEXT("rank 1 rejected");
        }
        good = good && issue_dispatch(index, ll) &&
               await_dispatch(index, rank == BAD ? EXPAR_ERR_INDEX : EXPAR_ERR_REMOTE) && CHECK_TEXT("is 99");
        good = good && issue_dispatch(fine, ll) && await_dispatch(fine, EXPAR_OK);
        round_free(shape);
        round_free(index);
        round_free(fine);
    }
    return good;
}

static void test_rejections_told(void **state)
{
    (void)state;
    run_body(trial_rejections);
}

/* An event that ended badly is this rank's rejection: in the caller's thread, and by the call's own event. */
static bool trial_bad_event(const ll_case *c, int32_t rank, expar_ll *ll)
{
    ll_round *index = make(c, rank, 0), *sync = round_make(c, rank, 1), *async = make(c, rank, 2);
    bool good;
    if (rank == BAD) ((int32_t *)index->idx)[0] = 99;
    good = issue_dispatch(index, ll);
    good =
        good && CHECK_STATUS(rank == BAD ? EXPAR_ERR_INDEX : EXPAR_ERR_REMOTE, expar_event_wait(index->received.event));
    if (rank == BAD) sync->dispatch.wait_event = async->dispatch.wait_event = index->received.event;
    good = good && CHECK_STATUS(rank == BAD ? EXPAR_ERR_STATE : EXPAR_ERR_REMOTE,
                                expar_ll_dispatch(ll, &sync->dispatch, &sync->received));
    good = good && CHECK_TEXT("wait_event ended with an error");
    if (rank == BAD && hold_finds_late()) /* what is wrong with an event the host knows before kernels do */
        good = good && CHECK_STATUS(EXPAR_ERR_STATE, expar_ll_dispatch(ll, &async->dispatch, &async->received));
    else
        good = good && issue_dispatch(async, ll) &&
               await_dispatch(async, rank == BAD ? EXPAR_ERR_STATE : EXPAR_ERR_REMOTE);
    expar_event_release(index->received.event);
    round_free(index);
    round_free(sync);
    round_free(async);
    return good;
}

static void test_bad_event(void **state)
{
    (void)state;
    run_body(trial_bad_event);
}

/* Destroying the buffer waits for what is on its way; both manners at once are refused. */
static bool trial_end(const ll_case *c, int32_t rank, expar_ll *ll)
{
    ll_round *both = make(c, rank, 1), *last = make(c, rank, 2);
    both->dispatch.hook = 1;
    bool good = CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ll_dispatch(ll, &both->dispatch, &both->received));
    good = good && issue_dispatch(last, ll) && CHECK_OK(expar_ll_destroy(ll)) && await_dispatch(last, EXPAR_OK);
    round_free(both);
    round_free(last);
    return good && false;
}

static void test_end(void **state)
{
    (void)state;
    run_body(trial_end);
}

static void await_abandoned(ll_round *round, bool may_be_broken_off)
{
    const expar_status status = expar_event_wait(round->received.event);
    if (status == EXPAR_ERR_ABORTED && may_be_broken_off)
        CHECK_TEXT("the buffer has been abandoned on this rank");
    else if (CHECK_STATUS(EXPAR_OK, status))
        round_check_dispatch(round);
    expar_event_release(round->received.event);
}

/* Issued calls go on without the caller; on a GPU that is too slow they are broken off. */
static bool trial_abandon(const ll_case *c, int32_t rank, expar_ll *ll)
{
    ll_round *last = make(c, rank, 2);
    const bool on_gpu = ll->base.exec->ops->streams;
    if (issue_dispatch(last, ll)) {
        CHECK_OK(expar_ll_abandon(ll));
        await_abandoned(last, on_gpu);
    }
    round_free(last);
    return false;
}

static void test_abandon(void **state)
{
    (void)state;
    run_body(trial_abandon);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_number), cmocka_unit_test(test_rejected_in_queue), cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_unheld),     cmocka_unit_test(test_rejections_told),   cmocka_unit_test(test_bad_event),
        cmocka_unit_test(test_end),        cmocka_unit_test(test_abandon),
    };
    kind = stage_kind(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
