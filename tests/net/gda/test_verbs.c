/* SPDX-License-Identifier: Apache-2.0 */
/* Our declarations of rdma-core's structs are those of its headers: places and sizes of all fields that are used, and
 * the numbers. */
#include "net/gda/verbs.h"

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define assert_same(ours, our_field, theirs, their_field)                                                              \
    do {                                                                                                               \
        assert_int_equal(offsetof(ours, our_field), offsetof(theirs, their_field));                                    \
        assert_int_equal(sizeof(((ours *)0)->our_field), sizeof(((theirs *)0)->their_field));                          \
    } while (0)

static void test_structs(void **state)
{
    (void)state;
    assert_same(verbs_open, flags, struct mlx5dv_context_attr, flags);
    assert_same(verbs_open, comp_mask, struct mlx5dv_context_attr, comp_mask);
    assert_true(sizeof(verbs_open) >= sizeof(struct mlx5dv_context_attr));
    assert_same(verbs_port, state, struct ibv_port_attr, state);
    assert_same(verbs_port, active_mtu, struct ibv_port_attr, active_mtu);
    assert_same(verbs_port, gids, struct ibv_port_attr, gid_tbl_len);
    assert_same(verbs_port, lid, struct ibv_port_attr, lid);
    assert_same(verbs_port, link_layer, struct ibv_port_attr, link_layer);
    assert_same(verbs_port, flags, struct ibv_port_attr, flags);
    assert_true(sizeof(verbs_port) >= sizeof(struct ibv_port_attr));
    assert_same(verbs_gid_entry, gid, struct ibv_gid_entry, gid);
    assert_same(verbs_gid_entry, gid_index, struct ibv_gid_entry, gid_index);
    assert_same(verbs_gid_entry, port_num, struct ibv_gid_entry, port_num);
    assert_same(verbs_gid_entry, gid_type, struct ibv_gid_entry, gid_type);
    assert_int_equal(sizeof(verbs_gid_entry), sizeof(struct ibv_gid_entry));
}

static void test_numbers(void **state)
{
    (void)state;
    assert_int_equal(VERBS_OPEN_DEVX, MLX5DV_CONTEXT_FLAGS_DEVX);
    assert_int_equal(VERBS_PORT_ACTIVE, IBV_PORT_ACTIVE);
    assert_int_equal(VERBS_ETHERNET, IBV_LINK_LAYER_ETHERNET);
    assert_int_equal(VERBS_GID_ROCE_V2, IBV_GID_TYPE_ROCE_V2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_structs), cmocka_unit_test(test_numbers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
