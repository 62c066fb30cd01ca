/* SPDX-License-Identifier: Apache-2.0 */
/* Times of calls, for the benchmark. */
#include "ep/ep.h"
#include "ep/tools.h"

expar_status ep_times_take(expar_ep *ep, bool on)
{
    return ep->exec->ops->time(ep->exec, on);
}

bool ep_times_last(expar_ep *ep, ep_times *out)
{
    return ep->exec->ops->times(ep->exec, out);
}
