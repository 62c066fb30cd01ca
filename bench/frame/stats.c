/* SPDX-License-Identifier: Apache-2.0 */
/* Order statistics. */
#include "bench/frame/stats.h"
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

double stats_p99(const double *sorted, int count)
{
    int rank = (99 * count + 99) / 100; /* ceil(0.99·count), from 1 */
    return sorted[rank - 1];
}
