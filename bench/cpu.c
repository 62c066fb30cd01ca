/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU, in both modes, on one node and on several. Tensors are ordinary memory, and the symmetric heap holds the
 * rows. A turn is timed by CLOCK_MONOTONIC, which hosts of one machine share, after a barrier. */
#include "bench/low_latency/place.h"
#include "bench/normal/mode.h"
#include "exec/cpu/core/encode.h"
#include "mem/available.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Returns the number of threads that the library would choose (ep.h): EXPAR_THREADS, else 1 when ranks outnumber cores,
   else a fair share. */
int bench_cpu_threads(const struct bench_world *world)
{
    const char *given = getenv("EXPAR_THREADS");
    if (given && atoi(given) > 0) return atoi(given);
    cpu_set_t cores;
    int count = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
    return world->size > count ? 1 : count / world->size;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* The ranks of a host share its memory. Nodes that were asked for are simulated on this host; others are hosts. */
static void cpu_memory(const struct bench_world *world, const struct bench_options *options, struct bench_memory *out)
{
    mem_available available;
    mem_available_find("", &available);
    const uint64_t sharers = (uint64_t)(options->nodes > 1 ? world->size : world->each);
    out->bytes = available.bytes == UINT64_MAX ? UINT64_MAX : available.bytes / sharers;
    snprintf(out->limit, sizeof out->limit, "%s", available.limit);
}

/* Allocates memory and touches it, so that no page fault is measured. */
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

static bool cpu_encode(const struct bench_world *world, const struct bench_coding *coding)
{
    const int64_t hidden = coding->hidden;
    (void)world;
    for (int64_t i = 0; i < coding->rows; i++)
        cpu_encode_row(CODEC_FP8, CODEC_BF16, hidden, (const uint16_t *)coding->x + i * hidden,
                       (uint8_t *)coding->payload + i * hidden, coding->scales + i * (hidden / CODEC_GROUP));
    return true;
}

/* ---- moments ----------------------------------------------------------------------------------------------------- */

static void *cpu_marks_open(const struct bench_world *world, int count)
{
    (void)world;
    return calloc((size_t)count, sizeof(struct timespec));
}

static bool cpu_mark(const struct bench_world *world, void *marks, int index)
{
    (void)world;
    return clock_gettime(CLOCK_MONOTONIC, (struct timespec *)marks + index) == 0;
}

static bool cpu_marks_read(const struct bench_world *world, void *marks, int count, double *us)
{
    const struct timespec *moments = marks;
    (void)world;
    for (int i = 0; i < count; i++)
        us[i] = (double)(moments[i].tv_sec - moments->tv_sec) * 1e6 +
                (double)(moments[i].tv_nsec - moments->tv_nsec) * 1e-3;
    return true;
}

static void cpu_marks_close(const struct bench_world *world, void *marks, int count)
{
    (void)world, (void)count;
    free(marks);
}

#define CPU                                                                                                            \
    .name = "cpu", .workers = "threads", .memory = cpu_memory, .alloc = cpu_alloc, .free = cpu_free, .view = cpu_view, \
    .unview = cpu_unview, .draft = cpu_draft, .commit = cpu_commit, .copy = cpu_copy_tensor, .encode = cpu_encode,     \
    .turn = bench_cpu_turn, .marks_open = cpu_marks_open, .mark = cpu_mark, .marks_read = cpu_marks_read,              \
    .marks_close = cpu_marks_close, .ll = &ll_cpu

const struct bench_device bench_cpu = {CPU, .copies = {"memcpy_us", "nontemporal_us"},
                                       .sites = {&normal_cpu_site, &ll_cpu_site}};
const struct bench_device bench_cpu_nodes = {CPU, .copies = {"whole_puts_us", "piece_puts_us"},
                                             .sites = {&normal_nodes_site, &ll_nodes_site}};
