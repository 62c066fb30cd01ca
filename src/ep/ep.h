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
 *   layout.c, dispatch.c (checks: dispatch_check.c; on GPUs: dispatch_gpu.c), combine.c   the calls
 *   handle.c    the routing that a dispatch leaves; output.c the memory of its results
 *   expert_major.c  which row of an expert-major output belongs to which slot
 *   issue.c     calls that finish by themselves
 *   gpu.c       buffers on GPUs: streams, events, device memory
 *   tools.h, times.c  what the benchmark sees of a buffer beyond the public calls */
#ifndef EXPAR_EP_EP_H
#define EXPAR_EP_EP_H

#include "exec/executor.h"
#include "group/group.h"
#include <expar/ep.h>

typedef struct ep_issuer ep_issuer;

struct expar_ep {
    expar_group *group;
    expar_device device; /* where the buffer and all tensors of its calls lie */
    device_heap *gpu;    /* of a buffer on a GPU; NULL on the CPU */
    ep_shape shape;
    ep_space space;
    uint64_t buffer; /* offset in the heap */
    int32_t max_experts;
    executor *exec;
    mem_pool *pool;            /* symmetric: outputs whose rows come directly */
    mem_region private_region; /* outputs whose rows come by the queue; taken when the first does */
    mem_pool *private_pool;
    ep_issuer *issuer;    /* made by the first asynchronous call */
    uint64_t serial;      /* tells handles of this buffer from others' */
    uint32_t epoch;       /* of the last call; advances alike on all ranks. Touched by the calling thread only */
    _Atomic int32_t busy; /* 1 while a call runs: set and cleared by the calling thread (acquire, release) */
    /* With other ranks of this process, as threads: outside of captures a fresh dispatch is launched when notify is
       through, not before. */
    bool shares_gpu;
    /* On a GPU, of the last fresh dispatch whose counts were waited for: how many rows will come is guessed by them. 0:
       none yet. Touched by the calling thread only. */
    int64_t last_tokens, last_rows;
    /* On a GPU, the last one that a call of this rank returned. Touched by the calling thread only. */
    ep_refusal own_refusal;
    error_kept poison; /* not OK after a call that failed on its way, which other ranks may not know. Guarded by busy
                          and by the wait for an issued call that opens the next, or the end */
};

struct expar_ep_handle {
    uint64_t magic;      /* EP_HANDLE_MAGIC while alive */
    uint64_t serial;     /* of its buffer */
    uint32_t route;      /* epoch of its dispatch: the same on all ranks */
    atomic_int holds;    /* the caller's, and one for each asynchronous call that uses it */
    int64_t rows;        /* of the output: R, or W */
    int64_t recv_tokens; /* rows of it that came: R, at most W; -1: known on the device only */
    int64_t dropped;     /* rows that did not fit W */
    ep_routing routing;
    mem_block *device, *device_map; /* on a GPU: routing and row_map; else NULL */
    int32_t *row_map;               /* [rows][K] of an expert-major dispatch, or NULL */
    int32_t alignment;              /* of its experts */
    int64_t expert_rows;            /* rows of its recv_x */
};
#define EP_HANDLE_MAGIC 0x656c646e61687065u

struct expar_ep_output {
    atomic_int holds;           /* the caller's, and one of an asynchronous dispatch that fills it */
    mem_block *block;           /* all tensors of the result, but for the caller's own recv_x */
    mem_block *arrival;         /* expert-major: token-major rows on their way; NULL once expanded, and else */
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
/* Poisons the buffer if status means that the group has failed. Returns status. */
expar_status ep_call_poison(const ep_call *call, expar_status status);
/* How a step ended that all ranks take part in. On a GPU one that failed, for whatever reason, is not known to have
   reached the others: the ranks are out of step, and the buffer is poisoned; not in a capture, where nothing runs yet.
   The error's text names the call. Returns status. */
expar_status ep_call_step(const ep_call *call, expar_status status);
/* As ep_call_poison, and gives the buffer back. */
expar_status ep_call_end(const ep_call *call, expar_status status);
/* This rank cannot carry out the call: keeps status and the last error's text for the other ranks, and adds the call's
   name to the text. Returns status. */
expar_status ep_call_refuse(ep_call *call, expar_status status);
/* Opens the call with nothing but this rank's refusal, so that the others do not wait for it. */
expar_status ep_call_tell_refusal(ep_call *call);
/* OK when all ranks agreed; else this rank's own refusal, EXPAR_ERR_REMOTE or EXPAR_ERR_MISMATCH. */
expar_status ep_call_verdict(ep_call *call, const ep_verdict *verdict);
/* Waits for the event that the call was told to wait for, if any; its failure is this rank's refusal. Then, on a GPU,
   the call takes its place behind this rank's earlier ones: not before, since the event may be another call's. */
expar_status ep_call_follow(const ep_call *call, expar_event *event);
/* Whether it has that place: without it nothing may be put on the stream. */
bool ep_call_follows(const ep_call *call);
/* Copies a versioned struct of the caller: members that it does not have are zero. `what` names it. */
expar_status ep_copy_struct(const char *what, void *dest, size_t size, const void *source);

/* ---- check.c ---- */
bool tensor_given(const expar_tensor *tensor);
/* [rows][H] of bf16, f16 or f32 (quantised: or f8e4m3 or i8) on the device: rows of 16-byte units, each contiguous,
   none longer than max_row_bytes. */
expar_status ep_check_rows(expar_device device, const char *name, const expar_tensor *tensor, int64_t max_row_bytes,
                           bool quantised);
/* Of a tensor that has passed one of the others: every row begins at a multiple of 16 bytes. */
expar_status ep_check_units(const char *name, const expar_tensor *tensor);
/* [rows][1 to max_scales] of 4-byte elements on the device, any strides. */
expar_status ep_check_scales(expar_device device, const expar_tensor *scales, int64_t rows, int32_t max_scales);
/* [rows][columns], each row contiguous, dtype one of two. */
expar_status ep_check_matrix(expar_device device, const char *name, const expar_tensor *tensor, int64_t rows,
                             int64_t columns, expar_dtype dtype, expar_dtype other);
/* That an address is memory of the device, as far as it shows; NULL is. */
expar_status ep_check_place(expar_device device, const char *name, const void *data);
expar_status ep_check_experts(int32_t num_experts, int32_t ranks);
expar_status ep_check_handle(const expar_ep *ep, const expar_ep_handle *handle);
static inline int64_t tensor_pitch(const expar_tensor *tensor)
{
    return tensor->shape[0] > 1 ? tensor->strides[0] : tensor->shape[1];
}

/* ---- handle.c ---- */
/* Room for the routing of `tokens` tokens with at most most_targets destinations each; arrays are not filled. */
expar_status ep_handle_create(expar_ep *ep, int64_t tokens, int32_t topk, int32_t experts, int32_t most_targets,
                              expar_ep_handle **out);
expar_ep_handle *ep_handle_hold(const expar_ep_handle *handle);
/* tokens, ranks, ranks_per_node, channels, topk and experts are set. */
expar_status ep_routing_alloc(ep_routing *routing, int32_t most_targets);
void ep_routing_free(ep_routing *routing);

/* ---- output.c ---- */
/* What a dispatch wants to receive. */
typedef struct ep_wish {
    ep_block_shape shape; /* of the results; x_rows differs from rows when expert-major */
    bool expert_major;
    expar_path path;
    bool rows_known;           /* the host knows how many rows come; not so on a GPU with num_worst_tokens */
    const expar_tensor *out_x; /* NULL: ours */
    expar_ep_output *output;   /* with its block, where it was made ahead; NULL: to be made */
    bool staged;               /* set by ep_destination_make: rows come to a block first, and are copied to out_x */
} ep_wish;
/* Where it goes on this rank. */
typedef struct ep_destination {
    expar_ep_output *output;
    ep_arrival arrival; /* where rows come */
    void *x, *scales;   /* the results' rows: those of the arrival, or the expert-major ones */
    int32_t *row_map;   /* NULL without */
} ep_destination;
/* Empty, with one hold; NULL: no memory. */
expar_ep_output *ep_output_make(void);
/* Takes wish->output in any case. A destination that is not used is given back by expar_ep_output_release(output). */
expar_status ep_destination_make(expar_ep *ep, const ep_wish *wish, ep_destination *out);
/* Rows of so many bytes, pitch_bytes apart, from the first byte to the last. */
static inline uint64_t ep_span_bytes(int64_t rows, int64_t pitch_bytes, int64_t bytes)
{
    return rows > 0 ? (uint64_t)((rows - 1) * pitch_bytes + bytes) : 0;
}
/* A block for rows that this rank will offer in a combine: symmetric where there is room, else private. */
expar_status ep_block_take(expar_ep *ep, uint64_t bytes, mem_block **out);

/* ---- expert_major.c ---- */
/* [L] counts rounded up to multiples of alignment; their sum. EXPAR_ERR_ARGUMENT when one does not fit 31 bits. */
expar_status ep_expert_counts(const ep_routing *routing, int32_t alignment, int32_t *counts, int64_t *sum);
/* From local expert numbers of the rows that came to rows of the expert-major output; counts as above. Fills the
   handle's row_map: -1 for slots without a local expert, of rows that did not come, and whose place lies beyond
   expert_rows. */
expar_status ep_expert_map(expar_ep_handle *handle, const int32_t *counts, const void *idx, int32_t idx_bytes);
/* Zeroes the expert-major rows (and scales) that the handle's row_map names nowhere. */
expar_status ep_expert_zero_padding(const expar_ep_handle *handle, void *x, int64_t row_bytes, void *scales,
                                    int64_t scale_bytes);

/* ---- gpu.c ---- */
/* The call's stream; nothing is put there before ep_call_follow, or ep_call_tell_refusal. asked: somebody will ask how
   the call ended, by waiting for it or by its event. */
expar_status ep_gpu_begin(expar_ep *ep, void *stream, bool asked);
/* Logs how a call ended that nobody asked for, if it did not end well. */
void ep_gpu_tell_untold(const ep_call *call);
/* What a graph cannot hold: an event to wait for or to signal. OK unless the call's stream is being captured. */
expar_status ep_gpu_check_capture(const expar_ep *ep, const expar_event *wait_event, bool async_finish);
/* Ends a call's work on its stream; the event (NULL: none) happens when the stream has come here. */
expar_status ep_gpu_end(const ep_call *call, expar_event *event);
/* Opens the GPU, takes the buffer's memory there, makes the executor and the pool. */
expar_status ep_gpu_fill_buffer(expar_ep *ep, int32_t num_sms);
/* Gives back what fill_buffer made; collective while `sound`. quiet: none of this rank's calls has failed. */
void ep_gpu_empty_buffer(expar_ep *ep, bool sound, bool quiet);
/* Whether this rank's peers can reach the range, and its offset. */
bool ep_in_heap(const expar_ep *ep, const void *data, uint64_t bytes, uint64_t *offset);

/* ---- issue.c ---- */
typedef expar_status (*ep_job_fn)(void *context);
/* Makes sure that an asynchronous call can be issued, and makes its event. */
expar_status ep_issue_prepare(expar_ep *ep, expar_event **event);
/* Hands the rest of the call to the buffer's own thread, which frees what it is told to and then finishes the event. */
void ep_issue(expar_ep *ep, ep_job_fn run, void *context, expar_event *event);
/* Waits for the job that was issued last, if any. */
void ep_issue_join(expar_ep *ep);
void ep_issue_stop(expar_ep *ep);

#endif
