/* SPDX-License-Identifier: Apache-2.0 */
/* expar_ep_get_layout, on the GPU. */
#include "gpu/mirror.h"
#include "gpu/mirrored.h"
#include "group/group.h"
#include <string.h>

/* The most that an array of a test has: counts of as many experts as a buffer takes. */
#define MOST_BYTES ((int64_t)16 << 20)

/* One of a layout's arrays: the test's, and what stands for it on the GPU. */
typedef struct array {
    void *host;
    cu_address on;
    size_t bytes;
} array;

static array lend(const mirrored *t, void *host, int64_t bytes)
{
    array one = {.host = host};
    if (!host || bytes < 0 || bytes > MOST_BYTES) return one;
    one.bytes = (size_t)bytes;
    one.on = arena_take(&t->worker->own, one.bytes, host);
    if (bytes) worker_send(t->worker, one.on, host, one.bytes);
    return one;
}

static void *pointer(const array *one)
{
    return (void *)(uintptr_t)one->on;
}

static expar_status trial(const expar_group *group, const expar_tensor *topk_idx, int32_t num_experts,
                          const expar_ep_layout *layout)
{
    buffer place = {.rank = expar_group_rank(group)};
    mirrored *t = mirrored_begin(&place);
    const worker *h = t->worker;
    expar_tensor idx = mirrored_give(t, topk_idx);
    array arrays[] = {lend(t, layout->tokens_per_rank, 4 * (int64_t)group->size),
                      lend(t, layout->tokens_per_node, 4 * (int64_t)group->num_nodes),
                      lend(t, layout->tokens_per_expert, 4 * (int64_t)num_experts),
                      lend(t, layout->token_in_rank, topk_idx->shape[0] * group->size)};
    expar_ep_layout given = *layout;
    given.tokens_per_rank = pointer(&arrays[0]);
    given.tokens_per_node = pointer(&arrays[1]);
    given.tokens_per_expert = pointer(&arrays[2]);
    given.token_in_rank = pointer(&arrays[3]);
    given.stream = h->stream;
    expar_status status = expar_ep_get_layout(group, &idx, num_experts, &given);
    mirror_need(CUDA_CALL(StreamSynchronize, h->stream), "wait for the counts");
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        if (arrays[i].bytes) worker_fetch(h, arrays[i].host, arrays[i].on, arrays[i].bytes);
    mirrored_end(t, false);
    return status;
}

expar_status mirror_ep_get_layout(const expar_group *group, const expar_tensor *topk_idx, int32_t num_experts,
                                  const expar_ep_layout *layout)
{
    bool sound = group && topk_idx && topk_idx->ndim == 2 && layout && layout->struct_size == sizeof *layout;
    return sound ? trial(group, topk_idx, num_experts, layout)
                 : expar_ep_get_layout(group, topk_idx, num_experts, layout);
}
