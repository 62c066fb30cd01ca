/* SPDX-License-Identifier: Apache-2.0 */
/* The way of one machine without the library: memcpy, atomic instructions and bare flags in the memory of the peers,
 * mapped here. A waiting rank spins; the token goes round by futex. */
#include "bench/rma/rma.h"
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct mapped_way {
    struct rma_way base;
    uint64_t tokens;        /* how often the token was here */
    unsigned char *peers[]; /* [size] their memory */
};

static unsigned char *at(const struct rma_way *way, int pe, size_t offset)
{
    return ((const struct mapped_way *)way)->peers[pe] + offset;
}

static void *word(const struct rma_way *way, int pe, int number)
{
    return at(way, pe, rma_word_at(&way->memory->layout, way->first_word + number));
}

static bool put(struct rma_way *way, int pe, size_t dest, size_t source, size_t bytes)
{
    memcpy(at(way, pe, dest), way->memory->base + source, bytes);
    return true;
}

static bool get(struct rma_way *way, int pe, size_t dest, size_t source, size_t bytes)
{
    memcpy(way->memory->base + dest, at(way, pe, source), bytes);
    return true;
}

/* Waits until stores have left this core, as the library's quiet does. */
static bool quiet(struct rma_way *way)
{
    (void)way;
    atomic_thread_fence(memory_order_seq_cst);
    return true;
}

static bool fetch_add(struct rma_way *way, int pe, int number, uint64_t value, uint64_t *old)
{
    *old = atomic_fetch_add((_Atomic uint64_t *)word(way, pe, number), value);
    return true;
}

static bool add(struct rma_way *way, int pe, int number, uint64_t value)
{
    atomic_fetch_add((_Atomic uint64_t *)word(way, pe, number), value);
    return true;
}

static bool set_flag(struct rma_way *way, int pe, int number, uint64_t value)
{
    /* Release: who has seen the flag sees the data before it. */
    atomic_store_explicit((_Atomic uint64_t *)word(way, pe, number), value, memory_order_release);
    return true;
}

static bool put_signal(struct rma_way *way, int pe, size_t dest, size_t source, size_t bytes, int number,
                       uint64_t value)
{
    return put(way, pe, dest, source, bytes) && set_flag(way, pe, number, value);
}

static bool put_flag(struct rma_way *way, int pe, size_t dest, size_t source, size_t bytes, int number, uint64_t value)
{
    (void)dest;
    (void)source;
    (void)bytes;
    return set_flag(way, pe, number, value);
}

static bool wait(struct rma_way *way, int number, uint64_t value)
{
    _Atomic uint64_t *flag = word(way, way->memory->rank, number);
    for (unsigned turn = 0; atomic_load_explicit(flag, memory_order_acquire) < value; turn++)
        rma_pause(turn);
    return true;
}

/* ---- the token --------------------------------------------------------------------------------------------------- */

/* Sleeps until the token has come to this rank for the n-th time. */
static void take_token(struct rma_way *way, uint32_t n)
{
    _Atomic uint32_t *token = word(way, way->memory->rank, RMA_WORD_TOKEN);
    uint32_t seen;
    while ((seen = atomic_load_explicit(token, memory_order_acquire)) != n)
        syscall(SYS_futex, token, FUTEX_WAIT, seen, NULL, NULL, 0);
}

static void pass_token(struct rma_way *way, uint32_t n)
{
    int next = (way->memory->rank + 1) % way->memory->size;
    _Atomic uint32_t *token = word(way, next, RMA_WORD_TOKEN);
    atomic_store_explicit(token, n, memory_order_release);
    syscall(SYS_futex, token, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* Passes the token round all ranks once. Rank 0 starts it and gets it back at the end. */
static bool barrier(struct rma_way *way)
{
    uint32_t n = (uint32_t)++((struct mapped_way *)way)->tokens;
    if (way->memory->rank == 0) pass_token(way, n);
    take_token(way, n);
    if (way->memory->rank != 0) pass_token(way, n);
    return true;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

static void close_way(struct rma_way *way)
{
    free(way);
}

static const struct rma_way_ops mapped_ops = {
    .name = "memcpy",
    .put = put,
    .put_nbi = put,
    .get = get,
    .get_nbi = get,
    .quiet = quiet,
    .fetch_add = fetch_add,
    .add = add,
    .put_signal = put_signal,
    .wait = wait,
    .barrier = barrier,
    .close = close_way,
};

static const struct rma_way_ops flag_ops = {
    .name = "flag",
    .put_signal = put_flag,
    .wait = wait,
    .quiet = quiet,
    .barrier = barrier,
    .close = close_way,
};

static struct rma_way *make(const struct rma_memory *memory, const struct rma_way_ops *ops, int first_word)
{
    struct mapped_way *way = calloc(1, sizeof *way + (size_t)memory->size * sizeof *way->peers);
    if (!way) return NULL;
    way->base = (struct rma_way){.ops = ops, .memory = memory, .first_word = first_word};
    for (int pe = 0; pe < memory->size; pe++) {
        way->peers[pe] = expar_ptr(memory->group, memory->base, pe);
        if (way->peers[pe]) continue;
        free(way);
        return NULL;
    }
    return &way->base;
}

struct rma_way *rma_way_mapped(const struct rma_memory *memory)
{
    return make(memory, &mapped_ops, RMA_WAY_WORDS);
}

struct rma_way *rma_way_flag(const struct rma_memory *memory)
{
    return make(memory, &flag_ops, 2 * RMA_WAY_WORDS);
}
