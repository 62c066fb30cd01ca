/* SPDX-License-Identifier: Apache-2.0 */
/* One operation, measured. Its loop runs over each way in turns. Before and after that each way carries it out once
 * with known contents, which are checked in full where they arrive. */
#include "bench/rma/rma.h"
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static int target_of(const struct rma_way *way)
{
    return way->memory->size - 1;
}

/* ---- loops between two ranks ------------------------------------------------------------------------------------- */

static bool run_put(struct rma_way *way, size_t bytes, int count)
{
    const struct rma_layout *at = &way->memory->layout;
    bool good = true;
    for (int i = 0; i < count && good; i++)
        good = way->ops->put(way, target_of(way), at->dest, at->source, bytes) && way->ops->quiet(way);
    return good;
}

/* Returns the place of an operation. Many are in flight, and each has its own places, as messages have. */
static size_t place_of(const struct rma_layout *at, size_t bytes, int number)
{
    size_t step = (bytes + 63) / 64 * 64;
    return (size_t)number % (at->area_bytes / step) * step;
}

static bool run_puts(struct rma_way *way, size_t bytes, int count)
{
    const struct rma_layout *at = &way->memory->layout;
    bool good = true;
    for (int i = 0; i < count && good; i++) {
        size_t place = place_of(at, bytes, i);
        good = way->ops->put_nbi(way, target_of(way), at->dest + place, at->source + place, bytes);
    }
    return good && way->ops->quiet(way);
}

static bool run_get(struct rma_way *way, size_t bytes, int count)
{
    const struct rma_layout *at = &way->memory->layout;
    bool good = true;
    for (int i = 0; i < count && good; i++)
        good = way->ops->get(way, target_of(way), at->dest, at->source, bytes);
    return good;
}

static bool run_gets(struct rma_way *way, size_t bytes, int count)
{
    const struct rma_layout *at = &way->memory->layout;
    bool good = true;
    for (int i = 0; i < count && good; i++) {
        size_t place = place_of(at, bytes, i);
        good = way->ops->get_nbi(way, target_of(way), at->dest + place, at->source + place, bytes);
    }
    return good && way->ops->quiet(way);
}

/* Sends a signal there and back. The value of the signal counts the rounds. */
static bool run_put_signal(struct rma_way *way, size_t bytes, int count)
{
    const struct rma_layout *at = &way->memory->layout;
    const bool starts = way->memory->rank == 0;
    const int peer = starts ? target_of(way) : 0;
    bool good = true;
    for (int i = 0; i < count && good; i++) {
        uint64_t round = ++way->rounds;
        good = (starts || way->ops->wait(way, RMA_WORD_SIGNAL, round)) &&
               way->ops->put_signal(way, peer, at->dest, at->source, bytes, RMA_WORD_SIGNAL, round) &&
               (!starts || way->ops->wait(way, RMA_WORD_SIGNAL, round));
    }
    return good;
}

static bool run_fetch_add(struct rma_way *way, size_t bytes, int count)
{
    uint64_t old;
    bool good = true;
    (void)bytes;
    for (int i = 0; i < count && good; i++)
        good = way->ops->fetch_add(way, target_of(way), RMA_WORD_COUNTER, 1, &old);
    return good;
}

static bool run_add(struct rma_way *way, size_t bytes, int count)
{
    bool good = true;
    (void)bytes;
    for (int i = 0; i < count && good; i++)
        good = way->ops->add(way, target_of(way), RMA_WORD_COUNTER, 1);
    return good && way->ops->quiet(way);
}

/* ---- loops of all ranks ------------------------------------------------------------------------------------------ */

static bool run_barrier(struct rma_way *way, size_t bytes, int count)
{
    bool good = true;
    (void)bytes;
    for (int i = 0; i < count && good; i++)
        good = way->ops->barrier(way);
    return good;
}

enum collective { BROADCAST, FCOLLECT, COLLECT, ALLTOALL, REDUCE };

static expar_status call_collective(enum collective which, expar_team *team, void *dest, const void *source,
                                    size_t bytes)
{
    switch (which) {
    case BROADCAST:
        return expar_broadcast(team, dest, source, bytes, 0);
    case FCOLLECT:
        return expar_fcollect(team, dest, source, bytes);
    case COLLECT:
        return expar_collect(team, dest, source, bytes);
    case ALLTOALL:
        return expar_alltoall(team, dest, source, bytes);
    case REDUCE:
        break;
    }
    return expar_sum_reduce_i64(team, dest, source, bytes / sizeof(int64_t));
}

static bool run_collective(struct rma_way *way, enum collective which, size_t bytes, int count)
{
    expar_team *team;
    const struct rma_memory *m = way->memory;
    bool good = rma_call_good(way, expar_team_get_world(m->group, &team));
    for (int i = 0; i < count && good; i++)
        good = rma_call_good(way,
                             call_collective(which, team, m->base + m->layout.dest, m->base + m->layout.source, bytes));
    return good;
}

/* Fetches the least data that this rank must receive: the blocks of the others. */
static bool fetch_blocks(struct rma_way *way, size_t bytes, int count, size_t source_step)
{
    const struct rma_memory *m = way->memory;
    bool good = true;
    for (int i = 0; i < count && good; i++) {
        for (int step = 1; step < m->size && good; step++) {
            int from = (m->rank + step) % m->size;
            good = way->ops->get_nbi(way, from, m->layout.dest + (size_t)from * bytes,
                                     m->layout.source + (size_t)m->rank * source_step, bytes);
        }
        good = good && way->ops->quiet(way);
    }
    return good;
}

static bool fetch_broadcast(struct rma_way *way, size_t bytes, int count)
{
    const struct rma_layout *at = &way->memory->layout;
    bool good = true;
    for (int i = 0; i < count && good && way->memory->rank != 0; i++)
        good = way->ops->get_nbi(way, 0, at->dest, at->source, bytes) && way->ops->quiet(way);
    return good;
}

static bool fetch_all(struct rma_way *way, size_t bytes, int count)
{
    return fetch_blocks(way, bytes, count, 0);
}

static bool fetch_mine(struct rma_way *way, size_t bytes, int count)
{
    return fetch_blocks(way, bytes, count, bytes);
}

/* Fetches one segment of each rank's source, and each rank's segment of the result. */
static bool fetch_segments(struct rma_way *way, size_t bytes, int count)
{
    const size_t ranks = (size_t)way->memory->size, segment = (bytes + ranks - 1) / ranks;
    bool good = true;
    for (int i = 0; i < count && good; i++)
        good = fetch_blocks(way, segment, 1, segment) && fetch_blocks(way, segment, 1, 0);
    return good;
}

#define COLLECTIVE_DEFINE(name, which)                                                                                 \
    static bool run_##name(struct rma_way *way, size_t bytes, int count)                                               \
    {                                                                                                                  \
        return run_collective(way, which, bytes, count);                                                               \
    }
COLLECTIVE_DEFINE(broadcast, BROADCAST)
COLLECTIVE_DEFINE(fcollect, FCOLLECT)
COLLECTIVE_DEFINE(collect, COLLECT)
COLLECTIVE_DEFINE(alltoall, ALLTOALL)
COLLECTIVE_DEFINE(reduce, REDUCE)

/* ---- verification ------------------------------------------------------------------------------------------------ */

/* Fills every block of source with its contents, and dest with others. */
static bool prepare(struct rma_way *way, int blocks, size_t bytes, uint64_t salt)
{
    const struct rma_memory *m = way->memory;
    for (int to = 0; to < blocks; to++) {
        rma_fill(m->base + m->layout.source + (size_t)to * bytes, bytes, m->rank, to, salt);
        rma_fill(m->base + m->layout.dest + (size_t)to * bytes, bytes, m->rank, to, ~salt);
    }
    return rma_call_good(way, expar_barrier_all(m->group));
}

/* Verifies that block `number` of dest is the one from `from` for `to`. */
static bool arrived(const struct rma_way *way, int number, size_t bytes, int from, int to, uint64_t salt)
{
    const struct rma_memory *m = way->memory;
    int64_t wrong = rma_first_wrong(m->base + m->layout.dest + (size_t)number * bytes, bytes, from, to, salt);
    if (wrong >= 0)
        fprintf(stderr, "expar bench: rank %d: %s: byte %lld of %zu from rank %d is wrong\n", m->rank, way->ops->name,
                (long long)wrong, bytes, from);
    return wrong < 0;
}

/* Runs one operation on the ranks that take part. Afterwards all ranks know that it is complete. */
static bool run_once(struct rma_way *way, const struct rma_kind *kind, size_t bytes)
{
    bool part = way->memory->rank == 0 || kind->collective || (kind->both && way->memory->rank == target_of(way));
    return (!part || kind->run(way, bytes, 1)) && way->ops->barrier(way);
}

static bool verify_put(struct rma_way *way, const struct rma_kind *kind, size_t bytes, uint64_t salt)
{
    if (!prepare(way, 1, bytes, salt) || !run_once(way, kind, bytes)) return false;
    return way->memory->rank != target_of(way) || arrived(way, 0, bytes, 0, 0, salt);
}

static bool verify_get(struct rma_way *way, const struct rma_kind *kind, size_t bytes, uint64_t salt)
{
    if (!prepare(way, 1, bytes, salt) || !run_once(way, kind, bytes)) return false;
    return way->memory->rank != 0 || arrived(way, 0, bytes, target_of(way), 0, salt);
}

static bool verify_put_signal(struct rma_way *way, const struct rma_kind *kind, size_t bytes, uint64_t salt)
{
    if (!prepare(way, 1, bytes, salt) || !run_once(way, kind, bytes)) return false;
    if (way->memory->rank == 0) return arrived(way, 0, bytes, target_of(way), 0, salt);
    return way->memory->rank != target_of(way) || arrived(way, 0, bytes, 0, 0, salt);
}

/* Verifies atomics. All ranks change one word at the same time, and no change may be lost. */
static bool verify_atomic(struct rma_way *way, const struct rma_kind *kind, size_t bytes, uint64_t salt)
{
    enum { TIMES = 16 };
    const struct rma_memory *m = way->memory;
    _Atomic uint64_t *counter =
        (void *)(m->base + rma_word_at(&m->layout, way->first_word + RMA_WORD_COUNTER)); /* this rank's own */
    atomic_store(counter, salt);
    if (!rma_call_good(way, expar_barrier_all(m->group)) || !kind->run(way, bytes, TIMES) || !way->ops->barrier(way) ||
        !rma_call_good(way, expar_barrier_all(m->group)))
        return false;
    uint64_t expected = salt + (uint64_t)TIMES * (uint64_t)m->size, seen = atomic_load(counter);
    if (m->rank != target_of(way) || seen == expected) return true;
    fprintf(stderr, "expar bench: rank %d: %s: %s gave %llu, expected %llu\n", m->rank, way->ops->name, kind->name,
            (unsigned long long)seen, (unsigned long long)expected);
    return false;
}

/* Verifies a barrier. A rank that leaves it must see all data that the others put before it. */
static bool verify_barrier(struct rma_way *way, const struct rma_kind *kind, size_t bytes, uint64_t salt)
{
    const struct rma_memory *m = way->memory;
    const size_t piece = sizeof(uint64_t);
    (void)kind;
    (void)bytes;
    bool good = prepare(way, m->size, piece, salt);
    for (int pe = 0; pe < m->size && good; pe++)
        good = way->ops->put(way, pe, m->layout.dest + (size_t)m->rank * piece, m->layout.source, piece);
    good = good && way->ops->barrier(way);
    for (int from = 0; from < m->size && good; from++)
        good = arrived(way, from, piece, from, 0, salt);
    return good;
}

static bool verify_broadcast(struct rma_way *way, const struct rma_kind *kind, size_t bytes, uint64_t salt)
{
    return prepare(way, 1, bytes, salt) && run_once(way, kind, bytes) && arrived(way, 0, bytes, 0, 0, salt);
}

/* Verifies blocks of dest. With fcollect and collect these are those of each rank, with alltoall each rank's block for
   this one. */
static bool verify_blocks(struct rma_way *way, const struct rma_kind *kind, size_t bytes, uint64_t salt)
{
    const struct rma_memory *m = way->memory;
    bool good = prepare(way, m->size, bytes, salt) && run_once(way, kind, bytes);
    for (int from = 0; from < m->size && good; from++)
        good = arrived(way, from, bytes, from, kind->run == run_alltoall ? m->rank : 0, salt);
    return good;
}

static bool verify_reduce(struct rma_way *way, const struct rma_kind *kind, size_t bytes, uint64_t salt)
{
    const struct rma_memory *m = way->memory;
    int64_t *source = (void *)(m->base + m->layout.source), *dest = (void *)(m->base + m->layout.dest);
    if (!prepare(way, 1, bytes, salt)) return false;
    for (size_t i = 0; i < bytes / sizeof *source; i++)
        source[i] = rma_term(m->rank, i, salt);
    if (!run_once(way, kind, bytes)) return false;
    for (size_t i = 0; i < bytes / sizeof *dest; i++) {
        if (dest[i] == rma_total(m->size, i, salt)) continue;
        fprintf(stderr, "expar bench: rank %d: %s: sum %zu is wrong\n", m->rank, way->ops->name, i);
        return false;
    }
    return true;
}

/* ---- the operations ---------------------------------------------------------------------------------------------- */

static double one_block(size_t bytes, int num_ranks)
{
    (void)num_ranks;
    return (double)bytes;
}

static double all_blocks(size_t bytes, int num_ranks)
{
    return (double)bytes * num_ranks;
}

#define PAIR       .sized = true, .verify_base = true
#define ATOMIC     .group = "atomics", .verify = verify_atomic, .verify_base = true
#define COLLECTIVE .group = "collectives", .metric = "latency", .sized = true, .collective = true

const struct rma_kind rma_kinds[] = {
    {.name = "put", .metric = "latency", .run = run_put, .verify = verify_put, PAIR},
    {.name = "put", .metric = "bandwidth", .run = run_puts, .verify = verify_put, .moved = one_block, PAIR},
    {.name = "get", .metric = "latency", .run = run_get, .verify = verify_get, PAIR},
    {.name = "get", .metric = "bandwidth", .run = run_gets, .verify = verify_get, .moved = one_block, PAIR},
    {.name = "put_signal",
     .metric = "round_trip",
     .run = run_put_signal,
     .verify = verify_put_signal,
     .both = true,
     .has_flag = true,
     PAIR},
    {.name = "fetch_add", .metric = "latency", .run = run_fetch_add, ATOMIC},
    {.name = "add", .metric = "rate", .run = run_add, ATOMIC},
    {.name = "barrier", .metric = "latency", .collective = true, .run = run_barrier, .verify = verify_barrier},
    {.name = "broadcast",
     .run = run_broadcast,
     .run_base = fetch_broadcast,
     .verify = verify_broadcast,
     .moved = one_block,
     COLLECTIVE},
    {.name = "fcollect",
     .run = run_fcollect,
     .run_base = fetch_all,
     .verify = verify_blocks,
     .moved = all_blocks,
     COLLECTIVE},
    {.name = "collect",
     .run = run_collect,
     .run_base = fetch_all,
     .verify = verify_blocks,
     .moved = all_blocks,
     COLLECTIVE},
    {.name = "alltoall",
     .run = run_alltoall,
     .run_base = fetch_mine,
     .verify = verify_blocks,
     .moved = all_blocks,
     COLLECTIVE},
    {.name = "reduce",
     .run = run_reduce,
     .run_base = fetch_segments,
     .verify = verify_reduce,
     .moved = one_block,
     COLLECTIVE},
};
const int rma_num_kinds = sizeof rma_kinds / sizeof *rma_kinds;

/* ---- measuring --------------------------------------------------------------------------------------------------- */

/* A way that takes turns with others. */
struct rma_turn {
    const struct rma_kind *kind;
    struct rma_way *way, *closer; /* closer: the way whose barrier ends the turn */
    bool (*run)(struct rma_way *way, size_t bytes, int count);
    size_t bytes;
    int count;
};

static bool turn_run(void *context)
{
    struct rma_turn *self = context;
    return !self->run || self->run(self->way, self->bytes, self->count);
}

/* Runs some operations before a turn, so that a rank that slept before it has no disadvantage. */
static bool turn_before(void *context)
{
    struct rma_turn *self = context;
    return !self->run || self->run(self->way, self->bytes, self->count / 4 + 1);
}

/* Ends a turn. Passive ranks serve the others until all are done. In mapped memory no rank needs to be served. There
 * they wait in the same manner for every way, because the manner of a neighbour's wait affects the time. */
static bool turn_after(void *context, bool check)
{
    struct rma_turn *self = context;
    (void)check;
    return self->closer->ops->barrier(self->closer);
}

/* Returns the number of operations: enough that the clock does not matter, and few enough that a turn ends soon. */
static int operations_of(const struct rma_contest *contest, const struct rma_kind *kind, size_t bytes)
{
    const int most = contest->network || kind->collective ? 32 : 1024, least = 4;
    const size_t budget_bytes = (size_t)4 << 20;
    size_t fit = budget_bytes / (bytes + 1);
    if (kind->collective) fit /= (size_t)contest->world->size;
    return fit < (size_t)least ? least : fit < (size_t)most ? (int)fit : most;
}

static struct contender contender_of(struct rma_turn *turn)
{
    const struct rma_memory *m = turn->way->memory;
    const struct rma_kind *kind = turn->kind;
    if (!kind->collective && m->rank != 0 && !(kind->both && m->rank == target_of(turn->way))) turn->run = NULL;
    return (struct contender){.before = turn_before,
                              .run = turn_run,
                              .after = turn_after,
                              .context = turn,
                              .untimed = !kind->collective && m->rank != 0};
}

/* Verifies the ways. All ranks take part in every step, even if they find errors. */
static bool verify(const struct rma_contest *contest, const struct rma_kind *kind, size_t bytes, uint64_t salt,
                   bool *right)
{
    bool mine = kind->verify(contest->expar, kind, bytes, salt);
    if (contest->expar->failed) return false; /* where the others are now is not known */
    if (contest->base && kind->verify_base) mine &= kind->verify(contest->base, kind, bytes, salt + 1);
    *right &= bench_all_true(contest->world, mine);
    return rma_call_good(contest->expar, expar_barrier_all(contest->world->group));
}

bool rma_measure(const struct rma_contest *contest, const struct rma_kind *kind, size_t bytes,
                 struct rma_result *result)
{
    const int count = operations_of(contest, kind, bytes);
    const uint64_t salt = contest->options->seed * 4;
    struct rma_way *ways[3] = {contest->expar, contest->base, kind->has_flag ? contest->flag : NULL};
    struct rma_turn turns[3];
    struct contender contenders[3];
    char label[64];
    int number = 0;
    for (int i = 0; i < 3; i++) {
        if (!ways[i]) continue;
        turns[i] = (struct rma_turn){.kind = kind,
                                     .way = ways[i],
                                     .closer = contest->network ? ways[i] : contest->expar,
                                     .run = i > 0 && kind->run_base ? kind->run_base : kind->run,
                                     .bytes = bytes,
                                     .count = count};
        contenders[number++] = contender_of(&turns[i]);
    }
    *result = (struct rma_result){.op = kind->name,
                                  .metric = kind->metric,
                                  .transport = contest->transport,
                                  .baseline = contest->base_name,
                                  .bytes = bytes,
                                  .moved_bytes =
                                      kind->moved && !contest->software ? kind->moved(bytes, contest->world->size) : 0,
                                  .has_base = contest->base,
                                  .has_flag = kind->has_flag && contest->flag,
                                  .verified = true};
    snprintf(label, sizeof label, "%s, %s, %zu bytes", contest->transport, kind->name, bytes);
    if (!verify(contest, kind, bytes, salt, &result->verified)) return false;
    if (!bench_measure(contest->world, contest->options, label, contenders, number)) return false;
    result->expar = bench_times_share(&contenders[0].times, count);
    if (result->has_base) result->base = bench_times_share(&contenders[1].times, count);
    if (result->has_flag) result->flag = bench_times_share(&contenders[number - 1].times, count);
    return verify(contest, kind, bytes, salt + 2, &result->verified);
}
