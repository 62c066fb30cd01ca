/* SPDX-License-Identifier: Apache-2.0 */
/* This rank's share of its GPU, which it may have to itself or share with other ranks. */
#include "base/knobs.h"
#include "exec/cuda/core/gpu.h"
#include "group/group.h"

#include <stdlib.h>
#include <string.h>

/* A kernel leaves after this time if its own host has stopped. */
#define ORPHAN_MS ((int64_t)3600 * 1000)

expar_status gpu_agree(const gpu_core *self, expar_status own, cu_uuid *uuids)
{
    const boot_matter matter = {.what = "the buffer",
                                .rejected = "could not make its part",
                                .mine = &self->device->uuid,
                                .all = uuids,
                                .bytes = uuids ? sizeof *uuids : 0};
    return sym_agree(self->sym, &matter, own);
}

expar_status gpu_count_sharers(const gpu_core *self, int32_t *sharers)
{
    const int32_t size = self->sym->size;
    cu_uuid *uuids = calloc((size_t)size, sizeof *uuids);
    if (!uuids) return sym_out_of_step(self->sym, "the buffer", error_set(EXPAR_ERR_MEMORY, "no memory"));
    expar_status status = gpu_agree(self, EXPAR_OK, uuids);
    *sharers = 0;
    for (int32_t r = 0; r < size && status == EXPAR_OK; r++)
        *sharers += memcmp(&uuids[r], &uuids[self->sym->rank], sizeof *uuids) == 0;
    free(uuids);
    return status;
}

/* Kernels of ranks on one GPU wait for each other, so they must run side by side. */
static expar_status share_sms(gpu_core *self, int32_t asked, knob_id usual, int32_t sharers)
{
    const int32_t index = self->device->index, all = self->device->num_sms, most = all / sharers;
    const int32_t chosen = (int32_t)knob(usual);
    self->most_sms = most;
    self->num_sms = asked ? asked : most < chosen ? most : chosen;
    if (self->num_sms >= 1 && self->num_sms <= most) return EXPAR_OK;
    if (most < 1)
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "%d ranks share GPU %d, which has %d SM%s; expected at most one rank for each SM", sharers,
                         index, all, all == 1 ? "" : "s");
    return error_set(EXPAR_ERR_ARGUMENT,
                     "config.num_sms is %d; expected 1 to %d, or 0 for the library's choice: GPU %d has %d SMs for %d "
                     "rank%s",
                     asked, most, index, all, sharers, sharers == 1 ? "" : "s");
}

/* Streams of one process share the queues to a GPU. There are 8 unless the environment says more. A kernel would wait
   in vain for one that comes after it in its queue. */
static expar_status check_queues(const gpu_core *self, int32_t sharers)
{
    int64_t queues = 8;
    expar_status status = env_foreign_int("CUDA_DEVICE_MAX_CONNECTIONS", 1, INT32_MAX, &queues);
    if (status != EXPAR_OK || !self->group->threads || sharers <= queues) return status;
    return error_set(EXPAR_ERR_UNSUPPORTED,
                     "%d ranks of this process share GPU %d, but its streams only %lld queues; set "
                     "CUDA_DEVICE_MAX_CONNECTIONS to %d or more (32 at most) before the process first uses CUDA",
                     sharers, self->device->index, (long long)queues, sharers);
}

expar_status gpu_choose_sms(gpu_core *self, int32_t asked, knob_id usual, int32_t sharers)
{
    self->shares_gpu = self->group->threads && sharers > 1;
    expar_status status = check_queues(self, sharers);
    return status == EXPAR_OK ? share_sms(self, asked, usual, sharers) : status;
}

expar_status gpu_read_orphan_time(gpu_place *place)
{
    int64_t orphan_ms = ORPHAN_MS;
    expar_status status = env_seconds_ms("EXPAR_CUDA_ORPHAN_TIMEOUT", &orphan_ms);
    place->orphan_ns = (uint64_t)orphan_ms * 1000000;
    return status;
}
