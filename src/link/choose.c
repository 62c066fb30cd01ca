/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of what reaches a peer. */
#include "link/link.h"

/* Returns the first transport that has all of `wanted` at pe and does not map it; if there is none, the one that shmem
   has chosen. */
static transport *choose_unmapped(const sym *self, int32_t pe, unsigned wanted, transport *chosen)
{
    for (int32_t t = 0; t < self->num_transports; t++) {
        const unsigned reach = sym_reach(self, self->rank, pe, TRANSPORT_HOST, t);
        if ((reach & wanted) == wanted && !(reach & TRANSPORT_MAP)) return self->transports[t];
    }
    return chosen;
}

expar_status link_open(sym *self, int32_t pe, bool unmapped, link_counts *counts, link_peer *out)
{
    link_peer made = {.sym = self, .pe = pe, .counts = counts};
    if (pe == self->rank || !unmapped) made.mapped = sym_at(self, pe, 0);
    if (!made.mapped) {
        const transport_ways *ways = sym_ways(self, TRANSPORT_HOST, pe);
        made.data = choose_unmapped(self, pe, TRANSPORT_PUT, ways->data);
        made.words = choose_unmapped(self, pe, TRANSPORT_ATOMIC, ways->words);
        if (!made.data || !made.words)
            return error_set(EXPAR_ERR_UNSUPPORTED, "no transport reaches rank %d with puts and atomics%s%s", pe,
                             self->unreached ? ": " : "", self->unreached ? self->unreached : "");
    }
    *out = made;
    return EXPAR_OK;
}

static expar_status check_needs(const link_peer *peer, unsigned needs)
{
    const sym *self = peer->sym;
    if ((!(needs & LINK_DATA) || peer->data) && (!(needs & LINK_WORDS) || peer->words)) return EXPAR_OK;
    if (!peer->call) return error_set(EXPAR_ERR_UNSUPPORTED, "no transport reaches rank %d", peer->pe);
    return error_set(EXPAR_ERR_UNSUPPORTED, "%s: rank %d is on another node (%d), and no transport reaches it%s%s",
                     peer->call, peer->pe, self->nodes[peer->pe], self->unreached ? ": " : "",
                     self->unreached ? self->unreached : "");
}

expar_status link_reach(sym *self, int32_t pe, transport_memory memory, unsigned needs, const char *call,
                        link_peer *out)
{
    const transport_ways *ways = sym_ways(self, memory, pe);
    *out = (link_peer){.sym = self,
                       .pe = pe,
                       .data = ways->data,
                       .words = ways->words,
                       .call = call,
                       .memory = memory,
                       .words_memory = memory};
    return check_needs(out, needs);
}

expar_status link_aim_words(link_peer *peer, transport_memory memory)
{
    peer->words = sym_ways(peer->sym, memory, peer->pe)->words;
    peer->words_memory = memory;
    /* The ring carries no operations on device memory. */
    if (memory == TRANSPORT_DEVICE) peer->proxy = NULL;
    return check_needs(peer, LINK_WORDS);
}

void link_take_device(link_peer *peer)
{
    peer->on_device = true;
    peer->proxy = NULL;
}

bool link_all_mapped(const sym *self)
{
    for (int32_t rank = 0; rank < self->size; rank++)
        for (int32_t pe = 0; pe < self->size; pe++)
            if (!sym_maps(self, rank, pe)) return false;
    return true;
}
