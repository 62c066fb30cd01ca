/* SPDX-License-Identifier: Apache-2.0 */
/* Waits of producers that cannot make system calls: for free slots, for quiet, for one PE's commands.
 *
 * It compiles as ring.h does. A waiting producer polls the copies in the port, which is memory of its own. The ring
 * lies across a bus: if all waiting threads read it, their reads queue up, and each sees its word late. So only one of
 * them reads it at a time. That one has the watch. It looks at the counter that it awaits itself, and now and then at
 * all others. No fixed producer has it, because a producer may leave while others wait. One that finds the last look
 * older than PROXY_WATCH_NS takes the watch by a compare-swap on the time of that look. It renews the time while it
 * waits, and clears it when it leaves. Two may watch for a moment: copies only grow, so both may store them.
 *
 * A wait ends in vain if the ring has ended (proxy_ring.ended), or if the beat of the proxy's thread has stood still
 * for orphan_ns. Nothing else ends it: the proxy gives up each command to a PE that is lost or silent, so numbers move
 * on whatever peers do. */
#ifndef EXPAR_NET_PROXY_WAITS_H
#define EXPAR_NET_PROXY_WAITS_H

#include "net/proxy/ring.h"

#ifdef __CUDACC__
PORTABLE_FUNC uint64_t proxy_now_ns(void)
{
    uint64_t value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value)::"memory");
    return value;
}
/* Loads the ring's first four words, in no order among them: both loads are under way at a time. proxy_acquire must
   follow before data that they announce is read. */
PORTABLE_FUNC void proxy_load_counters(const proxy_ring *ring, uint64_t words[4])
{
    asm volatile("ld.relaxed.sys.v2.u64 {%0, %1}, [%2];"
                 : "=l"(words[0]), "=l"(words[1])
                 : "l"(&ring->consumed)
                 : "memory");
    asm volatile("ld.relaxed.sys.v2.u64 {%0, %1}, [%2];"
                 : "=l"(words[2]), "=l"(words[3])
                 : "l"(&ring->moves)
                 : "memory");
}
PORTABLE_FUNC uint64_t proxy_load_relaxed(const uint64_t *word)
{
    uint64_t value;
    asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}
PORTABLE_FUNC void proxy_acquire(void)
{
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}
#else
#include <time.h>
PORTABLE_FUNC uint64_t proxy_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
/* `moves` comes last here, which a GPU may do, too. */
PORTABLE_FUNC void proxy_load_counters(proxy_ring *ring, uint64_t words[4])
{
    words[0] = proxy_load(&ring->consumed);
    words[1] = proxy_load(&ring->done);
    words[3] = proxy_load(&ring->ended);
    PROXY_BETWEEN_STEPS(ring);
    words[2] = proxy_load(&ring->moves);
}
/* proxy_acquire adds nothing here, so each load acquires. */
PORTABLE_FUNC uint64_t proxy_load_relaxed(const _Atomic uint64_t *word)
{
    return proxy_load(word);
}
PORTABLE_FUNC void proxy_acquire(void)
{
}
#endif

/* A waiting thread does this between two polls; the includer may define it. */
#ifndef PROXY_BETWEEN_POLLS
#define PROXY_BETWEEN_POLLS() ((void)0)
#endif

/* A producer takes a watch that nobody has renewed for this long. */
#define PROXY_WATCH_NS 20000u
/* A watch that has not looked for so long, or never, may have missed a beat: its wait for one starts anew. */
#define PROXY_FRESH_NS 1000000u
/* polls of a producer without the watch between two looks at the clock, and looks of one that has it */
#define PROXY_POLLS 16u
#define PROXY_LOOKS 4u
/* counters of PEs that a watch loads at a time; more make kernels spill registers */
#define PROXY_WATCH_PES 2

/* A wait in progress for a counter of the ring. */
typedef struct proxy_wait {
    proxy_port *port;
    /* the counter, its copy in the port, and the value that this producer saw last */
    PORTABLE_SHARED(uint64_t) * counter, *copy;
    uint64_t seen;
    /* 1: the counter is a proxy_end */
    uint32_t awaits_end;
    /* 1: this producer has the watch, 2: and has looked at everything */
    uint32_t watches;
    uint32_t polls;
    /* when it took the watch, or last looked at everything */
    uint64_t looked_ns;
} proxy_wait;

/* ---- the watch --------------------------------------------------------------------------------------------------- */

/* The failure is loaded after the counter that may have passed its command, and stored before that counter's copy. */
PORTABLE_FUNC void proxy_watch_failure(proxy_port *port)
{
    const uint64_t failure = proxy_load(&port->ring->failure);
    if (failure) proxy_store_near(&port->failure, failure);
}

/* Copies the counters of up to PROXY_WATCH_PES PEs from that one on. Their loads are under way at a time. */
PORTABLE_FUNC void proxy_watch_pes(proxy_port *port, int64_t first)
{
    uint64_t done[PROXY_WATCH_PES];
    PORTABLE_SHARED(uint64_t) *counters = proxy_done_to(port->ring, port->num_slots);
    for (int64_t i = 0; i < PROXY_WATCH_PES; i++)
        done[i] = proxy_load_relaxed(&counters[first + i < port->size ? first + i : first]);
    proxy_acquire();
    proxy_watch_failure(port);
    for (int64_t i = 0; i < PROXY_WATCH_PES && first + i < port->size; i++)
        proxy_raise(&port->done_to[first + i], done[i]);
}

/* Copies the ring's words; returns `moves`. A reader that sees the copy of `done` also sees failures and results. */
PORTABLE_FUNC uint64_t proxy_watch_counters(proxy_port *port)
{
    uint64_t words[4];
    proxy_load_counters(port->ring, words);
    proxy_acquire();
    proxy_raise(&port->freed, words[0]);
    if (words[3]) proxy_store_near(&port->ended, words[3]);
    proxy_watch_failure(port);
    proxy_raise(&port->done, words[1]);
    if (port->done_to)
        for (int64_t pe = 0; pe < port->size; pe += PROXY_WATCH_PES)
            proxy_watch_pes(port, pe);
    return words[2];
}

/* Ends the waits of all producers if the beat has stood still for too long; passes on what they wait for. Another watch
   may have stored a later time. */
PORTABLE_FUNC void proxy_watch_beat(const proxy_wait *w, uint64_t moves, uint64_t now_ns)
{
    proxy_port *port = w->port;
    const uint64_t beat = proxy_load(&port->ring->beat) + moves, awaited = proxy_load_near(&port->awaited);
    const int stale = w->watches == 1 || now_ns - w->looked_ns > PROXY_FRESH_NS;
    if (!proxy_is_at(proxy_load(&port->ring->awaited), awaited)) proxy_store(&port->ring->awaited, awaited);
    if (stale || beat != proxy_load_near(&port->beat)) {
        proxy_store_near(&port->beat, beat);
        proxy_store_near(&port->beat_ns, now_ns);
    } else if (port->orphan_ns && (int64_t)(now_ns - proxy_load_near(&port->beat_ns)) > (int64_t)port->orphan_ns) {
        proxy_store_near(&port->ended, proxy_failure(1, PROXY_ORPHANED, 0));
    }
}

/* Some command has failed, or the ring has ended. */
PORTABLE_FUNC uint64_t proxy_watch_trouble(proxy_port *port)
{
    const uint64_t ended = proxy_load(&port->ring->ended);
    if (ended) proxy_store_near(&port->ended, ended);
    proxy_watch_failure(port);
    return ended;
}

/* Copies the counter alone for which this producer waits: one load across the bus as long as nothing has failed.
   Returns why the wait must end, or 0. */
PORTABLE_FUNC uint64_t proxy_watch_awaited(proxy_wait *w)
{
    uint64_t ended = 0;
    const uint64_t now = proxy_load(w->counter);
    if (now == w->seen) return 0;
    if (w->awaits_end && proxy_end_has_failed(now)) ended = proxy_watch_trouble(w->port);
    proxy_raise(w->copy, now);
    w->seen = now;
    return ended;
}

/* Most looks are at one counter. Everything is looked at after PROXY_WATCH_NS / 4. */
PORTABLE_FUNC uint64_t proxy_watch(proxy_wait *w, uint64_t claimed)
{
    proxy_port *port = w->port;
    const uint64_t ended = proxy_watch_awaited(w);
    if (ended || w->polls++ % PROXY_LOOKS != 0) return ended;
    const uint64_t now_ns = proxy_now_ns();
    if (now_ns - w->looked_ns < PROXY_WATCH_NS / 4) return 0;
    proxy_raise(&port->awaited, claimed);
    proxy_watch_beat(w, proxy_watch_counters(port), now_ns);
    w->watches = 2;
    w->looked_ns = now_ns;
    w->seen = proxy_load_near(w->copy);
    proxy_store_near(&port->watched_ns, now_ns);
    return proxy_load_near(&port->ended);
}

/* Takes the watch when nobody has it, or its owner has not looked for a while. */
PORTABLE_FUNC void proxy_watch_take(proxy_wait *w)
{
    uint64_t last_ns = proxy_load_near(&w->port->watched_ns);
    const uint64_t now_ns = proxy_now_ns();
    if (last_ns && (int64_t)(now_ns - last_ns) < (int64_t)PROXY_WATCH_NS) return;
    w->watches = (uint32_t)proxy_swap(&w->port->watched_ns, &last_ns, now_ns);
    w->looked_ns = now_ns;
}

/* ---- waits ------------------------------------------------------------------------------------------------------- */

PORTABLE_FUNC proxy_wait proxy_wait_for(proxy_port *port, PORTABLE_SHARED(uint64_t) * counter,
                                        PORTABLE_SHARED(uint64_t) * copy, uint32_t awaits_end)
{
    proxy_wait w = {port, counter, copy, 0, awaits_end, 0, 0, 0};
    w.seen = proxy_load_near(copy);
    return w;
}

/* Call this after each poll that has not found the awaited value; afterwards w->seen is newer. All numbers before
   `claimed` were claimed, which tells the proxy of one that is never published. Returns 0 while the wait may go on,
   else why it must end (proxy_failure). */
PORTABLE_FUNC uint64_t proxy_wait_turn(proxy_wait *w, uint64_t claimed)
{
    PROXY_BETWEEN_POLLS();
    if (w->watches) return proxy_watch(w, claimed);
    if (w->polls % PROXY_POLLS == 0) proxy_watch_take(w);
    if (w->polls++ % PROXY_POLLS == PROXY_POLLS - 1) proxy_raise(&w->port->awaited, claimed);
    w->seen = proxy_load_near(w->copy);
    return proxy_load_near(&w->port->ended);
}

/* Every wait ends with this, whether it was in vain or not. The next watch makes loads of its own. */
PORTABLE_FUNC void proxy_wait_leave(proxy_wait *w)
{
    if (w->watches) proxy_note(&w->port->watched_ns, 0);
    w->watches = 0;
}

/* Each of the three returns 0, or why the wait has ended in vain (proxy_failure). */

/* Waits until a counter of ends has reached the number. */
PORTABLE_FUNC uint64_t proxy_await_end_of(proxy_port *port, PORTABLE_SHARED(uint64_t) * counter,
                                          PORTABLE_SHARED(uint64_t) * copy, uint64_t number)
{
    proxy_wait w = proxy_wait_for(port, counter, copy, 1);
    uint64_t ended = 0;
    while (!ended && !proxy_end_is_at(w.seen, number))
        ended = proxy_wait_turn(&w, number);
    proxy_wait_leave(&w);
    return ended;
}

/* Takes the next `count` numbers, at most num_slots. In vain nothing was taken. */
PORTABLE_FUNC uint64_t proxy_await_slots(proxy_port *port, uint64_t count, uint64_t *first)
{
    uint64_t ended = proxy_load_before_claim(&port->ended);
    if (ended || proxy_claim_known(port, count, first)) return ended;
    proxy_wait w = proxy_wait_for(port, &port->ring->consumed, &port->freed, 0);
    while (!ended && !proxy_claim_known(port, count, first))
        ended = proxy_wait_turn(&w, proxy_load_near(&port->head));
    proxy_wait_leave(&w);
    return ended;
}

/* Waits until all commands before the number are delivered or have failed; port->failure tells of failures. */
PORTABLE_FUNC uint64_t proxy_await_done(proxy_port *port, uint64_t number)
{
    return proxy_await_end_of(port, &port->ring->done, &port->done, number);
}

/* The same for the commands to that PE alone. */
PORTABLE_FUNC uint64_t proxy_await_done_to(proxy_port *port, int32_t pe, uint64_t number)
{
    return proxy_await_end_of(port, proxy_done_to(port->ring, port->num_slots) + pe, &port->done_to[pe], number);
}

#endif
