/* SPDX-License-Identifier: Apache-2.0 */
/* Segments: memory of the caller's that peers read where it lies, so that a combine need not copy its rows.
 *
 * A segment is one allocation of the caller's, such as a segment of PyTorch's allocator. Each home (home.c) has a table
 * of this rank's segments (segments.c), and the mappings that it has of its peers' (segments_peer.c). No call waits for
 * a mapping: the first call with rows in a new segment asks the peers for one, and copies its rows. Each peer finds the
 * request in shared host memory, at the next call or beat of its guard, and has a thread of the library's open the
 * allocation. Once all peers have answered, calls offer the rows where they lie.
 *
 * An offer's offset counts from the provider's heap as the reader maps it, modulo 2^64. So each peer answers with the
 * distance from there to the segment (the shift), and readers need not know what lies at an offset.
 *
 * A segment that was freed is known by the driver's number of its allocation, and is not used again. Peers close a
 * mapping once the calls that read by it have ended in stream order. */
#ifndef EXPAR_EXEC_CUDA_CORE_SEGMENTS_H
#define EXPAR_EXEC_CUDA_CORE_SEGMENTS_H

#include "exec/normal.h"
#include "shmem/device_heap.h"

#include <pthread.h>
#include <stdatomic.h>

enum { SEGMENTS = 64 };

/* ---- what ranks share -------------------------------------------------------------------------------------------- */

/* A block of the symmetric heap of the host, the same on all ranks. The owner posts its segments in its own copy, and
   each peer answers there. A word is a number << 2 | segment_kind; the owner numbers what it opens, from 1. */
typedef enum segment_kind {
    SEGMENT_NONE = 0,
    SEGMENT_OPEN = 1,    /* post: peers are to open it; answer: the peer has */
    SEGMENT_REFUSED = 2, /* answer: the peer cannot */
    SEGMENT_CLOSED = 3   /* post: peers are to close it; answer: the peer has it no more */
} segment_kind;

/* Written by the owner, `word` last (release); read by peers once they have seen the word (acquire). The handle changes
   when all peers have answered that the one before is closed. */
typedef struct segment_post {
    _Atomic uint64_t word;
    cu_ipc_memory handle;
} segment_post;

/* Written by one peer, `word` last (release); read by the owner (acquire). */
typedef struct segment_answer {
    _Atomic uint64_t word;
    uint64_t shift;
} segment_answer;

/* Followed in memory by answers[SEGMENTS][N]. */
typedef struct segment_board {
    /* 1: this rank opens segments of others. Written once (release), read by owners (acquire). */
    _Atomic uint64_t serves;
    /* Posts so far. Raised by the owner after each post (release), read by peers (acquire). */
    _Atomic uint64_t posted;
    segment_post posts[SEGMENTS];
} segment_board;

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
    SEGMENT_ASKED,    /* not all peers have answered */
    SEGMENT_MAPPED,   /* calls use it */
    SEGMENT_UNMAPPED, /* some peer cannot map it, or the driver gives no handle: its rows are copied */
    SEGMENT_STALE,    /* freed, or given up: calls that are under way may use it */
    SEGMENT_CLOSING   /* not all peers have closed it */
} segment_state;

typedef struct segment {
    segment_state state;
    cu_address base;
    uint64_t bytes;
    uint64_t allocation; /* by the driver's number: another one at the same address has another number */
    uint64_t number;     /* of its post */
    uint64_t used;       /* gpu_segments.calls at the last use */
    int32_t holders;     /* mappings that calls have */
    cuda_mark *mark;     /* STALE: after the last call that may use it; NULL: not put yet */
    uint64_t *shifts;    /* [N] MAPPED */
} segment;

/* How peers come to a segment. */
typedef enum segment_reach {
    SEGMENTS_NEVER,     /* not at all: they are switched off, or there is no shared memory for them */
    SEGMENTS_HERE,      /* all ranks use this rank's context */
    SEGMENTS_BY_ACCESS, /* threads, whose contexts have access to each other */
    SEGMENTS_BY_HANDLE  /* processes, which open handles */
} segment_reach;

/* A segment of a peer's, as this rank has opened it. */
typedef struct opened_segment {
    uint64_t word;      /* of the post that was answered last */
    cu_address address; /* 0: none */
} opened_segment;

typedef struct gpu_segments {
    cuda_task task; /* serves; queued while `serving` */
    sym *sym;
    int32_t rank, size; /* of sym, which may go before a task that is queued */
    device_heap *heap;
    cuda_device *device; /* held */
    segment_reach reach;
    uint64_t offset;     /* of the board in the heap of the host; 0: none */
    atomic_int holders;  /* the home, and a task that is queued; who drops the last one (acquire, release) frees it */
    atomic_bool serving; /* a task is queued: set by who queues it (acquire), cleared by the task (release) */
    /* A call of this rank's has ended before its peers did: what they map stays. By any thread (relaxed: it is set
       before the call ends, and looked at after that end). */
    atomic_bool frozen;
    pthread_mutex_t lock; /* guards the table, and what stands below it */
    segment table[SEGMENTS];
    uint64_t *shifts;           /* [SEGMENTS][N] of the table */
    uint64_t calls;             /* that have looked for their rows */
    uint64_t numbers;           /* given out */
    int32_t unsettled;          /* segments that are ASKED, STALE or CLOSING */
    bool all_serve;             /* all peers open segments: seen once */
    pthread_mutex_t peers_lock; /* guards what stands below it; held while peers' segments are opened and closed */
    bool closed;                /* the home has gone */
    opened_segment *opened;     /* [N][SEGMENTS] */
    _Atomic uint64_t *seen;     /* [N] board.posted of a peer that has been answered. By the task, read by the guard;
                               relaxed: a look too many does no harm */
} gpu_segments;

static inline segment_board *segments_board(const gpu_segments *self, int32_t rank)
{
    return sym_at(self->sym, rank, self->offset);
}
static inline segment_answer *segments_answer(const gpu_segments *self, int32_t owner, int32_t place, int32_t peer)
{
    segment_answer *first = (segment_answer *)(segments_board(self, owner) + 1);
    return &first[place * self->size + peer];
}

/* ---- segments.c -------------------------------------------------------------------------------------------------- */
/* Collective, with the home. No rank looks for segments before all ranks have met once more. */
expar_status gpu_segments_make(sym *symmetric, device_heap *heap, gpu_segments **out);
/* Collective if quiet: as in device_heap_destroy. NULL is allowed. */
void gpu_segments_end(gpu_segments *self, bool quiet);
/* Gives a hold back that a task had. */
void gpu_segments_drop(gpu_segments *self);
/* True when all ranks read the range where it lies. If not, peers may be asked to map it. Waits for nobody. */
bool gpu_segments_find(gpu_segments *self, const void *data, uint64_t bytes, exec_mapping *out);
void gpu_segments_release(gpu_segments *self, exec_mapping *mapping);
/* A combine has been put on the stream, after all earlier calls of this rank. */
void gpu_segments_follow(gpu_segments *self, void *stream);
/* Any thread; NULL is allowed. */
void gpu_segments_freeze(gpu_segments *self);

/* ---- segments_peer.c --------------------------------------------------------------------------------------------- */
/* By the guard, and by calls: has what peers have posted opened or closed. Calls no driver, and waits for nobody. NULL
   is allowed. */
void gpu_segments_serve(gpu_segments *self);
/* Nothing is opened any more; quiet: what was opened is closed. */
void gpu_segments_close_peers(gpu_segments *self, bool quiet);

#endif
