/* SPDX-License-Identifier: Apache-2.0 */
/* Modules and launches of the simulated driver. As in the real one a module is let in only when no kernel of its
 * context runs, and meanwhile the context's launches wait too. A kernel may wait for a rank whose load waits for that
 * kernel. It would end at its own deadline; the program is ended before that, with a message. */
#include "fake.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Generous: only a load that waits in vain meets it. */
#define LIMIT_MS 60000

static fake_controls controls;

/* Held by a load until it is done, by a launch until its kernel counts as running. */
#define GATE PTHREAD_MUTEX_INITIALIZER
static pthread_mutex_t gates[FAKE_MOST_GPUS] = {GATE, GATE, GATE, GATE, GATE, GATE, GATE, GATE};

fake_controls *fake_controls_of(void)
{
    return &controls;
}

static void await_kernels(int device)
{
    atomic_fetch_add(&controls.waiting, 1);
    for (int ms = 0; atomic_load(&controls.running[device]) > 0; ms++) {
        if (ms == LIMIT_MS) {
            fprintf(stderr, "fake driver: cuModuleLoadData waited %d s for kernels of GPU %d to end\n", LIMIT_MS / 1000,
                    device);
            abort();
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    atomic_fetch_sub(&controls.waiting, 1);
}

static bool is_rejected(void)
{
    int left = atomic_load(&controls.rejections);
    while (left > 0 && !atomic_compare_exchange_weak(&controls.rejections, &left, left - 1))
        ;
    return left > 0;
}

/* Delays stay on for the process: a module without them, loaded later, does not switch off those of other modules. */
static void read_code(const char *image)
{
    const char *delays = strstr(image, CODE_DELAYS);
    if (delays) kernels_delay((uint32_t)strtoul(delays + strlen(CODE_DELAYS), NULL, 10));
}

cu_result cuModuleLoadData(cu_module *module, const void *image)
{
    if (!has_context()) return INVALID_CONTEXT;
    int device = current_device();
    pthread_mutex_lock(&gates[device]);
    atomic_fetch_add(&controls.loads, 1);
    await_kernels(device);
    pthread_mutex_unlock(&gates[device]);
    if (!image || is_rejected()) return INVALID_VALUE;
    read_code(image);
    *module = calloc(1, 1);
    atomic_fetch_add(&controls.modules, 1);
    return CU_OK;
}
cu_result cuModuleUnload(cu_module module)
{
    if (!has_context()) return INVALID_CONTEXT;
    atomic_fetch_sub(&controls.modules, 1);
    free(module);
    return CU_OK;
}
cu_result cuModuleGetFunction(cu_function *function, cu_module module, const char *name)
{
    if (!has_context()) return INVALID_CONTEXT;
    if (!module || !name) return INVALID_VALUE;
    if (!strcmp(name, "change_word") && !setting("FAKE_CHANGES", 1)) return NOT_SUPPORTED;
    *function = kernel_named(name);
    return *function ? CU_OK : INVALID_VALUE;
}
cu_result cuFuncSetAttribute(cu_function function, int attribute, int value)
{
    if (!has_context()) return INVALID_CONTEXT;
    (void)function, (void)attribute, (void)value;
    return CU_OK;
}

/* Each SM holds so many threads, and no more shared memory than this GPU has. */
cu_result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, cu_function function, int threads,
                                                      size_t shared_bytes)
{
    if (!has_context()) return INVALID_CONTEXT;
    if (!function || threads <= 0) return INVALID_VALUE;
    *blocks = threads > 1024 || shared_bytes > 232448 ? 0 : threads > 128 ? 1 : 128 / threads;
    return CU_OK;
}

bool run_kernel(cu_function function, const kernel_grid *grid, void *arguments)
{
    int device = current_device();
    pthread_mutex_lock(&gates[device]);
    atomic_fetch_add(&controls.running[device], 1);
    pthread_mutex_unlock(&gates[device]);
    bool simulated = kernel_trial(function, grid, arguments);
    atomic_fetch_sub(&controls.running[device], 1);
    return simulated;
}

void note_ahead(void)
{
    atomic_fetch_add(&controls.ahead, 1);
}

void note_begun(void)
{
    atomic_fetch_add(&controls.begun, 1);
}

void note_other(bool outside)
{
    atomic_fetch_add(&controls.others, 1);
    if (outside) atomic_fetch_add(&controls.outside, 1);
}

bool note_look(const stream_lane *lane, unsigned long long mark)
{
    atomic_fetch_add(&controls.looks, 1);
    return !atomic_load(&controls.unfinished) && !queue_has(lane, mark);
}

static void count_launch(cu_function function, cu_stream stream, unsigned blocks)
{
    const char *name = (const char *)(void *)function; /* kernel_named */
    unsigned launch = (unsigned)atomic_fetch_add(&controls.launches, 1);
    atomic_store(&controls.streams[launch % FAKE_LAUNCHES], stream);
    atomic_store(&controls.blocks[launch % FAKE_LAUNCHES], blocks);
    if (strstr(name, "dispatch_impl")) atomic_fetch_add(&controls.dispatches, 1);
    if (strstr(name, "combine_impl")) atomic_fetch_add(&controls.combines, 1);
}

typedef struct launch {
    cu_function function;
    kernel_grid grid;
    _Alignas(16) char arguments[];
} launch;

static void run_launch(void *of)
{
    launch *one = of;
    run_kernel(one->function, &one->grid, one->arguments);
}

/* False: the stream has come to it. */
static bool put_aside(cu_stream stream, cu_function function, const kernel_grid *grid, const void *arguments)
{
    const size_t bytes = kernel_argument_bytes(function);
    const stream_lane lane = lane_of(stream);
    if (!bytes) return false;
    launch *one = malloc(sizeof *one + bytes);
    if (!one) abort();
    *one = (launch){.function = function, .grid = *grid};
    memcpy(one->arguments, arguments, bytes);
    bool put = queue_put(&lane, QUEUE_HELD, run_launch, one, sizeof *one + bytes);
    free(one);
    return put;
}

bool put_kernel(cu_stream stream, cu_function function, const kernel_grid *grid, void *arguments)
{
    static pthread_mutex_t default_stream = PTHREAD_MUTEX_INITIALIZER; /* held by the kernel that runs there */
    if (put_aside(stream, function, grid, arguments)) return true;
    if (!stream) pthread_mutex_lock(&default_stream);
    bool simulated = run_kernel(function, grid, arguments);
    if (!stream) pthread_mutex_unlock(&default_stream);
    return simulated;
}

cu_result cuLaunchKernelEx(const cu_launch_config *config, cu_function function, void **parameters, void **extra)
{
    if (!has_context()) return INVALID_CONTEXT;
    if (context_is_lost()) return ILLEGAL_ADDRESS;
    const unsigned long long capture = capture_of(config->stream);
    const kernel_grid grid = {config->grid_x, config->block_x, config->shared_bytes};
    (void)extra;
    if (!setting("FAKE_LAUNCH", 1)) return LAUNCH_FAILED;
    count_launch(function, config->stream, config->grid_x);
    if (capture) graph_add_kernel(capture, function, &grid, parameters[0]);
    if (capture && (!kernels_run_in_captures() || kernel_awaits_host(function))) return CU_OK;
    return put_kernel(config->stream, function, &grid, parameters[0]) ? CU_OK : LAUNCH_FAILED;
}
