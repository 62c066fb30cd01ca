/* SPDX-License-Identifier: Apache-2.0 */
/* A rank leaves the group once it has sent all that a call needs of it, while another rank has not come to the call.
 * That ends well for those who stay. The late one comes only when the one that waits for it has seen the group fail,
 * and waits on. Over a network, data on its way goes with a rank that abandons its group, and kernels of GPUs leave
 * with their group. There a rank that stays has all data of the call, or is told who went. */
#include "ep/harness/check.h"
#include "ep/harness/stage.h"
#include "ep/low_latency/case.h"
#include "ep/low_latency/hold.h"
#include "ep/low_latency/ll.h"
#include "ep/low_latency/reach.h"
#include "oracle/unit.h"

#include <sched.h>
#include <string.h>
#include <sys/mman.h>

enum { LEAVER, WAITER, LATE };

static ranks_kind kind;

/* In memory that processes share. */
typedef struct scene {
    ll_case c;
    bool combine;        /* it is a combine that is left behind, else a dispatch */
    _Atomic int32_t saw; /* 1: the waiter has looked again since the group failed, or its call has ended; by it */
} scene;

/* For the one that waits, between the steps of its protocol. */
typedef struct lookout {
    scene *s;
    const sym *memory;
    int32_t turns;
} lookout;

static void look_again(void *context)
{
    lookout *l = context;
    if (!sym_is_sound(l->memory) && ++l->turns == 5) atomic_store(&l->s->saw, 1);
}

static void await_sight(const scene *s)
{
    const int64_t end_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    while (!atomic_load(&s->saw) && ranks_clock_ms() < end_ms)
        sched_yield();
}

static expar_status make_call(ll_round *round, expar_ll *ll, bool combine)
{
    if (!combine) return expar_ll_dispatch(ll, &round->dispatch, &round->received);
    return expar_ll_combine(ll, &round->combine, &round->combined);
}

/* By its hook alone it takes no further part; once it has been counted it has been sent. */
static void leave_behind(ll_round *round, expar_ll *ll, bool combine)
{
    expar_ll_stats sent = EXPAR_LL_STATS_INIT;
    round->dispatch.hook = round->combine.hook = 1;
    CHECK_OK(make_call(round, ll, combine));
    CHECK_OK(expar_ll_get_stats(ll, &sent));
    CHECK_OK(expar_group_abandon(ll->base.group));
}

/* By mapped memory all has come before the leaver goes. */
static bool ends_well(expar_status status)
{
    if ((reach_is_mapped() && !hold_goes_on()) || status == EXPAR_OK) return CHECK_OK(status);
    CHECK_STATUS(EXPAR_ERR_PEER, status);
    CHECK(strstr(expar_last_error(), "rank "), "nobody is named: %s", expar_last_error());
    return false;
}

static void see_through(ll_round *round, expar_ll *ll, scene *s)
{
    lookout l = {.s = s, .memory = ll->base.group->sym};
    if (round->rank == WAITER) hold_install(ll, look_again, &l);
    if (round->rank == LATE) await_sight(s);
    if (ends_well(make_call(round, ll, s->combine)))
        CHECK(s->combine ? round_check_combine(round) : round_check_dispatch(round), "what came");
    hold_install(ll, NULL, NULL);
    if (round->rank == WAITER) atomic_store(&s->saw, 1);
}

static void learn_of_it(const ll_case *c, int32_t rank, expar_ll *ll)
{
    ll_round *next = round_make(c, rank, 1);
    CHECK_STATUS(EXPAR_ERR_PEER, expar_ll_dispatch(ll, &next->dispatch, &next->received));
    round_free(next);
}

static void trial_leaver(expar_group *group, void *shared)
{
    scene *s = shared;
    const int32_t rank = expar_group_rank(group);
    const expar_ll_config config = case_config(&s->c);
    expar_ll *ll = NULL;
    if (!CHECK_OK(expar_ll_create(group, &config, &ll))) return;
    ll_round *round = round_make(&s->c, rank, 0);
    if (s->combine && round_dispatch(round, ll)) round_prepare_combine(round);
    CHECK_OK(expar_group_barrier(group));
    if (rank == LEAVER) {
        leave_behind(round, ll, s->combine);
    } else {
        see_through(round, ll, s);
        learn_of_it(&s->c, rank, ll);
        hold_device_serves(rank);
        CHECK_OK(expar_group_abandon(group));
    }
    CHECK_OK(expar_ll_destroy(ll));
    round_free(round);
}

static void run(bool combine)
{
    scene *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(s != MAP_FAILED);
    s->c = case_example;
    s->combine = combine;
    const ranks_plan plan = {.kind = kind, .size = s->c.ranks, .ends_itself = true};
    const bool passed = ranks_run(&plan, trial_leaver, s);
    munmap(s, sizeof *s);
    assert_true(passed);
}

static void test_dispatch(void **state)
{
    (void)state;
    run(false);
}

static void test_combine(void **state)
{
    (void)state;
    run(true);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dispatch),
        cmocka_unit_test(test_combine),
    };
    kind = stage_kind(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
