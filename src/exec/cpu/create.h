/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the CPU executor, which carries out steps by worker threads over mapped memory, and across nodes by links. The
 * rest of its interface is in exec/executor.h; everything else in this folder is private to it. */
#ifndef EXPAR_EXEC_CPU_CREATE_H
#define EXPAR_EXEC_CPU_CREATE_H

#include "exec/cpu/core/delay.h"
#include "exec/executor.h"

/* The buffer lies in the group's heap. create: EXPAR_ERR_UNSUPPORTED if a rank is not mapped here and no transport
   reaches it. */
extern const executor_kind executor_cpu;

/* For tests. A delay of NULL ends it. */
void executor_cpu_delay(executor *executor, executor_delay_fn delay, void *context);

#endif
