/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives over teams of several shapes, with sizes around every change of algorithm, against plain loops. */
#include "shmem/kind.h"

#define AREA_BYTES ((size_t)2 << 20)
static const size_t sizes[] = {0, 1, 8, 1000, 16384, 100008};

/* One team under test, and the areas that its collectives use. */
typedef struct stage {
    expar_group *group;
    expar_team *team;
    int32_t me, size;
    const char *what;
    uint8_t *dest, *source;
} stage;

/* Byte i that member `from` has for member `to` in round `salt`. */
static uint8_t pattern(int32_t from, int32_t to, size_t salt, size_t i)
{
    return (uint8_t)(i * 7 + i / 251 + (size_t)from * 31 + (size_t)to * 57 + salt * 13 + 1);
}

static void fill(uint8_t *at, size_t bytes, int32_t from, int32_t to, size_t salt)
{
    for (size_t i = 0; i < bytes; i++)
        at[i] = pattern(from, to, salt, i);
}

static bool filled(const uint8_t *at, size_t bytes, int32_t from, int32_t to, size_t salt)
{
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != pattern(from, to, salt, i)) return false;
    return true;
}

/* dest is ready on all members. */
static void prepare(stage *s)
{
    memset(s->dest, 0xee, AREA_BYTES);
    CHECK_OK(expar_team_sync(s->team));
}

static bool untouched(const uint8_t *at)
{
    for (size_t i = 0; i < 64; i++)
        if (at[i] != 0xee) return false;
    return true;
}

static void check_broadcast(stage *s, size_t bytes)
{
    for (int32_t root = 0; root < s->size; root++) {
        prepare(s);
        fill(s->source, bytes, s->me, 0, bytes);
        CHECK_OK(expar_broadcast(s->team, s->dest, s->source, bytes, root));
        CHECK(filled(s->dest, bytes, root, 0, bytes), "%s: broadcast of %zu from %d", s->what, bytes, root);
        CHECK(untouched(s->dest + bytes), "%s: broadcast of %zu: behind", s->what, bytes);
        prepare(s);
        CHECK_OK(expar_broadcast_others(s->team, s->dest, s->source, bytes, root));
        CHECK(s->me == root ? untouched(s->dest) : filled(s->dest, bytes, root, 0, bytes),
              "%s: broadcast to others of %zu from %d", s->what, bytes, root);
    }
}

static void check_fcollect(stage *s, size_t bytes)
{
    prepare(s);
    fill(s->source, bytes, s->me, 0, bytes);
    CHECK_OK(expar_fcollect(s->team, s->dest, s->source, bytes));
    for (int32_t from = 0; from < s->size; from++)
        CHECK(filled(s->dest + (size_t)from * bytes, bytes, from, 0, bytes), "%s: fcollect of %zu from %d", s->what,
              bytes, from);
    CHECK(untouched(s->dest + (size_t)s->size * bytes), "%s: fcollect of %zu: behind", s->what, bytes);
}

/* Members give different amounts, some nothing. */
static void check_collect(stage *s, size_t bytes)
{
    size_t at = 0, mine = bytes * (size_t)(s->me % 3) + (size_t)s->me;
    prepare(s);
    fill(s->source, mine, s->me, 0, bytes);
    CHECK_OK(expar_collect(s->team, s->dest, s->source, mine));
    for (int32_t from = 0; from < s->size; from++) {
        size_t theirs = bytes * (size_t)(from % 3) + (size_t)from;
        CHECK(filled(s->dest + at, theirs, from, 0, bytes), "%s: collect of %zu from %d", s->what, theirs, from);
        at += theirs;
    }
    CHECK(untouched(s->dest + at), "%s: collect of %zu in all: behind", s->what, at);
}

static void check_alltoall(stage *s, size_t bytes)
{
    prepare(s);
    for (int32_t to = 0; to < s->size; to++)
        fill(s->source + (size_t)to * bytes, bytes, s->me, to, bytes);
    CHECK_OK(expar_alltoall(s->team, s->dest, s->source, bytes));
    for (int32_t from = 0; from < s->size; from++)
        CHECK(filled(s->dest + (size_t)from * bytes, bytes, from, s->me, bytes), "%s: alltoall of %zu from %d", s->what,
              bytes, from);
    CHECK(untouched(s->dest + (size_t)s->size * bytes), "%s: alltoall of %zu: behind", s->what, bytes);
}

/* Elements of 2 bytes, every third to every second place; the places between stay. */
static void check_alltoalls(stage *s, size_t count)
{
    uint16_t *dest = (uint16_t *)s->dest, *source = (uint16_t *)s->source;
    size_t all = (size_t)s->size * count, wrong = 0;
    prepare(s);
    for (size_t i = 0; i < all; i++)
        source[3 * i] = (uint16_t)(i * 5 + (size_t)s->me * 1000);
    CHECK_OK(expar_alltoalls(s->team, dest, source, 2, 3, sizeof *dest, count));
    for (size_t i = 0; i < all; i++) {
        size_t from = i / count, there = (size_t)s->me * count + i % count;
        wrong += dest[2 * i] != (uint16_t)(there * 5 + from * 1000);
        wrong += dest[2 * i + 1] != 0xeeee;
    }
    CHECK(wrong == 0, "%s: alltoalls of %zu: %zu wrong", s->what, count, wrong);
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

/* Values that keep every sum and product exact, so that plain C gives the same bits. */
static int value_of(int32_t member, size_t i)
{
    return (int)((i * 3 + (size_t)member * 5) % 4) - 1;
}

#define CHECK_REDUCE(T, S, name, expression)                                                                           \
    static void check_##name##_##S(stage *s, size_t count, bool in_place)                                              \
    {                                                                                                                  \
        T *dest = (T *)(void *)s->dest, *source = in_place ? dest : (T *)(void *)s->source;                            \
        size_t wrong = 0;                                                                                              \
        prepare(s);                                                                                                    \
        for (size_t i = 0; i < count; i++)                                                                             \
            source[i] = (T)value_of(s->me, i);                                                                         \
        if (in_place) CHECK_OK(expar_team_sync(s->team));                                                              \
        CHECK_OK(expar_##name##_reduce_##S(s->team, dest, source, count));                                             \
        for (size_t i = 0; i < count; i++) {                                                                           \
            T a = (T)value_of(0, i);                                                                                   \
            for (int32_t member = 1; member < s->size; member++) {                                                     \
                T b = (T)value_of(member, i);                                                                          \
                a = (T)(expression);                                                                                   \
            }                                                                                                          \
            wrong += dest[i] != a;                                                                                     \
        }                                                                                                              \
        CHECK(wrong == 0, "%s: " #name " of %zu " #S ": %zu wrong", s->what, count, wrong);                            \
        CHECK(untouched((const uint8_t *)(dest + count)), "%s: " #name " of %zu " #S ": behind", s->what, count);      \
    }
#define CHECK_BITS(T, S)                                                                                               \
    CHECK_REDUCE(T, S, and, a &b)                                                                                      \
    CHECK_REDUCE(T, S, or, a | b)                                                                                      \
    CHECK_REDUCE(T, S, xor, a ^ b)
#define CHECK_NUMBERS(T, S)                                                                                            \
    CHECK_REDUCE(T, S, min, a < b ? a : b)                                                                             \
    CHECK_REDUCE(T, S, max, a > b ? a : b)                                                                             \
    CHECK_REDUCE(T, S, sum, a + b)                                                                                     \
    CHECK_REDUCE(T, S, prod, a *b)
EXPAR_INTEGER_TYPES(CHECK_BITS)
EXPAR_DATA_TYPES(CHECK_NUMBERS)

static void check_reductions(stage *s, size_t count, bool in_place)
{
#define RUN_BITS(T, S)                                                                                                 \
    check_and_##S(s, count, in_place);                                                                                 \
    check_or_##S(s, count, in_place);                                                                                  \
    check_xor_##S(s, count, in_place);
#define RUN_NUMBERS(T, S)                                                                                              \
    check_min_##S(s, count, in_place);                                                                                 \
    check_max_##S(s, count, in_place);                                                                                 \
    check_sum_##S(s, count, in_place);                                                                                 \
    check_prod_##S(s, count, in_place);
    EXPAR_INTEGER_TYPES(RUN_BITS)
    EXPAR_DATA_TYPES(RUN_NUMBERS)
}

/* The node of a member, as far as memory is mapped: else each is alone. */
static int32_t node_of(const stage *s, int32_t member)
{
    expar_team *world;
    int32_t rank = 0;
    CHECK_OK(expar_team_get_world(s->group, &world));
    CHECK_OK(expar_team_translate_pe(s->team, member, world, &rank));
    return s->group->sym->some_mapped ? s->group->nodes[rank] : rank;
}

static float fraction_of(int32_t member, size_t i)
{
    return 1.0f / (float)(i + 1 + 7 * (size_t)member);
}

/* Members of a node in their order, then the nodes in theirs. */
static float rounded_sum(const stage *s, const int32_t *nodes, size_t i)
{
    float all = 0;
    for (int32_t first = 0, end; first < s->size; first = end) {
        float of_node = fraction_of(first, i);
        for (end = first + 1; end < s->size && nodes[end] == nodes[first]; end++)
            of_node += fraction_of(end, i);
        all = first == 0 ? of_node : all + of_node;
    }
    return all;
}

/* Sums that do round: their order is fixed, so all members have the same bits. */
static void check_rounding(stage *s, size_t count)
{
    float *dest = (float *)(void *)s->dest, *source = (float *)(void *)s->source;
    int32_t nodes[32];
    size_t wrong = 0;
    prepare(s);
    for (int32_t member = 0; member < s->size; member++)
        nodes[member] = node_of(s, member);
    for (size_t i = 0; i < count; i++)
        source[i] = fraction_of(s->me, i);
    CHECK_OK(expar_sum_reduce_f32(s->team, dest, source, count));
    for (size_t i = 0; i < count; i++)
        wrong += dest[i] != rounded_sum(s, nodes, i);
    CHECK(wrong == 0, "%s: %zu sums of %zu differ in their bits", s->what, wrong, count);
}

typedef struct pair {
    double value;
    int64_t where;
} pair;

static void keep_larger(void *into, const void *from, size_t count)
{
    pair *a = into;
    const pair *b = from;
    for (size_t i = 0; i < count; i++)
        if (b[i].value > a[i].value) a[i] = b[i];
}

static void check_own_operation(stage *s, size_t count)
{
    pair *dest = (pair *)(void *)s->dest, *source = (pair *)(void *)s->source;
    size_t wrong = 0;
    prepare(s);
    for (size_t i = 0; i < count; i++)
        source[i] = (pair){(double)((i + (size_t)s->me) % (size_t)s->size), s->me};
    CHECK_OK(expar_reduce(s->team, dest, source, count, sizeof(pair), keep_larger));
    for (size_t i = 0; i < count; i++) {
        int64_t where = (int64_t)(((size_t)s->size - 1 + (size_t)s->size - i % (size_t)s->size) % (size_t)s->size);
        wrong += dest[i].value != s->size - 1 || dest[i].where != where;
    }
    CHECK(wrong == 0, "%s: an operation of one's own: %zu of %zu wrong", s->what, wrong, count);
}

/* ---- over all kinds of teams ------------------------------------------------------------------------------------- */

static void run_all(stage *s)
{
    s->me = expar_team_my_pe(s->team);
    s->size = expar_team_n_pes(s->team);
    for (size_t i = 0; i < ARRAY_LENGTH(sizes) && check_failures() == 0; i++) {
        check_broadcast(s, sizes[i]);
        check_fcollect(s, sizes[i]);
        check_collect(s, sizes[i]);
        check_alltoall(s, sizes[i]);
    }
    check_alltoalls(s, 1);
    check_alltoalls(s, 777);
    check_reductions(s, 0, false);
    check_reductions(s, 1, true);
    check_reductions(s, 1003, false);
    check_rounding(s, 5);
    check_rounding(s, 60001);
    check_own_operation(s, 11);
    check_own_operation(s, 20011);
}

static void collectives(expar_group *group, void *shared)
{
    (void)shared;
    expar_team *world, *back, *even, *formed;
    stage s = {.group = group};
    CHECK_OK(expar_malloc(group, AREA_BYTES, (void **)&s.dest));
    CHECK_OK(expar_malloc(group, AREA_BYTES, (void **)&s.source));
    CHECK_OK(expar_team_get_world(group, &world));
    s.team = world;
    s.what = "world";
    run_all(&s);
    check_reductions(&s, 40009, true);
    CHECK_OK(expar_team_split_strided(world, group->size - 1, -1, group->size, NULL, &back));
    CHECK_OK(expar_team_split_strided(world, 0, 2, (group->size + 1) / 2, NULL, &even));
    CHECK_OK(expar_team_form(group, 0, 1, (group->size + 1) / 2, &formed));
    s.team = back;
    s.what = "backwards";
    run_all(&s);
    s.team = even;
    s.what = "even";
    if (even) run_all(&s);
    s.team = formed;
    s.what = "formed";
    if (formed) run_all(&s);
    CHECK_OK(expar_team_destroy(formed));
    CHECK_OK(expar_team_destroy(even));
    CHECK_OK(expar_team_destroy(back));
}

static void test_collectives(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 4, collectives);
    if (netns_on()) return;
    kind_run((ranks_plan){0}, 1, collectives);
    kind_run((ranks_plan){0}, 5, collectives);
}

/* More members than combine everything themselves, and pieces of few elements. */
static void many_members(expar_group *group, void *shared)
{
    (void)shared;
    stage s = {.group = group, .what = "many"};
    CHECK_OK(expar_malloc(group, AREA_BYTES, (void **)&s.dest));
    CHECK_OK(expar_malloc(group, AREA_BYTES, (void **)&s.source));
    CHECK_OK(expar_team_get_world(group, &s.team));
    s.me = group->rank;
    s.size = group->size;
    check_broadcast(&s, 1000);
    check_fcollect(&s, 100);
    check_collect(&s, 100);
    check_alltoall(&s, 64);
    check_sum_i32(&s, 3, false);
    check_sum_f64(&s, 5000, true);
}

static void test_many_members(void **state)
{
    (void)state;
    if (!netns_on()) kind_run((ranks_plan){.heap_bytes = (size_t)8 << 20}, 18, many_members);
}

/* Many in a row without a sync between them, roots and kinds changing, on the same memory: nothing may overtake. */
static void in_a_row(expar_group *group, void *shared)
{
    (void)shared;
    enum { ROUNDS = 400, WORDS = 33 };
    const int64_t rounds = (int64_t)netns_rounds(ROUNDS);
    expar_team *world;
    int64_t *in, *out, *all, wrong = 0;
    CHECK_OK(expar_team_get_world(group, &world));
    CHECK_OK(expar_calloc(group, WORDS, sizeof *in, (void **)&in));
    CHECK_OK(expar_calloc(group, ROUNDS * WORDS, sizeof *out, (void **)&out));
    CHECK_OK(expar_calloc(group, (size_t)group->size * ROUNDS, sizeof *all, (void **)&all));
    for (int64_t round = 0; round < rounds; round++) {
        int64_t *result = &out[round * WORDS];
        for (int i = 0; i < WORDS; i++)
            in[i] = round * 100 + i + group->rank;
        if (round % 3 == 0)
            CHECK_OK(expar_sum_reduce_i64(world, result, in, WORDS));
        else
            CHECK_OK(expar_broadcast(world, result, in, WORDS * sizeof *in, (int32_t)(round % group->size)));
        CHECK_OK(expar_fcollect(world, &all[round * group->size], &round, sizeof round));
    }
    for (int64_t round = 0; round < rounds; round++)
        for (int i = 0; i < WORDS; i++) {
            int64_t one = round * 100 + i, n = group->size;
            wrong += out[round * WORDS + i] != (round % 3 == 0 ? n * one + n * (n - 1) / 2 : one + round % n);
            wrong += all[round * n + i % n] != round;
        }
    CHECK(wrong == 0, "%lld words are wrong", (long long)wrong);
}

static void test_in_a_row(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 4, in_a_row);
    kind_run((ranks_plan){0}, 3, in_a_row);
}

/* ---- rejections -------------------------------------------------------------------------------------------------- */

static void rejections(expar_group *group, void *shared)
{
    (void)shared;
    expar_team *world, *gone;
    uint64_t *box, local[4] = {0};
    CHECK_OK(expar_calloc(group, 4, sizeof *box, (void **)&box));
    CHECK_OK(expar_team_get_world(group, &world));
    CHECK_OK(expar_team_split_strided(world, 0, 1, group->size, NULL, &gone));
    CHECK_OK(expar_team_destroy(gone));
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_broadcast(gone, box, box + 1, 8, 0));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_broadcast(NULL, box, box + 1, 8, 0));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_broadcast(world, NULL, box + 1, 8, 0));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_broadcast(world, box, NULL, 8, 0));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_broadcast(world, local, box, 8, 0));
    CHECK_TEXT("expar_broadcast", "dest", "symmetric heap");
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_broadcast(world, box, local, 8, 0));
    CHECK_STATUS(EXPAR_ERR_RANGE, expar_broadcast(world, box, box + 1, 8, 2));
    CHECK_TEXT("root 2", "0 to 1");
    CHECK_STATUS(EXPAR_ERR_RANGE, expar_broadcast_others(world, box, box + 1, 0, -1));
    CHECK_TEXT("expar_broadcast_others", "root -1", "0 to 1");
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_fcollect(world, box, local, SIZE_MAX / 2 + 1));
    CHECK_TEXT("expar_fcollect", "bytes 9223372036854775808", "at most 9223372036854775807");
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_fcollect(world, box, local, RANKS_HEAP_BYTES));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_collect(world, box, NULL, 8));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_collect(world, local, box, 8)); /* found by all, after the sizes */
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_alltoalls(world, box, local, 0, 1, 8, 1));
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_alltoalls(world, box, local, 1, -1, 8, 1));
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_alltoalls(world, box, local, PTRDIFF_MAX, 1, 8, 2));
    CHECK_TEXT("expar_alltoalls", "dest_stride 9223372036854775807", "at most 2305843009213693951");
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_alltoalls(world, box, local, 1, PTRDIFF_MAX, 8, 2));
    CHECK_TEXT("expar_alltoalls", "source_stride 9223372036854775807", "at most 2305843009213693951");
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_alltoalls(world, box, local, 1, 1, 8, SIZE_MAX));
    CHECK_TEXT("expar_alltoalls", "count 18446744073709551615", "at most 9223372036854775807");
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_alltoalls(world, box, local, 1, 8, 8, SIZE_MAX / 64));
    CHECK_TEXT("expar_alltoalls", "count 288230376151711743", "elements of 8 bytes, 64 bytes apart, overflow");
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_alltoall(world, box, local, SIZE_MAX));
    CHECK_TEXT("expar_alltoall", "bytes 18446744073709551615", "at most 9223372036854775807");
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_alltoall(world, local, box, 8));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_sum_reduce_u64(world, box, NULL, 1));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_sum_reduce_u64(world, local, box, 1));
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_sum_reduce_u64(world, box, local, SIZE_MAX / 4));
    CHECK_TEXT("expar_sum_reduce_u64", "count 4611686018427387903", "at most 2305843009213693951");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_reduce(world, box, local, 1, 8, NULL));
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_reduce(world, box, local, 1, 0, keep_larger));
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_reduce(world, box, local, 1, 65, keep_larger));
    CHECK_OK(expar_team_barrier(world));
    CHECK(box[0] == 0 && box[1] == 0, "a refused call has written");
}

static void test_rejections_told(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, rejections);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collectives),
        cmocka_unit_test(test_many_members),
        cmocka_unit_test(test_in_a_row),
        cmocka_unit_test(test_rejections_told),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
