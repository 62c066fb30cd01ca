/* SPDX-License-Identifier: Apache-2.0 */
/* Non-blocking calls return when they have been started, and quiet waits for them: a shim behind the interface of
 * transports holds everything back until the calls have returned. */
#include "pgas/late.h"

#define RANKS 4
#define WORDS 600 /* more than a transport stages */

/* Data that a rank sends, and that comes to it. */
typedef struct letters {
    uint64_t *box;   /* [5][WORDS] symmetric: puts, typed puts, strided puts, signalled puts, what is got from here */
    uint64_t *words; /* [3] symmetric: a signal, a counter, a word that is swapped */
    uint64_t *sent;  /* [WORDS] */
    uint64_t *got;   /* [2][WORDS] by a get, by a strided one */
    uint64_t old[3]; /* by a fetching add, a swap, a fetch */
} letters;

static uint64_t *box_of(const letters *l, size_t number)
{
    return l->box + number * WORDS;
}

static void letters_make(letters *l, expar_group *group)
{
    CHECK_OK(expar_calloc(group, (size_t)5 * WORDS, sizeof *l->box, (void **)&l->box));
    CHECK_OK(expar_calloc(group, 3, sizeof *l->words, (void **)&l->words));
    l->sent = malloc(WORDS * sizeof *l->sent);
    l->got = calloc((size_t)2 * WORDS, sizeof *l->got);
    for (uint64_t i = 0; i < WORDS; i++) {
        l->sent[i] = (uint64_t)group->rank * 1000 + i + 1;
        box_of(l, 4)[i] = (uint64_t)group->rank * 7000 + i + 1;
    }
    CHECK_OK(expar_barrier_all(group));
}

static void letters_free(letters *l, expar_group *group)
{
    CHECK_OK(expar_free(group, l->words));
    CHECK_OK(expar_free(group, l->box));
    free(l->sent);
    free(l->got);
}

/* Every kind of operation without waiting, to the next rank. */
static void send_on_group(letters *l, expar_group *group, int32_t pe)
{
    CHECK_OK(expar_put_nbi(group, box_of(l, 0), l->sent, WORDS * 8, pe));
    CHECK_OK(expar_put_nbi_u64(group, box_of(l, 1), l->sent, WORDS, pe));
    CHECK_OK(expar_iput_nbi_u64(group, box_of(l, 2), l->sent, 2, 1, 20, pe));
    CHECK_OK(expar_put_signal_nbi(group, box_of(l, 3), l->sent, WORDS * 8, l->words, 5, EXPAR_SIGNAL_ADD, pe));
    CHECK_OK(expar_get_nbi(group, l->got, box_of(l, 4), WORDS * 8, pe));
    CHECK_OK(expar_iget_nbi(group, l->got + WORDS, box_of(l, 4), 1, 2, 8, 20, pe));
    CHECK_OK(expar_atomic_fetch_add_nbi_u64(group, &l->words[1], 3, pe, &l->old[0]));
    CHECK_OK(expar_atomic_swap_nbi_u64(group, &l->words[2], 9, pe, &l->old[1]));
    CHECK_OK(expar_atomic_fetch_nbi_u64(group, box_of(l, 4), pe, &l->old[2]));
}

static void send_on_context(letters *l, expar_ctx *ctx, int32_t pe)
{
    CHECK_OK(expar_ctx_put_nbi(ctx, box_of(l, 0), l->sent, WORDS * 8, pe));
    CHECK_OK(expar_ctx_put_nbi_u64(ctx, box_of(l, 1), l->sent, WORDS, pe));
    CHECK_OK(expar_ctx_iput_nbi(ctx, box_of(l, 2), l->sent, 2, 1, 8, 20, pe));
    CHECK_OK(expar_ctx_put_signal_nbi(ctx, box_of(l, 3), l->sent, WORDS * 8, l->words, 5, EXPAR_SIGNAL_ADD, pe));
    CHECK_OK(expar_ctx_get_nbi(ctx, l->got, box_of(l, 4), WORDS * 8, pe));
    CHECK_OK(expar_ctx_iget_nbi_u64(ctx, l->got + WORDS, box_of(l, 4), 1, 2, 20, pe));
    CHECK_OK(expar_ctx_atomic_fetch_add_nbi_u64(ctx, &l->words[1], 3, pe, &l->old[0]));
    CHECK_OK(expar_ctx_atomic_swap_nbi_u64(ctx, &l->words[2], 9, pe, &l->old[1]));
    CHECK_OK(expar_ctx_atomic_fetch_nbi_u64(ctx, box_of(l, 4), pe, &l->old[2]));
}

/* Nothing has come: neither here nor to this rank's own calls. */
static void expect_nothing(const letters *l)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < (size_t)4 * WORDS; i++)
        sum |= l->box[i];
    for (size_t i = 0; i < (size_t)2 * WORDS; i++)
        sum |= l->got[i];
    sum |= l->words[0] | l->words[1] | l->words[2] | l->old[2];
    CHECK(sum == 0, "something has come before its time");
}

/* Data that was got: complete after this rank's quiet. */
static void expect_got(const letters *l, int32_t pe)
{
    uint64_t wrong = 0, base = (uint64_t)pe * 7000 + 1;
    for (uint64_t i = 0; i < WORDS; i++)
        wrong += l->got[i] != base + i;
    for (uint64_t i = 0; i < 20; i++)
        wrong += l->got[WORDS + i] != base + 2 * i;
    CHECK(wrong == 0, "%llu words that were got are wrong", (unsigned long long)wrong);
    CHECK(l->old[0] == 0 && l->old[1] == 0 && l->old[2] == base, "atomics gave %llu, %llu, %llu",
          (unsigned long long)l->old[0], (unsigned long long)l->old[1], (unsigned long long)l->old[2]);
}

/* Data that was put here: complete after a barrier, once the rank that put it has called quiet. */
static void expect_put(const letters *l, int32_t from)
{
    uint64_t wrong = 0, base = (uint64_t)from * 1000 + 1;
    for (uint64_t i = 0; i < WORDS; i++)
        wrong += (box_of(l, 0)[i] != base + i) + (box_of(l, 1)[i] != base + i) + (box_of(l, 3)[i] != base + i);
    for (uint64_t i = 0; i < 40; i++)
        wrong += box_of(l, 2)[i] != (i % 2 ? 0 : base + i / 2);
    CHECK(wrong == 0, "%llu words that were put are wrong", (unsigned long long)wrong);
    CHECK(l->words[0] == 5 && l->words[1] == 3 && l->words[2] == 9, "words %llu, %llu, %llu",
          (unsigned long long)l->words[0], (unsigned long long)l->words[1], (unsigned long long)l->words[2]);
}

/* Started while all is held; a quiet waits until it is let go. */
static void wait_for_all(letters *l, expar_group *group, expar_ctx *ctx, int32_t pe)
{
    late_quiet quiet;
    CHECK(late_count(group) > 8, "only %zu operations are under way", late_count(group));
    CHECK_OK(expar_group_barrier(group)); /* all have sent */
    expect_nothing(l);
    late_quiet_start(&quiet, group, ctx);
    late_quiet_expect_waiting(&quiet);
    expect_nothing(l);
    CHECK_OK(expar_group_barrier(group)); /* all have looked */
    late_hold(group, false);
    late_quiet_join(&quiet);
    expect_got(l, pe);
    CHECK_OK(expar_group_barrier(group));
}

static void calls_do_not_block(expar_group *group, void *shared)
{
    (void)shared;
    letters l = {0};
    int32_t next = (group->rank + 1) % group->size, before = (group->rank + group->size - 1) % group->size;
    letters_make(&l, group);
    late_begin(group, 0);
    late_hold(group, true);
    send_on_group(&l, group, next);
    wait_for_all(&l, group, NULL, next);
    expect_put(&l, before);
    letters_free(&l, group);
}

static void test_calls_do_not_block(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, RANKS, calls_do_not_block);
    kind_run((ranks_plan){0}, 1, calls_do_not_block);
}

/* On a context: quiet on another one, and on the group, does not wait for it; and the other way round. */
static void contexts_are_apart(expar_group *group, void *shared)
{
    (void)shared;
    letters l = {0};
    expar_team *world;
    expar_ctx *busy, *idle;
    uint64_t more = 77, *other;
    int32_t next = (group->rank + 1) % group->size, before = (group->rank + group->size - 1) % group->size;
    letters_make(&l, group);
    CHECK_OK(expar_calloc(group, 1, sizeof *other, (void **)&other));
    CHECK_OK(expar_team_get_world(group, &world));
    CHECK_OK(expar_ctx_create(world, NULL, &busy));
    CHECK_OK(expar_ctx_create(world, NULL, &idle));
    late_begin(group, 0);
    late_hold(group, true);
    send_on_context(&l, busy, next);
    CHECK_OK(expar_ctx_quiet(idle));
    CHECK_OK(expar_ctx_fence(idle));
    CHECK_OK(expar_quiet(group));
    wait_for_all(&l, group, busy, next);
    expect_put(&l, before);
    late_hold(group, true);
    CHECK_OK(expar_put_nbi(group, other, &more, sizeof more, next));
    CHECK_OK(expar_ctx_quiet(busy));
    CHECK(late_count(group) == 1, "%zu operations are under way", late_count(group));
    late_hold(group, false);
    CHECK_OK(expar_barrier_all(group));
    CHECK(*other == more, "the group's put did not come");
    CHECK_OK(expar_ctx_destroy(idle));
    CHECK_OK(expar_ctx_destroy(busy));
    CHECK_OK(expar_free(group, other));
    letters_free(&l, group);
}

static void test_contexts_are_apart(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, RANKS, contexts_are_apart);
}

#define ROUNDS 100

/* Data, fence, flag on a context whose operations are shuffled: a rank that sees the flag sees the data. */
static void fence_orders(expar_group *group, void *shared)
{
    (void)shared;
    expar_team *world;
    expar_ctx *ctx;
    uint64_t *data, *flag, sent[ROUNDS + 1], stale = 0;
    int32_t next = (group->rank + 1) % group->size;
    CHECK_OK(expar_calloc(group, 8, sizeof *data, (void **)&data));
    CHECK_OK(expar_calloc(group, 1, sizeof *flag, (void **)&flag));
    CHECK_OK(expar_team_get_world(group, &world));
    CHECK_OK(expar_ctx_create(world, NULL, &ctx));
    CHECK_OK(expar_group_barrier(group));
    late_begin(group, 50000);
    for (uint64_t round = 1; round <= ROUNDS && check_failures() == 0; round++) {
        sent[round] = round;
        for (size_t i = 0; i < 8; i++)
            CHECK_OK(expar_ctx_put_nbi(ctx, &data[i], &sent[round], sizeof round, next));
        CHECK_OK(expar_ctx_fence(ctx));
        CHECK_OK(expar_ctx_put_nbi(ctx, flag, &sent[round], sizeof round, next));
        CHECK_OK(expar_wait_until_u64(group, flag, EXPAR_CMP_GE, round, NULL));
        for (size_t i = 0; i < 8; i++)
            stale += data[i] < round;
        CHECK_OK(expar_group_barrier(group));
    }
    CHECK(stale == 0, "%llu words were older than their flag", (unsigned long long)stale);
    CHECK_OK(expar_ctx_destroy(ctx));
    CHECK_OK(expar_free(group, flag));
    CHECK_OK(expar_free(group, data));
}

static void test_fence_orders(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, fence_orders);
}

/* A team's end completes what is under way on its contexts. */
static void team_ends_with_contexts(expar_group *group, void *shared)
{
    (void)shared;
    expar_team *world, *team;
    expar_ctx *ctx;
    uint64_t *box, sent[8];
    int32_t next = (group->rank + 1) % group->size;
    CHECK_OK(expar_calloc(group, 8, sizeof *box, (void **)&box));
    CHECK_OK(expar_team_get_world(group, &world));
    CHECK_OK(expar_team_split_strided(world, 0, 1, group->size, NULL, &team));
    CHECK_OK(expar_ctx_create(team, NULL, &ctx));
    late_begin(group, 2000000);
    for (uint64_t i = 0; i < 8; i++) {
        sent[i] = i + 1;
        CHECK_OK(expar_ctx_put_nbi(ctx, &box[i], &sent[i], sizeof sent[i], next));
    }
    CHECK_OK(expar_team_destroy(team));
    for (uint64_t i = 0; i < 8; i++)
        CHECK(box[i] == i + 1, "word %llu is %llu", (unsigned long long)i, (unsigned long long)box[i]);
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ctx_quiet(ctx));
    CHECK_OK(expar_free(group, box));
}

/* A network may carry out later operations first. A collective's signal does not overtake the flag of the one before,
   which would then go back, and be waited for in vain. */
static void flags_go_forward(expar_group *group, void *shared)
{
    (void)shared;
    enum { FLAG_ROUNDS = 40 };
    uint64_t *all, word;
    expar_team *world;
    const size_t size = (size_t)group->size;
    CHECK_OK(expar_calloc(group, FLAG_ROUNDS * size, sizeof *all, (void **)&all));
    CHECK_OK(expar_team_get_world(group, &world));
    late_begin(group, 1000000);
    CHECK_OK(expar_group_barrier(group));
    kind_set_timeout(group, 20000);
    for (size_t round = 0; round < FLAG_ROUNDS && check_failures() == 0; round++) {
        uint64_t *row = all + round * size;
        word = round * 10 + (uint64_t)group->rank;
        CHECK_OK(expar_team_sync(world));
        CHECK_OK(expar_fcollect(world, row, &word, sizeof word));
        for (size_t r = 0; r < size; r++)
            CHECK(row[r] == round * 10 + r, "round %zu: member %zu gave %llu", round, r, (unsigned long long)row[r]);
        CHECK_OK(expar_group_barrier(group)); /* the next sync would hide it */
    }
    CHECK_OK(expar_free(group, all));
}

static void test_flags_go_forward(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, RANKS, flags_go_forward);
    kind_run((ranks_plan){.ranks_per_node = 1}, RANKS, flags_go_forward);
}

static void test_team_ends_with_contexts(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 3, team_ends_with_contexts);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_do_not_block),
        cmocka_unit_test(test_contexts_are_apart),
        cmocka_unit_test(test_fence_orders),
        cmocka_unit_test(test_flags_go_forward),
        cmocka_unit_test(test_team_ends_with_contexts),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
