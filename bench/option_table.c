/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the benchmark's options, for argp, --help and the man page. */
#include "bench/bench.h"
#include "bench/option_keys.h"

const struct argp_option bench_option_table[] = {
    {"ranks", 'n', "N", 0, "Ranks (default: 8; rma: 2; on GPUs one for each; in a job all of it)", 0},
    {"nodes", KEY_NODES, "M", 0, "Nodes that the ranks simulate, or are on (default: as the hosts are)", 0},
    {"device", KEY_DEVICE, "DEVICE", 0,
     "cpu (default), or cuda: the ranks are threads of this process, one a GPU unless -n asks for more", 0},
    {"gpus", KEY_GPUS, "G", 0, "Ranks share out the first G GPUs (default: all, at most one for each rank)", 0},
    {"tokens", KEY_TOKENS, "T", 0,
     "Tokens of each rank: a number, a list A,B,C, or a range A..B by powers of two (default: 256; ll on GPUs: 1..256)",
     0},
    {"hidden", KEY_HIDDEN, "H", 0, "Elements of a row (default: 7168)", 0},
    {"topk", KEY_TOPK, "K", 0, "Experts of a token (default: 8)", 0},
    {"experts", KEY_EXPERTS, "E", 0, "Experts, a multiple of N (default: 64, or the next multiple)", 0},
    {"dtype", KEY_DTYPE, "TYPE", 0,
     "bf16 (default), f16, f32, or a list; fp8 too: e4m3 rows with a scale for 128 elements, which are dispatched and "
     "not combined",
     0},
    {"routing", KEY_ROUTING, "HOW", 0,
     "uniform (default); zipf[:ALPHA] (1); incast[:HOT,FRACTION]: HOT experts (an eighth) get FRACTION (0.9) of the "
     "choices; skew:RATIO: one rank gets RATIO times as many as another (below 1: fewer; 0: none); grouped (8 groups, "
     "4 of them for a token); onehot; or a recorded FILE.npy",
     0},
    {"iters", KEY_ITERS, "COUNT", 0, "Measured iterations (default: 50)", 0},
    {"warmup", KEY_WARMUP, "COUNT", 0, "Iterations before them (default: 5)", 0},
    {"threads", KEY_THREADS, "COUNT", 0,
     "Worker threads of a rank on the CPU, a number or a list (default: as the library chooses; ll: 1, and with more "
     "there is no copy limit)",
     0},
    {"sms", KEY_SMS, "COUNT", 0,
     "SMs of a rank's GPU that each call takes, a number or a list (default: 24, or what fits; ll: 128, or what fits); "
     "on the CPU the same as --threads, but for ll",
     0},
    {"path", KEY_PATH, "PATH", 0, "auto (default), direct, queue, or all: a result for each", 0},
    {"cached", KEY_CACHED, "WHEN", OPTION_ARG_OPTIONAL,
     "Dispatch with the handle of an earlier one, without layout and notify: yes (when no WHEN is given), no "
     "(default on the CPU), both (default on GPUs)",
     0},
    {"pattern", KEY_PATTERN, "NAMES", 0,
     "How measured calls follow each other, a name or a list: isolated (default), steady (back to back), layer "
     "(dispatch, "
     "work, combine), decode (ll: dispatch, combine), period (dispatch, combine, with a moment noted at each), or all "
     "that the mode has but period",
     0},
    {"pairs", KEY_PAIRS, "COUNT", 0, "Pairs of each of the 4 trials of --pattern period (default: 128)", 0},
    {"stamps", KEY_STAMPS, "WHEN", 0,
     "On GPUs: whether kernels, of calls and of the copy limit, read clocks on their way, for the breakdown: yes "
     "(default), no (what they cost is the difference)",
     0},
    {"seed", KEY_SEED, "SEED", 0, "Of routing and rows (default: 1)", 0},
    {"json", KEY_JSON, NULL, 0, "Print one JSON object", 0},
    {"csv", KEY_CSV, NULL, 0, "Print comma-separated values", 0},
    {"output", KEY_OUTPUT, "FILE", 0,
     "Write what is printed into a file, which is replaced as a whole at the end; FILE.json is JSON, FILE.csv CSV", 0},
    {"report", KEY_REPORT, "FILE", 0,
     "Also write a page of pictures and tables (HTML, in one file); with files of --json as operands nothing is "
     "measured, and the page compares them",
     0},
    {"mpi", KEY_MPI, NULL, 0, "Also measure pack, MPI_Alltoallv and unpack (needs mpirun)", 0},
    {"format", KEY_FORMAT, "FORMAT", 0,
     "ll: how rows travel, or a list: bf16, f16, f32 as they are (default: those of --dtype); coded from rows of "
     "--dtype: fp8, fp8_round, fp8_ue8m0, int8, nvfp4, which are dispatched, and logfmt, which is combined",
     0},
    {"sum", KEY_SUM, "WHERE", 0,
     "ll: the ranks that add in a combine: exact (the token's rank), reduced (the experts' ranks first), both "
     "(default)",
     0},
    {"hook", KEY_HOOK, "WHEN", OPTION_ARG_OPTIONAL,
     "ll: send and receive apart, with a hook: yes (when no WHEN is given), no (default), both", 0},
    {"sizes", KEY_SIZES, "BYTES", 0,
     "rma: sizes, with K or M after a number: a list A,B,C, or a range A..B by powers of two "
     "(default: 8,64,512,4K,64K,1M)",
     0},
    {"ops", KEY_OPS, "NAMES", 0,
     "rma: put, get, put_signal, atomics (fetch_add, add), barrier, collectives (broadcast, fcollect, collect, "
     "alltoall, reduce), divided by commas (default: all); on GPUs put, get, put_signal, stream_put, commands",
     0},
    {"transports", KEY_TRANSPORTS, "NAMES", 0,
     "rma: transports that are measured one after another: p2p, fabric, gda, or auto for the library's choice "
     "(default: those that this machine has; with several nodes auto); on GPUs the ways of kernels: mapped, gda, proxy",
     0},
    {0},
};
