/* SPDX-License-Identifier: Apache-2.0 */
/* Orders of sums, and whose weights come back, where each node adds its rows: against the oracle, with rows in place
 * and by rings. Random scripts draw them, too (test_ep_nodes); here are the cases by themselves. */
#include "ep/harness/stage.h"
#include "ep/harness/table.h"
#include "oracle/unit.h"

static void trial_case(table *t)
{
    random_source random = random_start(9);
    deal_choice back = t->what->back_choice;
    expar_ep_handle *handle = NULL;
    deal *d = table_deal(t, &t->what->choice, &random);
    if (table_trial_move(t, d, MOVE_DISPATCH, &t->what->choice, &random, &handle)) {
        back.path = EXPAR_EP_PATH_QUEUE;
        table_trial_move(t, d, MOVE_COMBINE, &back, &random, &handle);
        back.path = EXPAR_EP_PATH_AUTO;
        back.place = PLACE_SYMMETRIC;
        back.async = true;
        table_trial_move(t, d, MOVE_COMBINE, &back, &random, &handle);
    }
    expar_ep_handle_release(handle);
    deal_free(d);
}

static void trial(const table_cases *list)
{
    assert_true(table_run_all(list->cases, list->count, RANKS_THREADS, trial_case, NULL));
}

/* Slots enough for several on one node, and on one rank. */
static table_case by(int32_t nodes, int32_t each, deal_order order)
{
    table_case c = table_case_make();
    c.plan.num_ranks = nodes * each;
    c.plan.ranks_per_node = each;
    c.plan.num_experts = 2 * nodes * each;
    c.plan.topk = 5;
    c.plan.keep_slots = true;
    c.back.order = order;
    c.back.owners_weights = true;
    c.choice.expert_major = c.back_choice.expert_major = order == ORDER_EACH_SLOT;
    return c;
}

/* Rounded by node or not; rings of one slot; rows that a rank has dropped. */
static void add_order(table_cases *list, int32_t nodes, int32_t each, deal_order order)
{
    table_case c = by(nodes, each, order);
    c.back_choice.biases = 3;
    table_add(list, &c);
    c.back.nodes = ORACLE_NODES_EXACT;
    c.back.type = ORACLE_F16;
    c.ring_slots = c.num_channels = 1;
    table_add(list, &c);
    c = by(nodes, each, order);
    c.choice.worst = WORST_ONE_SHORT;
    c.back.owners_weights = false;
    table_add(list, &c);
}

static void test_on_two_nodes(void **state)
{
    (void)state;
    table_cases list = {.count = 0};
    for (deal_order order = ORDER_BY_SLOT; order < ORDERS; order++)
        add_order(&list, 2, 2, order);
    table_case c = by(2, 2, ORDER_BY_SLOT);
    c.choice = (deal_choice){.expert_major = true, .alignment = 4};
    c.back_choice.expert_major = c.back_choice.expert_weights = true;
    table_add(&list, &c);
    c = by(2, 2, ORDER_BY_RANK);
    table_add(&list, &c);
    trial(&list);
}

/* Three nodes, so that one can come between two others. Nodes get tokens without any of their experts, and do not get
   some that have one; the same expert twice in a token, and slots of -1. */
static void test_on_three_nodes(void **state)
{
    (void)state;
    table_cases list = {.count = 0};
    for (deal_order order = ORDER_BY_RANK; order < ORDERS; order++) {
        table_case c = by(3, 2, order);
        c.plan.by_hand = true;
        table_add(&list, &c);
        c = by(3, 2, order);
        c.plan.disturb = 3;
        table_add(&list, &c);
    }
    trial(&list);
}

static table_case in_one_order(int32_t nodes, int32_t each, deal_order order)
{
    static const int64_t num_tokens[TABLE_MAX_RANKS] = {5, 0, 9, 1, 7, 3};
    table_case c = by(nodes, each, order);
    c.plan.num_tokens = num_tokens;
    c.back.nodes = ORACLE_NODES_ONE_ORDER;
    return c;
}

/* Rows of all nodes one by one, of each type; weights of owners and sums of all. Also routings by hand of few slots,
   which give nodes tokens and none of their slots; rings of one slot; rows that were dropped. */
static void add_in_one_order(table_cases *list, int32_t nodes, int32_t each, deal_order order)
{
    table_case c = in_one_order(nodes, each, order);
    c.back_choice.biases = 3;
    table_add(list, &c);
    c.plan.by_hand = true;
    c.plan.topk = 2;
    c.plan.keep_slots = order != ORDER_BY_RANK;
    c.back.owners_weights = false;
    c.back.type = ORACLE_F32;
    table_add(list, &c);
    c = in_one_order(nodes, each, order);
    c.back.type = ORACLE_F16;
    c.back_choice.biases = 2;
    c.plan.disturb = 3;
    c.ring_slots = c.num_channels = 1;
    table_add(list, &c);
    c = in_one_order(nodes, each, order);
    c.choice.worst = WORST_ONE_SHORT;
    table_add(list, &c);
}

static void trial_in_one_order(int32_t nodes, int32_t each)
{
    table_cases list = {.count = 0};
    for (deal_order order = ORDER_BY_RANK; order < ORDERS; order++)
        add_in_one_order(&list, nodes, each, order);
    table_case c = in_one_order(nodes, each, ORDER_BY_SLOT);
    c.choice = (deal_choice){.expert_major = true, .alignment = 4};
    c.back_choice.expert_major = c.back_choice.expert_weights = true;
    table_add(&list, &c);
    trial(&list);
}

/* Biases, the own node's rows one by one, then the other nodes' rounded sums, from the nearest before on. Rows in place
   and by rings of one slot; rows that were dropped; weights of owners, and sums of all. */
static void trial_own_first(int32_t nodes, int32_t each)
{
    table_cases list = {.count = 0};
    for (deal_order order = ORDER_BY_RANK; order < ORDERS; order++) {
        table_case c = in_one_order(nodes, each, order);
        c.back.nodes = ORACLE_NODES_OWN_FIRST;
        c.back_choice.biases = 3;
        table_add(&list, &c);
        c.back.owners_weights = false;
        c.back.type = ORACLE_F16;
        c.ring_slots = c.num_channels = 1;
        c.choice.worst = WORST_ONE_SHORT;
        table_add(&list, &c);
    }
    table_case c = in_one_order(nodes, each, ORDER_BY_RANK);
    c.back.nodes = ORACLE_NODES_OWN_FIRST;
    c.choice = (deal_choice){.expert_major = true, .alignment = 4, .limit = LIMIT_HALF};
    c.back_choice.expert_major = true;
    table_add(&list, &c);
    trial(&list);
}

static void test_own_node_first_of_two(void **state)
{
    (void)state;
    trial_own_first(2, 2);
}

static void test_own_node_first_of_three(void **state)
{
    (void)state;
    trial_own_first(3, 2);
}

static void test_own_node_first_of_nodes_of_one(void **state)
{
    (void)state;
    trial_own_first(4, 1);
}

static void test_in_one_order_on_two_nodes(void **state)
{
    (void)state;
    trial_in_one_order(2, 2);
}

static void test_in_one_order_on_three_nodes(void **state)
{
    (void)state;
    trial_in_one_order(3, 2);
}

static void test_in_one_order_on_nodes_of_one(void **state)
{
    (void)state;
    trial_in_one_order(4, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_on_two_nodes),
                                       cmocka_unit_test(test_on_three_nodes),
                                       cmocka_unit_test(test_in_one_order_on_two_nodes),
                                       cmocka_unit_test(test_in_one_order_on_three_nodes),
                                       cmocka_unit_test(test_in_one_order_on_nodes_of_one),
                                       cmocka_unit_test(test_own_node_first_of_two),
                                       cmocka_unit_test(test_own_node_first_of_three),
                                       cmocka_unit_test(test_own_node_first_of_nodes_of_one)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
