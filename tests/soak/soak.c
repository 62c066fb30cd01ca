/* SPDX-License-Identifier: Apache-2.0 */
/* Soak: one group for very many calls with random shapes and options, every result checked. Memory must stay flat:
 * after a warm-up neither this process's resident pages nor its allocated bytes may grow.
 *
 *     soak_calls [threads|processes [ranks [rounds [seed]]]]      threads, 4, 100000
 *
 * Prints one line; ends with 1 when a result was wrong or memory grew. With processes rank 0's memory is watched. */
#include "ep/harness/options_script.h"
#include "oracle/routings.h"
#include "soak/watch.h"
#include <stdlib.h>
#include <string.h>

#define DEFAULT_RANKS  4
#define DEFAULT_ROUNDS 100000

int main(int argc, char **argv)
{
    ranks_kind kind = argc > 1 && strcmp(argv[1], "processes") == 0 ? RANKS_PROCESSES : RANKS_THREADS;
    int32_t ranks = argc > 2 ? (int32_t)random_count("ranks", argv[2]) : DEFAULT_RANKS;
    int64_t rounds = argc > 3 ? random_count("rounds", argv[3]) : DEFAULT_ROUNDS;
    uint64_t seed = argc > 4 ? strtoull(argv[4], NULL, 0) : random_test_seed("soak");
    watch w;
    watch_begin(&w, rounds);
    routing_recorded();
    options_script s = options_script_make(seed, kind, ranks, rounds);
    s.watch = watch_look;
    s.watch_context = &w;
    return options_script_run(&s) ? EXIT_SUCCESS : EXIT_FAILURE;
}
