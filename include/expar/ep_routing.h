/* SPDX-License-Identifier: Apache-2.0 */
/* Routing: who goes where, and what follows from that alone. */
#ifndef EXPAR_EXPAR_EP_ROUTING_H
#define EXPAR_EXPAR_EP_ROUTING_H

#include <expar/group.h>
#include <expar/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Counts that follow from topk_idx alone. Each array belongs to the caller and may be NULL (not wanted). */
typedef struct expar_layout {
    size_t struct_size;         /* set by EXPAR_LAYOUT_INIT */
    int32_t *tokens_per_rank;   /* [N] a token counts once for a rank, however many of its experts live there */
    int32_t *tokens_per_node;   /* [M] likewise for a node */
    int32_t *tokens_per_expert; /* [E] every occurrence counts */
    uint8_t *token_in_rank;     /* [T][N] 1 where the token goes to the rank, else 0 */
    void *stream;               /* CUDA: a CUstream of topk_idx's GPU; NULL: the default stream */
} expar_layout;
#define EXPAR_LAYOUT_INIT EXPAR_STRUCT_INIT(expar_layout)

/* topk_idx: [T][K] int32 or int64, last dimension contiguous; -1 means none. The arrays lie where it does: in host
   memory, or in the memory of a GPU. Local, no communication; any thread; nothing is written on an error. On a GPU the
   counts are put on the stream and not waited for, also into a graph; an index out of range counts as -1 there (a
   dispatch refuses it). Errors: EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT, EXPAR_ERR_DTYPE, EXPAR_ERR_SHAPE, EXPAR_ERR_STRIDE,
   EXPAR_ERR_INDEX (token and slot of an index outside [-1, E)), EXPAR_ERR_DEVICE (an array that lies elsewhere),
   EXPAR_ERR_MEMORY, EXPAR_ERR_UNSUPPORTED, EXPAR_ERR_CUDA. */
EXPAR_API expar_status expar_ep_layout(const expar_group *group, const expar_tensor *topk_idx, int32_t num_experts,
                                       const expar_layout *layout);

#ifdef __cplusplus
}
#endif
#endif
