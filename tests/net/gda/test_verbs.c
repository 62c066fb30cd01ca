/* SPDX-License-Identifier: Apache-2.0 */
/* Our declarations of rdma-core's structs are those of its headers: places and sizes of all fields that are used, and
 * the numbers. */
#include "net/gda/devx/verbs.h"

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

#define assert_pair(ours, theirs)                                                                                      \
    assert_same(verbs_objects, ours.in, struct mlx5dv_obj, theirs.in);                                                 \
    assert_same(verbs_objects, ours.out, struct mlx5dv_obj, theirs.out)

/* Structs of the set-up: memory, ways to peers, objects of devx. */
static void test_set_up(void **state)
{
    (void)state;
    assert_same(verbs_mr, context, struct ibv_mr, context);
    assert_same(verbs_mr, pd, struct ibv_mr, pd);
    assert_same(verbs_mr, addr, struct ibv_mr, addr);
    assert_same(verbs_mr, length, struct ibv_mr, length);
    assert_same(verbs_mr, lkey, struct ibv_mr, lkey);
    assert_same(verbs_mr, rkey, struct ibv_mr, rkey);
    assert_same(verbs_way, grh.dgid, struct ibv_ah_attr, grh.dgid);
    assert_same(verbs_way, grh.flow_label, struct ibv_ah_attr, grh.flow_label);
    assert_same(verbs_way, grh.sgid_index, struct ibv_ah_attr, grh.sgid_index);
    assert_same(verbs_way, grh.hop_limit, struct ibv_ah_attr, grh.hop_limit);
    assert_same(verbs_way, grh.traffic_class, struct ibv_ah_attr, grh.traffic_class);
    assert_same(verbs_way, dlid, struct ibv_ah_attr, dlid);
    assert_same(verbs_way, sl, struct ibv_ah_attr, sl);
    assert_same(verbs_way, is_global, struct ibv_ah_attr, is_global);
    assert_same(verbs_way, port_num, struct ibv_ah_attr, port_num);
    assert_int_equal(sizeof(verbs_way), sizeof(struct ibv_ah_attr));
    assert_same(verbs_av, rlid, struct mlx5_wqe_av, rlid);
    assert_same(verbs_av, rmac, struct mlx5_wqe_av, rmac);
    assert_same(verbs_av, rgid, struct mlx5_wqe_av, rgid);
    assert_int_equal(sizeof(verbs_av), sizeof(struct mlx5_wqe_av));
    assert_same(verbs_ah_out, av, struct mlx5dv_ah, av);
    assert_int_equal(sizeof(verbs_ah_out), sizeof(struct mlx5dv_ah));
    assert_same(verbs_pd_out, pdn, struct mlx5dv_pd, pdn);
    assert_int_equal(sizeof(verbs_pd_out), sizeof(struct mlx5dv_pd));
    assert_pair(ah, ah);
    assert_pair(pd, pd);
    assert_int_equal(sizeof(verbs_objects), sizeof(struct mlx5dv_obj));
    assert_same(verbs_umem, umem_id, struct mlx5dv_devx_umem, umem_id);
    assert_same(verbs_uar, reg_addr, struct mlx5dv_devx_uar, reg_addr);
    assert_same(verbs_uar, page_id, struct mlx5dv_devx_uar, page_id);
    assert_int_equal(sizeof(verbs_uar), sizeof(struct mlx5dv_devx_uar));
}

static void test_numbers(void **state)
{
    (void)state;
    assert_int_equal(VERBS_OPEN_DEVX, MLX5DV_CONTEXT_FLAGS_DEVX);
    assert_int_equal(VERBS_PORT_ACTIVE, IBV_PORT_ACTIVE);
    assert_int_equal(VERBS_ETHERNET, IBV_LINK_LAYER_ETHERNET);
    assert_int_equal(VERBS_GID_ROCE_V2, IBV_GID_TYPE_ROCE_V2);
    assert_int_equal(VERBS_LOCAL_WRITE, IBV_ACCESS_LOCAL_WRITE);
    assert_int_equal(VERBS_REMOTE_WRITE, IBV_ACCESS_REMOTE_WRITE);
    assert_int_equal(VERBS_REMOTE_READ, IBV_ACCESS_REMOTE_READ);
    assert_int_equal(VERBS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_ATOMIC);
    assert_int_equal(VERBS_OBJECT_AH, MLX5DV_OBJ_AH);
    assert_int_equal(VERBS_OBJECT_PD, MLX5DV_OBJ_PD);
    assert_int_equal(VERBS_UAR_UNCACHED, MLX5DV_UAR_ALLOC_TYPE_NC);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_structs), cmocka_unit_test(test_set_up),
                                       cmocka_unit_test(test_numbers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
