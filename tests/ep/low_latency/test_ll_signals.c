/* SPDX-License-Identifier: Apache-2.0 */
/* Combines that wait for the signals of a GEMM. A thread stands for the GEMM: it writes rows late, each before its
 * signal. Also signals that never come, those that do not count, and wrong arguments. */
#include "ep/harness/check.h"
#include "ep/harness/stage.h"
#include "ep/low_latency/case.h"
#include "oracle/unit.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BLOCK_ROWS = 5, LATE_RANK = 1, VALUE = -2, NOT_YET = 3 };

typedef struct scene {
    ll_case c;
    expar_ll *ll;
    int32_t rank;
    bool hook, by_blocks;
} scene;

/* The GEMM of a rank: rows come expert by expert, the last expert first. */
typedef struct gemm {
    ll_round *round;
    float *rows; /* the answers */
    int32_t *words;
    int32_t locals, blocks;
    size_t expert_bytes;
    bool by_blocks;
} gemm;

static int32_t locals_of(const ll_case *c)
{
    return c->experts / c->ranks;
}

static int32_t blocks_of(const ll_case *c)
{
    return (c->ranks * c->max_tokens + BLOCK_ROWS - 1) / BLOCK_ROWS;
}

static void *gemm_main(void *argument)
{
    const gemm *g = argument;
    const int32_t *count = g->round->received.recv_count.data;
    for (int32_t l = g->locals - 1; l >= 0; l--) {
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
        memcpy((uint8_t *)g->round->expert_x + (size_t)l * g->expert_bytes,
               (uint8_t *)g->rows + (size_t)l * g->expert_bytes, g->expert_bytes);
        const int32_t set = g->by_blocks ? (count[l] + BLOCK_ROWS - 1) / BLOCK_ROWS : 1;
        for (int32_t j = 0; j < set; j++)
            __atomic_store_n(&g->words[l * g->blocks + j], VALUE, __ATOMIC_RELEASE);
    }
    return NULL;
}

/* Signals whose words are `first`. The caller frees the words. */
static expar_ll_signals signals_make(const scene *s, const ll_round *round, int32_t first)
{
    const int32_t all = locals_of(&s->c) * (s->by_blocks ? blocks_of(&s->c) : 1);
    int32_t *words = malloc((size_t)all * sizeof *words);
    if (!words) abort();
    for (int32_t i = 0; i < all; i++)
        words[i] = first;
    expar_ll_signals signals = EXPAR_LL_SIGNALS_INIT;
    signals.words = expar_tensor_1d(words, EXPAR_I32, all);
    signals.value = VALUE;
    if (!s->by_blocks) return signals;
    signals.block_rows = BLOCK_ROWS;
    signals.count = expar_tensor_1d(round->received.recv_count.data, EXPAR_I32, locals_of(&s->c));
    return signals;
}

/* ---- rows that come late ----------------------------------------------------------------------------------------- */

static bool combine_late(scene *s, uint32_t number)
{
    ll_round *round = round_make(&s->c, s->rank, number);
    bool good = round_dispatch(round, s->ll);
    round_prepare_combine(round);
    expar_ll_signals signals = signals_make(s, round, NOT_YET);
    const size_t expert_bytes = (size_t)s->c.ranks * (size_t)s->c.max_tokens * (size_t)s->c.hidden * sizeof(float);
    const size_t bytes = expert_bytes * (size_t)locals_of(&s->c);
    gemm g = {.round = round,
              .rows = malloc(bytes),
              .words = signals.words.data,
              .locals = locals_of(&s->c),
              .blocks = s->by_blocks ? blocks_of(&s->c) : 1,
              .expert_bytes = expert_bytes,
              .by_blocks = s->by_blocks};
    if (!g.rows) abort();
    memcpy(g.rows, round->expert_x, bytes);
    memset(round->expert_x, 0x77, bytes);
    round->combine.signals = &signals;
    round->combine.hook = s->hook;
    pthread_t thread;
    if (pthread_create(&thread, NULL, gemm_main, &g)) abort();
    good = good && round_combine(round, s->ll) && (!s->hook || round_combine_hook(round));
    pthread_join(thread, NULL);
    for (int32_t i = 0; s->by_blocks && i < g.locals * g.blocks; i++)
        good &= CHECK(g.words[i] == VALUE || g.words[i] == NOT_YET, "word %d was changed", i);
    free(signals.words.data);
    free(g.rows);
    round_free(round);
    return good;
}

static void trial_late(expar_group *group, void *shared)
{
    scene s = {.c = *(const ll_case *)shared, .rank = expar_group_rank(group)};
    const expar_ll_config config = case_config(&s.c);
    if (!CHECK_OK(expar_ll_create(group, &config, &s.ll))) return;
    bool good = true;
    for (uint32_t i = 0; i < 4 && good; i++) {
        s.hook = i % 2;
        s.by_blocks = i / 2;
        good = combine_late(&s, i);
    }
    if (good) CHECK_OK(expar_ll_destroy(s.ll));
}

static void run_case(ranks_body body)
{
    ll_case c = case_example;
    const ranks_plan plan = {.size = c.ranks};
    assert_true(ranks_run(&plan, body, &c));
}

static void test_late(void **state)
{
    (void)state;
    run_case(trial_late);
}

/* ---- signals that never come ------------------------------------------------------------------------------------- */

/* The rank whose signal does not come rejects the call, the others learn of it, and the next call goes well. */
static bool combine_never(scene *s)
{
    ll_round *round = round_make(&s->c, s->rank, 0);
    bool good = round_dispatch(round, s->ll);
    round_prepare_combine(round);
    expar_ll_signals signals = signals_make(s, round, VALUE);
    signals.timeout_ms = 30;
    if (s->rank == LATE_RANK) ((int32_t *)signals.words.data)[locals_of(&s->c) - 1] = NOT_YET;
    round->combine.signals = &signals;
    expar_status status = expar_ll_combine(s->ll, &round->combine, &round->combined);
    if (s->rank == LATE_RANK) {
        char expected[128];
        snprintf(expected, sizeof expected, "signals of local expert %d: word 0 is 3 after 0.03 s; expected -2",
                 locals_of(&s->c) - 1);
        good &= CHECK(status == EXPAR_ERR_STATE, "status %d", (int)status);
        good &= CHECK(strstr(expar_last_error(), expected) != NULL, "%s", expar_last_error());
    } else {
        good &= CHECK(status == EXPAR_ERR_REMOTE, "status %d", (int)status);
        good &= CHECK(strstr(expar_last_error(), "rank 1") != NULL, "%s", expar_last_error());
    }
    ((int32_t *)signals.words.data)[locals_of(&s->c) - 1] = VALUE;
    round->combined = (expar_ll_combine_result)EXPAR_LL_COMBINE_RESULT_INIT;
    good = good && round_combine(round, s->ll);
    free(signals.words.data);
    round_free(round);
    return good;
}

static void trial_never(expar_group *group, void *shared)
{
    scene s = {.c = *(const ll_case *)shared, .rank = expar_group_rank(group)};
    const expar_ll_config config = case_config(&s.c);
    if (!CHECK_OK(expar_ll_create(group, &config, &s.ll))) return;
    if (combine_never(&s)) CHECK_OK(expar_ll_destroy(s.ll));
}

static void test_never(void **state)
{
    (void)state;
    run_case(trial_never);
}

/* ---- wrong arguments --------------------------------------------------------------------------------------------- */

typedef struct wrong {
    void (*spoil)(expar_ll_signals *signals);
    expar_status status;
    const char *text;
} wrong;

static void no_words(expar_ll_signals *s)
{
    s->words = EXPAR_TENSOR_NONE;
}
static void few_words(expar_ll_signals *s)
{
    s->words.shape[0]--;
}
static void words_of_floats(expar_ll_signals *s)
{
    s->words.dtype = EXPAR_F32;
}
static void no_count(expar_ll_signals *s)
{
    s->count = EXPAR_TENSOR_NONE;
}
static void count_alone(expar_ll_signals *s)
{
    s->block_rows = 0;
}
static void blocks_below_zero(expar_ll_signals *s)
{
    s->block_rows = -1;
}
static void time_below_zero(expar_ll_signals *s)
{
    s->timeout_ms = -1;
}
static void time_too_long(expar_ll_signals *s)
{
    s->timeout_ms = INT64_MAX / 1000000;
}
static void no_size(expar_ll_signals *s)
{
    s->struct_size = 0;
}

static const wrong wrongs[] = {
    {no_words, EXPAR_ERR_NULL, "signals.words is not given"},
    {few_words, EXPAR_ERR_SHAPE, "signals.words.shape[0] is "},
    {words_of_floats, EXPAR_ERR_DTYPE, "signals.words.dtype is f32; expected i32"},
    {no_count, EXPAR_ERR_NULL, "signals.count is not given; expected it with block_rows 5"},
    {count_alone, EXPAR_ERR_ARGUMENT, "signals.count is given with block_rows 0; expected 1 or more"},
    {blocks_below_zero, EXPAR_ERR_ARGUMENT, "signals.block_rows is -1; expected 0 or more"},
    {time_below_zero, EXPAR_ERR_ARGUMENT, "signals.timeout_ms is -1; expected 0 to "},
    {time_too_long, EXPAR_ERR_ARGUMENT, "signals.timeout_ms is 9223372036854; expected 0 to 4611686018427"},
    {no_size, EXPAR_ERR_ARGUMENT, "signals.struct_size is 0"},
};

static void trial_wrong(expar_group *group, void *shared)
{
    scene s = {.c = *(const ll_case *)shared, .rank = expar_group_rank(group), .by_blocks = true};
    const expar_ll_config config = case_config(&s.c);
    if (!CHECK_OK(expar_ll_create(group, &config, &s.ll))) return;
    ll_round *round = round_make(&s.c, s.rank, 0);
    bool good = round_dispatch(round, s.ll);
    round_prepare_combine(round);
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs && good; i++) {
        expar_ll_signals signals = signals_make(&s, round, VALUE);
        void *words = signals.words.data;
        wrongs[i].spoil(&signals);
        round->combine.signals = &signals;
        expar_status status = expar_ll_combine(s.ll, &round->combine, &round->combined);
        good &= CHECK(status == wrongs[i].status && strstr(expar_last_error(), wrongs[i].text), "%zu: %d: %s", i,
                      (int)status, expar_last_error());
        free(words);
    }
    round->combine.signals = NULL;
    if (good && round_combine(round, s.ll)) CHECK_OK(expar_ll_destroy(s.ll));
    round_free(round);
}

static void test_wrong(void **state)
{
    (void)state;
    run_case(trial_wrong);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late),
        cmocka_unit_test(test_never),
        cmocka_unit_test(test_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
