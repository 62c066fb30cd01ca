/* SPDX-License-Identifier: Apache-2.0 */
/* A simulated GPU. The threads of a block take turns in one thread of the host, each on a stack of its own. All blocks
 * of a launch run at once, in as many threads. A thread that waits at a meeting has no turn until that is complete.
 * When all have had theirs, the host's thread yields, since the words that they poll come from others. */
#include "cuda/simt/simt.h"
#include "cuda/simt/launch.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

enum { MOST_THREADS = 1024, WARPS = MOST_THREADS / 32, BARRIERS = 16, MASKS = 4 };
#define STACK_BYTES ((size_t)64 << 10)

typedef enum turn_kind { UNBORN, READY, WAITS, GONE } turn_kind;

typedef struct fiber {
    jmp_buf at; /* where it goes on at its next turn */
    turn_kind kind;
} fiber;

/* Threads that wait for each other. */
typedef struct meeting {
    uint32_t mask; /* of lanes; 0: free, and unused by barriers */
    int32_t came, with;
    int32_t told;    /* what those who met last are told */
    uint64_t number; /* of meetings that are complete */
    uint64_t words[32], all[2][32];
} meeting;

typedef struct block {
    const simt_launch *launch;
    uint32_t number;
    fiber fibers[MOST_THREADS];
    meeting barriers[BARRIERS], lanes[WARPS][MASKS];
    int32_t alive;
    uint32_t running;
    bool moved; /* a thread has done more in its turn than to poll */
    jmp_buf scheduler;
    ucontext_t birth, home;
    char *stacks;
    void *shared;
    simt_parcel parcels[MOST_THREADS];
    uint64_t stored_bytes; /* when it has ended */
} block;

_Thread_local simt_place threadIdx, blockIdx, blockDim, gridDim;
_Thread_local uint64_t simt_stored_bytes;
static _Thread_local block *here;
_Atomic uint32_t simt_delays;
_Atomic uint64_t simt_delays_made;
void (*_Atomic simt_watch_load)(const void *address);

static void fail(const char *what)
{
    fprintf(stderr, "played GPU: block %u, thread %u: %s\n", blockIdx.x, threadIdx.x, what);
    abort();
}

/* ---- turns ------------------------------------------------------------------------------------------------------- */

/* Until this thread's next turn. */
static void give_turn(turn_kind kind)
{
    block *b = here;
    fiber *own = &b->fibers[b->running];
    own->kind = kind;
    b->moved |= kind != READY;
    if (_setjmp(own->at) == 0) _longjmp(b->scheduler, 1);
}

simt_parcel *simt_parcel_here(void)
{
    return &here->parcels[here->running];
}

uint32_t simt_thread(void)
{
    return threadIdx.x;
}

void simt_poll(void)
{
    give_turn(READY);
}

void simt_sleep(uint32_t ns)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const int64_t end_ns = now.tv_sec * 1000000000 + now.tv_nsec + ns;
    do {
        simt_poll();
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec * 1000000000 + now.tv_nsec < end_ns);
}

void *simt_shared(void)
{
    return here->shared;
}

int32_t simt_alive(void)
{
    return here->alive;
}

/* All who wait; those who wait elsewhere look again, and wait on. */
static void wake(uint32_t first, uint32_t count)
{
    for (uint32_t t = first; t < first + count; t++)
        if (here->fibers[t].kind == WAITS) here->fibers[t].kind = READY;
}

static void complete(meeting *m)
{
    m->told = m->with;
    m->came = m->with = 0;
    m->number++;
    wake(0, here->launch->threads);
}

/* Runs a thread from start to end. Those that are left may have waited for it alone. */
static void live(void)
{
    block *b = here;
    b->launch->kernel(b->launch->arguments);
    b->fibers[b->running].kind = GONE;
    b->moved = true;
    b->alive--;
    if (b->barriers[0].came > 0 && b->barriers[0].came >= b->alive) complete(&b->barriers[0]);
    _longjmp(b->scheduler, 1);
}

static void be_born(block *b, uint32_t thread)
{
    getcontext(&b->birth);
    b->birth.uc_stack.ss_sp = b->stacks + thread * STACK_BYTES;
    b->birth.uc_stack.ss_size = STACK_BYTES;
    b->birth.uc_link = NULL;
    makecontext(&b->birth, live, 0);
    swapcontext(&b->home, &b->birth);
}

static void take_turn(block *b, uint32_t thread)
{
    fiber *f = &b->fibers[thread];
    b->running = threadIdx.x = thread;
    if (_setjmp(b->scheduler)) return;
    if (f->kind == UNBORN) {
        f->kind = READY;
        be_born(b, thread);
    }
    _longjmp(f->at, 1);
}

/* Where threads only poll, others are to have the core; soon, since some polls have what they want. */
#define POLLS_BEFORE_REST 8
#define REST_NS           50000

/* To the end of all its threads. */
static void run_block(block *b)
{
    for (int polls = 0; b->alive > 0; polls = b->moved ? 0 : polls + 1) {
        bool any = false;
        if (polls >= POLLS_BEFORE_REST)
            nanosleep(&(struct timespec){.tv_nsec = REST_NS}, NULL);
        else
            sched_yield();
        b->moved = false;
        for (uint32_t t = 0; t < b->launch->threads; t++) {
            if (b->fibers[t].kind == WAITS || b->fibers[t].kind == GONE) continue;
            take_turn(b, t);
            any = true;
        }
        if (!any) fail("all threads that are left wait for each other, not all at one meeting");
    }
}

/* ---- meetings ---------------------------------------------------------------------------------------------------- */

static void await_meeting(const meeting *m, uint64_t number)
{
    while (m->number == number)
        give_turn(WAITS);
}

int32_t simt_meet(int32_t barrier, int32_t threads, bool with)
{
    meeting *m = &here->barriers[barrier];
    const uint64_t number = m->number;
    m->with += with;
    if (++m->came < threads) {
        await_meeting(m, number);
        return m->told;
    }
    complete(m);
    return m->told;
}

static meeting *meeting_of(uint32_t warp, uint32_t mask)
{
    meeting *all = here->lanes[warp];
    for (int i = 0; i < MASKS; i++) {
        if (all[i].mask == 0) all[i].mask = mask;
        if (all[i].mask == mask) return &all[i];
    }
    fail("lanes of a warp meet by too many masks");
    return NULL;
}

const uint64_t *simt_meet_lanes(uint32_t mask, uint64_t word)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    meeting *m = meeting_of(warp, mask);
    const uint64_t number = m->number;
    if (!(mask >> lane & 1)) fail("a lane meets others by a mask without it");
    m->words[lane] = word;
    if (++m->came < __builtin_popcount(mask)) {
        await_meeting(m, number);
        return m->all[number % 2];
    }
    memcpy(m->all[number % 2], m->words, sizeof m->words);
    m->came = 0;
    m->number++;
    wake(warp * 32, 32);
    return m->all[number % 2];
}

/* ---- stacks ------------------------------------------------------------------------------------------------------ */

/* The stacks of a block that has ended, for the next one: their pages are there. In its first bytes. */
typedef struct stacks {
    struct stacks *next;
} stacks;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static stacks *idle; /* guarded by lock; each of MOST_THREADS */

static char *take_stacks(void)
{
    pthread_mutex_lock(&lock);
    stacks *found = idle;
    if (found) idle = found->next;
    pthread_mutex_unlock(&lock);
    if (found) return (char *)found;
    void *made = mmap(NULL, STACK_BYTES * MOST_THREADS, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) fail("no memory for stacks");
    return made;
}

static void give_stacks(char *given)
{
    stacks *one = (stacks *)(void *)given;
    pthread_mutex_lock(&lock);
    one->next = idle;
    idle = one;
    pthread_mutex_unlock(&lock);
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

static void *trial_block(void *argument)
{
    block *b = argument;
    const simt_launch *launch = b->launch;
    here = b;
    blockIdx.x = b->number;
    blockDim.x = launch->threads;
    gridDim.x = launch->blocks;
    b->alive = (int32_t)launch->threads;
    b->stacks = take_stacks();
    b->shared = aligned_alloc(128, (launch->shared_bytes + 127) / 128 * 128 + 128);
    if (!b->shared) fail("no memory");
    run_block(b);
    b->stored_bytes = simt_stored_bytes;
    give_stacks(b->stacks);
    free(b->shared);
    return NULL;
}

void *simt_delays_place(void)
{
    return &simt_delays_made;
}

void simt_delay(uint32_t seed)
{
    simt_delays = seed;
}

uint64_t simt_trial(const simt_launch *launch)
{
    uint64_t stored_bytes = 0;
    block *blocks = calloc(launch->blocks, sizeof *blocks);
    pthread_t *threads = calloc(launch->blocks, sizeof *threads);
    if (!blocks || !threads || launch->threads > MOST_THREADS || launch->threads % 32)
        fail("a launch that is too large");
    for (uint32_t i = 0; i < launch->blocks; i++) {
        blocks[i].launch = launch;
        blocks[i].number = i;
        if (pthread_create(&threads[i], NULL, trial_block, &blocks[i])) fail("no thread");
    }
    for (uint32_t i = 0; i < launch->blocks; i++) {
        pthread_join(threads[i], NULL);
        stored_bytes += blocks[i].stored_bytes;
    }
    free(threads);
    free(blocks);
    return stored_bytes;
}
