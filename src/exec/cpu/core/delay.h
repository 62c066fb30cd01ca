/* SPDX-License-Identifier: Apache-2.0 */
/* Tests use this to delay a rank between any two steps of the protocols, to show that order alone makes them right. It
 * serves both modes of the CPU's executors. */
#ifndef EXPAR_EXEC_CPU_CORE_DELAY_H
#define EXPAR_EXEC_CPU_CORE_DELAY_H

/* Called from any of the rank's threads. */
typedef void (*executor_delay_fn)(void *context);

#endif
