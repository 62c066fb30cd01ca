/* SPDX-License-Identifier: Apache-2.0 */
/* Help of `expar bench` by operation; a page fits a screen of 24 lines. */
#include "bench_topics.h"

static const struct command_hint overview_hints[] = {
    {"dispatch combine", "carry tokens to experts, sum what returns (default)"},
    {"ll", "the same in low-latency mode, for decode"},
    {"layout", "what a fresh dispatch takes beyond one with a handle"},
    {"rma", "put, get, signals, atomics, barrier, collectives"},
    {"setup", "time until ranks have a group and a buffer"},
    {"ranks", "ranks [8; rma 2; on GPUs one a GPU]"},
    {"tokens", "tokens of each rank: T, A,B,C or A..B [256]"},
    {"hidden", "elements of a row [7168]"},
    {"topk", "experts of a token [8]"},
    {"experts", "experts of all ranks [64]"},
    {"device", "cpu or cuda [cpu]"},
    {"mpi", "also measure the same by MPI_Alltoallv, in the same run"},
    {"json", "one JSON object; also --csv, and --output FILE"},
    {"report", "a page of pictures; with files of --json a comparison"},
    {NULL, NULL},
};
static const struct command_example overview_examples[] = {
    {"expar bench dispatch combine -n 8 --tokens 256", NULL},
    {"expar bench all -n 4 --mpi", NULL},
    {NULL, NULL},
};

static const struct command_hint normal_hints[] = {
    {"ranks", "ranks [8; on GPUs one a GPU]"},
    {"nodes", "nodes that the ranks simulate [1]"},
    {"tokens", "tokens of each rank: T, A,B,C or A..B [256]"},
    {"hidden", "elements of a row [7168]"},
    {"topk", "experts of a token [8]"},
    {"experts", "experts of all ranks [64]"},
    {"dtype", "bf16, f16, f32, fp8, or a list [bf16]"},
    {"routing", "uniform, zipf, incast, skew:4, grouped, onehot, FILE.npy"},
    {"path", "auto, direct, queue, all [auto]"},
    {"cached", "dispatch with a handle: yes, no, both [no; on GPUs both]"},
    {"pattern", "isolated, steady, layer, period, or all [isolated]"},
    {"threads", "worker threads of a rank; on GPUs --sms"},
    {"iters", "measured iterations [50]"},
    {"mpi", "also measure pack, MPI_Alltoallv and unpack"},
    {"json", "one JSON object; also --csv, --output FILE, --report FILE"},
    {NULL, NULL},
};
static const struct command_example normal_examples[] = {
    {"expar bench dispatch combine -n 8 --tokens 1..4096", NULL},
    {"expar bench all -n 4 --mpi", NULL},
    {NULL, NULL},
};

static const struct command_hint ll_hints[] = {
    {"ranks", "ranks [8; on GPUs one a GPU]"},
    {"tokens", "tokens of each rank [256; on GPUs 1..256]"},
    {"hidden", "elements of a row [7168]"},
    {"topk", "experts of a token [8]"},
    {"experts", "experts of all ranks [64]"},
    {"routing", "uniform, zipf, incast, skew:4, grouped, onehot, FILE.npy"},
    {"format", "bf16, f16, f32; fp8, fp8_round, fp8_ue8m0, int8, logfmt"},
    {"sum", "where rows are added: exact, reduced, both [both]"},
    {"hook", "send and receive apart: yes, no, both [no]"},
    {"pattern", "isolated, steady, decode, period, or all [isolated]"},
    {"threads", "worker threads of a rank [1]; on GPUs --sms [128]"},
    {"iters", "measured iterations [50]"},
    {"mpi", "also measure an MPI program with the same layout"},
    {"json", "one JSON object; also --csv, --output FILE, --report FILE"},
    {NULL, NULL},
};
static const struct command_example ll_examples[] = {
    {"expar bench ll -n 2 --tokens 1,8,32,128 --hook=both", NULL},
    {"expar bench ll dispatch --format bf16,fp8,int8", NULL},
    {NULL, NULL},
};

static const struct command_hint rma_hints[] = {
    {"ranks", "ranks [2]"},
    {"nodes", "nodes that the ranks simulate [1]"},
    {"sizes", "bytes: A,B,C or A..B, with K or M [8,64,512,4K,64K,1M]"},
    {"ops", "put, get, put_signal, atomics, barrier, collectives [all]"},
    {"transports", "p2p, fabric, gda (a device in software), or auto [p2p, fabric]"},
    {"device", "cuda: kernels, by the transports mapped, gda, proxy"},
    {"iters", "measured iterations [50]"},
    {"json", "one JSON object; also --csv, --output FILE, --report FILE"},
    {NULL, NULL},
};
static const struct command_example rma_examples[] = {
    {"expar bench rma --sizes 8,4K..64K", NULL},
    {"expar bench rma -n 8 --ops barrier,collectives --transports p2p", NULL},
    {"expar bench rma --device cuda -n 2 --transports mapped,proxy", NULL},
    {NULL, NULL},
};

static const struct command_hint setup_hints[] = {
    {"ranks", "ranks [8]"},
    {"nodes", "nodes that the ranks simulate [1]"},
    {"iters", "measured iterations [50]"},
    {"json", "one JSON object; also --csv, --output FILE, --report FILE"},
    {NULL, NULL},
};
static const struct command_example setup_examples[] = {
    {"expar bench setup -n 8", NULL},
    {NULL, NULL},
};

const struct command_topic bench_topics[] = {
    {NULL, "[OPERATION...] [OPTION...]",
     "Measures operations on ranks of this machine beside the limit of the machine, and verifies every byte. Help by "
     "operation: expar bench ll --help",
     overview_hints, overview_examples},
    {"dispatch|combine|all|layout", "dispatch|combine|all|layout [OPTION...]",
     "Dispatch carries tokens to the ranks of their experts; combine sums what they "
     "return. The copy limit is bare copies of the same rows, in the same run.",
     normal_hints, normal_examples},
    {"ll", "ll [dispatch] [combine] [OPTION...]",
     "Dispatch and combine in low-latency mode, beside bare copies of the same messages, and round trips of a flag.",
     ll_hints, ll_examples},
    {"rma", "rma [OPTION...]",
     "Operations on symmetric memory over each transport, beside the same by memcpy, bare flags, or bare libfabric.",
     rma_hints, rma_examples},
    {"setup", "setup [OPTION...]",
     "The time from the first rank that begins until the last one has a group, a buffer without limits, or both.",
     setup_hints, setup_examples},
    {0},
};

const struct command_choice bench_choices[] = {
    {"device", "cpu cuda"},
    {"dtype", "bf16 f16 f32 fp8"},
    {"routing", "uniform zipf incast skew grouped onehot FILE"},
    {"path", "auto direct queue all"},
    {"cached", "yes no both"},
    {"pattern", "isolated steady layer decode period all"},
    {"stamps", "yes no"},
    {"format", "bf16 f16 f32 fp8 fp8_round fp8_ue8m0 int8 logfmt"},
    {"sum", "exact reduced both"},
    {"hook", "yes no both"},
    {"ops", "put get put_signal atomics barrier collectives"},
    {"transports", "p2p fabric gda auto"},
    {NULL, NULL},
};
