/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives over a team, on symmetric memory (semantics: OpenSHMEM 1.5, section 9.11).
 *
 * dest is symmetric, and ready on all members before any of them calls; source need not be symmetric unless said
 * otherwise. Upon return dest is complete here and source may be reused. Sizes, counts, strides and root are the same
 * on all members, unless said otherwise. The source and dest must not overlap, except that a broadcast or a reduction
 * may have them equal on all members. Errors as in expar/team.h, and EXPAR_ERR_ADDRESS (dest is not symmetric),
 * EXPAR_ERR_RANGE (root), EXPAR_ERR_ARGUMENT (a size that overflows, a stride below 1). */
#ifndef EXPAR_COLLECTIVE_H
#define EXPAR_COLLECTIVE_H

#include <expar/team.h>
#include <expar/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Copies root's source to dest on all members, also on root. source is symmetric. */
EXPAR_API expar_status expar_broadcast(expar_team *team, void *dest, const void *source, size_t bytes, int32_t root);
/* Like expar_broadcast, but root's dest stays unchanged. */
EXPAR_API expar_status expar_broadcast_others(expar_team *team, void *dest, const void *source, size_t bytes,
                                              int32_t root);

/* Concatenates the sources of all members, in the order of members, into dest on all members. With fcollect `bytes` is
   the same on all members; collect: it may differ, and be 0. */
EXPAR_API expar_status expar_fcollect(expar_team *team, void *dest, const void *source, size_t bytes);
EXPAR_API expar_status expar_collect(expar_team *team, void *dest, const void *source, size_t bytes);

/* Block j of member i's source becomes block i of member j's dest. A block has `bytes` bytes. */
EXPAR_API expar_status expar_alltoall(expar_team *team, void *dest, const void *source, size_t bytes);
/* Like expar_alltoall with blocks of `count` elements, which are dest_stride and source_stride elements apart. */
EXPAR_API expar_status expar_alltoalls(expar_team *team, void *dest, const void *source, ptrdiff_t dest_stride,
                                       ptrdiff_t source_stride, size_t element_bytes, size_t count);

/* ---- reductions -------------------------------------------------------------------------------------------------- */

/* Reduces element by element over all members. First the members of each node (which map each other's memory) are
   combined in their order, then the results of the nodes in theirs. The order does not depend on the number of
   elements, so all members get the same bits in every run. On one node, or with one member on each node, it is the
   order of members. */
#define EXPAR_REDUCE_DECLARE(T, S, operation)                                                                          \
    EXPAR_API expar_status expar_##operation##_reduce_##S(expar_team *team, T *dest, const T *source, size_t count);
#define EXPAR_REDUCE_BITS_DECLARE(T, S)                                                                                \
    EXPAR_REDUCE_DECLARE(T, S, and)                                                                                    \
    EXPAR_REDUCE_DECLARE(T, S, or)                                                                                     \
    EXPAR_REDUCE_DECLARE(T, S, xor)
#define EXPAR_REDUCE_NUMBERS_DECLARE(T, S)                                                                             \
    EXPAR_REDUCE_DECLARE(T, S, min)                                                                                    \
    EXPAR_REDUCE_DECLARE(T, S, max)                                                                                    \
    EXPAR_REDUCE_DECLARE(T, S, sum)                                                                                    \
    EXPAR_REDUCE_DECLARE(T, S, prod)
EXPAR_INTEGER_TYPES(EXPAR_REDUCE_BITS_DECLARE)
EXPAR_DATA_TYPES(EXPAR_REDUCE_NUMBERS_DECLARE)
#undef EXPAR_REDUCE_NUMBERS_DECLARE
#undef EXPAR_REDUCE_BITS_DECLARE
#undef EXPAR_REDUCE_DECLARE

/* Reduces by a function of the caller: into[i] becomes into[i] ∘ from[i] for `count` elements. Elements have at most
   EXPAR_REDUCE_ELEMENT_BYTES bytes. */
typedef void (*expar_reduce_fn)(void *into, const void *from, size_t count);
#define EXPAR_REDUCE_ELEMENT_BYTES 64
EXPAR_API expar_status expar_reduce(expar_team *team, void *dest, const void *source, size_t count,
                                    size_t element_bytes, expar_reduce_fn combine);

#ifdef __cplusplus
}
#endif
#endif
