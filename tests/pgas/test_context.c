/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: every kind of operation by the numbers of teams that count otherwise than the group, threads with a context
 * each, and rejections. test_late shows that their completions are apart. */
#include "shmem/kind.h"

#include <pthread.h>

#define WORDS 32

/* ---- operations -------------------------------------------------------------------------------------------------- */

/* Puts and gets of all forms with member pe; box: [4][WORDS] symmetric. */
static void move_words(expar_ctx *ctx, int32_t *box, int32_t me, int32_t pe)
{
    int32_t sent[WORDS], back[WORDS] = {0}, one = 0;
    for (int32_t i = 0; i < WORDS; i++)
        sent[i] = me * 100 + i;
    CHECK_OK(expar_ctx_put(ctx, box, sent, sizeof sent, pe));
    CHECK_OK(expar_ctx_put_i32(ctx, box + WORDS, sent, WORDS, pe));
    CHECK_OK(expar_ctx_iput_i32(ctx, box + (size_t)2 * WORDS, sent, 2, 1, WORDS / 2, pe));
    CHECK_OK(expar_ctx_iput(ctx, box + (size_t)2 * WORDS + 1, sent, 2, 1, sizeof *sent, WORDS / 2, pe));
    CHECK_OK(expar_ctx_p_i32(ctx, box + (size_t)3 * WORDS, 4711 + me, pe));
    CHECK_OK(expar_ctx_quiet(ctx));
    CHECK_OK(expar_ctx_get(ctx, back, box, sizeof back, pe));
    CHECK(memcmp(back, sent, sizeof back) == 0, "put, get");
    CHECK_OK(expar_ctx_get_i32(ctx, back, box + WORDS, WORDS, pe));
    CHECK(memcmp(back, sent, sizeof back) == 0, "typed put, get");
    CHECK_OK(expar_ctx_iget_i32(ctx, back, box + (size_t)2 * WORDS + 1, 1, 2, WORDS / 2, pe));
    CHECK(memcmp(back, sent, sizeof back / 2) == 0, "strided put, get");
    CHECK_OK(expar_ctx_g_i32(ctx, box + (size_t)3 * WORDS, pe, &one));
    CHECK(one == 4711 + me, "p, g: %d", one);
}

/* words: [4] symmetric, at member pe touched by this rank alone. */
static void change_words(expar_ctx *ctx, uint64_t *words, int32_t pe)
{
    uint64_t old = 9, later = 9, value = 5;
    double *number = (double *)&words[2], before = 1;
    CHECK_OK(expar_ctx_atomic_set_u64(ctx, words, 10, pe));
    CHECK_OK(expar_ctx_fence(ctx));
    CHECK_OK(expar_ctx_atomic_add_u64(ctx, words, 5, pe));
    CHECK_OK(expar_ctx_quiet(ctx));
    CHECK_OK(expar_ctx_atomic_fetch_add_u64(ctx, words, 1, pe, &old));
    CHECK(old == 15, "set, add, fetch_add: %llu", (unsigned long long)old);
    CHECK_OK(expar_ctx_atomic_compare_swap_nbi_u64(ctx, words, 16, 20, pe, &later));
    CHECK_OK(expar_ctx_quiet(ctx));
    CHECK_OK(expar_ctx_atomic_fetch_u64(ctx, words, pe, &old));
    CHECK(later == 16 && old == 20, "compare_swap: %llu, %llu", (unsigned long long)later, (unsigned long long)old);
    CHECK_OK(expar_ctx_atomic_swap_f64(ctx, number, 2.5, pe, &before));
    CHECK_OK(expar_ctx_atomic_fetch_nbi_f64(ctx, number, pe, &before));
    CHECK_OK(expar_ctx_quiet(ctx));
    CHECK(before == 2.5, "swap of a double: %g", before);
    CHECK_OK(expar_ctx_put_signal(ctx, &words[3], &value, sizeof value, &words[1], 3, EXPAR_SIGNAL_SET, pe));
    CHECK_OK(expar_ctx_fence(ctx));
    CHECK_OK(expar_ctx_put_signal(ctx, NULL, NULL, 0, &words[1], 4, EXPAR_SIGNAL_ADD, pe));
    CHECK_OK(expar_ctx_quiet(ctx));
    CHECK_OK(expar_ctx_g_u64(ctx, &words[1], pe, &old));
    CHECK(old == 7, "signals: %llu", (unsigned long long)old);
}

/* Everybody works on the next member of a team. */
static void work_on(expar_group *group, expar_team *team)
{
    expar_ctx *ctx;
    int32_t *box, me = expar_team_my_pe(team);
    uint64_t *words;
    CHECK_OK(expar_calloc(group, (size_t)4 * WORDS, sizeof *box, (void **)&box));
    CHECK_OK(expar_calloc(group, 4, sizeof *words, (void **)&words));
    if (team) {
        int32_t size = expar_team_n_pes(team), next = (me + 1) % size, before = (me + size - 1) % size;
        CHECK_OK(expar_ctx_create(team, NULL, &ctx));
        CHECK(expar_ctx_team(ctx) == team, "the context's team is another one");
        move_words(ctx, box, me, next);
        change_words(ctx, words, next);
        CHECK_OK(expar_ctx_destroy(ctx));
        CHECK_OK(expar_team_barrier(team));
        CHECK(box[(size_t)3 * WORDS] == 4711 + before, "from member %d, not %d", box[(size_t)3 * WORDS] - 4711, before);
        CHECK(words[3] == 5, "the signalled word is %llu", (unsigned long long)words[3]);
    }
    CHECK_OK(expar_barrier_all(group));
    CHECK_OK(expar_free(group, words));
    CHECK_OK(expar_free(group, box));
}

static void operations(expar_group *group, void *shared)
{
    (void)shared;
    expar_team *world, *team;
    CHECK_OK(expar_team_get_world(group, &world));
    work_on(group, world);
    /* Backwards, and every other rank. */
    CHECK_OK(expar_team_split_strided(world, group->size - 1, -1, group->size, NULL, &team));
    work_on(group, team);
    CHECK_OK(expar_team_destroy(team));
    CHECK_OK(expar_team_split_strided(world, group->size - 1, -2, (group->size + 1) / 2, NULL, &team));
    work_on(group, team);
    CHECK_OK(expar_team_destroy(team));
    CHECK_OK(expar_team_form(group, group->size > 1, 1, group->size > 1 ? group->size - 1 : 1, &team));
    work_on(group, team);
    CHECK_OK(expar_team_destroy(team));
}

static void test_operations(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 4, operations);
    kind_run((ranks_plan){0}, 1, operations);
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

#define THREADS 3
#define ROUNDS  60

typedef struct worker {
    pthread_t id;
    expar_team *team;
    uint64_t *words;   /* [WORDS] its own at the next rank */
    uint64_t *counter; /* everybody's */
    int64_t failures;
} worker;

/* A private context: its quiet completes what this thread did, whatever the others do. */
static void *work(void *argument)
{
    worker *self = argument;
    expar_ctx_options options = EXPAR_CTX_OPTIONS_INIT;
    expar_ctx *ctx;
    int32_t next = (expar_team_my_pe(self->team) + 1) % expar_team_n_pes(self->team);
    check_begin(expar_team_my_pe(self->team));
    options.flags = EXPAR_CTX_PRIVATE | EXPAR_CTX_SERIALIZED | EXPAR_CTX_NOSTORE;
    CHECK_OK(expar_ctx_create(self->team, &options, &ctx));
    for (uint64_t round = 0; round < ROUNDS && check_failures() == 0; round++) {
        uint64_t sent[WORDS], back[WORDS] = {0}, ticket;
        for (size_t i = 0; i < WORDS; i++)
            sent[i] = round * 1000 + i;
        CHECK_OK(expar_ctx_put_nbi(ctx, self->words, sent, sizeof sent, next));
        CHECK_OK(expar_ctx_atomic_fetch_inc_nbi_u64(ctx, self->counter, next, &ticket));
        CHECK_OK(expar_ctx_quiet(ctx));
        CHECK_OK(expar_ctx_get_nbi(ctx, back, self->words, sizeof back, next));
        CHECK_OK(expar_ctx_quiet(ctx));
        CHECK(memcmp(sent, back, sizeof sent) == 0, "round %llu came back otherwise", (unsigned long long)round);
        CHECK(ticket < (uint64_t)THREADS * ROUNDS, "ticket %llu", (unsigned long long)ticket);
    }
    CHECK_OK(expar_ctx_destroy(ctx));
    self->failures = check_failures();
    return NULL;
}

static void threads(expar_group *group, void *shared)
{
    (void)shared;
    worker workers[THREADS];
    expar_team *world;
    uint64_t(*words)[WORDS], *counter;
    CHECK_OK(expar_team_get_world(group, &world));
    CHECK_OK(expar_calloc(group, THREADS, sizeof *words, (void **)&words));
    CHECK_OK(expar_calloc(group, 1, sizeof *counter, (void **)&counter));
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){.team = world, .words = words[i], .counter = counter};
        if (pthread_create(&workers[i].id, NULL, work, &workers[i])) abort();
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(workers[i].id, NULL);
        CHECK(workers[i].failures == 0, "thread %d has failed", i);
    }
    CHECK_OK(expar_barrier_all(group));
    CHECK(*counter == (uint64_t)THREADS * ROUNDS, "counted to %llu", (unsigned long long)*counter);
    CHECK_OK(expar_free(group, counter));
    CHECK_OK(expar_free(group, words));
}

static void test_threads(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, threads);
}

/* ---- rejections -------------------------------------------------------------------------------------------------- */

static void reject_options(expar_team *world)
{
    expar_ctx_options options = EXPAR_CTX_OPTIONS_INIT;
    expar_ctx *ctx = NULL;
    options.flags = 8;
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ctx_create(world, &options, &ctx));
    CHECK_TEXT("expar_ctx_create: options.flags 0x8");
    options = (expar_ctx_options){0};
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ctx_create(world, &options, &ctx));
    CHECK_TEXT("expar_ctx_create: options.struct_size 0", "EXPAR_CTX_OPTIONS_INIT");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ctx_create(NULL, NULL, &ctx));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ctx_create(world, NULL, NULL));
    CHECK(!ctx, "a failed call has made a context");
}

static void reject_arguments(expar_group *group, expar_team *world)
{
    expar_ctx *ctx;
    uint64_t *box, local = 3;
    CHECK_OK(expar_calloc(group, 2, sizeof *box, (void **)&box));
    CHECK_OK(expar_ctx_create(world, NULL, &ctx));
    CHECK_STATUS(EXPAR_ERR_RANGE, expar_ctx_put(ctx, box, &local, 8, 2));
    CHECK_TEXT("expar_ctx_put", "pe 2", "0 to 1");
    CHECK_STATUS(EXPAR_ERR_RANGE, expar_ctx_atomic_inc_u64(ctx, box, -1));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_ctx_put_nbi(ctx, &local, &local, 8, 0));
    CHECK_STATUS(
        EXPAR_ERR_ALIGNMENT,
        expar_ctx_put_signal(ctx, box, &local, 8, (uint64_t *)(void *)((uint8_t *)box + 4), 1, EXPAR_SIGNAL_SET, 0));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ctx_atomic_fetch_nbi_u64(ctx, box, 0, NULL));
    CHECK_TEXT("expar_ctx_atomic_fetch_nbi_u64: value is NULL");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ctx_put(NULL, box, &local, 8, 0));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ctx_quiet(NULL));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ctx_fence(NULL));
    CHECK_OK(expar_ctx_destroy(ctx));
    CHECK_OK(expar_free(group, box));
}

/* Contexts that are gone, by themselves or with their team, are told from those that are there. */
static void reject_the_gone(expar_team *world)
{
    expar_ctx *ctx, *again;
    expar_team *team;
    uint64_t local;
    CHECK_OK(expar_ctx_create(world, NULL, &ctx));
    CHECK_OK(expar_ctx_destroy(ctx));
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ctx_quiet(ctx));
    CHECK_TEXT("expar_ctx_quiet", "destroyed");
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ctx_destroy(ctx));
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ctx_get(ctx, &local, &local, 8, 0));
    CHECK(expar_ctx_team(ctx) == NULL && expar_ctx_team(NULL) == NULL, "a team of nothing");
    CHECK_OK(expar_ctx_destroy(NULL));
    CHECK_OK(expar_team_split_strided(world, 0, 1, 2, NULL, &team));
    CHECK_OK(expar_ctx_create(team, NULL, &again));
    CHECK_OK(expar_team_destroy(team));
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ctx_fence(again));
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ctx_create(team, NULL, &again));
}

static void *use_anothers(void *ctx)
{
    check_begin(0);
    CHECK_STATUS(EXPAR_ERR_STATE, expar_ctx_quiet(ctx));
    CHECK_TEXT("expar_ctx_quiet", "private");
    CHECK_STATUS(EXPAR_ERR_STATE, expar_ctx_destroy(ctx));
    return (void *)(intptr_t)check_failures();
}

static void reject_other_threads(expar_team *world)
{
    expar_ctx_options options = EXPAR_CTX_OPTIONS_INIT;
    expar_ctx *ctx;
    pthread_t other;
    void *failures;
    options.flags = EXPAR_CTX_PRIVATE;
    CHECK_OK(expar_ctx_create(world, &options, &ctx));
    if (pthread_create(&other, NULL, use_anothers, ctx)) abort();
    pthread_join(other, &failures);
    CHECK(!failures, "another thread could use a private context");
    CHECK_OK(expar_ctx_quiet(ctx));
    CHECK_OK(expar_ctx_destroy(ctx));
}

static void rejections(expar_group *group, void *shared)
{
    (void)shared;
    expar_team *world;
    CHECK_OK(expar_team_get_world(group, &world));
    reject_options(world);
    reject_arguments(group, world);
    reject_the_gone(world);
    reject_other_threads(world);
}

static void test_rejections_told(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, rejections);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operations),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_rejections_told),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
