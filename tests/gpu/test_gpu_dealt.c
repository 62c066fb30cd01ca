/* SPDX-License-Identifier: Apache-2.0 */
/* Each token of a dispatch, and each run of parts of a combine, is dealt out once: to one warp, and to no other. A
 * second warp would store the same bytes, which no result shows, so the simulated GPU counts the stores of kernels.
 * Runs are parts, or rows, or so few tokens that none is dealt out. (Half rows take more tokens than the mirror
 * carries.) */
#include "cuda/find_controls.h"
#include "ep/harness/stage.h"
#include "oracle/unit.h"

enum { RANKS = 2, SMS = 12 };

typedef struct deal_form {
    int64_t tokens[RANKS];
    int32_t hidden;
} deal_form;

typedef struct scene {
    const traffic *first, *second; /* the second has the first one's routing */
    const answers *back;
} scene;

/* Bytes that all ranks' kernels have stored in a call that each has made. */
typedef struct tally {
    const fake_controls *controls;
    unsigned long long seen;
} tally;

static bool check_stored(tally *t, expar_group *group, int64_t rows, const traffic *of, const char *what)
{
    if (!CHECK_OK(expar_group_barrier(group))) return false;
    const unsigned long long before = t->seen, wanted = (unsigned long long)rows * traffic_row_bytes(of);
    t->seen = atomic_load(&t->controls->stored_bytes);
    if (!CHECK_OK(expar_group_barrier(group))) return false;
    return CHECK(t->seen - before == wanted, "kernels of a %s stored %llu bytes of rows, expected %llu", what,
                 t->seen - before, wanted);
}

static void trial(stage *s, void *shared)
{
    const scene *of = shared;
    const trial_choice plain = {.sure_of_pool = true};
    const traffic *t = of->first;
    trial_arrival arrival, again;
    tally stored = {.controls = controls_find()};
    int64_t came = 0, tokens = 0;
    for (int32_t r = 0; r < RANKS; r++) {
        came += t->arrivals[r].num_rows;
        tokens += t->inputs[r].num_tokens;
    }
    stored.seen = atomic_load(&stored.controls->stored_bytes);
    if (!trial_dispatch(s->ep, t, s->rank, &plain, &s->area, NULL, &arrival)) return;
    if (check_stored(&stored, s->group, came, t, "dispatch") &&
        trial_combine(s->ep, t, of->back, s->rank, &plain, &s->area, arrival.handle, &arrival) &&
        check_stored(&stored, s->group, tokens, t, "combine") &&
        trial_dispatch(s->ep, of->second, s->rank, &plain, &s->area, arrival.handle, &again)) {
        check_stored(&stored, s->group, came, t, "dispatch with a handle");
        trial_release(&again, true);
    }
    trial_release(&arrival, true);
}

static void run(const deal_form *form)
{
    random_source random = random_start(random_test_seed("dealt out"));
    const traffic_plan plan = {.num_ranks = RANKS,
                               .hidden = form->hidden,
                               .topk = 2,
                               .num_experts = 2 * RANKS,
                               .disturb = 8,
                               .num_tokens = form->tokens};
    traffic *first = traffic_make(&plan, &random), *second = traffic_repeat(first, &random);
    answers *back = answers_make(first, false, &random);
    stage_plan staged = stage_plan_for(first, RANKS_THREADS);
    staged.config.num_sms = SMS;
    scene all = {first, second, back};
    const bool passed = stage_run(&staged, trial, &all);
    answers_free(back);
    traffic_free(second);
    traffic_free(first);
    assert_true(passed);
}

static void test_few(void **state)
{
    (void)state;
    run(&(deal_form){.tokens = {40, 3}, .hidden = 2400});
}

/* More of both than there are warps. */
static void test_parts(void **state)
{
    (void)state;
    run(&(deal_form){.tokens = {260, 411}, .hidden = 2400});
}

static void test_rows(void **state)
{
    (void)state;
    run(&(deal_form){.tokens = {1600, 190}, .hidden = 64});
}

/* Where the driver is simulated. */
static int find_driver(void **state)
{
    int32_t count;
    (void)state;
    return cuda_device_count(&count) == EXPAR_OK && controls_find() ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_few), cmocka_unit_test(test_parts),
                                       cmocka_unit_test(test_rows)};
    return cmocka_run_group_tests(tests, find_driver, NULL);
}
