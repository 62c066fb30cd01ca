/* SPDX-License-Identifier: Apache-2.0 */
/* The software NIC as the device of a rank. A thread of the rank reaches the memory of all ranks of the host where this
 * process has it mapped. A process of its own (nic/process.h) maps that memory itself, by descriptors. Ports are ranks:
 * a rank chooses the keys of its own memory, and all others give them to their devices. */
#include "net/gda/software.h"
#include "net/gda/nic/process.h"
#include "net/gda/program.h"
#include "net/gda/space.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Peers know memory by addresses that are not those where it lies, so a mix-up of the two is noticed. */
#define REMOTE_SKEW UINT64_C(0x100000000000)

enum {
    FIRST_KEY = 0x1000,          /* of memory that stays registered */
    FIRST_PASSING_KEY = 1 << 30, /* of memory of one operation */
    REGISTER_BYTES = 64,
    LEAST_LATE_MS = 3000 /* a busy machine lets a process wait, too */
};

typedef struct software_queue {
    gda_plan plan;
    gda_queue_memory memory;
    uint32_t region; /* of the memory, in another process */
    /* the register; for kernels and for another process there is one in `registers` */
    _Atomic uint64_t doorbell;
} software_queue;

typedef struct software {
    gda_device base;      /* first: a device of these operations is a software */
    nic *nic;             /* in a thread; NULL: there is `process` */
    nic_process *process; /* NULL: there is `nic` */
    uint32_t rank;
    software_queue *queues; /* [num_queues] */
    uint32_t num_queues;
    int64_t spin_ns; /* as nic_start has it */
    /* Threads that register memory add to them; they order nothing. */
    _Atomic uint32_t next_key, next_passing;
    /* For another process, and for kernels of a GPU: registers in memory that they access, REGISTER_BYTES for each
       queue. */
    gda_space registers;
    uint32_t registers_region; /* in another process */
    /* For kernels of a GPU: a way to its memory. */
    mem_copier *copier;
    gda_window window;
} software;

/* The keys of registered memory, as nic_memory has them. */
typedef struct software_keys {
    uint32_t lkey, rkey; /* rkey 0: there is none */
} software_keys;

static software *software_of(gda_device *self)
{
    return (software *)self;
}

nic *gda_software_nic(gda_device *self)
{
    return software_of(self)->nic;
}

int gda_software_process(gda_device *self)
{
    const nic_process *p = software_of(self)->process;
    return p ? nic_process_id(p) : -1;
}

/* ---- orders to the NIC, in a thread or in a process -------------------------------------------------------------- */

/* A process of its own gets the memory as a part of a region. */
static expar_status software_give_memory(software *s, const nic_memory *memory, uint32_t region, uint64_t offset)
{
    return s->process ? nic_pass_memory(s->process, memory, region, offset) : nic_add_memory(s->nic, memory);
}

/* A process that is gone has no memory to remove. */
static void software_take_memory(software *s, uint32_t key)
{
    if (s->nic) nic_remove_memory(s->nic, s->rank, key);
    if (s->process && nic_pass_memory_removal(s->process, s->rank, key) != EXPAR_OK)
        LOG(LOG_DEBUG, "gda: %s", expar_last_error());
}

/* ---- queues ------------------------------------------------------------------------------------------------------ */

static uint32_t qpn_of(uint32_t number)
{
    return 1 + number;
}

static nic_window *window_to(software *s, const gda_space *space)
{
    return space->place == GDA_PLACE_DEVICE ? &s->window.base : NULL;
}

/* Returns the address of a part for the NIC's thread, or for its window. */
static void *nic_base(const gda_space *space, uint64_t offset)
{
    return space->host ? space->host + offset : (uint8_t *)(uintptr_t)space->address + offset;
}

static void set_doorbell(software *s, uint32_t number, gda_parts *parts)
{
    software_queue *q = &s->queues[number];
    const uint64_t at = (uint64_t)number * REGISTER_BYTES;
    parts->doorbell = parts->host_doorbell = &q->doorbell;
    if (q->plan.place == GDA_PLACE_HOST) return;
    parts->doorbell = (_Atomic uint64_t *)(uintptr_t)(s->registers.address + at);
    parts->host_doorbell = (_Atomic uint64_t *)(void *)(s->registers.host + at);
}

/* Gives memory to the NIC's process. */
static expar_status pass_space(software *s, gda_space *space, uint32_t *region)
{
    expar_status status = nic_pass_region(s->process, space->fd, space->bytes, region);
    gda_space_passed(space);
    return status;
}

static expar_status software_add_queue(gda_device *self, const gda_plan *plan, uint32_t number, int32_t pe,
                                       gda_parts *parts, gda_address *address)
{
    software *s = software_of(self);
    software_queue *q = &s->queues[number];
    q->plan = *plan;
    if (s->process) q->plan.place = GDA_PLACE_SHARED;
    expar_status status = gda_queue_memory_open(&q->plan, &q->memory);
    if (status == EXPAR_OK && s->process) status = pass_space(s, &q->memory.main, &q->region);
    if (status != EXPAR_OK) return error_prefix(status, "queue %u to rank %d", number, pe);
    const uint64_t at = gda_lay_out(plan).results;
    const uint32_t key = atomic_fetch_add_explicit(&s->next_key, 1, memory_order_relaxed);
    gda_queue_memory_parts(plan, &q->memory, parts);
    set_doorbell(s, number, parts);
    parts->results_lkey = gda_be32(key);
    *address = (gda_address){.qpn = qpn_of(number)};
    const nic_memory results = {.port = s->rank,
                                .key = key,
                                .address = parts->results_address,
                                .bytes = (plan->num_results + UINT64_C(1)) * sizeof *parts->results,
                                .base = nic_base(&q->memory.main, at),
                                .access = NIC_LOCAL_WRITE,
                                .window = window_to(s, &q->memory.main)};
    return software_give_memory(s, &results, q->region, at);
}

/* The parts of a queue as offsets in its region. */
static expar_status pass_queue(software *s, uint32_t number, const nic_queue *queue)
{
    const gda_layout at = gda_lay_out(&s->queues[number].plan);
    const nic_places places = {.record = at.records,
                               .cqes = at.cqes,
                               .doorbell_region = s->registers_region,
                               .doorbell = (uint64_t)number * REGISTER_BYTES};
    return nic_pass_queue(s->process, queue, s->queues[number].region, &places);
}

static expar_status software_connect(gda_device *self, uint32_t number, int32_t pe, const gda_address *peer)
{
    software *s = software_of(self);
    software_queue *q = &s->queues[number];
    const gda_layout at = gda_lay_out(&q->plan);
    const gda_space *main = &q->memory.main, *records = &q->memory.records;
    gda_parts parts;
    set_doorbell(s, number, &parts);
    const nic_queue queue = {.qpn = qpn_of(number),
                             .port = s->rank,
                             .peer_port = (uint32_t)pe,
                             .peer_qpn = peer->qpn,
                             .depth = q->plan.depth,
                             .window = window_to(s, main),
                             .record_window = records->bytes ? NULL : window_to(s, main),
                             .blocks = nic_base(main, 0),
                             .record = records->bytes ? (void *)records->host : nic_base(main, at.records),
                             .doorbell = parts.host_doorbell,
                             .collapsed = true,
                             .cq_entries = q->plan.cq_entries,
                             .cqes = nic_base(main, at.cqes)};
    return s->process ? pass_queue(s, number, &queue) : nic_add_queue(s->nic, &queue);
}

static expar_status software_serve_gpu(gda_device *self, const cuda_device *gpu, bool may_change, gda_ringer *ringer)
{
    software *s = software_of(self);
    (void)may_change; /* kernels write registers in pinned memory */
    (void)ringer;
    expar_status status =
        gda_space_open(GDA_PLACE_PINNED, gpu, (uint64_t)s->num_queues * REGISTER_BYTES, &s->registers);
    if (status == EXPAR_OK) status = mem_copier_create(gpu->index, NULL, &s->copier);
    if (status == EXPAR_OK) s->window = gda_window_open(s->copier);
    return status;
}

static void software_stop(gda_device *self, uint32_t number)
{
    software *s = software_of(self);
    if (s->nic) nic_remove_queue(s->nic, s->rank, qpn_of(number));
    /* A process that gives no answer is killed; it does not touch the memory either. */
    if (s->process && nic_pass_queue_removal(s->process, s->rank, qpn_of(number)) != EXPAR_OK)
        LOG(LOG_WARN, "gda: %s", expar_last_error());
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Regions of the device are numbered from 1. */
static expar_status software_add_region(gda_device *self, int fd, uint64_t bytes, uint32_t *region)
{
    expar_status status = nic_pass_region(software_of(self)->process, fd, bytes, region);
    if (status == EXPAR_OK) ++*region;
    return status;
}

static uint32_t region_of(const gda_source *source)
{
    return source->region - 1;
}

static expar_status add_shared(software *s, const gda_source *source, software_keys *keys, uint64_t remote)
{
    keys->rkey = atomic_fetch_add_explicit(&s->next_key, 1, memory_order_relaxed);
    const nic_memory m = {.port = s->rank,
                          .key = keys->rkey,
                          .address = remote,
                          .bytes = source->bytes,
                          .base = source->base,
                          .access = NIC_REMOTE_READ | NIC_REMOTE_WRITE | NIC_REMOTE_ATOMIC};
    return software_give_memory(s, &m, region_of(source), source->offset);
}

static void software_remove_memory(gda_device *self, gda_memory *memory)
{
    const software_keys *keys = memory->handle;
    software *s = software_of(self);
    if (keys) {
        software_take_memory(s, keys->lkey);
        if (keys->rkey) software_take_memory(s, keys->rkey);
    }
    free(memory->handle);
    *memory = (gda_memory){0};
}

static expar_status software_add_memory(gda_device *self, const gda_source *source, gda_memory *out)
{
    software *s = software_of(self);
    _Atomic uint32_t *next = source->shared ? &s->next_key : &s->next_passing;
    if (s->process && !source->region)
        return error_set(EXPAR_ERR_UNSUPPORTED, "gda: memory without a descriptor cannot be passed to the process of "
                                                "the software NIC");
    software_keys *keys = calloc(1, sizeof *keys);
    if (!keys) return error_set(EXPAR_ERR_MEMORY, "gda: no memory for keys");
    keys->lkey = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
    const nic_memory m = {.port = s->rank,
                          .key = keys->lkey,
                          .address = (uintptr_t)source->base,
                          .bytes = source->bytes,
                          .base = source->base,
                          .access = NIC_LOCAL_WRITE};
    const uint64_t remote = m.address + REMOTE_SKEW;
    expar_status status = software_give_memory(s, &m, region_of(source), source->offset);
    if (status == EXPAR_OK && source->shared) status = add_shared(s, source, keys, remote);
    gda_memory made = {.remote = remote, .lkey = gda_be32(keys->lkey), .rkey = gda_be32(keys->rkey), .handle = keys};
    if (status != EXPAR_OK)
        software_remove_memory(self, &made);
    else
        *out = made;
    return status;
}

static expar_status software_learn(gda_device *self, int32_t pe, const gda_source *source, uint64_t remote,
                                   uint32_t rkey)
{
    const nic_memory m = {.port = (uint32_t)pe,
                          .key = gda_be32(rkey),
                          .address = remote,
                          .bytes = source->bytes,
                          .base = source->base,
                          .access = NIC_REMOTE_READ | NIC_REMOTE_WRITE | NIC_REMOTE_ATOMIC};
    return software_give_memory(software_of(self), &m, region_of(source), source->offset);
}

/* ---- the device -------------------------------------------------------------------------------------------------- */

static expar_status software_start(gda_device *self)
{
    return nic_start(software_of(self)->nic, software_of(self)->spin_ns);
}

static expar_status software_check(gda_device *self)
{
    return nic_process_check(software_of(self)->process);
}

static void software_count(gda_device *self, transport_traffic *sum)
{
    software *s = software_of(self);
    nic_counts counts = {0};
    if (s->nic) counts = nic_counted(s->nic);
    if (s->process && nic_pass_count(s->process, &counts) != EXPAR_OK) LOG(LOG_DEBUG, "gda: %s", expar_last_error());
    sum->completions += counts.completions;
    sum->device_ns += counts.busy_ns;
}

static void software_describe(const gda_device *self, char *text, size_t text_bytes)
{
    const software *s = (const software *)self;
    if (s->process)
        snprintf(text, text_bytes, "software NIC in process %d", nic_process_id(s->process));
    else
        snprintf(text, text_bytes, "software NIC in a thread of the rank");
}

static void software_close(gda_device *self)
{
    software *s = software_of(self);
    if (s->nic) nic_close(s->nic);
    if (s->process) nic_process_end(s->process);
    for (uint32_t i = 0; s->queues && i < s->num_queues; i++)
        gda_queue_memory_close(&s->queues[i].memory);
    gda_space_close(&s->registers);
    mem_copier_destroy(s->copier);
    free(s->queues);
    free(s);
}

static const gda_device_ops thread_ops = {
    .serve_gpu = software_serve_gpu,
    .add_queue = software_add_queue,
    .connect = software_connect,
    .stop = software_stop,
    .add_memory = software_add_memory,
    .remove_memory = software_remove_memory,
    .learn = software_learn,
    .start = software_start,
    .count = software_count,
    .describe = software_describe,
    .close = software_close,
};

/* The process runs from the beginning. It reaches no memory of GPUs. */
static const gda_device_ops process_ops = {
    .add_queue = software_add_queue,
    .connect = software_connect,
    .stop = software_stop,
    .add_region = software_add_region,
    .add_memory = software_add_memory,
    .remove_memory = software_remove_memory,
    .learn = software_learn,
    .check = software_check,
    .count = software_count,
    .describe = software_describe,
    .close = software_close,
};

static expar_status start_process(software *s, const gda_options *options, int64_t late_ms)
{
    char path[PATH_MAX];
    const nic_process_plan plan = {.program = path,
                                   .faults = options->faults,
                                   .late_ms = late_ms < LEAST_LATE_MS ? LEAST_LATE_MS : late_ms,
                                   .spin_ns = s->spin_ns};
    const uint64_t bytes = (uint64_t)s->num_queues * REGISTER_BYTES;
    s->base.ops = &process_ops;
    expar_status status = gda_find_program(path);
    if (status == EXPAR_OK) status = nic_process_start(&plan, &s->process);
    if (status == EXPAR_OK) status = gda_space_open(GDA_PLACE_SHARED, NULL, bytes, &s->registers);
    return status == EXPAR_OK ? pass_space(s, &s->registers, &s->registers_region) : status;
}

expar_status gda_software_open(const gda_options *options, const gda_software_plan *plan, gda_device **out)
{
    software *s = calloc(1, sizeof *s);
    if (!s) return error_set(EXPAR_ERR_MEMORY, "gda: no memory for a software NIC");
    *s = (software){.base.ops = &thread_ops,
                    .rank = (uint32_t)plan->rank,
                    .num_queues = plan->num_queues,
                    .spin_ns = plan->spin_ns};
    atomic_store_explicit(&s->next_key, FIRST_KEY, memory_order_relaxed);
    atomic_store_explicit(&s->next_passing, FIRST_PASSING_KEY, memory_order_relaxed);
    const size_t bytes = align_up((size_t)s->num_queues * sizeof *s->queues, 64);
    s->queues = aligned_alloc(64, bytes);
    expar_status status =
        s->queues ? EXPAR_OK : error_set(EXPAR_ERR_MEMORY, "gda: no memory for %u queues", s->num_queues);
    if (s->queues) memset(s->queues, 0, bytes);
    if (status == EXPAR_OK)
        status = options->process ? start_process(s, options, plan->late_ms) : nic_open(&options->faults, &s->nic);
    if (status != EXPAR_OK) {
        software_close(&s->base);
        return status;
    }
    *out = &s->base;
    return EXPAR_OK;
}
