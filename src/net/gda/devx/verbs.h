/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of rdma-core's libraries that gda calls, opened at run time. The declarations are our own, so that all
 * of gda compiles without its headers. A test compares the structs with those headers where they are
 * (tests/net/gda/test_verbs.c). */
#ifndef EXPAR_NET_GDA_DEVX_VERBS_H
#define EXPAR_NET_GDA_DEVX_VERBS_H

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

/* ibv_mr, registered memory. Its keys are in the processor's byte order. */
typedef struct verbs_mr {
    struct ibv_context *context;
    struct ibv_pd *pd;
    void *addr;
    size_t length;
    uint32_t handle, lkey, rkey;
} verbs_mr;
/* Rights. None of them lets later writes over PCI overtake earlier ones. */
enum { VERBS_LOCAL_WRITE = 1, VERBS_REMOTE_WRITE = 2, VERBS_REMOTE_READ = 4, VERBS_REMOTE_ATOMIC = 8 };

/* ibv_ah_attr: the way to a peer's port. */
typedef struct verbs_way {
    struct {
        verbs_gid dgid;
        uint32_t flow_label;
        uint8_t sgid_index, hop_limit, traffic_class;
    } grh;
    uint16_t dlid;
    uint8_t sl, src_path_bits, static_rate, is_global, port_num;
} verbs_way;

/* mlx5_wqe_av: the same as the device wants it. Numbers are big-endian. */
typedef struct verbs_av {
    uint8_t key[8];
    uint32_t dqp_dct;
    uint8_t stat_rate_sl, fl_mlid;
    uint16_t rlid; /* on Ethernet: the UDP port of the sender */
    uint8_t reserved0[4];
    uint8_t rmac[6];
    uint8_t tclass, hop_limit;
    uint32_t grh_gid_fl;
    uint8_t rgid[16];
} verbs_av;

/* mlx5dv_ah and mlx5dv_pd */
typedef struct verbs_ah_out {
    verbs_av *av;
    uint64_t comp_mask;
} verbs_ah_out;
typedef struct verbs_pd_out {
    uint32_t pdn;
    uint64_t comp_mask;
} verbs_pd_out;

/* mlx5dv_obj: seven pairs of an object and what is written about it. */
typedef struct verbs_objects {
    struct {
        const void *in;
        void *out;
    } qp, cq, srq, rwq, dm;
    struct {
        struct ibv_ah *in;
        verbs_ah_out *out;
    } ah;
    struct {
        struct ibv_pd *in;
        verbs_pd_out *out;
    } pd;
} verbs_objects;
#define VERBS_OBJECT_AH 0x20u
#define VERBS_OBJECT_PD 0x40u

/* mlx5dv_devx_umem: memory for queues and records. */
typedef struct verbs_umem {
    uint32_t umem_id;
} verbs_umem;

/* mlx5dv_devx_uar: a page with a doorbell register. */
typedef struct verbs_uar {
    void *reg_addr, *base_addr;
    uint32_t page_id;
    off_t mmap_off;
    uint64_t comp_mask;
} verbs_uar;
#define VERBS_UAR_UNCACHED 1u

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
    struct ibv_pd *(*alloc_pd)(struct ibv_context *context);
    int (*dealloc_pd)(struct ibv_pd *pd);
    verbs_mr *(*reg_mr)(struct ibv_pd *pd, void *address, size_t bytes, int access);
    /* NULL in libraries before version 34 */
    verbs_mr *(*reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t address, int fd, int access);
    int (*dereg_mr)(verbs_mr *mr);
    struct ibv_ah *(*create_ah)(struct ibv_pd *pd, verbs_way *way);
    int (*destroy_ah)(struct ibv_ah *ah);
    bool (*is_supported)(struct ibv_device *device);
    struct ibv_context *(*open_device)(struct ibv_device *device, verbs_open *attributes);
    int (*command)(struct ibv_context *context, const void *in, size_t in_bytes, void *out, size_t out_bytes);
    int (*init_obj)(verbs_objects *objects, uint64_t kinds);
    int (*query_eqn)(struct ibv_context *context, uint32_t vector, uint32_t *eqn);
    verbs_uar *(*alloc_uar)(struct ibv_context *context, uint32_t flags);
    void (*free_uar)(verbs_uar *uar);
    verbs_umem *(*umem_reg)(struct ibv_context *context, void *address, size_t bytes, uint32_t access);
    int (*umem_dereg)(verbs_umem *umem);
    struct mlx5dv_devx_obj *(*obj_create)(struct ibv_context *context, const void *in, size_t in_bytes, void *out,
                                          size_t out_bytes);
    int (*obj_modify)(struct mlx5dv_devx_obj *object, const void *in, size_t in_bytes, void *out, size_t out_bytes);
    int (*obj_destroy)(struct mlx5dv_devx_obj *object);
} verbs;

/* Opens the libraries, once for the process, and finds all functions. EXPAR_ERR_UNSUPPORTED names what is missing. */
expar_status verbs_load(const verbs **out);

#endif
