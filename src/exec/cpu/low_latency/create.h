/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the CPU's executor of low-latency calls. Threads of the rank carry them out over mapped memory. The rest of its
 * interface is in exec/low_latency.h; everything else in this folder is private to it. */
#ifndef EXPAR_EXEC_CPU_LOW_LATENCY_CREATE_H
#define EXPAR_EXEC_CPU_LOW_LATENCY_CREATE_H

#include "exec/cpu/core/delay.h"
#include "exec/low_latency.h"

/* See ll_create_fn. */
expar_status ll_executor_cpu_create(const ll_plan *plan, executor **out);

/* Like executor_cpu_delay: tests delay a rank between any two steps of the protocol. */
void ll_executor_cpu_delay(executor *executor, executor_delay_fn delay, void *context);
/* Lets tests go on as if so many calls of each kind had been made, on all ranks alike, while no call is open. `calls`
   is even. */
void ll_executor_cpu_skip(executor *executor, uint64_t calls);
/* Lets tests make rows bypass the cache if they are together more than so many bytes, instead of cpu.ll_stream. Call it
   while no call is open. */
void ll_executor_cpu_stream(executor *executor, uint64_t bytes);

#endif
