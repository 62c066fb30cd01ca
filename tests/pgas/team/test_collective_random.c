/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives drawn by a seed: kind, team, size, root and place change from call to call, and nobody waits between the
 * calls. Groups of one node and of several, of which teams have equal, unequal and single members; every result is
 * compared with what the definitions give. The heap is small, so that scratch pieces are, and rounds many. */
#include "pgas/team/team.h"
#include "shmem/kind.h"

#include <expar/collective.h>

#define HEAP_BYTES  ((size_t)8 << 20)
#define AREA_BYTES  ((size_t)1 << 20)
#define GUARD_BYTES ((size_t)32)
#define CALLS       150
#define SPLITS      4

/* The same draws on all ranks. */
typedef struct dice {
    uint64_t state;
} dice;

static uint32_t roll(dice *d, uint32_t below)
{
    d->state = d->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((d->state >> 33) % below);
}

/* Arguments of all ranks. */
typedef struct game {
    uint64_t seed;
    const int32_t *nodes; /* [size] what the teams are told; NULL: the truth */
} game;

/* One rank's view. */
typedef struct stage {
    expar_group *group;
    expar_team *world, *splits[SPLITS]; /* NULL: no member */
    uint8_t *area, *source;
    size_t used_bytes; /* of the area: what is in use may still be read, or written by others */
} stage;

/* One call. */
typedef struct turn {
    stage *s;
    expar_team *team;
    int32_t me, size;
    size_t bytes;
    uint32_t salt;
    uint8_t *dest;
    const char *what;
} turn;

/* ---- data -------------------------------------------------------------------------------------------------------- */

/* Byte i of what member `from` has for member `to`. */
static uint8_t byte_of(const turn *t, int32_t from, int32_t to, size_t i)
{
    return (uint8_t)(i * 7 + i / 251 + (size_t)from * 31 + (size_t)to * 57 + t->salt * 13u + 1);
}

static void fill(const turn *t, uint8_t *at, size_t bytes, int32_t to)
{
    for (size_t i = 0; i < bytes; i++)
        at[i] = byte_of(t, t->me, to, i);
}

static void check_bytes(const turn *t, const uint8_t *at, size_t bytes, int32_t from, int32_t to)
{
    size_t wrong = 0;
    for (size_t i = 0; i < bytes; i++)
        wrong += at[i] != byte_of(t, from, to, i);
    CHECK(wrong == 0, "%s of %zu, %d members, salt %u: %zu bytes from %d are wrong", t->what, t->bytes, t->size,
          t->salt, wrong, from);
}

static void check_guard(const turn *t, const uint8_t *at)
{
    size_t wrong = 0;
    for (size_t i = 0; i < GUARD_BYTES; i++)
        wrong += at[i] != 0xee;
    CHECK(wrong == 0, "%s of %zu, %d members: written behind its end", t->what, t->bytes, t->size);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static void broadcast(turn *t, dice *d)
{
    int32_t root = (int32_t)roll(d, (uint32_t)t->size);
    bool in_place = roll(d, 2) == 0, others = roll(d, 2) == 0;
    uint8_t *source = in_place ? t->dest : t->s->source;
    t->what = in_place ? "broadcast in place" : "broadcast";
    if (t->me < 0) return;
    if (!in_place || t->me == root) fill(t, source, t->bytes, 0);
    CHECK_OK((others ? expar_broadcast_others : expar_broadcast)(t->team, t->dest, source, t->bytes, root));
    if (others && !in_place && t->me == root)
        check_guard(t, t->dest);
    else
        check_bytes(t, t->dest, t->bytes, root, 0);
    check_guard(t, t->dest + t->bytes);
}

static void fcollect(turn *t, dice *d)
{
    (void)d;
    t->what = "fcollect";
    if (t->me < 0) return;
    fill(t, t->s->source, t->bytes, 0);
    CHECK_OK(expar_fcollect(t->team, t->dest, t->s->source, t->bytes));
    for (int32_t from = 0; from < t->size; from++)
        check_bytes(t, t->dest + (size_t)from * t->bytes, t->bytes, from, 0);
    check_guard(t, t->dest + (size_t)t->size * t->bytes);
}

/* At most t->bytes, often none. */
static size_t share_of(const turn *t, int32_t member)
{
    uint32_t kind = (t->salt + (uint32_t)member * 7) % 5;
    return kind < 2 ? 0 : kind == 2 ? t->bytes : t->bytes * (size_t)(member % 3) / 3;
}

static void collect(turn *t, dice *d)
{
    size_t at = 0;
    (void)d;
    t->what = "collect";
    if (t->me < 0) return;
    fill(t, t->s->source, share_of(t, t->me), 0);
    CHECK_OK(expar_collect(t->team, t->dest, t->s->source, share_of(t, t->me)));
    for (int32_t from = 0; from < t->size; from++) {
        check_bytes(t, t->dest + at, share_of(t, from), from, 0);
        at += share_of(t, from);
    }
    check_guard(t, t->dest + at);
}

static void alltoall(turn *t, dice *d)
{
    (void)d;
    t->what = "alltoall";
    if (t->me < 0) return;
    for (int32_t to = 0; to < t->size; to++)
        fill(t, t->s->source + (size_t)to * t->bytes, t->bytes, to);
    CHECK_OK(expar_alltoall(t->team, t->dest, t->s->source, t->bytes));
    for (int32_t from = 0; from < t->size; from++)
        check_bytes(t, t->dest + (size_t)from * t->bytes, t->bytes, from, t->me);
    check_guard(t, t->dest + (size_t)t->size * t->bytes);
}

/* Common arguments of a call of alltoalls on all members. */
typedef struct strides {
    size_t element_bytes, count, dest, source;
} strides;

/* Members' elements follow each other; element e of the block for `to` is the (to·count + e)-th. */
static void fill_strided(const turn *t, const strides *s)
{
    for (int32_t to = 0; to < t->size; to++)
        for (size_t i = 0; i < s->count * s->element_bytes; i++) {
            size_t element = (size_t)to * s->count + i / s->element_bytes;
            t->s->source[element * s->source * s->element_bytes + i % s->element_bytes] = byte_of(t, t->me, to, i);
        }
}

static size_t count_wrong(const turn *t, const strides *s, int32_t from)
{
    size_t wrong = 0;
    for (size_t i = 0; i < s->count * s->dest * s->element_bytes; i++) {
        size_t element = i / (s->dest * s->element_bytes), in_step = i % (s->dest * s->element_bytes);
        uint8_t is = t->dest[((size_t)from * s->count * s->dest) * s->element_bytes + i];
        bool gap = in_step >= s->element_bytes;
        wrong += is != (gap ? 0xee : byte_of(t, from, t->me, element * s->element_bytes + in_step));
    }
    return wrong;
}

static void alltoalls(turn *t, dice *d)
{
    static const size_t elements[] = {1, 2, 3, 4, 8, 16, 100};
    strides s = {
        .element_bytes = elements[roll(d, ARRAY_LENGTH(elements))], .dest = 1 + roll(d, 3), .source = 1 + roll(d, 3)};
    s.count = t->bytes / s.element_bytes / 3;
    t->what = "alltoalls";
    if (t->me < 0) return;
    fill_strided(t, &s);
    CHECK_OK(expar_alltoalls(t->team, t->dest, t->s->source, (ptrdiff_t)s.dest, (ptrdiff_t)s.source, s.element_bytes,
                             s.count));
    for (int32_t from = 0; from < t->size; from++) {
        size_t wrong = count_wrong(t, &s, from);
        CHECK(wrong == 0, "alltoalls of %zu times %zu, %d members, strides %zu and %zu: %zu bytes from %d are wrong",
              s.count, s.element_bytes, t->size, s.dest, s.source, wrong, from);
    }
    check_guard(t, t->dest + (size_t)t->size * s.count * s.dest * s.element_bytes);
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

/* x → a·x + b modulo 2^32. To combine them is associative, but their order counts. */
typedef struct affine {
    uint32_t a, b;
} affine;

static void compose(void *into, const void *from, size_t count)
{
    affine *first = into;
    const affine *then = from;
    for (size_t i = 0; i < count; i++)
        first[i] = (affine){first[i].a * then[i].a, first[i].b * then[i].a + then[i].b};
}

static affine affine_of(const turn *t, int32_t member, size_t i)
{
    return (affine){(uint32_t)(i * 2 + (size_t)member * 6 + t->salt * 2 + 1), (uint32_t)(i + (size_t)member * 1000)};
}

static void reduce_ordered(turn *t, uint8_t *from)
{
    const size_t count = t->bytes / sizeof(affine);
    affine *source = (affine *)(void *)from, *dest = (affine *)(void *)t->dest;
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++)
        source[i] = affine_of(t, t->me, i);
    CHECK_OK(expar_reduce(t->team, dest, source, count, sizeof(affine), compose));
    for (size_t i = 0; i < count; i++) {
        affine all = affine_of(t, 0, i);
        for (int32_t member = 1; member < t->size; member++) {
            affine one = affine_of(t, member, i);
            compose(&all, &one, 1);
        }
        wrong += dest[i].a != all.a || dest[i].b != all.b;
    }
    CHECK(wrong == 0, "%s of %zu, %d members: %zu wrong", t->what, count, t->size, wrong);
    check_guard(t, t->dest + count * sizeof(affine));
}

static void reduce_sum(turn *t, uint8_t *from)
{
    size_t wrong = 0;
    fill(t, from, t->bytes, 0);
    CHECK_OK(expar_sum_reduce_u8(t->team, t->dest, from, t->bytes));
    for (size_t i = 0; i < t->bytes; i++) {
        uint8_t all = 0;
        for (int32_t member = 0; member < t->size; member++)
            all = (uint8_t)(all + byte_of(t, member, 0, i));
        wrong += t->dest[i] != all;
    }
    CHECK(wrong == 0, "%s of %zu bytes, %d members: %zu wrong", t->what, t->bytes, t->size, wrong);
    check_guard(t, t->dest + t->bytes);
}

static void reduce(turn *t, dice *d)
{
    bool in_place = roll(d, 2) == 0, ordered = roll(d, 2) == 0;
    uint8_t *from = in_place ? t->dest : t->s->source;
    t->what = in_place ? "reduction in place" : "reduction";
    if (t->me < 0) return;
    (ordered ? reduce_ordered : reduce_sum)(t, from);
}

static void sync(turn *t, dice *d)
{
    (void)d;
    t->what = "sync";
    if (t->me >= 0) CHECK_OK(expar_team_sync(t->team));
}

/* ---- drawing ----------------------------------------------------------------------------------------------------- */

static void draw_members(dice *d, int32_t ranks, int32_t *start, int32_t *stride, int32_t *size)
{
    *size = 1 + (int32_t)roll(d, (uint32_t)ranks);
    int32_t widest = *size == 1 ? 1 : (ranks - 1) / (*size - 1);
    *stride = 1 + (int32_t)roll(d, (uint32_t)widest);
    *start = (int32_t)roll(d, (uint32_t)(ranks - (*size - 1) * *stride));
    if (roll(d, 3) != 0) return;
    *start += (*size - 1) * *stride;
    *stride = -*stride;
}

/* Sizes around those where algorithms change, and where pieces are full. */
static size_t draw_size(const stage *s, dice *d)
{
    const size_t piece = team_table_of(s->group)->channels[TEAM_WORLD_SLOT].piece_bytes;
    const size_t around[] = {0, 8, 64, piece, 2 * piece, 3 * piece, 1024, 16384, 20000};
    size_t size = around[roll(d, ARRAY_LENGTH(around))] + roll(d, 3);
    return roll(d, 3) == 0 ? roll(d, 3000) : size > 0 ? size - 1 : 0;
}

/* The world, a split, or one for this call alone; its members are told by `me` and `size`. */
static bool draw_team(stage *s, dice *d, turn *t)
{
    int32_t start, stride, size;
    uint32_t choice = roll(d, SPLITS + 3);
    t->team = choice < SPLITS ? s->splits[choice] : s->world;
    if (choice > SPLITS) {
        draw_members(d, s->group->size, &start, &stride, &size);
        CHECK_OK(expar_team_form(s->group, start, stride, size, &t->team));
    }
    t->me = expar_team_my_pe(t->team);
    t->size = t->team ? expar_team_n_pes(t->team) : 1;
    return choice > SPLITS;
}

/* Where dest of the next call is; once the area is full, all meet before it is used again. */
static uint8_t *draw_dest(stage *s, size_t bytes)
{
    if (s->used_bytes + bytes > AREA_BYTES) {
        CHECK_OK(expar_barrier_all(s->group));
        memset(s->area, 0xee, AREA_BYTES);
        CHECK_OK(expar_barrier_all(s->group));
        s->used_bytes = 0;
    }
    uint8_t *dest = s->area + s->used_bytes;
    s->used_bytes += bytes;
    return dest;
}

static void (*const kinds[])(turn *, dice *) = {broadcast, fcollect, collect, alltoall,
                                                alltoalls, reduce,   reduce,  sync};

static void trial(stage *s, dice *d)
{
    turn t = {.s = s, .bytes = draw_size(s, d), .salt = roll(d, 1000)};
    uint32_t kind = roll(d, ARRAY_LENGTH(kinds));
    /* Large enough for all kinds and teams, so that all ranks go on alike; aligned for all types. */
    t.dest = draw_dest(s, ((size_t)s->group->size * (t.bytes + 1) + GUARD_BYTES + 15) / 16 * 16);
    bool formed = draw_team(s, d, &t);
    dice own = {d->state}; /* members draw more than others */
    kinds[kind](&t, &own);
    roll(d, 2);
    if (formed) CHECK_OK(expar_team_destroy(t.team));
}

static void trial_all(expar_group *group, void *shared)
{
    const game *g = shared;
    stage s = {.group = group, .used_bytes = AREA_BYTES};
    dice d = {g->seed * 977 + (uint64_t)group->size};
    int32_t start, stride, size;
    if (g->nodes) group->sym->nodes = g->nodes;
    CHECK_OK(expar_malloc(group, AREA_BYTES, (void **)&s.area));
    CHECK_OK(expar_malloc(group, AREA_BYTES, (void **)&s.source));
    CHECK_OK(expar_team_get_world(group, &s.world));
    for (int i = 0; i < SPLITS; i++) {
        draw_members(&d, group->size, &start, &stride, &size);
        CHECK_OK(expar_team_split_strided(s.world, start, stride, size, NULL, &s.splits[i]));
    }
    for (int i = 0; i < CALLS && check_failures() == 0; i++)
        trial(&s, &d);
    CHECK(check_failures() == 0, "seed %llu", (unsigned long long)g->seed);
    for (int i = 0; i < SPLITS; i++)
        CHECK_OK(expar_team_destroy(s.splits[i]));
}

static void trial_seeds(ranks_plan plan, const int32_t *nodes, uint64_t seeds)
{
    plan.kind = kind_of_ranks;
    plan.heap_bytes = HEAP_BYTES;
    if (netns_on()) seeds = 1;
    for (game g = {.seed = 1, .nodes = nodes}; g.seed <= seeds; g.seed++)
        assert_true(ranks_run(&plan, trial_all, &g));
}

static void test_one_node(void **state)
{
    (void)state;
    trial_seeds((ranks_plan){.size = 8}, NULL, 4);
    trial_seeds((ranks_plan){.size = 5}, NULL, 2);
    trial_seeds((ranks_plan){.size = 1}, NULL, 1);
}

/* Under ThreadSanitizer one of them takes ten times as long. */
#ifdef __SANITIZE_THREAD__
#define TOLD_SEEDS 3
#else
#define TOLD_SEEDS 8
#endif

/* All memory is mapped, only the teams do not know: what leaders do is then loads and stores, which ThreadSanitizer
   sees. */
static void test_told_nodes(void **state)
{
    static const int32_t uneven[] = {0, 0, 0, 1, 2, 2, 3, 3}, halves[] = {0, 0, 0, 0, 1, 1, 1, 1};
    static const int32_t large[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2};
    (void)state;
    if (getenv("EXPAR_TRANSPORTS")) skip();
    trial_seeds((ranks_plan){.size = 8}, uneven, TOLD_SEEDS);
    trial_seeds((ranks_plan){.size = 8}, halves, TOLD_SEEDS);
    trial_seeds((ranks_plan){.size = ARRAY_LENGTH(large)}, large, 1);
}

/* Teams of these have nodes of 3 + 1, 1 + 2 + 1 and the like. */
static void test_nodes(void **state)
{
    (void)state;
    trial_seeds((ranks_plan){.size = 8, .ranks_per_node = 4}, NULL, 2);
    trial_seeds((ranks_plan){.size = 6, .ranks_per_node = 2}, NULL, 3);
    trial_seeds((ranks_plan){.size = 6, .ranks_per_node = 3}, NULL, 2);
    trial_seeds((ranks_plan){.size = 4, .ranks_per_node = 1}, NULL, 1);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_node), cmocka_unit_test(test_told_nodes)};
    const struct CMUnitTest node_tests[] = {cmocka_unit_test(test_nodes)};
    kind_read(argc, argv);
    return kind_is_mix ? cmocka_run_group_tests(node_tests, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
}
