/* SPDX-License-Identifier: Apache-2.0 */
/* Our declarations of the driver API against NVIDIA's header. Built only where that is installed; everything is
 * compared by the compiler, but for the symbols' names. */
/* The names that both have. */
#define CU_STREAM_NON_BLOCKING            OUR_STREAM_NON_BLOCKING
#define CU_USER_OBJECT_NO_DESTRUCTOR_SYNC OUR_USER_OBJECT_NO_DESTRUCTOR_SYNC
#define CU_GRAPH_USER_OBJECT_MOVE         OUR_GRAPH_USER_OBJECT_MOVE
#include "cuda/driver.h"
#undef CU_STREAM_NON_BLOCKING
#undef CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
#undef CU_GRAPH_USER_OBJECT_MOVE

#include <assert.h>
#include <cuda.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define SAME_VALUE(ours, theirs) static_assert((int)(ours) == (int)(theirs), #ours)
#define SAME_TYPE(ours, theirs)  static_assert(sizeof(ours) == sizeof(theirs), #ours)
#define SAME_PLACE(o, om, t, tm) static_assert(offsetof(o, om) == offsetof(t, tm), #o "." #om)
#define SAME_MEMBER(o, om, t, tm)                                                                                      \
    SAME_PLACE(o, om, t, tm);                                                                                          \
    static_assert(sizeof(((o *)0)->om) == sizeof(((t *)0)->tm), #o "." #om)

SAME_VALUE(CU_OK, CUDA_SUCCESS);
SAME_VALUE(CU_ERROR_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME_VALUE(CU_ERROR_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME_VALUE(CU_ERROR_NOT_READY, CUDA_ERROR_NOT_READY);
SAME_VALUE(CU_ERROR_PEER_ENABLED, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
SAME_VALUE(CU_ERROR_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
SAME_VALUE(CU_WAIT_AT_LEAST, CU_STREAM_WAIT_VALUE_GEQ);
SAME_VALUE(CU_WRITE_FENCED, CU_STREAM_WRITE_VALUE_DEFAULT);
SAME_VALUE(CU_ERROR_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME_VALUE(CU_ERROR_CAPTURE_WRONG_THREAD, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
SAME_VALUE(CU_ATTRIBUTE_NUM_SMS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME_VALUE(CU_ATTRIBUTE_L2_BYTES, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
SAME_VALUE(CU_ATTRIBUTE_CC_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME_VALUE(CU_ATTRIBUTE_CC_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME_VALUE(CU_ATTRIBUTE_SHARED_BYTES_OPTIN, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
SAME_VALUE(CU_ATTRIBUTE_VMM, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME_VALUE(CU_ATTRIBUTE_POSIX_FD, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
SAME_VALUE(CU_P2P_PERFORMANCE_RANK, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK);
SAME_VALUE(CU_P2P_NATIVE_ATOMICS, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED);
SAME_VALUE(CU_FUNCTION_MAX_DYNAMIC_SHARED_BYTES, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME_VALUE(CU_POINTER_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME_VALUE(CU_POINTER_BUFFER_ID, CU_POINTER_ATTRIBUTE_BUFFER_ID);
SAME_VALUE(CU_POINTER_LEGACY_IPC, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
SAME_VALUE(CU_POINTER_IS_MANAGED, CU_POINTER_ATTRIBUTE_IS_MANAGED);
SAME_VALUE(CU_POINTER_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME_VALUE(CU_MEMORY_HOST, CU_MEMORYTYPE_HOST);
SAME_VALUE(CU_MEMORY_DEVICE, CU_MEMORYTYPE_DEVICE);
SAME_VALUE(OUR_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME_VALUE(CU_EVENT_NO_TIMING, CU_EVENT_DISABLE_TIMING);
SAME_VALUE(CU_EVENT_EXTERNAL, CU_EVENT_RECORD_EXTERNAL);
SAME_VALUE(CU_EVENT_EXTERNAL, CU_EVENT_WAIT_EXTERNAL);
SAME_VALUE(OUR_USER_OBJECT_NO_DESTRUCTOR_SYNC, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
SAME_VALUE(OUR_GRAPH_USER_OBJECT_MOVE, CU_GRAPH_USER_OBJECT_MOVE);
SAME_VALUE(CU_IPC_PEER_ACCESS, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
SAME_VALUE(CU_HOST_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
SAME_VALUE(CU_HOST_MAPPED, CU_MEMHOSTALLOC_DEVICEMAP);
SAME_VALUE(CU_CAPTURE_GLOBAL, CU_STREAM_CAPTURE_MODE_GLOBAL);
SAME_VALUE(CU_CAPTURE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME_VALUE(CU_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME_VALUE(CU_CAPTURE_NONE, CU_STREAM_CAPTURE_STATUS_NONE);
SAME_VALUE(CU_CAPTURE_ACTIVE, CU_STREAM_CAPTURE_STATUS_ACTIVE);
SAME_VALUE(CU_CAPTURE_INVALIDATED, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
SAME_VALUE(CU_ALLOCATION_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME_VALUE(CU_HANDLE_POSIX_FD, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME_VALUE(CU_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
SAME_VALUE(CU_ACCESS_READ_WRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME_VALUE(CU_GRANULARITY_RECOMMENDED, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
SAME_VALUE(CU_LAUNCH_COOPERATIVE, CU_LAUNCH_ATTRIBUTE_COOPERATIVE);

SAME_TYPE(cu_result, CUresult);
SAME_TYPE(cu_device, CUdevice);
SAME_TYPE(cu_address, CUdeviceptr);
SAME_TYPE(cu_memory, CUmemGenericAllocationHandle);
SAME_TYPE(cu_uuid, CUuuid);
SAME_TYPE(cu_ipc_memory, CUipcMemHandle);

SAME_TYPE(cu_allocation, CUmemAllocationProp);
SAME_MEMBER(cu_allocation, type, CUmemAllocationProp, type);
SAME_MEMBER(cu_allocation, handle_types, CUmemAllocationProp, requestedHandleTypes);
SAME_MEMBER(cu_allocation, location, CUmemAllocationProp, location);
SAME_MEMBER(cu_allocation, win32, CUmemAllocationProp, win32HandleMetaData);
SAME_MEMBER(cu_allocation, flags.direct_rdma, CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
SAME_TYPE(cu_access, CUmemAccessDesc);
SAME_MEMBER(cu_access, flags, CUmemAccessDesc, flags);
SAME_MEMBER(cu_access, location.id, CUmemAccessDesc, location.id);

SAME_TYPE(cu_launch_attribute, CUlaunchAttribute);
SAME_MEMBER(cu_launch_attribute, value, CUlaunchAttribute, value);
SAME_MEMBER(cu_launch_attribute, value.cooperative, CUlaunchAttribute, value.cooperative);
SAME_TYPE(cu_launch_config, CUlaunchConfig);
SAME_MEMBER(cu_launch_config, block_x, CUlaunchConfig, blockDimX);
SAME_MEMBER(cu_launch_config, shared_bytes, CUlaunchConfig, sharedMemBytes);
SAME_MEMBER(cu_launch_config, stream, CUlaunchConfig, hStream);
SAME_MEMBER(cu_launch_config, attributes, CUlaunchConfig, attrs);
SAME_MEMBER(cu_launch_config, num_attributes, CUlaunchConfig, numAttrs);

/* The header's macros turn a function's name into the symbol that programs of this day use. */
#define TEXT_OF(name) #name
#define TEXT(name)    TEXT_OF(name)
#define EXPECT(member, name)                                                                                           \
    {                                                                                                                  \
#member, TEXT(name)                                                                                            \
    }
static const struct {
    const char *member, *symbol;
} expected[] = {
    EXPECT(DeviceTotalMem, cuDeviceTotalMem),
    EXPECT(DeviceGetUuid, cuDeviceGetUuid),
    EXPECT(DevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease),
    EXPECT(CtxPushCurrent, cuCtxPushCurrent),
    EXPECT(CtxPopCurrent, cuCtxPopCurrent),
    EXPECT(MemGetInfo, cuMemGetInfo),
    EXPECT(MemAlloc, cuMemAlloc),
    EXPECT(MemFree, cuMemFree),
    EXPECT(MemHostGetDevicePointer, cuMemHostGetDevicePointer),
    EXPECT(MemHostRegister, cuMemHostRegister),
    EXPECT(MemcpyHtoDAsync, cuMemcpyHtoDAsync),
    EXPECT(MemcpyDtoHAsync, cuMemcpyDtoHAsync),
    EXPECT(MemcpyHtoD, cuMemcpyHtoD),
    EXPECT(MemcpyDtoH, cuMemcpyDtoH),
    EXPECT(MemsetD8, cuMemsetD8),
    EXPECT(StreamDestroy, cuStreamDestroy),
    EXPECT(StreamBeginCapture, cuStreamBeginCapture),
    EXPECT(EventDestroy, cuEventDestroy),
    EXPECT(MemCreate, cuMemCreate),
    EXPECT(LaunchKernelEx, cuLaunchKernelEx),
};

static const char *symbol_of(const char *member)
{
#define MATCH(name, symbol, parameters)                                                                                \
    if (strcmp(member, #name) == 0) return symbol;
    CU_DRIVER_TABLE(MATCH)
#undef MATCH
    return "";
}

static void symbols_are_the_headers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        assert_string_equal(symbol_of(expected[i].member), expected[i].symbol);
}

/* No constant, as pointers go. */
static void the_shared_stream_is_the_headers(void **state)
{
    (void)state;
    assert_ptr_equal(CU_SHARED_STREAM, CU_STREAM_LEGACY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(symbols_are_the_headers),
                                       cmocka_unit_test(the_shared_stream_is_the_headers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
