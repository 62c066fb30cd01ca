/* SPDX-License-Identifier: Apache-2.0 */
/* shmem: how a rank reaches another one, waits for it, and learns that it is lost. It has the heap, transports, waits,
 * the barrier and failures.
 *
 * group owns the state; group, exec, ep and pgas call this folder, after they have checked their arguments. It calls
 * net, mem, boot and base. Besides this header the layers above include device_heap.h (GPU memory), doorbell.h and
 * tree.h. The prefix is sym_ because shmem_ belongs to OpenSHMEM. */
#ifndef EXPAR_SHMEM_SYM_H
#define EXPAR_SHMEM_SYM_H

#include "boot/boot.h"
#include "mem/mem.h"
#include "net/proxy/proxy.h"
#include "net/transport.h"
#include <pthread.h>
#include <stdatomic.h>

struct expar_heap_stats; /* expar/memory.h */
struct device_heap;      /* shmem/device_heap.h */
struct pinned_heap;      /* shmem/pinned_heap.h */
struct mem_copier;       /* mem/copier.h */
struct mem_registry;     /* mem/registry.h */
struct sym_rings;        /* shmem/rings.h */

/* ---- control page: the first bytes of every PE's heap ------------------------------------------------------------ */

/* A PE's doorbell. The sleeper sets `watched`, makes a full fence, checks its condition again, and sleeps on `rings`.
 * The writer stores its flag, makes a full fence, and reads `watched`. If it is set, the writer clears it, raises
 * `rings` and wakes all sleepers. At least one of the two always sees the other's store. Several threads of a PE may
 * sleep on its doorbell: each one that wakes sets `watched` again before it checks again. Every sleep has a limit,
 * because raw stores through expar_ptr do not ring.
 *
 * A put may change any word, but no thread waits for most of the data that puts carry. So `watched` says where the
 * awaited words lie, and a put to another place does not wake the sleepers. A writer of the library's own flags always
 * rings, wherever they lie.
 *
 * Sleeps are rare and writes are many. If the system allows it, the sleeper therefore makes the fence for both sides by
 * membarrier(2). This runs a full fence on every core that runs a thread of a registered process. A writer in a
 * registered process needs no fence of its own. */
typedef struct sym_doorbell {
    /* 0: no thread sleeps or is about to. Otherwise it is the doorbell_range that holds all words that sleepers watch.
       The PE's own threads widen it; all writers read and clear it. The full fences above order it. */
    _Alignas(64) _Atomic uint64_t watched;
    /* 1: sleepers make the writers' fence, too, by membarrier. The owner writes it before other threads use the
       doorbell; all threads read it. It is relaxed, because a thread that reads 0 only makes a fence that is not
       needed. */
    _Atomic uint32_t fences;
    /* The futex word. All writers raise it after they have cleared `watched`; the PE's own sleepers read it. Relaxed is
       enough, because the futex compares it in the kernel. */
    _Alignas(64) _Atomic uint32_t rings;
} sym_doorbell;

/* How full the heap is, for tools that read it from other processes (card.c). The owner writes it when blocks are taken
   or freed. It stores `mark` once, after rank and size (release); readers load `mark` first (acquire). The other words
   are relaxed and independent, so a reader may see them at different moments. */
enum { SYM_CARD_WORDS = 10 };
typedef struct sym_heap_card {
    _Atomic uint64_t mark;
    int32_t rank, size;
    _Atomic uint64_t words[SYM_CARD_WORDS];
} sym_heap_card;

#define SYM_BARRIER_ROUNDS 32
typedef struct sym_control {
    sym_doorbell doorbell;
    /* The words of the barrier (barrier.c). Each has one writer, which sets it to the barrier's epoch (release); the
       owner reads it (acquire). In round r of a meeting the writer is the PE that is 2^r steps below the owner. The
       writer of the last word in use is the PE that releases the owner. The words are never cleared, because epochs
       only grow. */
    _Alignas(64) _Atomic uint64_t barrier[SYM_BARRIER_ROUNDS];
    /* The first failure that a peer has noticed, 0: none. It is teller << 40 | kind << 32 | rank: the PE that writes
       it, the sym_failure_kind and the rank that failed. A peer writes it before it acts on the failure (compare-swap
       from 0, release). The owner reads it when a peer has left or ended (acquire). So the owner can name the cause
       even if it learns first that a peer has left because of it. */
    _Alignas(64) _Atomic uint64_t told;
    /* 1 + number of the core on which the PE was when one of its waits last looked; 0: not known. The PE's own threads
       write it, waits of PEs of the same host read it. It is relaxed, because it only decides whether they spin or
       yield. */
    _Alignas(64) _Atomic uint32_t core;
    _Alignas(64) sym_heap_card card;
} sym_control;
/* The part of the heap for users starts at this offset, so their offsets are never 0. */
#define SYM_CONTROL_BYTES 4096
/* Users' blocks of the pinned heap start at this offset. */
#define SYM_PINNED_BEGIN 4096

/* ---- failure ----------------------------------------------------------------------------------------------------- */

/* SYM_PEER_SILENT: the rank gave no answer when a wait had timed out, or did not come to a collective call. With rank
   -1 a collective call failed on some ranks only, for an unknown reason. The ranks are then out of step: no later
   collective call can succeed. */
typedef enum sym_failure_kind {
    SYM_SOUND = 0,
    SYM_PEER_DIED,
    SYM_PEER_LEFT,
    SYM_ABORTED,
    SYM_PEER_SILENT
} sym_failure_kind;

/* A function that is called once, when the group fails, in the thread that has noticed the failure. It must not
   block. */
typedef struct sym_listener {
    void (*failed)(void *context);
    void *context;
    struct sym_listener *next;
} sym_listener;

/* The largest number of command rings of a rank, and the number without EXPAR_PROXY_RINGS. Each ring has a proxy of its
   own. */
#define SYM_MOST_RINGS 16
#define SYM_RINGS      4

/* The users of a rank's rings for kernels (rings.h). Each has rings of its own: failures, fences and full rings of one
   are then no matter of the others. */
typedef enum sym_rings_user {
    /* kernels of the library */
    SYM_RINGS_LIBRARY = 0,
    /* kernels of the program with handles (pgas/device), on the rank's GPU and as threads of the CPU */
    SYM_RINGS_HANDLES_GPU,
    SYM_RINGS_HANDLES_CPU,
    SYM_RINGS_USERS
} sym_rings_user;

/* A block of `store` that stays until the group ends, because peers may still write to it. */
typedef struct sym_stranded {
    mem_block *block;
    struct sym_stranded *next;
} sym_stranded;

typedef struct sym {
    /* Borrowed from the group, which destroys it before it calls sym_destroy. So the transports' threads use only what
       monitor_lock guards. */
    boot *boot;
    /* held while a transport asks about a peer through the boot */
    pthread_mutex_t monitor_lock;
    /* true: transports must not ask the boot any more; guarded by monitor_lock */
    bool unmonitored;
    /* boot->threads: the ranks are threads of one process */
    bool by_threads;
    /* true while transports are being opened. The boot's monitor reports no losses during that time, so waits of
       transports ask it (site.check). sym_create clears it, any thread of the rank reads it. It is relaxed, because it
       orders nothing. */
    _Atomic bool forms;
    int32_t rank, size;
    /* [size], borrowed */
    const int32_t *nodes;
    int64_t timeout_ms;
    /* waits yield early: ranks outnumber cores (sym_outnumbers), or the settings forbid spinning */
    bool crowded;
    /* every PE's heap is mapped here */
    bool all_mapped;
    /* the heap of some other PE is mapped here */
    bool some_mapped;
    /* every PE is mapped or reached by atomics */
    bool all_reached;
    /* number of ranks of each node if there are several nodes of equal size, 2 or more, whose ranks map each other;
       else 0 */
    int32_t node_ranks;
    /* sym_create made the heap, not the group */
    bool owns_heap;
    /* all memory of the heap is there from the start */
    bool fixed_heap;
    /* the heap's pages stay in place: it is static, or a transport has registered them */
    bool keeps_pages;
    /* for some PE one transport carries puts and gets, and another one atomics */
    bool splits;
    /* number of ranks on this host */
    int32_t host_ranks;
    /* memory budget of collective calls */
    mem_budget budget;
    mem_region heap;
    /* This rank's own memory after the heap, which holds outputs of expert parallelism. It starts at offset heap.bytes,
       and peers map it with the heap. It grows without them, and stays until its last block is freed. */
    mem_backing *backing;
    /* allocates from the backing */
    mem_store *store;
    /* guarded by lock */
    sym_stranded *stranded;
    /* [TRANSPORT_MEMORIES][size], see sym_ways */
    transport_ways *ways;
    /* the view of this rank that transports get */
    transport_site site;
    transport *transports[TRANSPORT_MOST];
    int32_t num_transports;
    /* the transports that need progress */
    transport_list driven;
    /* those whose operations end when a thread looks for it (transport_ops.reap) */
    transport_list reaped;
    /* Proxies that carry the non-blocking operations, each for some PEs (sym_proxy_for). Without proxies, operations go
       straight to their transports. sym_create raises num_rings after it has opened a proxy (release), because
       transports' threads may already wake proxies at that time. All threads load num_rings before they use a proxy
       (acquire). */
    proxy *proxies[SYM_MOST_RINGS];
    _Atomic int32_t num_rings;
    /* Slots of rings for kernels that are made later, a power of two (0: 1024), and the number of their first command.
       Tests make small rings whose numbers are about to wrap around. */
    uint32_t ring_slots;
    uint64_t ring_first;
    /* Rings for kernels, by sym_rings_user; NULL: nobody has asked for them. The thread that makes them stores them
       (compare-swap, release); all threads load them (acquire). */
    _Atomic(struct sym_rings *) rings[SYM_RINGS_USERS];
    /* why other transports are not available, for error texts; or NULL */
    char *unreached;
    /* [size][size][num_transports][TRANSPORT_MEMORIES]: transport_reach of a rank to a PE's memory by a transport. */
    uint8_t *matrix;
    /* The heap has memory up to this offset, on all ranks, and all transports reach it; beyond it there are only
       reserved addresses. Collective calls raise it (release); any thread that checks an address reads it (acquire). */
    _Atomic uint64_t grown_bytes;
    /* How often the heap has grown, the first time included. The same threads write and read it as grown_bytes, but
       relaxed. */
    _Atomic uint64_t chunks;
    /* how far each transport reaches; collective calls change it */
    uint64_t reached_bytes[TRANSPORT_MOST];
    /* Memory of the program that is also mapped onto heap pages, so that it is symmetric; bytes 0: none. Set by
       sym_alias. */
    struct {
        uintptr_t base;
        size_t bytes;
        /* offset of those pages in the heap */
        uint64_t offset;
    } alias;
    /* [size] where each PE's heap is mapped here, or NULL; this rank's own is always mapped */
    uint8_t **peers;
    /* [size] the same address if puts, gets and atomics on the PE use loads and stores; else NULL */
    uint8_t **direct;
    /* Allocates offsets in the heap. The control page is taken from the start. Guarded by lock. */
    mem_arena *arena;
    /* The users' memory of GPUs, and their pinned memory; NULL: none has been asked for. The first allocation of the
       kind makes them (release); any thread that looks for an address reads them (acquire). kinds.c has them. */
    _Atomic(struct device_heap *) device;
    _Atomic(struct pinned_heap *) pinned;
    /* Copies for calls of the host, on this rank's GPU. There from the first device or pinned memory on; written and
       read as `device`. */
    _Atomic(struct mem_copier *) copier;
    /* Memory of the caller's that is registered; it lives as long as the object. */
    struct mem_registry *registry;
    /* Reaches device memory (copies/copies.h). There from the first device memory on; written and read as `device`. */
    _Atomic(struct transport *) copies;
    /* The pinned heap has memory up to this offset, on all ranks; 0: none. Written and read as grown_bytes. */
    _Atomic uint64_t pinned_bytes;
    pthread_mutex_t lock;
    /* guarded by lock */
    sym_listener *listeners;
    /* How long a wait spins before it sleeps, if every rank has a core. */
    int64_t spin_ns;
    /* Number of waits in progress. Each wait counts itself (release). The thread that frees the objects that waits use
       reads it (acquire). */
    _Atomic int32_t waiters;
    /* cores that the ranks of this host may use, all together */
    int32_t host_cores;
    /* host_ranks and host_cores for the whole machine. Its ranks may be in several namespaces, and so count as several
       hosts. */
    int32_t machine_ranks, machine_cores;
    /* How often waits have yielded, and slept. Each wait counts for itself; relaxed. */
    _Atomic uint64_t yields, sleeps;
    /* The number of barriers on this rank. Only one thread of a rank calls a barrier at a time. */
    uint64_t barrier_epoch;
    /* The failure of the group: sym_failure_kind << 32 | rank; 0 while the group is sound. The monitor, an abort and
       failed collective calls write it (compare-swap, release); every wait reads it (acquire). The first failure stays,
       with two exceptions: a death replaces the leaving that it caused, and this rank's abort replaces all others. */
    _Atomic uint64_t failure;
    /* true: a call has found that an earlier operation on another PE failed (sym_order_before). The caller's next fence
       or quiet reports that failure. Any thread of the rank sets and clears this. It is relaxed, because it orders
       nothing. */
    _Atomic bool owes_failure;
    /* that failure; guarded by lock */
    error_kept owed;
    /* Why this rank gave up another one (SYM_PEER_SILENT). The first such reason stays. It is set under lock, before
       `failure`. */
    error_kept given_up;
    /* [size] how each rank was lost (sym_failure_kind); 0: it was not. It is written before `failure` (release), and
       read after it (acquire). */
    _Atomic uint8_t *gone;
    /* [size] for a lost rank: 1 + the rank whose silence made it leave; 0: none is known. It is written before `gone`,
       and read after it (relaxed). */
    _Atomic int32_t *gone_for;
    /* Ranks that are gone, in the order in which this rank noticed: lost[0 … losses). A writer adds the rank under lock
       and then raises `losses` (release); readers load `losses` (acquire). */
    int32_t *lost;
    _Atomic uint32_t losses;
    /* [size] `tellings` counts the lost ranks that errors of this rank have named. told_at has the count at which each
       rank was first named; 0: it was not. Calls that return such an error write both, waits read them. They are
       relaxed, because they only decide which callers get the error again. */
    _Atomic uint32_t *told_at;
    _Atomic uint32_t tellings;
} sym;

/* Describes the heap to make. */
typedef struct sym_heap_plan {
    /* the largest size that it may grow to, the control page included */
    size_t bytes;
    /* use pages of hugetlbfs if enough are free */
    bool huge;
    /* static: all memory at once; else dynamic: memory is added as it is needed */
    bool fixed;
    /* For ranks that are threads: this rank's region, which the group made, and the regions of all ranks, as in
       transport_segment. Otherwise NULL. */
    const mem_region *region;
    const mem_region *const *peers;
    /* given with the region: the part that follows it */
    mem_backing *backing;
} sym_heap_plan;

/* Returns how many bytes of addresses to reserve for the part that follows a heap of `heap_bytes`. `ranks` is the
   number of ranks that map each other's parts: ranks of a host, or threads of this process. The result is the machine's
   memory size, or less if addresses or limits do not suffice (store.c). */
size_t sym_store_reserve(size_t heap_bytes, int32_t ranks, bool by_threads);

/* How long waits last. */
typedef struct sym_patience {
    /* how long a wait for a silent rank lasts */
    int64_t timeout_ms;
    /* how long waits spin before they sleep, if every rank has a core; 0: they do not spin, as if cores were scarce */
    int64_t spin_ns;
} sym_patience;

/* Collective. Ranks that are threads must call it at the same time, too. */
expar_status sym_create(boot *boot, const int32_t *nodes, const sym_patience *patience, const sym_heap_plan *plan,
                        sym **out);
/* Call this before the boot is destroyed. Afterwards the transports' threads ask it nothing. */
void sym_forget_boot(sym *sym);
void sym_destroy(sym *sym);

/* Records a failure of the group: tells the peers if a rank died or fell silent, keeps the first failure, and wakes
   this PE's sleepers. Any thread may call it. */
void sym_fail(sym *sym, sym_failure_kind kind, int32_t rank);
/* Registers a listener for waits that the doorbell does not wake. If the group has failed already, the listener is
   called at once. */
void sym_listen(sym *sym, sym_listener *listener);
void sym_unlisten(sym *sym, sym_listener *listener);
/* Returns EXPAR_OK while the group is sound. Otherwise it returns EXPAR_ERR_PEER or EXPAR_ERR_ABORTED, with a text that
   names the rank and the operation `what`. */
expar_status sym_check(sym *sym, const char *what);
/* The same check before a collective over the control sockets. If it fails, this rank does not take part, and the ranks
   in the collective are told so. */
expar_status sym_check_come(sym *sym, const char *what);
/* Call this after sym_check has failed. This rank then takes part in no call of the topic, from topic->number on. Ranks
   that wait in such a call are told so, with the cause. */
void sym_note_absent(sym *sym, const boot_topic *topic, expar_status status);
/* Makes the same check for an operation on pe alone. It returns EXPAR_OK as long as this rank has not aborted and pe is
   not lost, even if other ranks are. */
expar_status sym_check_pe(sym *sym, int32_t pe, const char *what);
/* The `size` ranks start, start + stride, …. */
typedef struct sym_ranks {
    int32_t start, stride, size;
} sym_ranks;
/* The same check for an operation of these ranks together. */
expar_status sym_check_ranks(sym *sym, const sym_ranks *ranks, const char *what);
/* The largest lead of one rank over another. Other ranks count in words of this rank's heap, one by one, so no word is
   ever further ahead. If one is, a broken peer or a foreign process has overwritten it. */
#define SYM_MOST_AHEAD ((uint64_t)1 << 32)
/* Checks a word that has reached `awaited`. EXPAR_ERR_PEER: it is too far ahead, and the text names its writer pe. */
expar_status sym_check_count(const _Atomic uint64_t *word, uint64_t awaited, int32_t pe, const char *what);
static inline bool sym_is_sound(const sym *self)
{
    return atomic_load_explicit(&self->failure, memory_order_acquire) == 0;
}
/* Returns whether the group has failed only because ranks have left. */
bool sym_failed_by_leaving(const sym *sym);
/* Check for an operation that touches no other rank: EXPAR_OK as long as this rank has not aborted. */
expar_status sym_check_self(sym *sym, const char *what);
/* Call this when a call returns an error that names the rank as lost. */
void sym_tell(sym *sym, int32_t rank);
/* Fails if a rank is lost that no error had named when `tellings` had this value, and names it. Also fails if this rank
   has aborted. */
expar_status sym_check_losses(sym *sym, uint32_t tellings, const char *what);
/* Returns the set of transport_reach that `rank` has to that memory of pe by transport `number` of sym->transports. */
unsigned sym_reach(const sym *sym, int32_t rank, int32_t pe, transport_memory memory, int32_t number);
/* Returns the transports by which this rank reaches that memory of pe. */
static inline const transport_ways *sym_ways(const sym *self, transport_memory memory, int32_t pe)
{
    return &self->ways[(size_t)memory * (size_t)self->size + (size_t)pe];
}
/* Returns whether rank maps pe's heap; each rank maps its own. All ranks know this of all ranks. */
bool sym_maps(const sym *sym, int32_t rank, int32_t pe);
/* Call this when a collective call over `boot` has failed with `status`. The group then fails, because the ranks may be
   out of step, unless all ranks rejected the call alike (EXPAR_ERR_MISMATCH). Returns status, with `what` before its
   text. */
expar_status sym_out_of_step(sym *sym, const char *what, expar_status status);
/* Calls boot_agree. If it fails so that this rank is out of step, the group fails on this rank (sym_out_of_step). */
expar_status sym_agree(sym *sym, const boot_matter *matter, expar_status own);

/* ---- addresses --------------------------------------------------------------------------------------------------- */

/* Returns whether [data, data + bytes) is wholly in the users' part of the heap, as far as it has grown. *offset is its
   offset there. */
static inline bool sym_heap_offset(const sym *self, const void *data, size_t bytes, uint64_t *offset)
{
    const uint64_t at = (uintptr_t)data - (uintptr_t)self->heap.base;
    const uint64_t grown = atomic_load_explicit(&self->grown_bytes, memory_order_acquire);
    *offset = at;
    return at >= SYM_CONTROL_BYTES && at < grown && bytes <= grown - at;
}
/* Finds the offset of [address, address + bytes) in this rank's heap. The range may lie in the heap, as far as it has
   grown, or in data of the program that is mapped onto heap pages (sym_alias). Returns false unless it is wholly in one
   of them. */
bool sym_offset(const sym *sym, const void *address, size_t bytes, uint64_t *offset);
/* The same for addresses of sym->store's blocks, in the part that follows the heap. */
bool sym_store_offset(const sym *sym, const void *address, size_t bytes, uint64_t *offset);
/* Makes the addresses [base, base + bytes) valid as addresses of the heap. The caller has mapped them onto the heap's
   pages at the offset. Call it once, before any of these addresses is used. */
void sym_alias(sym *sym, uintptr_t base, size_t bytes, uint64_t offset);
/* Returns pe's heap at offset, as mapped here; NULL if it is not mapped. */
static inline void *sym_at(const sym *self, int32_t pe, uint64_t offset)
{
    return self->peers[pe] ? self->peers[pe] + offset : NULL;
}
/* Returns how many bytes the heap has after it has grown to hold `end`, which is at most heap.bytes. The result is
   never below the present size. */
uint64_t sym_border(const sym *sym, uint64_t end);
/* Gives the transport's queues for kernels (transport_ops.kernels): their address; 0: there are none. *ordered may be
   NULL. */
uint64_t sym_queues(const sym *self, bool on_gpu, bool *ordered);
/* Returns whether these queues carry data to that memory of pe; words: whether they carry atomics that meet those of
   all ranks. */
bool sym_queues_reach(const sym *self, bool on_gpu, transport_memory memory, int32_t pe, bool words);
/* Waits until all requests that kernels have written before have ended. */
expar_status sym_queues_quiet(const sym *self);
/* For the queue of the GPU's kernels that keeps the order of requests to pe: the first says whether all before that
   index have ended. The second returns EXPAR_OK, or why some have failed. Any thread. */
bool sym_queues_have_ended_to(const sym *self, int32_t pe, uint64_t number);
expar_status sym_queues_failed_to(const sym *self, int32_t pe);
/* Makes the heap up to sym_border(end) reachable by all transports. Every rank has opened that memory before.
   Collective, with equal arguments. EXPAR_ERR_MEMORY (on all ranks): some rank's transport cannot register its part;
   the heap is as before. */
expar_status sym_grow(sym *sym, uint64_t end);
/* The collective allocation of expar_malloc; `what` names the call in error texts. With bytes 0 it takes nothing and
   gives offset 0. All ranks return the same status: EXPAR_ERR_MISMATCH (names a rank), EXPAR_ERR_MEMORY,
   EXPAR_ERR_PEER, EXPAR_ERR_ABORTED; EXPAR_ERR_REMOTE if another rank called sym_reject. */
expar_status sym_take(sym *sym, const char *what, uint64_t bytes, uint64_t alignment, uint64_t *offset);
/* The same, but only the first `filled_bytes` of the block get memory now. The caller commits the rest, or the network
   does so when it registers it. */
expar_status sym_take_partly(sym *sym, const char *what, uint64_t bytes, uint64_t filled_bytes, uint64_t alignment,
                             uint64_t *offset);
/* Takes part in the other ranks' sym_take or sym_give, and makes it fail on all ranks for this reason. Returns the
   reason and keeps its text. */
expar_status sym_reject(sym *sym, const char *what, expar_status reason);
/* Frees the block at the offset; with offset 0, none. Collective; it returns when all ranks have come. The pages of
   large blocks go back to the system if no network has registered them. If operations of a rank have failed, all ranks
   keep the block: that rank returns their failure, the others EXPAR_ERR_REMOTE. */
expar_status sym_give(sym *sym, const char *what, uint64_t offset);
/* Returns whether a block of this rank's heap starts at the offset, and its size. */
bool sym_block_bytes(sym *sym, uint64_t offset, uint64_t *bytes);
/* Fills all members except huge_bytes, for which the kernel would have to walk the whole heap. */
void sym_heap_stats(sym *sym, struct expar_heap_stats *out);
/* Reads the same from a card, and the rank and size of its group. Returns false if it is no card of this version. */
bool sym_card_read(const sym_heap_card *card, struct expar_heap_stats *stats, int32_t *rank, int32_t *size);
/* Takes over a block of sym->store to which peers may still write after the group has failed. The block stays until the
   group ends. */
void sym_strand(sym *sym, mem_block *block);
/* Sets a range of this rank's heap to zero. */
void sym_clear(sym *sym, uint64_t offset, uint64_t bytes);

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

/* Wakes pe if it sleeps. Call it after the store (release) of a flag that pe may wait for. */
void sym_ring(sym *sym, int32_t pe);
/* Call it after a put to [offset, offset + bytes) of pe's heap; it wakes pe only if pe watches words there. */
void sym_ring_put(sym *sym, int32_t pe, uint64_t offset, uint64_t bytes);

/* The goal of a wait for one rank: the word is at least the value. */
typedef struct sym_rest_goal {
    const _Atomic uint64_t *word;
    uint64_t least;
} sym_rest_goal;

/* A wait in progress, for conditions of any kind:
 *
 *     sym_rest rest = sym_rest_begin(sym, "dispatch: rows");
 *     expar_status status = EXPAR_OK;
 *     while (!ready(…) && (status = sym_rest_turn(&rest)) == EXPAR_OK) {}
 *     sym_rest_end(&rest);
 *
 * The first turns spin and later ones yield. The next turn arms the doorbell, after which the caller checks its
 * condition once more; from then on each turn sleeps, with a limit. If ranks outnumber cores, turns yield almost at
 * once. A caller that saw progress but must wait on calls sym_rest_progress, which starts again with spinning.
 *
 * A turn fails with EXPAR_ERR_PEER or EXPAR_ERR_ABORTED when the group has failed, and with EXPAR_ERR_INTERRUPTED when
 * the program interrupts it. It also fails with EXPAR_ERR_PEER, and sets timed_out, when boot_wait finds that no rank
 * will end the wait. Then the silent ranks count as lost from now on, and the text names the ranks to blame. The caller
 * adds to the text what was missing. */
typedef struct sym_rest {
    sym *sym;
    const char *what;
    /* number of the next turn that spins */
    uint32_t turn;
    /* number of the next turn that looks at the clock and the cores */
    uint32_t look_turn;
    /* turns after those that spin */
    uint32_t idle_turns;
    /* value of the futex word when the doorbell was armed */
    uint32_t rings;
    /* 0: the clock has not been read */
    int64_t spin_end_ns;
    /* doorbell_range of the words that puts may change to end the wait */
    uint64_t watch;
    /* the wait yields at once, because the group is crowded or the caller's threads outnumber the cores */
    bool crowded;
    /* another rank was seen on this core, so turns that spin yield instead */
    bool on_shared_core;
    bool armed;
    /* this thread drives the network while it waits */
    bool attends;
    /* since a sleep on the doorbell, the network's own thread drives the network; sym_rest_progress clears it */
    bool passed_over;
    /* set when a turn failed because of the awaited ranks */
    bool timed_out;
    /* begun by sym_rest_begin_open */
    bool open;
    /* set by sym_rest_tolerate */
    bool tolerant;
    /* Set by sym_rest_outlast; else NULL. */
    bool (*owes)(const void *context, int32_t rank);
    const void *owed_to;
    /* with `owes`: sym->losses when the caller was last told to check again */
    uint32_t losses;
    /* ranks whose loss ends the wait, unless it is open; size 0: all ranks */
    sym_ranks among;
    /* Another thread sets it (relaxed) when the operation is abandoned; this ends the wait, too. NULL: not used. */
    const atomic_bool *halt;
    /* open: sym->tellings when the wait began */
    uint32_t tellings;
    /* what other ranks are told about this wait, and what they have answered */
    boot_wait wait;
} sym_rest;
sym_rest sym_rest_begin(sym *sym, const char *what);
/* Begins a wait in an operation of the ranks `among`; losses of other ranks do not end it. */
sym_rest sym_rest_begin_among(sym *sym, const char *what, sym_ranks among);
/* Begins a wait that any rank may end, by a put to [offset, offset + bytes) of this rank's heap. The loss of any rank
   ends it. A loss from before the wait also ends it, unless some call has reported that loss before. */
sym_rest sym_rest_begin_open(sym *sym, const char *what, uint64_t offset, uint64_t bytes);
/* Says what the wait is for, and which rank must come. Ranks that ask are told both; without this call they learn
   neither. */
void sym_rest_expect(sym_rest *rest, const boot_topic *topic, int32_t rank);
/* Call this after sym_rest_expect. The rank is awaited until the goal's word reaches its value, which its writer stores
   by release. The word counts even if the rank reports that it will not come, as long as it was stored before that
   report. The goal and its word must stay until the wait ends. */
void sym_rest_until(sym_rest *rest, const sym_rest_goal *goal);
/* The same as sym_rest_expect for all ranks for which misses(context, rank) is true; these may change. The context must
   stay until the wait ends. */
void sym_rest_expect_all(sym_rest *rest, const boot_topic *topic, bool (*misses)(const void *context, int32_t rank),
                         const void *context);
/* Call this after sym_rest_expect_all, if the caller can go on without lost ranks. The loss or silence of a rank then
   ends the wait only while the rank is missed, and a failed wait makes no rank lost for the whole group. The caller
   finds the lost ranks by sym_rest_has_lost, and goes on in another wait. */
void sym_rest_tolerate(sym_rest *rest);
/* For operations in which a rank has done its whole part once owes(context, rank) is false. The wait continues if such
   a rank leaves, although the group has failed then. It ends if a rank leaves that still owes its part, or is lost in
   another way. The lost rank may have stored its part just before, so the caller checks once more before the wait ends.
   The context must stay until the wait ends. */
void sym_rest_outlast(sym_rest *rest, bool (*owes)(const void *context, int32_t rank), const void *context);
/* Call this after a turn of a tolerant wait failed with EXPAR_ERR_PEER. Returns whether the wait failed because of the
   rank. */
bool sym_rest_has_lost(const sym_rest *rest, int32_t rank);
expar_status sym_rest_turn(sym_rest *rest);
void sym_rest_progress(sym_rest *rest);
/* Returns whether this number of threads on each rank exceeds the cores of the host or of the machine. For waits of
   extra threads of a rank (cores.c). */
bool sym_outnumbers(const sym *sym, int32_t threads);
/* As transport_site.cores_each. */
int32_t sym_cores_each(const sym *sym);
void sym_rest_end(sym_rest *rest);
/* Call this after sym_rest_end if the failed wait was part of a collective call, which this rank thus cannot complete.
   The group fails, with the rank to blame as SYM_PEER_SILENT. If the wait was interrupted, the ranks are out of step.
   Other ranks are told that this rank does not come. Returns status. */
expar_status sym_rest_blame(const sym_rest *rest, expar_status status);
/* Calls boot_wait_look; ranks that are silent count as lost from now on (SYM_PEER_SILENT). For waits without a
 * sym_rest:
 *
 *     boot_wait wait;
 *     boot_wait_begin(&wait, sym->boot, &topic, "dispatch: rows");
 *     boot_wait_for(&wait, rank);                 the awaited rank, as soon as it is known and when it changes
 *     while (… still waits, sym_check is EXPAR_OK …) {
 *         status = sym_wait_look(sym, &wait);     at least every INTERRUPT_NS; some 50 ms at most
 *         if (status != EXPAR_OK) break;          wait.verdict, wait.culprit and the last error say why
 *     }
 *     boot_wait_end(&wait);
 *
 * A thread may do this for a wait of others, such as a kernel's. Until boot_wait_end, other ranks are told that this
 * rank waits there. Call boot_wait_progress when that wait has made progress. A rank that has died or left answers
 * nothing here, but sym_check reports it at once. If this rank will not come to a call any more, it records that by
 * boot_note_ended. */
expar_status sym_wait_look(sym *sym, boot_wait *wait);
/* Asks all ranks for an answer. Those that stay silent for boot_silence_ns (5 s at most) count as lost from now on, and
   are named at the end of the last error's text. Returns false if all answered. */
bool sym_blame_silent(sym *sym, expar_status status);

/* Call this after a flag was found set, unless sym_rest_end follows. It makes all data that came before the flag
   visible, too. */
void sym_behold(sym *sym);

/* Returns the proxy that carries this rank's non-blocking operations to pe; NULL: there is none. All operations to one
   PE share a ring. */
static inline proxy *sym_proxy_for(const sym *self, int32_t pe)
{
    const int32_t rings = atomic_load_explicit(&self->num_rings, memory_order_acquire);
    return rings > 0 ? self->proxies[pe % rings] : NULL;
}

/* Orders this rank's earlier operations on each PE before its later ones. */
expar_status sym_fence(sym *sym);
/* Waits until all of this rank's operations without a batch are complete at their targets. */
expar_status sym_quiet(sym *sym);
/* The same for the operations of the batch. A failure is reported once, and afterwards no operation is in progress. */
expar_status sym_settle(sym *sym, transport_batch *batch);
/* Call this after a fence or quiet before an operation on pe; `ordered` is its status. If it failed because of another
   PE, this function keeps the failure for the caller's next fence or quiet, and returns EXPAR_OK. Otherwise it returns
   `ordered`. */
expar_status sym_order_before(sym *sym, expar_status ordered, int32_t pe);
/* Sets a word of pe's heap to `value`, after all earlier operations of this rank, and wakes pe if it waits for the
   word. If the heap is mapped, it stores the word (release). Otherwise it makes a fence, and the transport of pe's
   atomics sets the word. */
expar_status sym_word_set(sym *sym, int32_t pe, uint64_t offset, uint64_t value);
/* Calls quiet, then makes a barrier over the heap. If some PE is neither mapped nor reached by atomics, the barrier
   goes over the control sockets, which is slow. A time-out fails the group and names the ranks that did not come. If
   the quiet fails, this rank takes part all the same, since others wait for it, and returns that failure. It does not
   if it was interrupted: then the call can be repeated. */
expar_status sym_barrier(sym *sym);
/* The same, after a step of the caller's with the status `before`: a failed one counts as a failed quiet. */
expar_status sym_barrier_after(sym *sym, expar_status before);
/* This rank comes to no further barrier, because it destroys the group. Ranks that wait for it there learn that. */
void sym_barrier_end(sym *sym);

#endif
