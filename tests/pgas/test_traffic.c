/* SPDX-License-Identifier: Apache-2.0 */
/* Traffic over the network is counted: operations and bytes of a known program, to ranks of another node and to the
 * neighbour. */
#include "shmem/kind.h"
#include <expar/info.h>

enum { WORDS = 4096 };

typedef struct areas {
    uint64_t *box, *signal; /* symmetric */
    uint64_t local[WORDS];
    uint32_t *half; /* symmetric */
} areas;

/* Two puts of 100 and 7 bytes, a get of 72, two atomics of 8 and one of 4, and a put of 24 with a signal. Some of them
   are not waited for. */
static void send(expar_group *group, areas *a, int32_t pe)
{
    uint64_t old;
    CHECK_OK(expar_put(group, a->box, a->local, 100, pe));
    CHECK_OK(expar_put_nbi(group, a->box + 20, a->local, 7, pe));
    CHECK_OK(expar_get(group, a->local, a->box, 72, pe));
    CHECK_OK(expar_atomic_add_u64(group, a->signal, 1, pe));
    CHECK_OK(expar_atomic_fetch_add_u64(group, a->signal, 1, pe, &old));
    CHECK_OK(expar_atomic_add_u32(group, a->half, 1, pe));
    CHECK_OK(expar_put_signal_nbi(group, a->box, a->local, 24, a->signal, 1, EXPAR_SIGNAL_ADD, pe));
    CHECK_OK(expar_quiet(group));
}

static expar_network_stats read_stats(const expar_group *group)
{
    expar_network_stats stats = EXPAR_NETWORK_STATS_INIT;
    CHECK_OK(expar_network_get_stats(group, &stats));
    return stats;
}

static void check_difference(const expar_network_stats *before, const expar_network_stats *now, uint64_t times)
{
    CHECK(now->puts - before->puts == 3 * times, "%llu puts", (unsigned long long)(now->puts - before->puts));
    CHECK(now->put_bytes - before->put_bytes == (100 + 7 + 24) * times, "bytes of puts");
    CHECK(now->gets - before->gets == times && now->get_bytes - before->get_bytes == 72 * times, "gets");
    CHECK(now->atomics - before->atomics == 4 * times, "atomics");
    CHECK(now->atomic_bytes - before->atomic_bytes == (8 + 8 + 4 + 8) * times, "bytes of atomics");
}

static void check_rejections(const expar_group *group)
{
    expar_network_stats stats = {0};
    CHECK_STATUS(EXPAR_ERR_NULL, expar_network_get_stats(NULL, &stats));
    CHECK_TEXT("expar_network_get_stats", "group is NULL");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_network_get_stats(group, NULL));
    CHECK_TEXT("expar_network_get_stats: stats is NULL");
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_network_get_stats(group, &stats));
    CHECK_TEXT("expar_network_get_stats: stats.struct_size 0, expected 8 to", "EXPAR_NETWORK_STATS_INIT");
    stats.struct_size = sizeof stats.struct_size + 2 * sizeof(uint64_t);
    stats.gets = 99; /* beyond the size that the caller says */
    CHECK_OK(expar_network_get_stats(group, &stats));
    CHECK(stats.gets == 99, "more was written than there is room for");
}

/* 1: what goes to pe passes a network. */
static uint64_t is_network(const expar_group *group, int32_t pe)
{
    return sym_ways(group->sym, TRANSPORT_HOST, pe)->data->ops->add_traffic ? 1 : 0;
}

/* All of it to the neighbour, then to the other node: only what passes the network is counted. A large put is, whatever
   it is cut into, by its bytes. */
static void count(expar_group *group, void *shared)
{
    areas *a = calloc(1, sizeof *a);
    int32_t far = (group->rank + 2) % 4, near = group->rank ^ 1;
    uint64_t near_counts = is_network(group, near), far_counts = is_network(group, far);
    (void)shared;
    CHECK_OK(expar_calloc(group, WORDS, sizeof *a->box, (void **)&a->box));
    CHECK_OK(expar_calloc(group, 1, sizeof *a->signal, (void **)&a->signal));
    CHECK_OK(expar_calloc(group, 1, sizeof *a->half, (void **)&a->half));
    check_rejections(group);
    expar_network_stats before = read_stats(group);
    send(group, a, near);
    expar_network_stats now = read_stats(group);
    check_difference(&before, &now, near_counts);
    CHECK_OK(expar_group_barrier(group)); /* from here on another rank writes to each; no network is passed by it */
    before = read_stats(group);
    for (int i = 0; i < 5; i++)
        send(group, a, far);
    now = read_stats(group);
    check_difference(&before, &now, 5 * far_counts);
    before = now;
    CHECK_OK(expar_put_nbi(group, a->box, a->local, sizeof a->local, far));
    CHECK_OK(expar_quiet(group));
    now = read_stats(group);
    CHECK(now.put_bytes - before.put_bytes == far_counts * sizeof a->local, "bytes of a large put");
    CHECK_OK(expar_barrier_all(group));
    CHECK_OK(expar_free(group, a->half));
    CHECK_OK(expar_free(group, a->signal));
    CHECK_OK(expar_free(group, a->box));
    free(a);
}

static void test_count(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 4, count);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_count)};
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
