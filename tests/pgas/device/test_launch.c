/* SPDX-License-Identifier: Apache-2.0 */
/* expar_launch: blocks that wait for each other, as many as fit, graphs, and bad arguments. The host's calls end while
 * such a grid holds all SMs. On GPUs, or simulated ones. */
#include "cuda/cuda.h"
#include "cuda/gpus.h"
#include "cuda/kernels/handles.h"
#include "cuda/test_sources.h"
#include "mem/device.h"
#include "net/proxy/parts.h"
#include "pgas/stream/streams.h"
#include "shmem/rings.h"

#include <time.h>

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
    cu_function function, run; /* handles_grid, handles_run */
    mem_pinned status;
    uint64_t *words;
    expar_device_handle handle;
} kernels;

static bool kernels_open(kernels *k, expar_group *group, const char *name)
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
    CHECK_OK(cuda_program_kernel(k->program, name, 0, &k->function));
    CHECK_OK(cuda_program_kernel(k->program, "handles_run", 0, &k->run));
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
    if (!kernels_open(&k, group, "handles_grid")) return;
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

/* ---- while a grid holds all SMs ---------------------------------------------------------------------------------- */

/* Starts the grid on a stream of its own, and waits until all its blocks run. */
static bool hold_begin(kernels *k, expar_group *group, cu_stream *stream, uint32_t *blocks)
{
    handles_launch launch = {.handle = k->handle, .call = {.words = k->words}};
    void *arguments[] = {&launch};
    expar_launch_args args = EXPAR_LAUNCH_ARGS_INIT;
    launch.call.status = (int *)(uintptr_t)k->status.device;
    if (!CHECK_OK(cuda_enter(k->device))) return false;
    CHECK_OK(CUDA_CALL(StreamCreate, stream, CU_STREAM_NON_BLOCKING));
    cuda_leave();
    args.function = k->function;
    /* Each block of a simulated GPU, which has few SMs, is a thread that polls. */
    args.blocks = k->device->num_sms > 8 ? 0 : (uint32_t)k->device->num_sms;
    args.threads = HANDLES_THREADS;
    args.arguments = arguments;
    args.stream = *stream;
    return CHECK_OK(expar_launch(group, &args, blocks)) &&
           CHECK_OK(expar_wait_until_u64(group, k->words, EXPAR_CMP_EQ, *blocks, NULL));
}

static void hold_end(kernels *k, expar_group *group, cu_stream stream, uint32_t blocks)
{
    uint64_t came = 0;
    CHECK_OK(expar_get(group, &came, k->words, sizeof came, group->rank));
    CHECK(came == blocks, "%llu of %u blocks", (unsigned long long)came, blocks);
    if (!CHECK_OK(cuda_enter(k->device))) return;
    CHECK(cuda_driver()->StreamQuery(stream) == CU_ERROR_NOT_READY, "the grid has ended");
    CHECK_OK(expar_atomic_set_u64(group, k->words + 1, 1, group->rank));
    CHECK_OK(CUDA_CALL(StreamSynchronize, stream));
    CHECK_OK(CUDA_CALL(StreamDestroy, stream));
    cuda_leave();
    for (int i = 0; i < HANDLES_THREADS; i++)
        CHECK(((int *)k->status.host)[i] == EXPAR_OK, "thread %d: %d", i, ((int *)k->status.host)[i]);
}

/* Words of the next rank, in device or in pinned memory. adds: atomics need no thread of an SM, either. */
static void calls_beside(expar_group *group, uint64_t *block, bool adds)
{
    uint64_t local[100] = {11}, seen = 0;
    int holds = 0;
    const int32_t next = (group->rank + 1) % group->size;
    CHECK_OK(expar_put_signal(group, block, local, sizeof local, block + 200, 5, EXPAR_SIGNAL_SET, next));
    CHECK_OK(expar_wait_until_u64(group, block + 200, EXPAR_CMP_GE, 5, &seen));
    CHECK_OK(expar_test_u64(group, block, EXPAR_CMP_EQ, 11, &holds));
    CHECK_OK(expar_put(group, block + 100, local, sizeof local, next));
    CHECK_OK(expar_p_u64(group, block + 201, 6, next));
    CHECK_OK(expar_put_signal(group, NULL, NULL, 0, block + 202, 7, EXPAR_SIGNAL_SET, next));
    CHECK_OK(expar_atomic_set_u64(group, block + 203, 8, next));
    if (adds) {
        CHECK_OK(expar_put_signal(group, NULL, NULL, 0, block + 202, 2, EXPAR_SIGNAL_ADD, next));
        CHECK_OK(expar_atomic_fetch_add_u64(group, block + 203, 3, next, &seen));
        CHECK(seen == 8, "the word was %llu", (unsigned long long)seen);
    }
    CHECK_OK(expar_quiet(group));
    CHECK_OK(expar_get(group, local, block + 200, 4 * sizeof *local, next));
    CHECK(holds == 1 && local[1] == 6 && local[2] == (adds ? 9 : 7) && local[3] == (adds ? 11 : 8), "other words");
}

static void beside_a_grid(expar_group *group, void *shared)
{
    kernels k;
    cu_stream stream = NULL;
    uint32_t blocks = 0;
    const bool *by_owners = shared;
    uint64_t *both[2] = {NULL};
    expar_memory_options options = EXPAR_MEMORY_OPTIONS_INIT;
    if (!kernels_open(&k, group, "handles_hold")) return;
    options.device = group->rank % num_gpus;
    options.bytes = 4096;
    options.zeroed = 1;
    for (int i = 0; i < 2; i++) {
        options.kind = i == 0 ? EXPAR_MEMORY_DEVICE : EXPAR_MEMORY_PINNED;
        CHECK_OK(expar_memory_alloc(group, &options, (void **)&both[i]));
    }
    CHECK_OK(expar_group_barrier(group));
    const bool held = group->rank > 0 || hold_begin(&k, group, &stream, &blocks);
    CHECK_OK(expar_group_barrier(group));
    if (check_failures() == 0) {
        calls_beside(group, both[0], *by_owners);
        calls_beside(group, both[1], true);
    }
    CHECK_OK(expar_group_barrier(group));
    if (group->rank == 0 && held) hold_end(&k, group, stream, blocks);
    CHECK_OK(expar_group_barrier(group));
    CHECK_OK(expar_free(group, both[1]));
    CHECK_OK(expar_free(group, both[0]));
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
    if (!kernels_open(&k, group, "handles_grid")) return;
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
    if (!kernels_open(&k, group, "handles_grid")) return;
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

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

enum { PASS_BYTES = 1000, PASS_WORDS = 16 };

/* Messages between the kernels of all ranks. The flags begin at 0. */
static handles_call pass_call(expar_group *group, const kernels *k)
{
    uint8_t *const report = (uint8_t *)(uintptr_t)k->status.device;
    return (handles_call){.test = HANDLES_PASS,
                          .scope = EXPAR_DEV_BLOCK,
                          .rounds = 3,
                          .words = take_zeros(group, EXPAR_MEMORY_DEVICE, PASS_WORDS * sizeof(uint64_t)),
                          .data = take_zeros(group, EXPAR_MEMORY_DEVICE, (size_t)group->size * PASS_BYTES),
                          .bytes = PASS_BYTES,
                          .own = take_zeros(group, EXPAR_MEMORY_DEVICE, HANDLES_OWN_BYTES(group->size, PASS_BYTES)),
                          .wrong = (uint64_t *)(void *)(report + 2048),
                          .status = (int *)(void *)report};
}

static void pass_begin(expar_group *group, const kernels *k, const handles_call *call)
{
    const uint64_t zeros[PASS_WORDS] = {0};
    CHECK_OK(expar_group_barrier(group));
    CHECK_OK(expar_put(group, call->words, zeros, sizeof zeros, group->rank));
    memset(k->status.host, 0xff, HANDLES_THREADS * sizeof(int));
    memset((uint8_t *)k->status.host + 2048, 0, sizeof(uint64_t));
    CHECK_OK(expar_group_barrier(group));
}

static void pass_end(const kernels *k, const test_stream *s)
{
    uint64_t wrong;
    stream_await(s);
    memcpy(&wrong, (uint8_t *)k->status.host + 2048, sizeof wrong);
    CHECK(wrong == 0, "%llu bytes are wrong", (unsigned long long)wrong);
    for (int i = 0; i < HANDLES_THREADS; i++)
        CHECK(((int *)k->status.host)[i] == EXPAR_OK, "thread %d: %d", i, ((int *)k->status.host)[i]);
}

/* A graph has a kernel with a handle. Its replays take turns with launches that are in no graph, while the heap grows.
   Nobody announces replays to the rings. */
static void replay_launches(expar_group *group, void *shared)
{
    enum { GROWTH = 3 << 20 };
    kernels k;
    test_stream s;
    (void)shared;
    if (!kernels_open(&k, group, "handles_grid") || !stream_open(group, &s)) return;
    const handles_call call = pass_call(group, &k);
    handles_launch launch = {.handle = k.handle, .call = call};
    void *arguments[] = {&launch};
    expar_launch_args args = EXPAR_LAUNCH_ARGS_INIT;
    args.function = k.run;
    args.blocks = 1;
    args.threads = HANDLES_THREADS;
    args.arguments = arguments;
    args.stream = s.stream;
    capture_begin(&s);
    CHECK_OK(expar_launch(group, &args, NULL));
    const cu_graph_exec graph = capture_end(&s);
    if (!graph) return;
    launch.call.rounds = 1; /* the graph has the arguments as they were */
    for (int round = 0; round < 4; round++) {
        pass_begin(group, &k, &call);
        CHECK_OK(CUDA_CALL(GraphLaunch, graph, s.stream));
        pass_end(&k, &s);
        pass_begin(group, &k, &call);
        CHECK_OK(expar_launch(group, &args, NULL));
        pass_end(&k, &s);
        CHECK(take_zeros(group, EXPAR_MEMORY_DEVICE, GROWTH) != NULL, "no memory");
    }
    CHECK_OK(CUDA_CALL(GraphExecDestroy, graph));
    CHECK_OK(expar_group_barrier(group));
    stream_close(&s);
    kernels_close(&k, group);
}

static void test_graphs_replay_kernels_with_handles(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, replay_launches);
    kind_run((ranks_plan){.ranks_per_node = 1}, 2, replay_launches);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

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

/* Set before the group has memory of GPUs: kernels change its words, or the owners do. */
static void test_calls_end_beside_a_grid_that_holds_all_sms(void **state)
{
    (void)state;
    static const char *const by[] = {"auto", "owner"};
    for (int i = 0; i < 2; i++) {
        bool by_owners = i == 1;
        setenv("EXPAR_DEVICE_ATOMICS", by[i], 1);
        const ranks_plan plan = {.kind = kind_of_ranks, .size = 2};
        assert_true(ranks_run(&plan, beside_a_grid, &by_owners));
    }
    unsetenv("EXPAR_DEVICE_ATOMICS");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_blocks_run_at_the_same_time),
        cmocka_unit_test(test_grids_that_do_not_fit_are_rejected),
        cmocka_unit_test(test_calls_end_beside_a_grid_that_holds_all_sms),
        cmocka_unit_test(test_rings_expect_commands_of_launches),
        cmocka_unit_test(test_graphs_replay_kernels_with_handles),
    };
    kind_read(argc, argv);
    num_gpus = gpus_count(1);
    if (num_gpus < 1) return GPUS_SKIP;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
