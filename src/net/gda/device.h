/* SPDX-License-Identifier: Apache-2.0 */
/* The gda transport works on a device by this table of operations. Two implementations fill it: the software NIC, in a
 * thread or in a process of its own (software.c), and mlx5 devices by devx (devx/). */
#ifndef EXPAR_NET_GDA_DEVICE_H
#define EXPAR_NET_GDA_DEVICE_H

#include "cuda/cuda.h"
#include "net/gda/gda.h"
#include "net/gda/options.h"
#include "net/transport.h"

typedef struct gda_device gda_device;

/* Where a queue is found. Each rank tells this to the peer of the queue. */
typedef struct gda_address {
    uint32_t qpn;
    uint16_t lid;
    uint8_t mtu;        /* 1 is 256 bytes, 5 is 4096 */
    uint8_t link_layer; /* as verbs_port */
    uint8_t gid[16];
} gda_address;

/* Memory that is to be registered. */
typedef struct gda_source {
    void *base;
    uint64_t bytes;
    bool shared;    /* peers read, write and change it; else only requests of this rank name it */
    bool is_dmabuf; /* it is memory of a GPU, and `fd` and `offset` say where; the descriptor stays the caller's */
    bool is_device; /* it is memory of a GPU */
    int fd;
    uint64_t offset;
    uint32_t region; /* devices with add_region: it lies there, at `offset`. 0: in none */
} gda_source;

/* Memory that a device knows. */
typedef struct gda_memory {
    uint64_t remote;     /* address of its first byte in requests of peers */
    uint32_t lkey, rkey; /* big-endian */
    void *handle;        /* the device's own. NULL: nothing is registered */
} gda_memory;

typedef struct gda_device_ops {
    /* Kernels of the GPU will post to queues in its memory or in pinned memory. Call it before such queues are added.
       *ringer is what was asked for; GDA_RINGER_CPU comes back if kernels cannot write doorbells and `may_change`.
       NULL: kernels cannot post. */
    expar_status (*serve_gpu)(gda_device *self, const cuda_device *gpu, bool may_change, gda_ringer *ringer);
    /* Makes queue `number` to the PE, and marks its completions as invalid. Fills all of *parts but stop, told and
       wanted. */
    expar_status (*add_queue)(gda_device *self, const gda_plan *plan, uint32_t number, int32_t pe, gda_parts *parts,
                              gda_address *address);
    /* Connects the queue to that of the peer. Requests are carried out from then on, once both have done so. */
    expar_status (*connect)(gda_device *self, uint32_t number, int32_t pe, const gda_address *peer);
    /* The queue was given up: its requests need not be carried out, and the memory that they name is not touched later.
       NULL: the device does nothing. */
    void (*stop)(gda_device *self, uint32_t number);
    /* Passes memory of a file, `bytes` bytes that the descriptor maps, to a device that reaches no other memory. The
       descriptor stays the caller's, and the file may grow to that length later. *region is not 0, and stays valid
       until the device is closed. NULL: the device reaches memory by its address. */
    expar_status (*add_region)(gda_device *self, int fd, uint64_t bytes, uint32_t *region);
    /* Registers memory, and removes it again. Errors name the device, the call and what to do. Any thread. */
    expar_status (*add_memory)(gda_device *self, const gda_source *source, gda_memory *out);
    void (*remove_memory)(gda_device *self, gda_memory *memory);
    /* Learns of memory that a peer has registered as `shared`, and that this process has at `source->base` or in
       `source->region`. NULL: the device reaches peers by itself. */
    expar_status (*learn)(gda_device *self, int32_t pe, const gda_source *source, uint64_t remote, uint32_t rkey);
    /* Starts the device, when all of this rank's queues are connected. NULL: it runs. */
    expar_status (*start)(gda_device *self);
    /* Returns EXPAR_ERR_PEER once the device is gone, with a text that says why: it answers nothing and touches no
       memory any more. Any thread. NULL: it never goes. */
    expar_status (*check)(gda_device *self);
    /* Adds what the device counts. NULL: it counts nothing. */
    void (*count)(gda_device *self, transport_traffic *sum);
    /* Writes a few words for people: what the device is. */
    void (*describe)(const gda_device *self, char *text, size_t text_bytes);
    /* Ends all queues and registrations. No thread posts any more. */
    void (*close)(gda_device *self);
} gda_device_ops;

struct gda_device {
    const gda_device_ops *ops;
};

#endif
