/* SPDX-License-Identifier: Apache-2.0 */
/* The device's side of process.h: a loop that serves orders, beside the thread of the device. */
#include "net/gda/nic/orders.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK_BYTES = 64 }; /* of a request, and of a completion */

/* Memory that the device's process has mapped. */
typedef struct nic_region {
    uint8_t *base;
    uint64_t bytes;
    int fd; /* of a file that is shorter than the region and may grow; else -1 */
} nic_region;

typedef struct nic_server {
    nic *nic; /* NULL: not started */
    nic_region *regions;
    uint32_t num_regions;
} nic_server;

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Takes the descriptor if it returns EXPAR_OK. */
static expar_status map_region(const nic_order *order, int fd, nic_region *r)
{
    struct stat facts;
    if (fd < 0) return error_set(EXPAR_ERR_ARGUMENT, "software NIC: no descriptor came with a region");
    if (fstat(fd, &facts) != 0) return error_errno("software NIC: fstat of a region");
    r->bytes = order->bytes;
    r->base = mmap(NULL, order->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (r->base == MAP_FAILED)
        return error_errno("software NIC: a region of %llu bytes cannot be mapped", (unsigned long long)order->bytes);
    r->fd = (uint64_t)facts.st_size < order->bytes ? fd : -1;
    if (r->fd < 0) close(fd);
    return EXPAR_OK;
}

static expar_status serve_region(nic_server *s, const nic_order *order, int *fd, uint32_t *region)
{
    nic_region *larger = realloc(s->regions, (s->num_regions + 1) * sizeof *larger);
    if (!larger) return error_set(EXPAR_ERR_MEMORY, "software NIC: no memory for %u regions", s->num_regions + 1);
    s->regions = larger;
    expar_status status = map_region(order, *fd, &larger[s->num_regions]);
    if (status != EXPAR_OK) return status;
    *fd = -1;
    *region = s->num_regions++;
    return EXPAR_OK;
}

/* Returns the address of a part of a region; NULL if it leaves the region, or lies after the end of its file, where an
   access would end the process. */
static void *place_in(const nic_server *s, uint32_t region, uint64_t offset, uint64_t bytes)
{
    struct stat facts;
    if (region >= s->num_regions) return NULL;
    const nic_region *r = &s->regions[region];
    uint64_t end = r->bytes;
    if (r->fd >= 0) end = fstat(r->fd, &facts) == 0 && (uint64_t)facts.st_size < end ? (uint64_t)facts.st_size : end;
    return bytes <= end && offset <= end - bytes ? r->base + offset : NULL;
}

static expar_status serve_memory(const nic_server *s, const nic_order *order)
{
    nic_memory memory = order->memory;
    memory.window = NULL;
    memory.base = place_in(s, order->region, order->offset, memory.bytes);
    if (!memory.base)
        return error_set(EXPAR_ERR_RANGE,
                         "software NIC: memory of %llu bytes at %llu is not inside region %u and its file",
                         (unsigned long long)memory.bytes, (unsigned long long)order->offset, order->region);
    return nic_add_memory(s->nic, &memory);
}

static expar_status serve_queue(const nic_server *s, const nic_order *order)
{
    const nic_places *at = &order->places;
    nic_queue q = order->queue;
    const uint64_t entries = q.collapsed ? 1 : q.cq_entries;
    q.window = q.record_window = NULL;
    q.blocks = place_in(s, order->region, at->blocks, (uint64_t)q.depth * BLOCK_BYTES);
    q.record = place_in(s, order->region, at->record, 2 * sizeof(uint32_t));
    q.doorbell = place_in(s, at->doorbell_region, at->doorbell, sizeof(uint64_t));
    q.cqes = place_in(s, order->region, at->cqes, entries * BLOCK_BYTES);
    q.cq_record = q.collapsed ? NULL : place_in(s, order->region, at->cq_record, sizeof(uint32_t));
    q.receive_cqes = NULL;
    if (q.num_receives)
        q.receive_cqes = place_in(s, order->region, at->receive_cqes, (uint64_t)q.receive_cq_entries * BLOCK_BYTES);
    return nic_add_queue(s->nic, &q);
}

/* ---- orders ------------------------------------------------------------------------------------------------------ */

static expar_status serve_start(nic_server *s, const nic_order *order)
{
    if (s->nic) return error_set(EXPAR_ERR_STATE, "software NIC: it runs already");
    expar_status status = nic_open(&order->faults, &s->nic);
    return status == EXPAR_OK ? nic_start(s->nic, order->spin_ns) : status;
}

/* Takes the descriptor out of *fd if it is used. */
static expar_status serve_order(nic_server *s, const nic_order *order, int *fd, nic_answer *answer)
{
    if (order->kind == ORDER_START) return serve_start(s, order);
    if (!s->nic) return error_set(EXPAR_ERR_STATE, "software NIC: it was not started");
    switch (order->kind) {
    case ORDER_START:
        break;
    case ORDER_REGION:
        return serve_region(s, order, fd, &answer->region);
    case ORDER_MEMORY:
        return serve_memory(s, order);
    case ORDER_MEMORY_REMOVAL:
        nic_remove_memory(s->nic, order->memory.port, order->memory.key);
        return EXPAR_OK;
    case ORDER_QUEUE:
        return serve_queue(s, order);
    case ORDER_QUEUE_REMOVAL:
        nic_remove_queue(s->nic, order->queue.port, order->queue.qpn);
        return EXPAR_OK;
    case ORDER_COUNT:
        answer->counts = nic_counted(s->nic);
        return EXPAR_OK;
    }
    return error_set(EXPAR_ERR_ARGUMENT, "software NIC: order %d is not known", (int)order->kind);
}

/* Waits for a message or the end of the connection. Returns false at the end of the rank. */
static bool rank_lives(int socket, int parent)
{
    struct pollfd polled[2] = {{.fd = socket, .events = POLLIN}, {.fd = parent, .events = POLLIN}};
    int count;
    do {
        count = poll(polled, 2, -1);
    } while (count < 0 && errno == EINTR);
    return count > 0 && !polled[1].revents;
}

/* *goes_on is false at the end of the connection. */
static expar_status serve_one(nic_server *s, int socket, bool *goes_on)
{
    nic_order order;
    nic_answer answer = {.status = EXPAR_OK};
    int fd;
    const ssize_t bytes = nic_letter_receive(socket, &order, sizeof order, &fd);
    *goes_on = bytes > 0;
    if (bytes > 0 && bytes != (ssize_t)sizeof order)
        return error_set(EXPAR_ERR_MISMATCH,
                         "software NIC: an order of %zd bytes, expected %zu: are the program and "
                         "the library of one version?",
                         bytes, sizeof order);
    if (bytes <= 0) return EXPAR_OK;
    answer.status = serve_order(s, &order, &fd, &answer);
    if (answer.status != EXPAR_OK) snprintf(answer.text, sizeof answer.text, "%s", expar_last_error());
    if (fd >= 0) close(fd);
    *goes_on = nic_letter_send(socket, &answer, sizeof answer, -1);
    return EXPAR_OK;
}

expar_status nic_serve(int socket, int parent)
{
    nic_server s = {0};
    expar_status status = EXPAR_OK;
    bool goes_on = true;
    while (status == EXPAR_OK && goes_on && rank_lives(socket, parent))
        status = serve_one(&s, socket, &goes_on);
    if (s.nic) nic_close(s.nic);
    for (uint32_t i = 0; i < s.num_regions; i++) {
        munmap(s.regions[i].base, s.regions[i].bytes);
        if (s.regions[i].fd >= 0) close(s.regions[i].fd);
    }
    free(s.regions);
    return status;
}
