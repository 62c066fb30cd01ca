/* SPDX-License-Identifier: Apache-2.0 */
/* options: the options of a measurement. bench/options.c fills them, all files read them. */
#ifndef EXPAR_BENCH_FRAME_OPTIONS_H
#define EXPAR_BENCH_FRAME_OPTIONS_H

#include <expar/expar.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define BENCH_MAX_SWEEP   64
#define BENCH_MAX_DTYPES  4
#define BENCH_MAX_SIZES   32
#define BENCH_MAX_FORMATS 9
#define BENCH_MAX_FILES   8

enum bench_format { BENCH_TABLE, BENCH_JSON, BENCH_CSV };
enum bench_cached { BENCH_UNCACHED, BENCH_CACHED, BENCH_BOTH };
/* The patterns of measured calls (frame/patterns.h). They are bits, since several may be asked for. */
enum bench_pattern { BENCH_ISOLATED = 1, BENCH_STEADY = 2, BENCH_LAYER = 4, BENCH_DECODE = 8, BENCH_PERIOD = 16 };

/* Options of `expar bench rma`. */
struct rma_options {
    bool wanted;
    size_t sizes_bytes[BENCH_MAX_SIZES];
    int num_sizes;
    const char *ops;        /* names divided by commas; NULL: all */
    const char *transports; /* the same; NULL: those that this machine has */
};

enum bench_phases { BENCH_WHOLE, BENCH_HOOKED, BENCH_WHOLE_AND_HOOKED };

/* Options of `expar bench ll` beside those of dispatch and combine. */
struct ll_options {
    bool wanted;
    int formats[BENCH_MAX_FORMATS];  /* of ll_formats */
    int num_formats;                 /* 0: the dtypes as they are */
    bool exact, reduced;             /* sums of a combine */
    enum bench_phases phases;        /* in one call, by a hook */
    enum bench_phases decode_phases; /* the same of --pattern decode: both, unless --hook says otherwise */
};

struct bench_options {
    bool dispatch, combine;
    bool setup;                      /* of groups and buffers, and nothing else */
    bool layout;                     /* what a fresh dispatch takes beyond a cached one */
    bool cuda;                       /* on GPUs, else on the CPU */
    int num_ranks;                   /* 0 until checked: 8, or as many as there are GPUs */
    int num_gpus;                    /* the ranks share that many; 0: none, or until checked all */
    int64_t tokens[BENCH_MAX_SWEEP]; /* of each rank, one measurement each */
    int num_tokens;
    int hidden, topk, experts; /* topk, experts 0: not given */
    expar_dtype dtypes[BENCH_MAX_DTYPES];
    int num_dtypes;
    const char *routing; /* a generator's name, or a .npy file */
    int iters, warmup;
    int pairs;                    /* of a trial of pairs back to back */
    int workers[BENCH_MAX_SWEEP]; /* threads or SMs of a rank; 0: as the library chooses */
    int num_workers;
    expar_ep_path path;
    bool all_paths; /* direct and queue, a result each; `path` is ignored */
    enum bench_cached cached;
    unsigned patterns; /* of enum bench_pattern */
    bool all_patterns; /* until checked: those of the mode, and `patterns` is ignored */
    bool unstamped;    /* on GPUs: kernels read no clocks, nor does the copy roofline's, and there is no breakdown */
    uint64_t seed;
    enum bench_format format;
    bool mpi;
    int nodes; /* nodes that the ranks simulate */
    struct rma_options rma;
    struct ll_options ll;
    const char *output;                 /* a file for what is printed; NULL: stdout */
    const char *files[BENCH_MAX_FILES]; /* of results that the report compares; nothing is measured then */
    int num_files;
    const char *report; /* a file for the report; NULL: none */
    char command[1024]; /* what was typed, for the JSON */
    time_t started;     /* when the options were read */
    double load[3];     /* the machine's load averages then; below 0: not known */
    uint64_t given;     /* a bit for each option that was (options.c) */
};

#endif
