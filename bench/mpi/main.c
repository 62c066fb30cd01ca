/* SPDX-License-Identifier: Apache-2.0 */
/* expar-bench-mpi: the benchmark under mpirun, with the baseline over MPI. `expar bench --mpi` starts it. */
#include "arguments.h"
#include "bench/bench.h"
#include "bench/mpi/baseline.h"
#include "colour.h"
#include "text.h"
#include <locale.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

/* Joins the group. Rank 0 makes its unique id and sends it by MPI. NULL after saying why not. */
static expar_group *join(const struct bench_options *wanted, int rank, int size)
{
    expar_unique_id id = {{0}};
    expar_group *group = NULL;
    int made = rank != 0 || expar_unique_id_create(&id) == EXPAR_OK;
    if (!made) fprintf(stderr, "expar bench: %s\n", expar_last_error());
    MPI_Bcast(&made, 1, MPI_INT, 0, MPI_COMM_WORLD);
    if (!made) return NULL;
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    expar_group_options options = bench_group_options(wanted);
    options.id = &id;
    options.rank = rank;
    options.size = size;
    if (expar_group_create(&options, &group) != EXPAR_OK)
        fprintf(stderr, "expar bench: rank %d: %s\n", rank, expar_last_error());
    return group;
}

static int run(const struct bench_options *options)
{
    struct bench_world world = {.baseline = options->ll.wanted ? &mpi_ll_baseline : &mpi_baseline,
                                .device = &bench_cpu,
                                .place = {.type = EXPAR_CPU}};
    MPI_Comm_rank(MPI_COMM_WORLD, &world.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world.size);
    if (world.size != options->num_ranks) {
        if (world.rank == 0)
            fprintf(stderr, "expar bench: -n %d, but mpirun started %d ranks\n", options->num_ranks, world.size);
        return 1;
    }
    world.group = join(options, world.rank, world.size);
    if (!world.group || !bench_world_nodes(&world)) return 1;
    int code = bench_run(&world, options);
    if (expar_group_destroy(world.group) != EXPAR_OK) code = 1;
    return code;
}

/* Takes --columns=N, the first argument from `expar bench`, and returns the number of arguments that are left. mpirun
   may give its ranks a terminal where the user has a pipe. */
static int take_columns(int argc, char **argv)
{
    static const char option[] = "--columns=";
    const size_t length = sizeof option - 1;
    int64_t columns;
    if (argc < 2 || strncmp(argv[1], option, length) != 0 || !text_to_int(argv[1] + length, 0, 10000, &columns))
        return argc;
    terminal_set_columns((int)columns);
    for (int i = 1; i < argc; i++)
        argv[i] = argv[i + 1];
    return argc - 1;
}

int main(int argc, char **argv)
{
    struct bench_options options;
    setlocale(LC_CTYPE, ""); /* as expar does */
    argc = take_columns(argc, argv);
    struct argp argp = {.options = bench_option_table, .parser = bench_options_parse};
    bench_options_init(&options);
    if (arguments_parse(&argp, 0, argc, argv, &options)) return 1;
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    int code = run(&options);
    if (code != 0) MPI_Abort(MPI_COMM_WORLD, code); /* others may still wait */
    MPI_Finalize();
    return code;
}
