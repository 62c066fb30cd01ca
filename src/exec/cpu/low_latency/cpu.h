/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's executor of low-latency calls. The calling thread, with others if there are cores and rows for them, writes
 * to mapped peers, sends to other ranks, and reads its own memory. Private to this folder, and to far/.
 *
 *     create.c    the object: its place in the heap, its table of operations
 *     meet.c      finding the ranks that have laid out the same shape, each by itself
 *     headers.c      message headers and acknowledgements: which rank is where in which call
 *     wait.c      waiting, and what others are told about it
 *     plan.c      topk_idx → messages: which token goes to which rank, as which message, to which rows
 *     dispatch.c  messages from their source to the experts' rows (dispatch.h)
 *     combine.c   the call, and sums of what has come; combine_rows.c rows to the places of their tokens;
 *                 combine_weights.c weights ahead of them (combine.h)
 *     share.c     work on rows, divided among worker threads
 *     burst.c     rows to peers, which bypass the cache if they are many or slow, and the flags after them
 *     far.h       what a call needs from far/, which sends to ranks that are not mapped, and receives from them
 *     mask.c      ranks without which calls go on, and the regions to which slots move because of them
 *     clean.c     the new beginning after a clean (group/members.c)
 *     cache.c     memory of results, kept mapped
 *
 * The order of words is that of the spec and the model. Headers leave without waiting for any rank, except after a call
 * that was not read here. Data of epoch e wait for the peer's acknowledgement of e - 2, or its header of e. */
#ifndef EXPAR_EXEC_CPU_LOW_LATENCY_CPU_H
#define EXPAR_EXEC_CPU_LOW_LATENCY_CPU_H

#include "exec/cpu/core/encode.h"
#include "exec/cpu/core/rows.h"
#include "exec/cpu/core/workers.h"
#include "exec/cpu/low_latency/create.h"
#include "group/group.h"
#include "group/members.h"
#include "proto/decisions.h"

/* ---- plan.c ------------------------------------------------------------------------------------------------------ */

/* One token that goes to one rank. */
typedef struct ll_target {
    /* rank; the number of its message there; distinct ranks before this one in the token's slots */
    int32_t rank, message, place;
} ll_target;

/* Everything that this rank sends in a dispatch. */
typedef struct ll_sends {
    int32_t *first;       /* [B+1] token t's targets are [first[t], first[t+1]), in the order of slots */
    ll_target *targets;   /* [B * min(K, N)] */
    int32_t *experts;     /* [B][K] global expert of each slot, or -1; K: the buffer's */
    int32_t *rows;        /* [B][K] the row's number among this rank's rows for that expert */
    int32_t *messages;    /* [N] */
    int32_t *counts;      /* [E] */
    int32_t *last_target; /* [N] the last token, plus 1, that goes to the rank */
    void *arrays;         /* the one allocation that has all of them */
} ll_sends;
expar_status ll_sends_make(const ll_shape *shape, ll_sends *sends);
/* Returns EXPAR_OK, or EXPAR_ERR_INDEX for the first index that is out of range; such tokens go nowhere. */
expar_status ll_sends_fill(ll_sends *sends, const ll_shape *shape, const ep_route_view *route, int32_t tokens,
                           int32_t topk);

/* ---- the object -------------------------------------------------------------------------------------------------- */

/* The contents of a source's message header, copied from it. */
typedef struct ll_told {
    bool got;
    int32_t status, messages;
    /* dispatch of a far source: the piece there with which the rows that go back to it begin */
    int32_t returns;
    uint32_t tag, route;
    char text[EP_REJECTION_TEXT];
} ll_told;

/* The call of one slot of the double buffer. */
typedef struct ll_record {
    uint64_t epoch; /* the call that is open there; 0: none */
    /* the slot's last call was not read here: rejected, EXPAR_ERR_STATE, mismatch */
    bool unread;
    uint64_t swept;  /* epoch of the last sweep of its flags */
    ll_told *told;   /* [N] */
    int32_t *counts; /* [N][L] rows from each source for each expert; dispatch only */
} ll_record;

/* The place of this rank's messages at another rank. There are two message slots, since one may still be unread when
   the next call is sent. Only the thread in a call uses this. */
#define LL_BANKS 2
typedef struct ll_banks {
    /* epoch of the last dispatch whose messages went to that slot; 0: none */
    uint64_t last[LL_BANKS];
    int32_t now; /* the slot of the dispatch that is being sent */
} ll_banks;

/* A measure of how fast rows go to peers through the cache. Writing a line that a distant core has read is slow
   (another socket, or virtual cores that the host has put there). Stores past the cache are not slow. Only the thread
   in a call uses this. */
typedef struct ll_pace {
    uint32_t sends; /* sends of plain rows so far */
    uint32_t slow;  /* how many timed ones in a row were slow, up to cpu.pace_slow */
} ll_pace;

typedef struct ll_cache ll_cache;
typedef struct ll_far_ops ll_far_ops; /* far.h */
typedef struct ll_links ll_links;     /* the links of far ranks */

/* The scratch memory of one worker. */
typedef struct ll_scratch {
    uint8_t *payload; /* one row in a payload format, and its scales */
    /* [1 + K] rows of at most FP32, from which a coded sum is made */
    uint8_t *decoded;
    /* [K] rows of one sum, with their weights */
    const void **rows;
    float *row_weights;
} ll_scratch;

/* The masks of a buffer. All of it belongs to this rank, and only the thread in a call uses it. */
typedef struct ll_masks {
    int32_t *masked; /* [N] 1: this rank sends nothing to it, and awaits nothing from it */
    /* [N] for a masked rank: the region of each slot in which it may still write, or -1 */
    int8_t (*knows)[LL_SLOTS];
    /* [N] for a masked rank: `steps` when the caller masked it; UINT64_MAX: it was not the caller */
    uint64_t *since;
    /* [N] region of each peer's slot, for the combine that is being sent */
    int32_t *peer_regions;
    /* [N] the attempt of each rank in the last clean that had both it and this rank */
    uint32_t *with;
    group_members *cleaner;
    uint64_t steps;           /* how many calls have begun and ended */
    uint64_t changes;         /* how many masks were made */
    int32_t region[LL_SLOTS]; /* the present region of each slot of combines */
} ll_masks;

/* The ranks to which this rank may write, in a buffer that gets its shape later. Only the thread in a call uses
   this. */
typedef struct ll_meeting {
    bool *met;       /* [N] the rank has said that it has this rank's shape */
    int32_t missing; /* how many ranks have not */
} ll_meeting;

typedef struct ll_cpu {
    executor base;
    ll_counts totals;
    /* for a buffer that gets its shape later */
    ll_reserved reserve;
    sym *sym;
    ll_plan plan;    /* without its shape */
    uint32_t number; /* of the buffer in its group */
    ll_shape shape;
    ll_space space;
    uint64_t buffer; /* offset in the heap */
    /* [N] address of each rank's buffer in this process; NULL: the rank is far */
    uint8_t **bases;
    const ll_far_ops *far;     /* for far ranks; NULL: there are none */
    ll_links *links;           /* NULL without far ranks */
    uint64_t epochs[LL_KINDS]; /* of the last call */
    ll_record records[LL_KINDS][LL_SLOTS];
    ll_sends sends;
    ll_banks *banks; /* [N] */
    ll_pace pace;
    /* [N] progress of the phase: what has gone to, or come from, each rank */
    int32_t *progress;
    int32_t *waiting;      /* [B] tokens whose rows have not all come */
    int32_t *own_messages; /* [B] number of a token's message to this rank itself, or -1 */
    cpu_workers *workers;  /* as many of them are started as some call has been worth */
    int32_t num_workers;   /* at most */
    /* the library chose num_workers: for few bytes it uses fewer */
    bool chose_workers;
    ll_scratch *scratch; /* [num_workers] */
    ll_cache *cache;
    /* Rows bypass the cache if those of all ranks exceed this. It is cpu.ll_stream, except in tests. */
    uint64_t stream_bytes;
    ll_masks *masks;         /* NULL: the buffer has none */
    ll_meeting meeting;      /* met is NULL if the buffer was made with a shape */
    executor_delay_fn delay; /* tests only; NULL otherwise */
    void *delay_context;
    /* Set by any thread, once; read by waits (relaxed: it publishes nothing, and the doorbell wakes them). */
    atomic_bool halted;
} ll_cpu;

static inline ll_cpu *ll_cpu_of(executor *base)
{
    return (ll_cpu *)base;
}

/* A point between two steps of the protocol, at which tests may delay the rank. */
static inline void ll_step(const ll_cpu *self)
{
    if (self->delay) self->delay(self->delay_context);
}

/* Says whether the rank's memory is not mapped here. */
static inline bool ll_is_far(const ll_cpu *self, int32_t rank)
{
    return !self->bases[rank];
}

/* Returns the address of an offset in pe's buffer. pe is near. */
static inline void *ll_at(const ll_cpu *self, int32_t pe, uint64_t offset)
{
    return self->bases[pe] + offset;
}
static inline void *ll_here(const ll_cpu *self, uint64_t offset)
{
    return self->bases[self->sym->rank] + offset;
}

/* Call this after a flag was found: everything that came before the flag is visible from here on, by stores or by
   network. */
static inline void ll_see(const ll_cpu *self)
{
    if (self->far) sym_behold(self->sym);
}

/* Words: the rank that writes one to a peer releases its earlier stores with it; the owner acquires. */
static inline uint64_t ll_look(const ll_cpu *self, uint64_t offset)
{
    return atomic_load_explicit((_Atomic uint64_t *)ll_here(self, offset), memory_order_acquire);
}
static inline void ll_store(const ll_cpu *self, int32_t pe, uint64_t offset, uint64_t word)
{
    ll_step(self);
    atomic_store_explicit((_Atomic uint64_t *)ll_at(self, pe, offset), word, memory_order_release);
}

/* Raises a count that workers do not share. No other thread raises it meanwhile, so this needs no locked instruction,
   which would wait until all pending stores to peers are complete. */
static inline void ll_raise(_Atomic uint64_t *count, uint64_t more)
{
    atomic_store_explicit(count, atomic_load_explicit(count, memory_order_relaxed) + more, memory_order_relaxed);
}

static inline bool ll_is_masked(const ll_cpu *self, int32_t rank)
{
    return self->masks && self->masks->masked[rank];
}

static inline ll_record *ll_record_of(ll_cpu *self, ll_kind kind, uint64_t epoch)
{
    return &self->records[kind][ll_slot_of_epoch(epoch)];
}

/* Returns the i-th peer, counted from the next rank on, so that not all ranks start with rank 0. */
static inline int32_t ll_peer_in_turn(const ll_cpu *self, int32_t i)
{
    return (self->sym->rank + 1 + i) % self->shape.ranks;
}

/* ---- wait.c ------------------------------------------------------------------------------------------------------ */

/* The parts that are awaited from a rank: how many have come, and how many there are. */
typedef struct ll_due {
    int64_t came, all;
} ll_due;

/* A wait in a phase. It is registered, and costs something, only when it has to wait. The context must stay unchanged,
   and the wait must not move, as long as the wait lasts. */
typedef struct ll_wait {
    ll_cpu *cpu;
    const ll_call *call;
    const char *what; /* the phase, for error texts; static */
    const char *of;   /* the name of the data that are awaited: "rows" */
    ll_due (*due)(const void *context, int32_t rank);
    const void *context;
    /* The wait is for parts of a call. A rank whose parts are all here has sent everything. */
    bool receives;
    bool begun;
    sym_rest rest;
    /* how long nothing has moved in total; and since when nothing moves now, or 0 if something does */
    int64_t idle_ns, idle_since_ns;
} ll_wait;
/* Call this after each look at the awaited data. moved: something had come. With masks lost ranks are masked, and
   nothing is awaited from a masked rank. */
expar_status ll_wait_turn(ll_wait *wait, bool moved);
/* The rank's last part has come: adds the time that this rank has waited meanwhile to call->wait_ns. */
void ll_wait_came(ll_wait *wait, int32_t rank);
/* Adds to the text of a failed wait what had come from each rank. Returns status. */
expar_status ll_wait_end(ll_wait *wait, expar_status status);

/* ---- headers.c --------------------------------------------------------------------------------------------------- */

/* Takes the next epoch of its kind for this rank's call, and announces it to all ranks by headers. Afterwards
   call->open says whether the call goes on; its record has this rank's own part. sends: of a dispatch; NULL: none. */
expar_status ll_call_open(ll_cpu *self, ll_call *call, const ll_sends *sends);
/* Returns a word of this rank's header of the call for the peer, up to the counts. sends: NULL if no data follow. */
uint64_t ll_header_says(const ll_cpu *self, const ll_call *call, const ll_sends *sends, int32_t pe, int32_t word);
/* Makes the credit check: says whether this rank's data of a call may go to the peer (proto/decisions.h). With masks,
   if the check passes, peer_regions gets the peer's region of a combine. */
ll_credit ll_credit_of(const ll_cpu *self, ll_kind kind, uint64_t epoch, int32_t pe);
/* Waits for the headers of all ranks, and copies them into the record. */
expar_status ll_headers_await(ll_cpu *self, const ll_call *call);
/* Makes the result of the vote from all headers of the call. */
void ll_call_judge(ll_cpu *self, ll_call *call);
/* Says whether some rank that goes on has another form. Then no data of any rank are awaited. */
bool ll_call_mismatches(ll_cpu *self, const ll_call *call);
/* Says whether the source sends data in the record's call, whose headers are known. */
static inline bool ll_sends_data(const ll_cpu *self, const ll_record *record, int32_t source)
{
    const int32_t status = record->told[source].status;
    return (status == EXPAR_OK || status == EXPAR_ERR_INDEX) && !ll_is_masked(self, source);
}
/* The call was read. Acknowledges it to all ranks, unless stray data of a rank may still come (a mismatch). */
void ll_call_close(ll_cpu *self, const ll_call *call, bool mismatched);
void ll_cpu_retire(executor *self, uint32_t epoch, const ep_rejection *rejection);

/* ---- share.c ----------------------------------------------------------------------------------------------------- */

expar_status ll_workers_make(ll_cpu *self, const ll_plan *plan);
/* Frees the workers, also partly made ones. */
void ll_workers_free(ll_cpu *self);
/* Handles items [begin, end), by one worker. */
typedef void (*ll_items_fn)(const void *context, const ll_scratch *scratch, int32_t begin, int32_t end);
/* Handles all items, which have so many bytes together, on as many workers as these are worth. The caller is one of
   them, and waits for the others. */
void ll_share_out(const ll_cpu *self, int32_t items, uint64_t bytes, ll_items_fn share, const void *context);

/* ---- burst.c ----------------------------------------------------------------------------------------------------- */

/* Says whether the rows of a call bypass the cache, if each rank has about as many of them as this one. */
bool ll_streams(const ll_cpu *self, uint64_t rows, size_t row_bytes);
/* The first says whether the next send of plain rows bypasses the cache since others were slow. The second says whether
   it is to be timed. */
bool ll_pace_streams(const ll_pace *pace);
bool ll_pace_times(const ll_pace *pace);
/* Records a send of so many bytes. ns: the time that it took through the cache; 0: it was not timed. */
void ll_pace_note(ll_pace *pace, uint64_t bytes, int64_t ns);
/* Flags are held back until a fence orders them after their rows. */
#define LL_BURST_FLAGS 8
typedef struct ll_burst {
    const ll_cpu *self;
    uint64_t epoch;
    bool streaming;
    int32_t count;
    int32_t pes[LL_BURST_FLAGS];
    uint64_t flags[LL_BURST_FLAGS]; /* offsets in the buffer */
    uint64_t words[LL_BURST_FLAGS]; /* the words that are stored there */
} ll_burst;
ll_burst ll_burst_begin(const ll_cpu *self, uint64_t epoch, bool streaming);
/* Both addresses are multiples of 16. The memory at both reaches to the next multiple of 16 after `bytes`. */
void ll_burst_copy(const ll_burst *burst, void *dest, const void *source, size_t bytes);
/* Stores the flag's word with a value after all that was copied before: at once, or together with others. */
void ll_burst_flag(ll_burst *burst, int32_t pe, uint64_t flag, uint32_t value);
/* Stores the flags that were held back. */
void ll_burst_end(ll_burst *burst);

/* ---- signals.c --------------------------------------------------------------------------------------------------- */
/* ll_ops.await_signals. Also ends with the group, and when the program interrupts it. */
expar_status ll_cpu_await_signals(executor *base, const ll_signals *signals);

/* ---- mask.c ------------------------------------------------------------------------------------------------------ */

/* Returns NULL if there is no memory. */
ll_masks *ll_masks_make(ll_cpu *self);
void ll_masks_free(ll_masks *masks);
/* Masks another rank, permanently or until a clean, and tells it so. why: for the log; NULL: the caller demands it.
   EXPAR_ERR_PEER: a slot would find no region that no masked rank may still write to, or the network would find no
   stage that none of them still uses. */
expar_status ll_mask(ll_cpu *self, int32_t rank, const char *why);
/* Says whether the rank has masked this one. */
bool ll_is_masked_by(const ll_cpu *self, int32_t rank);
/* Tells the rank "you are masked here", or takes that back. The word is one more than this rank's last attempt of a
   clean. So it counts until the two are in a clean together again. No earlier word counts after that, whatever cleans
   either rank was in without the other. */
void ll_masker_tell(ll_cpu *self, int32_t rank, bool masked);
/* Tells all ranks "I have left the buffer", after everything that this rank has written. The other bits of the word
   stay. */
void ll_masker_part(ll_cpu *self);
/* Says whether each slot has a region for its next data. */
bool ll_regions_suffice(const ll_cpu *self);
/* Moves a slot of combines out of a region to which a masked rank may still write. Nothing of the slot is awaited, and
   no rank may write to it yet. */
void ll_region_settle(ll_cpu *self, int32_t slot);
/* Returns the region of this rank's slot of the epoch. */
static inline int32_t ll_region_here(const ll_cpu *self, uint64_t epoch)
{
    return self->masks ? self->masks->region[ll_slot_of_epoch(epoch)] : 0;
}
/* Returns that of a rank to which the combine that is being sent may write. */
static inline int32_t ll_region_at(const ll_cpu *self, int32_t pe, uint64_t epoch)
{
    if (pe == self->sym->rank) return ll_region_here(self, epoch);
    return self->masks ? self->masks->peer_regions[pe] : 0;
}
/* Returns the region of the slot to which others shall write, for this rank's header. */
static inline int32_t ll_header_region(const ll_cpu *self, ll_kind kind, uint64_t epoch)
{
    return kind == LL_COMBINE ? ll_region_here(self, epoch) : 0;
}
expar_status ll_cpu_mask_set(executor *base, int32_t rank, bool masked);
expar_status ll_cpu_mask_query(executor *base, int32_t *status, void *stream);

/* ---- meet.c ------------------------------------------------------------------------------------------------------ */

/* Tells all ranks that this rank has laid out its shape, and that its words are clear. */
void ll_meet_say(ll_cpu *self);
/* Says whether the rank is known to have the same shape, or the buffer was made with one. */
static inline bool ll_has_met(const ll_cpu *self, int32_t rank)
{
    return !self->meeting.met || self->meeting.met[rank];
}
/* Comes before a call sends anything. Waits until all ranks that are not masked have told their shape. If a rank has
   another shape, this rank rejects the call, and no rank is told about it. */
expar_status ll_meet(ll_cpu *self, ll_call *call);

/* ---- clean.c ----------------------------------------------------------------------------------------------------- */
expar_status ll_cpu_mask_clean(executor *base, ll_clean_step *step);

/* ---- cache.c ----------------------------------------------------------------------------------------------------- */
ll_cache *ll_cache_make(void); /* NULL: no memory */
void ll_cache_close(ll_cache *cache);
expar_status ll_cache_take(ll_cache *cache, uint64_t bytes, mem_block **out);

/* ---- calls.c: operations ----------------------------------------------------------------------------------------- */
expar_status ll_cpu_send(executor *self, exec_call *exec, ll_call *call);
expar_status ll_cpu_receive(executor *self, exec_call *exec, ll_call *call);

#endif
