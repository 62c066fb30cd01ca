/* SPDX-License-Identifier: Apache-2.0 */
/* A table of operations for other nodes, which calls of normal mode use. nodes/ fills it; it is NULL if all ranks map
 * each other. Private to the CPU executor.
 *
 * Inside a node a call goes as in mailbox.c, dispatch.c and combine.c. At the points named here it asks for the part
 * that goes over the network. The state of these operations is the executor's `rails`, which no other code opens.
 *
 * Threads. The worker that has the channel calls the operations of lanes; the thread in the call calls all others.
 * Operations that open a call may run beside those that complete another call.
 *
 * Errors. An expar_status other than EXPAR_OK has its text, and ends the call. EXPAR_ERR_PEER names the rank that is
 * lost or has sent impossible values. There are also EXPAR_ERR_MEMORY, and from waits what sym_rest_turn returns. A
 * lane gets it in *status. */
#ifndef EXPAR_EXEC_CPU_NORMAL_NODES_H
#define EXPAR_EXEC_CPU_NORMAL_NODES_H

#include "exec/cpu/normal/moves.h"

struct cpu_nodes_ops {
    /* ---- buffers whose records grow (records.c) ---- */

    /* Like cpu_fits. It asks no other rank, and answers the same on all ranks. */
    bool (*fits)(const cpu_executor *self, const ep_form *form, int64_t row_bytes);
    /* Makes what calls of the shape need in addition. It is not used before `grown`. */
    expar_status (*grow)(cpu_executor *self, const ep_shape *shape);
    /* Comes after `grow`, or instead. all: all ranks could grow, and now use the new memory; the call opens a second
       time in its epoch. Otherwise the new memory is freed. */
    void (*grown)(cpu_executor *self, uint32_t epoch, bool all);

    /* ---- a call opens and closes (mailbox.c) ---- */

    /* Comes first when a call opens that fills the routing, also if this rank rejects it. A graph has the same routing
       filled by each of its launches. What an earlier one has filled then counts as unknown. */
    void (*forget)(const ep_routing *routing);
    /* Comes before this rank's advertisements. For a dispatch it allocates memory for the contents of its records. A
       dispatch is rejected with EXPAR_ERR_HANDLE if the call that was to fill the routing was rejected. So is a combine
       (back) if no dispatch with the handle has brought the contents. `*rejection` gets the reason why the call cannot
       go on, unless it has one already. */
    void (*admit)(const ep_routing *routing, bool back, ep_rejection *rejection);
    /* Does for other nodes what cpu_header_post, which calls it, does for this one. counts: its layout has just been
       filled. rows_follow: the header has advertisements, and rows follow at once; then it returns when the header has
       reached the other nodes. */
    expar_status (*header_post)(cpu_executor *self, uint32_t epoch, const ep_form *form, const ep_rejection *rejection,
                                const ep_routing *counts, bool rows_follow);
    /* Does for other nodes what cpu_retirement_post does, after that; keeps the caller's error text. */
    void (*retire)(cpu_executor *self, uint32_t epoch, const ep_rejection *rejection);
    /* Does for other nodes what cpu_reply_post and cpu_done_post do, before them. Advertisements stay inside a node.
       `rejection` is NULL for a completion flag. */
    expar_status (*post)(cpu_executor *self, ep_mailbox mailbox, uint32_t epoch, const ep_rejection *rejection);
    /* Called in each turn of the wait for records. Passes on the records that this rank has received for this node's
       ranks, by cpu_record_publish, each once. Never waits. */
    expar_status (*relay)(cpu_executor *self, ep_mailbox mailbox, uint32_t epoch);
    /* For reports of that wait: says whether the completion flag of a rank has reached this node, passed on or not. */
    bool (*done_is_here)(const cpu_executor *self, uint32_t epoch, int32_t rank);
    /* Likewise: says whether such a flag has reached this other rank of the node, which has not passed it on. */
    bool (*owes_done)(const cpu_executor *self, uint32_t epoch, int32_t rank);
    /* Headers with counts have come from all ranks: fills the part of the routing about other nodes, and first_row. */
    expar_status (*collect)(const cpu_executor *self, uint32_t epoch, ep_routing *routing);
    /* All completion flags have come. The routing now has everything that records brought, and this rank's completion
       flags have reached the other nodes, so that it may leave. */
    void (*end)(cpu_executor *self, const ep_routing *routing);

    /* ---- rows move (lanes of dispatch.c and combine.c) ---- */

    /* Come before the lanes of a call begin: nothing has moved. */
    void (*dispatch_begin)(const cpu_dispatch_run *run);
    void (*combine_begin)(const cpu_combine_run *run);
    /* Look once at the channel. A dispatch sends rows for other nodes, and forwards those that come from them, by
       cpu_token_put and cpu_token_queue. A combine sends back the rows that this node's ranks return for other nodes'
       tokens. They add to turn->open how much is left to do, and return true if anything moved. */
    bool (*dispatch_turn)(const cpu_dispatch_run *run, int32_t channel, cpu_lane_turn *turn);
    bool (*combine_turn)(const cpu_combine_run *run, int32_t worker, int32_t channel, cpu_lane_turn *turn);
    /* Adds a part of this rank's own token whose rows of this node are ready, and stay so. `y` gets biases, these rows,
       and the data of other nodes; out_weights gets the weights. Returns true when all of these are added. It returns
       false if something has not come. Then *place says where to go on, or 0 to begin anew. */
    bool (*add)(const cpu_combine_run *run, int32_t worker, const cpu_token_part *part, int32_t *place,
                expar_status *status);
    /* A lane has failed: reports what is missing on the rings of the worker's channels, of so many. */
    void (*report)(const cpu_executor *self, int32_t rings, int32_t worker, cpu_report *report);
};

#endif
