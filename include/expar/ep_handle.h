/* SPDX-License-Identifier: Apache-2.0 */
/* Handles: the routing of one dispatch, kept for the combine and for later dispatches. */
#ifndef EXPAR_EP_HANDLE_H
#define EXPAR_EP_HANDLE_H

#include <expar/status.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The routing that a dispatch keeps for its combine and for later dispatches. A handle can be used with any buffer of
   its rank and group that is on the same device and large enough, also with several in turn. EXPAR_ERR_LIMIT and
   EXPAR_ERR_HANDLE say what does not fit. It stays valid after the buffer that it was made on. Ranks that give one call
   handles of different calls, or of different buffers, get EXPAR_ERR_MISMATCH. */
typedef struct expar_ep_handle expar_ep_handle;

/* The contents of a handle; pointers last as long as the handle. On a GPU tokens_per_node is NULL: there is only one
   node, and tokens for each node are not counted. After a dispatch with num_worst_tokens that has not waited for its
   counts (on the CPU: with async_finish), num_recv_tokens is -1. rank_prefix, channel_prefix and tokens_per_node are
   then NULL. */
typedef struct expar_ep_handle_info {
    /* set by EXPAR_EP_HANDLE_INFO_INIT */
    size_t struct_size;
    /* T of the dispatch */
    int64_t num_tokens;
    /* R */
    int64_t num_recv_tokens;
    /* E */
    int32_t num_experts;
    /* K */
    int32_t num_topk;
    /* C */
    int32_t num_channels;
    /* [N] rows that this rank receives from ranks 0..i */
    const int32_t *rank_prefix;
    /* [N][C] (i, c): tokens that this rank's channels 0..c send to rank i */
    const int32_t *channel_prefix;
    /* M */
    int32_t num_nodes;
    /* [M] tokens that this rank sends to each node, each counted once */
    const int32_t *tokens_per_node;
} expar_ep_handle_info;
#define EXPAR_EP_HANDLE_INFO_INIT EXPAR_STRUCT_INIT(expar_ep_handle_info)
/* Fills as many members as info->struct_size covers. Local; any thread. EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT
   (struct_size), EXPAR_ERR_HANDLE (the last reference was dropped). */
EXPAR_API expar_status expar_ep_handle_get_info(const expar_ep_handle *handle, expar_ep_handle_info *info);
/* Adds a reference, which belongs to the caller. Handles are counted as outputs are (expar/ep_output.h), and may
   outlive buffer and group. Not collective; any thread. EXPAR_ERR_NULL, EXPAR_ERR_HANDLE (the last reference was
   dropped). */
EXPAR_API expar_status expar_ep_handle_retain(expar_ep_handle *handle);
/* Drops a reference; the last one frees the handle. Calls in flight keep it until they have ended. NULL is allowed. */
EXPAR_API void expar_ep_handle_release(expar_ep_handle *handle);
/* Like expar_ep_handle_release, but the handle's memory on a GPU is reused only after the work that the stream holds
   now, as by expar_ep_output_release_after. EXPAR_ERR_HANDLE, EXPAR_ERR_MEMORY, EXPAR_ERR_CUDA. */
EXPAR_API expar_status expar_ep_handle_release_after(expar_ep_handle *handle, void *stream);

#ifdef __cplusplus
}
#endif
#endif
