/* SPDX-License-Identifier: Apache-2.0 */
/* The MoE layer on one rank that holds all experts. The parallel layer is compared with it. */
#include "moe.h"

#include <stdlib.h>
#include <string.h>

typedef struct moe_local {
    moe base;
    const model *m;
    int32_t num_owners, num_nodes;
    float *part;     /* [part_rows][D] the sum of one owner's experts */
    float *node_sum; /* [part_rows][D] the sum of a node's owners */
    int64_t part_rows;
} moe_local;

static bool reserve(moe_local *self, int64_t rows, demo_error *error)
{
    if (rows <= self->part_rows) return true;
    free(self->part);
    free(self->node_sum);
    self->part_rows = 0;
    self->part = demo_calloc(error, (size_t)(rows * self->m->sizes.hidden), sizeof(float));
    self->node_sum = demo_calloc(error, (size_t)(rows * self->m->sizes.hidden), sizeof(float));
    if (!self->part || !self->node_sum) return false;
    self->part_rows = rows;
    return true;
}

/* sum = the sum of the parts of `count` owners, starting from +0. */
static void add_owners(moe_local *self, int32_t layer, const routed_rows *rows, int32_t first, int32_t count,
                       float *sum)
{
    compute *c = self->m->compute;
    const int32_t share = self->m->sizes.experts / self->num_owners;
    const int64_t values = rows->count * self->m->sizes.hidden;
    memset(sum, 0, (size_t)values * sizeof *sum);
    for (int32_t owner = first; owner < first + count; owner++) {
        expert_weights w = model_experts(self->m, layer);
        w.first = owner * share;
        w.count = share;
        c->ops->run_experts(c, &w, rows, self->part);
        c->ops->add(c, sum, self->part, values);
    }
}

static bool moe_local_run(moe *base, int32_t layer, const routed_rows *rows, float *y, demo_error *error)
{
    moe_local *self = (moe_local *)base;
    if (!reserve(self, rows->count, error)) return false;
    compute *c = self->m->compute;
    const int64_t values = rows->count * self->m->sizes.hidden;
    const int32_t each = self->num_owners / self->num_nodes;
    if (self->num_nodes == 1) {
        add_owners(self, layer, rows, 0, self->num_owners, y);
        return true;
    }
    memset(y, 0, (size_t)values * sizeof *y);
    for (int32_t node = 0; node < self->num_nodes; node++) {
        add_owners(self, layer, rows, node * each, each, self->node_sum);
        c->ops->add(c, y, self->node_sum, values);
    }
    return true;
}

static void moe_local_free(moe *base)
{
    moe_local *self = (moe_local *)base;
    free(self->part);
    free(self->node_sum);
    free(self);
}

bool moe_local_create(const model *m, int32_t num_owners, int32_t num_nodes, moe **out, demo_error *error)
{
    if (m->num_local_experts != m->sizes.experts || num_owners < 1 || m->sizes.experts % num_owners || num_nodes < 1 ||
        num_owners % num_nodes)
        return demo_fail(error, "the reference needs all %d experts (has %d), shared evenly by %d owners on %d nodes",
                         m->sizes.experts, m->num_local_experts, num_owners, num_nodes);
    moe_local *self = demo_calloc(error, 1, sizeof *self);
    if (!self) return false;
    self->base = (moe){.run = moe_local_run, .free = moe_local_free};
    self->m = m;
    self->num_owners = num_owners;
    self->num_nodes = num_nodes;
    *out = &self->base;
    return true;
}
