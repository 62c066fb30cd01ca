/* SPDX-License-Identifier: Apache-2.0 */
/* The one-sided operations behind the public calls, which only differ in types and in who names the PE (group or
 * context). `call` is the public call's name, for error texts; pe is a rank of the group. Private to shmem. */
#ifndef EXPAR_SHMEM_OPS_H
#define EXPAR_SHMEM_OPS_H

#include "group/group.h"
#include <expar/rma.h>

expar_status ops_put(const char *call, expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe);
expar_status ops_get(const char *call, expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe);

/* Elements that stand apart; strides are in elements. */
typedef struct ops_strided {
    ptrdiff_t dest_stride, source_stride;
    size_t element_bytes, count;
} ops_strided;
expar_status ops_iput(const char *call, expar_group *group, void *dest, const void *source, const ops_strided *shape,
                      int32_t pe);
expar_status ops_iget(const char *call, expar_group *group, void *dest, const void *source, const ops_strided *shape,
                      int32_t pe);

/* What goes behind the data. */
typedef struct ops_signal {
    uint64_t *address, value;
    expar_signal_op op;
} ops_signal;
expar_status ops_put_signal(const char *call, expar_group *group, void *dest, const void *source, size_t bytes,
                            const ops_signal *signal, int32_t pe);

/* One atomic operation of a caller. */
typedef struct ops_atomic {
    const char *call;
    transport_atomic_op op;
    size_t bytes; /* of the word: 4 or 8 */
    uint64_t operand, compare;
} ops_atomic;
/* old may be NULL. */
expar_status ops_atomic_run(const ops_atomic *atomic, expar_group *group, const void *word, int32_t pe, uint64_t *old);

/* Fence and quiet of a rank, group checked. */
expar_status ops_fence(const char *call, expar_group *group);
expar_status ops_quiet(const char *call, expar_group *group);

#endif
