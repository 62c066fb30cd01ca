/* SPDX-License-Identifier: Apache-2.0 */
/* Facts of a group, and its set-up collectives over the control sockets. */
#include "group/parts.h"

int32_t expar_group_rank(const expar_group *group)
{
    return group ? group->rank : -1;
}

int32_t expar_group_size(const expar_group *group)
{
    return group ? group->size : 0;
}

int32_t expar_group_num_nodes(const expar_group *group)
{
    return group ? group->num_nodes : 0;
}

int32_t expar_group_ranks_per_node(const expar_group *group)
{
    return group ? group->ranks_per_node : 0;
}

int32_t expar_group_node(const expar_group *group)
{
    return group ? group->nodes[group->rank] : 0;
}

int32_t expar_group_local_rank(const expar_group *group)
{
    return group ? group->rank % group->ranks_per_node : 0;
}

/* This rank rejects the call, so it does not come; the others may be in it. */
static expar_status control_reject(const expar_group *group, expar_status status)
{
    const boot_topic topic = {.kind = BOOT_KIND_CONTROL};
    boot_note_rejected(group->boot, &topic, status, expar_last_error());
    return status;
}

/* On success the group has been entered. part, all: must not be NULL if there are bytes. */
static expar_status control_begin(const char *call, expar_group *group, const void *part, const char *part_name,
                                  const void *all, size_t bytes)
{
    if (!group) return error_set(EXPAR_ERR_NULL, "%s: group is NULL", call);
    if (bytes > 0 && !part) return control_reject(group, error_set(EXPAR_ERR_NULL, "%s: %s is NULL", call, part_name));
    if (bytes > 0 && !all) return control_reject(group, error_set(EXPAR_ERR_NULL, "%s: all is NULL", call));
    if (bytes > EXPAR_CONTROL_MAX_BYTES)
        return control_reject(group, error_set(EXPAR_ERR_ARGUMENT, "%s: bytes %zu, expected at most %d", call, bytes,
                                               EXPAR_CONTROL_MAX_BYTES));
    if (!group_enter(group, call)) return EXPAR_ERR_STATE;
    expar_status status = sym_check_come(group->sym, call);
    if (status != EXPAR_OK) group_leave(group);
    return status;
}

static expar_status control_ended(expar_group *group, expar_status status)
{
    group_ended(group, status);
    group_leave(group);
    return status;
}

static expar_status collective_ended(const char *call, expar_group *group, expar_status status)
{
    group->boot->call = NULL;
    return control_ended(group, status == EXPAR_OK ? EXPAR_OK : sym_out_of_step(group->sym, call, status));
}

expar_status expar_group_allgather(expar_group *group, const void *mine, void *all, size_t bytes)
{
    static const char call[] = "expar_group_allgather";
    expar_status status = control_begin(call, group, mine, "mine", all, bytes);
    if (status != EXPAR_OK) return group_ended(group, status);
    group->boot->call = call;
    status = group->boot->ops->allgather(group->boot, mine, all, bytes);
    return collective_ended(call, group, status);
}

expar_status expar_group_broadcast(expar_group *group, void *data, size_t bytes, int32_t root)
{
    static const char call[] = "expar_group_broadcast";
    expar_status status = control_begin(call, group, data, "data", data, bytes);
    if (status != EXPAR_OK) return group_ended(group, status);
    if (root < 0 || root >= group->size)
        return control_ended(group, control_reject(group, error_set(EXPAR_ERR_RANGE, "%s: root %d, expected 0 to %d",
                                                                    call, root, group->size - 1)));
    group->boot->call = call;
    status = group->boot->ops->broadcast(group->boot, data, bytes, root);
    return collective_ended(call, group, status);
}

expar_status expar_group_barrier(expar_group *group)
{
    static const char call[] = "expar_group_barrier";
    expar_status status = control_begin(call, group, NULL, "", NULL, 0);
    if (status != EXPAR_OK) return group_ended(group, status);
    group->boot->call = call;
    status = group->boot->ops->barrier(group->boot);
    return collective_ended(call, group, status);
}
