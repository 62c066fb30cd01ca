/* SPDX-License-Identifier: Apache-2.0 */
/* shmem: how a rank reaches, waits for and loses another: heap, transports, waiting, barrier, failure.
 *
 * Called by group (which owns one), exec, ep and pgas (whose calls check their arguments and come here); calls net,
 * mem, boot and base. Beside this header the layers above have device_heap.h (GPU memory), bell.h and tree.h. The
 * prefix is sym_ because shmem_ belongs to OpenSHMEM. */
#ifndef EXPAR_SHMEM_SYM_H
#define EXPAR_SHMEM_SYM_H

#include "boot/boot.h"
#include "mem/mem.h"
#include "net/proxy/proxy.h"
#include "net/transport.h"
#include <pthread.h>
#include <stdatomic.h>

struct expar_heap_stats; /* expar/memory.h */

/* ---- control page: the first bytes of every PE's heap ------------------------------------------------------------ */

/* A PE's bell. The sleeper sets `watched`, full fence, looks again at what it waits for, and sleeps on `rings`; the
   writer stores its flag, full fence, reads `watched`, and if it is set takes it down, raises `rings` and wakes all
   sleepers. One of the two always sees the other. Several threads of a PE may sleep on its bell: whoever wakes sets
   `watched` again before it looks again. Every sleep is bounded all the same, since raw stores through expar_ptr ring
   nothing.

   A put may change any word, but mostly it carries data that nobody waits for. So `watched` says where the words lie
   that sleepers wait for, and a put that goes elsewhere lets them sleep. Flags of the library's own are announced by a
   ring of their own, wherever they lie.

   Sleeps are rare and writes are many, so where the system allows it the sleeper makes the fence for both sides:
   membarrier(2) runs a full fence on every core that runs a thread of a process that asked for it. A writer whose
   process has asked then needs none of its own. */
typedef struct sym_bell {
    /* 0: nobody sleeps or is about to; else the bell_range that holds all that sleepers watch. Widened by the PE's own
       threads, read and taken down by all writers; ordered by the full fences above. */
    _Alignas(64) _Atomic uint64_t watched;
    /* 1: sleepers make the writers' fence, too. Written by the owner before anybody else uses the bell, read by all
       (relaxed: who reads 0 makes a fence that is not needed). */
    _Atomic uint32_t fences;
    /* The futex word: raised by all writers after they took `watched` down, read by the PE's own sleepers. The futex
       compares it in the kernel, so relaxed order is enough. */
    _Alignas(64) _Atomic uint32_t rings;
} sym_bell;

/* How full the heap is, for tools that look at it from outside (card.c). Written by the owner whenever blocks
   come or go: `mark` last for the first time (release, acquire by readers), so rank and size are there; the
   words relaxed, each by itself, so that they may be of different moments. */
enum { SYM_CARD_WORDS = 10 };
typedef struct sym_heap_card {
    _Atomic uint64_t mark;
    int32_t rank, size;
    _Atomic uint64_t words[SYM_CARD_WORDS];
} sym_heap_card;

#define SYM_BARRIER_ROUNDS 32
typedef struct sym_control {
    sym_bell bell;
    /* Barrier: each word is set to the barrier's epoch by one other PE (release): that 2^r below in round r of a
       meeting, or the one that releases the owner; read by the owner (acquire). Never cleared: epochs only grow. */
    _Alignas(64) _Atomic uint64_t barrier[SYM_BARRIER_ROUNDS];
    /* Why peers go: teller << 40 | kind << 32 | rank of the first failure that one of them noticed; 0: none. Written by
       peers before they act on it (compare-swap from 0, release), read by the owner when one of them has left or ended
       (acquire). So a rank that hears of the leaving before it hears of its cause can still name the cause. */
    _Alignas(64) _Atomic uint64_t told;
    /* 1 + number of the core that the PE was on when one of its waits last looked; 0: it is not known. Written by the
       PE's own threads, read by its neighbours' waits (relaxed: it only decides whether they spin or yield). */
    _Alignas(64) _Atomic uint32_t core;
    _Alignas(64) sym_heap_card card;
} sym_control;
/* The heap proper starts here; offsets given to users are never 0. */
#define SYM_CONTROL_BYTES 4096

/* ---- failure ----------------------------------------------------------------------------------------------------- */

/* SYM_PEER_SILENT: rank gave no answer when a wait had timed out, or did not come to a collective; or (rank -1) a
   collective failed half-way, nobody knows because of whom, and the ranks are out of step for good. */
typedef enum sym_failure_kind {
    SYM_SOUND = 0,
    SYM_PEER_DIED,
    SYM_PEER_LEFT,
    SYM_ABORTED,
    SYM_PEER_SILENT
} sym_failure_kind;

/* Told once when the group fails, from the thread that found out; must not block. */
typedef struct sym_listener {
    void (*failed)(void *context);
    void *context;
    struct sym_listener *next;
} sym_listener;

/* Rings of commands that a rank may have, each with a proxy of its own. */
#define SYM_MOST_RINGS 16

/* A block of the store that peers may write to as long as the group lives. */
typedef struct sym_stranded {
    mem_block *block;
    struct sym_stranded *next;
} sym_stranded;

typedef struct sym {
    boot *boot; /* borrowed from the group; gone when sym_destroy is called, so transports' threads leave it alone, but
                   for what monitor_lock guards */
    pthread_mutex_t monitor_lock; /* held while a peer is asked by way of the boot for a transport */
    bool unmonitored;             /* nobody asks any more. Guarded by monitor_lock */
    bool by_threads;              /* boot->threads: the ranks are threads of one process */
    /* Transports are being opened: the boot's monitor tells of no loss yet, so their waits ask it (site.check). Taken
       down by sym_create, read by any thread of the rank (relaxed: nothing hangs on it). */
    _Atomic bool forms;
    int32_t rank, size;
    const int32_t *nodes; /* [size], borrowed */
    int64_t timeout_ms;
    bool crowded;       /* ranks outnumber cores (sym_outnumbers), or nobody is to spin: give the core away early */
    bool all_mapped;    /* every PE's heap is mapped here */
    bool some_mapped;   /* that of some other PE is */
    bool all_reached;   /* every PE is mapped or reached by atomics */
    int32_t node_ranks; /* several nodes, each of so many ranks (2 or more) who map each other; 0: not so */
    bool owns_heap;     /* heap was made by sym_create, not by the group */
    bool fixed_heap;    /* all of it is there from the start */
    bool keeps_pages;   /* pages of the heap stay where they are: it is static, or a transport has registered them */
    bool splits;        /* some PE's data go by one transport, its atomics by another */
    int32_t host_ranks; /* ranks on this host */
    mem_budget budget;  /* of collective calls */
    mem_region heap;
    /* Behind the heap, from offset heap.bytes on: this rank's own part, where outputs of expert parallelism lie. Peers
       map it with the heap; it grows without them, and stays until its last block has gone. */
    mem_backing *backing;
    mem_store *store;       /* over the backing */
    sym_stranded *stranded; /* guarded by lock */
    transport_ways *ways;   /* [TRANSPORT_MEMORIES][size], see sym_ways */
    transport_site site;    /* what the transports know of this rank */
    transport *transports[TRANSPORT_MOST];
    int32_t num_transports;
    transport_driven driven; /* those that need progress */
    /* Carry the non-blocking operations, each those to some PEs (sym_proxy_for); none: they go straight to their
       transports. Written by sym_create (release: transports' threads may wake them by then). */
    proxy *proxies[SYM_MOST_RINGS];
    _Atomic int32_t num_rings;
    char *unreached; /* why the transports at hand are not more, or NULL; for error texts */
    /* [size][size][num_transports][TRANSPORT_MEMORIES] transport_reach of rank to the PE's memory by transport */
    uint8_t *matrix;
    /* The heap up to here is open on all ranks and reachable by all transports; the rest is addresses alone. Raised by
       collective calls (release), read by any thread that checks an address (acquire). */
    _Atomic uint64_t grown_bytes;
    _Atomic uint64_t chunks; /* times that it has grown, the first included; as grown_bytes, but relaxed */
    uint64_t reached_bytes[TRANSPORT_MOST]; /* as far as each transport has grown; changed by collective calls */
    /* Memory of the program that is mapped onto heap pages as well, so that it is symmetric; bytes 0: none. By
       sym_alias. */
    struct {
        uintptr_t base;
        size_t bytes;
        uint64_t offset; /* of those pages in the heap */
    } alias;
    uint8_t **peers;  /* [size] where the PE's heap is mapped here, or NULL; its own always is */
    uint8_t **direct; /* [size] the same where puts, gets and atomics go by loads and stores, else NULL */
    mem_arena *arena; /* of offsets from the heap's start, the control page taken; guarded by lock */
    pthread_mutex_t lock;
    sym_listener *listeners; /* guarded by lock */
    /* How long a wait spins where ranks have a core each, before it sleeps. */
    int64_t spin_ns;
    /* Waits in progress. By those who wait, each by itself; read by whoever frees what they use (release, acquire). */
    _Atomic int32_t waiters;
    int32_t host_cores; /* that the ranks of this host may use, all together */
    /* The same of this machine, whose ranks may be in several namespaces, and so on several hosts. */
    int32_t machine_ranks, machine_cores;
    /* Times that waits have given the core away, and slept. By those who wait; relaxed, each by itself. */
    _Atomic uint64_t yields, sleeps;
    uint64_t barrier_epoch; /* own count; barriers are called by one thread of a rank at a time */
    /* kind << 32 | rank; 0 while sound. Written by the monitor, abort and failed collectives (compare-swap, release),
       read by every wait (acquire). The first failure stays, but a death replaces the leaving that it caused, and this
       rank's abort replaces all others. */
    _Atomic uint64_t failure;
    /* A call that was about others met the failure of an earlier operation: the next fence or quiet of a caller tells.
       Set and taken down by any thread of the rank; relaxed, since it orders nothing. */
    _Atomic bool owes_failure;
    error_kept owed; /* what it was; guarded by lock */
    /* Why this rank gave another one up (SYM_PEER_SILENT): of the first one, and from then on it stays. Set under lock,
       before `failure`. */
    error_kept given_up;
    /* [size] sym_failure_kind by which a rank is gone, 0 while it is not. Written before `failure` (release), read
       after it (acquire). */
    _Atomic uint8_t *gone;
    /* [size] of a rank that is gone: 0, or 1 + the rank whose silence it went for. Written before `gone`, read after
       it (relaxed). */
    _Atomic int32_t *gone_for;
    /* Ranks that are gone, in the order in which that was noticed: lost[0 … losses). Written under lock, then `losses`
       is raised (release) and read (acquire) by whoever asks. */
    int32_t *lost;
    _Atomic uint32_t losses;
    /* [size] 0, or the number of the telling when an error of a call of this rank first named the rank as lost;
       tellings counts them. Set by those calls, read by waits; relaxed: it only decides who is told again. */
    _Atomic uint32_t *told_at;
    _Atomic uint32_t tellings;
} sym;

/* What heap to make. */
typedef struct sym_heap_plan {
    size_t bytes; /* the most that it may grow to, the control page included */
    bool huge;    /* of pages of hugetlbfs, where enough are free */
    bool fixed;   /* static: all of it at once. Else dynamic: memory is added as it is needed */
    /* Thread ranks: this rank's region, made by the group, and everybody's, as in transport_site. Else NULL. */
    const mem_region *region;
    const mem_region *const *peers;
    mem_backing *backing; /* with the region: what lies behind it */
} sym_heap_plan;

/* Addresses for the part behind a heap of so many bytes, where `ranks` ranks of a host, or threads of this process, map
   each other's: as much as the machine has memory, as far as addresses and limits allow (store.c). */
size_t sym_store_reserve(size_t heap_bytes, int32_t ranks, bool by_threads);

/* How long waits go on. */
typedef struct sym_patience {
    int64_t timeout_ms; /* for ranks that are silent */
    int64_t spin_ns;    /* before they sleep, where ranks have a core each; 0: no spinning, as if they had not */
} sym_patience;

/* Collective; between thread ranks too: they must call it at the same time. */
expar_status sym_create(boot *boot, const int32_t *nodes, const sym_patience *patience, const sym_heap_plan *plan,
                        sym **out);
/* The boot is about to go: transports' threads ask nobody by way of it any more. */
void sym_forget_boot(sym *sym);
void sym_destroy(sym *sym);

/* Tells the peers of a death or silence, records the first failure and wakes this PE's sleepers. Any thread. */
void sym_fail(sym *sym, sym_failure_kind kind, int32_t rank);
/* For those whose waiting the bell does not reach. A group that has failed already tells at once. */
void sym_listen(sym *sym, sym_listener *listener);
void sym_unlisten(sym *sym, sym_listener *listener);
/* EXPAR_OK while sound; else EXPAR_ERR_PEER or EXPAR_ERR_ABORTED, with a text that names the rank and
   `what` was being done. */
expar_status sym_check(sym *sym, const char *what);
/* The same in front of a collective over the control sockets: where it fails this rank does not come, and those who are
   in the collective learn of it. */
expar_status sym_check_come(sym *sym, const char *what);
/* sym_check has failed, and so this rank comes to no call more of the topic from its number on: those who are in one
   learn of it, and what has led to it. */
void sym_note_absent(sym *sym, const boot_topic *topic, expar_status status);
/* The same for an operation that touches pe alone: EXPAR_OK while this rank has not aborted and pe is not gone,
   whatever has become of others. */
expar_status sym_check_pe(sym *sym, int32_t pe, const char *what);
/* Ranks start, start + stride, …, `size` of them. */
typedef struct sym_ranks {
    int32_t start, stride, size;
} sym_ranks;
/* The same for what these ranks do together. */
expar_status sym_check_ranks(sym *sym, const sym_ranks *ranks, const char *what);
/* Words in this rank's heap in which others count on, one by one. No rank is so far ahead of another: a word that is
   has been overwritten, by a broken peer or a stranger. */
#define SYM_MOST_AHEAD ((uint64_t)1 << 32)
/* The word is at least `awaited`. EXPAR_ERR_PEER: it is too far ahead; the text names pe, whose word it is. */
expar_status sym_check_count(const _Atomic uint64_t *word, uint64_t awaited, int32_t pe, const char *what);
static inline bool sym_is_sound(const sym *self)
{
    return atomic_load_explicit(&self->failure, memory_order_acquire) == 0;
}
/* Whether it has failed because ranks have left, and for nothing worse. */
bool sym_failed_by_leaving(const sym *sym);
/* For what touches nobody: EXPAR_OK while this rank has not aborted. */
expar_status sym_check_self(sym *sym, const char *what);
/* An error that names the rank as lost is on its way to a caller. */
void sym_tell(sym *sym, int32_t rank);
/* Fails, and names the rank, when one is gone that nobody had been told of by the first `tellings` tellings, or when
   this rank has aborted. */
expar_status sym_check_losses(sym *sym, uint32_t tellings, const char *what);
/* The set of transport_reach that `rank` has to that memory of pe by transport `number` of sym->transports. */
unsigned sym_reach(const sym *sym, int32_t rank, int32_t pe, transport_memory memory, int32_t number);
/* By what this rank reaches that memory of pe. */
static inline const transport_ways *sym_ways(const sym *self, transport_memory memory, int32_t pe)
{
    return &self->ways[(size_t)memory * (size_t)self->size + (size_t)pe];
}
/* Whether rank maps pe's heap, as it does its own. All ranks know of all. */
bool sym_maps(const sym *sym, int32_t rank, int32_t pe);
/* For a collective call over `boot` that failed with `status`: unless all ranks refused it alike (EXPAR_ERR_MISMATCH)
   later ones cannot be trusted, and the group has failed. Returns status, with `what` before its text. */
expar_status sym_out_of_step(sym *sym, const char *what, expar_status status);
/* boot_agree; where this rank is out of step after it, the group has failed on its side (sym_out_of_step). */
expar_status sym_agree(sym *sym, const boot_matter *matter, expar_status own);

/* ---- addresses --------------------------------------------------------------------------------------------------- */

/* Whether [data, data + bytes) is wholly in the heap proper, as far as it has grown, and its offset there. */
static inline bool sym_heap_offset(const sym *self, const void *data, size_t bytes, uint64_t *offset)
{
    const uint64_t at = (uintptr_t)data - (uintptr_t)self->heap.base;
    const uint64_t grown = atomic_load_explicit(&self->grown_bytes, memory_order_acquire);
    *offset = at;
    return at >= SYM_CONTROL_BYTES && at < grown && bytes <= grown - at;
}
/* Offset of a local address in the heap, or in the heap's pages of the program's data; false when [address, address +
   bytes) is not wholly in one of the two, the heap as far as it has grown. */
bool sym_offset(const sym *sym, const void *address, size_t bytes, uint64_t *offset);
/* The same in the part behind the heap, of addresses that blocks of sym->store have. */
bool sym_store_offset(const sym *sym, const void *address, size_t bytes, uint64_t *offset);
/* From now on addresses of [base, base + bytes), which the caller has mapped onto the heap's pages at the offset, are
   addresses of the heap, too. Once, before any of them is used. */
void sym_alias(sym *sym, uintptr_t base, size_t bytes, uint64_t offset);
/* pe's heap at offset, as mapped here; NULL where it is not mapped. */
static inline void *sym_at(const sym *self, int32_t pe, uint64_t offset)
{
    return self->peers[pe] ? self->peers[pe] + offset : NULL;
}
/* Where the heap's border will be when it must reach `end`, which is at most heap.bytes; never before where it is. */
uint64_t sym_border(const sym *sym, uint64_t end);
/* Makes the heap up to sym_border(end), which every rank has opened, reachable by all transports. Collective with equal
   arguments. EXPAR_ERR_MEMORY (on all ranks): some rank's transport cannot register its part; nothing is lost. */
expar_status sym_grow(sym *sym, uint64_t end);
/* Collective allocation behind expar_malloc; `what` names the call in error texts. bytes 0 takes nothing and gives
   offset 0. All ranks return the same status: EXPAR_ERR_MISMATCH (names a rank), EXPAR_ERR_MEMORY, EXPAR_ERR_PEER,
   EXPAR_ERR_ABORTED; EXPAR_ERR_REMOTE when another rank called sym_refuse. */
expar_status sym_take(sym *sym, const char *what, uint64_t bytes, uint64_t alignment, uint64_t *offset);
/* The same, but only the first `filled_bytes` of the block get memory now: the caller commits the rest, or has the
   network's registering do so. */
expar_status sym_take_partly(sym *sym, const char *what, uint64_t bytes, uint64_t filled_bytes, uint64_t alignment,
                             uint64_t *offset);
/* Takes part in the others' sym_take or sym_give with a reason not to carry it out; returns reason, its text kept. */
expar_status sym_refuse(sym *sym, const char *what, expar_status reason);
/* Collective; returns when all ranks have come, with the pages of large blocks given back where no network has
   registered them. Offset 0 frees nothing. */
expar_status sym_give(sym *sym, const char *what, uint64_t offset);
/* Whether a block of this rank's heap starts at the offset, and its bytes. */
bool sym_block_bytes(sym *sym, uint64_t offset, uint64_t *bytes);
/* How full the heap is, all but huge_bytes, which the kernel goes through the whole heap for. */
void sym_heap_stats(sym *sym, struct expar_heap_stats *out);
/* The same by a card, and whose heap it is; false: it is no card of this version. */
bool sym_card_read(const sym_heap_card *card, struct expar_heap_stats *stats, int32_t *rank, int32_t *size);
/* Takes over a block of sym->store that peers may still write to, now that the group has failed: it stays as long as
   the group does. */
void sym_strand(sym *sym, mem_block *block);
/* Makes a range of this rank's heap zero. */
void sym_clear(sym *sym, uint64_t offset, uint64_t bytes);

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

/* Wakes pe if it sleeps. To be called after the store (release) of a flag that it may wait for. */
void sym_ring(sym *sym, int32_t pe);
/* The same after a put to [offset, offset + bytes) of its heap: only if it watches words there. */
void sym_ring_put(sym *sym, int32_t pe, uint64_t offset, uint64_t bytes);

/* What a wait for one rank is for: the word is at least the value. */
typedef struct sym_rest_goal {
    const _Atomic uint64_t *word;
    uint64_t least;
} sym_rest_goal;

/* A wait in progress, for conditions of any shape:
 *
 *     sym_rest rest = sym_rest_begin(sym, "dispatch: rows");
 *     expar_status status = EXPAR_OK;
 *     while (!ready(…) && (status = sym_rest_turn(&rest)) == EXPAR_OK) {}
 *     sym_rest_end(&rest);
 *
 * A turn spins, then yields, then arms the bell (after which the caller looks once more), then sleeps, bounded; ranks
 * that outnumber cores yield almost at once. A
 * caller that saw progress but must wait on calls sym_rest_progress, which starts over. A turn fails with
 * EXPAR_ERR_PEER or EXPAR_ERR_ABORTED when the group has failed, with EXPAR_ERR_INTERRUPTED when the program wants
 * it, and with EXPAR_ERR_PEER (timed_out) when boot_wait finds that nobody will end the wait: ranks that were silent
 * for it are gone from then on, and the text names who is to blame; the caller adds what was missing. */
typedef struct sym_rest {
    sym *sym;
    const char *what;
    uint32_t turn;       /* that spin */
    uint32_t look_turn;  /* the next one that looks at the clock and the cores */
    uint32_t idle_turns; /* behind them */
    uint32_t rings;      /* value of the futex word when armed */
    int64_t spin_end_ns; /* 0: the clock has not been looked at */
    uint64_t watch;      /* bell_range of the words that puts may change to end the wait */
    bool crowded;        /* yields at once: as the group is, or set by a caller whose threads outnumber the cores */
    bool on_shared_core; /* another rank was seen there, so turns that spin yield */
    bool armed;
    bool attends;     /* drives the network meanwhile */
    bool handed_over; /* the network's own thread does */
    bool timed_out;   /* set when a turn failed because of those who are waited for */
    bool open;        /* by sym_rest_begin_open */
    bool tolerant;    /* by sym_rest_tolerate */
    /* By sym_rest_outlast; else NULL. */
    bool (*owes)(const void *context, int32_t rank);
    const void *owed_to;
    uint32_t losses; /* then: of sym when the caller was last sent to look again */
    sym_ranks among; /* those whose loss ends the wait, unless it is open; size 0: all */
    /* Ends it too, once it is set (relaxed): what the wait is for has been abandoned. NULL: nothing does */
    const atomic_bool *halt;
    uint32_t tellings; /* open: of sym at the beginning */
    boot_wait wait;    /* what others are told, and how those stand who are awaited */
} sym_rest;
sym_rest sym_rest_begin(sym *sym, const char *what);
/* For what some ranks do together, whatever becomes of others. */
sym_rest sym_rest_begin_among(sym *sym, const char *what, sym_ranks among);
/* For waits that cannot know who will end them: the loss of a rank ends those that are under way. It ends a later one
   too unless some call has told of it before, and then is not in the way any more. Puts to [offset, offset + bytes) of
   this rank's heap may end the wait. */
sym_rest sym_rest_begin_open(sym *sym, const char *what, uint64_t offset, uint64_t bytes);
/* What is waited for there, and who has to come; others who ask are told. Else it is not known. */
void sym_rest_expect(sym_rest *rest, const boot_topic *topic, int32_t rank);
/* Behind sym_rest_expect: what the rank tells is that the word reaches the value (one of its writers stores it with
   release order). It counts where it has come before the rank noted an end. Both stay until the wait's end. */
void sym_rest_until(sym_rest *rest, const sym_rest_goal *goal);
/* For all of whom misses(context, rank) is true, at each time. The context stays until the end. */
void sym_rest_expect_all(sym_rest *rest, const boot_topic *topic, bool (*misses)(const void *context, int32_t rank),
                         const void *context);
/* Behind sym_rest_expect_all: the loss or silence of a rank ends the wait only while it is missed, and no failed wait
   makes a rank gone for others: the caller goes on without those who are lost (sym_rest_has_lost), by another wait. */
void sym_rest_tolerate(sym_rest *rest);
/* For what a rank for which owes(context, rank) is false has done its whole part in: the wait goes on when such a rank
   leaves the group, which has failed then, and ends as soon as one has left that owes something. What had come before
   it left counts: the caller looks once more before a loss ends the wait. The context stays until the end. */
void sym_rest_outlast(sym_rest *rest, bool (*owes)(const void *context, int32_t rank), const void *context);
/* Whether the wait, a tolerant one that a turn has failed with EXPAR_ERR_PEER, has failed because of the rank. */
bool sym_rest_has_lost(const sym_rest *rest, int32_t rank);
expar_status sym_rest_turn(sym_rest *rest);
void sym_rest_progress(sym_rest *rest);
/* Whether so many threads of each rank outnumber the cores of the host, or of the machine: for waits of threads that a
   rank has beside its own (cores.c). */
bool sym_outnumbers(const sym *sym, int32_t threads);
void sym_rest_end(sym_rest *rest);
/* For a collective that is lost to this rank by a wait that failed: the group fails for the sake of whoever is to
   blame alone (SYM_PEER_SILENT), or, where it was interrupted, as one that is out of step; others learn that this
   rank does not come. To be called after sym_rest_end. Returns status. */
expar_status sym_rest_blame(const sym_rest *rest, expar_status status);
/* boot_wait_look; those who are silent are gone from now on (SYM_PEER_SILENT). For waits without a sym_rest:
 *
 *     boot_wait wait;
 *     boot_wait_begin(&wait, sym->boot, &topic, "dispatch: rows");
 *     boot_wait_for(&wait, rank);                 whom the wait is for now, as soon as it is known and when it changes
 *     while (… still waits, sym_check is EXPAR_OK …) {
 *         status = sym_wait_look(sym, &wait);     at least every INTERRUPT_NS; some 50 ms at most
 *         if (status != EXPAR_OK) break;          wait.verdict, wait.culprit and the last error say why
 *     }
 *     boot_wait_end(&wait);
 *
 * so a thread may do this for a wait that is not its own, such as a kernel's: while it looks, others are told that
 * this rank waits there. boot_wait_progress where the one that waits has got on. A rank that has died or left is
 * known to sym_check at once, and answers nothing here. What this rank does not come to any more, it notes by
 * boot_note_ended. */
expar_status sym_wait_look(sym *sym, boot_wait *wait);
/* All ranks are asked; those that stay silent for a while (boot_silence_ns, 5 s at most) are gone from now on, and
   named behind the last error's text. False: nobody is. */
bool sym_blame_silent(sym *sym, expar_status status);

/* For who has found a flag of its own set without sym_rest_end behind it: what came before the flag is seen, too. */
void sym_behold(sym *sym);

/* The proxy that carries this rank's non-blocking operations to pe; NULL: it has none. All to one PE share a ring. */
static inline proxy *sym_proxy_for(const sym *self, int32_t pe)
{
    const int32_t rings = atomic_load_explicit(&self->num_rings, memory_order_acquire);
    return rings > 0 ? self->proxies[pe % rings] : NULL;
}

/* Orders this rank's operations to each PE. */
expar_status sym_fence(sym *sym);
/* All of this rank's operations without a batch are complete at their targets. */
expar_status sym_quiet(sym *sym);
/* Those of the batch are. What failed is told once, and none is under way any more then. */
expar_status sym_settle(sym *sym, transport_batch *batch);
/* `ordered` is what a fence or quiet gave before something for pe. A failure that has nothing to do with pe is kept for
   the caller's next fence or quiet, and EXPAR_OK returned. */
expar_status sym_order_before(sym *sym, expar_status ordered, int32_t pe);
/* Sets a word of pe's heap to `value`, after all that this rank did before, and wakes pe if it waits for it: by a store
   (release) where the heap is mapped, else by the transport of pe's atomics after a fence. */
expar_status sym_word_set(sym *sym, int32_t pe, uint64_t offset, uint64_t value);
/* quiet, then a barrier over the heap; where some PE is neither mapped nor reached by atomics, over the control
   sockets, which is slow. A time-out fails the group and names the ranks that did not come. */
expar_status sym_barrier(sym *sym);

#endif
