/* SPDX-License-Identifier: Apache-2.0 */
/* stats: order statistics of a series of times. */
#ifndef EXPAR_BENCH_FRAME_STATS_H
#define EXPAR_BENCH_FRAME_STATS_H

/* Sorts `values` (count ≥ 1) in place, ascending. */
void stats_sort(double *values, int count);
/* The median of sorted values: the middle one, or the mean of the two in the middle. */
double stats_median(const double *sorted, int count);
/* The width of the middle 80 % of sorted values, as a share of their median; 0 if that is not positive. */
double stats_spread(const double *sorted, int count);
/* The 99th percentile of sorted values: the least one that at least 99 % of them do not exceed. */
double stats_p99(const double *sorted, int count);

#endif
