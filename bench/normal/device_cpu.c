/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU, on one node and on several: tensors are ordinary memory, the symmetric heap holds the rows, a turn is timed
 * by CLOCK_MONOTONIC, which hosts of one machine share, behind a barrier. */
#include "bench/low_latency/place.h"
#include "bench/normal/copy_limit.h"
#include "bench/normal/nodes.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The copies of both operations. */
struct cpu_copies {
    struct copy_limit *push, *pull;
};

/* As the library chooses (ep.h): EXPAR_THREADS, else 1 when ranks outnumber cores, else a fair share. */
static int default_threads(const struct bench_world *world)
{
    const char *given = getenv("EXPAR_THREADS");
    if (given && atoi(given) > 0) return atoi(given);
    cpu_set_t cores;
    int count = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
    return world->size > count ? 1 : count / world->size;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Touched, so that no page fault is measured. */
static void *cpu_alloc(const struct bench_world *world, size_t bytes)
{
    (void)world;
    size_t rounded = (bytes + 4095) / 4096 * 4096 + 4096;
    void *data = aligned_alloc(4096, rounded);
    if (data) memset(data, 0, rounded);
    return data;
}

static void cpu_free(const struct bench_world *world, void *data)
{
    (void)world;
    free(data);
}

static const void *cpu_view(const struct bench_world *world, const void *data, size_t bytes)
{
    (void)world, (void)bytes;
    return data;
}

static void cpu_unview(const struct bench_world *world, const void *view)
{
    (void)world, (void)view;
}

static void *cpu_draft(const struct bench_world *world, void *data, size_t bytes)
{
    (void)world, (void)bytes;
    return data;
}

static bool cpu_commit(const struct bench_world *world, void *data, void *draft, size_t bytes)
{
    (void)world, (void)data, (void)draft, (void)bytes;
    return true;
}

static bool cpu_copy_tensor(const struct bench_world *world, void *to, const void *from, size_t bytes)
{
    (void)world;
    if (bytes) memcpy(to, from, bytes);
    return true;
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

static bool cpu_open(struct bench_session *session)
{
    const struct bench_world *world = session->world;
    size_t bytes = (size_t)(session->problem->most_received + 1) * session->problem->row_bytes;
    void *rows;
    if (!bench_good(world, expar_malloc(world->group, bytes, &rows))) return false;
    memset(rows, 0, bytes);
    session->rows = session->pushed = rows;
    struct cpu_copies *copies = calloc(1, sizeof *copies);
    if (!copies) return bench_complain(world, "out of memory");
    session->copies = copies;
    copies->push = copy_limit_push(session);
    copies->pull = copy_limit_pull(session);
    return (copies->push && copies->pull) || bench_complain(world, "cannot prepare the copies");
}

static void cpu_close(struct bench_session *session, bool sound)
{
    struct cpu_copies *copies = session->copies;
    if (copies) {
        copy_limit_free(copies->pull);
        copy_limit_free(copies->push);
        free(copies);
    }
    if (sound) bench_good(session->world, expar_free(session->world->group, session->rows));
}

static int cpu_add_copies(struct bench_session *session, bool combine, struct contender *contenders)
{
    struct cpu_copies *copies = session->copies;
    struct copy_limit *limit = combine ? copies->pull : copies->push;
    contenders[0] = (struct contender){.run = copy_limit_memcpy, .context = limit};
    contenders[1] = (struct contender){.run = copy_limit_nontemporal, .context = limit};
    return 2;
}

const struct bench_device bench_cpu = {
    .name = "cpu",
    .workers = "threads",
    .copies = {"memcpy_us", "nontemporal_us"},
    .default_workers = default_threads,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .view = cpu_view,
    .unview = cpu_unview,
    .draft = cpu_draft,
    .commit = cpu_commit,
    .copy = cpu_copy_tensor,
    .open = cpu_open,
    .close = cpu_close,
    .add_copies = cpu_add_copies,
    .turn = bench_cpu_turn,
    .ll = &ll_cpu,
};

const struct bench_device bench_cpu_nodes = {
    .name = "cpu",
    .workers = "threads",
    .copies = {"whole_puts_us", "piece_puts_us"},
    .default_workers = default_threads,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .view = cpu_view,
    .unview = cpu_unview,
    .draft = cpu_draft,
    .commit = cpu_commit,
    .copy = cpu_copy_tensor,
    .open = nodes_open,
    .close = nodes_close,
    .add_copies = nodes_add_limits,
    .turn = bench_cpu_turn,
    .ll = &ll_cpu,
    .sent = nodes_sent,
    .ll_sent = nodes_ll_sent,
};
