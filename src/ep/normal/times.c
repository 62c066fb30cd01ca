/* SPDX-License-Identifier: Apache-2.0 */
/* Times and traffic of calls, for the tools. */
#include "ep/normal/normal.h"
#include "ep/normal/tools.h"

expar_status ep_times_take(expar_ep *ep, bool on)
{
    return ep->base.exec->ops->time(ep->base.exec, on);
}

bool ep_times_last(expar_ep *ep, ep_times *out)
{
    return ep->base.exec->normal->times(ep->base.exec, out);
}

link_sent ep_sent_so_far(const expar_ep *ep)
{
    return link_sent_of(ep->base.exec->sent);
}
