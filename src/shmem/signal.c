/* SPDX-License-Identifier: Apache-2.0 */
/* Puts with a signal behind them, and reading one's own signal. */
#include "shmem/direct.h"
#include "shmem/ops.h"
#include "shmem/target.h"

/* A put on its way to pe, with the signal behind it. */
typedef struct signalled_put {
    const void *source;
    size_t bytes;
    uint64_t dest_offset, signal_offset;
    transport *data, *signal; /* which carry the two parts */
} signalled_put;

static expar_status check_put_signal(const char *call, expar_group *group, const void *dest, const ops_signal *signal,
                                     int32_t pe, signalled_put *put)
{
    expar_status status = target_check_pe(call, group, pe);
    if (status == EXPAR_OK && signal->op != EXPAR_SIGNAL_SET && signal->op != EXPAR_SIGNAL_ADD)
        status = error_set(EXPAR_ERR_ARGUMENT, "%s: op %d, expected EXPAR_SIGNAL_SET or EXPAR_SIGNAL_ADD", call,
                           (int)signal->op);
    if (status == EXPAR_OK && put->bytes > 0 && !put->source)
        status = error_set(EXPAR_ERR_NULL, "%s: source is NULL", call);
    if (status == EXPAR_OK && put->bytes > 0)
        status = target_check_range(call, group, "dest", dest, put->bytes, &put->dest_offset);
    if (status == EXPAR_OK)
        status =
            target_check_word(call, group, "signal", signal->address, sizeof *signal->address, &put->signal_offset);
    if (status == EXPAR_OK) status = target_transport(call, group, group->sym->reach_rma, pe, &put->data);
    if (status == EXPAR_OK) status = target_transport(call, group, group->sym->reach_atomic, pe, &put->signal);
    return status;
}

static transport_atomic_op atomic_of(expar_signal_op op)
{
    return op == EXPAR_SIGNAL_SET ? TRANSPORT_SET : TRANSPORT_ADD;
}

/* Within one transport a fence keeps the signal behind the data; across two only completion does. */
static expar_status carry_put_signal(const signalled_put *put, const ops_signal *signal, int32_t pe)
{
    expar_status status = EXPAR_OK;
    if (put->bytes > 0) status = put->data->ops->put(put->data, pe, put->dest_offset, put->source, put->bytes);
    if (status == EXPAR_OK)
        status = put->data == put->signal ? put->data->ops->fence(put->data) : put->data->ops->quiet(put->data);
    if (status == EXPAR_OK)
        status = put->signal->ops->atomic(put->signal, pe, put->signal_offset, sizeof(uint64_t), atomic_of(signal->op),
                                          signal->value, 0, NULL);
    return status;
}

static expar_status issue_put_signal(proxy *by, const char *call, const signalled_put *put, const ops_signal *signal,
                                     int32_t pe)
{
    return proxy_issue(by, call,
                       &(proxy_command){.kind = PROXY_PUT_SIGNAL,
                                        .pe = pe,
                                        .offset = put->dest_offset,
                                        .local = (uintptr_t)put->source,
                                        .bytes = put->bytes,
                                        .signal = put->signal_offset,
                                        .operand = signal->value,
                                        .op = (uint16_t)atomic_of(signal->op)});
}

expar_status ops_put_signal(const char *call, expar_group *group, void *dest, const void *source, size_t bytes,
                            const ops_signal *signal, int32_t pe)
{
    signalled_put put = {.source = source, .bytes = bytes};
    expar_status status = check_put_signal(call, group, dest, signal, pe, &put);
    if (status == EXPAR_OK) status = carry_put_signal(&put, signal, pe);
    if (status == EXPAR_OK) sym_ring(group->sym, pe);
    return status;
}

expar_status expar_put_signal(expar_group *group, void *dest, const void *source, size_t bytes, uint64_t *signal,
                              uint64_t value, expar_signal_op op, int32_t pe)
{
    if (direct_put_signal(group, dest, source, bytes, signal, value, op, pe)) return EXPAR_OK;
    return ops_put_signal("expar_put_signal", group, dest, source, bytes, &(ops_signal){signal, value, op}, pe);
}

expar_status expar_put_signal_nbi(expar_group *group, void *dest, const void *source, size_t bytes, uint64_t *signal,
                                  uint64_t value, expar_signal_op op, int32_t pe)
{
    static const char call[] = "expar_put_signal_nbi";
    const ops_signal behind = {signal, value, op};
    signalled_put put = {.source = source, .bytes = bytes};
    if (!group || !group->sym->proxy) return ops_put_signal(call, group, dest, source, bytes, &behind, pe);
    expar_status status = check_put_signal(call, group, dest, &behind, pe, &put);
    return status == EXPAR_OK ? issue_put_signal(group->sym->proxy, call, &put, &behind, pe) : status;
}

expar_status expar_signal_fetch(expar_group *group, const uint64_t *signal, uint64_t *value)
{
    static const char call[] = "expar_signal_fetch";
    uint64_t offset;
    if (!group) return error_set(EXPAR_ERR_NULL, "%s: group is NULL", call);
    if (!value) return error_set(EXPAR_ERR_NULL, "%s: value is NULL", call);
    expar_status status = target_check_word(call, group, "signal", signal, sizeof *signal, &offset);
    if (status == EXPAR_OK) status = sym_check_self(group->sym, call);
    /* Acquire: partner of the signal's release by its sender. */
    if (status == EXPAR_OK) *value = atomic_load_explicit((const _Atomic uint64_t *)signal, memory_order_acquire);
    return status;
}
