/* SPDX-License-Identifier: Apache-2.0 */
/* problem: a routing that all ranks know, and its consequences: the order of rows, and the places of a token's rows. It
 * is written from the definitions and uses nothing of the measured library. Pattern: the contents of rows. */
#ifndef EXPAR_BENCH_FRAME_PROBLEM_H
#define EXPAR_BENCH_FRAME_PROBLEM_H

#include <expar/tensor.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct problem_row {
    int32_t rank, token; /* where a received row comes from */
};

struct problem {
    int rank, num_ranks;
    int64_t tokens; /* T of every rank */
    int hidden, topk, experts;
    expar_dtype dtype;
    size_t row_bytes;
    int num_scales;               /* S: of 8-bit rows, one for 128 elements; else 0 */
    int32_t *routing;             /* [N][T][K] expert or -1 */
    int64_t num_received;         /* R of this rank */
    int64_t most_received;        /* largest R of any rank */
    struct problem_row *received; /* [R] in the order of dispatch: by source rank, then by token */
    int64_t *position;            /* [T][N] row number of this rank's token on rank d; -1: it does not go there */
    int64_t num_sent;             /* rows that this rank sends, itself included: entries of position that are not -1 */
};

struct problem_shape {
    int rank, num_ranks;
    int64_t tokens;
    int hidden, topk, experts;
    expar_dtype dtype;
};

/* Takes ownership of `routing`, also when it fails (NULL: no memory). */
struct problem *problem_create(const struct problem_shape *shape, int32_t *routing);
void problem_free(struct problem *problem);
/* Returns the routing of one rank, [T][K]. */
const int32_t *problem_routing_of(const struct problem *problem, int rank);
/* The weight that slot k of a token gets, a sum of few powers of two. */
float problem_weight(int rank, int64_t token, int k);
/* Scale s of a token with 8-bit elements. */
float problem_scale(int rank, int64_t token, int s);
/* True when a token has an expert on rank `target`. */
bool problem_goes_to(const struct problem *problem, int source, int64_t token, int target);

/* ---- pattern.c --------------------------------------------------------------------------------------------------- */

/* Returns the key of a row, from the filling's salt, the rank and the token. Keys of any two rows differ. */
uint64_t pattern_key(uint64_t salt, int rank, int64_t token);
/* [hidden] finite values between 2^-7 and 2, either sign, exact in the dtype. */
void pattern_row(expar_dtype dtype, uint64_t key, int hidden, void *row);
/* Rows of the problem's shape, those of tokens 0 to count - 1 of a rank. */
void pattern_rows(const struct problem *problem, uint64_t salt, int rank, int64_t count, void *rows);
/* sum[j] += value j of that row, in FP32. Not of 8-bit rows, which are not added. */
void pattern_add(expar_dtype dtype, uint64_t key, int hidden, float *sum);
/* Does the same with a row that pattern_round has written. */
void pattern_add_row(expar_dtype dtype, const void *row, int hidden, float *sum);
/* Rounds to nearest even. Finite values only. */
void pattern_round(expar_dtype dtype, const float *sum, int hidden, void *row);

#endif
