/* SPDX-License-Identifier: Apache-2.0 */
/* Outputs: the memory of a dispatch's results, or memory that a caller has taken for rows of its own.
 *
 * An output is counted. The call that makes one gives the first reference, and expar_ep_output_retain adds one. Every
 * tensor that was exported by DLPack has a reference of its own. The memory lives until the last reference is dropped,
 * whatever has become of buffer and group. All of these calls are local. They may be made by any thread at any time,
 * also in handlers of atexit.
 *
 * Using an output after its last reference was dropped is reported: EXPAR_ERR_HANDLE, or a warning in the log. This
 * works as long as fewer than 256 other outputs have ended since. docs/internals/lifetimes.md has the details. */
#ifndef EXPAR_EP_OUTPUT_H
#define EXPAR_EP_OUTPUT_H

#include <expar/dlpack.h>
#include <expar/ep_buffer.h>
#include <expar/status.h>
#include <expar/tensor.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The memory of one dispatch's results, or of expar_ep_alloc. */
typedef struct expar_ep_output expar_ep_output;

/* The tensors of a dispatch's results, with the names that they have there. An output of expar_ep_alloc has only X.
   Values are part of the ABI. */
typedef enum expar_ep_part {
    EXPAR_EP_PART_X = 0,            /* recv_x; expar_ep_alloc: the memory, [bytes] u8 */
    EXPAR_EP_PART_SCALES = 1,       /* recv_scales */
    EXPAR_EP_PART_TOPK_IDX = 2,     /* recv_topk_idx */
    EXPAR_EP_PART_TOPK_WEIGHTS = 3, /* recv_topk_weights */
    EXPAR_EP_PART_ROW_MAP = 4,      /* recv_row_map */
    EXPAR_EP_PART_SRC_TOKEN = 5,    /* recv_src_token */
    EXPAR_EP_PART_COUNT = 6,        /* recv_count of a low-latency dispatch */
    EXPAR_EP_PART_ROW_WEIGHTS = 7,  /* recv_row_weights */
    EXPAR_EP_PART_SRC_METADATA = 8  /* recv_src_metadata */
} expar_ep_part;

/* Allocates `bytes` bytes, aligned to 128, for rows that a combine on any buffer of the group will send. The combine
   reads them in place, without a copy. The memory comes from the pool if it fits there. Otherwise it is other memory,
   which combine treats as the caller's. Not collective; any thread, but not during a call on the buffer
   (EXPAR_ERR_BUSY). The bytes are not initialised. On a GPU the memory may have served an earlier call: fill it after
   this rank's calls so far, for example on their stream. The caller owns *output, which is set on success only. Errors:
   EXPAR_ERR_NULL, EXPAR_ERR_BUSY, EXPAR_ERR_MEMORY, EXPAR_ERR_BUFFER_SIZE (a GPU's pool is full), EXPAR_ERR_PEER and
   EXPAR_ERR_ABORTED (the buffer is poisoned). */
EXPAR_API expar_status expar_ep_alloc(expar_ep *ep, size_t bytes, expar_ep_output **output);

/* Adds a reference, which belongs to the caller. EXPAR_ERR_NULL, EXPAR_ERR_HANDLE (the last reference was dropped). */
EXPAR_API expar_status expar_ep_output_retain(expar_ep_output *output);
/* Drops a reference; the last one frees the tensors of the dispatch. A dispatch in flight keeps the memory until it has
   ended. On a GPU later calls of this rank reuse it, in their order. NULL is allowed. */
EXPAR_API void expar_ep_output_release(expar_ep_output *output);
/* Like expar_ep_output_release, but the memory is reused only after the work that the stream holds now. stream: the
   CUstream; ignored on the CPU, where nothing is queued. NULL as an output is allowed. On failure the caller still has
   the reference. EXPAR_ERR_HANDLE, EXPAR_ERR_MEMORY, EXPAR_ERR_CUDA. */
EXPAR_API expar_status expar_ep_output_release_after(expar_ep_output *output, void *stream);

/* Says that the stream reads the output and that the caller does not wait for it. When the last reference is dropped,
   by any thread, the memory is reused only after the work that the stream then holds, as by
   expar_ep_output_release_after. This is for holders who cannot name the stream when they drop their reference, such as
   deleters of DLPack. Argument `stream`: a CUstream, or NULL for the default one. It must live as long as the output.
   Up to 8 streams; the same stream again has no effect. On the CPU nothing is queued, and nothing waits for the stream.
   Any thread. EXPAR_ERR_NULL, EXPAR_ERR_HANDLE, EXPAR_ERR_LIMIT. */
EXPAR_API expar_status expar_ep_output_read_on(expar_ep_output *output, void *stream);

/* Sets *tensor to a view of that part, which is valid as long as the output has a reference. It is EXPAR_TENSOR_NONE if
   the dispatch had no such tensor, or wrote it to memory of the caller. Errors: EXPAR_ERR_NULL, EXPAR_ERR_HANDLE,
   EXPAR_ERR_ARGUMENT (part). */
EXPAR_API expar_status expar_ep_output_get_tensor(const expar_ep_output *output, expar_ep_part part,
                                                  expar_tensor *tensor);
/* Exports that part to other libraries, with a reference of its own. The tensor's deleter drops it as
   expar_ep_output_release does: on any thread, also after the destroy of buffer and group, and while the process ends.
   Arguments `version` and `managed` are as in expar_tensor_to_dlpack (expar/dlpack.h). One part may be exported several
   times; all exports share its memory and may write to it. Errors: EXPAR_ERR_NULL, EXPAR_ERR_HANDLE, EXPAR_ERR_ARGUMENT
   (part; the output has no such tensor), EXPAR_ERR_VERSION, EXPAR_ERR_MEMORY. */
EXPAR_API expar_status expar_ep_output_to_dlpack(expar_ep_output *output, expar_ep_part part, uint32_t version,
                                                 void **managed);

#ifdef __cplusplus
}
#endif
#endif
