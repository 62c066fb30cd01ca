/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's numbers of tokens for each expert, and their copy to the GPU.
 *
 * They are in ordinary host memory, which the caller may free when the call returns. A copy from such memory would
 * block the caller while a kernel on the stream waits for another rank. So the numbers go through pinned memory. It is
 * reused once the stream has passed its last copy. If the copy is in a graph, which may be replayed, the pinned memory
 * stays unchanged. Numbers that are in GPU memory are copied directly. */
#include "exec/cuda/normal/normal_gpu.h"

#include <stdlib.h>
#include <string.h>

struct gpu_counts {
    gpu_scratch *scratch; /* its pinned part */
    cu_event copied;      /* after the last copy on a stream */
    bool in_graph;
    gpu_counts *next;
};

/* Frees an entry that is not in the list. Members that it lacks are NULL. */
static void counts_free(gpu_counts *one)
{
    if (one->copied) cuda_driver()->EventDestroy(one->copied);
    gpu_scratch_give(one->scratch);
    free(one);
}

static expar_status counts_add(gpu_executor *self, int32_t experts)
{
    gpu_counts *one = calloc(1, sizeof *one);
    if (!one) return error_set(EXPAR_ERR_MEMORY, "no memory for the record of counts");
    expar_status status =
        gpu_scratch_take(self->core.device, sizeof(uint64_t), (size_t)experts * sizeof(int32_t), &one->scratch);
    if (status == EXPAR_OK) status = CUDA_CALL(EventCreate, &one->copied, CU_EVENT_NO_TIMING);
    if (status != EXPAR_OK) {
        counts_free(one);
        return status;
    }
    one->next = self->counts;
    self->counts = one;
    return EXPAR_OK;
}

/* Finds memory of that size that no copy will read any more. A new one is as large as the counters. An event that was
   never recorded counts as passed. */
static expar_status counts_find(gpu_executor *self, size_t bytes, gpu_counts **out)
{
    for (gpu_counts *one = self->counts; one; one = one->next) {
        if (one->scratch->pinned.bytes < bytes || one->in_graph) continue;
        if (cuda_driver()->EventQuery(one->copied) != CU_OK) continue;
        *out = one;
        return EXPAR_OK;
    }
    expar_status status = counts_add(self, self->counters->experts);
    if (status == EXPAR_OK) *out = self->counts;
    return status;
}

static expar_status find_beside_captures(gpu_executor *self, size_t bytes, gpu_counts **out)
{
    int mode;
    expar_status status = gpu_leave_captures(&mode);
    if (status != EXPAR_OK) return status;
    status = counts_find(self, bytes, out);
    gpu_return_to_captures(mode);
    return status;
}

expar_status gpu_counts_open(gpu_executor *self, int32_t experts)
{
    return counts_add(self, experts);
}

expar_status gpu_counts_send(gpu_executor *self, const exec_call *call, const int32_t *counts, int32_t experts)
{
    const size_t bytes = (size_t)experts * sizeof *counts;
    const cu_address to = self->counters->scratch->memory;
    gpu_counts *one;
    if (mem_is_far(counts)) return CUDA_CALL(MemcpyAsync, to, (cu_address)(uintptr_t)counts, bytes, call->stream);
    expar_status status = find_beside_captures(self, bytes, &one);
    if (status != EXPAR_OK) return status;
    memcpy(one->scratch->pinned.host, counts, bytes);
    status = CUDA_CALL(MemcpyHtoDAsync, to, one->scratch->pinned.host, bytes, call->stream);
    if (status != EXPAR_OK) return status;
    one->in_graph = call->captured;
    return one->in_graph ? EXPAR_OK : CUDA_CALL(EventRecord, one->copied, call->stream);
}

void gpu_counts_close(gpu_executor *self)
{
    if (cuda_enter(self->core.device) != EXPAR_OK) return;
    while (self->counts) {
        gpu_counts *one = self->counts;
        self->counts = one->next;
        counts_free(one);
    }
    cuda_leave();
}
