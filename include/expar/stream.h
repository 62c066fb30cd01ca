/* SPDX-License-Identifier: Apache-2.0 */
/* Calls on symmetric memory in the order of a CUDA stream (docs/reference/device-memory.md, "Calls on a stream").
 *
 * Each call has the meaning of the host's call without _on_stream, when the stream comes to it. `stream` is a CUDA
 * stream (CUstream or cudaStream_t) of this rank's GPU. It may be a default stream, unless ranks are threads of one
 * process. The call returns when it is on the stream. Memory may be of any kind. It need not be symmetric where the
 * host's call does not ask for it. Ordinary memory stays valid until the stream has passed the call. A group takes such
 * calls once expar_memory_alloc has given it device or pinned memory (before: EXPAR_ERR_STATE).
 *
 * Order. Each call is complete when the stream passes it: sources are free, what was put has arrived, what was got is
 * here. Other streams and the host are not waited for. Streams of two ranks that wait for each other must both be able
 * to go on: they must not share a queue of the GPU (CUDA_DEVICE_MAX_CONNECTIONS).
 *
 * Captures. All calls can be captured, and their graphs launched any number of times, beside other calls. A call that
 * would have to take memory is EXPAR_ERR_STATE, before anything is on the stream. Graphs may be launched until the
 * group, team or context ends; a later launch runs through and its calls do nothing.
 *
 * Errors. The status says whether the call is on the stream. If it fails later, the stream runs on. The failure is
 * returned once: by the next call on a stream with that group or context, by the host's next fence or quiet there, or
 * by expar_group_query or expar_ctx_query. A call on a stream that returns it does nothing else. Collectives count as
 * calls on the group.
 * expar_event_wait returns it, too, for an event that was recorded on that stream after the call and before the failure
 * was returned. It does not for calls of a graph, whose stream is not known. A wait ends if some rank is lost. All
 * calls: EXPAR_ERR_NULL, EXPAR_ERR_ADDRESS, EXPAR_ERR_RANGE, EXPAR_ERR_ARGUMENT, EXPAR_ERR_ALIGNMENT, EXPAR_ERR_PEER,
 * EXPAR_ERR_ABORTED, EXPAR_ERR_UNSUPPORTED, EXPAR_ERR_STATE, EXPAR_ERR_MEMORY, EXPAR_ERR_CUDA. Any thread of the rank
 * may call. */
#ifndef EXPAR_STREAM_H
#define EXPAR_STREAM_H

#include <expar/context.h>
#include <expar/rma.h>
#include <expar/team.h>
#include <expar/types.h>
#include <expar/wait.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- put, get and signals ---------------------------------------------------------------------------------------- */

/* Copies bytes from this rank to pe. */
EXPAR_API expar_status expar_put_on_stream(expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe,
                                           void *stream);
/* Copies bytes from pe to this rank. */
EXPAR_API expar_status expar_get_on_stream(expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe,
                                           void *stream);
/* Puts, then updates the 64-bit signal at pe. Who sees the new signal sees the data. bytes may be 0. */
EXPAR_API expar_status expar_put_signal_on_stream(expar_group *group, void *dest, const void *source, size_t bytes,
                                                  uint64_t *signal, uint64_t value, expar_signal_op op, int32_t pe,
                                                  void *stream);
/* Updates the signal at pe. Sets and adds to one signal at the same time are not atomic with each other. */
EXPAR_API expar_status expar_signal_op_on_stream(expar_group *group, uint64_t *signal, uint64_t value,
                                                 expar_signal_op op, int32_t pe, void *stream);

/* The same on a context; pe is a member of its team. */
EXPAR_API expar_status expar_ctx_put_on_stream(expar_ctx *ctx, void *dest, const void *source, size_t bytes, int32_t pe,
                                               void *stream);
EXPAR_API expar_status expar_ctx_get_on_stream(expar_ctx *ctx, void *dest, const void *source, size_t bytes, int32_t pe,
                                               void *stream);
EXPAR_API expar_status expar_ctx_put_signal_on_stream(expar_ctx *ctx, void *dest, const void *source, size_t bytes,
                                                      uint64_t *signal, uint64_t value, expar_signal_op op, int32_t pe,
                                                      void *stream);
EXPAR_API expar_status expar_ctx_signal_op_on_stream(expar_ctx *ctx, uint64_t *signal, uint64_t value,
                                                     expar_signal_op op, int32_t pe, void *stream);

/* Put one element by value. dest is aligned to its size. */
#define EXPAR_STREAM_P_DECLARE(T, S)                                                                                   \
    EXPAR_API expar_status expar_p_##S##_on_stream(expar_group *group, T *dest, T value, int32_t pe, void *stream);    \
    EXPAR_API expar_status expar_ctx_p_##S##_on_stream(expar_ctx *ctx, T *dest, T value, int32_t pe, void *stream);
EXPAR_DATA_TYPES(EXPAR_STREAM_P_DECLARE)
#undef EXPAR_STREAM_P_DECLARE

/* ---- waits ------------------------------------------------------------------------------------------------------- */

/* The stream waits until this rank's own word compares as asked with `value`. Work after it sees what was written
   before the word. */
EXPAR_API expar_status expar_signal_wait_until_on_stream(expar_group *group, const uint64_t *signal, expar_cmp cmp,
                                                         uint64_t value, void *stream);
#define EXPAR_STREAM_WAIT_DECLARE(T, S)                                                                                \
    EXPAR_API expar_status expar_wait_until_##S##_on_stream(expar_group *group, const T *word, expar_cmp cmp, T value, \
                                                            void *stream);
EXPAR_WAIT_TYPES(EXPAR_STREAM_WAIT_DECLARE)
#undef EXPAR_STREAM_WAIT_DECLARE

/* ---- order ------------------------------------------------------------------------------------------------------- */

/* Order and complete what was put on this stream before. They put nothing there, because each call is complete when the
   stream passes it; but they return failures of earlier calls. */
EXPAR_API expar_status expar_fence_on_stream(expar_group *group, void *stream);
EXPAR_API expar_status expar_quiet_on_stream(expar_group *group, void *stream);
EXPAR_API expar_status expar_ctx_fence_on_stream(expar_ctx *ctx, void *stream);
EXPAR_API expar_status expar_ctx_quiet_on_stream(expar_ctx *ctx, void *stream);

/* Return the first failure of a call on a stream that no call has returned yet; EXPAR_OK: there is none. Never wait. */
EXPAR_API expar_status expar_group_query(expar_group *group);
EXPAR_API expar_status expar_ctx_query(expar_ctx *ctx);

/* ---- collectives ------------------------------------------------------------------------------------------------- */

/* The streams of all members wait for each other. All members put the collectives of a team on their streams in one
   order, and their streams come to them in that order. They need no order with the host's collectives. A member whose
   arguments are rejected does not come, and those of the others fail with its reason. Teams that were formed without
   communication have one order for the collectives of all of them, as on the host: put them on one stream. The first
   call of these two on a group without teams is collective, as
   expar_team_get_world. */
EXPAR_API expar_status expar_barrier_all_on_stream(expar_group *group, void *stream);
EXPAR_API expar_status expar_sync_all_on_stream(expar_group *group, void *stream);
EXPAR_API expar_status expar_team_barrier_on_stream(expar_team *team, void *stream);
EXPAR_API expar_status expar_team_sync_on_stream(expar_team *team, void *stream);

EXPAR_API expar_status expar_broadcast_on_stream(expar_team *team, void *dest, const void *source, size_t bytes,
                                                 int32_t root, void *stream);
EXPAR_API expar_status expar_fcollect_on_stream(expar_team *team, void *dest, const void *source, size_t bytes,
                                                void *stream);
EXPAR_API expar_status expar_collect_on_stream(expar_team *team, void *dest, const void *source, size_t bytes,
                                               void *stream);
EXPAR_API expar_status expar_alltoall_on_stream(expar_team *team, void *dest, const void *source, size_t bytes,
                                                void *stream);
EXPAR_API expar_status expar_alltoalls_on_stream(expar_team *team, void *dest, const void *source,
                                                 ptrdiff_t dest_stride, ptrdiff_t source_stride, size_t element_bytes,
                                                 size_t count, void *stream);

#define EXPAR_STREAM_REDUCE_DECLARE(T, S, operation)                                                                   \
    EXPAR_API expar_status expar_##operation##_reduce_##S##_on_stream(expar_team *team, T *dest, const T *source,      \
                                                                      size_t count, void *stream);
#define EXPAR_STREAM_BITS_DECLARE(T, S)                                                                                \
    EXPAR_STREAM_REDUCE_DECLARE(T, S, and)                                                                             \
    EXPAR_STREAM_REDUCE_DECLARE(T, S, or)                                                                              \
    EXPAR_STREAM_REDUCE_DECLARE(T, S, xor)
#define EXPAR_STREAM_NUMBERS_DECLARE(T, S)                                                                             \
    EXPAR_STREAM_REDUCE_DECLARE(T, S, min)                                                                             \
    EXPAR_STREAM_REDUCE_DECLARE(T, S, max)                                                                             \
    EXPAR_STREAM_REDUCE_DECLARE(T, S, sum)                                                                             \
    EXPAR_STREAM_REDUCE_DECLARE(T, S, prod)
EXPAR_INTEGER_TYPES(EXPAR_STREAM_BITS_DECLARE)
EXPAR_DATA_TYPES(EXPAR_STREAM_NUMBERS_DECLARE)
#undef EXPAR_STREAM_NUMBERS_DECLARE
#undef EXPAR_STREAM_BITS_DECLARE
#undef EXPAR_STREAM_REDUCE_DECLARE

#ifdef __cplusplus
}
#endif
#endif
