/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's executor of low-latency calls: the calling thread, with others where there are cores and rows for them,
 * writes to mapped peers, sends to others, and reads its own memory. Private to this folder, and to far/.
 *
 *   create.c    the object: its place in the heap, its table of operations
 *   meet.c      ranks that have laid out the same shape, each by itself
 *   unit.c      opening units and read words: who is where in which call
 *   wait.c      waiting, with what others are told of it
 *   plan.c      topk_idx → messages: which token goes to whom, as which message, to which rows
 *   dispatch.c  messages from their source to the experts' rows (dispatch.h)
 *   combine.c   the call, and sums of what has come; combine_rows.c rows to the places of their tokens;
 *               combine_weights.c weights ahead of them (combine.h)
 *   share.c     rows shared out among worker threads
 *   burst.c     rows to peers, past the cache where they are many or slow, and the flags behind them
 *   far.h       what a call asks of far/, which carries it to and from ranks that are not mapped
 *   mask.c      ranks without which calls go on, and where halves move because of them
 *   clean.c     a new beginning behind a clean (group/members.c)
 *   cache.c     memory of results, kept mapped
 *
 * The order of words is that of spec and model: units leave without waiting for anybody, except behind a call that was
 * not read here; data of epoch e wait for the peer's read word of e - 2 or its unit of e. */
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

/* One token's way to one rank. */
typedef struct ll_target {
    int32_t rank, message, place; /* its number there, and distinct ranks before it in the token's slots */
} ll_target;

/* All that this rank sends in a dispatch. */
typedef struct ll_sends {
    int32_t *first;       /* [B+1] token t's targets are [first[t], first[t+1]), in the order of slots */
    ll_target *targets;   /* [B * min(K, N)] */
    int32_t *experts;     /* [B][K] global expert of each slot, or -1; K: the buffer's */
    int32_t *rows;        /* [B][K] the row's number among this rank's rows for that expert */
    int32_t *messages;    /* [N] */
    int32_t *counts;      /* [E] */
    int32_t *last_target; /* [N] the last token, plus 1, that goes to the rank */
    void *arrays;         /* all of them */
} ll_sends;
expar_status ll_sends_make(const ll_shape *shape, ll_sends *sends);
/* OK, or EXPAR_ERR_INDEX: the first index that is out of range; such tokens go nowhere. */
expar_status ll_sends_fill(ll_sends *sends, const ll_shape *shape, const ep_route_view *route, int32_t tokens,
                           int32_t topk);

/* ---- the object -------------------------------------------------------------------------------------------------- */

/* What a source has told of a call, copied from its unit. */
typedef struct ll_told {
    bool got;
    int32_t status, messages;
    int32_t returns; /* of a far one's dispatch: the piece there from which on rows go back to it */
    uint32_t tag, route;
    char text[EP_REFUSAL_TEXT];
} ll_told;

/* One half's call. */
typedef struct ll_record {
    uint64_t epoch;  /* of the call that is open there; 0: none */
    bool unread;     /* the half's last call was not read here: refused, STATE, mismatch */
    uint64_t swept;  /* epoch of the last sweep of its flags */
    ll_told *told;   /* [N] */
    int32_t *counts; /* [N][L] rows from each source for each expert; dispatch only */
} ll_record;

/* Where this rank's messages to another one lie there: in one of two banks, since what stands in one may still be
   unread when the next call is sent. Touched by the thread that is in a call. */
#define LL_BANKS 2
typedef struct ll_banks {
    uint64_t last[LL_BANKS]; /* epoch of the last dispatch whose messages went to the bank; 0: none */
    int32_t now;             /* of the dispatch that is being sent */
} ll_banks;

/* How fast rows go to peers through the cache. A line that a core far away has read is slow to write (another socket,
   or virtual cores that the host has put there): by stores past the cache it is not. Touched by the thread that is in
   a call. */
typedef struct ll_pace {
    uint32_t sends; /* of plain rows, so far */
    uint32_t slow;  /* timed ones in a row that were slow, up to cpu.pace_slow */
} ll_pace;

typedef struct ll_cache ll_cache;
typedef struct ll_far_ops ll_far_ops; /* far.h */
typedef struct ll_links ll_links;     /* what they keep */

/* What a worker needs for itself. */
typedef struct ll_scratch {
    uint8_t *payload;  /* one row in a payload format, and its scales */
    uint8_t *decoded;  /* [1 + K] rows of FP32 at most: what a coded sum is made of */
    const void **rows; /* [K] of one sum, with their weights */
    float *row_weights;
} ll_scratch;

/* Of a buffer with masks. All of it is this rank's own, and touched by the thread that is in a call. */
typedef struct ll_masks {
    int32_t *masked;            /* [N] 1: it is sent nothing, and nothing is awaited from it */
    int8_t (*knows)[LL_HALVES]; /* [N] of a masked rank: the region of each half in which it may still write; or -1 */
    uint64_t *since;       /* [N] of a masked rank: `steps` when the caller masked it; UINT64_MAX: not the caller */
    int32_t *peer_regions; /* [N] where the half of each peer lies, of the combine that is being sent */
    uint32_t *with;        /* [N] the attempt in which each rank was in the last clean that this one was in with it */
    group_members *cleaner;
    uint64_t steps;            /* beginnings and ends of calls */
    uint64_t changes;          /* masks that were made */
    int32_t region[LL_HALVES]; /* in which each half of combines lies here */
} ll_masks;

/* Of a buffer that gets its shape later: whom this rank may write to. Touched by the thread that is in a call. */
typedef struct ll_meeting {
    bool *met;       /* [N] it has said that it has this rank's shape */
    int32_t missing; /* so many have not */
} ll_meeting;

typedef struct ll_cpu {
    executor base;
    ll_counts totals;
    ll_reserved reserve; /* of a buffer that gets its shape later */
    sym *sym;
    ll_plan plan;    /* without its shape */
    uint32_t number; /* of the buffer in its group */
    ll_shape shape;
    ll_space space;
    uint64_t buffer;           /* offset in the heap */
    uint8_t **bases;           /* [N] where each rank's buffer begins here; NULL: it is far */
    const ll_far_ops *far;     /* for far ranks; NULL: nobody is */
    ll_links *links;           /* likewise */
    uint64_t epochs[LL_KINDS]; /* of the last call */
    ll_record records[LL_KINDS][LL_HALVES];
    ll_sends sends;
    ll_banks *banks; /* [N] */
    ll_pace pace;
    int32_t *progress;     /* [N] of the phase: what has moved to, or come from, each rank */
    int32_t *waiting;      /* [B] tokens whose rows have not all come */
    int32_t *own_messages; /* [B] number of a token's message to this rank itself, or -1 */
    cpu_workers *workers;  /* of which so many are started as a call has been worth */
    int32_t num_workers;   /* at most */
    bool chose_workers;    /* the library did: what is few bytes is done by fewer */
    ll_scratch *scratch;   /* [num_workers] */
    ll_cache *cache;
    uint64_t stream_bytes; /* rows of all ranks that are more together bypass the cache; cpu.ll_stream, but in tests */
    ll_masks *masks;       /* NULL: without */
    ll_meeting meeting;    /* met is NULL where the shape came with the buffer */
    executor_delay_fn delay; /* tests only; NULL otherwise */
    void *delay_context;
    atomic_bool halted; /* by any thread, once; read by waits (relaxed: it publishes nothing, and the bell wakes) */
} ll_cpu;

static inline ll_cpu *ll_cpu_of(executor *base)
{
    return (ll_cpu *)base;
}

/* A place between two steps of the protocol. */
static inline void ll_step(const ll_cpu *self)
{
    if (self->delay) self->delay(self->delay_context);
}

/* Whether the rank's memory is not mapped here. */
static inline bool ll_is_far(const ll_cpu *self, int32_t rank)
{
    return !self->bases[rank];
}

/* Address of an offset of the buffer in pe's memory, which is near. */
static inline void *ll_at(const ll_cpu *self, int32_t pe, uint64_t offset)
{
    return self->bases[pe] + offset;
}
static inline void *ll_here(const ll_cpu *self, uint64_t offset)
{
    return self->bases[self->sym->rank] + offset;
}

/* What has come before a flag that was found is seen from here on, whoever has brought it. */
static inline void ll_see(const ll_cpu *self)
{
    if (self->far) sym_behold(self->sym);
}

/* Words: whoever writes one at a peer releases what it did before; the owner acquires. */
static inline uint64_t ll_look(const ll_cpu *self, uint64_t offset)
{
    return atomic_load_explicit((_Atomic uint64_t *)ll_here(self, offset), memory_order_acquire);
}
static inline void ll_store(const ll_cpu *self, int32_t pe, uint64_t offset, uint64_t word)
{
    ll_step(self);
    atomic_store_explicit((_Atomic uint64_t *)ll_at(self, pe, offset), word, memory_order_release);
}

/* Raises a count, outside of what workers share. Nobody else raises it meanwhile, so it takes no locked instruction,
   which would wait until all words on their way to peers are there. */
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
    return &self->records[kind][ll_half(epoch)];
}

/* The i-th peer from the next rank on, so that not all ranks knock at rank 0 first. */
static inline int32_t ll_peer_in_turn(const ll_cpu *self, int32_t i)
{
    return (self->sym->rank + 1 + i) % self->shape.ranks;
}

/* ---- wait.c ------------------------------------------------------------------------------------------------------ */

/* How much of what is awaited from a rank has come. */
typedef struct ll_due {
    int64_t came, all;
} ll_due;

/* A wait in a phase; it is noted, and costs something, once something has to be waited for. The context stays as it is
   as long as the wait goes on, and the wait where it is. */
typedef struct ll_wait {
    ll_cpu *cpu;
    const ll_call *call;
    const char *what; /* the phase, for error texts; static */
    const char *of;   /* what comes: "rows" */
    ll_due (*due)(const void *context, int32_t rank);
    const void *context;
    bool receives; /* for parts of a call that each rank has sent all of when nothing of it is missed */
    bool begun;
    sym_rest rest;
    int64_t idle_ns, idle_since_ns; /* time in which nothing moved, and since when it does not: 0 while it does */
} ll_wait;
/* After a look at what is awaited: moved, something had come. With masks whoever is lost is masked; nothing of a masked
   rank is awaited then. */
expar_status ll_wait_turn(ll_wait *wait, bool moved);
/* The rank's last part has come: what this rank has waited meanwhile goes to call->wait_ns. */
void ll_wait_came(ll_wait *wait, int32_t rank);
/* Says in the text of a wait that failed what had come from whom. Returns status. */
expar_status ll_wait_end(ll_wait *wait, expar_status status);

/* ---- unit.c ------------------------------------------------------------------------------------------------------ */

/* Takes the next epoch of the kind for this rank's call, and tells all ranks by its units. Afterwards call->open says
   whether the call goes on; its record has this rank's own part. sends: of a dispatch; NULL: none. */
expar_status ll_call_open(ll_cpu *self, ll_call *call, ll_kind kind, const ll_sends *sends);
/* A word of this rank's unit of the call for the peer; behind the counts there are none. sends: NULL where nothing
   comes. */
uint64_t ll_unit_says(const ll_cpu *self, const ll_call *call, ll_kind kind, const ll_sends *sends, int32_t pe,
                      int32_t word);
/* Whether this rank's data of a call may go to the peer (proto/decisions.h). With masks peer_regions has the peer's of
   a combine, where it is open. */
ll_door ll_door_of(const ll_cpu *self, ll_kind kind, uint64_t epoch, int32_t pe);
/* Units of all ranks, into the record. */
expar_status ll_units_await(ll_cpu *self, const ll_call *call, ll_kind kind);
/* What all units of the call come to. */
void ll_call_judge(ll_cpu *self, ll_call *call, ll_kind kind);
/* Whether some rank that goes on has another form: then nothing that it sends is awaited, nor anything else. */
bool ll_call_mismatches(ll_cpu *self, const ll_call *call, ll_kind kind);
/* Whether the source sends data in the record's call, whose units are known. */
static inline bool ll_sends_data(const ll_cpu *self, const ll_record *record, int32_t source)
{
    const int32_t status = record->told[source].status;
    return (status == EXPAR_OK || status == EXPAR_ERR_INDEX) && !ll_is_masked(self, source);
}
/* The call was read: tells all ranks so, but for one whose stray data may still come (a mismatch). */
void ll_call_close(ll_cpu *self, const ll_call *call, ll_kind kind, bool mismatched);
void ll_cpu_retire(executor *self, uint32_t epoch, const ep_refusal *refusal);

/* ---- share.c ----------------------------------------------------------------------------------------------------- */

expar_status ll_workers_make(ll_cpu *self, const ll_plan *plan);
/* What has been made of them. */
void ll_workers_free(ll_cpu *self);
/* Items [begin, end), by one worker. */
typedef void (*ll_items_fn)(const void *context, const ll_scratch *scratch, int32_t begin, int32_t end);
/* All items, of so many bytes together, on as many workers as these are worth; the caller is one, and waits for the
   others. */
void ll_share_out(const ll_cpu *self, int32_t items, uint64_t bytes, ll_items_fn share, const void *context);

/* ---- burst.c ----------------------------------------------------------------------------------------------------- */

/* Whether the rows of a call bypass the cache, if each rank has about as many of them as this one. */
bool ll_streams(const ll_cpu *self, uint64_t rows, size_t row_bytes);
/* Whether the next send of plain rows bypasses the cache since others were slow; and whether it is to be timed. */
bool ll_pace_streams(const ll_pace *pace);
bool ll_pace_times(const ll_pace *pace);
/* It has sent so many bytes; ns: the time it took through the cache; 0: it was not timed. */
void ll_pace_note(ll_pace *pace, uint64_t bytes, int64_t ns);
/* Flags that are held back until a fence is behind their rows. */
#define LL_BURST_FLAGS 8
typedef struct ll_burst {
    const ll_cpu *self;
    uint64_t epoch;
    bool streaming;
    int32_t count;
    int32_t pes[LL_BURST_FLAGS];
    uint64_t flags[LL_BURST_FLAGS]; /* offsets in the buffer */
    uint64_t words[LL_BURST_FLAGS]; /* that are stored there */
} ll_burst;
ll_burst ll_burst_begin(const ll_cpu *self, uint64_t epoch, bool streaming);
/* Both addresses are multiples of 16; up to the next one behind `bytes` there is room, too. */
void ll_burst_copy(const ll_burst *burst, void *dest, const void *source, size_t bytes);
/* The flag's word with a value, behind all that was copied before: at once, or with others. */
void ll_burst_flag(ll_burst *burst, int32_t pe, uint64_t flag, uint32_t value);
/* Those that were held back. */
void ll_burst_end(ll_burst *burst);

/* ---- mask.c ------------------------------------------------------------------------------------------------------ */

/* NULL: no memory. */
ll_masks *ll_masks_make(ll_cpu *self);
void ll_masks_free(ll_masks *masks);
/* Masks another rank, for good or until clean, and tells it so; why: for the log; NULL: the caller says so.
   EXPAR_ERR_PEER: some half would find no region that no masked rank may still write to, or the network no slot that
   none of them still holds. */
expar_status ll_mask(ll_cpu *self, int32_t rank, const char *why);
/* Whether the rank has masked this one. */
bool ll_is_masked_by(const ll_cpu *self, int32_t rank);
/* "You are masked here", to the rank, or not any more. The word is one more than this rank's last attempt of a clean:
   so it counts until the two are in a clean together again, and no word from before that does, whatever cleans either
   was in without the other. */
void ll_masker_tell(ll_cpu *self, int32_t rank, bool masked);
/* "I have left the buffer", to all, behind all that this rank has written: with what that word says otherwise. */
void ll_masker_part(ll_cpu *self);
/* Whether each half has a region for what it reads next. */
bool ll_regions_suffice(const ll_cpu *self);
/* The half of combines, of which nothing is awaited and to which nobody may write yet, leaves a region that a masked
   rank may still write to. */
void ll_region_settle(ll_cpu *self, int32_t half);
/* Where this rank's half of the epoch lies. */
static inline int32_t ll_region_here(const ll_cpu *self, uint64_t epoch)
{
    return self->masks ? self->masks->region[ll_half(epoch)] : 0;
}
/* And that of a rank to which the combine that is being sent may write. */
static inline int32_t ll_region_at(const ll_cpu *self, int32_t pe, uint64_t epoch)
{
    if (pe == self->sym->rank) return ll_region_here(self, epoch);
    return self->masks ? self->masks->peer_regions[pe] : 0;
}
/* Where the half lies to which others are to write, as this rank's unit tells it. */
static inline int32_t ll_unit_region(const ll_cpu *self, ll_kind kind, uint64_t epoch)
{
    return kind == LL_COMBINE ? ll_region_here(self, epoch) : 0;
}
expar_status ll_cpu_mask_set(executor *base, int32_t rank, bool masked);
expar_status ll_cpu_mask_query(executor *base, int32_t *status, void *stream);

/* ---- meet.c ------------------------------------------------------------------------------------------------------ */

/* Says to all that this rank has its shape laid out, its words being clear. */
void ll_meet_say(ll_cpu *self);
/* Whether the rank has been seen to have the same shape, or has been made with it. */
static inline bool ll_has_met(const ll_cpu *self, int32_t rank)
{
    return !self->meeting.met || self->meeting.met[rank];
}
/* Before a call sends anything: until all that are not masked have said their shape. One that has another is this
   rank's refusal of the call, of which nobody is told. */
expar_status ll_meet(ll_cpu *self, ll_call *call);

/* ---- clean.c ----------------------------------------------------------------------------------------------------- */
expar_status ll_cpu_mask_clean(executor *base, ll_clean_step *step);

/* ---- cache.c ----------------------------------------------------------------------------------------------------- */
ll_cache *ll_cache_make(void); /* NULL: no memory */
void ll_cache_close(ll_cache *cache);
expar_status ll_cache_take(ll_cache *cache, uint64_t bytes, mem_block **out);

/* ---- dispatch.c, combine.c: operations --------------------------------------------------------------------------- */
expar_status ll_cpu_dispatch_send(executor *self, exec_call *exec, ll_dispatch_step *step);
expar_status ll_cpu_dispatch_receive(executor *self, exec_call *exec, ll_dispatch_step *step);
expar_status ll_cpu_combine_send(executor *self, exec_call *exec, ll_combine_step *step);
expar_status ll_cpu_combine_receive(executor *self, exec_call *exec, ll_combine_step *step);

#endif
