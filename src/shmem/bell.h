/* SPDX-License-Identifier: Apache-2.0 */
/* The doorbell's two ends; how they meet is told at sym_bell. Private to shmem. */
#ifndef EXPAR_SHMEM_BELL_H
#define EXPAR_SHMEM_BELL_H

#include "shmem/sym.h"

/* Says that this thread is about to sleep. The caller looks at its condition once more before bell_sleep(…, *rings, …).
 */
void bell_arm(sym_bell *bell, uint32_t *rings);
/* Sleeps until the bell rings, at most limit_ns; returns at once when it rang since it was armed. local: all who ring
   it are threads of this process. */
void bell_sleep(sym_bell *bell, uint32_t rings, int64_t limit_ns, bool local);
/* Wakes all sleepers, if there are any. The caller has stored what they wait for. */
void bell_ring(sym_bell *bell, bool local);

#endif
