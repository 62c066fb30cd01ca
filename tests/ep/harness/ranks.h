/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a body on every rank of a group, as threads of this process or as forked processes. */
#ifndef TESTS_EP_HARNESS_RANKS_H
#define TESTS_EP_HARNESS_RANKS_H

#include <expar/expar.h>
#include <stdbool.h>
#include <sys/types.h>

typedef enum ranks_kind { RANKS_THREADS, RANKS_PROCESSES } ranks_kind;

/* Uses check.h to report; a rank whose checks failed aborts the group, so that the others end too. `shared` is the same
   memory for threads and a copy, made by fork, for processes: it is read only. */
typedef void (*ranks_body)(expar_group *group, void *shared);

typedef struct ranks_plan {
    ranks_kind kind;
    int32_t size;
    int32_t ranks_per_node; /* 0: the library finds out */
    size_t heap_bytes;      /* 0: RANKS_HEAP_BYTES */
    expar_heap_kind heap_kind;
    int64_t timeout_ms;    /* 0: RANKS_TIMEOUT_MS */
    int64_t late_limit_ms; /* 0: RANKS_TIMEOUT_MS, so that a rank that hangs ends all the same */
    bool ends_itself;      /* the body destroys or abandons the group */
    ranks_body after;      /* with NULL for the group, once that has gone; may be NULL */
} ranks_plan;

#define RANKS_HEAP_BYTES ((size_t)256 << 20)
/* A generous deadline: only a rank that hangs meets it. */
#define RANKS_TIMEOUT_MS 90000

/* Makes the group, runs the body, destroys the group on all ranks. True when no check failed on any of them. */
bool ranks_run(const ranks_plan *plan, ranks_body body, void *shared);

/* In a body, by all ranks: a second group of theirs, to be destroyed by them. NULL: a check has failed. */
expar_group *ranks_join_again(expar_group *group);

/* ---- for tests that end ranks themselves (ranks_process.c) ------------------------------------------------------- */

/* A process that makes a unique id and serves it. The test itself then has no second thread when it forks ranks, which
 * the sanitizers' allocators need. */
typedef struct ranks_host {
    pid_t pid;
    int hold; /* the host ends when this is closed */
    expar_unique_id id;
} ranks_host;
bool ranks_host_start(ranks_host *host);
/* True when it served and ended without trouble. */
bool ranks_host_stop(ranks_host *host);

/* For who forks ranks himself: what their network's library takes long to find out is found out here. */
void ranks_start_network(const ranks_plan *plan);
/* Forks rank `rank` of a group of processes that meet at `id`; the child never returns. -1 on error. */
pid_t ranks_fork(const ranks_plan *plan, const expar_unique_id *id, int32_t rank, ranks_body body, void *shared);
/* Joins the group of forked rank `rank`, for bodies that do it themselves. */
expar_status ranks_join(const ranks_plan *plan, const expar_unique_id *id, int32_t rank, expar_group **group);
/* Waits until the process ends, or kills it at the deadline; its wait status. *late (may be NULL) is set, never
   cleared, when it had to be killed. */
int ranks_wait(pid_t pid, int64_t deadline_ms, bool *late);
int64_t ranks_clock_ms(void);

#endif
