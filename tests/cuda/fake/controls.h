/* SPDX-License-Identifier: Apache-2.0 */
/* A test's view of the simulated driver (fake.c) and its orders to it, in its own process. */
#ifndef TESTS_CUDA_FAKE_CONTROLS_H
#define TESTS_CUDA_FAKE_CONTROLS_H

#include <stdatomic.h>

#define FAKE_GPUS      2 /* unless the setting FAKE_GPU_COUNT says how many, at most: */
#define FAKE_MOST_GPUS 8
#define FAKE_LAUNCHES  4096

/* The driver writes the counts; a test sets the rejections, and the driver takes them off. All in sequential order. */
typedef struct fake_controls {
    atomic_int running[FAKE_MOST_GPUS];   /* kernels */
    atomic_int loads;                     /* of modules, so far: those that wait and those that failed, too */
    atomic_int waiting;                   /* loads that wait for kernels; of each GPU the first */
    atomic_int modules;                   /* that are loaded now */
    atomic_int rejections;                /* loads to come that fail */
    void *_Atomic streams[FAKE_LAUNCHES]; /* where the last ones were put: launch i at i modulo their number */
    atomic_uint blocks[FAKE_LAUNCHES];    /* of these */
    atomic_int launches;                  /* of kernels, so far */
    atomic_int host_functions;            /* put on streams, so far */
    atomic_int dispatches;                /* of these, whose names have the word dispatch_impl */
    atomic_int combines;                  /* and combine_impl */
    atomic_int begun;                     /* calls that have asked whether their stream is being captured */
    atomic_int ahead;      /* dispatches launched with space for rows whose number the host did not know */
    atomic_int others;     /* put on streams: copies within the GPUs, waits for events */
    atomic_int outside;    /* of these, waits of captures for what comes before the launch */
    atomic_int lent;       /* pieces of memory that are taken in the order of a stream, and not given back */
    atomic_int mapped;     /* pieces that are mapped now (cuMemMap) */
    atomic_int no_chunks;  /* set by a test: 1: nor pieces that are mapped (cuMemCreate) */
    atomic_int few_chunks; /* set by a test: so many more of these fail; counts down */
    atomic_int no_lending; /* set by a test: 1: there is none to be had */
    atomic_int no_handles; /* set by a test: 1: memory of cuMemAlloc has no handles */
    atomic_int no_opening; /* set by a test: 1: handles of other processes are refused (cuIpcOpenMemHandle) */
    atomic_int opened;     /* such handles that are open in this process */
    atomic_int no_pinned;  /* set by a test: 1: there is no pinned memory to be had, nor registered */
    atomic_int registered; /* pieces of host memory that are registered now (cuMemHostRegister) */
    atomic_int plain;      /* pieces made so far that no network's device could register (cuMemCreate) */
    atomic_int looks;      /* of callers at events and streams */
    atomic_int asks;       /* of callers where an address lies (cuPointerGetAttributes) */
    atomic_int unfinished; /* set by a test: 1: those say that they have not come to their ends */
    atomic_int broken;     /* set by a test: 1: copies are not carried out, and questions about events fail */
    atomic_int no_words;   /* set by a test: 1: streams write and await no words */
    atomic_int hold;       /* set by a test: 1: streams do not come to the kernels that are launched, until it is 0 */
    atomic_int held;       /* kernels and host functions that streams have not come to, or not through */
    atomic_ullong host_loads;   /* of pinned memory, by ordered loads of the library's simulated kernels */
    atomic_ullong host_crowds;  /* of these, such as came within 20 us after another one */
    atomic_ullong host_threads; /* bits of the threads of blocks that made such loads, modulo 64 */
    atomic_ullong stored_bytes; /* of rows, by the library's kernels where they are simulated (cuda/simt/simt.c):
                                   counted when a kernel has ended */
} fake_controls;

/* Calls of one function of the driver by the thread that counts (count.c). */
typedef struct fake_count {
    const char *name; /* "cuEventRecord" */
    int count;
} fake_count;
/* This thread counts from now on; and no longer: fills at most `most`, and returns how many. By dlsym. */
typedef void fake_count_begin_function(void);
typedef int fake_count_end_function(fake_count *counts, int most);

/* For the simulated compiler (nvrtc.c), likewise: it counts, and a test holds it. */
typedef struct fake_compiler_controls {
    atomic_int begun; /* compilations, so far */
    atomic_int hold;  /* 1: those of sources with "held" in their names wait until it is 0 */
    atomic_int meet;  /* all of them wait until so many have begun, and fail where they do not come */
} fake_compiler_controls;

/* In code that the compiler makes: the seed of the delays in kernels follows (link/device/delay.h). */
#define CODE_DELAYS "EXPAR_DELAYS="

/* The controls of the libraries that have been opened; by dlsym. */
typedef fake_controls *fake_controls_function(void);
typedef fake_compiler_controls *fake_compiler_controls_function(void);

/* Another stream in each thread, by the driver's own name for it. */
#define FAKE_THREADS_STREAM ((void *)2)

/* A kernel that runs until *end is not 0. */
#define FAKE_SPIN "fake_spin"
typedef struct fake_spin_args {
    const atomic_int *end;
} fake_spin_args;

#endif
