/* SPDX-License-Identifier: Apache-2.0 */
/* Frames on control sockets, descriptors among them, and records on the lines beside them, while a rank is in a
 * collective. The first four bytes choose the group, the collective, its record and its root. */
#include "boot/meet/meet.h"
#include "boot/sockets/create.h"
#include "boot/sockets/sockets.h"
#include "fuzz.h"
#include "stream.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_SIZE 3
enum { BARRIER, ALLGATHER, ALLTOALL, BROADCAST, FDS, CALLS };

typedef struct scene {
    boot *group;
    int32_t rank, size, root;
    size_t bytes;
    int ends[BOOT_LINES * MAX_SIZE]; /* the peers' */
} scene;

int __real_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms);

/* All peers have sent everything before the collective starts. If no descriptor is polled any more, only the time could
   end the wait. */
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    bool any = false;
    for (nfds_t i = 0; i < count; i++) {
        fds[i].revents = 0;
        any |= fds[i].fd >= 0;
    }
    return any ? __real_poll(fds, count, timeout_ms) : 0;
}

static void scene_open(scene *self, const uint8_t choice[4])
{
    self->size = 2 + choice[0] % (MAX_SIZE - 1);
    self->rank = choice[0] / 2 % self->size;
    self->bytes = choice[2];
    self->root = choice[3] % self->size;
    const boot_request request = {.rank = self->rank, .size = self->size, .timeout_ms = 1000};
    int *fds = malloc(BOOT_LINES * (size_t)self->size * sizeof *fds);
    boot_place *places = calloc((size_t)self->size, sizeof *places);
    fuzz_must(fds && places);
    for (int32_t i = 0; i < BOOT_LINES * self->size; i++) {
        int pair[2] = {-1, -1};
        if (i % self->size != self->rank) stream_connect(pair);
        self->ends[i] = pair[0];
        fds[i] = pair[1];
    }
    fuzz_must(boot_sockets_create(&request, fds, places, &self->group) == EXPAR_OK);
}

/* The peers close their sending sides, so that the collective ends; they still receive. */
static void scene_send(scene *self, const uint8_t *data, size_t bytes)
{
    stream from = {.data = data, .bytes = bytes};
    piece one;
    while (stream_next(&from, &one))
        stream_send(&self->ends[one.peer % (BOOT_LINES * self->size)], &one);
    for (int32_t i = 0; i < BOOT_LINES * self->size; i++)
        if (self->ends[i] >= 0) shutdown(self->ends[i], SHUT_WR);
}

static expar_status exchange_fds(const scene *self)
{
    const int own = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int fds[MAX_SIZE];
    expar_status status = self->group->ops->exchange_fds(self->group, own, fds);
    for (int32_t rank = 0; rank < self->size && status == EXPAR_OK; rank++) {
        fuzz_must((rank == self->rank) <= (fds[rank] < 0));
        if (fds[rank] >= 0) fuzz_must(close(fds[rank]) == 0);
    }
    close(own);
    return status;
}

static expar_status call(const scene *self, int what)
{
    const size_t all_bytes = self->bytes * (size_t)self->size;
    uint8_t *send = calloc(1, all_bytes + 1), *receive = malloc(all_bytes + 1);
    boot *group = self->group;
    expar_status status = EXPAR_OK;
    fuzz_must(send && receive);
    if (what == BARRIER) status = group->ops->barrier(group);
    if (what == ALLGATHER) status = group->ops->allgather(group, send, receive, self->bytes);
    if (what == ALLTOALL) status = group->ops->alltoall(group, send, receive, self->bytes);
    if (what == BROADCAST) status = group->ops->broadcast(group, send, self->bytes, self->root);
    if (what == FDS) status = exchange_fds(self);
    free(send);
    free(receive);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    scene self;
    if (bytes < 4 || bytes > 1 << 14) return 0;
    const int before = fuzz_count_descriptors();
    scene_open(&self, data);
    scene_send(&self, data + 4, bytes - 4);
    expar_status status = call(&self, data[1] % CALLS);
    if (status == EXPAR_OK)
        fuzz_accept();
    else
        fuzz_must_be_shown(expar_last_error());
    /* A second one: descriptors and bytes that are left over must not confuse it. */
    if (call(&self, BARRIER) != EXPAR_OK) fuzz_must_be_shown(expar_last_error());
    self.group->ops->leave(self.group, false);
    for (int32_t i = 0; i < BOOT_LINES * self.size; i++)
        wire_close(&self.ends[i]);
    fuzz_must(fuzz_count_descriptors() == before);
    return 0;
}

/* ---- seeds ------------------------------------------------------------------------------------------------------- */

/* One seed for each collective among three ranks, of which this one is rank 1. */
size_t fuzz_seed(unsigned number, uint8_t seed[FUZZ_SEED_BYTES])
{
    static const frame_op ops[CALLS] = {FRAME_BARRIER, FRAME_ALLGATHER, FRAME_ALLTOALL, FRAME_BROADCAST, FRAME_FDS};
    if (number >= CALLS) return 0;
    const bool records = ops[number] != FRAME_BARRIER && ops[number] != FRAME_FDS;
    const uint32_t bytes = records ? 16 : 0;
    const int32_t root = ops[number] == FRAME_BROADCAST ? 2 : 0;
    size_t used = 4;
    memcpy(seed, (const uint8_t[4]){3, (uint8_t)number, (uint8_t)bytes, (uint8_t)root}, 4);
    for (int32_t peer = 0; peer < MAX_SIZE; peer += 2) {
        struct {
            frame_head head;
            unsigned char payload[16];
        } frame = {{.mark = FRAME_MARK | (uint32_t)ops[number],
                    .record_bytes = bytes,
                    .root = root,
                    .payload_bytes = ops[number] == FRAME_BROADCAST && peer != root ? 0 : bytes,
                    .with_fd = ops[number] == FRAME_FDS},
                   {0}};
        stream_add(seed, &used, (uint8_t)peer, ops[number] == FRAME_FDS ? PIECE_BRINGS_FD : 0, &frame,
                   sizeof frame.head + frame.head.payload_bytes);
    }
    const ask_record death = {.mark = ASK_MARK | ASK_DEATH, .rank = 1, .blamed = -1};
    stream_add(seed, &used, MAX_SIZE, 0, &death, sizeof death);
    return used;
}
