/* SPDX-License-Identifier: Apache-2.0 */
/* Fence, quiet and the barrier of the whole group: the public calls of expar/rma.h. */
#include "pgas/device/handles.h"
#include "pgas/ops.h"
#include "pgas/stream/stream.h"

/* Ranks that are gone do not keep others from ordering and completing what they do with the living. */
static expar_status check_group(const char *call, expar_group *group)
{
    if (!group) return error_set(EXPAR_ERR_NULL, "%s: group is NULL", call);
    return sym_check_self(group->sym, call);
}

expar_status ops_fence(const char *call, expar_group *group)
{
    expar_status status = check_group(call, group);
    if (status == EXPAR_OK && (status = sym_fence(group->sym)) == EXPAR_OK) status = stream_failure_take(group, NULL);
    return error_prefix(status, "%s", call);
}

expar_status ops_quiet(const char *call, expar_group *group)
{
    expar_status status = check_group(call, group);
    if (status == EXPAR_OK && (status = sym_quiet(group->sym)) == EXPAR_OK) status = stream_failure_take(group, NULL);
    return error_prefix(status, "%s", call);
}

expar_status expar_fence(expar_group *group)
{
    return group_ended(group, ops_fence("expar_fence", group));
}

expar_status expar_quiet(expar_group *group)
{
    return group_ended(group, ops_quiet("expar_quiet", group));
}

/* The group stays while a thread is in it, even if another one abandons it meanwhile. */
static expar_status barrier_all(const char *call, expar_group *group)
{
    if (!group) return error_set(EXPAR_ERR_NULL, "%s: group is NULL", call);
    if (!group_enter(group, call)) return EXPAR_ERR_STATE;
    expar_status status = sym_barrier_after(group->sym, handles_quiet(call, group));
    if (status != EXPAR_OK) error_prefix(status, "%s", call);
    group_leave(group);
    return status;
}

expar_status expar_barrier_all(expar_group *group)
{
    return group_ended(group, barrier_all("expar_barrier_all", group));
}
