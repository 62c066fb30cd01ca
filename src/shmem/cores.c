/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the ranks of this host have a core each. Launchers bind ranks, each to its own core or all to the same few,
 * so that only all the ranks' sets of cores together tell. */
#include "shmem/parts.h"

#include <sched.h>
#include <stdlib.h>

/* Empty where the machine has more cores than the set can name. */
static cpu_set_t own_cores(void)
{
    cpu_set_t cores;
    CPU_ZERO(&cores);
    if (sched_getaffinity(0, sizeof cores, &cores) != 0) CPU_ZERO(&cores);
    return cores;
}

/* Of the ranks of this host, all together. */
static int32_t count_cores(const boot *ctl, const cpu_set_t *all)
{
    const boot_place *mine = &ctl->places[ctl->rank];
    cpu_set_t together = all[ctl->rank];
    for (int32_t r = 0; r < ctl->size; r++)
        if (ctl->places[r].host == mine->host) CPU_OR(&together, &together, &all[r]);
    int32_t cores = CPU_COUNT(&together);
    return cores > 0 ? cores : mine->num_cores;
}

expar_status sym_cores_count(sym *self)
{
    boot *ctl = self->boot;
    const cpu_set_t own = own_cores();
    cpu_set_t *all = calloc((size_t)ctl->size, sizeof *all);
    if (!all) return error_set(EXPAR_ERR_MEMORY, "no memory for the cores of %d ranks", ctl->size);
    expar_status status = ctl->ops->allgather(ctl, &own, all, sizeof own);
    if (status == EXPAR_OK) self->host_cores = count_cores(ctl, all);
    if (status == EXPAR_OK) self->crowded = self->spin_ns == 0 || sym_outnumbers(self, 1);
    free(all);
    return status;
}

bool sym_outnumbers(const sym *self, int32_t threads)
{
    return self->crowded || (int64_t)threads * self->host_ranks > self->host_cores;
}
