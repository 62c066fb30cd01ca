/* SPDX-License-Identifier: Apache-2.0 */
/* Calls on streams: signals and waits of streams and of the host, sources that are free, collectives, contexts, and bad
 * input. Ranks are threads or processes, also of several simulated nodes (argument mix). */
#include "pgas/stream/streams.h"

/* ---- signals and waits ------------------------------------------------------------------------------------------- */

/* Data go round all ranks, each hop by a stream that waits for the one before. `host` waits or signals in place of the
   stream on odd hops. */
static void go_round(expar_group *group, const test_stream *s, expar_memory_kind data_kind, expar_memory_kind word_kind)
{
    enum { BYTES = 5000, LAPS = 3 };
    uint8_t *block = take_zeros(group, data_kind, BYTES);
    uint64_t *word = take_zeros(group, word_kind, 2 * sizeof *word);
    const int32_t me = group->rank, next = (me + 1) % group->size;
    if (!block || !word) return;
    if (me == 0) fill_block(group, data_kind, block, BYTES, 77);
    CHECK_OK(expar_barrier_all(group));
    for (uint64_t lap = 1; lap <= LAPS; lap++) {
        const bool host_waits = lap == 2, host_signals = lap == 3;
        const expar_signal_op op = lap == 1 ? EXPAR_SIGNAL_ADD : EXPAR_SIGNAL_SET;
        if (me > 0 && host_waits)
            CHECK_OK(expar_signal_wait_until(group, word, EXPAR_CMP_GE, lap, NULL));
        else if (me > 0)
            CHECK_OK(expar_signal_wait_until_on_stream(group, word, EXPAR_CMP_GE, lap, s->stream));
        if (host_signals) stream_await(s);
        if (host_signals)
            CHECK_OK(expar_put_signal(group, block, block, BYTES, word, lap, op, next));
        else
            CHECK_OK(expar_put_signal_on_stream(group, block, block, BYTES, word, lap, op, next, s->stream));
        if (me == 0) CHECK_OK(expar_wait_until_u64_on_stream(group, word, EXPAR_CMP_EQ, lap, s->stream));
    }
    stream_await(s);
    CHECK_OK(expar_group_query(group));
    holds_pattern(group, data_kind, block, BYTES, 77);
    CHECK(word_of(group, word_kind, word) == LAPS, "the word is %llu",
          (unsigned long long)word_of(group, word_kind, word));
    CHECK_OK(expar_barrier_all(group));
    CHECK_OK(expar_free(group, block));
    CHECK_OK(expar_free(group, word));
}

static void signals(expar_group *group, void *shared)
{
    (void)shared;
    test_stream s;
    void *first = take(group, EXPAR_MEMORY_PINNED, 64, 0);
    if (!first || !stream_open(group, &s)) return;
    for (int data = 0; data < KINDS; data++)
        for (int word = 0; word < KINDS; word++)
            go_round(group, &s, (expar_memory_kind)data, (expar_memory_kind)word);
    stream_close(&s);
}

static void test_signals(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, signals);
    kind_run((ranks_plan){0}, 4, signals);
}

/* Every comparison, on words of each width, of each kind of number. */
static void comparisons(expar_group *group, void *shared)
{
    (void)shared;
    test_stream s;
    const int32_t me = group->rank;
    void *first = take(group, EXPAR_MEMORY_PINNED, 64, 0);
    if (!first || !stream_open(group, &s)) return;
    for (int k = 0; k < KINDS; k++) {
        int16_t *small = take_zeros(group, (expar_memory_kind)k, 256);
        int32_t *word = (int32_t *)(void *)(small + 32);
        uint64_t *large = (uint64_t *)(void *)(small + 64);
        if (!small) break;
        CHECK_OK(expar_barrier_all(group));
        CHECK_OK(expar_wait_until_i16_on_stream(group, small, EXPAR_CMP_LT, -4, s.stream));
        CHECK_OK(expar_wait_until_i32_on_stream(group, word, EXPAR_CMP_LE, -70000, s.stream));
        CHECK_OK(expar_wait_until_u64_on_stream(group, large, EXPAR_CMP_GT, UINT64_MAX / 2, s.stream));
        CHECK_OK(expar_wait_until_u64_on_stream(group, large + 1, EXPAR_CMP_NE, 0, s.stream));
        CHECK_OK(expar_p_i32_on_stream(group, word + 1, 9, me, s.stream));
        CHECK_OK(expar_p_i16(group, small, -5, me));
        CHECK_OK(expar_p_i32(group, word, -70000, me));
        CHECK_OK(expar_p_u64(group, large + 1, 1, me));
        int32_t seen = 9;
        CHECK_OK(expar_g_i32(group, word + 1, me, &seen)); /* which waits for no stream */
        CHECK(seen == 0, "the stream has not waited");
        CHECK_OK(expar_p_u64(group, large, UINT64_MAX, me));
        stream_await(&s);
        read_from(group, (expar_memory_kind)k, word + 1, &seen, sizeof seen);
        CHECK(seen == 9, "the word after the waits is %d", seen);
        CHECK_OK(expar_barrier_all(group));
        CHECK_OK(expar_free(group, small));
    }
    CHECK_OK(expar_group_query(group));
    stream_close(&s);
}

static void test_comparisons(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, comparisons);
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

/* Work after a put on the stream may change its source, for each way that a put takes. */
static void free_sources(expar_group *group, void *shared)
{
    enum { BYTES = 70000 };
    (void)shared;
    test_stream s;
    uint8_t *outside, *dest[KINDS];
    const int32_t next = (group->rank + 1) % group->size;
    for (int k = 0; k < KINDS; k++)
        if (!(dest[k] = take_zeros(group, (expar_memory_kind)k, BYTES))) return;
    /* After the group's own device memory, which keeps the context of `outside` alive. */
    if (!(outside = take_outside(group, BYTES)) || !stream_open(group, &s)) return;
    fill_block(group, EXPAR_MEMORY_DEVICE, outside, BYTES, 5);
    CHECK_OK(expar_barrier_all(group));
    for (int k = 0; k < KINDS; k++) {
        CHECK_OK(expar_put_on_stream(group, dest[k], outside, BYTES, next, s.stream));
        CHECK_OK(CUDA_CALL(MemsetD8Async, (cu_address)(uintptr_t)outside, 0, BYTES, s.stream));
        CHECK_OK(expar_quiet_on_stream(group, s.stream));
        CHECK_OK(expar_barrier_all_on_stream(group, s.stream));
        CHECK_OK(expar_get_on_stream(group, outside, dest[k], BYTES, group->rank, s.stream));
    }
    stream_await(&s);
    for (int k = 0; k < KINDS; k++)
        holds_pattern(group, (expar_memory_kind)k, dest[k], BYTES, 5);
    CHECK_OK(expar_barrier_all(group));
    stream_close(&s);
    give_outside(group, outside);
}

static void test_free_sources(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 3, free_sources);
}

/* ---- contexts ---------------------------------------------------------------------------------------------------- */

/* A context's PEs are members of its team. */
static void contexts(expar_group *group, void *shared)
{
    (void)shared;
    test_stream s;
    expar_team *world, *back;
    expar_ctx *ctx;
    const int32_t n = group->size, me = group->rank;
    uint64_t *words = take_zeros(group, EXPAR_MEMORY_PINNED, 64);
    if (!words || !stream_open(group, &s)) return;
    CHECK_OK(expar_team_get_world(group, &world));
    CHECK_OK(expar_team_split_strided(world, n - 1, -1, n, NULL, &back));
    CHECK_OK(expar_ctx_create(back, NULL, &ctx));
    CHECK_OK(expar_barrier_all(group));
    /* Member 0 is the last rank. */
    CHECK_OK(expar_ctx_signal_op_on_stream(ctx, words, 1, EXPAR_SIGNAL_ADD, 0, s.stream));
    CHECK_OK(expar_ctx_p_u64_on_stream(ctx, words + 1, 7, n - 1 - me, s.stream));
    CHECK_OK(expar_ctx_fence_on_stream(ctx, s.stream));
    CHECK_OK(expar_ctx_get_on_stream(ctx, words + 2, words + 1, 8, n - 1 - me, s.stream));
    CHECK_OK(expar_ctx_put_signal_on_stream(ctx, words + 3, words + 1, 8, words + 4, 3, EXPAR_SIGNAL_SET, n - 1 - me,
                                            s.stream));
    CHECK_OK(expar_ctx_quiet_on_stream(ctx, s.stream));
    CHECK_OK(expar_team_barrier_on_stream(back, s.stream));
    stream_await(&s);
    CHECK(words[0] == (me == n - 1 ? (uint64_t)n : 0) && words[1] == 7 && words[2] == 7 && words[3] == 7 &&
              words[4] == 3,
          "%llu, %llu, %llu, %llu, %llu", (unsigned long long)words[0], (unsigned long long)words[1],
          (unsigned long long)words[2], (unsigned long long)words[3], (unsigned long long)words[4]);
    CHECK_STATUS(EXPAR_ERR_RANGE, expar_ctx_p_u64_on_stream(ctx, words, 1, n, s.stream));
    CHECK_OK(expar_ctx_query(ctx));
    CHECK_OK(expar_ctx_destroy(ctx));
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ctx_quiet_on_stream(ctx, s.stream));
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ctx_query(ctx));
    CHECK_OK(expar_barrier_all(group));
    stream_close(&s);
}

static void test_contexts(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 3, contexts);
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */

enum { COUNT = 600 };

static uint32_t value_at(int32_t rank, size_t i)
{
    return (uint32_t)rank * 1000003u + (uint32_t)i * 17u + 1;
}

static void fill_words(const expar_group *group, expar_memory_kind kind, uint32_t *to, int32_t rank, size_t count)
{
    uint32_t *data = malloc(count * sizeof *data);
    for (size_t i = 0; i < count; i++)
        data[i] = value_at(rank, i);
    write_to(group, kind, to, data, count * sizeof *data);
    free(data);
}

typedef uint32_t (*wanted_word)(const expar_team *team, int32_t me, size_t i);

static uint32_t of_root(const expar_team *team, int32_t me, size_t i)
{
    (void)me;
    return value_at(expar_team_n_pes(team) - 1, i);
}
static uint32_t of_each(const expar_team *team, int32_t me, size_t i)
{
    (void)team, (void)me;
    return value_at((int32_t)(i / COUNT), i % COUNT);
}
static uint32_t of_blocks(const expar_team *team, int32_t me, size_t i)
{
    (void)team;
    return value_at((int32_t)(i / COUNT), (size_t)me * COUNT + i % COUNT);
}
static uint32_t of_sum(const expar_team *team, int32_t me, size_t i)
{
    (void)me;
    uint32_t sum = 0;
    for (int32_t r = 0; r < expar_team_n_pes(team); r++)
        sum += value_at(r, i);
    return sum;
}

static void check_words(const expar_team *team, const expar_group *group, expar_memory_kind kind, const uint32_t *at,
                        size_t count, wanted_word wanted, const char *what)
{
    size_t wrong = 0;
    uint32_t *seen = malloc(count * sizeof *seen);
    read_from(group, kind, at, seen, count * sizeof *seen);
    for (size_t i = 0; i < count; i++)
        wrong += seen[i] != wanted(team, expar_team_my_pe(team), i);
    CHECK(wrong == 0, "%s: %zu of %zu words of %s memory are wrong", what, wrong, count, kind_names[kind]);
    free(seen);
}

/* All of a team's collectives, one after the other on one stream, beside the host's of the same team. */
static void run_collectives(expar_team *team, const test_stream *s, expar_memory_kind kind)
{
    expar_group *group = expar_team_group(team);
    const size_t n = (size_t)expar_team_n_pes(team), all = n * COUNT, bytes = COUNT * sizeof(uint32_t);
    const int32_t me = expar_team_my_pe(team), root = (int32_t)n - 1;
    uint32_t *source = take(group, kind, all * sizeof *source, 0), *dest[6], *host = take(group, kind, bytes, 0);
    for (size_t i = 0; i < ARRAY_LENGTH(dest); i++)
        dest[i] = take_zeros(group, kind, all * sizeof(uint32_t));
    fill_words(group, kind, source, me, all);
    CHECK_OK(expar_barrier_all(group));
    CHECK_OK(expar_broadcast_on_stream(team, dest[0], source, bytes, root, s->stream));
    CHECK_OK(expar_sum_reduce_u32(team, host, source, COUNT));
    CHECK_OK(expar_fcollect_on_stream(team, dest[1], source, bytes, s->stream));
    CHECK_OK(expar_collect_on_stream(team, dest[2], source, bytes, s->stream));
    CHECK_OK(expar_alltoall_on_stream(team, dest[3], source, bytes, s->stream));
    CHECK_OK(expar_team_barrier(team));
    CHECK_OK(expar_alltoalls_on_stream(team, dest[4], source, 1, 1, 4, COUNT, s->stream));
    CHECK_OK(expar_team_sync_on_stream(team, s->stream));
    CHECK_OK(expar_sum_reduce_u32_on_stream(team, dest[5], source, COUNT, s->stream));
    stream_await(s);
    CHECK_OK(expar_group_query(group));
    check_words(team, group, kind, dest[0], COUNT, of_root, "broadcast");
    check_words(team, group, kind, dest[1], all, of_each, "fcollect");
    check_words(team, group, kind, dest[2], all, of_each, "collect");
    check_words(team, group, kind, dest[3], all, of_blocks, "alltoall");
    check_words(team, group, kind, dest[4], all, of_blocks, "alltoalls");
    check_words(team, group, kind, dest[5], COUNT, of_sum, "sum_reduce");
    check_words(team, group, kind, host, COUNT, of_sum, "the host's sum_reduce");
    CHECK_OK(expar_barrier_all(group));
    for (size_t i = 0; i < ARRAY_LENGTH(dest); i++)
        CHECK_OK(expar_free(group, dest[i]));
    CHECK_OK(expar_free(group, source));
    CHECK_OK(expar_free(group, host));
}

static void collectives(expar_group *group, void *shared)
{
    (void)shared;
    test_stream s;
    expar_team *world, *half;
    void *first = take(group, EXPAR_MEMORY_PINNED, 64, 0);
    if (!first || !stream_open(group, &s)) return;
    CHECK_OK(expar_team_get_world(group, &world));
    for (int k = 0; k < KINDS; k++)
        run_collectives(world, &s, (expar_memory_kind)k);
    /* Every rank is in one of two teams, which share no member. */
    const int32_t n = group->size, odd = group->rank % 2;
    expar_team *parts[2];
    for (int i = 0; i < 2; i++)
        CHECK_OK(expar_team_split_strided(world, i, 2, (n - i + 1) / 2, NULL, &parts[i]));
    half = parts[odd];
    run_collectives(half, &s, EXPAR_MEMORY_DEVICE);
    CHECK_OK(expar_team_destroy(half));
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_team_sync_on_stream(half, s.stream));
    stream_close(&s);
}

static void test_collectives(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, collectives);
    kind_run((ranks_plan){0}, 4, collectives);
}

/* Two formed teams that overlap in rank 0, in one order on one stream. A destroyed one gives its place to the next. */
static void formed_teams(expar_group *group, void *shared)
{
    (void)shared;
    test_stream s;
    expar_team *all, *first;
    void *block = take(group, EXPAR_MEMORY_PINNED, 64, 0);
    if (!block || !stream_open(group, &s)) return;
    const int32_t some = (group->size + 1) / 2;
    CHECK_OK(expar_team_form(group, 0, 1, group->size, &all));
    run_collectives(all, &s, EXPAR_MEMORY_DEVICE);
    CHECK_OK(expar_team_form(group, 0, 1, some, &first));
    for (int i = 0; i < 10; i++) {
        CHECK_OK(expar_team_barrier_on_stream(all, s.stream));
        if (first) CHECK_OK(expar_team_sync_on_stream(first, s.stream));
    }
    stream_await(&s);
    CHECK_OK(expar_group_query(group));
    CHECK_OK(expar_team_destroy(all));
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_team_sync_on_stream(all, s.stream));
    CHECK_OK(expar_team_form(group, 0, 1, group->size, &all));
    CHECK_OK(expar_team_barrier_on_stream(all, s.stream));
    stream_await(&s);
    CHECK_OK(expar_group_query(group));
    CHECK_OK(expar_barrier_all(group));
    CHECK_OK(expar_team_destroy(first));
    CHECK_OK(expar_team_destroy(all));
    stream_close(&s);
}

static void test_formed_teams(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, formed_teams);
    kind_run((ranks_plan){0}, 4, formed_teams);
}

/* Two teams' barriers on two streams, in different orders on different ranks: neither holds the other up. */
static void crossing(expar_group *group, void *shared)
{
    (void)shared;
    test_stream s, t;
    expar_team *world, *again;
    void *first = take(group, EXPAR_MEMORY_PINNED, 64, 0);
    if (!first || !stream_open(group, &s) || !stream_open(group, &t)) return;
    CHECK_OK(expar_team_get_world(group, &world));
    CHECK_OK(expar_team_split_strided(world, 0, 1, group->size, NULL, &again));
    for (int i = 0; i < 10; i++) {
        const bool swaps = (group->rank + i) % 2;
        CHECK_OK(expar_team_barrier_on_stream(swaps ? world : again, swaps ? s.stream : t.stream));
        CHECK_OK(expar_team_barrier_on_stream(swaps ? again : world, swaps ? t.stream : s.stream));
    }
    stream_await(&s);
    stream_await(&t);
    CHECK_OK(expar_group_query(group));
    stream_close(&t);
    stream_close(&s);
}

static void test_crossing(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, crossing);
}

/* ---- bad input --------------------------------------------------------------------------------------------------- */

static void bad_arguments(expar_group *group, const test_stream *s, uint64_t *word)
{
    void *stream = s->stream;
    uint8_t *bytes = (uint8_t *)word, local[8] = {0};
    const int32_t me = group->rank, n = group->size;
    CHECK_STATUS(EXPAR_ERR_NULL, expar_put_on_stream(NULL, word, local, 8, 0, stream));
    CHECK_TEXT("expar_put_on_stream: group is NULL");
    CHECK_STATUS(EXPAR_ERR_RANGE, expar_put_on_stream(group, word, local, 8, n, stream));
    CHECK_TEXT("expar_put_on_stream: pe", "expected 0 to");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_put_on_stream(group, NULL, local, 8, me, stream));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_put_on_stream(group, word, NULL, 8, me, stream));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_put_on_stream(group, local, word, 8, me, stream));
    CHECK_TEXT("expar_put_on_stream: dest:", "is not within the symmetric heap");
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_get_on_stream(group, local, word, SIZE_MAX / 2, me, stream));
    CHECK_TEXT("expar_get_on_stream: source:");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_get_on_stream(group, NULL, word, 8, me, stream));
    CHECK_STATUS(EXPAR_ERR_ALIGNMENT, expar_p_u32_on_stream(group, (uint32_t *)(void *)(bytes + 2), 1, me, stream));
    CHECK_TEXT("expar_p_u32_on_stream: dest:", "is not a multiple of 4");
    CHECK_STATUS(EXPAR_ERR_ALIGNMENT,
                 expar_signal_op_on_stream(group, (uint64_t *)(void *)(bytes + 4), 1, EXPAR_SIGNAL_SET, me, stream));
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_signal_op_on_stream(group, word, 1, (expar_signal_op)7, me, stream));
    CHECK_TEXT("op 7", "expected EXPAR_SIGNAL_SET or EXPAR_SIGNAL_ADD");
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_wait_until_u64_on_stream(group, word, (expar_cmp)9, 1, stream));
    CHECK_TEXT("cmp 9");
    CHECK_STATUS(EXPAR_ERR_ADDRESS,
                 expar_signal_wait_until_on_stream(group, (uint64_t *)(void *)local, EXPAR_CMP_EQ, 1, stream));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_quiet_on_stream(NULL, stream));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_group_query(NULL));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ctx_query(NULL));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ctx_put_on_stream(NULL, word, local, 8, 0, stream));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_barrier_all_on_stream(NULL, stream));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_team_sync_on_stream(NULL, stream));
    CHECK_OK(expar_put_on_stream(group, NULL, NULL, 0, me, stream));
}

/* Teams' errors are those of the host's calls. Nobody else waits for these. */
static void bad_collectives(expar_group *group, const test_stream *s, uint64_t *word)
{
    expar_team *world, *own = NULL;
    uint64_t local = 0;
    CHECK_OK(expar_team_get_world(group, &world));
    for (int32_t r = 0; r < group->size; r++) {
        expar_team *one;
        CHECK_OK(expar_team_split_strided(world, r, 1, 1, NULL, &one));
        if (one) own = one;
    }
    CHECK_STATUS(EXPAR_ERR_RANGE, expar_broadcast_on_stream(own, word, word, 8, 1, s->stream));
    CHECK_TEXT("expar_broadcast_on_stream: root 1", "expected 0 to 0");
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_broadcast_on_stream(own, word, &local, 8, 0, s->stream));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_fcollect_on_stream(own, &local, word, 8, s->stream));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_alltoall_on_stream(own, word, NULL, 8, s->stream));
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_alltoalls_on_stream(own, word, word, 0, 1, 8, 1, s->stream));
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_alltoall_on_stream(world, word, word, SIZE_MAX / 2 + 1, s->stream));
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_sum_reduce_u64_on_stream(own, word, word, SIZE_MAX, s->stream));
    CHECK_OK(expar_team_sync_on_stream(own, s->stream));
    stream_await(s);
    CHECK_OK(expar_group_query(group));
}

static void bad_input(expar_group *group, void *shared)
{
    (void)shared;
    test_stream s;
    uint64_t *host = take_zeros(group, EXPAR_MEMORY_HOST, 64);
    if (!host || !stream_open(group, &s)) return;
    CHECK_STATUS(EXPAR_ERR_STATE, expar_quiet_on_stream(group, s.stream));
    CHECK_TEXT("expar_quiet_on_stream", "expected expar_memory_alloc of device or pinned memory before");
    for (int k = 0; k < KINDS; k++) {
        uint64_t *word = take_zeros(group, (expar_memory_kind)k, 64);
        if (!word) return;
        if (k > 0) bad_arguments(group, &s, word);
    }
    bad_arguments(group, &s, host);
    bad_collectives(group, &s, host);
    if (kind_of_ranks == RANKS_THREADS) {
        CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_quiet_on_stream(group, NULL));
        CHECK_TEXT("the default one");
    }
    CHECK_OK(expar_barrier_all(group));
    stream_close(&s);
}

static void test_bad_input(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, bad_input);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_signals),  cmocka_unit_test(test_comparisons), cmocka_unit_test(test_free_sources),
        cmocka_unit_test(test_contexts), cmocka_unit_test(test_collectives), cmocka_unit_test(test_formed_teams),
        cmocka_unit_test(test_crossing), cmocka_unit_test(test_bad_input),
    };
    kind_read(argc, argv);
    stream_queues();
    num_gpus = gpus_count(1);
    if (num_gpus < 1) return GPUS_SKIP;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
