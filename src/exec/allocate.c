/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the caller's functions give for outputs, and what may be wrong with it. */
#include "exec/executor.h"

/* As blocks of the pool are aligned. */
#define ALIGNMENT 128u

static expar_status check_given(expar_device device, const void *data, uint64_t bytes)
{
    if (!data) return error_set(EXPAR_ERR_MEMORY, "config.alloc gave NULL for %llu bytes", (unsigned long long)bytes);
    if ((uintptr_t)data % ALIGNMENT)
        return error_set(EXPAR_ERR_ALIGNMENT, "config.alloc gave %p for %llu bytes; expected a multiple of %u", data,
                         (unsigned long long)bytes, ALIGNMENT);
    return exec_check_place(device, "what config.alloc gave", "", data);
}

expar_status exec_allocate(expar_device device, const mem_allocator *from, uint64_t bytes, void *stream, void **out)
{
    void *data = from->alloc(from->context, (size_t)bytes, ALIGNMENT, stream);
    expar_status status = check_given(device, data, bytes);
    if (status == EXPAR_OK)
        *out = data;
    else if (data)
        from->free(from->context, data, (size_t)bytes, stream);
    return status;
}
