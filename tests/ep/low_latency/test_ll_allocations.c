/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that repeat allocate nothing: neither dispatches and combines, with results in the caller's memory or the
 * library's, nor hooks. Records of what has ended serve again once as many are kept as can be. */
#include "base/life.h"
#include "ep/harness/check.h"
#include "ep/harness/ranks.h"
#include "ep/low_latency/trial.h"
#include "oracle/unit.h"

/* WARM: rounds until records are renewed. Among later ones, the one with the fewest allocations counts, since a wait
   that is long on a busy machine asks for the others, and allocates its questions. */
enum { RANKS = 2, WARM = LIFE_SPENT_RECORDS + 8, ROUNDS = 16 };

static _Thread_local int64_t allocations;

/* NOLINTBEGIN(bugprone-reserved-identifier): the linker's names. */
void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);

void *__wrap_malloc(size_t bytes)
{
    allocations++;
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    allocations++;
    return __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    allocations++;
    return __real_realloc(memory, bytes);
}
/* NOLINTEND(bugprone-reserved-identifier) */

typedef struct allocation_show {
    const lowlat_traffic *traffic;
    lowlat_answers *back;
    lowlat_choice choice;
} allocation_show;

/* Allocations of the call and its hook; -1 where it fails. */
static int64_t count_in(lowlat_call *call)
{
    const int64_t before = allocations;
    const bool good = CHECK_OK(lowlat_start(call)) && CHECK_OK(lowlat_end(call));
    const int64_t made = allocations - before;
    return good && CHECK(lowlat_is_right(call), "what came is wrong") ? made : -1;
}

static void keep_fewest(int64_t *fewest, int64_t made)
{
    if (made < *fewest) *fewest = made;
}

static void trial_rank(expar_group *group, void *shared)
{
    const allocation_show *show = shared;
    const int32_t rank = expar_group_rank(group);
    int64_t fewest_there = INT64_MAX, fewest_back = INT64_MAX;
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    expar_ll *ll = NULL;
    config.max_tokens = show->traffic->job.max_tokens;
    config.hidden = show->traffic->job.hidden;
    config.max_topk = show->traffic->job.topk;
    config.num_experts = show->traffic->job.num_experts;
    if (!CHECK_OK(expar_ll_create(group, &config, &ll))) return;
    for (int i = 0; i < WARM + ROUNDS && fewest_there >= 0 && fewest_back >= 0; i++) {
        lowlat_call there, back;
        lowlat_prepare_dispatch(&there, ll, show->traffic, rank, &show->choice);
        keep_fewest(i < WARM ? &(int64_t){0} : &fewest_there, count_in(&there));
        lowlat_prepare_combine(&back, ll, show->traffic, show->back, rank, &show->choice, there.there.handle);
        keep_fewest(i < WARM ? &(int64_t){0} : &fewest_back, count_in(&back));
        lowlat_clean(&back);
        lowlat_clean(&there);
    }
    CHECK(fewest_there == 0, "a dispatch allocates %lld times", (long long)fewest_there);
    CHECK(fewest_back == 0, "a combine allocates %lld times", (long long)fewest_back);
    CHECK_OK(expar_ll_destroy(ll));
}

static void run_with(const lowlat_choice *choice, bool with_weights)
{
    static const int64_t tokens[RANKS] = {3, 4};
    const ranks_plan ranks = {.kind = RANKS_THREADS, .size = RANKS, .heap_bytes = (size_t)16 << 20};
    const lowlat_plan plan = {.num_ranks = RANKS,
                              .max_tokens = 4,
                              .hidden = 128,
                              .topk = 2,
                              .num_experts = 2 * RANKS,
                              .type = ORACLE_BF16,
                              .with_weights = with_weights,
                              .num_tokens = tokens};
    random_source random = random_start(6);
    lowlat_traffic *t = lowlat_traffic_make(&plan, &random);
    allocation_show show = {.traffic = t, .choice = *choice};
    show.back = lowlat_answers_make(t, ORACLE_BF16, EXPAR_LL_SUM_REDUCED, &random);
    const bool passed = ranks_run(&ranks, trial_rank, &show);
    lowlat_answers_free(show.back, t);
    lowlat_traffic_free(t);
    assert_true(passed);
}

static void test_own_results(void **state)
{
    (void)state;
    run_with(&(lowlat_choice){.own_x = true, .own_scales = true, .own_count = true}, true);
}

static void test_results(void **state)
{
    (void)state;
    run_with(&(lowlat_choice){0}, true);
}

static void test_hooks(void **state)
{
    (void)state;
    run_with(&(lowlat_choice){.hook = true}, true);
}

static void test_weights_ahead(void **state)
{
    (void)state;
    run_with(&(lowlat_choice){0}, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_own_results), cmocka_unit_test(test_results),
                                       cmocka_unit_test(test_hooks), cmocka_unit_test(test_weights_ahead)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
