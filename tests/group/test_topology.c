/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes found from hosts, for hosts that no one machine has: places are made up. */
#include "group/parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define MAX_RANKS 16

/* hosts: one letter a rank, equal letters share a host. */
static expar_status find(const char *hosts, int32_t rank, int32_t ranks_per_node, int32_t *nodes, group_topology *out)
{
    boot_place places[MAX_RANKS];
    boot ctl = {.rank = rank, .size = (int32_t)strlen(hosts), .places = places};
    for (int32_t r = 0; r < ctl.size; r++)
        places[r] = (boot_place){.host = (uint64_t)hosts[r], .num_cores = 10 + r};
    return group_topology_find(&ctl, ranks_per_node, nodes, out);
}

static void check_found(const char *hosts, int32_t ranks_per_node, const char *expected_nodes)
{
    int32_t nodes[MAX_RANKS], size = (int32_t)strlen(hosts);
    for (int32_t rank = 0; rank < size; rank++) {
        group_topology topology;
        assert_int_equal(find(hosts, rank, ranks_per_node, nodes, &topology), EXPAR_OK);
        int32_t host_ranks = 0;
        for (int32_t r = 0; r < size; r++) {
            assert_int_equal(nodes[r], expected_nodes[r] - '0');
            host_ranks += hosts[r] == hosts[rank];
        }
        assert_int_equal(topology.num_nodes, nodes[size - 1] + 1);
        assert_int_equal(topology.num_nodes * topology.ranks_per_node, size);
        assert_int_equal(topology.host_ranks, host_ranks);
        assert_int_equal(topology.host_cores, 10 + rank);
    }
}

static void test_hosts_are_nodes(void **state)
{
    (void)state;
    check_found("a", 0, "0");
    check_found("aaaa", 0, "0000");
    check_found("aabb", 0, "0011");
    check_found("abcd", 0, "0123");
    check_found("aaabbbccc", 0, "000111222");
}

static void test_ranks_per_node_overrides(void **state)
{
    (void)state;
    check_found("aaaa", 1, "0123");
    check_found("aaaaaaaa", 4, "00001111");
    check_found("aaaabb", 2, "001122"); /* hosts of unlike size */
    check_found("aabb", 1, "0123");
}

static void check_rejected(const char *hosts, int32_t ranks_per_node, expar_status expected, const char *first,
                           const char *second)
{
    int32_t nodes[MAX_RANKS];
    group_topology topology = {.num_nodes = -7};
    assert_int_equal(find(hosts, 0, ranks_per_node, nodes, &topology), expected);
    assert_non_null(strstr(expar_last_error(), first));
    assert_non_null(strstr(expar_last_error(), second));
    assert_int_equal(topology.num_nodes, -7);
}

static void test_rejections_told(void **state)
{
    (void)state;
    check_rejected("abab", 0, EXPAR_ERR_BOOTSTRAP, "ranks 0 and 2", "between");
    check_rejected("aabbba", 0, EXPAR_ERR_BOOTSTRAP, "rank", "host");
    check_rejected("aaaabb", 0, EXPAR_ERR_BOOTSTRAP, "rank 4 has 2", "rank 0 has 4");
    check_rejected("aaaabb", 4, EXPAR_ERR_ARGUMENT, "ranks_per_node 4", "6 ranks");
    check_rejected("aabb", 4, EXPAR_ERR_BOOTSTRAP, "ranks 0 and 2", "two hosts");
    check_rejected("aaabbb", 2, EXPAR_ERR_BOOTSTRAP, "ranks 2 and 3", "two hosts");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hosts_are_nodes),
        cmocka_unit_test(test_ranks_per_node_overrides),
        cmocka_unit_test(test_rejections_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
