/* SPDX-License-Identifier: Apache-2.0 */
/* Orders to a software NIC in another process, and the loop there that serves them. */
#include "net/gda/nic/process.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define MOST_REGIONS 64

typedef enum nic_order_kind { ORDER_REGION, ORDER_MEMORY, ORDER_REMOVAL, ORDER_QUEUE } nic_order_kind;

typedef struct nic_order {
    nic_order_kind kind;
    uint32_t region;
    uint64_t offset, bytes;
    nic_memory memory;
    nic_queue queue;
    nic_places places;
} nic_order;

typedef struct nic_answer {
    expar_status status;
    uint32_t region;
    char text[ERROR_TEXT_BYTES];
} nic_answer;

/* Memory that the device's process has mapped. */
typedef struct nic_region {
    uint8_t *base;
    uint64_t bytes;
} nic_region;

typedef struct nic_server {
    nic *nic;
    nic_region regions[MOST_REGIONS];
    uint32_t num_regions;
} nic_server;

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* A message with space for one descriptor. */
typedef struct nic_letter {
    struct msghdr header;
    struct iovec part;
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
} nic_letter;

static void letter_begin(nic_letter *letter, void *data, size_t bytes)
{
    memset(letter, 0, sizeof *letter);
    letter->part = (struct iovec){.iov_base = data, .iov_len = bytes};
    letter->header.msg_iov = &letter->part;
    letter->header.msg_iovlen = 1;
    letter->header.msg_control = letter->control;
    letter->header.msg_controllen = sizeof letter->control;
}

/* `fd` -1: none goes with it. */
static bool send_letter(int socket, void *data, size_t bytes, int fd)
{
    nic_letter letter;
    letter_begin(&letter, data, bytes);
    if (fd < 0) {
        letter.header.msg_control = NULL;
        letter.header.msg_controllen = 0;
    } else {
        struct cmsghdr *control = CMSG_FIRSTHDR(&letter.header);
        control->cmsg_level = SOL_SOCKET;
        control->cmsg_type = SCM_RIGHTS;
        control->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(control), &fd, sizeof fd);
    }
    ssize_t sent;
    do {
        sent = sendmsg(socket, &letter.header, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)bytes;
}

/* Returns false at the end of the connection, and for a message of another size. *fd is -1 if none came. */
static bool receive_letter(int socket, void *data, size_t bytes, int *fd)
{
    nic_letter letter;
    letter_begin(&letter, data, bytes);
    *fd = -1;
    ssize_t got;
    do {
        got = recvmsg(socket, &letter.header, MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    if (got <= 0) return false;
    const struct cmsghdr *control = CMSG_FIRSTHDR(&letter.header);
    if (control && control->cmsg_type == SCM_RIGHTS) memcpy(fd, CMSG_DATA(control), sizeof *fd);
    return got == (ssize_t)bytes;
}

/* ---- the device's process ---------------------------------------------------------------------------------------- */

static expar_status serve_region(nic_server *s, const nic_order *order, int fd, uint32_t *region)
{
    if (fd < 0) return error_set(EXPAR_ERR_ARGUMENT, "software NIC: no descriptor came with a region");
    if (s->num_regions == MOST_REGIONS)
        return error_set(EXPAR_ERR_LIMIT, "software NIC: it has %d regions already", MOST_REGIONS);
    nic_region *r = &s->regions[s->num_regions];
    r->bytes = order->bytes;
    r->base = mmap(NULL, order->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (r->base == MAP_FAILED) return error_errno("software NIC: a region cannot be mapped");
    *region = s->num_regions++;
    return EXPAR_OK;
}

/* Returns the address of a part of a region; NULL if it leaves the region. */
static void *place_in(const nic_server *s, uint32_t region, uint64_t offset, uint64_t bytes)
{
    if (region >= s->num_regions) return NULL;
    const nic_region *r = &s->regions[region];
    return bytes <= r->bytes && offset <= r->bytes - bytes ? r->base + offset : NULL;
}

static expar_status serve_memory(nic_server *s, const nic_order *order)
{
    nic_memory memory = order->memory;
    memory.base = place_in(s, order->region, order->offset, memory.bytes);
    if (!memory.base)
        return error_set(EXPAR_ERR_RANGE, "software NIC: memory of %llu bytes at %llu is not inside region %u",
                         (unsigned long long)memory.bytes, (unsigned long long)order->offset, order->region);
    return nic_add_memory(s->nic, &memory);
}

static expar_status serve_queue(nic_server *s, const nic_order *order)
{
    const nic_places *at = &order->places;
    const uint64_t cqe_bytes = 64;
    nic_queue q = order->queue;
    const uint64_t entries = q.collapsed ? 1 : q.cq_entries;
    q.blocks = place_in(s, order->region, at->blocks, (uint64_t)q.depth * cqe_bytes);
    q.record = place_in(s, order->region, at->record, 2 * sizeof(uint32_t));
    q.doorbell = place_in(s, order->region, at->doorbell, sizeof(uint64_t));
    q.cqes = place_in(s, order->region, at->cqes, entries * cqe_bytes);
    q.cq_record = q.collapsed ? NULL : place_in(s, order->region, at->cq_record, sizeof(uint32_t));
    q.receive_cqes =
        q.num_receives ? place_in(s, order->region, at->receive_cqes, q.receive_cq_entries * cqe_bytes) : NULL;
    return nic_add_queue(s->nic, &q);
}

static expar_status serve_order(nic_server *s, const nic_order *order, int fd, uint32_t *region)
{
    switch (order->kind) {
    case ORDER_REGION:
        return serve_region(s, order, fd, region);
    case ORDER_MEMORY:
        return serve_memory(s, order);
    case ORDER_REMOVAL:
        nic_remove_memory(s->nic, order->memory.port, order->memory.key);
        return EXPAR_OK;
    case ORDER_QUEUE:
        return serve_queue(s, order);
    }
    return error_set(EXPAR_ERR_ARGUMENT, "software NIC: order %d is not known", (int)order->kind);
}

expar_status nic_serve(int socket, const nic_faults *faults)
{
    nic_server *s = calloc(1, sizeof *s);
    if (!s) return error_set(EXPAR_ERR_MEMORY, "software NIC: no memory");
    expar_status status = nic_open(faults, &s->nic);
    if (status == EXPAR_OK) status = nic_start(s->nic);
    nic_order order;
    int fd = -1;
    while (status == EXPAR_OK && receive_letter(socket, &order, sizeof order, &fd)) {
        nic_answer answer = {.status = EXPAR_OK};
        answer.status = serve_order(s, &order, fd, &answer.region);
        if (answer.status != EXPAR_OK) snprintf(answer.text, sizeof answer.text, "%s", expar_last_error());
        if (fd >= 0) close(fd);
        if (!send_letter(socket, &answer, sizeof answer, -1)) break;
    }
    if (s->nic) nic_close(s->nic);
    for (uint32_t i = 0; i < s->num_regions; i++)
        munmap(s->regions[i].base, s->regions[i].bytes);
    free(s);
    return status;
}

/* ---- the other side ---------------------------------------------------------------------------------------------- */

static expar_status give_order(int socket, nic_order *order, int fd, uint32_t *region)
{
    nic_answer answer;
    int unused;
    if (!send_letter(socket, order, sizeof *order, fd) || !receive_letter(socket, &answer, sizeof answer, &unused))
        return error_set(EXPAR_ERR_PEER, "software NIC: its process is gone");
    if (answer.status != EXPAR_OK) return error_set(answer.status, "%s", answer.text);
    if (region) *region = answer.region;
    return EXPAR_OK;
}

expar_status nic_pass_region(int socket, int fd, uint64_t bytes, uint32_t *region)
{
    nic_order order = {.kind = ORDER_REGION, .bytes = bytes};
    return give_order(socket, &order, fd, region);
}

expar_status nic_pass_memory(int socket, const nic_memory *memory, uint32_t region, uint64_t offset)
{
    nic_order order = {.kind = ORDER_MEMORY, .memory = *memory, .region = region, .offset = offset};
    return give_order(socket, &order, -1, NULL);
}

expar_status nic_pass_removal(int socket, uint32_t port, uint32_t key)
{
    nic_order order = {.kind = ORDER_REMOVAL, .memory = {.port = port, .key = key}};
    return give_order(socket, &order, -1, NULL);
}

expar_status nic_pass_queue(int socket, const nic_queue *queue, uint32_t region, const nic_places *places)
{
    nic_order order = {.kind = ORDER_QUEUE, .queue = *queue, .region = region, .places = *places};
    return give_order(socket, &order, -1, NULL);
}
