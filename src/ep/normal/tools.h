/* SPDX-License-Identifier: Apache-2.0 */
/* ep, tools' part (times.c): what the tools of this repository see of a buffer beyond the public calls.
 *
 * Called by the benchmark and the demo; calls exec. */
#ifndef EXPAR_EP_NORMAL_TOOLS_H
#define EXPAR_EP_NORMAL_TOOLS_H

#include "exec/normal.h"
#include <expar/ep.h>

/* Where the time of a call went on this rank's GPU, span by span. */
typedef executor_times ep_times;
/* Switches it on or off for the calls from now on, of a buffer on a GPU; on also forgets the last one's times. */
expar_status ep_times_take(expar_ep *ep, bool on);
/* Gets the times of the last call, which must be done. False: there are none. */
bool ep_times_last(expar_ep *ep, ep_times *out);

/* Gets what this rank has passed to its network for the buffer, in all calls together: rows are records and sums. Any
   thread. All 0 if nothing goes by a network. */
link_sent ep_sent_so_far(const expar_ep *ep);

#endif
