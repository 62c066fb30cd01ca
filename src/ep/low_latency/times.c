/* SPDX-License-Identifier: Apache-2.0 */
/* Times and traffic of calls, for the tools. */
#include "ep/low_latency/ll.h"
#include "ep/low_latency/tools.h"

expar_status ll_times_take(expar_ll *ll, bool on)
{
    return ll->base.exec->ops->time(ll->base.exec, on);
}

bool ll_times_last(expar_ll *ll, ll_times *out)
{
    return ll->base.exec->ll->times(ll->base.exec, out);
}

link_sent ll_sent_so_far(const expar_ll *ll)
{
    executor *exec = ll->base.exec;
    if (exec->ll->count_sent) exec->ll->count_sent(exec);
    return link_sent_of(exec->sent);
}
