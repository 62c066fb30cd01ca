/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives of teams on memory of all kinds: each dest with each memory of the caller as source. Ranks and ways as in
 * test_kinds_calls.c. */
#include "pgas/callers.h"

#define DEST_BYTES   ((size_t)900000)
#define SOURCE_BYTES ((size_t)900000)

typedef struct bench {
    expar_group *group;
    expar_team *team;
    int32_t me, size;
    uint8_t *dests[KINDS];
    uint8_t *sources[CALLERS];
    /* of the present round; alike on all members but for the seed */
    int kind;
    caller_memory caller;
    uint32_t seed;
    uint8_t *dest, *source, *expected;
} bench;

static bool bench_take(bench *b)
{
    for (int k = 0; k < KINDS; k++)
        if (!(b->dests[k] = take(b->group, (expar_memory_kind)k, DEST_BYTES, 0))) return false;
    b->expected = malloc(DEST_BYTES);
    return callers_take(b->group, b->sources, SOURCE_BYTES);
}

static void bench_give(bench *b)
{
    for (int k = 0; k < KINDS; k++)
        CHECK_OK(expar_free(b->group, b->dests[k]));
    callers_give(b->group, b->sources);
    free(b->expected);
}

/* The seed of a member's source. */
static uint32_t seed_of(const bench *b, int32_t member)
{
    return b->seed * 64 + (uint32_t)member;
}

/* Fills dest with bytes that no result has, and this member's source. */
static void round_begin(bench *b, uint32_t seed, int kind, caller_memory caller, size_t bytes)
{
    b->seed = seed;
    b->kind = kind;
    b->caller = caller;
    b->dest = b->dests[kind];
    b->source = b->sources[caller];
    memset(b->expected, 0xee, DEST_BYTES);
    write_to(b->group, (expar_memory_kind)kind, b->dest, b->expected, DEST_BYTES);
    if (bytes > 0) fill_block(b->group, kind_of_caller(caller), b->source, bytes, seed_of(b, b->me));
    CHECK_OK(expar_team_sync(b->team));
}

static void round_end(const bench *b, const char *call, size_t bytes)
{
    uint8_t *held = malloc(DEST_BYTES);
    size_t wrong = 0, first = 0;
    read_from(b->group, (expar_memory_kind)b->kind, b->dest, held, DEST_BYTES);
    for (size_t i = 0; i < DEST_BYTES; i++)
        if (held[i] != b->expected[i] && wrong++ == 0) first = i;
    CHECK(wrong == 0, "%s of %zu bytes from %s to %s memory: %zu are wrong, the first one at %zu", call, bytes,
          caller_names[b->caller], kind_names[b->kind], wrong, first);
    free(held);
    CHECK_OK(expar_team_sync(b->team));
}

static void expect_bytes(const bench *b, size_t at, int32_t member, size_t from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        b->expected[at + i] = pattern(seed_of(b, member), from + i);
}

/* ---- the collectives --------------------------------------------------------------------------------------------- */

/* Only symmetric memory is a source here. */
static void run_broadcast(bench *b, size_t bytes)
{
    const int32_t root = (int32_t)(b->seed % (uint32_t)b->size);
    if (b->caller == ORDINARY || b->caller == OUTSIDE) return;
    CHECK_OK(expar_broadcast(b->team, b->dest, b->source, bytes, root));
    expect_bytes(b, 0, root, 0, bytes);
    round_end(b, "broadcast", bytes);
}

static void run_fcollect(bench *b, size_t bytes)
{
    CHECK_OK(expar_fcollect(b->team, b->dest, b->source, bytes));
    for (int32_t m = 0; m < b->size; m++)
        expect_bytes(b, (size_t)m * bytes, m, 0, bytes);
    round_end(b, "fcollect", bytes);
}

static void run_collect(bench *b, size_t bytes)
{
    size_t at = 0;
    CHECK_OK(expar_collect(b->team, b->dest, b->source, bytes / (size_t)(b->me + 1)));
    for (int32_t m = 0; m < b->size; m++) {
        expect_bytes(b, at, m, 0, bytes / (size_t)(m + 1));
        at += bytes / (size_t)(m + 1);
    }
    round_end(b, "collect", bytes);
}

static void run_alltoall(bench *b, size_t bytes)
{
    CHECK_OK(expar_alltoall(b->team, b->dest, b->source, bytes));
    for (int32_t m = 0; m < b->size; m++)
        expect_bytes(b, (size_t)m * bytes, m, (size_t)b->me * bytes, bytes);
    round_end(b, "alltoall", bytes);
}

/* Every second element of 4 bytes in dest, and every third one in source. */
static void run_alltoalls(bench *b, size_t bytes)
{
    const size_t count = bytes / 12 < 20 ? bytes / 12 : 20;
    CHECK_OK(expar_alltoalls(b->team, b->dest, b->source, 2, 3, 4, count));
    for (int32_t m = 0; m < b->size; m++)
        for (size_t i = 0; i < count; i++)
            expect_bytes(b, ((size_t)m * count + i) * 8, m, ((size_t)b->me * count + i) * 12, 4);
    round_end(b, "alltoalls", bytes);
}

static void run_reduction(bench *b, size_t bytes)
{
    const size_t count = bytes / 8;
    CHECK_OK(
        expar_sum_reduce_u64(b->team, (uint64_t *)(void *)b->dest, (const uint64_t *)(const void *)b->source, count));
    for (size_t i = 0; i < count; i++) {
        uint64_t sum = 0;
        for (int32_t m = 0; m < b->size; m++) {
            uint64_t word = 0;
            for (size_t k = 0; k < 8; k++)
                word |= (uint64_t)pattern(seed_of(b, m), i * 8 + k) << 8 * k;
            sum += word;
        }
        memcpy(b->expected + i * 8, &sum, sizeof sum);
    }
    round_end(b, "sum", bytes);
}

typedef void (*collective_run)(bench *b, size_t bytes);
static const collective_run runs[] = {run_broadcast, run_fcollect,  run_collect,
                                      run_alltoall,  run_alltoalls, run_reduction};

/* Small, some pieces, and so large that members fetch from their leader. Each pair of memories meets two sizes in each
   collective, and all sizes in several of them. */
static size_t size_of_round(uint32_t pass, uint32_t run, uint32_t kind, uint32_t caller)
{
    static const size_t sizes[] = {0, 8, 1000, 20000, 150000};
    const uint32_t step = pass == 0 ? caller + kind + run : caller + 2 * kind + 3 * run + 2;
    return sizes[step % ARRAY_LENGTH(sizes)];
}

static void run_all(bench *b)
{
    uint32_t seed = 1;
    for (uint32_t i = 0; i < 2 * ARRAY_LENGTH(runs); i++)
        for (int kind = 0; kind < KINDS; kind++)
            for (int caller = 0; caller < CALLERS && check_failures() == 0; caller++) {
                const uint32_t run = i / 2;
                const size_t bytes = size_of_round(i % 2, run, (uint32_t)kind, (uint32_t)caller);
                round_begin(b, seed++, kind, (caller_memory)caller, bytes * (size_t)b->size);
                runs[run](b, bytes);
            }
}

static void collectives(expar_group *group, void *shared)
{
    (void)shared;
    expar_team *world, *half = NULL;
    if (!CHECK_OK(expar_team_get_world(group, &world))) return;
    bench b = {.group = group, .team = world, .me = group->rank, .size = group->size};
    if (!bench_take(&b)) return;
    run_all(&b);
    if (group->size > 2 && CHECK_OK(expar_team_split_strided(world, 0, 2, (group->size + 1) / 2, NULL, &half)) &&
        half) {
        b.team = half;
        b.me = group->rank / 2;
        b.size = (group->size + 1) / 2;
        run_all(&b);
    }
    CHECK_OK(expar_barrier_all(group));
    bench_give(&b);
}

/* dest may be source, and a reduction of the caller's own gets memory of the host. */
static void add_bytes(void *into, const void *from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        ((uint8_t *)into)[i] = (uint8_t)(((uint8_t *)into)[i] + ((const uint8_t *)from)[i]);
}

static void in_place(expar_group *group, void *shared)
{
    (void)shared;
    enum { BYTES = 100000 };
    expar_team *world;
    if (!CHECK_OK(expar_team_get_world(group, &world))) return;
    for (int k = 0; k < KINDS; k++) {
        uint8_t *block = take(group, (expar_memory_kind)k, BYTES, 0), *held = malloc(BYTES);
        size_t wrong = 0;
        if (!block) return;
        fill_block(group, (expar_memory_kind)k, block, BYTES, (uint32_t)group->rank);
        CHECK_OK(expar_team_sync(world));
        CHECK_OK(expar_reduce(world, block, block, BYTES, 1, add_bytes));
        read_from(group, (expar_memory_kind)k, block, held, BYTES);
        for (size_t i = 0; i < BYTES; i++) {
            uint8_t sum = 0;
            for (int32_t m = 0; m < group->size; m++)
                sum = (uint8_t)(sum + pattern((uint32_t)m, i));
            wrong += held[i] != sum;
        }
        CHECK(wrong == 0, "%zu sums in %s memory are wrong", wrong, kind_names[k]);
        free(held);
        CHECK_OK(expar_free(group, block));
    }
}

static void bad_input(expar_group *group, void *shared)
{
    (void)shared;
    expar_team *world;
    uint8_t local[64] = {0}, *device = take_zeros(group, EXPAR_MEMORY_DEVICE, 4096);
    if (!device || !CHECK_OK(expar_team_get_world(group, &world))) return;
    void *outside = take_outside(group, 4096);
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_fcollect(world, local, device, 8));
    CHECK_TEXT("expar_fcollect: dest");
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_fcollect(world, outside, device, 8));
    CHECK_TEXT("is memory of a GPU, and not this rank's symmetric device memory");
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_broadcast(world, device, outside, 8, 0));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_alltoall(world, device, local, (size_t)1 << 40));
    CHECK_TEXT("leaves the symmetric device memory");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_fcollect(world, device, NULL, 8));
    CHECK_OK(expar_fcollect(world, device, device + 2048, 8));
    give_outside(group, outside);
    CHECK_OK(expar_free(group, device));
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void test_collectives(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, collectives);
    kind_run((ranks_plan){0}, 2, collectives);
    kind_run((ranks_plan){0}, 4, collectives);
}

static void test_in_place(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 3, in_place);
    kind_run((ranks_plan){0}, 4, in_place);
}

static void test_bad_input(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, bad_input);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collectives),
        cmocka_unit_test(test_in_place),
        cmocka_unit_test(test_bad_input),
    };
    kind_read(argc, argv);
    num_gpus = gpus_count(1);
    if (num_gpus < 1) return GPUS_SKIP;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
