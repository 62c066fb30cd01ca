/* SPDX-License-Identifier: Apache-2.0 */
/* How a routing is opened: what a fresh dispatch and a route have in common, from its arguments to the counts. Shared
 * by the files of dispatch and route.c only. */
#ifndef EXPAR_EP_NORMAL_PROLOGUE_H
#define EXPAR_EP_NORMAL_PROLOGUE_H

#include "ep/normal/normal.h"

/* The arguments that a routing follows from, whichever call has them. */
typedef struct ep_prologue {
    int64_t tokens; /* T */
    expar_tensor topk_idx, topk_weights, token_in_rank, topk_idx_copy;
    const int32_t *tokens_per_expert;
    bool counts_far; /* the host cannot read these itself. Found once, since a replay must not ask the driver */
    int64_t num_worst_tokens, num_expert_rows;
    int32_t num_experts, expert_alignment;
    bool keep_slots;
} ep_prologue;

static inline int64_t prologue_alignment(const ep_prologue *prologue)
{
    return prologue->expert_alignment > 1 ? prologue->expert_alignment : 1;
}

/* Checks all of them. needs: another argument that is given, and needs topk_idx; NULL: none. */
expar_status prologue_check(const expar_ep *ep, const ep_prologue *prologue, const char *needs);
/* Checks only the numbers, which a dispatch with a handle may give, too. */
expar_status prologue_check_sizes(const ep_prologue *prologue);
/* Checks topk_idx and topk_weights of so many tokens. */
expar_status prologue_check_topk(const expar_ep *ep, const ep_prologue *prologue);
/* Counts that the host is to learn are known only when a graph runs. */
expar_status prologue_check_capture(const ep_call *call, const ep_prologue *prologue);
/* In a capture: lists the addresses of these arguments, and of the counts that the caller wants. */
void prologue_list(const ep_prologue *prologue, const expar_ep_recv_counts *counts, exec_replay *replay);
/* As executors read them. */
ep_route_view prologue_view(const ep_prologue *prologue);

/* Returns what a form says of slots that a handle keeps. Across nodes these come with the rows, so either all ranks ask
   for them or none does. */
int32_t prologue_slots_option(const ep_call *call, bool keeps_slots);
/* The handle of a call of that form; its counts are not known yet. */
expar_status prologue_make_handle(const ep_call *call, const ep_form *form, const ep_prologue *prologue,
                                  expar_ep_handle **out);
/* Says whether this rank's pool can grow in this call. A call that need not wait for its counts can wait for the growth
   alone. A rank that never waits keeps the others from growing. */
ep_growth prologue_growth(const ep_call *call, const ep_prologue *prologue, bool async_finish);
/* Opens the call: step has its routing, and rows if some are to be sent ahead. OK: all ranks go on, and step->counted
   says whether the host knows the counts. */
expar_status prologue_notify(ep_call *call, ep_notify_step *step);
/* The host knows how many rows come: the handle's are R, or W of which so many are used. */
void prologue_take_counts(const ep_prologue *prologue, expar_ep_handle *made);
/* [L] counts rounded up to multiples of the alignment, which fit (EP_MOST_ALIGNMENT). Returns their sum. */
int64_t prologue_round_counts(const ep_prologue *prologue, const ep_routing *routing, int32_t *counts);
/* Checks the counts that the caller wants where its tensors are. given: NULL for none. */
expar_status prologue_check_counts(const expar_ep *ep, const expar_ep_recv_counts *given, expar_ep_recv_counts *out);
/* Returns whether any counts are wanted, and the step that tells them. */
bool prologue_counts_step(const expar_ep_handle *handle, const expar_ep_recv_counts *counts, ep_counts_step *out);
/* A step; nothing where nothing is wanted. */
expar_status prologue_tell_counts(ep_call *call, const expar_ep_handle *handle, const expar_ep_recv_counts *counts);
/* Returns the number of rows that an expert-major output has with num_worst_tokens, or with num_expert_rows. */
int64_t prologue_worst_expert_rows(const ep_prologue *prologue, const expar_ep_handle *made);

#endif
