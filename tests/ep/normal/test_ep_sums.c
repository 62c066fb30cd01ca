/* SPDX-License-Identifier: Apache-2.0 */
/* Orders of sums, and whose weights come back, against the oracle: by every path and from everybody's memory, waited
 * for and not, with first and repeated dispatches before. */
#include "ep/harness/stage.h"
#include "ep/harness/table.h"
#include "oracle/unit.h"
#include <string.h>

static ranks_kind kind;

static void trial(const table_cases *list)
{
    assert_true(table_run_all(list->cases, list->count, kind, table_trial_all_paths, NULL));
}

/* Slots enough for several on one rank. */
static table_case by(deal_order order)
{
    table_case c = table_case_make();
    c.plan.topk = 5;
    c.plan.keep_slots = true;
    c.back.order = order;
    c.choice.expert_major = c.back_choice.expert_major = order == ORDER_EACH_SLOT;
    return c;
}

static void add_all_types(table_cases *list, table_case c)
{
    for (oracle_type type = ORACLE_BF16; type <= ORACLE_F32; type++) {
        c.back.type = type;
        c.back_choice.biases = (int32_t)type + 1;
        table_add(list, &c);
    }
}

/* Plain rows, by their ranks' last slots. */
static void test_by_slot(void **state)
{
    (void)state;
    table_cases list = {.count = 0};
    add_all_types(&list, by(ORDER_BY_SLOT));
    trial(&list);
}

/* Each rank first sums its rows of the token. */
static void test_by_slot_expert_major(void **state)
{
    (void)state;
    table_cases list = {.count = 0};
    table_case c = by(ORDER_BY_SLOT);
    c.choice = (deal_choice){.expert_major = true, .alignment = 4};
    c.back_choice.expert_major = true;
    add_all_types(&list, c);
    c.back_choice.expert_weights = true;
    add_all_types(&list, c);
    trial(&list);
}

static void test_each_slot(void **state)
{
    (void)state;
    table_cases list = {.count = 0};
    add_all_types(&list, by(ORDER_EACH_SLOT));
    trial(&list);
}

/* Rings shorter than a token has slots; many channels. */
static void test_by_short_rings(void **state)
{
    (void)state;
    table_cases list = {.count = 0};
    for (deal_order order = ORDER_BY_SLOT; order < ORDERS; order++)
        for (int32_t slots = 1; slots <= 3; slots++) {
            table_case c = by(order);
            c.ring_slots = slots;
            c.num_channels = slots;
            table_add(&list, &c);
        }
    trial(&list);
}

/* Rows that have fewer 16 bytes than a token has slots, and rows that parts do not divide. */
static void test_rows_of_few_bytes(void **state)
{
    (void)state;
    table_cases list = {.count = 0};
    for (int32_t hidden = 8; hidden <= 32; hidden += 8) {
        table_case c = by(ORDER_EACH_SLOT);
        c.back.hidden = hidden;
        c.back.with_weights = false;
        table_add(&list, &c);
    }
    trial(&list);
}

static void test_owners_weights(void **state)
{
    (void)state;
    table_cases list = {.count = 0};
    for (deal_order order = ORDER_BY_RANK; order < ORDERS; order++) {
        table_case c = by(order);
        c.back.owners_weights = true;
        table_add(&list, &c);
        c.choice.expert_major = c.back_choice.expert_major = true;
        c.choice.alignment = 3;
        c.back_choice.pad = 1;
        table_add(&list, &c);
    }
    trial(&list);
}

/* Some ranks dispatch and combine expert-major, others do not. */
static void some_expert_major(deal_choice *choice, int32_t rank)
{
    choice->expert_major = rank != 1;
}

static void trial_mixed(table *t)
{
    random_source random = random_start(21);
    deal_choice plain = {0}, choices[TABLE_MAX_RANKS] = {{0}};
    for (int32_t r = 0; r < t->what->plan.num_ranks; r++)
        some_expert_major(&choices[r], r);
    deal *d = table_deal(t, &plain, &random);
    deal_move *m = table_move(t, d, MOVE_DISPATCH, &plain, &random);
    deal_call call;
    bool right = deal_call_make(&call, t->ep, m, t->rank, &t->area, NULL);
    expar_ep_handle *handle = call.result.handle;
    move_free(m);
    for (int i = 0; right && i < 4; i++) {
        move_form form = t->what->back;
        form.kind = MOVE_COMBINE;
        form.owners_weights = i & 1;
        for (int32_t r = 0; r < t->what->plan.num_ranks; r++)
            choices[r].path = i & 2 ? EXPAR_EP_PATH_QUEUE : EXPAR_EP_PATH_AUTO;
        m = move_make(d, &form, choices, &random);
        right = deal_call_make(&call, t->ep, m, t->rank, &t->area, handle);
        move_free(m);
    }
    expar_ep_handle_release(handle);
    deal_free(d);
}

static void test_ranks_that_differ_in_layout(void **state)
{
    (void)state;
    table_case c = by(ORDER_BY_SLOT);
    c.vary = some_expert_major;
    assert_true(table_run(&c, kind, trial_mixed, NULL));
}

/* The same expert twice in a token, and slots of -1. */
static void test_duplicates_and_gaps(void **state)
{
    (void)state;
    table_cases list = {.count = 0};
    for (deal_order order = ORDER_BY_SLOT; order < ORDERS; order++) {
        table_case c = by(order);
        c.plan.num_experts = 3;
        c.plan.disturb = 3;
        c.back.owners_weights = true;
        table_add(&list, &c);
    }
    trial(&list);
}

static void test_tokens_that_go_nowhere(void **state)
{
    (void)state;
    table_cases list = {.count = 0};
    for (deal_order order = ORDER_BY_SLOT; order < ORDERS; order++) {
        table_case c = by(order);
        c.plan.routing = ROUTING_NOWHERE;
        c.back_choice.biases = 2;
        table_add(&list, &c);
    }
    trial(&list);
}

/* Ranks get tokens without any of their experts, and do not get some that have one. */
static void test_by_hand(void **state)
{
    (void)state;
    table_cases list = {.count = 0};
    for (deal_order order = ORDER_BY_RANK; order < ORDERS; order++) {
        table_case c = by(order);
        c.plan.by_hand = true;
        c.back.owners_weights = true;
        table_add(&list, &c);
    }
    trial(&list);
}

static void test_one_rank(void **state)
{
    (void)state;
    table_cases list = {.count = 0};
    for (deal_order order = ORDER_BY_SLOT; order < ORDERS; order++) {
        table_case c = by(order);
        c.plan.num_ranks = 1;
        table_add(&list, &c);
    }
    trial(&list);
}

static void test_many_ranks_of_one_expert(void **state)
{
    (void)state;
    table_cases list = {.count = 0};
    for (deal_order order = ORDER_BY_SLOT; order < ORDERS; order++) {
        table_case c = by(order);
        c.plan.num_ranks = c.plan.num_experts = 8;
        table_add(&list, &c);
    }
    trial(&list);
}

static void test_ranks_without_tokens(void **state)
{
    (void)state;
    table_cases list = {.count = 0};
    static const int64_t none[3] = {0, 0, 0}, few[3] = {0, 4, 1};
    for (deal_order order = ORDER_BY_SLOT; order < ORDERS; order++) {
        table_case c = by(order);
        c.choice.null_if_empty = c.back_choice.null_if_empty = true;
        c.plan.num_tokens = none;
        table_add(&list, &c);
        c.plan.num_tokens = few;
        table_add(&list, &c);
    }
    trial(&list);
}

/* Dropped rows add nothing, whole rows and single slots alike. */
static void test_dropped_rows(void **state)
{
    (void)state;
    table_cases list = {.count = 0};
    for (deal_order order = ORDER_BY_SLOT; order < ORDERS; order++)
        for (deal_worst worst = WORST_EXACT; worst < WORST_KINDS; worst++) {
            table_case c = by(order);
            c.choice.worst = worst;
            c.back.owners_weights = worst & 1;
            table_add(&list, &c);
        }
    trial(&list);
}

/* ---- what does not go -------------------------------------------------------------------------------------------- */

/* Rank 1 combines otherwise than the others. */
typedef struct otherwise {
    void (*change)(expar_ep_combine_args *args);
    expar_status own, others;
    const char *words[4]; /* the first is in everybody's text */
} otherwise;

static void token_major(expar_ep_combine_args *args)
{
    args->expert_major = 0;
}

static void with_expert_weights(expar_ep_combine_args *args)
{
    args->expert_weights = args->topk_weights;
}

static void weights_by_slots(expar_ep_combine_args *args)
{
    args->topk_weights.shape[1] = 5;
}

static void one_weight_short(expar_ep_combine_args *args)
{
    args->topk_weights.shape[0]--;
}

static void other_order(expar_ep_combine_args *args)
{
    args->sum_order = EXPAR_EP_SUM_ORDER_BY_SLOT;
}

static void other_weights(expar_ep_combine_args *args)
{
    args->weights_of = EXPAR_EP_WEIGHTS_OF_ALL;
    args->topk_weights = expar_tensor_2d(args->topk_weights.data, EXPAR_F32, 15, 5);
}

static void direct_from_private_memory(expar_ep_combine_args *args)
{
    args->path = EXPAR_EP_PATH_DIRECT;
}

static const otherwise others[] = {
    {token_major, EXPAR_ERR_ARGUMENT, EXPAR_ERR_REMOTE, {"sum_order is EACH_SLOT", "expert_major is 0"}},
    {with_expert_weights, EXPAR_ERR_ARGUMENT, EXPAR_ERR_REMOTE, {"expert_weights", "sum_order EACH_SLOT"}},
    {weights_by_slots, EXPAR_ERR_SHAPE, EXPAR_ERR_REMOTE, {"topk_weights", "][5]", "][1]"}},
    {one_weight_short, EXPAR_ERR_SHAPE, EXPAR_ERR_REMOTE, {"topk_weights", "expected"}},
    {other_order, EXPAR_ERR_MISMATCH, EXPAR_ERR_MISMATCH, {"sum_order is BY_SLOT on rank 1 and EACH_SLOT on rank 0"}},
    {other_weights, EXPAR_ERR_MISMATCH, EXPAR_ERR_MISMATCH, {"weights_of is ALL on rank 1 and OWNER on rank 0"}},
    {direct_from_private_memory, EXPAR_ERR_ADDRESS, EXPAR_ERR_REMOTE, {"x.data", "symmetric heap"}},
};

static void combine_otherwise(table *t, const deal_move *good, const expar_ep_handle *handle, const otherwise *what)
{
    bool mine = t->rank == 1;
    expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
    args.x = expar_tensor_2d(good->x[t->rank], EXPAR_BF16, move_num_x_rows(good, t->rank), 16);
    args.topk_weights = expar_tensor_2d(good->weights[t->rank], EXPAR_F32, move_num_x_rows(good, t->rank), 1);
    args.out_y = expar_tensor_2d(t->area.out, EXPAR_BF16, 5, 16);
    args.out_topk_weights = expar_tensor_2d(t->area.in, EXPAR_F32, 5, 5);
    args.handle = handle;
    args.expert_major = 1;
    args.sum_order = EXPAR_EP_SUM_ORDER_EACH_SLOT;
    args.weights_of = EXPAR_EP_WEIGHTS_OF_OWNER;
    if (mine) what->change(&args);
    CHECK_STATUS(mine ? what->own : what->others, expar_ep_combine(t->ep, &args, NULL));
    const char *words[5] = {what->words[0]};
    for (int i = 1; mine && i < 4; i++)
        words[i] = what->words[i];
    check_text(__FILE__, __LINE__, words);
}

static void reject_every(table *t)
{
    random_source random = random_start(31);
    deal *d = table_deal(t, &t->what->choice, &random);
    deal_move *m = table_move(t, d, MOVE_DISPATCH, &t->what->choice, &random);
    deal_move *good = table_move(t, d, MOVE_COMBINE, &t->what->back_choice, &random);
    deal_call call;
    bool right = deal_call_make(&call, t->ep, m, t->rank, &t->area, NULL);
    expar_ep_handle *handle = call.result.handle;
    for (size_t i = 0; right && i < sizeof others / sizeof others[0]; i++) {
        combine_otherwise(t, good, handle, &others[i]);
        right = deal_call_make(&call, t->ep, good, t->rank, &t->area, handle);
    }
    expar_ep_handle_release(handle);
    move_free(m);
    move_free(good);
    deal_free(d);
}

/* Each of five tokens goes to all experts, so that every rank has 15 tokens of 5 slots. */
static void everywhere(deal *d)
{
    static const int64_t experts[] = {0, 3, 1, 5, 2};
    for (int32_t r = 0; r < d->job.num_ranks; r++)
        for (int64_t i = 0; i < d->inputs[r].num_tokens * 5; i++)
            ((int64_t *)(uintptr_t)d->inputs[r].topk_idx)[i] = experts[i % 5];
}

static void test_what_ranks_may_not_ask_for(void **state)
{
    (void)state;
    table_case c = by(ORDER_EACH_SLOT);
    c.back.owners_weights = true;
    c.shape = everywhere;
    assert_true(table_run(&c, kind, reject_every, NULL));
}

/* Peers need the handle's map beside the rows; where a copy does not fit, rows come by the queue. */
static void reject_direct(table *t)
{
    random_source random = random_start(33);
    deal *d = table_deal(t, &t->what->choice, &random);
    deal_move *m = table_move(t, d, MOVE_DISPATCH, &t->what->choice, &random);
    deal_choice in_heap = t->what->back_choice;
    in_heap.place = PLACE_SYMMETRIC;
    deal_move *good = table_move(t, d, MOVE_COMBINE, &in_heap, &random);
    deal_call call;
    bool mine = t->rank == 1;
    deal_call_make(&call, t->ep, m, t->rank, &t->area, NULL);
    expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
    args.x = expar_tensor_2d(t->area.in, EXPAR_BF16, move_num_x_rows(good, t->rank), 16);
    args.out_y = expar_tensor_2d(t->area.out, EXPAR_BF16, d->inputs[t->rank].num_tokens, 16);
    args.handle = call.result.handle;
    args.expert_major = 1;
    args.sum_order = EXPAR_EP_SUM_ORDER_EACH_SLOT;
    args.path = mine ? EXPAR_EP_PATH_DIRECT : EXPAR_EP_PATH_AUTO;
    CHECK_STATUS(mine ? EXPAR_ERR_BUFFER_SIZE : EXPAR_ERR_REMOTE, expar_ep_combine(t->ep, &args, NULL));
    CHECK_TEXT("path is DIRECT", "the pool of 4096 bytes");
    deal_call_make(&call, t->ep, good, t->rank, &t->area, args.handle);
    expar_ep_handle_release((expar_ep_handle *)(uintptr_t)args.handle);
    move_free(m);
    move_free(good);
    deal_free(d);
}

static void test_each_slot_without_space_in_the_pool(void **state)
{
    (void)state;
    static const int64_t many[3] = {100, 100, 100};
    table_case c = by(ORDER_EACH_SLOT);
    c.plan.num_tokens = many;
    c.pool_bytes = 4096;
    assert_true(table_run(&c, kind, reject_direct, NULL));
}

/* Routed by hand alone: nobody knows of slots. */
static void ask_for_slots(table *t)
{
    random_source random = random_start(32);
    deal *d = table_deal(t, &t->what->choice, &random);
    deal_move *m = table_move(t, d, MOVE_DISPATCH, &t->what->choice, &random);
    deal_call call;
    deal_call_make(&call, t->ep, m, t->rank, &t->area, NULL);
    expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
    args.x = expar_tensor_2d(t->area.in, EXPAR_BF16, oracle_num_rows(&d->job, t->rank), 16);
    args.out_y = expar_tensor_2d(t->area.out, EXPAR_BF16, 5, 16);
    args.handle = call.result.handle;
    args.sum_order = EXPAR_EP_SUM_ORDER_BY_SLOT;
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ep_combine(t->ep, &args, NULL));
    CHECK_TEXT("sum_order is BY_SLOT", "topk_idx and keep_slots");
    expar_ep_handle_release((expar_ep_handle *)(uintptr_t)args.handle);
    move_free(m);
    deal_free(d);
}

static void test_slots_of_routings_without_topk(void **state)
{
    (void)state;
    table_case c = table_case_make();
    c.plan.topk = 0;
    c.plan.by_hand = true;
    c.plan.with_weights = false;
    assert_true(table_run(&c, kind, ask_for_slots, NULL));
}

int main(int argc, char **argv)
{
    kind = stage_kind(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_slot),
        cmocka_unit_test(test_by_slot_expert_major),
        cmocka_unit_test(test_each_slot),
        cmocka_unit_test(test_by_short_rings),
        cmocka_unit_test(test_rows_of_few_bytes),
        cmocka_unit_test(test_owners_weights),
        cmocka_unit_test(test_ranks_that_differ_in_layout),
        cmocka_unit_test(test_duplicates_and_gaps),
        cmocka_unit_test(test_tokens_that_go_nowhere),
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_one_rank),
        cmocka_unit_test(test_many_ranks_of_one_expert),
        cmocka_unit_test(test_ranks_without_tokens),
        cmocka_unit_test(test_dropped_rows),
        cmocka_unit_test(test_what_ranks_may_not_ask_for),
        cmocka_unit_test(test_each_slot_without_space_in_the_pool),
        cmocka_unit_test(test_slots_of_routings_without_topk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
