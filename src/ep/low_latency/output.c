/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of results that the library gives: outputs as those of normal mode, with blocks of the executor's. */
#include "ep/low_latency/ll.h"

expar_status ll_output_make(expar_ll *ll, uint64_t bytes, expar_ep_output **out)
{
    const ep_origin origin = {
        .kind = executor_kind_of(ll->device.type), .device = ll->device, .group = ll->group->number};
    expar_ep_output *output = ep_output_make_of(&origin);
    if (!output) return error_set(EXPAR_ERR_MEMORY, "no memory for an output");
    *out = output;
    return ll->exec->ops->take(ll->exec, bytes, &output->block);
}
