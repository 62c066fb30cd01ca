/* SPDX-License-Identifier: Apache-2.0 */
/* Processors, caches, NUMA nodes (by hwloc), and the launchers in PATH. */
#include "info.h"
#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static json_t *numa_nodes(hwloc_topology_t topology)
{
    json_t *list = json_array();
    hwloc_obj_t node = NULL;
    while ((node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)))
        json_array_append_new(list, json_integer((json_int_t)node->attr->numanode.local_memory));
    return list;
}

static json_t *caches(hwloc_topology_t topology)
{
    static const hwloc_obj_type_t types[] = {HWLOC_OBJ_L1CACHE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L3CACHE,
                                             HWLOC_OBJ_L4CACHE};
    json_t *list = json_array();
    for (int i = 0; i < 4; i++) {
        int count = hwloc_get_nbobjs_by_type(topology, types[i]);
        if (count < 1) continue;
        hwloc_obj_t first = hwloc_get_obj_by_type(topology, types[i], 0);
        json_array_append_new(list, json_pack("{s:i, s:I, s:i}", "level", i + 1, "bytes",
                                              (json_int_t)first->attr->cache.size, "count", count));
    }
    return list;
}

static const char *model_name(hwloc_topology_t topology)
{
    hwloc_obj_t package = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
    const char *model = package ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;
    return model ? model : "unknown";
}

static json_t *cpu_of(hwloc_topology_t topology)
{
    int usable = hwloc_bitmap_weight(hwloc_topology_get_allowed_cpuset(topology));
    hwloc_bitmap_t mine = hwloc_bitmap_alloc();
    if (mine && hwloc_get_cpubind(topology, mine, HWLOC_CPUBIND_PROCESS) == 0) usable = hwloc_bitmap_weight(mine);
    hwloc_bitmap_free(mine);
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:o, s:o}", "model", model_name(topology), "packages",
                     hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PACKAGE), "cores",
                     hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE), "threads",
                     hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU), "usable_threads", usable, "numa_nodes",
                     numa_nodes(topology), "caches", caches(topology));
}

json_t *info_cpu(void)
{
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology)) return NULL;
    json_t *cpu = hwloc_topology_load(topology) == 0 ? cpu_of(topology) : NULL;
    hwloc_topology_destroy(topology);
    return cpu;
}

/* Returns the file that a shell would run for `name`; NULL when there is none. */
static const char *find_in_path(const char *name, char *path, size_t bytes)
{
    const char *folder = getenv("PATH");
    while (folder && *folder) {
        size_t length = strcspn(folder, ":");
        snprintf(path, bytes, "%.*s/%s", (int)length, folder, name);
        if (access(path, X_OK) == 0) return path;
        folder += length + (folder[length] == ':');
    }
    return NULL;
}

json_t *info_launchers(void)
{
    static const char *const names[] = {"mpirun", "srun", "torchrun"};
    json_t *list = json_pack("[{s:s, s:s}]", "name", "expar run", "path", "built in");
    for (size_t i = 0; list && i < sizeof names / sizeof *names; i++) {
        char path[4096];
        json_array_append_new(
            list, json_pack("{s:s, s:s?}", "name", names[i], "path", find_in_path(names[i], path, sizeof path)));
    }
    return list;
}
