/* SPDX-License-Identifier: Apache-2.0 */
/* The MoE layer on one rank that holds all experts: what the parallel one is compared with. */
#include "moe.h"

#include <stdlib.h>
#include <string.h>

typedef struct moe_local {
    moe base;
    const model *m;
    int32_t num_owners;
    float *part; /* [part_rows][D] the sum of one owner's experts */
    int64_t part_rows;
} moe_local;

static bool reserve(moe_local *self, int64_t rows, demo_error *error)
{
    if (rows <= self->part_rows) return true;
    free(self->part);
    self->part_rows = 0;
    self->part = demo_calloc(error, (size_t)(rows * self->m->sizes.hidden), sizeof(float));
    if (!self->part) return false;
    self->part_rows = rows;
    return true;
}

static bool moe_local_run(moe *base, int32_t layer, const routed_rows *rows, float *y, demo_error *error)
{
    moe_local *self = (moe_local *)base;
    if (!reserve(self, rows->count, error)) return false;
    compute *c = self->m->compute;
    int32_t share = self->m->sizes.experts / self->num_owners;
    int64_t values = rows->count * self->m->sizes.hidden;
    memset(y, 0, (size_t)values * sizeof *y);
    for (int32_t owner = 0; owner < self->num_owners; owner++) {
        expert_weights w = model_experts(self->m, layer);
        w.first = owner * share;
        w.count = share;
        c->ops->run_experts(c, &w, rows, self->part);
        c->ops->add(c, y, self->part, values);
    }
    return true;
}

static void moe_local_free(moe *base)
{
    moe_local *self = (moe_local *)base;
    free(self->part);
    free(self);
}

bool moe_local_create(const model *m, int32_t num_owners, moe **out, demo_error *error)
{
    if (m->num_local_experts != m->sizes.experts || num_owners < 1 || m->sizes.experts % num_owners)
        return demo_fail(error, "the reference needs all %d experts (has %d), shared evenly by %d owners",
                         m->sizes.experts, m->num_local_experts, num_owners);
    moe_local *self = demo_calloc(error, 1, sizeof *self);
    if (!self) return false;
    self->base = (moe){.run = moe_local_run, .free = moe_local_free};
    self->m = m;
    self->num_owners = num_owners;
    *out = &self->base;
    return true;
}
