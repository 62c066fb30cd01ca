/* SPDX-License-Identifier: Apache-2.0 */
/* The arena against a model that keeps one owner for every grain of the range. */
#include "mem/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GRAIN 128u

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* The seed comes from EXPAR_TEST_SEED, so that a failure can be replayed. */
static uint64_t seed_from_environment(void)
{
    const char *text = getenv("EXPAR_TEST_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 0) : (uint64_t)clock_ns() | 1;
    print_message("seed %llu\n", (unsigned long long)seed);
    return seed;
}

#define GRAINS     512
#define MAX_BLOCKS GRAINS

typedef struct model {
    uint8_t used[GRAINS];
    uint64_t offsets[MAX_BLOCKS], grains[MAX_BLOCKS];
    size_t blocks;
    uint64_t used_grains, high_water_grains;
} model;

/* Best fit must choose this: the smallest run of free grains that holds the aligned piece, the lowest of equals. */
static bool model_best(const model *m, uint64_t grains, uint64_t alignment_grains, uint64_t *offset)
{
    uint64_t best_run = UINT64_MAX;
    for (uint64_t start = 0; start < GRAINS;) {
        uint64_t end = start;
        while (end < GRAINS && m->used[end] == m->used[start])
            end++;
        uint64_t aligned = (start + alignment_grains - 1) / alignment_grains * alignment_grains;
        if (!m->used[start] && aligned + grains <= end && end - start < best_run) {
            best_run = end - start;
            *offset = aligned;
        }
        start = end;
    }
    return best_run != UINT64_MAX;
}

static uint64_t model_largest_run(const model *m)
{
    uint64_t largest = 0, run = 0;
    for (size_t g = 0; g < GRAINS; g++) {
        run = m->used[g] ? 0 : run + 1;
        largest = run > largest ? run : largest;
    }
    return largest;
}

static void model_take(model *m, uint64_t offset, uint64_t grains)
{
    memset(&m->used[offset], 1, grains);
    m->offsets[m->blocks] = offset;
    m->grains[m->blocks++] = grains;
    m->used_grains += grains;
    if (m->used_grains > m->high_water_grains) m->high_water_grains = m->used_grains;
}

static uint64_t model_space_after(const model *m, uint64_t offset)
{
    uint64_t end = offset;
    while (end < GRAINS && !m->used[end])
        end++;
    return end - offset;
}

static void random_take(model *m, mem_arena *arena, uint64_t *random)
{
    uint64_t bytes = next_random(random) % (next_random(random) % 8 == 0 ? 200 * GRAIN : 6 * GRAIN), whole = UINT64_MAX;
    uint64_t alignment = 1ull << next_random(random) % 14;
    uint64_t grains = bytes == 0 ? 1 : (bytes + GRAIN - 1) / GRAIN;
    uint64_t expected = 0, offset = UINT64_MAX;
    bool fits = model_best(m, grains, alignment < GRAIN ? 1 : alignment / GRAIN, &expected);
    bool all = next_random(random) % 8 == 0;
    if (all)
        assert_int_equal(mem_arena_take_whole(arena, bytes, alignment, &offset, &whole), fits);
    else
        assert_int_equal(mem_arena_take(arena, bytes, alignment, &offset), fits);
    if (!fits) {
        assert_int_equal(offset, UINT64_MAX);
        assert_int_equal(whole, UINT64_MAX);
        return;
    }
    assert_int_equal(offset, expected * GRAIN);
    if (all) grains = model_space_after(m, expected);
    if (all) assert_int_equal(whole, grains * GRAIN);
    model_take(m, expected, grains);
}

static void random_trim(model *m, mem_arena *arena, uint64_t *random)
{
    if (m->blocks == 0) return;
    size_t i = next_random(random) % m->blocks;
    uint64_t bytes = next_random(random) % (m->grains[i] * GRAIN + 2 * GRAIN);
    uint64_t left = bytes == 0 ? 1 : (bytes + GRAIN - 1) / GRAIN;
    assert_int_equal(mem_arena_trim(arena, m->offsets[i] * GRAIN, bytes), left <= m->grains[i]);
    if (left > m->grains[i]) return;
    memset(&m->used[m->offsets[i] + left], 0, m->grains[i] - left);
    m->used_grains -= m->grains[i] - left;
    m->grains[i] = left;
}

static void random_give(model *m, mem_arena *arena, uint64_t *random)
{
    if (m->blocks == 0) return;
    size_t i = next_random(random) % m->blocks;
    uint64_t bytes = 0;
    assert_true(mem_arena_give(arena, m->offsets[i] * GRAIN, &bytes));
    assert_int_equal(bytes, m->grains[i] * GRAIN);
    assert_false(mem_arena_give(arena, m->offsets[i] * GRAIN, NULL));
    memset(&m->used[m->offsets[i]], 0, m->grains[i]);
    m->used_grains -= m->grains[i];
    m->blocks--;
    m->offsets[i] = m->offsets[m->blocks];
    m->grains[i] = m->grains[m->blocks];
}

static void check_stats(const model *m, const mem_arena *arena)
{
    mem_arena_stats stats;
    mem_arena_get_stats(arena, &stats);
    assert_int_equal(stats.total_bytes, GRAINS * GRAIN);
    assert_int_equal(stats.used_bytes, m->used_grains * GRAIN);
    assert_int_equal(stats.high_water_bytes, m->high_water_grains * GRAIN);
    assert_int_equal(stats.blocks, m->blocks);
    assert_int_equal(stats.largest_free_bytes, model_largest_run(m) * GRAIN);
}

static void test_against_model(void **state)
{
    (void)state;
    uint64_t random = seed_from_environment();
    mem_arena *arena;
    model m = {0};
    assert_int_equal(mem_arena_create(GRAINS * GRAIN + GRAIN - 1, &arena), EXPAR_OK);
    for (int step = 0; step < 20000; step++) {
        /* Phases that fill and phases that empty. */
        if (next_random(&random) % 8 < (step / 500 % 2 ? 3u : 5u))
            random_take(&m, arena, &random);
        else
            random_give(&m, arena, &random);
        if (next_random(&random) % 4 == 0) random_trim(&m, arena, &random);
        check_stats(&m, arena);
    }
    mem_arena_destroy(arena);
}

static void test_coalesces(void **state)
{
    (void)state;
    mem_arena *arena;
    uint64_t offsets[8], whole;
    assert_int_equal(mem_arena_create(8 * GRAIN, &arena), EXPAR_OK);
    for (int i = 0; i < 8; i++)
        assert_true(mem_arena_take(arena, GRAIN, 1, &offsets[i]));
    assert_false(mem_arena_take(arena, 1, 1, &whole));
    static const int order[8] = {3, 5, 4, 0, 7, 1, 6, 2}; /* with neighbours before, after, both and none */
    for (int i = 0; i < 8; i++)
        assert_true(mem_arena_give(arena, offsets[order[i]], NULL));
    assert_true(mem_arena_take(arena, 8 * GRAIN, 1, &whole));
    assert_int_equal(whole, 0);
    mem_arena_destroy(arena);
}

static void test_rejects(void **state)
{
    (void)state;
    mem_arena *arena = NULL;
    uint64_t offset = 7;
    assert_int_equal(mem_arena_create(GRAIN - 1, &arena), EXPAR_ERR_ARGUMENT);
    assert_null(arena);
    assert_int_equal(mem_arena_create(4 * GRAIN, &arena), EXPAR_OK);
    assert_false(mem_arena_take(arena, UINT64_MAX, 1, &offset));
    assert_false(mem_arena_take(arena, 4 * GRAIN + 1, 1, &offset));
    assert_false(mem_arena_give(arena, 0, NULL)); /* free */
    assert_true(mem_arena_take(arena, 2 * GRAIN, 1ull << 40, &offset));
    assert_int_equal(offset, 0);
    assert_false(mem_arena_take(arena, 1, 1ull << 40, &offset));
    assert_false(mem_arena_give(arena, GRAIN, NULL)); /* inside a block */
    assert_false(mem_arena_trim(arena, GRAIN, 1));
    assert_false(mem_arena_trim(arena, 0, 3 * GRAIN)); /* more than it has */
    assert_false(mem_arena_trim(arena, 2 * GRAIN, 1)); /* free */
    assert_false(mem_arena_give(arena, 1ull << 50, NULL));
    assert_true(mem_arena_give(arena, 0, NULL));
    mem_arena_destroy(arena);
    mem_arena_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_model),
        cmocka_unit_test(test_coalesces),
        cmocka_unit_test(test_rejects),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
