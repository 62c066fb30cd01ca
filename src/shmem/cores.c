/* SPDX-License-Identifier: Apache-2.0 */
/* Finds whether each rank of this host has a core. Launchers bind each rank to its own core, or all ranks to the same
 * few, so only the core sets of all ranks together tell. Hosts may be containers of one machine, which share its cores
 * unless each has a set of its own. So the machine's ranks are counted as well. */
#include "shmem/parts.h"

#include <sched.h>
#include <stdlib.h>

/* Returns an empty set if the machine has more cores than the set can name. */
static cpu_set_t own_cores(void)
{
    cpu_set_t cores;
    CPU_ZERO(&cores);
    if (sched_getaffinity(0, sizeof cores, &cores) != 0) CPU_ZERO(&cores);
    return cores;
}

typedef bool shares_fn(const boot_place *a, const boot_place *b);

static bool shares_host(const boot_place *a, const boot_place *b)
{
    return a->host == b->host;
}

static bool shares_machine(const boot_place *a, const boot_place *b)
{
    return a->machine == b->machine;
}

/* Counts the cores of the ranks that share this rank's place, all together. */
static int32_t count_cores(const boot *ctl, const cpu_set_t *all, shares_fn *shares)
{
    const boot_place *mine = &ctl->places[ctl->rank];
    cpu_set_t together = all[ctl->rank];
    for (int32_t r = 0; r < ctl->size; r++)
        if (shares(mine, &ctl->places[r])) CPU_OR(&together, &together, &all[r]);
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
    if (status == EXPAR_OK) {
        self->host_cores = count_cores(ctl, all, shares_host);
        self->machine_cores = count_cores(ctl, all, shares_machine);
        self->crowded = self->spin_ns == 0 || sym_outnumbers(self, 1);
    }
    free(all);
    return status;
}

int32_t sym_cores_each(const sym *self)
{
    const int32_t of_host = self->host_cores / self->host_ranks, of_machine = self->machine_cores / self->machine_ranks;
    if (self->crowded) return 0;
    return of_host < of_machine ? of_host : of_machine;
}

bool sym_outnumbers(const sym *self, int32_t threads)
{
    return self->crowded || (int64_t)threads * self->host_ranks > self->host_cores ||
           (int64_t)threads * self->machine_ranks > self->machine_cores;
}
