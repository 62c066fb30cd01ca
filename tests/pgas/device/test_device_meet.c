/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels with handles beside others: the host that waits for their words, and writes those for which they wait;
 * streams; later kernels; a second handle. The host completes what they leave, and reads their errors while they run.
 * Targets and ranks are as in test_device_calls.c. */
#include "pgas/device/setting.h"

#include <expar/stream.h>

/* Words that a kernel leaves under way. */
enum { LEFT = 64 };

static const ranks_plan apart = {.ranks_per_node = 1};

/* All memory of a call is symmetric. */
static handles_call open_call(expar_group *group, handles_test test, expar_memory_kind kind)
{
    return (handles_call){.test = test,
                          .scope = EXPAR_DEV_BLOCK,
                          .rounds = ROUNDS,
                          .words = take(group, kind, WORDS * sizeof(uint64_t)),
                          .own = take(group, kind, WORDS * sizeof(uint64_t)),
                          .peer = (group->rank + 1) % group->size};
}

static void close_call(expar_group *group, const handles_call *call)
{
    CHECK_OK(expar_group_barrier(group));
    CHECK_OK(expar_free(group, call->own));
    CHECK_OK(expar_free(group, call->words));
}

static void run_kernel(setting *s, const handles_call *call)
{
    runner_start(&s->runner, &s->handle, call);
    runner_await(&s->runner);
    CHECK(*s->runner.wrong == 0, "test %d: %llu wrong", call->test, (unsigned long long)*s->runner.wrong);
    for (int32_t i = 0; i < s->runner.threads; i++)
        CHECK(s->runner.status[i] == EXPAR_OK, "test %d: status %d, %s", call->test, s->runner.status[i],
              error_of(&s->handle).text);
}

/* Memory that CPUs and kernels of the target load. */
static expar_memory_kind shared_kind(void)
{
    return runner_target() == EXPAR_DEVICE_GPU ? EXPAR_MEMORY_PINNED : EXPAR_MEMORY_HOST;
}

/* ---- all waits see all writers ----------------------------------------------------------------------------------- */

static uint64_t told(int way)
{
    return (uint64_t)(HANDLES_TOLD_VALUE + way);
}

/* The host changes the peer's words, as HANDLES_TELL does. It stores by itself only where it reaches the memory: not on
   a GPU. */
static void tell_by_host(expar_group *group, const handles_call *call, expar_memory_kind kind)
{
    for (int way = 0; way < HANDLES_TELLS; way++) {
        uint64_t *const word = call->words + HANDLES_TOLD_WORD + way, value = told(way), before = 1;
        const bool stores = way == HANDLES_TELL_STORE && kind != EXPAR_MEMORY_DEVICE;
        uint64_t *const at = stores ? expar_ptr(group, word, call->peer) : NULL;
        switch (way) {
        case HANDLES_TELL_STORE:
            if (at) __atomic_store_n(at, value, __ATOMIC_RELEASE);
            if (!at) CHECK_OK(expar_p_u64(group, word, value, call->peer));
            break;
        case HANDLES_TELL_P:
            CHECK_OK(expar_p_u64(group, word, value, call->peer));
            break;
        case HANDLES_TELL_PUT:
            CHECK_OK(expar_put(group, word, &value, sizeof value, call->peer));
            break;
        case HANDLES_TELL_SET:
            CHECK_OK(expar_put_signal(group, word, &value, 0, word, value, EXPAR_SIGNAL_SET, call->peer));
            break;
        case HANDLES_TELL_ADD:
            CHECK_OK(expar_put_signal(group, word, &value, 0, word, value, EXPAR_SIGNAL_ADD, call->peer));
            break;
        case HANDLES_TELL_PUT_SIGNAL:
            CHECK_OK(
                expar_put_signal(group, word + 100, &value, sizeof value, word, value, EXPAR_SIGNAL_SET, call->peer));
            break;
        case HANDLES_TELL_ATOMIC_SET:
            CHECK_OK(expar_atomic_set_u64(group, word, value, call->peer));
            break;
        case HANDLES_TELL_ATOMIC_ADD:
            CHECK_OK(expar_atomic_add_u64(group, word, value, call->peer));
            break;
        default:
            CHECK_OK(expar_atomic_swap_u64(group, word, value, call->peer, &before));
            CHECK(before == 0, "the word was %llu", (unsigned long long)before);
        }
    }
    CHECK_OK(expar_quiet(group));
}

static void wait_by_host(expar_group *group, const handles_call *call)
{
    for (int way = 0; way < HANDLES_TELLS; way++)
        CHECK_OK(expar_wait_until_u64(group, call->words + HANDLES_TOLD_WORD + way, EXPAR_CMP_EQ, told(way), NULL));
}

/* Kernels wait for the hosts. */
static void host_tells(setting *s, expar_group *group, expar_memory_kind kind)
{
    handles_call call = open_call(group, HANDLES_TOLD, kind);
    runner_start(&s->runner, &s->handle, &call);
    tell_by_host(group, &call, kind);
    runner_await(&s->runner);
    CHECK(s->runner.status[0] == EXPAR_OK, "status %d", s->runner.status[0]);
    close_call(group, &call);
}

/* Hosts wait for the kernels of their peers. */
static void kernel_tells(setting *s, expar_group *group, expar_memory_kind kind)
{
    handles_call call = open_call(group, HANDLES_TELL, kind);
    runner_start(&s->runner, &s->handle, &call);
    wait_by_host(group, &call);
    runner_await(&s->runner);
    CHECK(s->runner.status[0] == EXPAR_OK && *s->runner.wrong == 0, "status %d", s->runner.status[0]);
    close_call(group, &call);
}

static void tell_each_other(expar_group *group, void *shared)
{
    setting s;
    (void)shared;
    if (!setting_open(&s, group, 2)) return;
    host_tells(&s, group, runner_kind());
    kernel_tells(&s, group, runner_kind());
    if (runner_target() == EXPAR_DEVICE_GPU) {
        host_tells(&s, group, EXPAR_MEMORY_PINNED);
        kernel_tells(&s, group, EXPAR_MEMORY_PINNED);
    }
    setting_close(&s, group);
}

static void test_waits_see_hosts_and_kernels(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, tell_each_other);
    if (!kind_is_mix && network_can_be_judged) kind_run(apart, 2, tell_each_other);
}

/* A stream of the test's own. */
static cu_stream open_stream(expar_group *group, cuda_device **device)
{
    cu_stream stream = NULL;
    if (!CHECK_OK(cuda_device_open(runner_gpu(group), device)) || !CHECK_OK(cuda_enter(*device))) return NULL;
    CHECK_OK(CUDA_CALL(StreamCreate, &stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static void close_stream(cuda_device *device, cu_stream stream)
{
    CHECK_OK(CUDA_CALL(StreamSynchronize, stream));
    CHECK_OK(CUDA_CALL(StreamDestroy, stream));
    cuda_leave();
    cuda_device_close(device);
}

/* Streams have no stores and no atomics but those of signals. */
static void tell_by_stream(expar_group *group, const handles_call *call, cu_stream stream)
{
    for (int way = 0; way < HANDLES_TELLS; way++) {
        uint64_t *const word = call->words + HANDLES_TOLD_WORD + way, *const source = (uint64_t *)(void *)call->own;
        const int32_t pe = call->peer;
        switch (way) {
        case HANDLES_TELL_STORE:
        case HANDLES_TELL_P:
            CHECK_OK(expar_p_u64_on_stream(group, word, told(way), pe, stream));
            break;
        case HANDLES_TELL_PUT:
            CHECK_OK(expar_p_u64_on_stream(group, source, told(way), group->rank, stream));
            CHECK_OK(expar_put_on_stream(group, word, source, sizeof *word, pe, stream));
            break;
        case HANDLES_TELL_PUT_SIGNAL:
            CHECK_OK(expar_put_signal_on_stream(group, word + 100, source, sizeof *word, word, told(way),
                                                EXPAR_SIGNAL_SET, pe, stream));
            break;
        case HANDLES_TELL_ADD:
        case HANDLES_TELL_ATOMIC_ADD:
            CHECK_OK(expar_signal_op_on_stream(group, word, told(way), EXPAR_SIGNAL_ADD, pe, stream));
            break;
        default:
            CHECK_OK(expar_signal_op_on_stream(group, word, told(way), EXPAR_SIGNAL_SET, pe, stream));
        }
    }
}

/* The kernel waits for the peer's stream, and after that the stream for the peer's kernel. */
static void tell_streams(expar_group *group, void *shared)
{
    setting s;
    cuda_device *device = NULL;
    (void)shared;
    if (!setting_open(&s, group, 2)) return;
    for (int k = 0; k < 2; k++) {
        const expar_memory_kind kind = k ? EXPAR_MEMORY_PINNED : EXPAR_MEMORY_DEVICE;
        handles_call call = open_call(group, HANDLES_TOLD, kind), back = open_call(group, HANDLES_TELL, kind);
        const cu_stream stream = open_stream(group, &device);
        if (!stream) return;
        runner_start(&s.runner, &s.handle, &call);
        tell_by_stream(group, &call, stream);
        runner_await(&s.runner);
        CHECK(s.runner.status[0] == EXPAR_OK, "status %d", s.runner.status[0]);
        for (int way = 0; way < HANDLES_TELLS; way++)
            CHECK_OK(expar_wait_until_u64_on_stream(group, back.words + HANDLES_TOLD_WORD + way, EXPAR_CMP_EQ,
                                                    told(way), stream));
        run_kernel(&s, &back);
        close_stream(device, stream);
        CHECK_OK(expar_group_query(group));
        close_call(group, &back);
        close_call(group, &call);
    }
    setting_close(&s, group);
}

static void test_waits_see_streams_and_kernels(void **state)
{
    (void)state;
    if (runner_target() == EXPAR_DEVICE_CPU) skip();
    kind_run((ranks_plan){0}, 2, tell_streams);
}

/* ---- one script by kernels, hosts and streams -------------------------------------------------------------------- */

enum { PHASES = 9, STEPS = 20 };

/* The parts of all ranks that this rank writes, and its sums there, as they must be. */
typedef struct model {
    uint8_t parts[RANKS][BYTES];
    uint64_t sums[RANKS];
} model;

static void model_step(model *m, const handles_step *step)
{
    uint8_t *at = m->parts[step->pe] + step->at;
    const bool puts = step->kind == HANDLES_STEP_PUT || step->kind == HANDLES_STEP_PUT_SIGNAL;
    for (uint32_t i = 0; puts && i < step->bytes; i++)
        at[i] = handles_step_byte(step, i);
    if (step->kind == HANDLES_STEP_P) *at = (uint8_t)step->value;
    if (step->kind == HANDLES_STEP_PUT_SIGNAL) m->sums[step->pe]++;
    if (step->kind == HANDLES_STEP_ADD) m->sums[step->pe] += step->value;
}

static void step_by_host(expar_group *group, const handles_call *call, const handles_step *step, const uint8_t *source)
{
    uint8_t *const at = call->data + (size_t)group->rank * BYTES + step->at;
    uint64_t *const word = call->words + 8 + group->rank;
    uint8_t got[BYTES];
    CHECK_OK(expar_fence(group)); /* two writes of the same bytes have no order of their own */
    if (step->kind == HANDLES_STEP_PUT) CHECK_OK(expar_put(group, at, source, step->bytes, step->pe));
    if (step->kind == HANDLES_STEP_PUT_SIGNAL)
        CHECK_OK(expar_put_signal(group, at, source, step->bytes, word, 1, EXPAR_SIGNAL_ADD, step->pe));
    if (step->kind == HANDLES_STEP_P) CHECK_OK(expar_p_u8(group, at, (uint8_t)step->value, step->pe));
    if (step->kind == HANDLES_STEP_GET) CHECK_OK(expar_get(group, got, at, step->bytes, step->pe));
    if (step->kind == HANDLES_STEP_ADD) CHECK_OK(expar_atomic_add_u64(group, word, step->value, step->pe));
}

static void step_by_stream(expar_group *group, const handles_call *call, const handles_step *step,
                           const uint8_t *source, cu_stream stream)
{
    uint8_t *const at = call->data + (size_t)group->rank * BYTES + step->at;
    uint64_t *const word = call->words + 8 + group->rank;
    const int32_t pe = step->pe;
    if (step->kind == HANDLES_STEP_PUT) CHECK_OK(expar_put_on_stream(group, at, source, step->bytes, pe, stream));
    if (step->kind == HANDLES_STEP_PUT_SIGNAL)
        CHECK_OK(expar_put_signal_on_stream(group, at, source, step->bytes, word, 1, EXPAR_SIGNAL_ADD, pe, stream));
    if (step->kind == HANDLES_STEP_P) CHECK_OK(expar_p_u8_on_stream(group, at, (uint8_t)step->value, pe, stream));
    if (step->kind == HANDLES_STEP_ADD)
        CHECK_OK(expar_signal_op_on_stream(group, word, step->value, EXPAR_SIGNAL_ADD, pe, stream));
}

/* Sources stay as they are until the stream has passed their calls. */
static void phase_by_calls(expar_group *group, const handles_call *call, bool on_stream)
{
    cuda_device *device = NULL;
    uint8_t(*sources)[BYTES] = calloc(STEPS, sizeof *sources);
    const cu_stream stream = on_stream ? open_stream(group, &device) : NULL;
    for (int32_t number = 0; number < STEPS; number++) {
        const handles_step step = handles_step_of(call, group->rank, group->size, number);
        for (uint32_t i = 0; i < step.bytes; i++)
            sources[number][i] = handles_step_byte(&step, i);
        if (on_stream)
            step_by_stream(group, call, &step, sources[number], stream);
        else
            step_by_host(group, call, &step, sources[number]);
    }
    if (on_stream) close_stream(device, stream);
    CHECK_OK(expar_quiet(group));
    free(sources);
}

/* The kernel compares what it fetches with copies in `own`: those of the model. */
static void phase_by_kernel(setting *s, expar_group *group, const handles_call *call, const model *m)
{
    const size_t parts = (size_t)group->size * BYTES;
    CHECK_OK(expar_put(group, call->own, m->parts, parts, group->rank));
    CHECK_OK(expar_put(group, call->own + parts + BYTES, m->sums, (size_t)group->size * sizeof *m->sums, group->rank));
    CHECK_OK(expar_quiet(group));
    CHECK_OK(expar_group_barrier(group));
    run_kernel(s, call);
}

static void run_phases(setting *s, expar_group *group, expar_memory_kind kind)
{
    static const int callers = 3; /* kernels, hosts, streams, which the CPU does not have */
    handles_call call = open_call(group, HANDLES_SCRIPT, kind);
    model *m = calloc(1, sizeof *m);
    call.data = take(group, kind, (size_t)group->size * BYTES);
    call.bytes = BYTES;
    call.rounds = STEPS;
    for (uint32_t phase = 0; phase < PHASES && check_failures() == 0; phase++) {
        const int by = runner_target() == EXPAR_DEVICE_GPU ? (int)phase % callers : (int)phase % 2;
        call.seed = 31 + phase;
        if (by == 0)
            phase_by_kernel(s, group, &call, m);
        else
            phase_by_calls(group, &call, by == 2);
        for (int32_t number = 0; number < STEPS; number++) {
            const handles_step step = handles_step_of(&call, group->rank, group->size, number);
            model_step(m, &step);
        }
        CHECK_OK(expar_group_barrier(group));
    }
    for (int32_t pe = 0; pe < group->size; pe++) {
        uint8_t seen[BYTES];
        uint64_t sum = 0;
        CHECK_OK(expar_get(group, seen, call.data + (size_t)group->rank * BYTES, BYTES, pe));
        CHECK_OK(expar_get(group, &sum, call.words + 8 + group->rank, sizeof sum, pe));
        CHECK(memcmp(seen, m->parts[pe], BYTES) == 0, "rank %d has other bytes", pe);
        CHECK(sum == m->sums[pe], "the sum of rank %d is %llu", pe, (unsigned long long)sum);
    }
    free(m);
    CHECK_OK(expar_group_barrier(group));
    CHECK_OK(expar_free(group, call.data));
    close_call(group, &call);
}

static void mixed_script(expar_group *group, void *shared)
{
    setting s;
    (void)shared;
    if (!setting_open(&s, group, 2)) return;
    run_phases(&s, group, runner_kind());
    if (runner_target() == EXPAR_DEVICE_GPU) run_phases(&s, group, EXPAR_MEMORY_PINNED);
    setting_close(&s, group);
}

static void test_kernels_hosts_and_streams_share_a_script(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 3, mixed_script);
    if (!kind_is_mix && network_can_be_judged) kind_run(apart, 2, mixed_script);
}

/* ---- several kernels and handles --------------------------------------------------------------------------------- */

/* A kernel sends and ends. The next one completes or orders that, by a call of one thread, and signals. */
static void follow_with(setting *s, expar_group *group, handles_call *call, int with, int32_t words)
{
    call->with = with;
    call->rounds = words;
    run_kernel(s, call);
    call->test = HANDLES_FOLLOW;
    run_kernel(s, call);
    CHECK_OK(expar_group_barrier(group));
}

static void fill_sources(expar_group *group, const handles_call *call)
{
    unsigned char bytes[LEFT * 8];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = handles_byte(group->rank, 1, i);
    CHECK_OK(expar_put(group, call->own, bytes, sizeof bytes, group->rank));
    CHECK_OK(expar_quiet(group));
}

/* The rings have completed more commands than the fence is to order: numbers of both must not be mixed up. Transports
   become late when the handle is there, since it then has one way only, on which fence is not quiet. */
static void follow(expar_group *group, void *shared)
{
    setting s;
    const int64_t *longest_ns = shared;
    if (!setting_open(&s, group, 2)) return;
    handles_call first = open_call(group, HANDLES_SEND, runner_kind());
    handles_call second = open_call(group, HANDLES_SEND, runner_kind());
    fill_sources(group, &first);
    fill_sources(group, &second);
    if (*longest_ns > 0) late_begin(group, *longest_ns);
    CHECK_OK(expar_group_barrier(group));
    follow_with(&s, group, &first, HANDLES_FOLLOW_QUIET, LEFT);
    follow_with(&s, group, &second, HANDLES_FOLLOW_FENCE, LEFT / 4);
    close_call(group, &second);
    close_call(group, &first);
    setting_close(&s, group);
}

static void run_follow(ranks_plan plan, int64_t longest_ns)
{
    plan.kind = kind_of_ranks;
    plan.size = 2;
    assert_true(ranks_run(&plan, follow, &longest_ns));
}

static void test_kernels_order_what_earlier_ones_sent(void **state)
{
    (void)state;
    run_follow((ranks_plan){.ranks_per_node = kind_is_mix}, 0);
    if (!kind_is_mix && network_can_be_judged) run_follow(apart, 20000000);
}

static void two_handles(expar_group *group, void *shared)
{
    setting s;
    expar_team *world = NULL, *turned = NULL;
    (void)shared;
    if (!setting_open(&s, group, 2)) return;
    CHECK_OK(expar_team_get_world(group, &world));
    CHECK_OK(expar_team_split_strided(world, group->size - 1, -1, group->size, NULL, &turned));
    handles_call call = open_call(group, HANDLES_TWO, runner_kind());
    expar_device_handle *other = take(group, shared_kind(), sizeof *other);
    if (!turned || !other) return;
    *other = handle_for(group, turned);
    call.other = expar_device_ptr(group, other, group->rank);
    if (runner_target() == EXPAR_DEVICE_CPU) call.other = other;
    CHECK_OK(expar_group_barrier(group));
    run_kernel(&s, &call);
    CHECK(error_of(other).status == EXPAR_ERR_RANGE && error_of(other).pe == -1, "%s", error_of(other).text);
    CHECK(error_of(&s.handle).status == EXPAR_OK, "%s", error_of(&s.handle).text);
    CHECK_OK(expar_team_destroy(turned));
    CHECK_OK(expar_free(group, other));
    close_call(group, &call);
    setting_close(&s, group);
}

static void test_a_kernel_uses_two_handles(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 3, two_handles);
    if (!kind_is_mix && network_can_be_judged) kind_run(apart, 2, two_handles);
}

/* ---- what kernels leave ------------------------------------------------------------------------------------------ */

/* Sends LEFT words to the peer, of which the transport carries each out some time later. */
static handles_call leave_behind(setting *s, expar_group *group, uint64_t first)
{
    uint64_t sent[LEFT];
    handles_call call = open_call(group, HANDLES_SEND, runner_kind());
    call.rounds = LEFT;
    for (uint64_t i = 0; i < LEFT; i++)
        sent[i] = first + i;
    CHECK_OK(expar_put(group, call.own, sent, sizeof sent, group->rank));
    CHECK_OK(expar_quiet(group));
    CHECK_OK(expar_group_barrier(group));
    run_kernel(s, &call);
    return call;
}

static void expect_words(expar_group *group, const uint64_t *words, uint64_t first)
{
    uint64_t seen[2 * LEFT];
    CHECK_OK(expar_get(group, seen, words + 8, sizeof seen, group->rank));
    for (uint64_t i = 0; i < LEFT; i++)
        if (!CHECK(seen[2 * i] == (first ? first + i : 0), "word %llu is %llu", (unsigned long long)i,
                   (unsigned long long)seen[2 * i]))
            break;
}

static void barrier_after_kernels(expar_group *group, void *shared)
{
    setting s;
    (void)shared;
    if (!setting_open(&s, group, 1)) return;
    const handles_call call = leave_behind(&s, group, 71);
    CHECK_OK(expar_barrier_all(group));
    expect_words(group, call.words, 71);
    close_call(group, &call);
    setting_close(&s, group);
}

/* The next block lies in the same place. What was under way when the first one was freed must not come there. */
static void free_after_kernels(expar_group *group, void *shared)
{
    setting s;
    (void)shared;
    if (!setting_open(&s, group, 1)) return;
    const handles_call call = leave_behind(&s, group, 71);
    CHECK_OK(expar_free(group, call.words));
    uint64_t *again = take(group, runner_kind(), WORDS * sizeof(uint64_t));
    CHECK(again == call.words, "the block is in another place");
    CHECK_OK(expar_barrier_all(group));
    expect_words(group, again, 0);
    CHECK_OK(expar_free(group, again));
    CHECK_OK(expar_free(group, call.own));
    setting_close(&s, group);
}

static void test_the_host_completes_what_kernels_leave(void **state)
{
    (void)state;
    if (kind_is_mix || !network_can_be_judged) skip();
    delay_ns = 10000000;
    kind_run(apart, 2, barrier_after_kernels);
    kind_run(apart, 2, free_after_kernels);
    delay_ns = 0;
}

/* ---- errors of kernels that run ---------------------------------------------------------------------------------- */

static void fail_and_stay(expar_group *group, void *shared)
{
    setting s;
    const int64_t end_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    (void)shared;
    if (!setting_open(&s, group, 2)) return;
    handles_call call = open_call(group, HANDLES_STAY, runner_kind());
    uint64_t *goes_on = take(group, shared_kind(), sizeof *goes_on);
    call.data = expar_device_ptr(group, goes_on, group->rank);
    if (runner_target() == EXPAR_DEVICE_CPU) call.data = (unsigned char *)goes_on;
    runner_start(&s.runner, &s.handle, &call);
    while (error_of(&s.handle).status == EXPAR_OK && ranks_clock_ms() < end_ms)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    const expar_device_error error = error_of(&s.handle);
    CHECK(error.status == EXPAR_ERR_RANGE && error.pe == group->size, "%d: %s", (int)error.status, error.text);
    CHECK(strstr(error.text, "p: PE 2, expected 0 to 1") != NULL, "%s", error.text);
    __atomic_store_n(goes_on, 1, __ATOMIC_RELEASE);
    runner_await(&s.runner);
    CHECK(s.runner.status[0] == EXPAR_ERR_RANGE, "status %d", s.runner.status[0]);
    CHECK_OK(expar_free(group, goes_on));
    close_call(group, &call);
    setting_close(&s, group);
}

static void test_the_host_reads_errors_of_kernels_that_run(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, fail_and_stay);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_waits_see_hosts_and_kernels),
        cmocka_unit_test(test_waits_see_streams_and_kernels),
        cmocka_unit_test(test_kernels_hosts_and_streams_share_a_script),
        cmocka_unit_test(test_kernels_order_what_earlier_ones_sent),
        cmocka_unit_test(test_a_kernel_uses_two_handles),
        cmocka_unit_test(test_the_host_completes_what_kernels_leave),
        cmocka_unit_test(test_the_host_reads_errors_of_kernels_that_run),
    };
    kind_read(argc, argv);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* streams that wait need queues of their own */
    if (!runner_is_able()) return 77;
    if (argc > 2) cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
