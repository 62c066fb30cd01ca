/* SPDX-License-Identifier: Apache-2.0 */
/* Memory: a buffer takes what expar_ep_get_buffer_size says, at once, and no call takes more; sizes that do not fit are
 * refused. */
#include "ep/harness/table.h"
#include "ep/normal/normal.h"
#include "exec/cuda/normal/normal_gpu.h"
#include "oracle/unit.h"
#include <string.h>

#define GRAIN_BYTES   128u /* of the heap's allocator */
#define SMALLEST_HEAP ((size_t)1 << 20)

static expar_ep_config small_config(void)
{
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = 16;
    config.max_row_bytes = 256;
    config.max_topk = 4;
    config.max_experts = 12;
    return config;
}

/* ---- what a buffer takes ----------------------------------------------------------------------------------------- */

static mem_arena_stats stats_of(expar_group *group)
{
    mem_arena_stats stats;
    mem_arena_get_stats(group->sym->arena, &stats);
    return stats;
}

/* The largest outputs that the config allows, several alive, in every form: the heap does not feel any of it. */
static void use_all(expar_group *group, expar_ep *ep)
{
    int64_t num_tokens[3] = {16, 16, 16};
    deal_choice choices[3] = {{0}};
    int32_t rank = expar_group_rank(group);
    random_source random = random_start(21);
    for (int i = 0; i < 8; i++) {
        for (int r = 0; r < 3; r++)
            choices[r] = (deal_choice){.expert_major = i & 1,
                                       .alignment = i & 1 ? 64 : 0,
                                       .worst = i & 2 ? WORST_LARGER : WORST_NONE,
                                       .async = i & 4,
                                       .path = r == i % 3 ? EXPAR_EP_PATH_QUEUE : EXPAR_EP_PATH_AUTO};
        deal_plan plan = {.num_ranks = 3,
                          .topk = 4,
                          .num_experts = 12,
                          .wide = true,
                          .with_weights = true,
                          .num_tokens = num_tokens,
                          .choices = choices};
        const move_form there = {.kind = MOVE_DISPATCH, .type = ORACLE_I8, .hidden = 256, .num_scales = 4};
        const move_form again = {.kind = MOVE_REPEAT, .type = ORACLE_F32, .hidden = 64};
        const move_form back = {.kind = MOVE_COMBINE, .type = ORACLE_F32, .hidden = 64, .with_weights = true};
        deal *d = deal_make(&plan, &random);
        deal_move *moves[3] = {move_make(d, &there, choices, &random), move_make(d, &again, choices, &random),
                               move_make(d, &back, choices, &random)};
        deal_call calls[3];
        trial_area none = {0};
        expar_ep_handle *handle = NULL;
        for (int k = 0; k < 3; k++) {
            deal_call_start(&calls[k], ep, moves[k], rank, &none, handle, NULL);
            if (k == 0) handle = calls[k].result.handle;
        }
        for (int k = 0; k < 3; k++) {
            CHECK(deal_call_finish(&calls[k]), "call %d of round %d", k, i);
            move_free(moves[k]);
        }
        expar_ep_handle_release(handle);
        deal_free(d);
    }
}

/* shared: the config. The heap fits its buffer and, where it is large, nothing else. */
static void take_exactly(expar_group *group, void *shared)
{
    const expar_ep_config *config = shared;
    size_t bytes = 0;
    expar_ep *ep = NULL;
    mem_arena_stats before = stats_of(group);
    CHECK_OK(expar_ep_get_buffer_size(config, expar_group_size(group), &bytes));
    for (int round = 0; round < 2; round++) {
        if (!CHECK_OK(expar_ep_create(group, config, &ep))) return;
        mem_arena_stats with = stats_of(group);
        uint64_t taken = with.used_bytes - before.used_bytes;
        CHECK(taken >= bytes && taken < bytes + GRAIN_BYTES, "the buffer took %llu bytes, %zu were said",
              (unsigned long long)taken, bytes);
        use_all(group, ep);
        mem_arena_stats used = stats_of(group);
        CHECK(used.used_bytes == with.used_bytes && used.high_water_bytes == with.high_water_bytes &&
                  used.blocks == with.blocks,
              "calls took memory of the heap");
        CHECK_OK(expar_ep_destroy(ep));
        CHECK(stats_of(group).used_bytes == before.used_bytes, "the buffer did not give its memory back");
    }
}

static void take_from_a_heap_that_fits(int64_t pool_bytes, int32_t ring_slots)
{
    expar_ep_config config = small_config();
    size_t bytes = 0;
    config.pool_bytes = pool_bytes;
    config.ring_slots = ring_slots;
    assert_int_equal(expar_ep_get_buffer_size(&config, 3, &bytes), EXPAR_OK);
    size_t heap_bytes = SYM_CONTROL_BYTES + bytes + 2 * GRAIN_BYTES;
    const ranks_plan plan = {
        .kind = RANKS_THREADS, .size = 3, .heap_bytes = heap_bytes > SMALLEST_HEAP ? heap_bytes : SMALLEST_HEAP};
    assert_true(ranks_run(&plan, take_exactly, &config));
}

static void test_no_call_takes_heap(void **state)
{
    (void)state;
    take_from_a_heap_that_fits(0, 0);
    take_from_a_heap_that_fits(1, 1);
    take_from_a_heap_that_fits(1 << 20, 3);
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

/* The least that a buffer must hold, in numbers that do not overflow. */
static long double least_bytes(const expar_ep_config *c, int32_t ranks)
{
    long double channels = c->num_channels ? c->num_channels : 1, slots = c->ring_slots ? c->ring_slots : 1;
    if (c->max_row_bytes == 0) slots = 0; /* no rings yet */
    const bool limited = c->max_tokens && c->max_row_bytes && c->max_topk;
    long double row = (long double)c->max_row_bytes + 4.0L * c->max_scales + 12.0L * c->max_topk;
    long double rows = (long double)ranks * (long double)c->max_tokens;
    long double pool = c->pool_bytes ? (long double)c->pool_bytes : limited ? 2 * rows * row : 0;
    return ranks * channels * slots * row + (c->device.type == EXPAR_CUDA ? pool : 0);
}

static int64_t draw_size(random_source *random, int64_t most)
{
    int64_t shift = random_between(random, 0, 62);
    int64_t value = (int64_t)(random_bits(random) >> 1) >> shift;
    return random_once_in(random, 6) ? most : value > most && random_once_in(random, 2) ? most : value;
}

/* Over the whole range of every member: a size is right or refused, never wrapped. */
static void test_sizes_never_wrap(void **state)
{
    (void)state;
    random_source random = random_start(random_test_seed("sizes"));
    int64_t taken = 0, rejected = 0;
    for (int i = 0; i < 200000; i++) {
        int32_t ranks = (int32_t)random_between(&random, 1, random_once_in(&random, 3) ? 65536 : 64);
        expar_ep_config c = EXPAR_EP_CONFIG_INIT;
        c.max_tokens = draw_size(&random, INT32_MAX / ranks);
        c.max_row_bytes = draw_size(&random, 1 << 26);
        c.max_topk = (int32_t)draw_size(&random, 4096);
        c.max_experts = (int32_t)(draw_size(&random, (1 << 22) / ranks) * ranks);
        c.num_channels = (int32_t)draw_size(&random, 1024);
        c.ring_slots = (int32_t)draw_size(&random, 65536);
        c.max_scales = (int32_t)draw_size(&random, 1 << 20);
        c.pool_bytes = random_once_in(&random, 2) ? 0 : draw_size(&random, INT64_MAX / 4);
        c.device.type = random_once_in(&random, 2) ? EXPAR_CUDA : EXPAR_CPU;
        size_t bytes = 77;
        expar_status status = expar_ep_get_buffer_size(&c, ranks, &bytes);
        if (status == EXPAR_OK) {
            taken++;
            assert_true((long double)bytes >= least_bytes(&c, ranks));
        } else {
            rejected++;
            assert_int_equal(status, EXPAR_ERR_ARGUMENT);
            assert_int_equal(bytes, 77);
        }
    }
    assert_true(taken > 1000 && rejected > 1000);
}

/* Each member at its greatest; all of them together are too much, and the text says so. */
static void test_greatest_sizes(void **state)
{
    (void)state;
    expar_ep_config c = small_config();
    size_t bytes = 0, more = 0;
    assert_int_equal(expar_ep_get_buffer_size(&c, 3, &bytes), EXPAR_OK);
    c.ring_slots = 65536;
    c.num_channels = 1024;
    assert_int_equal(expar_ep_get_buffer_size(&c, 3, &more), EXPAR_OK);
    assert_true(more > bytes);
    c.max_row_bytes = 1 << 26;
    c.max_scales = 1 << 20;
    c.max_topk = 4096;
    c.max_experts = 12;
    check_begin(0);
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, (c.max_experts = 65536, expar_ep_get_buffer_size(&c, 65536, &bytes)));
    CHECK_TEXT("expar_ep_get_buffer_size", "2^62", "ring_slots");
    assert_int_equal(check_failures(), 0);
}

/* ---- the pool that is chosen on a GPU ---------------------------------------------------------------------------- */

static int64_t draw_log(random_source *random, int32_t bits)
{
    int64_t high = (int64_t)1 << random_between(random, 0, bits);
    return random_between(random, high / 2 + 1, high);
}

static expar_ep_config draw_gpu_config(random_source *random, int32_t ranks)
{
    expar_ep_config c = EXPAR_EP_CONFIG_INIT;
    c.device = (expar_device){.type = EXPAR_CUDA};
    c.max_tokens = draw_log(random, 24);
    c.max_row_bytes = 16 * draw_log(random, 10);
    c.max_topk = (int32_t)draw_log(random, 4);
    c.max_experts = ranks * (int32_t)draw_log(random, 8);
    c.max_scales = (int32_t)draw_log(random, 7);
    return c;
}

/* The most that two dispatches and a combine take. */
#define GPU_BLOCKS 6

static void fill_sizes(const ep_shape *shape, uint64_t sizes[GPU_BLOCKS])
{
    const int64_t rows = shape->ranks * shape->tokens;
    const ep_form form = {.scales = shape->scales, .topk = shape->topk, .weights = 1};
    const ep_block_shape output = ep_block_shape_of(&form, shape->row_bytes, 8, rows);
    sizes[0] = sizes[1] = gpu_routing_bytes(shape, shape->tokens);
    sizes[2] = sizes[3] = ep_block_map_of(&output).total_bytes;
    sizes[4] = (uint64_t)(rows * shape->row_bytes);
    sizes[5] = (uint64_t)(rows * shape->topk) * sizeof(float);
}

/* In any order, wherever the pool begins. No byte of it is touched. */
static void test_what_the_chosen_pool_holds(void **state)
{
    (void)state;
    random_source random = random_start(random_test_seed("chosen pool"));
    for (int i = 0; i < 20000; i++) {
        int32_t ranks = (int32_t)draw_log(&random, 4), first = (int32_t)random_between(&random, 0, GPU_BLOCKS - 1);
        int32_t step = random_once_in(&random, 2) ? 1 : GPU_BLOCKS - 1;
        const expar_ep_config config = draw_gpu_config(&random, ranks);
        uint64_t sizes[GPU_BLOCKS], all = 0, offset = 4096 * (uint64_t)random_between(&random, 1, 1024);
        mem_block *blocks[GPU_BLOCKS];
        mem_pool *pool;
        ep_shape shape;
        assert_int_equal(ep_shape_make(&config, ranks, true, &shape), EXPAR_OK);
        fill_sizes(&shape, sizes);
        assert_int_equal(mem_pool_create((void *)(uintptr_t)4096, offset, shape.pool_bytes, &pool), EXPAR_OK);
        for (int b = 0; b < GPU_BLOCKS; b++) {
            all += sizes[b];
            assert_int_equal(mem_pool_take(pool, sizes[(first + b * step) % GPU_BLOCKS], &blocks[b]), EXPAR_OK);
        }
        assert_true(shape.pool_bytes - all <= (GPU_BLOCKS + 1) * MEM_POOL_LARGE_BYTES);
        for (int b = 0; b < GPU_BLOCKS; b++)
            mem_block_release(blocks[b]);
        mem_pool_close(pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_call_takes_heap),
        cmocka_unit_test(test_sizes_never_wrap),
        cmocka_unit_test(test_what_the_chosen_pool_holds),
        cmocka_unit_test(test_greatest_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
