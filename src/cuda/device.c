/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs: what they are, their contexts, and how they reach each other. */
#include "cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

expar_status cuda_device_count(int32_t *count)
{
    expar_status status = cuda_open();
    if (status != EXPAR_OK) return status;
    int found = 0;
    status = CUDA_CALL(DeviceGetCount, &found);
    if (status == EXPAR_OK) *count = found;
    return status;
}

static expar_status find_handle(int32_t index, cu_device *handle)
{
    int32_t count;
    expar_status status = cuda_device_count(&count);
    if (status != EXPAR_OK) return status;
    if (index < 0 || index >= count)
        return error_set(EXPAR_ERR_RANGE, "GPU %d does not exist; expected 0 to %d", index, count - 1);
    return CUDA_CALL(DeviceGet, handle, index);
}

static expar_status read_attributes(cuda_device *self)
{
    int vmm = 0, posix_fd = 0, direct_rdma = 0, host_atomics = 0;
    const struct {
        int attribute, *value;
    } wanted[] = {
        {CU_ATTRIBUTE_CC_MAJOR, &self->major},      {CU_ATTRIBUTE_CC_MINOR, &self->minor},
        {CU_ATTRIBUTE_NUM_SMS, &self->num_sms},     {CU_ATTRIBUTE_SHARED_BYTES_OPTIN, &self->shared_bytes},
        {CU_ATTRIBUTE_L2_BYTES, &self->l2_bytes},   {CU_ATTRIBUTE_VMM, &vmm},
        {CU_ATTRIBUTE_POSIX_FD, &posix_fd},         {CU_ATTRIBUTE_DIRECT_RDMA, &direct_rdma},
        {CU_ATTRIBUTE_HOST_ATOMICS, &host_atomics},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(wanted); i++) {
        expar_status status = CUDA_CALL(DeviceGetAttribute, wanted[i].value, wanted[i].attribute, self->handle);
        if (status != EXPAR_OK) return status;
    }
    self->vmm = vmm != 0;
    self->posix_fd = vmm && posix_fd;
    self->direct_rdma = vmm && direct_rdma;
    self->host_atomics = host_atomics;
    return EXPAR_OK;
}

static expar_status read_facts(cuda_device *self)
{
    size_t bytes = 0;
    expar_status status = CUDA_CALL(DeviceGetName, self->name, sizeof self->name, self->handle);
    if (status == EXPAR_OK) status = CUDA_CALL(DeviceGetPCIBusId, self->bus_id, sizeof self->bus_id, self->handle);
    if (status == EXPAR_OK) status = CUDA_CALL(DeviceGetUuid, &self->uuid, self->handle);
    if (status == EXPAR_OK) status = CUDA_CALL(DeviceTotalMem, &bytes, self->handle);
    self->memory_bytes = bytes;
    return status == EXPAR_OK ? read_attributes(self) : status;
}

expar_status cuda_device_read(int32_t index, cuda_device *out)
{
    cuda_device self = {.index = index};
    expar_status status = find_handle(index, &self.handle);
    if (status == EXPAR_OK) status = read_facts(&self);
    if (status == EXPAR_OK) *out = self;
    return status;
}

expar_status cuda_device_open(int32_t index, cuda_device **out)
{
    cuda_device facts;
    expar_status status = cuda_device_read(index, &facts);
    if (status != EXPAR_OK) return status;
    cuda_device *self = malloc(sizeof *self);
    if (!self) return error_set(EXPAR_ERR_MEMORY, "no memory");
    *self = facts;
    status = CUDA_CALL(DevicePrimaryCtxRetain, &self->context, self->handle);
    if (status != EXPAR_OK) {
        free(self);
        return error_prefix(status, "GPU %d cannot be opened", index);
    }
    *out = self;
    return EXPAR_OK;
}

void cuda_device_close(cuda_device *self)
{
    if (!self) return;
    if (CUDA_CALL(DevicePrimaryCtxRelease, self->handle) != EXPAR_OK)
        LOG(LOG_WARN, "GPU %d: %s", self->index, expar_last_error());
    free(self);
}

expar_status cuda_enter(const cuda_device *self)
{
    return CUDA_CALL(CtxPushCurrent, self->context);
}

expar_status cuda_enter_from_outside(const cuda_device *self, bool *entered)
{
    cu_context current = NULL;
    *entered = false;
    if (cuda_driver()->CtxGetCurrent(&current) == CU_OK && current == self->context) return EXPAR_OK;
    expar_status status = cuda_enter(self);
    *entered = status == EXPAR_OK;
    return status;
}

void cuda_leave(void)
{
    cu_context left;
    if (CUDA_CALL(CtxPopCurrent, &left) != EXPAR_OK) LOG(LOG_WARN, "%s", expar_last_error());
}

expar_status cuda_synchronize(void)
{
    return cuda_status(cuda_driver()->CtxSynchronize(), __FILE__, __LINE__, "cuCtxSynchronize");
}

expar_status cuda_link_between(int32_t from, int32_t to, cuda_link *out)
{
    cu_device a, b;
    int access = 0, atomics = 0, rank = 0;
    expar_status status = find_handle(from, &a);
    if (status == EXPAR_OK) status = find_handle(to, &b);
    if (status == EXPAR_OK && from == to) {
        *out = (cuda_link){.access = true, .atomics = true};
        return EXPAR_OK;
    }
    if (status == EXPAR_OK) status = CUDA_CALL(DeviceCanAccessPeer, &access, a, b);
    if (status == EXPAR_OK) status = CUDA_CALL(DeviceGetP2PAttribute, &atomics, CU_P2P_NATIVE_ATOMICS, a, b);
    if (status == EXPAR_OK) status = CUDA_CALL(DeviceGetP2PAttribute, &rank, CU_P2P_PERFORMANCE_RANK, a, b);
    if (status == EXPAR_OK) *out = (cuda_link){.access = access, .atomics = atomics, .rank = rank};
    return status;
}

int32_t cuda_device_find(const cu_uuid *uuid)
{
    int32_t count = 0;
    if (cuda_device_count(&count) != EXPAR_OK) return -1;
    for (int32_t i = 0; i < count; i++) {
        cu_device handle;
        cu_uuid own;
        if (CUDA_CALL(DeviceGet, &handle, i) != EXPAR_OK || CUDA_CALL(DeviceGetUuid, &own, handle) != EXPAR_OK)
            continue;
        if (memcmp(own.bytes, uuid->bytes, sizeof own.bytes) == 0) return i;
    }
    return -1;
}
