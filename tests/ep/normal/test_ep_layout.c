/* SPDX-License-Identifier: Apache-2.0 */
/* expar_ep_get_layout alone: local, so that each test uses rank 0 of a group of threads that nobody else touches. */
#include "ep/harness/check.h"
#include "ep/harness/local_groups.h"
#include "ep/harness/pitched.h"
#include "ep/harness/ranks.h"
#include "ep/harness/traffic.h"
#include "oracle/unit.h"
#include <stdlib.h>
#include <string.h>

/* A layout with memory of its own, all bytes 0x77. */
typedef struct counts {
    int32_t *ranks, *nodes, *experts;
    uint8_t *routes;
    size_t num_ranks, num_nodes, num_experts, num_routes;
} counts;

static void *marked(size_t bytes)
{
    return memset(traffic_alloc(bytes, 1), 0x77, bytes);
}

static counts counts_make(int32_t num_ranks, int32_t num_nodes, int32_t num_experts, int64_t num_tokens)
{
    counts c = {.num_ranks = (size_t)num_ranks,
                .num_nodes = (size_t)num_nodes,
                .num_experts = (size_t)num_experts,
                .num_routes = (size_t)num_tokens * (size_t)num_ranks};
    c.ranks = marked(c.num_ranks * sizeof *c.ranks);
    c.nodes = marked(c.num_nodes * sizeof *c.nodes);
    c.experts = marked(c.num_experts * sizeof *c.experts);
    c.routes = marked(c.num_routes);
    return c;
}

static void counts_free(counts *c)
{
    free(c->ranks);
    free(c->nodes);
    free(c->experts);
    free(c->routes);
}

static expar_ep_layout layout_of(const counts *c)
{
    expar_ep_layout layout = EXPAR_EP_LAYOUT_INIT;
    layout.tokens_per_rank = c->ranks;
    layout.tokens_per_node = c->nodes;
    layout.tokens_per_expert = c->experts;
    layout.token_in_rank = c->routes;
    return layout;
}

static void assert_equal_counts(const counts *got, const counts *expected)
{
    assert_memory_equal(got->ranks, expected->ranks, got->num_ranks * sizeof *got->ranks);
    assert_memory_equal(got->nodes, expected->nodes, got->num_nodes * sizeof *got->nodes);
    assert_memory_equal(got->experts, expected->experts, got->num_experts * sizeof *got->experts);
    assert_memory_equal(got->routes, expected->routes, got->num_routes);
}

/* Rank 0's topk_idx as a tensor with the given gap. */
static expar_tensor idx_tensor(const traffic *t, int64_t gap, bool null_if_empty)
{
    const oracle_input *input = &t->inputs[0];
    expar_tensor idx =
        pitched_make(t->wide ? EXPAR_I64 : EXPAR_I32, input->num_tokens, t->job.topk, gap, null_if_empty);
    for (int64_t i = 0; i < input->num_tokens * t->job.topk; i++) {
        int64_t at = i / t->job.topk * idx.strides[0] + i % t->job.topk;
        if (t->wide)
            ((int64_t *)idx.data)[at] = input->topk_idx[i];
        else
            ((int32_t *)idx.data)[at] = (int32_t)input->topk_idx[i];
    }
    return idx;
}

static void check_layout(const local_groups *s, const traffic *t, int64_t gap)
{
    int64_t num_tokens = t->inputs[0].num_tokens;
    int32_t nodes = s->num_ranks / s->ranks_per_node;
    counts got = counts_make(s->num_ranks, nodes, t->job.num_experts, num_tokens);
    counts expected = counts_make(s->num_ranks, nodes, t->job.num_experts, num_tokens);
    expar_tensor idx = idx_tensor(t, gap, num_tokens % 2);
    expar_ep_layout layout = layout_of(&got);
    oracle_tokens_per_rank(&t->job, 0, expected.ranks);
    oracle_tokens_per_node(&t->job, 0, expected.nodes);
    oracle_tokens_per_expert(&t->job, 0, expected.experts);
    oracle_routes(&t->job, 0, expected.routes);
    assert_int_equal(expar_ep_get_layout(s->groups[0], &idx, t->job.num_experts, &layout), EXPAR_OK);
    assert_equal_counts(&got, &expected);
    pitched_free(&idx);
    counts_free(&got);
    counts_free(&expected);
}

static traffic *draw(random_source *random, const local_groups *s)
{
    int64_t num_tokens[16] = {random_between(random, 0, 300)};
    traffic_plan plan = {.num_ranks = s->num_ranks,
                         .ranks_per_node = s->ranks_per_node,
                         .hidden = 8,
                         .topk = (int32_t)random_between(random, 1, 16),
                         .num_experts = s->num_ranks * (int32_t)random_between(random, 1, 20),
                         .wide = random_once_in(random, 2),
                         .routing = (routing_kind)random_between(random, 0, ROUTING_KINDS - 1),
                         .disturb = random_once_in(random, 2) ? 5 : 0,
                         .num_tokens = num_tokens};
    return traffic_make(&plan, random);
}

static void test_random_layouts(void **state)
{
    (void)state;
    static const int32_t sizes[][2] = {{1, 1}, {2, 2}, {3, 1}, {4, 2}, {6, 3}, {8, 8}, {16, 4}};
    random_source random = random_start(random_test_seed("layouts"));
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        local_groups s = local_groups_make(sizes[i][0], sizes[i][1]);
        for (int round = 0; round < 20; round++) {
            traffic *t = draw(&random, &s);
            check_layout(&s, t, random_between(&random, 0, 3));
            traffic_free(t);
        }
        local_groups_end(&s);
    }
}

static const int64_t example[] = {0, 1, 1, 2, 2, 3, 0, 3};

/* The example of the specification, its numbers written out. */
static void test_example(void **state)
{
    (void)state;
    local_groups s = local_groups_make(2, 2);
    counts c = counts_make(2, 1, 4, 4);
    expar_tensor idx = expar_tensor_2d((void *)(uintptr_t)example, EXPAR_I64, 4, 2);
    expar_ep_layout layout = layout_of(&c);
    assert_int_equal(expar_ep_get_layout(s.groups[0], &idx, 4, &layout), EXPAR_OK);
    assert_memory_equal(c.ranks, ((int32_t[]){3, 3}), 8);
    assert_memory_equal(c.nodes, ((int32_t[]){4}), 4);
    assert_memory_equal(c.experts, ((int32_t[]){2, 2, 2, 2}), 16);
    assert_memory_equal(c.routes, ((uint8_t[]){1, 0, 1, 1, 0, 1, 1, 1}), 8);
    counts_free(&c);
    local_groups_end(&s);
}

static void test_arrays_not_wanted(void **state)
{
    (void)state;
    local_groups s = local_groups_make(2, 2);
    expar_tensor idx = expar_tensor_2d((void *)(uintptr_t)example, EXPAR_I64, 4, 2);
    int32_t ranks[2] = {0};
    expar_ep_layout layout = EXPAR_EP_LAYOUT_INIT;
    assert_int_equal(expar_ep_get_layout(s.groups[0], &idx, 4, &layout), EXPAR_OK);
    layout.tokens_per_rank = ranks;
    assert_int_equal(expar_ep_get_layout(s.groups[0], &idx, 4, &layout), EXPAR_OK);
    assert_memory_equal(ranks, ((int32_t[]){3, 3}), 8);
    local_groups_end(&s);
}

/* ---- rejections -------------------------------------------------------------------------------------------------- */

static void assert_rejected(expar_status got, expar_status expected, const char *const *words)
{
    check_begin(0);
    assert_true(check_status(expected, got, "expar_ep_get_layout", __FILE__, __LINE__));
    assert_true(check_text(__FILE__, __LINE__, words));
}
#define ASSERT_REJECTED(call, expected, ...) assert_rejected(call, expected, (const char *const[]){__VA_ARGS__, NULL})

/* Token 2's slot 1 has the value; nothing is written. */
static void check_bad_index(int64_t value, const char *text)
{
    local_groups s = local_groups_make(2, 2);
    counts c = counts_make(2, 1, 4, 4), untouched = counts_make(2, 1, 4, 4);
    int64_t values[8];
    expar_ep_layout layout = layout_of(&c);
    memcpy(values, example, sizeof values);
    values[5] = value;
    expar_tensor idx = expar_tensor_2d(values, EXPAR_I64, 4, 2);
    ASSERT_REJECTED(expar_ep_get_layout(s.groups[0], &idx, 4, &layout), EXPAR_ERR_INDEX, "expar_ep_get_layout",
                    "topk_idx[2][1]", text);
    assert_equal_counts(&c, &untouched);
    counts_free(&c);
    counts_free(&untouched);
    local_groups_end(&s);
}

static void test_index_too_large(void **state)
{
    (void)state;
    check_bad_index(4, "4");
}

static void test_index_below_minus_one(void **state)
{
    (void)state;
    check_bad_index(-2, "-2");
}

/* Its low 32 bits alone would be a valid expert. */
static void test_index_of_64_bits(void **state)
{
    (void)state;
    check_bad_index(((int64_t)1 << 32) + 1, "4294967297");
}

static void test_null_arguments(void **state)
{
    (void)state;
    local_groups s = local_groups_make(1, 1);
    expar_tensor idx = expar_tensor_2d((void *)(uintptr_t)example, EXPAR_I64, 4, 2);
    expar_tensor no_data = expar_tensor_2d(NULL, EXPAR_I64, 4, 2);
    expar_ep_layout layout = EXPAR_EP_LAYOUT_INIT;
    ASSERT_REJECTED(expar_ep_get_layout(NULL, &idx, 4, &layout), EXPAR_ERR_NULL, "group");
    ASSERT_REJECTED(expar_ep_get_layout(s.groups[0], NULL, 4, &layout), EXPAR_ERR_NULL, "topk_idx");
    ASSERT_REJECTED(expar_ep_get_layout(s.groups[0], &no_data, 4, &layout), EXPAR_ERR_NULL, "topk_idx");
    ASSERT_REJECTED(expar_ep_get_layout(s.groups[0], &idx, 4, NULL), EXPAR_ERR_NULL, "layout");
    local_groups_end(&s);
}

static void test_wrong_tensors(void **state)
{
    (void)state;
    local_groups s = local_groups_make(2, 2);
    int64_t roomy[16] = {0}; /* so that what is wrong with a tensor leaves it inside */
    const expar_tensor good = expar_tensor_2d(roomy, EXPAR_I64, 4, 2);
    expar_ep_layout layout = EXPAR_EP_LAYOUT_INIT;
    expar_tensor bad = good;
    bad.dtype = EXPAR_F32;
    ASSERT_REJECTED(expar_ep_get_layout(s.groups[0], &bad, 4, &layout), EXPAR_ERR_DTYPE, "topk_idx", "f32", "i32",
                    "i64");
    bad = expar_tensor_1d(roomy, EXPAR_I64, 8);
    ASSERT_REJECTED(expar_ep_get_layout(s.groups[0], &bad, 4, &layout), EXPAR_ERR_SHAPE, "topk_idx", "1", "2");
    bad = good;
    bad.strides[1] = 2;
    ASSERT_REJECTED(expar_ep_get_layout(s.groups[0], &bad, 4, &layout), EXPAR_ERR_STRIDE, "topk_idx", "2", "1");
    bad = good;
    bad.data = (char *)bad.data + 1;
    ASSERT_REJECTED(expar_ep_get_layout(s.groups[0], &bad, 4, &layout), EXPAR_ERR_ALIGNMENT, "topk_idx", "8");
    local_groups_end(&s);
}

/* Host memory that says it is a GPU's. */
static void test_indices_elsewhere(void **state)
{
    (void)state;
    local_groups s = local_groups_make(2, 2);
    expar_tensor idx = expar_tensor_2d((void *)(uintptr_t)example, EXPAR_I64, 4, 2);
    expar_ep_layout layout = EXPAR_EP_LAYOUT_INIT;
    idx.device.type = EXPAR_CUDA;
    ASSERT_REJECTED(expar_ep_get_layout(s.groups[0], &idx, 4, &layout), EXPAR_ERR_DEVICE, "topk_idx.data",
                    "is host memory; expected memory of GPU 0");
    local_groups_end(&s);
}

static void test_wrong_number_of_experts(void **state)
{
    (void)state;
    local_groups s = local_groups_make(2, 2);
    expar_tensor idx = expar_tensor_2d((void *)(uintptr_t)example, EXPAR_I64, 4, 2);
    expar_ep_layout layout = EXPAR_EP_LAYOUT_INIT;
    ASSERT_REJECTED(expar_ep_get_layout(s.groups[0], &idx, 5, &layout), EXPAR_ERR_ARGUMENT, "num_experts", "5", "2");
    ASSERT_REJECTED(expar_ep_get_layout(s.groups[0], &idx, 0, &layout), EXPAR_ERR_ARGUMENT, "num_experts", "0");
    ASSERT_REJECTED(expar_ep_get_layout(s.groups[0], &idx, -2, &layout), EXPAR_ERR_ARGUMENT, "num_experts", "-2");
    local_groups_end(&s);
}

/* As many as a buffer takes; beyond that nobody waits for memory that is not there. */
static void test_too_many_experts(void **state)
{
    (void)state;
    const int32_t most = 1 << 22, wrong[] = {(1 << 22) + 1, INT32_MAX};
    local_groups s = local_groups_make(1, 1);
    expar_tensor idx = expar_tensor_2d((void *)(uintptr_t)example, EXPAR_I64, 4, 2);
    counts c = counts_make(1, 1, most, 4), untouched = counts_make(1, 1, 1, 4);
    expar_ep_layout layout = layout_of(&c);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        ASSERT_REJECTED(expar_ep_get_layout(s.groups[0], &idx, wrong[i], &layout), EXPAR_ERR_ARGUMENT,
                        "num_experts is ", i ? "2147483647" : "4194305", "expected at most 4194304");
    assert_memory_equal(c.ranks, untouched.ranks, sizeof *c.ranks);
    assert_int_equal(expar_ep_get_layout(s.groups[0], &idx, most, &layout), EXPAR_OK);
    assert_int_equal(c.ranks[0], 4);
    assert_memory_equal(c.experts, ((int32_t[]){2, 2, 2, 2, 0}), 20);
    assert_int_equal(c.experts[most - 1], 0);
    counts_free(&c);
    counts_free(&untouched);
    local_groups_end(&s);
}

static void test_struct_without_size(void **state)
{
    (void)state;
    local_groups s = local_groups_make(1, 1);
    expar_tensor idx = expar_tensor_2d((void *)(uintptr_t)example, EXPAR_I64, 4, 2);
    expar_ep_layout layout = {0};
    ASSERT_REJECTED(expar_ep_get_layout(s.groups[0], &idx, 4, &layout), EXPAR_ERR_ARGUMENT, "struct_size", "0");
    local_groups_end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_layouts),          cmocka_unit_test(test_example),
        cmocka_unit_test(test_arrays_not_wanted),       cmocka_unit_test(test_index_too_large),
        cmocka_unit_test(test_index_below_minus_one),   cmocka_unit_test(test_index_of_64_bits),
        cmocka_unit_test(test_null_arguments),          cmocka_unit_test(test_wrong_tensors),
        cmocka_unit_test(test_wrong_number_of_experts), cmocka_unit_test(test_struct_without_size),
        cmocka_unit_test(test_indices_elsewhere),       cmocka_unit_test(test_too_many_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
