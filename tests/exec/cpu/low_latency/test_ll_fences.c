/* SPDX-License-Identifier: Apache-2.0 */
/* Fences after rows that bypass the cache. Some processors make such stores in nearly the order of the program, and let
 * calls without these fences pass. So here such a store is made by the fence after it, and not before. Later stores
 * without a fence in between (a flag, a worker's end, the call's) come ahead of the rows. */
#include "ep/harness/check.h"
#include "ep/harness/ranks.h"
#include "ep/low_latency/hold.h"
#include "ep/low_latency/trial.h"
#include "oracle/unit.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- stores that wait for a fence -------------------------------------------------------------------------------- */

/* By the linker (--wrap) the library's calls of cpu_copy_row and cpu_copy_fence come here. */
void __wrap_cpu_copy_row(void *dest, const void *source, size_t bytes, bool streaming);
void __wrap_cpu_copy_fence(void);

typedef struct late_store {
    struct late_store *next;
    void *dest;
    size_t bytes;
    unsigned char data[];
} late_store;

static _Thread_local late_store *late_stores; /* of this thread, the last one first */
static _Atomic int64_t num_late_stores;

void __wrap_cpu_copy_row(void *dest, const void *source, size_t bytes, bool streaming)
{
    late_store *store = streaming ? malloc(sizeof *store + bytes) : NULL;
    if (!store) {
        memcpy(dest, source, bytes);
        return;
    }
    *store = (late_store){.next = late_stores, .dest = dest, .bytes = bytes};
    memcpy(store->data, source, bytes);
    late_stores = store;
    atomic_fetch_add_explicit(&num_late_stores, 1, memory_order_relaxed);
}

void __wrap_cpu_copy_fence(void)
{
    while (late_stores) {
        late_store *store = late_stores;
        late_stores = store->next;
        memcpy(store->dest, store->data, store->bytes);
        free(store);
    }
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

enum { RANKS = 3, TOKENS = 21, HIDDEN = 256, TOPK = 4, LOCALS = 2, THREADS = 2, ROUNDS = 12 };

typedef struct fence_show {
    lowlat_traffic *traffics[ROUNDS];
    lowlat_answers *answers[ROUNDS];
} fence_show;

static void draw_round(fence_show *show, int i, random_source *random)
{
    static const int64_t num_tokens[RANKS] = {TOKENS, TOKENS, TOKENS - 4};
    const lowlat_plan plan = {.num_ranks = RANKS,
                              .max_tokens = TOKENS,
                              .hidden = HIDDEN,
                              .topk = TOPK,
                              .num_experts = LOCALS * RANKS,
                              .format = i % 3 == 2 ? LLO_INT8 : LLO_PLAIN,
                              .num_tokens = num_tokens};
    show->traffics[i] = lowlat_traffic_make(&plan, random);
    show->answers[i] = lowlat_answers_make(show->traffics[i], ORACLE_BF16, EXPAR_LL_SUM_EXACT, random);
}

static void trial_rounds(expar_group *group, void *shared)
{
    const fence_show *show = shared;
    const int32_t rank = expar_group_rank(group);
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    expar_ll *ll = NULL;
    config.max_tokens = TOKENS;
    config.hidden = HIDDEN;
    config.max_topk = TOPK;
    config.num_experts = LOCALS * RANKS;
    config.num_threads = THREADS;
    if (!CHECK_OK(expar_ll_create(group, &config, &ll))) return;
    hold_stream(ll, 0);
    bool right = true;
    for (int i = 0; i < ROUNDS && right; i++) {
        const lowlat_choice choice = {.hook = i % 2};
        right = CHECK(lowlat_round_trip(ll, show->traffics[i], &show->answers[i], 1, rank, &choice), "round %d", i);
    }
    if (right) CHECK_OK(expar_ll_destroy(ll));
}

static void test_rows_after_fences(void **state)
{
    const ranks_plan plan = {.kind = RANKS_THREADS, .size = RANKS, .heap_bytes = (size_t)16 << 20};
    random_source random = random_start(11);
    fence_show show;
    (void)state;
    for (int i = 0; i < ROUNDS; i++)
        draw_round(&show, i, &random);
    const bool passed = ranks_run(&plan, trial_rounds, &show);
    for (int i = 0; i < ROUNDS; i++) {
        lowlat_answers_free(show.answers[i], show.traffics[i]);
        lowlat_traffic_free(show.traffics[i]);
    }
    assert_true(passed);
    assert_true(atomic_load(&num_late_stores) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows_after_fences)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
