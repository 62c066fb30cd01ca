/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the delays that kernels of litmus tests have made (link/device/delay.h). */
#ifndef TESTS_GPU_DELAYS_H
#define TESTS_GPU_DELAYS_H

#include <stdint.h>

/* From now on, counts the delays of each module as the library unloads it. Call before the first buffer is made. */
void delays_watch(void);
/* Delays of all modules that have been unloaded. Any thread. */
uint64_t delays_made(void);

#endif
