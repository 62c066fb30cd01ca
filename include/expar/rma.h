/* SPDX-License-Identifier: Apache-2.0 */
/* One-sided operations on the symmetric heap (semantics: OpenSHMEM 1.5, sections 9.5 to 9.12).
 *
 * `dest` of a put, `source` of a get, and every flag or counter is the *local* symmetric address; pe says whose copy is
 * meant. Sizes are bytes. Errors of all calls: EXPAR_ERR_NULL, EXPAR_ERR_ADDRESS (not symmetric, or the range leaves
 * the heap), EXPAR_ERR_RANGE (pe), EXPAR_ERR_ALIGNMENT (words must be aligned to their size), EXPAR_ERR_PEER,
 * EXPAR_ERR_ABORTED. Any thread of the rank may call. */
#ifndef EXPAR_RMA_H
#define EXPAR_RMA_H

#include <expar/memory.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns when `source` may be reused; complete at the target after expar_quiet or a barrier. */
EXPAR_API expar_status expar_put(expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe);
/* Returns when the data is here. */
EXPAR_API expar_status expar_get(expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe);

typedef enum expar_signal_op { EXPAR_SIGNAL_SET = 0, EXPAR_SIGNAL_ADD = 1 } expar_signal_op;

/* Puts, then updates the 64-bit signal at pe: whoever has seen the new signal sees the data. bytes may be 0. */
EXPAR_API expar_status expar_put_signal(expar_group *group, void *dest, const void *source, size_t bytes,
                                        uint64_t *signal, uint64_t value, expar_signal_op op, int32_t pe);
/* The value of this rank's own signal (acquire). */
EXPAR_API expar_status expar_signal_fetch(expar_group *group, const uint64_t *signal, uint64_t *value);

typedef enum expar_cmp {
    EXPAR_CMP_EQ = 0,
    EXPAR_CMP_NE,
    EXPAR_CMP_GT,
    EXPAR_CMP_GE,
    EXPAR_CMP_LT,
    EXPAR_CMP_LE
} expar_cmp;

/* Waits until this rank's own word compares as asked with `value`; acquires what was written before it. *seen (may be
   NULL) gets the value that ended the wait. EXPAR_ERR_PEER after the group's time-out or a death. */
EXPAR_API expar_status expar_signal_wait_until(expar_group *group, const uint64_t *signal, expar_cmp cmp,
                                               uint64_t value, uint64_t *seen);
EXPAR_API expar_status expar_wait_until_u32(expar_group *group, const uint32_t *word, expar_cmp cmp, uint32_t value,
                                            uint32_t *seen);

/* Atomics, each sequentially consistent with all others on the same word. `old` gets the value before. */
#define EXPAR_ATOMICS_DECLARE(T, S)                                                                                    \
    EXPAR_API expar_status expar_atomic_fetch_##S(expar_group *group, const T *word, int32_t pe, T *value);            \
    EXPAR_API expar_status expar_atomic_set_##S(expar_group *group, T *word, T value, int32_t pe);                     \
    EXPAR_API expar_status expar_atomic_swap_##S(expar_group *group, T *word, T value, int32_t pe, T *old);            \
    EXPAR_API expar_status expar_atomic_compare_swap_##S(expar_group *group, T *word, T expected, T desired,           \
                                                         int32_t pe, T *old);                                          \
    EXPAR_API expar_status expar_atomic_fetch_add_##S(expar_group *group, T *word, T value, int32_t pe, T *old);       \
    EXPAR_API expar_status expar_atomic_add_##S(expar_group *group, T *word, T value, int32_t pe);
EXPAR_ATOMICS_DECLARE(uint32_t, u32)
EXPAR_ATOMICS_DECLARE(uint64_t, u64)
#undef EXPAR_ATOMICS_DECLARE

/* Orders this rank's puts, signals and atomics to each PE: those before the fence arrive before those after it. */
EXPAR_API expar_status expar_fence(expar_group *group);
/* All of this rank's puts, signals and atomics are complete at their targets. */
EXPAR_API expar_status expar_quiet(expar_group *group);
/* quiet, and no rank leaves before all have come. Over the symmetric heap (fast); where the ranks are on several
   nodes over the control sockets, as expar_group_barrier. */
EXPAR_API expar_status expar_barrier_all(expar_group *group);

#ifdef __cplusplus
}
#endif
#endif
