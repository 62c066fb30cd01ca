/* SPDX-License-Identifier: Apache-2.0 */
/* device: where a benchmark runs: its ranks (a world), and the table of what the CPU and GPUs do differently (a
 * device).
 *
 * normal/device_cpu.c and gpu/device.c are devices; rma/run.c has one that tells the time alone. */
#ifndef EXPAR_BENCH_FRAME_DEVICE_H
#define EXPAR_BENCH_FRAME_DEVICE_H

#include "bench/frame/options.h"
#include <expar/expar.h>
#include <stdbool.h>
#include <stdint.h>

struct bench_baseline; /* normal/session.h */
struct ll_baseline;    /* low_latency/session.h */
struct bench_moments;  /* normal/late.h */
struct bench_session;  /* normal/session.h */
struct ll_place;       /* low_latency/place.h */
struct contender;      /* frame/measure.h */
struct bench_span;

/* What a rank has handed to its network for a buffer so far. */
struct bench_sent {
    double messages, flags; /* puts, each with a flag behind it; flags by themselves */
    double bytes;           /* of both */
    double rows;            /* of tokens in the messages */
};

struct bench_world {
    expar_group *group;
    int rank, size;
    int nodes, each; /* M nodes of P ranks, as they reach each other by loads and stores; one where all do */
    const struct bench_baseline *baseline; /* NULL: none */
    const struct ll_baseline *ll_baseline; /* the same for low-latency mode */
    const struct bench_device *device;
    expar_device place; /* of this rank's tensors */
    void *stream;       /* the CUstream of its calls; NULL on the CPU */
    void *gpu;          /* of bench_cuda: this rank's struct gpu_rank */
};

/* Finds the nodes of a group, and takes the device that measures across them where there are several. All else is set.
   Collective. */
bool bench_world_nodes(struct bench_world *world);
/* The options of a group whose ranks play nodes, if they are to. */
expar_group_options bench_group_options(const struct bench_options *options);
/* Says a failure of the library on stderr. */
bool bench_good(const struct bench_world *world, expar_status status);
bool bench_complain(const struct bench_world *world, const char *what);
/* True when `mine` is true on all ranks. Collective; false too when the group failed. */
bool bench_all_true(const struct bench_world *world, bool mine);
/* Mean of a number over all ranks. */
bool bench_mean(const struct bench_world *world, double mine, double *mean);

/* What was sent between two moments; the same over all ranks, which is collective. */
struct bench_sent bench_sent_between(const struct bench_sent *before, const struct bench_sent *now);
bool bench_sent_mean(const struct bench_world *world, const struct bench_sent *mine, struct bench_sent *mean);

/* Ways to copy, each a contender: memcpy and non-temporal stores, or push and pull. */
#define BENCH_MAX_COPIES 2

/* Where tensors live, how a turn is timed, and what copies there are. */
struct bench_device {
    const char *name;                     /* "cpu", "cuda" */
    const char *workers;                  /* "threads", "sms" */
    const char *copies[BENCH_MAX_COPIES]; /* members of the JSON */
    int held_outputs;                     /* of dispatch, that a session keeps while others come */
    /* Whether what is asked for can be measured here, before anything is; says why not. NULL: it can. Collective. */
    bool (*check)(const struct bench_world *world, const struct bench_options *options);
    /* Threads or SMs of a rank when none are given. */
    int (*default_workers)(const struct bench_world *world);
    /* Memory of the device for one rank; NULL: no memory. */
    void *(*alloc)(const struct bench_world *world, size_t bytes);
    void (*free)(const struct bench_world *world, void *data);
    /* The bytes of a tensor for the host to read; NULL: they cannot be had. */
    const void *(*view)(const struct bench_world *world, const void *data, size_t bytes);
    void (*unview)(const struct bench_world *world, const void *view);
    /* Where the host writes the bytes of a tensor, and carrying them there, which also ends the draft. */
    void *(*draft)(const struct bench_world *world, void *data, size_t bytes);
    bool (*commit)(const struct bench_world *world, void *data, void *draft, size_t bytes);
    /* Copies a tensor to other memory of the device: the CPU does it at once, a GPU on the world's stream. */
    bool (*copy)(const struct bench_world *world, void *to, const void *from, size_t bytes);
    /* Behind everything else of a session: symmetric rows, copies. Collective. */
    bool (*open)(struct bench_session *session);
    void (*close)(struct bench_session *session, bool sound);
    /* Appends the copies of an operation to `contenders`; their number. */
    int (*add_copies)(struct bench_session *session, bool combine, struct contender *contenders);
    /* Brings the ranks together, runs, and takes the time until what was run is done. */
    bool (*turn)(const struct bench_world *world, struct contender *contender, struct bench_span *span);
    /* Sets whether the kernels of the session's buffer read clocks from now on. Local. NULL: there are no kernels. */
    bool (*clocks)(const struct bench_session *session, bool wanted);
    /* When the warps of this rank's last call on the session's buffer came where; false: not known. NULL: never. */
    bool (*moments)(const struct bench_session *session, struct bench_moments *out);
    const struct ll_place *ll; /* of low-latency mode; NULL: it is not measured here */
    /* What goes by a network, of buffers of both modes; `copies` are bare puts then. NULL: nothing does. */
    struct bench_sent (*sent)(const struct expar_ep *ep);
    struct bench_sent (*ll_sent)(const struct expar_ll *ll);
};
extern const struct bench_device bench_cpu, bench_cpu_nodes;

#endif
