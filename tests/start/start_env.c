/* SPDX-License-Identifier: Apache-2.0 */
/* A rank of a test of starting: forms groups from what its launcher has told it.
 *
 *     start_env together          all ranks form two groups, one after the other, and count themselves
 *     start_env missing RANK      that rank comes too late; the others have to be told that it did
 *     start_env missing RANK hosts    the same, and the ranks believe that they are on several hosts
 *     start_env silent            the process manager never answers
 *     start_env alone             there is no launcher */
#include "base/rank_list.h"
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

/* This rank's number, from any launcher. */
static int number(void)
{
    static const char *const names[] = {"EXPAR_RANK", "RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (getenv(names[i])) return atoi(getenv(names[i]));
    return -1;
}

static bool error_has(const char *rank, const char *rest)
{
    char text[64];
    snprintf(text, sizeof text, "rank %s %s", rank, rest);
    return strstr(expar_last_error(), text) != NULL;
}

/* Every rank can tell that it came itself, and who did not; the others may have come later, or left earlier. With
   rank 0 away it is the ranks of a host that look for each other; across hosts they only know of rank 0. */
static bool tells_who(const char *absent, bool across_hosts)
{
    const char *text = expar_last_error();
    const int rank = atoi(absent);
    const bool said = error_has(absent, "has not come") || error_has(absent, "did not come");
    if (rank_list_has(text, "missing: ", rank)) return across_hosts || strstr(text, "came: ");
    if (across_hosts) return said;
    return rank_list_has(text, ", not here: ", rank) && (said || rank > 0);
}

/* The absent one comes when the others have given up, and finds nobody. (mpirun takes a process that never joins it, as
   others do, for a crash.) */
static int miss(const char *absent, bool across_hosts)
{
    expar_group *group = NULL;
    if (number() == atoi(absent)) {
        sleep(7);
        return expar_group_create(NULL, &group) == EXPAR_OK;
    }
    expar_status status = expar_group_create(NULL, &group);
    if (status != EXPAR_ERR_BOOTSTRAP || group) return fail("a group was formed, or failed otherwise");
    if (tells_who(absent, across_hosts)) return 0;
    return fail("the absent rank is not named");
}

static int meet_silence(void)
{
    expar_group *group = NULL;
    expar_status status = expar_group_create(NULL, &group);
    if (status != EXPAR_ERR_BOOTSTRAP || group) return fail("a group was formed, or failed otherwise");
    return strstr(expar_last_error(), "the process manager has not answered") ? 0 : fail("another text");
}

static int come_alone(void)
{
    expar_group *group = NULL;
    if (expar_group_create(NULL, &group) != EXPAR_OK) return fail("group of one");
    if (expar_group_size(group) != 1) return fail("size of a group of one");
    return expar_group_destroy(group) != EXPAR_OK;
}

int main(int argc, char **argv)
{
    if (argc >= 3 && strcmp(argv[1], "missing") == 0) return miss(argv[2], argc > 3);
    if (argc == 2 && strcmp(argv[1], "silent") == 0) return meet_silence();
    if (argc == 2 && strcmp(argv[1], "alone") == 0) return come_alone();
    for (int round = 0; round < 2; round++)
        if (count_once() != 0) return 1;
    return 0;
}
