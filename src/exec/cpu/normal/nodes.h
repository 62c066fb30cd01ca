/* SPDX-License-Identifier: Apache-2.0 */
/* What a call of normal mode asks of other nodes: a table of operations, which nodes/ fills, and which is NULL where
 * all ranks map each other. Private to the CPU executor.
 *
 * Inside a node a call goes as board.c, dispatch.c and combine.c have it. At the places that are named here it asks for
 * the part that goes over the network. What these operations keep is the executor's `rails`, which nobody else opens.
 *
 * Threads. Operations of lanes are called by the worker that has the channel; all others by the thread that is in the
 * call. Those that open a call may run beside those that see another call to its end.
 * Errors. An expar_status other than EXPAR_OK has its text, and ends the call: EXPAR_ERR_PEER with the rank that is
 * lost or has sent what cannot be; EXPAR_ERR_MEMORY; of waits what sym_rest_turn returns. A lane is told by *status. */
#ifndef EXPAR_EXEC_CPU_NORMAL_NODES_H
#define EXPAR_EXEC_CPU_NORMAL_NODES_H

#include "exec/cpu/normal/moves.h"

struct cpu_nodes_ops {
    /* ---- buffers whose records grow (records.c) ---- */

    /* As cpu_fits. Asks nobody, and answers the same on all ranks. */
    bool (*fits)(const cpu_executor *self, const ep_form *form, int64_t row_bytes);
    /* Makes what calls of the shape need besides. It is not used before `grown`. */
    expar_status (*grow)(cpu_executor *self, const ep_shape *shape);
    /* After `grow`, or instead. all: all ranks could, and go over to it; the call opens a second time in its epoch.
       Else it is given back. */
    void (*grown)(cpu_executor *self, uint32_t epoch, bool all);

    /* ---- a call opens and closes (board.c) ---- */

    /* Before this rank's offers. A dispatch gets room for what its records tell; a combine (back) is refused with
       EXPAR_ERR_HANDLE unless a dispatch with the handle has told it. *refusal: what the call had, which stays, or why
       it cannot go on. */
    void (*admit)(const ep_routing *routing, bool back, ep_refusal *refusal);
    /* As cpu_hello_post, which goes on with this node's ranks. counts: its layout has just been filled. rows_follow:
       the hello has offers, and rows follow it at once; then it returns when the hello has come to the other nodes. */
    expar_status (*hello_post)(cpu_executor *self, uint32_t epoch, const ep_form *form, const ep_refusal *refusal,
                               const ep_routing *counts, bool rows_follow);
    /* As cpu_retirement_post, after it; keeps the caller's error text. */
    void (*retire)(cpu_executor *self, uint32_t epoch, const ep_refusal *refusal);
    /* As cpu_reply_post and cpu_done_post, before them. Offers stay inside a node. */
    expar_status (*reply_post)(cpu_executor *self, uint32_t epoch, const ep_refusal *refusal);
    expar_status (*done_post)(cpu_executor *self, uint32_t epoch);
    /* In each turn of the wait for the board: hands on to this node's ranks what has come for them by this rank, by
       cpu_record_publish, each record once. Never waits. */
    expar_status (*relay)(cpu_executor *self, ep_board board, uint32_t epoch);
    /* For reports of that wait: whether the done of a rank has come to this node, handed on or not. */
    bool (*done_is_here)(const cpu_executor *self, uint32_t epoch, int32_t rank);
    /* Hellos with counts have come from all ranks: fills what the routing keeps of other nodes, and first_row. */
    expar_status (*collect)(const cpu_executor *self, uint32_t epoch, ep_routing *routing);
    /* All dones have come: the routing has all that records told, and this rank's dones have come to other nodes, so
       that it may leave. */
    void (*end)(cpu_executor *self, const ep_routing *routing);

    /* ---- rows move (lanes of dispatch.c and combine.c) ---- */

    /* Before the lanes of a call begin: nothing has moved. */
    void (*dispatch_begin)(const cpu_dispatch_run *run);
    void (*combine_begin)(const cpu_combine_run *run);
    /* One look at the channel: of a dispatch sends what is for other nodes, and forwards what comes from them, by
       cpu_token_put and cpu_token_queue; of a combine sends back what this node's ranks gave for other nodes' tokens.
       Adds to turn->open what is left to do, and returns true when anything moved. */
    bool (*dispatch_turn)(const cpu_dispatch_run *run, int32_t channel, cpu_lane_turn *turn);
    bool (*combine_turn)(const cpu_combine_run *run, int32_t worker, int32_t channel, cpu_lane_turn *turn);
    /* A part of this rank's own token whose rows of this node lie ready, and stay so: adds biases, these rows, and what
       other nodes give to y, and weights to out_weights. True when all of it is added; false when something has not
       come, and *place says from where on it goes on, 0 where it begins anew. */
    bool (*add)(const cpu_combine_run *run, int32_t worker, const cpu_token_part *part, int32_t *place,
                expar_status *status);
    /* A lane has failed: what the rings of the worker's channels, of so many, lack. */
    void (*report)(const cpu_executor *self, int32_t rings, int32_t worker, cpu_report *report);
};

#endif
