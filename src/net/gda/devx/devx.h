/* SPDX-License-Identifier: Apache-2.0 */
/* mlx5 devices as devices of the gda transport, set up by devx commands. No program of rdma-core is linked: its
 * libraries are opened at run time.
 *
 *     verbs.c     the libraries' functions, and our declarations of their structs (verbs.h)
 *     devices.c   the devices of this host: what they lack, and which one this rank takes
 *     near.c      which device is near the rank
 *     open.c      protection domain and event queue; and the end of all
 *     doorbells.c pages of doorbells, and their addresses for kernels
 *     queue.c     completion queue and queue pair of a queue, in memory of its own
 *     walk.c      the queue pair's way to the state in which it sends
 *     memory.c    registered memory
 *     failed.c    the texts of calls that failed
 *     command.h   the layout of commands
 *
 * The set-up has not run on a real device yet; tests run it on simulated libraries. */
#ifndef EXPAR_NET_GDA_DEVX_H
#define EXPAR_NET_GDA_DEVX_H

#include "net/gda/device.h"
#include "net/gda/devx/verbs.h"
#include "net/gda/space.h"

enum { DEVX_MOST_PORTS = 4, DEVX_MOST_UARS = 64, DEVX_NAME_BYTES = 64 };

/* A port that is active. */
typedef struct devx_port {
    uint8_t number; /* from 1 */
    uint8_t link_layer, mtu;
    uint16_t lid;
    uint8_t gid_index;
    verbs_gid gid;
} devx_port;

typedef struct devx_queue {
    gda_queue_memory memory;
    verbs_umem *umem;         /* blocks, completions and records */
    verbs_umem *records_umem; /* where the queue pair's record is apart; else NULL */
    struct mlx5dv_devx_obj *cq, *qp;
    uint32_t cqn, qpn;
    verbs_mr *results_mr;
} devx_queue;

/* Where this rank is, and which one it is among those that may take the same device. */
typedef struct devx_place {
    int32_t rank;
    char gpu[32];      /* PCI address of the GPU that the rank uses; "": none is known */
    int32_t numa_node; /* of its cores; -1: not known */
    int32_t turn;      /* its number among the ranks of the host */
} devx_place;

typedef struct devx {
    gda_device base; /* first: a device of these operations is a devx */
    const verbs *v;
    gda_options options;
    char name[DEVX_NAME_BYTES];
    struct ibv_context *context;
    uint32_t log_reads, log_served; /* the most that the device can */
    devx_port ports[DEVX_MOST_PORTS];
    uint32_t num_ports;
    devx_place place;
    struct ibv_pd *pd;
    uint32_t pdn, eqn;
    /* Queues share them in turns. */
    verbs_uar *uars[DEVX_MOST_UARS];
    uint32_t num_uars;
    /* The GPU for which the first `num_seen` pages are mapped, and the addresses of their registers for kernels. */
    const cuda_device *gpu;
    cu_address registers[DEVX_MOST_UARS];
    uint32_t num_seen;
    devx_queue *queues; /* [num_queues] */
    uint32_t num_queues;
} devx;

/* ---- devices.c --------------------------------------------------------------------------------------------------- */

/* Finds the devices that can be used, opens the one for this rank, and fills name, context, limits and ports. */
expar_status devx_choose(devx *d);

/* ---- near.c ------------------------------------------------------------------------------------------------------ */

/* Returns how near a device of that name is to the rank; larger is nearer. If the rank has a GPU, it is the number of
   steps that both have in common on PCI. Else a device on the NUMA node of the rank's cores is near. `sys`: /sys. */
int32_t devx_nearness(const char *sys, const char *name, const devx_place *place);
/* Returns which of `count` devices to take: in turns one of the nearest. */
size_t devx_pick(const int32_t *nearness, size_t count, int32_t turn);

/* ---- open.c ------------------------------------------------------------------------------------------------------ */

/* Opens a device for `num_queues` queues of the rank. EXPAR_ERR_UNSUPPORTED says why each device cannot be used. */
expar_status gda_devx_open(const gda_options *options, const devx_place *place, uint32_t num_queues, gda_device **out);

/* ---- doorbells.c ------------------------------------------------------------------------------------------------- */

/* Allocates the pages of doorbells, as many as there are queues, but at most DEVX_MOST_UARS. */
expar_status devx_open_doorbells(devx *d);
/* gda_device_ops.serve_gpu: maps the pages for kernels. */
expar_status devx_serve_gpu(gda_device *self, const cuda_device *gpu, bool may_change, gda_ringer *ringer);
/* Sets the registers of queue `number`, for the threads that post and for the host. */
void devx_set_doorbell(const devx *d, const gda_plan *plan, uint32_t number, gda_parts *parts);
void devx_close_doorbells(devx *d);
/* Calls of the libraries that return a pointer set errno; some of them leave it 0. */
int devx_errno(void);

/* ---- queue.c ----------------------------------------------------------------------------------------------------- */

expar_status devx_add_queue(gda_device *self, const gda_plan *plan, uint32_t number, int32_t pe, gda_parts *parts,
                            gda_address *address);
/* Ends what there is of the queue. */
void devx_close_queue(devx *d, devx_queue *q);
/* Returns the port of the queue. Both ends of a queue choose by the same numbers. */
const devx_port *devx_port_of(const devx *d, uint32_t number, int32_t pe);

/* ---- walk.c ------------------------------------------------------------------------------------------------------ */

expar_status devx_connect(gda_device *self, uint32_t number, int32_t pe, const gda_address *peer);
/* Puts the queue pair into the state of error. */
void devx_stop(gda_device *self, uint32_t number);

/* ---- memory.c ---------------------------------------------------------------------------------------------------- */

/* Registers memory of the host. Returns NULL, with errno. */
verbs_mr *devx_register(const devx *d, void *address, size_t bytes, int access);
expar_status devx_add_memory(gda_device *self, const gda_source *source, gda_memory *out);
void devx_remove_memory(gda_device *self, gda_memory *memory);

/* ---- failed.c ---------------------------------------------------------------------------------------------------- */

/* A call may find the kernel or the firmware busy (EAGAIN), or be interrupted. Waits a little longer each time, and
   returns true if the call is worth another try; after a second it is not. *tries is 0 at first. */
bool devx_again(int code, uint32_t *tries);
/* Returns EAGAIN if the device's answer says that it is busy; else `code`. */
int devx_code(int code, const uint8_t *out);
/* The error of a call of the libraries, with the text of an errno and what to do about it. */
expar_status devx_failed(const devx *d, const char *call, const char *purpose, int code);
/* The error of a command. `out` is the device's answer. */
expar_status devx_rejected(const devx *d, const char *command, const char *purpose, int code, const uint8_t *out);

#endif
