/* SPDX-License-Identifier: Apache-2.0 */
/* Puts with a signal behind them, and reading one's own signal. */
#include "pgas/direct.h"
#include "pgas/ops.h"
#include "pgas/target.h"

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

/* The data goes out and has been delivered; whatever else is under way, to this PE or others, is not waited for. */
static expar_status signal_deliver(const ops_origin *from, const signalled_put *put, const transport_request *data)
{
    sym *self = from->group->sym;
    transport_batch own = {0};
    if (put->bytes == 0) return EXPAR_OK;
    expar_status status = transport_post(put->data, &self->site, data, &own);
    return status == EXPAR_OK ? sym_settle(self, &own) : status;
}

/* Starts both: in one, or where two transports carry them the signal once the data has been delivered. */
static expar_status start_put_signal(const ops_origin *from, const signalled_put *put, const ops_signal *signal,
                                     int32_t pe)
{
    transport_request data = {.kind = TRANSPORT_KIND_PUT,
                              .pe = pe,
                              .offset = put->dest_offset,
                              .source = put->source,
                              .bytes = put->bytes,
                              .op = atomic_of(signal->op),
                              .operand = signal->value,
                              .signals = true,
                              .signal_offset = put->signal_offset};
    if (put->data == put->signal || ops_goes_by_proxy(from)) return ops_start(from, put->data, &data);
    transport_request behind = {.kind = TRANSPORT_KIND_ATOMIC,
                                .pe = pe,
                                .offset = put->signal_offset,
                                .bytes = sizeof(uint64_t),
                                .op = data.op,
                                .operand = data.operand};
    data.signals = false;
    expar_status status = signal_deliver(from, put, &data);
    return status == EXPAR_OK ? ops_start(from, put->signal, &behind) : error_prefix(status, "%s", from->call);
}

expar_status ops_put_signal_from(const ops_origin *from, void *dest, const void *source, size_t bytes,
                                 const ops_signal *signal, int32_t pe)
{
    if (ops_goes_straight(from) &&
        direct_put_signal(from->group, dest, source, bytes, signal->address, signal->value, signal->op, pe))
        return EXPAR_OK;
    signalled_put put = {.source = source, .bytes = bytes};
    expar_status status = check_put_signal(from->call, from->group, dest, signal, pe, &put);
    if (status == EXPAR_OK) status = start_put_signal(from, &put, signal, pe);
    if (status == EXPAR_OK) sym_ring(from->group->sym, pe);
    return status;
}

expar_status ops_put_signal(const char *call, expar_group *group, void *dest, const void *source, size_t bytes,
                            const ops_signal *signal, int32_t pe)
{
    return ops_put_signal_from(&(ops_origin){.call = call, .group = group}, dest, source, bytes, signal, pe);
}

expar_status expar_put_signal(expar_group *group, void *dest, const void *source, size_t bytes, uint64_t *signal,
                              uint64_t value, expar_signal_op op, int32_t pe)
{
    return group_ended(
        group, ops_put_signal("expar_put_signal", group, dest, source, bytes, &(ops_signal){signal, value, op}, pe));
}

#define SIGNAL_DEFINE(P, O, ON, name, nbi)                                                                             \
    expar_status P##name(O, void *dest, const void *source, size_t bytes, uint64_t *signal, uint64_t value,            \
                         expar_signal_op op, int32_t pe)                                                               \
    {                                                                                                                  \
        ON(#P #name, nbi)                                                                                              \
        return group_ended(from.group,                                                                                 \
                           ops_put_signal_from(&from, dest, source, bytes, &(ops_signal){signal, value, op}, pe));     \
    }
SIGNAL_DEFINE(expar_, expar_group *group, OPS_ON_GROUP, put_signal_nbi, true)
SIGNAL_DEFINE(expar_ctx_, expar_ctx *ctx, OPS_ON_CTX, put_signal, false)
SIGNAL_DEFINE(expar_ctx_, expar_ctx *ctx, OPS_ON_CTX, put_signal_nbi, true)

expar_status expar_signal_fetch(expar_group *group, const uint64_t *signal, uint64_t *value)
{
    static const char call[] = "expar_signal_fetch";
    uint64_t offset;
    if (!group) return group_ended(group, error_set(EXPAR_ERR_NULL, "%s: group is NULL", call));
    if (!value) return group_ended(group, error_set(EXPAR_ERR_NULL, "%s: value is NULL", call));
    expar_status status = target_check_word(call, group, "signal", signal, sizeof *signal, &offset);
    if (status == EXPAR_OK) status = sym_check_self(group->sym, call);
    /* Acquire: partner of the signal's release by its sender. */
    if (status == EXPAR_OK) *value = atomic_load_explicit((const _Atomic uint64_t *)signal, memory_order_acquire);
    return group_ended(group, status);
}
