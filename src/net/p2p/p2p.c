/* SPDX-License-Identifier: Apache-2.0 */
/* p2p: the transport of mapped memory: every operation is a load, a store or an atomic instruction of this rank.
 *
 * Reaches the PEs of its own node and no other, also when the nodes are only pretended. Between processes each rank
 * maps its peers' memfds; ranks that are threads use each other's regions as they are. */
#include "mem/fence.h"
#include "net/p2p/access.h"
#include "net/transport.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern const transport_ops transport_p2p;

typedef struct p2p {
    transport base; /* first: a transport of these operations is a p2p */
    int32_t rank, size;
    mem_region *mapped; /* [size] peers' regions that this transport mapped itself; base NULL: none */
    uint8_t **peers;    /* [size] start of the PE's heap here, or NULL */
} p2p;

static void p2p_close(transport *self)
{
    p2p *p = (p2p *)self;
    for (int32_t r = 0; p->mapped && r < p->size; r++)
        if (p->mapped[r].base) mem_region_close(&p->mapped[r]);
    free(p->mapped);
    free(p->peers);
    free(p);
}

static p2p *p2p_new(const boot *ctl)
{
    p2p *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->base.ops = &transport_p2p;
    p->rank = ctl->rank;
    p->size = ctl->size;
    p->mapped = calloc((size_t)ctl->size, sizeof *p->mapped);
    p->peers = calloc((size_t)ctl->size, sizeof *p->peers);
    if (!p->mapped || !p->peers) {
        p2p_close(&p->base);
        return NULL;
    }
    return p;
}

/* A peer's descriptors: of its heap, and of what lies behind that; -1: it has sent none. */
typedef struct peer_fds {
    int heap, behind;
} peer_fds;

static void close_fds(peer_fds *fds)
{
    if (fds->heap >= 0) close(fds->heap);
    if (fds->behind >= 0) close(fds->behind);
    *fds = (peer_fds){-1, -1};
}

/* Mapped when the PE is of this node. */
static expar_status map_peer(p2p *p, int32_t r, peer_fds *fds, const transport_site *site)
{
    if (r == p->rank || site->nodes[r] != site->nodes[p->rank]) return EXPAR_OK;
    if (fds->heap < 0 || (site->behind && fds->behind < 0))
        return error_set(EXPAR_ERR_SYSTEM, "rank %d of this node has sent no heap to map", r);
    const peer_fds given = *fds;
    *fds = (peer_fds){-1, -1};
    expar_status status = mem_region_map_both(given.heap, site->heap->bytes, given.behind, &p->mapped[r]);
    if (status != EXPAR_OK) return error_prefix(status, "heap of rank %d", r);
    p->peers[r] = p->mapped[r].base;
    return EXPAR_OK;
}

/* Everybody's descriptors of one kind; got[] is scratch. */
static expar_status exchange_kind(const p2p *p, boot *ctl, int mine, int *got, peer_fds *fds, bool behind)
{
    for (int32_t r = 0; r < p->size; r++)
        got[r] = -1;
    expar_status status = ctl->ops->exchange_fds(ctl, mine, got);
    for (int32_t r = 0; r < p->size; r++)
        *(behind ? &fds[r].behind : &fds[r].heap) = got[r];
    return status;
}

static expar_status map_processes(p2p *p, const transport_site *site)
{
    peer_fds *fds = malloc((size_t)p->size * sizeof *fds);
    int *got = malloc((size_t)p->size * sizeof *got);
    expar_status status = EXPAR_OK;
    if (!fds || !got) status = error_set(EXPAR_ERR_MEMORY, "no memory for %d descriptors", p->size);
    for (int32_t r = 0; r < p->size && status == EXPAR_OK; r++)
        fds[r] = (peer_fds){-1, -1};
    bool begun = status == EXPAR_OK;
    if (begun) status = exchange_kind(p, site->boot, site->heap->fd, got, fds, false);
    if (status == EXPAR_OK && site->behind) status = exchange_kind(p, site->boot, site->behind->fd, got, fds, true);
    for (int32_t r = 0; r < p->size && status == EXPAR_OK; r++)
        status = map_peer(p, r, &fds[r], site);
    for (int32_t r = 0; begun && r < p->size; r++)
        close_fds(&fds[r]);
    free(got);
    free(fds);
    return status;
}

static void map_threads(p2p *p, const int32_t *nodes, const mem_region *const *peer_heaps)
{
    for (int32_t r = 0; r < p->size; r++)
        if (nodes[r] == nodes[p->rank]) p->peers[r] = peer_heaps[r]->base;
}

static expar_status p2p_open(const transport_site *site, transport **out)
{
    boot *ctl = site->boot;
    p2p *p = p2p_new(ctl);
    if (!p) return error_set(EXPAR_ERR_MEMORY, "no memory for the p2p transport of %d ranks", ctl->size);
    expar_status status = EXPAR_OK;
    if (site->peer_heaps)
        map_threads(p, site->nodes, site->peer_heaps);
    else if (ctl->size > 1)
        status = map_processes(p, site);
    p->peers[p->rank] = site->heap->base;
    if (status != EXPAR_OK) {
        p2p_close(&p->base);
        return status;
    }
    *out = &p->base;
    return EXPAR_OK;
}

static unsigned p2p_reach(const transport *self, int32_t pe)
{
    const p2p *p = (const p2p *)self;
    return p->peers[pe] ? TRANSPORT_MAP | TRANSPORT_PUT | TRANSPORT_GET | TRANSPORT_ATOMIC | TRANSPORT_COHERENT : 0;
}

static void *p2p_map(const transport *self, int32_t pe, uint64_t offset)
{
    const p2p *p = (const p2p *)self;
    return p->peers[pe] ? p->peers[pe] + offset : NULL;
}

static expar_status p2p_put(transport *self, int32_t pe, uint64_t offset, const void *source, size_t bytes)
{
    p2p_store(((p2p *)self)->peers[pe] + offset, source, bytes);
    return EXPAR_OK;
}

static expar_status p2p_get(transport *self, int32_t pe, void *dest, uint64_t offset, size_t bytes)
{
    p2p_load(dest, ((p2p *)self)->peers[pe] + offset, bytes);
    return EXPAR_OK;
}

/* One function a width; all sequentially consistent, as the public atomics promise. */
#define P2P_ATOMIC_DEFINE(T, name)                                                                                     \
    static T name(_Atomic T *word, transport_atomic_op op, T operand, T compare)                                       \
    {                                                                                                                  \
        switch (op) {                                                                                                  \
        case TRANSPORT_SET:                                                                                            \
        case TRANSPORT_SWAP:                                                                                           \
            return atomic_exchange(word, operand);                                                                     \
        case TRANSPORT_COMPARE_SWAP:                                                                                   \
            atomic_compare_exchange_strong(word, &compare, operand);                                                   \
            return compare;                                                                                            \
        case TRANSPORT_ADD:                                                                                            \
            return atomic_fetch_add(word, operand);                                                                    \
        case TRANSPORT_AND:                                                                                            \
            return atomic_fetch_and(word, operand);                                                                    \
        case TRANSPORT_OR:                                                                                             \
            return atomic_fetch_or(word, operand);                                                                     \
        case TRANSPORT_XOR:                                                                                            \
            return atomic_fetch_xor(word, operand);                                                                    \
        case TRANSPORT_FETCH:                                                                                          \
            break;                                                                                                     \
        }                                                                                                              \
        return atomic_load(word);                                                                                      \
    }
P2P_ATOMIC_DEFINE(uint32_t, atomic_u32)
P2P_ATOMIC_DEFINE(uint64_t, atomic_u64)

static expar_status p2p_atomic(transport *self, int32_t pe, uint64_t offset, size_t bytes, transport_atomic_op op,
                               uint64_t operand, uint64_t compare, uint64_t *old)
{
    void *word = ((p2p *)self)->peers[pe] + offset;
    uint64_t before = bytes == 8 ? atomic_u64(word, op, operand, compare)
                                 : atomic_u32(word, op, (uint32_t)operand, (uint32_t)compare);
    if (old) *old = before;
    return EXPAR_OK;
}

/* The signal's release orders the data before it. */
static expar_status put_with_signal(transport *self, const transport_request *r)
{
    if (r->bytes > 0) p2p_put(self, r->pe, r->offset, r->source, r->bytes);
    fence_release();
    return p2p_atomic(self, r->pe, r->signal_offset, sizeof(uint64_t), r->op, r->operand, 0, NULL);
}

/* Everything is done at once; a batch never waits. */
static expar_status p2p_post(transport *self, const transport_request *r, transport_batch *batch)
{
    uint64_t old;
    (void)batch;
    if (r->flagged) {
        const transport_request apart = transport_flag_apart(r);
        return put_with_signal(self, &apart);
    }
    switch (r->kind) {
    case TRANSPORT_KIND_PUT:
        return r->signals ? put_with_signal(self, r) : p2p_put(self, r->pe, r->offset, r->source, r->bytes);
    case TRANSPORT_KIND_GET:
        return p2p_get(self, r->pe, r->dest, r->offset, r->bytes);
    case TRANSPORT_KIND_ATOMIC:
        break;
    }
    expar_status status = p2p_atomic(self, r->pe, r->offset, r->bytes, r->op, r->operand, r->compare, &old);
    if (r->dest && r->bytes == 8) *(uint64_t *)r->dest = old;
    if (r->dest && r->bytes == 4) *(uint32_t *)r->dest = (uint32_t)old;
    return status;
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
    .reach = p2p_reach,
    .map = p2p_map,
    .put = p2p_put,
    .get = p2p_get,
    .atomic = p2p_atomic,
    .post = p2p_post,
    .fence = p2p_fence,
    .quiet = p2p_quiet,
    .close = p2p_close,
};
