/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of handles (expar/device.h): what a kernel is to do, and numbers that host and kernels compute alike. Compiles
 * as C17, under nvcc and under NVRTC. */
#ifndef TESTS_CUDA_KERNELS_HANDLES_H
#define TESTS_CUDA_KERNELS_HANDLES_H

#define EXPAR_DEVICE_CHECKS 1
#include <expar/device.h>

#ifdef __CUDACC__
#define HANDLES_FUNC static inline __device__ __host__
#else
#define HANDLES_FUNC static inline
#endif

enum { HANDLES_THREADS = 64 };

/* The kernel of every rank does this at the same time. */
typedef enum handles_test {
    HANDLES_PASS = 0, /* messages to the next rank, in the way of `scope` and `with` */
    HANDLES_STORES,   /* store buffering between two ranks */
    HANDLES_ADDS,     /* all ranks add to one word of rank 0 */
    HANDLES_COUNT,    /* the same, and nobody looks: the host adds, too */
    HANDLES_BARRIERS, /* all ranks put to all, between barriers */
    HANDLES_SCRIPT,   /* a random script, which the host knows, too */
    HANDLES_WAIT,     /* waits for words that no kernel changes, in the way of `scope` and `with` */
    HANDLES_SYNC,     /* a barrier to which a rank does not come */
    HANDLES_LOST,     /* puts to rank `peer`, until they fail */
    HANDLES_SEND,     /* `rounds` puts to rank `peer`, at least one, for whose end nobody waits */
    HANDLES_FOLLOW,   /* orders what an earlier kernel has sent: HANDLES_SEND, to the next rank */
    HANDLES_TELL,     /* changes words of rank `peer` in each way of handles_tells */
    HANDLES_TOLD,     /* waits for these words */
    HANDLES_TWO,      /* with two handles, of which `other` fails at the end */
    HANDLES_STAY,     /* fails, and stays until the host changes the word at `data` */
    HANDLES_OWN,      /* puts `own` to rank `peer`, and gets it from there into the `bytes` after it */
    HANDLES_FORMS,    /* forms that the others do not use: `with` says of which family */
    HANDLES_BAD,      /* bad input number `with`, by the first thread */
    HANDLES_TESTS
} handles_test;

/* How a message of HANDLES_PASS goes. */
typedef enum handles_with {
    HANDLES_SET = 0, /* put_signal, set */
    HANDLES_ADD,     /* put_signal, add */
    HANDLES_FENCE,   /* put, fence, p */
    HANDLES_PIECES,  /* a put of each thread, a fence of one, signal_op */
    HANDLES_QUIET,   /* stores through ptr, quiet of one, atomic_set */
    HANDLES_STORED,  /* stores through ptr, fence of one, p */
    HANDLES_FLAG,    /* a put of the last thread, its flag for the first one, which calls fence and p */
    HANDLES_WITHS
} handles_with;

/* HANDLES_WAIT: HANDLES_SEND comes before it; tests of the block take turns in place of waits. */
enum { HANDLES_SENDS = 1, HANDLES_LOOKS = 2 };
/* All waits of HANDLES_WAIT end when the first eight words are this. */
#define HANDLES_COME 0x0000000900000009

/* HANDLES_FOLLOW: the first thread calls it. */
enum { HANDLES_FOLLOW_FENCE = 0, HANDLES_FOLLOW_QUIET = 1 };

/* How a word changes: word HANDLES_TOLD_WORD + number becomes HANDLES_TOLD_VALUE + number. */
typedef enum handles_tells {
    HANDLES_TELL_STORE = 0, /* through ptr, if there is one */
    HANDLES_TELL_P,
    HANDLES_TELL_PUT,
    HANDLES_TELL_SET, /* signal_op */
    HANDLES_TELL_ADD,
    HANDLES_TELL_PUT_SIGNAL,
    HANDLES_TELL_ATOMIC_SET,
    HANDLES_TELL_ATOMIC_ADD,
    HANDLES_TELL_SWAP,
    HANDLES_TELLS
} handles_tells;
enum { HANDLES_TOLD_WORD = 32, HANDLES_TOLD_VALUE = 70 };

/* HANDLES_FORMS: the family. The first two have forms of each scope. */
typedef enum handles_forms {
    HANDLES_FORMS_MOVES = 0, /* puts, gets, signals */
    HANDLES_FORMS_SETS,      /* waits and tests */
    HANDLES_FORMS_ATOMICS,   /* by one thread */
    HANDLES_FORMS_FAMILIES
} handles_forms;

/* Bad inputs, each with its error. */
typedef enum handles_bad {
    HANDLES_BAD_PE = 0,
    HANDLES_BAD_NEGATIVE_PE,
    HANDLES_BAD_ADDRESS, /* at `words`, which is not symmetric for the handle */
    HANDLES_BAD_END,     /* a block that leaves the heap */
    HANDLES_BAD_COUNT,   /* a number of elements whose size overflows */
    HANDLES_BAD_ALIGNMENT,
    HANDLES_BAD_WAIT, /* a wait for words at `words`, which are not symmetric */
    HANDLES_BAD_CMP,
    HANDLES_BAD_OP,
    HANDLES_BAD_FAR,   /* a put to rank `peer`, to which no way leads */
    HANDLES_BAD_LOCAL, /* a put to rank `peer` from memory that the host does not know */
    HANDLES_BAD_DEST,  /* a get from there into such memory */
    HANDLES_BAD_SYNC,
    HANDLES_BAD_ADD, /* an added signal to rank `peer`, to which atomics have no way */
    HANDLES_BADS
} handles_bad;

#define HANDLES_OWN_BYTES(size, bytes) (((expar_size)(size) + 1) * (expar_size)(bytes) + (expar_size)(size)*8)
typedef struct handles_call {
    expar_int32 test, with, scope;
    expar_int32 rounds, peer;
    expar_uint32 seed;
    expar_uint64 *words; /* symmetric; zero at first */
    unsigned char *data; /* symmetric: `bytes` for each rank */
    expar_uint64 bytes;
    /* This rank's, HANDLES_OWN_BYTES; only its kernel uses it. `bytes` is a multiple of 8. */
    unsigned char *own;
    /* A second handle, in memory that kernels read. */
    const expar_device_handle *other;
    /* Memory that the host reads when the kernel has ended. Threads add to them. */
    expar_uint64 *wrong; /* wrong[0]: what was seen and must not be */
    int *status;         /* [threads] how the last call of each thread ended */
} handles_call;

/* The argument of the kernel. */
typedef struct handles_launch {
    expar_device_handle handle;
    handles_call call;
} handles_launch;

HANDLES_FUNC expar_uint32 handles_mix(expar_uint32 word)
{
    word = (word ^ word >> 16) * 0x7feb352du;
    word = (word ^ word >> 15) * 0x846ca68bu;
    return word ^ word >> 16;
}
/* Byte i of the message of a round by a rank. */
HANDLES_FUNC unsigned char handles_byte(expar_int32 rank, expar_int32 round, expar_uint64 i)
{
    return (unsigned char)handles_mix((expar_uint32)i + (expar_uint32)round * 0x9e3779b9u + (expar_uint32)rank * 77u);
}

/* ---- scripts ----------------------------------------------------------------------------------------------------- */

/* Step `number` of a rank's script. Rank r alone writes part r of every rank's data, so it knows what it holds. */
typedef enum handles_step_kind {
    HANDLES_STEP_PUT = 0,
    HANDLES_STEP_PUT_SIGNAL,
    HANDLES_STEP_P,
    HANDLES_STEP_GET, /* what it has put before, after quiet */
    HANDLES_STEP_G,
    HANDLES_STEP_ADD, /* to its word of that rank */
    HANDLES_STEP_KINDS
} handles_step_kind;
typedef struct handles_step {
    expar_int32 kind, pe;
    expar_uint32 at, bytes; /* in the part */
    expar_uint32 value;
} handles_step;

HANDLES_FUNC handles_step handles_step_of(const handles_call *c, expar_int32 rank, expar_int32 size, expar_int32 number)
{
    handles_step step;
    expar_uint32 word = handles_mix(c->seed + (expar_uint32)number * 0x9e3779b9u + (expar_uint32)rank * 0x85ebca6bu);
    step.kind = (expar_int32)(word % HANDLES_STEP_KINDS);
    word = handles_mix(word + 1);
    step.pe = (expar_int32)(word % (expar_uint32)size);
    word = handles_mix(word + 1);
    step.at = (expar_uint32)(word % c->bytes);
    word = handles_mix(word + 1);
    step.bytes = word % 5 == 0 ? word >> 8 & 7 : word >> 8;
    step.bytes = (expar_uint32)(step.bytes % (c->bytes - step.at + 1));
    step.value = handles_mix(word + 1);
    return step;
}
HANDLES_FUNC unsigned char handles_step_byte(const handles_step *step, expar_uint32 i)
{
    return (unsigned char)handles_mix(step->value + i);
}

#endif
