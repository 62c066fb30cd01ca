/* SPDX-License-Identifier: Apache-2.0 */
/* Trouble in calls on streams, on the simulated driver. Ranks die while streams wait for them, copies fail, GPUs have
 * no words of streams, and groups end. The last test counts the calls of the driver. */
#include "pgas/stream/streams.h"

#include "cuda/find_controls.h"
#include <expar/device.h>

#include <signal.h>
#include <stdio.h>

enum { VICTIM = 1, SIZE = 3 };

/* ---- death ------------------------------------------------------------------------------------------------------- */

typedef enum deed { DEED_WAIT, DEED_SIGNAL_WAIT, DEED_WAIT_ON_DEVICE, DEED_BARRIER, DEED_SUM, DEED_GRAPH, DEEDS } deed;

static expar_status do_deed(expar_group *group, deed what, uint64_t *pinned, uint64_t *device, void *stream)
{
    expar_team *world;
    switch (what) {
    case DEED_WAIT:
    case DEED_GRAPH:
        return expar_wait_until_u64_on_stream(group, pinned, EXPAR_CMP_EQ, 99, stream);
    case DEED_SIGNAL_WAIT:
        return expar_signal_wait_until_on_stream(group, pinned, EXPAR_CMP_GE, 99, stream);
    case DEED_WAIT_ON_DEVICE:
        return expar_wait_until_u64_on_stream(group, device, EXPAR_CMP_EQ, 99, stream);
    case DEED_BARRIER:
        return expar_barrier_all_on_stream(group, stream);
    case DEED_SUM:
    case DEEDS:
        break;
    }
    CHECK_OK(expar_team_get_world(group, &world));
    return expar_sum_reduce_u64_on_stream(world, device, pinned, 1, stream);
}

/* The stream runs on, and everybody who asks is told. */
static void check_told(expar_group *group, deed what, expar_event *event)
{
    if (what != DEED_GRAPH) {
        CHECK_STATUS(EXPAR_ERR_PEER, expar_event_wait(event));
        CHECK_TEXT("rank 1", "_on_stream");
    } else {
        CHECK_OK(expar_event_wait(event));
    }
    CHECK_STATUS(EXPAR_ERR_PEER, expar_group_query(group));
    CHECK_TEXT("expar_group_query", "rank 1", "_on_stream");
    CHECK_OK(expar_group_query(group));
}

/* Work after the call, which the stream comes to all the same. */
static void lose_one_of(expar_group *group, void *shared)
{
    const deed what = *(const deed *)shared;
    test_stream s;
    expar_event *event = NULL;
    expar_team *world;
    cu_graph_exec graph = NULL;
    uint64_t *pinned = take_zeros(group, EXPAR_MEMORY_PINNED, 64);
    uint64_t *device = take_zeros(group, EXPAR_MEMORY_DEVICE, 64);
    if (!pinned || !device || !stream_open(group, &s)) return;
    CHECK_OK(expar_team_get_world(group, &world));
    if (what == DEED_GRAPH) {
        capture_begin(&s);
        CHECK_OK(do_deed(group, what, pinned, device, s.stream));
        graph = capture_end(&s);
    }
    CHECK_OK(expar_barrier_all(group));
    if (group->rank == VICTIM) raise(SIGKILL);
    if (graph)
        CHECK_OK(CUDA_CALL(GraphLaunch, graph, s.stream));
    else
        CHECK_OK(do_deed(group, what, pinned, device, s.stream));
    CHECK_OK(CUDA_CALL(StreamWriteValue64, s.stream, (cu_address)(uintptr_t)(pinned + 1), 4, CU_WRITE_FENCED));
    CHECK_OK(expar_event_record(s.stream, &event));
    stream_await(&s);
    CHECK(pinned[1] == 4, "the stream has not run on");
    check_told(group, what, event);
    expar_event_release(event);
    /* Ranks that live are reached as before. */
    CHECK_OK(expar_p_u64_on_stream(group, pinned + 2, 1, group->rank, s.stream));
    CHECK_OK(expar_p_u64_on_stream(group, pinned + 3, 1, 2 - group->rank, s.stream));
    CHECK_STATUS(EXPAR_ERR_PEER, expar_p_u64_on_stream(group, pinned + 2, 1, VICTIM, s.stream));
    CHECK_TEXT("rank 1");
    stream_await(&s);
    CHECK(pinned[2] == 1, "the word is %llu", (unsigned long long)pinned[2]);
    CHECK_OK(expar_wait_until_u64(group, pinned + 3, EXPAR_CMP_EQ, 1, NULL));
    stream_close(&s);
}

static void lose_one(deed what)
{
    ranks_host host;
    pid_t pids[SIZE];
    const ranks_plan plan = {.kind = RANKS_PROCESSES, .size = SIZE};
    check_begin(-1);
    assert_true(ranks_host_start(&host));
    for (int32_t r = 0; r < SIZE; r++)
        pids[r] = ranks_fork(&plan, &host.id, r, lose_one_of, &what);
    for (int32_t r = SIZE - 1; r >= 0; r--) {
        const int status = ranks_wait(pids[r], ranks_clock_ms() + RANKS_TIMEOUT_MS, NULL);
        CHECK(r == VICTIM || status == 0, "deed %d: rank %d ended with wait status %#x", (int)what, r,
              (unsigned)status);
    }
    ranks_host_stop(&host);
    assert_int_equal(check_failures(), 0);
}

static void test_death(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_THREADS) skip();
    for (int what = 0; what < DEEDS; what++)
        lose_one((deed)what);
}

/* ---- a context that a kernel breaks ------------------------------------------------------------------------------ */

/* Calls with memory of GPUs fail, those with other memory do not. The program ends the group. */
static void end_after_fault(expar_group *group, const test_stream *s, uint64_t *pinned, uint64_t *device)
{
    uint64_t local = 0;
    expar_device_handle handle;
    setenv("FAKE_LOST", "1", 1);
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_put(group, device, &local, sizeof local, 0));
    CHECK_TEXT("700");
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_wait_until_u64(group, device, EXPAR_CMP_EQ, 1, NULL));
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_atomic_fetch_inc_u64(group, device, VICTIM, &local));
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_device_get(group, NULL, &handle));
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_put_on_stream(group, device, device + 1, 8, 0, s->stream));
    CHECK_TEXT("expar_put_on_stream", "700");
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_signal_wait_until_on_stream(group, pinned, EXPAR_CMP_EQ, 1, s->stream));
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_signal_op_on_stream(group, pinned, 1, EXPAR_SIGNAL_ADD, 0, s->stream));
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_barrier_all_on_stream(group, s->stream));
    CHECK_OK(expar_p_u64(group, pinned + 5, 6, 0));
    CHECK_OK(expar_quiet(group));
    CHECK_OK(expar_group_abort(group));
}

/* A wait on a stream and a barrier name the rank whose context is broken. */
static void wait_for_victim(expar_group *group, const test_stream *s, uint64_t *pinned)
{
    stream_await(s);
    CHECK_STATUS(EXPAR_ERR_PEER, expar_group_query(group));
    CHECK_TEXT("rank 1", "_on_stream");
    CHECK(pinned[5] == 6, "the last word is %llu", (unsigned long long)pinned[5]);
    CHECK_STATUS(EXPAR_ERR_PEER, expar_barrier_all(group));
    CHECK_TEXT("rank 1");
}

/* Handles and streams are in use; the victim's stream waits when its context breaks. */
static void break_context(expar_group *group, void *shared)
{
    (void)shared;
    test_stream s;
    expar_device_handle handle;
    expar_device_error error = EXPAR_DEVICE_ERROR_INIT;
    uint64_t *pinned = take_zeros(group, EXPAR_MEMORY_PINNED, 64);
    uint64_t *device = take_zeros(group, EXPAR_MEMORY_DEVICE, 64);
    if (!pinned || !device || !stream_open(group, &s)) return;
    CHECK_OK(expar_device_get(group, NULL, &handle));
    CHECK_OK(expar_signal_wait_until_on_stream(group, pinned, EXPAR_CMP_EQ, 1, s.stream));
    CHECK_OK(expar_barrier_all(group));
    if (group->rank == VICTIM)
        end_after_fault(group, &s, pinned, device);
    else
        wait_for_victim(group, &s, pinned);
    CHECK_OK(expar_device_get_error(&handle, &error));
    cuda_leave();
    cuda_device_close(s.device);
}

static void test_broken_context(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_THREADS) skip();
    const ranks_plan plan = {.kind = RANKS_PROCESSES, .size = 2};
    assert_true(ranks_run(&plan, break_context, NULL));
}

/* With a handle in use, a barrier asks the lost context what its kernels have issued. The rank that cannot learn it
   comes all the same, so that nobody waits for it. */
static void meet_without_context(expar_group *group, void *shared)
{
    (void)shared;
    expar_device_handle handle;
    uint64_t *device = take_zeros(group, EXPAR_MEMORY_DEVICE, 64), word = 0;
    void *given = device, *zeros = NULL;
    expar_team *world;
    if (!device) return;
    CHECK_OK(expar_device_get(group, NULL, &handle));
    CHECK_OK(expar_barrier_all(group));
    if (group->rank == VICTIM) setenv("FAKE_LOST", "1", 1);
    CHECK_STATUS(group->rank == VICTIM ? EXPAR_ERR_CUDA : EXPAR_OK, expar_barrier_all(group));
    if (group->rank == VICTIM) CHECK_TEXT("expar_barrier_all", "700");
    CHECK_STATUS(group->rank == VICTIM ? EXPAR_ERR_CUDA : EXPAR_ERR_REMOTE, expar_free(group, device));
    if (group->rank != VICTIM) CHECK_TEXT("expar_free", "rank 1");
    CHECK_STATUS(group->rank == VICTIM ? EXPAR_ERR_CUDA : EXPAR_ERR_REMOTE,
                 expar_realloc(group, device, 1 << 20, &given));
    CHECK(given == device, "a rejected call has written its result");
    CHECK_OK(expar_calloc(group, 8, sizeof word, &zeros)); /* it waits for nobody's operations */
    CHECK_OK(expar_team_get_world(group, &world));
    CHECK_OK(expar_team_sync(world));
    CHECK(group->rank == VICTIM || (expar_get(group, &word, device, 8, group->rank) == EXPAR_OK && word == 0),
          "the block is not there any more");
}

static void test_meetings_without_context(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_THREADS) skip();
    const ranks_plan plan = {.kind = RANKS_PROCESSES, .size = 2};
    assert_true(ranks_run(&plan, meet_without_context, NULL));
}

/* ---- who is told ------------------------------------------------------------------------------------------------- */

/* The owner of device memory cannot copy. The next call tells it, once, and events from between do. */
static void failing(expar_group *group, void *shared)
{
    (void)shared;
    test_stream s;
    expar_team *world;
    expar_ctx *ctx;
    expar_event *before = NULL, *after = NULL, *later = NULL;
    uint64_t *device = take_zeros(group, EXPAR_MEMORY_DEVICE, 64), *host = take_zeros(group, EXPAR_MEMORY_HOST, 64);
    if (!device || !host || !stream_open(group, &s)) return;
    CHECK_OK(expar_team_get_world(group, &world));
    CHECK_OK(expar_ctx_create(world, NULL, &ctx));
    CHECK_OK(expar_event_record(s.stream, &before));
    atomic_store(&controls_find()->broken, 1);
    CHECK_OK(expar_put_on_stream(group, host, device, 8, group->rank, s.stream));
    CHECK_OK(expar_ctx_put_on_stream(ctx, host, device, 8, group->rank, s.stream));
    CHECK_OK(CUDA_CALL(StreamSynchronize, s.stream));
    atomic_store(&controls_find()->broken, 0);
    CHECK_OK(expar_event_record(s.stream, &after));
    CHECK_OK(expar_event_wait(before));
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_ctx_query(ctx));
    CHECK_TEXT("expar_ctx_query: expar_ctx_put_on_stream");
    CHECK_OK(expar_ctx_quiet(ctx));
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_p_u64_on_stream(group, device, 7, group->rank, s.stream));
    CHECK_TEXT("expar_put_on_stream");
    stream_await(&s);
    CHECK(word_of(group, EXPAR_MEMORY_DEVICE, device) == 0, "the call that tells a failure has done something");
    CHECK_OK(expar_event_record(s.stream, &later));
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_event_wait(after));
    CHECK_TEXT("expar_event_wait", "expar_put_on_stream");
    CHECK_OK(expar_event_wait(later));
    CHECK_OK(expar_p_u64_on_stream(group, device, 7, group->rank, s.stream));
    /* The host's quiet tells it, too. */
    stream_await(&s);
    atomic_store(&controls_find()->broken, 1);
    CHECK_OK(expar_put_on_stream(group, host, device, 8, group->rank, s.stream));
    CHECK_OK(CUDA_CALL(StreamSynchronize, s.stream));
    atomic_store(&controls_find()->broken, 0);
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_quiet(group));
    CHECK_TEXT("expar_quiet", "expar_put_on_stream");
    CHECK_OK(expar_quiet(group));
    expar_event_release(before);
    expar_event_release(after);
    expar_event_release(later);
    stream_close(&s);
}

static void test_failing(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, failing);
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* A group that ends while a stream waits lets the stream go on. */
static void ends_early(expar_group *group, void *shared)
{
    (void)shared;
    test_stream s;
    expar_event *event = NULL;
    uint64_t *word = take_zeros(group, EXPAR_MEMORY_PINNED, 64);
    uint64_t *outside = take_outside(group, sizeof *outside);
    if (!word || !outside || !stream_open(group, &s)) return;
    CHECK_OK(expar_wait_until_u64_on_stream(group, word, EXPAR_CMP_EQ, 9, s.stream));
    CHECK_OK(expar_signal_op_on_stream(group, word, 9, EXPAR_SIGNAL_ADD, group->rank, s.stream));
    CHECK_OK(CUDA_CALL(MemsetD8Async, (cu_address)(uintptr_t)outside, 1, sizeof *outside, s.stream));
    CHECK_OK(expar_event_record(s.stream, &event));
    CHECK_OK(expar_group_abandon(group));
    CHECK(expar_event_wait(event) != EXPAR_OK, "the event knows of no failure");
    stream_await(&s);
    CHECK(word_of(group, EXPAR_MEMORY_DEVICE, outside) == UINT64_C(0x0101010101010101), "the stream has not run on");
    expar_event_release(event);
    stream_close(&s);
}

/* A rank with a group of its own. */
static void test_ends_early(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_PROCESSES) skip();
    expar_unique_id id;
    expar_group *group = NULL;
    expar_group_options options = EXPAR_GROUP_OPTIONS_INIT;
    check_begin(0);
    CHECK_OK(expar_unique_id_create(&id));
    options.id = &id;
    options.size = 1;
    CHECK_OK(expar_group_create(&options, &group));
    if (group) ends_early(group, NULL);
    assert_int_equal(check_failures(), 0);
}

/* ---- what there is not ------------------------------------------------------------------------------------------- */

static void without_words(expar_group *group, void *shared)
{
    (void)shared;
    test_stream s;
    uint64_t *word = take_zeros(group, EXPAR_MEMORY_PINNED, 64);
    if (!word || !stream_open(group, &s)) return;
    atomic_store(&controls_find()->no_words, 1);
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, expar_wait_until_u64_on_stream(group, word, EXPAR_CMP_EQ, 9, s.stream));
    CHECK_TEXT("expar_wait_until_u64_on_stream", "cuStreamWriteValue32");
    CHECK_OK(expar_put_on_stream(group, word, word + 1, 8, group->rank, s.stream));
    atomic_store(&controls_find()->no_words, 0);
    CHECK_OK(expar_wait_until_u64_on_stream(group, word, EXPAR_CMP_EQ, 0, s.stream));
    stream_close(&s);
}

static void test_without_words(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, without_words);
}

/* ---- calls of the driver ----------------------------------------------------------------------------------------- */

static fake_count_begin_function *count_begin;
static fake_count_end_function *count_end;

/* Calls that put something on the stream. Everything else asks about it. */
static int count_put(const fake_count *counts, int number, const char *name)
{
    int found = 0;
    for (int i = 0; i < number; i++)
        if (!strcmp(counts[i].name, name)) found += counts[i].count;
    return found;
}

static void check_count(const char *call, expar_status status, int copies, int words, int waits)
{
    static const char *const forbidden[] = {"cuLaunchHostFunc", "cuLaunchKernelEx", "cuStreamSynchronize",
                                            "cuCtxSynchronize", "cuMemAlloc_v2",    "cuMemHostAlloc",
                                            "cuEventCreate",    "cuModuleLoadData", "cuEventSynchronize"};
    fake_count counts[64];
    const int number = count_end(counts, 64);
    CHECK(status == EXPAR_OK, "%s: %s", call, expar_last_error());
    for (size_t i = 0; i < ARRAY_LENGTH(forbidden); i++)
        CHECK(count_put(counts, number, forbidden[i]) == 0, "%s: %s is called", call, forbidden[i]);
    const int has_words = count_put(counts, number, "cuStreamWriteValue32_v2") +
                          count_put(counts, number, "cuStreamWriteValue64_v2") +
                          count_put(counts, number, "cuMemsetD8Async") + count_put(counts, number, "cuMemsetD16Async");
    CHECK(count_put(counts, number, "cuMemcpyAsync") == copies && has_words == words &&
              count_put(counts, number, "cuStreamWaitValue32_v2") == waits,
          "%s: %d copies, %d words, %d waits; expected %d, %d, %d", call, count_put(counts, number, "cuMemcpyAsync"),
          has_words, count_put(counts, number, "cuStreamWaitValue32_v2"), copies, words, waits);
}

#define COUNTED(copies, words, waits, call)                                                                            \
    do {                                                                                                               \
        count_begin();                                                                                                 \
        check_count(#call, (call), copies, words, waits);                                                              \
        stream_await(&s);                                                                                              \
    } while (0)

/* A put or a get that the driver carries out asks it for the current context and for that of the stream, and nothing
   else. More would show in the time of a put. */
static void check_calls(const char *call, expar_status status)
{
    static const char *const expected[] = {"cuCtxGetCurrent", "cuStreamGetCtx", "cuMemcpyAsync"};
    fake_count counts[64];
    const int number = count_end(counts, 64);
    CHECK(status == EXPAR_OK, "%s: %s", call, expar_last_error());
    for (int i = 0; i < number; i++) {
        bool known = false;
        for (size_t j = 0; j < ARRAY_LENGTH(expected); j++)
            known = known || (!strcmp(counts[i].name, expected[j]) && counts[i].count == 1);
        CHECK(known, "%s: %d of %s", call, counts[i].count, counts[i].name);
    }
}

static void few_calls(expar_group *group, const test_stream *s, uint64_t *device, uint64_t *pinned)
{
    const int32_t me = group->rank;
    count_begin();
    check_calls("put", expar_put_on_stream(group, device, device + 8, 64, me, s->stream));
    count_begin();
    check_calls("put of pinned memory", expar_put_on_stream(group, device, pinned, 64, me, s->stream));
    count_begin();
    check_calls("get", expar_get_on_stream(group, device + 8, pinned, 64, me, s->stream));
}

static void counted(expar_group *group, void *shared)
{
    (void)shared;
    test_stream s;
    expar_team *world;
    uint64_t *device = take_zeros(group, EXPAR_MEMORY_DEVICE, 1024), *pinned = take(group, EXPAR_MEMORY_PINNED, 64, 0);
    uint64_t *host = take_zeros(group, EXPAR_MEMORY_HOST, 64);
    void *library = dlopen(CUDA_DRIVER_LIBRARY, RTLD_NOW | RTLD_NOLOAD);
    if (!CHECK(library && cuda_symbol_find(library, "fake_count_begin", &count_begin) &&
                   cuda_symbol_find(library, "fake_count_end", &count_end),
               "the driver does not count"))
        return;
    if (!device || !pinned || !host || !stream_open(group, &s)) return;
    CHECK_OK(expar_team_get_world(group, &world));
    const int32_t me = group->rank;
    COUNTED(1, 0, 0, expar_put_on_stream(group, device, device + 8, 64, me, s.stream));
    COUNTED(1, 0, 0, expar_put_on_stream(group, pinned, device, 64, me, s.stream));
    COUNTED(1, 0, 0, expar_get_on_stream(group, device + 8, pinned, 64, me, s.stream));
    COUNTED(0, 1, 0, expar_p_u64_on_stream(group, device, 1, me, s.stream));
    COUNTED(0, 1, 0, expar_p_i8_on_stream(group, (int8_t *)pinned, 1, me, s.stream));
    COUNTED(0, 0, 0, expar_quiet_on_stream(group, s.stream));
    COUNTED(0, 0, 0, expar_fence_on_stream(group, s.stream));
    /* The data, the signal, and a word that has the owner woken. */
    COUNTED(1, 2, 0,
            expar_put_signal_on_stream(group, device, device + 8, 64, pinned, 1, EXPAR_SIGNAL_SET, me, s.stream));
    /* The library's thread adds. */
    COUNTED(1, 1, 1,
            expar_put_signal_on_stream(group, device, device + 8, 64, pinned, 1, EXPAR_SIGNAL_ADD, me, s.stream));
    COUNTED(0, 1, 1, expar_signal_wait_until_on_stream(group, pinned, EXPAR_CMP_EQ, 2, s.stream));
    COUNTED(0, 1, 1, expar_put_on_stream(group, host, device, 64, me, s.stream));
    COUNTED(0, 1, 1, expar_barrier_all_on_stream(group, s.stream));
    COUNTED(0, 1, 1, expar_sum_reduce_u64_on_stream(world, device, pinned, 1, s.stream));
    few_calls(group, &s, device, pinned);
    stream_await(&s);
    const fake_controls *controls = controls_find();
    CHECK(controls && atomic_load(&controls->host_functions) == 0 && atomic_load(&controls->launches) == 0,
          "a thread of the library has launched something");
    stream_close(&s);
}

static void test_counted(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, counted);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_broken_context), cmocka_unit_test(test_meetings_without_context),
        cmocka_unit_test(test_death),          cmocka_unit_test(test_failing),
        cmocka_unit_test(test_ends_early),     cmocka_unit_test(test_without_words),
        cmocka_unit_test(test_counted),
    };
    kind_read(argc, argv);
    num_gpus = FAKE_GPUS;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
