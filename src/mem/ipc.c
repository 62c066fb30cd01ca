/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory shared with other processes by CUDA IPC: for systems whose driver gives no file descriptors for memory,
 * such as some containers. The driver chooses the address of a peer's memory, and maps all of it at once. */
#include "mem/device.h"

expar_status mem_ipc_create(const cuda_device *device, uint64_t bytes, mem_ipc *out)
{
    mem_ipc made = {0};
    expar_status status = cuda_enter(device);
    if (status != EXPAR_OK) return status;
    status = CUDA_CALL(MemAlloc, &made.address, bytes);
    if (status == EXPAR_OK) status = CUDA_CALL(IpcGetMemHandle, &made.handle, made.address);
    if (status == EXPAR_OK)
        *out = made;
    else if (made.address)
        cuda_driver()->MemFree(made.address);
    cuda_leave();
    return status == EXPAR_ERR_MEMORY ? mem_device_full(device, bytes) : status;
}

void mem_ipc_free(const cuda_device *device, cu_address address)
{
    if (!address || cuda_enter(device) != EXPAR_OK) return;
    if (CUDA_CALL(MemFree, address) != EXPAR_OK) LOG(LOG_WARN, "%s", expar_last_error());
    cuda_leave();
}

expar_status mem_ipc_open(const cuda_device *device, const cu_ipc_memory *handle, cu_address *address)
{
    expar_status status = cuda_enter(device);
    if (status != EXPAR_OK) return status;
    status = CUDA_CALL(IpcOpenMemHandle, address, *handle, CU_IPC_PEER_ACCESS);
    cuda_leave();
    return status;
}

void mem_ipc_close(const cuda_device *device, cu_address address)
{
    if (!address || cuda_enter(device) != EXPAR_OK) return;
    if (CUDA_CALL(IpcCloseMemHandle, address) != EXPAR_OK) LOG(LOG_WARN, "%s", expar_last_error());
    cuda_leave();
}
