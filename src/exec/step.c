/* SPDX-License-Identifier: Apache-2.0 */
/* Code for steps that all executors share. */
#include "exec/step.h"

#include <stdio.h>
#include <stdlib.h>

void ep_routing_free(ep_routing *routing)
{
    if (routing->rails) free((void *)atomic_load_explicit(&routing->rails->masks, memory_order_relaxed));
    free(routing->rails);
    free(routing->arrays);
    mem_block_release(routing->own);
}

ep_refusal ep_refusal_of(expar_status status)
{
    ep_refusal refusal = {.status = (int32_t)status};
    snprintf(refusal.text, sizeof refusal.text, "%.*s", (int)sizeof refusal.text - 1, expar_last_error());
    return refusal;
}
