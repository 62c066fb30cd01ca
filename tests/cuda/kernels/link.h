/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of the kernels of link.cu, as host and device both see them. On the host, pointers are addresses of the
 * device, not to be followed. */
#ifndef TESTS_CUDA_KERNELS_LINK_H
#define TESTS_CUDA_KERNELS_LINK_H

#include "base/portable.h"

#define LINK_THREADS    128
#define LINK_FLAG_WORDS 16 /* of a pair: its flag and what stands beside it, and from the 8th on the receiver's word */

/* How a sender says that its row is there, and a receiver finds it. */
typedef enum link_way {
    LINK_WAY_FLAG,  /* a word, by release and acquire */
    LINK_WAY_SHORT, /* 32 bits by release; a relaxed load, and a fence after it */
    LINK_WAY_FENCE, /* a fence, then a relaxed word; likewise */
    LINK_WAY_BOTH,  /* two words, which are acquired together */
    LINK_WAY_WORDS, /* none: each piece of the row carries its stamp in both of its words */
    LINK_WAY_BULK,  /* a word by release, after bulk copies out of shared memory */
    LINK_MAPPED_WAYS,
    LINK_WAY_RING = LINK_MAPPED_WAYS /* a put with signal, by a ring of the proxy; the answer is a signal alone */
} link_way;

/* link_mail: rounds of rows from a block to another, each answered. */
typedef struct link_mail_call {
    int32_t way; /* link_way */
    int32_t rounds;
    uint8_t *rows;       /* [pairs][row_bytes] written by the pair's sender, read by its receiver behind the flag */
    int64_t row_bytes;   /* whole units of 16 bytes; LINK_WAY_BULK: what the launch gives a block, less 8 */
    uint64_t *flags;     /* [pairs][LINK_FLAG_WORDS] zero at first */
    uint32_t *wrong;     /* pieces that differ from the sent ones; raised by receivers, read after the kernel */
    uint32_t *late;      /* waits that have met their deadline; likewise, by all */
    uint64_t timeout_ns; /* of a wait */
    /* LINK_WAY_RING alone: the ring, the senders' rows [pairs][row_bytes] and their address for the host, and where
       `rows` and `flags` lie in the memory of PE 1 */
    struct proxy_port *port;
    uint8_t *sources;
    uint64_t sources_host, rows_at, flags_at;
} link_mail_call;

/* link_storm: warps issue atomics by a ring, those of their lanes that want to. */
typedef struct link_storm_call {
    struct proxy_port *port;
    /* lane l changes the word at `at` + 8 l of that PE */
    int32_t pe;
    uint64_t at;
    int32_t rounds;
    uint32_t *late; /* waits that have ended in vain; raised by warps, read after the kernel */
} link_storm_call;

/* link_rate: each block uses the ring of its number modulo their count. */
#define LINK_MOST_RINGS 16
typedef struct link_rate_call {
    struct proxy_port *ports[LINK_MOST_RINGS];
    int32_t num_rings;
    /* one thread: commands, each waited for; else commands of each lane */
    int32_t rounds;
    uint32_t *cycles;          /* [rounds] of each command that was waited for; NULL: all lanes issue */
    unsigned long long *begin; /* the first and the last moment, in ns; by all blocks, read after the kernel */
    unsigned long long *end;
    uint32_t *late; /* waits that have ended in vain */
} link_rate_call;

/* link_count: each block stores a row and arrives at a counter; the last one reads all rows. */
typedef struct link_count_call {
    uint8_t *rows;     /* [blocks][row_bytes] */
    int64_t row_bytes; /* whole units of 16 bytes */
    uint32_t *counter; /* raised by each block once a launch, zero at first */
    uint32_t round;    /* launches before this one */
    int32_t system;    /* fences are of the system, else of the GPU */
    uint32_t *wrong;   /* pieces; raised by the last block, read after the kernel */
    uint32_t *lasts;   /* how many blocks were the last one; likewise */
} link_count_call;

/* link_bulk: a warp copies its part by bulk copies through its stage, and the rest beside whole pieces by itself. */
typedef struct link_bulk_call {
    const uint8_t *from; /* [warps][pitch] */
    uint8_t *to;         /* likewise */
    int64_t bytes, pitch;
    int32_t stage_bytes; /* of a warp */
    uint32_t *has_bulk;  /* set to 1 where the GPU has such copies; else nothing is copied */
} link_bulk_call;

/* Word of 32 bits of what pair or block `number` sends in the round. */
PORTABLE_FUNC uint32_t link_unit_word(int32_t number, uint32_t round, int64_t word)
{
    uint32_t mix = (uint32_t)number * 0x9e3779b9u ^ round * 0x85ebca6bu ^ (uint32_t)word * 0xc2b2ae35u;
    mix = (mix ^ mix >> 15) * 0x846ca68bu;
    return mix ^ mix >> 16;
}

/* Whether the lane issues a command in that round of link_storm. */
PORTABLE_FUNC int32_t link_storm_wants(int32_t warp, int32_t lane, int32_t round)
{
    return link_unit_word(warp, (uint32_t)round, lane) % 3 != 0;
}

#endif
