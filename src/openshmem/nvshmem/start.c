/* SPDX-License-Identifier: Apache-2.0 */
/* Start, end, order, and what inline functions ask for. */
#include "openshmem/nvshmem/nv.h"

#include <stdio.h>
#include <string.h>

nv_job nv;
const char exit_library[] = "nvshmem";

/* ---- start and end ----------------------------------------------------------------------------------------------- */

static void start_group(const expar_group_options *options)
{
    bool watches = false;
    expar_group *group = NULL;
    if (nv.group) return;
    exit_must(expar_group_create(options, &group));
    exit_must(exit_begin(group, &watches));
    if (!watches) exit_fail("no thread to be had");
    memset(&nv, 0, sizeof nv);
    exit_must(expar_team_get_world(group, &nv.teams[NVSHMEM_TEAM_WORLD]));
    exit_must(expar_team_get_shared(group, &nv.teams[NVSHMEM_TEAM_SHARED]));
    nv.teams[NVSHMEMX_TEAM_NODE] = nv.teams[NVSHMEM_TEAM_SHARED];
    exit_must(expar_team_get_rail(group, &nv.teams[NVSHMEMX_TEAM_SAME_MYPE_NODE]));
    nv.group = group;
    exit_must(expar_barrier_all(group));
}

void nvshmem_init(void)
{
    start_group(NULL);
}

void expar_nvshmem_start(const expar_unique_id *id, int rank, int size)
{
    expar_group_options options = EXPAR_GROUP_OPTIONS_INIT;
    options.id = id;
    options.rank = rank;
    options.size = size;
    start_group(&options);
}

void nvshmem_finalize(void)
{
    expar_group *group = nv.group;
    if (!group) return;
    nv_check_kernels();
    exit_must(expar_barrier_all(group));
    nv_modules_end();
    nv_registered_end();
    exit_end();
    nv.group = NULL;
    exit_must(expar_group_destroy(group));
}

void nvshmem_global_exit(int status)
{
    exit_all(status);
}

void nvshmem_info_get_version(int *major, int *minor)
{
    *major = NVSHMEM_MAJOR_VERSION;
    *minor = NVSHMEM_MINOR_VERSION;
}

void nvshmem_info_get_name(char *name)
{
    memcpy(name, NVSHMEM_VENDOR_STRING, sizeof NVSHMEM_VENDOR_STRING);
}

/* ---- for inline functions ---------------------------------------------------------------------------------------- */

expar_group *expar_nvshmem_group(void)
{
    return nv.group;
}

expar_team *expar_nvshmem_team(nvshmem_team_t team)
{
    return nv.group && team >= 0 && team < EXPAR_NV_TEAMS ? nv.teams[team] : NULL;
}

void expar_nvshmem_must(expar_status status)
{
    exit_must(status);
}

int expar_nvshmem_rejects(const char *what, int result)
{
    fprintf(stderr, "nvshmem: PE %d: %s\n", expar_group_rank(nv.group), what);
    return result;
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

void expar_nvshmem_quiet(void)
{
    nv_check_kernels();
    exit_must(expar_quiet(nv.group));
}

int expar_nvshmem_sync(nvshmem_team_t team)
{
    nv_check_kernels();
    exit_must(expar_team_sync(expar_nvshmem_team(team)));
    return 0;
}

int expar_nvshmem_barrier(nvshmem_team_t team)
{
    nv_check_kernels();
    exit_must(team == NVSHMEM_TEAM_WORLD ? expar_barrier_all(nv.group) : expar_team_barrier(expar_nvshmem_team(team)));
    return 0;
}
