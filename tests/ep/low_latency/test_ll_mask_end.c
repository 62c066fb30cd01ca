/* SPDX-License-Identifier: Apache-2.0 */
/* A sound buffer with masks ends while data for a masked rank is still under way, on a network that brings nothing of
 * it (LATE_ROWS_NS). Both ranks come to the end. The one that masked the other waits for the network no longer than one
 * that gives a buffer up. */
#include "ep/harness/check.h"
#include "ep/harness/ranks.h"
#include "ep/low_latency/case.h"
#include "oracle/unit.h"

#include <expar/interrupt.h>

enum { STAYS, MASKED, RANKS };
/* Nothing but what was sent is waited for by then: without an end that wait would last as long as the network. */
#define DEADLINE_MS (RANKS_TIMEOUT_MS / 2)

static const ll_case few = {
    .ranks = RANKS, .max_tokens = 8, .hidden = 32, .topk = 2, .experts = 2 * RANKS, .tokens = {8, 8}, .seed = 3};

/* Asked by waits of one thread, which touches it alone. */
typedef struct patience {
    int64_t end_ms;
    bool ended;
} patience;

static int look(void *context)
{
    patience *p = context;
    p->ended = p->ended || ranks_clock_ms() > p->end_ms;
    return p->ended;
}

/* With a hook the send does not wait for anybody. */
static void send_and_mask(expar_ll *ll)
{
    ll_round *round = round_make(&few, STAYS, 0);
    round->dispatch.hook = 1;
    CHECK_OK(expar_ll_dispatch(ll, &round->dispatch, &round->received));
    CHECK_OK(expar_ll_mask_set(ll, MASKED, 1));
    CHECK_OK(expar_ll_hook_call(round->received.hook, NULL));
    round_free(round);
}

static void trial(expar_group *group, void *shared)
{
    patience p = {.end_ms = ranks_clock_ms() + DEADLINE_MS};
    expar_ll_config config = case_config(&few);
    expar_ll *ll = NULL;
    (void)shared;
    config.masking = 1;
    if (!CHECK_OK(expar_ll_create(group, &config, &ll))) return;
    if (expar_group_rank(group) == STAYS) {
        send_and_mask(ll);
        expar_interrupt_set_thread(look, &p);
    }
    CHECK_OK(expar_ll_destroy(ll));
    expar_interrupt_set_thread(NULL, NULL);
    CHECK(!p.ended, "the end waits for what a masked rank was sent");
}

static void test_end_with_rows_under_way(void **state)
{
    (void)state;
    const ranks_plan plan = {.kind = RANKS_THREADS, .size = RANKS};
    assert_true(ranks_run(&plan, trial, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_end_with_rows_under_way)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
