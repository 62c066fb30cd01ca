/* SPDX-License-Identifier: Apache-2.0 */
/* How the steps of normal mode are carried out: the seam between ep/normal and its executors, beside what calls of
 * every mode need (executor.h). The steps themselves are in step.h. */
#ifndef EXPAR_EXEC_NORMAL_H
#define EXPAR_EXEC_NORMAL_H

#include "exec/executor.h"
#include "exec/step.h"

/* Where the time of a call went on this rank, by clocks that its kernels read. For benchmarks. A dispatch or a combine,
   from its first warp's start: until the last warp knows the peers' places, until the median warp and the last one
   have their last row on its way, and until all ranks are through. The notify before it (a fresh dispatch), span by
   span: the layout, until this rank's hellos are on their way, until all hellos are here, until the counts are with
   handle and host; and the gap between the two kernels. */
typedef struct executor_times {
    bool notified; /* the next five count */
    double layout_us, hellos_us, wait_us, counts_us, gap_us;
    double open_us, sent_middle_us, sent_us, ended_us;
} executor_times;
/* Memory that peers do not reach, reach in the heap, or read in memory of the caller's, where it lies. */
typedef enum exec_reach { EXEC_REACH_NONE, EXEC_REACH_HEAP, EXEC_REACH_MAPPED } exec_reach;
/* Where they do: rank r at offset + shifts[r] from where it has this rank's heap, modulo 2^64. */
typedef struct exec_mapping {
    uint64_t offset;
    const uint64_t *shifts; /* [N]; NULL: all are 0 */
    void *held;             /* the executor's; NULL: nothing is to be given back */
} exec_mapping;

/* Every slot is filled. Behind `place` a notify comes before a send, and each send before its receive; prepare and the
   steps on one rank come where a call needs them. Of two calls that are open at a time no step of the second that all
   ranks take part in comes before the first is sent, and none but a notify before the first is received. */
typedef struct normal_ops {
    /* Rows for or from memory that peers cannot reach pass through the pool where it has room: a copy costs less there
       than the queue. */
    bool stages;
    int32_t unit_bytes; /* rows that a combine writes, or adds as biases, begin at multiples of it */
    bool grows_apart;   /* `grow` is a call of its own: where all have grown its epoch is spent */
    /* Of the last call, which must be done. False: there are none. */
    bool (*times)(executor *self, executor_times *out);

    /* ---- memory, local to the rank ---- */

    /* Where this rank's peers reach the range: in the heap, at an offset; or, where the call maps, in other memory that
       they read where it lies. Then the mapping holds until `unmap`, which comes once the call's steps have been
       carried out or put on its stream. What they do not map now they may in a later call. Waits for nobody; call has
       its stream. *out is zero before, and stays so where they do not reach the range. */
    exec_reach (*reach)(executor *self, const exec_call *call, const void *data, uint64_t bytes, bool maps,
                        exec_mapping *out);
    /* Gives a mapping back that holds something. */
    void (*unmap)(executor *self, exec_mapping *mapping);
    /* Gives idle memory of the pool, and of its own, back to the system; where peers map it, with grow_pool of a later
       call. */
    void (*trim)(executor *self);
    /* Room for a routing whose tokens, ranks, ranks_per_node, channels, topk and experts are set, with at most
       most_targets targets each; its arrays are not filled. Given back by ep_routing_free. */
    expar_status (*routing_make)(executor *self, ep_routing *routing, int32_t most_targets);
    /* Room for a row map of so many slots. What nothing has been written to names no row, unless steps are carried out
       in any case once they are put on a stream. */
    expar_status (*map_make)(executor *self, int64_t slots, mem_block **out);

    /* ---- before a call opens ---- */

    /* Gets ready for rows of this form, before any rank can be waiting for this one's steps. */
    expar_status (*prepare)(executor *self, const ep_form *form, int64_t row_bytes);
    /* Whether records and rings hold calls of this form as they are: the same on all ranks. Asked once a call, by the
       thread that is to make them larger, while no other can be at it. */
    bool (*fits)(executor *self, const ep_form *form, int64_t row_bytes);

    /* ---- steps that all ranks take part in ---- */

    /* For a call that does not fit, while no other of the buffer is under way on this rank: opens with a hello without
       counts; where all ranks come with the same form, all make room for it, or none does. What came of it is the
       verdict: a rank that has no memory refuses, and the call has been told of. Records that have grown know nothing
       of the epoch yet, in which the call itself opens then (unless grows_apart). Pools that grow do so for what the
       step says of them, if they can. */
    expar_status (*grow)(executor *self, const ep_grow_step *step, ep_verdict *verdict);

    /* Opens a fresh dispatch or a route, or any call that this rank refuses (without routing; it needs no place then):
       makes the layout, exchanges hellos with counts, fills the routing. An index out of range is this rank's
       refusal. */
    expar_status (*notify)(executor *self, exec_call *call, ep_notify_step *step);
    /* Where notify said so (step->grows), behind it and before anything else of the call, on all ranks, whatever became
       of the call on this one: more memory for pools, so that `count` blocks of these sizes (0 to
       MEM_POOL_MOST_REACHED) find room beside what is held, and what found none in earlier calls; where a rank has
       trimmed, memory of its that is idle goes. EXPAR_OK where there
       is no such memory: nothing has changed then. */
    expar_status (*grow_pool)(executor *self, const uint64_t *bytes, int32_t count);
    /* Exchanges offers (cached: with the hellos; an index out of range is this rank's refusal), unless they stand
       (spare memory). Where all ranks go on, and nothing of this rank's goes by the queue, its rows are put on their
       way, too. */
    expar_status (*dispatch_send)(executor *self, exec_call *call, ep_dispatch_step *step);
    /* The rest, until all rows are here and this rank's have left; idx of rows that nobody sent is -1. */
    expar_status (*dispatch_receive)(executor *self, exec_call *call, ep_dispatch_step *step);
    /* Likewise. After receive the caller may use x again. */
    expar_status (*combine_send)(executor *self, exec_call *call, ep_combine_step *step);
    expar_status (*combine_receive)(executor *self, exec_call *call, ep_combine_step *step);

    /* ---- steps on one rank ---- */

    expar_status (*map)(executor *self, exec_call *call, const ep_map_step *step);
    expar_status (*arrange)(executor *self, exec_call *call, const ep_arrange_step *step);
    expar_status (*reduce)(executor *self, exec_call *call, const ep_reduce_step *step);
    expar_status (*sources)(executor *self, exec_call *call, const ep_sources_step *step);
    /* Whatever the host knows of them. */
    expar_status (*tell_counts)(executor *self, exec_call *call, const ep_counts_step *step);
    expar_status (*copy)(executor *self, exec_call *call, void *dest, const void *source, uint64_t bytes);
} normal_ops;

#endif
