/* SPDX-License-Identifier: Apache-2.0 */
/* Soak: one group for very many calls with random shapes and options, every result checked. Memory must stay flat:
 * after a warm-up neither this process's resident pages nor its allocated bytes may grow.
 *
 *     soak_calls [threads|processes [ranks [rounds [seed]]]]      threads, 4, 100000
 *
 * Prints one line; ends with 1 when a result was wrong or memory grew. With processes rank 0's memory is watched. */
#include "ep/check.h"
#include "ep/options_script.h"
#include "oracle/routings.h"
#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_RANKS  4
#define DEFAULT_ROUNDS 100000
/* Of the rounds, in percent. */
#define WARM_UP 10
/* Few rounds end before memory has settled: they are only checked for results. */
#define ROUNDS_TO_JUDGE 10000
/* What is resident or in use differs from call to call by the other ranks' calls; a leak of 100 bytes
   a call is more. */
#define RESIDENT_SLACK_BYTES  ((int64_t)6 << 20)
#define ALLOCATED_SLACK_BYTES ((int64_t)2 << 20)
#define SAMPLE_MOVES          500

typedef struct watch {
    int64_t rounds, next;
    int64_t warm_resident, warm_allocated; /* the most during warm-up */
    int64_t most_resident, most_allocated; /* the most after it */
    struct timespec begin;
} watch;

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

/* Between calls of rank 0: the other ranks may hold what a call or two need. */
static void look(void *context, int64_t moves)
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

int main(int argc, char **argv)
{
    ranks_kind kind = argc > 1 && strcmp(argv[1], "processes") == 0 ? RANKS_PROCESSES : RANKS_THREADS;
    int32_t ranks = argc > 2 ? (int32_t)strtol(argv[2], NULL, 10) : DEFAULT_RANKS;
    int64_t rounds = argc > 3 ? strtoll(argv[3], NULL, 10) : DEFAULT_ROUNDS;
    uint64_t seed = argc > 4 ? strtoull(argv[4], NULL, 0) : random_test_seed("soak");
    watch w = {.rounds = rounds};
    mallopt(M_ARENA_MAX, 1); /* all threads allocate where mallinfo2 counts */
    clock_gettime(CLOCK_MONOTONIC, &w.begin);
    routing_recorded();
    options_script s = options_script_make(seed, kind, ranks, rounds);
    s.watch = look;
    s.watch_context = &w;
    bool passed = ranks_run(&s.ranks, options_script_play, &s);
    if (!passed) options_script_print(&s);
    return passed ? EXIT_SUCCESS : EXIT_FAILURE;
}
