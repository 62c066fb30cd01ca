/* SPDX-License-Identifier: Apache-2.0 */
/* Segments: the caller's memory that peers read in place, so that a combine need not copy its rows.
 *
 * A segment is one allocation of the caller, such as a segment of PyTorch's allocator. Each per-GPU state
 * (device_state.c) has a table of this rank's segments (segments.c), and its mappings of the peers' segments
 * (segments_peer.c).
 *
 * No call waits for a mapping. The first call with rows in a new segment asks the peers for one, and copies its rows.
 * Each peer finds the request in shared host memory, at its next call or its guard's next beat. A thread of the library
 * then opens the allocation. Once all peers have answered, calls advertise the rows in place.
 *
 * The offset in a buffer advertisement counts from the provider's heap as the reader maps it, modulo 2^64. So each peer
 * answers with the distance from there to the segment (the shift), and readers need not know what lies at an offset.
 *
 * The driver gives each allocation a number. By it a segment that was freed is recognized, and it is not used again.
 * Peers close a mapping once the calls that read by it have ended in stream order. */
#ifndef EXPAR_EXEC_CUDA_CORE_SEGMENTS_H
#define EXPAR_EXEC_CUDA_CORE_SEGMENTS_H

#include "exec/normal.h"
#include "shmem/device_heap.h"

#include <pthread.h>
#include <stdatomic.h>

enum { SEGMENTS = 64 };

/* ---- what ranks share -------------------------------------------------------------------------------------------- */

/* A block of the host's symmetric heap, the same on all ranks. The owner posts its segments in its own copy, and each
   peer answers there. A word is a number << 2 | segment_kind. The owner numbers the segments that it opens, from 1. */
typedef enum segment_kind {
    SEGMENT_NONE = 0,
    SEGMENT_OPEN = 1,     /* post: peers shall open it; answer: the peer has opened it */
    SEGMENT_REJECTED = 2, /* answer: the peer cannot open it */
    SEGMENT_CLOSED = 3    /* post: peers shall close it; answer: the peer has closed it */
} segment_kind;

/* The owner writes it, `word` last (release). Peers read it after they have seen the word (acquire). The handle changes
   only after all peers have answered that the previous one is closed. */
typedef struct segment_post {
    _Atomic uint64_t word;
    cu_ipc_memory handle;
} segment_post;

/* One peer writes it, `word` last (release). The owner reads it (acquire). */
typedef struct segment_answer {
    _Atomic uint64_t word;
    uint64_t shift;
} segment_answer;

/* Answers follow in memory: answers[SEGMENTS][N]. */
typedef struct segment_mailbox {
    /* 1: this rank opens segments of others. It writes this once (release), owners read it (acquire). */
    _Atomic uint64_t serves;
    /* The number of posts so far. The owner raises it after each post (release), peers read it (acquire). */
    _Atomic uint64_t posted;
    segment_post posts[SEGMENTS];
} segment_mailbox;

static inline uint64_t segment_word(uint64_t number, segment_kind kind)
{
    return number << 2 | (uint64_t)kind;
}
static inline segment_kind segment_kind_of(uint64_t word)
{
    return (segment_kind)(word & 3);
}

/* ---- this rank's ------------------------------------------------------------------------------------------------- */

typedef enum segment_state {
    SEGMENT_EMPTY = 0,
    SEGMENT_ASKED,    /* some peer has not answered yet */
    SEGMENT_MAPPED,   /* calls use it */
    SEGMENT_UNMAPPED, /* some peer cannot map it, or the driver gives no handle: its rows are copied */
    SEGMENT_STALE,    /* freed, or given up; pending calls may use it */
    SEGMENT_CLOSING   /* some peer has not closed it yet */
} segment_state;

typedef struct segment {
    segment_state state;
    cu_address base;
    uint64_t bytes;
    uint64_t allocation; /* the driver's number: another allocation at the same address has another one */
    uint64_t number;     /* number of its post */
    uint64_t used;       /* gpu_segments.calls at the last use */
    int32_t holders;     /* mappings that calls have */
    cuda_mark *mark;     /* STALE: after the last call that may use it; NULL: not put yet */
    uint64_t *shifts;    /* [N] if MAPPED */
} segment;

/* How peers reach a segment. */
typedef enum segment_reach {
    SEGMENTS_NEVER,     /* not at all: segments are switched off, or there is no shared memory for them */
    SEGMENTS_HERE,      /* all ranks use this rank's context */
    SEGMENTS_BY_ACCESS, /* ranks are threads, whose contexts have access to each other */
    SEGMENTS_BY_HANDLE  /* ranks are processes, which open handles */
} segment_reach;

/* A peer's segment, as this rank has opened it. */
typedef struct opened_segment {
    uint64_t word;      /* word of the post that was answered last */
    cu_address address; /* 0: none */
} opened_segment;

typedef struct gpu_segments {
    cuda_task task; /* serves peers; queued while `serving` */
    sym *sym;
    int32_t rank, size; /* those of sym, which may end before a queued task */
    device_heap *heap;
    cuda_device *device; /* held */
    segment_reach reach;
    uint64_t offset; /* offset of the mailbox array in the host's heap; 0: none */
    /* One of the per-GPU state, one of a queued task. Dropping the last one (acquire, release) frees the object. */
    atomic_int holders;
    /* A task is queued. The thread that queues it sets it (acquire), the task clears it (release). */
    atomic_bool serving;
    /* A call of this rank ended before its peers ended theirs, so what they map must stay. Any thread sets it (relaxed:
       it is set before the call ends, and read after that end). */
    atomic_bool frozen;
    pthread_mutex_t lock; /* guards the table and the members below it */
    segment table[SEGMENTS];
    uint64_t *shifts;           /* [SEGMENTS][N], those of the table */
    uint64_t calls;             /* calls that have looked for their rows */
    uint64_t numbers;           /* numbers given out */
    int32_t unsettled;          /* segments that are ASKED, STALE or CLOSING */
    bool all_serve;             /* all peers open segments; kept once seen */
    pthread_mutex_t peers_lock; /* guards the members below; held while peers' segments are opened and closed */
    bool closed;                /* the per-GPU state has ended */
    opened_segment *opened;     /* [N][SEGMENTS] */
    /* [N] the last value of a peer's board.posted that was answered. The task writes it and the guard reads it
       (relaxed: an extra look does no harm). */
    _Atomic uint64_t *seen;
} gpu_segments;

static inline segment_mailbox *segments_mailbox(const gpu_segments *self, int32_t rank)
{
    return sym_at(self->sym, rank, self->offset);
}
static inline segment_answer *segments_answer(const gpu_segments *self, int32_t owner, int32_t place, int32_t peer)
{
    segment_answer *first = (segment_answer *)(segments_mailbox(self, owner) + 1);
    return &first[place * self->size + peer];
}

/* ---- segments.c -------------------------------------------------------------------------------------------------- */
/* Collective, when the per-GPU state is made: makes its segments. No rank looks for segments before all ranks have met
   once more. */
expar_status gpu_segments_make(sym *symmetric, device_heap *heap, gpu_segments **out);
/* Collective if quiet: as in device_heap_destroy. NULL is allowed. */
void gpu_segments_end(gpu_segments *self, bool quiet);
/* Drops the reference of a task. */
void gpu_segments_drop(gpu_segments *self);
/* True if all ranks can read the range in place. If not, it may ask the peers to map it. It does not wait. */
bool gpu_segments_find(gpu_segments *self, const void *data, uint64_t bytes, exec_mapping *out);
void gpu_segments_release(gpu_segments *self, exec_mapping *mapping);
/* Call this after a combine was put on the stream, after all earlier calls of this rank. Stale segments get their marks
   there. */
void gpu_segments_follow(gpu_segments *self, void *stream);
/* Any thread may call it; NULL is allowed. */
void gpu_segments_freeze(gpu_segments *self);

/* ---- segments_peer.c --------------------------------------------------------------------------------------------- */
/* Has the segments that peers have posted opened or closed. The guard and calls call it. It calls no driver and does
   not wait. NULL is allowed. */
void gpu_segments_serve(gpu_segments *self);
/* Nothing is opened from then on. quiet: the opened segments are closed. */
void gpu_segments_close_peers(gpu_segments *self, bool quiet);

#endif
