/* SPDX-License-Identifier: Apache-2.0 */
/* ep: expert parallelism. Checks what the caller gave, decides shapes, offsets and outputs, fills a step, and lets the
 * executor carry it out.
 *
 * Called by users (include/expar/ep.h); calls exec, the group, shmem, mem and base.
 *
 *   shape.c     from a config to the buffer's shape and size
 *   buffer.c    expar_ep: create, destroy
 *   call.c      what every call has: one at a time, poison, epochs, refusals and verdicts
 *   check.c     tensors as arguments
 *   layout.c, dispatch.c, combine.c   the calls
 *   handle.c    the routing that a dispatch leaves; output.c the memory of its results */
#ifndef EXPAR_EP_EP_H
#define EXPAR_EP_EP_H

#include "exec/executor.h"
#include "group/group.h"
#include <expar/ep.h>

struct expar_ep {
    expar_group *group;
    ep_shape shape;
    ep_space space;
    uint64_t buffer; /* offset in the heap */
    int32_t max_experts;
    executor *exec;
    mem_pool *pool;            /* symmetric: outputs whose rows come directly */
    mem_region private_region; /* outputs whose rows come by the queue; taken when the first does */
    mem_pool *private_pool;
    uint64_t serial;      /* tells handles of this buffer from others' */
    uint32_t epoch;       /* of the last call; advances alike on all ranks. Touched by the calling thread only */
    _Atomic int32_t busy; /* 1 while a call runs: set and cleared by the calling thread (acquire, release) */
    expar_status poison;  /* not OK after a failure of the group during a call. Guarded by busy, as its text */
    char poison_text[ERROR_TEXT_BYTES];
};

struct expar_ep_handle {
    uint64_t magic;  /* EP_HANDLE_MAGIC while alive */
    uint64_t serial; /* of its buffer */
    uint32_t route;  /* epoch of its dispatch: the same on all ranks */
    int64_t recv_tokens;
    ep_routing routing;
};
#define EP_HANDLE_MAGIC 0x656c646e61687065u

struct expar_ep_output {
    mem_block *block;           /* recv_x (unless the caller's), recv_topk_idx, recv_topk_weights */
    int32_t *tokens_per_expert; /* [L] */
};

/* ---- shape.c ---- */
expar_status ep_shape_make(const expar_ep_config *config, int32_t ranks, ep_shape *shape);

/* ---- call.c ---- */
/* One call on one buffer. */
typedef struct ep_call {
    expar_ep *ep;
    const char *name; /* "expar_dispatch" */
    ep_form form;
    ep_refusal refusal; /* this rank's own; status 0: none */
} ep_call;

/* Takes the buffer for one call and advances its epoch. On failure nothing is held. */
expar_status ep_call_begin(ep_call *call, const char *name, expar_ep *ep);
/* Gives it back; a status that means the group has failed poisons the buffer. Returns status. */
expar_status ep_call_end(ep_call *call, expar_status status);
/* This rank cannot carry out the call: keeps status and the last error's text for the other ranks, and adds the call's
   name to the text. Returns status. */
expar_status ep_call_refuse(ep_call *call, expar_status status);
/* Opens the call with nothing but this rank's refusal, so that the others do not wait for it. */
expar_status ep_call_tell_refusal(ep_call *call);
/* OK when all ranks agreed; else this rank's own refusal, EXPAR_ERR_REMOTE or EXPAR_ERR_MISMATCH. */
expar_status ep_call_verdict(ep_call *call, const ep_verdict *verdict);
/* Copies a versioned struct of the caller: members that it does not have are zero. `what` names it. */
expar_status ep_copy_struct(const char *what, void *dest, size_t size, const void *source);

/* ---- check.c ---- */
bool tensor_given(const expar_tensor *tensor);
/* [rows][H] of bf16, f16 or f32 on the CPU: rows of 16-byte units, each contiguous, none longer than max_row_bytes. */
expar_status ep_check_rows(const char *name, const expar_tensor *tensor, int64_t max_row_bytes);
/* [rows][columns], each row contiguous, dtype one of two. */
expar_status ep_check_matrix(const char *name, const expar_tensor *tensor, int64_t rows, int64_t columns,
                             expar_dtype dtype, expar_dtype other);
expar_status ep_check_experts(int32_t num_experts, int32_t ranks);
expar_status ep_check_handle(const expar_ep *ep, const expar_ep_handle *handle);
static inline int64_t tensor_pitch(const expar_tensor *tensor)
{
    return tensor->shape[0] > 1 ? tensor->strides[0] : tensor->shape[1];
}

/* ---- handle.c ---- */
/* Room for the routing of `tokens` tokens; arrays are not filled. */
expar_status ep_handle_create(const expar_ep *ep, int64_t tokens, int32_t topk, int32_t experts, expar_ep_handle **out);
expar_status ep_routing_alloc(ep_routing *routing, int64_t tokens, int32_t topk, int32_t experts, int32_t ranks,
                              int32_t channels);
void ep_routing_free(ep_routing *routing);

/* ---- output.c ---- */
/* Where one dispatch's results go on this rank. */
typedef struct ep_destination {
    ep_mode mode;
    expar_ep_output *output;
    void *x, *idx; /* NULL where absent */
    float *weights;
    uint64_t x_offset, idx_offset, weights_offset; /* in the heap, when DIRECT */
} ep_destination;
/* What is wanted. */
typedef struct ep_wish {
    int64_t rows, row_bytes;
    int32_t topk, idx_bytes; /* idx_bytes 0: no top-k */
    bool weights;
    expar_path path;
    const expar_tensor *out_x; /* NULL: ours */
} ep_wish;
/* A destination that is not used is given back by expar_ep_output_release(output). */
expar_status ep_destination_make(expar_ep *ep, const ep_wish *wish, ep_destination *out);

#endif
