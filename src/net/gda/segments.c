/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory of the transport: each range that grows is a chunk with keys of its own, which all ranks exchange.
   */
#include "net/gda/parts.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A rank tells the others this about a chunk. */
typedef struct chunk_card {
    uint64_t address; /* of the segment's first byte, as its device knows it */
    uint32_t rkey;    /* big-endian */
    uint32_t unused;
} chunk_card;

void gda_segment_close(gda *g, transport_memory memory)
{
    gda_segment *s = &g->segments[memory];
    for (uint64_t i = 0; s->own && i < gda_load(&s->keys.num_chunks); i++)
        g->device->ops->remove_memory(g->device, &s->own[i]);
    free(s->own);
    free(s->peers);
    free(s->regions);
    free(s->remotes);
    free(s->ends);
    free(s->lkeys);
    free(s->rkeys);
    *s = (gda_segment){0};
}

static bool make_tables(gda *g, gda_segment *s)
{
    const size_t size = (size_t)g->size;
    s->peers = calloc(size, sizeof *s->peers);
    s->regions = calloc(size, sizeof *s->regions);
    s->remotes = calloc(size, sizeof *s->remotes);
    s->ends = calloc(GDA_CHUNKS, sizeof *s->ends);
    s->lkeys = calloc(GDA_CHUNKS, sizeof *s->lkeys);
    s->rkeys = calloc(size * GDA_CHUNKS, sizeof *s->rkeys);
    s->own = calloc(GDA_CHUNKS, sizeof *s->own);
    return s->own && s->peers && s->regions && s->remotes && s->ends && s->lkeys && s->rkeys;
}

/* Passes the memory of one rank to the device. */
static expar_status pass_segment(gda *g, gda_segment *s, const mem_region *region, int32_t r, int fd)
{
    if (fd < 0)
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "gda: rank %d has passed no memory to this rank: is it on another host?", r);
    expar_status status = g->device->ops->add_region(g->device, fd, region->bytes, &s->regions[r]);
    return status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "gda: memory of rank %d", r);
}

/* All ranks exchange the descriptors of the memory, and pass them to their devices. Collective. */
static expar_status pass_segments(gda *g, gda_segment *s, const mem_region *region)
{
    boot *ctl = g->site->boot;
    int *fds = malloc((size_t)g->size * sizeof *fds);
    expar_status status = fds ? EXPAR_OK : error_set(EXPAR_ERR_MEMORY, "gda: no memory for %d descriptors", g->size);
    const boot_matter ready = {.what = "gda", .rejected = "cannot exchange memory"};
    status = boot_agree(ctl, &ready, status, NULL);
    for (int32_t r = 0; fds && r < g->size; r++)
        fds[r] = -1;
    if (status == EXPAR_OK && g->size > 1) status = ctl->ops->exchange_fds(ctl, region->fd, fds);
    for (int32_t r = 0; status == EXPAR_OK && r < g->size; r++)
        status = pass_segment(g, s, region, r, r == g->rank ? region->fd : fds[r]);
    for (int32_t r = 0; fds && r < g->size; r++)
        if (fds[r] >= 0) close(fds[r]);
    free(fds);
    const boot_matter passed = {.what = "gda", .rejected = "cannot pass memory to its device"};
    return boot_agree(ctl, &passed, status, NULL);
}

expar_status gda_segment_open(gda *g, transport_memory memory)
{
    const mem_region *region = g->site->segments[memory].region;
    gda_segment *s = &g->segments[memory];
    if (!region || memory == TRANSPORT_DEVICE) return EXPAR_OK;
    if (!make_tables(g, s)) {
        gda_segment_close(g, memory);
        return error_set(EXPAR_ERR_MEMORY, "gda: no memory for the keys of %d ranks", g->size);
    }
    for (int32_t r = 0; g->mapped && r < g->size; r++)
        s->peers[r] = g->mapped->ops->map(g->mapped, r, memory, 0);
    s->keys.heap = (uintptr_t)region->base;
    s->keys.remotes = s->remotes;
    s->keys.ends = s->ends;
    s->keys.lkeys = s->lkeys;
    s->keys.rkeys = s->rkeys;
    s->keys.num_pes = (uint32_t)g->size;
    s->keys.stride = GDA_CHUNKS;
    expar_status status = g->device->ops->add_region ? pass_segments(g, s, region) : EXPAR_OK;
    if (status != EXPAR_OK)
        gda_segment_close(g, memory);
    else
        s->is_open = true;
    return status;
}

/* Registers this rank's chunk, and says how peers name it. */
static expar_status register_chunk(gda *g, transport_memory memory, uint64_t begin, uint64_t end, chunk_card *card)
{
    gda_segment *s = &g->segments[memory];
    const uint64_t chunk = gda_load(&s->keys.num_chunks);
    gda_memory *own = &s->own[chunk];
    const gda_source source = {.base = (void *)(uintptr_t)(s->keys.heap + begin),
                               .bytes = end - begin,
                               .shared = true,
                               .region = s->regions[g->rank],
                               .offset = begin};
    expar_status status = g->device->ops->add_memory(g->device, &source, own);
    if (status != EXPAR_OK) return status;
    s->lkeys[chunk] = own->lkey;
    *card = (chunk_card){.address = own->remote - begin, .rkey = own->rkey};
    return EXPAR_OK;
}

/* Keeps what a rank has said of its chunk. */
static expar_status learn_chunk(gda *g, transport_memory memory, int32_t r, const chunk_card *card, uint64_t begin,
                                uint64_t end)
{
    gda_segment *s = &g->segments[memory];
    s->remotes[r] = card->address;
    s->rkeys[(size_t)r * GDA_CHUNKS + gda_load(&s->keys.num_chunks)] = card->rkey;
    if (!g->device->ops->learn || r == g->rank) return EXPAR_OK;
    const gda_source source = {.base = s->peers[r] ? s->peers[r] + begin : NULL,
                               .bytes = end - begin,
                               .shared = true,
                               .region = s->regions[r],
                               .offset = begin};
    return g->device->ops->learn(g->device, r, &source, card->address + begin, card->rkey);
}

/* A range that starts after the end so far leaves a gap: a chunk with keys that nobody has. */
static void leave_gap(gda_segment *s, uint64_t offset)
{
    const uint64_t chunk = gda_load(&s->keys.num_chunks);
    if (offset == (chunk ? s->ends[chunk - 1] : 0)) return;
    s->ends[chunk] = offset;
    gda_store(&s->keys.num_chunks, chunk + 1);
}

static expar_status check_range(const gda_segment *s, uint64_t offset, uint64_t bytes)
{
    const uint64_t chunks = gda_load(&s->keys.num_chunks);
    if (chunks + 2 > GDA_CHUNKS)
        return error_set(EXPAR_ERR_LIMIT, "gda: a segment has %d chunks already, and no more are possible", GDA_CHUNKS);
    if (!bytes || (chunks && offset < s->ends[chunks - 1]))
        return error_set(EXPAR_ERR_ARGUMENT, "gda: memory grows by %llu bytes at %llu, expected some at the end",
                         (unsigned long long)bytes, (unsigned long long)offset);
    return EXPAR_OK;
}

expar_status gda_segment_grow(gda *g, transport_memory memory, uint64_t offset, uint64_t bytes)
{
    gda_segment *s = &g->segments[memory];
    if (!s->is_open) return transport_reject(&g->base, memory);
    expar_status status = check_range(s, offset, bytes);
    chunk_card *cards = calloc((size_t)g->size, sizeof *cards);
    if (status == EXPAR_OK && !cards) status = error_set(EXPAR_ERR_MEMORY, "gda: no memory for %d keys", g->size);
    if (status != EXPAR_OK) {
        free(cards);
        return status;
    }
    leave_gap(s, offset);
    const uint64_t chunk = gda_load(&s->keys.num_chunks);
    chunk_card mine = {0};
    status = register_chunk(g, memory, offset, offset + bytes, &mine);
    const boot_matter matter = {
        .what = "gda", .rejected = "cannot register memory", .mine = &mine, .all = cards, .bytes = sizeof mine};
    status = boot_agree(g->site->boot, &matter, status, NULL);
    for (int32_t r = 0; r < g->size && status == EXPAR_OK; r++)
        status = learn_chunk(g, memory, r, &cards[r], offset, offset + bytes);
    if (status != EXPAR_OK) g->device->ops->remove_memory(g->device, &s->own[chunk]);
    free(cards);
    if (status != EXPAR_OK) return status;
    s->ends[chunk] = offset + bytes;
    gda_store(&s->keys.num_chunks, chunk + 1);
    return EXPAR_OK;
}
