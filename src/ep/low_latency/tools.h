/* SPDX-License-Identifier: Apache-2.0 */
/* ep/low_latency, tools' part (times.c): what the tools of this repository see of a low-latency buffer beyond the
 * public calls.
 *
 * Called by the benchmark and the demo; calls exec. */
#ifndef EXPAR_EP_LOW_LATENCY_TOOLS_H
#define EXPAR_EP_LOW_LATENCY_TOOLS_H

#include "exec/low_latency.h"
#include <expar/low_latency.h>

/* Has the kernels of calls from now on read clocks, or none, of a buffer on a GPU; on also forgets the last one's. */
expar_status ll_times_take(expar_ll *ll, bool on);
/* Gets the times of the kernel of the last call or hook, which must be done. False: there are none. */
bool ll_times_last(expar_ll *ll, ll_times *out);
/* Gets what this rank has passed to its network for the buffer, in all calls together: rows are messages, and rows of
   combines. Any thread. All 0 if nothing goes by a network. */
link_sent ll_sent_so_far(const expar_ll *ll);

#endif
