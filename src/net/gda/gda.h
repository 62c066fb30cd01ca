/* SPDX-License-Identifier: Apache-2.0 */
/* gda: threads, of a GPU or of the CPU, write the requests of an mlx5 device themselves and ring its doorbell.
 *
 *     format.h   the bytes of requests, doorbells and completions
 *     access.h   ordered accesses to shared words
 *     queue.h    a send queue: reserve, write, commit, ring, poll, quiet
 *     keys.h     keys of memory, and transfers that are cut at the borders of chunks
 *     space.h    memory of queues, of the host or of a GPU
 *     nic/       the software NIC, which stands in for the device
 *
 * The first four compile as C17 and under NVRTC. This header is the host's part: it checks the shape of a queue and
 * starts it. */
#ifndef EXPAR_NET_GDA_H
#define EXPAR_NET_GDA_H

#include "base/base.h"
#include "net/gda/keys.h"

/* Says where the memory of a queue lies. */
typedef enum gda_place {
    GDA_PLACE_HOST,   /* memory of the host, for threads of the CPU alone */
    GDA_PLACE_PINNED, /* memory of the host that kernels access, too */
    GDA_PLACE_DEVICE, /* memory of the GPU whose kernels post */
    GDA_PLACE_SHARED  /* as GDA_PLACE_HOST, for a device in another process, which maps it */
} gda_place;

/* The shape of a queue, and who uses it. */
typedef struct gda_plan {
    uint32_t depth;      /* of the send queue, in blocks */
    uint32_t cq_entries; /* of the completion queue */
    uint32_t batch;      /* a thread rings at least when it crosses a multiple of this */
    uint32_t most;       /* blocks of the largest reservation */
    uint32_t num_results;
    gda_scope scope;
    gda_ringer ringer;
    gda_place place;
    const struct cuda_device *gpu; /* GDA_PLACE_PINNED, _DEVICE: the kernels' */
    bool collapsed, never_full, flushes;
    uint64_t first; /* index of the first request; tests start near the end of 16 bits */
} gda_plan;

/* The memory of a queue, in the address space of the threads that post; gda_queue has the meaning of each. */
typedef struct gda_parts {
    gda_block *blocks;
    PORTABLE_SHARED(uint32_t) * record;
    PORTABLE_SHARED(uint64_t) * doorbell;
    PORTABLE_SHARED(uint32_t) * cqes;
    PORTABLE_SHARED(uint32_t) * cq_record;
    const PORTABLE_SHARED(uint64_t) * stop;
    PORTABLE_SHARED(uint64_t) * told;
    PORTABLE_SHARED(uint64_t) * wanted;
    uint64_t *results;
    uint64_t results_address;
    uint32_t results_lkey;
    /* For a thread of the host that rings; gda_queue has no place for them. */
    PORTABLE_SHARED(uint32_t) * host_record;
    PORTABLE_SHARED(uint64_t) * host_doorbell;
} gda_parts;

/* Checks the numbers of a plan. The error text names the number, its value and what was expected. */
expar_status gda_plan_check(const gda_plan *plan);

/* Fills the queue for the device's queue pair `qpn` to that PE. The plan was checked. It does not touch the memory of
   the parts: gda_cqes_clear and gda_record_clear set completion entries and record before the device starts. */
void gda_queue_start(gda_queue *queue, const gda_plan *plan, const gda_parts *parts, uint32_t qpn, int32_t pe);

/* Marks all entries as invalid. The counter of a collapsed entry stands before the plan's first index. */
void gda_cqes_clear(const gda_plan *plan, PORTABLE_SHARED(uint32_t) * cqes);

/* Sets the send counter of a record to the plan's first index. */
void gda_record_clear(const gda_plan *plan, PORTABLE_SHARED(uint32_t) * record);

/* Why the host has given up a queue: the syndrome of a failure by the host. */
enum { GDA_NO_ANSWER = 0, GDA_DEVICE_IS_GONE = 1 };

/* Writes one line about a failure: what the device reported, and for which request. */
void gda_failure_text(uint64_t failure, int32_t pe, char *text, size_t text_bytes);

#endif
