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

static bool more_ranks_than_cores(const boot *ctl, const cpu_set_t *all)
{
    const boot_place *mine = &ctl->places[ctl->rank];
    cpu_set_t together = all[ctl->rank];
    int32_t neighbours = 0;
    for (int32_t r = 0; r < ctl->size; r++) {
        if (ctl->places[r].host != mine->host) continue;
        CPU_OR(&together, &together, &all[r]);
        neighbours++;
    }
    int32_t cores = CPU_COUNT(&together);
    return neighbours > (cores > 0 ? cores : mine->num_cores);
}

expar_status sym_cores_count(sym *self)
{
    boot *ctl = self->boot;
    const cpu_set_t own = own_cores();
    cpu_set_t *all = calloc((size_t)ctl->size, sizeof *all);
    if (!all) return error_set(EXPAR_ERR_MEMORY, "no memory for the cores of %d ranks", ctl->size);
    expar_status status = ctl->ops->allgather(ctl, &own, all, sizeof own);
    if (status == EXPAR_OK) self->crowded = more_ranks_than_cores(ctl, all);
    free(all);
    return status;
}
