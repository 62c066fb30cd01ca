/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of rdma-core's libraries that gda calls, opened at run time. The declarations are our own, so that all
 * of gda compiles without its headers. A test compares the structs with those headers where they are
 * (tests/net/gda/test_verbs.c). */
#ifndef EXPAR_NET_GDA_VERBS_H
#define EXPAR_NET_GDA_VERBS_H

#include "base/base.h"

#include <sys/types.h>

/* Only functions of rdma-core look inside. */
struct ibv_device;
struct ibv_context;
struct ibv_pd;
struct ibv_ah;
struct mlx5dv_devx_obj;

/* The beginning of mlx5dv_context_attr. */
typedef struct verbs_open {
    uint32_t flags; /* VERBS_OPEN_DEVX */
    uint64_t comp_mask;
    uint64_t more[6];
} verbs_open;
#define VERBS_OPEN_DEVX 1u

/* ibv_port_attr, as the function of the library writes it. */
typedef struct verbs_port {
    uint32_t state, max_mtu, active_mtu;
    int32_t gids;
    uint32_t port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr;
    uint16_t pkey_tbl_len, lid, sm_lid;
    uint8_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state;
    uint8_t link_layer; /* VERBS_ETHERNET, or InfiniBand */
    uint8_t flags;
    uint64_t more[4];
} verbs_port;
#define VERBS_PORT_ACTIVE 4u
#define VERBS_ETHERNET    2u

typedef union verbs_gid {
    uint8_t raw[16];
    uint64_t words[2];
} verbs_gid;

/* ibv_gid_entry */
typedef struct verbs_gid_entry {
    verbs_gid gid;
    uint32_t gid_index, port_num, gid_type, ndev_ifindex;
} verbs_gid_entry;
#define VERBS_GID_ROCE_V2 2u

/* The functions, by their names without prefix. */
typedef struct verbs {
    void *ibverbs, *mlx5;
    struct ibv_device **(*get_device_list)(int *count);
    void (*free_device_list)(struct ibv_device **list);
    const char *(*get_device_name)(struct ibv_device *device);
    int (*close_device)(struct ibv_context *context);
    int (*query_port)(struct ibv_context *context, uint8_t port, verbs_port *out);
    int (*query_gid)(struct ibv_context *context, uint32_t port, uint32_t index, verbs_gid_entry *out, uint32_t flags,
                     size_t entry_bytes);
    bool (*is_supported)(struct ibv_device *device);
    struct ibv_context *(*open_device)(struct ibv_device *device, verbs_open *attributes);
    int (*command)(struct ibv_context *context, const void *in, size_t in_bytes, void *out, size_t out_bytes);
} verbs;

/* Opens the libraries, once for the process, and finds all functions. EXPAR_ERR_UNSUPPORTED names what is missing. */
expar_status verbs_load(const verbs **out);

#endif
