/* SPDX-License-Identifier: Apache-2.0 */
/* A pool of threads that run one function side by side, for this folder and those in it. */
#ifndef EXPAR_EXEC_CPU_CORE_WORKERS_H
#define EXPAR_EXEC_CPU_CORE_WORKERS_H

#include <expar/status.h>
#include <stdint.h>

#define CPU_MOST_WORKERS 1024

typedef struct cpu_workers cpu_workers;

/* One worker's share; `worker` counts from 0, which is the calling thread. */
typedef expar_status (*cpu_share_fn)(void *context, int32_t worker);
expar_status cpu_workers_create(int32_t num_workers, cpu_workers **out);
void cpu_workers_destroy(cpu_workers *workers);
/* Runs share on the first `active` workers of the pool, and waits for them. Returns the status of the first that
   failed, if any, with its error text. */
expar_status cpu_workers_run(cpu_workers *workers, int32_t active, cpu_share_fn share, void *context);
/* Starts more workers, between two runs; returns how many of `wanted` there are then. */
int32_t cpu_workers_grow(cpu_workers *workers, int32_t wanted);

#endif
