/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that the driver without GPUs simulates: notify, dispatch and combine of ranks without tokens, and those that
 * make expert-major outputs of no rows. There are also the mover, and the one that changes a word. They tell other
 * ranks headers and replies with a rank's rejection, and the result of the vote. They write and read the records that
 * proto/normal.h describes, with the orders that the real ones use, and wait as the real ones do. The layout that needs
 * no buffer is simulated whole. Another one runs until a test ends it. In low-latency mode there is a dispatch that
 * comes to nothing. */
#include "change_word.h"
#include "exec/cuda/kernels/hosted/mover_args.h"
#include "exec/cuda/kernels/low_latency/ll_args.h"
#include "exec/cuda/kernels/normal/args.h"
#include "fake.h"
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_KERNELS 32
#define NAME_BYTES   32

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char names[MOST_KERNELS][NAME_BYTES]; /* guarded by lock until written; a function is the address of its name */

cu_function kernel_named(const char *name)
{
    int i = 0;
    pthread_mutex_lock(&lock);
    while (i < MOST_KERNELS && names[i][0] && strcmp(names[i], name))
        i++;
    bool spare = i < MOST_KERNELS && strlen(name) < NAME_BYTES;
    if (spare) memcpy(names[i], name, strlen(name) + 1);
    pthread_mutex_unlock(&lock);
    return spare ? (cu_function)(void *)names[i] : NULL;
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

static void *at(const gpu_world *world, int32_t pe, uint64_t offset)
{
    return (void *)(uintptr_t)(world->place.heaps[pe] + world->place.buffer + offset);
}

static ep_header *header_at(const gpu_world *world, int32_t pe, uint32_t epoch, int32_t source)
{
    return at(world, pe, ep_header_at(&world->space, world->shape.ranks, epoch, source));
}

static ep_reply *reply_at(const gpu_world *world, int32_t pe, uint32_t epoch, int32_t source)
{
    return at(world, pe, ep_reply_at(&world->space, world->shape.ranks, epoch, source));
}

static void release(void *word, uint64_t value)
{
    __atomic_store_n((uint64_t *)word, value, __ATOMIC_RELEASE);
}

/* ---- waits ------------------------------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void give_up(const gpu_world *world, gpu_wait wait, int32_t peer, uint64_t seen, uint64_t expected,
                    bool was_abort)
{
    gpu_report *report = world->place.report;
    if (world->place.state->failed) return;
    world->place.state->failed = GPU_FAILED;
    report->wait = (int32_t)wait;
    report->peer = peer;
    report->was_abort = was_abort;
    report->seen = seen;
    report->expected = expected;
    report->failed_after = world->place.before;
    __atomic_store_n(&report->failed, 1, __ATOMIC_RELEASE);
}

/* A kernel that waits leaves the core to others, the longer the more. looks: how often it has waited so far. */
static void rest(uint32_t *looks)
{
    enum { YIELDS = 16, MOST_STEPS = 10 };
    const uint32_t steps = (*looks)++ / YIELDS;
    if (steps == 0)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = 50000 * (long)(steps < MOST_STEPS ? steps : MOST_STEPS)}, NULL);
}

/* Until the flag is that of this call. */
static bool await_flag(const gpu_world *world, const void *flag, uint32_t epoch, gpu_wait wait, int32_t peer)
{
    const uint64_t expected = ep_word(epoch, 1);
    uint64_t last = 0, since_ns = 0;
    uint32_t looks = 0;
    for (;;) {
        uint64_t seen = __atomic_load_n((const uint64_t *)flag, __ATOMIC_ACQUIRE);
        if (seen == expected) return true;
        const uint64_t orders = __atomic_load_n(&world->place.report->orders, __ATOMIC_ACQUIRE), now = now_ns();
        if (since_ns && orders != last)
            __atomic_store_n(&world->place.awaits[peer], gpu_await_word(orders, (int32_t)wait, epoch),
                             __ATOMIC_RELAXED);
        if (!since_ns || orders != last) since_ns = now;
        last = orders;
        if (orders & GPU_ABORT || now - since_ns > world->place.orphan_ns) {
            give_up(world, wait, peer, seen, expected, orders & GPU_ABORT);
            return false;
        }
        rest(&looks);
    }
}

/* ---- results of the vote ----------------------------------------------------------------------------------------- */

/* `own` is what the host rejected the call for: then its caller knows. `form` and `form0` may be NULL. */
static void report(const gpu_world *world, const ep_rejection *own, int32_t rank, const ep_rejection *reason,
                   const ep_form *form, const ep_form *form0)
{
    if (!world->place.ticket && own->status) return;
    gpu_vote *slot = world->place.ticket ? &world->place.report->votes[world->place.ticket % GPU_VOTES]
                                         : &world->place.report->untold;
    if (!world->place.ticket && __atomic_load_n(&slot->ticket, __ATOMIC_ACQUIRE)) return;
    slot->rank = rank;
    slot->dropped = 0;
    slot->reason = *reason;
    if (form) slot->form = *form;
    if (form0) slot->form0 = *form0;
    release(&slot->ticket, world->place.ticket ? world->place.ticket : 1);
}

/* All headers have come: the lowest rank that rejected, else the lowest whose form differs from rank 0's, else -1. */
static int32_t judge_headers(const gpu_world *world, const ep_rejection *own, uint32_t epoch)
{
    const ep_header *first = header_at(world, world->place.rank, epoch, 0);
    for (int32_t pass = 0; pass < 2; pass++)
        for (int32_t pe = 0; pe < world->shape.ranks; pe++) {
            const ep_header *header = header_at(world, world->place.rank, epoch, pe);
            bool bad = pass ? memcmp(&header->form, &first->form, sizeof first->form) : header->rejection.status != 0;
            if (!bad) continue;
            report(world, own, pe, &header->rejection, &header->form, &first->form);
            return pe;
        }
    return -1;
}

/* Headers without tokens to all, and from all; `spare`: that of a fresh dispatch, or NULL. True when all go on. */
static bool exchange_headers(const gpu_world *world, uint32_t epoch, const ep_form *form, const ep_rejection *rejection,
                             const ep_free_space *spare)
{
    for (int32_t pe = 0; pe < world->shape.ranks; pe++) {
        ep_header *header = header_at(world, pe, epoch, world->place.rank);
        header->form = *form;
        header->rejection = *rejection;
        memset(header + 1, 0, world->space.opening_bytes - sizeof *header);
        if (spare) header->spare = *spare;
        if (!ep_tells_space(world->shape.ranks)) header->spare.bytes = 0;
        release(&header->flag, ep_word(epoch, 1));
    }
    for (int32_t pe = 0; pe < world->shape.ranks; pe++)
        if (!await_flag(world, &header_at(world, world->place.rank, epoch, pe)->flag, epoch, GPU_WAIT_HEADER, pe))
            return false;
    return judge_headers(world, rejection, epoch) < 0;
}

/* Whether pools grow between counts and rows: all headers are here, and all go on. Else a request is noted. */
static bool pools_grow(const gpu_world *world, uint32_t epoch)
{
    bool can = true, requested = false;
    for (int32_t pe = 0; pe < world->shape.ranks; pe++) {
        int32_t growth = header_at(world, world->place.rank, epoch, pe)->spare.growth;
        can = can && growth != EP_GROWTH_NONE;
        requested = requested || growth == EP_GROWTH_REQUESTED;
    }
    if (requested && !can) __atomic_store_n(&world->place.report->requested, (uint64_t)epoch + 1, __ATOMIC_RELAXED);
    return can && requested;
}

/* Where no rows come they fit anywhere. */
static bool stands(const gpu_world *world, uint32_t epoch, int32_t pe)
{
    if (world->place.state->grows) return false;
    return header_at(world, world->place.rank, epoch, pe)->spare.bytes > 0;
}

/* For the ranks whose first advertisements do not stand. */
static bool exchange_replies(const gpu_world *world, uint32_t epoch, const ep_rejection *rejection)
{
    for (int32_t pe = 0; pe < world->shape.ranks && !stands(world, epoch, world->place.rank); pe++) {
        ep_reply *reply = reply_at(world, pe, epoch, world->place.rank);
        reply->rejection = *rejection;
        release(&reply->flag, ep_word(epoch, 1));
    }
    for (int32_t pe = 0; pe < world->shape.ranks; pe++)
        if (!stands(world, epoch, pe) &&
            !await_flag(world, &reply_at(world, world->place.rank, epoch, pe)->flag, epoch, GPU_WAIT_REPLY, pe))
            return false;
    for (int32_t pe = 0; pe < world->shape.ranks; pe++) {
        const ep_reply *reply = reply_at(world, world->place.rank, epoch, pe);
        if (stands(world, epoch, pe) || !reply->rejection.status) continue;
        report(world, rejection, pe, &reply->rejection, NULL, NULL);
        return false;
    }
    return true;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

static bool trial_notify(const gpu_notify_args *a)
{
    const gpu_world *world = &a->world;
    const ep_shape *shape = &world->shape;
    uint32_t epoch = world->place.state->epoch + 1;
    size_t counts = (size_t)shape->ranks * (size_t)(shape->channels + 1) + (size_t)shape->local_experts;
    if (a->tokens) return false;
    if (a->routing) memset(a->routing, 0, a->at.total_bytes);
    if (world->place.ticket) memset(a->told, 0, counts * sizeof(int32_t));
    world->place.state->rejected = !exchange_headers(world, epoch, &a->form, &a->rejection, &a->spare);
    world->place.state->grows = !world->place.state->rejected && pools_grow(world, epoch);
    world->place.state->epoch = epoch;
    if (!world->place.ticket) return true;
    if (world->place.state->grows) world->place.report->counts_grow = world->place.ticket;
    if (world->place.state->rejected) world->place.report->counts_rejected = world->place.ticket;
    release(&world->place.report->counts_ready, world->place.ticket);
    return true;
}

static void tell_opened(const gpu_world *world)
{
    if (world->place.ticket) release(&world->place.report->opened, world->place.ticket);
}

static bool trial_dispatch(const gpu_dispatch_args *a)
{
    const gpu_world *world = &a->world;
    bool cached = a->form.kind == EP_DISPATCH_CACHED;
    uint32_t epoch = world->place.state->epoch + cached;
    if (a->tokens) return false;
    if (a->spare.bytes) note_ahead();
    if (!cached && world->place.state->rejected) return true;
    if (a->spare.bytes && world->place.state->grows) return true;
    if (cached)
        exchange_headers(world, epoch, &a->form, &a->rejection, NULL);
    else
        exchange_replies(world, epoch, &a->rejection);
    world->place.state->epoch = epoch;
    tell_opened(world);
    return true;
}

static bool trial_combine(const gpu_combine_args *a)
{
    const gpu_world *world = &a->world;
    uint32_t epoch = world->place.state->epoch + 1;
    if (a->tokens) return false;
    exchange_headers(world, epoch, &a->form, &a->rejection, NULL);
    world->place.state->epoch = epoch;
    tell_opened(world);
    return true;
}

static bool no_row_came(const int32_t *rank_prefix, int32_t ranks)
{
    return rank_prefix[ranks - 1] == 0;
}

/* No slot has a row. */
static bool trial_map(const gpu_map_args *a)
{
    if (!no_row_came(a->rank_prefix, a->ranks)) return false;
    memset(a->map, 0xff, (size_t)a->rows * (size_t)a->topk * sizeof *a->map);
    return true;
}

/* ---- layout by itself -------------------------------------------------------------------------------------------- */

static int64_t expert_of(const gpu_count_args *a, int64_t token, int32_t k)
{
    int64_t i = token * a->route.idx_pitch + k;
    int64_t expert = a->route.idx_bytes == 8 ? ((const int64_t *)a->route.idx)[i] : ((const int32_t *)a->route.idx)[i];
    return expert < a->experts ? expert : -1;
}

/* Whether one of the token's experts is among the `size` of this team. */
static bool goes_to(const gpu_count_args *a, int64_t token, int32_t team, int32_t size)
{
    for (int32_t k = 0; k < a->topk; k++) {
        int64_t expert = expert_of(a, token, k);
        if (expert >= 0 && expert / size == team) return true;
    }
    return false;
}

static bool trial_count(const gpu_count_args *a)
{
    for (int64_t t = 0; t < a->tokens; t++) {
        for (int32_t k = 0; a->tokens_per_expert && k < a->topk; k++)
            if (expert_of(a, t, k) >= 0) a->tokens_per_expert[expert_of(a, t, k)]++;
        for (int32_t r = 0; r < a->ranks; r++) {
            bool goes = goes_to(a, t, r, a->experts / a->ranks);
            if (a->tokens_per_rank) a->tokens_per_rank[r] += goes;
            if (a->token_in_rank) a->token_in_rank[t * a->ranks + r] = goes;
        }
        for (int32_t n = 0; a->tokens_per_node && n < a->nodes; n++)
            a->tokens_per_node[n] += goes_to(a, t, n, a->experts / a->nodes);
    }
    return true;
}

/* Runs as long as a test wants. */
static bool trial_spin(const fake_spin_args *a)
{
    uint32_t looks = 0;
    while (!atomic_load(a->end))
        rest(&looks);
    return true;
}

/* ---- rows of calls that the host carries out --------------------------------------------------------------------- */

static void copy_as_told(const mover_command *c)
{
    for (uint64_t row = 0; row < c->rows; row++)
        memcpy((void *)(uintptr_t)(c->dest + row * c->dest_pitch),
               (const void *)(uintptr_t)(c->source + row * c->source_pitch), c->row_bytes);
}

static void copy_listed(const mover_command *c)
{
    const mover_row *list = (const mover_row *)(uintptr_t)c->list;
    for (uint64_t i = 0; i < c->rows; i++)
        memcpy((void *)(uintptr_t)list[i].dest, (const void *)(uintptr_t)list[i].source, c->row_bytes);
}

static float add_floats(float sum, const uint64_t *rows, uint32_t count, uint64_t index)
{
    for (uint32_t i = 0; i < count; i++)
        sum += ((const float *)(uintptr_t)rows[i])[index];
    return sum;
}

/* The tests have rows of FP32 alone: EXPAR_F32. */
enum { F32 = 3 };
static void sum_listed(const mover_command *c)
{
    for (uint64_t i = 0; i < c->rows; i++) {
        const mover_sum *s = (const mover_sum *)(uintptr_t)(c->list + i * c->entry_words * sizeof(uint64_t));
        const uint64_t *rows = (const uint64_t *)s + MOVER_SUM_WORDS, *group = rows + s->rows;
        if (s->dtype != F32 || s->flags & MOVER_WEIGHTED) abort();
        for (uint64_t k = 0; k < c->row_bytes / sizeof(float); k++) {
            float sum = add_floats(0.0f, rows, s->group_at, k);
            if (s->group_rows) sum += add_floats(0.0f, group, s->group_rows, k);
            ((float *)(uintptr_t)s->sum)[k] = add_floats(sum, rows + s->group_at, s->rows - s->group_at, k);
        }
    }
}

static void carry_out(const mover_command *c)
{
    if (c->kind == MOVER_COPY) copy_as_told(c);
    if (c->kind == MOVER_ROWS) copy_listed(c);
    if (c->kind == MOVER_SUMS) sum_listed(c);
}

static bool trial_mover(const mover_args *a)
{
    mover_ring *ring = a->ring;
    const uint64_t run = a->run ? a->run : a->state->ended + 1;
    ring->record = a->record;
    __atomic_store_n(&ring->started, run, __ATOMIC_SEQ_CST);
    for (uint32_t number = 0;; number++) {
        uint32_t looks = 0;
        while (__atomic_load_n(&ring->posted, __ATOMIC_ACQUIRE) < mover_count(run, number + 1))
            rest(&looks);
        const mover_command command = ring->commands[number % MOVER_COMMANDS];
        if (command.kind == MOVER_END) break;
        if (__atomic_load_n(&ring->over, __ATOMIC_SEQ_CST) != run) carry_out(&command);
        release(&ring->done, mover_count(run, number + 1));
    }
    a->state->ended = run;
    release(&ring->exited, run);
    return true;
}

/* In low-latency mode only of a buffer whose kernels' waits have been ended, where it does nothing. */
static bool trial_ll_dispatch(const ll_dispatch_args *a)
{
    return __atomic_load_n(&a->call.place.report->orders, __ATOMIC_ACQUIRE) & GPU_ABORT;
}

static bool trial_change(const change_args *a)
{
    size_t bytes = a->bytes;
    fake_change_word(a, fake_reach((const void *)(uintptr_t)a->word, &bytes));
    return true;
}

size_t kernel_argument_bytes(cu_function function)
{
    static const struct {
        const char *name;
        size_t bytes;
    } known[] = {{"ep_notify", sizeof(gpu_notify_args)},
                 {"ep_dispatch_impl", sizeof(gpu_dispatch_args)},
                 {"ep_combine_impl", sizeof(gpu_combine_args)},
                 {FAKE_SPIN, sizeof(fake_spin_args)},
                 {"ep_count", sizeof(gpu_count_args)},
                 {"ep_find_terms", sizeof(gpu_terms_args)},
                 {"ep_sum_terms", sizeof(gpu_sum_args)},
                 {"ep_map", sizeof(gpu_map_args)},
                 {"ep_expand", sizeof(gpu_expand_args)},
                 {"ep_reduce", sizeof(gpu_reduce_args)},
                 {"ep_combine_impl_slots", sizeof(gpu_combine_args)},
                 {"ep_mover", sizeof(mover_args)},
                 {"change_word", sizeof(change_args)},
                 {"ll_dispatch_impl", sizeof(ll_dispatch_args)}};
    const char *name = (const char *)(void *)function;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(name, known[i].name)) return known[i].bytes;
    return 0;
}

/* Tests of captures look at what the others are told. */
bool kernels_run_in_captures(void)
{
    return true;
}

bool kernel_awaits_host(cu_function function)
{
    return !strcmp((const char *)(void *)function, "ep_mover");
}

/* They have no threads. */
void kernels_delay(uint32_t seed)
{
    (void)seed;
}

bool kernel_trial(cu_function function, const kernel_grid *grid, void *arguments)
{
    (void)grid;
    const gpu_expand_args *expand = arguments;
    const gpu_reduce_args *reduce = arguments;
    const char *name = (const char *)(void *)function;
    if (!strcmp(name, "ep_notify")) return trial_notify(arguments);
    if (!strcmp(name, "ep_dispatch_impl")) return trial_dispatch(arguments);
    if (!strcmp(name, "ep_combine_impl") || !strcmp(name, "ep_combine_impl_slots")) return trial_combine(arguments);
    if (!strcmp(name, FAKE_SPIN)) return trial_spin(arguments);
    if (!strcmp(name, "ep_count")) return trial_count(arguments);
    if (!strcmp(name, "ep_map")) return trial_map(arguments);
    if (!strcmp(name, "ep_expand")) return no_row_came(expand->rank_prefix, expand->ranks);
    if (!strcmp(name, "ep_reduce")) return no_row_came(reduce->rank_prefix, reduce->ranks);
    if (!strcmp(name, "ep_mover")) return trial_mover(arguments);
    if (!strcmp(name, "change_word")) return trial_change(arguments);
    if (!strcmp(name, "ll_dispatch_impl")) return trial_ll_dispatch(arguments);
    return false;
}
