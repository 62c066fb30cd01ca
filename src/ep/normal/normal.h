/* SPDX-License-Identifier: Apache-2.0 */
/* ep/normal: the calls of normal mode: shapes, handles and destinations of dispatch and combine.
 *
 * Called by the public calls (expar/ep.h); calls ep/call, which has what calls of both modes share, exec, group and
 * mem. It decides what is to be done and whether the arguments allow it; executors do it. Everything here is private to
 * this folder and to tests.
 *
 *   shape.c     from a config to the buffer's shape and size
 *   buffer.c    expar_ep: create, destroy, abandon, query
 *   brings.c    what every call has here beside call.h: a form, for which records and rings may have to grow
 *   opening.h, opening.c  how a routing is opened: what a fresh dispatch and a route have in common; route.c the route
 *   plan.h, plan.c  which way the rows of a call go, and where they lie
 *   wish.h, wish.c  what a dispatch wants to receive, and what it says of that ahead of its counts
 *   dispatch.c  the call; dispatch_check.c its checks, dispatch_results.c its results
 *   combine.c   the call; combine_check.c its checks
 *   layout.c    expar_ep_get_layout
 *   handle.c    the routing that a dispatch leaves; counted (base/life.h)
 *   memory.c    memory beside the pool: the caller's allocator, trim, statistics
 *   tools.h, times.c  what the benchmark sees of a buffer beyond the public calls */
#ifndef EXPAR_EP_NORMAL_NORMAL_H
#define EXPAR_EP_NORMAL_NORMAL_H

#include "ep/call/call.h"
#include "exec/normal.h"

#define EP_MAGIC 0x72656666756265u

/* What calls may bring; given by the config, else what the library can bear. */
typedef struct ep_limits {
    int64_t tokens, row_bytes;
    int32_t topk, experts, scales;
} ep_limits;

struct expar_ep {
    ep_buffer base; /* of EP_MAGIC; its calls are the epochs */
    ep_shape shape; /* at creation */
    ep_limits limits;
    int32_t ring_slots;                    /* given by the config; 0: as many as suit a call's rows */
    uint64_t pool_bytes, pool_limit_bytes; /* as in executor_plan */
    /* Of the last fresh dispatch whose counts were waited for: how many rows will come is guessed by them. 0: none yet.
       Touched by the calling thread only. */
    int64_t last_tokens, last_rows;
    mem_allocator allocator; /* the caller's, for what the pool has no room for; alloc NULL: the executor's */
    /* Counts for expar_ep_get_stats: raised by the thread that makes a call, or carries it out, read by any;
       relaxed. */
    _Atomic uint64_t growths; /* times that records and rings were made larger; raised behind that (release) */
    _Atomic uint64_t direct_calls, queue_calls;
    _Atomic uint64_t mapped_calls, copied_calls;
    _Atomic uint64_t other_blocks; /* taken beside the pool */
};

/* How a public call on a buffer ends, which may be NULL. */
static inline expar_status ep_ended(const expar_ep *ep, expar_status status)
{
    return status == EXPAR_OK ? status : error_tell(ep ? ep->base.rank : -1, status);
}

/* ---- a call, beside call.h (brings.c) ---------------------------------------------------------------------------- */

/* What records and rings have to hold. */
typedef struct ep_brings {
    ep_form form;
    int64_t row_bytes; /* of the rows that it brings */
} ep_brings;
/* How every call of normal mode begins. */
typedef struct normal_call {
    ep_call base;
    ep_brings brings;
} normal_call;

static inline expar_ep *ep_of(const ep_call *call)
{
    return (expar_ep *)call->buffer;
}
static inline uint32_t normal_epoch(const ep_call *call)
{
    return (uint32_t)call->number;
}
/* ep_call_begin. */
expar_status normal_begin(ep_call *call, const char *name, const ep_halves *halves, expar_ep *ep);
/* Of ep_buffer_kind: of forms. */
expar_status normal_mismatch(const ep_verdict *verdict, int32_t own);
/* Of ep_halves: by a hello. */
expar_status normal_refuse(ep_call *call);
/* Whether records and rings hold a call as they are; of one that leaves: true, for its thread asks. Once a call, behind
   those before it that may make them larger. EXPAR_ERR_INTERRUPTED, as by ep_call_open. */
expar_status normal_fits(ep_call *call, const ep_brings *brings, bool *fits);
/* Where they do not: they are made larger, by all ranks together, in the call's epoch; where that is a call of its own
   the call has the next one then. No call of the buffer is under way meanwhile: this rank's earlier ones have ended
   first. A failure has been told to the others, and leaves the buffer as it was. step: what the call takes. */
expar_status normal_grow(ep_call *call, const ep_brings *brings, ep_grow_step step);
/* Both, of a call that leaves, on the thread that carries it out; else without effect. Whoever fails here is done. */
expar_status normal_make_room(ep_call *call);

struct expar_ep_handle {
    life_record life; /* EP_HANDLE_MAGIC */
    ep_origin origin;
    uint32_t buffer; /* number of the buffer that it was made on, and the epoch there: with both all ranks mean the */
    uint32_t route;  /* same one */
    int64_t rows;    /* of the output: R, or W */
    int64_t recv_tokens; /* rows of it that came: R, at most W; -1: not known to the host */
    int64_t dropped;     /* rows that did not fit W, as far as the host knows */
    ep_routing routing;
    int32_t alignment;          /* of its experts */
    int64_t expert_rows;        /* of an expert-major recv_x */
    int32_t *tokens_per_expert; /* [L] of a route, for the caller; else NULL */
    /* [rows][K] int32, which row of an expert-major recv_x is whose. The first dispatch that is expert-major and has
       topk_idx makes it, says so, and fills it as it comes to that. The handle's calls on several buffers may come from
       several threads: who sees the block (acquire) finds what who made it (release) has put there. */
    _Atomic(mem_block *) map;
    atomic_bool mapped;   /* some call fills it, or has: taken by one (exchange), given back where it failed */
    atomic_bool map_sure; /* one has, of which the host knows that all ranks went on; set by it (release), looked at
                             (acquire) by calls that read the map, or could fill it again */
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
expar_status ep_shape_make(const expar_ep_config *config, int32_t ranks, ep_shape *shape);
/* For ranks of so many nodes, or that do not map each other: EXPAR_ERR_UNSUPPORTED, unless buffers of the device serve
   such. */
expar_status ep_shape_check_across(const expar_ep_config *config, int32_t nodes);
/* Of a config that has a shape. all_mapped: of a group whose ranks map each other. */
ep_limits ep_limits_of(const expar_ep_config *config, const ep_shape *shape, bool all_mapped);

/* ---- memory.c ---------------------------------------------------------------------------------------------------- */
expar_status ep_allocator_check(const expar_ep_config *config);
/* Memory beside the pool: from the caller's allocator, or the executor's. */
expar_status ep_other_take(expar_ep *ep, uint64_t bytes, mem_block **out);
/* EXPAR_ERR_BUSY, where a call that an allocator must not make comes from one: this thread is in a call already. */
expar_status ep_check_outside(const char *call);
/* A block for rows that this rank will offer in a combine: symmetric where there is room, else private. */
expar_status ep_block_take(expar_ep *ep, uint64_t bytes, mem_block **out);

/* ---- buffer.c ---------------------------------------------------------------------------------------------------- */
/* One more reference; else EXPAR_ERR_NULL, or EXPAR_ERR_STATE: the buffer has been destroyed or abandoned. */
expar_status ep_enter(expar_ep *ep, const char *call);
/* EXPAR_ERR_NULL; EXPAR_ERR_STATE, where it is no buffer of this mode. */
expar_status ep_check_known(const expar_ep *ep, const char *call);
static inline void ep_leave(expar_ep *ep)
{
    ep_buffer_leave(&ep->base);
}
/* expar_ep_create with an executor of the caller's choice, for tests. */
expar_status ep_create_with(expar_group *group, const expar_ep_config *config, const executor_kind *kind,
                            expar_ep **out);

/* ---- handle.c ---------------------------------------------------------------------------------------------------- */
/* Room for the routing of `wanted`, of which tokens, topk, experts and what it keeps are set, with at most
   `most_targets` targets a token, by the dispatch of this epoch; nothing is filled. */
expar_status ep_handle_create(expar_ep *ep, uint32_t epoch, const ep_routing *wanted, int32_t most_targets,
                              expar_ep_handle **out);
expar_ep_handle *ep_handle_hold(const expar_ep_handle *handle);
/* Room for what a route tells of it. */
expar_status ep_handle_make_counts(expar_ep_handle *handle);
/* For an expert-major dispatch: room for the map; *fills: it is this call that has to fill it. */
expar_status ep_handle_make_map(expar_ep *ep, const expar_ep_handle *handle, bool *fills);
/* That call has failed. */
void ep_handle_unmap(const expar_ep_handle *handle);
/* That it is one of this rank's in this group, and that the buffer can carry it out. */
expar_status ep_check_handle(const expar_ep *ep, const expar_ep_handle *handle);

#endif
