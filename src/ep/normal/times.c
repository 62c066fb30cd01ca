/* SPDX-License-Identifier: Apache-2.0 */
/* Times and traffic of calls, for the tools. */
#include "ep/normal/normal.h"
#include "ep/normal/tools.h"

expar_status ep_times_take(expar_ep *ep, bool on)
{
    return ep->exec->ops->time(ep->exec, on);
}

bool ep_times_last(expar_ep *ep, ep_times *out)
{
    return ep->exec->ops->times(ep->exec, out);
}

link_sent ep_sent_so_far(const expar_ep *ep)
{
    return link_sent_of(ep->exec->sent);
}
