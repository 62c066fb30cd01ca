/* SPDX-License-Identifier: Apache-2.0 */
/* Outputs: the memory of a dispatch's results, or memory that a caller has taken for rows of its own.
 *
 * An output is counted: whoever makes one has the first reference, expar_ep_output_retain adds one, every tensor that
 * has gone out by DLPack has one of its own. The memory lives until the last reference has been given back, whatever
 * has become of buffer and group meanwhile. All of these calls are local, and for any thread at any time, handlers of
 * atexit included.
 *
 * Who uses an output whose last reference has been given back is told so (EXPAR_ERR_HANDLE, or a warning in the log)
 * where it can be seen: as long as fewer than 256 others have come to their end since. docs/internals/lifetimes.md. */
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

typedef struct expar_ep_output expar_ep_output; /* the memory of one dispatch's results, or of expar_ep_alloc */

/* The tensors of a dispatch's results, by the names that they have there; of expar_ep_alloc X alone. Values are part of
   the ABI. */
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

/* Memory of `bytes` bytes, aligned to 128, for rows that a combine on any buffer of the group is to send: it reads them
   in place, without a copy. Taken from the pool, where that has room; else from other memory, which combine treats as
   the caller's. Not collective; any thread, but not beside a call on the buffer (EXPAR_ERR_BUSY). The bytes are not set
   to anything. On a GPU the memory may have served an earlier call: what fills it has to come behind this rank's
   calls so far, as on a stream of theirs. *output is the caller's, and set on success only. Errors: EXPAR_ERR_NULL,
   EXPAR_ERR_BUSY, EXPAR_ERR_MEMORY, EXPAR_ERR_BUFFER_SIZE (a GPU's pool has no room), EXPAR_ERR_PEER and
   EXPAR_ERR_ABORTED (the buffer is poisoned). */
EXPAR_API expar_status expar_ep_alloc(expar_ep *ep, size_t bytes, expar_ep_output **output);

/* One more reference, of the caller's. EXPAR_ERR_NULL, EXPAR_ERR_HANDLE (it has come to its end). */
EXPAR_API expar_status expar_ep_output_retain(expar_ep_output *output);
/* Gives a reference back; with the last one go the tensors of the dispatch. A dispatch in flight keeps the memory until
   it has ended. On a GPU it is used again by later calls of this rank, in their order. NULL is allowed. */
EXPAR_API void expar_ep_output_release(expar_ep_output *output);
/* Likewise, but the memory is used again only behind what the stream holds now. stream: the CUstream; on the CPU it is
   not looked at, since nothing is queued there. NULL as an output is allowed. On failure the reference is still the
   caller's. EXPAR_ERR_HANDLE, EXPAR_ERR_MEMORY, EXPAR_ERR_CUDA. */
EXPAR_API expar_status expar_ep_output_release_after(expar_ep_output *output, void *stream);

/* That stream reads the output, which its caller does not wait for: whenever the last reference goes, by whomever, the
   memory is used again only behind what the stream holds by then, as by expar_ep_output_release_after. For holders who
   cannot say so when they let go, such as deleters of DLPack. stream: a CUstream, or NULL for the default one; it lives
   as long as the output does. Up to 8 streams; the same one again: no effect. On the CPU nothing is queued, and nobody
   waits for it. Any thread. EXPAR_ERR_NULL, EXPAR_ERR_HANDLE, EXPAR_ERR_LIMIT. */
EXPAR_API expar_status expar_ep_output_read_on(expar_ep_output *output, void *stream);

/* *tensor: a view of that part, which lasts as long as somebody has a reference; EXPAR_TENSOR_NONE where the dispatch
   had none, or wrote it to memory of the caller's. Errors: EXPAR_ERR_NULL, EXPAR_ERR_HANDLE, EXPAR_ERR_ARGUMENT
   (part). */
EXPAR_API expar_status expar_ep_output_get_tensor(const expar_ep_output *output, expar_ep_part part,
                                                  expar_tensor *tensor);
/* That part for other libraries, with a reference of its own, which its deleter gives back as expar_ep_output_release
   does: on any thread, also after the destroy of buffer and group, and while the process ends. version, *managed:
   expar/dlpack.h, expar_tensor_to_dlpack. Several may be had of one part; all are of the same memory, which may be
   written to. Errors: EXPAR_ERR_NULL, EXPAR_ERR_HANDLE, EXPAR_ERR_ARGUMENT (part; the output has no such tensor),
   EXPAR_ERR_VERSION, EXPAR_ERR_MEMORY. */
EXPAR_API expar_status expar_ep_output_to_dlpack(expar_ep_output *output, expar_ep_part part, uint32_t version,
                                                 void **managed);

#ifdef __cplusplus
}
#endif
#endif
