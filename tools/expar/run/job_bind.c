/* SPDX-License-Identifier: Apache-2.0 */
/* Binding ranks to cores, round robin over the cores that this process may use. */
#include "job.h"
#include <hwloc.h>
#include <hwloc/glibc-sched.h>
#include <stdio.h>
#include <stdlib.h>

static bool fill_plan(hwloc_topology_t topology, int num_ranks, cpu_set_t *plan)
{
    int num_cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
    hwloc_obj_type_t type = num_cores > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    int count = hwloc_get_nbobjs_by_type(topology, type);
    for (int rank = 0; rank < num_ranks && count > 0; rank++) {
        hwloc_obj_t core = hwloc_get_obj_by_type(topology, type, (unsigned)(rank % count));
        if (hwloc_cpuset_to_glibc_sched_affinity(topology, core->cpuset, &plan[rank], sizeof plan[rank])) return false;
    }
    return count > 0;
}

cpu_set_t *job_bind_plan(const struct job *job)
{
    cpu_set_t *plan = calloc((size_t)job->num_ranks, sizeof *plan);
    hwloc_topology_t topology;
    if (!plan || hwloc_topology_init(&topology)) {
        free(plan);
        fprintf(stderr, "%s: out of memory\n", job->who);
        return NULL;
    }
    bool filled = hwloc_topology_load(topology) == 0 && fill_plan(topology, job->num_ranks, plan);
    hwloc_topology_destroy(topology);
    if (filled) return plan;
    fprintf(stderr, "%s: --bind: hwloc cannot tell the cores of this machine\n", job->who);
    free(plan);
    return NULL;
}
