/* SPDX-License-Identifier: Apache-2.0 */
/* Calls on streams in graphs: captured once and launched many times, between calls that are in no graph. Ranks are
 * threads or processes, also of several simulated nodes (argument mix). */
#include "pgas/stream/streams.h"

#include "cuda/find_controls.h"

enum { ROUNDS = 8, BYTES = 256 };

/* Memory of the graph's calls. */
typedef struct ring {
    uint8_t *source, *dest[KINDS], *back; /* [BYTES] */
    uint64_t *count, *lap;
} ring;

static bool ring_take(expar_group *group, ring *r)
{
    r->source = take_zeros(group, EXPAR_MEMORY_DEVICE, BYTES);
    r->back = take_zeros(group, EXPAR_MEMORY_PINNED, BYTES);
    r->count = take_zeros(group, EXPAR_MEMORY_PINNED, sizeof *r->count);
    r->lap = take_zeros(group, EXPAR_MEMORY_DEVICE, sizeof *r->lap);
    for (int k = 0; k < KINDS; k++)
        if (!(r->dest[k] = take_zeros(group, (expar_memory_kind)k, BYTES))) return false;
    return r->source && r->back && r->count && r->lap;
}

/* Direct copies and words, and calls that the library's thread carries out: an addition, host memory, a wait, a
   barrier. */
static void put_all(expar_group *group, const ring *r, void *stream)
{
    const int32_t next = (group->rank + 1) % group->size;
    CHECK_OK(expar_put_on_stream(group, r->dest[EXPAR_MEMORY_DEVICE], r->source, BYTES, next, stream));
    CHECK_OK(expar_put_on_stream(group, r->dest[EXPAR_MEMORY_PINNED], r->source, BYTES, next, stream));
    CHECK_OK(expar_put_on_stream(group, r->dest[EXPAR_MEMORY_HOST], r->source, BYTES, next, stream));
    CHECK_OK(expar_signal_op_on_stream(group, r->count, 1, EXPAR_SIGNAL_ADD, next, stream));
    CHECK_OK(expar_quiet_on_stream(group, stream));
    CHECK_OK(expar_p_u64_on_stream(group, r->lap, 5, next, stream));
    CHECK_OK(expar_wait_until_u64_on_stream(group, r->lap, EXPAR_CMP_EQ, 5, stream));
    CHECK_OK(expar_barrier_all_on_stream(group, stream));
    CHECK_OK(expar_get_on_stream(group, r->back, r->dest[EXPAR_MEMORY_DEVICE], BYTES, next, stream));
    CHECK_OK(expar_p_u64_on_stream(group, r->lap, 0, group->rank, stream));
    /* No rank's next launch comes before all have cleared their word. */
    CHECK_OK(expar_barrier_all_on_stream(group, stream));
}

static void check_ring(expar_group *group, const ring *r, uint32_t before, uint32_t next, uint64_t count)
{
    for (int k = 0; k < KINDS; k++)
        holds_pattern(group, (expar_memory_kind)k, r->dest[k], BYTES, before);
    holds_pattern(group, EXPAR_MEMORY_PINNED, r->back, BYTES, next);
    CHECK(*r->count == count, "the count is %llu, expected %llu", (unsigned long long)*r->count,
          (unsigned long long)count);
}

/* The simulated driver has a thread for each operation that is pending, so there are few. */
static void launch(cu_graph_exec graph, const test_stream *s, int times)
{
    for (int i = 0; i < times; i++) {
        CHECK_OK(CUDA_CALL(GraphLaunch, graph, s->stream));
        if (i % 4 == 3) stream_await(s);
    }
}

/* Between launches, sources get other data by calls that are in no graph. */
static void replay(expar_group *group, void *shared)
{
    (void)shared;
    ring r;
    test_stream s;
    expar_team *world;
    uint64_t count = 0;
    const int32_t n = group->size, me = group->rank, before = (me + n - 1) % n;
    const fake_controls *controls;
    /* 1000 launches on threads, and fewer where each takes longer */
    const int each = kind_of_ranks == RANKS_THREADS && !getenv("EXPAR_STAGE") ? 125 : 10;
    if (!ring_take(group, &r) || !stream_open(group, &s)) return;
    CHECK_OK(expar_team_get_world(group, &world));
    controls = controls_find();
    capture_begin(&s);
    put_all(group, &r, s.stream);
    const cu_graph_exec graph = capture_end(&s);
    CHECK(*r.count == 0, "the capture has added");
    CHECK_OK(expar_barrier_all(group));
    for (uint32_t round = 0; graph && round < ROUNDS; round++) {
        fill_block(group, EXPAR_MEMORY_DEVICE, r.source, BYTES, round * 100 + (uint32_t)me);
        launch(graph, &s, each);
        put_all(group, &r, s.stream);
        stream_await(&s);
        count += (uint64_t)each + 1;
        CHECK_OK(expar_barrier_all(group));
        /* dest of the next rank has what this one has put */
        check_ring(group, &r, round * 100 + (uint32_t)before, round * 100 + (uint32_t)me, count);
        CHECK_OK(expar_barrier_all(group));
        if (check_failures() > 0) break;
    }
    CHECK_OK(expar_group_query(group));
    CHECK(!controls || atomic_load(&controls->host_functions) == 0, "the library has put a host function on a stream");
    CHECK(!controls || atomic_load(&controls->launches) == 0, "the library has launched a kernel");
    if (graph) CHECK_OK(CUDA_CALL(GraphExecDestroy, graph));
    CHECK_OK(expar_barrier_all(group));
    stream_close(&s);
}

static void test_replay(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, replay);
}

/* ---- the other calls --------------------------------------------------------------------------------------------- */

enum { WORDS = 4, PARTS = 8 };

/* Memory of collectives, each with a result of its own, and of calls of a context. word_in tells what the sources hold.
   By collectives each rank sends WORDS words to each. */
typedef struct others {
    expar_team *team;
    expar_ctx *ctx;
    uint64_t *source, *result[PARTS]; /* [size * WORDS] */
    uint64_t *put, *by_ctx, *back;    /* [WORDS] */
    uint64_t *signals;                /* of put_signal, the context's put_signal, p and signal_op */
} others;
enum { OF_BROADCAST, OF_FCOLLECT, OF_COLLECT, OF_ALLTOALL, OF_ALLTOALLS, OF_SUM, OF_XOR, OF_MAX };

static uint64_t word_in(uint32_t round, int32_t rank, size_t i)
{
    return (uint64_t)round * 10000 + (uint64_t)rank * 100 + i;
}

static bool others_take(expar_group *group, others *o)
{
    const size_t all = (size_t)group->size * WORDS * sizeof(uint64_t);
    expar_team *world;
    *o = (others){.source = take_zeros(group, EXPAR_MEMORY_PINNED, all)};
    for (int p = 0; p < PARTS; p++)
        o->result[p] = take_zeros(group, p % 2 ? EXPAR_MEMORY_PINNED : EXPAR_MEMORY_DEVICE, all);
    o->put = take_zeros(group, EXPAR_MEMORY_DEVICE, all);
    o->by_ctx = take_zeros(group, EXPAR_MEMORY_DEVICE, all);
    o->back = take_zeros(group, EXPAR_MEMORY_PINNED, all);
    o->signals = take_zeros(group, EXPAR_MEMORY_PINNED, 4 * sizeof *o->signals);
    return CHECK_OK(expar_team_get_world(group, &world)) && CHECK_OK(expar_ctx_create(world, NULL, &o->ctx)) &&
           CHECK_OK(expar_team_split_strided(world, 0, 1, group->size, NULL, &o->team));
}

static void put_collectives(const others *o, void *stream)
{
    const size_t bytes = WORDS * sizeof(uint64_t);
    uint64_t *const *to = o->result, *from = o->source;
    CHECK_OK(expar_broadcast_on_stream(o->team, to[OF_BROADCAST], from, bytes, 1, stream));
    CHECK_OK(expar_fcollect_on_stream(o->team, to[OF_FCOLLECT], from, bytes, stream));
    CHECK_OK(expar_collect_on_stream(o->team, to[OF_COLLECT], from, bytes, stream));
    CHECK_OK(expar_alltoall_on_stream(o->team, to[OF_ALLTOALL], from, bytes, stream));
    CHECK_OK(expar_team_sync_on_stream(o->team, stream));
    CHECK_OK(expar_alltoalls_on_stream(o->team, to[OF_ALLTOALLS], from, 1, 1, sizeof *from, WORDS, stream));
    CHECK_OK(expar_sum_reduce_u64_on_stream(o->team, to[OF_SUM], from, WORDS, stream));
    CHECK_OK(expar_xor_reduce_u64_on_stream(o->team, to[OF_XOR], from, WORDS, stream));
    CHECK_OK(expar_max_reduce_u64_on_stream(o->team, to[OF_MAX], from, WORDS, stream));
    CHECK_OK(expar_team_barrier_on_stream(o->team, stream));
}

/* Signals are cleared by their rank, between two barriers. */
static void put_signals(expar_group *group, const others *o, void *stream)
{
    const size_t bytes = WORDS * sizeof(uint64_t);
    const int32_t next = (group->rank + 1) % group->size;
    uint64_t *const s = o->signals;
    CHECK_OK(expar_put_signal_on_stream(group, o->put, o->source, bytes, &s[0], 1, EXPAR_SIGNAL_SET, next, stream));
    CHECK_OK(expar_fence_on_stream(group, stream));
    CHECK_OK(
        expar_ctx_put_signal_on_stream(o->ctx, o->by_ctx, o->source, bytes, &s[1], 2, EXPAR_SIGNAL_ADD, next, stream));
    CHECK_OK(expar_ctx_fence_on_stream(o->ctx, stream));
    CHECK_OK(expar_ctx_p_u64_on_stream(o->ctx, &s[2], 3, next, stream));
    CHECK_OK(expar_ctx_signal_op_on_stream(o->ctx, &s[3], 4, EXPAR_SIGNAL_ADD, next, stream));
    CHECK_OK(expar_ctx_quiet_on_stream(o->ctx, stream));
    for (uint64_t i = 0; i < 4; i++)
        CHECK_OK(expar_signal_wait_until_on_stream(group, &s[i], EXPAR_CMP_EQ, i + 1, stream));
    CHECK_OK(expar_sync_all_on_stream(group, stream));
    CHECK_OK(expar_ctx_get_on_stream(o->ctx, o->back, o->by_ctx, bytes, next, stream));
    CHECK_OK(expar_ctx_put_on_stream(o->ctx, o->put + WORDS, o->source, bytes, next, stream));
    for (int i = 0; i < 4; i++)
        CHECK_OK(expar_p_u64_on_stream(group, &s[i], 0, group->rank, stream));
    CHECK_OK(expar_barrier_all_on_stream(group, stream));
}

/* Checks one word of each result: word i of WORDS that came from rank `from`. */
static void check_others(expar_group *group, const others *o, uint32_t round, int32_t from, size_t i)
{
    const int32_t me = group->rank, n = group->size, before = (me + n - 1) % n;
    const size_t at = (size_t)from * WORDS + i, mine = (size_t)me * WORDS + i;
    uint64_t sum = 0, both = 0, seen[PARTS];
    for (int32_t r = 0; r < n; r++) {
        sum += word_in(round, r, i);
        both ^= word_in(round, r, i);
    }
    for (int p = 0; p < PARTS; p++)
        seen[p] = word_of(group, p % 2 ? EXPAR_MEMORY_PINNED : EXPAR_MEMORY_DEVICE,
                          o->result[p] + (p >= OF_SUM || p == OF_BROADCAST ? i : at));
    CHECK(seen[OF_BROADCAST] == word_in(round, 1, i), "broadcast: word %zu is %llu", i,
          (unsigned long long)seen[OF_BROADCAST]);
    CHECK(seen[OF_FCOLLECT] == word_in(round, from, i), "fcollect: %llu", (unsigned long long)seen[OF_FCOLLECT]);
    CHECK(seen[OF_COLLECT] == word_in(round, from, i), "collect: %llu", (unsigned long long)seen[OF_COLLECT]);
    CHECK(seen[OF_ALLTOALL] == word_in(round, from, mine), "alltoall: %llu", (unsigned long long)seen[OF_ALLTOALL]);
    CHECK(seen[OF_ALLTOALLS] == word_in(round, from, mine), "alltoalls: %llu", (unsigned long long)seen[OF_ALLTOALLS]);
    CHECK(seen[OF_SUM] == sum, "sum: %llu", (unsigned long long)seen[OF_SUM]);
    CHECK(seen[OF_XOR] == both, "xor: %llu", (unsigned long long)seen[OF_XOR]);
    CHECK(seen[OF_MAX] == word_in(round, n - 1, i), "max: %llu", (unsigned long long)seen[OF_MAX]);
    const uint64_t put = word_of(group, EXPAR_MEMORY_DEVICE, o->put + i);
    const uint64_t by_ctx = word_of(group, EXPAR_MEMORY_DEVICE, o->put + WORDS + i);
    CHECK(put == word_in(round, before, i), "put_signal: %llu", (unsigned long long)put);
    CHECK(by_ctx == word_in(round, before, i), "the context's put: %llu", (unsigned long long)by_ctx);
    CHECK(o->back[i] == word_in(round, me, i), "the context's get: %llu", (unsigned long long)o->back[i]);
}

static void replay_others(expar_group *group, void *shared)
{
    (void)shared;
    others o;
    test_stream s;
    if (!others_take(group, &o) || !stream_open(group, &s)) return;
    capture_begin(&s);
    put_signals(group, &o, s.stream);
    put_collectives(&o, s.stream);
    const cu_graph_exec graph = capture_end(&s);
    CHECK_OK(expar_barrier_all(group));
    /* The graph, and the same calls in no graph, take turns. */
    for (uint32_t round = 1; graph && round < 7 && check_failures() == 0; round++) {
        for (size_t i = 0; i < (size_t)group->size * WORDS; i++)
            o.source[i] = word_in(round, group->rank, i);
        CHECK_OK(expar_barrier_all(group));
        if (round % 2) {
            launch(graph, &s, 2);
        } else {
            put_signals(group, &o, s.stream);
            put_collectives(&o, s.stream);
        }
        stream_await(&s);
        CHECK_OK(expar_barrier_all(group));
        for (int32_t from = 0; from < group->size; from++)
            for (size_t i = 0; i < WORDS; i++)
                check_others(group, &o, round, from, i);
        CHECK_OK(expar_barrier_all(group));
    }
    CHECK_OK(expar_group_query(group));
    CHECK_OK(expar_ctx_query(o.ctx));
    if (graph) CHECK_OK(CUDA_CALL(GraphExecDestroy, graph));
    CHECK_OK(expar_ctx_destroy(o.ctx));
    CHECK_OK(expar_team_destroy(o.team));
    stream_close(&s);
}

static void test_replay_other_calls(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, replay_others);
}

/* ---- captures that would take memory ----------------------------------------------------------------------------- */

/* The word of a graph's call is taken for good, and comes back with the graph. */
static void too_many(expar_group *group, void *shared)
{
    (void)shared;
    enum { MOST = 4096 };
    test_stream s;
    expar_status status = EXPAR_OK;
    /* the counter, data, where they must not arrive, and a signal that must not be set */
    uint64_t *word = take_zeros(group, EXPAR_MEMORY_PINNED, 4 * sizeof *word);
    if (!word || !stream_open(group, &s)) return;
    word[1] = 9;
    for (int round = 0; round < 2; round++) {
        const uint64_t had = *word;
        uint64_t put = 0;
        capture_begin(&s);
        while ((status = expar_signal_op_on_stream(group, word, 1, EXPAR_SIGNAL_ADD, group->rank, s.stream)) ==
                   EXPAR_OK &&
               put < MOST)
            put++;
        CHECK_STATUS(EXPAR_ERR_STATE, status);
        CHECK_TEXT("expar_signal_op_on_stream", "a capture cannot take", "EXPAR_STREAM_CALLS");
        /* Nothing of such a call is in the graph. */
        for (expar_signal_op op = EXPAR_SIGNAL_SET; op <= EXPAR_SIGNAL_ADD; op++)
            CHECK_STATUS(EXPAR_ERR_STATE, expar_put_signal_on_stream(group, word + 2, word + 1, sizeof *word, word + 3,
                                                                     1, op, group->rank, s.stream));
        CHECK_TEXT("expar_put_signal_on_stream", "a capture cannot take");
        const cu_graph_exec graph = capture_end(&s);
        if (!graph) break;
        launch(graph, &s, 1);
        stream_await(&s);
        CHECK(word[2] == 0 && word[3] == 0, "a part of a call that was rejected is in the graph");
        CHECK(put > 0 && *word == had + put, "%llu of %llu calls were carried out", (unsigned long long)(*word - had),
              (unsigned long long)put);
        /* Outside of captures there is memory. */
        CHECK_OK(expar_signal_op_on_stream(group, word, 1, EXPAR_SIGNAL_ADD, group->rank, s.stream));
        CHECK_OK(CUDA_CALL(GraphExecDestroy, graph));
        stream_await(&s);
    }
    CHECK_OK(expar_group_query(group));
    CHECK_OK(expar_barrier_all(group));
    stream_close(&s);
}

static void test_too_many(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, too_many);
}

/* A group without teams cannot make them in a capture. Nothing of the call is in the graph. */
static void without_teams(expar_group *group, void *shared)
{
    (void)shared;
    test_stream s;
    uint64_t *word = take_zeros(group, EXPAR_MEMORY_PINNED, sizeof *word);
    if (!word || !stream_open(group, &s)) return;
    capture_begin(&s);
    CHECK_STATUS(EXPAR_ERR_STATE, expar_barrier_all_on_stream(group, s.stream));
    CHECK_TEXT("expar_barrier_all_on_stream", "expected expar_team_get_world before");
    CHECK_OK(expar_p_u64_on_stream(group, word, 3, group->rank, s.stream));
    const cu_graph_exec graph = capture_end(&s);
    if (graph) launch(graph, &s, 1);
    stream_await(&s);
    CHECK(*word == 3, "the word is %llu", (unsigned long long)*word);
    CHECK_OK(expar_barrier_all_on_stream(group, s.stream));
    if (graph) CHECK_OK(CUDA_CALL(GraphExecDestroy, graph));
    stream_close(&s);
    CHECK_OK(expar_barrier_all(group));
}

static void test_without_teams(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, without_teams);
}

/* ---- graphs that outlive ----------------------------------------------------------------------------------------- */

/* A graph that is launched after the end of its team, and of its context, runs through. The calls fail. */
static void outlived_team(expar_group *group, void *shared)
{
    (void)shared;
    test_stream s;
    expar_team *world, *again;
    uint64_t *word = take_zeros(group, EXPAR_MEMORY_PINNED, sizeof *word);
    if (!word || !stream_open(group, &s)) return;
    CHECK_OK(expar_team_get_world(group, &world));
    CHECK_OK(expar_team_split_strided(world, 0, 1, group->size, NULL, &again));
    capture_begin(&s);
    CHECK_OK(expar_team_sync_on_stream(again, s.stream));
    CHECK_OK(expar_p_u64_on_stream(group, word, 3, group->rank, s.stream));
    const cu_graph_exec graph = capture_end(&s);
    CHECK_OK(expar_team_destroy(again));
    if (graph) launch(graph, &s, 1);
    stream_await(&s);
    CHECK(*word == 3, "the word is %llu", (unsigned long long)*word);
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_quiet_on_stream(group, s.stream));
    CHECK_TEXT("expar_team_sync_on_stream: the team was destroyed");
    CHECK_OK(expar_quiet_on_stream(group, s.stream));
    if (graph) CHECK_OK(CUDA_CALL(GraphExecDestroy, graph));
    CHECK_OK(expar_barrier_all(group));
    stream_close(&s);
}

static void test_outlived_team(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, outlived_team);
}

/* A rank's own group, which ends before its graph does. */
static void test_outlived_group(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_PROCESSES) skip(); /* CUDA does not survive the forks of other tests */
    expar_unique_id id;
    expar_group *group = NULL;
    test_stream s;
    check_begin(0);
    expar_group_options options = EXPAR_GROUP_OPTIONS_INIT;
    CHECK_OK(expar_unique_id_create(&id));
    options.id = &id;
    options.size = 1;
    CHECK_OK(expar_group_create(&options, &group));
    uint64_t *word = group ? take_zeros(group, EXPAR_MEMORY_PINNED, sizeof *word) : NULL;
    assert_non_null(word);
    uint64_t *outside = take_outside(group, sizeof *outside);
    assert_true(stream_open(group, &s));
    capture_begin(&s);
    CHECK_OK(expar_signal_op_on_stream(group, word, 1, EXPAR_SIGNAL_ADD, 0, s.stream));
    CHECK_OK(expar_wait_until_u64_on_stream(group, word, EXPAR_CMP_GT, 0, s.stream));
    CHECK_OK(CUDA_CALL(MemsetD8Async, (cu_address)(uintptr_t)outside, 9, sizeof *outside, s.stream));
    const cu_graph_exec graph = capture_end(&s);
    CHECK_OK(expar_group_destroy(group));
    assert_non_null(graph);
    launch(graph, &s, 3);
    stream_await(&s);
    uint64_t seen = 0;
    CHECK_OK(CUDA_CALL(MemcpyDtoH, &seen, (cu_address)(uintptr_t)outside, sizeof seen));
    CHECK(seen == UINT64_C(0x0909090909090909), "the graph has not run through");
    CHECK_OK(CUDA_CALL(GraphExecDestroy, graph));
    CHECK_OK(CUDA_CALL(MemFree, (cu_address)(uintptr_t)outside));
    stream_close(&s);
    assert_int_equal(check_failures(), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replay),        cmocka_unit_test(test_replay_other_calls),
        cmocka_unit_test(test_too_many),      cmocka_unit_test(test_without_teams),
        cmocka_unit_test(test_outlived_team), cmocka_unit_test(test_outlived_group),
    };
    kind_read(argc, argv);
    stream_queues();
    num_gpus = gpus_count(1);
    if (num_gpus < 1) return GPUS_SKIP;
    setenv("EXPAR_STREAM_CALLS", "64", 1); /* for test_too_many; ranks of one process share what is prepared */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
