/* SPDX-License-Identifier: Apache-2.0 */
/* Cases in which a rank, the victim, kills or stops itself in a phase of low-latency calls. They run on ranks that are
 * processes, several cases side by side. The tests check the results. */
#ifndef TESTS_EP_LOW_LATENCY_STRIKE_H
#define TESTS_EP_LOW_LATENCY_STRIKE_H

#include "ep/harness/ranks.h"

#include <expar/low_latency.h>
#include <stdatomic.h>

enum { STRIKE_RANKS = 3, STRIKE_ROUND = 2, STRIKE_MOST = 6 /* cases side by side */ };
/* The time-out of the others while a victim is stopped: silence is longer all the same. */
#define STRIKE_SILENCE_MS 1500

/* All make rounds of a dispatch and a combine, each with a hook but where the case says otherwise. In STRIKE_ROUND the
   victim strikes itself in the phase of the case, at one of its steps, or, if the phase has fewer, after it. */
typedef enum strike_phase {
    SENDS_THERE,
    OPEN_THERE,
    RECEIVES_THERE,
    SENDS_BACK,
    OPEN_BACK,
    RECEIVES_BACK,
    PHASES,
    CLEANS = PHASES /* a clean before the round */
} strike_phase;

typedef struct strike_case {
    int32_t victim;
    strike_phase phase;
    int32_t step;
    int signal; /* SIGKILL, SIGSTOP, or 0: the thread that takes the step stands still, and goes on soon */
    bool ahead; /* combines are reduced, and their weights go ahead: the send waits for others, and there is no hook */
    bool whole; /* the call of the phase has no hook. The others begin theirs when the victim has struck itself
                   in its wait for them: at the step, on GPUs at any place of the wait */
    bool wakes; /* SIGSTOP: goes on when the others have ended */
    bool posts; /* steps count up to the call's end: of kernels they may come after their phase */
    bool late;  /* SIGSTOP: goes on soon. Then, and if `signal` is 0, all calls end well */
} strike_case;

/* The start of a test's table, in memory that all ranks and the parent share. */
typedef struct strike_table {
    strike_case what;
    _Atomic int32_t struck; /* 1: the victim is about to strike itself. Written by it, read by the others */
} strike_table;

/* ---- a rank ------------------------------------------------------------------------------------------------------ */

/* The start of a rank's own state. */
typedef struct strike_seat {
    strike_table *table;
    expar_group *group;
    expar_ll *ll;
    int32_t rank, round;
    _Atomic int32_t steps_left; /* of the victim, in its phase; any of its threads lowers it */
} strike_seat;

strike_seat strike_sit(expar_group *group, strike_table *table);
bool strike_is_victim(const strike_seat *seat);
/* Whether the call whose send that is has no hook in a round in which the victim may strike itself. */
bool strike_without_hook(const strike_case *what, strike_phase send);
/* Before and after a phase, of each rank. Others than the victim come to the phase, where it is stopped or waits for
   them, when it is about to strike itself: so nobody is late but the victim. In a clean it waits for them. */
void strike_enter(strike_seat *seat, strike_phase now);
void strike_leave(strike_seat *seat, strike_phase now);
/* A millisecond. */
void strike_nap(void);

/* ---- the parent -------------------------------------------------------------------------------------------------- */

typedef struct strike_show {
    ranks_host host;
    strike_table *table;
    pid_t pids[STRIKE_RANKS];
} strike_show;

typedef struct strike_trial {
    size_t table_bytes;
    int32_t side_by_side; /* so many cases, STRIKE_MOST at most; on GPUs, which all their ranks share, one */
    ranks_body body;      /* of each rank; its argument is the table, whose rest was set to 0 */
    void (*prepare)(strike_table *table);     /* NULL: nothing */
    void (*attend)(const strike_show *show);  /* while all cases go on: NULL: nothing */
    bool (*see_out)(const strike_show *show); /* waits for all ranks, and says what is wrong */
} strike_trial;

/* Lets a victim of a case with `late` go on (strike_trial.attend). */
void strike_wake_late(const strike_show *show);
/* A line about a case that went wrong. */
void strike_tell(const strike_case *what);
void strike_trial_all(const strike_trial *trial, const strike_case *cases, int32_t count);
/* In each phase, by one victim at one step. */
void strike_trial_phases(const strike_trial *trial, int32_t victim, int32_t step, int signal, bool wakes);
/* At the first step, in the header's words, after them, among the rows, and after all; in each phase. */
void strike_trial_killed(const strike_trial *trial);
/* In the header's words, among the rows, before its hook, and at the acknowledgement. On GPUs the threads take these
   steps that pass data to a network. With EXPAR_TEST_QUICK one place serves for those that end well. */
void strike_trial_posts(const strike_trial *trial, int signal, bool late);
/* While weights go ahead: among the headers, the weights, and the rows. */
void strike_trial_ahead(const strike_trial *trial, int signal);
/* The victim's messages are with the others; it waits for theirs. */
void strike_trial_waits(const strike_trial *trial, int signal);
/* How many of so many victims or steps are run. Nobody counts a kernel's steps: there each rank is the victim once, or
   where EXPAR_TEST_QUICK asks for it one is. */
int32_t strike_victims_of(size_t steps);

#endif
