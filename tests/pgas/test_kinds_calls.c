/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of the host on memory of all kinds. All ranks run random scripts of puts, gets and adds. Each rank computes
 * from all scripts what its memory must hold. Ranks are threads or processes, also of several simulated nodes (argument
 * mix). Variables of the environment choose the way: EXPAR_STAGE, EXPAR_TRANSPORTS. */
#include "pgas/callers.h"

/* Each rank writes its own part of each block. Its part of its caller's memory has the same size. */
#define PART_BYTES  300000
#define FIXED_BYTES 200000
#define COUNTERS    4
#define STEPS       50

typedef struct memories {
    uint8_t *blocks[KINDS];    /* [size][PART_BYTES] */
    uint8_t *fixed[KINDS];     /* [FIXED_BYTES] that no call changes */
    uint64_t *counters[KINDS]; /* [COUNTERS] */
    uint8_t *callers[CALLERS]; /* [PART_BYTES] */
} memories;

static bool memories_take(expar_group *group, memories *m)
{
    for (int k = 0; k < KINDS; k++) {
        const expar_memory_kind kind = (expar_memory_kind)k;
        m->blocks[k] = take_zeros(group, kind, (size_t)group->size * PART_BYTES);
        m->fixed[k] = take(group, kind, FIXED_BYTES, 0);
        m->counters[k] = take_zeros(group, kind, COUNTERS * sizeof(uint64_t));
        if (!m->blocks[k] || !m->fixed[k] || !m->counters[k]) return false;
        fill_block(group, kind, m->fixed[k], FIXED_BYTES, (uint32_t)(group->rank * KINDS + k));
    }
    return callers_take(group, m->callers, PART_BYTES);
}

static void memories_give(expar_group *group, const memories *m)
{
    for (int k = 0; k < KINDS; k++) {
        CHECK_OK(expar_free(group, m->blocks[k]));
        CHECK_OK(expar_free(group, m->fixed[k]));
        CHECK_OK(expar_free(group, m->counters[k]));
    }
    callers_give(group, m->callers);
}

/* ---- scripts ----------------------------------------------------------------------------------------------------- */

typedef enum step_kind { PUT, PUT_NBI, PUT_CTX, IPUT, GET, GET_NBI, IGET, ADD, FETCH_ADD, STEP_KINDS } step_kind;

typedef struct step {
    step_kind what;
    int32_t pe;
    expar_memory_kind kind;
    caller_memory caller;
    size_t at, bytes; /* in the writer's part, and in the caller's memory */
    uint32_t seed;
    bool quiets; /* before it */
} step;

/* A rank's script, as far as it has come. */
typedef struct script {
    uint64_t random;
    int32_t rank, size;
    uint32_t number;
    size_t used; /* bytes of the part since the last quiet */
} script;

static script script_of(int32_t rank, int32_t size)
{
    return (script){.random = 99991 * (uint64_t)(rank + 1) + (uint64_t)size, .rank = rank, .size = size};
}

static uint32_t draw(script *s, uint32_t below)
{
    s->random = s->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(s->random >> 33) % below;
}

/* Sizes around words, and around the pieces and messages that carry them. */
static size_t draw_bytes(script *s)
{
    static const size_t sizes[] = {1, 4, 7, 8, 100, 4096, 65471, 65473, 131072, 131080, 200000};
    return sizes[draw(s, ARRAY_LENGTH(sizes))];
}

static step step_next(script *s)
{
    step next = {.what = (step_kind)draw(s, STEP_KINDS),
                 .pe = (int32_t)draw(s, (uint32_t)s->size),
                 .kind = (expar_memory_kind)draw(s, KINDS),
                 .caller = (caller_memory)draw(s, CALLERS),
                 .bytes = draw_bytes(s),
                 .seed = (uint32_t)s->rank * STEPS + s->number++};
    if (next.what == IPUT || next.what == IGET) next.bytes = 24 * (1 + next.bytes % 20);
    next.quiets = s->used + next.bytes > PART_BYTES || draw(s, 8) == 0;
    if (next.quiets) s->used = 0;
    next.at = s->used;
    /* Elements are aligned. */
    s->used += (next.bytes + 7) / 8 * 8;
    if (s->used > PART_BYTES) s->used = PART_BYTES;
    return next;
}

/* Strided steps move every second element of 4 bytes there, and every third one here. */
#define STRIDED_COUNT(bytes) ((bytes) / 12)

static void apply(const step *one, uint8_t *part)
{
    for (size_t i = 0; i < one->bytes && one->what != IPUT; i++)
        part[one->at + i] = pattern(one->seed, i);
    for (size_t i = 0; i < STRIDED_COUNT(one->bytes) && one->what == IPUT; i++)
        for (size_t b = 0; b < 4; b++)
            part[one->at + i * 8 + b] = pattern(one->seed, i * 12 + b);
}

/* ---- scripts that run -------------------------------------------------------------------------------------------- */

static bool gets(const step *one)
{
    return one->what == GET || one->what == GET_NBI || one->what == IGET;
}

static void run_put(expar_group *group, const memories *m, const step *one, expar_ctx *ctx)
{
    uint8_t *to = m->blocks[one->kind] + (size_t)group->rank * PART_BYTES + one->at;
    uint8_t *from = m->callers[one->caller] + one->at;
    fill_block(group, kind_of_caller(one->caller), from, one->bytes, one->seed);
    if (one->what == PUT) CHECK_OK(expar_put(group, to, from, one->bytes, one->pe));
    if (one->what == PUT_NBI) CHECK_OK(expar_put_nbi(group, to, from, one->bytes, one->pe));
    if (one->what == PUT_CTX) CHECK_OK(expar_ctx_put_nbi(ctx, to, from, one->bytes, one->pe));
    if (one->what == IPUT)
        CHECK_OK(expar_iput_u32(group, (uint32_t *)(void *)to, (uint32_t *)(void *)from, 2, 3,
                                STRIDED_COUNT(one->bytes), one->pe));
}

/* No call changes the source of a get. So the bytes are known. */
static void run_get(expar_group *group, const memories *m, const step *one)
{
    const uint32_t seed = (uint32_t)one->pe * KINDS + one->kind;
    const uint8_t *from = m->fixed[one->kind];
    uint8_t *to = m->callers[one->caller] + one->at, *got = malloc(one->bytes);
    size_t wrong = 0;
    if (one->what == GET) CHECK_OK(expar_get(group, to, from, one->bytes, one->pe));
    if (one->what == GET_NBI) CHECK_OK(expar_get_nbi(group, to, from, one->bytes, one->pe));
    if (one->what == IGET)
        CHECK_OK(expar_iget_u32(group, (uint32_t *)(void *)to, (const uint32_t *)(const void *)from, 3, 2,
                                STRIDED_COUNT(one->bytes), one->pe));
    CHECK_OK(expar_quiet(group));
    read_from(group, kind_of_caller(one->caller), to, got, one->bytes);
    for (size_t i = 0; i < one->bytes && one->what != IGET; i++)
        wrong += got[i] != pattern(seed, i);
    for (size_t i = 0; i < STRIDED_COUNT(one->bytes) && one->what == IGET; i++)
        for (size_t b = 0; b < 4; b++)
            wrong += got[i * 12 + b] != pattern(seed, i * 8 + b);
    CHECK(wrong == 0, "get of %zu bytes from %s memory of rank %d to %s memory: %zu are wrong", one->bytes,
          kind_names[one->kind], one->pe, caller_names[one->caller], wrong);
    free(got);
}

static void run_add(expar_group *group, const memories *m, const step *one)
{
    uint64_t old = 1, *word = &m->counters[one->kind][one->seed % COUNTERS];
    if (one->what == ADD) CHECK_OK(expar_atomic_add_u64(group, word, one->bytes, one->pe));
    if (one->what == FETCH_ADD) CHECK_OK(expar_atomic_fetch_add_u64(group, word, one->bytes, one->pe, &old));
}

static void run_script(expar_group *group, const memories *m, expar_ctx *ctx)
{
    script own = script_of(group->rank, group->size);
    for (uint32_t i = 0; i < STEPS && check_failures() == 0; i++) {
        const step one = step_next(&own);
        if (one.quiets) {
            CHECK_OK(expar_ctx_quiet(ctx));
            CHECK_OK(expar_quiet(group));
        }
        if (gets(&one))
            run_get(group, m, &one);
        else if (one.what < GET)
            run_put(group, m, &one, ctx);
        else
            run_add(group, m, &one);
    }
    CHECK_OK(expar_ctx_quiet(ctx));
    CHECK_OK(expar_barrier_all(group));
}

/* ---- the oracle -------------------------------------------------------------------------------------------------- */

typedef struct expected {
    uint8_t *blocks[KINDS];
    uint64_t counters[KINDS][COUNTERS];
} expected;

static void expect(const expar_group *group, expected *all)
{
    for (int32_t writer = 0; writer < group->size; writer++) {
        script s = script_of(writer, group->size);
        for (uint32_t i = 0; i < STEPS; i++) {
            const step one = step_next(&s);
            if (one.pe != group->rank || gets(&one)) continue;
            if (one.what < GET)
                apply(&one, all->blocks[one.kind] + (size_t)writer * PART_BYTES);
            else
                all->counters[one.kind][one.seed % COUNTERS] += one.bytes;
        }
    }
}

static void compare(const expar_group *group, const memories *m, const expected *all, int kind)
{
    const size_t bytes = (size_t)group->size * PART_BYTES;
    uint64_t counters[COUNTERS];
    uint8_t *held = malloc(bytes);
    size_t wrong = 0, first = bytes;
    read_from(group, (expar_memory_kind)kind, m->blocks[kind], held, bytes);
    for (size_t i = 0; i < bytes; i++) {
        if (held[i] == all->blocks[kind][i]) continue;
        if (wrong++ == 0) first = i;
    }
    CHECK(wrong == 0, "%zu bytes of %s memory are wrong, the first one at %zu of the part of rank %zu", wrong,
          kind_names[kind], first % PART_BYTES, first / PART_BYTES);
    read_from(group, (expar_memory_kind)kind, m->counters[kind], counters, sizeof counters);
    for (int i = 0; i < COUNTERS; i++)
        CHECK(counters[i] == all->counters[kind][i], "counter %d in %s memory is %llu, expected %llu", i,
              kind_names[kind], (unsigned long long)counters[i], (unsigned long long)all->counters[kind][i]);
    free(held);
}

static void random_script(expar_group *group, void *shared)
{
    (void)shared;
    memories m;
    expected all = {{NULL}, {{0}}};
    expar_team *world;
    expar_ctx *ctx;
    if (!memories_take(group, &m)) return;
    CHECK_OK(expar_team_get_world(group, &world));
    if (!CHECK_OK(expar_ctx_create(world, NULL, &ctx))) return;
    for (int k = 0; k < KINDS; k++)
        all.blocks[k] = calloc((size_t)group->size, PART_BYTES);
    expect(group, &all);
    CHECK_OK(expar_barrier_all(group));
    run_script(group, &m, ctx);
    for (int k = 0; k < KINDS; k++) {
        compare(group, &m, &all, k);
        free(all.blocks[k]);
    }
    CHECK_OK(expar_ctx_destroy(ctx));
    memories_give(group, &m);
}

/* ---- signals ----------------------------------------------------------------------------------------------------- */

static void check_data(const expar_group *group, int kind, const uint8_t *data, size_t bytes, uint32_t seed)
{
    holds_pattern(group, (expar_memory_kind)kind, data, bytes, seed);
}

/* Data of each kind from each memory of the caller, with a signal of each kind, to the next rank. Who sees the signal
   sees the data. */
static void signals(expar_group *group, void *shared)
{
    (void)shared;
    static const size_t sizes[] = {0, 8, 1001, 140000};
    memories m;
    uint64_t rounds[KINDS] = {0}, fetched = 0;
    const int32_t next = (group->rank + 1) % group->size, last = (group->rank + group->size - 1) % group->size;
    if (!memories_take(group, &m)) return;
    CHECK_OK(expar_barrier_all(group));
    for (uint32_t round = 0; round < KINDS * KINDS * CALLERS * 2 && check_failures() == 0; round++) {
        const int data = (int)(round % KINDS), signal = (int)(round / KINDS % KINDS);
        const caller_memory caller = (caller_memory)(round / KINDS / KINDS % CALLERS);
        const bool adds = round / KINDS / KINDS / CALLERS;
        const size_t bytes = sizes[round % ARRAY_LENGTH(sizes)];
        uint64_t *word = m.counters[signal], seen = 0;
        fill_block(group, kind_of_caller(caller), m.callers[caller], bytes + 1, round + 1000 * (uint32_t)group->rank);
        rounds[signal]++;
        CHECK_OK((round % 2 ? expar_put_signal : expar_put_signal_nbi)(
            group, m.blocks[data], m.callers[caller], bytes, word, adds ? 1 : rounds[signal],
            adds ? EXPAR_SIGNAL_ADD : EXPAR_SIGNAL_SET, next));
        CHECK_OK(expar_signal_wait_until(group, word, EXPAR_CMP_GE, rounds[signal], &seen));
        CHECK(seen == rounds[signal], "the signal is %llu", (unsigned long long)seen);
        CHECK_OK(expar_signal_fetch(group, word, &fetched));
        CHECK(fetched == seen, "fetched %llu", (unsigned long long)fetched);
        check_data(group, data, m.blocks[data], bytes, round + 1000 * (uint32_t)last);
        CHECK_OK(expar_barrier_all(group));
    }
    memories_give(group, &m);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void run(ranks_body body, int32_t size)
{
    kind_run((ranks_plan){0}, size, body);
}

static void test_random_scripts(void **state)
{
    (void)state;
    run(random_script, 1);
    run(random_script, 2);
    run(random_script, 4);
}

static void test_signals(void **state)
{
    (void)state;
    run(signals, 1);
    run(signals, 3);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_scripts),
        cmocka_unit_test(test_signals),
    };
    kind_read(argc, argv);
    num_gpus = gpus_count(1);
    if (num_gpus < 1) return GPUS_SKIP;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
