/* SPDX-License-Identifier: Apache-2.0 */
/* A rank without a network, for tests of the proxy: a transport whose PEs are pieces of memory of this process, or
 * none. Puts copy, signals and atomics change words, and all are complete when they were posted. */
#ifndef TESTS_NET_COPYING_H
#define TESTS_NET_COPYING_H

#include "net/proxy/proxy.h"

#include <stdlib.h>
#include <string.h>

#define COPYING_PES 3

typedef struct copying {
    transport base; /* first */
    boot ctl;
    transport_site site;
    transport_ways ways[TRANSPORT_MEMORIES * COPYING_PES];
    transport_list driven;
    _Atomic uint64_t bytes;       /* of each PE's memory */
    uint8_t *memory[COPYING_PES]; /* NULL: operations do nothing */
    _Atomic uint64_t posts;
} copying;

static inline expar_status copying_post(transport *self, const transport_request *r, transport_batch *batch)
{
    copying *c = (copying *)self;
    (void)batch;
    atomic_fetch_add_explicit(&c->posts, 1, memory_order_relaxed);
    uint8_t *at = c->memory[r->pe];
    if (!at) return EXPAR_OK;
    if (r->kind == TRANSPORT_KIND_PUT) memcpy(at + r->offset, r->source, r->bytes);
    if (r->kind == TRANSPORT_KIND_GET) memcpy(r->dest, at + r->offset, r->bytes);
    if (r->kind != TRANSPORT_KIND_ATOMIC && !r->signals) return EXPAR_OK;
    _Atomic uint64_t *word = (void *)(at + (r->signals ? r->signal_offset : r->offset));
    if (r->op == TRANSPORT_SET) atomic_store_explicit(word, r->operand, memory_order_release);
    if (r->op == TRANSPORT_ADD) atomic_fetch_add_explicit(word, r->operand, memory_order_acq_rel);
    return EXPAR_OK;
}

static inline void copying_drop(transport *self, int32_t pe, transport_batch *batch)
{
    (void)self, (void)pe, (void)batch;
}

static inline expar_status copying_check(void *context, int32_t pe, const char *what)
{
    (void)context, (void)pe, (void)what;
    return EXPAR_OK;
}

static inline void copying_arrived(void *context)
{
    (void)context;
}

static inline void copying_delivered(void *context, int32_t pe)
{
    (void)context, (void)pe;
}

static const transport_ops copying_ops = {.name = "copying", .post = copying_post, .drop = copying_drop};

/* bytes: of each PE's memory, which is zeroed; 0: operations do nothing, at any offset below 2^40. */
static inline void copying_open(copying *c, uint64_t bytes)
{
    memset(c, 0, sizeof *c);
    c->base.ops = &copying_ops;
    c->ctl = (boot){.size = COPYING_PES};
    c->site = (transport_site){
        .boot = &c->ctl, .timeout_ms = 60000, .check = copying_check, .arrived = copying_arrived, .context = c};
    atomic_store(&c->bytes, bytes ? bytes : (uint64_t)1 << 40);
    for (int32_t i = 0; i < TRANSPORT_MEMORIES * COPYING_PES; i++)
        c->ways[i] = (transport_ways){.data = &c->base, .words = &c->base};
    for (int32_t pe = 0; pe < COPYING_PES && bytes; pe++)
        c->memory[pe] = calloc(1, bytes);
}

static inline void copying_close(copying *c)
{
    for (int32_t pe = 0; pe < COPYING_PES; pe++)
        free(c->memory[pe]);
}

/* A plan for producers that wake nobody. */
static inline proxy_plan copying_plan(copying *c, uint32_t num_slots)
{
    return (proxy_plan){.site = &c->site,
                        .ways = c->ways,
                        .driven = &c->driven,
                        .bounds[TRANSPORT_HOST] = {.end = &c->bytes},
                        .num_slots = num_slots,
                        .nap_ns = 50000,
                        .kernels = true,
                        .poll_ns = 50000,
                        .yields = true,
                        .delivered = copying_delivered,
                        .context = c};
}

#endif
