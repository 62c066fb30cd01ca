/* SPDX-License-Identifier: Apache-2.0 */
/* Making the CPU's executor of low-latency calls, which threads of the rank carry out over mapped memory. What it is
 * beside that stands in exec/low_latency.h; everything else in this folder is private to it. */
#ifndef EXPAR_EXEC_CPU_LOW_LATENCY_CREATE_H
#define EXPAR_EXEC_CPU_LOW_LATENCY_CREATE_H

#include "exec/cpu/core/delay.h"
#include "exec/low_latency.h"

/* See ll_create_fn. */
expar_status ll_executor_cpu_create(const ll_plan *plan, executor **out);

/* As executor_cpu_delay: tests hold a rank back between any two steps of the protocol. */
void ll_executor_cpu_delay(executor *executor, executor_delay_fn delay, void *context);
/* Tests go on as if so many calls of each kind had been made, on all ranks alike, while none is open. An even number.
   */
void ll_executor_cpu_skip(executor *executor, uint64_t calls);
/* Tests have rows bypass the cache that are together more than so many bytes, instead of cpu.ll_stream; while none is
   open. */
void ll_executor_cpu_stream(executor *executor, uint64_t bytes);

#endif
