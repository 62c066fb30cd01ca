/* SPDX-License-Identifier: Apache-2.0 */
/* cuda: NVIDIA GPUs as the layers above see them: the driver, devices, compiled kernels, launches, pointers.
 *
 * Called by mem (device memory), shmem (device heap), exec/cuda, the tool and bench/gpu; calls base only. The driver
 * (libcuda.so.1) and the run-time compiler (libnvrtc.so) are opened with dlopen when they are first needed: the library
 * builds, loads and works on machines that have neither, and says EXPAR_ERR_UNSUPPORTED with what to install.
 *
 *   driver.h, driver.c   the driver API: types, table of functions, results as statuses
 *   device.c             GPUs: facts, contexts, links
 *   nvrtc_find.c, nvrtc.c  finding and calling the run-time compiler
 *   parts.h              cuda_sources: kernels and headers as text, generic cubins (cmake/embed_kernels.cmake makes it)
 *   program.c, cache.c   from a source and macros to a loaded module, by way of the disk
 *   launch.c, pointer.c
 *   later.c              what must not be done where it comes up
 *   mark.c, gate.c       places on streams that streams and threads wait for; what streams wait for until a thread says
 *   info.c               the public calls of include/expar/info.h
 *
 * All functions may be called from any thread. */
#ifndef EXPAR_CUDA_CUDA_H
#define EXPAR_CUDA_CUDA_H

#include "base/base.h"
#include "cuda/driver.h"

/* ---- driver (driver.c) ------------------------------------------------------------------------------------------- */

/* Opens the driver; the first call does, later ones give the same answer. EXPAR_ERR_UNSUPPORTED: no libcuda.so.1, too
   old, or no GPU; the text says what to do. */
expar_status cuda_open(void);
/* The driver's functions; only after cuda_open has succeeded once. */
const cu_driver *cuda_driver(void);
/* 13000 for 13.0: what the driver supports. */
int32_t cuda_driver_version(void);

/* EXPAR_OK for success; else EXPAR_ERR_MEMORY (out of device memory) or EXPAR_ERR_CUDA, with
   "cuMemMap: CUDA_ERROR_INVALID_VALUE (invalid argument)" as the text. */
#define CUDA_CALL(member, ...) cuda_status(cuda_driver()->member(__VA_ARGS__), __FILE__, __LINE__, "cu" #member)
expar_status cuda_status(cu_result result, const char *file, int line, const char *call);

/* ---- devices (device.c) ------------------------------------------------------------------------------------------ */

/* One GPU, opened; its primary context is retained, the one that the CUDA runtime and PyTorch use too. */
typedef struct cuda_device {
    int32_t index; /* as CUDA_VISIBLE_DEVICES numbers them in this process */
    cu_device handle;
    cu_context context;
    char name[64];
    char bus_id[32];      /* the same GPU has the same in every process of a host */
    cu_uuid uuid;         /* likewise */
    int32_t major, minor; /* compute capability */
    int32_t num_sms;
    int32_t shared_bytes; /* dynamic shared memory that a block may ask for */
    int32_t l2_bytes;
    uint64_t memory_bytes;
    bool vmm;      /* virtual memory management: memory and addresses apart */
    bool posix_fd; /* physical memory can be shared by file descriptors, the driver says */
} cuda_device;

expar_status cuda_device_count(int32_t *count);
/* EXPAR_ERR_UNSUPPORTED as cuda_open; EXPAR_ERR_RANGE: no such GPU, the text says how many there are. */
expar_status cuda_device_open(int32_t index, cuda_device **out);
/* The facts alone: no context is made, and nothing is to be closed. */
expar_status cuda_device_read(int32_t index, cuda_device *out);
void cuda_device_close(cuda_device *device); /* NULL is allowed */

/* Makes the device's context current to this thread until cuda_leave; pairs nest. Every CUDA_CALL on memory, streams,
   events and kernels stands between the two. */
expar_status cuda_enter(const cuda_device *device);
void cuda_leave(void);
/* Waits for all work in the context that is current. */
expar_status cuda_synchronize(void);

/* How two GPUs of this process reach each other's memory. */
typedef struct cuda_link {
    bool access;  /* loads and stores work */
    bool atomics; /* and atomics too */
    int32_t rank; /* the driver's order of performance: 0 is best */
} cuda_link;
expar_status cuda_link_between(int32_t from, int32_t to, cuda_link *out);
/* Index in this process of the GPU with this uuid; -1: it is not visible here. */
int32_t cuda_device_find(const cu_uuid *uuid);

/* ---- kernels (program.c, cache.c, nvrtc.c) ----------------------------------------------------------------------- */

/* A file of the repository, as it was when the library or program was built (cmake/embed_kernels.cmake). */
typedef struct cuda_source {
    const char *name; /* as #include names it: "proto/normal.h", "exec/cuda/kernels/normal/dispatch.cu" */
    const char *text;
    const void *cubin; /* a kernel's generic variant for sm_90, or NULL */
    size_t cubin_bytes;
    /* The table that it stands in: what it may include, besides what the library embeds. */
    const struct cuda_source *table;
    size_t table_count;
} cuda_source;

/* Macros of a compilation. Shapes and formats only: what changes from call to call is a parameter. */
typedef struct cuda_macro {
    const char *name;
    int64_t value;
} cuda_macro;

/* A source under exec/cuda/kernels, compiled for one GPU and loaded. Kernels are extern "C" __global__. */
typedef struct cuda_program cuda_program;

/* Loads `source` ("normal/dispatch.cu") compiled with the macros, in this order: loaded already in this process (same
   device, same macros); from the disk cache; by NVRTC; where there is no NVRTC, the generic cubin, which the build made
   without macros: kernels then take shapes from their parameters (cuda_program_is_generic). Compiling takes a second or
   so, and the driver lets no module in while kernels of the device's context run: do it at set-up. Threads that ask for
   the same program at once wait for one of them, and all hear its error; others do not wait. EXPAR_ERR_UNSUPPORTED: no
   NVRTC, and no generic cubin for this GPU; the text says what to install. EXPAR_ERR_CUDA: the compiler refused; its
   log goes to the log, once a source. */
expar_status cuda_program_load(const cuda_device *device, const char *source, const cuda_macro *macros,
                               size_t num_macros, cuda_program **out);
/* The same for a source that is not the library's: the tool brings kernels of its own. */
expar_status cuda_program_make(const cuda_device *device, const cuda_source *source, const cuda_macro *macros,
                               size_t num_macros, cuda_program **out);
void cuda_program_release(cuda_program *program); /* NULL is allowed */
bool cuda_program_is_generic(const cuda_program *program);
/* A kernel by name, allowed to use `shared_bytes` of dynamic shared memory (0: what every kernel may). It is loaded
   then: where modules load lazily, the driver puts a kernel off until it is asked for, and no longer. */
expar_status cuda_program_kernel(const cuda_program *program, const char *name, int32_t shared_bytes, cu_function *out);

/* For compilations without a GPU (tests, checks): NVRTC alone, to a cubin for sm_<arch>. *log (may be NULL) gets the
   compiler's messages, "" when there are none; both are the caller's to free. No cache. */
expar_status cuda_compile(const char *source, const cuda_macro *macros, size_t num_macros, int32_t arch, void **cubin,
                          size_t *cubin_bytes, char **log);

/* Where NVRTC was found and its version (13000 for 13.0). EXPAR_ERR_UNSUPPORTED says where it was looked for and how
   to get it. *path is static. */
expar_status cuda_nvrtc_find(const char **path, int32_t *version);

/* ---- launches (launch.c) ----------------------------------------------------------------------------------------- */

typedef struct cuda_launch {
    cu_function function;
    cu_stream stream;
    uint32_t blocks, threads; /* a block */
    uint32_t shared_bytes;    /* dynamic */
    bool cooperative;         /* all blocks are resident at once, or the launch fails */
} cuda_launch;
/* parameters: addresses of the kernel's arguments. The device must have been entered. */
expar_status cuda_launch_kernel(const cuda_launch *launch, void **parameters);

/* ---- later (later.c) --------------------------------------------------------------------------------------------- */

/* Something to do with the driver; a member of what it is about. run frees it. */
typedef struct cuda_task {
    void (*run)(struct cuda_task *task);
    struct cuda_task *next;
} cuda_task;
/* Has it done by a thread of the library's, in the order of such calls: from functions that the driver calls, too. */
void cuda_later(cuda_task *task);
/* Until all that was to be done is done. Not from such functions. */
void cuda_later_await(void);

/* ---- streams (mark.c, gate.c) ------------------------------------------------------------------------------------ */

/* Whether one is current to this thread. Opens no driver. */
bool cuda_context_is_current(void);
/* As cuda_enter, into the context of a stream; of a default one: the current context. */
expar_status cuda_enter_stream(void *stream);
/* The same where a default stream is that GPU's, whatever context is current. *opened: NULL, or to be closed after
   cuda_leave. */
expar_status cuda_enter_stream_on(int32_t device, void *stream, cuda_device **opened);
/* The number of the capture that the stream is in; 0: none. The context is current. */
expar_status cuda_stream_capture(void *stream, unsigned long long *capture);

/* A place on a stream: passed when all has ended that the stream held when the mark was made. */
typedef struct cuda_mark cuda_mark;
/* stream: also a default one, of the current context. In a capture the mark is a place in the graph. */
expar_status cuda_mark_make(void *stream, cuda_mark **out);
/* The same on a stream of that GPU, whatever context is current; *out NULL: the stream is being captured. */
expar_status cuda_mark_make_on(int32_t device, void *stream, cuda_mark **out);
/* One more holder, and one less; the last one gives the mark back. cuda_mark_give calls no driver, and NULL is allowed.
   Streams that follow the mark still do. */
void cuda_mark_hold(cuda_mark *mark);
void cuda_mark_give(cuda_mark *mark);
/* Where a mark lies among the other marks of its stream. A mark that was made before another one was begun precedes it
   on their stream. Moments are numbers that only grow, for the whole process. */
typedef struct cuda_mark_place {
    unsigned long long stream; /* the driver's number of the stream, which no other stream of the process ever has */
    uint64_t begun, made;      /* moments before and after the driver recorded the mark */
} cuda_mark_place;
cuda_mark_place cuda_mark_place_of(const cuda_mark *mark);
uint64_t cuda_moment(void);
/* Marks in a list, each in one list at most: `cuda_mark_link` puts a mark ahead of another one, or of NULL. */
void cuda_mark_link(cuda_mark *mark, cuda_mark *next);
cuda_mark *cuda_mark_next(const cuda_mark *mark);
unsigned long long cuda_mark_capture(const cuda_mark *mark); /* number of the capture that it is in; 0: none */
/* EXPAR_ERR_STATE: it is in a capture. EXPAR_ERR_CUDA: the context has failed. */
expar_status cuda_mark_query(const cuda_mark *mark, bool *passed);
/* What is put on the stream from now on waits for the mark; a default stream: that of the mark's context.
   EXPAR_ERR_STATE: the stream is in a capture that the mark is not in, and has not been passed. */
expar_status cuda_mark_follow(const cuda_mark *mark, void *stream);

/* What streams wait for until a thread of the host opens it. */
typedef struct cuda_gate cuda_gate;
/* What is put on the stream from now on waits for the gate; *gate NULL: takes one, closed. One thread at a time.
   EXPAR_ERR_STATE: the stream is being captured. EXPAR_ERR_UNSUPPORTED: the GPU has no such waits. The first ones of a
   process take pinned memory, which may wait for kernels. */
expar_status cuda_gate_hold(cuda_gate **gate, void *stream);
/* Streams go on. Neither of the two calls a driver; NULL is allowed. */
void cuda_gate_open(cuda_gate *gate);
void cuda_gate_give(cuda_gate *gate); /* opens it, too */

/* ---- pointers (pointer.c) ---------------------------------------------------------------------------------------- */

/* Where an address points. CUDA_PLACE_HOST covers ordinary and pinned host memory. */
typedef enum cuda_place_kind { CUDA_PLACE_HOST = 0, CUDA_PLACE_DEVICE = 1, CUDA_PLACE_MANAGED = 2 } cuda_place_kind;
typedef struct cuda_place {
    cuda_place_kind kind;
    int32_t device; /* -1 for host memory */
} cuda_place;
/* Opens no driver: in a process where none is loaded and started everything is host memory. */
cuda_place cuda_place_of(const void *address);

#endif
