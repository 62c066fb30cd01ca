/* SPDX-License-Identifier: Apache-2.0 */
/* expar_ep_find_terms and expar_ep_sum_terms: both are local, so that each test uses rank 0 of a group of threads that
 * nobody else touches. What they give is held against a search by hand. */
#include "ep/harness/check.h"
#include "ep/harness/local_groups.h"
#include "ep/harness/ranks.h"
#include "ep/harness/traffic.h"
#include "oracle/oracle.h"
#include "oracle/unit.h"
#include <stdlib.h>
#include <string.h>

#define NODE_SHIFT 32

/* ---- terms ------------------------------------------------------------------------------------------------------- */

/* A routing of rank 0, and its terms. */
typedef struct table {
    int64_t tokens, topk;
    int32_t experts, ranks, nodes;
    bool each_slot, by_node;
    int64_t *idx, *terms;
} table;

static table draw_table(random_source *random, const local_groups *s)
{
    table t = {.tokens = random_between(random, 0, 2100),
               .topk = random_between(random, 1, 12),
               .ranks = s->num_ranks,
               .nodes = s->num_ranks / s->ranks_per_node,
               .each_slot = random_once_in(random, 2),
               .by_node = random_once_in(random, 2)};
    t.experts = t.ranks * (int32_t)random_between(random, 1, 9);
    t.idx = traffic_alloc((size_t)(t.tokens * t.topk) * sizeof *t.idx, 1);
    t.terms = traffic_alloc((size_t)(t.tokens * t.topk) * sizeof *t.terms, 1);
    for (int64_t i = 0; i < t.tokens * t.topk; i++)
        t.idx[i] = random_between(random, random_once_in(random, 4) ? -1 : 0, t.experts - 1);
    return t;
}

static void table_free(table *t)
{
    free(t->idx);
    free(t->terms);
}

static int64_t key_of(const table *t, int64_t expert)
{
    if (expert < 0 || t->each_slot) return expert;
    return expert / (t->experts / t->ranks);
}

static bool slot_has_row(const table *t, int64_t token, int64_t k)
{
    const int64_t *idx = t->idx + token * t->topk, key = key_of(t, idx[k]);
    for (int64_t later = k + 1; !t->each_slot && later < t->topk; later++)
        if (key_of(t, idx[later]) == key) return false;
    return key >= 0;
}

/* The place of each slot's row among all, sorted by key, token and slot. */
static void expect_terms(const table *t, int64_t *terms)
{
    int64_t row = 0;
    memset(terms, 0xff, (size_t)(t->tokens * t->topk) * sizeof *terms);
    for (int64_t key = 0; key < (t->each_slot ? t->experts : t->ranks); key++)
        for (int64_t slot = 0; slot < t->tokens * t->topk; slot++) {
            if (key_of(t, t->idx[slot]) != key || !slot_has_row(t, slot / t->topk, slot % t->topk)) continue;
            const int64_t node = t->idx[slot] / (t->experts / t->nodes) + 1;
            terms[slot] = row++ | (t->by_node && t->nodes > 1 ? node << NODE_SHIFT : 0);
        }
}

static expar_ep_terms_args terms_args(const table *t)
{
    expar_ep_terms_args args = EXPAR_EP_TERMS_ARGS_INIT;
    args.topk_idx = expar_tensor_2d(t->idx, EXPAR_I64, t->tokens, t->topk);
    args.num_experts = t->experts;
    args.sum_order = t->each_slot ? EXPAR_EP_SUM_ORDER_EACH_SLOT : EXPAR_EP_SUM_ORDER_BY_SLOT;
    args.nodes_sum = t->by_node ? EXPAR_EP_NODES_SUM_ROUNDED : EXPAR_EP_NODES_SUM_ONE_ORDER;
    args.out_terms = expar_tensor_2d(t->terms, EXPAR_I64, t->tokens, t->topk);
    return args;
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

#define HIDDEN 24

/* Rows, biases and sums of a table, as raw numbers of their type. */
typedef struct sums {
    oracle_type type;
    expar_dtype dtype;
    int64_t rows;
    void *x, *bias[2], *y;
} sums;

static float number_at(const sums *s, const void *data, int64_t i)
{
    return oracle_widen(s->type, oracle_load(s->type, data, i));
}

static void *draw_rows(const sums *s, random_source *random, int64_t rows)
{
    void *data = traffic_alloc((size_t)(rows * HIDDEN) * oracle_element_bytes(s->type), 1);
    for (int64_t i = 0; i < rows * HIDDEN; i++)
        oracle_store(s->type, data, i, oracle_round(s->type, (float)(random_unit(random) * 8.0 - 4.0)));
    return data;
}

static sums draw_sums(random_source *random, const table *t)
{
    static const oracle_type types[] = {ORACLE_BF16, ORACLE_F16, ORACLE_F32};
    static const expar_dtype dtypes[] = {EXPAR_BF16, EXPAR_F16, EXPAR_F32};
    const int64_t which = random_between(random, 0, 2), biases = random_between(random, 0, 2);
    sums s = {.type = types[which], .dtype = dtypes[which]};
    for (int64_t i = 0; i < t->tokens * t->topk; i++)
        s.rows += t->terms[i] >= 0;
    s.x = draw_rows(&s, random, s.rows);
    for (int64_t i = 0; i < biases; i++)
        s.bias[i] = draw_rows(&s, random, t->tokens);
    s.y = draw_rows(&s, random, t->tokens);
    return s;
}

static void sums_free(sums *s)
{
    free(s->x);
    free(s->bias[0]);
    free(s->bias[1]);
    free(s->y);
}

static int64_t node_at(const table *t, int64_t token, int64_t k)
{
    const int64_t term = t->terms[token * t->topk + k];
    return term < 0 ? 0 : term >> NODE_SHIFT;
}

/* Adds the number at a column of the slot's row. */
static float add_slot(const table *t, const sums *s, int64_t token, int64_t k, int64_t column, float sum)
{
    const int64_t term = t->terms[token * t->topk + k];
    volatile float next = sum;
    if (term >= 0) next = sum + number_at(s, s->x, (term & UINT32_MAX) * HIDDEN + column);
    return next;
}

/* The rounded sum of the slot's node. False: a later slot is on it. */
static bool node_sum(const table *t, const sums *s, int64_t token, int64_t k, int64_t column, float *out)
{
    const int64_t node = node_at(t, token, k);
    float sum = 0.0f;
    for (int64_t other = 0; other < t->topk; other++) {
        if (node_at(t, token, other) != node) continue;
        if (other > k) return false;
        sum = add_slot(t, s, token, other, column, sum);
    }
    *out = oracle_widen(s->type, oracle_round(s->type, sum));
    return true;
}

static uint32_t expect_sum(const table *t, const sums *s, int64_t token, int64_t column)
{
    volatile float sum = 0.0f;
    for (int i = 0; i < 2; i++)
        if (s->bias[i]) sum = sum + number_at(s, s->bias[i], token * HIDDEN + column);
    for (int64_t k = 0; k < t->topk; k++) {
        float part;
        if (node_at(t, token, k) == 0)
            sum = add_slot(t, s, token, k, column, sum);
        else if (node_sum(t, s, token, k, column, &part))
            sum = sum + part;
    }
    return oracle_round(s->type, sum);
}

static expar_ep_sum_args sum_args(const table *t, const sums *s)
{
    expar_ep_sum_args args = EXPAR_EP_SUM_ARGS_INIT;
    args.x = expar_tensor_2d(s->x, s->dtype, s->rows, HIDDEN);
    args.terms = expar_tensor_2d(t->terms, EXPAR_I64, t->tokens, t->topk);
    for (int i = 0; i < 2; i++)
        if (s->bias[i]) args.bias[i] = expar_tensor_2d(s->bias[i], s->dtype, t->tokens, HIDDEN);
    args.out_y = expar_tensor_2d(s->y, s->dtype, t->tokens, HIDDEN);
    return args;
}

static void check_sums(const local_groups *at, const table *t, random_source *random)
{
    sums s = draw_sums(random, t);
    expar_ep_sum_args args = sum_args(t, &s);
    assert_int_equal(expar_ep_sum_terms(at->groups[0], &args), EXPAR_OK);
    for (int64_t i = 0; i < t->tokens * HIDDEN; i++)
        assert_int_equal(oracle_load(s.type, s.y, i), expect_sum(t, &s, i / HIDDEN, i % HIDDEN));
    sums_free(&s);
}

static void test_random_terms(void **state)
{
    (void)state;
    static const int32_t sizes[][2] = {{1, 1}, {2, 2}, {3, 1}, {4, 2}, {6, 3}, {8, 8}, {16, 4}};
    random_source random = random_start(random_test_seed("terms"));
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        local_groups s = local_groups_make(sizes[i][0], sizes[i][1]);
        for (int64_t round = 0; round < random_test_rounds(8); round++) {
            table t = draw_table(&random, &s);
            int64_t *expected = traffic_alloc((size_t)(t.tokens * t.topk) * sizeof *expected, 1);
            expar_ep_terms_args args = terms_args(&t);
            assert_int_equal(expar_ep_find_terms(s.groups[0], &args), EXPAR_OK);
            expect_terms(&t, expected);
            assert_memory_equal(t.terms, expected, (size_t)(t.tokens * t.topk) * sizeof *expected);
            check_sums(&s, &t, &random);
            free(expected);
            table_free(&t);
        }
        local_groups_end(&s);
    }
}

/* Rows of 32 bits with a gap between them, as recv_src_metadata has places; some name no row. */
static void test_plain_rows(void **state)
{
    (void)state;
    local_groups s = local_groups_make(1, 1);
    float x[3][4] = {{1, 2, 3, 4}, {10, 20, 30, 40}, {100, 200, 300, 400}}, y[2][4];
    int32_t rows[2][4] = {{7, 2, -1, 0}, {7, 3, 1, -5}};
    expar_ep_sum_args args = EXPAR_EP_SUM_ARGS_INIT;
    args.x = expar_tensor_2d(x, EXPAR_F32, 3, 4);
    args.terms = expar_tensor_2d(&rows[0][1], EXPAR_I32, 2, 3);
    args.terms.strides[0] = 4;
    args.out_y = expar_tensor_2d(y, EXPAR_F32, 2, 4);
    assert_int_equal(expar_ep_sum_terms(s.groups[0], &args), EXPAR_OK);
    assert_memory_equal(y, ((float[2][4]){{101, 202, 303, 404}, {10, 20, 30, 40}}), sizeof y);
    local_groups_end(&s);
}

/* ---- rejections -------------------------------------------------------------------------------------------------- */

static void assert_rejected(expar_status got, expar_status expected, const char *const *words)
{
    check_begin(0);
    assert_true(check_status(expected, got, words[0], __FILE__, __LINE__));
    assert_true(check_text(__FILE__, __LINE__, words));
}
#define ASSERT_REJECTED(call, expected, ...) assert_rejected(call, expected, (const char *const[]){__VA_ARGS__, NULL})

static void test_index_out_of_range(void **state)
{
    (void)state;
    local_groups s = local_groups_make(2, 2);
    int64_t idx[4] = {0, 1, 4, -1}, terms[4] = {9, 9, 9, 9};
    const table t = {.tokens = 2, .topk = 2, .experts = 4, .ranks = 2, .nodes = 1, .idx = idx, .terms = terms};
    expar_ep_terms_args args = terms_args(&t);
    ASSERT_REJECTED(expar_ep_find_terms(s.groups[0], &args), EXPAR_ERR_INDEX, "expar_ep_find_terms",
                    "topk_idx[1][0] is 4");
    assert_memory_equal(terms, ((int64_t[]){9, 9, 9, 9}), sizeof terms);
    local_groups_end(&s);
}

static void test_wrong_terms(void **state)
{
    (void)state;
    local_groups s = local_groups_make(2, 2);
    int64_t idx[4] = {0, 1, 2, -1}, terms[4];
    const table t = {.tokens = 2, .topk = 2, .experts = 4, .ranks = 2, .nodes = 1, .idx = idx, .terms = terms};
    expar_ep_terms_args args = terms_args(&t);
    ASSERT_REJECTED(expar_ep_find_terms(NULL, &args), EXPAR_ERR_NULL, "expar_ep_find_terms", "group");
    ASSERT_REJECTED(expar_ep_find_terms(s.groups[0], NULL), EXPAR_ERR_NULL, "expar_ep_find_terms", "args");
    args.sum_order = EXPAR_EP_SUM_ORDER_BY_RANK;
    ASSERT_REJECTED(expar_ep_find_terms(s.groups[0], &args), EXPAR_ERR_ARGUMENT, "sum_order is 0");
    args = terms_args(&t);
    args.nodes_sum = EXPAR_EP_NODES_SUM_OWN_FIRST;
    ASSERT_REJECTED(expar_ep_find_terms(s.groups[0], &args), EXPAR_ERR_ARGUMENT, "nodes_sum is 3");
    args = terms_args(&t);
    args.num_experts = 3;
    ASSERT_REJECTED(expar_ep_find_terms(s.groups[0], &args), EXPAR_ERR_ARGUMENT, "num_experts is 3");
    args = terms_args(&t);
    args.out_terms.shape[1] = 1;
    ASSERT_REJECTED(expar_ep_find_terms(s.groups[0], &args), EXPAR_ERR_SHAPE, "out_terms", "[2][1]");
    args = terms_args(&t);
    args.out_terms.dtype = EXPAR_I32;
    ASSERT_REJECTED(expar_ep_find_terms(s.groups[0], &args), EXPAR_ERR_DTYPE, "out_terms", "i64");
    args = terms_args(&t);
    args.topk_idx = EXPAR_TENSOR_NONE;
    ASSERT_REJECTED(expar_ep_find_terms(s.groups[0], &args), EXPAR_ERR_NULL, "topk_idx");
    local_groups_end(&s);
}

static void test_wrong_sums(void **state)
{
    (void)state;
    local_groups s = local_groups_make(1, 1);
    static float x[3][4], y[2][4], bias[2][4];
    static int64_t terms[2][2];
    expar_ep_sum_args good = EXPAR_EP_SUM_ARGS_INIT, args;
    good.x = expar_tensor_2d(x, EXPAR_F32, 3, 4);
    good.terms = expar_tensor_2d(terms, EXPAR_I64, 2, 2);
    good.bias[1] = expar_tensor_2d(bias, EXPAR_F32, 2, 4);
    good.out_y = expar_tensor_2d(y, EXPAR_F32, 2, 4);
    assert_int_equal(expar_ep_sum_terms(s.groups[0], &good), EXPAR_OK);
    ASSERT_REJECTED(expar_ep_sum_terms(NULL, &good), EXPAR_ERR_NULL, "expar_ep_sum_terms", "group");
    ASSERT_REJECTED(expar_ep_sum_terms(s.groups[0], NULL), EXPAR_ERR_NULL, "expar_ep_sum_terms", "args");
    args = good;
    args.x.dtype = EXPAR_I32;
    ASSERT_REJECTED(expar_ep_sum_terms(s.groups[0], &args), EXPAR_ERR_DTYPE, "x.dtype");
    args = good;
    args.x.shape[1] = 3;
    ASSERT_REJECTED(expar_ep_sum_terms(s.groups[0], &args), EXPAR_ERR_SHAPE, "multiple of 16");
    args = good;
    args.terms.dtype = EXPAR_F32;
    ASSERT_REJECTED(expar_ep_sum_terms(s.groups[0], &args), EXPAR_ERR_DTYPE, "terms");
    args = good;
    args.bias[1].shape[0] = 1;
    ASSERT_REJECTED(expar_ep_sum_terms(s.groups[0], &args), EXPAR_ERR_SHAPE, "bias[1]", "[1][4]");
    args = good;
    args.out_y = EXPAR_TENSOR_NONE;
    ASSERT_REJECTED(expar_ep_sum_terms(s.groups[0], &args), EXPAR_ERR_NULL, "out_y");
    local_groups_end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_terms),       cmocka_unit_test(test_plain_rows),
        cmocka_unit_test(test_index_out_of_range), cmocka_unit_test(test_wrong_terms),
        cmocka_unit_test(test_wrong_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
