/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of the gda transport, its creation and its end. With EXPAR_GDA_NIC=software CPU threads post to a
 * software NIC of their rank, which reaches the memory of all ranks of the host, of simulated nodes, too. It is a
 * thread, or with EXPAR_GDA_NIC=process a process. With EXPAR_GDA_NIC=device they post to an mlx5 device. */
#include "base/knobs.h"
#include "cuda/cuda.h"
#include "net/gda/devx/devx.h"
#include "net/gda/parts.h"
#include "net/gda/software.h"
#include "net/gda/space.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define IDLE_REAP_NS 1000000
#define BUSY_REAP_NS 50000

enum {
    TURNS_A_WATCH = 16, /* of the reaper, between two looks at the queues of kernels */
    SPIN_CORES = 4      /* cores for each rank from which on the thread of a software device spins */
};

extern const transport_ops transport_gda;

static gda *gda_of(const transport *self)
{
    return (gda *)(uintptr_t)self;
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

/* Ends operations that nobody waits for. The device writes to this rank's memory without a word, so the thread also
   wakes those who wait for data, from time to time. */
static void *gda_run_reaper(void *context)
{
    gda *g = context;
    uint32_t turns = 0;
    pthread_mutex_lock(&g->lock);
    while (!g->ends) {
        gda_kernels *kernels = atomic_load_explicit(&g->kernels, memory_order_acquire);
        const bool watches = ++turns % TURNS_A_WATCH == 0;
        if (watches && kernels) gda_kernels_watch(g, kernels);
        if (watches) gda_watch_device(g);
        const int64_t wait_ns = gda_reap(g) ? BUSY_REAP_NS : IDLE_REAP_NS;
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += wait_ns;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&g->posted, &g->lock, &until);
        pthread_mutex_unlock(&g->lock);
        g->site->arrived(g->site->context);
        pthread_mutex_lock(&g->lock);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

/* A thread that holds the lock reaps itself. */
static void gda_reap_now(transport *self)
{
    gda *g = gda_of(self);
    if (pthread_mutex_trylock(&g->lock) != 0) return;
    const bool some = gda_reap(g);
    pthread_mutex_unlock(&g->lock);
    if (some) g->site->arrived(g->site->context);
}

static expar_status start_reaper(gda *g)
{
    if (pthread_create(&g->reaper, NULL, gda_run_reaper, g) != 0) return error_errno("gda: no thread");
    g->has_reaper = true;
    return EXPAR_OK;
}

static void stop_reaper(gda *g)
{
    if (!g->has_reaper) return;
    pthread_mutex_lock(&g->lock);
    g->ends = true;
    pthread_cond_signal(&g->posted);
    pthread_mutex_unlock(&g->lock);
    pthread_join(g->reaper, NULL);
}

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

static void gda_close(transport *self)
{
    gda *g = gda_of(self);
    stop_reaper(g);
    gda_ringer_stop(g);
    if (g->lanes) gda_lanes_close(g);
    if (g->device) gda_stage_close(g);
    gda_close_owns(g);
    for (int k = 0; k < TRANSPORT_MEMORIES; k++)
        gda_segment_close(g, (transport_memory)k);
    if (g->device) g->device->ops->close(g->device);
    gda_kernels_close(g);
    if (g->mapped) g->mapped->ops->close(g->mapped);
    pthread_cond_destroy(&g->posted);
    pthread_mutex_destroy(&g->lock);
    free(g->one_node);
    free(g);
}

/* Ranks of a host take devices in turns, if several are equally near. */
static devx_place gda_place_of(const gda *g)
{
    const boot_place *places = g->site->boot->places;
    devx_place place = {.rank = g->rank, .numa_node = places[g->rank].numa_node};
    if (!cuda_current_bus_id(place.gpu)) place.gpu[0] = '\0';
    for (int32_t r = 0; r < g->rank; r++)
        place.turn += places[r].host == places[g->rank].host;
    return place;
}

static expar_status open_device(gda *g)
{
    /* those of threads of the CPU, then those of kernels */
    const uint32_t sets = g->options.serves_kernels ? 2 : 1;
    const uint32_t num_queues = (uint32_t)g->size * g->options.queues_per_peer * sets;
    const devx_place place = gda_place_of(g);
    if (!g->options.software) return gda_devx_open(&g->options, &place, num_queues, &g->device);
    if (g->options.process && g->site->segments[TRANSPORT_HOST].peers)
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "gda: EXPAR_GDA_NIC=process: the heaps of ranks that are threads cannot be passed to a "
                         "process; expected ranks that are processes, or EXPAR_GDA_NIC=software");
    const gda_software_plan plan = {.rank = g->rank,
                                    .num_queues = num_queues,
                                    .late_ms = g->site->timeout_ms,
                                    .spin_ns = g->site->cores_each >= SPIN_CORES ? knob(KNOB_GDA_NIC_SPIN_NS) : 0};
    expar_status status = gda_software_open(&g->options, &plan, &g->device);
    if (status == EXPAR_OK) g->nic = gda_software_nic(g->device);
    return status;
}

/* Opens what needs no peer. */
static expar_status gda_open_locally(gda *g)
{
    expar_status status = gda_options_read(&g->options);
    if (status == EXPAR_OK) status = open_device(g);
    if (status == EXPAR_OK) status = gda_lanes_open(g);
    return status == EXPAR_OK ? gda_stage_open(g) : status;
}

/* All ranks learn whether each of them can take part. */
static expar_status agree_to_open(gda *g, expar_status own)
{
    const gda_options *o = &g->options;
    const boot_field fields[] = {{.name = "EXPAR_GDA_NIC",
                                  .text = o->process    ? "process"
                                          : o->software ? "software"
                                                        : "device"},
                                 {.name = "EXPAR_GDA_QPS_PER_PEER", .value = g->options.queues_per_peer},
                                 {.name = "EXPAR_GDA_QUEUE_MEMORY",
                                  .text = g->options.serves_kernels ? gda_place_name(g->options.place) : "not set"}};
    const boot_matter matter = {.what = "gda",
                                .rejected = "cannot use gda",
                                .common = EXPAR_ERR_UNSUPPORTED,
                                .lacks = "has no device for gda",
                                .fields = fields,
                                .num_fields = ARRAY_LENGTH(fields)};
    return boot_agree(g->site->boot, &matter, own, NULL);
}

/* A software device in a thread reaches peers where this process has their memory. */
static expar_status gda_map_peers(gda *g)
{
    return g->options.software && !g->options.process ? transport_find("p2p", 3)->open(&g->whole, &g->mapped)
                                                      : EXPAR_OK;
}

static expar_status start_device(gda *g)
{
    return g->device->ops->start ? g->device->ops->start(g->device) : EXPAR_OK;
}

static expar_status gda_open(const transport_site *site, transport **out)
{
    gda *g = calloc(1, sizeof *g);
    if (!g) return error_set(EXPAR_ERR_MEMORY, "no memory for the gda transport of %d ranks", site->boot->size);
    *g = (gda){.base.ops = &transport_gda, .site = site, .rank = site->boot->rank, .size = site->boot->size};
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->posted, NULL);
    g->one_node = calloc((size_t)g->size, sizeof *g->one_node);
    g->whole = *site;
    g->whole.nodes = g->one_node;
    expar_status status = g->one_node ? gda_open_locally(g) : error_set(EXPAR_ERR_MEMORY, "gda: no memory");
    status = agree_to_open(g, status);
    if (status == EXPAR_OK) status = gda_map_peers(g);
    for (int k = 0; k < TRANSPORT_MEMORIES && status == EXPAR_OK; k++)
        status = gda_segment_open(g, (transport_memory)k);
    if (status == EXPAR_OK) status = gda_lanes_connect(g);
    if (status == EXPAR_OK && g->options.place == GDA_PLACE_HOST) status = gda_kernels_open(g, NULL);
    if (status == EXPAR_OK) status = start_device(g);
    if (status == EXPAR_OK && g->options.ringer == GDA_RINGER_CPU) status = gda_ringer_start(g);
    if (status == EXPAR_OK) status = start_reaper(g);
    if (status != EXPAR_OK) {
        gda_close(&g->base);
        return status;
    }
    *out = &g->base;
    return EXPAR_OK;
}

static expar_status gda_add_segment(transport *self, transport_memory memory)
{
    gda *g = gda_of(self);
    gda_segment_close(g, memory);
    g->whole.segments[memory] = g->site->segments[memory];
    expar_status status = g->mapped ? g->mapped->ops->add(g->mapped, memory) : EXPAR_OK;
    if (status == EXPAR_OK) status = gda_segment_open(g, memory);
    if (status != EXPAR_OK || memory != TRANSPORT_PINNED) return status;
    status = gda_kernels_open(g, g->site->segments[memory].gpu);
    return status == EXPAR_OK ? gda_kernels_learn(g, memory) : status;
}

static uint64_t gda_kernels_of(const transport *self, bool on_gpu, bool *ordered)
{
    const gda *g = gda_of(self);
    if (ordered) *ordered = g->options.queues_per_peer == 1 && !g->options.reorders;
    return gda_kernels_view(g, on_gpu);
}

static expar_status gda_quiet_kernels(transport *self)
{
    return gda_kernels_settle(gda_of(self));
}

static bool gda_kernels_ended(const transport *self, int32_t pe, uint64_t number)
{
    return gda_kernels_have_ended(gda_of(self), pe, number);
}

static expar_status gda_kernels_failed(const transport *self, int32_t pe)
{
    return gda_kernels_error(gda_of(self), pe);
}

static expar_status gda_grow(transport *self, transport_memory memory, uint64_t offset, uint64_t bytes)
{
    gda *g = gda_of(self);
    expar_status status = gda_segment_grow(g, memory, offset, bytes);
    return status == EXPAR_OK ? gda_kernels_learn(g, memory) : status;
}

static expar_status gda_register_memory(transport *self, void *address, uint64_t bytes)
{
    return gda_register_own(gda_of(self), address, bytes);
}

static void gda_unregister_memory(transport *self, const void *address)
{
    gda_unregister_own(gda_of(self), address);
}

static unsigned gda_reach(const transport *self, int32_t pe, transport_memory memory)
{
    const gda *g = gda_of(self);
    const gda_segment *s = &g->segments[memory];
    const unsigned all = TRANSPORT_PUT | TRANSPORT_GET | TRANSPORT_ATOMIC;
    if (!s->is_open) return 0;
    if (g->mapped && !s->peers[pe]) return 0;
    /* A device's atomics are such only to other requests that it carries out. */
    return g->options.software ? all | TRANSPORT_COHERENT : all;
}

static void *gda_map(const transport *self, int32_t pe, transport_memory memory, uint64_t offset)
{
    (void)self;
    (void)pe;
    (void)memory;
    (void)offset;
    return NULL;
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static expar_status gda_settle(transport *self, transport_batch *batch)
{
    return gda_settle_batch(gda_of(self), batch);
}

static expar_status gda_quiet_all(transport *self)
{
    gda *g = gda_of(self);
    return gda_settle_batch(g, &g->rest);
}

static expar_status gda_post_one(transport *self, const transport_request *request, transport_batch *batch)
{
    return gda_post_request(gda_of(self), request, batch);
}

static expar_status gda_run(transport *self, const transport_request *request)
{
    transport_batch batch = {0};
    expar_status status = gda_post_request(gda_of(self), request, &batch);
    return status == EXPAR_OK ? gda_settle_batch(gda_of(self), &batch) : status;
}

static void gda_describe(const transport *self, char *text, size_t text_bytes)
{
    const gda *g = gda_of(self);
    char device[160], kernels[96];
    g->device->ops->describe(g->device, device, sizeof device);
    gda_kernels_describe(g, kernels, sizeof kernels);
    snprintf(text, text_bytes, "%s, %u queue%s of %u blocks to each of %d ranks; %s rings%s", device,
             g->options.queues_per_peer, g->options.queues_per_peer == 1 ? "" : "s", g->options.depth, g->size,
             g->options.ringer == GDA_RINGER_CPU ? "a host thread" : "the posting thread", kernels);
}

static void gda_add_traffic(const transport *self, transport_traffic *sum)
{
    gda *g = gda_of(self);
    pthread_mutex_lock(&g->lock);
    transport_count *to[] = {&sum->puts, &sum->gets, &sum->atomics};
    const transport_count *from[] = {&g->traffic.puts, &g->traffic.gets, &g->traffic.atomics};
    for (int i = 0; i < 3; i++) {
        to[i]->operations += from[i]->operations;
        to[i]->bytes += from[i]->bytes;
    }
    for (int32_t i = 0; i < g->num_lanes; i++) {
        const uint64_t blocks = gda_load(&g->lanes[i].queue.ready_head);
        sum->requests.operations += blocks;
        sum->requests.bytes += blocks * GDA_BLOCK_BYTES;
        sum->doorbells += gda_load(&g->lanes[i].queue.rings);
    }
    gda_kernels_count(g, sum);
    if (g->device->ops->count) g->device->ops->count(g->device, sum);
    pthread_mutex_unlock(&g->lock);
}

const transport_ops transport_gda = {
    .name = "gda",
    .summary = "requests of mlx5 devices that threads write themselves; a NIC in software, or set up by devx",
    .open = gda_open,
    .add = gda_add_segment,
    .kernels = gda_kernels_of,
    .quiet_kernels = gda_quiet_kernels,
    .kernels_ended = gda_kernels_ended,
    .kernels_failed = gda_kernels_failed,
    .grow = gda_grow,
    .register_own = gda_register_memory,
    .unregister_own = gda_unregister_memory,
    .reach = gda_reach,
    .map = gda_map,
    .run = gda_run,
    .post = gda_post_one,
    .fence = gda_quiet_all,
    .quiet = gda_quiet_all,
    .settle = gda_settle,
    .reap = gda_reap_now,
    .describe = gda_describe,
    .add_traffic = gda_add_traffic,
    .close = gda_close,
};
