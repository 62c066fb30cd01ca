/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of a group of processes comes to grief; the others report what they saw.
 *
 * All ranks work in a loop of dispatches and combines, for ever. The victim ends or stops at a place that the plan
 * names, or when the parent says so. Everybody else must get an error that names it, get the same error again at once,
 * destroy buffer and group, and end; or end at once. */
#ifndef TESTS_FAULTS_FAULT_H
#define TESTS_FAULTS_FAULT_H

#include "ep/harness/check.h"
#include "ep/harness/ranks.h"
#include "ep/harness/traffic.h"
#include "oracle/unit.h"
#include <stdatomic.h>

#define FAULT_MAX_RANKS    8
#define FAULT_MOST_AT_ONCE 3
/* Survivors must have ended by then; they are expected to need less than a second. */
#define FAULT_DEADLINE_MS 60000

/* Where a rank stands; grows as it goes on. */
typedef enum fault_place {
    FAULT_STARTED,    /* the process runs */
    FAULT_JOINED,     /* expar_group_create returned */
    FAULT_CREATED,    /* expar_ep_create returned */
    FAULT_DISPATCHES, /* about to dispatch, or in it */
    FAULT_COMBINES,   /* about to combine, or in it */
    FAULT_LEAVES,     /* about to destroy buffer and group, or in it */
    FAULT_ENDED
} fault_place;

struct cpu_executor;

/* Work of a rank in a round, other than a dispatch and a combine of few rows in the tests' own memory. */
typedef struct fault_load {
    int64_t num_tokens; /* of each rank */
    int32_t hidden;
    /* Argument of the other two; stays until the process ends. */
    void *(*open)(expar_ep *ep, const traffic *t, int32_t rank);
    /* The status of the first call that fails. */
    expar_status (*trial)(void *work, expar_ep_path path);
    /* Once a call has failed: that what the rank works on serves other work. Counts failed checks. */
    void (*look)(void *work, const expar_group *group);
} fault_load;

typedef struct fault_plan {
    int32_t size, victim;
    int32_t ranks_per_node; /* 0: the library finds out */
    fault_place place;      /* the victim comes to grief here, if `by_itself`; else the parent strikes at any moment */
    bool by_itself;         /* right before the call of that place, or inside of it: */
    /* NULL; or, of the executor's state, what the victim has done of something. It comes to grief inside the call, at
       the first step where this is more than 0, having been 0 there before. Called by any of its threads. */
    int64_t (*inside)(const struct cpu_executor *cpu, uint32_t epoch);
    /* NULL; or called by the victim before it joins. It comes to grief when strike(worker) is called, from anywhere
       inside expar_group_create. */
    void (*forming)(void (*strike)(const void *worker), const void *worker);
    /* With `inside`: in that round or a later one, the first in which it happens so. */
    bool any_round;
    int64_t round; /* in this round of the loop; the others leave after it when the place is FAULT_LEAVES */
    /* Rank that waits before the call of that place until the victim was struck inside it; -1: none. */
    int32_t held_back;
    int signal;               /* SIGKILL or SIGSTOP */
    int64_t delay_us;         /* the parent strikes so long after all have started */
    bool in_passing;          /* or so long after the victim has begun that round, wherever it is by then */
    int64_t timeout_ms;       /* SIGSTOP: of the survivors from that place on, where they all wait until the victim has
                           stopped, so that nobody else is late; 0: that of the group */
    int64_t group_timeout_ms; /* of all from the start; 0: the default */
    int64_t bootstrap_timeout_ms; /* 0: 3000, or where all join one that a test does not reach */
    expar_ep_path path;
    expar_ep_nodes_sum nodes; /* of combines */
    /* Survivors end with their first error, as engines do, and say no good-bye. */
    bool ends_at_once;
    bool wake;              /* SIGSTOP: the victim goes on when all others have ended */
    bool late;              /* SIGSTOP: it goes on soon, and all end well two rounds later */
    const fault_load *load; /* NULL: a dispatch and a combine of few rows */
} fault_plan;

/* One rank's, in memory that all processes share. Written by the rank, read by the parent when it has ended; place is
   read by anybody at any time. */
typedef struct fault_report {
    _Atomic int32_t place;
    _Atomic int64_t round;
    expar_status status; /* of the call that failed */
    int64_t failed_ms;   /* when */
    char text[1024];
    expar_status again; /* of the next call on the buffer */
    char again_text[1024];
    int64_t again_us; /* how long it took */
} fault_report;

typedef struct fault_mailbox {
    const fault_plan *plan;
    const traffic *traffic;
    expar_unique_id id;
    _Atomic int32_t struck; /* 1 when the victim has been killed or stopped; written by the parent, read by the ranks */
    int64_t struck_ms;
    fault_report reports[FAULT_MAX_RANKS];
} fault_mailbox;

/* Carries out the plan and checks what the survivors say; prints how long they took. True when all was right. */
bool fault_run(const fault_plan *plan);
/* So many plans side by side, at most FAULT_MOST_AT_ONCE: for those whose ranks mostly wait. */
bool fault_run_all(const fault_plan *plans, int32_t count);
/* The work of one rank (fault_rank.c). The process ends with it. */
_Noreturn void fault_rank(fault_mailbox *mailbox, int32_t rank);
/* Rows for all ranks, the same in every plan of this size and load. */
traffic *fault_traffic(const fault_plan *plan);
const char *fault_place_name(fault_place place);

#endif
