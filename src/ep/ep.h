/* SPDX-License-Identifier: Apache-2.0 */
/* ep: expert parallelism: checks, shapes, handles and outputs of dispatch and combine.
 *
 * Called by the public calls (expar/ep.h); calls exec, group and mem. It decides what is to be done and whether the
 * arguments allow it; executors do it. Everything here is private to this folder and to tests.
 *
 * A call is written once, as a sequence of steps. Which device carries them out is settled when the buffer is made, and
 * when their facts are known is the executor's answer: no call branches on it (check.c and shape.c look at where
 * tensors lie).
 *
 *   shape.c     from a config to the buffer's shape and size
 *   buffer.c    expar_ep: create, destroy, abandon; parting.c whether all ranks come to its end
 *   call.h, call.c  what every call has: phases, poison, epochs, refusals and verdicts; issue.c calls that finish on a
 *               thread of the buffer's, issuer.c that thread
 *   opening.h, opening.c  how a routing is opened: what a fresh dispatch and a route have in common; route.c the route
 *   dispatch.c  the call; dispatch_check.c its checks, dispatch_room.c room ahead of its counts, dispatch_output.c its
 *               results
 *   combine.c   the call
 *   check.c     tensors as arguments
 *   layout.c    expar_ep_layout
 *   handle.c    the routing that a dispatch leaves; output.c the memory of its results, destination.c where in it
 *               they go; both are counted (base/life.h)
 *   unheard.c   what went wrong in calls that nobody asked about
 *   tools.h, times.c  what the benchmark sees of a buffer beyond the public calls */
#ifndef EXPAR_EP_EP_H
#define EXPAR_EP_EP_H

#include "base/life.h"
#include "ep/call.h"
#include "group/group.h"
#include <expar/ep.h>

/* ---- unheard.c --------------------------------------------------------------------------------------------------- */
typedef struct ep_unheard ep_unheard;
/* NULL: no memory. */
ep_unheard *ep_unheard_make(void);
void ep_unheard_release(ep_unheard *unheard); /* NULL is allowed */
/* Keeps the failure, unless there is one already that expar_ep_query has not told. Any thread. */
void ep_unheard_note(ep_unheard *unheard, const error_kept *ended);
/* The call's failure is noted if the event goes and nobody has waited for it. Before anybody but its call knows the
   event. */
void ep_unheard_hear(ep_unheard *unheard, expar_event *event);

/* How a buffer's ranks come to its end (parting.c). */
typedef struct ep_parting {
    expar_group *group;
    const char *call; /* that ends it: "expar_ep_destroy" */
    uint64_t offset;  /* in the heap, where ranks tell */
    uint32_t number;  /* of the buffer in its group */
} ep_parting;

/* What calls may bring; given by the config, else what the library can bear. */
typedef struct ep_limits {
    int64_t tokens, row_bytes;
    int32_t topk, experts, scales;
} ep_limits;

struct expar_ep {
    life_record life; /* EP_MAGIC: the owner's reference, and one for each call and the buffer's thread */
    /* Who destroys or abandons it sets it first (exchange, relaxed: references order the rest); destroy takes it back
       where it is refused. Read by ep_enter. */
    atomic_bool ended;
    expar_group *group;  /* held; NULL once the buffer has come to its end */
    int32_t rank;        /* in it */
    expar_device device; /* where the buffer and all tensors of its calls lie */
    const executor_kind *kind;
    ep_shape shape; /* at creation */
    ep_limits limits;
    int32_t ring_slots;                    /* given by the config; 0: as many as suit a call's rows */
    uint64_t pool_bytes, pool_limit_bytes; /* as in executor_plan */
    executor *exec;
    ep_issuer *issuer; /* made by the first call that is to finish on it */
    bool last_issued;  /* the last call finishes on it. Touched by the calling thread only */
    uint32_t number;   /* of the buffers of its group, from 1: the same on all ranks */
    ep_parting parting;
    uint32_t epoch;       /* of the last call; advances alike on all ranks. Touched by the calling thread only */
    _Atomic int32_t busy; /* 1 while a call is begun, or runs in the caller's thread: set and cleared by that thread
                             (acquire, release) */
    /* Of the last fresh dispatch whose counts were waited for: how many rows will come is guessed by them. 0: none yet.
       Touched by the calling thread only. */
    int64_t last_tokens, last_rows;
    ep_unheard *unheard;
    pthread_mutex_t poison_lock;
    mem_allocator allocator; /* the caller's, for what the pool has no room for; alloc NULL: the executor's */
    /* Counts for expar_ep_get_stats: raised by the thread that makes a call, or carries it out, read by any;
       relaxed. */
    _Atomic uint64_t growths; /* times that records and rings were made larger; raised behind that (release) */
    _Atomic uint64_t direct_calls, queue_calls;
    _Atomic uint64_t mapped_calls, copied_calls;
    _Atomic uint64_t other_blocks; /* taken beside the pool */
    ep_refusal own_refusal;        /* the last one that a call of this rank returned. Guarded by poison_lock */
    error_kept poison; /* not OK after a call that failed on its way, which other ranks may not know. Guarded by
                          poison_lock; set once */
};

#define EP_MAGIC 0x72656666756265u

/* How a public call on a buffer ends, which may be NULL. */
static inline expar_status ep_ended(const expar_ep *ep, expar_status status)
{
    return status == EXPAR_OK ? status : error_tell(ep ? ep->rank : -1, status);
}

/* Where an object's memory comes from, which outlives its buffer. */
typedef struct ep_origin {
    const executor_kind *kind;
    expar_device device;
    uint64_t group; /* its number */
} ep_origin;
static inline ep_origin ep_origin_of(const expar_ep *ep)
{
    return (ep_origin){.kind = ep->kind, .device = ep->device, .group = ep->group->number};
}

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

#define EP_OUTPUT_PARTS   (EXPAR_EP_PART_SRC_METADATA + 1)
#define EP_DISPATCH_PARTS EP_OUTPUT_PARTS /* all but EXPAR_EP_PART_COUNT are a dispatch's of normal mode, too */
enum { EP_OUTPUT_READERS = 8 };
struct expar_ep_output {
    life_record life; /* EP_OUTPUT_MAGIC */
    ep_origin origin;
    mem_block *block;           /* all tensors of the result, but for the caller's own recv_x */
    mem_block *arrival;         /* expert-major: token-major rows on their way; NULL once expanded, and else */
    int32_t *tokens_per_expert; /* [L]; NULL where the host does not know them */
    /* By expar_ep_part; those in `block`. Written before the caller has the output. */
    expar_tensor parts[EP_OUTPUT_PARTS];
    /* Streams that may still read when the last reference goes. Guarded by a lock of output.c's; whoever gives that one
       back is alone with them. */
    void *readers[EP_OUTPUT_READERS];
    int32_t num_readers;
};
#define EP_OUTPUT_MAGIC 0x74757074756f7065u

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
/* A call has taken this path on this rank. */
void ep_count_path(expar_ep *ep, ep_mode mode);
/* Peers read a combine's rows in this rank's pool, where they lie in the caller's memory, or in a copy. */
void ep_count_rows(expar_ep *ep, bool mapped, bool copied);

/* ---- buffer.c ---------------------------------------------------------------------------------------------------- */
/* One more reference; else EXPAR_ERR_NULL, or EXPAR_ERR_STATE: the buffer has been destroyed or abandoned. */
expar_status ep_enter(expar_ep *ep, const char *call);
/* Gives it back; the last one frees what an abandoned buffer has. */
void ep_leave(expar_ep *ep);
/* expar_ep_create with an executor of the caller's choice, for tests. */
expar_status ep_create_with(expar_group *group, const expar_ep_config *config, const executor_kind *kind,
                            expar_ep **out);

/* ---- parting.c --------------------------------------------------------------------------------------------------- */
/* Memory of the heap for the buffer's end, and back; collective. */
static inline uint64_t ep_parting_bytes(int32_t ranks)
{
    return (uint64_t)ranks * sizeof(uint64_t);
}
expar_status ep_parting_make(ep_parting *parting);
expar_status ep_parting_give(ep_parting *parting);
/* Tells all ranks that this one comes to no end of the buffer's; once, and not behind ep_parting_meet. Waits for
   nobody; any thread. */
void ep_parting_leave(ep_parting *parting);
/* This rank does not come to the end, for its group has failed, as the last error says; that stays. */
void ep_parting_fail(ep_parting *parting);
/* This rank comes to the end. EXPAR_OK: so do all, and the buffer is given back together. EXPAR_ERR_PEER: a rank has
   abandoned the buffer, which all learn alike, and the group is sound. Else it is not: EXPAR_ERR_PEER,
   EXPAR_ERR_ABORTED, EXPAR_ERR_INTERRUPTED. */
expar_status ep_parting_meet(ep_parting *parting);

/* ---- check.c ----------------------------------------------------------------------------------------------------- */
/* Copies a versioned struct of the caller: members that it does not have are zero. `what` names it. */
expar_status ep_copy_struct(const char *what, void *dest, size_t size, const void *source);
bool tensor_given(const expar_tensor *tensor);
/* What a tensor of the caller's says its dtype is, for texts of errors: its name, or the number where it is none. What
   bindings have a name for, and the library no number, they hand on as -(DLPack's code << 8 | bits), which is told by
   that name: f64. */
typedef struct ep_dtype_text {
    char text[16];
} ep_dtype_text;
ep_dtype_text ep_tell_dtype(expar_dtype dtype);
/* [rows][H] of bf16, f16 or f32 (quantised: or f8e4m3 or i8) on the device: rows of 16-byte units, each contiguous,
   none longer than max_row_bytes. */
expar_status ep_check_rows(expar_device device, const char *name, const expar_tensor *tensor, int64_t max_row_bytes,
                           bool quantised);
/* Of a tensor that has passed one of the others: every row begins at a multiple of 16 bytes. */
expar_status ep_check_units(const char *name, const expar_tensor *tensor);
/* [rows][1 to max_scales] of 4-byte elements on the device, any strides. */
expar_status ep_check_scales(expar_device device, const expar_tensor *scales, int64_t rows, int32_t max_scales);
/* Rows of as many elements of the same dtype as those of `like`, on the device, at a multiple of 16 bytes; any strides.
 */
expar_status ep_check_columns(expar_device device, const char *name, const expar_tensor *tensor,
                              const expar_tensor *like);
/* [rows][columns], each row contiguous, dtype one of two. */
expar_status ep_check_matrix(expar_device device, const char *name, const expar_tensor *tensor, int64_t rows,
                             int64_t columns, expar_dtype dtype, expar_dtype other);
/* [any] contiguous, of the dtype. */
expar_status ep_check_vector(expar_device device, const char *name, const expar_tensor *tensor, expar_dtype dtype);
/* Arrays of the caller's, each aligned to its elements, and where the device's tensors lie; NULL is not wanted. */
typedef struct ep_array {
    const char *name;
    const void *data;
    size_t unit; /* bytes of an element */
} ep_array;
expar_status ep_check_arrays(expar_device device, const ep_array *arrays, size_t count);
expar_status ep_check_experts(int32_t num_experts, int32_t ranks);
/* The largest E of any call. */
#define EP_MOST_EXPERTS (1 << 22)
/* Members that say yes or no, each 0 or 1. */
typedef struct ep_flag {
    const char *name;
    int32_t value;
} ep_flag;
expar_status ep_check_flags(const ep_flag *flags, size_t count);
/* That somebody holds it; NULL: none is given. */
expar_status ep_check_wait_event(const expar_event *wait_event);
/* That it is one of this rank's in this group, and that the buffer can carry it out. */
expar_status ep_check_handle(const expar_ep *ep, const expar_ep_handle *handle);
static inline int64_t tensor_pitch(const expar_tensor *tensor)
{
    return tensor->shape[0] > 1 ? tensor->strides[0] : tensor->shape[1];
}

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

/* ---- output.c ---------------------------------------------------------------------------------------------------- */
/* Empty, with one reference; NULL: no memory. */
expar_ep_output *ep_output_make(const expar_ep *ep);
expar_ep_output *ep_output_make_of(const ep_origin *origin);
expar_ep_output *ep_output_hold(expar_ep_output *output);

/* ---- destination.c ----------------------------------------------------------------------------------------------- */
/* What a dispatch wants to receive. */
typedef struct ep_wish {
    ep_block_shape shape; /* of the results; x_rows differs from rows when expert-major */
    bool expert_major;
    expar_path path;
    bool rows_known; /* the host knows how many rows come; else they are at most shape.rows */
    const expar_tensor *out[EP_DISPATCH_PARTS]; /* the caller's memory for a part (expar_ep_part); NULL: ours */
    expar_ep_output *output;                    /* with its block, where it was made ahead; NULL: to be made */
    uint32_t staged; /* set by ep_destination_make: parts, a bit each, that come to a block first, and are copied
                                to the caller's memory */
} ep_wish;
/* Where it goes on this rank. */
typedef struct ep_destination {
    expar_ep_output *output;
    ep_arrival arrival; /* where rows come */
    /* The results: what has arrived, or copies of it, expert-major ones for two. NULL without. */
    void *x, *scales, *idx;
    float *weights, *row_weights;
    int32_t *row_map, *src, *metadata;
} ep_destination;
/* "out_x" of EXPAR_EP_PART_X, and so on. */
const char *ep_out_name(int part);
/* Takes wish->output in any case. A destination that is not used is given back by expar_ep_output_release(output). */
expar_status ep_destination_make(expar_ep *ep, const ep_wish *wish, ep_destination *out);
/* Bytes of the blocks that a destination takes, as far as rows come directly: of the results, and of rows on their way
   (0: there are none). */
void ep_destination_sizes(const ep_wish *wish, uint64_t sizes[2]);
/* Rows of so many bytes, pitch_bytes apart, from the first byte to the last. */
static inline uint64_t ep_span_bytes(int64_t rows, int64_t pitch_bytes, int64_t bytes)
{
    return rows > 0 ? (uint64_t)((rows - 1) * pitch_bytes + bytes) : 0;
}
/* "path is DIRECT, but the pool ..." has no room for `what`, of so many bytes: EXPAR_ERR_BUFFER_SIZE. */
expar_status ep_pool_lacks(const expar_ep *ep, uint64_t bytes, const char *what);
/* A block for rows that this rank will offer in a combine: symmetric where there is room, else private. */
expar_status ep_block_take(expar_ep *ep, uint64_t bytes, mem_block **out);

#endif
