/* SPDX-License-Identifier: Apache-2.0 */
/* Epochs of low-latency calls run over the wrap of their stamps, of which there are 2^32 - 4, and over the moments at
 * which flags are swept. Random scripts begin before, at and after these. On thread ranks, or with the argument
 * "processes" on process ranks. */
#include "ep/harness/stage.h"
#include "ep/low_latency/hold.h"
#include "ep/low_latency/reach.h"
#include "ep/low_latency/script.h"
#include "oracle/unit.h"
#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#define OPS_PER_SCRIPT      20
#define ROUNDS_OF_THREADS   640
#define ROUNDS_OF_PROCESSES 320

#define STAMPS ((uint64_t)0xfffffffc)
#define SWEEPS ((uint64_t)1 << 30)

static ranks_kind kind;

static void skip_calls(void *context, expar_ll *ll, int32_t rank)
{
    (void)rank;
    hold_skip(ll, *(const uint64_t *)context);
}

/* An even number up to 16 before, or after. */
static uint64_t begin_near(uint64_t epoch, random_source *random)
{
    return epoch - 16 + 2 * (uint64_t)random_between(random, 0, 9);
}

static bool trial_script(uint64_t seed)
{
    const uint64_t marks[] = {STAMPS, STAMPS, 2 * STAMPS, SWEEPS, 3 * SWEEPS, (uint64_t)1 << 32, (uint64_t)1 << 63};
    const lowlat_script_plan plan = {.kind = kind, .num_ops = OPS_PER_SCRIPT, .with_trouble = seed & 1};
    random_source random = random_start(~seed);
    uint64_t calls = begin_near(marks[random_between(&random, 0, 6)], &random);
    lowlat_script *s = lowlat_script_make(seed, &plan);
    s->prepare = skip_calls;
    s->prepare_context = &calls;
    bool passed = ranks_run(&s->ranks, lowlat_script_trial, s);
    if (!passed) {
        fprintf(stderr, "behind %" PRIu64 " calls:\n", calls);
        lowlat_script_print(s);
    }
    lowlat_script_free(s);
    return passed;
}

static void test_scripts(void **state)
{
    (void)state;
    int64_t rounds = random_test_rounds(kind == RANKS_THREADS ? ROUNDS_OF_THREADS : ROUNDS_OF_PROCESSES);
    uint64_t seed = random_test_seed("low-latency wrap");
    for (int64_t done = 0; done < rounds; done += OPS_PER_SCRIPT)
        assert_true(trial_script(seed++));
}

/* ---- flags of long ago ------------------------------------------------------------------------------------------- */

enum { RANKS = 2, TOKENS = 8 };

typedef struct sweep_setting {
    lowlat_traffic *old, *empty, *fresh;
    lowlat_answers *old_back, *empty_back, *fresh_back;
} sweep_setting;

static lowlat_traffic *make_traffic(int64_t tokens, random_source *random)
{
    const int64_t num_tokens[RANKS] = {tokens, tokens};
    const lowlat_plan plan = {
        .num_ranks = RANKS, .max_tokens = TOKENS, .hidden = 16, .topk = 2, .num_experts = 2, .num_tokens = num_tokens};
    return lowlat_traffic_make(&plan, random);
}

static void nap(void *context)
{
    (void)context;
    const struct timespec moment = {0, 300000};
    nanosleep(&moment, NULL);
}

static bool trial_twice(expar_ll *ll, const lowlat_traffic *t, lowlat_answers *back, int32_t rank)
{
    const lowlat_choice hooked = {.hook = true};
    return lowlat_round_trip(ll, t, &back, 1, rank, &hooked) && lowlat_round_trip(ll, t, &back, 1, rank, &hooked);
}

/* Stamps come again after 2^32 - 4 calls. Flags that no call has written meanwhile have been swept: else rank 0 would
   take rows of that time while rank 1 is still about to write its own. */
static void come_again(expar_group *group, void *shared)
{
    const sweep_setting *set = shared;
    const int32_t rank = expar_group_rank(group);
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    expar_ll *ll = NULL;
    config.max_tokens = TOKENS;
    config.hidden = 16;
    config.max_topk = 2;
    config.num_experts = 2;
    config.unmapped = reach_unmapped();
    if (!CHECK_OK(expar_ll_create(group, &config, &ll))) return;
    trial_twice(ll, set->old, set->old_back, rank);
    hold_skip(ll, SWEEPS);
    trial_twice(ll, set->empty, set->empty_back, rank);
    hold_skip(ll, STAMPS - SWEEPS - 4);
    if (rank == 1) hold_install(ll, nap, NULL);
    CHECK(trial_twice(ll, set->fresh, set->fresh_back, rank), "calls with stamps of long ago");
    CHECK_OK(expar_ll_destroy(ll));
}

static void test_flags_are_swept(void **state)
{
    (void)state;
    random_source random = random_start(3);
    const ranks_plan ranks = {.kind = RANKS_THREADS, .size = RANKS, .heap_bytes = (size_t)16 << 20};
    sweep_setting set = {
        make_traffic(TOKENS, &random), make_traffic(0, &random), make_traffic(TOKENS, &random), NULL, NULL, NULL};
    set.old_back = lowlat_answers_make(set.old, ORACLE_BF16, EXPAR_LL_SUM_EXACT, &random);
    set.empty_back = lowlat_answers_make(set.empty, ORACLE_BF16, EXPAR_LL_SUM_EXACT, &random);
    set.fresh_back = lowlat_answers_make(set.fresh, ORACLE_BF16, EXPAR_LL_SUM_EXACT, &random);
    bool passed = ranks_run(&ranks, come_again, &set);
    lowlat_answers_free(set.old_back, set.old);
    lowlat_answers_free(set.empty_back, set.empty);
    lowlat_answers_free(set.fresh_back, set.fresh);
    lowlat_traffic_free(set.old);
    lowlat_traffic_free(set.empty);
    lowlat_traffic_free(set.fresh);
    assert_true(passed);
}

int main(int argc, char **argv)
{
    kind = stage_kind(argc, argv);
    routing_recorded();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_scripts), cmocka_unit_test(test_flags_are_swept)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
