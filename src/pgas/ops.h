/* SPDX-License-Identifier: Apache-2.0 */
/* The one-sided operations of the public calls, which only differ in types and in who names the PE (group or context).
 * `call` is the public call's name, for error texts; pe is a rank of the group. Those that end in _from are the general
 * ones; the others are their blocking forms on the default context. Private to pgas. */
#ifndef EXPAR_PGAS_OPS_H
#define EXPAR_PGAS_OPS_H

#include "group/group.h"
#include "pgas/context.h"
#include <expar/rma.h>

/* How the bodies of typed calls begin, on a group and on a context: they make `from`. */
#define OPS_ON_GROUP(name, non_blocking) const ops_origin from = {name, group, NULL, non_blocking};
#define OPS_ON_CTX(name, non_blocking)                                                                                 \
    ops_origin from = {.call = name, .nbi = non_blocking};                                                             \
    const expar_status entered = context_enter(ctx, &from, &pe);                                                       \
    if (entered != EXPAR_OK) return ctx_ended(ctx, entered);

/* Whether the operation goes by the proxy: non-blocking ones of the default context do, where the rank has one.
   Contexts count their own completions, which the ring does not. */
static inline bool ops_goes_by_proxy(const ops_origin *from)
{
    return from->nbi && !from->batch && sym_proxy_for(from->group->sym, 0);
}
/* Whether the short way into mapped memory is open to it (direct.h), once there is a group. */
static inline bool ops_goes_straight(const ops_origin *from)
{
    return from->group && !ops_goes_by_proxy(from);
}

expar_status ops_put_from(const ops_origin *from, void *dest, const void *source, size_t bytes, int32_t pe);
expar_status ops_get_from(const ops_origin *from, void *dest, const void *source, size_t bytes, int32_t pe);
expar_status ops_put(const char *call, expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe);
expar_status ops_get(const char *call, expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe);

/* Elements that stand apart; strides are in elements. */
typedef struct ops_strided {
    ptrdiff_t dest_stride, source_stride;
    size_t element_bytes, count;
} ops_strided;
expar_status ops_iput_from(const ops_origin *from, void *dest, const void *source, const ops_strided *shape,
                           int32_t pe);
expar_status ops_iget_from(const ops_origin *from, void *dest, const void *source, const ops_strided *shape,
                           int32_t pe);

/* The signal that follows the data. */
typedef struct ops_signal {
    uint64_t *address, value;
    expar_signal_op op;
} ops_signal;
expar_status ops_put_signal_from(const ops_origin *from, void *dest, const void *source, size_t bytes,
                                 const ops_signal *signal, int32_t pe);
expar_status ops_put_signal(const char *call, expar_group *group, void *dest, const void *source, size_t bytes,
                            const ops_signal *signal, int32_t pe);

/* One atomic operation on a word of 4 or 8 bytes, whose offset it finds. */
expar_status ops_atomic_run(const ops_origin *from, const link_change *change, const void *word, int32_t pe);

/* Fence and quiet of a rank, group checked. */
expar_status ops_fence(const char *call, expar_group *group);
expar_status ops_quiet(const char *call, expar_group *group);

#endif
