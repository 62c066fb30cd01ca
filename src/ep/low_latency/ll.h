/* SPDX-License-Identifier: Apache-2.0 */
/* ep/low_latency: the calls of low-latency mode: arguments, results, hooks, handles.
 *
 * Called by the public calls (expar/low_latency.h); calls exec/low_latency.h, which carries the phases out, group and
 * mem, and of ep what is the same in both modes: checks of tensors, outputs. Private to this folder and to tests; no
 * file here names a device.
 *
 *   shape.c     from a config to the buffer's shape and size
 *   buffer.c    expar_ll: create, destroy, abandon; stats
 *   lay_out.c   the shape of a buffer that was made without one
 *   call.c      what every call has: who is in, poison, refusals and verdicts
 *   dispatch.c  the call; dispatch_check.c its checks
 *   combine.c   the call
 *   check.c     tensors of three dimensions
 *   rest.c      the phases of a call, in the caller's thread or on the buffer's
 *   hook.c      the second half of a call; handle.c what a dispatch leaves; output.c memory of results
 *   mask.c      masks */
#ifndef EXPAR_EP_LOW_LATENCY_LL_H
#define EXPAR_EP_LOW_LATENCY_LL_H

#include "ep/call/call.h"
#include "exec/low_latency.h"
#include <expar/low_latency.h>

#define LL_MAGIC        0x66667562656c6c65u
#define LL_HANDLE_MAGIC 0x646e6168656c6c65u
#define LL_HOOK_MAGIC   0x6b6f6f68656c6c65u

struct expar_ll {
    life_record life; /* LL_MAGIC: the owner's reference, and one for each call that is under way */
    /* Who looks at this record: the life, and each hook. Whoever goes last (acq_rel) frees it. */
    _Atomic int32_t keepers;
    /* Who destroys or abandons it sets it first (exchange); destroy takes it back where it is refused. */
    atomic_bool ended;
    expar_group *group; /* held; NULL once the buffer has come to its end */
    int32_t rank;
    expar_device device;
    ll_shape shape; /* without tokens: it is still to come (lay_out.c). Touched by the calling thread only */
    ll_executor *exec;
    uint32_t number; /* of the buffers of its group, with those of normal mode */
    ep_parting parting;
    uint64_t calls; /* that were made, of either kind: the same on all ranks. Touched by the calling thread only */
    _Atomic int32_t busy;      /* 1 while a call or a hook runs: set and cleared by its thread (acquire, release) */
    ep_issuer *issuer;         /* made by the first call that is to finish on it */
    mem_block *combine_memory; /* of expar_ll_combine_buffer; NULL: not taken yet. Touched by the calling thread only */
    pthread_mutex_t poison_lock;
    error_kept poison; /* not OK after a call that was broken off. Guarded by poison_lock; set once */
};

struct expar_ll_handle {
    life_record life; /* LL_HANDLE_MAGIC */
    ep_origin origin;
    uint32_t buffer; /* number of the buffer in its group */
    int32_t ranks, max_tokens, hidden, experts, local_experts;
    ll_routing routing;
    atomic_bool filled; /* by a dispatch, or its hook, that went well (release); looked at by combines (acquire) */
};

/* How a public call on a buffer ends, which may be NULL. */
static inline expar_status ll_ended(const expar_ll *ll, expar_status status)
{
    return status == EXPAR_OK ? status : error_tell(ll ? ll->rank : -1, status);
}

/* ---- shape.c ----------------------------------------------------------------------------------------------------- */
/* *config: a copy of what is given. */
expar_status ll_shape_make(const expar_ll_config *given, int32_t ranks, expar_ll_config *config, ll_shape *shape);
/* Bytes of recv_x of a dispatch of the buffer, with rows of so many bytes. */
static inline uint64_t ll_rows_bytes(const ll_shape *shape, int64_t row_bytes)
{
    return (uint64_t)shape->local_experts * (uint64_t)shape->ranks * (uint64_t)shape->tokens * (uint64_t)row_bytes;
}

/* ---- call.c ------------------------------------------------------------------------------------------------------ */
/* One more reference; else EXPAR_ERR_NULL, or EXPAR_ERR_STATE: the buffer has been destroyed or abandoned. */
expar_status ll_enter(expar_ll *ll, const char *name);
void ll_leave(expar_ll *ll);
/* Of one of the record's keepers. */
void ll_unkeep(expar_ll *ll);
/* Takes the buffer for a call or a hook of this thread's; alone: once no call goes on by itself. EXPAR_ERR_BUSY, or why
   it cannot be used any more. On failure nothing is held. */
expar_status ll_begin(expar_ll *ll, const char *name, bool alone);
/* Waits until no call goes on by itself. Interrupted there, the call that waits has not begun, and can be made again.
   EXPAR_OK, that, or why the buffer cannot be used any more. */
expar_status ll_settle(expar_ll *ll, const char *name);
/* Likewise, for what a buffer without a shape cannot do: EXPAR_ERR_STATE. */
expar_status ll_begin_shaped(expar_ll *ll, const char *name);
/* Gives it back. Returns status, with its text as it is. */
expar_status ll_end(expar_ll *ll, expar_status status);
/* Puts the call's name and this rank before the last error's text. Returns status. */
expar_status ll_prefix(const expar_ll *ll, const char *name, expar_status status);
/* The number of a call that begins now, noted for others who ask. */
uint64_t ll_number_call(expar_ll *ll, const char *name, ll_kind kind);
/* This rank refuses the call for status, which the last error tells: the others are to learn of it. OK: nothing. */
void ll_refuse(ll_call *call, expar_status status);
/* How a send went: its failure, or this rank's refusal. kept: of ll_refuse, with its whole text. */
expar_status ll_sent(expar_ll *ll, const char *name, const ll_call *call, expar_status status, const error_kept *kept);
/* How a receive went, over all ranks. */
expar_status ll_received(expar_ll *ll, const char *name, const ll_call *call, expar_status status);
/* EXPAR_OK, or why the buffer cannot be used any more. */
expar_status ll_check_poison(expar_ll *ll);

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
expar_status ll_check_manner(int32_t hook, int32_t async_finish, const expar_event *wait_event);
/* As executors read them. */
ep_route_view ll_route_view(const expar_tensor *idx, const expar_tensor *weights);

/* ---- output.c ---------------------------------------------------------------------------------------------------- */
/* An output with a block of so many bytes. On failure *out may have what expar_ep_output_release is to give back. */
expar_status ll_output_make(expar_ll *ll, uint64_t bytes, expar_ep_output **out);

/* ---- handle.c ---------------------------------------------------------------------------------------------------- */
expar_status ll_handle_make(expar_ll *ll, int32_t tokens, int32_t topk, bool weights, expar_ll_handle **out);
/* EXPAR_ERR_NULL, EXPAR_ERR_HANDLE: that it is a living one of this buffer's. */
expar_status ll_handle_check_own(const expar_ll *ll, const expar_ll_handle *handle);
expar_ll_handle *ll_handle_hold(const expar_ll_handle *handle);
/* expar_ll_handle_capsules from item `first` of the list on; texts of errors begin with `call`. */
expar_status ll_handle_put_in_list(const char *call, expar_ll_handle *handle, const expar_python *python, void *list,
                                   int32_t first);

/* ---- rest.c ------------------------------------------------------------------------------------------------------ */
/* The phases of a call, and what it holds until that has come to its end. */
typedef struct ll_rest {
    ll_kind kind;
    union {
        ll_dispatch_step dispatch;
        ll_combine_step combine;
    } step;
    expar_ll_handle *handle; /* a reference, and one of the output, where there is one */
    expar_ep_output *output;
} ll_rest;
ll_call *ll_rest_call(ll_rest *rest);
/* A reference more of each, and back. */
void ll_rest_hold(const ll_rest *rest);
void ll_rest_drop(const ll_rest *rest);
/* Waits for the event, which may be NULL, and sends; own: why this rank refuses the call, or EXPAR_OK. */
expar_status ll_rest_send(expar_ll *ll, const char *name, ll_rest *rest, expar_event *wait_event, expar_status own);
/* Receives, and says so of the handle. */
expar_status ll_rest_receive(expar_ll *ll, const char *name, ll_rest *rest);

/* Where calls only put work on streams: how an earlier one ended that nobody had asked for. number: of the call that
   this comes behind. */
expar_status ll_tell_earlier(expar_ll *ll, const char *name, uint64_t number);
/* Likewise, but for calls that are captured. */
expar_status ll_rest_earlier(expar_ll *ll, const char *name, ll_rest *rest);

/* A call that finishes on the buffer's thread, or on its stream. */
typedef struct ll_job ll_job;
/* Room for it, its event, and the thread. */
expar_status ll_job_make(expar_ll *ll, const char *name, ll_job **out);
/* Of one that is not issued; NULL is allowed. */
void ll_job_free(ll_job *job);
/* What the phases of a call come to in the caller's thread. With a job they are left to it, and *event is the caller's
   then; with a hook the receive is. A refusal of a call that was to finish by itself is told so, too. */
typedef struct ll_manner {
    bool by_itself;
    expar_event *wait_event;
    expar_ll_hook *hook;
    ll_job *job;
} ll_manner;
expar_status ll_carry_out(expar_ll *ll, const char *name, ll_rest *rest, ll_manner *manner, expar_status own,
                          expar_event **event);

/* ---- hook.c ------------------------------------------------------------------------------------------------------ */
/* Room for a hook, and the hook itself, which has references of its own. */
expar_status ll_hook_make(expar_ll *ll, expar_ll_hook **out);
void ll_hook_fill(expar_ll_hook *hook, const ll_rest *rest);

#endif
