/* SPDX-License-Identifier: Apache-2.0 */
/* The proxy's ring: its layout, and the producers' side of it.
 *
 * It compiles as C17, under nvcc and under NVRTC, so that threads of the CPU and warps of a GPU issue commands by the
 * same code. There are two pieces of memory:
 *
 *     ring   pinnable host memory: slots from the producers to the consumer, counters back
 *     port   memory of the producers alone (a GPU's own, or the host's): which producer takes the next number, and what
 *            they last saw of the counters
 *
 * Commands are numbered from a first number on, modulo 2^64; number n lies in slot n % num_slots. A producer takes
 * numbers when their slots are free, as many as it has commands, by one atomic (proxy_claim). It writes each command
 * into its slot (proxy_publish). A producer that finds the ring full has claimed nothing, so it may give up without
 * leaving a gap.
 *
 * The consumer (proxy.h) copies commands out in the order of numbers and raises `consumed`, which frees their slots. It
 * raises `done` as far as all commands from the first on are delivered. So quiet reads the head, then waits until
 * `done` has reached it. Each PE has a counter of its own (proxy_done_to), so that a slow PE does not hold up the send
 * buffers of others. Producers that cannot make system calls wait as waits.h says. */
#ifndef EXPAR_NET_PROXY_RING_H
#define EXPAR_NET_PROXY_RING_H

#include "base/portable.h"

typedef enum proxy_kind {
    PROXY_PUT = 1,
    PROXY_GET = 2,
    PROXY_PUT_SIGNAL = 3, /* when the data is at pe, the signal is set, or added to */
    PROXY_ATOMIC = 4,
    PROXY_FENCE = 5, /* later commands are sent to a PE when all before the fence have been delivered there */
    PROXY_REST = 6,  /* the call that proxy_expect announced has no more commands, so the thread may nap */
    PROXY_P = 7      /* a put whose data are in the operand: 1 to 8 bytes */
} proxy_kind;

typedef struct proxy_command {
    /* in pe's segment of `memory` */
    uint64_t offset;
    /* address of the source, of the destination, or of the place for the old word (0: none) */
    uint64_t local;
    /* for an atomic: 4 or 8 */
    uint64_t bytes;
    /* operand of the atomic or the signal, or the data of PROXY_P, in the low bytes */
    uint64_t operand;
    /* compare value of the atomic; other commands: the producer's tag (proxy_tag) */
    uint64_t compare;
    /* the signal's offset in pe's segment of `signal_memory`; its word has 8 bytes. An atomic: the producer's tag */
    uint64_t signal;
    int32_t pe;
    /* proxy_kind */
    uint8_t kind;
    /* transport_atomic_op, also of the signal: TRANSPORT_SET or TRANSPORT_ADD */
    uint8_t op;
    /* transport_memory; `memory` of puts and gets may have PROXY_FIND_LOCAL with it */
    uint8_t memory, signal_memory;
} proxy_command;

/* The producer does not know whose memory `local` is. The thread asks (proxy_plan.find_local), and rejects memory that
   is not known. Without this bit the thread itself accesses `local`. */
#define PROXY_FIND_LOCAL 0x80

/* Returns the word by which producers that share a ring tell their failed commands apart (proxy_plan.failed). */
PORTABLE_FUNC uint64_t proxy_tag(const proxy_command *command)
{
    return command->kind == PROXY_ATOMIC ? command->signal : command->compare;
}

#define PROXY_SLOT_WORDS 8

/* A command and its turn. Each word stands for itself, so a GPU needs no fence between them: a fence waits until
   earlier stores have crossed the bus. The command has seven words. Their low 7 bytes lie in words 0 to 6, and their
   high bytes in word 7. The high byte of each word is the turn (proxy_turn). The producer with that number writes the
   words after all that it has written or seen before (release, or relaxed after a fence). The consumer loads them
   (acquire), and takes the command when all have the turn. Then it raises `consumed`, after which the next producer
   writes the slot. The words start with the turn before the first. */
typedef struct proxy_slot {
    PORTABLE_SHARED(uint64_t) words[PROXY_SLOT_WORDS];
} proxy_slot;

#define PROXY_LINE_WORDS 8 /* words of a cache line */
/* In the place of a status in proxy_failure: the proxy's process has stopped. */
#define PROXY_ORPHANED 255

/* The consumer writes all words but `awaited`. The first four share a sector of 32 bytes, so that a GPU reads them in
   one transfer across the bus. The slots follow the struct, and the PEs' counters follow the slots. */
typedef struct proxy_ring {
    /* Number of the next command to copy out: slots before it are free. Stored (release) after the copy, once for a
       batch of commands; producers load it (acquire) before they write the slot again. */
    PORTABLE_SHARED(uint64_t) consumed;
    /* All commands before this number are delivered, or have failed (proxy_end). Stored (release) after their data,
       their results and `failure`, once for a batch; waiting threads load it (acquire). */
    PORTABLE_SHARED(uint64_t) done;
    /* Raised after each change of the other words or of a PE's counter (release). A reader that loads it first, and
       finds it unchanged, need not load the others. */
    PORTABLE_SHARED(uint64_t) moves;
    /* Why the proxy delivers nothing any more (proxy_failure); 0: it works. Stored (release) before the proxy stops or
       gives up commands, so that waits end. It is never cleared. */
    PORTABLE_SHARED(uint64_t) ended;
    uint64_t unused_1[PROXY_LINE_WORDS - 4];
    /* How many have failed, and why the last one did (proxy_failure); 0: none. Stored before `done` passes that
       command. */
    PORTABLE_SHARED(uint64_t) failure;
    /* Raised while the proxy's thread lives and has no work. Relaxed is enough: the word stands for itself. */
    PORTABLE_SHARED(uint64_t) beat;
    uint64_t unused_2[PROXY_LINE_WORDS - 2];
    /* Some producer waits, and all numbers before this one were claimed. Producers raise it, the consumer reads it.
       Relaxed is enough: it only shows that a number was claimed and not published. */
    PORTABLE_SHARED(uint64_t) awaited;
    uint64_t unused_3[PROXY_LINE_WORDS - 1];
} proxy_ring;

/* Words of the producers. The last group is what waits.h keeps: the producer that has the watch copies the ring's words
   there, all others read the copies. */
typedef struct proxy_port {
    /* Number of the next command. Producers raise it (compare-swap), and all of them read it. */
    PORTABLE_SHARED(uint64_t) head;
    /* `consumed` as some producer saw it last, never ahead of it. It saves loads across a bus. Producers store it
       (release) and load it (acquire). */
    PORTABLE_SHARED(uint64_t) freed;
    /* in the producers' address space */
    proxy_ring *ring;
    /* a power of two */
    uint64_t num_slots;
    /* Copies of `done`, `failure` and `ended`. The watch stores them (release), waiting producers load them
       (acquire). `done` is raised last, and is a proxy_end as in the ring. */
    PORTABLE_SHARED(uint64_t) done, failure, ended;
    /* [size] copies of the PEs' counters, written and read like `done`; NULL: nobody waits for a PE alone */
    PORTABLE_SHARED(uint64_t) * done_to;
    int64_t size;
    /* All numbers before it were claimed when a producer began to wait. Producers raise it, the watch passes it on. */
    PORTABLE_SHARED(uint64_t) awaited;
    /* When the producer with the watch last looked; 0: nobody has it. Producers take it by a compare-swap. */
    PORTABLE_SHARED(uint64_t) watched_ns;
    /* `beat` and `moves` together as the watch saw them last, and when they changed. Two watches may both store
       them. */
    PORTABLE_SHARED(uint64_t) beat, beat_ns;
    /* how long producers wait while the beat stands still; 0: without an end */
    uint64_t orphan_ns;
} proxy_port;

/* Tests may put delays at the places where a producer can be delayed. */
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
/* Returns 1 if *word was *expected and is `desired` now; else 0, and *expected is the word. */
PORTABLE_FUNC int proxy_swap(uint64_t *word, uint64_t *expected, uint64_t desired)
{
    unsigned long long *at = (unsigned long long *)word;
    uint64_t seen = atomicCAS(at, (unsigned long long)*expected, (unsigned long long)desired);
    int taken = seen == *expected;
    *expected = seen;
    return taken;
}
/* Words of the port are shared by the GPU's own threads alone, so the GPU's scope is enough; a fence at system scope
   takes longer. What a thread has acquired from the ring before, it passes on. */
PORTABLE_FUNC uint64_t proxy_load_near(const uint64_t *word)
{
    uint64_t value;
    asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}
PORTABLE_FUNC void proxy_store_near(uint64_t *word, uint64_t value)
{
    asm volatile("st.release.gpu.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
/* Loads a word of the port before a claim. The fence of proxy_publish comes before what the word allows to write. */
PORTABLE_FUNC uint64_t proxy_load_before_claim(const uint64_t *word)
{
    uint64_t value;
    asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}
/* Stores a word of the port that stands for itself. */
PORTABLE_FUNC void proxy_note(uint64_t *word, uint64_t value)
{
    asm volatile("st.relaxed.gpu.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
/* Orders all that this thread has written or seen before its later stores. */
PORTABLE_FUNC void proxy_begin_publish(void)
{
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}
PORTABLE_FUNC void proxy_store_pair(uint64_t *words, uint64_t first, uint64_t second)
{
    asm volatile("st.relaxed.sys.v2.u64 [%0], {%1, %2};" ::"l"(words), "l"(first), "l"(second) : "memory");
}
/* As proxy_swap, and what this thread has seen and written before is ordered before it. */
PORTABLE_FUNC int proxy_swap_release(uint64_t *word, uint64_t *expected, uint64_t desired)
{
    uint64_t seen;
    asm volatile("atom.acq_rel.gpu.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(seen)
                 : "l"(word), "l"(*expected), "l"(desired)
                 : "memory");
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
PORTABLE_FUNC uint64_t proxy_load_near(const _Atomic uint64_t *word)
{
    return proxy_load(word);
}
PORTABLE_FUNC void proxy_store_near(_Atomic uint64_t *word, uint64_t value)
{
    proxy_store(word, value);
}
PORTABLE_FUNC uint64_t proxy_load_before_claim(const _Atomic uint64_t *word)
{
    return proxy_load(word);
}
PORTABLE_FUNC void proxy_note(_Atomic uint64_t *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_relaxed);
}
/* Each store of proxy_store_pair is a release here. */
PORTABLE_FUNC void proxy_begin_publish(void)
{
}
PORTABLE_FUNC void proxy_store_pair(_Atomic uint64_t *words, uint64_t first, uint64_t second)
{
    proxy_store(&words[0], first);
    proxy_store(&words[1], second);
}
/* Relaxed: it only assigns numbers; `consumed` and the words of slots order the memory. */
PORTABLE_FUNC int proxy_swap(_Atomic uint64_t *word, uint64_t *expected, uint64_t desired)
{
    return atomic_compare_exchange_weak_explicit(word, expected, desired, memory_order_relaxed, memory_order_relaxed);
}
PORTABLE_FUNC int proxy_swap_release(_Atomic uint64_t *word, uint64_t *expected, uint64_t desired)
{
    return atomic_compare_exchange_weak_explicit(word, expected, desired, memory_order_acq_rel, memory_order_acquire);
}
#endif

/* Numbers wrap around: a is after b, or the same. */
PORTABLE_FUNC int proxy_is_at(uint64_t a, uint64_t b)
{
    return (int64_t)(a - b) >= 0;
}

/* ---- counters of ends -------------------------------------------------------------------------------------------- */

/* The number before which all commands have ended, in the high 63 bits; bit 0: some command of the ring has failed. So
   a thread that waits for the number need not look at `failure`. */
PORTABLE_FUNC uint64_t proxy_end(uint64_t number, int32_t has_failed)
{
    return number << 1 | (uint64_t)has_failed;
}
PORTABLE_FUNC int proxy_end_has_failed(uint64_t end)
{
    return (int)(end & 1);
}
PORTABLE_FUNC int proxy_end_is_at(uint64_t end, uint64_t number)
{
    return proxy_is_at(end, number << 1);
}

/* Stores the number in a word of the port, unless it is there already (release). It serves ends, too. */
PORTABLE_FUNC void proxy_raise(PORTABLE_SHARED(uint64_t) * word, uint64_t number)
{
    uint64_t seen = proxy_load_near(word);
    while (!proxy_is_at(seen, number) && !proxy_swap_release(word, &seen, number)) {
    }
}

/* ---- producers --------------------------------------------------------------------------------------------------- */

PORTABLE_FUNC proxy_slot *proxy_slot_of(proxy_ring *ring, uint64_t num_slots, uint64_t number)
{
    return (proxy_slot *)(ring + 1) + (number & (num_slots - 1));
}

/* Returns the words with which the producers of a new ring begin. */
PORTABLE_FUNC proxy_port proxy_port_start(proxy_ring *ring, uint64_t num_slots, uint64_t first)
{
    proxy_port port = {0};
    port.head = port.freed = port.awaited = first;
    port.done = proxy_end(first, 0);
    port.ring = ring;
    port.num_slots = num_slots;
    return port;
}

/* Returns the PEs' counters, each a proxy_end. Commands to a PE whose number is before its counter are delivered, or
   have failed, so their sources are free. Stored and loaded like `done`. */
PORTABLE_FUNC PORTABLE_SHARED(uint64_t) * proxy_done_to(proxy_ring *ring, uint64_t num_slots)
{
    return (PORTABLE_SHARED(uint64_t) *)((proxy_slot *)(ring + 1) + num_slots);
}

/* Takes the next `count` numbers, as far as slots are known to be free. Returns 0 if they are not; then nothing was
   taken. A `head` that was read too early seems to be before `freed`; then the swap fails and reads it again. */
PORTABLE_FUNC int proxy_claim_known(proxy_port *port, uint64_t count, uint64_t *first)
{
    uint64_t freed = proxy_load_before_claim(&port->freed);
    uint64_t head = proxy_load_before_claim(&port->head);
    do {
        if ((int64_t)(head - freed + count) > (int64_t)port->num_slots) return 0;
        PROXY_BETWEEN_STEPS(port);
    } while (!proxy_swap(&port->head, &head, head + count));
    *first = head;
    return 1;
}

/* The same; looks into the ring if there seems to be no free slot. count: at most num_slots. */
PORTABLE_FUNC int proxy_claim(proxy_port *port, uint64_t count, uint64_t *first)
{
    if (proxy_claim_known(port, count, first)) return 1;
    proxy_raise(&port->freed, proxy_load(&port->ring->consumed));
    return proxy_claim_known(port, count, first);
}

/* The high byte of a slot's words while it holds the command. It differs from that of the turns before and after. */
PORTABLE_FUNC uint64_t proxy_turn(uint64_t num_slots, uint64_t number)
{
    return (uint64_t)(number & num_slots ? 0xa5 : 0x5a) << 56;
}

#define PROXY_LOW_BYTES ((uint64_t)0xffffffffffffff)

/* Writes two words of the command, with the turn in place of their high bytes, which go to *high. */
PORTABLE_FUNC void proxy_write_pair(proxy_slot *slot, int place, uint64_t turn, uint64_t first, uint64_t second,
                                    uint64_t *high)
{
    *high |= first >> 56 << 8 * place | second >> 56 << 8 * (place + 1);
    proxy_store_pair(&slot->words[place], (first & PROXY_LOW_BYTES) | turn, (second & PROXY_LOW_BYTES) | turn);
}

/* Call this once, and soon, for each number that was claimed: all later commands wait for it. All that this thread has
   written or seen arrives before the command: the payload first. If all lanes of a warp call this together, the one
   fence serves all of their commands. */
PORTABLE_FUNC void proxy_publish(proxy_port *port, uint64_t number, const proxy_command *c)
{
    proxy_slot *slot = proxy_slot_of(port->ring, port->num_slots, number);
    const uint64_t turn = proxy_turn(port->num_slots, number);
    const uint64_t form = (uint64_t)(uint32_t)c->pe | (uint64_t)c->kind << 32 | (uint64_t)c->op << 40 |
                          (uint64_t)c->memory << 48 | (uint64_t)c->signal_memory << 56;
    uint64_t high = form >> 56 << 48;
    PROXY_BETWEEN_STEPS(port);
    proxy_begin_publish();
    PROXY_BETWEEN_STEPS(port);
    proxy_write_pair(slot, 0, turn, c->offset, c->local, &high);
    proxy_write_pair(slot, 2, turn, c->bytes, c->operand, &high);
    proxy_write_pair(slot, 4, turn, c->compare, c->signal, &high);
    proxy_store_pair(&slot->words[6], (form & PROXY_LOW_BYTES) | turn, high | turn);
}

/* The consumer's side: returns 1 if the slot holds the command with that number, whose words are loaded then. */
PORTABLE_FUNC int proxy_slot_holds(proxy_slot *slot, uint64_t turn, uint64_t words[PROXY_SLOT_WORDS])
{
    for (int i = PROXY_SLOT_WORDS - 1; i >= 0; i--) {
        words[i] = proxy_load(&slot->words[i]);
        if (words[i] >> 56 << 56 != turn) return 0;
    }
    return 1;
}
/* Returns the command that the words of a slot hold. */
PORTABLE_FUNC proxy_command proxy_command_of(const uint64_t words[PROXY_SLOT_WORDS])
{
    uint64_t part[PROXY_SLOT_WORDS - 1];
    for (int i = 0; i < PROXY_SLOT_WORDS - 1; i++)
        part[i] = (words[i] & PROXY_LOW_BYTES) | words[PROXY_SLOT_WORDS - 1] >> 8 * i << 56;
    proxy_command c = {part[0], part[1], part[2], part[3], part[4], part[5], 0, 0, 0, 0, 0};
    c.pe = (int32_t)(uint32_t)part[6];
    c.kind = (uint8_t)(part[6] >> 32);
    c.op = (uint8_t)(part[6] >> 40);
    c.memory = (uint8_t)(part[6] >> 48);
    c.signal_memory = (uint8_t)(part[6] >> 56);
    return c;
}

/* Returns 0 if the ring is full; then nothing was issued. */
PORTABLE_FUNC int proxy_try_issue(proxy_port *port, const proxy_command *command)
{
    uint64_t number;
    if (!proxy_claim(port, 1, &number)) return 0;
    proxy_publish(port, number, command);
    return 1;
}

/* Quiet waits until `done` has reached the head that was read when it began. */
PORTABLE_FUNC uint64_t proxy_head(proxy_port *port)
{
    return proxy_load_near(&port->head);
}
PORTABLE_FUNC int proxy_has_done(const proxy_port *port, uint64_t head)
{
    return proxy_end_is_at(proxy_load(&port->ring->done), head);
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
