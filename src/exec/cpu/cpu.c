/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU executor's object. */
#include "exec/cpu/cpu.h"

#include <stdlib.h>

static void cpu_destroy(executor *base)
{
    cpu_executor *self = (cpu_executor *)base;
    cpu_workers_destroy(self->workers);
    free(self->sources);
    free(self->cursors);
    free(self->rings);
    free(self);
}

static const executor_ops cpu_ops = {
    .name = "cpu",
    .layout = cpu_layout,
    .notify = cpu_notify,
    .dispatch = cpu_dispatch,
    .combine = cpu_combine,
    .expand = cpu_expand,
    .reduce = cpu_reduce,
    .destroy = cpu_destroy,
};

expar_status executor_cpu_create(sym *symmetric, const ep_shape *shape, uint64_t buffer, int32_t num_threads,
                                 executor **out)
{
    size_t ranks = (size_t)shape->ranks, channels = (size_t)shape->channels;
    cpu_executor *self = calloc(1, sizeof *self);
    if (!self) return error_set(EXPAR_ERR_MEMORY, "CPU executor: no memory");
    *self = (cpu_executor){.base.ops = &cpu_ops,
                           .sym = symmetric,
                           .shape = *shape,
                           .space = ep_space_of(shape),
                           .buffer = buffer,
                           .num_workers = num_threads};
    self->rings = calloc(ranks * channels, sizeof *self->rings);
    self->cursors = calloc(channels, sizeof *self->cursors);
    self->sources = calloc((size_t)num_threads * 2 * (ranks + 1), sizeof *self->sources);
    expar_status status = EXPAR_OK;
    if (!self->rings || !self->cursors || !self->sources)
        status = error_set(EXPAR_ERR_MEMORY, "CPU executor: no memory for %zu rings", ranks * channels);
    else
        status = cpu_workers_create(num_threads, &self->workers);
    if (status != EXPAR_OK) {
        cpu_destroy(&self->base);
        return status;
    }
    *out = &self->base;
    return EXPAR_OK;
}

void executor_cpu_delay(executor *base, executor_delay_fn delay, void *context)
{
    cpu_executor *self = (cpu_executor *)base;
    self->delay_context = context;
    self->delay = delay;
}
