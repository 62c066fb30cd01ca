/* SPDX-License-Identifier: Apache-2.0 */
/* ep/normal: the calls of normal mode: shapes, handles and destinations of dispatch and combine.
 *
 * The public calls (expar/ep.h) call it. It calls ep/call, which has the parts that both modes share, and exec, group
 * and mem. It decides what has to be done and whether the arguments allow it; executors do it. Everything here is
 * private to this folder and to tests.
 *
 *   shape.c     from a config to the buffer's shape and size
 *   buffer.c    expar_ep: create, destroy, abandon, query
 *   requirements.c    the parts of every call here beside call.h: a form, for which records and rings may have to grow
 *   prologue.h, prologue.c  how a routing is opened: the common part of a fresh dispatch and a route; route.c the route
 *   plan.h, plan.c  the way of a call's rows, and where they are
 *   request.h, request.c  what a dispatch wants to receive, and what it tells of that before its counts
 *   dispatch.c  the call; dispatch_check.c its checks, dispatch_results.c its results
 *   combine.c   the call; combine_check.c its checks
 *   layout.c    expar_ep_get_layout
 *   sums.c      expar_ep_find_terms and expar_ep_sum_terms
 *   handle.c    the routing that a dispatch keeps; counted (base/life.h)
 *   memory.c    memory beside the pool: the caller's allocator, trim, statistics
 *   tools.h, times.c  facts of a buffer that the benchmark sees beyond the public calls */
#ifndef EXPAR_EP_NORMAL_NORMAL_H
#define EXPAR_EP_NORMAL_NORMAL_H

#include "ep/call/call.h"
#include "exec/normal.h"

#define EP_MAGIC 0x72656666756265u

/* The limits of calls: as the config says, else as the library allows. */
typedef struct ep_limits {
    int64_t tokens, row_bytes;
    int32_t topk, experts, scales;
} ep_limits;

struct expar_ep {
    ep_buffer base; /* with EP_MAGIC; the numbers of its calls are the epochs */
    ep_shape shape; /* at creation */
    ep_limits limits;
    int32_t ring_slots;                    /* as the config says; 0: as many as suit a call's rows */
    uint64_t pool_bytes, pool_limit_bytes; /* as in executor_plan */
    /* Counts of the last fresh dispatch that waited for them; they serve to guess how many rows will come. 0: none yet.
       Touched by the calling thread only. */
    int64_t last_tokens, last_rows;
    /* the caller's, for outputs that do not fit into the pool; alloc NULL: the executor's */
    mem_allocator allocator;
    /* Counts for expar_ep_get_stats. The thread that makes or carries out a call raises them, any thread reads them;
       relaxed. */
    _Atomic uint64_t growths; /* times that records and rings were enlarged; raised after that (release) */
    _Atomic uint64_t direct_calls, queue_calls;
    _Atomic uint64_t mapped_calls, copied_calls;
    _Atomic uint64_t other_blocks; /* taken beside the pool */
};

/* Ends a public call on a buffer, which may be NULL. */
static inline expar_status ep_ended(const expar_ep *ep, expar_status status)
{
    return status == EXPAR_OK ? status : error_tell(ep ? ep->base.rank : -1, status);
}

/* ---- a call, beside call.h (requirements.c) ---------------------------------------------------------------------- */

/* The requirements on records and rings. */
typedef struct ep_requirements {
    ep_form form;
    int64_t row_bytes; /* of the rows that the call brings */
} ep_requirements;
/* The first members of every call of normal mode. */
typedef struct normal_call {
    ep_call base;
    ep_requirements brings;
} normal_call;

static inline expar_ep *ep_of(const ep_call *call)
{
    return (expar_ep *)call->buffer;
}
static inline uint32_t normal_epoch(const ep_call *call)
{
    return (uint32_t)call->number;
}
/* Begins a call as ep_call_begin does. */
expar_status normal_begin(ep_call *call, const char *name, const ep_parts *parts, expar_ep *ep);
/* Sets call->forgets, if the executor puts steps on streams: nobody wants the event of the call. Callers call it right
   after normal_begin. */
static inline void normal_forget(ep_call *call, bool forgets)
{
    call->forgets = forgets && call->buffer->exec->ops->streams;
}
/* The mismatch function of ep_buffer_kind, for forms. */
expar_status normal_mismatch(const ep_vote *vote, int32_t own);
/* The refuse function of ep_parts: tells the rejection by a header. */
expar_status normal_reject(ep_call *call);
/* Says whether records and rings fit a call as they are. For a call that runs on the buffer's thread it says true,
   since that thread asks later. Ask once in a call, after earlier calls that may enlarge them. EXPAR_ERR_INTERRUPTED,
   as by ep_call_open. */
expar_status normal_fits(ep_call *call, const ep_requirements *brings, bool *fits);
/* Enlarges records and rings, on all ranks together, in the call's epoch. If the growth takes an epoch of its own, the
   call gets the next one. No call of the buffer runs meanwhile: this rank's earlier ones have ended first. A failure
   has been told to the other ranks, and leaves the buffer unchanged. step: the growth step of the call. */
expar_status normal_grow(ep_call *call, const ep_requirements *brings, ep_grow_step step);
/* Does both, for a call that runs on the buffer's thread, on that thread; else it has no effect. A call that fails here
   is over. */
expar_status normal_make_space(ep_call *call);

/* The public calls, without ep_ended. forgets: the caller releases the event of a call with async_finish at once, so
   that none need be made; result->event is NULL or an event. */
expar_status ep_dispatch_make(expar_ep *ep, const expar_ep_dispatch_args *args, bool forgets,
                              expar_ep_dispatch_result *result);
expar_status ep_combine_make(expar_ep *ep, const expar_ep_combine_args *args, bool forgets,
                             expar_ep_combine_result *result);

struct expar_ep_handle {
    life_record life; /* EP_HANDLE_MAGIC */
    ep_origin origin;
    /* Number of the buffer that it was made on, and the epoch there. Both together name one handle on all ranks. */
    uint32_t buffer;
    uint32_t route;
    int64_t rows;        /* of the output: R, or W */
    int64_t recv_tokens; /* rows of the output that came: R, at most W; -1: not known to the host */
    int64_t dropped;     /* rows that did not fit W, as far as the host knows */
    ep_routing routing;
    int32_t alignment;          /* of its experts */
    int64_t expert_rows;        /* rows of an expert-major recv_x */
    int32_t *tokens_per_expert; /* [L] of a route, for the caller; else NULL */
    /* [rows][K] int32: which row of an expert-major recv_x belongs to which slot. The first dispatch that is
       expert-major and has topk_idx makes it, sets `mapped`, and fills it later. The handle's calls on several buffers
       may come from several threads. A thread that sees the block (acquire) finds what its maker (release) has written
       there. */
    _Atomic(mem_block *) map;
    /* A call fills the map, or has filled it: one call sets this (exchange), and clears it if it fails. */
    atomic_bool mapped;
    /* A call has filled the map, and the host knows that all ranks went on. That call sets this (release). Calls that
       read the map, or could fill it again, read it (acquire). */
    atomic_bool map_sure;
};
#define EP_HANDLE_MAGIC 0x656c646e61687065u

static inline mem_block *ep_handle_map_block(const expar_ep_handle *handle)
{
    return atomic_load_explicit(&handle->map, memory_order_acquire);
}
static inline bool ep_handle_is_mapped(const expar_ep_handle *handle)
{
    return atomic_load_explicit(&handle->mapped, memory_order_acquire);
}
static inline bool ep_handle_map_is_sure(const expar_ep_handle *handle)
{
    return atomic_load_explicit(&handle->map_sure, memory_order_acquire);
}
static inline void ep_handle_map_set_sure(expar_ep_handle *handle)
{
    atomic_store_explicit(&handle->map_sure, true, memory_order_release);
}
static inline int32_t *ep_handle_map(const expar_ep_handle *handle)
{
    const mem_block *map = ep_handle_map_block(handle);
    return map ? map->data : NULL;
}

/* ---- shape.c ----------------------------------------------------------------------------------------------------- */
/* all_mapped: the ranks map each other's memory. */
expar_status ep_shape_make(const expar_ep_config *config, int32_t ranks, bool all_mapped, ep_shape *shape);
/* Limits of a config that has a shape. all_mapped: the ranks of the group map each other. */
ep_limits ep_limits_of(const expar_ep_config *config, const ep_shape *shape, bool all_mapped);

/* ---- memory.c ---------------------------------------------------------------------------------------------------- */
expar_status ep_allocator_check(const expar_ep_config *config);
/* Takes memory beside the pool: from the caller's allocator, or the executor's. */
expar_status ep_other_take(expar_ep *ep, uint64_t bytes, mem_block **out);
/* Returns EXPAR_ERR_BUSY if this thread is in a call already: an allocator makes a call that it must not make. */
expar_status ep_check_outside(const char *call);
/* Takes a block for rows that this rank will advertise in a combine: symmetric if that fits, else private. */
expar_status ep_block_take(expar_ep *ep, uint64_t bytes, mem_block **out);

/* ---- buffer.c ---------------------------------------------------------------------------------------------------- */
/* Adds a reference; else EXPAR_ERR_NULL, or EXPAR_ERR_STATE: the buffer has been destroyed or abandoned. */
expar_status ep_enter(expar_ep *ep, const char *call);
/* Checks that it is a buffer of this mode. EXPAR_ERR_NULL; EXPAR_ERR_STATE. */
expar_status ep_check_known(const expar_ep *ep, const char *call);
static inline void ep_leave(expar_ep *ep)
{
    ep_buffer_leave(&ep->base);
}
/* expar_ep_create with an executor of the caller's choice, for tests. */
expar_status ep_create_with(expar_group *group, const expar_ep_config *config, const executor_kind *kind,
                            expar_ep **out);

/* ---- handle.c ---------------------------------------------------------------------------------------------------- */
/* Makes a handle of this epoch's dispatch with memory for the routing of `wanted`. Its tokens, topk, experts and kept
   parts are set, and a token has at most `most_targets` targets. Nothing is filled. */
expar_status ep_handle_create(expar_ep *ep, uint32_t epoch, const ep_routing *wanted, int32_t most_targets,
                              expar_ep_handle **out);
expar_ep_handle *ep_handle_hold(const expar_ep_handle *handle);
/* Allocates the counts that a route gives to its caller. */
expar_status ep_handle_make_counts(expar_ep_handle *handle);
/* Allocates the map, for an expert-major dispatch. *fills: this call has to fill it. */
expar_status ep_handle_make_map(expar_ep *ep, const expar_ep_handle *handle, bool *fills);
/* Takes back the map of that call, which has failed. */
void ep_handle_unmap(const expar_ep_handle *handle);
/* Checks that the handle is one of this rank in this group, and that the buffer can carry it out. */
expar_status ep_check_handle(const expar_ep *ep, const expar_ep_handle *handle);

#endif
