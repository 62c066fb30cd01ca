/* SPDX-License-Identifier: Apache-2.0 */
/* p2p: the transport of mapped memory: every operation is a load, a store or an atomic instruction of this rank.
 *
 * It reaches only the PEs of its own node, also with simulated nodes. If ranks are processes, each maps its peers'
 * memfds; ranks that are threads use each other's regions as they are. */
#include "mem/fence.h"
#include "net/p2p/access.h"
#include "net/transport.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern const transport_ops transport_p2p;

/* The reachable part of a kind of memory. */
typedef struct p2p_segment {
    mem_region *mapped; /* [size] peers' regions that this transport mapped itself; base NULL: none */
    uint8_t **peers;    /* [size] start of the PE's segment here, or NULL. NULL: there is no such segment */
} p2p_segment;

typedef struct p2p {
    transport base; /* first: a transport of these operations is a p2p */
    const transport_site *site;
    int32_t rank, size;
    p2p_segment segments[TRANSPORT_MEMORIES];
} p2p;

/* Memory of GPUs cannot be mapped by file descriptors. */
static bool is_served(transport_memory memory)
{
    return memory == TRANSPORT_HOST || memory == TRANSPORT_PINNED;
}

static void p2p_segment_close(p2p_segment *segment, int32_t size)
{
    for (int32_t r = 0; segment->mapped && r < size; r++)
        if (segment->mapped[r].base) mem_region_close(&segment->mapped[r]);
    free(segment->mapped);
    free(segment->peers);
    *segment = (p2p_segment){0};
}

static void p2p_close(transport *self)
{
    p2p *p = (p2p *)self;
    for (size_t k = 0; k < TRANSPORT_MEMORIES; k++)
        p2p_segment_close(&p->segments[k], p->size);
    free(p);
}

/* A peer's descriptors: of its heap, and of the part that follows it; -1: it has sent none. */
typedef struct peer_fds {
    int heap, after;
} peer_fds;

static void close_fds(peer_fds *fds)
{
    if (fds->heap >= 0) close(fds->heap);
    if (fds->after >= 0) close(fds->after);
    *fds = (peer_fds){-1, -1};
}

/* Maps the peer's memory if the PE is of this node. */
static expar_status map_peer(p2p *p, transport_memory memory, int32_t r, peer_fds *fds, const transport_site *site)
{
    const transport_segment *own = &site->segments[memory];
    p2p_segment *segment = &p->segments[memory];
    if (r == p->rank || site->nodes[r] != site->nodes[p->rank]) return EXPAR_OK;
    if (fds->heap < 0 || (own->after && fds->after < 0))
        return error_set(EXPAR_ERR_SYSTEM, "rank %d of this node has sent no heap to map", r);
    const peer_fds given = *fds;
    *fds = (peer_fds){-1, -1};
    expar_status status = mem_region_map_both(given.heap, own->region->bytes, given.after, &segment->mapped[r]);
    if (status != EXPAR_OK) return error_prefix(status, "heap of rank %d", r);
    segment->peers[r] = segment->mapped[r].base;
    return EXPAR_OK;
}

/* Exchanges the descriptors of one kind with all ranks; got[] is scratch. */
static expar_status exchange_kind(const p2p *p, boot *ctl, int mine, int *got, peer_fds *fds, bool after)
{
    for (int32_t r = 0; r < p->size; r++)
        got[r] = -1;
    expar_status status = ctl->ops->exchange_fds(ctl, mine, got);
    for (int32_t r = 0; r < p->size; r++)
        *(after ? &fds[r].after : &fds[r].heap) = got[r];
    return status;
}

static expar_status map_processes(p2p *p, transport_memory memory, const transport_site *site)
{
    const transport_segment *own = &site->segments[memory];
    peer_fds *fds = malloc((size_t)p->size * sizeof *fds);
    int *got = malloc((size_t)p->size * sizeof *got);
    expar_status status = EXPAR_OK;
    if (!fds || !got) status = error_set(EXPAR_ERR_MEMORY, "no memory for %d descriptors", p->size);
    for (int32_t r = 0; r < p->size && status == EXPAR_OK; r++)
        fds[r] = (peer_fds){-1, -1};
    bool begun = status == EXPAR_OK;
    if (begun) status = exchange_kind(p, site->boot, own->region->fd, got, fds, false);
    if (status == EXPAR_OK && own->after) status = exchange_kind(p, site->boot, own->after->fd, got, fds, true);
    for (int32_t r = 0; r < p->size && status == EXPAR_OK; r++)
        status = map_peer(p, memory, r, &fds[r], site);
    for (int32_t r = 0; begun && r < p->size; r++)
        close_fds(&fds[r]);
    free(got);
    free(fds);
    return status;
}

static void map_threads(p2p *p, transport_memory memory, const transport_site *site)
{
    for (int32_t r = 0; r < p->size; r++)
        if (site->nodes[r] == site->nodes[p->rank])
            p->segments[memory].peers[r] = site->segments[memory].peers[r]->base;
}

static expar_status p2p_segment_open(p2p *p, transport_memory memory, const transport_site *site)
{
    const transport_segment *own = &site->segments[memory];
    p2p_segment *segment = &p->segments[memory];
    expar_status status = EXPAR_OK;
    if (!own->region || !is_served(memory)) return EXPAR_OK;
    segment->mapped = calloc((size_t)p->size, sizeof *segment->mapped);
    segment->peers = calloc((size_t)p->size, sizeof *segment->peers);
    if (!segment->mapped || !segment->peers)
        return error_set(EXPAR_ERR_MEMORY, "no memory for the p2p transport of %d ranks", p->size);
    if (own->peers)
        map_threads(p, memory, site);
    else if (p->size > 1)
        status = map_processes(p, memory, site);
    segment->peers[p->rank] = own->region->base;
    return status;
}

static expar_status p2p_open(const transport_site *site, transport **out)
{
    p2p *p = calloc(1, sizeof *p);
    if (!p) return error_set(EXPAR_ERR_MEMORY, "no memory for the p2p transport of %d ranks", site->boot->size);
    *p = (p2p){.base.ops = &transport_p2p, .site = site, .rank = site->boot->rank, .size = site->boot->size};
    expar_status status = EXPAR_OK;
    for (int k = 0; k < TRANSPORT_MEMORIES && status == EXPAR_OK; k++)
        status = p2p_segment_open(p, (transport_memory)k, site);
    if (status != EXPAR_OK) {
        p2p_close(&p->base);
        return status;
    }
    *out = &p->base;
    return EXPAR_OK;
}

static expar_status p2p_add(transport *self, transport_memory memory)
{
    p2p *p = (p2p *)self;
    p2p_segment_close(&p->segments[memory], p->size);
    expar_status status = p2p_segment_open(p, memory, p->site);
    if (status != EXPAR_OK) p2p_segment_close(&p->segments[memory], p->size);
    return status;
}

static void *p2p_map(const transport *self, int32_t pe, transport_memory memory, uint64_t offset)
{
    uint8_t *const *peers = ((const p2p *)self)->segments[memory].peers;
    return peers && peers[pe] ? peers[pe] + offset : NULL;
}

static unsigned p2p_reach(const transport *self, int32_t pe, transport_memory memory)
{
    const unsigned all = TRANSPORT_MAP | TRANSPORT_PUT | TRANSPORT_GET | TRANSPORT_ATOMIC | TRANSPORT_COHERENT;
    return p2p_map(self, pe, memory, 0) ? all : 0;
}

/* The signal's release orders the data before it. */
static void put_with_signal(const transport_request *r, void *at, void *signal)
{
    p2p_store(at, r->source, r->bytes);
    fence_release();
    p2p_change_word(signal, sizeof(uint64_t), r->op, r->operand, 0);
}

static void p2p_change(const transport_request *r, void *at)
{
    const uint64_t old = p2p_change_word(at, r->bytes, r->op, r->operand, r->compare);
    if (r->dest && r->bytes == 8) *(uint64_t *)r->dest = old;
    if (r->dest && r->bytes == 4) *(uint32_t *)r->dest = (uint32_t)old;
}

/* Every operation is complete when this returns. */
static expar_status p2p_run(transport *self, const transport_request *r)
{
    uint8_t *at = p2p_map(self, r->pe, r->memory, r->offset);
    if (!at) return transport_reject(self, r->memory);
    switch (r->kind) {
    case TRANSPORT_KIND_PUT:
        p2p_store(at, r->source, r->bytes);
        break;
    case TRANSPORT_KIND_GET:
        p2p_load(r->dest, at, r->bytes);
        break;
    case TRANSPORT_KIND_ATOMIC:
        p2p_change(r, at);
        break;
    }
    return EXPAR_OK;
}

/* A batch never has to wait. */
static expar_status p2p_post(transport *self, const transport_request *r, transport_batch *batch)
{
    (void)batch;
    if (!r->flagged && !r->signals) return p2p_run(self, r);
    const transport_request apart = r->flagged ? transport_flag_apart(r) : *r;
    uint8_t *at = p2p_map(self, r->pe, r->memory, r->offset);
    uint8_t *signal = p2p_map(self, r->pe, apart.signal_memory, apart.signal_offset);
    if (!at || !signal) return transport_reject(self, at ? apart.signal_memory : r->memory);
    put_with_signal(&apart, at, signal);
    return EXPAR_OK;
}

/* Stores of one thread reach mapped memory in order once the compiler keeps them so; the C library ends its own
   non-temporal copies with a store fence. */
static expar_status p2p_fence(transport *self)
{
    (void)self;
    fence_release();
    return EXPAR_OK;
}

/* A store is complete when it has left this core. */
static expar_status p2p_quiet(transport *self)
{
    (void)self;
    fence_full();
    return EXPAR_OK;
}

const transport_ops transport_p2p = {
    .name = "p2p",
    .summary = "ranks of one host, by loads and stores in shared memory",
    .node_local = true,
    .open = p2p_open,
    .add = p2p_add,
    .reach = p2p_reach,
    .map = p2p_map,
    .run = p2p_run,
    .post = p2p_post,
    .fence = p2p_fence,
    .quiet = p2p_quiet,
    .close = p2p_close,
};
