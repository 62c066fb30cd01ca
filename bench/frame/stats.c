/* SPDX-License-Identifier: Apache-2.0 */
/* Order statistics. */
#include "bench/frame/stats.h"
#include <stdint.h>
#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

void stats_sort(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
}

double stats_median(const double *sorted, int count)
{
    return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

/* Returns the least value that at least `percent` % of them do not exceed. */
static double percentile(const double *sorted, int count, int percent)
{
    const int64_t rank = ((int64_t)percent * count + 99) / 100; /* from 1 */
    return sorted[rank > 0 ? rank - 1 : 0];
}

double stats_spread(const double *sorted, int count)
{
    const double median = stats_median(sorted, count);
    return median > 0 ? (percentile(sorted, count, 90) - percentile(sorted, count, 10)) / median : 0;
}

double stats_p99(const double *sorted, int count)
{
    return percentile(sorted, count, 99);
}
