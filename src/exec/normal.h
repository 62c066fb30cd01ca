/* SPDX-License-Identifier: Apache-2.0 */
/* The seam between ep/normal and its executors: how the steps of normal mode are carried out. executor.h has what calls
 * of every mode need, step.h the steps themselves. */
#ifndef EXPAR_EXEC_NORMAL_H
#define EXPAR_EXEC_NORMAL_H

#include "exec/executor.h"
#include "exec/step.h"

/* The times of a call's parts on this rank, by clocks that its kernels read. For benchmarks. Times of a dispatch or
   combine count from its first warp's start. They end when the last warp knows the peers' places, when the median warp
   and the last warp have sent their last row, and when all ranks have finished.

   The notify before a fresh dispatch has spans: the layout; until this rank's headers are sent; until all headers are
   here; until handle and host have the counts. The gap between the two kernels follows. */
typedef struct executor_times {
    bool notified; /* the next five members are valid */
    double layout_us, headers_us, wait_us, counts_us, gap_us;
    double open_us, sent_middle_us, sent_us, ended_us;
} executor_times;
/* Says whether peers reach memory: not at all, in the heap, or in the caller's memory, which they read where it
   lies. */
typedef enum exec_reach { EXEC_REACH_NONE, EXEC_REACH_HEAP, EXEC_REACH_MAPPED } exec_reach;
/* The place where peers reach it. It is offset + shifts[r] for rank r, from the place where r has this rank's heap,
   modulo 2^64. */
typedef struct exec_mapping {
    uint64_t offset;
    const uint64_t *shifts; /* [N]; NULL: all are 0 */
    void *held;             /* belongs to the executor; NULL: there is nothing to unmap */
} exec_mapping;

/* Every slot is filled. After `place` a notify comes before a send, and each send before its receive. prepare and the
   steps on one rank come where a call needs them. Two calls may be open at a time. Then collective steps of the second
   wait until the first is sent, and all but its notify until the first is received. */
typedef struct normal_ops {
    /* Rows for or from memory that peers cannot reach pass through the pool if it has space. A copy costs less there
       than the queue. */
    bool stages;
    bool x_alone;       /* peers must reach rows alone: scales, indices, weights and maps get there in any case */
    int32_t unit_bytes; /* alignment in bytes of the rows that a combine writes, or adds as biases */
    bool grows_apart;   /* `grow` is a call of its own, and uses up its epoch when all ranks have grown */
    /* Returns the times of the last call, which must have ended, or false if there are none. */
    bool (*times)(executor *self, executor_times *out);

    /* ---- memory, local to the rank ---- */

    /* Says whether and where this rank's peers reach the range: in the heap, at an offset, or, if `maps`, in other
       memory that they read where it lies. Such a mapping holds until `unmap`, which comes after the call's steps have
       been carried out or put on its stream. Peers that do not map the range now may do so in a later call. Waits for
       no rank; call has its stream. *out is zero before, and stays so if peers do not reach the range. */
    exec_reach (*reach)(executor *self, const exec_call *call, const void *data, uint64_t bytes, bool maps,
                        exec_mapping *out);
    /* Ends a mapping whose `held` is not NULL. */
    void (*unmap)(executor *self, exec_mapping *mapping);
    /* Returns idle memory of the pool, and of the executor, to the system. If peers map that memory, grow_pool of a
       later call does it. */
    void (*trim)(executor *self);
    /* Allocates a routing whose tokens, ranks, ranks_per_node, channels, topk and experts are set, with at most
       most_targets targets for each token. Its arrays are not filled. ep_routing_free frees it. */
    expar_status (*routing_make)(executor *self, ep_routing *routing, int32_t most_targets);
    /* Allocates a row map of so many slots. Slots that nothing has written name no row, unless the executor carries out
       steps in any case once they are on a stream. */
    expar_status (*map_make)(executor *self, int64_t slots, mem_block **out);

    /* ---- before a call opens ---- */

    /* Prepares for rows of this form, before any rank can be waiting for this one's steps. */
    expar_status (*prepare)(executor *self, const ep_form *form, int64_t row_bytes);
    /* Says whether records and rings can hold calls of this form as they are, which is equal on all ranks. The thread
       that is to make them larger asks once for each call, while no other thread can change them. */
    bool (*fits)(executor *self, const ep_form *form, int64_t row_bytes);

    /* ---- steps that all ranks take part in ---- */

    /* For a call that does not fit, while no other call of the buffer is under way on this rank. Opens with a header
       without counts. If all ranks come with the same form, either all make records and rings large enough, or none
       does. `vote` has the result: a rank without memory rejects, and the call has then been reported to all.
       Grown records do not know the epoch yet, so the call itself opens in the same epoch (unless grows_apart). Pools
       that can grow do so as the step says. */
    expar_status (*grow)(executor *self, exec_call *call, const ep_grow_step *step, ep_vote *vote);

    /* Opens a fresh dispatch or a route, or any call that this rank rejects (without routing; it needs no place then).
       Makes the layout, exchanges headers with counts, and fills the routing. An index out of range makes this rank
       reject the call. */
    expar_status (*notify)(executor *self, exec_call *call, ep_notify_step *step);
    /* Comes after a notify that set step->grows, before anything else of the call, on all ranks, whatever the call's
       result is on this one. Gets more memory for pools, so that `count` blocks of these sizes (0 to
       MEM_POOL_MOST_REACHED) fit beside those in use, and also blocks that did not fit in earlier calls. If a rank has
       trimmed, its idle memory is freed. Returns EXPAR_OK if there is no such memory; nothing has changed then. */
    expar_status (*grow_pool)(executor *self, const uint64_t *bytes, int32_t count);
    /* Exchanges advertisements, unless the early one holds (spare memory). With a handle they go with the headers, and
       an index out of range makes this rank reject the call. If all ranks go on, and none of this rank's rows use the
       queue, its rows are sent, too. */
    expar_status (*dispatch_send)(executor *self, exec_call *call, ep_dispatch_step *step);
    /* The rest, until all rows are here and this rank's have left. idx of rows that no rank sent is -1. */
    expar_status (*dispatch_receive)(executor *self, exec_call *call, ep_dispatch_step *step);
    /* The same for a combine. After receive the caller may use x again. */
    expar_status (*combine_send)(executor *self, exec_call *call, ep_combine_step *step);
    expar_status (*combine_receive)(executor *self, exec_call *call, ep_combine_step *step);

    /* ---- steps on one rank ---- */

    expar_status (*map)(executor *self, exec_call *call, const ep_map_step *step);
    expar_status (*arrange)(executor *self, exec_call *call, const ep_arrange_step *step);
    expar_status (*reduce)(executor *self, exec_call *call, const ep_reduce_step *step);
    expar_status (*sources)(executor *self, exec_call *call, const ep_sources_step *step);
    /* Writes counts, whether the host knows them or not. */
    expar_status (*tell_counts)(executor *self, exec_call *call, const ep_counts_step *step);
    expar_status (*copy)(executor *self, exec_call *call, void *dest, const void *source, uint64_t bytes);
} normal_ops;

#endif
