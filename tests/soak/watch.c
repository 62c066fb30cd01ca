/* SPDX-License-Identifier: Apache-2.0 */
/* Resident and allocated bytes, sampled between calls. */
#include "soak/watch.h"
#include "ep/harness/check.h"
#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <unistd.h>

/* In percent of the rounds. */
#define WARM_UP 10
/* Few rounds end before memory has settled: they are only checked for results. */
#define ROUNDS_TO_JUDGE 10000
/* Resident bytes and those in use differ from call to call by the other ranks' calls; a leak of 100 bytes a call is
   more. */
#define RESIDENT_SLACK_BYTES  ((int64_t)6 << 20)
#define ALLOCATED_SLACK_BYTES ((int64_t)2 << 20)
#define SAMPLE_MOVES          500

static int64_t resident_bytes(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file) return 0;
    if (fscanf(file, "%*d %ld", &pages) != 1) pages = 0;
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

static void raise_to(int64_t *most, int64_t value)
{
    if (value > *most) *most = value;
}

static double seconds_since(const struct timespec *begin)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - begin->tv_sec) + (double)(now.tv_nsec - begin->tv_nsec) * 1e-9;
}

static void report(const watch *w, int64_t moves)
{
    printf("soak: %" PRId64
           " calls in %.0f s; resident %.1f MiB after warm-up, %.1f MiB at most later; allocated %.2f and "
           "%.2f MiB\n",
           moves, seconds_since(&w->begin), (double)w->warm_resident / 1048576, (double)w->most_resident / 1048576,
           (double)w->warm_allocated / 1048576, (double)w->most_allocated / 1048576);
    fflush(stdout);
}

void watch_look(void *context, int64_t moves)
{
    watch *w = context;
    if (moves < w->next && moves < w->rounds) return;
    bool warm = moves * 100 >= w->rounds * WARM_UP;
    struct mallinfo2 heap = mallinfo2();
    raise_to(warm ? &w->most_resident : &w->warm_resident, resident_bytes());
    raise_to(warm ? &w->most_allocated : &w->warm_allocated, (int64_t)(heap.uordblks + heap.hblkhd));
    w->next = moves + SAMPLE_MOVES;
    if (moves < w->rounds) return;
    report(w, moves);
    if (w->rounds < ROUNDS_TO_JUDGE) return;
    CHECK(w->most_resident <= w->warm_resident + RESIDENT_SLACK_BYTES, "resident memory grew");
    CHECK(w->most_allocated <= w->warm_allocated + ALLOCATED_SLACK_BYTES, "allocated memory grew");
}

void watch_begin(watch *w, int64_t rounds)
{
    *w = (watch){.rounds = rounds};
    mallopt(M_ARENA_MAX, 1);
    clock_gettime(CLOCK_MONOTONIC, &w->begin);
}
