/* SPDX-License-Identifier: Apache-2.0 */
/* Carriers. The payload of rows may lie in memory that the host does not reach, such as a GPU's. Then the workers of a
 * call do not copy and add rows themselves: they ask a carrier to. All else of a call stays with them, so it goes the
 * same way with a carrier and without. exec/cuda/hosted has one.
 *
 * A carrier works while the lanes go on. Each lane asks in its own queue, in which work is numbered from 1. What
 * follows from a row having moved, such as sending the chunk that holds it, waits until its number is complete. */
#ifndef EXPAR_EXEC_CPU_CORE_CARRIER_H
#define EXPAR_EXEC_CPU_CORE_CARRIER_H

#include <expar/status.h>
#include <expar/tensor.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct cpu_carrier cpu_carrier;

/* A sum: FP32 from +0, in the order of the rows. The carrier copies the list of rows. */
typedef struct cpu_carried_sum {
    expar_dtype dtype; /* of the rows, and of the sum: BF16, F16, F32 */
    void *sum;
    bool wide;     /* the sum is FP32, and not rounded; otherwise it is rounded once to nearest even */
    int64_t bytes; /* of a row of that type */
    const void *const *rows;
    int32_t count, wide_from; /* rows from wide_from on are FP32 */
    const float *weights;     /* [count] factors of the rows; each product is rounded. NULL: all 1 */
    /* The group is added up first, from +0. Its sum takes the place before row `group_at`. */
    const void *const *group;
    int32_t group_count, group_at;
    bool wide_group; /* the group's sum is not rounded to the rows' type */
} cpu_carried_sum;

typedef struct cpu_carrier_ops {
    /* Comes before the rows of a call move. Returns for how many lanes there is memory: 1 at least, `lanes` at most.
       The rows and the group of a sum are at most `rows`. */
    int32_t (*begin)(cpu_carrier *self, int32_t lanes, int32_t rows);
    /* Ask for a copy, and for a sum. Their memory stays until they are complete. */
    void (*copy)(cpu_carrier *self, int32_t lane, void *dest, const void *source, int64_t bytes);
    void (*sum)(cpu_carrier *self, int32_t lane, const cpu_carried_sum *sum);
    /* Returns the number of the work that the lane has asked for last. */
    uint64_t (*asked)(const cpu_carrier *self, int32_t lane);
    /* Lets the carrier begin with all that the lane has asked for. If `may_wait`, it waits for more while that is
       little. */
    void (*hand_over)(cpu_carrier *self, int32_t lane, bool may_wait);
    /* Gives the number up to which all work of the lane is complete. Any status but EXPAR_OK ends the call. */
    expar_status (*complete)(cpu_carrier *self, int32_t lane, uint64_t *number);
} cpu_carrier_ops;

struct cpu_carrier {
    const cpu_carrier_ops *ops;
    int32_t most_rows; /* of a sum */
    /* [N] where the carrier reaches the memory of a rank of this node, from which offsets of x count */
    const uint64_t *bases;
};

/* Returns the address of an offset in a rank's memory. */
static inline void *cpu_carried_at(const cpu_carrier *carrier, int32_t rank, uint64_t offset)
{
    return (void *)(uintptr_t)(carrier->bases[rank] + offset);
}

#endif
