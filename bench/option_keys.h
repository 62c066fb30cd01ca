/* SPDX-License-Identifier: Apache-2.0 */
/* option_keys: argp's keys of the options, for option_table.c and options.c. */
#ifndef EXPAR_BENCH_OPTION_KEYS_H
#define EXPAR_BENCH_OPTION_KEYS_H

enum {
    KEY_NODES = 1000,
    KEY_DEVICE,
    KEY_TOKENS,
    KEY_HIDDEN,
    KEY_TOPK,
    KEY_EXPERTS,
    KEY_DTYPE,
    KEY_ROUTING,
    KEY_ITERS,
    KEY_WARMUP,
    KEY_THREADS,
    KEY_SMS,
    KEY_PATH,
    KEY_CACHED,
    KEY_SEED,
    KEY_JSON,
    KEY_CSV,
    KEY_OUTPUT,
    KEY_REPORT,
    KEY_MPI,
    KEY_GPUS,
    KEY_FORMAT,
    KEY_SUM,
    KEY_HOOK,
    KEY_PATTERN,
    KEY_PAIRS,
    KEY_STAMPS,
    KEY_SIZES,
    KEY_OPS,
    KEY_TRANSPORTS
};

#endif
