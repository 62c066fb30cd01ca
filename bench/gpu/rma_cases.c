/* SPDX-License-Identifier: Apache-2.0 */
/* One operation of kernels by one scope, with one size, in turns with a bare kernel; and puts on a stream in turns with
 * cuMemcpyAsync. What arrives is verified for each. */
#include "bench/gpu/rma.h"
#include "bench/rma/rma.h"
#include <expar/rma.h>
#include <expar/stream.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const scope_names[] = {"thread", "warp", "block"};
static const char *const op_names[] = {"put", "get", "put_signal"};
enum { SCOPES = 3, MOST_THREAD_BYTES = 64 << 10, STREAM_PUTS = 20 };

/* ---- contents ---------------------------------------------------------------------------------------------------- */

/* Leaves other bytes where the operation's data will arrive. A failure is marked. */
static bool spoil(rma_rank *r)
{
    const int32_t at = r->call.op == RMA_GPU_GET ? 0 : r->size - 1;
    unsigned char *bytes = calloc(1, r->call.bytes);
    const bool good = rma_gpu_good(r, bytes ? EXPAR_OK : error_set(EXPAR_ERR_MEMORY, "no memory")) &&
                      rma_gpu_good(r, expar_put(r->group, r->call.dest, bytes, r->call.bytes, at)) &&
                      rma_gpu_good(r, expar_quiet(r->group));
    free(bytes);
    return good;
}

/* Compares what arrived: at the last rank for puts, here for gets. */
static bool verify(rma_rank *r)
{
    const bool gets = r->call.op == RMA_GPU_GET;
    const size_t bytes = r->call.bytes, from = gets ? (size_t)r->size - 1 : 0;
    const int32_t at = gets ? 0 : r->size - 1;
    unsigned char *seen = malloc(bytes);
    bool right = seen && rma_gpu_good(r, expar_get(r->group, seen, r->call.dest, bytes, at));
    for (size_t i = 0; i < bytes && right; i++)
        right = seen[i] == (unsigned char)(i * 7 + from + 1);
    free(seen);
    if (!right) fprintf(stderr, "expar bench: %s of %zu bytes left other bytes\n", op_names[r->call.op], bytes);
    return right;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

static bool takes_part(const rma_rank *r)
{
    return r->rank == 0 || (r->call.op == RMA_GPU_SIGNAL && r->rank == r->size - 1);
}

/* Runs the rounds; *us is the time of one, of a signal one way. */
static bool run_rounds(rma_rank *r, bool bare, int32_t rounds, double *us)
{
    const uint64_t *words = r->words.host;
    r->call.bare = bare;
    r->call.rounds = rounds;
    if (!rma_gpu_meet(r)) return false;
    if (takes_part(r)) rma_gpu_launch(r, 1, RMA_GPU_THREADS);
    r->call.first += (uint64_t)rounds;
    *us = (double)words[0] / 1000 / rounds / (r->call.op == RMA_GPU_SIGNAL ? 2 : 1);
    return rma_gpu_meet(r);
}

/* The first turn warms up. Data of the bare kernel are the same, so the last turn is the library's. */
static bool measure(rma_rank *r, bool has_bare, bool *verified)
{
    const int32_t rounds = r->call.bytes > 65536 ? 20 : 50;
    for (int turn = -1; turn < r->all->options->iters; turn++) {
        const int at = turn < 0 ? 0 : turn;
        if (has_bare && !run_rounds(r, true, turn < 0 ? 2 : rounds, &r->bare_us[at])) return false;
        if (turn < 0 && r->rank == 0) spoil(r);
        if (!run_rounds(r, false, turn < 0 ? 2 : rounds, &r->us[at])) return false;
        if (turn < 0 && r->rank == 0) *verified = verify(r);
    }
    return true;
}

static void add_result(rma_rank *r, const char *op, const char *scope, const char *baseline, bool verified)
{
    rma_gpu_results *all = r->all->results;
    if (r->rank != 0 || all->count == RMA_GPU_RESULTS) return;
    rma_gpu_result *result = &all->list[all->count++];
    *result = (rma_gpu_result){.op = op,
                               .way = rma_gpu_way_names[r->all->way],
                               .memory = r->all->way == RMA_GPU_GDA ? "pinned" : "device",
                               .scope = scope,
                               .baseline = baseline,
                               .bytes = r->call.bytes,
                               .times = bench_summary(r->us, r->all->options->iters),
                               .verified = verified};
    if (baseline) result->bare = bench_summary(r->bare_us, r->all->options->iters);
}

static bool measure_case(rma_rank *r, rma_gpu_op op, int scope, size_t bytes)
{
    const bool has_bare = r->call.peer_dest != NULL;
    bool verified = true;
    r->call.op = (expar_int32)op;
    r->call.scope = scope;
    r->call.bytes = bytes;
    if (!measure(r, has_bare, &verified)) return false;
    add_result(r, op_names[op], scope_names[scope], has_bare ? "bare kernel" : NULL, verified);
    return true;
}

/* ---- puts on a stream -------------------------------------------------------------------------------------------- */

static expar_status put_on_stream(rma_rank *r, bool bare)
{
    if (!bare)
        return expar_put_on_stream(r->group, r->call.dest, r->call.source, r->call.bytes, r->call.peer, r->stream);
    return CUDA_CALL(MemcpyAsync, (cu_address)(uintptr_t)r->call.peer_dest, (cu_address)(uintptr_t)r->call.source,
                     r->call.bytes, r->stream);
}

static bool time_stream(rma_rank *r, bool bare, double *us)
{
    float ms = 0;
    bool good = rma_gpu_good(r, CUDA_CALL(EventRecord, r->start, r->stream));
    for (int i = 0; i < STREAM_PUTS && good; i++)
        good = rma_gpu_good(r, put_on_stream(r, bare));
    good = good && rma_gpu_good(r, CUDA_CALL(EventRecord, r->end, r->stream)) &&
           rma_gpu_good(r, CUDA_CALL(StreamSynchronize, r->stream)) &&
           rma_gpu_good(r, CUDA_CALL(EventElapsedTime, &ms, r->start, r->end));
    *us = (double)ms * 1000 / STREAM_PUTS;
    return good;
}

static bool time_streams(rma_rank *r)
{
    bool good = true;
    for (int turn = -1; turn < r->all->options->iters && good; turn++) {
        const int at = turn < 0 ? 0 : turn;
        good = time_stream(r, true, &r->bare_us[at]);
        good = good && (turn >= 0 || spoil(r)) && time_stream(r, false, &r->us[at]);
    }
    return good;
}

static bool measure_stream(rma_rank *r, size_t bytes)
{
    r->call.op = RMA_GPU_PUT;
    r->call.bytes = bytes;
    if (r->rank == 0 && r->call.peer_dest && time_streams(r))
        add_result(r, "stream_put", "stream", "cuMemcpyAsync", verify(r));
    return rma_gpu_meet(r);
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static bool wants(const rma_rank *r, const char *op)
{
    const char *ops = r->all->options->rma.ops;
    return !ops || rma_list_has(ops, op);
}

static bool measure_op(rma_rank *r, rma_gpu_op op)
{
    const struct rma_options *options = &r->all->options->rma;
    bool good = true;
    for (int scope = 0; scope < SCOPES; scope++)
        for (int i = 0; i < options->num_sizes && good; i++) {
            /* One thread takes too long for large ones. */
            if (scope == EXPAR_DEV_THREAD && options->sizes_bytes[i] > MOST_THREAD_BYTES) continue;
            good = measure_case(r, op, scope, options->sizes_bytes[i]);
        }
    return good;
}

bool rma_gpu_measure_cases(rma_rank *r)
{
    const struct rma_options *options = &r->all->options->rma;
    bool good = true;
    for (int op = 0; op < RMA_GPU_OPS && good; op++)
        if (wants(r, op_names[op])) good = measure_op(r, (rma_gpu_op)op);
    if (r->all->way != RMA_GPU_MAPPED || !wants(r, "stream_put")) return good;
    for (int i = 0; i < options->num_sizes && good; i++)
        good = measure_stream(r, options->sizes_bytes[i]);
    return good;
}
