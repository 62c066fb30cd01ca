/* SPDX-License-Identifier: Apache-2.0 */
/* The way of the library: each operation is the public call of that name. */
#include "bench/rma/rma.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

bool rma_call_good(struct rma_way *way, expar_status status)
{
    if (status == EXPAR_OK) return true;
    fprintf(stderr, "expar bench: rank %d: %s: %s\n", way->memory->rank, expar_status_string(status),
            expar_last_error());
    way->failed = true;
    return false;
}

static void *at(const struct rma_way *way, size_t offset)
{
    return way->memory->base + offset;
}

static uint64_t *word(const struct rma_way *way, int number)
{
    return at(way, rma_word_at(&way->memory->layout, way->first_word + number));
}

static bool put(struct rma_way *way, int pe, size_t dest, size_t source, size_t bytes)
{
    return rma_call_good(way, expar_put(way->memory->group, at(way, dest), at(way, source), bytes, pe));
}

static bool put_nbi(struct rma_way *way, int pe, size_t dest, size_t source, size_t bytes)
{
    return rma_call_good(way, expar_put_nbi(way->memory->group, at(way, dest), at(way, source), bytes, pe));
}

static bool get(struct rma_way *way, int pe, size_t dest, size_t source, size_t bytes)
{
    return rma_call_good(way, expar_get(way->memory->group, at(way, dest), at(way, source), bytes, pe));
}

static bool get_nbi(struct rma_way *way, int pe, size_t dest, size_t source, size_t bytes)
{
    return rma_call_good(way, expar_get_nbi(way->memory->group, at(way, dest), at(way, source), bytes, pe));
}

static bool quiet(struct rma_way *way)
{
    return rma_call_good(way, expar_quiet(way->memory->group));
}

static bool fetch_add(struct rma_way *way, int pe, int number, uint64_t value, uint64_t *old)
{
    return rma_call_good(way, expar_atomic_fetch_add_u64(way->memory->group, word(way, number), value, pe, old));
}

static bool add(struct rma_way *way, int pe, int number, uint64_t value)
{
    return rma_call_good(way, expar_atomic_add_u64(way->memory->group, word(way, number), value, pe));
}

static bool put_signal(struct rma_way *way, int pe, size_t dest, size_t source, size_t bytes, int number,
                       uint64_t value)
{
    return rma_call_good(way, expar_put_signal(way->memory->group, at(way, dest), at(way, source), bytes,
                                               word(way, number), value, EXPAR_SIGNAL_SET, pe));
}

static bool wait(struct rma_way *way, int number, uint64_t value)
{
    return rma_call_good(way,
                         expar_signal_wait_until(way->memory->group, word(way, number), EXPAR_CMP_GE, value, NULL));
}

static bool barrier(struct rma_way *way)
{
    return rma_call_good(way, expar_barrier_all(way->memory->group));
}

static void close_way(struct rma_way *way)
{
    free(way);
}

static const struct rma_way_ops ops = {
    .name = "expar",
    .put = put,
    .put_nbi = put_nbi,
    .get = get,
    .get_nbi = get_nbi,
    .quiet = quiet,
    .fetch_add = fetch_add,
    .add = add,
    .put_signal = put_signal,
    .wait = wait,
    .barrier = barrier,
    .close = close_way,
};

struct rma_way *rma_way_expar(const struct rma_memory *memory)
{
    struct rma_way *way = malloc(sizeof *way);
    if (!way) {
        fprintf(stderr, "expar bench: rank %d: out of memory\n", memory->rank);
        return NULL;
    }
    *way = (struct rma_way){.ops = &ops, .memory = memory, .first_word = 0};
    return way;
}

void rma_pause(unsigned turn)
{
    enum { SPINS = 2000 };
    if (turn >= SPINS) {
        sched_yield();
        return;
    }
#if __has_builtin(__builtin_ia32_pause)
    __builtin_ia32_pause();
#endif
}
