/* SPDX-License-Identifier: Apache-2.0 */
/* Holding a rank back between two steps of the protocol of low-latency mode. */
#ifndef TESTS_EP_LOW_LATENCY_HOLD_H
#define TESTS_EP_LOW_LATENCY_HOLD_H

#include <expar/low_latency.h>
#include <stdbool.h>
#include <stdint.h>

/* Calls `step` between any two steps of this rank on the buffer, on the thread that takes them; NULL: no more. */
void hold_install(expar_ll *ll, void (*step)(void *context), void *context);
/* Likewise, for a rank that is a process. Where kernels carry the calls out, the threads that pass their data to a
   network call it between any two of their steps. If all ranks are mapped, no thread calls it. */
void hold_install_posts(expar_ll *ll, void (*step)(void *context), void *context);
/* Likewise; where kernels carry the calls out it is called by a thread of its own, whenever this rank's kernel is seen
   to wait for another rank. NULL waits until that thread has gone. */
void hold_watch(expar_ll *ll, int32_t ranks, void (*step)(void *context), void *context);
/* The buffer goes on as if so many calls of each kind had been made: an even number, on all ranks, while none is
   open. */
void hold_skip(expar_ll *ll, uint64_t calls);
/* Rows that are together more than so many bytes bypass the cache. */
void hold_stream(expar_ll *ll, uint64_t bytes);

/* Whether the memory of a combine's tensors is looked at after the call: by kernels. */
bool hold_finds_late(void);
/* Whether a call that has begun goes on while its rank is stopped: kernels do. */
bool hold_goes_on(void);
/* Whether rank 0 waits in a call for its call before, of so many ranks: where it shares a GPU with another one. Without
   kernels each call waits for itself. */
bool hold_awaits_last(int32_t ranks);
/* Whether the rank's device still does what it is told: its memory, its stream. */
bool hold_device_serves(int32_t rank);
/* A word that changes as long as the rank's kernel waits for the source; without kernels it never does. Any thread of
   the rank's process. */
uint64_t hold_pulse(const expar_ll *ll, int32_t source);

/* How far the source has come in a clean, as it has told the rank `at`. Any rank may ask. */
typedef struct hold_stage {
    uint32_t attempt;
    uint32_t step; /* 0: its coming is being told; 1: it has come; from 2 on the number of its view */
} hold_stage;
hold_stage hold_clean_stage(const expar_ll *ll, int32_t at, int32_t source);
/* The attempt of the source that has come to a decision; 0: none yet. */
uint32_t hold_clean_decided(const expar_ll *ll, int32_t at, int32_t source);
/* The attempt in which the other one is in this rank's last decision; 0: it is not. */
uint32_t hold_clean_taken(const expar_ll *ll, int32_t other);

#endif
