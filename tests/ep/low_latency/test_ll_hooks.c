/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks. Two calls of each kind are open at a time, received in any order. Also a third, a second call of one hook,
 * hooks that are never called, and hooks of a buffer that has gone. */
#include "ep/harness/check.h"
#include "ep/harness/stage.h"
#include "ep/low_latency/case.h"
#include "oracle/unit.h"
#include <string.h>

static ranks_kind kind;

#define ROUNDS 40
#define LATE   1 /* the rank that does what the others do not */

typedef struct scene {
    ll_case c;
    expar_group *group;
    expar_ll *ll;
    int32_t rank;
} scene;

typedef bool (*scene_body)(scene *s);

static scene_body trial; /* the one that runs */

static void trial_scene(expar_group *group, void *shared)
{
    scene s = {.c = *(const ll_case *)shared, .group = group, .rank = expar_group_rank(group)};
    const expar_ll_config config = case_config(&s.c);
    if (!CHECK_OK(expar_ll_create(group, &config, &s.ll))) return;
    if (trial(&s)) CHECK_OK(expar_ll_destroy(s.ll));
}

static void run_case(ll_case c, scene_body body)
{
    const ranks_plan plan = {.kind = kind, .size = c.ranks};
    trial = body;
    assert_true(ranks_run(&plan, trial_scene, &c));
}

static ll_round *make(const scene *s, uint32_t number)
{
    ll_round *round = round_make(&s->c, s->rank, number);
    round->dispatch.hook = 1;
    return round;
}

/* The send has read what it needs of x. */
static void spoil(void *data, size_t bytes)
{
    memset(data, 0x77, bytes);
}

static bool send_dispatch(const scene *s, ll_round *round)
{
    const bool sent = round_dispatch(round, s->ll);
    spoil(round->x, (size_t)s->c.tokens[s->rank] * (size_t)s->c.hidden * sizeof(float));
    return sent;
}

static bool send_combine(const scene *s, ll_round *round)
{
    round_prepare_combine(round);
    round->combine.hook = 1;
    const bool sent = round_combine(round, s->ll);
    spoil(round->expert_x, (size_t)s->c.experts * (size_t)s->c.max_tokens * (size_t)s->c.hidden * sizeof(float));
    return sent;
}

/* ---- two of each ------------------------------------------------------------------------------------------------- */

/* Each rank in an order of its own. */
static bool trial_two_of_each(scene *s)
{
    bool good = true;
    for (uint32_t i = 0; i < ROUNDS && good; i += 2) {
        ll_round *a = make(s, i), *b = make(s, i + 1);
        const bool swap = ((i >> 1) + (uint32_t)s->rank) % 2 == 0, again = (i >> 2) % 2 == 0;
        good = send_dispatch(s, a) && send_dispatch(s, b);
        good = good && round_dispatch_hook(swap ? b : a) && round_dispatch_hook(swap ? a : b);
        good = good && send_combine(s, a) && send_combine(s, b);
        good = good && round_combine_hook(again ? b : a) && round_combine_hook(again ? a : b);
        round_free(a);
        round_free(b);
    }
    return good;
}

static void test_two_of_each(void **state)
{
    (void)state;
    run_case(case_example, trial_two_of_each);
}

static void test_two_of_each_reduced(void **state)
{
    (void)state;
    ll_case c = case_example;
    c.sum = EXPAR_LL_SUM_REDUCED;
    run_case(c, trial_two_of_each);
}

/* A dispatch of the next micro-batch between the two phases of a combine, and the other way round. */
static bool trial_micro_batches(scene *s)
{
    ll_round *before = make(s, 0);
    bool good = send_dispatch(s, before) && round_dispatch_hook(before);
    for (uint32_t i = 1; i < ROUNDS && good; i++) {
        ll_round *next = make(s, i);
        good = send_combine(s, before) && send_dispatch(s, next);
        good = good && round_combine_hook(before) && round_dispatch_hook(next);
        round_free(before);
        before = next;
    }
    round_free(before);
    return good;
}

static void test_micro_batches(void **state)
{
    (void)state;
    run_case(case_example, trial_micro_batches);
}

/* Two buffers of one group, two dispatches and two combines open on each: their slots and epochs are their own. */
static bool trial_two_buffers(scene *s)
{
    const expar_ll_config config = case_config(&s->c);
    scene other = {.c = s->c, .rank = s->rank};
    bool good = CHECK_OK(expar_ll_create(s->group, &config, &other.ll)) && round_trial(&s->c, s->rank, other.ll, 9);
    for (uint32_t i = 0; i < ROUNDS && good; i += 4) {
        ll_round *rounds[4];
        for (uint32_t k = 0; k < 4; k++)
            rounds[k] = make(s, i + k);
        for (uint32_t k = 0; k < 4; k++)
            good = good && send_dispatch(k % 2 ? &other : s, rounds[k]);
        for (uint32_t k = 0; k < 4; k++)
            good = good && round_dispatch_hook(rounds[(k + i / 4 + (uint32_t)s->rank) % 4]);
        for (uint32_t k = 0; k < 4; k++)
            good = good && send_combine(k % 2 ? &other : s, rounds[k]);
        for (uint32_t k = 4; k-- > 0;)
            good = good && round_combine_hook(rounds[(k + i / 4 + (uint32_t)s->rank) % 4]);
        for (uint32_t k = 0; k < 4; k++)
            round_free(rounds[k]);
    }
    return good && CHECK_OK(expar_ll_destroy(other.ll));
}

static void test_two_buffers(void **state)
{
    (void)state;
    run_case(case_example, trial_two_buffers);
}

/* ---- a third ----------------------------------------------------------------------------------------------------- */

/* Everywhere: the hooks that are open stay good, and so does the buffer. */
static bool trial_third(scene *s)
{
    ll_round *a = make(s, 1), *b = make(s, 2), *c = make(s, 3);
    bool good = send_dispatch(s, a) && send_dispatch(s, b);
    good = good && CHECK_STATUS(EXPAR_ERR_STATE, expar_ll_dispatch(s->ll, &c->dispatch, &c->received));
    good = good && CHECK_TEXT("dispatch before the last");
    good = good && CHECK(!c->received.hook && !c->received.handle, "nothing is given");
    good = good && round_dispatch_hook(b) && round_dispatch_hook(a);
    round_free(a);
    round_free(b);
    round_free(c);
    for (uint32_t i = 0; i < 5 && good; i++)
        good = round_trial(&s->c, s->rank, s->ll, i);
    return good;
}

static void test_third(void **state)
{
    (void)state;
    run_case(case_example, trial_third);
}

/* On one rank: the others learn of it in that call alone. Later calls of that rank, in either half, are in step. */
static bool trial_third_on_one(scene *s)
{
    bool good = true;
    for (uint32_t i = 0; i < 6 && good; i++) {
        ll_round *a = make(s, 1), *b = make(s, 2), *c = make(s, 3);
        const bool late = s->rank == LATE;
        good = send_dispatch(s, a);
        good = good && (late || round_dispatch_hook(a));
        good = good && send_dispatch(s, b) && (i % 2 || late || round_dispatch_hook(b));
        if (late) {
            good = good && CHECK_STATUS(EXPAR_ERR_STATE, expar_ll_dispatch(s->ll, &c->dispatch, &c->received));
            good = good && round_dispatch_hook(a) && round_dispatch_hook(b);
        } else {
            good = good && CHECK_OK(expar_ll_dispatch(s->ll, &c->dispatch, &c->received));
            good = good && CHECK_STATUS(EXPAR_ERR_REMOTE, expar_ll_hook_call(c->received.hook, NULL));
            good = good && CHECK_TEXT("rank 1", "still open");
            good = good && (i % 2 == 0 || round_dispatch_hook(b));
        }
        round_free(a);
        round_free(b);
        round_free(c);
        good = good && round_trial(&s->c, s->rank, s->ll, i) && (i % 3 || round_trial(&s->c, s->rank, s->ll, i + 7));
    }
    return good;
}

static void test_third_on_one(void **state)
{
    (void)state;
    run_case(case_example, trial_third_on_one);
}

/* ---- once, never, too late --------------------------------------------------------------------------------------- */

static bool trial_once(scene *s)
{
    ll_round *a = make(s, 1);
    bool good = send_dispatch(s, a);
    good = good && round_dispatch_hook(a);
    good = good && CHECK_STATUS(EXPAR_ERR_STATE, expar_ll_hook_call(a->received.hook, NULL));
    good = good && CHECK_TEXT("called already");
    good = good && round_trial(&s->c, s->rank, s->ll, 2);
    round_free(a);
    return good;
}

/* A hook that is never called holds its place: every second dispatch is refused then. */
static bool trial_never(scene *s)
{
    ll_round *a = make(s, 1), *b = make(s, 2);
    bool good = send_dispatch(s, a);
    expar_ll_hook_release(a->received.hook);
    a->received.hook = NULL;
    for (uint32_t i = 0; i < 3 && good; i++) {
        good = round_trial(&s->c, s->rank, s->ll, i);
        good = good && CHECK_STATUS(EXPAR_ERR_STATE, expar_ll_dispatch(s->ll, &b->dispatch, &b->received));
    }
    round_free(a);
    round_free(b);
    return good;
}

static bool trial_pending_at_the_end(scene *s)
{
    ll_round *a = make(s, 1), *b = make(s, 2);
    bool good = send_dispatch(s, a) && send_dispatch(s, b);
    good = good && CHECK_OK(expar_ll_destroy(s->ll));
    s->ll = NULL;
    good = good && CHECK_STATUS(EXPAR_ERR_STATE, expar_ll_hook_call(a->received.hook, NULL));
    good = good && CHECK_TEXT("destroyed");
    round_free(a);
    round_free(b);
    return good;
}

static void test_pending_at_the_end(void **state)
{
    (void)state;
    run_case(case_example, trial_pending_at_the_end);
}

static void test_once(void **state)
{
    (void)state;
    run_case(case_example, trial_once);
}

static void test_never(void **state)
{
    (void)state;
    run_case(case_example, trial_never);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_of_each),
        cmocka_unit_test(test_two_of_each_reduced),
        cmocka_unit_test(test_micro_batches),
        cmocka_unit_test(test_two_buffers),
        cmocka_unit_test(test_third),
        cmocka_unit_test(test_third_on_one),
        cmocka_unit_test(test_once),
        cmocka_unit_test(test_never),
        cmocka_unit_test(test_pending_at_the_end),
    };
    kind = stage_kind(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
