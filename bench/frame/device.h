/* SPDX-License-Identifier: Apache-2.0 */
/* device: where a benchmark runs. It has its ranks (a world), and the tables of what the CPU and GPUs do differently:
 * in any mode (a device), and in one of them (a site).
 *
 * cpu.c and gpu/device.c are devices; rma/run.c has one that tells the time alone. */
#ifndef EXPAR_BENCH_FRAME_DEVICE_H
#define EXPAR_BENCH_FRAME_DEVICE_H

#include "bench/frame/options.h"
#include <expar/expar.h>
#include <stdbool.h>
#include <stdint.h>

struct bench_baseline; /* frame/session.h */
struct bench_moments;  /* frame/late.h */
struct bench_session;  /* frame/session.h */
struct ll_place;       /* low_latency/place.h */
struct contender;      /* frame/measure.h */
struct bench_span;

/* Operations that a rank has posted to its network for a buffer so far. */
struct bench_sent {
    double messages, flags; /* puts, each followed by a flag; flags by themselves */
    double bytes;           /* of both */
    double rows;            /* of tokens in the messages */
};
/* Converts the library's link_sent. */
#define BENCH_SENT(so_far)                                                                                             \
    ((struct bench_sent){(double)(so_far).messages, (double)(so_far).flags, (double)(so_far).bytes,                    \
                         (double)(so_far).rows})

struct bench_world {
    expar_group *group;
    int rank, size;
    int nodes, each; /* M nodes of P ranks; the ranks of a node reach each other by loads and stores */
    const struct bench_baseline *baseline; /* of the mode that is measured; NULL: none */
    const struct bench_device *device;
    expar_device place; /* of this rank's tensors */
    void *stream;       /* the CUstream of its calls; NULL on the CPU */
    void *gpu;          /* of bench_cuda: this rank's struct gpu_rank */
};

/* Finds the nodes of a group, and takes the device that measures across them where there are several. All else is set.
   Collective. */
bool bench_world_nodes(struct bench_world *world);
/* Returns the options of a group, whose ranks simulate nodes if the options say so. */
expar_group_options bench_group_options(const struct bench_options *options);
/* Prints a failure of the library on stderr. Returns whether there was none. */
bool bench_good(const struct bench_world *world, expar_status status);
bool bench_complain(const struct bench_world *world, const char *what);
/* True when `mine` is true on all ranks. Collective; false too when the group failed. */
bool bench_all_true(const struct bench_world *world, bool mine);
/* Computes the mean of a number over all ranks. Collective. */
bool bench_mean(const struct bench_world *world, double mine, double *mean);

/* Traffic of one call of a rank: what it sends to other nodes, and the rows that it receives inside its own node. */
struct bench_traffic {
    bool counted;           /* there are several nodes, and it was one call */
    struct bench_sent sent; /* as counted where the library calls its provider */
    double inside_rows;     /* rows that it receives from other ranks of its node, by the routing; normal mode only */
};
/* Measures the traffic of this rank's call between begin and end; `counted` is false where all ranks share a node. */
void bench_traffic_begin(const struct bench_session *session, struct bench_traffic *traffic);
void bench_traffic_end(const struct bench_session *session, struct bench_traffic *traffic);
/* Collective. */
bool bench_traffic_mean(const struct bench_world *world, const struct bench_traffic *mine, struct bench_traffic *mean);

/* Ways to copy, each a contender: memcpy and non-temporal stores, or push and pull; low latency has three. */
#define BENCH_MAX_COPIES 3

enum bench_mode_number { BENCH_NORMAL, BENCH_LOW_LATENCY, BENCH_MODES };

/* Operations of a device (CPU or GPU) for one mode. */
struct bench_site {
    /* Threads or SMs of a rank when none are given. */
    int (*default_workers)(const struct bench_world *world);
    /* Checks, before anything is measured, whether the options can be measured here; prints why not. NULL: they can.
       Collective. */
    bool (*check)(const struct bench_world *world, const struct bench_options *options);
    /* open allocates symmetric rows, and prepares copies and round trips, after the session's buffer was made.
       Collective. close frees them; it is collective while `sound`. */
    bool (*open)(struct bench_session *session);
    void (*close)(struct bench_session *session, bool sound);
    /* Sets whether the kernels of the session's buffer read clocks from now on. Local. NULL: there are no kernels. */
    bool (*clocks)(const struct bench_session *session, bool wanted);
    /* Returns the moments of the warps in this rank's last call on the session's buffer, which is done. False: they are
       not known. NULL: they never are. */
    bool (*moments)(const struct bench_session *session, struct bench_moments *out);
    /* Counts what the session's buffer has sent over the network so far; the copies are then bare puts. NULL: there is
       no network. */
    struct bench_traffic (*traffic)(const struct bench_session *session);
    /* Appends the copies of an operation in normal mode to `contenders`, and returns their number. */
    int (*add_copies)(struct bench_session *session, bool combine, struct contender *contenders);
};

/* Memory that is left to a rank. */
struct bench_memory {
    uint64_t bytes;
    char limit[192]; /* what sets the limit */
};

/* The coding of BF16 rows, [rows][hidden], as e4m3 with a scale for each 128 elements. */
struct bench_coding {
    const void *x;
    int64_t rows;
    int hidden; /* a multiple of 128 */
    void *payload;
    float *scales;
};

/* A device: the memory of tensors, the timing of a turn, and the copies. */
struct bench_device {
    const char *name;                     /* "cpu", "cuda" */
    const char *workers;                  /* "threads", "sms" */
    const char *copies[BENCH_MAX_COPIES]; /* members of the JSON in normal mode */
    int held_outputs;                     /* dispatch outputs that a session of normal mode keeps during other
                                             dispatches */
    /* Finds the memory that is left to this rank, if those that share it get as much. NULL: it is not known. */
    void (*memory)(const struct bench_world *world, const struct bench_options *options, struct bench_memory *out);
    /* Allocates memory of the device for one rank; NULL: no memory. */
    void *(*alloc)(const struct bench_world *world, size_t bytes);
    void (*free)(const struct bench_world *world, void *data);
    /* Returns the bytes of a tensor for the host to read; NULL on failure. */
    const void *(*view)(const struct bench_world *world, const void *data, size_t bytes);
    void (*unview)(const struct bench_world *world, const void *view);
    /* draft returns memory in which the host writes the bytes of a tensor. The next function copies them to the tensor
       and ends the draft. */
    void *(*draft)(const struct bench_world *world, void *data, size_t bytes);
    bool (*commit)(const struct bench_world *world, void *data, void *draft, size_t bytes);
    /* Copies a tensor to other memory of the device: the CPU does it at once, a GPU on the world's stream. */
    bool (*copy)(const struct bench_world *world, void *to, const void *from, size_t bytes);
    /* Codes rows, as a caller does: the CPU at once by one thread, a GPU on the world's stream. */
    bool (*encode)(const struct bench_world *world, const struct bench_coding *coding);
    /* Brings the ranks together, runs the contender, and measures the time until its work is done. */
    bool (*turn)(const struct bench_world *world, struct contender *contender, struct bench_span *span);
    /* Moments on this rank's clock, for pairs of calls. marks_open makes count of them; NULL: no memory. `mark` takes
       one where the stream has come to, or the CPU. marks_read gives them in microseconds since the first one, when the
       stream's work is done. Closing NULL is allowed. */
    void *(*marks_open)(const struct bench_world *world, int count);
    bool (*mark)(const struct bench_world *world, void *marks, int index);
    bool (*marks_read)(const struct bench_world *world, void *marks, int count, double *us);
    void (*marks_close)(const struct bench_world *world, void *marks, int count);
    const struct bench_site *sites[BENCH_MODES];
    const struct ll_place *ll; /* what else low-latency mode needs */
};
extern const struct bench_device bench_cpu, bench_cpu_nodes;
/* default_workers of normal mode on the CPU. */
int bench_cpu_threads(const struct bench_world *world);

#endif
