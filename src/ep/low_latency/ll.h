/* SPDX-License-Identifier: Apache-2.0 */
/* ep/low_latency: the calls of low-latency mode: arguments, results, hooks, handles.
 *
 * Called by the public calls (expar/low_latency.h); calls ep/call, which has what calls of both modes share, and
 * exec/low_latency.h, which carries the phases out. Private to this folder and to tests; no file here names a device.
 *
 *   shape.c     from a config to the buffer's shape and size
 *   buffer.c    expar_ll: create, destroy, abandon; stats
 *   lay_out.c   the shape of a buffer that was made without one
 *   call.c      what every call has here beside ep/call/call.h: its halves, and how they went
 *   dispatch.c  the call; dispatch_check.c its checks
 *   combine.c   the call
 *   check.c     tensors of three dimensions
 *   hook.c      the second half of a call; handle.c what a dispatch leaves
 *   mask.c      masks */
#ifndef EXPAR_EP_LOW_LATENCY_LL_H
#define EXPAR_EP_LOW_LATENCY_LL_H

#include "ep/call/call.h"
#include "exec/low_latency.h"
#include <expar/low_latency.h>
#include <expar/python.h>

#define LL_MAGIC        0x66667562656c6c65u
#define LL_HANDLE_MAGIC 0x646e6168656c6c65u
#define LL_HOOK_MAGIC   0x6b6f6f68656c6c65u

struct expar_ll {
    ep_buffer base; /* of LL_MAGIC */
    /* Who looks at this record: the life, and each hook. Whoever goes last (acq_rel) frees it. */
    _Atomic int32_t keepers;
    ll_shape shape; /* without tokens: it is still to come (lay_out.c). Touched by the calling thread only */
    ll_reserved reserve;
    mem_block
        *combine_memory; /* of expar_ll_get_combine_buffer; NULL: not taken yet. Touched by the calling thread only */
    /* Calls of each kind, and which of the halves have one that waits for its hook, as the host knows them as long as
       no call was made in a capture. By the thread that carries a call out, one after the other. */
    uint64_t made[LL_KINDS];
    bool open[LL_KINDS][LL_HALVES];
    bool in_graphs; /* one was */
    uint32_t era;   /* of masks: each clean begins one, and handles of earlier ones serve no more */
};

struct expar_ll_handle {
    life_record life; /* LL_HANDLE_MAGIC */
    ep_origin origin;
    uint32_t buffer; /* number of the buffer in its group */
    int32_t ranks, max_tokens, hidden, experts, local_experts;
    ll_routing routing;
    uint32_t era;       /* in which the dispatch was */
    atomic_bool filled; /* by a dispatch, or its hook, that went well (release); looked at by combines (acquire) */
};

/* How a public call on a buffer ends, which may be NULL. */
static inline expar_status ll_ended(const expar_ll *ll, expar_status status)
{
    return status == EXPAR_OK ? status : error_tell(ll ? ll->base.rank : -1, status);
}

/* ---- shape.c ----------------------------------------------------------------------------------------------------- */
/* *config: a copy of what is given. */
expar_status ll_shape_make(const expar_ll_config *given, int32_t ranks, expar_ll_config *config, ll_shape *shape);
/* Bytes of recv_x of a dispatch of the buffer, with rows of so many bytes. */
static inline uint64_t ll_rows_bytes(const ll_shape *shape, int64_t row_bytes)
{
    return (uint64_t)shape->local_experts * (uint64_t)shape->ranks * (uint64_t)shape->tokens * (uint64_t)row_bytes;
}

/* ---- buffer.c ---------------------------------------------------------------------------------------------------- */
/* EXPAR_ERR_NULL; EXPAR_ERR_STATE, where it is no buffer of this mode. */
expar_status ll_check_known(const expar_ll *ll, const char *name);
/* Of one of the record's keepers. */
void ll_unkeep(expar_ll *ll);
/* Takes the buffer for something else than a call; alone: once no call goes on by itself. EXPAR_ERR_BUSY, or why it
   cannot be used any more. On failure nothing is held. It is given back by ep_buffer_give. */
expar_status ll_take(expar_ll *ll, const char *name, bool alone);
/* EXPAR_ERR_STATE: the buffer has no shape yet. */
expar_status ll_check_shaped(const expar_ll *ll, const char *name);

/* ---- call.c ------------------------------------------------------------------------------------------------------ */
/* A call on its way. */
typedef struct ll_op {
    ep_call base;
    ll_kind kind;
    int32_t half; /* from its send on */
    union {
        ll_dispatch_step dispatch;
        ll_combine_step combine;
    } step;
    expar_ll_handle *handle; /* a reference, and one of the output, where there is one */
    expar_ep_output *output;
} ll_op;
static inline ll_call *ll_op_call(ll_op *op)
{
    return op->kind == LL_DISPATCH ? &op->step.dispatch.call : &op->step.combine.call;
}
/* How the caller wants it made. */
typedef struct ll_manner {
    void *stream;
    expar_event *wait_event;
    int32_t num_sms, hook, async_finish;
} ll_manner;
/* ep_call_begin, of a buffer that has its shape. */
expar_status ll_op_begin(ll_op *op, const char *name, ll_kind kind, expar_ll *ll);
/* Learns of the stream, whatever the arguments came to, and looks at what a graph cannot hold. Returns what is wrong.
   */
expar_status ll_op_learn(ll_op *op, const ll_manner *manner, expar_status checked);
/* The hook and the event that it wants, before the others are told. */
expar_status ll_op_promise(ll_op *op, const ll_manner *manner, expar_ll_hook **hook);
/* Carries it out, or as much of it as is to be done here; with a hook (NULL: none) that has the rest. prepared: why
   this rank refuses it, or OK. */
expar_status ll_op_finish(ll_op *op, expar_ll_hook *hook, expar_status prepared);
/* A reference more of each, and back. */
void ll_op_hold(ep_call *base);
void ll_op_drop(ep_call *base);
/* Of ep_halves. All failures, and refusals for good, leave the ranks in different places. */
expar_status ll_judge(const ep_call *call, expar_status status, const ep_verdict *verdict);
/* Of ep_buffer_kind: of two ll_form. */
expar_status ll_mismatch(const ep_verdict *verdict, int32_t own);
/* Where calls only put work on streams: how an earlier one has ended that nobody had asked for. number: of the call
   that this comes behind. */
expar_status ll_tell_earlier(expar_ll *ll, const char *name, uint64_t number);

/* ---- check.c ----------------------------------------------------------------------------------------------------- */
/* [a][b][c] on the device, each row contiguous, rows of 16-byte units that do not overlap. */
expar_status ll_check_rows(const expar_ll *ll, const char *name, const expar_tensor *tensor, expar_dtype dtype);
/* x of the buffer: its dtype, and that its elements are no longer than the buffer's. */
expar_status ll_check_dtype(const expar_ll *ll, const char *name, expar_dtype dtype);
/* What the caller lends for a result has just the shape, dtype and strides of `wanted`. */
expar_status ll_check_result(const expar_ll *ll, const char *name, const expar_tensor *tensor,
                             const expar_tensor *wanted);
/* [n] contiguous, or not given. */
expar_status ll_check_vector(const expar_ll *ll, const char *name, const expar_tensor *tensor, expar_dtype dtype,
                             int64_t n);
/* topk_idx, and topk_weights where they are given. */
expar_status ll_check_topk(const expar_ll *ll, const expar_tensor *idx, const expar_tensor *weights, int64_t tokens);
/* [L][N*B][H] of the dtype, contiguous. */
expar_tensor ll_rows_tensor(const expar_ll *ll, void *data, expar_dtype dtype);
/* How a call is made: by a hook, by itself, or neither. */
expar_status ll_check_manner(int32_t hook, int32_t async_finish);
/* An output with a block of so many bytes. On failure *out may have what expar_ep_output_release is to give back. */
expar_status ll_output_make(expar_ll *ll, uint64_t bytes, expar_ep_output **out);
/* As executors read them. */
ep_route_view ll_route_view(const expar_tensor *idx, const expar_tensor *weights);

/* ---- handle.c ---------------------------------------------------------------------------------------------------- */
expar_status ll_handle_make(expar_ll *ll, int32_t tokens, int32_t topk, bool weights, expar_ll_handle **out);
/* EXPAR_ERR_NULL, EXPAR_ERR_HANDLE: that it is a living one of this buffer's. */
expar_status ll_handle_check_own(const expar_ll *ll, const expar_ll_handle *handle);
expar_ll_handle *ll_handle_hold(const expar_ll_handle *handle);
/* expar_python_put_ll_handle from item `first` of the list on; texts of errors begin with `call`. */
expar_status ll_handle_put_in_list(const char *call, expar_ll_handle *handle, const expar_python_objects *python,
                                   void *list, int32_t first);

/* ---- hook.c ------------------------------------------------------------------------------------------------------ */
/* Room for a hook, and the hook itself, which has references of its own. */
expar_status ll_hook_make(expar_ll *ll, expar_ll_hook **out);
void ll_hook_fill(expar_ll_hook *hook, const ll_op *op);

#endif
