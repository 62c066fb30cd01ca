/* SPDX-License-Identifier: Apache-2.0 */
/* frame: the parts of the benchmark that both modes share. On the way of a run:
 *
 *   run.c        the cases, one after another          routing.c, npy.c    the routing
 *   session.c    memory and objects of one case        problem.c           consequences of the routing
 *   isolated.c   calls beside their limits, in turns   pattern.c           contents of rows, and sums of them
 *   loops.c      calls back to back                    measure.c, loop.c   turns, clocks, the times of all ranks
 *   late.c       where a call's time goes on GPUs      nodes.c, network.c  traffic across nodes
 *   links.c      bytes and messages over each link     memory.c            whether there is enough memory
 *   view.c       a result's words and numbers          report.c, json.c    tables and CSV, JSON
 *   verdict.c    the sentence that judges them         output.c            where they go
 *   period.c     pairs of calls back to back
 *
 * A mode is a table: normal/mode.c, low_latency/mode.c. The frame knows neither of them. Called through bench/bench.h;
 * calls the public interface of the library. */
#ifndef EXPAR_BENCH_FRAME_SESSION_H
#define EXPAR_BENCH_FRAME_SESSION_H

#include "bench/frame/late.h"
#include "bench/frame/links.h"
#include "bench/frame/period.h"
#include "bench/frame/problem.h"
#include "bench/frame/results.h"

struct ll_format; /* low_latency/format.h */
struct ll_layout; /* low_latency/mode.h */
struct bench_mode;

/* ---- sessions ---------------------------------------------------------------------------------------------------- */

/* The memory and objects of one shape, shared by its cases. Tensors lie where world->device has them. */
struct bench_session {
    const struct bench_world *world;
    const struct bench_options *options;
    const struct bench_mode *mode;
    struct problem *problem;
    int number, count; /* this is the session `number` of the run's `count` */
    int workers;       /* threads or SMs of a rank */
    int given_workers; /* the same, if they were asked for; else 0 */
    void *x;           /* [T][H] */
    void *y;           /* [T][H] */
    int32_t *idx;      /* [T][K] */
    float *weights;    /* [T][K] */
    /* Input of isolated combines. Normal mode: [largest R][H] in symmetric memory. Low latency: [L][N*B][H], and only
       rows that are there are ever touched. */
    void *rows;
    void *baseline; /* of world->baseline; NULL: none, or not of these rows */

    /* Normal mode alone. */
    expar_ep *ep;
    float *scales; /* [T][S] of 8-bit rows, else NULL */
    void *pushed;  /* target of pushing copies; on the CPU it is `rows`, since its copies of a combine only read */
    void *copies;  /* of the site */

    /* Low latency alone. */
    expar_ll *ll;
    const struct ll_format *format;
    struct ll_layout *layout;
    size_t rows_bytes;
    void *global_scale; /* of NVFP4: [1] f32 on the device */
    void *trip;         /* of the device's ll_place; NULL: one rank alone */
};

/* The form of rows: their type, and with low latency how they travel. */
struct bench_rows {
    expar_dtype dtype;
    const struct ll_format *format;
};

#define BENCH_LABEL_BYTES 96
/* Writes what a waiting user is told: the call, its tokens, and of several sessions which one this is. */
void bench_session_label(const struct bench_session *session, const char *call, char label[BENCH_LABEL_BYTES]);

/* Checks the memory of a session before it is opened. Collective. */
bool bench_session_check(struct bench_session *session, const struct bench_rows *rows, int64_t tokens, int workers);
/* Opens a session. False after some rank said why not. The session must be closed in any case. Collective. */
bool bench_session_open(struct bench_session *session, const struct bench_rows *rows, int64_t tokens, int workers);
/* Closes a session. After a failure (not sound) it makes no collective call. */
bool bench_session_close(struct bench_session *session, bool sound);
expar_tensor bench_tensor(const struct bench_world *world, const void *data, expar_dtype dtype, int64_t rows,
                          int64_t columns);

/* Writes a tensor's bytes: `write` fills the draft. False after saying why not. */
typedef void bench_write(const struct bench_session *session, const void *how, void *draft);
bool bench_session_write(const struct bench_session *session, void *data, size_t bytes, bench_write *write,
                         const void *how);
/* Fills x with rows of this rank's tokens, by their keys (problem.h). The next function fills y with contents that no
   call writes. */
bool bench_fill_x(const struct bench_session *session, uint64_t salt);
bool bench_spoil_y(const struct bench_session *session);
/* The salts of two fillings that differ everywhere. The first is verified before the measurement, the second is
   measured. */
uint64_t bench_first_salt(const struct bench_session *session);
uint64_t bench_measured_salt(const struct bench_session *session);
/* Prints on stderr the error in an output; returns false. */
__attribute__((format(printf, 2, 3))) bool bench_wrong(const struct problem *problem, const char *format, ...);

/* ---- memory.c ---------------------------------------------------------------------------------------------------- */

/* Checks that the memory of a session whose problem is known is there on all ranks. False: one of them has said what is
   missing. Collective. */
bool bench_memory_check(const struct bench_session *session);

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* The kind of a call. */
struct bench_kind {
    enum bench_pattern pattern;
    bool dispatches, combines; /* both: a layer or a pair, in loops alone */
    bool cached;               /* normal mode: its dispatch repeats an earlier one */
    bool reduced, hooked;      /* low latency: its sum; whether it receives by a hook */
};

/* Calls of one kind. A mode's calls begin with it. */
struct bench_call {
    struct bench_session *session;
    struct bench_kind kind;
    const char *op;
    bool verified;
    /* For loops: called after the dispatch of a pair, before its combine; NULL: nothing to do. */
    bool (*between)(void *context);
    void *between_context;
    /* For isolated calls. */
    bool unreported;                   /* it takes turns for another result */
    uint64_t count;                    /* calls so far */
    double *series_us;                 /* a contender's */
    struct bench_late late, late_send; /* of its last kernel; of the first of two */
    struct bench_traffic traffic;      /* of the last call that was one */
};

/* Isolated calls of one operation and sum, and what they are compared with. */
#define BENCH_CONTEST_CALLS 2
struct bench_contest {
    struct bench_session *session;
    struct bench_call *calls[BENCH_CONTEST_CALLS];
    int num_calls;
    void *limit; /* of the mode */
    /* The rest is isolated.c's: in its list; NULL: not there. */
    struct contender *own[BENCH_CONTEST_CALLS][2], *copies, *of_baseline; /* own: the call; sending and receiving */
    int num_copies;
    bool baseline_verified, verified; /* limit, baseline, counts; on all ranks */
};
/* Common to all calls of a contest. */
static inline const struct bench_kind *bench_contest_kind(const struct bench_contest *contest)
{
    return &contest->calls[0]->kind;
}

/* Calls and all that they are compared with take turns within each iteration. A first call with other contents is
   verified in full before the measurement, so that bytes which a later call left unwritten cannot look right. A call
   right after the measured ones is verified again. Appends the results. Collective; false after saying why they cannot
   be had. */
bool bench_isolated(struct bench_contest *contests, int count, struct bench_results *results);
/* Loops of one kind of call: outputs are released at once, and contents change before the loop that is checked. Appends
   its result; the same. */
bool bench_loops(struct bench_call *call, struct bench_results *results);

/* Returns true, or what the call's `between` says. */
static inline bool bench_between(const struct bench_call *call)
{
    return !call->between || call->between(call->between_context);
}

/* A result of the call, with all that does not come from times; NULL after saying why not. Collective. */
struct bench_result *bench_result_of(const struct bench_call *call, struct bench_results *results);

/* ---- modes ------------------------------------------------------------------------------------------------------- */

/* The code that users would write instead. All ranks call each function together. */
struct bench_received {
    const void *rows;                 /* of the last dispatch, in its layout */
    const int32_t *counts, *src_info; /* low latency alone */
};
struct bench_baseline {
    void *(*open)(const struct bench_session *session); /* NULL: no memory */
    bool (*dispatch)(void *self);
    struct bench_received (*received)(const void *self);
    bool (*combine)(void *self, bool reduced, void *y); /* of the session's rows */
    void (*settle)(void *self); /* not timed: waits until the last call has ended on all ranks, after each */
    void (*close)(void *self);
};

struct bench_mode {
    enum bench_mode_number number;
    const char *name;  /* "normal", "low_latency" */
    const char *title; /* before the number of ranks in the table's first line: "", "low-latency mode, " */
    const char *label; /* before the operation in the line of progress: "", "ll " */
    bool settled;      /* all contenders are: calls take less than a rank needs to wake up */
    const struct bench_spans *spans;
    const struct bench_report *report; /* frame/report.h */

    /* Lists the kinds of rows that are asked for, in order, and returns their number. */
    int (*list_rows)(const struct bench_options *options, struct bench_rows *rows);
    /* These measure all isolated cases of the session, and all loops. */
    bool (*isolated)(struct bench_session *session, struct bench_results *results);
    bool (*loops)(struct bench_session *session, struct bench_results *results);

    /* These create the mode's tensors (local), create the buffer (collective), and destroy both. False after saying why
       not. */
    bool (*make)(struct bench_session *session);
    bool (*create)(struct bench_session *session);
    bool (*end)(struct bench_session *session);
    /* Returns the bytes that the mode takes for a session on this rank, tensors of all modes apart. NULL: not known. */
    uint64_t (*bytes)(const struct bench_session *session);
    bool (*has_baseline)(const struct bench_session *session); /* for these rows; NULL: for all */

    /* Prepares arguments, and the handle for combines without a dispatch. Collective. */
    bool (*open)(struct bench_call *call);
    void (*close)(struct bench_call *call);
    /* Fills the contents that calls carry. Local. */
    bool (*fill)(const struct bench_call *call, uint64_t salt);
    /* Contenders' run: a dispatch or combine, or its sending phase, and with a hook its other phase. */
    bool (*dispatch)(void *call);
    bool (*combine)(void *call);
    bool (*receive)(void *call);
    /* A loop's call (frame/loop.h), and the function after each of its turns. */
    bool (*in_loop)(struct bench_call *call, expar_event **event);
    bool (*ended)(struct bench_call *call, int turn);
    /* Checks outputs in the device's memory, and the baseline's; says what is wrong. */
    bool (*verify)(const struct bench_call *call, uint64_t salt);
    bool (*verify_baseline)(const struct bench_call *call, uint64_t salt);
    /* Releases the last call's outputs, and checks the counts of isolated calls. */
    void (*release)(struct bench_call *call);
    /* Returns whether the calls have sent what the routing demands: rows to other nodes; rows and messages of all calls
       of some contests. NULL: nothing is counted. */
    bool (*sent_right)(const struct bench_call *call);
    bool (*counts_right)(const struct bench_contest *contests, int count);
    /* Adds what a call of all ranks carries over each link (frame/links.h), by the routing; NULL: it is not known. */
    void (*flows)(const struct bench_call *call, struct bench_flow *flow);
    /* Messages of a call of this rank, and bytes of their rows. */
    void (*amounts)(const struct bench_call *call, double *messages, double *bytes);
    /* Adds the rest of a result, such as the path of rows. Collective. */
    bool (*describe)(const struct bench_call *call, struct bench_result *result);

    /* The copies that isolated calls are compared with; NULL: nothing to do. limit_open is collective. */
    bool (*limit_open)(struct bench_contest *contest);
    int (*limit_add)(struct bench_contest *contest, struct contender *contenders);
    bool (*limit_refill)(struct bench_contest *contest);
    bool (*limit_verify)(const struct bench_contest *contest, uint64_t salt);
    void (*limit_free)(struct bench_contest *contest, bool sound);
    /* add_others adds contenders outside of the contests, and returns their number. The next function adds their times
       to a result. NULL: there are none. */
    int (*add_others)(const struct bench_session *session, struct contender *contenders);
    void (*note_others)(const struct bench_session *session, const struct contender *others,
                        struct bench_result *result);
};

static inline const struct bench_site *bench_site_of(const struct bench_session *session)
{
    return session->world->device->sites[session->mode->number];
}
/* Measures all that the options ask for in the mode, and prints it from rank 0. Returns the exit code. Collective. */
int bench_run_mode(const struct bench_world *world, const struct bench_options *options, const struct bench_mode *mode);

#endif
