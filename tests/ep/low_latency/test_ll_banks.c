/* SPDX-License-Identifier: Apache-2.0 */
/* Where the messages of dispatches lie at their receivers. Many lie in the slot of the dispatch before, once that has
 * been read there, and in the other one while it has not. Few lie in the two in turns. On thread ranks, or with the
 * argument "processes" on process ranks. */
#include "ep/harness/check.h"
#include "ep/harness/stage.h"
#include "ep/low_latency/case.h"
#include "ep/low_latency/hold.h"
#include "ep/low_latency/ll.h"
#include "exec/cpu/low_latency/cpu.h"
#include "oracle/unit.h"

enum { RANKS = 3, ROUNDS = 9 };

static ranks_kind kind;

static const ll_case example = {
    .ranks = RANKS, .max_tokens = 4, .hidden = 16, .topk = 3, .experts = 3, .tokens = {4, 4, 4}, .seed = 5};

typedef struct seat {
    expar_group *group;
    expar_ll *ll;
    int32_t rank;
    int32_t banks[RANKS]; /* in which the messages of the last dispatch to each rank went */
} seat;

typedef bool (*seat_body)(seat *s);

static seat_body trial; /* the one that runs */

static void trial_seat(expar_group *group, void *shared)
{
    seat s = {.group = group, .rank = expar_group_rank(group)};
    const expar_ll_config config = case_config(shared);
    if (!CHECK_OK(expar_ll_create(group, &config, &s.ll))) return;
    if (trial(&s)) CHECK_OK(expar_ll_destroy(s.ll));
}

static void run_seats(seat_body body)
{
    ll_case c = example;
    const ranks_plan plan = {.kind = kind, .size = c.ranks};
    trial = body;
    assert_true(ranks_run(&plan, trial_seat, &c));
}

/* same: as the last dispatch's; else the other one. Every token goes to every rank: three experts of three, one a
   rank. */
static bool check_banks(seat *s, bool same)
{
    bool good = true;
    for (int32_t r = 0; r < RANKS; r++) {
        const int32_t before = s->banks[r], now = ll_cpu_of(s->ll->base.exec)->banks[r].now;
        if (r != s->rank)
            good = CHECK((now == before) == same, "bank %d behind bank %d at rank %d", now, before, r) && good;
        s->banks[r] = now;
    }
    return good;
}

/* A barrier: the rows of the last dispatch have been read on all ranks, which have said so. */
static bool trial_rounds(seat *s, bool same)
{
    bool good = true;
    for (uint32_t i = 0; i < ROUNDS && good; i++) {
        ll_round *round = round_make(&example, s->rank, i);
        good = round_dispatch(round, s->ll) && CHECK_OK(expar_barrier_all(s->group)) && check_banks(s, same);
        round_free(round);
    }
    return good;
}

static bool trial_many(seat *s)
{
    hold_stream(s->ll, 0);
    return trial_rounds(s, true);
}

static bool trial_few(seat *s)
{
    return trial_rounds(s, false);
}

static void test_many(void **state)
{
    (void)state;
    run_seats(trial_many);
}

static void test_few(void **state)
{
    (void)state;
    run_seats(trial_few);
}

/* Two dispatches are open at a time, and received in either order. */
static bool trial_unread(seat *s)
{
    bool good = true;
    hold_stream(s->ll, 0);
    for (uint32_t i = 0; i < ROUNDS && good; i++) {
        ll_round *rounds[] = {round_make(&example, s->rank, 2 * i), round_make(&example, s->rank, 2 * i + 1)};
        rounds[0]->dispatch.hook = rounds[1]->dispatch.hook = 1;
        good = round_dispatch(rounds[0], s->ll) && check_banks(s, true) && CHECK_OK(expar_barrier_all(s->group));
        good = good && round_dispatch(rounds[1], s->ll) && check_banks(s, false);
        good = good && CHECK_OK(expar_barrier_all(s->group));
        good = good && round_dispatch_hook(rounds[i % 2]) && round_dispatch_hook(rounds[1 - i % 2]);
        good = good && CHECK_OK(expar_barrier_all(s->group));
        round_free(rounds[0]);
        round_free(rounds[1]);
    }
    return good;
}

static void test_unread(void **state)
{
    (void)state;
    run_seats(trial_unread);
}

int main(int argc, char **argv)
{
    kind = stage_kind(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_few),
        cmocka_unit_test(test_unread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
