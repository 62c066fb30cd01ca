/* SPDX-License-Identifier: Apache-2.0 */
/* Holding a rank back between two steps of the protocol of low-latency mode. */
#ifndef TESTS_EP_LOW_LATENCY_HOLD_H
#define TESTS_EP_LOW_LATENCY_HOLD_H

#include <expar/low_latency.h>
#include <stdint.h>

/* Calls `step` between any two steps of this rank on the buffer, on the thread that takes them; NULL: no more. */
void hold_install(expar_ll *ll, void (*step)(void *context), void *context);
/* The buffer goes on as if so many calls of each kind had been made: an even number, on all ranks, while none is
   open. */
void hold_skip(expar_ll *ll, uint64_t calls);
/* Rows that are together more than so many bytes bypass the cache. */
void hold_stream(expar_ll *ll, uint64_t bytes);

#endif
