/* SPDX-License-Identifier: Apache-2.0 */
/* The part of the CUDA driver API that expar uses, declared by ourselves, so that it builds without CUDA installed.
 *
 * Types are named cu_… and have the driver's layout (tests/cuda/test_declarations.c compares them with cuda.h if that
 * is installed). The functions are members of one table, which the first caller fills from libcuda.so.1 (driver.c):
 * `cuda_driver()->MemGetInfo(&free, &total)`. CUDA_CALL turns the result into a status: `CUDA_CALL(MemGetInfo, &free,
 * &total)`. */
#ifndef EXPAR_CUDA_DRIVER_H
#define EXPAR_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef int cu_result; /* 0: success */
typedef int cu_device;
typedef unsigned long long cu_address; /* of device memory; also of pinned host memory, as kernels see it */
typedef unsigned long long cu_memory;  /* physical memory, made by MemCreate */
typedef struct CUctx_st *cu_context;
typedef struct CUmod_st *cu_module;
typedef struct CUfunc_st *cu_function;
typedef struct CUstream_st *cu_stream;
typedef struct CUevent_st *cu_event;
typedef struct CUgraph_st *cu_graph;
typedef struct CUgraphExec_st *cu_graph_exec;
typedef struct CUgraphNode_st *cu_graph_node;
typedef struct CUuserObject_st *cu_user_object;
typedef void (*cu_host_fn)(void *context);

/* A name of the default stream that all threads share, as NULL is. */
#define CU_SHARED_STREAM ((cu_stream)1)
/* The default stream that each thread has for itself. */
#define CU_THREADS_STREAM ((cu_stream)2)

enum cu_result_value {
    CU_OK = 0,
    CU_ERROR_OUT_OF_MEMORY = 2,
    CU_ERROR_NO_DEVICE = 100,
    CU_ERROR_NOT_READY = 600,
    CU_ERROR_PEER_ENABLED = 704,
    CU_ERROR_NOT_SUPPORTED = 801,
    /* Errors of calls that a capture does not allow lie between these two. */
    CU_ERROR_CAPTURE_UNSUPPORTED = 900,
    CU_ERROR_CAPTURE_WRONG_THREAD = 908
};

enum cu_device_attribute {
    CU_ATTRIBUTE_NUM_SMS = 16,
    CU_ATTRIBUTE_L2_BYTES = 38,
    CU_ATTRIBUTE_CC_MAJOR = 75,
    CU_ATTRIBUTE_CC_MINOR = 76,
    CU_ATTRIBUTE_SHARED_BYTES_OPTIN = 97,
    CU_ATTRIBUTE_HOST_ATOMICS = 86, /* "host native atomic supported" */
    CU_ATTRIBUTE_VMM = 102,
    CU_ATTRIBUTE_POSIX_FD = 103,
    /* "GPUDirect RDMA with CUDA VMM supported": for memory that MemCreate makes with flags.direct_rdma */
    CU_ATTRIBUTE_DIRECT_RDMA = 110
};

enum cu_p2p_attribute { CU_P2P_PERFORMANCE_RANK = 1, CU_P2P_NATIVE_ATOMICS = 3 };

enum cu_function_attribute {
    CU_FUNCTION_MAX_DYNAMIC_SHARED_BYTES = 8 /* the only attribute that expar sets */
};

enum cu_pointer_attribute {
    CU_POINTER_MEMORY_TYPE = 2, /* a uint32_t: cu_memory_type */
    /* an unsigned long long: number of the allocation, which no other one of the process has */
    CU_POINTER_BUFFER_ID = 7,
    CU_POINTER_IS_MANAGED = 8,
    CU_POINTER_DEVICE_ORDINAL = 9, /* an int */
    CU_POINTER_LEGACY_IPC = 10     /* an unsigned int: 1 if IpcGetMemHandle gives a handle */
};
enum cu_memory_type { CU_MEMORY_HOST = 1, CU_MEMORY_DEVICE = 2 };

enum cu_flags {
    CU_STREAM_NON_BLOCKING = 1,
    CU_EVENT_NO_TIMING = 2,
    CU_EVENT_EXTERNAL = 1, /* for recording and waiting: in a capture a separate node, not an edge of the graph */
    CU_USER_OBJECT_NO_DESTRUCTOR_SYNC = 1,
    CU_GRAPH_USER_OBJECT_MOVE = 1,
    CU_HOST_PORTABLE = 1, /* MemHostAlloc, MemHostRegister: pinned for all contexts */
    CU_HOST_MAPPED = 2,   /* and mapped for kernels */
    CU_HOST_IOMEMORY = 4, /* MemHostRegister: registers of a device, not memory */
    CU_IPC_PEER_ACCESS = 1,
    CU_WAIT_AT_LEAST = 0, /* StreamWaitValue: cyclic */
    CU_WRITE_FENCED = 0,  /* StreamWriteValue: what the stream did before is seen by all who see the value */
    CU_CAPTURE_GLOBAL = 0,
    CU_CAPTURE_THREAD_LOCAL = 1,
    CU_CAPTURE_RELAXED = 2
};
enum cu_capture_status { CU_CAPTURE_NONE = 0, CU_CAPTURE_ACTIVE = 1, CU_CAPTURE_INVALIDATED = 2 };

/* ---- physical memory and its mappings ---------------------------------------------------------------------------- */

enum cu_memory_constants {
    CU_ALLOCATION_PINNED = 1,
    CU_HANDLE_POSIX_FD = 1,
    CU_LOCATION_DEVICE = 1,
    CU_ACCESS_READ_WRITE = 3,
    CU_GRANULARITY_RECOMMENDED = 1
};
typedef struct cu_location {
    int type, id;
} cu_location;
typedef struct cu_allocation {
    int type, handle_types;
    cu_location location;
    void *win32;
    struct {
        unsigned char compression, direct_rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
} cu_allocation;
typedef struct cu_access {
    cu_location location;
    int flags;
} cu_access;
typedef struct cu_uuid {
    char bytes[16];
} cu_uuid;
/* Names memory of MemAlloc to other processes. */
typedef struct cu_ipc_memory {
    char bytes[64];
} cu_ipc_memory;

/* ---- launches ---------------------------------------------------------------------------------------------------- */

enum cu_launch_attribute_id { CU_LAUNCH_COOPERATIVE = 2 };
typedef union cu_launch_value {
    char pad[64];
    int cooperative;
} cu_launch_value;
typedef struct cu_launch_attribute {
    int id;
    char pad[8 - sizeof(int)];
    cu_launch_value value;
} cu_launch_attribute;
typedef struct cu_launch_config {
    unsigned int grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    cu_stream stream;
    cu_launch_attribute *attributes;
    unsigned int num_attributes;
} cu_launch_config;

/* ---- the functions: X(member, symbol, parameters) ---------------------------------------------------------------- */

#define CU_DRIVER_TABLE(X)                                                                                             \
    X(Init, "cuInit", (unsigned int flags))                                                                            \
    X(DriverGetVersion, "cuDriverGetVersion", (int *version))                                                          \
    X(GetErrorName, "cuGetErrorName", (cu_result result, const char **name))                                           \
    X(GetErrorString, "cuGetErrorString", (cu_result result, const char **text))                                       \
    X(DeviceGetCount, "cuDeviceGetCount", (int *count))                                                                \
    X(DeviceGet, "cuDeviceGet", (cu_device * device, int ordinal))                                                     \
    X(DeviceGetName, "cuDeviceGetName", (char *name, int bytes, cu_device device))                                     \
    X(DeviceGetAttribute, "cuDeviceGetAttribute", (int *value, int attribute, cu_device device))                       \
    X(DeviceTotalMem, "cuDeviceTotalMem_v2", (size_t * bytes, cu_device device))                                       \
    X(DeviceGetUuid, "cuDeviceGetUuid_v2", (cu_uuid * uuid, cu_device device))                                         \
    X(DeviceGetPCIBusId, "cuDeviceGetPCIBusId", (char *id, int bytes, cu_device device))                               \
    X(DeviceCanAccessPeer, "cuDeviceCanAccessPeer", (int *can, cu_device device, cu_device peer))                      \
    X(DeviceGetP2PAttribute, "cuDeviceGetP2PAttribute", (int *value, int attribute, cu_device from, cu_device to))     \
    X(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (cu_context * context, cu_device device))                    \
    X(DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (cu_device device))                                     \
    X(CtxPushCurrent, "cuCtxPushCurrent_v2", (cu_context context))                                                     \
    X(CtxPopCurrent, "cuCtxPopCurrent_v2", (cu_context * context))                                                     \
    X(CtxGetCurrent, "cuCtxGetCurrent", (cu_context * context))                                                        \
    X(CtxGetDevice, "cuCtxGetDevice", (cu_device * device))                                                            \
    X(CtxEnablePeerAccess, "cuCtxEnablePeerAccess", (cu_context peer, unsigned int flags))                             \
    X(CtxSynchronize, "cuCtxSynchronize", (void))                                                                      \
    X(MemGetInfo, "cuMemGetInfo_v2", (size_t * free_bytes, size_t * total_bytes))                                      \
    X(MemAlloc, "cuMemAlloc_v2", (cu_address * address, size_t bytes))                                                 \
    X(MemFree, "cuMemFree_v2", (cu_address address))                                                                   \
    X(MemAllocAsync, "cuMemAllocAsync", (cu_address * address, size_t bytes, cu_stream stream))                        \
    X(MemFreeAsync, "cuMemFreeAsync", (cu_address address, cu_stream stream))                                          \
    X(MemGetAddressRange, "cuMemGetAddressRange_v2", (cu_address * base, size_t * bytes, cu_address address))          \
    X(PointerGetAttribute, "cuPointerGetAttribute", (void *value, int attribute, cu_address address))                  \
    X(IpcGetMemHandle, "cuIpcGetMemHandle", (cu_ipc_memory * handle, cu_address address))                              \
    X(IpcOpenMemHandle, "cuIpcOpenMemHandle_v2", (cu_address * address, cu_ipc_memory handle, unsigned int flags))     \
    X(IpcCloseMemHandle, "cuIpcCloseMemHandle", (cu_address address))                                                  \
    X(MemHostAlloc, "cuMemHostAlloc", (void **data, size_t bytes, unsigned int flags))                                 \
    X(MemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2", (cu_address * address, void *data, unsigned int flags)) \
    X(MemHostRegister, "cuMemHostRegister_v2", (void *data, size_t bytes, unsigned int flags))                         \
    X(MemHostUnregister, "cuMemHostUnregister", (void *data))                                                          \
    X(MemFreeHost, "cuMemFreeHost", (void *data))                                                                      \
    X(MemcpyAsync, "cuMemcpyAsync", (cu_address dest, cu_address source, size_t bytes, cu_stream stream))              \
    X(MemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (cu_address dest, const void *source, size_t bytes, cu_stream stream))  \
    X(MemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void *dest, cu_address source, size_t bytes, cu_stream stream))        \
    X(MemcpyHtoD, "cuMemcpyHtoD_v2", (cu_address dest, const void *source, size_t bytes))                              \
    X(MemcpyDtoH, "cuMemcpyDtoH_v2", (void *dest, cu_address source, size_t bytes))                                    \
    X(MemsetD8Async, "cuMemsetD8Async", (cu_address dest, unsigned char value, size_t bytes, cu_stream stream))        \
    X(MemsetD16Async, "cuMemsetD16Async", (cu_address dest, unsigned short value, size_t count, cu_stream stream))     \
    X(MemsetD8, "cuMemsetD8_v2", (cu_address dest, unsigned char value, size_t bytes))                                 \
    X(MemCreate, "cuMemCreate",                                                                                        \
      (cu_memory * memory, size_t bytes, const cu_allocation *allocation, unsigned long long flags))                   \
    X(MemRelease, "cuMemRelease", (cu_memory memory))                                                                  \
    X(MemRetainAllocationHandle, "cuMemRetainAllocationHandle", (cu_memory * memory, void *address))                   \
    X(MemAddressReserve, "cuMemAddressReserve",                                                                        \
      (cu_address * address, size_t bytes, size_t alignment, cu_address request, unsigned long long flags))            \
    X(MemAddressFree, "cuMemAddressFree", (cu_address address, size_t bytes))                                          \
    X(MemMap, "cuMemMap",                                                                                              \
      (cu_address address, size_t bytes, size_t offset, cu_memory memory, unsigned long long flags))                   \
    X(MemUnmap, "cuMemUnmap", (cu_address address, size_t bytes))                                                      \
    X(MemSetAccess, "cuMemSetAccess", (cu_address address, size_t bytes, const cu_access *access, size_t count))       \
    X(MemExportToShareableHandle, "cuMemExportToShareableHandle",                                                      \
      (void *handle, cu_memory memory, int type, unsigned long long flags))                                            \
    X(MemImportFromShareableHandle, "cuMemImportFromShareableHandle", (cu_memory * memory, void *handle, int type))    \
    X(MemGetAllocationGranularity, "cuMemGetAllocationGranularity",                                                    \
      (size_t * bytes, const cu_allocation *allocation, int option))                                                   \
    X(StreamCreate, "cuStreamCreate", (cu_stream * stream, unsigned int flags))                                        \
    X(StreamDestroy, "cuStreamDestroy_v2", (cu_stream stream))                                                         \
    X(StreamSynchronize, "cuStreamSynchronize", (cu_stream stream))                                                    \
    X(StreamQuery, "cuStreamQuery", (cu_stream stream))                                                                \
    X(StreamGetId, "cuStreamGetId", (cu_stream stream, unsigned long long *number))                                    \
    X(StreamGetCtx, "cuStreamGetCtx", (cu_stream stream, cu_context * context))                                        \
    X(CtxGetId, "cuCtxGetId", (cu_context context, unsigned long long *number))                                        \
    X(StreamWaitValue, "cuStreamWaitValue32_v2",                                                                       \
      (cu_stream stream, cu_address word, uint32_t value, unsigned int flags))                                         \
    X(StreamWriteValue32, "cuStreamWriteValue32_v2",                                                                   \
      (cu_stream stream, cu_address word, uint32_t value, unsigned int flags))                                         \
    X(StreamWriteValue64, "cuStreamWriteValue64_v2",                                                                   \
      (cu_stream stream, cu_address word, uint64_t value, unsigned int flags))                                         \
    X(StreamWaitEvent, "cuStreamWaitEvent", (cu_stream stream, cu_event event, unsigned int flags))                    \
    X(StreamIsCapturing, "cuStreamIsCapturing", (cu_stream stream, int *capture_status))                               \
    X(StreamGetCaptureInfo, "cuStreamGetCaptureInfo_v2",                                                               \
      (cu_stream stream, int *capture_status, unsigned long long *id, cu_graph *graph,                                 \
       const cu_graph_node **dependencies, size_t *num_dependencies))                                                  \
    X(ThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", (int *mode))                               \
    X(StreamBeginCapture, "cuStreamBeginCapture_v2", (cu_stream stream, int mode))                                     \
    X(StreamEndCapture, "cuStreamEndCapture", (cu_stream stream, cu_graph * graph))                                    \
    X(GraphInstantiate, "cuGraphInstantiateWithFlags",                                                                 \
      (cu_graph_exec * exec, cu_graph graph, unsigned long long flags))                                                \
    X(GraphUpload, "cuGraphUpload", (cu_graph_exec exec, cu_stream stream))                                            \
    X(GraphLaunch, "cuGraphLaunch", (cu_graph_exec exec, cu_stream stream))                                            \
    X(UserObjectCreate, "cuUserObjectCreate",                                                                          \
      (cu_user_object * object, void *context, cu_host_fn destroy, unsigned int count, unsigned int flags))            \
    X(UserObjectRelease, "cuUserObjectRelease", (cu_user_object object, unsigned int count))                           \
    X(GraphRetainUserObject, "cuGraphRetainUserObject",                                                                \
      (cu_graph graph, cu_user_object object, unsigned int count, unsigned int flags))                                 \
    X(GraphExecDestroy, "cuGraphExecDestroy", (cu_graph_exec exec))                                                    \
    X(GraphDestroy, "cuGraphDestroy", (cu_graph graph))                                                                \
    X(LaunchHostFunc, "cuLaunchHostFunc", (cu_stream stream, cu_host_fn run, void *context))                           \
    X(EventCreate, "cuEventCreate", (cu_event * event, unsigned int flags))                                            \
    X(EventDestroy, "cuEventDestroy_v2", (cu_event event))                                                             \
    X(EventRecord, "cuEventRecord", (cu_event event, cu_stream stream))                                                \
    X(EventRecordWithFlags, "cuEventRecordWithFlags", (cu_event event, cu_stream stream, unsigned int flags))          \
    X(EventQuery, "cuEventQuery", (cu_event event))                                                                    \
    X(EventSynchronize, "cuEventSynchronize", (cu_event event))                                                        \
    X(EventElapsedTime, "cuEventElapsedTime", (float *milliseconds, cu_event start, cu_event end))                     \
    X(ModuleLoadData, "cuModuleLoadData", (cu_module * module, const void *image))                                     \
    X(ModuleUnload, "cuModuleUnload", (cu_module module))                                                              \
    X(ModuleGetFunction, "cuModuleGetFunction", (cu_function * function, cu_module module, const char *name))          \
    X(FuncSetAttribute, "cuFuncSetAttribute", (cu_function function, int attribute, int value))                        \
    X(OccupancyMaxActiveBlocksPerMultiprocessor, "cuOccupancyMaxActiveBlocksPerMultiprocessor",                        \
      (int *blocks, cu_function function, int threads, size_t shared_bytes))                                           \
    X(LaunchKernelEx, "cuLaunchKernelEx",                                                                              \
      (const cu_launch_config *config, cu_function function, void **parameters, void **extra))

typedef struct cu_driver {
#define CU_DRIVER_MEMBER(member, symbol, parameters) cu_result(*member) parameters;
    CU_DRIVER_TABLE(CU_DRIVER_MEMBER)
#undef CU_DRIVER_MEMBER
} cu_driver;

#endif
