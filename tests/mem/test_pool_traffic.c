/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that outputs hold, by a simulation of the pool with the traffic of training: T 8192, H 7168, K 8, BF16 on
 * N ranks. Routing is uniform or skewed (Zipf), and new in every call. Several outputs are alive at a time; they are
 * released in the order of a stack (as autograd does) or of a queue. This bound of docs/internals/memory.md holds:
 *
 *     memory ≤ 1.25 · the most that outputs held at a time + 64 MB
 *
 * Only addresses and counts are simulated: the source has no memory. With the argument "table" it prints what
 * docs/internals/memory.md shows. */
#include "mem/store.h"
#include "oracle/random.h"
#include "oracle/unit.h"
#include "proto/normal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 8192, HIDDEN = 7168, TOPK = 8, EXPERTS = 256, ALIVE = 6, ROUNDS = 30, SAMPLE = 400 };
#define CALLS     (ALIVE * ROUNDS)
#define ADDRESSES ((uint64_t)1 << 40)
#define MB        1000000

static bool prints;

/* ---- routing ----------------------------------------------------------------------------------------------------- */

/* Popularity of each expert: 1, or 1 / place in an order that is drawn anew. */
static void draw_weights(random_source *random, bool skewed, double weights[EXPERTS])
{
    int32_t order[EXPERTS];
    for (int32_t e = 0; e < EXPERTS; e++) {
        int32_t other = (int32_t)random_between(random, 0, e);
        order[e] = order[other];
        order[other] = e;
    }
    for (int32_t e = 0; e < EXPERTS; e++)
        weights[order[e]] = skewed ? 1.0 / (e + 1) : 1.0;
}

/* Whether one of a token's K experts, which are drawn by their weights and differ, is of the first `mine`. */
static bool draw_hit(random_source *random, const double weights[EXPERTS], double sum, int32_t mine)
{
    bool taken[EXPERTS] = {false}, hit = false;
    for (int32_t k = 0; k < TOPK; k++) {
        int32_t e = 0;
        double at = random_unit(random) * sum;
        while (e < EXPERTS - 1 && (taken[e] || (at -= weights[e]) >= 0))
            e++;
        while (taken[e])
            e = (e + 1) % EXPERTS;
        taken[e] = true;
        sum -= weights[e];
        hit = hit || e < mine;
    }
    return hit;
}

/* Rows that rank 0 receives from N · T tokens, by the share of a sample of them. */
static int64_t draw_rows(random_source *random, int32_t ranks, bool skewed)
{
    double weights[EXPERTS], sum = 0;
    int64_t hits = 0;
    draw_weights(random, skewed, weights);
    for (int32_t e = 0; e < EXPERTS; e++)
        sum += weights[e];
    for (int32_t i = 0; i < SAMPLE; i++)
        hits += draw_hit(random, weights, sum, EXPERTS / ranks);
    return (int64_t)ranks * TOKENS * hits / SAMPLE;
}

static uint64_t output_bytes(int64_t rows)
{
    const ep_block_shape shape = {
        .x_rows = rows, .rows = rows, .row_bytes = 2 * HIDDEN, .topk = TOPK, .idx_bytes = 8, .weights = 1};
    return ep_block_map_of(&shape).total_bytes;
}

/* ---- the pool ---------------------------------------------------------------------------------------------------- */

static expar_status fill_nothing(void *context, uint64_t offset, uint64_t bytes)
{
    (void)context, (void)offset, (void)bytes;
    return EXPAR_OK;
}

static void drain_nothing(void *context, uint64_t offset, uint64_t bytes)
{
    (void)context, (void)offset, (void)bytes;
}

typedef struct trial {
    mem_store *store;
    mem_pool *pool;
    uint64_t given_bytes;                        /* to outputs, all in all */
    uint64_t warm_given_bytes, warm_taken_bytes; /* up to the middle */
} trial;

static trial trial_begin(void)
{
    const mem_source source = {.fill = fill_nothing, .drain = drain_nothing};
    trial p = {0};
    assert_int_equal(mem_store_create((void *)(uintptr_t)4096, 0, ADDRESSES, &source, &p.store), EXPAR_OK);
    assert_int_equal(mem_pool_create_in(p.store, 0, 0, &p.pool), EXPAR_OK);
    return p;
}

static mem_block *trial_take(trial *p, uint64_t bytes)
{
    mem_block *block;
    mem_store_stats stats;
    assert_int_equal(mem_pool_take(p->pool, bytes, &block), EXPAR_OK);
    p->given_bytes += bytes;
    mem_store_get_stats(p->store, &stats);
    assert_true(stats.filled_bytes >= stats.used_bytes);
    assert_true(stats.filled_bytes <= stats.used_high_bytes + stats.used_high_bytes / 4 + (uint64_t)64 * MB);
    return block;
}

static void note_half(trial *p, int32_t call)
{
    mem_store_stats stats;
    if (call != CALLS / 2) return;
    mem_store_get_stats(p->store, &stats);
    p->warm_given_bytes = p->given_bytes;
    p->warm_taken_bytes = stats.taken_bytes;
}

/* The layers' outputs stay for the way back, where each has one of its own size beside it for a while. */
static void trial_stack(trial *p, const int64_t rows[CALLS])
{
    mem_block *alive[ALIVE];
    for (int32_t call = 0; call < CALLS; call += ALIVE) {
        note_half(p, call);
        for (int32_t i = 0; i < ALIVE; i++)
            alive[i] = trial_take(p, output_bytes(rows[call + i]));
        for (int32_t i = ALIVE - 1; i >= 0; i--) {
            mem_block_release(trial_take(p, output_bytes(rows[call + i])));
            mem_block_release(alive[i]);
        }
    }
}

/* The oldest goes when the next has come. */
static void trial_queue(trial *p, const int64_t rows[CALLS])
{
    mem_block *alive[ALIVE] = {NULL};
    for (int32_t call = 0; call < CALLS; call++) {
        note_half(p, call);
        mem_block *next = trial_take(p, output_bytes(rows[call]));
        mem_block_release(alive[call % ALIVE]);
        alive[call % ALIVE] = next;
    }
    for (int32_t i = 0; i < ALIVE; i++)
        mem_block_release(alive[i]);
}

/* ---- what comes of it -------------------------------------------------------------------------------------------- */

/* The size of a pool inside the buffer: twice the largest output that may come. */
static uint64_t fixed_bytes(int32_t ranks)
{
    return 2 * align_up(output_bytes((int64_t)ranks * TOKENS), MEM_POOL_LARGE_BYTES);
}

static void trial_end(trial *p, int32_t ranks, bool skewed, bool stack)
{
    mem_store_stats stats;
    mem_store_get_stats(p->store, &stats);
    assert_int_equal(stats.used_bytes, 0);
    const double again =
        (double)(stats.taken_bytes - p->warm_taken_bytes) / (double)(p->given_bytes - p->warm_given_bytes);
    if (prints)
        printf("| %d | %s | %s | %.0f | %.0f | %.2f | %.1f %% | %.0f |\n", ranks, skewed ? "skewed" : "uniform",
               stack ? "stack" : "queue", (double)stats.used_high_bytes / MB, (double)stats.filled_high_bytes / MB,
               (double)stats.filled_high_bytes / (double)stats.used_high_bytes, 100 * again,
               (double)fixed_bytes(ranks) / MB);
    mem_store_trim(p->store);
    mem_store_get_stats(p->store, &stats);
    assert_int_equal(stats.filled_bytes, 0);
    mem_pool_close(p->pool);
    mem_store_close(p->store);
}

static void trial_all(random_source *random, int32_t ranks, bool skewed)
{
    static int64_t rows[CALLS];
    for (int32_t i = 0; i < CALLS; i++)
        rows[i] = draw_rows(random, ranks, skewed);
    for (int stack = 1; stack >= 0; stack--) {
        trial p = trial_begin();
        if (stack)
            trial_stack(&p, rows);
        else
            trial_queue(&p, rows);
        trial_end(&p, ranks, skewed, stack);
    }
}

static void test_memory_follows_the_traffic(void **state)
{
    (void)state;
    random_source random = random_start(prints ? 1 : random_test_seed("traffic"));
    for (int32_t ranks = 2; ranks <= 64; ranks *= 2)
        for (int skewed = 0; skewed < 2; skewed++)
            trial_all(&random, ranks, skewed);
}

/* Small outputs share grains of memory, medium ones begin at huge pages: the bound holds for all sizes, in any order.
   */
static void test_bound_for_all_sizes(void **state)
{
    enum { HELD = 200, TURNS = 20000 };
    (void)state;
    random_source random = random_start(random_test_seed("sizes"));
    static mem_block *held[HELD];
    trial p = trial_begin();
    for (int turn = 0; turn < TURNS; turn++) {
        mem_block **one = &held[random_between(&random, 0, HELD - 1)];
        mem_block_release(*one);
        *one = random_once_in(&random, 3) ? NULL
                                          : trial_take(&p, (uint64_t)1 << random_between(&random, 0, 27) |
                                                               (uint64_t)random_between(&random, 0, 1 << 20));
    }
    for (int i = 0; i < HELD; i++) {
        mem_block_release(held[i]);
        held[i] = NULL;
    }
    mem_pool_close(p.pool);
    mem_store_close(p.store);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_follows_the_traffic),
        cmocka_unit_test(test_bound_for_all_sizes),
    };
    prints = argc > 1 && strcmp(argv[1], "table") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
