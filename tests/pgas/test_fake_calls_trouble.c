/* SPDX-License-Identifier: Apache-2.0 */
/* Trouble with calls on device memory, on a driver that simulates GPUs: owners that die, stop, or cannot copy; kernels
 * that run on; several threads of a rank. */
#include "cuda/find_controls.h"
#include "pgas/memories.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

enum { VICTIM = 1 };

/* ---- owners that are lost ---------------------------------------------------------------------------------------- */

/* The others' operations on the victim's memory. */
typedef enum deed { DEED_PUT, DEED_GET, DEED_ADD, DEED_FETCH, DEED_SIGNAL, DEEDS } deed;

static expar_status do_deed(expar_group *group, deed what, uint64_t *block, size_t bytes)
{
    static _Thread_local uint64_t local[40000];
    switch (what) {
    case DEED_PUT:
        return expar_put(group, block, local, bytes, VICTIM);
    case DEED_GET:
        return expar_get(group, local, block, bytes, VICTIM);
    case DEED_ADD:
        return expar_atomic_add_u64(group, block, 1, VICTIM);
    case DEED_FETCH:
        return expar_atomic_fetch_inc_u64(group, block, VICTIM, local);
    case DEED_SIGNAL:
    case DEEDS:
        break;
    }
    return expar_put_signal(group, block + 1, local, bytes - 8, block, 1, EXPAR_SIGNAL_ADD, VICTIM);
}

typedef struct loss {
    deed what;
    int signal;
} loss;

/* Waits for the last call of the other rank that goes on. It may be late, and a wait ends while a rank is silent. */
static void await_other(expar_group *group, const uint64_t *word, int64_t until_ms)
{
    expar_status status = EXPAR_ERR_PEER;
    while (status == EXPAR_ERR_PEER && ranks_clock_ms() < until_ms)
        status = expar_wait_until_u64(group, word, EXPAR_CMP_EQ, 1, NULL);
    CHECK_OK(status);
}

/* The rest of the group serves on. */
static void lose_owner(expar_group *group, void *shared)
{
    const loss *l = shared;
    const size_t bytes = 300000;
    uint64_t *block = take_zeros(group, EXPAR_MEMORY_DEVICE, bytes), old = 0;
    const int32_t other = 2 - group->rank;
    expar_status status = EXPAR_OK;
    if (!block) return;
    CHECK_OK(expar_barrier_all(group));
    kind_set_silence(group, 500);
    if (group->rank == VICTIM) raise(l->signal);
    const int64_t until_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    while (status == EXPAR_OK && ranks_clock_ms() < until_ms) {
        status = do_deed(group, l->what, block, bytes);
        if (status == EXPAR_OK) status = expar_quiet(group);
    }
    CHECK(status == EXPAR_ERR_PEER, "%s", expar_last_error());
    CHECK_TEXT("rank 1");
    CHECK_STATUS(EXPAR_ERR_PEER, do_deed(group, l->what, block, bytes));
    CHECK_OK(expar_put(group, block, &old, 8, other));
    CHECK_OK(expar_atomic_fetch_inc_u64(group, block, other, &old));
    CHECK_OK(expar_p_u64(group, block + 20, 1, other));
    CHECK_OK(expar_quiet(group));
    await_other(group, block + 20, until_ms + RANKS_TIMEOUT_MS);
}

static void lose_one(loss l)
{
    enum { SIZE = 3 };
    ranks_host host;
    pid_t pids[SIZE];
    const ranks_plan plan = {.kind = RANKS_PROCESSES, .size = SIZE};
    check_begin(-1);
    assert_true(ranks_host_start(&host));
    for (int32_t r = 0; r < SIZE; r++)
        pids[r] = ranks_fork(&plan, &host.id, r, lose_owner, &l);
    for (int32_t r = SIZE - 1; r >= 0; r--) {
        if (r == VICTIM) continue;
        const int status = ranks_wait(pids[r], ranks_clock_ms() + RANKS_TIMEOUT_MS, NULL);
        CHECK(status == 0, "rank %d ended with wait status %#x", r, (unsigned)status);
    }
    kill(pids[VICTIM], SIGKILL);
    ranks_wait(pids[VICTIM], ranks_clock_ms() + RANKS_TIMEOUT_MS, NULL);
    ranks_host_stop(&host);
    assert_int_equal(check_failures(), 0);
}

static void test_owners_die(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_THREADS) skip();
    for (int what = 0; what < DEEDS; what++) {
        setenv("EXPAR_STAGE", what % 2 ? "1" : "0", 1);
        if (what != DEED_PUT) lose_one((loss){(deed)what, SIGKILL});
    }
    setenv("EXPAR_STAGE", "1", 1);
    lose_one((loss){DEED_PUT, SIGKILL});
    unsetenv("EXPAR_STAGE");
}

static void test_owners_stop(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_THREADS) skip();
    setenv("EXPAR_STAGE", "1", 1);
    lose_one((loss){DEED_GET, SIGSTOP});
    lose_one((loss){DEED_PUT, SIGSTOP});
    unsetenv("EXPAR_STAGE");
    lose_one((loss){DEED_FETCH, SIGSTOP});
}

/* ---- owners that cannot copy ------------------------------------------------------------------------------------- */

/* The caller that waits is told by its call, and the one that does not by quiet, once. */
static void failing_owner(expar_group *group, void *shared)
{
    (void)shared;
    uint64_t *block = take_zeros(group, EXPAR_MEMORY_DEVICE, 4096), local[8] = {0};
    if (!block) return;
    CHECK_OK(expar_barrier_all(group));
    if (group->rank == VICTIM) {
        setenv("FAKE_FAULT", "1", 1);
        CHECK_STATUS(EXPAR_ERR_CUDA, expar_get(group, local, block, 8, VICTIM));
        CHECK_STATUS(EXPAR_ERR_CUDA, expar_atomic_fetch_inc_u64(group, block, VICTIM, local));
        CHECK_STATUS(EXPAR_ERR_CUDA, expar_wait_until_u64(group, block, EXPAR_CMP_EQ, 0, NULL));
    }
    CHECK_OK(expar_group_barrier(group));
    if (group->rank == 0) {
        CHECK_STATUS(EXPAR_ERR_CUDA, expar_get(group, local, block, sizeof local, VICTIM));
        CHECK_TEXT("rank 1, which owns the memory, could not do it");
        CHECK_STATUS(EXPAR_ERR_CUDA, expar_atomic_fetch_u64(group, block, VICTIM, local));
        CHECK_OK(expar_put(group, block, local, sizeof local, VICTIM));
        CHECK_STATUS(EXPAR_ERR_CUDA, expar_quiet(group));
        CHECK_TEXT("expar_quiet", "rank 1");
        CHECK_OK(expar_quiet(group));
        CHECK_OK(expar_get(group, local, block, sizeof local, 0));
    }
    CHECK_OK(expar_group_barrier(group));
    unsetenv("FAKE_FAULT");
}

static void test_owners_that_cannot_copy(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_THREADS) skip();
    kind_run_with("EXPAR_STAGE", "1", 2, failing_owner);
}

/* ---- kernels that run on ----------------------------------------------------------------------------------------- */

/* A kernel that does not end, on a stream that the null stream waits for. */
typedef struct resident {
    cuda_device *device;
    fake_controls *controls;
    cu_module module;
    cu_stream stream;
    atomic_int end;
} resident;

static bool resident_begin(resident *one, const expar_group *group)
{
    cu_function spin;
    fake_spin_args args = {&one->end};
    void *parameters[] = {&args};
    *one = (resident){.controls = controls_find()};
    if (!CHECK(one->controls != NULL, "no simulated driver")) return false;
    if (!CHECK_OK(cuda_device_open(gpu_of(group), &one->device)) || !CHECK_OK(cuda_enter(one->device))) return false;
    CHECK_OK(CUDA_CALL(StreamCreate, &one->stream, 0));
    CHECK_OK(CUDA_CALL(ModuleLoadData, &one->module, "a kernel that is slow"));
    CHECK_OK(CUDA_CALL(ModuleGetFunction, &spin, one->module, FAKE_SPIN));
    const cuda_launch launch = {.function = spin, .stream = one->stream, .blocks = 132, .threads = 1024};
    CHECK_OK(cuda_launch_kernel(&launch, parameters));
    cuda_leave();
    return check_failures() == 0;
}

static void resident_end(resident *one)
{
    atomic_store(&one->end, 1);
    if (!CHECK_OK(cuda_enter(one->device))) return;
    CHECK_OK(CUDA_CALL(StreamSynchronize, one->stream));
    CHECK_OK(CUDA_CALL(ModuleUnload, one->module));
    CHECK_OK(CUDA_CALL(StreamDestroy, one->stream));
    cuda_leave();
    cuda_device_close(one->device);
}

/* Puts, gets, signals, tests, waits and atomics end while each GPU has such a kernel. */
static void beside_kernels(expar_group *group, void *shared)
{
    (void)shared;
    resident kernel;
    int holds = 0;
    uint64_t *block = take_zeros(group, EXPAR_MEMORY_DEVICE, 300000), local[2000] = {11}, seen = 0;
    const int32_t next = (group->rank + 1) % group->size;
    if (!block || !resident_begin(&kernel, group)) return;
    CHECK_OK(expar_group_barrier(group));
    CHECK_OK(expar_put_signal(group, block, local, sizeof local, block + 3000, 5, EXPAR_SIGNAL_SET, next));
    CHECK_OK(expar_wait_until_u64(group, block + 3000, EXPAR_CMP_GE, 5, &seen));
    CHECK_OK(expar_test_u64(group, block, EXPAR_CMP_EQ, 11, &holds));
    CHECK_OK(expar_atomic_fetch_add_u64(group, block + 3000, 2, next, &seen));
    CHECK_OK(expar_get(group, local, block, sizeof local, next));
    CHECK_OK(expar_barrier_all(group));
    CHECK(holds == 1 && seen == 5 && local[0] == 11, "%d, %llu, %llu", holds, (unsigned long long)seen,
          (unsigned long long)local[0]);
    CHECK(atomic_load(&kernel.controls->running[gpu_of(group)]) > 0, "the kernel has ended");
    CHECK_OK(expar_group_barrier(group));
    resident_end(&kernel);
    CHECK_OK(expar_group_barrier(group));
}

static void test_beside_kernels(void **state)
{
    (void)state;
    setenv("FAKE_ASYNC", "1", 1);
    kind_run((ranks_plan){0}, 2, beside_kernels);
    kind_run_with("EXPAR_STAGE", "1", 2, beside_kernels);
    unsetenv("FAKE_ASYNC");
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

enum { THREADS = 4, EACH = 30, THREAD_BYTES = 70000 };

/* Each thread has its own part of the next rank's block; all count in one word. */
typedef struct worker {
    expar_group *group;
    uint8_t *block;
    uint64_t *count;
    int32_t number, next;
    int64_t failures;
} worker;

static void *work(void *argument)
{
    worker *own = argument;
    uint8_t *data = malloc(THREAD_BYTES), *back = malloc(THREAD_BYTES);
    uint8_t *part = own->block + (size_t)own->number * THREAD_BYTES;
    uint64_t old;
    check_begin(own->group->rank);
    for (int i = 0; i < EACH && check_failures() == 0; i++) {
        memset(data, i + own->number, THREAD_BYTES);
        CHECK_OK(expar_put(own->group, part, data, THREAD_BYTES, own->next));
        CHECK_OK(expar_atomic_fetch_inc_u64(own->group, own->count, own->next, &old));
        CHECK_OK(expar_quiet(own->group));
        CHECK_OK(expar_get(own->group, back, part, THREAD_BYTES, own->next));
        CHECK(memcmp(data, back, THREAD_BYTES) == 0, "thread %d: other bytes", own->number);
    }
    free(back);
    free(data);
    own->failures = check_failures();
    return NULL;
}

static void several_threads(expar_group *group, void *shared)
{
    (void)shared;
    pthread_t threads[THREADS];
    worker all[THREADS];
    uint64_t count = 0;
    uint8_t *block = take_zeros(group, EXPAR_MEMORY_DEVICE, (size_t)THREADS * THREAD_BYTES + 8);
    if (!block) return;
    uint64_t *word = (uint64_t *)(void *)(block + (size_t)THREADS * THREAD_BYTES);
    for (int i = 0; i < THREADS; i++) {
        all[i] = (worker){group, block, word, i, (group->rank + 1) % group->size, 0};
        CHECK(pthread_create(&threads[i], NULL, work, &all[i]) == 0, "no thread");
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        CHECK(all[i].failures == 0, "thread %d has failed", i);
    }
    CHECK_OK(expar_barrier_all(group));
    CHECK_OK(expar_g_u64(group, word, group->rank, &count));
    CHECK(count == THREADS * EACH, "counted %llu", (unsigned long long)count);
}

static void test_several_threads(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, several_threads);
    kind_run_with("EXPAR_STAGE", "1", 2, several_threads);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_owners_die),
        cmocka_unit_test(test_owners_stop),
        cmocka_unit_test(test_owners_that_cannot_copy),
        cmocka_unit_test(test_beside_kernels),
        cmocka_unit_test(test_several_threads),
    };
    kind_read(argc, argv);
    num_gpus = FAKE_GPUS;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
