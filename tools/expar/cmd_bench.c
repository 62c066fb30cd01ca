/* SPDX-License-Identifier: Apache-2.0 */
/* expar bench: runs the benchmark on its ranks. It starts them itself unless a launcher has. */
#include "bench/bench.h"
#include "bench/frame/output.h"
#include "bench_topics.h"
#include "colour.h"
#include "command.h"
#include "run/launch.h"
#include "stop.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

static const struct command_example examples[] = {
    {"expar bench dispatch combine -n 8 --tokens 256 --hidden 7168", "both operations on eight ranks, as a table"},
    {"expar bench dispatch -n 4 --tokens 1..4096 --csv > sweep.csv", "a sweep by powers of two"},
    {"expar bench all --path all --cached=both --json", "every way that rows can take, as JSON"},
    {"expar bench all -n 8 --tokens 1..4096 --report out.html", "a sweep as a page of pictures"},
    {"expar bench --report out.html before.json after.json", "two runs beside each other, without measuring"},
    {"expar bench all -n 8 --mpi", "beside pack, MPI_Alltoallv and unpack in the same run"},
    {"expar bench all --routing grouped --experts 256", "group-limited routing"},
    {"expar bench all -n 4 --nodes 2 --routing grouped", "across two nodes that this machine simulates"},
    {"expar bench dispatch combine layout --device cuda --sms 8,12,24 --tokens 1,16,128,512,4096 --dtype bf16,fp8",
     "on all GPUs of this host, one rank each"},
    {"expar bench all --device cuda --tokens 128,4096 --pattern all --iters 60", "what an engine gets, beside it"},
    {"expar bench ll -n 2 --tokens 1,8,32,128 --hook=both", "low-latency mode, also with send and receive apart"},
    {"expar bench ll -n 2 --tokens 1,8,32 --mpi", "beside an MPI program that delivers the same layout"},
    {"expar bench ll dispatch --format bf16,fp8,int8", "low-latency dispatch in three payload formats"},
    {"expar bench ll --device cuda --format bf16,fp8,fp8_round,fp8_ue8m0,int8,logfmt --experts 256",
     "low-latency mode on all GPUs, for 1 to 256 tokens"},
    {"expar bench ll --tokens 1,128 --pattern isolated,decode", "pairs back to back, with and without hooks"},
    {"expar bench rma --sizes 8,4K..64K --json", "put, get, signals, atomics, barrier and collectives of two ranks"},
    {"expar bench rma -n 8 --ops barrier,collectives --transports p2p", "what eight ranks do together"},
    {"expar bench setup -n 8", "until eight ranks have a group and a buffer"},
    {NULL, NULL},
};

/* Joins the group that the launcher prepared and runs on it. */
static int run_inside(const struct bench_options *options)
{
    const expar_group_options wanted = bench_group_options(options);
    expar_group *group;
    if (expar_group_create(&wanted, &group) != EXPAR_OK) {
        fprintf(stderr, "expar bench: %s\n", expar_last_error());
        return 1;
    }
    struct bench_world world = {.group = group,
                                .rank = expar_group_rank(group),
                                .size = expar_group_size(group),
                                .device = &bench_cpu,
                                .place = {.type = EXPAR_CPU}};
    int code = EX_USAGE;
    if (world.size != options->num_ranks)
        fprintf(stderr, "expar bench: -n %d, but this job has %d ranks\n", options->num_ranks, world.size);
    else if (!bench_world_nodes(&world))
        code = 1;
    else
        code = options->setup ? setup_run(&world, options) : bench_run(&world, options);
    if (expar_group_destroy(group) != EXPAR_OK) code = 1;
    return code;
}

/* Finds the benchmark with the MPI baseline, which lies beside this program. False: it was not built. */
static bool find_mpi_program(char path[PATH_MAX])
{
    static const char name[] = "expar-bench-mpi";
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - sizeof name);
    if (length < 0) return false;
    path[length] = '\0';
    char *slash = strrchr(path, '/');
    memcpy(slash + 1, name, sizeof name);
    return access(path, X_OK) == 0;
}

/* Says whether to bind ranks to cores. Two ranks that share a core while another core is idle would measure the
   scheduler. */
static bool binds(const struct bench_options *options)
{
    return (options->rma.wanted || options->ll.wanted) && options->num_ranks <= sysconf(_SC_NPROCESSORS_ONLN);
}

/* Open MPI rejects root, and more ranks than cores, unless these variables are set. With yielding, ranks can share
   cores. Ranks are bound where expar's own ranks are. Simulated nodes are one host to Open MPI, so all of its ranks
   then use TCP over loopback. Other MPIs ignore these variables. Variables that the user has set stay. */
static void set_mpi_defaults(bool bind, bool across)
{
    if (across) {
        setenv("OMPI_MCA_pml", "ob1", 0);
        setenv("OMPI_MCA_btl", "self,tcp", 0);
        setenv("OMPI_MCA_btl_tcp_if_include", "lo", 0);
    }
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 0);
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    setenv("OMPI_MCA_hwloc_base_binding_policy", bind ? "core" : "none", 0);
}

/* Replaces this process by mpirun with the same options. It returns only if that fails. */
static int start_mpi(const struct bench_options *options, int argc, char **argv)
{
    char program[PATH_MAX], ranks[16], columns[32];
    if (!find_mpi_program(program)) {
        fprintf(stderr, "expar bench: --mpi needs expar-bench-mpi beside expar; it is built where MPI's headers and "
                        "library are found (Debian: apt-get install libopenmpi-dev openmpi-bin, then build again)\n");
        return 1;
    }
    char **args = calloc((size_t)argc + 5, sizeof *args);
    if (!args) {
        fprintf(stderr, "expar bench: out of memory\n");
        return 1;
    }
    snprintf(ranks, sizeof ranks, "%d", options->num_ranks);
    snprintf(columns, sizeof columns, "--columns=%d", terminal_columns(STDOUT_FILENO));
    if (!colour_wanted(STDOUT_FILENO)) setenv("NO_COLOR", "1", 1); /* ranks may have a terminal where this is a pipe */
    args[0] = "mpirun";
    args[1] = "-n";
    args[2] = ranks;
    args[3] = program;
    args[4] = columns;
    memcpy(args + 5, argv + 1, (size_t)(argc - 1) * sizeof *args);
    set_mpi_defaults(binds(options), options->nodes > 1);
    fflush(NULL);
    execvp("mpirun", args);
    fprintf(stderr, "expar bench: --mpi: cannot start mpirun: %s%s\n", strerror(errno),
            errno == ENOENT ? " (Debian: apt-get install openmpi-bin)" : "");
    free(args);
    return 1;
}

/* Rejects a run inside of a job, where each process would start all ranks. */
static int run_mpi(const struct bench_options *options, int argc, char **argv)
{
    if (!launch_inside()) return start_mpi(options, argc, argv);
    fprintf(stderr, "expar bench: --mpi starts its ranks itself, by mpirun; start it without a launcher\n");
    return EX_USAGE;
}

/* Runs the ranks as threads of this process. Inside of a job each process would start all of them, so that is
   rejected. */
static int run_cuda(const struct bench_options *options)
{
    if (!launch_inside()) return bench_gpu_main(options);
    fprintf(stderr, "expar bench: --device cuda starts its ranks itself, as threads; start it without a launcher\n");
    return EX_USAGE;
}

static int run(int argc, char **argv)
{
    struct bench_options options;
    bench_options_init(&options);
    options.num_ranks = launch_job_size(); /* unless -n says otherwise */
    launch_prepare_gpus();
    command_parse(&command_bench, bench_options_parse, false, argc, argv, &options);
    if (options.num_files) return bench_output_files(&options);
    if (options.cuda || (launch_inside() && !options.mpi)) stop_listen();
    if (options.cuda) return run_cuda(&options);
    if (launch_inside() && options.rma.wanted) return rma_run(&options);
    if (options.mpi) return run_mpi(&options, argc, argv);
    if (launch_inside()) return run_inside(&options);
    return launch_self(options.num_ranks, binds(&options), argc, argv);
}

const struct command command_bench = {
    .name = "bench",
    .summary = "measure dispatch, combine, RMA and set-up, and verify each byte",
    .arguments = "[dispatch] [combine] [layout] [all] [ll] [rma] [setup] [FILE.json...]",
    .description =
        "Measures the operations (default: all, which is dispatch and combine) on ranks of this machine, which it "
        "starts "
        "itself unless it runs inside a job. layout is what a fresh dispatch takes beyond a cached one, iteration by "
        "iteration: layout and notify. In the same run, in turns, it measures the copy limit: bare copies of the same "
        "rows to the same places, by as many threads, the better one of memcpy and non-temporal stores; on GPUs by a "
        "kernel with as many SMs that pushes them (combine: or pulls them, whichever is faster).\n\n"
        "The time of an iteration is the last end minus the first start over all ranks; on GPUs by events after a "
        "gate "
        "that opens for all ranks at once. "
        "Outputs are compared in full with what the routing demands; a difference makes the exit code 1.\n\n"
        "There are two rates, in 10^9 bytes a second. rows GB/s (gbps of the JSON) counts the rows that go into a "
        "rank's output, its own included. bus GB/s (bus_gbps) counts the bytes over the busiest link between two "
        "ranks; "
        "links lists bytes and messages of each, by the routing: memory inside a node, nvlink or pcie between GPUs, "
        "network between nodes. mean and worst are ranks' own times, from start to end: the mean, and the slowest "
        "rank's. spread is the width of the middle 80 % of the iterations, as a share of the median.\n\n"
        "Before the first call it checks that the memory for the largest case is there. It warns on standard error if "
        "the machine was busy before the start, or if times spread by more than half. A terminal shows the columns "
        "that "
        "fit, and names the others; a pipe gets all of them. The sentences below a table judge it.\n\n"
        "Across nodes (--nodes, or several hosts) the network limit is in the place of the copy limit: bare puts of "
        "the "
        "same rows to the same ranks, by all at once over the same provider, whole or in pieces of 64 KiB. For ll each "
        "row is a put with a signal, until all rows have come. What a call of "
        "a rank sends to other nodes is counted where the library calls its provider: rows, messages, flags by "
        "themselves, bytes. With --mpi Open MPI's ranks of simulated nodes speak TCP over loopback. "
        "scripts/bench_nodes.sh has network namespaces as hosts.\n\n"
        "ll measures dispatch and combine in low-latency mode instead: combines with exact and with reduced "
        "sums, with --hook also send and receive by themselves. The copy limit is then a program of bare copies that "
        "moves the same bytes by one thread a rank, without a flag: each message once to each rank that its token goes "
        "to, and from there to its experts' rows; for a combine the rows back, and the sums. In turns with them go "
        "round trips of a flag of 8 bytes between ranks 0 and 1, by the library's signals and (raw) by bare stores and "
        "loads. messages is what a call of a rank sends, mean over ranks, as the library counts it: one for each token "
        "and rank that it goes to, this rank included; for a combine the rows sent back. With --mpi MPI carries rows "
        "that are not coded to the same layout: counts, a packed record for each token and rank, fan-out; rows or sums "
        "back, and weighted sums; copy faster is how many times as fast as that the copy limit is. Where each rank can "
        "have a core, ranks are bound.\n\n"
        "rma measures the operations on symmetric memory instead, over each transport: put and get (latency with the "
        "wait for completion, bandwidth of many on their way), round trips of a put with signal, atomics, barrier, "
        "collectives. In turns with them it measures the same by other means: memcpy, atomic instructions, bare flags, "
        "and for a barrier a token that goes once round the ranks by futex, in memory that is mapped; bare libfabric "
        "on the same provider, complete when delivered, where the network is used; for collectives the copies alone, "
        "without any agreement. With --device cuda it measures kernels: by mapped memory, requests (gda), commands "
        "(proxy).\n\n"
        "setup measures how long it takes until all ranks have a group (across nodes with endpoints), a buffer without "
        "limits, and both; from the first rank that begins to the last one that has it. What was made is used once "
        "and ended outside of the time.",
    .more =
        "--pattern adds what an engine gets, beside the isolated calls above. steady makes calls of one kind back "
        "to back: nothing brings the ranks together between two calls, calls are asynchronous where the library "
        "allows it, each output is released at once, and combines read rows in memory of the caller's own. layer is "
        "a dispatch with a handle, a copy of its rows to the caller's own memory, and the combine of these. decode, "
        "of ll, is a dispatch and its combine, in whole calls and by hooks, or as --hook says. After a loop to "
        "warm up, five loops of --iters calls are timed as one iteration each, and median, minimum and p99 are a "
        "call's share of them. host us is the host's time in a call, the release of its output included: the "
        "median, of the slowest rank. In a further loop with other contents the last outputs are compared. period "
        "makes a "
        "dispatch and the combine of its rows back to back, as CollectiveX does: 4 trials of 128 pairs (--pairs), of "
        "which the first 16 are dropped (of fewer pairs an eighth). pair_period_us is the time from one pair to the "
        "next: the median of a rank's pairs, and of the ranks. gap is between two pairs; spread and drift (the last "
        "quarter of a trial against the first) are those of the periods. A second chain, with a moment between the two "
        "calls, gives each call's floor: the median of the fastest rank. Rows that the library codes are coded in the "
        "dispatch, so their cost is in it. With --dtype fp8 the caller codes its BF16 rows before each dispatch, which "
        "counts as part of it: on the CPU by one thread, on a GPU by a kernel on the call's stream. The combine then "
        "adds BF16 rows. The JSON "
        "has the buffer's statistics from before and after the measured loops (buffer_before, buffer_after): calls "
        "by path, growths and other_blocks of all ranks together, bytes of the rank that has most. Loops take the "
        "path that the library chooses, unless --path is queue; path says whether any call took the queue.",
    .on_gpus =
        "On GPUs all warps on all ranks read clocks on their way, in calls and in the copy limit's kernel alike, which "
        "tells where the time goes (breakdown, copy_limit_breakdown of the JSON; rows of a table). kernel is the "
        "dispatch's or combine's, without its launch, from the first warp's start to the end on the rank that takes "
        "longest. It is one sum: open (until the last warp knows the peers' places), rows (until the median warp of "
        "the median rank has its last row on its way, or added), warps (how much later that rank's last warp has), "
        "ranks (how much later the last rank's has), close (until all ranks are through). Before it a fresh dispatch "
        "has notify: layout, headers, wait, counts, and the gap after it, of the median rank. kernel_us compares with "
        "copy_limit_kernel_us, which opens nothing and waits for nobody; median_us, by events, with copy_limit_us. "
        "late is the rank whose last warp was the last in most calls.\n\n"
        "ll on GPUs: the copy limit is a kernel of as many SMs that carries the same messages and rows and adds the "
        "same sums, without a flag; raw is a round trip of a flag between the GPUs of ranks 0 and 1 within one kernel "
        "each; launch is an empty kernel. These, median, minimum and p99 are by events, launch included. kernel is "
        "what the call's kernel takes by clocks that all of its warps read, from the first warp's start to the end on "
        "the rank that takes longest. It is one sum: send (until the median warp of the median rank has stored its "
        "part of its last row), warps (how much later that rank's last warp has), ranks (how much later the last rank "
        "has), wire (from there until the last flag has been seen), place (until rows are placed or added), close. "
        "start is when the last warp began; late is the rank that was the last to send in most calls. Below each call "
        "stands the same of the copy limit's kernel: send until its messages are stored (a combine's rows, or reduced "
        "sums), place until rows are placed or added, and nothing on the wire, as it waits for nobody. Each is the "
        "median of the measured calls by itself. Ranks that share a GPU share what it can do: their times mean "
        "little.",
    .operands = "dispatch combine layout all ll rma setup FILE",
    .options = bench_option_table,
    .choices = bench_choices,
    .examples = examples,
    .topics = bench_topics,
    .run = run,
};
