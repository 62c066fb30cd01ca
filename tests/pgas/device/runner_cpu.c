/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels as threads of the host. */
static void delay_at_random(void);
/* Before the header, whose functions call it. */
#define EXPAR_DEVICE_DELAY() delay_at_random()
#include "tests/cuda/kernels/handles_bodies.h"

#include "ep/harness/check.h"
#include "pgas/device/runner.h"

#include <pthread.h>
#include <stdlib.h>

/* The seed of this thread's delays; 0: none. */
static _Thread_local uint32_t delay_seed;

/* Gives the core away at random, or sleeps. */
static void delay_at_random(void)
{
    if (!delay_seed) return;
    delay_seed = handles_mix(delay_seed) | 1;
    if (delay_seed % 256 < 40) sched_yield();
    if (delay_seed % 256 == 255) nanosleep(&(struct timespec){.tv_nsec = delay_seed >> 8 & 0xffff}, NULL);
}

typedef struct thread_of_block {
    struct cpu_kernel *kernel;
    pthread_t id;
    uint32_t index;
} thread_of_block;

typedef struct cpu_kernel {
    runner *owner;
    handles_launch launch;
    expar_device_block block;
    thread_of_block threads[RUNNER_MOST_THREADS];
} cpu_kernel;

expar_device_target runner_target(void)
{
    return EXPAR_DEVICE_CPU;
}

expar_memory_kind runner_kind(void)
{
    return EXPAR_MEMORY_HOST;
}

int32_t runner_gpu(const expar_group *group)
{
    (void)group;
    return -1;
}

bool runner_is_able(void)
{
    return true;
}

bool runner_open(runner *r, expar_group *group, int32_t threads, uint32_t seed)
{
    *r = (runner){.group = group, .threads = threads, .seed = seed};
    r->wrong = r->wrong_address = calloc(1, sizeof *r->wrong);
    r->status = r->status_address = calloc(RUNNER_MOST_THREADS, sizeof *r->status);
    r->target = calloc(1, sizeof(cpu_kernel));
    return CHECK(r->wrong && r->status && r->target, "no memory");
}

void runner_close(runner *r)
{
    free(r->wrong);
    free(r->status);
    free(r->target);
}

static void *thread_main(void *argument)
{
    thread_of_block *self = argument;
    cpu_kernel *kernel = self->kernel;
    const uint32_t seed = kernel->owner->seed;
    delay_seed = seed ? handles_mix(seed + self->index * 77 + (uint32_t)kernel->launch.handle.rank) | 1 : 0;
    expar_device_thread_begin(&kernel->block, self->index);
    body_run(&kernel->launch.handle, &kernel->launch.call);
    expar_device_thread_end();
    return NULL;
}

void runner_start(runner *r, const expar_device_handle *handle, const handles_call *call)
{
    cpu_kernel *kernel = r->target;
    *r->wrong = 0;
    kernel->owner = r;
    kernel->launch = (handles_launch){.handle = *handle, .call = *call};
    kernel->launch.call.wrong = r->wrong;
    kernel->launch.call.status = r->status;
    expar_device_block_begin(&kernel->block, (uint32_t)r->threads);
    for (int32_t i = 0; i < r->threads; i++) {
        kernel->threads[i] = (thread_of_block){.kernel = kernel, .index = (uint32_t)i};
        if (pthread_create(&kernel->threads[i].id, NULL, thread_main, &kernel->threads[i])) abort();
    }
}

void runner_await(runner *r)
{
    cpu_kernel *kernel = r->target;
    for (int32_t i = 0; i < r->threads; i++)
        pthread_join(kernel->threads[i].id, NULL);
}

int runner_add_on_stream(runner *r, uint64_t *signal, int32_t pe, int count)
{
    (void)r, (void)signal, (void)pe, (void)count;
    return 0;
}

void *runner_alloc(runner *r, size_t bytes)
{
    (void)r;
    return calloc(1, bytes);
}

void runner_free(runner *r, void *memory)
{
    (void)r;
    free(memory);
}
