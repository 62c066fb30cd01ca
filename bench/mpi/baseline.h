/* SPDX-License-Identifier: Apache-2.0 */
/* mpi_baseline: the code that a user would write with MPI instead of expar, measured beside it.
 *
 * Dispatch: MPI_Alltoall of counts; records (row, top-k, weights) packed by destination; MPI_Alltoallv; records
 * unpacked into rows, top-k and weights, in the same final order as expar's. Combine: rows packed by their source rank;
 * MPI_Alltoallv back; FP32 sums in rank order, rounded once. */
#ifndef EXPAR_BENCH_MPI_BASELINE_H
#define EXPAR_BENCH_MPI_BASELINE_H

#include "bench/low_latency/mode.h"
#include "bench/normal/mode.h"

extern const struct bench_baseline mpi_baseline;

/* The baseline of low-latency mode, with expar's layout. Dispatch: MPI_Alltoall of the counts of rows and of messages.
 * One record (row, token, top-k) for each (token, rank) is packed by destination; MPI_Alltoallv; each record is copied
 * to the rows of its experts. Combine, exact: rows packed by their source rank, MPI_Alltoallv back, weighted sums in
 * FP32. Reduced: weighted sums of a token's rows here, MPI_Alltoallv of these, and their sums. */
extern const struct bench_baseline mpi_ll_baseline;

/* Runs an MPI barrier. MPI makes progress only while it is called, so data that a rank has sent may still be on this
   rank. A rank that waits for others by other means would wait for ever. */
void mpi_settle(void *self);

/* ---- sum.c ------------------------------------------------------------------------------------------------------- */

/* Compute sum[j] += row[j], and round the sum into a row. They are plain loops that the compiler vectorises. */
void mpi_sum_add(expar_dtype dtype, const void *row, int hidden, float *sum);
void mpi_sum_round(expar_dtype dtype, const float *sum, int hidden, void *row);

#endif
