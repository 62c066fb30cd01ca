/* SPDX-License-Identifier: Apache-2.0 */
/* The proxy's ring: its layout, and the producers' side of it.
 *
 * Compiles as C17, under nvcc and under NVRTC, so that threads of the CPU and warps of a GPU issue commands by the same
 * code. Two pieces of memory:
 *
 *     ring   pinnable host memory: slots from the producers to the consumer, three counters back
 *     port   memory of the producers alone (a GPU's own, or the host's): who takes the next number
 *
 * Commands are numbered from a first number on, modulo 2^64; number n lies in slot n % num_slots. A producer takes a
 * number when its slot is free (proxy_claim), writes the command, and last the slot's sequence, n + 1 (proxy_publish).
 * A producer that finds the ring full has claimed nothing, so it may give up without leaving a hole.
 *
 * The consumer (proxy.h) copies commands out in the order of numbers, raises `consumed`, which frees their slots, and
 * raises `done` behind the longest row of first commands that are delivered. So quiet is: read the head, then wait
 * until `done` has come to it. */
#ifndef EXPAR_NET_PROXY_RING_H
#define EXPAR_NET_PROXY_RING_H

#include "base/portable.h"

typedef enum proxy_kind {
    PROXY_PUT = 1,
    PROXY_GET = 2,
    PROXY_PUT_SIGNAL = 3, /* when the data is at pe, the signal is set, or added to */
    PROXY_ATOMIC = 4,
    PROXY_FENCE = 5 /* what comes later goes out to a PE when all before it has been delivered there */
} proxy_kind;

typedef struct proxy_command {
    uint64_t offset;  /* in pe's segment of `memory` */
    uint64_t local;   /* address of the source, of the destination, or of where the old word goes (0: nowhere) */
    uint64_t bytes;   /* an atomic's: 4 or 8 */
    uint64_t operand; /* of the atomic or the signal, in the low bytes */
    uint64_t compare; /* of the atomic */
    uint64_t signal;  /* the signal's offset in pe's segment of `signal_memory`; its word has 8 bytes */
    int32_t pe;
    uint8_t kind;                  /* proxy_kind */
    uint8_t op;                    /* transport_atomic_op, of the signal, too: TRANSPORT_SET or TRANSPORT_ADD */
    uint8_t memory, signal_memory; /* transport_memory */
} proxy_command;

typedef struct proxy_slot {
    proxy_command command; /* its producer writes, the consumer reads; `sequence` and `consumed` hand it over */
    /* Number of the command + 1. Its producer stores (release, at system scope) after the command, the consumer loads
       (acquire). It starts as that of the lap before the first. */
    PORTABLE_SHARED(uint64_t) sequence;
} proxy_slot;

#define PROXY_LINE_WORDS 8 /* one counter a cache line */

/* All four counters are written by the consumer alone. Behind the struct lie the slots. */
typedef struct proxy_ring {
    /* Number of the next command to be copied out: slots before it are free. Stored (release) after the copy; producers
       load (acquire) before they write the slot again. */
    PORTABLE_SHARED(uint64_t) consumed;
    uint64_t unused_1[PROXY_LINE_WORDS - 1];
    /* All commands before this number are delivered, or have failed. Stored (release) after their data, their results
       and `failure`; whoever waits loads (acquire). */
    PORTABLE_SHARED(uint64_t) done;
    uint64_t unused_2[PROXY_LINE_WORDS - 1];
    /* How many have failed and why the last one did (proxy_failure); 0: none. Stored before `done` passes that one. */
    PORTABLE_SHARED(uint64_t) failure;
    uint64_t unused_3[PROXY_LINE_WORDS - 1];
} proxy_ring;

typedef struct proxy_port {
    /* Number of the next command. Raised by producers (compare-swap); read by all of them. */
    PORTABLE_SHARED(uint64_t) head;
    /* `consumed` as some producer saw it last, never ahead of it, which saves looks at the other side of a bus. Stored
       (release) and loaded (acquire) by producers. */
    PORTABLE_SHARED(uint64_t) freed;
    proxy_ring *ring;   /* as the producers address it */
    uint64_t num_slots; /* a power of two */
} proxy_port;

/* A test may put delays where a producer can be held up. */
#ifndef PROXY_BETWEEN_STEPS
#define PROXY_BETWEEN_STEPS(port) ((void)(port))
#endif

/* ---- ordered accesses at system scope ---------------------------------------------------------------------------- */

#ifdef __CUDACC__
PORTABLE_FUNC uint64_t proxy_load(const uint64_t *word)
{
    uint64_t value;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}
PORTABLE_FUNC void proxy_store(uint64_t *word, uint64_t value)
{
    asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
/* 1: *word was *expected and is `desired` now. 0: *expected is what it was. */
PORTABLE_FUNC int proxy_swap(uint64_t *word, uint64_t *expected, uint64_t desired)
{
    unsigned long long *at = (unsigned long long *)word;
    uint64_t seen = atomicCAS(at, (unsigned long long)*expected, (unsigned long long)desired);
    int taken = seen == *expected;
    *expected = seen;
    return taken;
}
#else
PORTABLE_FUNC uint64_t proxy_load(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_acquire);
}
PORTABLE_FUNC void proxy_store(_Atomic uint64_t *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
}
/* Relaxed: it only hands out numbers; memory is handed over by `consumed` and the sequences. */
PORTABLE_FUNC int proxy_swap(_Atomic uint64_t *word, uint64_t *expected, uint64_t desired)
{
    return atomic_compare_exchange_weak_explicit(word, expected, desired, memory_order_relaxed, memory_order_relaxed);
}
#endif

/* ---- producers --------------------------------------------------------------------------------------------------- */

PORTABLE_FUNC proxy_slot *proxy_slot_of(proxy_ring *ring, uint64_t num_slots, uint64_t number)
{
    return (proxy_slot *)(ring + 1) + (number & (num_slots - 1));
}

/* Takes the next number. 0: the ring is full, and nothing was taken. `freed` is loaded before `head`, which therefore
   is not behind it. */
PORTABLE_FUNC int proxy_claim(proxy_port *port, uint64_t *number)
{
    uint64_t freed = proxy_load(&port->freed);
    uint64_t head = proxy_load(&port->head);
    for (;;) {
        if (head - freed >= port->num_slots) {
            freed = proxy_load(&port->ring->consumed);
            proxy_store(&port->freed, freed);
            head = proxy_load(&port->head);
            if (head - freed >= port->num_slots) return 0;
        }
        PROXY_BETWEEN_STEPS(port);
        if (proxy_swap(&port->head, &head, head + 1)) break;
    }
    *number = head;
    return 1;
}

/* For a number that was claimed, once, and soon: all later commands wait for it. */
PORTABLE_FUNC void proxy_publish(proxy_port *port, uint64_t number, const proxy_command *command)
{
    proxy_slot *slot = proxy_slot_of(port->ring, port->num_slots, number);
    PROXY_BETWEEN_STEPS(port);
    slot->command = *command;
    PROXY_BETWEEN_STEPS(port);
    proxy_store(&slot->sequence, number + 1);
}

/* 0: the ring is full, and nothing was issued. */
PORTABLE_FUNC int proxy_try_issue(proxy_port *port, const proxy_command *command)
{
    uint64_t number;
    if (!proxy_claim(port, &number)) return 0;
    proxy_publish(port, number, command);
    return 1;
}

/* Quiet waits until `done` has come to the head that was seen at its begin. */
PORTABLE_FUNC uint64_t proxy_head(proxy_port *port)
{
    return proxy_load(&port->head);
}
PORTABLE_FUNC int proxy_has_done(const proxy_port *port, uint64_t head)
{
    return (int64_t)(proxy_load(&port->ring->done) - head) >= 0;
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

PORTABLE_FUNC uint64_t proxy_failure(uint32_t count, int32_t status, int32_t pe)
{
    return (uint64_t)count << 32 | (uint64_t)(status & 0xff) << 24 | (uint64_t)(pe & 0xffffff);
}
PORTABLE_FUNC uint32_t proxy_failure_count(uint64_t failure)
{
    return (uint32_t)(failure >> 32);
}
PORTABLE_FUNC int32_t proxy_failure_status(uint64_t failure)
{
    return (int32_t)(failure >> 24 & 0xff);
}
PORTABLE_FUNC int32_t proxy_failure_pe(uint64_t failure)
{
    return (int32_t)(failure & 0xffffff);
}

#endif
