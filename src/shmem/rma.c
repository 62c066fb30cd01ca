/* SPDX-License-Identifier: Apache-2.0 */
/* Put, get, put with signal, and their order: the public calls of expar/rma.h that move data. */
#include "shmem/target.h"
#include <expar/rma.h>

expar_status expar_put(expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe)
{
    static const char call[] = "expar_put";
    uint64_t offset;
    transport *via;
    expar_status status = target_check_pe(call, group, pe);
    if (status != EXPAR_OK || bytes == 0) return status;
    if (!source) return error_set(EXPAR_ERR_NULL, "%s: source is NULL", call);
    status = target_check_range(call, group, "dest", dest, bytes, &offset);
    if (status == EXPAR_OK) status = target_transport(call, group, group->sym->reach_rma, pe, &via);
    if (status == EXPAR_OK) status = via->ops->put(via, pe, offset, source, bytes);
    if (status == EXPAR_OK) sym_ring(group->sym, pe); /* the target may wait for a word in it */
    return status;
}

expar_status expar_get(expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe)
{
    static const char call[] = "expar_get";
    uint64_t offset;
    transport *via;
    expar_status status = target_check_pe(call, group, pe);
    if (status != EXPAR_OK || bytes == 0) return status;
    if (!dest) return error_set(EXPAR_ERR_NULL, "%s: dest is NULL", call);
    status = target_check_range(call, group, "source", source, bytes, &offset);
    if (status == EXPAR_OK) status = target_transport(call, group, group->sym->reach_rma, pe, &via);
    if (status == EXPAR_OK) status = via->ops->get(via, pe, dest, offset, bytes);
    return status;
}

/* A put on its way to pe, with the signal behind it. */
typedef struct signalled_put {
    const void *source;
    size_t bytes;
    uint64_t dest_offset, signal_offset;
    transport *data, *signal; /* which carry the two parts */
} signalled_put;

static expar_status check_put_signal(const char *call, expar_group *group, const void *dest, const uint64_t *signal,
                                     expar_signal_op op, int32_t pe, signalled_put *put)
{
    expar_status status = target_check_pe(call, group, pe);
    if (status == EXPAR_OK && op != EXPAR_SIGNAL_SET && op != EXPAR_SIGNAL_ADD)
        status =
            error_set(EXPAR_ERR_ARGUMENT, "%s: op %d, expected EXPAR_SIGNAL_SET or EXPAR_SIGNAL_ADD", call, (int)op);
    if (status == EXPAR_OK && put->bytes > 0 && !put->source)
        status = error_set(EXPAR_ERR_NULL, "%s: source is NULL", call);
    if (status == EXPAR_OK && put->bytes > 0)
        status = target_check_range(call, group, "dest", dest, put->bytes, &put->dest_offset);
    if (status == EXPAR_OK)
        status = target_check_word(call, group, "signal", signal, sizeof *signal, &put->signal_offset);
    if (status == EXPAR_OK) status = target_transport(call, group, group->sym->reach_rma, pe, &put->data);
    if (status == EXPAR_OK) status = target_transport(call, group, group->sym->reach_atomic, pe, &put->signal);
    return status;
}

/* Within one transport a fence keeps the signal behind the data; across two only completion does. */
static expar_status carry_put_signal(const signalled_put *put, uint64_t value, expar_signal_op op, int32_t pe)
{
    expar_status status = EXPAR_OK;
    if (put->bytes > 0) status = put->data->ops->put(put->data, pe, put->dest_offset, put->source, put->bytes);
    if (status == EXPAR_OK)
        status = put->data == put->signal ? put->data->ops->fence(put->data) : put->data->ops->quiet(put->data);
    if (status == EXPAR_OK)
        status = put->signal->ops->atomic(put->signal, pe, put->signal_offset, sizeof(uint64_t),
                                          op == EXPAR_SIGNAL_SET ? TRANSPORT_SET : TRANSPORT_ADD, value, 0, NULL);
    return status;
}

expar_status expar_put_signal(expar_group *group, void *dest, const void *source, size_t bytes, uint64_t *signal,
                              uint64_t value, expar_signal_op op, int32_t pe)
{
    signalled_put put = {.source = source, .bytes = bytes};
    expar_status status = check_put_signal("expar_put_signal", group, dest, signal, op, pe, &put);
    if (status == EXPAR_OK) status = carry_put_signal(&put, value, op, pe);
    if (status == EXPAR_OK) sym_ring(group->sym, pe);
    return status;
}

static expar_status check_group(const char *call, expar_group *group)
{
    if (!group) return error_set(EXPAR_ERR_NULL, "%s: group is NULL", call);
    return sym_check(group->sym, call);
}

expar_status expar_fence(expar_group *group)
{
    expar_status status = check_group("expar_fence", group);
    if (status != EXPAR_OK) return status;
    return sym_fence(group->sym);
}

expar_status expar_quiet(expar_group *group)
{
    expar_status status = check_group("expar_quiet", group);
    return status == EXPAR_OK ? sym_quiet(group->sym) : status;
}

expar_status expar_barrier_all(expar_group *group)
{
    expar_status status = check_group("expar_barrier_all", group);
    if (status != EXPAR_OK) return status;
    status = sym_barrier(group->sym);
    return status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "expar_barrier_all");
}
