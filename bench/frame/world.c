/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of ranks, and agreements between them. */
#include "bench/frame/device.h"
#include <stdio.h>
#include <stdlib.h>

bool bench_complain(const struct bench_world *world, const char *what)
{
    fprintf(stderr, "expar bench: rank %d: %s\n", world->rank, what);
    return false;
}

bool bench_good(const struct bench_world *world, expar_status status)
{
    if (status == EXPAR_OK) return true;
    /* A group that was not made has no ranks yet; the text of the error has this one's number. */
    if (!world->group)
        fprintf(stderr, "expar bench: %s: %s\n", expar_status_string(status), expar_last_error());
    else
        fprintf(stderr, "expar bench: rank %d: %s: %s\n", world->rank, expar_status_string(status), expar_last_error());
    return false;
}

bool bench_all_true(const struct bench_world *world, bool mine)
{
    unsigned char flag = mine, *all = calloc((size_t)world->size, 1);
    bool good = all && bench_good(world, expar_group_allgather(world->group, &flag, all, 1));
    for (int rank = 0; rank < world->size && good; rank++)
        good = all[rank];
    free(all);
    return good;
}

bool bench_mean(const struct bench_world *world, double mine, double *mean)
{
    double *all = calloc((size_t)world->size, sizeof *all), sum = 0;
    bool good = all && bench_good(world, expar_group_allgather(world->group, &mine, all, sizeof mine));
    for (int rank = 0; rank < world->size && good; rank++)
        sum += all[rank];
    if (good) *mean = sum / world->size;
    free(all);
    return good;
}
