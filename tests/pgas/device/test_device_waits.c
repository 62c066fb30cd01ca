/* SPDX-License-Identifier: Apache-2.0 */
/* Waits of kernels that nothing fulfils. They end when a rank dies, leaves, falls silent, aborts or records that it
 * does not come, at the late limit, and where the host has stopped. Target and ranks are as in test_device_calls.c. */
#include "cuda/find_controls.h"
#include "pgas/device/runner.h"
#include "shmem/kind.h"
#include "shmem/rings.h"

#include <signal.h>
#include <stdio.h>

#define DEADLINE_MS 120000

static void *take_words(expar_group *group, expar_memory_kind kind)
{
    void *block = NULL;
    expar_memory_options options = EXPAR_MEMORY_OPTIONS_INIT;
    options.kind = kind;
    options.device = options.kind == EXPAR_MEMORY_HOST ? 0 : runner_gpu(group);
    options.bytes = 4096;
    options.zeroed = 1;
    CHECK_OK(expar_memory_alloc(group, &options, &block));
    return block;
}

static sym_rings_user rings_user(void)
{
    return runner_target() == EXPAR_DEVICE_GPU ? SYM_RINGS_HANDLES_GPU : SYM_RINGS_HANDLES_CPU;
}

/* Waits of each form in turn, each with a handle and kernels of its own. */
typedef struct wait_form {
    handles_test test;
    int scope, with;
    /* words in pinned memory, which a CPU does not have */
    bool pinned;
} wait_form;
static const wait_form forms[] = {
    {HANDLES_WAIT, EXPAR_DEV_BLOCK, 0, false}, {HANDLES_WAIT, EXPAR_DEV_WARP, HANDLES_LOOKS, false},
    {HANDLES_SYNC, EXPAR_DEV_BLOCK, 0, false}, {HANDLES_WAIT, EXPAR_DEV_THREAD, 0, false},
    {HANDLES_WAIT, EXPAR_DEV_WARP, 0, false},  {HANDLES_WAIT, EXPAR_DEV_BLOCK, 0, true},
    {HANDLES_WAIT, EXPAR_DEV_THREAD, 0, true}};
#define FORMS     ((int)ARRAY_LENGTH(forms))
#define SYNC_FORM 2
static int form; /* of the ranks that run now */

static bool form_exists(int number)
{
    return !forms[number].pinned || runner_target() == EXPAR_DEVICE_GPU;
}

/* A rank that can run kernels. */
typedef struct waiter {
    runner runner;
    expar_device_handle handle;
    handles_call call;
} waiter;

static bool waiter_open(waiter *w, expar_group *group)
{
    expar_device_options options = EXPAR_DEVICE_OPTIONS_INIT;
    options.target = runner_target();
    /* A GPU has no handle without device memory. */
    w->call = (handles_call){.words = take_words(group, runner_kind())};
    if (forms[form].pinned) w->call.words = take_words(group, EXPAR_MEMORY_PINNED);
    if (!w->call.words || !runner_open(&w->runner, group, 3, 0)) return false;
    if (!CHECK_OK(expar_device_get(group, &options, &w->handle))) return false;
    return CHECK_OK(expar_group_barrier(group));
}

static void start(waiter *w, handles_test test, int scope)
{
    w->call.test = test;
    w->call.scope = scope;
    runner_start(&w->runner, &w->handle, &w->call);
}

/* All threads have left with that status, and the host says why. */
static void await_end(waiter *w, expar_status expected, const char *text)
{
    expar_device_error error = EXPAR_DEVICE_ERROR_INIT;
    /* A rank may hear first that another one has left for the same reason. */
    if (strcmp(text, "rank 1") == 0) text = "rank ";
    runner_await(&w->runner);
    for (int32_t i = 0; i < w->runner.threads; i++)
        CHECK(w->runner.status[i] == (int)expected, "thread %d: status %d", i, w->runner.status[i]);
    CHECK_OK(expar_device_get_error(&w->handle, &error));
    CHECK(error.status == expected, "status %d: %s", (int)error.status, error.text);
    CHECK(strstr(error.text, text) != NULL, "'%s' has no '%s'", error.text, text);
    CHECK(error.seen == 0 && error.awaited > 0, "saw %llu, awaited %llu", (unsigned long long)error.seen,
          (unsigned long long)error.awaited);
}

/* The GPU still runs kernels. Those with this handle do nothing. */
static void expect_alive(waiter *w)
{
    w->call.own = NULL;
    start(w, HANDLES_SEND, EXPAR_DEV_BLOCK);
    runner_await(&w->runner);
    for (int32_t i = 0; i < w->runner.threads; i++)
        CHECK(w->runner.status[i] == EXPAR_OK, "thread %d of a later kernel: status %d", i, w->runner.status[i]);
}

static void start_form(waiter *w)
{
    w->call.with = forms[form].with;
    start(w, forms[form].test, forms[form].scope);
}

/* Threads show all forms, which take processes long. */
static void with_each_form(ranks_plan plan, int32_t size, ranks_body body)
{
    for (form = 0; form < FORMS; form++)
        if (form_exists(form) && (kind_of_ranks == RANKS_THREADS || form <= SYNC_FORM)) kind_run(plan, size, body);
    form = 0;
}

/* ---- looks of waiting kernels ------------------------------------------------------------------------------------ */

/* Ends the waits of HANDLES_WAIT. */
static void fulfil(waiter *w, expar_group *group)
{
    for (size_t i = 0; i < 8; i++)
        CHECK_OK(expar_p_u64(group, w->call.words + i, HANDLES_COME, group->rank));
    runner_await(&w->runner);
    for (int32_t i = 0; i < w->runner.threads; i++)
        CHECK(w->runner.status[i] == EXPAR_OK, "thread %d: status %d", i, w->runner.status[i]);
}

/* Checks what the simulated GPU has seen of the looks that crossed the bus, in `ns`. One thread at a time reads the
   host's orders for all threads that wait, at most every 20 us. A word in pinned memory is read by the first thread of
   the scope, at most every 200 ns. */
static void check_looks(const fake_controls *controls, int64_t ns)
{
    const uint64_t loads = atomic_load(&controls->host_loads), crowds = atomic_load(&controls->host_crowds);
    const uint64_t threads = atomic_load(&controls->host_threads);
    const int scope = forms[form].scope;
    const uint64_t first = scope == EXPAR_DEV_BLOCK || forms[form].with ? 1 : scope == EXPAR_DEV_WARP ? 0x100000001 : 0;
    if (!forms[form].pinned)
        CHECK(crowds * 10 <= loads, "%llu of %llu looks crowd", (unsigned long long)crowds, (unsigned long long)loads);
    if (first) CHECK((threads & ~first) == 0, "threads %#llx look", (unsigned long long)threads);
    if (forms[form].pinned && first)
        CHECK(loads <= 2 + (uint64_t)ns / 200 + (uint64_t)ns / 20000, "%llu looks in %lld ns",
              (unsigned long long)loads, (long long)ns);
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void count_looks(expar_group *group, void *shared)
{
    enum { ENOUGH = 400 };
    waiter w;
    const int64_t end_ms = ranks_clock_ms() + DEADLINE_MS;
    (void)shared;
    if (!waiter_open(&w, group)) return;
    fake_controls *controls = controls_find();
    if (controls) {
        atomic_store(&controls->host_loads, 0);
        atomic_store(&controls->host_crowds, 0);
        atomic_store(&controls->host_threads, 0);
    }
    const int64_t begin_ns = now_ns();
    start_form(&w);
    while (controls && atomic_load(&controls->host_loads) < ENOUGH && ranks_clock_ms() < end_ms)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (controls) check_looks(controls, now_ns() - begin_ns);
    fulfil(&w, group);
    runner_close(&w.runner);
    CHECK_OK(expar_free(group, w.call.words));
}

/* One rank, since the counts are the process's. */
static void test_one_thread_looks_across_the_bus(void **state)
{
    (void)state;
    for (form = 0; form < FORMS; form++)
        if (form_exists(form) && forms[form].test == HANDLES_WAIT) kind_run((ranks_plan){0}, 1, count_looks);
    form = 0;
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

static void abort_while_waiting(expar_group *group, void *shared)
{
    waiter w;
    (void)shared;
    if (!waiter_open(&w, group)) return;
    if (group->rank == 0) {
        start_form(&w);
        CHECK_OK(expar_group_abort(group));
        await_end(&w, EXPAR_ERR_ABORTED, "abort");
    } else {
        /* Rank 0 does not come. */
        CHECK_STATUS(EXPAR_ERR_PEER, expar_group_barrier(group));
    }
    runner_close(&w.runner);
    CHECK_OK(expar_group_destroy(group));
}

static void test_an_abort_ends_waits(void **state)
{
    (void)state;
    with_each_form((ranks_plan){.ends_itself = true}, 2, abort_while_waiting);
}

static void leave_while_others_wait(expar_group *group, void *shared)
{
    waiter w;
    (void)shared;
    if (!waiter_open(&w, group)) return;
    if (group->rank == 1) {
        expar_group_abandon(group);
    } else {
        start_form(&w);
        await_end(&w, EXPAR_ERR_PEER, "rank 1");
        expect_alive(&w);
        expar_group_abandon(group);
    }
    runner_close(&w.runner);
}

static void test_a_rank_that_leaves_ends_waits(void **state)
{
    (void)state;
    with_each_form((ranks_plan){.ends_itself = true}, 3, leave_while_others_wait);
}

/* Rank 1 comes to the barrier when rank 0 has given it up; a note tells it so. */
static void come_late(expar_group *group, void *shared)
{
    waiter w;
    (void)shared;
    if (!waiter_open(&w, group)) return;
    if (group->rank == 0) {
        group->boot->late_limit_ms = 1;
        start(&w, HANDLES_SYNC, EXPAR_DEV_BLOCK);
        await_end(&w, EXPAR_ERR_PEER, "late");
        group->boot->late_limit_ms = RANKS_TIMEOUT_MS;
        CHECK_OK(expar_group_barrier(group));
    } else {
        CHECK_OK(expar_group_barrier(group));
        /* Rank 0 has told rank 1 once, so only a second barrier waits. */
        start(&w, HANDLES_SYNC, EXPAR_DEV_BLOCK);
        runner_await(&w.runner);
        CHECK(w.runner.status[0] == EXPAR_OK, "status %d", w.runner.status[0]);
        start(&w, HANDLES_SYNC, EXPAR_DEV_BLOCK);
        runner_await(&w.runner);
        expar_device_error error = EXPAR_DEVICE_ERROR_INIT;
        CHECK_OK(expar_device_get_error(&w.handle, &error));
        CHECK(error.status == EXPAR_ERR_PEER && error.pe == 0, "%d, PE %d: %s", (int)error.status, error.pe,
              error.text);
    }
    CHECK_OK(expar_group_barrier(group));
    runner_close(&w.runner);
    CHECK_OK(expar_free(group, w.call.words));
}

static void test_the_late_limit_ends_a_barrier_and_is_noted(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, come_late);
}

/* A host that does not move the pulse within a moment has stopped. */
static void lose_host(expar_group *group, void *shared)
{
    waiter w;
    (void)shared;
    if (!waiter_open(&w, group)) return;
    w.handle.orphan_ns = 1;
    start(&w, HANDLES_WAIT, EXPAR_DEV_BLOCK);
    await_end(&w, EXPAR_ERR_STATE, "orphan time-out");
    CHECK_OK(expar_group_barrier(group));
    runner_close(&w.runner);
    CHECK_OK(expar_free(group, w.call.words));
}

static void test_kernels_leave_a_host_that_has_stopped(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, lose_host);
}

/* ---- commands that fail ------------------------------------------------------------------------------------------ */

static expar_device_error error_of(const expar_device_handle *handle)
{
    expar_device_error error = EXPAR_DEVICE_ERROR_INIT;
    CHECK_OK(expar_device_get_error(handle, &error));
    return error;
}

/* Sends to rank 1 until that fails. */
static void expect_loss(waiter *w, expar_group *group)
{
    w->call.own = runner_alloc(&w->runner, 64);
    w->call.peer = 1;
    start(w, HANDLES_LOST, form ? EXPAR_DEV_BLOCK : EXPAR_DEV_THREAD);
    runner_await(&w->runner);
    const expar_device_error error = error_of(&w->handle);
    for (int32_t i = 0; i < w->runner.threads; i++)
        CHECK(w->runner.status[i] == EXPAR_ERR_PEER, "thread %d: status %d", i, w->runner.status[i]);
    CHECK(error.status == EXPAR_ERR_PEER && strstr(error.text, "rank "), "%d: %s", (int)error.status, error.text);
    CHECK(*w->runner.wrong == 0, "%llu wrong", (unsigned long long)*w->runner.wrong);
    /* Commands that no thread has waited for may still read their source. */
    CHECK_OK(sym_rings_quiet(sym_rings_of(group->sym, rings_user()), "test"));
    runner_free(&w->runner, w->call.own);
    runner_close(&w->runner);
    expar_group_abandon(group);
}

/* Rank 1 leaves, and what rank 0 sends to it fails. */
static void send_to_lost(expar_group *group, void *shared)
{
    waiter w;
    (void)shared;
    if (!waiter_open(&w, group)) return;
    if (group->rank == 0) {
        expect_loss(&w, group);
        return;
    }
    expar_group_abandon(group);
    runner_close(&w.runner);
}

static void test_what_goes_to_a_lost_rank_fails(void **state)
{
    (void)state;
    for (form = 0; form < 2; form++)
        kind_run((ranks_plan){.ends_itself = true, .ranks_per_node = 1}, 2, send_to_lost);
    form = 0;
}

/* Issues a put to rank 1 that fails, with the tag of the waiter's handle. Kernels of the CPU issue none, so the host
   does it for them, to a place where there is no memory. A kernel of a GPU names memory that the host does not know;
   the wait that follows is part of it. */
static void send_badly(waiter *w, handles_test then)
{
    const sym_rings *rings = sym_rings_of(w->runner.group->sym, rings_user());
    const proxy_command bad = {.kind = PROXY_PUT,
                               .pe = 1,
                               .offset = (uint64_t)1 << 60,
                               .bytes = 8,
                               .compare = EXPAR_DEV_TAG(w->handle.mark >> 32, EXPAR_DEV_PUT, w->handle.number)};
    if (!CHECK(rings != NULL, "no rings")) return;
    w->call.peer = 1;
    w->call.with = HANDLES_SENDS;
    if (runner_target() == EXPAR_DEVICE_CPU) w->call.with = 0;
    if (runner_target() == EXPAR_DEVICE_GPU || then == HANDLES_WAIT) start(w, then, EXPAR_DEV_BLOCK);
    if (runner_target() == EXPAR_DEVICE_GPU) return;
    CHECK(proxy_try_issue((proxy_port *)(uintptr_t)rings->ports[1 % rings->count], &bad), "the ring is full");
}

/* The host learns of a put that failed, and of its place, though no kernel has asked. A wait ends, too. */
static void fail_unnoticed(expar_group *group, void *shared)
{
    waiter w;
    const int64_t end_ms = ranks_clock_ms() + DEADLINE_MS;
    (void)shared;
    if (!waiter_open(&w, group)) return;
    CHECK(strstr(error_of(&w.handle).text, "PE") == NULL, "an error before any call");
    if (group->rank == 0) {
        expar_device_options options = EXPAR_DEVICE_OPTIONS_INIT;
        expar_device_handle other;
        options.target = runner_target();
        CHECK_OK(expar_device_get(group, &options, &other));
        w.call.own = runner_alloc(&w.runner, 64);
        if (runner_target() == EXPAR_DEVICE_GPU) CHECK_OK(expar_unregister(group, w.call.own));
        send_badly(&w, HANDLES_WAIT);
        await_end(&w, EXPAR_ERR_ADDRESS, "wait_until: ");
        CHECK(error_of(&other).status == EXPAR_OK, "%s", error_of(&other).text);
        CHECK_OK(expar_device_get(group, &options, &w.handle));
        send_badly(&w, HANDLES_SEND);
        while (error_of(&w.handle).status == EXPAR_OK && ranks_clock_ms() < end_ms) {
        }
        const expar_device_error error = error_of(&w.handle);
        CHECK(error.status == EXPAR_ERR_ADDRESS && error.pe == 1, "%d, PE %d: %s", (int)error.status, error.pe,
              error.text);
        CHECK(strstr(error.text, "put: PE 1, offset") != NULL, "%s", error.text);
        if (runner_target() == EXPAR_DEVICE_GPU) {
            runner_await(&w.runner);
            CHECK(strstr(error.text, "expar_register") != NULL, "%s", error.text);
            CHECK_OK(expar_register(group, w.call.own, 64));
        }
        runner_free(&w.runner, w.call.own);
    }
    CHECK_OK(expar_group_barrier(group));
    runner_close(&w.runner);
    CHECK_OK(expar_free(group, w.call.words));
}

static void test_the_host_learns_of_a_command_that_failed(void **state)
{
    (void)state;
    kind_run((ranks_plan){.ranks_per_node = 1}, 2, fail_unnoticed);
}

/* A proxy that carries nothing any more ends calls and waits. */
static void lose_proxy(expar_group *group, void *shared)
{
    waiter w;
    (void)shared;
    if (!waiter_open(&w, group)) return;
    if (group->rank == 0) {
        w.call.own = runner_alloc(&w.runner, 64);
        w.call.peer = 1;
        if (form) start(&w, HANDLES_LOST, EXPAR_DEV_BLOCK);
        if (!form) start(&w, HANDLES_WAIT, EXPAR_DEV_BLOCK);
        sym_rings_poison(sym_rings_of(group->sym, rings_user()), EXPAR_ERR_CUDA);
        runner_await(&w.runner);
        const expar_device_error error = error_of(&w.handle);
        CHECK(w.runner.status[0] == EXPAR_ERR_CUDA && error.status == EXPAR_ERR_CUDA, "%d, %d: %s", w.runner.status[0],
              (int)error.status, error.text);
        CHECK(error.text[0] != 0, "no text");
        runner_free(&w.runner, w.call.own);
    }
    CHECK_OK(expar_group_barrier(group));
    runner_close(&w.runner);
    CHECK_OK(expar_free(group, w.call.words));
}

static void test_a_proxy_that_has_failed_ends_calls_and_waits(void **state)
{
    (void)state;
    if (getenv("EXPAR_GDA_QUEUE_MEMORY")) skip(); /* calls go by requests */
    for (form = 0; form < 2; form++)
        kind_run((ranks_plan){.ranks_per_node = 1}, 2, lose_proxy);
    form = 0;
}

/* ---- processes that are killed or stopped ------------------------------------------------------------------------ */

static void die_while_others_wait(expar_group *group, void *shared)
{
    const int signal_number = *(const int *)shared;
    waiter w;
    if (!waiter_open(&w, group)) return;
    if (signal_number == SIGSTOP) kind_set_silence(group, 3000);
    if (group->rank == 1) raise(signal_number);
    start_form(&w);
    await_end(&w, EXPAR_ERR_PEER, "rank 1");
    expect_alive(&w);
    runner_close(&w.runner);
    expar_group_abandon(group);
}

/* Rank 1 dies or stops while others send to it; they learn of that. */
static void die_while_others_send(expar_group *group, void *shared)
{
    const int signal_number = *(const int *)shared;
    waiter w;
    if (!waiter_open(&w, group)) return;
    if (signal_number == SIGSTOP) kind_set_silence(group, 3000);
    if (group->rank == 1) raise(signal_number);
    expect_loss(&w, group);
}

static void run_with_signal(int signal_number, int32_t ranks_per_node, ranks_body body)
{
    enum { SIZE = 3 };
    ranks_host host;
    pid_t pids[SIZE];
    bool late = false;
    const int64_t end_ms = ranks_clock_ms() + DEADLINE_MS;
    ranks_plan plan = {.kind = RANKS_PROCESSES, .size = SIZE, .ends_itself = true, .ranks_per_node = ranks_per_node};
    plan.ranks_per_node = kind_ranks_per_node(&plan);
    assert_true(ranks_host_start(&host));
    for (int32_t r = 0; r < SIZE; r++)
        pids[r] = ranks_fork(&plan, &host.id, r, body, &signal_number);
    assert_int_equal(ranks_wait(pids[0], end_ms, &late), 0);
    assert_int_equal(ranks_wait(pids[2], end_ms, &late), 0);
    kill(pids[1], SIGKILL);
    ranks_wait(pids[1], end_ms, &late);
    assert_false(late);
    assert_true(ranks_host_stop(&host));
}

static void test_a_killed_rank_ends_waits(void **state)
{
    (void)state;
    if (kind_of_ranks != RANKS_PROCESSES) skip();
    for (form = 0; form < FORMS; form++)
        if (form_exists(form)) run_with_signal(SIGKILL, 0, die_while_others_wait);
    form = SYNC_FORM;
    run_with_signal(SIGKILL, 1, die_while_others_wait);
    form = 0;
}

static void test_a_stopped_rank_ends_waits(void **state)
{
    (void)state;
    if (kind_of_ranks != RANKS_PROCESSES) skip();
    form = SYNC_FORM;
    run_with_signal(SIGSTOP, 0, die_while_others_wait);
    form = 0;
}

static void test_what_goes_to_a_dead_or_stopped_rank_fails(void **state)
{
    (void)state;
    if (kind_of_ranks != RANKS_PROCESSES) skip();
    form = 1;
    run_with_signal(SIGKILL, 1, die_while_others_send);
    /* A network device of this rank delivers to the memory of a rank that is stopped. */
    if (!getenv("EXPAR_GDA_QUEUE_MEMORY")) run_with_signal(SIGSTOP, 1, die_while_others_send);
    form = 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_thread_looks_across_the_bus),
        cmocka_unit_test(test_an_abort_ends_waits),
        cmocka_unit_test(test_a_rank_that_leaves_ends_waits),
        cmocka_unit_test(test_the_late_limit_ends_a_barrier_and_is_noted),
        cmocka_unit_test(test_kernels_leave_a_host_that_has_stopped),
        cmocka_unit_test(test_what_goes_to_a_lost_rank_fails),
        cmocka_unit_test(test_the_host_learns_of_a_command_that_failed),
        cmocka_unit_test(test_a_proxy_that_has_failed_ends_calls_and_waits),
        cmocka_unit_test(test_a_killed_rank_ends_waits),
        cmocka_unit_test(test_a_stopped_rank_ends_waits),
        cmocka_unit_test(test_what_goes_to_a_dead_or_stopped_rank_fails),
    };
    kind_read(argc, argv);
    if (!runner_is_able()) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
