/* SPDX-License-Identifier: Apache-2.0 */
/* One of each kind of call in which a rank waits for others. In tests a rank is late, is interrupted, or leaves while
 * the others are in one of them. */
#ifndef TESTS_GROUP_CALLS_H
#define TESTS_GROUP_CALLS_H

#include "ep/harness/trial.h"
#include "ep/low_latency/trial.h"
#include "group/group.h"
#include "shmem/kind.h"

#define CALLS_RANKS 3
#define CALLS_LATE  2 /* who comes last: the others wait for it, and for nobody else */
#define CALLS_ITEMS ((size_t)4)

/* In every rank's heap. */
typedef struct calls_block {
    uint64_t source[CALLS_RANKS * CALLS_ITEMS], dest[CALLS_RANKS * CALLS_ITEMS];
    uint64_t mail[2], lock;
} calls_block;

/* Rows for all ranks, made before them, and what they must get. */
typedef struct calls_rows {
    traffic *t;
    answers *a;
    lowlat_traffic *lowlat; /* of low-latency mode */
    lowlat_answers *exact, *reduced;
} calls_rows;
calls_rows calls_rows_make(void);
void calls_rows_free(calls_rows *rows);

/* One rank's view. */
typedef struct calls_view {
    expar_group *group;
    const calls_rows *rows; /* NULL: there are no buffers */
    calls_block *b;
    expar_team *world;
    void *spare;          /* for expar_free */
    expar_ep *ep;         /* of the calls with rows */
    expar_ep *last;       /* for expar_ep_destroy; NULL once that is done */
    trial_arrival before; /* whose handle and output serve later calls */
    expar_ll *ll;         /* as ep, of low-latency calls */
    expar_ll *ll_last;    /* as last */
    lowlat_call ll_before;
} calls_view;

/* Heap for what a view has. */
#define CALLS_HEAP_BYTES ((size_t)96 << 20)
/* Collective. The late rank holds the lock from then on. */
bool calls_open(calls_view *v, expar_group *group, const calls_rows *rows);
/* Collective where the buffers are sound. What the group has it takes with it. */
void calls_close(calls_view *v);
/* Buffers in place of v->ep and v->ll; collective. */
bool calls_replace(calls_view *v);

typedef enum calls_kind {
    CALLS_CONTROL, /* over control sockets, or of threads; then the next one too */
    CALLS_HEAPS,   /* over the heaps, all ranks or a team */
    CALLS_OPEN,    /* for words: nobody in particular is awaited */
    CALLS_BUFFER,  /* of a buffer, in normal or low-latency mode */
    CALLS_EVENT,   /* likewise, with an event that is waited for */
    CALLS_END      /* of one, over control sockets: EXPAR_OK whatever becomes of the others */
} calls_kind;

typedef struct calls_call {
    const char *name;
    calls_kind kind;
    /* On EXPAR_OK it has looked that all bytes are right. The late rank does its part. */
    expar_status (*make)(calls_view *v);
    const char *said; /* what errors call it */
    bool low_latency; /* of v->ll or v->ll_last */
} calls_call;
/* This rank gives up the buffer of such a call. */
void calls_abandon(calls_view *v, const calls_call *call);
/* All of them, those of buffers last: they need rows. */
extern const calls_call calls_all[];
extern const int32_t calls_count, calls_count_without_rows;
const calls_call *calls_find(const char *name);
/* Buffers need heaps that are mapped. */
static inline bool calls_have_rows(void)
{
    return !kind_is_mix && !getenv("EXPAR_TRANSPORTS");
}

/* Among calls that are alike over a network the nights run all (EXPAR_TEST_ROUNDS). Other days run every second one and
   those for words, between two hosts every third one. */
static inline bool calls_is_of_today(int32_t i)
{
    if (calls_have_rows() || getenv("EXPAR_TEST_ROUNDS")) return true;
    return netns_on() ? i % 3 == 2 : i % 2 == 1 || calls_all[i].kind == CALLS_OPEN;
}

/* Until `count` other ranks wait for somebody, and have for so long; whatever the call. */
bool calls_await_waiting(expar_group *group, int32_t count, int64_t waited_ns);

#endif
