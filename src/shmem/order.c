/* SPDX-License-Identifier: Apache-2.0 */
/* Fence, quiet and the barrier of the whole group: the public calls of expar/rma.h. */
#include "shmem/ops.h"

static expar_status check_group(const char *call, expar_group *group)
{
    if (!group) return error_set(EXPAR_ERR_NULL, "%s: group is NULL", call);
    return sym_check(group->sym, call);
}

expar_status ops_fence(const char *call, expar_group *group)
{
    expar_status status = check_group(call, group);
    return status == EXPAR_OK ? sym_fence(group->sym) : status;
}

expar_status ops_quiet(const char *call, expar_group *group)
{
    expar_status status = check_group(call, group);
    return status == EXPAR_OK ? sym_quiet(group->sym) : status;
}

expar_status expar_fence(expar_group *group)
{
    return ops_fence("expar_fence", group);
}

expar_status expar_quiet(expar_group *group)
{
    return ops_quiet("expar_quiet", group);
}

expar_status expar_barrier_all(expar_group *group)
{
    expar_status status = check_group("expar_barrier_all", group);
    if (status != EXPAR_OK) return status;
    status = sym_barrier(group->sym);
    return status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "expar_barrier_all");
}
