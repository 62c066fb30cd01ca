/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of this folder, of pgas and of others run on thread ranks. With the argument `processes` they run on process
 * ranks. With `mix` they run on process ranks of several simulated nodes, so that each rank reaches some by loads and
 * stores and others by the network. */
#ifndef TESTS_SHMEM_KIND_H
#define TESTS_SHMEM_KIND_H

#include "ep/harness/check.h"
#include "ep/harness/ranks.h"
#include "group/group.h"
#include "netns/netns.h"

#include <expar/interrupt.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static ranks_kind kind_of_ranks = RANKS_THREADS;
static bool kind_is_mix = false;

static inline void kind_read(int argc, char **argv)
{
    kind_is_mix = argc > 1 && strcmp(argv[1], "mix") == 0;
    if (kind_is_mix || (argc > 1 && strcmp(argv[1], "processes") == 0)) kind_of_ranks = RANKS_PROCESSES;
}

/* Two nodes, or nodes of one rank where the ranks do not make two. */
static inline int32_t kind_ranks_per_node(const ranks_plan *plan)
{
    if (!kind_is_mix || plan->ranks_per_node > 0) return plan->ranks_per_node;
    return plan->size % 2 == 0 ? plan->size / 2 : 1;
}

/* For waits that are to end by silence: only once the ranks have met, so that nothing else does on a busy machine. Late
   ranks are waited for all the same. */
static inline void kind_set_silence(expar_group *group, int64_t timeout_ms)
{
    group->sym->timeout_ms = group->sym->site.timeout_ms = timeout_ms;
    group->boot->timeout_ms = timeout_ms;
}

/* The same for waits that are to end in any case. */
static inline void kind_set_timeout(expar_group *group, int64_t timeout_ms)
{
    kind_set_silence(group, timeout_ms);
    group->boot->late_limit_ms = timeout_ms;
}

/* Ranks that wait in one call for one that does not come there. The late limit that ends their waits begins when all of
   them wait, and each has heard what those before it had to tell. So only that one is late, on a busy machine, too. In
   memory that all share. */
#define KIND_LOOKS 8
typedef struct kind_vigil {
    int32_t size; /* who wait; set before the ranks are made */
    /* Ranks that have looked so often, and one time more, in vain, each time since all had looked one time less. Raised
       by each rank once, read by all. */
    _Atomic int32_t looked[KIND_LOOKS];
} kind_vigil;

/* One rank's own. Touched by its own waits alone. */
typedef struct kind_watcher {
    expar_group *group;
    kind_vigil *vigil;
    int32_t looks;
} kind_watcher;

/* Asked by each wait about every 50 ms, after a look at what it waits for. */
static inline int kind_look(void *context)
{
    kind_watcher *own = context;
    if (own->looks > 0 && atomic_load(&own->vigil->looked[own->looks - 1]) < own->vigil->size) return 0;
    if (own->looks < KIND_LOOKS)
        atomic_fetch_add(&own->vigil->looked[own->looks++], 1);
    else
        own->group->boot->late_limit_ms = 1;
    return 0;
}

/* For the calls of this thread, until the end; the watcher stays until then. */
static inline void kind_watch_begin(kind_watcher *own, expar_group *group, kind_vigil *vigil)
{
    *own = (kind_watcher){.group = group, .vigil = vigil};
    expar_interrupt_set_thread(kind_look, own);
}

static inline void kind_watch_end(const kind_watcher *own)
{
    expar_interrupt_set_thread(NULL, NULL);
    own->group->boot->late_limit_ms = RANKS_TIMEOUT_MS;
}

/* Until `count` other ranks wait in this topic, and have for so long. Its number may be any (UINT64_MAX), and its kind
   too (BOOT_KIND_ALL): whatever keeps the thread that called last. */
static inline bool kind_await_waiting(const expar_group *group, const boot_topic *topic, int32_t count,
                                      int64_t waited_ns)
{
    enum { MOST = 16 };
    const int64_t until_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    bool waits[MOST] = {false};
    int32_t waiting = 0;
    while (waiting < count && ranks_clock_ms() < until_ms) {
        boot_answer replies[MOST] = {{0}};
        for (int32_t r = 0; r < group->size; r++)
            replies[r].asked = r != group->rank && !waits[r];
        group->boot->ops->ask(group->boot, topic, replies, INT64_C(1000000000));
        for (int32_t r = 0; r < group->size; r++) {
            if (!replies[r].came || !replies[r].waits || replies[r].waited_ns < waited_ns) continue;
            waits[r] = true;
            waiting++;
        }
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    return CHECK(waiting >= count, "%d wait", waiting);
}

/* Runs the body on `size` ranks with the other members of *plan as given. */
static inline void kind_run(ranks_plan plan, int32_t size, ranks_body body)
{
    plan.kind = kind_of_ranks;
    plan.size = size;
    plan.ranks_per_node = kind_ranks_per_node(&plan);
    assert_true(ranks_run(&plan, body, NULL));
}

/* With a variable in the environment, for these ranks alone. */
static inline void kind_run_with(const char *variable, const char *value, int32_t size, ranks_body body)
{
    const ranks_plan plan = {.kind = kind_of_ranks, .size = size};
    setenv(variable, value, 1);
    bool passed = ranks_run(&plan, body, NULL);
    unsetenv(variable);
    assert_true(passed);
}

#endif
