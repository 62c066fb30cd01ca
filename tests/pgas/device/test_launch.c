/* SPDX-License-Identifier: Apache-2.0 */
/* expar_launch: blocks that wait for each other, as many as fit, and bad arguments. On GPUs, or simulated ones. */
#include "cuda/cuda.h"
#include "cuda/gpus.h"
#include "cuda/kernels/handles.h"
#include "cuda/test_sources.h"
#include "mem/device.h"
#include "net/proxy/parts.h"
#include "shmem/kind.h"
#include "shmem/rings.h"

#include <time.h>

static int32_t num_gpus;

static const cuda_source *find_source(void)
{
    for (size_t i = 0; i < test_num_sources; i++)
        if (strstr(test_sources[i].name, "kernels/handles.cu")) return &test_sources[i];
    return NULL;
}

/* A kernel on this rank's GPU, and what it needs. */
typedef struct kernels {
    cuda_device *device;
    cuda_program *program;
    cu_function function;
    mem_pinned status;
    uint64_t *words;
    expar_device_handle handle;
} kernels;

static bool kernels_open(kernels *k, expar_group *group)
{
    void *block = NULL;
    expar_memory_options options = EXPAR_MEMORY_OPTIONS_INIT;
    options.kind = EXPAR_MEMORY_DEVICE;
    options.device = group->rank % num_gpus;
    options.bytes = 4096;
    options.zeroed = 1;
    *k = (kernels){0};
    if (!CHECK_OK(expar_memory_alloc(group, &options, &block))) return false;
    k->words = block;
    if (!CHECK_OK(cuda_device_open(options.device, &k->device)) || !CHECK_OK(cuda_enter(k->device))) return false;
    CHECK_OK(cuda_program_make(k->device, find_source(), NULL, 0, &k->program));
    CHECK_OK(cuda_program_kernel(k->program, "handles_grid", 0, &k->function));
    CHECK_OK(mem_pinned_create(4096, &k->status));
    cuda_leave();
    return CHECK_OK(expar_device_get(group, NULL, &k->handle)) && CHECK_OK(expar_group_barrier(group));
}

static void kernels_close(kernels *k, expar_group *group)
{
    if (CHECK_OK(cuda_enter(k->device))) {
        mem_pinned_free(&k->status);
        cuda_leave();
    }
    cuda_program_release(k->program);
    cuda_device_close(k->device);
    CHECK_OK(expar_free(group, k->words));
}

/* Runs the grid to its end; returns how many blocks came. */
static uint64_t run_grid(kernels *k, expar_group *group, uint32_t blocks, uint32_t *launched)
{
    uint64_t before = 0, after = 0;
    handles_launch launch = {.handle = k->handle, .call = {.words = k->words}};
    launch.call.status = (int *)(uintptr_t)k->status.device;
    void *arguments[] = {&launch};
    expar_launch_args args = EXPAR_LAUNCH_ARGS_INIT;
    args.function = k->function;
    args.blocks = blocks;
    args.threads = HANDLES_THREADS;
    args.arguments = arguments;
    memset(k->status.host, 0xff, HANDLES_THREADS * sizeof(int));
    CHECK_OK(expar_get(group, &before, k->words, sizeof before, group->rank));
    CHECK(before == 0, "the word holds %llu", (unsigned long long)before);
    CHECK_OK(expar_launch(group, &args, launched));
    if (CHECK_OK(cuda_enter(k->device))) {
        CHECK_OK(cuda_synchronize());
        cuda_leave();
    }
    for (int i = 0; i < HANDLES_THREADS; i++)
        CHECK(((int *)k->status.host)[i] == EXPAR_OK, "thread %d: %d", i, ((int *)k->status.host)[i]);
    CHECK_OK(expar_get(group, &after, k->words, sizeof after, group->rank));
    CHECK_OK(expar_atomic_set_u64(group, k->words, 0, group->rank));
    return after;
}

/* Ranks that share a GPU take turns. */
static void launch_grids(expar_group *group, void *shared)
{
    kernels k;
    (void)shared;
    if (!kernels_open(&k, group)) return;
    for (int32_t r = 0; r < group->size; r++) {
        uint32_t most = 0, few = 0;
        if (r == group->rank) {
            const uint64_t came = run_grid(&k, group, 0, &most);
            CHECK(came == most && most >= (uint32_t)k.device->num_sms, "%llu of %u blocks", (unsigned long long)came,
                  most);
            CHECK(run_grid(&k, group, 2, &few) == 2 && few == 2, "%u blocks", few);
        }
        CHECK_OK(expar_group_barrier(group));
    }
    kernels_close(&k, group);
}

static void reject_grids(expar_group *group, void *shared)
{
    kernels k;
    uint32_t blocks = 77;
    expar_launch_args args = EXPAR_LAUNCH_ARGS_INIT;
    (void)shared;
    args.threads = HANDLES_THREADS;
    args.function = &k;
    CHECK_STATUS(EXPAR_ERR_STATE, expar_launch(group, &args, &blocks));
    if (!kernels_open(&k, group)) return;
    args.function = k.function;
    args.blocks = 1000000;
    CHECK_STATUS(EXPAR_ERR_LIMIT, expar_launch(group, &args, &blocks));
    CHECK_TEXT("args.blocks 1000000 of 64 threads", "expected at most");
    args.blocks = 0;
    args.threads = 0;
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_launch(group, &args, &blocks));
    CHECK_TEXT("args.threads 0");
    args.threads = HANDLES_THREADS;
    args.function = NULL;
    CHECK_STATUS(EXPAR_ERR_NULL, expar_launch(group, &args, &blocks));
    args.struct_size = 3;
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_launch(group, &args, &blocks));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_launch(group, NULL, &blocks));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_launch(NULL, &args, &blocks));
    CHECK(blocks == 77, "a call that failed gave %u blocks", blocks);
    kernels_close(&k, group);
}

static int32_t users_of(const expar_group *group)
{
    const sym_rings *rings = sym_rings_of(group->sym, SYM_RINGS_HANDLES_GPU);
    return rings ? atomic_load(&rings->proxies[0]->users) : -1;
}

static bool await_users(const expar_group *group, int32_t users)
{
    const int64_t end_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    while (users_of(group) != users && ranks_clock_ms() < end_ms)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return CHECK(users_of(group) == users, "%d users, expected %d", users_of(group), users);
}

/* The kernel's add makes the word 0, and it waits for 1. */
static void let_kernel_end(const kernels *k, expar_group *group)
{
    const int64_t end_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    uint64_t word = UINT64_MAX;
    while (word != 0 && ranks_clock_ms() < end_ms)
        CHECK_OK(expar_get(group, &word, k->words, sizeof word, group->rank));
    CHECK(word == 0, "the word holds %llu", (unsigned long long)word);
    CHECK_OK(expar_atomic_set_u64(group, k->words, 1, group->rank));
    CHECK_OK(expar_quiet(group));
}

/* Nodes of one rank. The rings' threads expect commands while the kernel waits, and not after its end. */
static void announce_launches(expar_group *group, void *shared)
{
    kernels k;
    (void)shared;
    if (!kernels_open(&k, group)) return;
    handles_launch launch = {.handle = k.handle, .call = {.words = k.words}};
    launch.call.status = (int *)(uintptr_t)k.status.device;
    void *arguments[] = {&launch};
    expar_launch_args args = EXPAR_LAUNCH_ARGS_INIT;
    args.function = k.function;
    args.blocks = 1;
    args.threads = HANDLES_THREADS;
    args.arguments = arguments;
    CHECK(users_of(group) == 0, "%d users", users_of(group));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(expar_atomic_set_u64(group, k.words, UINT64_MAX, group->rank));
        CHECK_OK(expar_quiet(group));
        CHECK_OK(expar_launch(group, &args, NULL));
        CHECK(users_of(group) == 1, "%d users, expected 1", users_of(group));
        let_kernel_end(&k, group);
        await_users(group, 0);
    }
    CHECK_OK(expar_group_barrier(group));
    kernels_close(&k, group);
}

static void test_rings_expect_commands_of_launches(void **state)
{
    (void)state;
    kind_run((ranks_plan){.ranks_per_node = 1}, 2, announce_launches);
}

static void test_all_blocks_run_at_the_same_time(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, launch_grids);
}

static void test_grids_that_do_not_fit_are_rejected(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, reject_grids);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_blocks_run_at_the_same_time),
        cmocka_unit_test(test_grids_that_do_not_fit_are_rejected),
        cmocka_unit_test(test_rings_expect_commands_of_launches),
    };
    kind_read(argc, argv);
    num_gpus = gpus_count(1);
    if (num_gpus < 1) return GPUS_SKIP;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
