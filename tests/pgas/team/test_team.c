/* SPDX-License-Identifier: Apache-2.0 */
/* Teams: who is in them, translation, splitting over and over, syncs that nobody leaves early, and rejections. */
#include "pgas/team/team.h"
#include "shmem/kind.h"

#include <pthread.h>

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* This thread's next allocation of that kind fails. */
typedef enum shortage { NO_SHORTAGE, OF_MALLOC, OF_CALLOC } shortage;
static _Thread_local shortage poor;

static bool is_rejected(shortage by)
{
    if (poor != by) return false;
    poor = NO_SHORTAGE;
    return true;
}

/* The linker's names for --wrap. NOLINTBEGIN(bugprone-reserved-identifier) */
void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);

void *__wrap_malloc(size_t bytes)
{
    return is_rejected(OF_MALLOC) ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return is_rejected(OF_CALLOC) ? NULL : __real_calloc(count, bytes);
}
/* NOLINTEND(bugprone-reserved-identifier) */

/* ---- members ----------------------------------------------------------------------------------------------------- */

static void check_members(const expar_team *team, int32_t me, int32_t size, const char *what)
{
    CHECK(expar_team_my_pe(team) == me, "%s: number %d, not %d", what, expar_team_my_pe(team), me);
    CHECK(expar_team_n_pes(team) == size, "%s: size %d, not %d", what, expar_team_n_pes(team), size);
}

static void standing(expar_group *group, void *shared)
{
    (void)shared;
    expar_team *world, *node, *rail;
    int32_t pe = 99;
    CHECK_OK(expar_team_get_world(group, &world));
    CHECK_OK(expar_team_get_shared(group, &node));
    CHECK_OK(expar_team_get_rail(group, &rail));
    check_members(world, group->rank, 4, "world");
    check_members(node, group->rank % 2, 2, "shared");
    check_members(rail, group->rank / 2, 2, "rail");
    CHECK(expar_team_group(rail) == group, "a team of another group");
    CHECK_OK(expar_team_translate_pe(node, 1, world, &pe));
    CHECK(pe == group->rank / 2 * 2 + 1, "member 1 of the node is rank %d", pe);
    CHECK_OK(expar_team_translate_pe(world, (group->rank + 2) % 4, rail, &pe));
    CHECK(pe == 1 - group->rank / 2, "the rank on the other node is %d on the rail", pe);
    CHECK_OK(expar_team_translate_pe(world, group->rank ^ 1, rail, &pe));
    CHECK(pe == -1, "the neighbour is %d on the rail", pe);
    CHECK_STATUS(EXPAR_ERR_STATE, expar_team_destroy(rail));
    CHECK_TEXT("expar_team_destroy: team is a standing one", "expected one that was split off");
    CHECK_OK(expar_team_sync(node));
    CHECK_OK(expar_team_barrier(node));
}

static void test_standing(void **state)
{
    (void)state;
    kind_run((ranks_plan){.ranks_per_node = 2}, 4, standing);
}

/* Teams take a bounded part of the heap, as expar/team.h says. */
static void take_little(expar_group *group, void *shared)
{
    (void)shared;
    expar_heap_stats before = EXPAR_HEAP_STATS_INIT, after = EXPAR_HEAP_STATS_INIT;
    expar_team *world;
    CHECK_OK(expar_heap_get_stats(group, &before));
    CHECK_OK(expar_team_get_world(group, &world));
    CHECK_OK(expar_heap_get_stats(group, &after));
    const uint64_t sixteenth = before.total_bytes / 16, most = (uint64_t)16 << 20;
    const uint64_t share = sixteenth < most ? sixteenth : most, least = (uint64_t)group->size * (72 << 10);
    const uint64_t taken = after.used_bytes - before.used_bytes;
    CHECK(taken > 0 && taken <= (share > least ? share : least), "%llu bytes of a heap of %llu",
          (unsigned long long)taken, (unsigned long long)before.total_bytes);
    CHECK_OK(expar_team_sync(world));
}

static void test_memory(void **state)
{
    (void)state;
    for (size_t heap_bytes = (size_t)1 << 20; heap_bytes <= (size_t)1 << 30; heap_bytes *= 32)
        for (int32_t size = 1; size <= 8; size *= 8)
            kind_run((ranks_plan){.heap_bytes = heap_bytes}, size, take_little);
}

static void split_strided(expar_group *group, void *shared)
{
    (void)shared;
    expar_team *world, *odd, *back, *last, *again;
    expar_team_config config = EXPAR_TEAM_CONFIG_INIT, got = EXPAR_TEAM_CONFIG_INIT;
    int32_t n = group->size, me = group->rank, pe = 99;
    config.num_contexts = 3;
    CHECK_OK(expar_team_get_world(group, &world));
    CHECK_OK(expar_team_split_strided(world, 1, 2, n / 2, &config, &odd));
    CHECK((odd != NULL) == (me % 2 == 1), "rank %d is a member: %d", me, odd != NULL);
    if (odd) {
        check_members(odd, me / 2, n / 2, "odd ranks");
        CHECK_OK(expar_team_get_config(odd, &got));
        CHECK(got.num_contexts == 3, "%d contexts", got.num_contexts);
        /* The odd ranks, backwards. */
        CHECK_OK(expar_team_split_strided(odd, n / 2 - 1, -1, n / 2, NULL, &back));
        check_members(back, n / 2 - 1 - me / 2, n / 2, "odd ranks backwards");
        CHECK_OK(expar_team_translate_pe(back, 0, world, &pe));
        CHECK(pe == 2 * (n / 2) - 1, "the last odd rank is %d", pe);
        CHECK_OK(expar_team_sync(back));
        CHECK_OK(expar_team_destroy(back));
        CHECK_OK(expar_team_destroy(odd));
        CHECK_STATUS(EXPAR_ERR_HANDLE, expar_team_sync(odd));
        CHECK_TEXT("expar_team_sync", "destroyed");
    }
    CHECK_OK(expar_team_split_strided(world, n - 1, 0, 1, NULL, &last));
    CHECK((last != NULL) == (me == n - 1), "a team of one");
    if (last) CHECK_OK(expar_team_sync(last));
    CHECK_OK(expar_team_destroy(last));
    /* For a single member any stride is as good as another, also those that multiply to more than there are numbers. */
    CHECK_OK(expar_team_split_strided(world, 0, INT32_MAX, 1, NULL, &last));
    if (last) {
        CHECK_OK(expar_team_split_strided(last, 0, INT32_MAX, 1, NULL, &again));
        CHECK_OK(expar_team_sync(again));
        CHECK_OK(expar_team_destroy(again));
    }
    CHECK_OK(expar_team_destroy(last));
}

static void test_split_strided(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 5, split_strided);
    kind_run((ranks_plan){0}, 2, split_strided);
}

static void split_2d(expar_group *group, void *shared)
{
    (void)shared;
    expar_team *world, *x, *y;
    int32_t n = group->size, me = group->rank;
    CHECK_OK(expar_team_get_world(group, &world));
    for (int32_t range = 1; range <= n + 1; range++) {
        int32_t width = range < n ? range : n, row = me / width, column = me % width;
        CHECK_OK(expar_team_split_2d(world, range, NULL, NULL, &x, &y));
        check_members(x, column, n - row * width < width ? n - row * width : width, "row");
        check_members(y, row, (n - column + width - 1) / width, "column");
        CHECK_OK(expar_team_sync(x));
        CHECK_OK(expar_team_sync(y));
        CHECK_OK(expar_team_destroy(y));
        CHECK_OK(expar_team_destroy(x));
    }
}

static void test_split_2d(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 5, split_2d);
    kind_run((ranks_plan){0}, 1, split_2d);
}

/* Slots come back, and a rank that has none left keeps all from splitting. */
static void many_teams(expar_group *group, void *shared)
{
    (void)shared;
    expar_team *world, *teams[EXPAR_TEAM_MAX] = {0}, *one = NULL;
    int made = 0;
    CHECK_OK(expar_team_get_world(group, &world));
    for (int i = 0; i < 2 * EXPAR_TEAM_MAX; i++) {
        CHECK_OK(expar_team_split_strided(world, 0, 1, group->size, NULL, &one));
        CHECK_OK(expar_team_destroy(one));
    }
    expar_status status = EXPAR_OK;
    while (made < EXPAR_TEAM_MAX && status == EXPAR_OK) {
        status = expar_team_split_strided(world, 0, 1, 1, NULL, &one);
        if (status == EXPAR_OK) teams[made++] = one;
    }
    CHECK(status == EXPAR_ERR_LIMIT && made == EXPAR_TEAM_MAX - 3, "%d teams were made", made);
    CHECK_TEXT("expar_team_split_strided", "63 teams");
    for (int i = 0; i < made; i++)
        CHECK_OK(expar_team_destroy(teams[i]));
    CHECK_OK(expar_team_split_strided(world, 0, 1, group->size, NULL, &one));
    CHECK_OK(expar_team_sync(one));
    CHECK_OK(expar_team_destroy(one));
}

static void test_many_teams(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 3, many_teams);
}

/* One of them has no memory for it: all are told, none has the team, and the next split goes well. */
static void split_without_memory(expar_group *group, void *shared)
{
    (void)shared;
    expar_team *world, *none = NULL, *one = NULL;
    CHECK_OK(expar_team_get_world(group, &world));
    for (shortage by = OF_MALLOC; by <= OF_CALLOC; by++) {
        if (group->rank == 1) poor = by;
        const expar_status status = expar_team_split_strided(world, 1, 1, 2, NULL, &none);
        CHECK(group->rank != 1 || poor == NO_SHORTAGE, "the split has asked for no memory of kind %d", by);
        CHECK_STATUS(group->rank == 1 ? EXPAR_ERR_MEMORY : EXPAR_ERR_REMOTE, status);
        CHECK_TEXT("expar_team_split_strided", "no memory for");
        CHECK(none == NULL, "a team that not all have");
    }
    CHECK_OK(expar_team_split_strided(world, 1, 1, 2, NULL, &one));
    if (one) CHECK_OK(expar_team_sync(one));
    if (one) CHECK_OK(expar_team_destroy(one));
}

static void test_split_without_memory(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 3, split_without_memory);
}

/* A formed team that is gone is told from one that is there; those to come take its place. */
static void formed_again(expar_group *group, void *shared)
{
    (void)shared;
    expar_team *team = NULL, *first = NULL, *other = NULL, *second = NULL;
    expar_team_config config = EXPAR_TEAM_CONFIG_INIT;
    int32_t pe = 99;
    expar_ctx *ctx = NULL;
    CHECK_OK(expar_team_form(group, 0, 1, group->size, &first));
    CHECK_OK(expar_team_destroy(first));
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_team_sync(first));
    CHECK_TEXT("expar_team_sync", "destroyed");
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_team_barrier(first));
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_team_destroy(first));
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_team_get_config(first, &config));
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_team_split_strided(first, 0, 1, 1, NULL, &team));
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ctx_create(first, NULL, &ctx));
    check_members(first, -1, 0, "a team that is gone");
    CHECK(!expar_team_group(first), "it has a group");
    for (int i = 0; i < 3; i++) {
        CHECK_OK(expar_team_form(group, 0, 1, group->size, &team));
        CHECK_OK(expar_team_form(group, group->rank, 1, 1, &other));
        if (i == 0) second = other;
        CHECK(team != other && (team == first || team == second) && (other == first || other == second),
              "a third team");
        CHECK_OK(expar_team_translate_pe(other, 0, team, &pe));
        CHECK(pe == group->rank, "rank %d is member %d", group->rank, pe);
        CHECK_OK(expar_team_sync(team));
        CHECK_OK(expar_team_destroy(team));
        CHECK_OK(expar_team_sync(other));
        CHECK_OK(expar_team_destroy(other));
    }
}

static void test_formed_again(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 3, formed_again);
}

/* ---- interrupts -------------------------------------------------------------------------------------------------- */

static int stop_at_once(void *context)
{
    (void)context;
    return 1;
}

/* Formed teams have one channel, and another thread's collective may be in it for long: the program ends the wait. */
static void sync_in_vain(expar_group *group, void *shared)
{
    (void)shared;
    expar_team *team = NULL;
    CHECK_OK(expar_team_form(group, 0, 1, 1, &team));
    CHECK_OK(expar_team_sync(team));
    pthread_mutex_lock(&team->table->turn);
    CHECK_OK(expar_interrupt_set(stop_at_once, NULL));
    CHECK_STATUS(EXPAR_ERR_INTERRUPTED, expar_team_sync(team));
    CHECK_TEXT("expar_team_sync", "interrupted");
    CHECK_OK(expar_interrupt_set(NULL, NULL));
    pthread_mutex_unlock(&team->table->turn);
    CHECK_OK(expar_team_sync(team));
    CHECK_OK(expar_team_destroy(team));
}

static void test_waiting_for_a_turn_is_interrupted(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, sync_in_vain);
}

/* ---- sync -------------------------------------------------------------------------------------------------------- */

#define SYNC_ROUNDS 300

/* Every member counts itself in at member 0; a member that leaves a barrier sees all counted. */
static void count_through_barriers(expar_group *group, expar_team *team, uint64_t *counter, const char *what)
{
    int32_t first = -1;
    expar_team *world;
    CHECK_OK(expar_team_get_world(group, &world));
    CHECK_OK(expar_team_translate_pe(team, 0, world, &first));
    uint64_t seen = 0, size = (uint64_t)expar_team_n_pes(team);
    for (uint64_t round = 1; round <= netns_rounds(SYNC_ROUNDS) && check_failures() == 0; round++) {
        CHECK_OK(expar_atomic_inc_u64(group, counter, first));
        CHECK_OK(expar_team_barrier(team));
        CHECK_OK(expar_atomic_fetch_u64(group, counter, first, &seen));
        CHECK(seen >= round * size && seen < (round + 1) * size, "%s: %llu of %llu have come", what,
              (unsigned long long)seen, (unsigned long long)(round * size));
    }
}

/* Two teams that overlap in one rank, and a formed team; they run at their own pace. */
static void syncs(expar_group *group, void *shared)
{
    (void)shared;
    expar_team *world, *low, *high, *formed;
    uint64_t *counters;
    CHECK_OK(expar_team_get_world(group, &world));
    CHECK_OK(expar_calloc(group, 4, sizeof *counters, (void **)&counters));
    CHECK_OK(expar_team_split_strided(world, 0, 1, 3, NULL, &low));
    CHECK_OK(expar_team_split_strided(world, 4, -1, 3, NULL, &high));
    CHECK_OK(expar_team_form(group, 1, 2, 2, &formed));
    if (low) count_through_barriers(group, low, &counters[0], "low");
    if (high) count_through_barriers(group, high, &counters[1], "high");
    if (formed) count_through_barriers(group, formed, &counters[2], "formed");
    count_through_barriers(group, world, &counters[3], "world");
    CHECK_OK(expar_team_destroy(low));
    CHECK_OK(expar_team_destroy(high));
    CHECK_OK(expar_team_destroy(formed));
    CHECK_OK(expar_free(group, counters));
}

static void test_syncs(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 5, syncs);
}

/* ---- formed teams by threads ------------------------------------------------------------------------------------- */

#define PAIR_ROUNDS     2000
#define PAIR_FAR_ROUNDS 60 /* where nothing is mapped, rounds take far longer, and threads meet in most of them */
#define PAIR_WORDS      512

/* A thread's work with one other rank. */
typedef struct pair {
    pthread_t thread;
    expar_group *group;
    int32_t other;
    uint64_t *sums; /* [PAIR_WORDS] symmetric */
    int64_t failures;
} pair;

/* A team a round, as OpenSHMEM's active sets are. */
static void *reduce_in_pair(void *argument)
{
    pair *self = argument;
    const int32_t me = self->group->rank, low = me < self->other ? me : self->other;
    const uint64_t rounds = self->group->sym->peers[self->other] ? PAIR_ROUNDS : PAIR_FAR_ROUNDS;
    check_begin(me);
    for (uint64_t round = 1; round <= rounds && check_failures() == 0; round++) {
        expar_team *team = NULL;
        uint64_t source[PAIR_WORDS], wrong = 0;
        for (uint64_t i = 0; i < PAIR_WORDS; i++)
            source[i] = round * 1000 + (uint64_t)me * 10 + i;
        CHECK_OK(expar_team_form(self->group, low, me + self->other - 2 * low, 2, &team));
        CHECK_OK(expar_sum_reduce_u64(team, self->sums, source, PAIR_WORDS));
        for (uint64_t i = 0; i < PAIR_WORDS; i++)
            wrong += self->sums[i] != 2 * (round * 1000 + i) + (uint64_t)(me + self->other) * 10;
        CHECK(wrong == 0, "%llu sums with rank %d are wrong in round %llu", (unsigned long long)wrong, self->other,
              (unsigned long long)round);
        CHECK_OK(expar_team_sync(team));
        CHECK_OK(expar_team_destroy(team));
    }
    self->failures = check_failures();
    return NULL;
}

/* Rank 2 meets each of the others in a thread of its own. Being the last member it has its part of the sum lie ready
   while it waits for the other's. */
static void formed_by_threads(expar_group *group, void *shared)
{
    (void)shared;
    expar_team *world;
    uint64_t *sums[2];
    CHECK_OK(expar_team_get_world(group, &world));
    for (int i = 0; i < 2; i++)
        CHECK_OK(expar_calloc(group, PAIR_WORDS, sizeof *sums[i], (void **)&sums[i]));
    pair pairs[2];
    const int32_t first = group->rank == 1, last = group->rank != 0;
    for (int32_t i = first; i <= last; i++) {
        pairs[i] = (pair){.group = group, .other = group->rank == 2 ? i : 2, .sums = sums[i]};
        CHECK(pthread_create(&pairs[i].thread, NULL, reduce_in_pair, &pairs[i]) == 0, "thread %d", i);
    }
    for (int32_t i = first; i <= last; i++) {
        pthread_join(pairs[i].thread, NULL);
        CHECK(pairs[i].failures == 0, "the thread for rank %d failed", pairs[i].other);
    }
    CHECK_OK(expar_barrier_all(group));
}

static void test_formed_by_threads(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 3, formed_by_threads);
}

/* ---- rejections -------------------------------------------------------------------------------------------------- */

static void rejections(expar_group *group, void *shared)
{
    (void)shared;
    expar_team *world, *out = NULL;
    int32_t pe = 77;
    expar_team_config unset = {0};
    CHECK_STATUS(EXPAR_ERR_NULL, expar_team_get_world(NULL, &world));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_team_get_world(group, NULL));
    CHECK_OK(expar_team_get_world(group, &world));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_team_split_strided(NULL, 0, 1, 1, NULL, &out));
    CHECK_TEXT("expar_team_split_strided: parent is NULL");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_team_split_strided(world, 0, 1, 1, NULL, NULL));
    CHECK_STATUS(EXPAR_ERR_RANGE, expar_team_split_strided(world, 0, 1, 3, NULL, &out));
    CHECK_TEXT("size 3", "1 to 2");
    CHECK_STATUS(EXPAR_ERR_RANGE, expar_team_split_strided(world, 2, 1, 1, NULL, &out));
    CHECK_STATUS(EXPAR_ERR_RANGE, expar_team_split_strided(world, 0, 2, 2, NULL, &out));
    CHECK_STATUS(EXPAR_ERR_RANGE, expar_team_split_strided(world, 0, -1, 2, NULL, &out));
    CHECK_STATUS(EXPAR_ERR_RANGE, expar_team_split_strided(world, 0, 0, 2, NULL, &out));
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_team_split_strided(world, 0, 1, 2, &unset, &out));
    CHECK_TEXT("expar_team_split_strided: config.struct_size 0", "EXPAR_TEAM_CONFIG_INIT");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_team_split_2d(NULL, 1, NULL, NULL, &out, &out));
    CHECK_TEXT("expar_team_split_2d: parent is NULL");
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_team_split_2d(world, 1, &unset, NULL, &out, &out));
    CHECK_TEXT("expar_team_split_2d: x_config.struct_size 0");
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_team_split_2d(world, 1, NULL, &unset, &out, &out));
    CHECK_TEXT("expar_team_split_2d: y_config.struct_size 0");
    CHECK_STATUS(EXPAR_ERR_RANGE, expar_team_split_2d(world, 0, NULL, NULL, &out, &out));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_team_split_2d(world, 1, NULL, NULL, &out, NULL));
    CHECK_STATUS(EXPAR_ERR_RANGE, expar_team_form(group, 0, 1, 3, &out));
    CHECK_STATUS(EXPAR_ERR_RANGE, expar_team_translate_pe(world, 2, world, &pe));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_team_translate_pe(NULL, 0, world, &pe));
    CHECK_TEXT("expar_team_translate_pe: source is NULL");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_team_translate_pe(world, 0, NULL, &pe));
    CHECK_TEXT("expar_team_translate_pe: dest is NULL");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_team_translate_pe(world, 0, world, NULL));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_team_sync(NULL));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_team_barrier(NULL));
    CHECK(out == NULL && pe == 77, "an output was written");
    CHECK(expar_team_my_pe(NULL) == -1 && expar_team_n_pes(NULL) == 0 && !expar_team_group(NULL), "facts of NULL");
    CHECK_OK(expar_team_destroy(NULL));
}

static void test_rejections_told(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, rejections);
}

/* A member that does not come is named. */
static void absent(expar_group *group, void *shared)
{
    (void)shared;
    expar_team *world;
    CHECK_OK(expar_team_get_world(group, &world));
    if (group->rank == 1) return;
    kind_set_timeout(group, 500);
    CHECK_STATUS(EXPAR_ERR_PEER, expar_team_sync(world));
    CHECK_TEXT("expar_team_sync", "rank 1");
}

static void test_absent(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, absent);
}

/* ---- splits by threads ------------------------------------------------------------------------------------------- */

#define SPLITTERS        2
#define SPLIT_ROUNDS     400
#define SPLIT_FAR_ROUNDS 60

/* A thread's work with one parent. */
typedef struct splitter {
    pthread_t thread;
    expar_team *parent;
    uint64_t *sum; /* symmetric */
    bool with_one; /* it finds one slot at most */
    int64_t failures;
} splitter;

/* A team without any other thread. */
static void check_sum(const splitter *self, expar_team *team, uint64_t round)
{
    const uint64_t size = (uint64_t)expar_team_n_pes(team), mine = round * 100 + (uint64_t)expar_team_my_pe(team);
    const uint64_t right = size * round * 100 + size * (size - 1) / 2;
    CHECK_OK(expar_sum_reduce_u64(team, self->sum, &mine, 1));
    CHECK(*self->sum == right, "the sum of round %llu is %llu, not %llu", (unsigned long long)round,
          (unsigned long long)*self->sum, (unsigned long long)right);
}

/* A child of all members, and one of all but the first; who finds no slot tries again. */
static void *split_parent(void *argument)
{
    splitter *self = argument;
    const int32_t size = self->parent->size, me = self->parent->group->rank;
    const uint64_t rounds = self->parent->group->sym->peers[(me + 1) % size] ? SPLIT_ROUNDS : SPLIT_FAR_ROUNDS;
    check_begin(me);
    for (uint64_t round = 1; round <= rounds && check_failures() == 0; round++) {
        expar_team *child = NULL;
        const int32_t first = round % 2;
        expar_status status;
        do
            status = expar_team_split_strided(self->parent, first, 1, size - first, NULL, &child);
        while (self->with_one && status == EXPAR_ERR_LIMIT);
        if (!CHECK_OK(status) || !child) continue;
        check_sum(self, child, round);
        CHECK_OK(expar_team_destroy(child));
    }
    self->failures = check_failures();
    return NULL;
}

/* Leaves one slot free, or all. */
static int32_t fill_slots(expar_team *world, bool with_one, expar_team *fillers[EXPAR_TEAM_MAX])
{
    int32_t count = 0;
    while (with_one && CHECK(count < EXPAR_TEAM_MAX, "%d teams", (int)count) &&
           expar_team_split_strided(world, 0, 1, world->size, NULL, &fillers[count]) == EXPAR_OK)
        count++;
    if (count) CHECK_OK(expar_team_destroy(fillers[--count]));
    return count;
}

static void split_by_threads(expar_group *group, bool with_one)
{
    expar_team *world, *fillers[EXPAR_TEAM_MAX];
    splitter all[SPLITTERS] = {{.with_one = with_one}, {.with_one = with_one}};
    CHECK_OK(expar_team_get_world(group, &world));
    for (int i = 0; i < SPLITTERS; i++) {
        CHECK_OK(expar_team_split_strided(world, 0, 1, group->size, NULL, &all[i].parent));
        CHECK_OK(expar_calloc(group, 1, sizeof *all[i].sum, (void **)&all[i].sum));
    }
    const int32_t filled = fill_slots(world, with_one, fillers);
    CHECK_OK(expar_barrier_all(group));
    for (int i = 0; i < SPLITTERS; i++)
        CHECK(pthread_create(&all[i].thread, NULL, split_parent, &all[i]) == 0, "thread %d", i);
    for (int i = 0; i < SPLITTERS; i++) {
        pthread_join(all[i].thread, NULL);
        CHECK(all[i].failures == 0, "thread %d failed", i);
    }
    for (int32_t i = 0; i < filled; i++)
        CHECK_OK(expar_team_destroy(fillers[i]));
    CHECK_OK(expar_barrier_all(group));
}

static void splits_by_threads(expar_group *group, void *shared)
{
    (void)shared;
    split_by_threads(group, false);
    split_by_threads(group, true);
}

/* Threads of a rank that split different teams at once get different slots, the last one included. */
static void test_splits_by_threads(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 3, splits_by_threads);
}

/* ---- overwritten words ------------------------------------------------------------------------------------------- */

static uint64_t flag_offset(const expar_team *team, int32_t rank)
{
    return team->table->channels[team->slot].flags + (uint64_t)rank * sizeof(uint64_t);
}

/* Something overwrites the flag that rank 1 raises at rank 0, which must not take that for a message. Rank 1 does not
   come to the sync before that has ended, and is not waited for then. */
static void a_flag_is_overwritten(expar_group *group, void *shared)
{
    static const uint64_t garbage = UINT64_MAX;
    (void)shared;
    expar_team *team;
    uint64_t *ended, one = 1;
    CHECK_OK(expar_calloc(group, 2, sizeof *ended, (void **)&ended));
    CHECK_OK(expar_team_get_world(group, &team));
    CHECK_OK(expar_team_sync(team));
    CHECK_OK(expar_barrier_all(group));
    if (group->rank == 1) CHECK_OK(sym_word_set(group->sym, 0, flag_offset(team, 1), garbage));
    CHECK_OK(expar_barrier_all(group));
    if (group->rank == 0) {
        CHECK_STATUS(EXPAR_ERR_PEER, expar_team_sync(team));
        CHECK_TEXT("expar_team_sync", "rank 1's word here", "has been overwritten");
        CHECK_OK(expar_put_signal(group, ended + 1, &one, sizeof one, ended, 1, EXPAR_SIGNAL_SET, 1));
    } else {
        CHECK_OK(expar_signal_wait_until(group, ended, EXPAR_CMP_EQ, 1, NULL));
    }
    CHECK_OK(expar_barrier_all(group)); /* others than the team's members are in step */
    CHECK_OK(expar_free(group, ended));
}

static void test_overwritten_flags(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, a_flag_is_overwritten);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_standing),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_split_strided),
        cmocka_unit_test(test_split_2d),
        cmocka_unit_test(test_many_teams),
        cmocka_unit_test(test_syncs),
        cmocka_unit_test(test_rejections_told),
        cmocka_unit_test(test_waiting_for_a_turn_is_interrupted),
        cmocka_unit_test(test_split_without_memory),
        cmocka_unit_test(test_formed_again),
        cmocka_unit_test(test_formed_by_threads),
        cmocka_unit_test(test_splits_by_threads),
        cmocka_unit_test(test_absent),
        cmocka_unit_test(test_overwritten_flags),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
