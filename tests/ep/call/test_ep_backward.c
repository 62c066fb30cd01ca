/* SPDX-License-Identifier: Apache-2.0 */
/* Backward: combine is the adjoint of dispatch, and dispatch with the handle that of combine.
 *
 * <dispatch(x), g> = <x, combine(g)> and <combine(x), g> = <x, dispatch(g)>, summed over all ranks, on small whole
 * numbers, which every type and sum here holds exactly. */
#include "ep/harness/table.h"
#include "oracle/unit.h"
#include <stdlib.h>

#define HIDDEN 16

/* Each rank's share of the two sides. */
typedef struct products {
    double left[TABLE_MAX_RANKS], right[TABLE_MAX_RANKS];
} products;

/* -4 … 4, as any type's bits. */
static expar_tensor draw_whole(random_source *random, oracle_type type, int64_t rows, int64_t columns)
{
    expar_tensor t = expar_tensor_2d(traffic_alloc((size_t)(rows * columns), oracle_element_bytes(type)),
                                     deal_dtype(type), rows, columns);
    for (int64_t i = 0; i < rows * columns; i++)
        oracle_store(type, t.data, i, oracle_round(type, (float)random_between(random, -4, 4)));
    return t;
}

static double dot(oracle_type type, const expar_tensor *a, const expar_tensor *b)
{
    double sum = 0;
    for (int64_t i = 0; i < a->shape[0] * a->shape[1]; i++)
        sum += (double)oracle_widen(type, oracle_load(type, a->data, i)) *
               (double)oracle_widen(type, oracle_load(type, b->data, i));
    return sum;
}

static expar_tensor zeros(oracle_type type, int64_t rows, int64_t columns)
{
    return expar_tensor_2d(traffic_alloc((size_t)(rows * columns), oracle_element_bytes(type)), deal_dtype(type), rows,
                           columns);
}

/* The sides summed over all ranks agree; ranks are threads and share p. */
static void compare(const table *t, const products *p, const char *what)
{
    double left = 0, right = 0;
    CHECK_OK(expar_group_barrier(t->group));
    for (int32_t r = 0; r < t->what->plan.num_ranks; r++) {
        left += p->left[r];
        right += p->right[r];
    }
    CHECK(left == right, "%s: %g and %g", what, left, right);
    CHECK_OK(expar_group_barrier(t->group));
}

/* Slots whose expert lives elsewhere have no gradient. */
static void mask(const expar_tensor *weights, const expar_tensor *idx)
{
    for (int64_t i = 0; i < weights->shape[0] * weights->shape[1]; i++)
        if (((const int32_t *)idx->data)[i] < 0) ((float *)weights->data)[i] = 0;
}

/* Rows that nobody sent take no part. */
static void blank_unused(const expar_ep_dispatch_result *result, oracle_type type, const expar_tensor *rows)
{
    int64_t columns = rows->shape[1];
    if (!result->recv_row_map.data) {
        for (int64_t i = result->num_recv_tokens * columns; i < rows->shape[0] * columns; i++) {
            oracle_store(type, rows->data, i, 0);
            oracle_store(type, result->recv_x.data, i, 0);
        }
        return;
    }
    for (int64_t row = 0; row < rows->shape[0]; row++) {
        bool used = false;
        for (int64_t i = 0; i < result->recv_row_map.shape[0] * result->recv_row_map.shape[1]; i++)
            used |= ((const int32_t *)result->recv_row_map.data)[i] == row;
        for (int64_t i = row * columns; !used && i < (row + 1) * columns; i++) {
            oracle_store(type, rows->data, i, 0);
            oracle_store(type, result->recv_x.data, i, 0);
        }
    }
}

/* One routing, there and back and there again. */
typedef struct journey {
    table *table;
    const deal *deal;
    oracle_type type;
    random_source random; /* this rank's own */
    expar_status arrives; /* how its dispatches end */
    int32_t *idx;
    expar_ep_dispatch_args there;
    expar_ep_dispatch_result arrived, again;
    expar_ep_combine_args back;
} journey;

static journey journey_make(table *t, const deal *d, oracle_type type)
{
    const oracle_input *input = &d->inputs[t->rank];
    int64_t tokens = input->num_tokens, topk = d->job.topk;
    const deal_choice *choice = &t->what->choice;
    journey j = {.table = t, .deal = d, .type = type};
    j.random = random_start(1000 + (uint64_t)(t->rank * 8 + (int)type));
    j.arrives =
        oracle_num_kept(&d->job, t->rank) < oracle_num_received(&d->job, t->rank) ? EXPAR_ERR_DROPPED : EXPAR_OK;
    j.idx = traffic_alloc((size_t)(tokens * topk), sizeof *j.idx);
    for (int64_t i = 0; i < tokens * topk; i++)
        j.idx[i] = (int32_t)input->topk_idx[i];
    j.there = (expar_ep_dispatch_args)EXPAR_EP_DISPATCH_ARGS_INIT;
    j.there.x = draw_whole(&j.random, type, tokens, HIDDEN);
    j.there.topk_idx = expar_tensor_2d(j.idx, EXPAR_I32, tokens, topk);
    j.there.topk_weights = draw_whole(&j.random, ORACLE_F32, tokens, topk);
    j.there.num_experts = d->job.num_experts;
    j.there.expert_major = choice->expert_major;
    j.there.expert_alignment = choice->alignment;
    j.there.num_worst_tokens = input->num_worst_tokens;
    j.arrived = j.again = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    return j;
}

/* <dispatch(x), g> = <x, combine(g)>, for rows and for weights. */
static void journey_there_and_back(journey *j)
{
    table *t = j->table;
    products *p = t->shared;
    int64_t tokens = j->there.x.shape[0], topk = j->deal->job.topk;
    CHECK_STATUS(j->arrives, expar_ep_dispatch(t->ep, &j->there, &j->arrived));
    expar_ep_combine_args *back = &j->back;
    *back = (expar_ep_combine_args)EXPAR_EP_COMBINE_ARGS_INIT;
    back->x = draw_whole(&j->random, j->type, j->arrived.recv_x.shape[0], HIDDEN);
    back->topk_weights = draw_whole(&j->random, ORACLE_F32, j->arrived.recv_topk_idx.shape[0], topk);
    back->handle = j->arrived.handle;
    back->expert_major = j->there.expert_major;
    back->out_y = zeros(j->type, tokens, HIDDEN);
    back->out_topk_weights = zeros(ORACLE_F32, tokens, topk);
    blank_unused(&j->arrived, j->type, &back->x);
    mask(&back->topk_weights, &j->arrived.recv_topk_idx);
    mask(&j->arrived.recv_topk_weights, &j->arrived.recv_topk_idx);
    CHECK_OK(expar_ep_combine(t->ep, back, NULL));
    p->left[t->rank] = dot(j->type, &j->arrived.recv_x, &back->x);
    p->right[t->rank] = dot(j->type, &j->there.x, &back->out_y);
    compare(t, p, "dispatch, then combine");
    p->left[t->rank] = dot(ORACLE_F32, &j->arrived.recv_topk_weights, &back->topk_weights);
    p->right[t->rank] = dot(ORACLE_F32, &j->there.topk_weights, &back->out_topk_weights);
    compare(t, p, "their weights");
}

/* <combine(x), g> = <x, dispatch(g)> */
static void journey_back_and_there(journey *j)
{
    table *t = j->table;
    products *p = t->shared;
    expar_ep_dispatch_args forth = EXPAR_EP_DISPATCH_ARGS_INIT;
    forth.x = draw_whole(&j->random, j->type, j->there.x.shape[0], HIDDEN);
    forth.handle = j->arrived.handle;
    forth.expert_major = j->there.expert_major;
    CHECK_STATUS(j->arrives, expar_ep_dispatch(t->ep, &forth, &j->again));
    blank_unused(&j->again, j->type, &j->back.x);
    p->left[t->rank] = dot(j->type, &j->back.out_y, &forth.x);
    p->right[t->rank] = dot(j->type, &j->back.x, &j->again.recv_x);
    compare(t, p, "combine, then dispatch with the handle");
    CHECK(dot(j->type, &j->back.out_y, &j->back.out_y) > 0, "the test says nothing: y is zero");
    free(forth.x.data);
}

static void journey_end(journey *j)
{
    expar_ep_output_release(j->arrived.output);
    expar_ep_output_release(j->again.output);
    expar_ep_handle_release(j->arrived.handle);
    free(j->idx);
    free(j->there.x.data);
    free(j->there.topk_weights.data);
    free(j->back.x.data);
    free(j->back.topk_weights.data);
    free(j->back.out_y.data);
    free(j->back.out_topk_weights.data);
}

static void trial_backward(table *t)
{
    random_source random = random_start(3);
    for (int round = 0; round < 4; round++) {
        deal *d = table_deal(t, &t->what->choice, &random);
        for (oracle_type type = ORACLE_BF16; type <= ORACLE_F32; type++) {
            journey j = journey_make(t, d, type);
            journey_there_and_back(&j);
            journey_back_and_there(&j);
            journey_end(&j);
        }
        deal_free(d);
    }
}

static void run(deal_choice choice)
{
    table_case c = table_case_make();
    products p = {{0}, {0}};
    c.plan.num_experts = 12;
    c.plan.disturb = 4;
    c.choice = choice;
    assert_true(table_run(&c, RANKS_THREADS, trial_backward, &p));
}

static void test_token_major(void **state)
{
    (void)state;
    run((deal_choice){0});
}

static void test_expert_major(void **state)
{
    (void)state;
    run((deal_choice){.expert_major = true, .alignment = 4});
}

static void test_worst_case(void **state)
{
    (void)state;
    run((deal_choice){.worst = WORST_LARGER});
    run((deal_choice){.worst = WORST_LARGER, .expert_major = true});
}

/* Dropped rows have no gradient, and all others their own. */
static void test_dropped_rows(void **state)
{
    (void)state;
    run((deal_choice){.worst = WORST_ONE_SHORT});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_token_major),
        cmocka_unit_test(test_expert_major),
        cmocka_unit_test(test_worst_case),
        cmocka_unit_test(test_dropped_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
