/* SPDX-License-Identifier: Apache-2.0 */
/* Queues for kernels (EXPAR_GDA_QUEUE_MEMORY), and what kernels need to use them (view.h).
 *
 * Those for the rank's GPU are made when the ranks get pinned memory, because all ranks take part and the GPU is known
 * then. Those for kernels that the CPU runs are made when the transport is opened. The queues' state, the view and the
 * tables of keys lie in memory of the GPU, or of the process:
 *
 *     view      gda_view
 *     keys      gda_keys [TRANSPORT_MEMORIES]
 *     known     gda_known [GDA_KNOWN]: memory that the caller has registered
 *     queues    gda_queue [size * queues_per_peer]
 *     tables    for each memory: remotes [size], ends, lkeys, rkeys [size][GDA_CHUNKS]
 *
 * The host shares words with each queue. By them it ends waits of kernels, and learns of failures. */
#include "net/gda/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- places ------------------------------------------------------------------------------------------------------ */

kernels_layout gda_kernels_lay_out(const gda *g)
{
    const uint64_t size = (uint64_t)g->size;
    kernels_layout at = {.keys = 256};
    at.known = align_up(at.keys + TRANSPORT_MEMORIES * sizeof(gda_keys), 256);
    at.queues = align_up(at.known + GDA_KNOWN * sizeof(gda_known), 256);
    at.tables = align_up(at.queues + size * g->options.queues_per_peer * sizeof(gda_queue), 256);
    at.ends = size * sizeof(uint64_t);
    at.lkeys = at.ends + GDA_CHUNKS * sizeof(uint64_t);
    at.rkeys = at.lkeys + GDA_CHUNKS * sizeof(uint32_t);
    at.table_bytes = align_up(at.rkeys + size * GDA_CHUNKS * sizeof(uint32_t), 256);
    at.bytes = at.tables + TRANSPORT_MEMORIES * at.table_bytes;
    return at;
}

/* Returns the kernels' address of a word in *gda_kernel_words_of. */
static _Atomic uint64_t *seen_word(const gda_kernels *k, const _Atomic uint64_t *word)
{
    const uint64_t offset = (uint64_t)((const uint8_t *)(const void *)word - k->words.host);
    return (_Atomic uint64_t *)(uintptr_t)(k->words.address + offset);
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

/* Threads of the CPU may read the tables meanwhile: entries that they know are not written again, and the count comes
   last. */
static void write_keys_here(const gda *g, const gda_kernels *k, transport_memory memory)
{
    const gda_segment *s = &g->segments[memory];
    const kernels_layout at = gda_kernels_lay_out(g);
    uint8_t *const table = k->state.host + at.tables + memory * at.table_bytes;
    gda_keys *keys = (gda_keys *)(void *)(k->state.host + at.keys) + memory;
    const uint64_t known = gda_load(&keys->num_chunks), count = gda_load(&s->keys.num_chunks);
    uint64_t *ends = (uint64_t *)(void *)(table + at.ends);
    uint32_t *lkeys = (uint32_t *)(void *)(table + at.lkeys), *rkeys = (uint32_t *)(void *)(table + at.rkeys);
    if (known == 0) {
        *keys = (gda_keys){.heap = s->keys.heap, .num_pes = s->keys.num_pes, .stride = s->keys.stride};
        keys->remotes = memcpy(table, s->remotes, (size_t)g->size * sizeof *s->remotes);
        keys->ends = ends;
        keys->lkeys = lkeys;
        keys->rkeys = rkeys;
        keys->shift = s->keys.shift;
    }
    for (uint64_t c = known; c < count; c++) {
        ends[c] = s->ends[c];
        lkeys[c] = s->lkeys[c];
        for (size_t pe = 0; pe < (size_t)g->size; pe++)
            rkeys[pe * GDA_CHUNKS + c] = s->rkeys[pe * GDA_CHUNKS + c];
    }
    gda_store(&keys->num_chunks, count);
}

/* The same in memory of a GPU. */
static expar_status write_keys(const gda *g, const gda_kernels *k, transport_memory memory)
{
    const gda_segment *s = &g->segments[memory];
    const kernels_layout at = gda_kernels_lay_out(g);
    const uint64_t size = (uint64_t)g->size, table = at.tables + memory * at.table_bytes;
    if (k->plan.place == GDA_PLACE_HOST) {
        write_keys_here(g, k, memory);
        return EXPAR_OK;
    }
    const uint8_t *here = (const uint8_t *)(uintptr_t)(k->state.address + table);
    /* Ranges are those of an operation of the host, which may be in progress (post.c). Kernels have none. */
    gda_keys keys = {.heap = s->keys.heap,
                     .num_pes = s->keys.num_pes,
                     .stride = s->keys.stride,
                     .shift = s->keys.shift,
                     .num_chunks = gda_load(&s->keys.num_chunks)};
    keys.remotes = (const uint64_t *)(const void *)here;
    keys.ends = (const uint64_t *)(const void *)(here + at.ends);
    keys.lkeys = (const uint32_t *)(const void *)(here + at.lkeys);
    keys.rkeys = (const uint32_t *)(const void *)(here + at.rkeys);
    expar_status status = gda_space_write(&k->state, table, s->remotes, size * sizeof *s->remotes);
    if (status == EXPAR_OK) status = gda_space_write(&k->state, table + at.ends, s->ends, GDA_CHUNKS * sizeof *s->ends);
    if (status == EXPAR_OK)
        status = gda_space_write(&k->state, table + at.lkeys, s->lkeys, GDA_CHUNKS * sizeof *s->lkeys);
    if (status == EXPAR_OK)
        status = gda_space_write(&k->state, table + at.rkeys, s->rkeys, size * GDA_CHUNKS * sizeof *s->rkeys);
    if (status == EXPAR_OK) status = gda_space_write(&k->state, at.keys + memory * sizeof keys, &keys, sizeof keys);
    return status;
}

expar_status gda_kernels_learn(gda *g, transport_memory memory)
{
    const gda_kernels *k = atomic_load_explicit(&g->kernels, memory_order_acquire);
    if (!k || !g->segments[memory].is_open) return EXPAR_OK;
    return write_keys(g, k, memory);
}

/* ---- registered memory ------------------------------------------------------------------------------------------- */

static expar_status write_word(const gda_kernels *k, uint64_t at, uint64_t value)
{
    if (k->plan.place != GDA_PLACE_HOST) return gda_space_write(&k->state, at, &value, sizeof value);
    gda_store((_Atomic uint64_t *)(void *)(k->state.host + at), value);
    return EXPAR_OK;
}

/* Kernels may look for their memory meanwhile. */
static expar_status write_known(const gda *g, const gda_kernels *k, int32_t place, const gda_range *range)
{
    const uint64_t at = gda_kernels_lay_out(g).known + (uint64_t)place * sizeof(gda_known);
    expar_status status = write_word(k, at + offsetof(gda_known, end), 0);
    if (!range) return status;
    if (status == EXPAR_OK) status = write_word(k, at + offsetof(gda_known, begin), range->begin);
    if (status == EXPAR_OK) status = write_word(k, at + offsetof(gda_known, lkey), range->lkey);
    return status == EXPAR_OK ? write_word(k, at + offsetof(gda_known, end), range->end) : status;
}

expar_status gda_kernels_know(const gda *g, const gda_own *own, bool known)
{
    const gda_kernels *k = atomic_load_explicit(&g->kernels, memory_order_acquire);
    if (!k || own->place < 0) return EXPAR_OK;
    return write_known(g, k, own->place, known ? &own->range : NULL);
}

/* Memory that was registered before there were queues. */
static expar_status know_all(gda *g)
{
    expar_status status = EXPAR_OK;
    pthread_mutex_lock(&g->lock);
    for (size_t i = 0; i < g->num_owns && status == EXPAR_OK; i++)
        status = gda_kernels_know(g, &g->owns[i], true);
    pthread_mutex_unlock(&g->lock);
    return status;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

static expar_status make_queue(gda *g, gda_kernels *k, int32_t i)
{
    gda_parts parts;
    gda_queue queue;
    kernel_queue *q = &k->queues[i];
    kernel_words *words = gda_kernel_words_of(k, i);
    const int32_t pe = i / (int32_t)g->options.queues_per_peer;
    const uint32_t number = (uint32_t)(g->num_lanes + i);
    expar_status status = g->device->ops->add_queue(g->device, &k->plan, number, pe, &parts, &q->address);
    if (status != EXPAR_OK) return status;
    parts.stop = seen_word(k, &words->stop);
    parts.told = seen_word(k, &words->told);
    parts.wanted = k->plan.ringer == GDA_RINGER_CPU ? seen_word(k, &words->wanted) : NULL;
    gda_queue_start(&queue, &k->plan, &parts, q->address.qpn, pe);
    q->entry = (const void *)(parts.cqes + GDA_CQE_LAST);
    parts.record = parts.host_record;
    parts.doorbell = parts.host_doorbell;
    parts.wanted = &words->wanted;
    gda_queue_start(&q->seen, &k->plan, &parts, q->address.qpn, pe);
    const uint64_t at = gda_kernels_lay_out(g).queues + (uint64_t)i * sizeof queue;
    return gda_space_write(&k->state, at, &queue, sizeof queue);
}

static expar_status write_view(const gda *g, const gda_kernels *k)
{
    const kernels_layout at = gda_kernels_lay_out(g);
    const gda_view view = {.queues = (gda_queue *)(uintptr_t)(k->state.address + at.queues),
                           .keys = (const gda_keys *)(uintptr_t)(k->state.address + at.keys),
                           .known = (const gda_known *)(uintptr_t)(k->state.address + at.known),
                           .num_pes = (uint32_t)g->size,
                           .per_peer = g->options.queues_per_peer,
                           .reorders = g->options.reorders};
    static const gda_known none[GDA_KNOWN];
    expar_status status = gda_space_write(&k->state, 0, &view, sizeof view);
    if (status == EXPAR_OK) status = gda_space_write(&k->state, at.known, none, sizeof none);
    for (int memory = 0; memory < TRANSPORT_MEMORIES && status == EXPAR_OK; memory++)
        if (g->segments[memory].is_open) status = write_keys(g, k, (transport_memory)memory);
    return status;
}

/* Makes this rank's part, without its peers. */
static expar_status make_queues(gda *g, gda_kernels *k)
{
    const gda_place shared = k->gpu ? GDA_PLACE_PINNED : GDA_PLACE_HOST;
    const gda_place state = k->gpu ? GDA_PLACE_DEVICE : GDA_PLACE_HOST;
    if (k->gpu && !g->device->ops->serve_gpu)
        return error_set(EXPAR_ERR_UNSUPPORTED, "gda: kernels cannot post to the device");
    k->num_queues = g->num_lanes;
    k->queues = calloc((size_t)k->num_queues, sizeof *k->queues);
    if (!k->queues) return error_set(EXPAR_ERR_MEMORY, "gda: no memory for %d queues", k->num_queues);
    k->plan = gda_lane_plan(g);
    k->plan.place = g->options.place;
    k->plan.gpu = k->gpu;
    const uint64_t words_bytes = (uint64_t)k->num_queues * sizeof(kernel_words);
    expar_status status = EXPAR_OK;
    if (k->gpu) status = g->device->ops->serve_gpu(g->device, k->gpu, g->options.ringer_is_free, &k->plan.ringer);
    if (status == EXPAR_OK) status = gda_space_open(shared, k->gpu, words_bytes, &k->words);
    if (status == EXPAR_OK) status = gda_space_open(state, k->gpu, gda_kernels_lay_out(g).bytes, &k->state);
    if (status == EXPAR_OK && k->gpu) status = mem_copier_create(k->gpu->index, NULL, &k->copier);
    k->state.copier = k->copier;
    for (int32_t i = 0; i < k->num_queues && status == EXPAR_OK; i++)
        status = make_queue(g, k, i);
    return status == EXPAR_OK ? write_view(g, k) : status;
}

static const gda_address *queue_address(const void *of, int32_t i)
{
    return &((const gda_kernels *)of)->queues[i].address;
}

static void kernels_free(gda_kernels *k)
{
    gda_space_close(&k->words);
    gda_space_close(&k->state);
    if (k->copier) mem_copier_destroy(k->copier);
    free(k->queues);
    free(k);
}

expar_status gda_kernels_open(gda *g, const cuda_device *gpu)
{
    if (!g->options.serves_kernels || atomic_load_explicit(&g->kernels, memory_order_relaxed)) return EXPAR_OK;
    gda_kernels *k = calloc(1, sizeof *k);
    expar_status status = k ? EXPAR_OK : error_set(EXPAR_ERR_MEMORY, "gda: no memory");
    const bool on_gpu = g->options.place != GDA_PLACE_HOST;
    if (k && on_gpu) k->gpu = gpu;
    if (k && g->kernels_failed) status = error_set(EXPAR_ERR_STATE, "gda: queues for kernels have failed before");
    if (k && on_gpu && !gpu)
        status = error_set(EXPAR_ERR_UNSUPPORTED, "gda: the rank has no GPU for queues of kernels");
    if (status == EXPAR_OK) status = make_queues(g, k);
    const boot_matter made = {.what = "gda", .rejected = "cannot make queues for kernels"};
    status = boot_agree(g->site->boot, &made, status, NULL);
    if (status == EXPAR_OK) status = gda_connect_all(g, queue_address, k, (uint32_t)g->num_lanes);
    if (status != EXPAR_OK) {
        g->kernels_failed = true; /* the device may have some of the queues, until it is closed */
        if (k) kernels_free(k);
        return status;
    }
    atomic_store_explicit(&g->kernels, k, memory_order_release);
    status = know_all(g);
    return status == EXPAR_OK && k->plan.ringer == GDA_RINGER_CPU ? gda_ringer_start(g) : status;
}

void gda_kernels_close(gda *g)
{
    gda_kernels *k = atomic_exchange_explicit(&g->kernels, NULL, memory_order_acquire);
    if (k) kernels_free(k);
}

uint64_t gda_kernels_view(const gda *g, bool on_gpu)
{
    const gda_kernels *k = atomic_load_explicit(&g->kernels, memory_order_acquire);
    return k && on_gpu == (k->plan.place != GDA_PLACE_HOST) ? k->state.address : 0;
}

void gda_kernels_describe(const gda *g, char *text, size_t text_bytes)
{
    const gda_kernels *k = atomic_load_explicit(&g->kernels, memory_order_acquire);
    text[0] = '\0';
    if (k)
        snprintf(text, text_bytes, "; as many for kernels in %s memory, %s", gda_place_name(k->plan.place),
                 k->plan.ringer == GDA_RINGER_CPU ? "for which a host thread rings" : "which ring");
}
