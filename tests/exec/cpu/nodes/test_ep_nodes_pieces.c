/* SPDX-License-Identifier: Apache-2.0 */
/* Rows across nodes that are larger than a buffer's rings over the network were made for. They go in pieces, both ways,
 * in as many messages as pieces. So do sums that are not rounded, which are larger than their rows, and rows that go
 * back by themselves. */
#include "ep/harness/stage.h"
#include "exec/cpu/nodes/carrier.h"
#include "oracle/unit.h"

#include <stdlib.h>

#define RANKS          4
#define RANKS_PER_NODE 2

/* Rows of 64 bytes; of somewhat more than a place of 4 KiB; of more than a ring of four; and the first again. */
enum { FORMS = 4 };
static const int32_t widths[FORMS] = {32, 2056, 12296, 32};

static traffic_forms forms_make(void)
{
    static const int64_t num_tokens[RANKS] = {9, 0, 5, 12};
    random_source random = random_start(51);
    traffic_forms f = {0};
    traffic_plan plan = traffic_plan_small(RANKS, RANKS_PER_NODE, num_tokens);
    plan.with_weights = true;
    for (int i = 0; i < FORMS; i++) {
        plan.hidden = widths[i];
        traffic_forms_add(&f, &plan, &random);
    }
    return f;
}

/* By which the rings have 4 places of 4 KiB. */
static stage_plan plan_without_limits(const traffic_forms *f)
{
    stage_plan plan = stage_plan_for(f->traffic[2], RANKS_THREADS);
    plan.config = (expar_ep_config)EXPAR_EP_CONFIG_INIT;
    plan.config.ranks_per_node = RANKS_PER_NODE;
    plan.config.num_channels = 2;
    plan.config.ring_slots = 4;
    return plan;
}

/* Messages of the last call, and pieces of its slots. */
static void check_pieces(const stage *s, const traffic *t, uint64_t messages)
{
    const cpu_rails *rails = carrier_of(s->ep)->rails;
    const uint64_t bytes = rails->slot.bytes, place = rails->shape.chunk_bytes;
    int32_t tokens[RANKS / RANKS_PER_NODE];
    oracle_tokens_per_node(&t->job, s->rank, tokens);
    const uint64_t records = (uint64_t)tokens[1 - s->rank / RANKS_PER_NODE];
    CHECK(place == 4096, "a place has %llu bytes", (unsigned long long)place);
    CHECK(rails->pieces == (bytes + place - 1) / place, "slots of %llu bytes go in %u pieces",
          (unsigned long long)bytes, rails->pieces);
    if (rails->pieces > 1)
        CHECK(messages >= records * rails->pieces && messages <= records * rails->pieces + 4,
              "%llu messages for %llu records of %u pieces", (unsigned long long)messages, (unsigned long long)records,
              rails->pieces);
}

static void trial_widths(stage *s, void *shared)
{
    const traffic_forms *f = shared;
    const cpu_rails *rails = carrier_of(s->ep)->rails;
    for (int i = 0; i < FORMS; i++)
        for (expar_ep_path path = EXPAR_EP_PATH_AUTO; path <= EXPAR_EP_PATH_QUEUE; path += EXPAR_EP_PATH_QUEUE) {
            const trial_choice choice = {.path = path};
            const uint64_t before = atomic_load(&rails->counts.messages);
            trial_arrival arrival;
            if (!trial_dispatch(s->ep, f->traffic[i], s->rank, &choice, &s->area, NULL, &arrival)) return;
            check_pieces(s, f->traffic[i], atomic_load(&rails->counts.messages) - before);
            if (!trial_combine(s->ep, f->traffic[i], f->answers[i], s->rank, &choice, &s->area, arrival.handle,
                               &arrival))
                return;
            trial_release(&arrival, true);
        }
    CHECK(s->ep->growths == 3, "%llu growths for 3 widths", (unsigned long long)s->ep->growths);
}

static void test_rows_in_pieces(void **state)
{
    (void)state;
    traffic_forms f = forms_make();
    const stage_plan plan = plan_without_limits(&f);
    const bool passed = stage_run(&plan, trial_widths, &f);
    traffic_forms_free(&f);
    assert_true(passed);
}

/* Ones, of which y is how many there are. */
static void combine_ones(stage *s, const traffic *t, const expar_ep_handle *handle, int64_t hidden,
                         expar_ep_nodes_sum nodes)
{
    const cpu_rails *rails = carrier_of(s->ep)->rails;
    const int64_t tokens = t->inputs[s->rank].num_tokens, rows = t->arrivals[s->rank].num_rows;
    expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
    uint16_t *x = traffic_alloc((size_t)(rows * hidden), sizeof *x);
    uint16_t *y = traffic_alloc((size_t)(tokens * hidden), sizeof *y);
    for (int64_t i = 0; i < rows * hidden; i++)
        x[i] = 0x3f80; /* 1 */
    args.x = expar_tensor_2d(x, EXPAR_BF16, rows, hidden);
    args.out_y = expar_tensor_2d(y, EXPAR_BF16, tokens, hidden);
    args.handle = handle;
    args.nodes_sum = nodes;
    CHECK_OK(expar_ep_combine(s->ep, &args, NULL));
    CHECK(rails->pieces == 2, "sums go in %u pieces", rails->pieces);
    for (int64_t i = 0; i < tokens * hidden; i++) {
        int32_t ranks = 0;
        for (int32_t r = 0; r < RANKS; r++)
            ranks += oracle_token_in_rank(&t->job, s->rank, i / hidden, r);
        const uint32_t expected = oracle_round(ORACLE_BF16, (float)ranks);
        if (!CHECK(y[i] == expected, "y[%lld] is %#x for %d ranks", (long long)i, y[i], ranks)) break;
    }
    free(x);
    free(y);
}

/* Rows fit a place, but what they add up to does not; and rows by themselves that do not. */
static void combine_in_pieces(stage *s, void *shared)
{
    const traffic *t = ((const traffic_forms *)shared)->traffic[0];
    const trial_choice plain = {0};
    trial_arrival arrival;
    if (!trial_dispatch(s->ep, t, s->rank, &plain, &s->area, NULL, &arrival)) return;
    combine_ones(s, t, arrival.handle, 2024, EXPAR_EP_NODES_SUM_EXACT);
    combine_ones(s, t, arrival.handle, 4000, EXPAR_EP_NODES_SUM_ONE_ORDER);
    trial_release(&arrival, true);
}

static void test_sums_in_pieces(void **state)
{
    (void)state;
    traffic_forms f = forms_make();
    const stage_plan plan = plan_without_limits(&f);
    const bool passed = stage_run(&plan, combine_in_pieces, &f);
    traffic_forms_free(&f);
    assert_true(passed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows_in_pieces), cmocka_unit_test(test_sums_in_pieces)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
