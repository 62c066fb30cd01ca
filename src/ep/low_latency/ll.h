/* SPDX-License-Identifier: Apache-2.0 */
/* ep/low_latency: the calls of low-latency mode: arguments, results, hooks, handles.
 *
 * The public calls (expar/low_latency.h) call it. It calls ep/call, which has the parts that both modes share, and
 * exec/low_latency.h, which carries the phases out. It is private to this folder and to tests. No file here names a
 * device.
 *
 *   shape.c     from a config to the buffer's shape and size
 *   buffer.c    expar_ll: create, destroy, abandon; stats
 *   lay_out.c   the shape of a buffer that was made without one
 *   call.c      the parts of every call here beside ep/call/call.h: send and receive, and their results
 *   dispatch.c  the call; dispatch_check.c its checks
 *   combine.c   the call
 *   check.c     tensors of three dimensions
 *   signals.c   what a combine waits for before it reads rows
 *   hook.c      the receiving part of a call; handle.c the routing that a dispatch keeps
 *   mask.c      masks */
#ifndef EXPAR_EP_LOW_LATENCY_LL_H
#define EXPAR_EP_LOW_LATENCY_LL_H

#include "ep/call/call.h"
#include "exec/low_latency.h"
#include <expar/low_latency.h>
#include <expar/python.h>

/* config.sums of a buffer that carries out all sums. */
#define LL_ALL_SUMS (1 << EXPAR_LL_SUM_EXACT | 1 << EXPAR_LL_SUM_REDUCED)

#define LL_MAGIC        0x66667562656c6c65u
#define LL_HANDLE_MAGIC 0x646e6168656c6c65u
#define LL_HOOK_MAGIC   0x6b6f6f68656c6c65u

struct expar_ll {
    ep_buffer base; /* with LL_MAGIC */
    /* References to this record: one of the buffer itself, one of each hook. Dropping the last one (acq_rel) frees
       it. */
    _Atomic int32_t keepers;
    ll_shape shape; /* without tokens: not given yet (lay_out.c). Touched by the calling thread only */
    ll_reserved reserve;
    /* Memory of expar_ll_get_combine_buffer; NULL: not taken yet. Touched by the calling thread only. */
    mem_block *combine_memory;
    /* The number of calls of each kind, and which slots have a call that waits for its hook. The host knows this as
       long as no call was made in a capture. Written by the thread that carries a call out, one after the other. */
    uint64_t made[LL_KINDS];
    bool open[LL_KINDS][LL_SLOTS];
    bool in_graphs; /* a call was made in a capture */
    uint32_t era;   /* of masks: each clean begins one, and handles of earlier ones are no longer valid */
};

struct expar_ll_handle {
    life_record life; /* LL_HANDLE_MAGIC */
    ep_origin origin;
    uint32_t buffer; /* number of the buffer in its group */
    int32_t ranks, max_tokens, hidden, experts, local_experts;
    ll_routing routing;
    uint32_t era; /* era of the dispatch */
    /* set by a dispatch, or its hook, that succeeded (release); read by combines (acquire) */
    atomic_bool filled;
};

/* Ends a public call on a buffer, which may be NULL. */
static inline expar_status ll_ended(const expar_ll *ll, expar_status status)
{
    return status == EXPAR_OK ? status : error_tell(ll ? ll->base.rank : -1, status);
}

/* ---- shape.c ----------------------------------------------------------------------------------------------------- */
/* Checks `given`, copies it to *config, and makes the shape. */
expar_status ll_shape_make(const expar_ll_config *given, int32_t ranks, expar_ll_config *config, ll_shape *shape);
/* Returns the bytes of recv_x of a dispatch of the buffer, with rows of so many bytes. */
static inline uint64_t ll_rows_bytes(const ll_shape *shape, int64_t row_bytes)
{
    return (uint64_t)shape->local_experts * (uint64_t)shape->ranks * (uint64_t)shape->tokens * (uint64_t)row_bytes;
}

/* ---- buffer.c ---------------------------------------------------------------------------------------------------- */
/* Checks that it is a buffer of this mode. EXPAR_ERR_NULL; EXPAR_ERR_STATE. */
expar_status ll_check_known(const expar_ll *ll, const char *name);
/* Drops a reference to the record. */
void ll_unkeep(expar_ll *ll);
/* Takes the buffer for something other than a call. alone: waits until no call runs by itself. EXPAR_ERR_BUSY, or why
   the buffer cannot be used any more. On failure nothing is held. ep_buffer_give gives it back. */
expar_status ll_take(expar_ll *ll, const char *name, bool alone);
/* Returns EXPAR_ERR_STATE if the buffer has no shape yet. */
expar_status ll_check_shaped(const expar_ll *ll, const char *name);

/* ---- call.c ------------------------------------------------------------------------------------------------------ */
/* A call in progress. */
typedef struct ll_op {
    ep_call base;
    int32_t half; /* its slot, from its send on */
    union {
        ll_call call;
        ll_dispatch_step dispatch;
        ll_combine_step combine;
    } step;
    /* a reference, as of the output, if there is one */
    expar_ll_handle *handle;
    expar_ep_output *output;
    expar_ll_hook *hook; /* of a call with a hook, until the caller has it */
} ll_op;
static inline expar_ll *ll_of(const ep_call *call)
{
    return (expar_ll *)call->buffer;
}
/* The way in which the caller wants the call made. */
typedef struct ll_manner {
    void *stream;
    expar_event *wait_event;
    int32_t num_sms, hook, async_finish;
} ll_manner;
/* That of the arguments of either call. */
#define LL_MANNER_OF(args)                                                                                             \
    (&(const ll_manner){.stream = (args)->stream,                                                                      \
                        .wait_event = (args)->wait_event,                                                              \
                        .num_sms = (args)->num_sms,                                                                    \
                        .hook = (args)->hook,                                                                          \
                        .async_finish = (args)->async_finish})
/* Begins a call as ep_call_begin does, on a buffer that has its shape. */
expar_status ll_op_begin(ll_op *op, const char *name, ll_kind kind, expar_ll *ll);
/* Sets the call's stream, whatever the check of the arguments found, and rejects what a graph cannot have. Returns the
   error, or `checked`. */
expar_status ll_op_learn(ll_op *op, const ll_manner *manner, expar_status checked);
/* Makes the hook or the event that the caller wants, before the other ranks are told. */
expar_status ll_op_promise(ll_op *op);
/* Carries the call out, or the part that has to be done here. With a hook the hook has the rest. prepared: why this
   rank rejects the call, or OK. */
expar_status ll_op_finish(ll_op *op, expar_status prepared);
/* Ends the public call. If it failed, drops everything that it has made. Returns status. */
expar_status ll_op_end(ll_op *op, expar_status status);
/* Take a reference to handle and output, and drop it. */
void ll_op_hold(ep_call *base);
void ll_op_drop(ep_call *base);
/* The judge of ep_parts. All failures, and final rejections, leave the ranks in different places. */
expar_status ll_judge(const ep_call *call, expar_status status, const ep_vote *vote);
/* The mismatch function of ep_buffer_kind, for two ll_form. */
expar_status ll_mismatch(const ep_vote *vote, int32_t own);
/* If calls only put work on streams: reports how an earlier one ended that no caller has asked about. number: of the
   call that comes after it. */
expar_status ll_tell_earlier(expar_ll *ll, const char *name, uint64_t number);

/* ---- check.c ----------------------------------------------------------------------------------------------------- */
/* Checks for [a][b][c] on the device: each row contiguous, rows of 16-byte pieces that do not overlap. */
expar_status ll_check_rows(const expar_ll *ll, const char *name, const expar_tensor *tensor, expar_dtype dtype);
/* Checks the dtype of the buffer's x, and that its elements are no longer than the buffer's. */
expar_status ll_check_dtype(const expar_ll *ll, const char *name, expar_dtype dtype);
/* Checks that the caller's tensor for a result has exactly the shape, dtype and strides of `wanted`. */
expar_status ll_check_result(const expar_ll *ll, const char *name, const expar_tensor *tensor,
                             const expar_tensor *wanted);
/* Checks for a contiguous [n], or none. */
expar_status ll_check_vector(const expar_ll *ll, const char *name, const expar_tensor *tensor, expar_dtype dtype,
                             int64_t n);
/* Checks topk_idx, and topk_weights if they are given. */
expar_status ll_check_topk(const expar_ll *ll, const expar_tensor *idx, const expar_tensor *weights, int64_t tokens);
/* Returns a contiguous tensor [L][N*B][H] of the dtype. */
expar_tensor ll_rows_tensor(const expar_ll *ll, void *data, expar_dtype dtype);
/* Checks that a call is made with a hook, with async_finish, or neither. */
expar_status ll_check_manner(int32_t hook, int32_t async_finish);
/* Makes an output with a block of so many bytes. On failure *out may be an output that the caller has to release. */
expar_status ll_output_make(expar_ll *ll, uint64_t bytes, expar_ep_output **out);
/* Converts them for executors. */
ep_route_view ll_route_view(const expar_tensor *idx, const expar_tensor *weights);

/* ---- handle.c ---------------------------------------------------------------------------------------------------- */
expar_status ll_handle_make(expar_ll *ll, int32_t tokens, int32_t topk, bool weights, expar_ll_handle **out);
/* Checks that it is a live handle of this buffer. EXPAR_ERR_NULL, EXPAR_ERR_HANDLE. */
expar_status ll_handle_check_own(const expar_ll *ll, const expar_ll_handle *handle);
expar_ll_handle *ll_handle_hold(const expar_ll_handle *handle);
/* Does expar_python_put_ll_handle from item `first` of the list on; texts of errors begin with `call`. */
expar_status ll_handle_put_in_list(const char *call, expar_ll_handle *handle, const expar_python_objects *python,
                                   void *list, int32_t first);

/* ---- signals.c --------------------------------------------------------------------------------------------------- */
/* Checks the caller's signals. Without any, made->words becomes NULL. */
expar_status ll_signals_make(const expar_ll *ll, const expar_ll_signals *signals, ll_signals *made);
/* Waits for them, if that comes before the other ranks are told. */
expar_status ll_signals_await(const expar_ll *ll, const ll_signals *signals);

/* ---- hook.c ------------------------------------------------------------------------------------------------------ */
/* Makes an empty hook, and fills it; the hook has references of its own. */
expar_status ll_hook_make(expar_ll *ll, expar_ll_hook **out);
void ll_hook_fill(expar_ll_hook *hook, const ll_op *op);

#endif
