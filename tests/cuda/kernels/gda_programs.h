/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of the kernels of gda_programs.cu, as host and device both see them. On the host, pointers are addresses of
 * the device, not to be followed. */
#ifndef TESTS_CUDA_KERNELS_GDA_PROGRAMS_H
#define TESTS_CUDA_KERNELS_GDA_PROGRAMS_H

#include "net/gda/view.h"

enum {
    GDAP_RANKS = 2,
    GDAP_BLOCKS = 4, /* of all ranks; block b posts as rank b % GDAP_RANKS */
    GDAP_THREADS = 96,
    GDAP_WARPS = GDAP_BLOCKS * GDAP_THREADS / 32,
    GDAP_AREA = 2048,    /* bytes that a warp may write at each rank */
    GDAP_SOURCE = 1024,  /* bytes of a warp's source, and as many where it gets to */
    GDAP_AREAS_AT = 512, /* before them: words of all */
    GDAP_SOURCES_AT = GDAP_AREAS_AT + GDAP_WARPS * GDAP_AREA,
    GDAP_HEAP = GDAP_SOURCES_AT + 2 * GDAP_WARPS * GDAP_SOURCE,
    GDAP_PINNED = 1,   /* TRANSPORT_PINNED */
    GDAP_MESSAGE = 640 /* bytes of a message */
};

/* A check that failed. */
typedef enum gdap_check {
    GDAP_NONE,
    GDAP_PUT,
    GDAP_GET,
    GDAP_BYTES,
    GDAP_POST,
    GDAP_ATOMIC,
    GDAP_OLD,
    GDAP_ADD,
    GDAP_QUIET,
    GDAP_SIGNAL, /* a signal came before its data */
    GDAP_NO_FAILURE,
    GDAP_STOPPED
} gdap_check;

typedef struct gdap_call {
    gda_queue *queues;          /* [from][to] */
    const gda_keys *keys;       /* [rank] */
    uint8_t *heaps[GDAP_RANKS]; /* [GDAP_HEAP] those of ranks that post */
    /* Not NULL: all blocks post as `rank`, by the transport's queues and keys for pinned memory; queues and keys above
       are not used. */
    const gda_view *view;
    uint32_t rank;
    uint64_t at;     /* offset of `heaps` in the ranks' memory, as keys know it */
    uint8_t *models; /* [warp][rank][GDAP_AREA] what the warp's area must hold; zero at first */
    uint64_t *adds;  /* [warp] what its lanes have added to word 0 of rank 0 */
    uint32_t *wrong; /* [GDAP_WARPS] a gdap_check, or 0; the warp writes it, the host reads it afterwards */
    uint64_t *seen;  /* [GDAP_WARPS] gda_fail: the failure */
    uint64_t seed;
    int32_t rounds;
    /* gda_rate: block b posts to queue b % num_queues; 0: one thread posts to queue 0 and waits each time */
    uint32_t num_queues;
    unsigned long long *times; /* the first and the last moment of all warps, in ns */
} gdap_call;

/* The oracle: the word after an atomic. */
PORTABLE_FUNC uint64_t gdap_changed(const gda_request *r, uint64_t old)
{
    const uint64_t mask = gda_word_bytes(r->form) == 4 ? 0xffffffffu : ~(uint64_t)0;
    if (r->form == GDA_ADD_64) return old + r->operand;
    if (r->form == GDA_COMPARE_SWAP_64) return old == r->compare ? r->operand : old;
    if (r->form == GDA_ADD_MASKED_32 || r->form == GDA_ADD_MASKED_64)
        return (r->compare_mask ? old ^ r->operand : old + r->operand) & mask;
    if ((old ^ r->compare) & r->compare_mask & mask) return old;
    return ((old & ~r->swap_mask) | (r->operand & r->swap_mask)) & mask;
}

/* Bits that depend on all of seed, number and lane. */
PORTABLE_FUNC uint64_t gdap_bits(uint64_t seed, uint64_t number, uint32_t lane)
{
    uint64_t mix = seed + number * 0x9e3779b97f4a7c15u + (uint64_t)lane * 0xd1342543de82ef95u;
    mix = (mix ^ mix >> 30) * 0xbf58476d1ce4e5b9u;
    mix = (mix ^ mix >> 27) * 0x94d049bb133111ebu;
    return mix ^ mix >> 31;
}

#endif
