/* SPDX-License-Identifier: Apache-2.0 */
/* Where a buffer's epochs begin, for tests of what comes when they wrap. */
#ifndef TESTS_EP_HARNESS_EPOCHS_H
#define TESTS_EP_HARNESS_EPOCHS_H

#include "ep/harness/check.h"
#include <expar/ep.h>
#include <stdint.h>

/* The buffer's first call has the epoch after this one. Collective, before that call. */
bool epochs_begin_after(expar_ep *ep, uint32_t epoch);
/* The epoch of the last call. On a GPU: that is through. */
uint32_t epochs_last(const expar_ep *ep);

#endif
