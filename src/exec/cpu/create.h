/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the CPU executor, which carries out steps by worker threads over mapped memory, and across nodes by links. The
 * rest of its interface is in exec/executor.h; everything else in this folder is private to it. */
#ifndef EXPAR_EXEC_CPU_CREATE_H
#define EXPAR_EXEC_CPU_CREATE_H

#include "exec/cpu/core/carrier.h"
#include "exec/cpu/core/delay.h"
#include "exec/executor.h"
#include "exec/step.h"

/* The buffer lies in the group's heap. create: EXPAR_ERR_UNSUPPORTED if a rank is not mapped here and no transport
   reaches it. */
extern const executor_kind executor_cpu;

/* Gives the memory of this rank's that a carrier must reach, which stays where it is. False: all ranks map each other,
   and the buffer has no use for a carrier. */
bool executor_cpu_rail_memory(const executor *executor, void **data, uint64_t *bytes);
/* Has the carrier move the payload of rows, in calls whose steps are `carried` on all ranks of the node. Then x, y and
   biases of a step, and x of its arrival, may lie where only the carrier reaches them. It is used until the executor is
   destroyed. Comes before any call. */
void executor_cpu_carry(executor *executor, cpu_carrier *carrier);
/* Says whether a step of this form may be carried; all ranks of a node that have carriers get the same answer. A send
   takes `carried` back if it is not set on all ranks of the node. The step that receives must then have mode
   EP_MODE_QUEUE, and find everything where the host reaches it. back: the step is that of a combine. */
bool executor_cpu_carries(const executor *executor, const ep_routing *routing, const ep_form *form, int64_t row_bytes,
                          bool back);
/* Says so of a step of this rank alone that adds up to topk rows. */
bool executor_cpu_carries_sums(const executor *executor, int32_t topk);

/* Graphs have calls of the buffer from now on. So waits no longer say which call it is: hosts do not know how often
   graphs run. */
void executor_cpu_note_graphs(executor *executor);

/* For tests. A delay of NULL ends it. */
void executor_cpu_delay(executor *executor, executor_delay_fn delay, void *context);

#endif
