/* SPDX-License-Identifier: Apache-2.0 */
/* Symmetric memory for kernels: put, get, signals, atomics, waits, fence, quiet and barriers. A guide is
 * docs/reference/device-memory.md.
 *
 * The header compiles
 *   - by NVRTC, without any other header;
 *   - by nvcc, as CUDA C++ from C++14 on, for GPUs of compute capability 8.0 and later;
 *   - as C11 to C17 for the CPU: the threads of a kernel are then threads of the host.
 * There is no library for the device, no symbol to fill and no initialisation. The host gets a handle by
 * expar_device_get, and the kernel takes it as an argument, by value or by address.
 *
 * Arguments. `h` is the handle. Every signal or word, `dest` of a put, and `source` of a get are *local* symmetric
 * addresses. The rank with the remote copy is `pe`, in the numbers of the handle's team. Handles for the GPU serve
 * device and pinned memory, handles for the CPU serve host and pinned memory. The other side of a put or get may be any
 * memory that the thread can access.
 *
 * Scopes. A call without suffix is one thread's. With _warp or _block all threads of the warp or block call it, with
 * equal arguments. Such a call begins and ends with a barrier of these threads: what they wrote before is sent. Blocks
 * have at most 1024 threads. A warp's threads have consecutive numbers, so only the last warp may be smaller.
 *
 * Order. The data of a put_signal precede its signal. A fence orders what came before it on the handle, of any thread,
 * before what comes after it. Quiet returns when all that is delivered, and what was fetched is here. "Before" means
 * ordered, as by __syncthreads or an acquired flag. So one thread can be quiet for its block. Calls of the host, of
 * streams and of other handles are not covered. Stores through expar_kernel_ptr count.
 *
 * Errors. A kernel is never stopped. The first error of a handle stays: later calls do nothing, gets and fetching
 * atomics give 0, waits return at once. expar_kernel_status tells the kernel, expar_device_get_error the host.
 * The PE and the range are always checked. With EXPAR_DEVICE_CHECKS defined as 1 before the #include, alignment is
 * checked, too; without it a word that is not aligned to its size may end the kernel.
 *
 * Waits return 0 (EXPAR_OK) when their condition holds, and else the status for which they ended. A rank that is late
 * is waited for. A rank that died, left, fell silent or aborted ends all waits. So does a rank that records that it
 * will not come to a barrier. Kernels whose host has stopped end their waits by themselves after an hour
 * (EXPAR_CUDA_ORPHAN_TIMEOUT). */
#ifndef EXPAR_DEVICE_H
#define EXPAR_DEVICE_H

#ifndef __CUDACC_RTC__
#include <expar/device_handle.h>
#include <expar/rma.h>
#include <expar/wait.h>
#endif

#ifndef EXPAR_DEVICE_CHECKS
#define EXPAR_DEVICE_CHECKS 0
#endif

/* ---- types ------------------------------------------------------------------------------------------------------- */

#ifdef __CUDACC_RTC__
typedef signed char expar_int8;
typedef short expar_int16;
typedef int expar_int32;
typedef long long expar_int64;
typedef unsigned char expar_uint8;
typedef unsigned short expar_uint16;
typedef unsigned int expar_uint32;
typedef unsigned long long expar_uint64;
typedef unsigned long expar_size;
#define EXPAR_DEVICE_VERSION 1
/* As in expar/wait.h, expar/rma.h and expar/status.h. */
typedef enum expar_cmp {
    EXPAR_CMP_EQ = 0,
    EXPAR_CMP_NE,
    EXPAR_CMP_GT,
    EXPAR_CMP_GE,
    EXPAR_CMP_LT,
    EXPAR_CMP_LE
} expar_cmp;
typedef enum expar_signal_op { EXPAR_SIGNAL_SET = 0, EXPAR_SIGNAL_ADD = 1 } expar_signal_op;
typedef enum expar_status {
    EXPAR_OK = 0,
    EXPAR_ERR_ARGUMENT = 2,
    EXPAR_ERR_ALIGNMENT = 6,
    EXPAR_ERR_RANGE = 9,
    EXPAR_ERR_HANDLE = 12,
    EXPAR_ERR_STATE = 16,
    EXPAR_ERR_ADDRESS = 17,
    EXPAR_ERR_PEER = 23,
    EXPAR_ERR_ABORTED = 24,
    EXPAR_ERR_UNSUPPORTED = 25
} expar_status;
typedef struct expar_device_handle expar_device_handle;
#else
typedef int8_t expar_int8;
typedef int16_t expar_int16;
typedef int32_t expar_int32;
typedef int64_t expar_int64;
typedef uint8_t expar_uint8;
typedef uint16_t expar_uint16;
typedef uint32_t expar_uint32;
typedef uint64_t expar_uint64;
typedef size_t expar_size;
#endif
#if EXPAR_DEVICE_VERSION != 1
#error "expar/device.h and expar/device_handle.h are of different versions"
#endif

/* Bits of elements. Elements of type float are accessed by them, too. */
typedef expar_uint8 expar_dev_u8;
typedef expar_uint16 expar_dev_u16;
#ifdef __CUDACC__
typedef expar_uint32 expar_dev_u32;
typedef expar_uint64 expar_dev_u64;
#else
typedef expar_uint32 __attribute__((may_alias)) expar_dev_u32;
typedef expar_uint64 __attribute__((may_alias)) expar_dev_u64;
#endif

/* The index that the any forms give when no word is left to look at, or none holds. */
#define EXPAR_DEVICE_NO_INDEX (~(expar_size)0)

/* X(type, suffix, bits), as the tables of expar/types.h. */
#define EXPAR_DEV_WORD_TYPES(X)                                                                                        \
    X(expar_int32, i32, 32) X(expar_int64, i64, 64) X(expar_uint32, u32, 32) X(expar_uint64, u64, 64)
#define EXPAR_DEV_FLOAT_TYPES(X) X(float, f32, 32) X(double, f64, 64)
#define EXPAR_DEV_DATA_TYPES(X)                                                                                        \
    X(expar_int8, i8, 8)                                                                                               \
    X(expar_uint8, u8, 8)                                                                                              \
    X(expar_int16, i16, 16) X(expar_uint16, u16, 16) EXPAR_DEV_WORD_TYPES(X) EXPAR_DEV_FLOAT_TYPES(X)

/* ---- what a handle names ----------------------------------------------------------------------------------------- */

/* The library writes these structs; kernels read them by the functions below. Programs use none of their members. */

/* How operations get to one PE's memory of one kind. */
typedef enum expar_dev_way {
    EXPAR_DEV_WAY_NONE = 0,
    EXPAR_DEV_WAY_MAPPED = 1, /* loads and stores at `base` */
    EXPAR_DEV_WAY_PROXY = 2,  /* a ring of the host's proxy; not served yet */
    EXPAR_DEV_WAY_GDA = 3     /* a queue of the network device; not served yet */
} expar_dev_way;

/* The host writes an entry while kernels may run: `base` last. Kernels read it without order. They reach an entry only
   with an address that the host has got after it wrote the entry. */
typedef struct expar_dev_entry {
    expar_uint64 base;    /* MAPPED: where the PE's heap begins, for this target; else 0 */
    expar_uint32 way;     /* expar_dev_way */
    expar_uint32 atomics; /* MAPPED: 1 if atomics of all ranks that reach this memory are atomic with each other */
} expar_dev_entry;

/* One kind of memory on this rank. `end` grows; the host writes it as an entry. */
typedef struct expar_dev_heap {
    expar_uint64 base, begin, end; /* users' memory is base + [begin, end); end 0: none */
} expar_dev_heap;

enum { EXPAR_DEV_HOST = 0, EXPAR_DEV_DEVICE = 1, EXPAR_DEV_PINNED = 2, EXPAR_DEV_KINDS = 3 };

/* Memory of the device kind that the program has registered: the heap's base + [begin, end); end 0: none. The host
   writes `begin` first, then `end` (release). Kernels read `end` first (acquire). */
typedef struct expar_dev_span {
    expar_uint64 begin, end;
} expar_dev_span;
#define EXPAR_DEV_MOST_REGISTERED 16

/* A kernel's report to the host; the host reads it while the kernel runs. Pinned memory for GPUs. */
typedef struct expar_dev_report {
    /* Generation of the handle whose first error the members below tell; 0: none. The thread that found the error
       writes it last (release), the host reads it first (acquire). */
    expar_uint32 failed;
    expar_uint32 status, operation;
    expar_int32 pe;
    expar_uint64 offset, seen, awaited;
    /* The reason for a lasting wait (EXPAR_DEV_AWAIT_WORD). Kernels write it, the host's guard reads it;
       relaxed, because the word stands for itself. */
    expar_uint64 awaits;
    /* EXPAR_DEV_ABORT, and the pulse, which the host's guard raises by EXPAR_DEV_BEAT. The guard writes it (release),
       one waiting thread of the kernel reads it (acquire). */
    expar_uint64 orders;
    /* The status with which waits end. The guard writes it before EXPAR_DEV_ABORT (release), kernels read it after that
       (acquire). */
    expar_uint32 ending;
} expar_dev_report;

#define EXPAR_DEV_ABORT 1u
#define EXPAR_DEV_BEAT  2u

/* The state of a handle. Kernels of this rank share it: device memory for GPUs. After it come the entries, [kind][rank
   of the group]. It is never freed, since a kernel may have a handle that has ended. */
typedef struct expar_dev_state {
    /* generation << 32 | what went wrong: 0, a status, or EXPAR_DEV_FAILING while a thread writes the report. The host
       changes the generation when the handle begins and ends. A kernel's thread sets the rest once (compare-swap). All
       threads read it before they do anything. */
    expar_uint64 mark;
    /* The watch over waits. watch_ns is the time at which a thread took the watch, moved_ns that of the pulse's last
       change. `orders` is the largest value that was read from the host, and seen_ns the time of that. The thread that
       has the watch writes them, seen_ns last (release); all waiting threads read seen_ns first (acquire). */
    expar_uint64 watch_ns, moved_ns, orders, seen_ns;
    /* Copy of report->awaits, by which threads see whether it has been told (compare-swap, relaxed). */
    expar_uint64 noted;
    expar_dev_heap heaps[EXPAR_DEV_KINDS];
    expar_dev_span registered[EXPAR_DEV_MOST_REGISTERED];
    /* Words of the team's barrier: in the heap of that kind, at that offset, a word for each rank of the group. Rank r
       raises word r (release), the owner reads it (acquire). slot -1: the team has no barrier for kernels. */
    expar_uint64 sync_offset;
    expar_int32 sync_kind, sync_slot;
    /* [ranks] How often this rank has met each rank in that barrier. Only the thread that makes the barrier uses it. */
    expar_uint64 counts;
} expar_dev_state;

#define EXPAR_DEV_FAILING 0xffu

struct expar_device_handle {
    expar_uint64 mark;         /* generation << 32 */
    expar_dev_state *state;    /* as kernels see it */
    expar_dev_report *report;  /* likewise */
    expar_uint64 orphan_ns;    /* a wait ends when the pulse has not moved for so long */
    expar_uint32 version;      /* EXPAR_DEVICE_VERSION */
    expar_uint32 number;       /* of the state in the process */
    expar_int32 me, size;      /* this rank's number in the team, and its members */
    expar_int32 start, stride; /* member p is rank start + p * stride of the group */
    expar_int32 rank, ranks;   /* this rank, and the size of the group */
};

/* The operation that failed: expar_dev_report.operation. */
enum {
    EXPAR_DEV_NONE = 0,
    EXPAR_DEV_PUT,
    EXPAR_DEV_GET,
    EXPAR_DEV_P,
    EXPAR_DEV_G,
    EXPAR_DEV_PUT_SIGNAL,
    EXPAR_DEV_SIGNAL_OP,
    EXPAR_DEV_SIGNAL_FETCH,
    EXPAR_DEV_ATOMIC,
    EXPAR_DEV_WAIT,
    EXPAR_DEV_TEST,
    EXPAR_DEV_SYNC,
    EXPAR_DEV_OPERATIONS
};

/* The reason for a wait: the words of a wait or a test, which any rank may change, or a barrier. */
enum { EXPAR_DEV_AWAITS_NONE = 0, EXPAR_DEV_AWAITS_WORD = 1, EXPAR_DEV_AWAITS_SYNC = 2 };
#define EXPAR_DEV_PULSE_MASK 0xffffffu
/* pulse << 40 | kind << 32 | rank awaited */
#define EXPAR_DEV_AWAIT_WORD(pulse, kind, rank)                                                                        \
    (((expar_uint64)(pulse)&EXPAR_DEV_PULSE_MASK) << 40 | (expar_uint64)(kind) << 32 | (expar_uint32)(rank))

/* Scopes, and the threads of a scope. */
enum { EXPAR_DEV_THREAD = 0, EXPAR_DEV_WARP = 1, EXPAR_DEV_BLOCK = 2 };
typedef struct expar_dev_place {
    expar_uint32 index, count;
} expar_dev_place;
/* Words that the first thread of a scope gives to the others. */
typedef struct expar_dev_words4 {
    expar_uint64 word[4];
} expar_dev_words4;

/* ---- the target's vocabulary: ordered accesses, fences, copies, barriers of threads ------------------------------ */

/* Three targets define the same functions: another one's header (EXPAR_DEVICE_PORT), CUDA, and the CPU. */
#ifndef EXPAR_DEVICE_DELAY
/* Litmus tests delay threads at ordered accesses. */
#define EXPAR_DEVICE_DELAY() ((void)0)
#endif

#if defined(EXPAR_DEVICE_PORT)
#include EXPAR_DEVICE_PORT

#elif defined(__CUDACC__)

#define EXPAR_DEV_FUNC      static inline __device__
/* The kind of memory that the target has beside pinned memory. */
#define EXPAR_DEV_MAIN_KIND EXPAR_DEV_DEVICE

#define EXPAR_DEV_LOAD(name, T, R, order, bits, reg)                                                                   \
    EXPAR_DEV_FUNC T name(const T *at)                                                                                 \
    {                                                                                                                  \
        R value;                                                                                                       \
        asm volatile("ld." order ".sys.u" bits " %0, [%1];" : "=" reg(value) : "l"(at) : "memory");                    \
        return (T)value;                                                                                               \
    }
#define EXPAR_DEV_STORE(name, T, R, order, bits, reg)                                                                  \
    EXPAR_DEV_FUNC void name(T *at, T given)                                                                           \
    {                                                                                                                  \
        const R value = given;                                                                                         \
        asm volatile("st." order ".sys.u" bits " [%0], %1;" : : "l"(at), reg(value) : "memory");                       \
    }
EXPAR_DEV_LOAD(expar_dev_load_acquire_16, expar_uint16, expar_uint16, "acquire", "16", "h")
EXPAR_DEV_LOAD(expar_dev_load_acquire_32, expar_uint32, expar_uint32, "acquire", "32", "r")
EXPAR_DEV_LOAD(expar_dev_load_acquire_64, expar_uint64, expar_uint64, "acquire", "64", "l")
EXPAR_DEV_LOAD(expar_dev_load_8, expar_uint8, expar_uint32, "relaxed", "8", "r")
EXPAR_DEV_LOAD(expar_dev_load_16, expar_uint16, expar_uint16, "relaxed", "16", "h")
EXPAR_DEV_LOAD(expar_dev_load_32, expar_uint32, expar_uint32, "relaxed", "32", "r")
EXPAR_DEV_LOAD(expar_dev_load_64, expar_uint64, expar_uint64, "relaxed", "64", "l")
EXPAR_DEV_STORE(expar_dev_store_8, expar_uint8, expar_uint32, "relaxed", "8", "r")
EXPAR_DEV_STORE(expar_dev_store_16, expar_uint16, expar_uint16, "relaxed", "16", "h")
EXPAR_DEV_STORE(expar_dev_store_32, expar_uint32, expar_uint32, "relaxed", "32", "r")
EXPAR_DEV_STORE(expar_dev_store_64, expar_uint64, expar_uint64, "relaxed", "64", "l")
EXPAR_DEV_STORE(expar_dev_store_release_32, expar_uint32, expar_uint32, "release", "32", "r")
EXPAR_DEV_STORE(expar_dev_store_release_64, expar_uint64, expar_uint64, "release", "64", "l")

#define EXPAR_DEV_CHANGE(name, T, operation, bits, reg)                                                                \
    EXPAR_DEV_FUNC T name(T *at, T value)                                                                              \
    {                                                                                                                  \
        T old;                                                                                                         \
        asm volatile("atom.relaxed.sys." operation ".b" bits " %0, [%1], %2;"                                          \
                     : "=" reg(old)                                                                                    \
                     : "l"(at), reg(value)                                                                             \
                     : "memory");                                                                                      \
        return old;                                                                                                    \
    }
#define EXPAR_DEV_CHANGES(T, bits, reg)                                                                                \
    EXPAR_DEV_CHANGE(expar_dev_swap_##bits, T, "exch", #bits, reg)                                                     \
    EXPAR_DEV_CHANGE(expar_dev_and_##bits, T, "and", #bits, reg)                                                       \
    EXPAR_DEV_CHANGE(expar_dev_or_##bits, T, "or", #bits, reg)                                                         \
    EXPAR_DEV_CHANGE(expar_dev_xor_##bits, T, "xor", #bits, reg)                                                       \
    EXPAR_DEV_FUNC T expar_dev_add_##bits(T *at, T value)                                                              \
    {                                                                                                                  \
        T old;                                                                                                         \
        asm volatile("atom.relaxed.sys.add.u" #bits " %0, [%1], %2;" : "=" reg(old) : "l"(at), reg(value) : "memory"); \
        return old;                                                                                                    \
    }                                                                                                                  \
    EXPAR_DEV_FUNC T expar_dev_compare_swap_##bits(T *at, T expected, T desired)                                       \
    {                                                                                                                  \
        T old;                                                                                                         \
        asm volatile("atom.relaxed.sys.cas.b" #bits " %0, [%1], %2, %3;"                                               \
                     : "=" reg(old)                                                                                    \
                     : "l"(at), reg(expected), reg(desired)                                                            \
                     : "memory");                                                                                      \
        return old;                                                                                                    \
    }
EXPAR_DEV_CHANGES(expar_uint32, 32, "r")
EXPAR_DEV_CHANGES(expar_uint64, 64, "l")
EXPAR_DEV_FUNC void expar_dev_add_release_64(expar_uint64 *at, expar_uint64 value)
{
    asm volatile("red.release.sys.add.u64 [%0], %1;" : : "l"(at), "l"(value) : "memory");
}
EXPAR_DEV_FUNC void expar_dev_max_64(expar_uint64 *at, expar_uint64 value)
{
    asm volatile("red.relaxed.sys.max.u64 [%0], %1;" : : "l"(at), "l"(value) : "memory");
}

/* The fence of `fence`, and that of `quiet`, which also orders earlier stores before later loads. */
EXPAR_DEV_FUNC void expar_dev_fence_order(void)
{
    asm volatile("fence.acq_rel.sys;" : : : "memory");
}
EXPAR_DEV_FUNC void expar_dev_fence_full(void)
{
    asm volatile("fence.sc.sys;" : : : "memory");
}

EXPAR_DEV_FUNC expar_uint64 expar_dev_clock_ns(void)
{
    expar_uint64 value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value) : : "memory");
    return value;
}
/* Between two polls of a word: of device memory, or of pinned memory, which is across a bus. */
EXPAR_DEV_FUNC void expar_dev_pause(int is_far)
{
    if (is_far) __nanosleep(200);
}
/* Polls between two looks at the watch. */
#define EXPAR_DEV_POLLS 256u

EXPAR_DEV_FUNC expar_dev_place expar_dev_place_in(int scope)
{
    expar_dev_place place;
    const expar_uint32 threads = blockDim.x * blockDim.y * blockDim.z;
    place.index = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    place.count = threads;
    if (scope == EXPAR_DEV_WARP) {
        const expar_uint32 first = place.index & ~31u;
        place.count = threads - first < 32 ? threads - first : 32;
        place.index &= 31u;
    }
    if (scope == EXPAR_DEV_THREAD) {
        place.index = 0;
        place.count = 1;
    }
    return place;
}
EXPAR_DEV_FUNC void expar_dev_meet(int scope)
{
    if (scope == EXPAR_DEV_BLOCK) __syncthreads();
    if (scope == EXPAR_DEV_WARP) {
        const expar_uint32 count = expar_dev_place_in(scope).count;
        __syncwarp(count == 32 ? 0xffffffffu : (1u << count) - 1);
    }
}
/* The first thread's words, for all threads of the scope. */
EXPAR_DEV_FUNC void expar_dev_share(int scope, expar_dev_words4 *words)
{
    if (scope == EXPAR_DEV_WARP) {
        const expar_uint32 count = expar_dev_place_in(scope).count;
        const expar_uint32 mask = count == 32 ? 0xffffffffu : (1u << count) - 1;
        for (int i = 0; i < 4; i++)
            words->word[i] = __shfl_sync(mask, words->word[i], 0);
    }
    if (scope == EXPAR_DEV_BLOCK) {
        __shared__ expar_uint64 given[4];
        if (expar_dev_place_in(scope).index == 0)
            for (int i = 0; i < 4; i++)
                given[i] = words->word[i];
        __syncthreads();
        for (int i = 0; i < 4; i++)
            words->word[i] = given[i];
        __syncthreads();
    }
}

/* Loads of data that other GPUs write: they pass by the first-level cache, which those stores do not reach. */
EXPAR_DEV_FUNC uint4 expar_dev_load_unit(const uint4 *at)
{
    uint4 v;
    asm volatile("ld.relaxed.sys.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at)
                 : "memory");
    return v;
}
/* Copies [from, from + bytes), `place.count` threads together, by the largest words to which both sides are aligned
   alike. fetches: `from` is the remote side. */
EXPAR_DEV_FUNC void expar_dev_copy_units(expar_uint64 to, expar_uint64 from, expar_size units, expar_dev_place place,
                                         int fetches)
{
    const uint4 *source = (const uint4 *)from;
    uint4 *dest = (uint4 *)to;
    expar_size i = place.index;
    for (; i + 3 * (expar_size)place.count < units; i += 4 * (expar_size)place.count) {
        uint4 v[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint4 *at = source + i + (expar_size)k * place.count;
            v[k] = fetches ? expar_dev_load_unit(at) : *at;
        }
#pragma unroll
        for (int k = 0; k < 4; k++)
            dest[i + (expar_size)k * place.count] = v[k];
    }
    for (; i < units; i += place.count)
        dest[i] = fetches ? expar_dev_load_unit(source + i) : source[i];
}
EXPAR_DEV_FUNC void expar_dev_copy_words(expar_uint64 to, expar_uint64 from, expar_size words, expar_dev_place place,
                                         int fetches)
{
    for (expar_size i = place.index; i < words; i += place.count) {
        const expar_uint32 *at = (const expar_uint32 *)from + i;
        ((expar_uint32 *)to)[i] = fetches ? expar_dev_load_32(at) : *at;
    }
}
EXPAR_DEV_FUNC void expar_dev_copy_bytes(expar_uint64 to, expar_uint64 from, expar_size bytes, expar_dev_place place,
                                         int fetches)
{
    for (expar_size i = place.index; i < bytes; i += place.count) {
        const expar_uint8 *at = (const expar_uint8 *)from + i;
        ((expar_uint8 *)to)[i] = fetches ? expar_dev_load_8(at) : *at;
    }
}
EXPAR_DEV_FUNC void expar_dev_copy(void *dest, const void *source, expar_size bytes, expar_dev_place place, int fetches)
{
    const expar_uint64 to = (expar_uint64)dest, from = (expar_uint64)source, apart = to ^ from;
    const expar_uint64 unit = apart % 16 == 0 ? 16 : apart % 4 == 0 ? 4 : 1;
    expar_size head = (expar_size)((0 - to) % unit);
    head = head < bytes ? head : bytes;
    const expar_size units = (bytes - head) / unit, tail = head + units * unit;
    expar_dev_copy_bytes(to, from, head, place, fetches);
    if (unit == 16) expar_dev_copy_units(to + head, from + head, units, place, fetches);
    if (unit == 4) expar_dev_copy_words(to + head, from + head, units, place, fetches);
    if (unit == 1) expar_dev_copy_bytes(to + head, from + head, units, place, fetches);
    expar_dev_copy_bytes(to + tail, from + tail, bytes - tail, place, fetches);
}

#else

/* The CPU. A thread says which thread of which block it is by expar_device_thread_begin; else it is a block of its
   own. */
#include <sched.h>
#include <string.h>
#include <time.h>

#define EXPAR_DEV_FUNC      static inline
#define EXPAR_DEV_MAIN_KIND EXPAR_DEV_HOST

#ifdef __cplusplus
#define EXPAR_DEV_THREAD_LOCAL thread_local
#else
#define EXPAR_DEV_THREAD_LOCAL _Thread_local
#endif

/* A barrier: the last thread that comes raises `number` (release), the others wait for that (acquire). */
typedef struct expar_dev_meeting {
    expar_uint32 came, number;
} expar_dev_meeting;
/* The threads of a block, which the program makes. It lies in memory that they share. */
typedef struct expar_device_block {
    expar_uint32 threads;
    expar_dev_meeting all, warps[32];
    /* of the block, and of its warps; the first thread writes them between two barriers */
    expar_dev_words4 given[33];
} expar_device_block;
typedef struct expar_dev_thread {
    expar_device_block *block;
    expar_uint32 index;
} expar_dev_thread;
/* One for each thread of the program, or of a shared object in it. */
extern EXPAR_DEV_THREAD_LOCAL expar_dev_thread expar_dev_here;
__attribute__((weak, visibility("hidden"))) EXPAR_DEV_THREAD_LOCAL expar_dev_thread expar_dev_here;

/* Prepares a block of 1 to 1024 threads. */
EXPAR_DEV_FUNC void expar_device_block_begin(expar_device_block *block, expar_uint32 threads)
{
    memset(block, 0, sizeof *block);
    block->threads = threads;
}
/* The calling thread is thread `index` of the block, until expar_device_thread_end. */
EXPAR_DEV_FUNC void expar_device_thread_begin(expar_device_block *block, expar_uint32 index)
{
    expar_dev_here.block = block;
    expar_dev_here.index = index;
}
EXPAR_DEV_FUNC void expar_device_thread_end(void)
{
    expar_dev_here.block = 0;
}

/* Stores are releases and loads acquires wherever flags may be among them: race detectors do not know fences. */
#define EXPAR_DEV_LOAD(name, T, order)                                                                                 \
    EXPAR_DEV_FUNC T name(const T *at)                                                                                 \
    {                                                                                                                  \
        return __atomic_load_n(at, order);                                                                             \
    }
#define EXPAR_DEV_STORE(name, T, order)                                                                                \
    EXPAR_DEV_FUNC void name(T *at, T value)                                                                           \
    {                                                                                                                  \
        __atomic_store_n(at, value, order);                                                                            \
    }
EXPAR_DEV_LOAD(expar_dev_load_acquire_16, expar_uint16, __ATOMIC_ACQUIRE)
EXPAR_DEV_LOAD(expar_dev_load_acquire_32, expar_uint32, __ATOMIC_ACQUIRE)
EXPAR_DEV_LOAD(expar_dev_load_acquire_64, expar_uint64, __ATOMIC_ACQUIRE)
EXPAR_DEV_LOAD(expar_dev_load_8, expar_uint8, __ATOMIC_ACQUIRE)
EXPAR_DEV_LOAD(expar_dev_load_16, expar_uint16, __ATOMIC_ACQUIRE)
EXPAR_DEV_LOAD(expar_dev_load_32, expar_dev_u32, __ATOMIC_ACQUIRE)
EXPAR_DEV_LOAD(expar_dev_load_64, expar_dev_u64, __ATOMIC_ACQUIRE)
EXPAR_DEV_STORE(expar_dev_store_8, expar_uint8, __ATOMIC_RELEASE)
EXPAR_DEV_STORE(expar_dev_store_16, expar_uint16, __ATOMIC_RELEASE)
EXPAR_DEV_STORE(expar_dev_store_32, expar_dev_u32, __ATOMIC_RELEASE)
EXPAR_DEV_STORE(expar_dev_store_64, expar_dev_u64, __ATOMIC_RELEASE)
EXPAR_DEV_STORE(expar_dev_store_release_32, expar_uint32, __ATOMIC_RELEASE)
EXPAR_DEV_STORE(expar_dev_store_release_64, expar_uint64, __ATOMIC_RELEASE)

#define EXPAR_DEV_CHANGE(name, T, builtin)                                                                             \
    EXPAR_DEV_FUNC T name(T *at, T value)                                                                              \
    {                                                                                                                  \
        return builtin(at, value, __ATOMIC_SEQ_CST);                                                                   \
    }
#define EXPAR_DEV_CHANGES(T, bits)                                                                                     \
    EXPAR_DEV_CHANGE(expar_dev_swap_##bits, T, __atomic_exchange_n)                                                    \
    EXPAR_DEV_CHANGE(expar_dev_add_##bits, T, __atomic_fetch_add)                                                      \
    EXPAR_DEV_CHANGE(expar_dev_and_##bits, T, __atomic_fetch_and)                                                      \
    EXPAR_DEV_CHANGE(expar_dev_or_##bits, T, __atomic_fetch_or)                                                        \
    EXPAR_DEV_CHANGE(expar_dev_xor_##bits, T, __atomic_fetch_xor)                                                      \
    EXPAR_DEV_FUNC T expar_dev_compare_swap_##bits(T *at, T expected, T desired)                                       \
    {                                                                                                                  \
        __atomic_compare_exchange_n(at, &expected, desired, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                    \
        return expected;                                                                                               \
    }
EXPAR_DEV_CHANGES(expar_dev_u32, 32)
EXPAR_DEV_CHANGES(expar_dev_u64, 64)
EXPAR_DEV_FUNC void expar_dev_add_release_64(expar_uint64 *at, expar_uint64 value)
{
    __atomic_fetch_add(at, value, __ATOMIC_RELEASE);
}
EXPAR_DEV_FUNC void expar_dev_max_64(expar_uint64 *at, expar_uint64 value)
{
    expar_uint64 seen = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (seen < value && !__atomic_compare_exchange_n(at, &seen, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

#if defined(__SANITIZE_THREAD__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtsan"
#endif
EXPAR_DEV_FUNC void expar_dev_fence_order(void)
{
    __atomic_thread_fence(__ATOMIC_ACQ_REL);
}
EXPAR_DEV_FUNC void expar_dev_fence_full(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
#if defined(__SANITIZE_THREAD__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

EXPAR_DEV_FUNC expar_uint64 expar_dev_clock_ns(void)
{
    struct timespec now;
#ifdef CLOCK_MONOTONIC
    clock_gettime(CLOCK_MONOTONIC, &now);
#else
    timespec_get(&now, TIME_UTC);
#endif
    return (expar_uint64)now.tv_sec * 1000000000u + (expar_uint64)now.tv_nsec;
}
EXPAR_DEV_FUNC void expar_dev_pause(int is_far)
{
    (void)is_far;
    sched_yield();
}
#define EXPAR_DEV_POLLS 16u

EXPAR_DEV_FUNC expar_dev_place expar_dev_place_in(int scope)
{
    expar_dev_place place = {0, 1};
    const expar_dev_thread *here = &expar_dev_here;
    if (!here->block || scope == EXPAR_DEV_THREAD) return place;
    place.index = here->index;
    place.count = here->block->threads;
    if (scope == EXPAR_DEV_WARP) {
        const expar_uint32 left = place.count - (place.index & ~31u);
        place.count = left < 32 ? left : 32;
        place.index &= 31u;
    }
    return place;
}
EXPAR_DEV_FUNC void expar_dev_meet(int scope)
{
    const expar_uint32 count = expar_dev_place_in(scope).count;
    if (count == 1) return;
    expar_device_block *block = expar_dev_here.block;
    expar_dev_meeting *meeting = scope == EXPAR_DEV_WARP ? &block->warps[expar_dev_here.index / 32] : &block->all;
    const expar_uint32 number = __atomic_load_n(&meeting->number, __ATOMIC_ACQUIRE);
    if (__atomic_fetch_add(&meeting->came, 1, __ATOMIC_ACQ_REL) + 1 == count) {
        __atomic_store_n(&meeting->came, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&meeting->number, number + 1, __ATOMIC_RELEASE);
        return;
    }
    while (__atomic_load_n(&meeting->number, __ATOMIC_ACQUIRE) == number)
        sched_yield();
}
EXPAR_DEV_FUNC void expar_dev_share(int scope, expar_dev_words4 *words)
{
    const expar_dev_place place = expar_dev_place_in(scope);
    if (place.count == 1) return;
    expar_device_block *block = expar_dev_here.block;
    expar_dev_words4 *given = scope == EXPAR_DEV_WARP ? &block->given[1 + expar_dev_here.index / 32] : block->given;
    if (place.index == 0) *given = *words;
    expar_dev_meet(scope);
    *words = *given;
    expar_dev_meet(scope);
}

/* Each thread copies a piece. */
EXPAR_DEV_FUNC void expar_dev_copy(void *dest, const void *source, expar_size bytes, expar_dev_place place, int fetches)
{
    const expar_size piece = (bytes + place.count - 1) / place.count, at = piece * place.index;
    (void)fetches;
    if (at < bytes)
        memmove((expar_uint8 *)dest + at, (const expar_uint8 *)source + at, bytes - at < piece ? bytes - at : piece);
}

#endif

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/* The handle's error, once it is completely reported; EXPAR_OK: there is none. */
EXPAR_DEV_FUNC int expar_dev_status_of(const expar_device_handle *h)
{
    expar_uint64 mark = expar_dev_load_acquire_64(&h->state->mark);
    while (mark == (h->mark | EXPAR_DEV_FAILING)) {
        expar_dev_pause(1);
        mark = expar_dev_load_acquire_64(&h->state->mark);
    }
    if (mark == h->mark) return EXPAR_OK;
    return mark >> 32 == h->mark >> 32 ? (int)(mark & 0xff) : (int)EXPAR_ERR_HANDLE;
}

/* A failure, for the report. */
typedef struct expar_dev_fault {
    int operation;
    int pe; /* -1: none */
    expar_uint64 offset, seen, awaited;
} expar_dev_fault;
EXPAR_DEV_FUNC expar_dev_fault expar_dev_fault_of(int operation, int pe, expar_uint64 offset)
{
    expar_dev_fault fault;
    fault.operation = operation;
    fault.pe = pe;
    fault.offset = offset;
    fault.seen = 0;
    fault.awaited = 0;
    return fault;
}

/* Records the handle's first error; returns the handle's status, which is not EXPAR_OK then. */
EXPAR_DEV_FUNC int expar_dev_fail(const expar_device_handle *h, int status, const expar_dev_fault *fault)
{
    expar_dev_report *report = h->report;
    if (expar_dev_compare_swap_64(&h->state->mark, h->mark, h->mark | EXPAR_DEV_FAILING) == h->mark) {
        report->status = (expar_uint32)status;
        report->operation = (expar_uint32)fault->operation;
        report->pe = fault->pe;
        report->offset = fault->offset;
        report->seen = fault->seen;
        report->awaited = fault->awaited;
        expar_dev_store_release_32(&report->failed, (expar_uint32)(h->mark >> 32));
        expar_dev_store_release_64(&h->state->mark, h->mark | (expar_uint32)status);
    }
    return expar_dev_status_of(h);
}

/* ---- addresses --------------------------------------------------------------------------------------------------- */

/* Where an operation goes. */
typedef struct expar_dev_aim {
    expar_uint64 at; /* here, the copy of the PE */
    expar_uint32 atomics;
} expar_dev_aim;

/* Finds [address, address + bytes) in this rank's heap of a kind; *offset is its offset there. */
EXPAR_DEV_FUNC int expar_dev_lies_in(const expar_device_handle *h, int kind, const void *address, expar_size bytes,
                                     expar_uint64 *offset)
{
    const expar_dev_heap *heap = &h->state->heaps[kind];
    const expar_uint64 base = expar_dev_load_64(&heap->base), begin = expar_dev_load_64(&heap->begin);
    const expar_uint64 end = expar_dev_load_64(&heap->end), at = (expar_uint64)address - base;
    *offset = at;
    return at >= begin && at < end && bytes <= end - at;
}
/* The same in registered memory, which only GPUs have. */
EXPAR_DEV_FUNC int expar_dev_lies_in_registered(const expar_device_handle *h, const void *address, expar_size bytes,
                                                expar_uint64 *offset)
{
    const expar_uint64 at = (expar_uint64)address - expar_dev_load_64(&h->state->heaps[EXPAR_DEV_DEVICE].base);
    *offset = at;
    for (int i = 0; i < EXPAR_DEV_MOST_REGISTERED; i++) {
        const expar_dev_span *span = &h->state->registered[i];
        const expar_uint64 end = expar_dev_load_acquire_64(&span->end), begin = expar_dev_load_64(&span->begin);
        if (at >= begin && at < end && bytes <= end - at) return 1;
    }
    return 0;
}
/* Gives the kind, or -1. */
EXPAR_DEV_FUNC int expar_dev_find(const expar_device_handle *h, const void *address, expar_size bytes,
                                  expar_uint64 *offset)
{
    expar_uint64 elsewhere;
    const int in_main = expar_dev_lies_in(h, EXPAR_DEV_MAIN_KIND, address, bytes, offset);
    const int in_pinned = expar_dev_lies_in(h, EXPAR_DEV_PINNED, address, bytes, &elsewhere);
    if (in_main) return EXPAR_DEV_MAIN_KIND;
    *offset = elsewhere;
    if (in_pinned) return EXPAR_DEV_PINNED;
    return expar_dev_lies_in_registered(h, address, bytes, offset) ? EXPAR_DEV_DEVICE : -1;
}

EXPAR_DEV_FUNC const expar_dev_entry *expar_dev_entry_of(const expar_device_handle *h, int kind, int rank)
{
    return (const expar_dev_entry *)(h->state + 1) + (expar_size)kind * (expar_size)h->ranks + (expar_size)rank;
}
EXPAR_DEV_FUNC int expar_dev_rank_of(const expar_device_handle *h, int pe)
{
    return h->start + pe * h->stride;
}

/* A word's address must be a multiple of its size. */
EXPAR_DEV_FUNC int expar_dev_is_aligned(const void *address, expar_size width)
{
    return !EXPAR_DEVICE_CHECKS || (expar_uint64)address % width == 0;
}

/* Checks an operation on [address, address + bytes) of pe, and finds where it goes. Returns 0 if it is not to be
   carried out: the handle has an error now, or there are no bytes. width: of the elements. */
EXPAR_DEV_FUNC int expar_dev_aim_at(const expar_device_handle *h, int operation, const void *address, expar_size bytes,
                                    expar_size width, int pe, expar_dev_aim *aim)
{
    expar_uint64 offset = 0;
    const expar_uint64 mark = expar_dev_load_64(&h->state->mark);
    expar_dev_fault fault = expar_dev_fault_of(operation, pe, (expar_uint64)address);
    aim->at = 0;
    aim->atomics = 0;
    if (mark != h->mark) return 0;
    if (pe < 0 || pe >= h->size) return expar_dev_fail(h, EXPAR_ERR_RANGE, &fault) == EXPAR_OK;
    if (bytes == 0) return 0;
    const int kind = expar_dev_find(h, address, bytes, &offset);
    if (kind < 0) return expar_dev_fail(h, EXPAR_ERR_ADDRESS, &fault) == EXPAR_OK;
    if (!expar_dev_is_aligned(address, width)) return expar_dev_fail(h, EXPAR_ERR_ALIGNMENT, &fault) == EXPAR_OK;
    const expar_dev_entry *entry = expar_dev_entry_of(h, kind, expar_dev_rank_of(h, pe));
    const expar_uint64 base = expar_dev_load_64(&entry->base);
    fault.offset = offset;
    /* Ways other than mapped memory branch off here. */
    if (expar_dev_load_32(&entry->way) != EXPAR_DEV_WAY_MAPPED || !base)
        return expar_dev_fail(h, EXPAR_ERR_UNSUPPORTED, &fault) == EXPAR_OK;
    aim->at = base + offset;
    aim->atomics = expar_dev_load_32(&entry->atomics);
    return 1;
}
/* The same for a word that an atomic changes. */
EXPAR_DEV_FUNC int expar_dev_aim_word(const expar_device_handle *h, int operation, const void *word, expar_size width,
                                      int pe, expar_dev_aim *aim)
{
    if (!expar_dev_aim_at(h, operation, word, width, width, pe, aim)) return 0;
    if (aim->atomics) return 1;
    const expar_dev_fault fault = expar_dev_fault_of(operation, pe, (expar_uint64)word);
    return expar_dev_fail(h, EXPAR_ERR_UNSUPPORTED, &fault) == EXPAR_OK;
}

/* ---- put and get ------------------------------------------------------------------------------------------------- */

/* `count` elements of `width` bytes. A product that does not fit is beyond every heap. */
EXPAR_DEV_FUNC expar_size expar_dev_bytes_of(expar_size count, expar_size width)
{
    return count > ~(expar_size)0 / width ? ~(expar_size)0 : count * width;
}

EXPAR_DEV_FUNC void expar_dev_put(const expar_device_handle *h, void *dest, const void *source, expar_size count,
                                  expar_size width, int pe, int scope)
{
    expar_dev_aim aim;
    const expar_size bytes = expar_dev_bytes_of(count, width);
    expar_dev_meet(scope);
    if (expar_dev_aim_at(h, EXPAR_DEV_PUT, dest, bytes, width, pe, &aim))
        expar_dev_copy((void *)aim.at, source, bytes, expar_dev_place_in(scope), 0);
    expar_dev_meet(scope);
}

EXPAR_DEV_FUNC void expar_dev_get(const expar_device_handle *h, void *dest, const void *source, expar_size count,
                                  expar_size width, int pe, int scope)
{
    expar_dev_aim aim;
    const expar_size bytes = expar_dev_bytes_of(count, width);
    expar_dev_meet(scope);
    if (expar_dev_aim_at(h, EXPAR_DEV_GET, source, bytes, width, pe, &aim))
        expar_dev_copy(dest, (const void *)aim.at, bytes, expar_dev_place_in(scope), 1);
    expar_dev_meet(scope);
}

/* Copies. expar_kernel_put[_SCOPE](h, dest, source, bytes, pe) copies from this rank to pe, and
 * expar_kernel_get[_SCOPE] from pe to this rank. A put returns when `source` may be reused, a get when the data are
 * here. The _nbi forms return when the operation has been started: until quiet, source must not change, and dest must
 * not be read. By mapped memory they do the same as the others.
 *
 * expar_kernel_put[_nbi]_S[_SCOPE](h, dest, source, count, pe) is for elements of a type, S one of i8 … u64, f32, f64;
 * likewise get. */
#define EXPAR_DEV_MOVE(move, name, suffix, T, count, width, scope)                                                     \
    EXPAR_DEV_FUNC void expar_kernel_##name##suffix(const expar_device_handle *h, T *dest, const T *source,            \
                                                    expar_size count, int pe)                                          \
    {                                                                                                                  \
        expar_dev_##move(h, dest, source, count, width, pe, scope);                                                    \
    }
#define EXPAR_DEV_MOVES_BY(move, name, T, count, width)                                                                \
    EXPAR_DEV_MOVE(move, name, , T, count, width, EXPAR_DEV_THREAD)                                                    \
    EXPAR_DEV_MOVE(move, name, _warp, T, count, width, EXPAR_DEV_WARP)                                                 \
    EXPAR_DEV_MOVE(move, name, _block, T, count, width, EXPAR_DEV_BLOCK)
#define EXPAR_DEV_MOVES(move, name, T, count, width)                                                                   \
    EXPAR_DEV_MOVES_BY(move, move##name, T, count, width)                                                              \
    EXPAR_DEV_MOVES_BY(move, move##_nbi##name, T, count, width)
EXPAR_DEV_MOVES(put, , void, bytes, 1)
EXPAR_DEV_MOVES(get, , void, bytes, 1)
#define EXPAR_DEV_TYPED_MOVES(T, S, W)                                                                                 \
    EXPAR_DEV_MOVES(put, _##S, T, count, sizeof(T))                                                                    \
    EXPAR_DEV_MOVES(get, _##S, T, count, sizeof(T))
EXPAR_DEV_DATA_TYPES(EXPAR_DEV_TYPED_MOVES)

/* Single elements. Names of the two families have the suffix of a type, such as u64. expar_kernel_p_u64 takes h, dest,
 * value and pe, and puts one element. expar_kernel_g_u64 takes h, source and pe, and returns one. */
#define EXPAR_DEV_SINGLES(T, S, W)                                                                                     \
    EXPAR_DEV_FUNC void expar_kernel_p_##S(const expar_device_handle *h, T *dest, T value, int pe)                     \
    {                                                                                                                  \
        expar_dev_aim aim;                                                                                             \
        union {                                                                                                        \
            T value;                                                                                                   \
            expar_dev_u##W bits;                                                                                       \
        } word;                                                                                                        \
        word.value = value;                                                                                            \
        if (!expar_dev_aim_at(h, EXPAR_DEV_P, dest, sizeof(T), sizeof(T), pe, &aim)) return;                           \
        EXPAR_DEVICE_DELAY();                                                                                          \
        expar_dev_store_##W((expar_dev_u##W *)aim.at, word.bits);                                                      \
    }                                                                                                                  \
    EXPAR_DEV_FUNC T expar_kernel_g_##S(const expar_device_handle *h, const T *source, int pe)                         \
    {                                                                                                                  \
        expar_dev_aim aim;                                                                                             \
        union {                                                                                                        \
            T value;                                                                                                   \
            expar_dev_u##W bits;                                                                                       \
        } word;                                                                                                        \
        word.bits = 0;                                                                                                 \
        if (expar_dev_aim_at(h, EXPAR_DEV_G, source, sizeof(T), sizeof(T), pe, &aim))                                  \
            word.bits = expar_dev_load_##W((const expar_dev_u##W *)aim.at);                                            \
        return word.value;                                                                                             \
    }
EXPAR_DEV_DATA_TYPES(EXPAR_DEV_SINGLES)

/* ---- signals ----------------------------------------------------------------------------------------------------- */

EXPAR_DEV_FUNC void expar_dev_signal(expar_uint64 at, expar_uint64 value, expar_signal_op op)
{
    EXPAR_DEVICE_DELAY();
    if (op == EXPAR_SIGNAL_ADD)
        expar_dev_add_release_64((expar_uint64 *)at, value);
    else
        expar_dev_store_release_64((expar_uint64 *)at, value);
}

EXPAR_DEV_FUNC int expar_dev_aim_signal(const expar_device_handle *h, int operation, expar_uint64 *signal,
                                        expar_signal_op op, int pe, expar_dev_aim *aim)
{
    if (op == EXPAR_SIGNAL_ADD) return expar_dev_aim_word(h, operation, signal, sizeof *signal, pe, aim);
    if (op == EXPAR_SIGNAL_SET) return expar_dev_aim_at(h, operation, signal, sizeof *signal, sizeof *signal, pe, aim);
    const expar_dev_fault fault = expar_dev_fault_of(operation, pe, (expar_uint64)signal);
    return expar_dev_fail(h, EXPAR_ERR_ARGUMENT, &fault) == EXPAR_OK;
}

/* How a put with a signal changes the signal, after the data. */
typedef struct {
    expar_uint64 *signal;
    expar_uint64 value;
    expar_signal_op op;
} expar_dev_update;

EXPAR_DEV_FUNC void expar_dev_put_signal(const expar_device_handle *h, void *dest, const void *source, expar_size count,
                                         expar_size width, const expar_dev_update *update, int pe, int scope)
{
    expar_dev_aim data, word = {0, 0};
    const expar_size bytes = expar_dev_bytes_of(count, width);
    const expar_dev_place place = expar_dev_place_in(scope);
    expar_dev_meet(scope);
    int goes = expar_dev_aim_signal(h, EXPAR_DEV_PUT_SIGNAL, update->signal, update->op, pe, &word);
    if (goes && bytes > 0) {
        goes = expar_dev_aim_at(h, EXPAR_DEV_PUT_SIGNAL, dest, bytes, width, pe, &data);
        if (goes) expar_dev_copy((void *)data.at, source, bytes, place, 0);
    }
    expar_dev_meet(scope);
    /* A thread that found an error has not copied its part. The barrier shows that error to the first thread. */
    if (goes && place.index == 0 && (place.count == 1 || expar_dev_load_64(&h->state->mark) == h->mark))
        expar_dev_signal(word.at, update->value, update->op);
    expar_dev_meet(scope);
}

EXPAR_DEV_FUNC void expar_dev_signal_op(const expar_device_handle *h, expar_uint64 *signal, expar_uint64 value,
                                        expar_signal_op op, int pe, int scope)
{
    expar_dev_aim word = {0, 0};
    expar_dev_meet(scope);
    if (expar_dev_place_in(scope).index == 0 && expar_dev_aim_signal(h, EXPAR_DEV_SIGNAL_OP, signal, op, pe, &word))
        expar_dev_signal(word.at, value, op);
    expar_dev_meet(scope);
}

/* expar_kernel_put_signal[_nbi][_SCOPE](h, dest, source, bytes, signal, value, op, pe) puts, and then sets the 64-bit
 * signal at pe (EXPAR_SIGNAL_SET), or adds to it (EXPAR_SIGNAL_ADD). A thread that has acquired the new signal sees the
 * data of this call; data of earlier calls only if a fence came between. bytes may be 0. Sets and adds of one word must
 * not run at the same time. expar_kernel_put_signal[_nbi]_S[_SCOPE](…, count, …) is for elements of a type.
 * expar_kernel_signal_op[_SCOPE](h, signal, value, op, pe) has no data. */
#define EXPAR_DEV_PUT_SIGNAL(name, suffix, T, count, width, scope)                                                     \
    EXPAR_DEV_FUNC void expar_kernel_##name##suffix(const expar_device_handle *h, T *dest, const T *source,            \
                                                    expar_size count, expar_uint64 *signal, expar_uint64 value,        \
                                                    expar_signal_op op, int pe)                                        \
    {                                                                                                                  \
        const expar_dev_update update = {signal, value, op};                                                           \
        expar_dev_put_signal(h, dest, source, count, width, &update, pe, scope);                                       \
    }
#define EXPAR_DEV_PUT_SIGNALS_BY(name, T, count, width)                                                                \
    EXPAR_DEV_PUT_SIGNAL(name, , T, count, width, EXPAR_DEV_THREAD)                                                    \
    EXPAR_DEV_PUT_SIGNAL(name, _warp, T, count, width, EXPAR_DEV_WARP)                                                 \
    EXPAR_DEV_PUT_SIGNAL(name, _block, T, count, width, EXPAR_DEV_BLOCK)
#define EXPAR_DEV_PUT_SIGNALS(name, T, count, width)                                                                   \
    EXPAR_DEV_PUT_SIGNALS_BY(put_signal##name, T, count, width)                                                        \
    EXPAR_DEV_PUT_SIGNALS_BY(put_signal_nbi##name, T, count, width)
EXPAR_DEV_PUT_SIGNALS(, void, bytes, 1)
#define EXPAR_DEV_TYPED_PUT_SIGNALS(T, S, W) EXPAR_DEV_PUT_SIGNALS(_##S, T, count, sizeof(T))
EXPAR_DEV_DATA_TYPES(EXPAR_DEV_TYPED_PUT_SIGNALS)

#define EXPAR_DEV_SIGNAL(suffix, scope)                                                                                \
    EXPAR_DEV_FUNC void expar_kernel_signal_op##suffix(const expar_device_handle *h, expar_uint64 *signal,             \
                                                       expar_uint64 value, expar_signal_op op, int pe)                 \
    {                                                                                                                  \
        expar_dev_signal_op(h, signal, value, op, pe, scope);                                                          \
    }
EXPAR_DEV_SIGNAL(, EXPAR_DEV_THREAD)
EXPAR_DEV_SIGNAL(_warp, EXPAR_DEV_WARP)
EXPAR_DEV_SIGNAL(_block, EXPAR_DEV_BLOCK)

/* ---- atomics ----------------------------------------------------------------------------------------------------- */

/* Atomics. They are relaxed: they order no other access. On one word they are atomic with those of all kernels that
 * reach it by handles of the same target. They are not atomic with atomics of the host on device memory
 * (docs/reference/device-memory.md).
 *
 * Names are expar_kernel, atomic, the operation, and the suffix of the type, joined by underscores.
 * - Integers of 32 and 64 bits, f32 and f64 have fetch(h, word, pe), set(h, word, value, pe) and
 *   swap(h, word, value, pe).
 * - Integers also have compare swap(h, word, expected, desired, pe), and inc(h, word, pe).
 * - Integers have add, and, or, xor(h, word, value, pe). These and inc also have a form with fetch before the
 *   operation.
 * Fetching forms return the value before. */
#define EXPAR_DEV_ATOMIC_SWAPS(T, S, W)                                                                                \
    EXPAR_DEV_FUNC T expar_kernel_atomic_fetch_##S(const expar_device_handle *h, const T *word, int pe)                \
    {                                                                                                                  \
        expar_dev_aim aim;                                                                                             \
        union {                                                                                                        \
            T value;                                                                                                   \
            expar_dev_u##W bits;                                                                                       \
        } old;                                                                                                         \
        old.bits = 0;                                                                                                  \
        if (expar_dev_aim_word(h, EXPAR_DEV_ATOMIC, word, sizeof(T), pe, &aim))                                        \
            old.bits = expar_dev_load_##W((const expar_dev_u##W *)aim.at);                                             \
        return old.value;                                                                                              \
    }                                                                                                                  \
    EXPAR_DEV_FUNC void expar_kernel_atomic_set_##S(const expar_device_handle *h, T *word, T value, int pe)            \
    {                                                                                                                  \
        expar_dev_aim aim;                                                                                             \
        union {                                                                                                        \
            T value;                                                                                                   \
            expar_dev_u##W bits;                                                                                       \
        } given;                                                                                                       \
        given.value = value;                                                                                           \
        if (!expar_dev_aim_word(h, EXPAR_DEV_ATOMIC, word, sizeof(T), pe, &aim)) return;                               \
        EXPAR_DEVICE_DELAY();                                                                                          \
        expar_dev_store_##W((expar_dev_u##W *)aim.at, given.bits);                                                     \
    }                                                                                                                  \
    EXPAR_DEV_FUNC T expar_kernel_atomic_swap_##S(const expar_device_handle *h, T *word, T value, int pe)              \
    {                                                                                                                  \
        expar_dev_aim aim;                                                                                             \
        union {                                                                                                        \
            T value;                                                                                                   \
            expar_dev_u##W bits;                                                                                       \
        } given;                                                                                                       \
        given.value = value;                                                                                           \
        EXPAR_DEVICE_DELAY();                                                                                          \
        if (expar_dev_aim_word(h, EXPAR_DEV_ATOMIC, word, sizeof(T), pe, &aim))                                        \
            given.bits = expar_dev_swap_##W((expar_dev_u##W *)aim.at, given.bits);                                     \
        else                                                                                                           \
            given.bits = 0;                                                                                            \
        return given.value;                                                                                            \
    }
EXPAR_DEV_WORD_TYPES(EXPAR_DEV_ATOMIC_SWAPS)
EXPAR_DEV_FLOAT_TYPES(EXPAR_DEV_ATOMIC_SWAPS)

#define EXPAR_DEV_ATOMIC_CHANGE(operation, T, S, W)                                                                    \
    EXPAR_DEV_FUNC T expar_kernel_atomic_fetch_##operation##_##S(const expar_device_handle *h, T *word, T value,       \
                                                                 int pe)                                               \
    {                                                                                                                  \
        expar_dev_aim aim;                                                                                             \
        EXPAR_DEVICE_DELAY();                                                                                          \
        if (!expar_dev_aim_word(h, EXPAR_DEV_ATOMIC, word, sizeof(T), pe, &aim)) return 0;                             \
        return (T)expar_dev_##operation##_##W((expar_dev_u##W *)aim.at, (expar_uint##W)value);                         \
    }                                                                                                                  \
    EXPAR_DEV_FUNC void expar_kernel_atomic_##operation##_##S(const expar_device_handle *h, T *word, T value, int pe)  \
    {                                                                                                                  \
        (void)expar_kernel_atomic_fetch_##operation##_##S(h, word, value, pe);                                         \
    }
#define EXPAR_DEV_ATOMICS(T, S, W)                                                                                     \
    EXPAR_DEV_ATOMIC_CHANGE(add, T, S, W)                                                                              \
    EXPAR_DEV_ATOMIC_CHANGE(and, T, S, W)                                                                              \
    EXPAR_DEV_ATOMIC_CHANGE(or, T, S, W)                                                                               \
    EXPAR_DEV_ATOMIC_CHANGE(xor, T, S, W)                                                                              \
    EXPAR_DEV_FUNC T expar_kernel_atomic_fetch_inc_##S(const expar_device_handle *h, T *word, int pe)                  \
    {                                                                                                                  \
        return expar_kernel_atomic_fetch_add_##S(h, word, 1, pe);                                                      \
    }                                                                                                                  \
    EXPAR_DEV_FUNC void expar_kernel_atomic_inc_##S(const expar_device_handle *h, T *word, int pe)                     \
    {                                                                                                                  \
        (void)expar_kernel_atomic_fetch_add_##S(h, word, 1, pe);                                                       \
    }                                                                                                                  \
    EXPAR_DEV_FUNC T expar_kernel_atomic_compare_swap_##S(const expar_device_handle *h, T *word, T expected,           \
                                                          T desired, int pe)                                           \
    {                                                                                                                  \
        expar_dev_aim aim;                                                                                             \
        EXPAR_DEVICE_DELAY();                                                                                          \
        if (!expar_dev_aim_word(h, EXPAR_DEV_ATOMIC, word, sizeof(T), pe, &aim)) return 0;                             \
        return (T)expar_dev_compare_swap_##W((expar_dev_u##W *)aim.at, (expar_uint##W)expected,                        \
                                             (expar_uint##W)desired);                                                  \
    }
EXPAR_DEV_WORD_TYPES(EXPAR_DEV_ATOMICS)

/* ---- the watch over waits ---------------------------------------------------------------------------------------- */

/* Waiting threads read their word, and now and then the handle's state. The host's orders, which lie across a bus, are
 * read by one thread at a time, which has the watch. No fixed thread has it, since any thread may leave. A thread that
 * finds the last reading older than EXPAR_DEV_WATCH_NS takes the watch by a compare-swap of that time. It publishes the
 * orders in the state. A wait that lasts from one pulse of the host to another is told to the host, once a pulse. */
#define EXPAR_DEV_WATCH_NS 20000u
/* An older reading is ignored: the wait has just begun, and another thread is reading the orders. */
#define EXPAR_DEV_FRESH_NS 1000000

typedef struct expar_dev_waiting {
    expar_uint32 pulse; /* one more than the pulse at the last look; 0: not looked yet */
    expar_uint32 polls;
    int kind, rank; /* what it is for */
} expar_dev_waiting;

EXPAR_DEV_FUNC void expar_dev_watch(const expar_device_handle *h, expar_uint64 now)
{
    expar_dev_state *state = h->state;
    const expar_uint64 last = expar_dev_load_64(&state->watch_ns);
    if (now - last < EXPAR_DEV_WATCH_NS) return;
    if (expar_dev_compare_swap_64(&state->watch_ns, last, now) != last) return;
    const expar_uint64 orders = expar_dev_load_acquire_64(&h->report->orders);
    const expar_uint64 before = expar_dev_load_64(&state->orders);
    /* The host moves the pulse whether kernels wait or not. */
    const int is_new = orders != before || expar_dev_load_64(&state->seen_ns) == 0;
    if (is_new) expar_dev_store_64(&state->moved_ns, now);
    expar_dev_max_64(&state->orders, orders);
    expar_dev_store_release_64(&state->seen_ns, now);
}

EXPAR_DEV_FUNC void expar_dev_note(const expar_device_handle *h, expar_uint64 word)
{
    const expar_uint64 told = expar_dev_load_64(&h->state->noted);
    if (told >> 40 == word >> 40) return;
    if (expar_dev_compare_swap_64(&h->state->noted, told, word) == told) expar_dev_store_64(&h->report->awaits, word);
}

/* Returns EXPAR_OK if the wait goes on, else the status with which it ends. */
EXPAR_DEV_FUNC int expar_dev_look(const expar_device_handle *h, expar_dev_waiting *waiting,
                                  const expar_dev_fault *fault)
{
    expar_dev_state *state = h->state;
    if (expar_dev_load_64(&state->mark) != h->mark) return expar_dev_status_of(h);
    const expar_uint64 now = expar_dev_clock_ns();
    expar_dev_watch(h, now);
    const expar_uint64 seen_ns = expar_dev_load_acquire_64(&state->seen_ns), orders = expar_dev_load_64(&state->orders);
    if ((expar_int64)(now - seen_ns) > EXPAR_DEV_FRESH_NS) return EXPAR_OK;
    if (orders & EXPAR_DEV_ABORT) {
        expar_dev_load_acquire_64(&h->report->orders);
        return expar_dev_fail(h, (int)expar_dev_load_32(&h->report->ending), fault);
    }
    if ((expar_int64)(now - expar_dev_load_64(&state->moved_ns)) >= (expar_int64)h->orphan_ns)
        return expar_dev_fail(h, EXPAR_ERR_STATE, fault);
    const expar_uint32 pulse = (expar_uint32)(orders / EXPAR_DEV_BEAT) + 1;
    if (waiting->pulse && pulse != waiting->pulse)
        expar_dev_note(h, EXPAR_DEV_AWAIT_WORD(pulse - 1, waiting->kind, waiting->rank));
    waiting->pulse = pulse;
    return EXPAR_OK;
}

/* ---- waits ------------------------------------------------------------------------------------------------------- */

/* Own words, and what they are compared with. */
typedef struct expar_dev_set {
    const void *words;
    expar_size count;
    const int *skip; /* NULL: none is left out */
    int cmp, width, is_signed;
    expar_uint64 value; /* widened, as are all words */
    const void *values; /* instead, one for each word; else NULL */
} expar_dev_set;
enum { EXPAR_DEV_ONE = 0, EXPAR_DEV_ALL = 1, EXPAR_DEV_ANY = 2, EXPAR_DEV_SOME = 3 };
typedef struct expar_dev_found {
    expar_size first, found;
    expar_uint64 seen;
} expar_dev_found;

EXPAR_DEV_FUNC expar_uint64 expar_dev_widen(int width, int is_signed, expar_uint64 raw)
{
    if (!is_signed || width == 8) return raw;
    return (expar_uint64)(width == 4 ? (expar_int64)(expar_int32)(expar_uint32)raw
                                     : (expar_int64)(expar_int16)(expar_uint16)raw);
}
EXPAR_DEV_FUNC expar_uint64 expar_dev_word_of(const expar_dev_set *set, expar_size i)
{
    expar_uint64 raw;
    if (set->width == 8)
        raw = expar_dev_load_acquire_64((const expar_uint64 *)set->words + i);
    else if (set->width == 4)
        raw = expar_dev_load_acquire_32((const expar_uint32 *)set->words + i);
    else
        raw = expar_dev_load_acquire_16((const expar_uint16 *)set->words + i);
    EXPAR_DEVICE_DELAY();
    return expar_dev_widen(set->width, set->is_signed, raw);
}
EXPAR_DEV_FUNC expar_uint64 expar_dev_value_of(const expar_dev_set *set, expar_size i)
{
    expar_uint64 raw;
    if (!set->values) return set->value;
    if (set->width == 8)
        raw = ((const expar_uint64 *)set->values)[i];
    else if (set->width == 4)
        raw = ((const expar_uint32 *)set->values)[i];
    else
        raw = ((const expar_uint16 *)set->values)[i];
    return expar_dev_widen(set->width, set->is_signed, raw);
}
/* Signed numbers compare as unsigned ones with the sign inverted. */
EXPAR_DEV_FUNC int expar_dev_holds(const expar_dev_set *set, expar_size i, expar_uint64 *word)
{
    const expar_uint64 turn = set->is_signed ? (expar_uint64)1 << 63 : 0;
    *word = expar_dev_word_of(set, i);
    const expar_uint64 seen = *word ^ turn, value = expar_dev_value_of(set, i) ^ turn;
    switch (set->cmp) {
    case EXPAR_CMP_EQ:
        return seen == value;
    case EXPAR_CMP_NE:
        return seen != value;
    case EXPAR_CMP_GT:
        return seen > value;
    case EXPAR_CMP_GE:
        return seen >= value;
    case EXPAR_CMP_LT:
        return seen < value;
    default:
        return seen <= value;
    }
}

/* One look. Returns 1 if the wait has ended. If not, found->first is a word that does not hold. */
EXPAR_DEV_FUNC int expar_dev_look_at_set(const expar_dev_set *set, int how, expar_size *indices, expar_dev_found *found)
{
    expar_uint64 word;
    expar_size taking_part = 0, missing = 0;
    if (how == EXPAR_DEV_ONE) return expar_dev_holds(set, 0, &found->seen);
    /* all: a word that has held once need not hold any more */
    expar_size i = how == EXPAR_DEV_ALL ? found->first : 0;
    found->found = 0;
    for (; i < set->count; i++) {
        if (set->skip && set->skip[i]) continue;
        taking_part++;
        if (!expar_dev_holds(set, i, &word)) {
            missing = i;
            if (how == EXPAR_DEV_ALL) break;
            continue;
        }
        if (how == EXPAR_DEV_SOME) indices[found->found] = i;
        found->found++;
        if (how == EXPAR_DEV_ANY) break;
    }
    found->first = i;
    if (how == EXPAR_DEV_ALL) return i == set->count;
    if (how == EXPAR_DEV_ANY && i == set->count) found->first = EXPAR_DEVICE_NO_INDEX;
    if (found->found > 0 || taking_part == 0) return 1;
    if (how == EXPAR_DEV_SOME) found->first = missing;
    return 0;
}

/* Checks the words; returns EXPAR_OK or the handle's status. *is_far: they are in pinned memory. */
EXPAR_DEV_FUNC int expar_dev_check_set(const expar_device_handle *h, const expar_dev_set *set, expar_dev_fault *fault,
                                       int *is_far)
{
    expar_uint64 offset = 0;
    const expar_size width = (expar_size)set->width;
    *is_far = 0;
    if (expar_dev_load_64(&h->state->mark) != h->mark) return expar_dev_status_of(h);
    fault->offset = (expar_uint64)set->words;
    if ((unsigned)set->cmp > EXPAR_CMP_LE) return expar_dev_fail(h, EXPAR_ERR_ARGUMENT, fault);
    if (set->count == 0) return EXPAR_OK;
    const int kind = expar_dev_find(h, set->words, expar_dev_bytes_of(set->count, width), &offset);
    if (kind < 0) return expar_dev_fail(h, EXPAR_ERR_ADDRESS, fault);
    if (!expar_dev_is_aligned(set->words, width)) return expar_dev_fail(h, EXPAR_ERR_ALIGNMENT, fault);
    fault->offset = offset;
    *is_far = kind == EXPAR_DEV_PINNED;
    return EXPAR_OK;
}

/* By one thread. once: a test, which looks once; found->found of one word and of all says whether they hold. */
EXPAR_DEV_FUNC int expar_dev_wait_alone(const expar_device_handle *h, const expar_dev_set *set, int how, int once,
                                        expar_size *indices, expar_dev_found *found)
{
    int is_far, ended = 0;
    const expar_uint64 begin = (expar_uint64)set->words;
    expar_dev_waiting waiting = {0, 0, EXPAR_DEV_AWAITS_WORD, 0};
    expar_dev_fault fault = expar_dev_fault_of(once ? EXPAR_DEV_TEST : EXPAR_DEV_WAIT, -1, begin);
    int status = expar_dev_check_set(h, set, &fault, &is_far);
    const expar_uint64 offset = fault.offset;
    while (status == EXPAR_OK) {
        ended = expar_dev_look_at_set(set, how, indices, found);
        if (ended) break;
        if (once || ++waiting.polls % EXPAR_DEV_POLLS == 0) {
            const expar_size at = found->first < set->count ? found->first : 0;
            fault.seen = set->count ? expar_dev_word_of(set, at) : 0;
            fault.awaited = set->count ? expar_dev_value_of(set, at) : 0;
            fault.offset = offset + at * (expar_size)set->width;
            status = expar_dev_look(h, &waiting, &fault);
        }
        if (once) break;
        expar_dev_pause(is_far);
    }
    if (how == EXPAR_DEV_ONE || how == EXPAR_DEV_ALL) found->found = (expar_size)ended;
    if (!ended && how == EXPAR_DEV_SOME) found->found = 0;
    if (!ended && how == EXPAR_DEV_ANY) found->first = EXPAR_DEVICE_NO_INDEX;
    return status;
}

EXPAR_DEV_FUNC int expar_dev_wait(const expar_device_handle *h, const expar_dev_set *set, int how, int once,
                                  expar_size *indices, expar_dev_found *found, int scope)
{
    expar_dev_words4 words = {{0, 0, 0, 0}};
    found->first = found->found = 0;
    found->seen = 0;
    expar_dev_meet(scope);
    if (expar_dev_place_in(scope).index == 0) {
        words.word[0] = (expar_uint64)expar_dev_wait_alone(h, set, how, once, indices, found);
        words.word[1] = found->first;
        words.word[2] = found->found;
        words.word[3] = found->seen;
    }
    expar_dev_share(scope, &words);
    found->first = (expar_size)words.word[1];
    found->found = (expar_size)words.word[2];
    found->seen = words.word[3];
    return (int)words.word[0];
}

EXPAR_DEV_FUNC expar_dev_set expar_dev_set_of(const void *words, expar_size count, const int *skip, expar_cmp cmp,
                                              int width, int is_signed, const void *values)
{
    expar_dev_set set;
    set.words = words;
    set.count = count;
    set.skip = skip;
    set.cmp = (int)cmp;
    set.width = width;
    set.is_signed = is_signed;
    set.value = 0;
    set.values = values;
    return set;
}

/* Waits for words of this rank. The parts of a name are joined by underscores: expar_kernel, wait_until or test, the
 * form, the suffix of the type (i16 … u64), and the scope. Forms are all, any, some, and each with vector after it. One
 * word needs no form.
 *   one:  (h, word, cmp, value, seen): *seen, if seen is not NULL, gets the value that ended the wait;
 *   all:  (h, words, count, skip, cmp, value);
 *   any:  (h, words, count, skip, cmp, value, index): *index is the first word that holds;
 *   some: (h, words, count, indices, skip, cmp, value, found): *found words hold, which are indices[0 … *found).
 * Vectors have `values`, one for each word, in place of `value`. Tests look once. They end with `holds`, for one word
 * and for all, where *holds is 1 or 0; *index is EXPAR_DEVICE_NO_INDEX, or *found 0, if none holds.
 *
 * `skip` may be NULL; words whose skip is not 0 take no part. A set without words ends at once. A thread that has seen
 * the condition sees what was written before the word (acquire). With a scope the first thread looks, and all threads
 * get the results; that is better for pinned words, too. */
#define EXPAR_DEV_HOW_ONE(T, S, W, SIGNED, verb, once, suffix, scope, OUT, out)                                        \
    EXPAR_DEV_FUNC int expar_kernel_##verb##_##S##suffix(const expar_device_handle *h, const T *word, expar_cmp cmp,   \
                                                         T value, OUT *out)                                            \
    {                                                                                                                  \
        expar_dev_found found;                                                                                         \
        expar_dev_set set = expar_dev_set_of(word, 1, 0, cmp, W / 8, SIGNED, 0);                                       \
        set.value = expar_dev_widen(W / 8, SIGNED, (expar_uint64)value);                                               \
        const int status = expar_dev_wait(h, &set, EXPAR_DEV_ONE, once, 0, &found, scope);                             \
        if (out) *out = (OUT)(once ? found.found : found.seen);                                                        \
        return status;                                                                                                 \
    }
#define EXPAR_DEV_HOW_SET(T, S, W, SIGNED, name, once, how, suffix, scope, VALUE, given, one, many, LIST, indices,     \
                          RESULT, give)                                                                                \
    EXPAR_DEV_FUNC int expar_kernel_##name##_##S##suffix(const expar_device_handle *h, const T *words,                 \
                                                         expar_size count, LIST const int *skip, expar_cmp cmp,        \
                                                         VALUE given RESULT)                                           \
    {                                                                                                                  \
        expar_dev_found found;                                                                                         \
        expar_dev_set set = expar_dev_set_of(words, count, skip, cmp, W / 8, SIGNED, many);                            \
        set.value = expar_dev_widen(W / 8, SIGNED, (expar_uint64)(one));                                               \
        const int status = expar_dev_wait(h, &set, how, once, indices, &found, scope);                                 \
        give;                                                                                                          \
        return status;                                                                                                 \
    }
#define EXPAR_DEV_COMMA ,
#define EXPAR_DEV_HOW_ANY(T, S, W, SIGNED, name, once, suffix, scope, VALUE, given, one, many)                         \
    EXPAR_DEV_HOW_SET(T, S, W, SIGNED, name, once, EXPAR_DEV_ANY, suffix, scope, VALUE, given, one, many, , 0,         \
                      EXPAR_DEV_COMMA expar_size *index, *index = found.first)
#define EXPAR_DEV_HOW_SOME(T, S, W, SIGNED, name, once, suffix, scope, VALUE, given, one, many)                        \
    EXPAR_DEV_HOW_SET(T, S, W, SIGNED, name, once, EXPAR_DEV_SOME, suffix, scope, VALUE, given, one, many,             \
                      expar_size *indices EXPAR_DEV_COMMA, indices, EXPAR_DEV_COMMA expar_size *number,                \
                      *number = found.found)
#define EXPAR_DEV_WAITS_IN(T, S, W, SIGNED, suffix, scope, VALUE, given, one, many, vector)                            \
    EXPAR_DEV_HOW_SET(T, S, W, SIGNED, wait_until_all##vector, 0, EXPAR_DEV_ALL, suffix, scope, VALUE, given, one,     \
                      many, , 0, , (void)found)                                                                        \
    EXPAR_DEV_HOW_SET(T, S, W, SIGNED, test_all##vector, 1, EXPAR_DEV_ALL, suffix, scope, VALUE, given, one, many, ,   \
                      0, EXPAR_DEV_COMMA int *holds, *holds = (int)found.found)                                        \
    EXPAR_DEV_HOW_ANY(T, S, W, SIGNED, wait_until_any##vector, 0, suffix, scope, VALUE, given, one, many)              \
    EXPAR_DEV_HOW_ANY(T, S, W, SIGNED, test_any##vector, 1, suffix, scope, VALUE, given, one, many)                    \
    EXPAR_DEV_HOW_SOME(T, S, W, SIGNED, wait_until_some##vector, 0, suffix, scope, VALUE, given, one, many)            \
    EXPAR_DEV_HOW_SOME(T, S, W, SIGNED, test_some##vector, 1, suffix, scope, VALUE, given, one, many)
#define EXPAR_DEV_WAITS(T, S, W, SIGNED, suffix, scope)                                                                \
    EXPAR_DEV_HOW_ONE(T, S, W, SIGNED, wait_until, 0, suffix, scope, T, seen)                                          \
    EXPAR_DEV_HOW_ONE(T, S, W, SIGNED, test, 1, suffix, scope, int, holds)                                             \
    EXPAR_DEV_WAITS_IN(T, S, W, SIGNED, suffix, scope, T, value, value, 0, )                                           \
    EXPAR_DEV_WAITS_IN(T, S, W, SIGNED, suffix, scope, const T *, values, 0, values, _vector)
#define EXPAR_DEV_WAITS_OF(T, S, W, SIGNED)                                                                            \
    EXPAR_DEV_WAITS(T, S, W, SIGNED, , EXPAR_DEV_THREAD)                                                               \
    EXPAR_DEV_WAITS(T, S, W, SIGNED, _warp, EXPAR_DEV_WARP)                                                            \
    EXPAR_DEV_WAITS(T, S, W, SIGNED, _block, EXPAR_DEV_BLOCK)
EXPAR_DEV_WAITS_OF(expar_int16, i16, 16, 1)
EXPAR_DEV_WAITS_OF(expar_uint16, u16, 16, 0)
EXPAR_DEV_WAITS_OF(expar_int32, i32, 32, 1)
EXPAR_DEV_WAITS_OF(expar_uint32, u32, 32, 0)
EXPAR_DEV_WAITS_OF(expar_int64, i64, 64, 1)
EXPAR_DEV_WAITS_OF(expar_uint64, u64, 64, 0)

/* expar_kernel_signal_wait_until[_SCOPE](h, signal, cmp, value, seen) waits for one u64. All waits see all writers. */
#define EXPAR_DEV_SIGNAL_WAIT(suffix)                                                                                  \
    EXPAR_DEV_FUNC int expar_kernel_signal_wait_until##suffix(const expar_device_handle *h,                            \
                                                              const expar_uint64 *signal, expar_cmp cmp,               \
                                                              expar_uint64 value, expar_uint64 *seen)                  \
    {                                                                                                                  \
        return expar_kernel_wait_until_u64##suffix(h, signal, cmp, value, seen);                                       \
    }
EXPAR_DEV_SIGNAL_WAIT()
EXPAR_DEV_SIGNAL_WAIT(_warp)
EXPAR_DEV_SIGNAL_WAIT(_block)

/* Reads this rank's own signal (acquire); 0 if the handle has an error. */
EXPAR_DEV_FUNC expar_uint64 expar_kernel_signal_fetch(const expar_device_handle *h, const expar_uint64 *signal)
{
    expar_dev_aim aim;
    if (!expar_dev_aim_at(h, EXPAR_DEV_SIGNAL_FETCH, signal, sizeof *signal, sizeof *signal, h->me, &aim)) return 0;
    const expar_uint64 value = expar_dev_load_acquire_64((const expar_uint64 *)aim.at);
    EXPAR_DEVICE_DELAY();
    return value;
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

EXPAR_DEV_FUNC void expar_dev_order(int full, int scope)
{
    expar_dev_meet(scope);
    EXPAR_DEVICE_DELAY();
    if (expar_dev_place_in(scope).index == 0) {
        if (full)
            expar_dev_fence_full();
        else
            expar_dev_fence_order();
    }
    expar_dev_meet(scope);
}

/* ---- barriers ---------------------------------------------------------------------------------------------------- */

EXPAR_DEV_FUNC expar_uint64 *expar_dev_count_of(const expar_device_handle *h, int rank)
{
    return (expar_uint64 *)h->state->counts + rank;
}

/* The word by which `writer` tells `owner`, ranks of the group, that it has come; NULL: no mapped way leads there. */
EXPAR_DEV_FUNC expar_uint64 *expar_dev_sync_word(const expar_device_handle *h, int owner, int writer)
{
    const expar_dev_entry *entry = expar_dev_entry_of(h, h->state->sync_kind, owner);
    const expar_uint64 base = expar_dev_load_64(&entry->base);
    if (!base || expar_dev_load_32(&entry->way) != EXPAR_DEV_WAY_MAPPED) return 0;
    return (expar_uint64 *)(base + h->state->sync_offset) + writer;
}

/* Before anybody is told: EXPAR_OK if this thread's members can be. */
EXPAR_DEV_FUNC int expar_dev_sync_check(const expar_device_handle *h, expar_dev_place place)
{
    expar_dev_fault fault = expar_dev_fault_of(EXPAR_DEV_SYNC, -1, 0);
    if (expar_dev_load_64(&h->state->mark) != h->mark) return expar_dev_status_of(h);
    if (h->state->sync_slot < 0) return expar_dev_fail(h, EXPAR_ERR_UNSUPPORTED, &fault);
    for (int pe = (int)place.index; pe < h->size; pe += (int)place.count) {
        fault.pe = pe;
        if (!expar_dev_sync_word(h, expar_dev_rank_of(h, pe), h->rank))
            return expar_dev_fail(h, EXPAR_ERR_UNSUPPORTED, &fault);
    }
    return EXPAR_OK;
}

EXPAR_DEV_FUNC int expar_dev_sync_await(const expar_device_handle *h, int pe)
{
    const int rank = expar_dev_rank_of(h, pe);
    const expar_uint64 *word = expar_dev_sync_word(h, h->rank, rank);
    const expar_uint64 awaited = *expar_dev_count_of(h, rank) + 1;
    expar_dev_waiting waiting = {0, 0, EXPAR_DEV_AWAITS_SYNC, 0};
    expar_dev_fault fault = expar_dev_fault_of(EXPAR_DEV_SYNC, pe, 0);
    int status = EXPAR_OK;
    waiting.rank = rank;
    fault.awaited = awaited;
    while (status == EXPAR_OK) {
        fault.seen = expar_dev_load_acquire_64(word);
        EXPAR_DEVICE_DELAY();
        if (fault.seen >= awaited) break;
        if (++waiting.polls % EXPAR_DEV_POLLS == 0) status = expar_dev_look(h, &waiting, &fault);
        expar_dev_pause(0);
    }
    if (status == EXPAR_OK) *expar_dev_count_of(h, rank) = awaited;
    return status;
}

/* Each thread tells some members, and awaits these. */
EXPAR_DEV_FUNC int expar_dev_sync(const expar_device_handle *h, int scope)
{
    const expar_dev_place place = expar_dev_place_in(scope);
    expar_dev_meet(scope);
    int status = expar_dev_sync_check(h, place);
    expar_dev_meet(scope);
    if (status == EXPAR_OK) status = expar_dev_status_of(h);
    for (int pe = (int)place.index; pe < h->size && status == EXPAR_OK; pe += (int)place.count) {
        const int rank = expar_dev_rank_of(h, pe);
        EXPAR_DEVICE_DELAY();
        if (pe != h->me)
            expar_dev_store_release_64(expar_dev_sync_word(h, rank, h->rank), *expar_dev_count_of(h, rank) + 1);
    }
    for (int pe = (int)place.index; pe < h->size && status == EXPAR_OK; pe += (int)place.count)
        if (pe != h->me) status = expar_dev_sync_await(h, pe);
    /* After the barrier all threads see an error of any of them. */
    expar_dev_meet(scope);
    return status == EXPAR_OK ? expar_dev_status_of(h) : status;
}

/* expar_kernel_fence[_SCOPE](h) orders, expar_kernel_quiet[_SCOPE](h) completes; the head of this file says what.
 * expar_kernel_sync[_SCOPE](h) waits until all members of the handle's team have come: one call a rank at a time.
 * expar_kernel_barrier[_SCOPE](h) is quiet, then sync. All but fence return the handle's status, EXPAR_OK if all is
 * well. Teams that were formed without communication have no barrier (EXPAR_ERR_UNSUPPORTED). After a barrier that
 * failed, later ones of the team fail, too. */
#define EXPAR_DEV_ORDERS(suffix, scope)                                                                                \
    EXPAR_DEV_FUNC void expar_kernel_fence##suffix(const expar_device_handle *h)                                       \
    {                                                                                                                  \
        (void)h;                                                                                                       \
        expar_dev_order(0, scope);                                                                                     \
    }                                                                                                                  \
    EXPAR_DEV_FUNC int expar_kernel_quiet##suffix(const expar_device_handle *h)                                        \
    {                                                                                                                  \
        expar_dev_order(1, scope);                                                                                     \
        return expar_dev_status_of(h);                                                                                 \
    }                                                                                                                  \
    EXPAR_DEV_FUNC int expar_kernel_sync##suffix(const expar_device_handle *h)                                         \
    {                                                                                                                  \
        return expar_dev_sync(h, scope);                                                                               \
    }                                                                                                                  \
    EXPAR_DEV_FUNC int expar_kernel_barrier##suffix(const expar_device_handle *h)                                      \
    {                                                                                                                  \
        expar_dev_order(1, scope);                                                                                     \
        return expar_dev_sync(h, scope);                                                                               \
    }
EXPAR_DEV_ORDERS(, EXPAR_DEV_THREAD)
EXPAR_DEV_ORDERS(_warp, EXPAR_DEV_WARP)
EXPAR_DEV_ORDERS(_block, EXPAR_DEV_BLOCK)

/* ---- facts ------------------------------------------------------------------------------------------------------- */

/* This rank's number in the handle's team, and the team's members. */
EXPAR_DEV_FUNC int expar_kernel_my_pe(const expar_device_handle *h)
{
    return h->me;
}
EXPAR_DEV_FUNC int expar_kernel_n_pes(const expar_device_handle *h)
{
    return h->size;
}
/* The number in `to`, a handle of the same group, of member pe of `from`; -1: it is not a member, or there is no such
   pe. */
EXPAR_DEV_FUNC int expar_kernel_translate_pe(const expar_device_handle *from, int pe, const expar_device_handle *to)
{
    if (pe < 0 || pe >= from->size) return -1;
    const int distance = expar_dev_rank_of(from, pe) - to->start;
    if (to->size == 1) return distance == 0 ? 0 : -1;
    if (distance % to->stride != 0) return -1;
    return distance / to->stride >= 0 && distance / to->stride < to->size ? distance / to->stride : -1;
}
/* Where this thread loads and stores pe's copy of a symmetric address. NULL: it cannot, or the handle has an error. */
EXPAR_DEV_FUNC void *expar_kernel_ptr(const expar_device_handle *h, const void *address, int pe)
{
    expar_uint64 offset = 0;
    if (expar_dev_load_64(&h->state->mark) != h->mark || pe < 0 || pe >= h->size) return 0;
    const int kind = expar_dev_find(h, address, 1, &offset);
    if (kind < 0) return 0;
    const expar_dev_entry *entry = expar_dev_entry_of(h, kind, expar_dev_rank_of(h, pe));
    const expar_uint64 base = expar_dev_load_64(&entry->base);
    return base && expar_dev_load_32(&entry->way) == EXPAR_DEV_WAY_MAPPED ? (void *)(base + offset) : 0;
}
/* The handle's first error (expar_status); EXPAR_OK: none. */
EXPAR_DEV_FUNC int expar_kernel_status(const expar_device_handle *h)
{
    return expar_dev_status_of(h);
}

#endif
