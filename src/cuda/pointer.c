/* SPDX-License-Identifier: Apache-2.0 */
/* Where an address points: host or device, and which. */
#include "cuda/cuda.h"

cuda_place cuda_place_of(const void *address)
{
    cuda_place host = {.kind = CUDA_PLACE_HOST, .device = -1};
    if (!address || cuda_open() != EXPAR_OK) return host;
    cu_address where = (cu_address)(uintptr_t)address;
    uint32_t type = 0, managed = 0;
    int device = -1;
    /* The driver refuses addresses that it does not know: those are ordinary host memory. */
    if (cuda_driver()->PointerGetAttribute(&type, CU_POINTER_MEMORY_TYPE, where) != CU_OK) return host;
    if (type != CU_MEMORY_DEVICE) return host;
    if (cuda_driver()->PointerGetAttribute(&device, CU_POINTER_DEVICE_ORDINAL, where) != CU_OK) return host;
    if (cuda_driver()->PointerGetAttribute(&managed, CU_POINTER_IS_MANAGED, where) != CU_OK) managed = 0;
    return (cuda_place){.kind = managed ? CUDA_PLACE_MANAGED : CUDA_PLACE_DEVICE, .device = device};
}
