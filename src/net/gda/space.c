/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of queues in each place, the parts of a queue in it, and the window of a software NIC. */
#include "net/gda/space.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE_BYTES = 4096 };

const char *gda_place_name(gda_place place)
{
    static const char *const names[] = {[GDA_PLACE_HOST] = "host",
                                        [GDA_PLACE_PINNED] = "pinned",
                                        [GDA_PLACE_DEVICE] = "device",
                                        [GDA_PLACE_SHARED] = "shared"};
    return names[place];
}

/* ---- spaces ------------------------------------------------------------------------------------------------------ */

static expar_status open_host(gda_space *s)
{
    s->host = aligned_alloc(PAGE_BYTES, s->bytes);
    if (!s->host) return error_set(EXPAR_ERR_MEMORY, "no memory");
    memset(s->host, 0, s->bytes);
    s->address = (uintptr_t)s->host;
    return EXPAR_OK;
}

static expar_status open_shared(gda_space *s)
{
    s->fd = memfd_create("expar-gda", MFD_CLOEXEC);
    if (s->fd < 0) return error_errno("no file for it");
    if (ftruncate(s->fd, (off_t)s->bytes) != 0) return error_errno("no space in its file");
    void *at = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    if (at == MAP_FAILED) return error_errno("it cannot be mapped");
    s->host = at;
    s->address = (uintptr_t)s->host;
    return EXPAR_OK;
}

/* The GPU has been entered. */
static expar_status open_on_gpu(gda_space *s)
{
    cu_address at = 0;
    if (s->place == GDA_PLACE_PINNED) {
        expar_status status = mem_pinned_create(s->bytes, &s->pinned);
        s->host = s->pinned.host;
        s->address = s->pinned.device;
        return status;
    }
    expar_status status = CUDA_CALL(MemAlloc, &at, s->bytes);
    s->address = at;
    return status == EXPAR_OK ? mem_device_clear(s->gpu, at, s->bytes) : status;
}

expar_status gda_space_open(gda_place place, const cuda_device *gpu, uint64_t bytes, gda_space *out)
{
    const bool on_gpu = place == GDA_PLACE_PINNED || place == GDA_PLACE_DEVICE;
    gda_space s = {.place = place, .gpu = on_gpu ? gpu : NULL, .bytes = align_up(bytes, PAGE_BYTES), .fd = -1};
    expar_status status;
    if (!on_gpu) {
        status = place == GDA_PLACE_HOST ? open_host(&s) : open_shared(&s);
    } else if ((status = cuda_enter(gpu)) == EXPAR_OK) {
        status = open_on_gpu(&s);
        cuda_leave();
    }
    if (status != EXPAR_OK) {
        error_prefix(status, "gda: %llu bytes of %s memory for a queue", (unsigned long long)s.bytes,
                     gda_place_name(place));
        gda_space_close(&s);
        return status;
    }
    *out = s;
    return EXPAR_OK;
}

void gda_space_passed(gda_space *s)
{
    if (s->place == GDA_PLACE_SHARED && s->fd >= 0) close(s->fd);
    s->fd = -1;
}

void gda_space_close(gda_space *s)
{
    gda_space_passed(s);
    if (s->place == GDA_PLACE_HOST) {
        free(s->host);
    } else if (s->place == GDA_PLACE_SHARED) {
        if (s->host) munmap(s->host, s->bytes);
    } else if (s->address && cuda_enter(s->gpu) == EXPAR_OK) {
        if (s->place == GDA_PLACE_PINNED) mem_pinned_free(&s->pinned);
        if (s->place == GDA_PLACE_DEVICE && CUDA_CALL(MemFree, s->address) != EXPAR_OK)
            LOG(LOG_WARN, "%s", expar_last_error());
        cuda_leave();
    }
    *s = (gda_space){0};
}

static expar_status space_copy_entered(const gda_space *s, uint64_t offset, void *here, uint64_t bytes, bool writes)
{
    cu_stream stream = NULL;
    expar_status status = CUDA_CALL(StreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    if (status != EXPAR_OK) return status;
    status = writes ? CUDA_CALL(MemcpyHtoDAsync, s->address + offset, here, bytes, stream)
                    : CUDA_CALL(MemcpyDtoHAsync, here, s->address + offset, bytes, stream);
    if (status == EXPAR_OK) status = CUDA_CALL(StreamSynchronize, stream);
    cuda_driver()->StreamDestroy(stream);
    return status;
}

static expar_status space_copy(const gda_space *s, uint64_t offset, void *here, uint64_t bytes, bool writes)
{
    const mem_side there = {.at = (uint8_t *)(uintptr_t)s->address + offset, .kind = MEM_DEVICE};
    const mem_side near = {.at = here, .kind = MEM_PAGEABLE};
    if (s->copier) return mem_copier_copy(s->copier, writes ? there : near, writes ? near : there, bytes);
    expar_status status = cuda_enter(s->gpu);
    if (status != EXPAR_OK) return status;
    status = space_copy_entered(s, offset, here, bytes, writes);
    cuda_leave();
    return status;
}

expar_status gda_space_write(const gda_space *s, uint64_t offset, const void *source, uint64_t bytes)
{
    if (!s->host) return space_copy(s, offset, (void *)(uintptr_t)source, bytes, true);
    memcpy(s->host + offset, source, bytes);
    return EXPAR_OK;
}

expar_status gda_space_read(const gda_space *s, uint64_t offset, void *dest, uint64_t bytes)
{
    if (!s->host) return space_copy(s, offset, dest, bytes, false);
    memcpy(dest, s->host + offset, bytes);
    return EXPAR_OK;
}

/* ---- the parts of a queue ---------------------------------------------------------------------------------------- */

gda_layout gda_lay_out(const gda_plan *plan)
{
    gda_layout at = {.cqes = (uint64_t)plan->depth * GDA_BLOCK_BYTES};
    at.records = at.cqes + (uint64_t)plan->cq_entries * GDA_CQE_WORDS * sizeof(uint32_t);
    at.results = align_up(at.records + GDA_RECORDS_BYTES, PAGE_BYTES);
    at.bytes = at.results + align_up((plan->num_results + UINT64_C(1)) * sizeof(uint64_t), PAGE_BYTES);
    return at;
}

static bool record_is_apart(const gda_plan *plan)
{
    return plan->place == GDA_PLACE_DEVICE && plan->ringer == GDA_RINGER_CPU;
}

/* Completions and records are made in memory of the host, and then copied. */
static expar_status fill_queue(const gda_plan *plan, const gda_queue_memory *m)
{
    const gda_layout at = gda_lay_out(plan);
    const uint64_t bytes = at.results - at.cqes;
    uint8_t *image = calloc(1, bytes);
    if (!image) return error_set(EXPAR_ERR_MEMORY, "gda: no memory for a queue");
    _Atomic uint32_t *record = (_Atomic uint32_t *)(void *)(image + (at.records - at.cqes));
    gda_cqes_clear(plan, (_Atomic uint32_t *)(void *)image);
    gda_record_clear(plan, record);
    expar_status status = gda_space_write(&m->main, at.cqes, image, bytes);
    if (status == EXPAR_OK && record_is_apart(plan))
        status = gda_space_write(&m->records, 0, (const void *)record, GDA_RECORD_WORDS * sizeof *record);
    free(image);
    return status;
}

expar_status gda_queue_memory_open(const gda_plan *plan, gda_queue_memory *out)
{
    gda_queue_memory m = {0};
    expar_status status = gda_space_open(plan->place, plan->gpu, gda_lay_out(plan).bytes, &m.main);
    if (status == EXPAR_OK && record_is_apart(plan))
        status = gda_space_open(GDA_PLACE_PINNED, plan->gpu, GDA_RECORDS_BYTES, &m.records);
    if (status == EXPAR_OK) status = fill_queue(plan, &m);
    if (status == EXPAR_OK)
        *out = m;
    else
        gda_queue_memory_close(&m);
    return status;
}

void gda_queue_memory_close(gda_queue_memory *m)
{
    gda_space_close(&m->main);
    gda_space_close(&m->records);
}

void gda_queue_memory_parts(const gda_plan *plan, const gda_queue_memory *m, gda_parts *parts)
{
    const gda_layout at = gda_lay_out(plan);
    uint8_t *memory = (uint8_t *)(uintptr_t)m->main.address;
    const gda_space *records = m->records.bytes ? &m->records : &m->main;
    const uint64_t record = m->records.bytes ? 0 : at.records;
    *parts = (gda_parts){.blocks = (gda_block *)(void *)memory,
                         .record = (_Atomic uint32_t *)(void *)((uint8_t *)(uintptr_t)records->address + record),
                         .host_record = records->host ? (_Atomic uint32_t *)(void *)(records->host + record) : NULL,
                         .cqes = (_Atomic uint32_t *)(void *)(memory + at.cqes),
                         .cq_record = (_Atomic uint32_t *)(void *)(memory + at.records + GDA_CQ_RECORD_AT),
                         .results = (uint64_t *)(void *)(memory + at.results),
                         .results_address = m->main.address + at.results};
}

/* ---- windows ----------------------------------------------------------------------------------------------------- */

static bool window_copy(nic_window *self, mem_side dest, mem_side source, size_t bytes)
{
    gda_window *w = (gda_window *)self;
    if (mem_lane_copy(w->lane, dest, source, bytes) == EXPAR_OK) return true;
    if (!w->failed) LOG(LOG_WARN, "software NIC: memory of a GPU is out of reach: %s", expar_last_error());
    w->failed = true;
    return false;
}

static bool window_read(nic_window *self, void *dest, const void *at, size_t bytes)
{
    const mem_side source = {.at = (void *)(uintptr_t)at, .kind = MEM_DEVICE};
    return window_copy(self, (mem_side){.at = dest, .kind = MEM_PAGEABLE}, source, bytes);
}

static bool window_write(nic_window *self, void *at, const void *source, size_t bytes)
{
    const mem_side from = {.at = (void *)(uintptr_t)source, .kind = MEM_PAGEABLE};
    return window_copy(self, (mem_side){.at = at, .kind = MEM_DEVICE}, from, bytes);
}

gda_window gda_window_open(mem_copier *copier)
{
    return (gda_window){.base = {.read = window_read, .write = window_write}, .lane = mem_copier_own_lane(copier)};
}
