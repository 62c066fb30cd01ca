/* SPDX-License-Identifier: Apache-2.0 */
/* cuda: NVIDIA GPUs as the layers above see them: the driver, devices, compiled kernels, launches, pointers.
 *
 * Called by mem (device memory), shmem (device heap), exec/cuda, the tool and bench/gpu; calls base only. The driver
 * (libcuda.so.1) and the run-time compiler (libnvrtc.so) are opened with dlopen when they are first needed. So the
 * library builds, loads and works on machines that have neither. Then it returns EXPAR_ERR_UNSUPPORTED and says what to
 * install.
 *
 *   driver.h, driver.c   the driver API: types, table of functions, results as statuses
 *   device.c             GPUs: facts, contexts, links
 *   nvrtc_find.c, nvrtc.c  finding and calling the run-time compiler
 *   parts.h              cuda_sources: kernels and headers as text, generic cubins (cmake/embed_kernels.cmake makes it)
 *   program.c, cache.c   from a source and macros to a loaded module, through the disk cache
 *   launch.c, pointer.c
 *   later.c              work for another thread, for functions that must not call the driver
 *   mark.c, gate.c       marks: places on streams to wait for; gates: streams wait until a thread opens them
 *   failed.c             failures of work on streams, for those who wait for marks after it
 *   command.h, command.c streams ask threads of the library to do something
 *   info.c               the public calls of include/expar/info.h
 *
 * All functions may be called from any thread. */
#ifndef EXPAR_CUDA_CUDA_H
#define EXPAR_CUDA_CUDA_H

#include "base/base.h"
#include "cuda/driver.h"

/* ---- driver (driver.c) ------------------------------------------------------------------------------------------- */

/* Opens the driver at the first call; later calls give the same answer. EXPAR_ERR_UNSUPPORTED: no libcuda.so.1, too
   old, or no GPU; the text says what to do. */
expar_status cuda_open(void);
/* Returns the driver's functions; only after cuda_open has succeeded once. */
const cu_driver *cuda_driver(void);
/* Returns the version that the driver supports: 13000 for 13.0. */
int32_t cuda_driver_version(void);

/* Returns EXPAR_OK, EXPAR_ERR_MEMORY (out of device memory) or EXPAR_ERR_CUDA, with "cuMemMap: CUDA_ERROR_INVALID_VALUE
   (invalid argument)" as the text. */
#define CUDA_CALL(member, ...) cuda_status(cuda_driver()->member(__VA_ARGS__), __FILE__, __LINE__, "cu" #member)
expar_status cuda_status(cu_result result, const char *file, int line, const char *call);

/* ---- devices (device.c) ------------------------------------------------------------------------------------------ */

/* One open GPU. Its primary context is retained, which the CUDA runtime and PyTorch use, too. */
typedef struct cuda_device {
    /* number in this process, as CUDA_VISIBLE_DEVICES assigns it */
    int32_t index;
    cu_device handle;
    cu_context context;
    char name[64];
    /* the same GPU has the same one in every process of a host */
    char bus_id[32];
    /* likewise */
    cu_uuid uuid;
    /* compute capability */
    int32_t major, minor;
    int32_t num_sms;
    /* dynamic shared memory that a block may ask for */
    int32_t shared_bytes;
    int32_t l2_bytes;
    uint64_t memory_bytes;
    /* virtual memory management: memory and addresses are separate */
    bool vmm;
    /* the driver says that file descriptors can share physical memory */
    bool posix_fd;
    /* a network's device can register such memory if it was made for that */
    bool direct_rdma;
    /* its atomics on pinned memory are atomic with those of CPUs */
    bool host_atomics;
} cuda_device;

expar_status cuda_device_count(int32_t *count);
/* EXPAR_ERR_UNSUPPORTED as cuda_open; EXPAR_ERR_RANGE: no such GPU, the text says how many there are. */
expar_status cuda_device_open(int32_t index, cuda_device **out);
/* Reads only the facts: makes no context, and needs no close. */
expar_status cuda_device_read(int32_t index, cuda_device *out);
void cuda_device_close(cuda_device *device); /* NULL is allowed */

/* Makes the device's context current to this thread until cuda_leave; pairs nest. Every CUDA_CALL on memory, streams,
   events and kernels must be between the two. */
expar_status cuda_enter(const cuda_device *device);
void cuda_leave(void);
/* The same where the context may be current already, as in calls of the program; that saves two calls of the driver.
   *entered: cuda_leave is to follow. */
expar_status cuda_enter_from_outside(const cuda_device *device, bool *entered);
/* Waits for all work in the current context. */
expar_status cuda_synchronize(void);

/* How two GPUs of this process reach each other's memory. */
typedef struct cuda_link {
    bool access;  /* loads and stores work */
    bool atomics; /* and atomics too */
    int32_t rank; /* the driver's order of performance: 0 is best */
} cuda_link;
expar_status cuda_link_between(int32_t from, int32_t to, cuda_link *out);
/* Returns the index in this process of the GPU with this uuid; -1: it is not visible here. */
int32_t cuda_device_find(const cu_uuid *uuid);

/* ---- kernels (program.c, cache.c, nvrtc.c) ----------------------------------------------------------------------- */

/* A file of the repository, as it was when the library or program was built (cmake/embed_kernels.cmake). */
typedef struct cuda_source {
    /* as #include names it: "proto/normal.h", "exec/cuda/kernels/normal/dispatch.cu" */
    const char *name;
    const char *text;
    /* a kernel's generic variant for sm_90, or NULL */
    const void *cubin;
    size_t cubin_bytes;
    /* The table with this source; it may include the files there, and those that the library embeds. */
    const struct cuda_source *table;
    size_t table_count;
} cuda_source;

/* A macro of a compilation. Macros are only for shapes and formats; values that change from call to call are
   parameters. */
typedef struct cuda_macro {
    const char *name;
    int64_t value;
} cuda_macro;

/* A source under exec/cuda/kernels, compiled for one GPU and loaded. Kernels are extern "C" __global__. */
typedef struct cuda_program cuda_program;

/* Loads `source` ("normal/dispatch.cu") compiled with the macros. It tries in this order:
 *
 *   - the module that this process has loaded already (same device, same macros);
 *   - the disk cache;
 *   - NVRTC;
 *   - without NVRTC the generic cubin, which the build made without macros. Kernels then take shapes from their
 *     parameters (cuda_program_is_generic).
 *
 * Compiling takes a second or so, and the driver loads no module while kernels of the device's context run: do it at
 * set-up. Threads that ask for the same program at once wait for one of them, and all get its error; others do not
 * wait. EXPAR_ERR_UNSUPPORTED: no NVRTC, and no generic cubin for this GPU; the text says what to install.
 * EXPAR_ERR_CUDA: the compiler rejected the source; its messages are logged once for each source. */
expar_status cuda_program_load(const cuda_device *device, const char *source, const cuda_macro *macros,
                               size_t num_macros, cuda_program **out);
/* The same for a source that is not in the library: the tool has kernels of its own. */
expar_status cuda_program_make(const cuda_device *device, const cuda_source *source, const cuda_macro *macros,
                               size_t num_macros, cuda_program **out);
void cuda_program_release(cuda_program *program); /* NULL is allowed */
bool cuda_program_is_generic(const cuda_program *program);
/* Gives a kernel by name, allowed to use `shared_bytes` of dynamic shared memory (0: what every kernel may). This also
   loads it: with lazy loading, the driver loads a kernel only when it is asked for. */
expar_status cuda_program_kernel(const cuda_program *program, const char *name, int32_t shared_bytes, cu_function *out);

/* For compilations without a GPU (tests, checks): only NVRTC, to a cubin for sm_<arch>, without the cache. *log (may be
   NULL) gets the compiler's messages, "" if there are none. The caller frees both. */
expar_status cuda_compile(const char *source, const cuda_macro *macros, size_t num_macros, int32_t arch, void **cubin,
                          size_t *cubin_bytes, char **log);

/* Gives the path and version (13000 for 13.0) of NVRTC. EXPAR_ERR_UNSUPPORTED says which places were searched and how
   to get it. *path is static. */
expar_status cuda_nvrtc_find(const char **path, int32_t *version);

/* ---- launches (launch.c) ----------------------------------------------------------------------------------------- */

typedef struct cuda_launch {
    cu_function function;
    cu_stream stream;
    /* threads: of a block */
    uint32_t blocks, threads;
    /* dynamic */
    uint32_t shared_bytes;
    /* all blocks run at the same time, or the launch fails */
    bool cooperative;
} cuda_launch;
/* parameters: addresses of the kernel's arguments. The device must have been entered. */
expar_status cuda_launch_kernel(const cuda_launch *launch, void **parameters);

/* ---- later (later.c) --------------------------------------------------------------------------------------------- */

/* A task for the driver; it is a member of the object that it concerns. run frees it. */
typedef struct cuda_task {
    void (*run)(struct cuda_task *task);
    struct cuda_task *next;
} cuda_task;
/* Passes the task to a thread of the library, which runs tasks in order. Functions that the driver calls may use
   this. */
void cuda_later(cuda_task *task);
/* Waits until all tasks are done. Functions that the driver calls must not use this. */
void cuda_later_await(void);

/* ---- streams (mark.c, gate.c) ------------------------------------------------------------------------------------ */

/* Returns whether a context is current to this thread. Opens no driver. */
bool cuda_context_is_current(void);
/* Finds the PCI address of the GPU whose context is current to this thread, as "0000:4b:00.0". Returns false if there
   is none, and opens no driver then. */
bool cuda_current_bus_id(char bus_id[32]);
/* cuda_enter for the context of a stream; for a default stream, the current context. */
expar_status cuda_enter_stream(void *stream);
/* The same, but a default stream is that GPU's, whatever context is current. *opened: NULL, or a device to close after
   cuda_leave. */
expar_status cuda_enter_stream_on(int32_t device, void *stream, cuda_device **opened);
/* Gives the number of the capture that the stream is in; 0: none. The context must be current. */
expar_status cuda_stream_capture(void *stream, unsigned long long *capture);

/* A place on a stream. It is passed when all work has ended that the stream held when the mark was made. */
typedef struct cuda_mark cuda_mark;
/* stream: may be a default one, of the current context. In a capture the mark is a place in the graph. */
expar_status cuda_mark_make(void *stream, cuda_mark **out);
/* The same for callers that have entered the device and know the stream's capture (0: none). */
expar_status cuda_mark_make_in(const cuda_device *device, void *stream, unsigned long long capture, cuda_mark **out);
/* The same on a stream of that GPU, whatever context is current; *out NULL: the stream is being captured. */
expar_status cuda_mark_make_on(int32_t device, void *stream, cuda_mark **out);
/* Take and drop a reference; the last drop frees the mark. cuda_mark_give calls no driver, and NULL is allowed. Streams
   that follow the mark still do. */
void cuda_mark_hold(cuda_mark *mark);
void cuda_mark_give(cuda_mark *mark);
/* The place of a mark among the other marks of its stream. A mark that was made before another one was begun precedes
   it on their stream. Moments are numbers that only grow, for the whole process. */
typedef struct cuda_mark_place {
    unsigned long long stream; /* the driver's number of the stream, which no other stream of the process ever has */
    uint64_t begun, made;      /* moments before and after the driver recorded the mark */
} cuda_mark_place;
cuda_mark_place cuda_mark_place_of(const cuda_mark *mark);
uint64_t cuda_moment(void);
/* Marks in a list, each in at most one list: `cuda_mark_link` puts a mark before another one, or before NULL. */
void cuda_mark_link(cuda_mark *mark, cuda_mark *next);
cuda_mark *cuda_mark_next(const cuda_mark *mark);
unsigned long long cuda_mark_capture(const cuda_mark *mark); /* number of the capture that it is in; 0: none */
/* EXPAR_ERR_STATE: it is in a capture. EXPAR_ERR_CUDA: the context has failed. */
expar_status cuda_mark_query(const cuda_mark *mark, bool *passed);
/* Later work on the stream waits for the mark; a default stream is that of the mark's context. EXPAR_ERR_STATE: the
   stream is in a capture that the mark is not in, and the mark has not been passed. */
expar_status cuda_mark_follow(const cuda_mark *mark, void *stream);

/* A gate. Streams wait at it until a host thread opens it. */
typedef struct cuda_gate cuda_gate;
/* Later work on the stream waits for the gate; with *gate NULL it takes a closed one. One thread at a time.
   EXPAR_ERR_STATE: the stream is being captured. EXPAR_ERR_UNSUPPORTED: the GPU has no such waits. The first gates of a
   process allocate pinned memory, which may wait for kernels. */
expar_status cuda_gate_hold(cuda_gate **gate, void *stream);
/* Lets the streams go on. Neither of the two calls a driver; NULL is allowed. */
void cuda_gate_open(cuda_gate *gate);
void cuda_gate_give(cuda_gate *gate); /* opens it, too */

/* A stream runs on after a failure of work that the library has put there. These calls keep the failure for those who
   wait for a mark after that work (failed.c). `moment`: when the work was put there. Keeps the first one of a stream
   until cuda_failure_told. Returns its number, which is never 0. */
uint64_t cuda_failure_keep(unsigned long long stream, uint64_t moment, const error_kept *why);
/* A caller has got the failure. Marks that are made from now on do not have it any more. */
void cuda_failure_told(uint64_t number);
/* Returns the failure of work before the mark, as this thread's last error; EXPAR_OK: there is none. */
expar_status cuda_failure_before(const cuda_mark *mark);

/* ---- pointers (pointer.c) ---------------------------------------------------------------------------------------- */

/* Where an address points. CUDA_PLACE_HOST covers ordinary and pinned host memory. */
typedef enum cuda_place_kind { CUDA_PLACE_HOST = 0, CUDA_PLACE_DEVICE = 1, CUDA_PLACE_MANAGED = 2 } cuda_place_kind;
typedef struct cuda_place {
    cuda_place_kind kind;
    int32_t device; /* -1 for host memory */
} cuda_place;
/* Opens no driver: in a process without a loaded and started driver, all memory is host memory. */
cuda_place cuda_place_of(const void *address);
/* Returns whether the driver knows the address: it is memory of a GPU, or host memory that was allocated pinned or
   registered. */
bool cuda_knows(const void *address);

#endif
