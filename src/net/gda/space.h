/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of queues: of the host, of the host and pinned so that kernels use it, or of a GPU.
 *
 * Threads that post and a device may know it by different addresses. A software NIC, which is a thread of the CPU,
 * reaches memory of a GPU by a window. */
#ifndef EXPAR_NET_GDA_SPACE_H
#define EXPAR_NET_GDA_SPACE_H

#include "mem/copier.h"
#include "mem/device.h"
#include "net/gda/gda.h"
#include "net/gda/nic/nic.h"

/* A piece of zeroed memory, aligned to pages. */
typedef struct gda_space {
    gda_place place;
    const cuda_device *gpu; /* GDA_PLACE_DEVICE: whose memory it is */
    /* GDA_PLACE_DEVICE: makes the copies, if the owner has set it. Else each copy makes a stream, which may wait for
       kernels. */
    mem_copier *copier;
    uint64_t bytes;
    uint8_t *host;    /* its address for threads of the CPU; GDA_PLACE_DEVICE: NULL */
    uint64_t address; /* for kernels; GDA_PLACE_HOST, _SHARED: as `host` */
    mem_pinned pinned;
    int fd; /* GDA_PLACE_SHARED: of its file, until gda_space_passed; else not used */
} gda_space;

/* `gpu` is used for GDA_PLACE_PINNED and _DEVICE only. EXPAR_ERR_MEMORY names the place and the bytes. */
expar_status gda_space_open(gda_place place, const cuda_device *gpu, uint64_t bytes, gda_space *out);
/* No thread, kernel or device uses it any more. An empty one is allowed. */
void gda_space_close(gda_space *space);
/* All processes that map the memory of GDA_PLACE_SHARED have got its descriptor, which is closed. */
void gda_space_passed(gda_space *space);
/* Copies between memory of the host and the space at that offset; returns when it is done. */
expar_status gda_space_write(const gda_space *space, uint64_t offset, const void *source, uint64_t bytes);
expar_status gda_space_read(const gda_space *space, uint64_t offset, void *dest, uint64_t bytes);
/* Returns the name of a place. */
const char *gda_place_name(gda_place place);

/* Where the parts of a queue lie in its memory. The results begin at a page, because they are registered apart. */
typedef struct gda_layout {
    uint64_t cqes, records, results, bytes; /* blocks are at 0 */
} gda_layout;
enum { GDA_RECORDS_BYTES = 64, GDA_CQ_RECORD_AT = 32 };
gda_layout gda_lay_out(const gda_plan *plan);

/* The memory of a queue. If the host rings for a queue in a GPU's memory, its record is apart in pinned memory. */
typedef struct gda_queue_memory {
    gda_space main, records;
} gda_queue_memory;
/* Opens it, and marks the completions as invalid. */
expar_status gda_queue_memory_open(const gda_plan *plan, gda_queue_memory *out);
void gda_queue_memory_close(gda_queue_memory *memory);
/* Gives the addresses of the parts for the threads that post, but for the register, stop, told and wanted. */
void gda_queue_memory_parts(const gda_plan *plan, const gda_queue_memory *memory, gda_parts *parts);

/* A way of a software NIC to memory of a GPU, by copies of the driver. The NIC's thread alone uses it. */
typedef struct gda_window {
    nic_window base; /* first: a window of these functions is a gda_window */
    mem_lane *lane;
    /* A copy has failed, and that was logged. The NIC's thread alone reads and writes it. */
    bool failed;
} gda_window;
/* The copier's own lane serves the window; no other thread may use that lane. */
gda_window gda_window_open(mem_copier *copier);

#endif
