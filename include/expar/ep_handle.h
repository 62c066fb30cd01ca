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

/* What a dispatch leaves for the combine and for later dispatches. It serves any buffer of its rank and group on the
   same device that is as large (EXPAR_ERR_LIMIT and EXPAR_ERR_HANDLE say what does not fit), several in turn, and
   behind the end of the one that it was made on. Ranks that give handles of different calls, or of different buffers,
   to one call are EXPAR_ERR_MISMATCH. */
typedef struct expar_ep_handle expar_ep_handle;

/* What a handle knows; pointers last as long as the handle. On a GPU tokens_per_node is NULL: there is one node, and
   how many tokens go anywhere is not counted. Of a dispatch with num_worst_tokens whose counts nobody has waited for
   (on the CPU: with async_finish), num_recv_tokens is -1, and rank_prefix, channel_prefix and tokens_per_node are
   NULL. */
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
/* Fills as much as info->struct_size says that there is. Local; any thread. EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT
   (struct_size), EXPAR_ERR_HANDLE (it has come to its end). */
EXPAR_API expar_status expar_ep_handle_get_info(const expar_ep_handle *handle, expar_ep_handle_info *info);
/* Handles are counted as outputs are (expar/ep_output.h), and may outlive buffer and group. Not collective; any thread.
   retain: one more reference, of the caller's; EXPAR_ERR_NULL, EXPAR_ERR_HANDLE (it has come to its end). */
EXPAR_API expar_status expar_ep_handle_retain(expar_ep_handle *handle);
/* Gives a reference back; the last one ends the handle. Calls in flight keep it until they have ended. NULL is
   allowed. */
EXPAR_API void expar_ep_handle_release(expar_ep_handle *handle);
/* Likewise, but its memory on a GPU is used again only behind what the stream holds now, as by
   expar_ep_output_release_after. EXPAR_ERR_HANDLE, EXPAR_ERR_MEMORY, EXPAR_ERR_CUDA. */
EXPAR_API expar_status expar_ep_handle_release_after(expar_ep_handle *handle, void *stream);

#ifdef __cplusplus
}
#endif
#endif
