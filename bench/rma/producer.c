/* SPDX-License-Identifier: Apache-2.0 */
/* The producer's side of a network device: how fast threads post, how many bytes and doorbells a message takes, and how
 * long one message takes to complete. Rank 0 puts to the last rank; the others wait. */
#include "bench/rma/rma.h"
#include <expar/info.h>
#include <stdlib.h>
#include <time.h>

enum { POSTS = 128, ROUNDS = 16 };

struct producing {
    struct rma_way *way;
    size_t bytes;
    double post_us[ROUNDS], complete_us[ROUNDS];
    expar_network_stats start, posted, end;
};

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static bool count(struct producing *p, expar_network_stats *stats)
{
    *stats = (expar_network_stats)EXPAR_NETWORK_STATS_INIT;
    return rma_call_good(p->way, expar_network_get_stats(p->way->memory->group, stats));
}

/* Each message has a place of its own while the memory has space for it. */
static bool post(struct producing *p, int number)
{
    const struct rma_layout *at = &p->way->memory->layout;
    const size_t step = (p->bytes + 63) / 64 * 64, place = (size_t)number % (at->area_bytes / step) * step;
    return p->way->ops->put_nbi(p->way, p->way->memory->size - 1, at->dest + place, at->source + place, p->bytes);
}

static bool post_many(struct producing *p, double *us)
{
    const double start = now_us();
    bool good = true;
    for (int i = 0; i < POSTS && good; i++)
        good = post(p, i);
    *us = (now_us() - start) / POSTS;
    return good && p->way->ops->quiet(p->way);
}

static bool complete_one(struct producing *p, double *us)
{
    const double start = now_us();
    const bool good = post(p, 0) && p->way->ops->quiet(p->way);
    *us = now_us() - start;
    return good;
}

/* The part of rank 0. */
static bool produce(struct producing *p)
{
    double unused;
    bool good = post_many(p, &unused) && count(p, &p->start);
    for (int i = 0; i < ROUNDS && good; i++)
        good = post_many(p, &p->post_us[i]);
    good = good && count(p, &p->posted);
    for (int i = 0; i < ROUNDS && good; i++)
        good = complete_one(p, &p->complete_us[i]);
    return good && count(p, &p->end);
}

static double share(uint64_t after, uint64_t before, double of)
{
    return of > 0 ? (double)(after - before) / of : 0;
}

/* Rank 0 fills each message's source; the last rank looks at where it arrived. */
static void fill(const struct producing *p, uint64_t salt)
{
    const struct rma_memory *m = p->way->memory;
    rma_fill(m->base + m->layout.source, p->bytes, 0, 0, salt);
    rma_fill(m->base + m->layout.dest, p->bytes, 0, 0, ~salt);
}

bool rma_measure_producer(const struct rma_contest *contest, size_t bytes, struct rma_producer *out)
{
    const struct rma_memory *m = contest->expar->memory;
    const uint64_t salt = contest->options->seed;
    struct producing *p = calloc(1, sizeof *p);
    if (!bench_all_true(contest->world, p != NULL)) {
        free(p);
        return false;
    }
    *p = (struct producing){.way = contest->expar, .bytes = bytes};
    fill(p, salt);
    bool good = rma_call_good(p->way, expar_barrier_all(m->group));
    if (m->rank == 0) good = good && produce(p);
    good = good && rma_call_good(p->way, expar_barrier_all(m->group));
    const bool right =
        good && (m->rank != m->size - 1 || rma_first_wrong(m->base + m->layout.dest, bytes, 0, 0, salt) < 0);
    const double messages = (double)POSTS * ROUNDS, post_us = bench_summary(p->post_us, ROUNDS).median_us;
    *out = (struct rma_producer){.by = contest->proxy ? "proxy" : "threads",
                                 .bytes = bytes,
                                 .commands_per_s = post_us > 0 ? 1e6 / post_us : 0,
                                 .requests = share(p->posted.requests, p->start.requests, messages),
                                 .request_bytes = share(p->posted.request_bytes, p->start.request_bytes, messages),
                                 .doorbells = share(p->posted.doorbells, p->start.doorbells, messages),
                                 .completion = bench_summary(p->complete_us, ROUNDS),
                                 .device_us = share(p->end.device_ns, p->posted.device_ns,
                                                    1e3 * (double)(p->end.completions - p->posted.completions)),
                                 .verified = good && bench_all_true(contest->world, right)};
    free(p);
    return good;
}
