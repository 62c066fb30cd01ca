/* SPDX-License-Identifier: Apache-2.0 */
/* Queues for kernels of the rank's GPU (EXPAR_GDA_QUEUE_MEMORY), and what kernels need to use them (view.h).
 *
 * They are made when the ranks get pinned memory, because all ranks take part and the GPU is known then. The queues'
 * state, the view and the tables of keys lie in the GPU's memory:
 *
 *     view      gda_view
 *     keys      gda_keys [TRANSPORT_MEMORIES]
 *     queues    gda_queue [size * queues_per_peer]
 *     tables    for each memory: remotes [size], ends, lkeys, rkeys [size][GDA_CHUNKS]
 *
 * The host shares words of pinned memory with each queue. By them it ends waits of kernels, and learns of failures. */
#include "net/gda/parts.h"
#include "net/gda/space.h"
#include "net/gda/view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Words of a queue that kernels and the host share. */
typedef struct kernel_words {
    /* gda_queue has their meaning: stop is the host's, told and wanted are the kernels'. */
    _Alignas(64) _Atomic uint64_t stop;
    _Atomic uint64_t told, wanted;
} kernel_words;

typedef struct kernel_queue {
    gda_address address;
    gda_queue seen; /* the queue with addresses of the host, for the host's ringer */
    uint64_t rung;
    bool is_reported;
    /* The last word of its completion entry, for kernels; what the reaper saw there last, and since when. */
    const void *entry;
    uint32_t last;
    transport_patience patience;
} kernel_queue;

struct gda_kernels {
    const cuda_device *gpu;
    gda_plan plan;
    kernel_queue *queues; /* [num_queues] */
    int32_t num_queues;
    gda_space words; /* kernel_words [num_queues] */
    gda_space state;
    mem_copier *copier;
    int64_t looked_ns; /* when the reaper last looked at the device's progress */
};

enum { LOOK_NS = 100000000 }; /* between two looks at the progress of the device */

/* ---- places in `state` ------------------------------------------------------------------------------------------- */

typedef struct state_layout {
    uint64_t keys, queues, tables, table_bytes, bytes;
    uint64_t ends, lkeys, rkeys; /* in a table, after `remotes` */
} state_layout;

static state_layout state_lay_out(const gda *g)
{
    const uint64_t size = (uint64_t)g->size;
    state_layout at = {.keys = 256};
    at.queues = align_up(at.keys + TRANSPORT_MEMORIES * sizeof(gda_keys), 256);
    at.tables = align_up(at.queues + size * g->options.queues_per_peer * sizeof(gda_queue), 256);
    at.ends = size * sizeof(uint64_t);
    at.lkeys = at.ends + GDA_CHUNKS * sizeof(uint64_t);
    at.rkeys = at.lkeys + GDA_CHUNKS * sizeof(uint32_t);
    at.table_bytes = align_up(at.rkeys + size * GDA_CHUNKS * sizeof(uint32_t), 256);
    at.bytes = at.tables + TRANSPORT_MEMORIES * at.table_bytes;
    return at;
}

static kernel_words *words_of(const gda_kernels *k, int32_t queue)
{
    return (kernel_words *)(void *)k->words.host + queue;
}

/* Returns the kernels' address of a word in *words_of. */
static _Atomic uint64_t *seen_word(const gda_kernels *k, const _Atomic uint64_t *word)
{
    const uint64_t offset = (uint64_t)((const uint8_t *)(const void *)word - k->words.host);
    return (_Atomic uint64_t *)(uintptr_t)(k->words.address + offset);
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

/* Kernels may read the tables meanwhile: entries that they know stay as they are, and the count comes last. */
static expar_status write_keys(const gda *g, const gda_kernels *k, transport_memory memory)
{
    const gda_segment *s = &g->segments[memory];
    const state_layout at = state_lay_out(g);
    const uint64_t size = (uint64_t)g->size, table = at.tables + memory * at.table_bytes;
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

/* ---- making ------------------------------------------------------------------------------------------------------ */

static expar_status make_queue(gda *g, gda_kernels *k, int32_t i)
{
    gda_parts parts;
    gda_queue queue;
    kernel_queue *q = &k->queues[i];
    kernel_words *words = words_of(k, i);
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
    const uint64_t at = state_lay_out(g).queues + (uint64_t)i * sizeof queue;
    return gda_space_write(&k->state, at, &queue, sizeof queue);
}

static expar_status write_view(const gda *g, const gda_kernels *k)
{
    const state_layout at = state_lay_out(g);
    const gda_view view = {.queues = (gda_queue *)(uintptr_t)(k->state.address + at.queues),
                           .keys = (const gda_keys *)(uintptr_t)(k->state.address + at.keys),
                           .num_pes = (uint32_t)g->size,
                           .per_peer = g->options.queues_per_peer};
    expar_status status = gda_space_write(&k->state, 0, &view, sizeof view);
    for (int memory = 0; memory < TRANSPORT_MEMORIES && status == EXPAR_OK; memory++)
        if (g->segments[memory].is_open) status = write_keys(g, k, (transport_memory)memory);
    return status;
}

/* Makes this rank's part, without its peers. */
static expar_status make_queues(gda *g, gda_kernels *k)
{
    if (!g->device->ops->serve_gpu) return error_set(EXPAR_ERR_UNSUPPORTED, "gda: kernels cannot post to the device");
    k->num_queues = g->num_lanes;
    k->queues = calloc((size_t)k->num_queues, sizeof *k->queues);
    if (!k->queues) return error_set(EXPAR_ERR_MEMORY, "gda: no memory for %d queues", k->num_queues);
    k->plan = gda_lane_plan(g);
    k->plan.place = g->options.place;
    k->plan.gpu = k->gpu;
    expar_status status = g->device->ops->serve_gpu(g->device, k->gpu, g->options.ringer_is_free, &k->plan.ringer);
    const uint64_t words_bytes = (uint64_t)k->num_queues * sizeof(kernel_words);
    if (status == EXPAR_OK) status = gda_space_open(GDA_PLACE_PINNED, k->gpu, words_bytes, &k->words);
    if (status == EXPAR_OK) status = gda_space_open(GDA_PLACE_DEVICE, k->gpu, state_lay_out(g).bytes, &k->state);
    if (status == EXPAR_OK) status = mem_copier_create(k->gpu->index, NULL, &k->copier);
    k->state.copier = k->copier;
    for (int32_t i = 0; i < k->num_queues && status == EXPAR_OK; i++)
        status = make_queue(g, k, i);
    return status == EXPAR_OK ? write_view(g, k) : status;
}

static expar_status connect_queues(gda *g, gda_kernels *k)
{
    const size_t count = (size_t)k->num_queues;
    gda_address *mine = calloc(count, sizeof *mine), *theirs = calloc(count, sizeof *theirs);
    expar_status status =
        mine && theirs ? EXPAR_OK : error_set(EXPAR_ERR_MEMORY, "gda: no memory for %zu addresses of queues", count);
    for (size_t i = 0; status == EXPAR_OK && i < count; i++)
        mine[i] = k->queues[i].address;
    status = gda_connect_all(g, status, mine, theirs, (uint32_t)g->num_lanes);
    free(mine);
    free(theirs);
    return status;
}

static void kernels_free(gda_kernels *k)
{
    gda_space_close(&k->words);
    gda_space_close(&k->state);
    mem_copier_destroy(k->copier);
    free(k->queues);
    free(k);
}

expar_status gda_kernels_open(gda *g, const cuda_device *gpu)
{
    if (g->options.place == GDA_PLACE_HOST || atomic_load_explicit(&g->kernels, memory_order_relaxed)) return EXPAR_OK;
    gda_kernels *k = calloc(1, sizeof *k);
    expar_status status = k ? EXPAR_OK : error_set(EXPAR_ERR_MEMORY, "gda: no memory");
    if (k) k->gpu = gpu;
    if (k && g->kernels_failed) status = error_set(EXPAR_ERR_STATE, "gda: queues for kernels have failed before");
    if (k && !gpu) status = error_set(EXPAR_ERR_UNSUPPORTED, "gda: the rank has no GPU for queues of kernels");
    if (status == EXPAR_OK) status = make_queues(g, k);
    const boot_matter made = {.what = "gda", .rejected = "cannot make queues for kernels"};
    status = boot_agree(g->site->boot, &made, status, NULL);
    if (status == EXPAR_OK) status = connect_queues(g, k);
    if (status != EXPAR_OK) {
        g->kernels_failed = true; /* the device may have some of the queues, until it is closed */
        if (k) kernels_free(k);
        return status;
    }
    atomic_store_explicit(&g->kernels, k, memory_order_release);
    return k->plan.ringer == GDA_RINGER_CPU ? gda_ringer_start(g) : EXPAR_OK;
}

void gda_kernels_close(gda *g)
{
    gda_kernels *k = atomic_exchange_explicit(&g->kernels, NULL, memory_order_acquire);
    if (k) kernels_free(k);
}

uint64_t gda_kernels_view(const gda *g)
{
    const gda_kernels *k = atomic_load_explicit(&g->kernels, memory_order_acquire);
    return k ? k->state.address : 0;
}

void gda_kernels_describe(const gda *g, char *text, size_t text_bytes)
{
    const gda_kernels *k = atomic_load_explicit(&g->kernels, memory_order_acquire);
    text[0] = '\0';
    if (k)
        snprintf(text, text_bytes, "; as many for kernels in %s memory, %s", gda_place_name(k->plan.place),
                 k->plan.ringer == GDA_RINGER_CPU ? "for which a host thread rings" : "which ring");
}

/* ---- while kernels run ------------------------------------------------------------------------------------------- */

bool gda_kernels_ring(gda_kernels *k)
{
    bool rang = false;
    if (k->plan.ringer != GDA_RINGER_CPU) return false;
    for (int32_t i = 0; i < k->num_queues; i++)
        rang |= gda_ring_for(&k->queues[i].seen, &k->queues[i].rung);
    return rang;
}

static void report_failure(kernel_queue *q, uint64_t failure)
{
    char text[ERROR_TEXT_BYTES];
    gda_failure_text(failure, q->seen.pe, text, sizeof text);
    LOG(LOG_WARN, "gda: a queue of kernels has failed: %s", text);
    q->is_reported = true;
}

/* The check says that nobody may wait for the PE any more. */
static bool is_out_of_reach(const gda *g, int32_t pe)
{
    error_kept kept;
    error_save(&kept);
    const bool is_lost = g->site->check(g->site->context, pe, "gda") != EXPAR_OK;
    error_put_back(&kept);
    return is_lost;
}

/* Reads how far the device was told to go, and the last word of the completion entry. */
static expar_status read_progress(const gda *g, const gda_kernels *k, int32_t i, uint64_t *end, uint32_t *last)
{
    const mem_side entry = {.at = (void *)(uintptr_t)k->queues[i].entry, .kind = MEM_DEVICE};
    const uint64_t at = state_lay_out(g).queues + (uint64_t)i * sizeof(gda_queue) + offsetof(gda_queue, prod_idx);
    expar_status status = mem_copier_copy(k->copier, (mem_side){.at = last, .kind = MEM_PAGEABLE}, entry, sizeof *last);
    return status == EXPAR_OK ? gda_space_read(&k->state, at, end, sizeof *end) : status;
}

/* Returns whether the device has made no progress on rung requests for too long. All submissions ask for a completion,
   so the counter in the entry comes to the end of them. */
static bool is_stuck(const gda *g, const gda_kernels *k, int32_t i)
{
    kernel_queue *q = &k->queues[i];
    uint64_t end = 0;
    uint32_t last = 0;
    if (read_progress(g, k, i, &end, &last) != EXPAR_OK) return false; /* the GPU has failed; others say so */
    const bool is_done = ((gda_cqe_counter_of(last) + 1 - end) & GDA_INDEX_MASK) == 0;
    if (is_done || gda_is_error(last) || last != q->last) {
        q->patience = (transport_patience){0};
        q->last = last;
        return false;
    }
    return !transport_waits_on(g->site, &q->patience, q->seen.pe, clock_ns());
}

void gda_kernels_watch(gda *g, gda_kernels *k)
{
    const int64_t now_ns = clock_ns();
    const bool looks = now_ns - k->looked_ns >= LOOK_NS;
    if (looks) k->looked_ns = now_ns;
    for (int32_t i = 0; i < k->num_queues; i++) {
        kernel_queue *q = &k->queues[i];
        kernel_words *words = words_of(k, i);
        const uint64_t failure = gda_load_system(&words->told);
        if (failure && !q->is_reported) report_failure(q, failure);
        if (failure || gda_load_system(&words->stop)) continue;
        if (!is_out_of_reach(g, q->seen.pe) && !(looks && is_stuck(g, k, i))) continue;
        gda_store_system(&words->stop, gda_failure(GDA_FAILED_BY_HOST, 0, 0, 0));
        if (g->device->ops->stop) g->device->ops->stop(g->device, (uint32_t)(g->num_lanes + i));
    }
}
