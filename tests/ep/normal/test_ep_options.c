/* SPDX-License-Identifier: Apache-2.0 */
/* The edges of every option of dispatch and combine, one test each: by every path and into everybody's memory, waited
 * for and not, first and repeated, against the oracle. */
#include "ep/harness/stage.h"
#include "ep/harness/table.h"
#include "oracle/unit.h"
#include <string.h>

static ranks_kind kind;

static void trial(const table_case *what)
{
    assert_true(table_run(what, kind, table_trial_all_paths, NULL));
}

/* All that one rank can ask for at once. */
static table_case everything(void)
{
    table_case c = table_case_make();
    c.there = (move_form){.type = ORACLE_F8E4M3, .hidden = 32, .num_scales = 3};
    c.choice = (deal_choice){
        .expert_major = true, .zero_padding = true, .row_weights = true, .alignment = 4, .worst = WORST_LARGER};
    c.back_choice = (deal_choice){.expert_major = true, .expert_weights = true, .biases = 3};
    return c;
}

/* ---- rows with scales -------------------------------------------------------------------------------------------- */

static void test_scales_of_any_stride(void **state)
{
    (void)state;
    table_case c = table_case_make();
    for (int i = 0; i < 2 * SCALES_ORDERS; i++) {
        c.there =
            (move_form){.type = i & 1 ? ORACLE_I8 : ORACLE_F8E4M3, .hidden = 32, .num_scales = 5, .packed = i % 3 == 0};
        c.choice.scales = (deal_scales)(i / 2);
        trial(&c);
    }
}

static void test_one_scale_a_token(void **state)
{
    (void)state;
    table_case c = table_case_make();
    for (int order = 0; order < SCALES_ORDERS; order++) {
        c.there = (move_form){.type = ORACLE_F8E4M3, .hidden = 16, .num_scales = 1, .packed = order & 1};
        c.choice.scales = (deal_scales)order;
        trial(&c);
    }
}

static void test_as_many_scales_as_the_buffer_takes(void **state)
{
    (void)state;
    table_case c = table_case_make();
    c.there = (move_form){.type = ORACLE_I8, .hidden = 64, .num_scales = 8};
    c.ring_slots = 1;
    trial(&c);
}

static void test_column_major_scales(void **state)
{
    (void)state;
    table_case c = table_case_make();
    for (int i = 0; i < 4; i++) {
        c.there = (move_form){.type = ORACLE_F8E4M3, .hidden = 32, .num_scales = 1 + i, .packed = i & 1};
        c.choice = (deal_choice){.column_scales = true, .own = i & 1 ? 511 : 0, .own_symmetric = i & 2};
        trial(&c);
    }
}

/* The last rank's scales do not fit the others': all are told what and where, and the buffer goes on. */
static void mismatch(table *t)
{
    static const struct {
        const char *what;
        expar_dtype x, scales;
        int64_t num_scales;
    } others[] = {{"scales a token", EXPAR_I8, EXPAR_F32, 2},
                  {"scales a token", EXPAR_I8, EXPAR_F32, 0},
                  {"dtype of x_scales", EXPAR_I8, EXPAR_I32, 1},
                  {"dtype of x ", EXPAR_F8E4M3, EXPAR_F32, 1}};
    static _Alignas(16) uint8_t memory[5 * 16], idx[5 * 3 * 8];
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        bool other = t->rank == 2;
        expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
        expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
        args.x = expar_tensor_2d(memory, other ? others[i].x : EXPAR_I8, 5, 16);
        args.topk_idx = expar_tensor_2d(idx, EXPAR_I64, 5, 3);
        args.num_experts = 6;
        if (!other || others[i].num_scales)
            args.x_scales =
                expar_tensor_2d(memory, other ? others[i].scales : EXPAR_F32, 5, other ? others[i].num_scales : 1);
        CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_ep_dispatch(t->ep, &args, &result));
        CHECK_TEXT("expar_ep_dispatch", others[i].what, "rank 2", "rank 0");
    }
    table_trial_all_paths(t);
}

static void test_scales_that_differ_between_ranks(void **state)
{
    (void)state;
    table_case c = table_case_make();
    assert_true(table_run(&c, kind, mismatch, NULL));
}

static void test_quantised_rows_without_scales(void **state)
{
    (void)state;
    table_case c = table_case_make();
    c.there = (move_form){.type = ORACLE_F8E4M3, .hidden = 48};
    trial(&c);
}

/* ---- what rows bring along --------------------------------------------------------------------------------------- */

static void test_numbers_at_the_source(void **state)
{
    (void)state;
    table_case c = table_case_make();
    c.there.src_tokens = true;
    trial(&c);
    c.choice.worst = WORST_LARGER;
    trial(&c);
    c.choice.worst = WORST_ONE_SHORT;
    c.ring_slots = 1;
    trial(&c);
}

/* Without top-k, and expert-major: they are of the rows as they come. */
static void test_numbers_at_the_source_of_other_rows(void **state)
{
    (void)state;
    table_case c = everything();
    c.there.src_tokens = true;
    trial(&c);
    c = table_case_make();
    c.there.src_tokens = true;
    c.plan.by_hand = true;
    c.plan.topk = 0;
    c.back.with_weights = false;
    trial(&c);
}

static void test_global_numbers_of_experts(void **state)
{
    (void)state;
    table_case c = table_case_make();
    c.there.global_experts = true;
    trial(&c);
    c.plan.wide = true;
    c.choice.worst = WORST_LARGER;
    trial(&c);
}

/* The places follow from them all the same. */
static void test_global_numbers_of_expert_major_rows(void **state)
{
    (void)state;
    table_case c = everything();
    c.there.global_experts = c.there.with_topk = true;
    trial(&c);
}

/* Every part of everything in memory of the caller's, reached by peers and not. */
static void test_all_outputs_of_the_callers(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        table_case c = i & 1 ? everything() : table_case_make();
        c.there.src_tokens = true;
        c.there.src_stride = 5;
        c.choice.own = 511;
        c.choice.own_symmetric = i & 2;
        c.choice.counts = true;
        trial(&c);
    }
}

/* ---- a limit of expert-major rows -------------------------------------------------------------------------------- */

/* With and without a worst case, and rows that fit or not. */
static void test_limits_of_expert_major_rows(void **state)
{
    (void)state;
    for (deal_limit limit = LIMIT_EXACT; limit < LIMIT_KINDS; limit++)
        for (int i = 0; i < 4; i++) {
            table_case c = everything();
            c.choice.limit = limit;
            c.choice.worst = i & 1 ? WORST_LARGER : i & 2 ? WORST_ONE_SHORT : WORST_NONE;
            c.choice.alignment = i & 1 ? 4 : 0;
            c.choice.counts = true;
            c.choice.own = i == 3 ? 511 : 0;
            c.there.routed = i == 2;
            trial(&c);
        }
}

/* The weights of rows that were dropped come back as 0, those of others to the bit. */
static void test_weights_within_a_limit(void **state)
{
    (void)state;
    for (deal_limit limit = LIMIT_ONE_SHORT; limit <= LIMIT_HALF; limit++) {
        table_case c = table_case_make();
        c.plan.keep_slots = true;
        c.choice = (deal_choice){.expert_major = true, .alignment = 2, .limit = limit};
        c.back.owners_weights = true;
        c.back_choice.expert_major = true;
        trial(&c);
    }
}

/* ---- routing by hand --------------------------------------------------------------------------------------------- */

static void set_routes(deal *d, uint8_t value)
{
    for (int32_t r = 0; r < d->job.num_ranks; r++)
        memset((void *)(uintptr_t)d->inputs[r].token_in_rank, value,
               (size_t)(d->inputs[r].num_tokens * d->job.num_ranks));
}

static void nowhere(deal *d)
{
    set_routes(d, 0);
}

static void everywhere(deal *d)
{
    set_routes(d, 255);
}

static void only_to_the_last(deal *d)
{
    int32_t n = d->job.num_ranks;
    set_routes(d, 0);
    for (int32_t r = 0; r < n; r++)
        for (int64_t t = 0; t < d->inputs[r].num_tokens; t++)
            ((uint8_t *)(uintptr_t)d->inputs[r].token_in_rank)[t * n + n - 1] = 2;
}

/* With top-k and without. */
static void play_by_hand(void (*shape)(deal *d))
{
    table_case c = table_case_make();
    c.plan.by_hand = true;
    c.shape = shape;
    trial(&c);
    c.choice = (deal_choice){.expert_major = true, .zero_padding = true, .alignment = 2};
    c.back_choice.expert_major = true;
    trial(&c);
    c.choice = c.back_choice = (deal_choice){0};
    c.plan.topk = 0;
    c.back.with_weights = false;
    trial(&c);
    c.plan.with_counts = true;
    c.choice.alignment = 7;
    trial(&c);
}

static void test_by_hand_nowhere(void **state)
{
    (void)state;
    play_by_hand(nowhere);
}

static void test_by_hand_everywhere(void **state)
{
    (void)state;
    play_by_hand(everywhere);
}

static void test_by_hand_to_one_rank(void **state)
{
    (void)state;
    play_by_hand(only_to_the_last);
}

static void test_by_hand_at_random(void **state)
{
    (void)state;
    play_by_hand(NULL);
}

/* ---- worst-case size --------------------------------------------------------------------------------------------- */

static void trial_worst(deal_worst worst)
{
    table_case c = table_case_make();
    c.choice.worst = worst;
    trial(&c);
    c.choice.expert_major = c.back_choice.expert_major = true;
    for (int32_t alignment = 1; alignment < 128; alignment += 63) {
        c.choice.alignment = alignment;
        c.choice.zero_padding = alignment > 1;
        trial(&c);
    }
}

static void test_worst_case_equals_rows(void **state)
{
    (void)state;
    trial_worst(WORST_EXACT);
}

static void test_worst_case_one_short(void **state)
{
    (void)state;
    trial_worst(WORST_ONE_SHORT);
}

static void test_worst_case_of_one(void **state)
{
    (void)state;
    trial_worst(WORST_ONE);
}

static void test_worst_case_larger(void **state)
{
    (void)state;
    trial_worst(WORST_LARGER);
}

/* Nothing comes, yet outputs have rows. */
static void test_worst_case_of_nothing(void **state)
{
    (void)state;
    table_case c = everything();
    c.plan.routing = ROUTING_NOWHERE;
    trial(&c);
}

static void one_rank_only(deal_choice *choice, int32_t rank)
{
    if (rank == 1)
        choice->worst = WORST_ONE_SHORT;
    else
        choice->expert_major = false;
}

static void test_worst_case_on_one_rank(void **state)
{
    (void)state;
    table_case c = table_case_make();
    c.vary = one_rank_only;
    c.choice.expert_major = true;
    trial(&c);
}

/* ---- expert-major output ----------------------------------------------------------------------------------------- */

static void trial_expert_major(table_case c)
{
    static const int32_t alignments[] = {0, 1, 7, 128};
    for (int i = 0; i < 8; i++) {
        c.choice = (deal_choice){.expert_major = true, .zero_padding = i & 1, .alignment = alignments[i / 2]};
        c.back_choice = (deal_choice){.expert_major = true, .expert_weights = i & 1};
        trial(&c);
    }
}

static void test_expert_major_alignments(void **state)
{
    (void)state;
    trial_expert_major(table_case_make());
}

/* Every slot of every token holds one expert: a token stands there K times. */
static void test_expert_major_duplicates(void **state)
{
    (void)state;
    table_case c = table_case_make();
    c.plan.routing = ROUTING_ONE_HOT;
    trial_expert_major(c);
}

static void test_expert_major_with_idle_experts(void **state)
{
    (void)state;
    table_case c = table_case_make();
    c.plan.num_experts = 24;
    c.plan.topk = 1;
    trial_expert_major(c);
}

/* Token-major combines and repeats of a dispatch that was expert-major. */
static void token_major_repeat(table *t)
{
    random_source random = random_start(9);
    deal_choice first = t->what->choice, plain = {0};
    deal *d = table_deal(t, &first, &random);
    deal_call call;
    deal_move *m = table_move(t, d, MOVE_DISPATCH, &first, &random);
    bool right = deal_call_make(&call, t->ep, m, t->rank, &t->area, NULL);
    expar_ep_handle *handle = call.result.handle;
    move_free(m);
    for (int i = 0; right && i < 4; i++) {
        m = table_move(t, d, i & 1 ? MOVE_COMBINE : MOVE_REPEAT, &plain, &random);
        right = deal_call_make(&call, t->ep, m, t->rank, &t->area, handle);
        move_free(m);
    }
    expar_ep_handle_release(handle);
    deal_free(d);
}

static void test_token_major_use_of_an_expert_major_handle(void **state)
{
    (void)state;
    table_case c = table_case_make();
    c.choice = (deal_choice){.expert_major = true, .alignment = 7};
    assert_true(table_run(&c, kind, token_major_repeat, NULL));
}

/* Rank 1 gives rows or weights of a wrong shape: it is told, the others hear of it, and the next call is right. */
static void reject_shapes(table *t)
{
    random_source random = random_start(11);
    const deal_choice *choice = &t->what->choice;
    deal *d = table_deal(t, choice, &random);
    deal_move *m = table_move(t, d, MOVE_DISPATCH, choice, &random);
    deal_move *good = table_move(t, d, MOVE_COMBINE, &t->what->back_choice, &random);
    deal_call call;
    deal_call_make(&call, t->ep, m, t->rank, &t->area, NULL);
    expar_ep_handle *handle = call.result.handle;
    int64_t rows = move_num_x_rows(good, t->rank), slots = oracle_num_rows(&good->job, t->rank);
    for (int wrong = 0; wrong < 2; wrong++) {
        bool mine = t->rank == 1;
        expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
        args.x = expar_tensor_2d(good->x[t->rank], EXPAR_BF16, rows - (mine && wrong == 0), 16);
        args.out_y = expar_tensor_2d(t->area.out, EXPAR_BF16, 5, 16);
        args.handle = handle;
        args.expert_major = 1;
        args.expert_weights =
            expar_tensor_2d(good->expert_weights[t->rank], EXPAR_F32, slots, 3 - (mine && wrong == 1));
        CHECK_STATUS(mine ? EXPAR_ERR_SHAPE : EXPAR_ERR_REMOTE, expar_ep_combine(t->ep, &args, NULL));
        CHECK_TEXT(wrong ? "expert_weights" : "x has");
    }
    deal_call_make(&call, t->ep, good, t->rank, &t->area, handle);
    expar_ep_handle_release(handle);
    move_free(m);
    move_free(good);
    deal_free(d);
}

/* Rows are summed into the pool first, so only the weights must lie in symmetric memory; and they must fit. */
static void reject_direct(table *t)
{
    random_source random = random_start(12);
    const deal_choice *choice = &t->what->choice;
    const bool spare = t->what->pool_bytes > 4096, mine = t->rank == 1;
    deal *d = table_deal(t, choice, &random);
    deal_move *m = table_move(t, d, MOVE_DISPATCH, choice, &random);
    deal_move *back = table_move(t, d, MOVE_COMBINE, &t->what->back_choice, &random);
    deal_call call;
    deal_call_make(&call, t->ep, m, t->rank, &t->area, NULL);
    expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
    args.x = expar_tensor_2d(back->x[t->rank], EXPAR_BF16, move_num_x_rows(back, t->rank), 32);
    args.out_y = expar_tensor_2d(t->area.out, EXPAR_BF16, d->inputs[t->rank].num_tokens, 32);
    args.handle = call.result.handle;
    args.expert_major = 1;
    args.path = mine ? EXPAR_EP_PATH_DIRECT : EXPAR_EP_PATH_AUTO;
    args.topk_weights = expar_tensor_2d(back->weights[t->rank], EXPAR_F32, oracle_num_rows(&back->job, t->rank), 3);
    args.out_topk_weights = expar_tensor_2d(t->area.in, EXPAR_F32, d->inputs[t->rank].num_tokens, 3);
    expar_status reason = spare ? EXPAR_ERR_ADDRESS : EXPAR_ERR_BUFFER_SIZE;
    CHECK_STATUS(mine ? reason : EXPAR_ERR_REMOTE, expar_ep_combine(t->ep, &args, NULL));
    CHECK_TEXT("path is DIRECT", spare ? "topk_weights.data" : "the pool of 4096 bytes");
    deal_call_make(&call, t->ep, back, t->rank, &t->area, args.handle);
    expar_ep_handle_release((expar_ep_handle *)(uintptr_t)args.handle);
    move_free(m);
    move_free(back);
    deal_free(d);
}

static table_case indirect(void)
{
    static const int64_t many[3] = {60, 60, 60};
    table_case c = table_case_make();
    c.plan.num_tokens = many;
    c.back = (move_form){.type = ORACLE_BF16, .hidden = 32, .with_weights = true};
    c.choice = c.back_choice = (deal_choice){.expert_major = true};
    return c;
}

static void test_expert_major_combine_that_cannot_be_direct(void **state)
{
    (void)state;
    table_case c = indirect();
    assert_true(table_run(&c, kind, reject_direct, NULL));
}

static void test_expert_major_combine_without_space_in_the_pool(void **state)
{
    (void)state;
    table_case c = indirect();
    c.pool_bytes = 4096;
    assert_true(table_run(&c, kind, reject_direct, NULL));
}

static void test_expert_major_combine_of_wrong_shapes(void **state)
{
    (void)state;
    table_case c = table_case_make();
    c.choice = (deal_choice){.expert_major = true, .alignment = 4};
    c.back_choice = (deal_choice){.expert_major = true, .expert_weights = true};
    assert_true(table_run(&c, kind, reject_shapes, NULL));
}

/* ---- combine ----------------------------------------------------------------------------------------------------- */

static void test_biases(void **state)
{
    (void)state;
    table_case c = table_case_make();
    for (int i = 0; i < 12; i++) {
        c.back = (move_form){.type = (oracle_type)(i % 3), .hidden = 16, .with_weights = i & 1};
        c.back_choice = (deal_choice){.biases = i / 3, .pad = i % 2};
        trial(&c);
    }
}

/* Tokens that went nowhere are the biases' sum. */
static void test_biases_of_tokens_that_go_nowhere(void **state)
{
    (void)state;
    table_case c = table_case_make();
    c.plan.routing = ROUTING_NOWHERE;
    c.back_choice.biases = 3;
    trial(&c);
}

/* ---- everything together ----------------------------------------------------------------------------------------- */

static void test_everything(void **state)
{
    (void)state;
    table_case c = everything();
    trial(&c);
    c.num_channels = 3;
    c.ring_slots = 1;
    trial(&c);
}

static void test_everything_on_one_rank(void **state)
{
    (void)state;
    table_case c = everything();
    c.plan.num_ranks = 1;
    trial(&c);
}

static void test_everything_without_tokens(void **state)
{
    (void)state;
    static const int64_t none[3] = {0, 0, 0}, few[3] = {0, 4, 0};
    table_case c = everything();
    c.choice.null_if_empty = c.back_choice.null_if_empty = true;
    c.plan.num_tokens = none;
    trial(&c);
    c.plan.num_tokens = few;
    trial(&c);
}

int main(int argc, char **argv)
{
    kind = stage_kind(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scales_of_any_stride),
        cmocka_unit_test(test_one_scale_a_token),
        cmocka_unit_test(test_column_major_scales),
        cmocka_unit_test(test_as_many_scales_as_the_buffer_takes),
        cmocka_unit_test(test_quantised_rows_without_scales),
        cmocka_unit_test(test_numbers_at_the_source),
        cmocka_unit_test(test_numbers_at_the_source_of_other_rows),
        cmocka_unit_test(test_global_numbers_of_experts),
        cmocka_unit_test(test_global_numbers_of_expert_major_rows),
        cmocka_unit_test(test_all_outputs_of_the_callers),
        cmocka_unit_test(test_scales_that_differ_between_ranks),
        cmocka_unit_test(test_limits_of_expert_major_rows),
        cmocka_unit_test(test_weights_within_a_limit),
        cmocka_unit_test(test_by_hand_nowhere),
        cmocka_unit_test(test_by_hand_everywhere),
        cmocka_unit_test(test_by_hand_to_one_rank),
        cmocka_unit_test(test_by_hand_at_random),
        cmocka_unit_test(test_worst_case_equals_rows),
        cmocka_unit_test(test_worst_case_one_short),
        cmocka_unit_test(test_worst_case_of_one),
        cmocka_unit_test(test_worst_case_larger),
        cmocka_unit_test(test_worst_case_of_nothing),
        cmocka_unit_test(test_worst_case_on_one_rank),
        cmocka_unit_test(test_expert_major_alignments),
        cmocka_unit_test(test_expert_major_duplicates),
        cmocka_unit_test(test_expert_major_with_idle_experts),
        cmocka_unit_test(test_token_major_use_of_an_expert_major_handle),
        cmocka_unit_test(test_expert_major_combine_of_wrong_shapes),
        cmocka_unit_test(test_expert_major_combine_that_cannot_be_direct),
        cmocka_unit_test(test_expert_major_combine_without_space_in_the_pool),
        cmocka_unit_test(test_biases),
        cmocka_unit_test(test_biases_of_tokens_that_go_nowhere),
        cmocka_unit_test(test_everything),
        cmocka_unit_test(test_everything_on_one_rank),
        cmocka_unit_test(test_everything_without_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
