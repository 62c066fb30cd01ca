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

static int64_t greater(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

ep_shape ep_shape_with(const ep_shape *shape, const ep_grow_step *step)
{
    ep_shape with = *shape;
    with.row_bytes = greater(shape->row_bytes, step->row_bytes);
    with.scales = (int32_t)greater(shape->scales, step->form.scales);
    with.topk = (int32_t)greater(shape->topk, step->form.topk);
    with.local_experts = (int32_t)greater(shape->local_experts, step->form.experts / shape->ranks);
    return with;
}

ep_rejection ep_rejection_of(expar_status status)
{
    ep_rejection rejection = {.status = (int32_t)status};
    snprintf(rejection.text, sizeof rejection.text, "%.*s", (int)sizeof rejection.text - 1, expar_last_error());
    return rejection;
}
