/* SPDX-License-Identifier: Apache-2.0 */
/* Normal mode on GPUs whose ranks do not all map each other's memory: the host carries out each call. Private to this
 * folder, and to exec/cuda/create.c, which makes the object.
 *
 * A step copies what it reads from the GPU to host memory, has the CPU executor carry it out there, and copies what it
 * wrote back to the GPU. The CPU executor is an object of its own (`inner`), with the records and rings of the buffer.
 * No kernel runs, so a call cannot be part of a graph.
 *
 *   create.c    the object, and its operations
 *   memory.c    memory on the GPU for outputs
 *   calls.c     a call's place on its stream
 *   copies.c    host copies of memory on the GPU, which a call keeps until its end
 *   dispatch.c  notify, dispatch, counts
 *   combine.c   combine, and the sums before it
 *   results.c   steps that make results from the rows that came
 *
 * docs/internals/across-nodes.md has the way of a token, and the order on the stream. */
#ifndef EXPAR_EXEC_CUDA_HOSTED_HOSTED_H
#define EXPAR_EXEC_CUDA_HOSTED_HOSTED_H

#include "exec/cuda/core/gpu.h"
#include "exec/normal.h"

/* The source of the store on the GPU (memory.c). */
typedef struct hosted_source hosted_source;

typedef struct hosted_executor {
    /* Only these members are used: base, group, sym, device, own_stream, fallback, called_on, with_threads, halted. */
    gpu_core core;
    executor *inner;     /* the CPU executor; NULL: it is not made yet */
    cuda_device *device; /* core.device, which this executor closes */
    mem_store *store;    /* memory of the pool */
    hosted_source *source;
} hosted_executor;

static inline hosted_executor *hosted_of(executor *base)
{
    return (hosted_executor *)base;
}

/* A copy in host memory of a range on the GPU. */
typedef struct hosted_copy {
    struct hosted_copy *next;
    const uint8_t *device; /* NULL: rows of a tensor that is not contiguous, which no later step finds */
    uint64_t bytes;
    mem_block *block;
} hosted_copy;

/* A call keeps this from step to step (exec_call.own). */
typedef struct hosted_call {
    cuda_mark *mark; /* on the call's stream: its inputs come before it, and so do earlier uses of its outputs */
    bool ready;      /* the mark has been passed */
    hosted_copy *copies;
    /* Between send and receive: the step on host memory. */
    ep_dispatch_step dispatch;
    ep_combine_step combine;
} hosted_call;

/* ---- memory.c ---------------------------------------------------------------------------------------------------- */
/* Makes the store and the pool of a buffer. */
expar_status hosted_pool_make(hosted_executor *self, const executor_plan *plan);
void hosted_pool_close(hosted_executor *self);
/* Operations. */
expar_status hosted_take(executor *base, const mem_allocator *from, uint64_t bytes, mem_block **out);
exec_reach hosted_reach(executor *base, const exec_call *call, const void *data, uint64_t bytes, bool maps,
                        exec_mapping *out);
void hosted_trim(executor *base);
expar_status hosted_map_make(executor *base, int64_t slots, mem_block **out);

/* ---- calls.c ----------------------------------------------------------------------------------------------------- */
/* Operations. */
expar_status hosted_begin(executor *base, exec_call *call, void *stream);
expar_status hosted_end(executor *base, exec_call *call);
/* Checks a number of SMs, which nothing uses here. */
expar_status hosted_check_sms(const hosted_executor *self, const char *name, int32_t asked);
/* Waits until the call's stream has come to the call. The call's first step that reads or writes the caller's memory
   calls it. */
expar_status hosted_await_inputs(hosted_executor *self, hosted_call *call);

/* ---- copies.c ---------------------------------------------------------------------------------------------------- */
/* A step that is being prepared. The first failure stays, and nothing is done after it. */
typedef struct hosted_step {
    hosted_executor *self;
    hosted_call *call;
    expar_status status;
} hosted_step;
/* Waits for the call's inputs. */
hosted_step hosted_step_begin(hosted_executor *self, const exec_call *call);

/* Returns where the host has these bytes: a copy, which is complete after hosted_sync, or `data` itself if that is host
   memory, NULL or empty. A range that the call has copied or written before is not copied again. */
const void *hosted_read(hosted_step *step, const void *data, uint64_t bytes);
/* Returns host memory for bytes that the step writes; hosted_write_back copies them to `data`. If `keeps`, the step may
   leave some of them as they are. */
void *hosted_write(hosted_step *step, void *data, uint64_t bytes, bool keeps);
/* The same as hosted_read for rows that are *pitch_bytes apart. *pitch_bytes gets the pitch of the copy. */
const void *hosted_read_rows(hosted_step *step, const void *data, int64_t rows, int64_t row_bytes,
                             int64_t *pitch_bytes);
/* Puts the first `bytes` of what hosted_write gave for `data` on their way to the GPU. */
void hosted_write_back(hosted_step *step, const void *data, uint64_t bytes);
/* Puts contiguous rows in host memory on their way to rows that are pitch_bytes apart on the GPU. */
void hosted_send_rows(hosted_step *step, void *data, const void *host, int64_t rows, int64_t row_bytes,
                      int64_t pitch_bytes);
/* Waits until all these copies are complete. Returns the step's status. */
expar_status hosted_sync(hosted_step *step);
/* Returns whether peers reach that host memory, which is the call's, and its offset in the heap. They reach absent
   memory (NULL). */
bool hosted_is_symmetric(const hosted_step *step, const void *host, uint64_t *offset);
/* Returns host memory for so many bytes, which belongs to the call. Peers reach it if there is space. */
void *hosted_scratch(hosted_step *step, uint64_t bytes);
/* Copies a range of the GPU's to another one; either may be host memory. */
void hosted_move(hosted_step *step, void *dest, const void *source, uint64_t bytes);
void hosted_copies_free(hosted_call *call);

/* ---- dispatch.c -------------------------------------------------------------------------------------------------- */
/* Operations. */
expar_status hosted_notify(executor *base, exec_call *call, ep_notify_step *step);
expar_status hosted_dispatch_send(executor *base, exec_call *call, ep_dispatch_step *step);
expar_status hosted_dispatch_receive(executor *base, exec_call *call, ep_dispatch_step *step);
expar_status hosted_tell_counts(executor *base, exec_call *call, const ep_counts_step *step);

/* ---- combine.c --------------------------------------------------------------------------------------------------- */
/* Operations. */
expar_status hosted_reduce(executor *base, exec_call *call, const ep_reduce_step *step);
expar_status hosted_combine_send(executor *base, exec_call *call, ep_combine_step *step);
expar_status hosted_combine_receive(executor *base, exec_call *call, ep_combine_step *step);

/* ---- results.c --------------------------------------------------------------------------------------------------- */
/* Operations. */
expar_status hosted_map(executor *base, exec_call *call, const ep_map_step *step);
expar_status hosted_arrange(executor *base, exec_call *call, const ep_arrange_step *step);
expar_status hosted_sources(executor *base, exec_call *call, const ep_sources_step *step);
expar_status hosted_copy_bytes(executor *base, exec_call *call, void *dest, const void *source, uint64_t bytes);

/* ---- create.c ---------------------------------------------------------------------------------------------------- */
/* Makes the executor (executor_kind.create) for a group whose ranks do not all map each other. */
expar_status hosted_create(const executor_plan *plan, executor **out);

#endif
