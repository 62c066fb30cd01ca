/* SPDX-License-Identifier: Apache-2.0 */
/* Runs kernels that test handles: on this rank's GPU, or as threads of the host. */
#ifndef TESTS_PGAS_DEVICE_RUNNER_H
#define TESTS_PGAS_DEVICE_RUNNER_H

#include "tests/cuda/kernels/handles.h"

#include "group/group.h"

#include <stdbool.h>

#define RUNNER_MOST_THREADS 64

/* The memory with which a rank runs kernels. All of it is there before any kernel runs, since making it
   may wait for kernels. */
typedef struct runner {
    expar_group *group;
    /* of a block */
    int32_t threads;
    /* 0: no delays */
    uint32_t seed;
    /* how the last kernel ended; memory that kernels write */
    uint64_t *wrong;
    int *status; /* [threads] */
    /* the same for kernels */
    uint64_t *wrong_address;
    int *status_address;
    void *target; /* the target's own */
} runner;

/* The target that this program tests. */
expar_device_target runner_target(void);
/* The kind of memory that the target uses most. */
expar_memory_kind runner_kind(void);
/* -1: the CPU has no GPU. */
int32_t runner_gpu(const expar_group *group);
/* False: not on this machine, which has been said. Call it before the ranks are made. */
bool runner_is_able(void);

bool runner_open(runner *r, expar_group *group, int32_t threads, uint32_t seed);
void runner_close(runner *r);
/* Starts a kernel, and waits for its end. The members of `call` for the host are the runner's. */
void runner_start(runner *r, const expar_device_handle *handle, const handles_call *call);
void runner_await(runner *r);
/* Adds 1 to that signal of the rank `count` times, on a stream of this rank's, and waits for it. Returns how many adds
   there were: 0 on the CPU. */
int runner_add_on_stream(runner *r, uint64_t *signal, int32_t pe, int count);
/* Memory that only this rank's kernels use, zero at first. */
void *runner_alloc(runner *r, size_t bytes);
void runner_free(runner *r, void *memory);

#endif
