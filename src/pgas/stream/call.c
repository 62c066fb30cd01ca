/* SPDX-License-Identifier: Apache-2.0 */
/* How calls on streams begin and end, and what the driver does for them by itself. */
#include "pgas/stream/parts.h"

/* ---- begin and end ----------------------------------------------------------------------------------------------- */

static bool is_shared_stream(const void *stream)
{
    return !stream || stream == CU_SHARED_STREAM;
}

static expar_status call_check_group(const stream_call *call)
{
    const expar_group *group = call->group;
    if (!group) return error_set(EXPAR_ERR_NULL, "%s: group is NULL", call->name);
    expar_status status = sym_check_self(group->sym, call->name);
    if (status != EXPAR_OK) return status;
    if (!kinds_copier(group->sym))
        return error_set(EXPAR_ERR_STATE,
                         "%s: the group uses no GPU; expected expar_memory_alloc of device or pinned memory before",
                         call->name);
    if (is_shared_stream(call->stream) && group->sym->by_threads && group->size > 1)
        return error_set(
            EXPAR_ERR_ARGUMENT,
            "%s: stream is the default one, which ranks of one process share; expected a stream of its own",
            call->name);
    return stream_failure_take(group, call->ctx);
}

/* The GPU has been entered. */
static expar_status call_check_stream(const stream_call *call)
{
    cu_context context = NULL;
    const cuda_device *device = call->service->device;
    expar_status status = CUDA_CALL(StreamGetCtx, call->stream, &context);
    if (status == EXPAR_OK && context != device->context)
        status = error_set(EXPAR_ERR_ARGUMENT, "stream is of another context; expected one of GPU %d", device->index);
    return status;
}

static expar_status find_service(stream_call *call)
{
    unsigned long long capture = 0;
    call->service = stream_service_of(call->group);
    if (call->service) return EXPAR_OK;
    expar_status status = cuda_enter_stream(call->stream);
    if (status == EXPAR_OK) {
        status = cuda_stream_capture(call->stream, &capture);
        cuda_leave();
    }
    if (status == EXPAR_OK && capture)
        status = error_set(EXPAR_ERR_STATE, "the first call on a stream takes memory, which a capture cannot; "
                                            "expected a call outside of captures before");
    return status == EXPAR_OK ? stream_service_open(call->group, &call->service) : status;
}

expar_status stream_call_begin_plain(stream_call *call)
{
    expar_status status = call_check_group(call);
    if (status != EXPAR_OK) return status;
    status = find_service(call);
    if (status == EXPAR_OK) status = cuda_enter_from_outside(call->service->device, &call->entered);
    if (status == EXPAR_OK && (status = call_check_stream(call)) != EXPAR_OK) stream_call_end(call, status);
    return status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "%s", call->name);
}

expar_status stream_call_find_capture(stream_call *call)
{
    expar_status status = cuda_stream_capture(call->stream, &call->capture);
    return status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "%s", call->name);
}

expar_status stream_call_begin(stream_call *call)
{
    expar_status status = stream_call_begin_plain(call);
    if (status == EXPAR_OK && (status = stream_call_find_capture(call)) != EXPAR_OK) stream_call_end(call, status);
    return status;
}

expar_status stream_call_end(const stream_call *call, expar_status status)
{
    if (call->entered) cuda_leave();
    return status;
}

/* ---- by the driver ----------------------------------------------------------------------------------------------- */

bool stream_reaches(const stream_call *call, const void *address, size_t bytes)
{
    kinds_place place;
    if (bytes == 0) return true;
    if (kinds_find(call->group->sym, address, bytes, &place) && place.memory != TRANSPORT_HOST) return true;
    return cuda_knows(address) && cuda_knows((const uint8_t *)address + bytes - 1) &&
           mem_registry_permits(call->group->sym->registry, address, bytes);
}

/* The driver rejects a copy whose host memory lies in two registrations, as copier.h says of pinned memory. */
static size_t copy_bytes_at(const sym *self, const void *address, size_t bytes)
{
    const size_t left = MEM_REGISTERED_UNIT - (uintptr_t)address % MEM_REGISTERED_UNIT;
    return left < bytes && !kinds_is_device(self, address) ? left : bytes;
}

expar_status stream_copy(const stream_call *call, void *dest, const void *source, size_t bytes)
{
    const sym *self = call->group->sym;
    uint8_t *to = dest;
    const uint8_t *from = source;
    expar_status status = EXPAR_OK;
    while (bytes > 0 && status == EXPAR_OK) {
        const size_t part = copy_bytes_at(self, to, copy_bytes_at(self, from, bytes));
        status = CUDA_CALL(MemcpyAsync, (cu_address)(uintptr_t)to, (cu_address)(uintptr_t)from, part,
                           (cu_stream)call->stream);
        to += part;
        from += part;
        bytes -= part;
    }
    return status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "%s", call->name);
}

/* Streams write words of 4 and 8 bytes; smaller ones are set. */
expar_status stream_store(const stream_call *call, void *dest, uint64_t value, size_t bytes)
{
    expar_status status;
    const cu_address at = (cu_address)(uintptr_t)dest;
    const cu_stream stream = call->stream;
    if (bytes == 8)
        status = CUDA_CALL(StreamWriteValue64, stream, at, value, CU_WRITE_FENCED);
    else if (bytes == 4)
        status = CUDA_CALL(StreamWriteValue32, stream, at, (uint32_t)value, CU_WRITE_FENCED);
    else if (bytes == 2)
        status = CUDA_CALL(MemsetD16Async, at, (unsigned short)value, 1, stream);
    else
        status = CUDA_CALL(MemsetD8Async, at, (unsigned char)value, 1, stream);
    return status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "%s", call->name);
}
