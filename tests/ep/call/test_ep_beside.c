/* SPDX-License-Identifier: Apache-2.0 */
/* Outputs of a dispatch beside its rows, made of them on the rank itself: a weight for each expert-major row, where
 * rows came from, and column-major scales. Short enough for GPUs that a CPU simulates. test_ep_options has these by
 * every path, and test_ep_options_random at random. */
#include "ep/harness/stage.h"
#include "ep/harness/table.h"
#include "oracle/unit.h"

static ranks_kind kind;

/* A first dispatch and one with its handle that carries topk_idx again. */
static bool dispatch_twice(table *t, expar_ep_path path, bool async, random_source *random)
{
    deal_choice choice = t->what->choice;
    deal_call call;
    choice.path = path;
    choice.async = async;
    deal *d = table_deal(t, &choice, random);
    deal_move *m = table_move(t, d, MOVE_DISPATCH, &choice, random);
    bool right = deal_call_make(&call, t->ep, m, t->rank, &t->area, NULL);
    expar_ep_handle *handle = call.result.handle;
    move_free(m);
    m = table_move(t, d, MOVE_REPEAT, &choice, random);
    right = right && deal_call_make(&call, t->ep, m, t->rank, &t->area, handle);
    move_free(m);
    expar_ep_handle_release(handle);
    deal_free(d);
    return right;
}

static void dispatch_by_both_paths(table *t)
{
    random_source random = random_start(7);
    CHECK(dispatch_twice(t, EXPAR_EP_PATH_AUTO, false, &random), "directly");
    CHECK(dispatch_twice(t, EXPAR_EP_PATH_QUEUE, true, &random), "by the queue");
}

static table_case beside(void)
{
    table_case c = table_case_make();
    c.plan.num_ranks = 2;
    c.plan.num_experts = 6;
    c.there.with_topk = true;
    return c;
}

static void trial(const table_case *cases, size_t count)
{
    assert_true(table_run_all(cases, count, kind, dispatch_by_both_paths, NULL));
}

/* ---- a weight for each expert-major row -------------------------------------------------------------------------- */

static table_case weighed(deal_choice choice)
{
    table_case c = beside();
    c.choice = choice;
    c.choice.expert_major = c.choice.row_weights = true;
    return c;
}

static void test_weights_of_expert_major_rows(void **state)
{
    (void)state;
    const table_case cases[] = {weighed((deal_choice){0}), weighed((deal_choice){.alignment = 4, .zero_padding = true}),
                                weighed((deal_choice){.alignment = 4, .own = 511, .own_symmetric = true})};
    trial(cases, 3);
}

static void test_weights_of_more_and_fewer_rows_than_come(void **state)
{
    (void)state;
    const table_case cases[] = {weighed((deal_choice){.alignment = 2, .zero_padding = true, .worst = WORST_LARGER}),
                                weighed((deal_choice){.zero_padding = true, .worst = WORST_ONE_SHORT})};
    trial(cases, 2);
}

/* Every slot of a token holds the same expert: each has a row and a weight of its own. */
static void test_weights_of_duplicates(void **state)
{
    (void)state;
    table_case c = weighed((deal_choice){.alignment = 7});
    c.plan.routing = ROUTING_ONE_HOT;
    c.plan.by_hand = true;
    trial(&c, 1);
}

/* ---- where rows came from ---------------------------------------------------------------------------------------- */

static table_case traced(deal_choice choice)
{
    table_case c = beside();
    c.choice = choice;
    c.there.src_stride = 8;
    return c;
}

static void test_sources_of_rows(void **state)
{
    (void)state;
    table_case cases[] = {traced((deal_choice){0}), traced((deal_choice){.worst = WORST_LARGER}),
                          traced((deal_choice){.worst = WORST_ONE_SHORT, .own = 511})};
    cases[1].there.src_tokens = true;
    trial(cases, 3);
}

static void test_sources_and_places_of_expert_major_rows(void **state)
{
    (void)state;
    const table_case cases[] = {traced((deal_choice){.expert_major = true, .alignment = 4}),
                                traced((deal_choice){.expert_major = true, .worst = WORST_LARGER, .own = 511})};
    trial(cases, 2);
}

static void test_sources_of_rows_without_slots(void **state)
{
    (void)state;
    table_case c = traced((deal_choice){0});
    c.plan.by_hand = true;
    c.plan.topk = 0;
    c.there.with_topk = false;
    trial(&c, 1);
}

/* ---- column-major scales ----------------------------------------------------------------------------------------- */

static table_case turned(deal_choice choice)
{
    table_case c = beside();
    c.choice = choice;
    c.choice.column_scales = true;
    c.there.type = ORACLE_F8E4M3;
    c.there.hidden = 32;
    c.there.num_scales = 3;
    return c;
}

static void test_column_major_scales(void **state)
{
    (void)state;
    const table_case cases[] = {turned((deal_choice){.scales = SCALES_TRANSPOSED}),
                                turned((deal_choice){.worst = WORST_LARGER, .own = 511, .own_symmetric = true}),
                                turned((deal_choice){.worst = WORST_ONE_SHORT})};
    trial(cases, 3);
}

static void test_column_major_scales_of_expert_major_rows(void **state)
{
    (void)state;
    const table_case cases[] = {
        turned((deal_choice){.expert_major = true, .alignment = 4, .zero_padding = true}),
        turned((deal_choice){.expert_major = true, .zero_padding = true, .worst = WORST_LARGER, .own = 511}),
        turned((deal_choice){.expert_major = true})};
    trial(cases, 3);
}

int main(int argc, char **argv)
{
    kind = stage_kind(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights_of_expert_major_rows),
        cmocka_unit_test(test_weights_of_more_and_fewer_rows_than_come),
        cmocka_unit_test(test_weights_of_duplicates),
        cmocka_unit_test(test_sources_of_rows),
        cmocka_unit_test(test_sources_and_places_of_expert_major_rows),
        cmocka_unit_test(test_sources_of_rows_without_slots),
        cmocka_unit_test(test_column_major_scales),
        cmocka_unit_test(test_column_major_scales_of_expert_major_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
