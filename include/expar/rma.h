/* SPDX-License-Identifier: Apache-2.0 */
/* One-sided operations on the symmetric heap (semantics: OpenSHMEM 1.5, sections 9.5 to 9.12).
 *
 * `dest` of a put, `source` of a get, and every flag or counter is the *local* symmetric address; pe names the rank
 * that has the remote copy. Sizes are bytes, counts and strides elements. Errors of all calls: EXPAR_ERR_NULL,
 * EXPAR_ERR_RANGE (pe), EXPAR_ERR_PEER, EXPAR_ERR_ABORTED. EXPAR_ERR_ADDRESS: not symmetric, or the range leaves the
 * heap. EXPAR_ERR_ARGUMENT: a size that overflows, a stride below 1. EXPAR_ERR_ALIGNMENT: words must be aligned to
 * their size. EXPAR_ERR_UNSUPPORTED: no transport reaches pe. Any thread of the rank may call. */
#ifndef EXPAR_RMA_H
#define EXPAR_RMA_H

#include <expar/memory.h>
#include <expar/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- put and get ------------------------------------------------------------------------------------------------- */

/* Copies bytes from this rank to pe. Returns when `source` may be reused. The put is complete at pe after expar_quiet
   or a barrier. */
EXPAR_API expar_status expar_put(expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe);
/* Copies bytes from pe to this rank. Returns when the data has arrived. */
EXPAR_API expar_status expar_get(expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe);
/* These return when the operation has been started. Starting waits only if too many operations are pending. An
   operation that is done by loads and stores is complete at once, others after expar_quiet. Until then source must not
   change and dest must not be read. expar_quiet reports a failure after the start, with the PE. */
EXPAR_API expar_status expar_put_nbi(expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe);
EXPAR_API expar_status expar_get_nbi(expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe);

/* Copies `count` elements of element_bytes. Element i goes from source[i·source_stride] to dest[i·dest_stride]. */
EXPAR_API expar_status expar_iput(expar_group *group, void *dest, const void *source, ptrdiff_t dest_stride,
                                  ptrdiff_t source_stride, size_t element_bytes, size_t count, int32_t pe);
EXPAR_API expar_status expar_iget(expar_group *group, void *dest, const void *source, ptrdiff_t dest_stride,
                                  ptrdiff_t source_stride, size_t element_bytes, size_t count, int32_t pe);
EXPAR_API expar_status expar_iput_nbi(expar_group *group, void *dest, const void *source, ptrdiff_t dest_stride,
                                      ptrdiff_t source_stride, size_t element_bytes, size_t count, int32_t pe);
EXPAR_API expar_status expar_iget_nbi(expar_group *group, void *dest, const void *source, ptrdiff_t dest_stride,
                                      ptrdiff_t source_stride, size_t element_bytes, size_t count, int32_t pe);

/* The same calls by type. p puts one element by value; g gets one element into *value. P is the beginning of the names,
   ON the object on which they act. */
#define EXPAR_RMA_MOVE_DECLARE(P, ON, T, S, name)                                                                      \
    EXPAR_API expar_status P##name##_##S(ON, T *dest, const T *source, size_t count, int32_t pe);
#define EXPAR_RMA_STRIDED_DECLARE(P, ON, T, S, name)                                                                   \
    EXPAR_API expar_status P##name##_##S(ON, T *dest, const T *source, ptrdiff_t dest_stride, ptrdiff_t source_stride, \
                                         size_t count, int32_t pe);
#define EXPAR_RMA_DECLARE_ON(P, ON, T, S)                                                                              \
    EXPAR_RMA_MOVE_DECLARE(P, ON, T, S, put)                                                                           \
    EXPAR_RMA_MOVE_DECLARE(P, ON, T, S, get)                                                                           \
    EXPAR_RMA_MOVE_DECLARE(P, ON, T, S, put_nbi)                                                                       \
    EXPAR_RMA_MOVE_DECLARE(P, ON, T, S, get_nbi)                                                                       \
    EXPAR_RMA_STRIDED_DECLARE(P, ON, T, S, iput)                                                                       \
    EXPAR_RMA_STRIDED_DECLARE(P, ON, T, S, iget)                                                                       \
    EXPAR_RMA_STRIDED_DECLARE(P, ON, T, S, iput_nbi)                                                                   \
    EXPAR_RMA_STRIDED_DECLARE(P, ON, T, S, iget_nbi)                                                                   \
    EXPAR_API expar_status P##p_##S(ON, T *dest, T value, int32_t pe);                                                 \
    EXPAR_API expar_status P##g_##S(ON, const T *source, int32_t pe, T *value);
#define EXPAR_RMA_DECLARE(T, S) EXPAR_RMA_DECLARE_ON(expar_, expar_group *group, T, S)
EXPAR_DATA_TYPES(EXPAR_RMA_DECLARE)
#undef EXPAR_RMA_DECLARE

/* ---- signals ----------------------------------------------------------------------------------------------------- */

typedef enum expar_signal_op { EXPAR_SIGNAL_SET = 0, EXPAR_SIGNAL_ADD = 1 } expar_signal_op;

/* Puts, then updates the 64-bit signal at pe. A thread that has seen the new signal sees the data. bytes may be 0. */
EXPAR_API expar_status expar_put_signal(expar_group *group, void *dest, const void *source, size_t bytes,
                                        uint64_t *signal, uint64_t value, expar_signal_op op, int32_t pe);
/* Like expar_put_signal, but it returns when the operation has been started, and source must not change before
   expar_quiet. */
EXPAR_API expar_status expar_put_signal_nbi(expar_group *group, void *dest, const void *source, size_t bytes,
                                            uint64_t *signal, uint64_t value, expar_signal_op op, int32_t pe);
/* Reads this rank's own signal (acquire). */
EXPAR_API expar_status expar_signal_fetch(expar_group *group, const uint64_t *signal, uint64_t *value);

/* ---- order ------------------------------------------------------------------------------------------------------- */

/* Orders this rank's puts, signals and atomics to each PE: those before the fence arrive before those after it. */
EXPAR_API expar_status expar_fence(expar_group *group);
/* Returns when all of this rank's puts, signals and atomics are complete at their targets, and everything it fetched
   has arrived. Like fence and the barriers it covers operations on the group; operations on a context are completed by
   the context (expar/context.h). */
EXPAR_API expar_status expar_quiet(expar_group *group);
/* Does quiet, then waits until all ranks have come. A rank whose quiet fails comes, too, and returns that failure. It
   uses the heap, by any transport that reaches it, else the control sockets, which is slow (expar_group_barrier). */
EXPAR_API expar_status expar_barrier_all(expar_group *group);

#ifdef __cplusplus
}
#endif

#include <expar/atomics.h>
#include <expar/context.h>
#include <expar/wait.h>
#endif
