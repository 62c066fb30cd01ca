/* SPDX-License-Identifier: Apache-2.0 */
/* A rank of a test of starting: forms groups from what its launcher has told it.
 *
 *     start_env together          all ranks form two groups, one after the other, and count themselves
 *     start_env missing RANK      that rank comes too late; the others have to be told that it did */
#include <expar/expar.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_RANKS 64

static int fail(const char *what)
{
    fprintf(stderr, "start_env: %s: %s\n", what, expar_last_error());
    return 1;
}

static int count_once(void)
{
    expar_group *group;
    int32_t ranks[MOST_RANKS];
    if (expar_group_create(NULL, &group) != EXPAR_OK) return fail("group");
    const int32_t rank = expar_group_rank(group), size = expar_group_size(group);
    if (size < 2 || size > MOST_RANKS) return fail("size");
    if (expar_group_allgather(group, &rank, ranks, sizeof rank) != EXPAR_OK) return fail("allgather");
    for (int32_t r = 0; r < size; r++)
        if (ranks[r] != r) return fail("order of ranks");
    if (expar_barrier_all(group) != EXPAR_OK || expar_group_destroy(group) != EXPAR_OK) return fail("end");
    return 0;
}

/* This rank's number, whoever has started it. */
static int number(void)
{
    static const char *const names[] = {"EXPAR_RANK", "RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (getenv(names[i])) return atoi(getenv(names[i]));
    return -1;
}

/* The absent one comes when the others have given up, and finds nobody. (mpirun takes a process that never joins it, as
   others do, for a crash.) */
static int miss(const char *absent)
{
    expar_group *group = NULL;
    char named[32];
    if (number() == atoi(absent)) {
        sleep(4);
        return expar_group_create(NULL, &group) == EXPAR_OK;
    }
    expar_status status = expar_group_create(NULL, &group);
    if (status != EXPAR_ERR_BOOTSTRAP || group) return fail("a group was formed, or failed otherwise");
    static const char *const forms[] = {"rank %s has not come", "rank %s did not come", "missing: %s"};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        const char *name = strstr(forms[i], "%s");
        snprintf(named, sizeof named, "%.*s%s%s", (int)(name - forms[i]), forms[i], absent, name + 2);
        if (strstr(expar_last_error(), named)) return 0;
    }
    return fail("the absent rank is not named");
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "missing") == 0) return miss(argv[2]);
    for (int round = 0; round < 2; round++)
        if (count_once() != 0) return 1;
    return 0;
}
