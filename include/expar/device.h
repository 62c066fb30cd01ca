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
 * PEs whose memory is not mapped are reached by queues of a network device, to which kernels write requests, or by
 * threads of the host, to which they pass commands. Both are delivered in any order, but for what the next paragraphs
 * say.
 *
 * Arguments. `h` is the handle. Every signal or word, `dest` of a put, and `source` of a get are *local* symmetric
 * addresses. The rank with the remote copy is `pe`, in the numbers of the handle's team. Handles for the GPU serve
 * device and pinned memory, handles for the CPU serve host and pinned memory. The other side of a put or get may be any
 * memory that the thread can access. There is one exception: for a PE without mapped memory, a GPU's thread needs
 * memory there that is symmetric, or that expar_register knows.
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
/* 1: these kernels write requests for network devices themselves (gda), where the settings say so. That code needs
   about 100 registers, and local memory. 0: they pass commands instead. Define it before the #include. */
#ifndef EXPAR_DEVICE_GDA
#ifdef __CUDACC__
#define EXPAR_DEVICE_GDA 0
#else
#define EXPAR_DEVICE_GDA 1
#endif
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
#define EXPAR_DEVICE_VERSION 5
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
#if EXPAR_DEVICE_VERSION != 5
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
    EXPAR_DEV_WAY_PROXY = 2,  /* commands to a thread of the host, which passes them to a transport */
    EXPAR_DEV_WAY_GDA = 3     /* requests to a queue of a network device, or commands where no request can do it */
} expar_dev_way;

/* The host writes an entry while kernels may run: `base` last. Kernels read it without order. They reach an entry only
   with an address that the host has got after it wrote the entry. */
typedef struct expar_dev_entry {
    expar_uint64 base; /* MAPPED: where the PE's heap begins, for this target; else 0 */
    expar_uint32 way;  /* expar_dev_way of data, and of signals that are set */
    /* expar_dev_way of atomics, by which those of all ranks are atomic with each other */
    expar_uint32 atomics;
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

/* Places for words that threads fetch over a network at the same time. */
#define EXPAR_DEV_RESULTS 64

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
    /* Generation of the handle of which a command has failed; 0: none. The members below tell of the first one: its
       status, operation, PE and offset. The proxy's thread writes them, `lost` last (release). Kernels and
       the guard read `lost` first (acquire). */
    expar_uint32 lost;
    expar_uint32 lost_status, lost_operation;
    expar_int32 lost_pe;
    expar_uint64 lost_offset;
    /* As `seen`: the failure of a queue, or EXPAR_DEV_UNKNOWN_LOCAL, for which `seen` is the address; else 0. */
    expar_uint64 failure;
    /* Words that commands have fetched. The proxy's thread writes one before the command's number is done (release),
       the thread that has taken the place reads it after that (acquire). */
    expar_uint64 results[EXPAR_DEV_RESULTS];
} expar_dev_report;

/* Memory of the caller is not known to the network device, and the handle has no rings. */
#define EXPAR_DEV_UNKNOWN_LOCAL 1u

#define EXPAR_DEV_ABORT 1u
#define EXPAR_DEV_BEAT  2u

/* Rings, by which kernels pass commands to the host's threads; the library's net/proxy/ring.h and waits.h explain them,
   and have the same layouts. The ring lies in memory of the host that kernels access, the port in the kernels' own. */
#define EXPAR_DEV_MOST_RINGS 16
enum {
    EXPAR_DEV_RING_PUT = 1,
    EXPAR_DEV_RING_GET = 2,
    EXPAR_DEV_RING_PUT_SIGNAL = 3,
    EXPAR_DEV_RING_ATOMIC = 4,
    EXPAR_DEV_RING_FENCE = 5,
    EXPAR_DEV_RING_P = 7
};
/* In `memory` of a command: the host looks whose memory `local` is. Threads of a GPU do not know. */
#define EXPAR_DEV_RING_FIND_LOCAL 0x80
/* The operations of atomics. */
enum {
    EXPAR_DEV_FETCH = 0,
    EXPAR_DEV_SET,
    EXPAR_DEV_SWAP,
    EXPAR_DEV_COMPARE_SWAP,
    EXPAR_DEV_ADD,
    EXPAR_DEV_AND,
    EXPAR_DEV_OR,
    EXPAR_DEV_XOR
};
typedef struct expar_dev_command {
    expar_uint64 offset, local, bytes, operand;
    expar_uint64 compare; /* other commands than atomics: the tag */
    expar_uint64 signal;  /* atomics: the tag */
    expar_int32 pe;
    expar_uint8 kind, op, memory, signal_memory;
} expar_dev_command;
/* By the tag the host knows whose command has failed: generation << 32 | operation << 24 | number of the state. */
#define EXPAR_DEV_TAG(generation, operation, number)                                                                   \
    ((expar_uint64)(generation) << 32 | (expar_uint64)(operation) << 24 | (expar_uint64)(number))
/* A kernel's thread writes each word (relaxed) after a fence, the host's thread loads them (acquire). Words 0 to 6 have
   the low 7 bytes of the command's words, and word 7 has their high bytes. The high byte of a slot's words is the turn
   (expar_dev_turn): when all of them have it, the command is there. */
typedef struct expar_dev_ring_slot {
    expar_uint64 words[8];
} expar_dev_ring_slot;
/* Counters of the host's thread. `moves` is raised after the others have changed, each is stored by release. The slots
   follow. After them come counters of the ranks, as `done` for the commands to one rank. `done` and those are numbers
   << 1 | 1 if some command of the ring has failed. */
typedef struct expar_dev_ring {
    expar_uint64 consumed, done, moves, ended, unused_1[4];
    expar_uint64 failure, beat, unused_2[6];
    expar_uint64 awaited, unused_3[7]; /* kernels write `awaited` */
} expar_dev_ring;
/* Words that kernels share. The thread with the watch copies the ring's counters; all others read the copies. */
typedef struct expar_dev_port {
    expar_uint64 head;  /* number of the next command; raised by compare-swap */
    expar_uint64 freed; /* copy of `consumed` */
    expar_dev_ring *ring;
    expar_uint64 num_slots;            /* a power of two */
    expar_uint64 done, failure, ended; /* copies */
    expar_uint64 *done_to;             /* [size] copies of the ranks' counters */
    expar_int64 size;
    expar_uint64 awaited;               /* all numbers before it were claimed when a thread began to wait */
    expar_uint64 watched_ns;            /* when the watch last looked; 0: no thread has it */
    expar_uint64 beat, beat_ns, orphan; /* not used here */
} expar_dev_port;

/* The state of a handle. Kernels of this rank share it: device memory for GPUs. After it come the entries, [kind][rank
   of the group], and a word for each rank, which `used` has. It is never freed, since a kernel may have a handle that
   has ended. */
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
       raises word r (release), the owner reads it (acquire). The host uses sync_slot alone. */
    expar_uint64 sync_offset;
    expar_int32 sync_kind, sync_slot;
    /* [ranks] How often this rank has met each rank in that barrier. Only the thread that makes the barrier uses it. */
    expar_uint64 counts;
    /* Addresses of the ports of rings; all commands to rank r go to number r % rings. rings 0: the handle has none. The
       host writes them before there is a handle. */
    expar_uint64 ports[EXPAR_DEV_MOST_RINGS];
    expar_uint32 rings;
    /* 1: some rank is reached in more than one way, or by queues between which nothing is ordered. The host writes it
       as an entry. */
    expar_uint32 is_mixed;
    /* Address of the expar_dev_gda_view with the queues of this rank; 0: there are none. The host writes it as an
       entry. `used` is that of a word for each rank: threads store 1 there before they write a request to it
       (relaxed). */
    expar_uint64 queues, used;
    /* report->results as the host knows it; the handle's report and orphan_ns */
    expar_uint64 results_at, report, orphan_ns;
    /* Bit i: place i of the results is taken. Threads take and give places (compare-swap, and). */
    expar_uint64 results_taken;
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
    EXPAR_DEV_FENCE,
    EXPAR_DEV_QUIET,
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

#define EXPAR_DEV_FUNC static inline __device__
#define EXPAR_DEV_READS_AHEAD
/* Code for PEs that are not mapped stays out of line, so that calls to others are as short as without it. */
#define EXPAR_DEV_ASIDE     static inline __device__ __noinline__
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
/* For words that threads of this GPU alone share. */
EXPAR_DEV_FUNC void expar_dev_fence_near(void)
{
    asm volatile("fence.acq_rel.gpu;" : : : "memory");
}

/* Stores to a register of a device: one access of 8 bytes, after a fence. */
EXPAR_DEV_FUNC void expar_dev_store_register(expar_uint64 *at, expar_uint64 value)
{
    expar_dev_fence_order();
#if __CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 2)
    asm volatile("st.mmio.relaxed.sys.global.u64 [%0], %1;" : : "l"(at), "l"(value) : "memory");
#else
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" : : "l"(at), "l"(value) : "memory");
#endif
}
/* Stores 16 bytes, which later fences order. */
EXPAR_DEV_FUNC void expar_dev_store_unit(expar_uint32 *at, const expar_uint32 *from)
{
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(at), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
                 : "memory");
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
/* The number of the thread's block. */
EXPAR_DEV_FUNC expar_uint32 expar_dev_block_number(void)
{
    return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
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

/* 16 bytes, which one access loads or stores. */
typedef uint4 expar_dev_unit;
/* Loads of data that other GPUs write: they pass by the first-level cache, which those stores do not reach. */
EXPAR_DEV_FUNC expar_dev_unit expar_dev_load_unit(const expar_dev_unit *at)
{
    expar_dev_unit v;
    asm volatile("ld.relaxed.sys.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at)
                 : "memory");
    return v;
}
/* Returns whether `holds` is true for all threads of the scope, which meet here. */
EXPAR_DEV_FUNC int expar_dev_meet_all(int scope, int holds)
{
    if (scope == EXPAR_DEV_BLOCK) return __syncthreads_and(holds);
    if (scope == EXPAR_DEV_WARP) {
        const expar_uint32 count = expar_dev_place_in(scope).count;
        return __all_sync(count == 32 ? 0xffffffffu : (1u << count) - 1, holds);
    }
    return holds;
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
    /* likewise, by the parity of the barrier's number: the number + 1 if expar_dev_meet_all does not hold for some
       thread. That thread writes it before the barrier, the others read it after that. Nobody can write the same word
       again before all have come to the next barrier. */
    expar_uint32 missing[33][2];
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
EXPAR_DEV_FUNC void expar_dev_fence_near(void)
{
    __atomic_thread_fence(__ATOMIC_ACQ_REL);
}
#if defined(__SANITIZE_THREAD__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

EXPAR_DEV_FUNC void expar_dev_store_register(expar_uint64 *at, expar_uint64 value)
{
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
    __builtin_ia32_sfence(); /* requests may lie in write-combining memory */
#endif
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}
EXPAR_DEV_FUNC void expar_dev_store_unit(expar_uint32 *at, const expar_uint32 *from)
{
    memcpy(at, from, 16);
}

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
/* Blocks that lie beside each other have consecutive numbers. */
EXPAR_DEV_FUNC expar_uint32 expar_dev_block_number(void)
{
    return (expar_uint32)((expar_uint64)(expar_size)expar_dev_here.block / sizeof(expar_device_block));
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

EXPAR_DEV_FUNC int expar_dev_meet_all(int scope, int holds)
{
    if (expar_dev_place_in(scope).count == 1) return holds;
    expar_device_block *block = expar_dev_here.block;
    const int warp = scope == EXPAR_DEV_WARP ? (int)(expar_dev_here.index / 32) : -1;
    const expar_dev_meeting *meeting = warp >= 0 ? &block->warps[warp] : &block->all;
    const expar_uint32 number = __atomic_load_n(&meeting->number, __ATOMIC_ACQUIRE);
    expar_uint32 *missing = &block->missing[warp + 1][number % 2];
    if (!holds) __atomic_store_n(missing, number + 1, __ATOMIC_RELAXED);
    expar_dev_meet(scope);
    return __atomic_load_n(missing, __ATOMIC_RELAXED) != number + 1;
}

/* Each thread copies a piece. */
#define EXPAR_DEV_COPIES_PIECES
EXPAR_DEV_FUNC void expar_dev_copy(void *dest, const void *source, expar_size bytes, expar_dev_place place, int fetches)
{
    const expar_size piece = (bytes + place.count - 1) / place.count, at = piece * place.index;
    (void)fetches;
    if (at < bytes)
        memmove((expar_uint8 *)dest + at, (const expar_uint8 *)source + at, bytes - at < piece ? bytes - at : piece);
}

#endif

#ifndef EXPAR_DEV_ASIDE
#define EXPAR_DEV_ASIDE EXPAR_DEV_FUNC
#endif

/* ---- copies by threads of a GPU ---------------------------------------------------------------------------------- */

#ifndef EXPAR_DEV_COPIES_PIECES
/* `fetches` everywhere: `from` is the remote side. */

/* Copies one aligned word of 1, 2, 4, 8 or 16 bytes. */
EXPAR_DEV_FUNC void expar_dev_copy_word(expar_uint64 to, expar_uint64 from, expar_size bytes, int fetches)
{
    if (bytes == 16)
        *(expar_dev_unit *)to =
            fetches ? expar_dev_load_unit((const expar_dev_unit *)from) : *(const expar_dev_unit *)from;
    else if (bytes == 8)
        *(expar_dev_u64 *)to = fetches ? expar_dev_load_64((const expar_dev_u64 *)from) : *(const expar_dev_u64 *)from;
    else if (bytes == 4)
        *(expar_dev_u32 *)to = fetches ? expar_dev_load_32((const expar_dev_u32 *)from) : *(const expar_dev_u32 *)from;
    else if (bytes == 2)
        *(expar_dev_u16 *)to = fetches ? expar_dev_load_16((const expar_dev_u16 *)from) : *(const expar_dev_u16 *)from;
    else
        *(expar_dev_u8 *)to = fetches ? expar_dev_load_8((const expar_dev_u8 *)from) : *(const expar_dev_u8 *)from;
}

/* So many loads of a thread are on their way at the same time. */
#define EXPAR_DEV_COPY_DEPTH 8
EXPAR_DEV_FUNC void expar_dev_copy_units(expar_uint64 to, expar_uint64 from, expar_size units, expar_dev_place place,
                                         int fetches)
{
    const expar_dev_unit *source = (const expar_dev_unit *)from;
    expar_dev_unit *dest = (expar_dev_unit *)to;
    const expar_size stride = place.count;
    expar_size i = place.index;
    for (; i + (EXPAR_DEV_COPY_DEPTH - 1) * stride < units; i += EXPAR_DEV_COPY_DEPTH * stride) {
        expar_dev_unit v[EXPAR_DEV_COPY_DEPTH];
#pragma unroll
        for (int k = 0; k < EXPAR_DEV_COPY_DEPTH; k++) {
            const expar_dev_unit *at = source + i + (expar_size)k * stride;
            v[k] = fetches ? expar_dev_load_unit(at) : *at;
        }
#pragma unroll
        for (int k = 0; k < EXPAR_DEV_COPY_DEPTH; k++)
            dest[i + (expar_size)k * stride] = v[k];
    }
    for (; i < units; i += stride)
        dest[i] = fetches ? expar_dev_load_unit(source + i) : source[i];
}
#define EXPAR_DEV_COPY_LOOP(bits)                                                                                      \
    EXPAR_DEV_FUNC void expar_dev_copy_##bits(expar_uint64 to, expar_uint64 from, expar_size words,                    \
                                              expar_dev_place place, int fetches)                                      \
    {                                                                                                                  \
        const expar_dev_u##bits *source = (const expar_dev_u##bits *)from;                                             \
        expar_dev_u##bits *dest = (expar_dev_u##bits *)to;                                                             \
        for (expar_size i = place.index; i < words; i += place.count)                                                  \
            dest[i] = fetches ? expar_dev_load_##bits(source + i) : source[i];                                         \
    }
EXPAR_DEV_COPY_LOOP(8)
EXPAR_DEV_COPY_LOOP(16)
EXPAR_DEV_COPY_LOOP(32)
EXPAR_DEV_COPY_LOOP(64)

/* Copies the `head` bytes at the begin and the `tail` bytes from `end` on, a word a thread. The head ends where both
   sides are aligned, so its words grow; those of the tail shrink. */
EXPAR_DEV_FUNC void expar_dev_copy_edges(expar_uint64 to, expar_uint64 from, expar_size head, expar_size end,
                                         expar_size tail, expar_dev_place place, int fetches)
{
    for (expar_uint32 i = place.index; i < 8; i += place.count) {
        const expar_size bytes = (expar_size)1 << i % 4, edge = i < 4 ? head : tail;
        const expar_size at = i < 4 ? head & (bytes - 1) : end + (tail & ~(2 * bytes - 1));
        if (edge & bytes) expar_dev_copy_word(to + at, from + at, bytes, fetches);
    }
}

/* Copies [source, source + bytes), `place.count` threads together, by the largest words to which both sides are aligned
   alike. A single word is copied by the first thread. */
EXPAR_DEV_FUNC void expar_dev_copy(void *dest, const void *source, expar_size bytes, expar_dev_place place, int fetches)
{
    const expar_uint64 to = (expar_uint64)dest, from = (expar_uint64)source, apart = (to ^ from) | 16;
    expar_size unit = (expar_size)(apart & (0 - apart));
    if (bytes <= unit && (bytes & (bytes - 1)) == 0 && to % bytes == 0) {
        if (place.index == 0) expar_dev_copy_word(to, from, bytes, fetches);
        return;
    }
    while ((0 - to) % unit > bytes)
        unit /= 2;
    const expar_size head = (expar_size)((0 - to) % unit), units = (bytes - head) / unit, end = head + units * unit;
    if (unit == 16) expar_dev_copy_units(to + head, from + head, units, place, fetches);
    if (unit == 8) expar_dev_copy_64(to + head, from + head, units, place, fetches);
    if (unit == 4) expar_dev_copy_32(to + head, from + head, units, place, fetches);
    if (unit == 2) expar_dev_copy_16(to + head, from + head, units, place, fetches);
    if (unit == 1) expar_dev_copy_8(to + head, from + head, units, place, fetches);
    if (head | (bytes - end)) expar_dev_copy_edges(to, from, head, end, bytes - end, place, fetches);
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
    expar_uint64 offset, seen, awaited, failure;
} expar_dev_fault;
EXPAR_DEV_FUNC expar_dev_fault expar_dev_fault_of(int operation, int pe, expar_uint64 offset)
{
    expar_dev_fault fault;
    fault.operation = operation;
    fault.pe = pe;
    fault.offset = offset;
    fault.seen = 0;
    fault.awaited = 0;
    fault.failure = 0;
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
        report->failure = fault->failure;
        expar_dev_store_release_32(&report->failed, (expar_uint32)(h->mark >> 32));
        expar_dev_store_release_64(&h->state->mark, h->mark | (expar_uint32)status);
    }
    return expar_dev_status_of(h);
}

/* ---- addresses --------------------------------------------------------------------------------------------------- */

/* Where an operation goes. */
typedef struct expar_dev_aim {
    expar_uint64 at;           /* MAPPED: here, the copy of the PE */
    expar_uint64 offset;       /* in the heap of that kind */
    expar_uint32 way, atomics; /* of the entry */
    expar_uint32 by;           /* what carries this operation */
    int kind, rank, pe;
} expar_dev_aim;

/* The handle's state says this of one kind of memory: this rank's heap, and the entry of a rank. */
typedef struct expar_dev_kind_facts {
    expar_uint64 base, begin, end;
    expar_dev_entry entry;
} expar_dev_kind_facts;
typedef struct expar_dev_facts {
    expar_uint64 mark;
    expar_dev_kind_facts main, pinned;
} expar_dev_facts;

EXPAR_DEV_FUNC const expar_dev_entry *expar_dev_entry_of(const expar_device_handle *h, int kind, int rank)
{
    return (const expar_dev_entry *)(h->state + 1) + (expar_size)kind * (expar_size)h->ranks + (expar_size)rank;
}
EXPAR_DEV_FUNC void expar_dev_read_kind(const expar_device_handle *h, int kind, int rank, expar_dev_kind_facts *facts)
{
    const expar_dev_heap *heap = &h->state->heaps[kind];
    const expar_dev_entry *entry = expar_dev_entry_of(h, kind, rank);
    facts->base = expar_dev_load_64(&heap->base);
    facts->begin = expar_dev_load_64(&heap->begin);
    facts->end = expar_dev_load_64(&heap->end);
    facts->entry.base = expar_dev_load_64(&entry->base);
    facts->entry.way = expar_dev_load_32(&entry->way);
    facts->entry.atomics = expar_dev_load_32(&entry->atomics);
}
/* Reads all that an operation on memory of the rank needs. On a GPU no load depends on another one, so together they
   take the time of one access. If the mark is not the handle's, the rest means nothing. */
EXPAR_DEV_FUNC void expar_dev_read_facts(const expar_device_handle *h, int rank, expar_dev_facts *facts)
{
    facts->mark = expar_dev_load_64(&h->state->mark);
#ifndef EXPAR_DEV_READS_AHEAD
    if (facts->mark != h->mark) return;
#endif
    expar_dev_read_kind(h, EXPAR_DEV_MAIN_KIND, rank, &facts->main);
    expar_dev_read_kind(h, EXPAR_DEV_PINNED, rank, &facts->pinned);
}

/* Finds [address, address + bytes) in this rank's heap of a kind; *offset is its offset there. */
EXPAR_DEV_FUNC int expar_dev_lies_in(const expar_dev_kind_facts *facts, const void *address, expar_size bytes,
                                     expar_uint64 *offset)
{
    const expar_uint64 at = (expar_uint64)address - facts->base;
    *offset = at;
    return at >= facts->begin && at < facts->end && bytes <= facts->end - at;
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
EXPAR_DEV_FUNC int expar_dev_find(const expar_device_handle *h, const expar_dev_facts *facts, const void *address,
                                  expar_size bytes, expar_uint64 *offset)
{
    if (expar_dev_lies_in(&facts->main, address, bytes, offset)) return EXPAR_DEV_MAIN_KIND;
    if (expar_dev_lies_in(&facts->pinned, address, bytes, offset)) return EXPAR_DEV_PINNED;
    return expar_dev_lies_in_registered(h, address, bytes, offset) ? EXPAR_DEV_DEVICE : -1;
}

/* Gives the entry of the rank whose facts they are. Only a CPU that looks at a GPU's state finds a third kind. */
EXPAR_DEV_FUNC expar_dev_entry expar_dev_entry_in(const expar_device_handle *h, const expar_dev_facts *facts, int kind,
                                                  int rank)
{
    expar_dev_kind_facts other;
    if (kind == EXPAR_DEV_PINNED) return facts->pinned.entry;
    if (kind == EXPAR_DEV_MAIN_KIND) return facts->main.entry;
    expar_dev_read_kind(h, kind, rank, &other);
    return other.entry;
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

EXPAR_DEV_FUNC expar_dev_aim expar_dev_aim_nowhere(void)
{
    expar_dev_aim aim;
    aim.at = aim.offset = 0;
    aim.way = aim.atomics = aim.by = EXPAR_DEV_WAY_NONE;
    aim.kind = aim.rank = aim.pe = 0;
    return aim;
}
/* Returns 1 if the PE is one of the handle's, which has no error; then `facts` are those of its rank. If not, the
   handle has an error now. */
EXPAR_DEV_FUNC int expar_dev_read_pe(const expar_device_handle *h, int operation, const void *address, int pe,
                                     expar_dev_facts *facts)
{
    const int is_member = pe >= 0 && pe < h->size;
    expar_dev_read_facts(h, is_member ? expar_dev_rank_of(h, pe) : h->rank, facts);
    if (facts->mark != h->mark) return 0;
    if (is_member) return 1;
    const expar_dev_fault fault = expar_dev_fault_of(operation, pe, (expar_uint64)address);
    return expar_dev_fail(h, EXPAR_ERR_RANGE, &fault) == EXPAR_OK;
}
/* Checks an operation on [address, address + bytes) of pe, and finds what leads there; `by` remains to be chosen.
   Returns 0 if it is not to be carried out: the handle has an error now, or there are no bytes. width: of the
   elements. */
EXPAR_DEV_FUNC int expar_dev_find_at(const expar_device_handle *h, const expar_dev_facts *facts, int operation,
                                     const void *address, expar_size bytes, expar_size width, int pe,
                                     expar_dev_aim *aim)
{
    expar_uint64 offset = 0;
    const expar_dev_fault fault = expar_dev_fault_of(operation, pe, (expar_uint64)address);
    *aim = expar_dev_aim_nowhere();
    if (bytes == 0) return 0;
    const int kind = expar_dev_find(h, facts, address, bytes, &offset);
    if (kind < 0) return expar_dev_fail(h, EXPAR_ERR_ADDRESS, &fault) == EXPAR_OK;
    if (!expar_dev_is_aligned(address, width)) return expar_dev_fail(h, EXPAR_ERR_ALIGNMENT, &fault) == EXPAR_OK;
    const expar_dev_entry entry = expar_dev_entry_in(h, facts, kind, expar_dev_rank_of(h, pe));
    aim->at = entry.base ? entry.base + offset : 0;
    aim->offset = offset;
    aim->way = entry.way;
    aim->atomics = entry.atomics;
    aim->kind = kind;
    aim->rank = expar_dev_rank_of(h, pe);
    aim->pe = pe;
    return 1;
}
/* Returns the way that this kernel uses. */
EXPAR_DEV_FUNC expar_uint32 expar_dev_way_of(const expar_device_handle *h, expar_uint32 way)
{
    if (EXPAR_DEVICE_GDA || way != EXPAR_DEV_WAY_GDA) return way;
    return h->state->rings ? EXPAR_DEV_WAY_PROXY : EXPAR_DEV_WAY_NONE;
}
/* Takes the way; without one the handle fails, and the result is 0. */
EXPAR_DEV_FUNC int expar_dev_aim_by(const expar_device_handle *h, int operation, expar_uint32 way, expar_dev_aim *aim)
{
    aim->by = expar_dev_way_of(h, way);
    if (aim->by == EXPAR_DEV_WAY_MAPPED && aim->at) return 1;
    if (aim->by == EXPAR_DEV_WAY_PROXY || aim->by == EXPAR_DEV_WAY_GDA) return 1;
    const expar_dev_fault fault = expar_dev_fault_of(operation, aim->pe, aim->offset);
    return expar_dev_fail(h, EXPAR_ERR_UNSUPPORTED, &fault) == EXPAR_OK;
}
/* The same two for data, and for a word that an atomic changes; `facts` are those of the PE. */
EXPAR_DEV_FUNC int expar_dev_aim_data(const expar_device_handle *h, const expar_dev_facts *facts, int operation,
                                      const void *address, expar_size bytes, expar_size width, int pe,
                                      expar_dev_aim *aim)
{
    return expar_dev_find_at(h, facts, operation, address, bytes, width, pe, aim) &&
           expar_dev_aim_by(h, operation, aim->way, aim);
}
EXPAR_DEV_FUNC int expar_dev_aim_change(const expar_device_handle *h, const expar_dev_facts *facts, int operation,
                                        const void *word, expar_size width, int pe, expar_dev_aim *aim)
{
    return expar_dev_find_at(h, facts, operation, word, width, width, pe, aim) &&
           expar_dev_aim_by(h, operation, aim->atomics, aim);
}
/* They read the facts, too. */
EXPAR_DEV_FUNC int expar_dev_aim_at(const expar_device_handle *h, int operation, const void *address, expar_size bytes,
                                    expar_size width, int pe, expar_dev_aim *aim)
{
    expar_dev_facts facts;
    return expar_dev_read_pe(h, operation, address, pe, &facts) &&
           expar_dev_aim_data(h, &facts, operation, address, bytes, width, pe, aim);
}
EXPAR_DEV_FUNC int expar_dev_aim_word(const expar_device_handle *h, int operation, const void *word, expar_size width,
                                      int pe, expar_dev_aim *aim)
{
    expar_dev_facts facts;
    return expar_dev_read_pe(h, operation, word, pe, &facts) &&
           expar_dev_aim_change(h, &facts, operation, word, width, pe, aim);
}

/* ---- the watch over waits ---------------------------------------------------------------------------------------- */

/* Waiting threads read their word, and now and then the handle's state. The host's orders, which lie across a bus, are
 * read by one thread at a time, which has the watch. No fixed thread has it, since any thread may leave. A thread that
 * finds the last reading older than EXPAR_DEV_WATCH_NS takes the watch by a compare-swap of that time. It publishes the
 * orders in the state. A wait that lasts from one pulse of the host to another is told to the host, once a pulse. Waits
 * for a ring are not: the proxy's thread looks after the ranks to which it sends. */
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

/* Returns whether the host has not moved the pulse for so long that it counts as stopped. */
EXPAR_DEV_FUNC int expar_dev_host_is_gone(const expar_device_handle *h, expar_uint64 now)
{
    const expar_uint64 seen_ns = expar_dev_load_acquire_64(&h->state->seen_ns);
    if (seen_ns == 0 || (expar_int64)(now - seen_ns) > EXPAR_DEV_FRESH_NS) return 0;
    return (expar_int64)(now - expar_dev_load_64(&h->state->moved_ns)) >= (expar_int64)h->orphan_ns;
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
    if (expar_dev_host_is_gone(h, now)) return expar_dev_fail(h, EXPAR_ERR_STATE, fault);
    const expar_uint32 pulse = (expar_uint32)(orders / EXPAR_DEV_BEAT) + 1;
    if (waiting->kind != EXPAR_DEV_AWAITS_NONE && waiting->pulse && pulse != waiting->pulse)
        expar_dev_note(h, EXPAR_DEV_AWAIT_WORD(pulse - 1, waiting->kind, waiting->rank));
    waiting->pulse = pulse;
    return EXPAR_OK;
}

/* ---- rings of the proxy ------------------------------------------------------------------------------------------ */

/* Commands to PEs that are not mapped. A thread takes a number if a slot is free, so one that gives up leaves no gap.
 * It waits by looking at the port. One thread at a time has the ring's watch, and copies the ring's counters there.
 *
 * Each call gives EXPAR_OK, or the status of the handle, which has an error then. */
#define EXPAR_DEV_RING_POLLS 16u
#define EXPAR_DEV_RING_LOOKS 4u

/* Numbers wrap around. */
EXPAR_DEV_FUNC int expar_dev_is_before(expar_uint64 a, expar_uint64 b)
{
    return (expar_int64)(a - b) < 0;
}
EXPAR_DEV_FUNC void expar_dev_raise(expar_uint64 *word, expar_uint64 number)
{
    expar_uint64 seen = expar_dev_load_64(word);
    while (expar_dev_is_before(seen, number)) {
        const expar_uint64 was = expar_dev_compare_swap_64(word, seen, number);
        if (was == seen) return;
        seen = was;
    }
}
EXPAR_DEV_FUNC expar_dev_port *expar_dev_port_of(const expar_device_handle *h, int rank)
{
    return (expar_dev_port *)h->state->ports[(expar_uint32)rank % h->state->rings];
}
EXPAR_DEV_FUNC expar_dev_ring_slot *expar_dev_ring_slots(const expar_dev_port *port)
{
    return (expar_dev_ring_slot *)(port->ring + 1);
}

/* A thread that waits for a counter of the ring, and may have the watch. `copy` is the counter's copy in the port, and
   `seen` is what the thread saw last. */
typedef struct expar_dev_ring_watch {
    const expar_uint64 *counter;
    expar_uint64 *copy;
    expar_uint64 seen;
    int is_end; /* the counter is a number << 1, as `done` */
    int watches;
    expar_uint32 polls;
    expar_uint64 moves, since_ns, looked_ns;
} expar_dev_ring_watch;

/* `moves` is loaded first, as it is raised last. The fence is the release of all copies, which `done` ends. */
EXPAR_DEV_FUNC void expar_dev_ring_copy(expar_dev_port *port, expar_dev_ring_watch *w)
{
    const expar_dev_ring *ring = port->ring;
    const expar_uint64 moves = expar_dev_load_acquire_64(&ring->moves);
    if (w->looked_ns && moves == w->moves) return;
    w->moves = moves;
    const expar_uint64 consumed = expar_dev_load_acquire_64(&ring->consumed);
    const expar_uint64 done = expar_dev_load_acquire_64(&ring->done);
    const expar_uint64 ended = expar_dev_load_acquire_64(&ring->ended);
    const expar_uint64 failure = expar_dev_load_acquire_64(&ring->failure);
    const expar_uint64 *done_to = (const expar_uint64 *)(expar_dev_ring_slots(port) + port->num_slots);
    if (ended) expar_dev_store_release_64(&port->ended, ended);
    if (failure) expar_dev_store_release_64(&port->failure, failure);
    expar_dev_fence_order();
    expar_dev_raise(&port->freed, consumed);
    for (expar_int64 rank = 0; rank < port->size; rank++) {
        const expar_uint64 number = expar_dev_load_acquire_64(&done_to[rank]);
        if (!expar_dev_is_before(expar_dev_load_64(&port->done_to[rank]), number)) continue;
        expar_dev_fence_order();
        expar_dev_raise(&port->done_to[rank], number);
    }
    expar_dev_raise(&port->done, done);
}
/* Copies the awaited counter alone. As long as no command has failed that is one load across the bus. */
EXPAR_DEV_FUNC void expar_dev_ring_look_at_one(expar_dev_port *port, expar_dev_ring_watch *w)
{
    const expar_uint64 now = expar_dev_load_acquire_64(w->counter);
    if (now == w->seen) return;
    if (w->is_end && now & 1) {
        const expar_uint64 ended = expar_dev_load_acquire_64(&port->ring->ended);
        const expar_uint64 failure = expar_dev_load_acquire_64(&port->ring->failure);
        if (ended) expar_dev_store_release_64(&port->ended, ended);
        if (failure) expar_dev_store_release_64(&port->failure, failure);
    }
    expar_dev_fence_near();
    expar_dev_raise(w->copy, now);
    w->seen = now;
}
/* Now and then everything is looked at. */
EXPAR_DEV_FUNC void expar_dev_ring_look(expar_dev_port *port, expar_dev_ring_watch *w, expar_uint64 claimed)
{
    expar_dev_ring_look_at_one(port, w);
    if (w->polls++ % EXPAR_DEV_RING_LOOKS != 0) return;
    const expar_uint64 now = expar_dev_clock_ns();
    if (now - w->since_ns < EXPAR_DEV_WATCH_NS / 4) return;
    expar_dev_ring_copy(port, w);
    expar_dev_raise(&port->awaited, claimed);
    const expar_uint64 awaited = expar_dev_load_64(&port->awaited);
    if (expar_dev_is_before(expar_dev_load_64(&port->ring->awaited), awaited))
        expar_dev_store_release_64(&port->ring->awaited, awaited);
    w->seen = expar_dev_load_acquire_64(w->copy);
    w->since_ns = w->looked_ns = now;
    expar_dev_store_release_64(&port->watched_ns, now);
}
/* After a poll in vain; w->seen is newer then. All numbers before `claimed` were claimed, which shows the host those
   that no thread will publish any more. */
EXPAR_DEV_FUNC void expar_dev_ring_turn(expar_dev_port *port, expar_dev_ring_watch *w, expar_uint64 claimed)
{
    if (w->watches) {
        expar_dev_ring_look(port, w, claimed);
        return;
    }
    const expar_uint32 poll = w->polls++ % EXPAR_DEV_RING_POLLS;
    w->seen = expar_dev_load_acquire_64(w->copy);
    if (poll == EXPAR_DEV_RING_POLLS - 1) expar_dev_raise(&port->awaited, claimed);
    if (poll != 0) return;
    const expar_uint64 last = expar_dev_load_acquire_64(&port->watched_ns), now = expar_dev_clock_ns();
    if (last && (expar_int64)(now - last) < (expar_int64)EXPAR_DEV_WATCH_NS) return;
    w->watches = expar_dev_compare_swap_64(&port->watched_ns, last, now) == last;
    w->since_ns = now;
    w->looked_ns = 0;
}

/* The status that the host has put into a ring's `ended`. */
EXPAR_DEV_FUNC int expar_dev_ring_ending(expar_uint64 ended)
{
    return (int)(ended >> 24 & 0xff);
}
/* Waits until the counter has reached the value. */
EXPAR_DEV_FUNC int expar_dev_ring_await(const expar_device_handle *h, expar_dev_port *port, expar_dev_ring_watch *watch,
                                        expar_uint64 value, expar_uint64 claimed, const expar_dev_fault *fault)
{
    int status = EXPAR_OK;
    expar_dev_waiting waiting = {0, 0, EXPAR_DEV_AWAITS_NONE, 0};
    while (status == EXPAR_OK && expar_dev_is_before(watch->seen, value)) {
        expar_dev_ring_turn(port, watch, claimed);
        if (!expar_dev_is_before(watch->seen, value) && !(watch->seen & 1)) break;
        const expar_uint64 ended = expar_dev_load_acquire_64(&port->ended);
        if (ended)
            status = expar_dev_fail(h, expar_dev_ring_ending(ended), fault);
        else if (++waiting.polls % EXPAR_DEV_POLLS == 0)
            status = expar_dev_look(h, &waiting, fault);
        expar_dev_pause(0);
    }
    if (watch->watches) expar_dev_store_64(&port->watched_ns, 0);
    EXPAR_DEVICE_DELAY();
    return status;
}
EXPAR_DEV_FUNC expar_dev_ring_watch expar_dev_ring_watch_of(const expar_uint64 *counter, expar_uint64 *copy, int is_end)
{
    const expar_dev_ring_watch watch = {counter, copy, expar_dev_load_acquire_64(copy), is_end, 0, 0, 0, 0, 0};
    return watch;
}

/* Some command of the ring has failed: this handle fails if it was one of its own. */
EXPAR_DEV_FUNC int expar_dev_look_at_loss(const expar_device_handle *h)
{
    const expar_dev_report *report = h->report;
    if (expar_dev_load_acquire_32(&report->lost) != (expar_uint32)(h->mark >> 32)) return EXPAR_OK;
    const expar_dev_fault fault = expar_dev_fault_of((int)report->lost_operation, report->lost_pe, report->lost_offset);
    return expar_dev_fail(h, (int)report->lost_status, &fault);
}
/* Waits until `done`, or with rank >= 0 the counter of that rank, has reached the number. */
EXPAR_DEV_FUNC int expar_dev_await_done(const expar_device_handle *h, expar_dev_port *port, int rank,
                                        expar_uint64 number, const expar_dev_fault *fault)
{
    const expar_uint64 *done_to = (const expar_uint64 *)(expar_dev_ring_slots(port) + port->num_slots);
    expar_dev_ring_watch watch = expar_dev_ring_watch_of(rank < 0 ? &port->ring->done : &done_to[rank],
                                                         rank < 0 ? &port->done : &port->done_to[rank], 1);
    const int status = expar_dev_ring_await(h, port, &watch, number << 1, number, fault);
    if (status != EXPAR_OK || !(watch.seen & 1)) return status;
    return expar_dev_look_at_loss(h);
}

EXPAR_DEV_FUNC int expar_dev_claim(const expar_device_handle *h, expar_dev_port *port, expar_uint64 *number,
                                   const expar_dev_fault *fault)
{
    int status = expar_dev_load_64(&port->failure) ? expar_dev_look_at_loss(h) : EXPAR_OK;
    const expar_uint64 ended = expar_dev_load_64(&port->ended);
    if (status == EXPAR_OK && ended) status = expar_dev_fail(h, expar_dev_ring_ending(ended), fault);
    while (status == EXPAR_OK) {
        /* The fence of expar_dev_issue is the acquire of `freed`. A `head` that was read too early may be before it;
           then the swap fails. */
        const expar_uint64 freed = expar_dev_load_64(&port->freed), head = expar_dev_load_64(&port->head);
        if ((expar_int64)(head - freed) >= (expar_int64)port->num_slots) {
            expar_dev_ring_watch watch = expar_dev_ring_watch_of(&port->ring->consumed, &port->freed, 0);
            status = expar_dev_ring_await(h, port, &watch, head + 1 - port->num_slots, head, fault);
            continue;
        }
        EXPAR_DEVICE_DELAY();
        *number = head;
        if (expar_dev_compare_swap_64(&port->head, head, head + 1) == head) break;
    }
    return status;
}

/* The high byte of a slot's words while it holds the command. */
EXPAR_DEV_FUNC expar_uint64 expar_dev_turn(expar_uint64 num_slots, expar_uint64 number)
{
    return (expar_uint64)(number & num_slots ? 0xa5 : 0x5a) << 56;
}
/* Writes a word of the command with the turn in place of its high byte, which goes to *high. */
EXPAR_DEV_FUNC void expar_dev_write_word(expar_dev_ring_slot *slot, int place, expar_uint64 turn, expar_uint64 word,
                                         expar_uint64 *high)
{
    *high |= word >> 56 << 8 * place;
    expar_dev_store_64(&slot->words[place], (word << 8 >> 8) | turn);
}
/* All that this thread has written, or threads that it has met, arrives before the command. */
EXPAR_DEV_FUNC int expar_dev_issue(const expar_device_handle *h, expar_dev_port *port, const expar_dev_command *c,
                                   expar_uint64 *after, const expar_dev_fault *fault)
{
    expar_uint64 number = 0, high = 0;
    const int status = expar_dev_claim(h, port, &number, fault);
    if (status != EXPAR_OK) return status;
    expar_dev_ring_slot *slot = expar_dev_ring_slots(port) + (number & (port->num_slots - 1));
    const expar_uint64 turn = expar_dev_turn(port->num_slots, number);
    EXPAR_DEVICE_DELAY();
    expar_dev_fence_order();
    expar_dev_write_word(slot, 0, turn, c->offset, &high);
    expar_dev_write_word(slot, 1, turn, c->local, &high);
    expar_dev_write_word(slot, 2, turn, c->bytes, &high);
    expar_dev_write_word(slot, 3, turn, c->operand, &high);
    EXPAR_DEVICE_DELAY();
    expar_dev_write_word(slot, 4, turn, c->compare, &high);
    expar_dev_write_word(slot, 5, turn, c->signal, &high);
    expar_dev_write_word(slot, 6, turn,
                         (expar_uint64)(expar_uint32)c->pe | (expar_uint64)c->kind << 32 | (expar_uint64)c->op << 40 |
                             (expar_uint64)c->memory << 48 | (expar_uint64)c->signal_memory << 56,
                         &high);
    expar_dev_store_64(&slot->words[7], high | turn);
    *after = number + 1;
    return EXPAR_OK;
}

/* Takes a place for a result. */
EXPAR_DEV_FUNC int expar_dev_take_result(const expar_device_handle *h, const expar_dev_fault *fault, int *place)
{
    int status = EXPAR_OK;
    expar_dev_waiting waiting = {0, 0, EXPAR_DEV_AWAITS_NONE, 0};
    while (status == EXPAR_OK) {
        const expar_uint64 taken = expar_dev_load_64(&h->state->results_taken);
        int i = 0;
        while (i < EXPAR_DEV_RESULTS && taken >> i & 1)
            i++;
        *place = i;
        if (i < EXPAR_DEV_RESULTS) {
            const expar_uint64 with = taken | (expar_uint64)1 << i;
            if (expar_dev_compare_swap_64(&h->state->results_taken, taken, with) == taken) break;
            continue;
        }
        if (++waiting.polls % EXPAR_DEV_POLLS == 0) status = expar_dev_look(h, &waiting, fault);
        expar_dev_pause(0);
    }
    return status;
}

/* The jobs that threads give to the rings. */
enum {
    EXPAR_DEV_JOB_SEND = 0, /* issue the command */
    EXPAR_DEV_JOB_AWAIT,    /* and wait until it has ended: its source is free, or what it gets is here */
    EXPAR_DEV_JOB_FETCH,    /* the same with a place for a word, which is returned; 0: the handle has an error */
    EXPAR_DEV_JOB_QUIET     /* wait for all commands of ring number `rank` */
};

/* Issues the command to its rank's ring, and waits if `waits`. */
EXPAR_DEV_FUNC int expar_dev_run_command(const expar_device_handle *h, const expar_dev_command *command, int waits,
                                         const expar_dev_fault *fault)
{
    expar_uint64 after = 0;
    expar_dev_port *port = expar_dev_port_of(h, command->pe);
    const int status = expar_dev_issue(h, port, command, &after, fault);
    if (status != EXPAR_OK || !waits) return status;
    return expar_dev_await_done(h, port, command->pe, after, fault);
}
/* A place whose command may still be under way stays taken. */
EXPAR_DEV_FUNC expar_uint64 expar_dev_run_fetch(const expar_device_handle *h, expar_dev_command *command,
                                                const expar_dev_fault *fault)
{
    int place = 0;
    if (expar_dev_take_result(h, fault, &place) != EXPAR_OK) return 0;
    expar_uint64 *const result = &h->report->results[place];
    expar_dev_store_64(result, 0);
    command->local = h->state->results_at + (expar_uint64)place * sizeof *result;
    if (expar_dev_run_command(h, command, 1, fault) != EXPAR_OK) return 0;
    const expar_uint64 value = expar_dev_load_acquire_64(result);
    expar_dev_and_64(&h->state->results_taken, ~((expar_uint64)1 << place));
    return value;
}
EXPAR_DEV_FUNC int expar_dev_run_quiet(const expar_device_handle *h, int ring, const expar_dev_fault *fault)
{
    expar_dev_port *port = expar_dev_port_of(h, ring);
    const expar_uint64 head = expar_dev_load_acquire_64(&port->head);
    /* A ring without commands on their way costs no look across the bus: `failure` was copied before `done`. */
    const int is_done = !expar_dev_is_before(expar_dev_load_acquire_64(&port->done), head << 1);
    if (is_done) return expar_dev_load_acquire_64(&port->failure) ? expar_dev_look_at_loss(h) : EXPAR_OK;
    return expar_dev_await_done(h, port, -1, head, fault);
}

/* A handle for jobs, which use these members alone. */
EXPAR_DEV_FUNC expar_device_handle expar_dev_handle_of(expar_dev_state *state, expar_uint64 tag)
{
    const expar_device_handle h = {tag >> 32 << 32,
                                   state,
                                   (expar_dev_report *)state->report,
                                   state->orphan_ns,
                                   EXPAR_DEVICE_VERSION,
                                   0,
                                   0,
                                   0,
                                   0,
                                   0,
                                   0,
                                   0};
    return h;
}
EXPAR_DEV_FUNC expar_dev_fault expar_dev_fault_in(expar_uint64 tag, expar_uint64 place, expar_uint64 offset)
{
    return expar_dev_fault_of((int)(tag >> 24 & 0xff), (int)(expar_uint32)(place >> 32), offset);
}
/* Does a job. Arguments are words, and none is the address of a caller's variable: so those stay in registers.
     tag     also names the handle
     place   PE << 32 | rank
     form    of the command: kind | op << 8 | memory << 16 | signal_memory << 24; and job << 32
     other   the value with which an atomic compares; else the signal
   Returns a status, or the word of EXPAR_DEV_JOB_FETCH. */
EXPAR_DEV_ASIDE expar_uint64 expar_dev_far(expar_dev_state *state, expar_uint64 tag, expar_uint64 place,
                                           expar_uint64 form, expar_uint64 offset, expar_uint64 local,
                                           expar_uint64 bytes, expar_uint64 operand, expar_uint64 other)
{
    const expar_device_handle h = expar_dev_handle_of(state, tag);
    const int job = (int)(form >> 32), rank = (int)(expar_uint32)place;
    const expar_dev_fault fault = expar_dev_fault_in(tag, place, offset);
    expar_dev_command command;
    command.offset = offset;
    command.local = local;
    command.bytes = bytes;
    command.operand = operand;
    command.pe = rank;
    command.kind = (expar_uint8)form;
    command.op = (expar_uint8)(form >> 8);
    command.memory = (expar_uint8)(form >> 16);
    command.signal_memory = (expar_uint8)(form >> 24);
    command.compare = command.kind == EXPAR_DEV_RING_ATOMIC ? other : tag;
    command.signal = command.kind == EXPAR_DEV_RING_ATOMIC ? tag : other;
    if (job == EXPAR_DEV_JOB_QUIET) return (expar_uint64)expar_dev_run_quiet(&h, rank, &fault);
    if (job == EXPAR_DEV_JOB_FETCH) return expar_dev_run_fetch(&h, &command, &fault);
    return (expar_uint64)expar_dev_run_command(&h, &command, job == EXPAR_DEV_JOB_AWAIT, &fault);
}

/* ---- queues of a network device ---------------------------------------------------------------------------------- */

#if EXPAR_DEVICE_GDA

/* A kernel's thread writes the requests of the device itself, and rings its doorbell. The library's folder src/net/gda
 * explains the queues. Its code stands here once more, with other names. These functions come before it. */
EXPAR_DEV_FUNC void expar_dev_gda_release(expar_uint32 scope)
{
    (void)scope; /* data may lie in memory of the host */
    expar_dev_fence_order();
}
/* Returns 1 if *word was *expected and is `desired` now; else 0, and *expected is the word. It acquires. */
EXPAR_DEV_FUNC int expar_dev_gda_swap(expar_uint64 *word, expar_uint64 *expected, expar_uint64 desired)
{
    const expar_uint64 seen = expar_dev_compare_swap_64(word, *expected, desired);
    const int taken = seen == *expected;
    *expected = seen;
    expar_dev_fence_order();
    return taken;
}
/* Raises the word to that value, after a release. */
EXPAR_DEV_FUNC void expar_dev_gda_raise(expar_uint64 *word, expar_uint64 value)
{
    expar_dev_fence_order();
    expar_dev_raise(word, value);
}
EXPAR_DEV_FUNC void expar_dev_gda_rest(void)
{
    expar_dev_pause(0);
}
/* Writes one block. The commit orders it before the doorbell. */
EXPAR_DEV_FUNC void expar_dev_gda_store_block(void *to, const void *from)
{
    for (int i = 0; i < 16; i += 4)
        expar_dev_store_unit((expar_uint32 *)to + i, (const expar_uint32 *)from + i);
}
/* For a thread that waits: returns 1 if the wait must end. */
struct expar_dev_gda_queue;
EXPAR_DEV_FUNC int expar_dev_gda_must_end(const expar_device_handle *h, struct expar_dev_gda_queue *queue,
                                          expar_uint32 *turns);

/* ---- the copy of src/net/gda begins ------------------------------------------------------------------------------ */

enum {
    EXPAR_DEV_GDA_BLOCK_BYTES = 64,
    EXPAR_DEV_GDA_BLOCK_WORDS = 16,
    EXPAR_DEV_GDA_MOST_BLOCKS =
        32768, /* of a queue: indices have 16 bits, and a window of them must tell old from new */
    EXPAR_DEV_GDA_REQUEST_BLOCKS = 3,   /* the most blocks of one request */
    EXPAR_DEV_GDA_MOST_INLINE = 28,     /* bytes of data inside a request of one block */
    EXPAR_DEV_GDA_MOST_BYTES = 1 << 30, /* of one request: log_msg_max is 30 */
    EXPAR_DEV_GDA_INDEX_MASK = 0xffff,
    EXPAR_DEV_GDA_QPN_MASK = 0xffffff
};

/* The opcode of a request, in the lowest byte of its control segment. */
typedef enum expar_dev_gda_opcode {
    EXPAR_DEV_GDA_OPCODE_NOP = 0x00,
    EXPAR_DEV_GDA_OPCODE_WRITE = 0x08,
    EXPAR_DEV_GDA_OPCODE_WRITE_IMMEDIATE = 0x09,
    EXPAR_DEV_GDA_OPCODE_READ = 0x10,
    EXPAR_DEV_GDA_OPCODE_COMPARE_SWAP = 0x11,
    EXPAR_DEV_GDA_OPCODE_FETCH_ADD = 0x12,
    EXPAR_DEV_GDA_OPCODE_MASKED_COMPARE_SWAP = 0x14,
    EXPAR_DEV_GDA_OPCODE_MASKED_FETCH_ADD = 0x15,
    EXPAR_DEV_GDA_OPCODE_DUMP = 0x23
} expar_dev_gda_opcode;
/* The opmod of masked atomics gives the size of the word. */
enum { EXPAR_DEV_GDA_OPMOD_32 = 0x08, EXPAR_DEV_GDA_OPMOD_64 = 0x09 };

/* Byte 11 of the control segment: a fence mode, when to report, and whether the receiver's event is solicited. */
enum {
    EXPAR_DEV_GDA_FENCE_SMALL = 0x20,
    EXPAR_DEV_GDA_FENCE = 0x40, /* waits for earlier reads and atomics of the queue */
    EXPAR_DEV_GDA_FENCE_STRONG = 0x60,
    EXPAR_DEV_GDA_FENCE_AND_SMALL = 0x80,
    EXPAR_DEV_GDA_REPORT = 0x08, /* write a CQE also when the request succeeds */
    EXPAR_DEV_GDA_SOLICITED = 0x02
};

/* Says what a request does. */
typedef enum expar_dev_gda_form {
    EXPAR_DEV_GDA_NOP,
    EXPAR_DEV_GDA_WRITE,
    EXPAR_DEV_GDA_WRITE_IMMEDIATE,
    EXPAR_DEV_GDA_WRITE_INLINE,
    EXPAR_DEV_GDA_READ,
    EXPAR_DEV_GDA_ADD_64,
    EXPAR_DEV_GDA_COMPARE_SWAP_64,
    EXPAR_DEV_GDA_ADD_MASKED_32,  /* compare_mask holds the boundaries: no carry leaves a bit that is set there */
    EXPAR_DEV_GDA_ADD_MASKED_64,  /* likewise */
    EXPAR_DEV_GDA_SWAP_MASKED_32, /* bits of swap_mask change if the bits of compare_mask are equal */
    EXPAR_DEV_GDA_SWAP_MASKED_64, /* two blocks, and a NOP after them, which reports for it */
    EXPAR_DEV_GDA_DUMP /* reads one byte of the caller's memory: what arrived before it is visible afterwards */
} expar_dev_gda_form;

typedef struct expar_dev_gda_request {
    expar_dev_gda_form form;
    /* the values of byte 11 of the control segment, above */
    expar_uint32 flags;
    expar_uint64 remote, local;
    /* big-endian, as the tables of keys have them */
    expar_uint32 rkey, lkey;
    /* WRITE, READ: at most EXPAR_DEV_GDA_MOST_BYTES. Inline: at most EXPAR_DEV_GDA_MOST_INLINE. Others ignore it. */
    expar_uint32 bytes;
    /* of EXPAR_DEV_GDA_WRITE_IMMEDIATE, big-endian */
    expar_uint32 immediate;
    /* atomics: what is added or stored, and what is compared, in the low bytes */
    expar_uint64 operand, compare;
    expar_uint64 swap_mask, compare_mask;
    /* EXPAR_DEV_GDA_WRITE_INLINE: the data, in the order of memory, filled up with zeros */
    expar_uint32 data[EXPAR_DEV_GDA_MOST_INLINE / 4];
} expar_dev_gda_request;

/* One block, in the order of memory. */
typedef struct expar_dev_gda_block {
    expar_uint32 words[EXPAR_DEV_GDA_BLOCK_WORDS];
} expar_dev_gda_block;

EXPAR_DEV_FUNC expar_uint32 expar_dev_gda_be32(expar_uint32 value)
{
#ifdef __CUDACC__
    return __byte_perm(value, 0, 0x0123);
#else
    return __builtin_bswap32(value);
#endif
}

EXPAR_DEV_FUNC expar_uint32 expar_dev_gda_high(expar_uint64 value)
{
    return (expar_uint32)(value >> 32);
}

/* Stores 64 bits at a place that is aligned to 4 bytes. */
EXPAR_DEV_FUNC void expar_dev_gda_put_be64(expar_uint32 *words, expar_uint64 value)
{
    words[0] = expar_dev_gda_be32(expar_dev_gda_high(value));
    words[1] = expar_dev_gda_be32((expar_uint32)value);
}

/* `ds` is the length of the request in segments. */
EXPAR_DEV_FUNC void expar_dev_gda_control_segment(expar_uint32 *words, expar_uint64 index, expar_uint32 opmod_opcode,
                                                  expar_uint32 qpn, expar_uint32 ds, expar_uint32 flags,
                                                  expar_uint32 immediate)
{
    words[0] = expar_dev_gda_be32(opmod_opcode | (expar_uint32)(index & EXPAR_DEV_GDA_INDEX_MASK) << 8);
    words[1] = expar_dev_gda_be32(qpn << 8 | ds);
    words[2] = flags << 24;
    words[3] = immediate;
}

EXPAR_DEV_FUNC void expar_dev_gda_remote_segment(expar_uint32 *words, expar_uint64 address, expar_uint32 rkey)
{
    expar_dev_gda_put_be64(words, address);
    words[2] = rkey;
    words[3] = 0;
}

EXPAR_DEV_FUNC void expar_dev_gda_data_segment(expar_uint32 *words, expar_uint32 bytes, expar_uint32 lkey,
                                               expar_uint64 address)
{
    words[0] = expar_dev_gda_be32(bytes);
    words[1] = lkey;
    expar_dev_gda_put_be64(words + 2, address);
}

/* Returns the number of blocks, and so of indices, that a request of the form takes. */
EXPAR_DEV_FUNC expar_uint32 expar_dev_gda_blocks_of(expar_dev_gda_form form)
{
    return form == EXPAR_DEV_GDA_SWAP_MASKED_64 ? EXPAR_DEV_GDA_REQUEST_BLOCKS : 1;
}

/* Returns opmod << 24 | opcode. */
EXPAR_DEV_FUNC expar_uint32 expar_dev_gda_code_of(expar_dev_gda_form form)
{
    switch (form) {
    case EXPAR_DEV_GDA_WRITE:
    case EXPAR_DEV_GDA_WRITE_INLINE:
        return EXPAR_DEV_GDA_OPCODE_WRITE;
    case EXPAR_DEV_GDA_WRITE_IMMEDIATE:
        return EXPAR_DEV_GDA_OPCODE_WRITE_IMMEDIATE;
    case EXPAR_DEV_GDA_READ:
        return EXPAR_DEV_GDA_OPCODE_READ;
    case EXPAR_DEV_GDA_ADD_64:
        return EXPAR_DEV_GDA_OPCODE_FETCH_ADD;
    case EXPAR_DEV_GDA_COMPARE_SWAP_64:
        return EXPAR_DEV_GDA_OPCODE_COMPARE_SWAP;
    case EXPAR_DEV_GDA_ADD_MASKED_32:
        return (expar_uint32)EXPAR_DEV_GDA_OPMOD_32 << 24 | EXPAR_DEV_GDA_OPCODE_MASKED_FETCH_ADD;
    case EXPAR_DEV_GDA_ADD_MASKED_64:
        return (expar_uint32)EXPAR_DEV_GDA_OPMOD_64 << 24 | EXPAR_DEV_GDA_OPCODE_MASKED_FETCH_ADD;
    case EXPAR_DEV_GDA_SWAP_MASKED_32:
        return (expar_uint32)EXPAR_DEV_GDA_OPMOD_32 << 24 | EXPAR_DEV_GDA_OPCODE_MASKED_COMPARE_SWAP;
    case EXPAR_DEV_GDA_SWAP_MASKED_64:
        return (expar_uint32)EXPAR_DEV_GDA_OPMOD_64 << 24 | EXPAR_DEV_GDA_OPCODE_MASKED_COMPARE_SWAP;
    case EXPAR_DEV_GDA_DUMP:
        return EXPAR_DEV_GDA_OPCODE_DUMP;
    case EXPAR_DEV_GDA_NOP:
        break;
    }
    return EXPAR_DEV_GDA_OPCODE_NOP;
}

/* Returns the length of the request in segments. A transfer of no bytes has no data segment: a device may read a length
   of 0 as 2 GiB. */
EXPAR_DEV_FUNC expar_uint32 expar_dev_gda_segments_of(const expar_dev_gda_request *request)
{
    switch (request->form) {
    case EXPAR_DEV_GDA_WRITE:
    case EXPAR_DEV_GDA_WRITE_IMMEDIATE:
    case EXPAR_DEV_GDA_READ:
        return request->bytes ? 3 : 2;
    case EXPAR_DEV_GDA_WRITE_INLINE:
        return request->bytes <= 12 ? 3 : 4;
    case EXPAR_DEV_GDA_ADD_64:
    case EXPAR_DEV_GDA_COMPARE_SWAP_64:
    case EXPAR_DEV_GDA_ADD_MASKED_32:
    case EXPAR_DEV_GDA_ADD_MASKED_64:
    case EXPAR_DEV_GDA_SWAP_MASKED_32:
        return 4;
    case EXPAR_DEV_GDA_SWAP_MASKED_64:
        return 5;
    case EXPAR_DEV_GDA_DUMP:
        return 2;
    case EXPAR_DEV_GDA_NOP:
        break;
    }
    return 1;
}

/* Fills bytes 32 to 47 of an atomic's first block. */
EXPAR_DEV_FUNC void expar_dev_gda_operand_segment(expar_uint32 *words, const expar_dev_gda_request *request)
{
    switch (request->form) {
    case EXPAR_DEV_GDA_ADD_MASKED_32:
        words[0] = expar_dev_gda_be32((expar_uint32)request->operand);
        words[1] = expar_dev_gda_be32((expar_uint32)request->compare_mask);
        break;
    case EXPAR_DEV_GDA_SWAP_MASKED_32:
        words[0] = expar_dev_gda_be32((expar_uint32)request->operand);
        words[1] = expar_dev_gda_be32((expar_uint32)request->compare);
        words[2] = expar_dev_gda_be32((expar_uint32)request->swap_mask);
        words[3] = expar_dev_gda_be32((expar_uint32)request->compare_mask);
        break;
    case EXPAR_DEV_GDA_ADD_MASKED_64:
        expar_dev_gda_put_be64(words, request->operand);
        expar_dev_gda_put_be64(words + 2, request->compare_mask);
        break;
    default:
        expar_dev_gda_put_be64(words, request->operand);
        expar_dev_gda_put_be64(words + 2, request->compare);
        break;
    }
}

/* Returns the size of the word that an atomic changes, and of the old value that it stores at `local`. */
EXPAR_DEV_FUNC expar_uint32 expar_dev_gda_word_bytes(expar_dev_gda_form form)
{
    return form == EXPAR_DEV_GDA_ADD_MASKED_32 || form == EXPAR_DEV_GDA_SWAP_MASKED_32 ? 4 : 8;
}

EXPAR_DEV_FUNC void expar_dev_gda_clear_block(expar_dev_gda_block *block)
{
    for (int i = 0; i < EXPAR_DEV_GDA_BLOCK_WORDS; i++)
        block->words[i] = 0;
}

EXPAR_DEV_FUNC void expar_dev_gda_encode_inline(expar_dev_gda_block *block, const expar_dev_gda_request *request)
{
    block->words[8] = expar_dev_gda_be32(request->bytes | 0x80000000u);
    for (int i = 0; i < EXPAR_DEV_GDA_MOST_INLINE / 4; i++)
        block->words[9 + i] = request->data[i];
}

/* Fills the masks of EXPAR_DEV_GDA_SWAP_MASKED_64, its second block with the data segment, and the NOP that reports for
   it. */
EXPAR_DEV_FUNC void expar_dev_gda_encode_tail(expar_dev_gda_block *blocks, const expar_dev_gda_request *request,
                                              expar_uint64 index, expar_uint32 qpn)
{
    expar_dev_gda_put_be64(blocks[0].words + 12, request->swap_mask);
    expar_dev_gda_put_be64(blocks[0].words + 14, request->compare_mask);
    expar_dev_gda_clear_block(&blocks[1]);
    expar_dev_gda_data_segment(blocks[1].words, 8, request->lkey, request->local);
    expar_dev_gda_clear_block(&blocks[2]);
    expar_dev_gda_control_segment(blocks[2].words, index + 2, EXPAR_DEV_GDA_OPCODE_NOP, qpn, 1,
                                  request->flags & EXPAR_DEV_GDA_REPORT, 0);
}

/* Writes a request for the queue `qpn` at that index into blocks[expar_dev_gda_blocks_of(form)]. */
EXPAR_DEV_ASIDE void expar_dev_gda_encode(expar_dev_gda_block *blocks, const expar_dev_gda_request *request,
                                          expar_uint64 index, expar_uint32 qpn)
{
    const expar_uint32 wide = request->form == EXPAR_DEV_GDA_SWAP_MASKED_64;
    const expar_uint32 flags = wide ? request->flags & ~(expar_uint32)EXPAR_DEV_GDA_REPORT : request->flags;
    expar_uint32 *words = blocks->words;
    expar_dev_gda_clear_block(blocks);
    expar_dev_gda_control_segment(words, index, expar_dev_gda_code_of(request->form), qpn,
                                  expar_dev_gda_segments_of(request), flags,
                                  request->form == EXPAR_DEV_GDA_WRITE_IMMEDIATE ? request->immediate : 0);
    if (request->form == EXPAR_DEV_GDA_NOP) return;
    if (request->form == EXPAR_DEV_GDA_DUMP) {
        expar_dev_gda_data_segment(words + 4, 1, request->lkey, request->local);
        return;
    }
    expar_dev_gda_remote_segment(words + 4, request->remote, request->rkey);
    if (request->form == EXPAR_DEV_GDA_WRITE_INLINE) {
        expar_dev_gda_encode_inline(blocks, request);
    } else if (request->form == EXPAR_DEV_GDA_WRITE || request->form == EXPAR_DEV_GDA_WRITE_IMMEDIATE ||
               request->form == EXPAR_DEV_GDA_READ) {
        if (request->bytes) expar_dev_gda_data_segment(words + 8, request->bytes, request->lkey, request->local);
    } else {
        expar_dev_gda_operand_segment(words + 8, request);
        if (wide)
            expar_dev_gda_encode_tail(blocks, request, index, qpn);
        else
            expar_dev_gda_data_segment(words + 12, expar_dev_gda_word_bytes(request->form), request->lkey,
                                       request->local);
    }
}

enum { EXPAR_DEV_GDA_RECORD_RECEIVE = 0, EXPAR_DEV_GDA_RECORD_SEND = 1, EXPAR_DEV_GDA_RECORD_WORDS = 2 };

/* Returns the word of the doorbell record: the next free block. */
EXPAR_DEV_FUNC expar_uint32 expar_dev_gda_record_word(expar_uint64 prod_idx)
{
    return expar_dev_gda_be32((expar_uint32)(prod_idx & EXPAR_DEV_GDA_INDEX_MASK));
}

/* Returns the 8 bytes of the doorbell register; the word at the lower address is the low half. */
EXPAR_DEV_FUNC expar_uint64 expar_dev_gda_register_word(expar_uint64 prod_idx, expar_uint32 qpn)
{
    return (expar_uint64)expar_dev_gda_be32(qpn << 8) << 32 |
           expar_dev_gda_be32((expar_uint32)(prod_idx & EXPAR_DEV_GDA_INDEX_MASK) << 8);
}

/* Words of a CQE. */
enum {
    EXPAR_DEV_GDA_CQE_WORDS = 16,
    EXPAR_DEV_GDA_CQE_IMMEDIATE = 9,
    EXPAR_DEV_GDA_CQE_BYTES = 11,
    EXPAR_DEV_GDA_CQE_SYNDROME = 13, /* vendor's syndrome in byte 54, syndrome in byte 55 */
    EXPAR_DEV_GDA_CQE_QPN = 14,
    EXPAR_DEV_GDA_CQE_LAST = 15 /* counter, signature, opcode and owner: read it as one word, first */
};
typedef enum expar_dev_gda_cqe_opcode {
    EXPAR_DEV_GDA_CQE_REQUEST = 0,
    EXPAR_DEV_GDA_CQE_IMMEDIATE_CAME = 1,
    EXPAR_DEV_GDA_CQE_REQUEST_FAILED = 13,
    EXPAR_DEV_GDA_CQE_RESPONSE_FAILED = 14,
    EXPAR_DEV_GDA_CQE_INVALID = 15
} expar_dev_gda_cqe_opcode;
typedef enum expar_dev_gda_syndrome {
    EXPAR_DEV_GDA_SYNDROME_LOCAL_LENGTH = 0x01,
    EXPAR_DEV_GDA_SYNDROME_LOCAL_OPERATION = 0x02,
    EXPAR_DEV_GDA_SYNDROME_LOCAL_PROTECTION = 0x04,
    EXPAR_DEV_GDA_SYNDROME_FLUSHED = 0x05, /* an earlier request of the queue has failed */
    EXPAR_DEV_GDA_SYNDROME_REMOTE_INVALID = 0x12,
    EXPAR_DEV_GDA_SYNDROME_REMOTE_ACCESS = 0x13,
    EXPAR_DEV_GDA_SYNDROME_REMOTE_OPERATION = 0x14,
    EXPAR_DEV_GDA_SYNDROME_RETRIES = 0x15,  /* the peer does not answer */
    EXPAR_DEV_GDA_SYNDROME_RECEIVER = 0x16, /* the peer has no receive request */
    EXPAR_DEV_GDA_SYNDROME_ABORTED = 0x22
} expar_dev_gda_syndrome;

EXPAR_DEV_FUNC expar_uint32 expar_dev_gda_cqe_opcode_of(expar_uint32 last)
{
    return last >> 28;
}

EXPAR_DEV_FUNC expar_uint32 expar_dev_gda_cqe_owner_of(expar_uint32 last)
{
    return last >> 24 & 1;
}

/* Returns the 16 low bits of the index of the first block of the completed request. */
EXPAR_DEV_FUNC expar_uint32 expar_dev_gda_cqe_counter_of(expar_uint32 last)
{
    return (last & 0xff) << 8 | (last >> 8 & 0xff);
}

EXPAR_DEV_FUNC expar_uint32 expar_dev_gda_cqe_syndrome_of(expar_uint32 word)
{
    return word >> 24;
}

EXPAR_DEV_FUNC expar_uint32 expar_dev_gda_cqe_vendor_of(expar_uint32 word)
{
    return word >> 16 & 0xff;
}

/* Says who writes record and register. */
typedef enum expar_dev_gda_ringer { EXPAR_DEV_GDA_RINGER_GPU, EXPAR_DEV_GDA_RINGER_CPU } expar_dev_gda_ringer;

typedef struct expar_dev_gda_queue {
    /* ---- set before any thread uses the queue, then only read ---------------------------------------------------- */

    /* [depth], aligned to EXPAR_DEV_GDA_BLOCK_BYTES. The thread that has reserved a block writes it. The device reads
       it after the record covers it; ordered by ready_head, record and register. */
    expar_dev_gda_block *blocks;
    /* [EXPAR_DEV_GDA_RECORD_WORDS]. The ringer stores the send counter (release); the device loads it (acquire) after
       it has seen the register. */
    expar_uint32 *record;
    /* The ringer stores it (release) after the record. It tells the device to look at the record. */
    expar_uint64 *doorbell;
    /* Completions, EXPAR_DEV_GDA_CQE_WORDS words each. Collapsed: one entry that each completion overwrites. Else
       cq_entries. The device stores the last word (release) after the others; polling threads load it (acquire) first.
       */
    expar_uint32 *cqes;
    /* Not collapsed: the count of entries that have been read, big-endian. The holder of cq_lock stores it (release);
       the device loads it before it reuses an entry. */
    expar_uint32 *cq_record;
    /* A word of the host's: not 0 if all waits must end, as a expar_dev_gda_failure. The host stores it (release).
       Waiting threads load it (acquire) now and then. NULL: there is none. */
    const expar_uint64 *stop;
    /* A word of the host's that receives what `error` has. The thread that changes `error` stores it (release); the
       host loads it (acquire). NULL: there is none. */
    expar_uint64 *told;
    /* With EXPAR_DEV_GDA_RINGER_CPU, in memory of the host: the end of the blocks that the host rings for. Committing
       threads raise it (release); the host's ringer loads it (acquire). NULL: the ringer loads prod_idx. */
    expar_uint64 *wanted;
    /* [1 + num_results]. The device writes the old words of atomics. Slot 0 takes those that nobody wants. The thread
       that has taken a slot reads it after the completion of its request. */
    expar_uint64 *results;
    expar_uint64 results_address; /* of results[0], as the device knows it */
    expar_uint32 results_lkey;    /* big-endian */
    expar_uint32 num_results;     /* a power of two */
    expar_uint32 depth;           /* in blocks; a power of two, at most EXPAR_DEV_GDA_MOST_BLOCKS */
    expar_uint32
        cq_entries; /* a power of two, at least depth, at most EXPAR_DEV_GDA_MOST_BLOCKS; the window, if collapsed */
    expar_uint32 batch; /* a power of two; depth >= batch + most */
    expar_uint32 most;  /* blocks of the largest reservation */
    expar_uint32 qpn;
    expar_int32 pe;
    expar_uint8 scope;      /* as in net/gda/access.h */
    expar_uint8 ringer;     /* expar_dev_gda_ringer */
    expar_uint8 collapsed;  /* whether there is one CQE for all */
    expar_uint8 never_full; /* no more than `depth` blocks are ever in flight, so reservations need no check */
    expar_uint8 flushes;    /* data of a read may be visible later than its CQE, so quiet ends with a DUMP */

    /* ---- shared by the threads that post ------------------------------------------------------------------------- */

    /* End of the reserved blocks. Posting threads add to it; it orders nothing. */
    expar_uint64 resv_head;
    /* End of the written blocks. A thread raises it from its own base to its own end (release, in the queue's scope).
       The thread that rings loads it (acquire), and so has seen all blocks before it. */
    expar_uint64 ready_head;
    /* End of the blocks that the device was told of. The holder of `lock` raises it (release), or with
       EXPAR_DEV_GDA_RINGER_CPU any committing thread; pollers and the host's ringer load it (acquire). */
    expar_uint64 prod_idx;
    /* End of the blocks that are complete. Polling threads raise it (release) after they have seen the CQE; others load
       it (acquire), so that they may reuse blocks and read results without a look at the CQE. */
    expar_uint64 cons_idx;
    /* 1 while a thread rings. Taken by compare-swap (acquire), given back by a store (release). */
    expar_uint64 lock;
    /* Doorbells that were rung. The holder of `lock`, or the host's ringer, stores it; it orders nothing. */
    expar_uint64 rings;
    /* As `lock`, for reading a completion queue that is not collapsed, and the number of entries that were read. */
    expar_uint64 cq_lock;
    expar_uint64 cq_head;
    /* Numbers of the next result slot to take, and of the first that is not free. Threads add to the first. They raise
       the second in turn (release), and load it (acquire) before they take a slot again. */
    expar_uint64 result_head;
    expar_uint64 result_tail;
    /* End of the committed reads, and of those that a DUMP has followed. Threads raise both (release). */
    expar_uint64 get_head;
    expar_uint64 get_tail;
    /* 0, or the failure of the queue. Written by compare-swap: the first cause stays, but any cause replaces
       EXPAR_DEV_GDA_SYNDROME_FLUSHED. Every call loads it (acquire). */
    expar_uint64 error;
} expar_dev_gda_queue;

enum { EXPAR_DEV_GDA_POLLS_A_LOOK = 64 }; /* a waiting thread looks at the host's word once in so many polls */

/* A failure in one word. `index`: the 16 low bits of the failed request's index. */
enum { EXPAR_DEV_GDA_FAILED_BY_DEVICE = 1, EXPAR_DEV_GDA_FAILED_BY_HOST = 2 };

EXPAR_DEV_FUNC expar_uint64 expar_dev_gda_failure(expar_uint32 by, expar_uint32 syndrome, expar_uint32 vendor,
                                                  expar_uint32 index)
{
    return (expar_uint64)by << 32 | (expar_uint64)(index & EXPAR_DEV_GDA_INDEX_MASK) << 16 | (vendor & 0xff) << 8 |
           (syndrome & 0xff);
}

EXPAR_DEV_FUNC expar_uint32 expar_dev_gda_failure_by(expar_uint64 failure)
{
    return expar_dev_gda_high(failure);
}

EXPAR_DEV_FUNC expar_uint32 expar_dev_gda_failure_syndrome(expar_uint64 failure)
{
    return (expar_uint32)failure & 0xff;
}

EXPAR_DEV_FUNC expar_uint32 expar_dev_gda_failure_vendor(expar_uint64 failure)
{
    return (expar_uint32)failure >> 8 & 0xff;
}

EXPAR_DEV_FUNC expar_uint32 expar_dev_gda_failure_index(expar_uint64 failure)
{
    return (expar_uint32)failure >> 16 & EXPAR_DEV_GDA_INDEX_MASK;
}

/* Returns 1 for a request that was flushed: the cause is an earlier one, whose CQE nobody has seen. */
EXPAR_DEV_FUNC int expar_dev_gda_cause_is_unseen(expar_uint64 failure)
{
    return expar_dev_gda_failure_by(failure) == EXPAR_DEV_GDA_FAILED_BY_DEVICE &&
           expar_dev_gda_failure_syndrome(failure) == EXPAR_DEV_GDA_SYNDROME_FLUSHED;
}

/* Copies `error` to the host's word. A thread that stores an older value notices that and stores again. */
EXPAR_DEV_FUNC void expar_dev_gda_tell(expar_dev_gda_queue *queue)
{
    expar_uint64 seen = expar_dev_load_acquire_64(&queue->error);
    while (queue->told) {
        expar_dev_store_release_64(queue->told, seen);
        const expar_uint64 again = expar_dev_load_acquire_64(&queue->error);
        if (again == seen) return;
        seen = again;
    }
}

EXPAR_DEV_FUNC void expar_dev_gda_remember(expar_dev_gda_queue *queue, expar_uint64 failure)
{
    expar_uint64 seen = expar_dev_load_acquire_64(&queue->error);
    while (!seen || (expar_dev_gda_cause_is_unseen(seen) && !expar_dev_gda_cause_is_unseen(failure)))
        if (expar_dev_gda_swap(&queue->error, &seen, failure)) break;
    expar_dev_gda_tell(queue);
}

/* Returns 0, or the failure of the queue. */
EXPAR_DEV_FUNC expar_uint64 expar_dev_gda_error(const expar_dev_gda_queue *queue)
{
    return expar_dev_load_acquire_64(&queue->error);
}

typedef enum expar_dev_gda_state {
    EXPAR_DEV_GDA_FAILED = -1,
    EXPAR_DEV_GDA_NOT_YET = 0,
    EXPAR_DEV_GDA_COMPLETE = 1
} expar_dev_gda_state;

EXPAR_DEV_FUNC int expar_dev_gda_has_reached(expar_uint64 counter, expar_uint64 index)
{
    return (expar_int64)(counter - index) >= 0;
}

/* Remembers an error CQE. Its words may change meanwhile, as later requests are flushed: then it reads again. */
EXPAR_DEV_FUNC void expar_dev_gda_take_error(expar_dev_gda_queue *queue, const expar_uint32 *cqe, expar_uint32 last)
{
    for (;;) {
        const expar_uint32 word = expar_dev_load_acquire_32(cqe + EXPAR_DEV_GDA_CQE_SYNDROME);
        const expar_uint32 again = expar_dev_load_acquire_32(cqe + EXPAR_DEV_GDA_CQE_LAST);
        if (again == last) {
            expar_dev_gda_remember(
                queue, expar_dev_gda_failure(EXPAR_DEV_GDA_FAILED_BY_DEVICE, expar_dev_gda_cqe_syndrome_of(word),
                                             expar_dev_gda_cqe_vendor_of(word), expar_dev_gda_cqe_counter_of(last)));
            return;
        }
        last = again;
    }
}

EXPAR_DEV_FUNC int expar_dev_gda_is_error(expar_uint32 last)
{
    const expar_uint32 opcode = expar_dev_gda_cqe_opcode_of(last);
    return opcode == EXPAR_DEV_GDA_CQE_REQUEST_FAILED || opcode == EXPAR_DEV_GDA_CQE_RESPONSE_FAILED;
}

/* One look at a collapsed completion queue, by a thread that waits until cons_idx is at least `index`, which is rung.
   At most cq_entries blocks are in flight, so a counter within that distance before index - 1 is older. */
EXPAR_DEV_FUNC void expar_dev_gda_look_collapsed(expar_dev_gda_queue *queue, expar_uint64 index)
{
    const expar_uint32 last = expar_dev_load_acquire_32(queue->cqes + EXPAR_DEV_GDA_CQE_LAST);
    if (expar_dev_gda_is_error(last)) {
        expar_dev_gda_take_error(queue, queue->cqes, last);
        return;
    }
    const expar_uint32 counter = expar_dev_gda_cqe_counter_of(last),
                       low = (expar_uint32)(index & EXPAR_DEV_GDA_INDEX_MASK);
    if (((low - counter - 2) & EXPAR_DEV_GDA_INDEX_MASK) < queue->cq_entries) return;
    const expar_uint32 end = (counter + 1) & EXPAR_DEV_GDA_INDEX_MASK;
    EXPAR_DEVICE_DELAY();
    expar_dev_gda_raise(&queue->cons_idx, ((index & ~(expar_uint64)EXPAR_DEV_GDA_INDEX_MASK) | end) +
                                              (low > end ? EXPAR_DEV_GDA_INDEX_MASK + 1 : 0));
}

/* Reads all new entries of a completion queue that is not collapsed, unless another thread does. The owner bit of an
   entry changes with each turn of the queue. */
EXPAR_DEV_ASIDE void expar_dev_gda_drain(expar_dev_gda_queue *queue)
{
    expar_uint64 unlocked = 0;
    if (!expar_dev_gda_swap(&queue->cq_lock, &unlocked, 1)) return;
    const expar_uint64 first = expar_dev_load_acquire_64(&queue->cq_head);
    expar_uint64 head = first;
    for (;; head++) {
        const expar_uint32 *cqe = queue->cqes + (head & (queue->cq_entries - 1)) * EXPAR_DEV_GDA_CQE_WORDS;
        const expar_uint32 last = expar_dev_load_acquire_32(cqe + EXPAR_DEV_GDA_CQE_LAST);
        if (expar_dev_gda_cqe_opcode_of(last) == EXPAR_DEV_GDA_CQE_INVALID) break;
        if (expar_dev_gda_cqe_owner_of(last) != ((head & queue->cq_entries) != 0)) break;
        EXPAR_DEVICE_DELAY();
        if (expar_dev_gda_is_error(last)) {
            expar_dev_gda_take_error(queue, cqe, last);
        } else {
            const expar_uint64 seen = expar_dev_load_acquire_64(&queue->cons_idx);
            expar_dev_gda_raise(&queue->cons_idx,
                                seen + ((expar_dev_gda_cqe_counter_of(last) + 1 - seen) & EXPAR_DEV_GDA_INDEX_MASK));
        }
    }
    if (head != first) {
        expar_dev_store_release_64(&queue->cq_head, head);
        expar_dev_store_release_32(queue->cq_record, expar_dev_gda_be32((expar_uint32)(head & EXPAR_DEV_GDA_QPN_MASK)));
    }
    expar_dev_store_release_64(&queue->cq_lock, 0);
}

/* Says whether all blocks before `index` are complete. */
EXPAR_DEV_FUNC expar_dev_gda_state expar_dev_gda_look(expar_dev_gda_queue *queue, expar_uint64 index)
{
    if (expar_dev_gda_has_reached(expar_dev_load_acquire_64(&queue->cons_idx), index)) return EXPAR_DEV_GDA_COMPLETE;
    if (expar_dev_gda_error(queue)) return EXPAR_DEV_GDA_FAILED;
    if (!expar_dev_gda_has_reached(expar_dev_load_acquire_64(&queue->prod_idx), index)) return EXPAR_DEV_GDA_NOT_YET;
    EXPAR_DEVICE_DELAY();
    if (queue->collapsed)
        expar_dev_gda_look_collapsed(queue, index);
    else
        expar_dev_gda_drain(queue);
    if (expar_dev_gda_has_reached(expar_dev_load_acquire_64(&queue->cons_idx), index)) return EXPAR_DEV_GDA_COMPLETE;
    return expar_dev_gda_error(queue) ? EXPAR_DEV_GDA_FAILED : EXPAR_DEV_GDA_NOT_YET;
}

/* Waits until all blocks before `index` are complete. Returns 0 if the queue has failed. */
EXPAR_DEV_ASIDE int expar_dev_gda_poll(const expar_device_handle *h, expar_dev_gda_queue *queue, expar_uint64 index)
{
    expar_uint32 turns = 0;
    for (;;) {
        const expar_dev_gda_state state = expar_dev_gda_look(queue, index);
        if (state == EXPAR_DEV_GDA_COMPLETE) return 1;
        if (state == EXPAR_DEV_GDA_FAILED || expar_dev_gda_must_end(h, queue, &turns)) return 0;
    }
}

/* Reserves blocks from *base on, at most queue->most, and waits until the device has done with them. Call
   expar_dev_gda_commit soon: later reservations wait for that. Returns 0 if the queue has failed. */
EXPAR_DEV_FUNC int expar_dev_gda_reserve(const expar_device_handle *h, expar_dev_gda_queue *queue, expar_uint32 blocks,
                                         expar_uint64 *base)
{
    if (expar_dev_gda_error(queue)) return 0;
    *base = expar_dev_add_64(&queue->resv_head, blocks);
    EXPAR_DEVICE_DELAY();
    return queue->never_full || expar_dev_gda_poll(h, queue, *base + blocks - queue->depth);
}

/* Writes a request at an index that the thread has reserved. */
EXPAR_DEV_ASIDE void expar_dev_gda_write(expar_dev_gda_queue *queue, expar_uint64 index,
                                         const expar_dev_gda_request *request)
{
    expar_dev_gda_block blocks[EXPAR_DEV_GDA_REQUEST_BLOCKS];
    const expar_uint32 count = expar_dev_gda_blocks_of(request->form);
    expar_dev_gda_encode(blocks, request, index, queue->qpn);
    EXPAR_DEVICE_DELAY();
    for (expar_uint32 i = 0; i < EXPAR_DEV_GDA_REQUEST_BLOCKS; i++)
        if (i < count) expar_dev_gda_store_block(&queue->blocks[(index + i) & (queue->depth - 1)], &blocks[i]);
}

/* Tells the device of all blocks before `end`: the record, then the register. */
EXPAR_DEV_FUNC void expar_dev_gda_ring_to(expar_dev_gda_queue *queue, expar_uint64 end)
{
    expar_dev_store_release_32(&queue->record[EXPAR_DEV_GDA_RECORD_SEND], expar_dev_gda_record_word(end));
    EXPAR_DEVICE_DELAY();
    expar_dev_store_register(queue->doorbell, expar_dev_gda_register_word(end, queue->qpn));
    expar_dev_store_release_64(&queue->rings, expar_dev_load_acquire_64(&queue->rings) + 1);
}

/* Rings for all committed blocks, at least for those before `end`. If another thread has raised prod_idx beyond `end`,
   it rings for them. */
EXPAR_DEV_FUNC void expar_dev_gda_ring(expar_dev_gda_queue *queue, expar_uint64 end)
{
    if (queue->ringer == EXPAR_DEV_GDA_RINGER_CPU) {
        expar_dev_gda_raise(&queue->prod_idx, end);
        if (queue->wanted) expar_dev_gda_raise(queue->wanted, end);
        return;
    }
    while (!expar_dev_gda_has_reached(expar_dev_load_acquire_64(&queue->prod_idx), end)) {
        expar_uint64 unlocked = 0;
        if (!expar_dev_gda_swap(&queue->lock, &unlocked, 1)) {
            expar_dev_gda_rest();
            continue;
        }
        EXPAR_DEVICE_DELAY();
        const expar_uint64 ready = expar_dev_load_acquire_64(&queue->ready_head);
        if (!expar_dev_gda_has_reached(expar_dev_load_acquire_64(&queue->prod_idx), ready)) {
            expar_dev_gda_raise(&queue->prod_idx, ready);
            EXPAR_DEVICE_DELAY();
            expar_dev_gda_ring_to(queue, ready);
        }
        expar_dev_store_release_64(&queue->lock, 0);
    }
}

/* The requests in [base, base + blocks) are written. Waits until those before them are, and rings if nobody else will.
   Returns 0 if the queue has failed. */
EXPAR_DEV_ASIDE int expar_dev_gda_commit(const expar_device_handle *h, expar_dev_gda_queue *queue, expar_uint64 base,
                                         expar_uint32 blocks)
{
    const expar_uint64 end = base + blocks;
    expar_uint64 seen = base;
    expar_uint32 turns = 0;
    EXPAR_DEVICE_DELAY();
    expar_dev_gda_release(queue->scope);
    while (!expar_dev_gda_swap(&queue->ready_head, &seen, end)) {
        if (expar_dev_gda_must_end(h, queue, &turns)) return 0;
        seen = base;
    }
    EXPAR_DEVICE_DELAY();
    if (expar_dev_load_acquire_64(&queue->resv_head) == end || ((base ^ end) & ~(expar_uint64)(queue->batch - 1)))
        expar_dev_gda_ring(queue, end);
    return 1;
}

/* Posts one request by itself; *end is the index to poll for. Returns 0 if the queue has failed. */
EXPAR_DEV_ASIDE int expar_dev_gda_post(const expar_device_handle *h, expar_dev_gda_queue *queue,
                                       const expar_dev_gda_request *request, expar_uint64 *end)
{
    const expar_uint32 blocks = expar_dev_gda_blocks_of(request->form);
    expar_dev_gda_request last = *request;
    expar_uint64 base;
    if (!expar_dev_gda_reserve(h, queue, blocks, &base)) return 0;
    last.flags |= EXPAR_DEV_GDA_REPORT;
    expar_dev_gda_write(queue, base, &last);
    *end = base + blocks;
    return expar_dev_gda_commit(h, queue, base, blocks);
}

EXPAR_DEV_FUNC expar_uint64 expar_dev_gda_result_place(const expar_dev_gda_queue *queue, expar_uint64 number)
{
    return 1 + (number & (queue->num_results - 1));
}

/* Returns the address of a slot, as the device knows it. */
EXPAR_DEV_FUNC expar_uint64 expar_dev_gda_result_address(const expar_dev_gda_queue *queue, expar_uint64 number)
{
    return queue->results_address + expar_dev_gda_result_place(queue, number) * 8;
}

/* Takes that many result slots, from *number on, before the requests are reserved. Returns 0 if the queue has failed.
   */
EXPAR_DEV_FUNC int expar_dev_gda_take_results(const expar_device_handle *h, expar_dev_gda_queue *queue,
                                              expar_uint32 count, expar_uint64 *number)
{
    expar_uint32 turns = 0;
    if (expar_dev_gda_error(queue)) return 0;
    *number = expar_dev_add_64(&queue->result_head, count);
    while (!expar_dev_gda_has_reached(expar_dev_load_acquire_64(&queue->result_tail) + queue->num_results,
                                      *number + count))
        if (expar_dev_gda_must_end(h, queue, &turns)) return 0;
    return 1;
}

/* Returns the old word, after the completion of its request. Results of 4 bytes are big-endian, of 8 in host order. */
EXPAR_DEV_FUNC expar_uint64 expar_dev_gda_result(const expar_dev_gda_queue *queue, expar_uint64 number,
                                                 expar_uint32 bytes)
{
    const expar_uint64 *slot = &queue->results[expar_dev_gda_result_place(queue, number)];
    EXPAR_DEVICE_DELAY();
    return bytes == 4 ? expar_dev_gda_be32((expar_uint32)*slot) : *slot;
}

/* Gives slots back, after earlier ones were. Returns 0 if the queue has failed. */
EXPAR_DEV_FUNC int expar_dev_gda_give_results(const expar_device_handle *h, expar_dev_gda_queue *queue,
                                              expar_uint64 number, expar_uint32 count)
{
    expar_uint32 turns = 0;
    while (expar_dev_load_acquire_64(&queue->result_tail) != number)
        if (expar_dev_gda_must_end(h, queue, &turns)) return 0;
    expar_dev_store_release_64(&queue->result_tail, number + count);
    return 1;
}

/* Sets the place for the old word of an atomic that nobody wants. */
EXPAR_DEV_FUNC void expar_dev_gda_to_sink(const expar_dev_gda_queue *queue, expar_dev_gda_request *request)
{
    request->local = queue->results_address;
    request->lkey = queue->results_lkey;
}

/* Posts an atomic, waits for it, and returns its old word in *old. Returns 0 if the queue has failed. */
EXPAR_DEV_FUNC int expar_dev_gda_fetch(const expar_device_handle *h, expar_dev_gda_queue *queue,
                                       expar_dev_gda_request *request, expar_uint64 *old)
{
    expar_uint64 number, end;
    if (!expar_dev_gda_take_results(h, queue, 1, &number)) return 0;
    request->local = expar_dev_gda_result_address(queue, number);
    request->lkey = queue->results_lkey;
    if (!expar_dev_gda_post(h, queue, request, &end) || !expar_dev_gda_poll(h, queue, end)) return 0;
    *old = expar_dev_gda_result(queue, number, expar_dev_gda_word_bytes(request->form));
    return expar_dev_gda_give_results(h, queue, number, 1);
}

/* Call this after the commit of reads; `end` is the end of their submission. */
EXPAR_DEV_FUNC void expar_dev_gda_note_get(expar_dev_gda_queue *queue, expar_uint64 end)
{
    if (queue->flushes) expar_dev_gda_raise(&queue->get_head, end);
}

/* Makes the data of all reads visible that were committed so far. Returns 0 if the queue has failed. */
EXPAR_DEV_FUNC int expar_dev_gda_flush(const expar_device_handle *h, expar_dev_gda_queue *queue)
{
    const expar_uint64 head = expar_dev_load_acquire_64(&queue->get_head);
    expar_dev_gda_request dump = {EXPAR_DEV_GDA_DUMP, EXPAR_DEV_GDA_FENCE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}};
    expar_uint64 end;
    if (expar_dev_gda_has_reached(expar_dev_load_acquire_64(&queue->get_tail), head)) return 1;
    expar_dev_gda_to_sink(queue, &dump);
    if (!expar_dev_gda_post(h, queue, &dump, &end) || !expar_dev_gda_poll(h, queue, end)) return 0;
    expar_dev_gda_raise(&queue->get_tail, head);
    return 1;
}

/* Waits until all requests that were committed so far are complete, and the data of reads is visible. Returns 0 if the
   queue has failed, now or earlier. */
EXPAR_DEV_FUNC int expar_dev_gda_quiet(const expar_device_handle *h, expar_dev_gda_queue *queue)
{
    const expar_uint64 end = expar_dev_load_acquire_64(&queue->ready_head);
    if (queue->flushes && !expar_dev_gda_flush(h, queue)) return 0;
    return expar_dev_gda_poll(h, queue, end) && !expar_dev_gda_error(queue);
}

/* Registered memory of this rank outside its heap. */
typedef struct expar_dev_gda_range {
    expar_uint64 begin, end; /* addresses */
    expar_uint32 lkey;       /* big-endian */
    expar_uint32 unused;
} expar_dev_gda_range;

typedef struct expar_dev_gda_keys {
    /* Address of this rank's heap. */
    expar_uint64 heap;
    /* [num_pes] address of each peer's heap, as its device knows it */
    const expar_uint64 *remotes;
    /* [num_chunks] offset in the heap where each chunk ends, ascending */
    const expar_uint64 *ends;
    /* [num_chunks] big-endian */
    const expar_uint32 *lkeys;
    /* [num_pes][stride] big-endian */
    const expar_uint32 *rkeys;
    /* [num_ranges] by ascending address; they do not overlap */
    const expar_dev_gda_range *ranges;
    expar_uint32 num_ranges;
    expar_uint32 num_pes;
    /* the most chunks that the tables have space for */
    expar_uint32 stride;
    /* All chunks but the last have 1 << shift bytes. 0: the chunk of an offset is found by a search. */
    expar_uint32 shift;
    /* The thread that grows the heap stores it (release) after the entries of the new chunks; threads that post load it
       (acquire). */
    expar_uint64 num_chunks;
} expar_dev_gda_keys;

/* One request's part of a transfer. */
typedef struct expar_dev_gda_piece {
    expar_uint64 remote, local;
    expar_uint32 rkey, lkey; /* big-endian */
    expar_uint32 bytes;
} expar_dev_gda_piece;

/* Returns the chunk of the offset; num_chunks if it is beyond the last one. */
EXPAR_DEV_FUNC expar_uint32 expar_dev_gda_chunk_of(const expar_dev_gda_keys *keys, expar_uint64 offset)
{
    const expar_uint32 count = (expar_uint32)expar_dev_load_acquire_64(&keys->num_chunks);
    expar_uint32 low = 0, high = count;
    if (keys->shift) {
        const expar_uint64 chunk = offset >> keys->shift;
        return chunk < count && offset < keys->ends[chunk] ? (expar_uint32)chunk : count;
    }
    while (low < high) {
        const expar_uint32 middle = low + (high - low) / 2;
        if (offset < keys->ends[middle])
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Finds the lkey of a local address, and how many bytes from there on have it. Returns 0 if the address is not
   registered. */
EXPAR_DEV_FUNC int expar_dev_gda_find_local(const expar_dev_gda_keys *keys, expar_uint64 address, expar_uint32 *lkey,
                                            expar_uint64 *bytes)
{
    const expar_uint64 offset = address - keys->heap;
    const expar_uint32 chunk = address >= keys->heap ? expar_dev_gda_chunk_of(keys, offset) : 0;
    expar_uint32 low = 0, high = keys->num_ranges;
    if (address >= keys->heap && chunk < (expar_uint32)expar_dev_load_acquire_64(&keys->num_chunks)) {
        *lkey = keys->lkeys[chunk];
        *bytes = keys->ends[chunk] - offset;
        return 1;
    }
    while (low < high) {
        const expar_uint32 middle = low + (high - low) / 2;
        if (address < keys->ranges[middle].end)
            high = middle;
        else
            low = middle + 1;
    }
    if (low == keys->num_ranges || address < keys->ranges[low].begin) return 0;
    *lkey = keys->ranges[low].lkey;
    *bytes = keys->ranges[low].end - address;
    return 1;
}

/* Finds the address and the rkey of an offset in pe's heap, and how many bytes from there on have it. Returns 0 if the
   offset or the PE is out of bounds. */
EXPAR_DEV_FUNC int expar_dev_gda_find_remote(const expar_dev_gda_keys *keys, expar_int32 pe, expar_uint64 offset,
                                             expar_dev_gda_piece *piece, expar_uint64 *bytes)
{
    const expar_uint32 chunk = expar_dev_gda_chunk_of(keys, offset);
    if (pe < 0 || (expar_uint32)pe >= keys->num_pes ||
        chunk >= (expar_uint32)expar_dev_load_acquire_64(&keys->num_chunks))
        return 0;
    piece->remote = keys->remotes[pe] + offset;
    piece->rkey = keys->rkeys[(expar_uint64)(expar_uint32)pe * keys->stride + chunk];
    *bytes = keys->ends[chunk] - offset;
    return 1;
}

/* Cuts the first piece off a transfer of `bytes` bytes, at least 1. Returns 0 if an end is not registered. */
EXPAR_DEV_FUNC int expar_dev_gda_cut(const expar_dev_gda_keys *keys, expar_int32 pe, expar_uint64 offset,
                                     expar_uint64 address, expar_uint64 bytes, expar_dev_gda_piece *piece)
{
    expar_uint64 here, there;
    if (!expar_dev_gda_find_local(keys, address, &piece->lkey, &here)) return 0;
    if (!expar_dev_gda_find_remote(keys, pe, offset, piece, &there)) return 0;
    if (bytes > here) bytes = here;
    if (bytes > there) bytes = there;
    if (bytes > EXPAR_DEV_GDA_MOST_BYTES) bytes = EXPAR_DEV_GDA_MOST_BYTES;
    piece->local = address;
    piece->bytes = (expar_uint32)bytes;
    return 1;
}

/* Returns the number of pieces of a transfer; 0 if some part is not registered, or there are no bytes. */
EXPAR_DEV_FUNC expar_uint32 expar_dev_gda_count_pieces(const expar_dev_gda_keys *keys, expar_int32 pe,
                                                       expar_uint64 offset, expar_uint64 address, expar_uint64 bytes)
{
    expar_dev_gda_piece piece;
    expar_uint32 count = 0;
    for (; bytes; count++) {
        if (!expar_dev_gda_cut(keys, pe, offset, address, bytes, &piece)) return 0;
        offset += piece.bytes;
        address += piece.bytes;
        bytes -= piece.bytes;
    }
    return count;
}

/* The part of a transfer that is not posted yet. */
typedef struct expar_dev_gda_walk {
    expar_uint64 offset, address, bytes;
} expar_dev_gda_walk;

/* The next submission of a transfer. */
typedef struct expar_dev_gda_submission {
    expar_uint32 pieces, blocks;
    int is_last;
    expar_uint32 last_flags; /* of its last piece */
} expar_dev_gda_submission;

/* A submission has at most queue->most blocks. The signal, if there is one, is in the last one. */
EXPAR_DEV_FUNC expar_dev_gda_submission expar_dev_gda_next_submission(const expar_dev_gda_queue *queue,
                                                                      expar_uint32 left,
                                                                      const expar_dev_gda_request *signal)
{
    const expar_uint32 extra = signal ? expar_dev_gda_blocks_of(signal->form) : 0;
    expar_dev_gda_submission next;
    next.is_last = left + extra <= queue->most;
    next.pieces = next.is_last || left < queue->most ? left : queue->most;
    next.blocks = next.pieces + (next.is_last ? extra : 0);
    next.last_flags = next.is_last && signal ? 0 : EXPAR_DEV_GDA_REPORT;
    return next;
}

/* Writes every `lanes`-th request of a submission's pieces, from `lane` on, at index `base`, and walks over all. */
EXPAR_DEV_FUNC void expar_dev_gda_write_pieces(expar_dev_gda_queue *queue, const expar_dev_gda_keys *keys,
                                               expar_dev_gda_form form, expar_uint64 base,
                                               const expar_dev_gda_submission *submission, expar_dev_gda_walk *walk,
                                               expar_uint32 lane, expar_uint32 lanes)
{
    for (expar_uint32 i = 0; i < submission->pieces; i++) {
        expar_dev_gda_piece piece;
        expar_dev_gda_request request = {form, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}};
        if (!expar_dev_gda_cut(keys, queue->pe, walk->offset, walk->address, walk->bytes, &piece)) return;
        request.flags = i + 1 == submission->pieces ? submission->last_flags : 0;
        request.remote = piece.remote;
        request.local = piece.local;
        request.rkey = piece.rkey;
        request.lkey = piece.lkey;
        request.bytes = piece.bytes;
        if (i % lanes == lane) expar_dev_gda_write(queue, base + i, &request);
        walk->offset += piece.bytes;
        walk->address += piece.bytes;
        walk->bytes -= piece.bytes;
    }
}

/* Writes the request that asks for the CQE of a submission. */
EXPAR_DEV_FUNC void expar_dev_gda_write_last(expar_dev_gda_queue *queue, expar_uint64 index,
                                             const expar_dev_gda_request *request)
{
    expar_dev_gda_request last = *request;
    last.flags |= EXPAR_DEV_GDA_REPORT;
    expar_dev_gda_write(queue, index, &last);
}

/* Posts a put (EXPAR_DEV_GDA_WRITE) or a get (EXPAR_DEV_GDA_READ) between this rank's address and the offset in the
   peer's heap. A submission has at most queue->most blocks. *end is set to the index to poll for, if anything was
   posted. A `signal` that is not NULL is one more request, in the last submission after the data. The caller has filled
   it but for EXPAR_DEV_GDA_REPORT. Returns 0 if memory is not registered, or the queue has failed. */
EXPAR_DEV_ASIDE int expar_dev_gda_transfer(const expar_device_handle *h, expar_dev_gda_queue *queue,
                                           const expar_dev_gda_keys *keys, expar_dev_gda_form form, expar_uint64 offset,
                                           expar_uint64 address, expar_uint64 bytes,
                                           const expar_dev_gda_request *signal, expar_uint64 *end)
{
    expar_uint32 left = expar_dev_gda_count_pieces(keys, queue->pe, offset, address, bytes);
    const int reads = form == EXPAR_DEV_GDA_READ && bytes;
    expar_dev_gda_walk walk = {offset, address, bytes};
    if (bytes && !left) return 0;
    while (left || signal) {
        const expar_dev_gda_submission next = expar_dev_gda_next_submission(queue, left, signal);
        expar_uint64 base;
        if (!expar_dev_gda_reserve(h, queue, next.blocks, &base)) return 0;
        expar_dev_gda_write_pieces(queue, keys, form, base, &next, &walk, 0, 1);
        if (next.is_last && signal) expar_dev_gda_write_last(queue, base + next.pieces, signal);
        if (!expar_dev_gda_commit(h, queue, base, next.blocks)) return 0;
        *end = base + next.blocks;
        left -= next.pieces;
        if (next.is_last) break;
    }
    if (reads) expar_dev_gda_note_get(queue, *end);
    return 1;
}

/* The atomics, in the order of transport_atomic_op. */
typedef enum expar_dev_gda_op {
    EXPAR_DEV_GDA_OP_FETCH,
    EXPAR_DEV_GDA_OP_SET,
    EXPAR_DEV_GDA_OP_SWAP,
    EXPAR_DEV_GDA_OP_COMPARE_SWAP,
    EXPAR_DEV_GDA_OP_ADD,
    EXPAR_DEV_GDA_OP_AND,
    EXPAR_DEV_GDA_OP_OR,
    EXPAR_DEV_GDA_OP_XOR
} expar_dev_gda_op;

/* Fills form and operands for an atomic on a word of 4 or 8 bytes. Each one is a single masked atomic. The request was
   all zero. */
EXPAR_DEV_FUNC void expar_dev_gda_fill_atomic(expar_dev_gda_request *r, expar_uint32 op, expar_uint32 bytes,
                                              expar_uint64 operand, expar_uint64 compare)
{
    const int wide = bytes == 8;
    const expar_uint64 all = wide ? ~(expar_uint64)0 : 0xffffffffu;
    r->form = wide ? EXPAR_DEV_GDA_SWAP_MASKED_64 : EXPAR_DEV_GDA_SWAP_MASKED_32;
    r->operand = operand;
    r->swap_mask = all;
    r->compare_mask = 0;
    switch (op) {
    case EXPAR_DEV_GDA_OP_COMPARE_SWAP:
        r->compare = compare;
        r->compare_mask = all;
        if (wide) r->form = EXPAR_DEV_GDA_COMPARE_SWAP_64;
        break;
    case EXPAR_DEV_GDA_OP_AND:
        r->swap_mask = ~operand & all;
        break;
    case EXPAR_DEV_GDA_OP_OR:
        r->swap_mask = operand & all;
        break;
    case EXPAR_DEV_GDA_OP_XOR:
        r->form = wide ? EXPAR_DEV_GDA_ADD_MASKED_64 : EXPAR_DEV_GDA_ADD_MASKED_32;
        r->compare_mask = all;
        break;
    case EXPAR_DEV_GDA_OP_FETCH:
        r->operand = 0;
        r->form = wide ? EXPAR_DEV_GDA_ADD_64 : EXPAR_DEV_GDA_ADD_MASKED_32;
        break;
    case EXPAR_DEV_GDA_OP_ADD:
        r->form = wide ? EXPAR_DEV_GDA_ADD_64 : EXPAR_DEV_GDA_ADD_MASKED_32;
        break;
    default: /* set, swap */
        break;
    }
}

/* Fills a write of at most EXPAR_DEV_GDA_MOST_INLINE bytes, which travel inside the request. */
EXPAR_DEV_FUNC void expar_dev_gda_fill_inline(expar_dev_gda_request *r, const void *source, expar_uint32 bytes)
{
    const expar_uint8 *from = (const expar_uint8 *)source;
    r->form = EXPAR_DEV_GDA_WRITE_INLINE;
    r->bytes = bytes;
    for (expar_uint32 i = 0; i < bytes; i++)
        r->data[i / 4] |= (expar_uint32)from[i] << 8 * (i % 4);
}

/* Aims a request at an offset in pe's memory, of which it needs so many bytes. Returns 0 if they have no common key. */
EXPAR_DEV_FUNC int expar_dev_gda_aim(const expar_dev_gda_keys *keys, expar_int32 pe, expar_uint64 offset,
                                     expar_uint64 bytes, expar_dev_gda_request *r)
{
    expar_dev_gda_piece piece;
    expar_uint64 there;
    if (!expar_dev_gda_find_remote(keys, pe, offset, &piece, &there) || there < bytes) return 0;
    r->remote = piece.remote;
    r->rkey = piece.rkey;
    return 1;
}

/* Memory of the caller that it has registered. The host writes `end` (release) after the others, and 0 there first to
   forget the memory. Kernels load it (acquire) before and after the others. */
typedef struct expar_dev_gda_known {
    expar_uint64 begin, end; /* addresses; end 0: the entry is empty */
    expar_uint64 lkey;       /* big-endian */
} expar_dev_gda_known;
/* The most ranges of which kernels know. */
#define EXPAR_DEV_GDA_KNOWN 64u

typedef struct expar_dev_gda_view {
    expar_dev_gda_queue *queues;      /* [num_pes][per_peer]; queue 0 of a PE serves all whose order matters */
    const expar_dev_gda_keys *keys;   /* by transport_memory; without chunks if kernels do not reach that memory */
    const expar_dev_gda_known *known; /* [EXPAR_DEV_GDA_KNOWN], in no order */
    expar_uint32 num_pes, per_peer;
    /* 1: the network may deliver writes of a queue in another order. Then an atomic tells that the data has come, and a
       fence waits. */
    expar_uint32 reorders;
} expar_dev_gda_view;

/* Returns a queue to the PE. Order is promised within a queue only. */
EXPAR_DEV_FUNC expar_dev_gda_queue *expar_dev_gda_queue_to(const expar_dev_gda_view *view, expar_uint32 pe,
                                                           expar_uint32 number)
{
    return &view->queues[(expar_uint64)pe * view->per_peer + number % view->per_peer];
}

/* Finds the registered range in which [address, address + bytes) lies. Returns 0 if there is none. */
EXPAR_DEV_FUNC int expar_dev_gda_find_known(const expar_dev_gda_view *view, expar_uint64 address, expar_uint64 bytes,
                                            expar_dev_gda_range *range)
{
    for (expar_uint32 i = 0; i < EXPAR_DEV_GDA_KNOWN; i++) {
        const expar_dev_gda_known *known = &view->known[i];
        const expar_uint64 end = expar_dev_load_acquire_64(&known->end),
                           begin = expar_dev_load_acquire_64(&known->begin);
        if (address < begin || address >= end || bytes > end - address) continue;
        range->begin = begin;
        range->end = end;
        range->lkey = (expar_uint32)expar_dev_load_acquire_64(&known->lkey);
        return expar_dev_load_acquire_64(&known->end) == end;
    }
    return 0;
}

/* ---- the copy of src/net/gda ends -------------------------------------------------------------------------------- */

/* The queue has failed, the host has given it up, or the host has stopped. The last one ends the queue for all. */
EXPAR_DEV_FUNC int expar_dev_gda_must_end(const expar_device_handle *h, struct expar_dev_gda_queue *queue,
                                          expar_uint32 *turns)
{
    if (expar_dev_gda_error(queue)) return 1;
    if (++*turns % EXPAR_DEV_GDA_POLLS_A_LOOK == 0) {
        expar_uint64 failure = queue->stop ? expar_dev_load_acquire_64(queue->stop) : 0;
        const expar_uint64 now = expar_dev_clock_ns();
        expar_dev_watch(h, now);
        if (!failure && expar_dev_host_is_gone(h, now))
            failure = expar_dev_gda_failure(EXPAR_DEV_GDA_FAILED_BY_HOST, 0, 0, 0);
        if (failure) expar_dev_gda_remember(queue, failure);
        if (failure) return 1;
    }
    expar_dev_gda_rest();
    return 0;
}

/* Returns the queue to a rank. Blocks share the queues. The words of barriers must not overtake each other, so they
   take the first one. */
EXPAR_DEV_FUNC expar_dev_gda_queue *expar_dev_gda_choose(const expar_dev_gda_view *view, int rank, int operation)
{
    const expar_uint32 number = operation == EXPAR_DEV_SYNC ? 0 : expar_dev_block_number();
    return expar_dev_gda_queue_to(view, (expar_uint32)rank, number);
}

/* The queue has failed, or memory is not registered. */
EXPAR_DEV_FUNC int expar_dev_gda_failed(const expar_device_handle *h, const expar_dev_gda_queue *queue,
                                        const expar_dev_fault *fault)
{
    expar_dev_fault told = *fault;
    int status = EXPAR_ERR_PEER;
    told.failure = expar_dev_gda_error(queue);
    if (!told.failure) status = EXPAR_ERR_ADDRESS;
    if (expar_dev_gda_failure_by(told.failure) == EXPAR_DEV_GDA_FAILED_BY_HOST) {
        if (expar_dev_load_acquire_64(&h->report->orders) & EXPAR_DEV_ABORT)
            status = (int)expar_dev_load_32(&h->report->ending);
        else if (expar_dev_host_is_gone(h, expar_dev_clock_ns()))
            status = EXPAR_ERR_STATE;
    }
    return expar_dev_fail(h, status, &told);
}

/* A command that becomes requests. */
typedef struct expar_dev_gda_work {
    int kind, job, rank;
    expar_uint32 op; /* of atomics and signals */
    int is_word;     /* it carries, changes or fetches a word, and has no memory of the caller */
    int is_small;    /* its data travels inside the request */
    const expar_dev_gda_keys *keys, *signal_keys;
    expar_uint64 offset, local, bytes, operand, other;
    int number_of_requests;
    expar_dev_gda_request requests[2]; /* small data or a word, and a signal */
    expar_uint64 result;               /* number of the result slot, for EXPAR_DEV_JOB_FETCH */
    /* memory of the caller outside the heap, and the keys with it */
    expar_dev_gda_range range;
    expar_dev_gda_keys with_range;
} expar_dev_gda_work;

/* Returns the next request, all zero. */
EXPAR_DEV_FUNC expar_dev_gda_request *expar_dev_gda_next(expar_dev_gda_work *work)
{
    expar_dev_gda_request *r = &work->requests[work->number_of_requests++];
    const expar_dev_gda_request none = {EXPAR_DEV_GDA_NOP, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}};
    *r = none;
    return r;
}

/* Where setting a signal is a write, the write comes after the data. */
EXPAR_DEV_ASIDE int expar_dev_gda_add_signal(const expar_dev_gda_view *view, const expar_dev_gda_queue *queue,
                                             expar_dev_gda_work *work)
{
    expar_dev_gda_request *r = expar_dev_gda_next(work);
    if (work->op == EXPAR_DEV_SET && !view->reorders) {
        expar_dev_gda_fill_inline(r, &work->operand, 8);
    } else {
        expar_dev_gda_fill_atomic(r, work->op, 8, work->operand, 0);
        expar_dev_gda_to_sink(queue, r);
    }
    return expar_dev_gda_aim(work->signal_keys, work->rank, work->other, 8, r);
}

/* A word that a request carries, changes or fetches. */
EXPAR_DEV_ASIDE int expar_dev_gda_add_word(const expar_device_handle *h, expar_dev_gda_queue *queue,
                                           expar_dev_gda_work *work)
{
    expar_dev_gda_request *r = expar_dev_gda_next(work);
    if (work->kind == EXPAR_DEV_RING_P) {
        expar_dev_gda_fill_inline(r, &work->operand, (expar_uint32)work->bytes);
    } else if (work->kind == EXPAR_DEV_RING_GET) {
        r->form = EXPAR_DEV_GDA_READ;
        r->bytes = (expar_uint32)work->bytes;
    } else {
        expar_dev_gda_fill_atomic(r, work->op, (expar_uint32)work->bytes, work->operand, work->other);
        expar_dev_gda_to_sink(queue, r);
    }
    if (!expar_dev_gda_aim(work->keys, work->rank, work->offset, work->bytes, r)) return 0;
    if (work->job != EXPAR_DEV_JOB_FETCH) return 1;
    if (!expar_dev_gda_take_results(h, queue, 1, &work->result)) return 0;
    r->local = expar_dev_gda_result_address(queue, work->result);
    r->lkey = queue->results_lkey;
    return 1;
}

/* Data that travels inside a request. */
EXPAR_DEV_ASIDE void expar_dev_gda_add_small(expar_dev_gda_work *work)
{
    if (work->kind == EXPAR_DEV_RING_GET || work->bytes == 0 || work->bytes > EXPAR_DEV_GDA_MOST_INLINE) return;
    expar_dev_gda_request *r = expar_dev_gda_next(work);
    work->is_small = expar_dev_gda_aim(work->keys, work->rank, work->offset, work->bytes, r);
    if (work->is_small)
        expar_dev_gda_fill_inline(r, (const void *)work->local, (expar_uint32)work->bytes);
    else
        work->number_of_requests--;
}

/* Waits for what the caller needs, and returns its word. *good is 0 if the queue has failed. */
EXPAR_DEV_ASIDE expar_uint64 expar_dev_gda_finish(const expar_device_handle *h, expar_dev_gda_queue *queue,
                                                  const expar_dev_gda_work *work, expar_uint64 end, int *good)
{
    const int reads = work->kind == EXPAR_DEV_RING_GET, fetches = work->job == EXPAR_DEV_JOB_FETCH;
    expar_uint64 word = 0;
    if (reads) expar_dev_gda_note_get(queue, end);
    if (work->job == EXPAR_DEV_JOB_SEND) return 0;
    *good = expar_dev_gda_poll(h, queue, end) && (!reads || !queue->flushes || expar_dev_gda_flush(h, queue));
    if (!*good || !fetches) return 0;
    /* The device delivers bytes that it has read as they are. */
    word = expar_dev_gda_result(queue, work->result, reads ? 8 : (expar_uint32)work->bytes);
    *good = expar_dev_gda_give_results(h, queue, work->result, 1);
    return word;
}

/* Posts data, word or signal. Returns the word that is fetched, else 0. */
EXPAR_DEV_FUNC expar_uint64 expar_dev_gda_carry(const expar_device_handle *h, const expar_dev_gda_view *view,
                                                expar_dev_gda_queue *queue, expar_dev_gda_work *work, int *good)
{
    const int signals = work->kind == EXPAR_DEV_RING_PUT_SIGNAL, moves = !work->is_word && !work->is_small;
    const expar_dev_gda_form form = work->kind == EXPAR_DEV_RING_GET ? EXPAR_DEV_GDA_READ : EXPAR_DEV_GDA_WRITE;
    expar_uint64 end = 0;
    *good = !work->is_word || expar_dev_gda_add_word(h, queue, work);
    if (*good && signals) *good = expar_dev_gda_add_signal(view, queue, work);
    if (*good && moves)
        *good = expar_dev_gda_transfer(h, queue, work->keys, form, work->offset, work->local, work->bytes,
                                       signals ? work->requests : 0, &end);
    for (int i = 0; i < work->number_of_requests && !moves && *good; i++)
        *good = expar_dev_gda_post(h, queue, &work->requests[i], &end);
    if (!*good) return 0;
    /* The source of data inside a request may be reused. */
    if (work->is_small) work->job = EXPAR_DEV_JOB_SEND;
    return expar_dev_gda_finish(h, queue, work, end, good);
}

/* Requests name memory of the caller that lies in the heap of that kind, or that the host has registered. Returns 1
   with its address for the device, and with keys that have the registered range. */
EXPAR_DEV_ASIDE int expar_dev_gda_knows(const expar_device_handle *h, const expar_dev_gda_view *view, int memory,
                                        expar_dev_gda_work *work)
{
    const int kind = memory == 0 ? EXPAR_DEV_HOST : EXPAR_DEV_PINNED;
    expar_uint64 offset = 0;
    expar_dev_kind_facts facts;
    if (work->bytes == 0) return 1;
    expar_dev_read_kind(h, kind, h->rank, &facts);
    if (expar_dev_lies_in(&facts, (const void *)work->local, (expar_size)work->bytes, &offset)) {
        work->local = work->keys->heap + offset;
        return 1;
    }
    if (!expar_dev_gda_find_known(view, work->local, work->bytes, &work->range)) return 0;
    work->with_range = *work->keys;
    work->with_range.ranges = &work->range;
    work->with_range.num_ranges = 1;
    work->keys = &work->with_range;
    return 1;
}

/* A device may serve requests to a rank that is lost, so threads that have waited look at the host's orders, too. */
EXPAR_DEV_FUNC int expar_dev_gda_look_after(const expar_device_handle *h, const expar_dev_fault *fault)
{
    expar_dev_waiting waiting = {0, 0, EXPAR_DEV_AWAITS_NONE, 0};
    return expar_dev_look(h, &waiting, fault);
}
EXPAR_DEV_FUNC int expar_dev_gda_run_quiet(const expar_device_handle *h, const expar_dev_gda_view *view, int rank,
                                           const expar_dev_fault *fault)
{
    for (expar_uint32 i = 0; i < view->per_peer; i++) {
        expar_dev_gda_queue *queue = expar_dev_gda_queue_to(view, (expar_uint32)rank, i);
        if (!expar_dev_gda_quiet(h, queue)) return expar_dev_gda_failed(h, queue, fault);
    }
    return expar_dev_gda_look_after(h, fault);
}

/* Does a job by a queue. Arguments and result are those of expar_dev_far, but EXPAR_DEV_JOB_QUIET waits for all queues
   to the rank. */
EXPAR_DEV_ASIDE expar_uint64 expar_dev_far_by_queue(expar_dev_state *state, expar_uint64 tag, expar_uint64 place,
                                                    expar_uint64 form, expar_uint64 offset, expar_uint64 local,
                                                    expar_uint64 bytes, expar_uint64 operand, expar_uint64 other)
{
    const expar_device_handle h = expar_dev_handle_of(state, tag);
    const expar_dev_gda_view *view = (const expar_dev_gda_view *)state->queues;
    const int memory = (int)(form >> 16 & 0x7f);
    expar_dev_fault fault = expar_dev_fault_in(tag, place, offset);
    expar_dev_gda_work work;
    int good = 1;
    work.kind = (int)(form & 0xff);
    work.job = (int)(form >> 32);
    work.rank = (int)(expar_uint32)place;
    if (work.job == EXPAR_DEV_JOB_QUIET) return (expar_uint64)expar_dev_gda_run_quiet(&h, view, work.rank, &fault);
    work.op = (expar_uint32)(form >> 8 & 0xff);
    work.keys = &view->keys[memory];
    work.signal_keys = &view->keys[form >> 24 & 0xff];
    work.offset = offset;
    work.local = local;
    work.bytes = bytes;
    work.operand = operand;
    work.other = other;
    work.number_of_requests = 0;
    work.is_small = 0;
    work.is_word =
        work.kind == EXPAR_DEV_RING_P || work.kind == EXPAR_DEV_RING_ATOMIC || work.job == EXPAR_DEV_JOB_FETCH;
    if (!work.is_word) expar_dev_gda_add_small(&work);
    if (!work.is_word && !work.is_small && !expar_dev_gda_knows(&h, view, memory, &work)) {
        if (state->rings) return expar_dev_far(state, tag, place, form, offset, local, bytes, operand, other);
        fault.failure = EXPAR_DEV_UNKNOWN_LOCAL;
        fault.seen = local;
        return (expar_uint64)expar_dev_fail(&h, EXPAR_ERR_ADDRESS, &fault);
    }
    expar_uint32 *const used = (expar_uint32 *)state->used + work.rank;
    if (!expar_dev_load_32(used)) expar_dev_store_32(used, 1);
    expar_dev_gda_queue *queue = expar_dev_gda_choose(view, work.rank, fault.operation);
    const expar_uint64 word = expar_dev_gda_carry(&h, view, queue, &work, &good);
    int status = EXPAR_OK;
    if (!good)
        status = expar_dev_gda_failed(&h, queue, &fault);
    else if (work.job != EXPAR_DEV_JOB_SEND)
        status = expar_dev_gda_look_after(&h, &fault);
    if (status == EXPAR_OK) return word;
    return work.job == EXPAR_DEV_JOB_FETCH ? 0 : (expar_uint64)status;
}

#endif

/* ---- commands ---------------------------------------------------------------------------------------------------- */

/* A command, before it is issued. */
typedef struct expar_dev_form {
    int kind, op;
    int finds; /* the program gave `local` */
    const void *local;
    expar_uint64 bytes, operand, compare;
    const expar_dev_aim *signal; /* NULL: there is none */
} expar_dev_form;
EXPAR_DEV_FUNC expar_dev_form expar_dev_form_of(int kind, const void *local, expar_size bytes)
{
    expar_dev_form form;
    form.kind = kind;
    form.op = form.finds = 0;
    form.local = local;
    form.bytes = bytes;
    form.operand = form.compare = 0;
    form.signal = 0;
    return form;
}
/* The host numbers its kinds of memory host, pinned, device. */
EXPAR_DEV_FUNC expar_uint32 expar_dev_memory_of(int kind)
{
    return kind == EXPAR_DEV_HOST ? 0 : kind == EXPAR_DEV_PINNED ? 1 : 2;
}
EXPAR_DEV_FUNC expar_uint64 expar_dev_send(const expar_device_handle *h, int operation, int job,
                                           const expar_dev_aim *aim, const expar_dev_form *form)
{
    const expar_uint64 signal_memory = form->signal ? expar_dev_memory_of(form->signal->kind) : 0;
    const int finds = form->finds && EXPAR_DEV_MAIN_KIND == EXPAR_DEV_DEVICE;
    const expar_uint64 memory = expar_dev_memory_of(aim->kind) | (finds ? EXPAR_DEV_RING_FIND_LOCAL : 0u);
    const expar_uint64 place = (expar_uint64)(expar_uint32)aim->pe << 32;
    const expar_uint64 bits = (expar_uint64)form->kind | (expar_uint64)form->op << 8 | memory << 16 |
                              signal_memory << 24 | (expar_uint64)job << 32;
    const expar_uint64 tag = EXPAR_DEV_TAG(h->mark >> 32, operation, h->number);
    const expar_uint64 other = form->signal ? form->signal->offset : form->compare;
#if EXPAR_DEVICE_GDA
    if (aim->by == EXPAR_DEV_WAY_GDA)
        return expar_dev_far_by_queue(h->state, tag, place | (expar_uint32)aim->rank, bits, aim->offset,
                                      (expar_uint64)form->local, form->bytes, form->operand, other);
#endif
    return expar_dev_far(h->state, tag, place | (expar_uint32)aim->rank, bits, aim->offset, (expar_uint64)form->local,
                         form->bytes, form->operand, other);
}

/* The first job that fails ends these. */
EXPAR_DEV_FUNC int expar_dev_quiet_rings(const expar_device_handle *h, int operation)
{
    int status = EXPAR_OK;
    expar_dev_aim aim = expar_dev_aim_nowhere();
    const expar_dev_form none = expar_dev_form_of(0, 0, 0);
    aim.pe = -1;
    for (expar_uint32 i = 0; i < h->state->rings && status == EXPAR_OK; i++) {
        aim.rank = (int)i;
        status = (int)expar_dev_send(h, operation, EXPAR_DEV_JOB_QUIET, &aim, &none);
    }
    return status;
}
/* The same for queues to PEs to which kernels have written requests. */
EXPAR_DEV_FUNC int expar_dev_quiet_queues(const expar_device_handle *h, int operation)
{
    int status = EXPAR_OK;
    expar_dev_aim aim = expar_dev_aim_nowhere();
    const expar_dev_form none = expar_dev_form_of(0, 0, 0);
    aim.by = EXPAR_DEV_WAY_GDA;
    for (aim.pe = 0; EXPAR_DEVICE_GDA && aim.pe < h->size && status == EXPAR_OK; aim.pe++) {
        aim.rank = expar_dev_rank_of(h, aim.pe);
        if (!expar_dev_load_32((const expar_uint32 *)h->state->used + aim.rank)) continue;
        status = (int)expar_dev_send(h, operation, EXPAR_DEV_JOB_QUIET, &aim, &none);
    }
    return status;
}
/* Orders the commands of the rank's ring. */
EXPAR_DEV_FUNC int expar_dev_fence_ring(const expar_device_handle *h, int operation, int rank)
{
    expar_dev_aim aim = expar_dev_aim_nowhere();
    const expar_dev_form fence = expar_dev_form_of(EXPAR_DEV_RING_FENCE, 0, 0);
    aim.pe = -1;
    aim.rank = rank;
    return (int)expar_dev_send(h, operation, EXPAR_DEV_JOB_SEND, &aim, &fence);
}
EXPAR_DEV_FUNC void expar_dev_fence_rings(const expar_device_handle *h)
{
    int status = EXPAR_OK;
    for (expar_uint32 i = 0; i < h->state->rings && status == EXPAR_OK; i++) {
        const expar_dev_port *port = expar_dev_port_of(h, (int)i);
        if (expar_dev_is_before(expar_dev_load_64(&port->done), expar_dev_load_acquire_64(&port->head) << 1))
            status = expar_dev_fence_ring(h, EXPAR_DEV_FENCE, (int)i);
    }
}

/* Completes what rings and queues carry. */
EXPAR_DEV_FUNC int expar_dev_quiet_all(const expar_device_handle *h, int operation)
{
    const int status = h->state->rings ? expar_dev_quiet_rings(h, operation) : (int)EXPAR_OK;
    if (status != EXPAR_OK || !expar_dev_load_64(&h->state->queues)) return status;
    return expar_dev_quiet_queues(h, operation);
}
/* Orders it. Commands are ordered with each other, and so are requests of a queue. What goes several ways is not. */
EXPAR_DEV_FUNC void expar_dev_fence_all(const expar_device_handle *h)
{
    if (expar_dev_load_32(&h->state->is_mixed))
        expar_dev_quiet_all(h, EXPAR_DEV_FENCE);
    else if (h->state->rings > 0)
        expar_dev_fence_rings(h);
}

/* ---- put and get ------------------------------------------------------------------------------------------------- */

/* `count` elements of `width` bytes. A product that does not fit is beyond every heap. */
EXPAR_DEV_FUNC expar_size expar_dev_bytes_of(expar_size count, expar_size width)
{
    return count > ~(expar_size)0 / width ? ~(expar_size)0 : count * width;
}

/* By a ring or a queue, by one thread. */
EXPAR_DEV_FUNC int expar_dev_move_far(const expar_device_handle *h, int operation, int kind, const expar_dev_aim *aim,
                                      const void *local, expar_size bytes, int waits)
{
    expar_dev_form move = expar_dev_form_of(kind, local, bytes);
    move.finds = 1;
    return (int)expar_dev_send(h, operation, waits ? EXPAR_DEV_JOB_AWAIT : EXPAR_DEV_JOB_SEND, aim, &move);
}

EXPAR_DEV_FUNC void expar_dev_put(const expar_device_handle *h, void *dest, const void *source, expar_size count,
                                  expar_size width, int pe, int scope, int waits)
{
    expar_dev_aim aim;
    const expar_size bytes = expar_dev_bytes_of(count, width);
    const expar_dev_place place = expar_dev_place_in(scope);
    expar_dev_meet(scope);
    if (expar_dev_aim_at(h, EXPAR_DEV_PUT, dest, bytes, width, pe, &aim)) {
        if (aim.by == EXPAR_DEV_WAY_MAPPED)
            expar_dev_copy((void *)aim.at, source, bytes, place, 0);
        else if (place.index == 0)
            expar_dev_move_far(h, EXPAR_DEV_PUT, EXPAR_DEV_RING_PUT, &aim, source, bytes, waits);
    }
    expar_dev_meet(scope);
}

EXPAR_DEV_FUNC void expar_dev_get(const expar_device_handle *h, void *dest, const void *source, expar_size count,
                                  expar_size width, int pe, int scope, int waits)
{
    expar_dev_aim aim;
    const expar_size bytes = expar_dev_bytes_of(count, width);
    const expar_dev_place place = expar_dev_place_in(scope);
    expar_dev_meet(scope);
    if (expar_dev_aim_at(h, EXPAR_DEV_GET, source, bytes, width, pe, &aim)) {
        if (aim.by == EXPAR_DEV_WAY_MAPPED)
            expar_dev_copy(dest, (const void *)aim.at, bytes, place, 1);
        else if (place.index == 0)
            expar_dev_move_far(h, EXPAR_DEV_GET, EXPAR_DEV_RING_GET, &aim, dest, bytes, waits);
    }
    expar_dev_meet(scope);
}

/* Copies. expar_kernel_put[_SCOPE](h, dest, source, bytes, pe) copies from this rank to pe, and
 * expar_kernel_get[_SCOPE] from pe to this rank. A put returns when `source` may be reused, a get when the data are
 * here. The _nbi forms return when the operation has been started: until quiet, source must not change, and dest must
 * not be read. By mapped memory they do the same as the others. For a PE without it, the other forms wait until the
 * operation has been completed there.
 *
 * expar_kernel_put[_nbi]_S[_SCOPE](h, dest, source, count, pe) is for elements of a type, S one of i8 … u64, f32, f64;
 * likewise get. */
#define EXPAR_DEV_MOVE(move, name, waits, suffix, T, count, width, scope)                                              \
    EXPAR_DEV_FUNC void expar_kernel_##name##suffix(const expar_device_handle *h, T *dest, const T *source,            \
                                                    expar_size count, int pe)                                          \
    {                                                                                                                  \
        expar_dev_##move(h, dest, source, count, width, pe, scope, waits);                                             \
    }
#define EXPAR_DEV_MOVES_BY(move, name, waits, T, count, width)                                                         \
    EXPAR_DEV_MOVE(move, name, waits, , T, count, width, EXPAR_DEV_THREAD)                                             \
    EXPAR_DEV_MOVE(move, name, waits, _warp, T, count, width, EXPAR_DEV_WARP)                                          \
    EXPAR_DEV_MOVE(move, name, waits, _block, T, count, width, EXPAR_DEV_BLOCK)
#define EXPAR_DEV_MOVES(move, name, T, count, width)                                                                   \
    EXPAR_DEV_MOVES_BY(move, move##name, 1, T, count, width)                                                           \
    EXPAR_DEV_MOVES_BY(move, move##_nbi##name, 0, T, count, width)
EXPAR_DEV_MOVES(put, , void, bytes, 1)
EXPAR_DEV_MOVES(get, , void, bytes, 1)
#define EXPAR_DEV_TYPED_MOVES(T, S, W)                                                                                 \
    EXPAR_DEV_MOVES(put, _##S, T, count, sizeof(T))                                                                    \
    EXPAR_DEV_MOVES(get, _##S, T, count, sizeof(T))
EXPAR_DEV_DATA_TYPES(EXPAR_DEV_TYPED_MOVES)

/* An element that the command carries, and one that it fetches. */
EXPAR_DEV_FUNC void expar_dev_p_far(const expar_device_handle *h, const expar_dev_aim *aim, expar_uint64 value,
                                    expar_size bytes)
{
    expar_dev_form p = expar_dev_form_of(EXPAR_DEV_RING_P, 0, bytes);
    p.operand = value;
    expar_dev_send(h, EXPAR_DEV_P, EXPAR_DEV_JOB_SEND, aim, &p);
}
EXPAR_DEV_FUNC expar_uint64 expar_dev_g_far(const expar_device_handle *h, const expar_dev_aim *aim, expar_size bytes)
{
    const expar_dev_form g = expar_dev_form_of(EXPAR_DEV_RING_GET, 0, bytes);
    return expar_dev_send(h, EXPAR_DEV_G, EXPAR_DEV_JOB_FETCH, aim, &g);
}

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
        if (aim.by == EXPAR_DEV_WAY_MAPPED)                                                                            \
            expar_dev_store_##W((expar_dev_u##W *)aim.at, word.bits);                                                  \
        else                                                                                                           \
            expar_dev_p_far(h, &aim, word.bits, sizeof(T));                                                            \
    }                                                                                                                  \
    EXPAR_DEV_FUNC T expar_kernel_g_##S(const expar_device_handle *h, const T *source, int pe)                         \
    {                                                                                                                  \
        expar_dev_aim aim;                                                                                             \
        union {                                                                                                        \
            T value;                                                                                                   \
            expar_dev_u##W bits;                                                                                       \
        } word;                                                                                                        \
        word.bits = 0;                                                                                                 \
        if (!expar_dev_aim_at(h, EXPAR_DEV_G, source, sizeof(T), sizeof(T), pe, &aim)) return word.value;              \
        if (aim.by == EXPAR_DEV_WAY_MAPPED)                                                                            \
            word.bits = expar_dev_load_##W((const expar_dev_u##W *)aim.at);                                            \
        else                                                                                                           \
            word.bits = (expar_dev_u##W)expar_dev_g_far(h, &aim, sizeof(T));                                           \
        return word.value;                                                                                             \
    }
EXPAR_DEV_DATA_TYPES(EXPAR_DEV_SINGLES)

/* ---- signals ----------------------------------------------------------------------------------------------------- */

/* How a put with a signal changes the signal, after the data. */
typedef struct {
    expar_uint64 *signal;
    expar_uint64 value;
    expar_signal_op op;
} expar_dev_update;

/* A put whose data are followed by the change of the signal, which that aim is for. */
EXPAR_DEV_FUNC expar_dev_form expar_dev_signal_form(const void *source, expar_size bytes,
                                                    const expar_dev_update *update, const expar_dev_aim *word)
{
    expar_dev_form form = expar_dev_form_of(EXPAR_DEV_RING_PUT_SIGNAL, source, bytes);
    form.finds = bytes > 0;
    form.op = update->op == EXPAR_SIGNAL_ADD ? EXPAR_DEV_ADD : EXPAR_DEV_SET;
    form.operand = update->value;
    form.signal = word;
    return form;
}
EXPAR_DEV_FUNC void expar_dev_signal(const expar_device_handle *h, int operation, const expar_dev_update *update,
                                     const expar_dev_aim *word)
{
    EXPAR_DEVICE_DELAY();
    if (word->by != EXPAR_DEV_WAY_MAPPED) {
        const expar_dev_form signal = expar_dev_signal_form(0, 0, update, word);
        expar_dev_send(h, operation, EXPAR_DEV_JOB_SEND, word, &signal);
    } else if (update->op == EXPAR_SIGNAL_ADD) {
        expar_dev_add_release_64((expar_uint64 *)word->at, update->value);
    } else {
        expar_dev_store_release_64((expar_uint64 *)word->at, update->value);
    }
}
/* Data that go by a ring or a queue, and then their signal. */
EXPAR_DEV_FUNC void expar_dev_send_signal(const expar_device_handle *h, const expar_dev_aim *data, const void *source,
                                          expar_size bytes, const expar_dev_update *update, const expar_dev_aim *word,
                                          int waits)
{
    const int operation = EXPAR_DEV_PUT_SIGNAL;
    if (word->by != data->by) {
        if (expar_dev_move_far(h, operation, EXPAR_DEV_RING_PUT, data, source, bytes, 1) == EXPAR_OK)
            expar_dev_signal(h, operation, update, word);
        return;
    }
    const expar_dev_form put = expar_dev_signal_form(source, bytes, update, word);
    expar_dev_send(h, operation, waits ? EXPAR_DEV_JOB_AWAIT : EXPAR_DEV_JOB_SEND, data, &put);
}

EXPAR_DEV_FUNC int expar_dev_aim_signal(const expar_device_handle *h, const expar_dev_facts *facts, int operation,
                                        const expar_dev_update *update, int pe, expar_dev_aim *aim)
{
    expar_uint64 *const signal = update->signal;
    const expar_size width = sizeof *signal;
    if (update->op == EXPAR_SIGNAL_ADD) return expar_dev_aim_change(h, facts, operation, signal, width, pe, aim);
    if (update->op == EXPAR_SIGNAL_SET) return expar_dev_aim_data(h, facts, operation, signal, width, width, pe, aim);
    const expar_dev_fault fault = expar_dev_fault_of(operation, pe, (expar_uint64)signal);
    return expar_dev_fail(h, EXPAR_ERR_ARGUMENT, &fault) == EXPAR_OK;
}

EXPAR_DEV_FUNC void expar_dev_put_signal(const expar_device_handle *h, void *dest, const void *source, expar_size count,
                                         expar_size width, const expar_dev_update *update, int pe, int scope, int waits)
{
    const int operation = EXPAR_DEV_PUT_SIGNAL;
    expar_dev_facts facts;
    expar_dev_aim data = expar_dev_aim_nowhere(), word = data;
    const expar_size bytes = expar_dev_bytes_of(count, width);
    const expar_dev_place place = expar_dev_place_in(scope);
    expar_dev_meet(scope);
    int goes = expar_dev_read_pe(h, operation, update->signal, pe, &facts) &&
               expar_dev_aim_signal(h, &facts, operation, update, pe, &word);
    if (goes && bytes > 0) {
        goes = expar_dev_aim_data(h, &facts, operation, dest, bytes, width, pe, &data);
        if (goes && data.by == EXPAR_DEV_WAY_MAPPED) expar_dev_copy((void *)data.at, source, bytes, place, 0);
    }
    /* A thread that found an error has not copied its part. */
    goes = expar_dev_meet_all(scope, goes);
    if (goes && place.index == 0) {
        if (data.by == EXPAR_DEV_WAY_PROXY || data.by == EXPAR_DEV_WAY_GDA)
            expar_dev_send_signal(h, &data, source, bytes, update, &word, waits);
        else
            expar_dev_signal(h, operation, update, &word);
    }
    expar_dev_meet(scope);
}

EXPAR_DEV_FUNC void expar_dev_signal_op(const expar_device_handle *h, expar_uint64 *signal, expar_uint64 value,
                                        expar_signal_op op, int pe, int scope)
{
    const int operation = EXPAR_DEV_SIGNAL_OP;
    expar_dev_facts facts;
    expar_dev_aim word;
    const expar_dev_update update = {signal, value, op};
    expar_dev_meet(scope);
    if (expar_dev_place_in(scope).index == 0 && expar_dev_read_pe(h, operation, signal, pe, &facts) &&
        expar_dev_aim_signal(h, &facts, operation, &update, pe, &word))
        expar_dev_signal(h, operation, &update, &word);
    expar_dev_meet(scope);
}

/* expar_kernel_put_signal[_nbi][_SCOPE](h, dest, source, bytes, signal, value, op, pe) puts, and then sets the 64-bit
 * signal at pe (EXPAR_SIGNAL_SET), or adds to it (EXPAR_SIGNAL_ADD). A thread that has acquired the new signal sees the
 * data of this call; data of earlier calls only if a fence came between. bytes may be 0. Sets and adds of one word must
 * not run at the same time. expar_kernel_put_signal[_nbi]_S[_SCOPE](…, count, …) is for elements of a type.
 * expar_kernel_signal_op[_SCOPE](h, signal, value, op, pe) has no data. */
#define EXPAR_DEV_PUT_SIGNAL_AS(name, waits, suffix, T, count, width, scope)                                           \
    EXPAR_DEV_FUNC void expar_kernel_##name##suffix(const expar_device_handle *h, T *dest, const T *source,            \
                                                    expar_size count, expar_uint64 *signal, expar_uint64 value,        \
                                                    expar_signal_op op, int pe)                                        \
    {                                                                                                                  \
        const expar_dev_update update = {signal, value, op};                                                           \
        expar_dev_put_signal(h, dest, source, count, width, &update, pe, scope, waits);                                \
    }
#define EXPAR_DEV_PUT_SIGNALS_BY(name, waits, T, count, width)                                                         \
    EXPAR_DEV_PUT_SIGNAL_AS(name, waits, , T, count, width, EXPAR_DEV_THREAD)                                          \
    EXPAR_DEV_PUT_SIGNAL_AS(name, waits, _warp, T, count, width, EXPAR_DEV_WARP)                                       \
    EXPAR_DEV_PUT_SIGNAL_AS(name, waits, _block, T, count, width, EXPAR_DEV_BLOCK)
#define EXPAR_DEV_PUT_SIGNALS(name, T, count, width)                                                                   \
    EXPAR_DEV_PUT_SIGNALS_BY(put_signal##name, 1, T, count, width)                                                     \
    EXPAR_DEV_PUT_SIGNALS_BY(put_signal_nbi##name, 0, T, count, width)
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

/* By a ring or a queue. fetches: the former word is wanted; else the result means nothing. */
EXPAR_DEV_FUNC expar_uint64 expar_dev_send_atomic(const expar_device_handle *h, const expar_dev_aim *aim,
                                                  expar_size bytes, int op, expar_uint64 operand, expar_uint64 compare,
                                                  int fetches)
{
    expar_dev_form atomic = expar_dev_form_of(EXPAR_DEV_RING_ATOMIC, 0, bytes);
    atomic.op = op;
    atomic.operand = operand;
    atomic.compare = compare;
    return expar_dev_send(h, EXPAR_DEV_ATOMIC, fetches ? EXPAR_DEV_JOB_FETCH : EXPAR_DEV_JOB_SEND, aim, &atomic);
}

/* Any atomic; returns the former word if it is wanted. op is a constant. */
#define EXPAR_DEV_ATOMIC_BITS(T, W)                                                                                    \
    EXPAR_DEV_FUNC T expar_dev_atomic_##W(const expar_device_handle *h, void *word, int pe, int op, T operand,         \
                                          T compare, int fetches)                                                      \
    {                                                                                                                  \
        expar_dev_aim aim;                                                                                             \
        EXPAR_DEVICE_DELAY();                                                                                          \
        if (!expar_dev_aim_word(h, EXPAR_DEV_ATOMIC, word, sizeof(T), pe, &aim)) return 0;                             \
        T *const at = (T *)aim.at;                                                                                     \
        if (aim.by != EXPAR_DEV_WAY_MAPPED)                                                                            \
            return (T)expar_dev_send_atomic(h, &aim, sizeof(T), op, operand, compare, fetches);                        \
        switch (op) {                                                                                                  \
        case EXPAR_DEV_FETCH:                                                                                          \
            return expar_dev_load_##W(at);                                                                             \
        case EXPAR_DEV_SET:                                                                                            \
            expar_dev_store_##W(at, operand);                                                                          \
            return 0;                                                                                                  \
        case EXPAR_DEV_SWAP:                                                                                           \
            return expar_dev_swap_##W(at, operand);                                                                    \
        case EXPAR_DEV_COMPARE_SWAP:                                                                                   \
            return expar_dev_compare_swap_##W(at, compare, operand);                                                   \
        case EXPAR_DEV_ADD:                                                                                            \
            return expar_dev_add_##W(at, operand);                                                                     \
        case EXPAR_DEV_AND:                                                                                            \
            return expar_dev_and_##W(at, operand);                                                                     \
        case EXPAR_DEV_OR:                                                                                             \
            return expar_dev_or_##W(at, operand);                                                                      \
        default:                                                                                                       \
            return expar_dev_xor_##W(at, operand);                                                                     \
        }                                                                                                              \
    }
EXPAR_DEV_ATOMIC_BITS(expar_dev_u32, 32)
EXPAR_DEV_ATOMIC_BITS(expar_dev_u64, 64)

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
        union {                                                                                                        \
            T value;                                                                                                   \
            expar_dev_u##W bits;                                                                                       \
        } old;                                                                                                         \
        old.bits = expar_dev_atomic_##W(h, (void *)word, pe, EXPAR_DEV_FETCH, 0, 0, 1);                                \
        return old.value;                                                                                              \
    }                                                                                                                  \
    EXPAR_DEV_FUNC void expar_kernel_atomic_set_##S(const expar_device_handle *h, T *word, T value, int pe)            \
    {                                                                                                                  \
        union {                                                                                                        \
            T value;                                                                                                   \
            expar_dev_u##W bits;                                                                                       \
        } given;                                                                                                       \
        given.value = value;                                                                                           \
        (void)expar_dev_atomic_##W(h, word, pe, EXPAR_DEV_SET, given.bits, 0, 0);                                      \
    }                                                                                                                  \
    EXPAR_DEV_FUNC T expar_kernel_atomic_swap_##S(const expar_device_handle *h, T *word, T value, int pe)              \
    {                                                                                                                  \
        union {                                                                                                        \
            T value;                                                                                                   \
            expar_dev_u##W bits;                                                                                       \
        } given;                                                                                                       \
        given.value = value;                                                                                           \
        given.bits = expar_dev_atomic_##W(h, word, pe, EXPAR_DEV_SWAP, given.bits, 0, 1);                              \
        return given.value;                                                                                            \
    }
EXPAR_DEV_WORD_TYPES(EXPAR_DEV_ATOMIC_SWAPS)
EXPAR_DEV_FLOAT_TYPES(EXPAR_DEV_ATOMIC_SWAPS)

#define EXPAR_DEV_ATOMIC_CHANGE(operation, op, T, S, W)                                                                \
    EXPAR_DEV_FUNC T expar_kernel_atomic_fetch_##operation##_##S(const expar_device_handle *h, T *word, T value,       \
                                                                 int pe)                                               \
    {                                                                                                                  \
        return (T)expar_dev_atomic_##W(h, word, pe, op, (expar_uint##W)value, 0, 1);                                   \
    }                                                                                                                  \
    EXPAR_DEV_FUNC void expar_kernel_atomic_##operation##_##S(const expar_device_handle *h, T *word, T value, int pe)  \
    {                                                                                                                  \
        (void)expar_dev_atomic_##W(h, word, pe, op, (expar_uint##W)value, 0, 0);                                       \
    }
#define EXPAR_DEV_ATOMICS(T, S, W)                                                                                     \
    EXPAR_DEV_ATOMIC_CHANGE(add, EXPAR_DEV_ADD, T, S, W)                                                               \
    EXPAR_DEV_ATOMIC_CHANGE(and, EXPAR_DEV_AND, T, S, W)                                                               \
    EXPAR_DEV_ATOMIC_CHANGE(or, EXPAR_DEV_OR, T, S, W)                                                                 \
    EXPAR_DEV_ATOMIC_CHANGE(xor, EXPAR_DEV_XOR, T, S, W)                                                               \
    EXPAR_DEV_FUNC T expar_kernel_atomic_fetch_inc_##S(const expar_device_handle *h, T *word, int pe)                  \
    {                                                                                                                  \
        return expar_kernel_atomic_fetch_add_##S(h, word, 1, pe);                                                      \
    }                                                                                                                  \
    EXPAR_DEV_FUNC void expar_kernel_atomic_inc_##S(const expar_device_handle *h, T *word, int pe)                     \
    {                                                                                                                  \
        expar_kernel_atomic_add_##S(h, word, 1, pe);                                                                   \
    }                                                                                                                  \
    EXPAR_DEV_FUNC T expar_kernel_atomic_compare_swap_##S(const expar_device_handle *h, T *word, T expected,           \
                                                          T desired, int pe)                                           \
    {                                                                                                                  \
        return (T)expar_dev_atomic_##W(h, word, pe, EXPAR_DEV_COMPARE_SWAP, (expar_uint##W)desired,                    \
                                       (expar_uint##W)expected, 1);                                                    \
    }
EXPAR_DEV_WORD_TYPES(EXPAR_DEV_ATOMICS)

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
    expar_dev_facts facts;
    const expar_size width = (expar_size)set->width;
    *is_far = 0;
    expar_dev_read_facts(h, h->rank, &facts);
    if (facts.mark != h->mark) return expar_dev_status_of(h);
    fault->offset = (expar_uint64)set->words;
    if ((unsigned)set->cmp > EXPAR_CMP_LE) return expar_dev_fail(h, EXPAR_ERR_ARGUMENT, fault);
    if (set->count == 0) return EXPAR_OK;
    const int kind = expar_dev_find(h, &facts, set->words, expar_dev_bytes_of(set->count, width), &offset);
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

EXPAR_DEV_FUNC void expar_dev_order(const expar_device_handle *h, int full, int scope)
{
    expar_dev_meet(scope);
    EXPAR_DEVICE_DELAY();
    if (expar_dev_place_in(scope).index == 0) {
        if (expar_dev_load_64(&h->state->mark) == h->mark) {
            if (full)
                expar_dev_quiet_all(h, EXPAR_DEV_QUIET);
            else
                expar_dev_fence_all(h);
        }
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

/* Finds the word of pe by which `writer`, a rank of the group, tells it that it has come; 0: no way leads there. */
EXPAR_DEV_FUNC int expar_dev_sync_aim(const expar_device_handle *h, int pe, int writer, expar_dev_aim *aim)
{
    const int rank = expar_dev_rank_of(h, pe), kind = h->state->sync_kind;
    const expar_dev_entry *entry = expar_dev_entry_of(h, kind, rank);
    const expar_uint64 base = expar_dev_load_64(&entry->base);
    *aim = expar_dev_aim_nowhere();
    aim->offset = h->state->sync_offset + (expar_uint64)writer * sizeof(expar_uint64);
    aim->at = base ? base + aim->offset : 0;
    aim->by = expar_dev_way_of(h, expar_dev_load_32(&entry->way));
    aim->kind = kind;
    aim->rank = rank;
    aim->pe = pe;
    return aim->by == EXPAR_DEV_WAY_PROXY || aim->by == EXPAR_DEV_WAY_GDA ||
           (aim->by == EXPAR_DEV_WAY_MAPPED && aim->at);
}

/* Tells pe that this rank comes for the time `number`. Words that a ring carries must not overtake each other. */
EXPAR_DEV_FUNC int expar_dev_sync_tell(const expar_device_handle *h, int pe, expar_uint64 number)
{
    expar_dev_aim aim;
    const expar_dev_update update = {0, number, EXPAR_SIGNAL_SET};
    if (!expar_dev_sync_aim(h, pe, h->rank, &aim)) return EXPAR_OK;
    if (aim.by == EXPAR_DEV_WAY_PROXY) expar_dev_fence_ring(h, EXPAR_DEV_SYNC, aim.rank);
    expar_dev_signal(h, EXPAR_DEV_SYNC, &update, &aim);
    return expar_dev_status_of(h);
}

/* Before anybody is told: EXPAR_OK if this thread's members can be. */
EXPAR_DEV_FUNC int expar_dev_sync_check(const expar_device_handle *h, expar_dev_place place)
{
    expar_dev_aim aim;
    expar_dev_fault fault = expar_dev_fault_of(EXPAR_DEV_SYNC, -1, 0);
    if (expar_dev_load_64(&h->state->mark) != h->mark) return expar_dev_status_of(h);
    for (int pe = (int)place.index; pe < h->size; pe += (int)place.count) {
        fault.pe = pe;
        if (!expar_dev_sync_aim(h, pe, h->rank, &aim)) return expar_dev_fail(h, EXPAR_ERR_UNSUPPORTED, &fault);
    }
    return EXPAR_OK;
}

EXPAR_DEV_FUNC int expar_dev_sync_await(const expar_device_handle *h, int pe)
{
    expar_dev_aim aim;
    const int rank = expar_dev_rank_of(h, pe);
    if (!expar_dev_sync_aim(h, h->me, rank, &aim)) return expar_dev_status_of(h);
    const expar_uint64 *word = (const expar_uint64 *)aim.at;
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
        if (pe != h->me) status = expar_dev_sync_tell(h, pe, *expar_dev_count_of(h, rank) + 1);
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
 * well. After a barrier that failed, later ones of the team fail, too. Teams that were formed without communication
 * share one barrier, as expar_team_form says of collectives. So their barriers run one at a time and in one order, and
 * a failure ends those of all such teams. */
#define EXPAR_DEV_ORDERS(suffix, scope)                                                                                \
    EXPAR_DEV_FUNC void expar_kernel_fence##suffix(const expar_device_handle *h)                                       \
    {                                                                                                                  \
        expar_dev_order(h, 0, scope);                                                                                  \
    }                                                                                                                  \
    EXPAR_DEV_FUNC int expar_kernel_quiet##suffix(const expar_device_handle *h)                                        \
    {                                                                                                                  \
        expar_dev_order(h, 1, scope);                                                                                  \
        return expar_dev_status_of(h);                                                                                 \
    }                                                                                                                  \
    EXPAR_DEV_FUNC int expar_kernel_sync##suffix(const expar_device_handle *h)                                         \
    {                                                                                                                  \
        return expar_dev_sync(h, scope);                                                                               \
    }                                                                                                                  \
    EXPAR_DEV_FUNC int expar_kernel_barrier##suffix(const expar_device_handle *h)                                      \
    {                                                                                                                  \
        expar_dev_order(h, 1, scope);                                                                                  \
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
    expar_dev_facts facts;
    if (pe < 0 || pe >= h->size) return 0;
    expar_dev_read_facts(h, expar_dev_rank_of(h, pe), &facts);
    if (facts.mark != h->mark) return 0;
    const int kind = expar_dev_find(h, &facts, address, 1, &offset);
    if (kind < 0) return 0;
    const expar_dev_entry entry = expar_dev_entry_in(h, &facts, kind, expar_dev_rank_of(h, pe));
    return entry.base && entry.way == EXPAR_DEV_WAY_MAPPED ? (void *)(entry.base + offset) : 0;
}
/* The handle's first error (expar_status); EXPAR_OK: none. */
EXPAR_DEV_FUNC int expar_kernel_status(const expar_device_handle *h)
{
    return expar_dev_status_of(h);
}

#endif
