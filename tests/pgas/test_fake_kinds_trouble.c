/* SPDX-License-Identifier: Apache-2.0 */
/* Trouble with memory of other kinds, on a driver that simulates GPUs (cuda/fake/fake.c). There are ranks without a
 * GPU, GPUs without peer access, memory that is not to be had on one rank, and deaths. Each is told on all ranks, and
 * host memory serves on. */
#include "cuda/find_controls.h"
#include "shmem/kind.h"

#include "cuda/cuda.h"

#include <signal.h>
#include <sys/wait.h>

#define MIB ((size_t)1 << 20)

static expar_status take(expar_group *group, expar_memory_kind kind, size_t bytes, void **out)
{
    expar_memory_options options = EXPAR_MEMORY_OPTIONS_INIT;
    options.kind = kind;
    options.device = kind == EXPAR_MEMORY_HOST ? 0 : group->rank % 2;
    options.bytes = bytes;
    return expar_memory_alloc(group, &options, out);
}

static void host_serves_on(expar_group *group)
{
    uint64_t *word;
    CHECK_OK(expar_calloc(group, 1, sizeof *word, (void **)&word));
    CHECK_OK(expar_atomic_add_u64(group, word, 1, 0));
    CHECK_OK(expar_barrier_all(group));
    CHECK(group->rank != 0 || *word == (uint64_t)group->size, "%llu ranks added", (unsigned long long)*word);
    CHECK_OK(expar_free(group, word));
}

/* Rank 1's driver finds no GPU. */
static void no_gpu_on_one(expar_group *group, void *shared)
{
    (void)shared;
    void *block = group;
    if (group->rank == 1) setenv("FAKE_INIT", "100", 1);
    for (int kind = EXPAR_MEMORY_DEVICE; kind <= EXPAR_MEMORY_PINNED; kind++) {
        CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, take(group, (expar_memory_kind)kind, 4096, &block));
        if (group->rank != 1) CHECK_TEXT("expar_memory_alloc", "rank 1 has no GPU for it");
        if (group->rank == 1) CHECK_TEXT("expar_memory_alloc", "options.device");
        host_serves_on(group);
    }
    CHECK_OK(take(group, EXPAR_MEMORY_HOST, 4096, &block));
    CHECK_OK(expar_free(group, block));
}

static void test_a_rank_without_a_gpu_is_named(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_THREADS) skip();
    kind_run((ranks_plan){0}, 3, no_gpu_on_one);
}

/* Ranks 0 and 2 have one GPU, rank 1 another one. */
static void no_access(expar_group *group, void *shared)
{
    (void)shared;
    void *device, *pinned;
    if (!CHECK_OK(take(group, EXPAR_MEMORY_DEVICE, 4096, &device))) return;
    if (!CHECK_OK(take(group, EXPAR_MEMORY_PINNED, 4096, &pinned))) return;
    for (int32_t pe = 0; pe < group->size; pe++) {
        const bool alike = pe % 2 == group->rank % 2;
        CHECK((expar_ptr(group, device, pe) != NULL) == alike, "device memory of rank %d", pe);
        CHECK(expar_device_ptr(group, pinned, pe) != NULL, "pinned memory of rank %d", pe);
    }
    CHECK_OK(take(group, EXPAR_MEMORY_DEVICE, 8 * MIB, &device)); /* it grows all the same */
}

static void test_gpus_without_peer_access(void **state)
{
    (void)state;
    kind_run_with("FAKE_PEERS", "0", 3, no_access);
}

/* Memory is short on the last rank alone: all are told, and the next call is as good as the first. In a process with
   all ranks it is short for all of them. */
static void short_of(expar_group *group, expar_memory_kind kind, atomic_int *none)
{
    void *block = group, *kept;
    const bool last = group->rank == group->size - 1;
    if (!CHECK_OK(take(group, kind, 4096, &kept))) return;
    CHECK_OK(expar_group_barrier(group));
    if (last) atomic_store(none, 1);
    CHECK_OK(expar_group_barrier(group));
    CHECK_STATUS(EXPAR_ERR_MEMORY, take(group, kind, 8 * MIB, &block));
    CHECK_TEXT("expar_memory_alloc");
    CHECK(block == group, "a refused call has written its result");
    CHECK_OK(expar_group_barrier(group));
    if (last) atomic_store(none, 0);
    CHECK_OK(expar_group_barrier(group));
    expar_heap_stats stats = EXPAR_HEAP_STATS_INIT;
    CHECK_OK(expar_memory_get_stats(group, kind, &stats));
    CHECK(stats.used_bytes <= 4096 && stats.chunks == 1, "%llu bytes are in use", (unsigned long long)stats.used_bytes);
    CHECK_OK(take(group, kind, 8 * MIB, &block));
    CHECK_OK(expar_free(group, block));
    CHECK_OK(expar_free(group, kept));
}

static void no_memory(expar_group *group, void *shared)
{
    (void)shared;
    int32_t count;
    CHECK_OK(cuda_device_count(&count)); /* opens the driver */
    fake_controls *controls = controls_find();
    if (!CHECK(controls != NULL, "no simulated driver")) return;
    short_of(group, EXPAR_MEMORY_DEVICE, &controls->no_chunks);
    short_of(group, EXPAR_MEMORY_PINNED, &controls->no_pinned);
    host_serves_on(group);
}

static void test_memory_is_short_on_one_rank(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 3, no_memory);
}

/* Chunks may be registered with a network's device where the GPU says so. */
static void for_networks(expar_group *group, void *shared)
{
    (void)shared;
    void *block;
    const bool served = !getenv("FAKE_RDMA");
    if (!CHECK_OK(take(group, EXPAR_MEMORY_DEVICE, 4096, &block))) return;
    fake_controls *controls = controls_find();
    CHECK(controls && (atomic_load(&controls->plain) == 0) == served, "pieces that no network may register");
}

static void test_chunks_for_networks(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_THREADS) skip(); /* counts are those of the process */
    kind_run((ranks_plan){0}, 2, for_networks);
    kind_run_with("FAKE_RDMA", "0", 2, for_networks);
}

/* After the group all that was registered and mapped is gone. */
static void use_all(expar_group *group, void *shared)
{
    (void)shared;
    void *block;
    CHECK_OK(take(group, EXPAR_MEMORY_DEVICE, MIB, &block));
    CHECK_OK(take(group, EXPAR_MEMORY_PINNED, MIB, &block));
    CHECK_OK(take(group, EXPAR_MEMORY_PINNED, 20 * MIB, &block));
}

static void nothing_left(expar_group *group, void *shared)
{
    (void)group, (void)shared;
    const fake_controls *controls = controls_find();
    CHECK(controls && atomic_load(&controls->registered) == 0, "host memory is still registered");
    CHECK(controls && atomic_load(&controls->mapped) == 0, "memory of GPUs is still mapped");
}

static void test_nothing_is_left(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_THREADS) {
        kind_run((ranks_plan){0}, 3, use_all);
        check_begin(-1);
        nothing_left(NULL, NULL);
        assert_int_equal(check_failures(), 0);
    } else {
        kind_run((ranks_plan){.after = nothing_left}, 3, use_all);
    }
}

/* By CUDA IPC one piece has all of a rank's memory. */
static void by_ipc(expar_group *group, void *shared)
{
    (void)shared;
    void *first, *second, *none = group;
    if (!CHECK_OK(take(group, EXPAR_MEMORY_DEVICE, 4096, &first))) return;
    CHECK_OK(take(group, EXPAR_MEMORY_DEVICE, 8 * MIB, &second));
    CHECK_STATUS(EXPAR_ERR_MEMORY, take(group, EXPAR_MEMORY_DEVICE, 32 * MIB, &none));
    CHECK_TEXT("EXPAR_DEVICE_HEAP_SIZE", "16 MiB");
    CHECK_OK(expar_free(group, second));
    CHECK_OK(take(group, EXPAR_MEMORY_DEVICE, 12 * MIB, &second));
}

static void test_by_ipc(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_THREADS) skip();
    setenv("EXPAR_DEVICE_HEAP_SIZE", "16M", 1);
    kind_run_with("FAKE_EXPORT", "0", 3, by_ipc);
    unsetenv("EXPAR_DEVICE_HEAP_SIZE");
}

/* ---- deaths ------------------------------------------------------------------------------------------------------ */

/* The rank of three that dies, and the kind whose allocation it does not come to; has_one: it is the second one. */
typedef struct death {
    int32_t victim;
    expar_memory_kind kind;
    bool has_one;
} death;

static void dies(expar_group *group, void *shared)
{
    const death *d = shared;
    void *block = group;
    if (d->has_one) CHECK_OK(take(group, d->kind, 4096, &block));
    block = group;
    if (group->rank == d->victim) raise(SIGKILL);
    CHECK_STATUS(EXPAR_ERR_PEER, take(group, d->kind, 16 * MIB, &block));
    CHECK(block == group, "a failed call has written its result");
    CHECK_STATUS(EXPAR_ERR_PEER, take(group, EXPAR_MEMORY_HOST, 4096, &block));
}

static void kill_one(death d)
{
    enum { SIZE = 3 };
    ranks_host host;
    pid_t pids[SIZE];
    const ranks_plan plan = {.kind = RANKS_PROCESSES, .size = SIZE};
    check_begin(-1);
    assert_true(ranks_host_start(&host));
    for (int32_t r = 0; r < SIZE; r++)
        pids[r] = ranks_fork(&plan, &host.id, r, dies, &d);
    for (int32_t r = 0; r < SIZE; r++) {
        const int status = ranks_wait(pids[r], ranks_clock_ms() + RANKS_TIMEOUT_MS, NULL);
        if (r == d.victim)
            CHECK(WIFSIGNALED(status), "rank %d ended with wait status %#x", r, (unsigned)status);
        else
            CHECK(status == 0, "rank %d ended with wait status %#x", r, (unsigned)status);
    }
    ranks_host_stop(&host);
    assert_int_equal(check_failures(), 0);
}

static void test_deaths(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_THREADS) skip();
    for (int32_t victim = 0; victim < 3; victim++)
        for (int has_one = 0; has_one < 2; has_one++) {
            kill_one((death){victim, EXPAR_MEMORY_DEVICE, has_one});
            kill_one((death){victim, EXPAR_MEMORY_PINNED, has_one});
        }
}

/* A rank that abandons the group leaves the others' memory as it is, and its own to those who may still use it. */
static void abandoned(expar_group *group, void *shared)
{
    (void)shared;
    uint8_t *device, *pinned;
    if (!CHECK_OK(take(group, EXPAR_MEMORY_DEVICE, 4096, (void **)&device))) return;
    if (!CHECK_OK(take(group, EXPAR_MEMORY_PINNED, 4096, (void **)&pinned))) return;
    pinned[0] = (uint8_t)(group->rank + 1);
    uint8_t *next = expar_ptr(group, pinned, (group->rank + 1) % group->size);
    CHECK_OK(expar_group_barrier(group));
    if (group->rank == 1) {
        CHECK_OK(expar_group_abandon(group));
        return;
    }
    void *none;
    CHECK_STATUS(EXPAR_ERR_PEER, take(group, EXPAR_MEMORY_PINNED, 64 * MIB, &none));
    CHECK(next[0] == (group->rank + 1) % group->size + 1 && pinned[0] == group->rank + 1, "memory has changed");
    CHECK_OK(expar_group_destroy(group));
}

static void test_a_rank_abandons(void **state)
{
    (void)state;
    kind_run((ranks_plan){.ends_itself = true}, 3, abandoned);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rank_without_a_gpu_is_named),
        cmocka_unit_test(test_gpus_without_peer_access),
        cmocka_unit_test(test_memory_is_short_on_one_rank),
        cmocka_unit_test(test_chunks_for_networks),
        cmocka_unit_test(test_nothing_is_left),
        cmocka_unit_test(test_by_ipc),
        cmocka_unit_test(test_deaths),
        cmocka_unit_test(test_a_rank_abandons),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
