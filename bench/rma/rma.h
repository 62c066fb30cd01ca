/* SPDX-License-Identifier: Apache-2.0 */
/* rma: measures the operations on symmetric memory, and compares each with the same operation without expar, on the
 * machine or the network.
 *
 * Called through bench/bench.h (rma_run); calls the public interface of the library only. The same loops run over
 * several *ways* of doing an operation, which take turns within each iteration:
 *
 *   way_expar.c    the library              run.c      transports, sizes and operations, one after another
 *   way_mapped.c   loads, stores, memcpy    case.c     one operation: loops, and their verification
 *   way_fabric.c   bare libfabric           data.c     contents of buffers, and their verification
 *   options.c      the options              report.c   JSON, CSV, table
 *   producer.c     threads that write requests of a network device themselves, beside the proxy
 *
 * An operation between two ranks goes from rank 0 to the last one and is timed on rank 0. A collective is timed from
 * the first start to the last end. Every way completes an operation in the same sense: it is done at the target when
 * quiet returns. */
#ifndef EXPAR_BENCH_RMA_RMA_H
#define EXPAR_BENCH_RMA_RMA_H

#include "bench/frame/measure.h"
#include <argp.h>
#include <expar/collective.h>
#include <expar/rma.h>

/* ---- data.c ------------------------------------------------------------------------------------------------------ */

/* Fills memory with the bytes that rank `from` has for rank `to` under a salt. */
void rma_fill(void *at, size_t bytes, int from, int to, uint64_t salt);
/* Returns the first byte that differs from it; -1: none does. */
int64_t rma_first_wrong(const void *at, size_t bytes, int from, int to, uint64_t salt);
/* Returns element i of a rank's summand, a small whole number. The next function returns the sum over all ranks. */
int64_t rma_term(int rank, size_t i, uint64_t salt);
int64_t rma_total(int num_ranks, size_t i, uint64_t salt);

/* ---- ways -------------------------------------------------------------------------------------------------------- */

/* The layout of the memory that all ranks have, in bytes from its start. It is the same on all ranks. */
struct rma_layout {
    size_t bytes;        /* of all */
    size_t area_bytes;   /* of source and of dest: what the largest collective needs */
    size_t source, dest; /* offsets */
    size_t words;        /* RMA_WORDS words of 8 bytes, 64 bytes apart: no two ways share one */
};
enum { RMA_WORDS = 64, RMA_WORD_STEP = 64 };

struct rma_memory {
    expar_group *group;
    int rank, size;
    unsigned char *base; /* symmetric */
    struct rma_layout layout;
};

static inline size_t rma_word_at(const struct rma_layout *layout, int number)
{
    return layout->words + (size_t)number * RMA_WORD_STEP;
}

/* One way of doing operations. Offsets are those of the layout; `number` is a word's. Each function returns false after
 * saying on stderr why. One thread of a rank may call all of them. */
struct rma_way;
struct rma_way_ops {
    const char *name;
    bool (*put)(struct rma_way *way, int pe, size_t dest, size_t source, size_t bytes);     /* complete after quiet */
    bool (*put_nbi)(struct rma_way *way, int pe, size_t dest, size_t source, size_t bytes); /* complete after quiet */
    bool (*get)(struct rma_way *way, int pe, size_t dest, size_t source, size_t bytes);     /* complete at once */
    bool (*get_nbi)(struct rma_way *way, int pe, size_t dest, size_t source, size_t bytes); /* complete after quiet */
    bool (*quiet)(struct rma_way *way);
    bool (*fetch_add)(struct rma_way *way, int pe, int number, uint64_t value, uint64_t *old);
    bool (*add)(struct rma_way *way, int pe, int number, uint64_t value); /* complete after quiet */
    /* Puts, and sets the word to `value` after that. */
    bool (*put_signal)(struct rma_way *way, int pe, size_t dest, size_t source, size_t bytes, int number,
                       uint64_t value);
    bool (*wait)(struct rma_way *way, int number, uint64_t value); /* until this rank's own word has it */
    /* Waits at a barrier: the library's, or for other ways a token that passes all ranks once. */
    bool (*barrier)(struct rma_way *way);
    void (*close)(struct rma_way *way); /* frees */
};

struct rma_way {
    const struct rma_way_ops *ops;
    const struct rma_memory *memory;
    int first_word;  /* words first_word … + RMA_WAY_WORDS - 1 are its own */
    uint64_t rounds; /* value of the last signal that was sent or awaited */
    bool failed;     /* a call of the library has */
};
enum { RMA_WORD_SIGNAL, RMA_WORD_COUNTER, RMA_WORD_TOKEN, RMA_WAY_WORDS = 8 };

/* True for EXPAR_OK; else it prints the error of a call of the library on stderr, and records it in the way. */
bool rma_call_good(struct rma_way *way, expar_status status);
/* Collective. NULL after saying why. */
struct rma_way *rma_way_expar(const struct rma_memory *memory);
/* NULL, without a message, if some rank is not mapped. */
struct rma_way *rma_way_mapped(const struct rma_memory *memory);
/* Does the same, but put_signal sets the flag only. */
struct rma_way *rma_way_flag(const struct rma_memory *memory);
/* *missing says why when there is none; it is the same on all ranks. */
struct rma_way *rma_way_fabric(const struct rma_memory *memory, char *missing, size_t missing_bytes);
/* Returns libfabric's name of the provider that it uses. */
const char *rma_way_fabric_provider(const struct rma_way *way);

/* Runs a step of a polling wait: it spins at first, then yields. */
void rma_pause(unsigned turn);

/* ---- case.c ------------------------------------------------------------------------------------------------------ */

struct rma_result {
    const char *op, *metric, *transport, *baseline;
    size_t bytes;                         /* of one operation; 0: has no size */
    double moved_bytes;                   /* into one rank by one operation, for GB/s; 0: not told */
    struct bench_times expar, base, flag; /* of one operation */
    bool has_base, has_flag, verified;
};

/* One operation as it is measured. */
struct rma_kind {
    const char *name, *group; /* group: another word for several of them */
    const char *metric;       /* latency, bandwidth, rate or round_trip */
    /* Runs `count` operations of this rank. */
    bool (*run)(struct rma_way *way, size_t bytes, int count);
    /* The operation without expar; NULL: the same. */
    bool (*run_base)(struct rma_way *way, size_t bytes, int count);
    /* Runs one operation with known contents and verifies it in full. Collective. */
    bool (*verify)(struct rma_way *way, const struct rma_kind *kind, size_t bytes, uint64_t salt);
    double (*moved)(size_t bytes, int num_ranks);
    bool sized;       /* once for each size */
    bool collective;  /* all ranks take part; else rank 0 */
    bool both;        /* and the last one */
    bool has_flag;    /* also against the bare flag */
    bool verify_base; /* the baseline's result is looked at, too */
};
extern const struct rma_kind rma_kinds[];
extern const int rma_num_kinds;

/* Threads that write requests of a network device themselves (gda), or a proxy's thread that does it for them. */
struct rma_producer {
    const char *by;                            /* "threads" or "proxy" */
    size_t bytes;                              /* of a message */
    double commands_per_s;                     /* that the caller issues; by a proxy they enter its ring */
    double requests, request_bytes, doorbells; /* of a message, when many are posted in turn */
    struct bench_times completion;             /* from the post of one message until it is complete */
    double device_us;                          /* the device's part of that: from the doorbell to the completion */
    bool verified;
};

/* The ways that take turns; base and flag may be NULL. */
struct rma_contest {
    const struct bench_world *world;
    const struct bench_options *options;
    struct rma_way *expar, *base, *flag;
    const char *transport, *base_name;
    bool network; /* operations take microseconds: fewer of them a turn */
    /* the network's device is one in software: its bytes a second tell nothing, and it has no baseline */
    bool software;
    bool proxy; /* a proxy posts */
};
/* Measures an operation. Collective. False after saying why not. */
bool rma_measure(const struct rma_contest *contest, const struct rma_kind *kind, size_t bytes,
                 struct rma_result *result);

/* ---- producer.c -------------------------------------------------------------------------------------------------- */

/* Measures puts of that size from rank 0 to the last one. Collective. False after saying why not. */
bool rma_measure_producer(const struct rma_contest *contest, size_t bytes, struct rma_producer *out);

/* ---- options.c --------------------------------------------------------------------------------------------------- */

/* These check options for bench/options.c. They reject what is wrong, as argp does. */
void rma_parse_sizes(struct argp_state *state, struct rma_options *options, const char *text);
void rma_options_check(struct argp_state *state, struct bench_options *options);
/* Returns whether `name` is one of the names in `list`, which commas divide. */
bool rma_list_has(const char *list, const char *name);
/* Returns whether the options ask for an operation. */
bool rma_wants(const struct rma_options *options, const struct rma_kind *kind);

/* ---- report.c ---------------------------------------------------------------------------------------------------- */

/* The link of a transport, for people; name NULL ends a list. */
struct rma_transport_note {
    const char *name;
    char text[256];
};
/* All results of a run. */
struct rma_results {
    const struct rma_transport_note *notes;
    const struct rma_result *list;
    int count;
    const struct rma_producer *producers;
    int num_producers;
};
/* Prints results, as bench_report does. */
bool rma_report(const struct bench_options *options, const struct rma_results *results);

#endif
