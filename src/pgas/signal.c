/* SPDX-License-Identifier: Apache-2.0 */
/* Puts followed by a signal, and reading one's own signal. */
#include "pgas/direct.h"
#include "pgas/ops.h"
#include "pgas/target.h"

/* Fills the offsets, and makes the link. Data and signal may be in memory of different kinds. */
static expar_status aim_put_signal(const ops_origin *from, const void *dest, const ops_signal *signal, int32_t pe,
                                   link_data *put, link_flag *flag, link_peer *out)
{
    kinds_place data, word;
    const char *call = from->call;
    expar_group *group = from->group;
    expar_status status = target_check_pe(call, group, pe);
    if (status == EXPAR_OK && signal->op != EXPAR_SIGNAL_SET && signal->op != EXPAR_SIGNAL_ADD)
        status = error_set(EXPAR_ERR_ARGUMENT, "%s: op %d, expected EXPAR_SIGNAL_SET or EXPAR_SIGNAL_ADD", call,
                           (int)signal->op);
    if (status == EXPAR_OK && put->bytes > 0 && !put->source)
        status = error_set(EXPAR_ERR_NULL, "%s: source is NULL", call);
    if (status == EXPAR_OK && put->bytes > 0) status = target_check_place(call, group, "dest", dest, put->bytes, &data);
    if (status == EXPAR_OK)
        status = target_check_word(call, group, "signal", signal->address, sizeof *signal->address, &word);
    if (status != EXPAR_OK) return status;
    if (put->bytes == 0) data = word;
    put->offset = data.offset;
    flag->offset = word.offset;
    status = target_link(from, pe, data.memory, LINK_DATA, put->bytes > 0 ? put->source : NULL, out);
    return status == EXPAR_OK ? link_aim_words(out, word.memory) : status;
}

expar_status ops_put_signal_from(const ops_origin *from, void *dest, const void *source, size_t bytes,
                                 const ops_signal *signal, int32_t pe)
{
    link_peer peer;
    if (ops_goes_straight(from) &&
        direct_put_signal(from->group, dest, source, bytes, signal->address, signal->value, signal->op, pe))
        return EXPAR_OK;
    link_data put = {.source = source, .bytes = bytes, .copies = !from->nbi};
    link_flag flag = {.word = signal->value, .adds = signal->op == EXPAR_SIGNAL_ADD};
    expar_status status = aim_put_signal(from, dest, signal, pe, &put, &flag, &peer);
    return status == EXPAR_OK ? link_put_flag(&peer, &put, &flag, from->batch) : status;
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
    kinds_place place;
    if (!group) return group_ended(group, error_set(EXPAR_ERR_NULL, "%s: group is NULL", call));
    if (!value) return group_ended(group, error_set(EXPAR_ERR_NULL, "%s: value is NULL", call));
    expar_status status = target_check_host(call, group, "value", value);
    if (status == EXPAR_OK) status = target_check_word(call, group, "signal", signal, sizeof *signal, &place);
    if (status == EXPAR_OK) status = sym_check_self(group->sym, call);
    if (status == EXPAR_OK && place.memory == TRANSPORT_DEVICE)
        status = target_load(call, group, signal, value, sizeof *value);
    else if (status == EXPAR_OK) /* Acquire: partner of the signal's release by its sender. */
        *value = atomic_load_explicit((const _Atomic uint64_t *)signal, memory_order_acquire);
    return group_ended(group, status);
}
