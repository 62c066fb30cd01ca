/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the transports that EXPAR_TRANSPORTS names and exchanges what each one reaches. For every PE it picks the first
 * one that maps it, the first that puts and gets, and the first that has atomics. */
#include "base/knobs.h"
#include "shmem/copies/copies.h"
#include "shmem/doorbell.h"
#include "shmem/parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The heap grows in chunks of whole huge pages, each as large as all before it, up to a limit. So a network that pins
   memory pins only what is used, and there are few keys. */
#define CHUNK_MIN ((uint64_t)2 << 20)
/* ---- what the transports may ask --------------------------------------------------------------------------------- */

static expar_status site_check(void *context, int32_t pe, const char *what)
{
    expar_status status = pe < 0 ? sym_check(context, what) : sym_check_pe(context, pe, what);
    return status == EXPAR_OK ? sym_check_forming(context, what) : status;
}

static expar_status site_explain(void *context, int32_t pe, const char *what)
{
    return sym_explain(context, pe, what);
}

static void site_told(void *context, int32_t pe)
{
    sym_give_up(context, pe);
}

static int64_t site_patience(void *context, int32_t pe, int64_t waited_ns)
{
    return sym_wait_on(context, pe, waited_ns);
}

static void site_arrived(void *context)
{
    sym *self = context;
    sym_control *control = self->heap.base;
    doorbell_ring(&control->doorbell, self->by_threads);
    sym_proxy_wake(self);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static bool other_nodes(const sym *self)
{
    for (int32_t pe = 0; pe < self->size; pe++)
        if (self->nodes[pe] != self->nodes[self->rank]) return true;
    return false;
}

static bool has_transport(const sym *self, const transport_ops *ops)
{
    for (int32_t t = 0; t < self->num_transports; t++)
        if (self->transports[t]->ops == ops) return true;
    return false;
}

/* Ranks that differ in these settings would wait for each other in different exchanges. */
static expar_status agree_on_start(const sym *self, const char *names)
{
    size_t count;
    const knob_entry *knobs = knob_table(&count);
#define KNOB_FIELD(id) {.name = knobs[KNOB_##id].name, .value = (uint64_t)knob(KNOB_##id)},
    const boot_field fields[] = {{.name = "EXPAR_TRANSPORTS", .text = names}, KNOBS_ALIKE(KNOB_FIELD)};
#undef KNOB_FIELD
    return boot_agree(self->boot, &(boot_matter){.fields = fields, .num_fields = ARRAY_LENGTH(fields)}, EXPAR_OK, NULL);
}

/* A transport that the settings do not name may be missing; the reason is kept for ranks that would have needed it. */
static expar_status open_one(sym *self, const transport_ops *ops, bool asked_for)
{
    transport *made;
    if (self->num_transports == TRANSPORT_MOST)
        return error_set(EXPAR_ERR_UNSUPPORTED, "EXPAR_TRANSPORTS: %s would be one too many, %d can be open", ops->name,
                         TRANSPORT_MOST);
    expar_status status = ops->open(&self->site, &made);
    if (status == EXPAR_ERR_UNSUPPORTED && !asked_for) {
        LOG(LOG_INFO, "transport %s is not used: %s", ops->name, expar_last_error());
        if (!self->unreached) self->unreached = strdup(expar_last_error()); /* of the one that is preferred */
        return EXPAR_OK;
    }
    if (status != EXPAR_OK) return error_prefix(status, "transport %s", ops->name);
    self->transports[self->num_transports++] = made;
    if (ops->progress) self->driven.list[self->driven.count++] = made;
    if (ops->reap) self->reaped.list[self->reaped.count++] = made;
    return EXPAR_OK;
}

/* The transports that are listed after one that serves a node are needed only if there are several nodes. */
static bool is_needed(const sym *self, const transport_ops *ops)
{
    bool served = false;
    for (int32_t t = 0; t < self->num_transports; t++)
        served = served || self->transports[t]->ops->node_local;
    return !has_transport(self, ops) && (ops->node_local || !served || other_nodes(self));
}

static expar_status open_listed(sym *self, const char *names, bool asked_for)
{
    expar_status status = EXPAR_OK;
    while (*names && status == EXPAR_OK) {
        size_t length = strcspn(names, ",");
        const transport_ops *ops = transport_find(names, length);
        if (!ops)
            status = error_set(EXPAR_ERR_UNSUPPORTED, "EXPAR_TRANSPORTS: no transport '%.*s', this build has %s",
                               (int)length, names, transport_names());
        else if (is_needed(self, ops))
            status = open_one(self, ops, asked_for);
        names += length;
        names += *names == ',';
    }
    return status;
}

/* ---- the matrix -------------------------------------------------------------------------------------------------- */

static expar_status exchange_matrix(sym *self)
{
    size_t row = (size_t)self->size * (size_t)self->num_transports * TRANSPORT_MEMORIES;
    self->matrix = calloc((size_t)self->size, row);
    if (!self->matrix) return error_set(EXPAR_ERR_MEMORY, "no memory for a matrix of %d ranks", self->size);
    uint8_t *mine = self->matrix + row * (size_t)self->rank;
    for (int32_t pe = 0; pe < self->size; pe++)
        for (int32_t t = 0; t < self->num_transports; t++)
            for (int k = 0; k < TRANSPORT_MEMORIES; k++)
                *mine++ = (uint8_t)self->transports[t]->ops->reach(self->transports[t], pe, (transport_memory)k);
    return self->boot->ops->allgather(self->boot, self->matrix + row * (size_t)self->rank, self->matrix, row);
}

unsigned sym_reach(const sym *self, int32_t rank, int32_t pe, transport_memory memory, int32_t number)
{
    size_t row = (size_t)rank * (size_t)self->size + (size_t)pe;
    return self->matrix[(row * (size_t)self->num_transports + (size_t)number) * TRANSPORT_MEMORIES + memory];
}

/* Returns the first transport by which `rank` has all of `wanted` at that memory of pe; -1: none. */
static int32_t first_with(const sym *self, int32_t rank, int32_t pe, transport_memory memory, unsigned wanted)
{
    for (int32_t t = 0; t < self->num_transports; t++)
        if ((sym_reach(self, rank, pe, memory, t) & wanted) == wanted) return t;
    return -1;
}

/* All ranks must change pe's words in the same way. If one of them uses a transport whose atomics must not meet a
   processor's, all ranks must use it. */
static int32_t choose_atomics(const sym *self, int32_t pe, transport_memory memory)
{
    for (int32_t rank = 0; rank < self->size; rank++) {
        int32_t t = first_with(self, rank, pe, memory, TRANSPORT_ATOMIC);
        if (t >= 0 && !(sym_reach(self, rank, pe, memory, t) & TRANSPORT_COHERENT)) return t;
    }
    return first_with(self, self->rank, pe, memory, TRANSPORT_ATOMIC);
}

static transport *by_number(const sym *self, int32_t number)
{
    return number < 0 ? NULL : self->transports[number];
}

static transport_ways find_ways(const sym *self, int32_t pe, transport_memory memory)
{
    const unsigned data = TRANSPORT_PUT | TRANSPORT_GET;
    return (transport_ways){
        .map = by_number(self, first_with(self, self->rank, pe, memory, TRANSPORT_MAP)),
        .data = by_number(self, first_with(self, self->rank, pe, memory, data)),
        .words = by_number(self, choose_atomics(self, pe, memory)),
    };
}

static void select_for(sym *self, int32_t pe)
{
    for (int k = 0; k < TRANSPORT_MEMORIES; k++)
        self->ways[k * self->size + pe] = find_ways(self, pe, (transport_memory)k);
    const transport_ways *ways = sym_ways(self, TRANSPORT_HOST, pe);
    if (pe == self->rank)
        self->peers[pe] = self->heap.base;
    else if (ways->map)
        self->peers[pe] = ways->map->ops->map(ways->map, pe, TRANSPORT_HOST, 0);
    bool by_stores = ways->map && ways->data == ways->map && ways->words == ways->map;
    self->direct[pe] = by_stores ? self->peers[pe] : NULL;
}

bool sym_maps(const sym *self, int32_t rank, int32_t pe)
{
    return rank == pe || first_with(self, rank, pe, TRANSPORT_HOST, TRANSPORT_MAP) >= 0;
}

/* Returns whether all ranks of a node map each other's heaps. All ranks find the same. */
static bool node_is_mapped(const sym *self, int32_t first, int32_t ranks)
{
    for (int32_t rank = first; rank < first + ranks; rank++)
        for (int32_t pe = first; pe < first + ranks; pe++)
            if (!sym_maps(self, rank, pe)) return false;
    return true;
}

static int32_t find_node_ranks(const sym *self)
{
    int32_t each = 1;
    while (each < self->size && self->nodes[each] == self->nodes[0])
        each++;
    if (each == 1 || each == self->size || self->size % each != 0) return 0;
    for (int32_t first = 0; first < self->size; first += each)
        if (self->nodes[first] != self->nodes[first + each - 1] || !node_is_mapped(self, first, each)) return 0;
    return each;
}

static void select_all(sym *self)
{
    self->node_ranks = find_node_ranks(self);

    self->all_mapped = self->all_reached = true;
    for (int32_t pe = 0; pe < self->size; pe++) {
        select_for(self, pe);
        if (pe != self->rank && self->peers[pe]) self->some_mapped = true;
        if (!self->peers[pe]) self->all_mapped = false;
        const transport_ways *ways = sym_ways(self, TRANSPORT_HOST, pe);
        if (!self->peers[pe] && !ways->words) self->all_reached = false;
        if (ways->data != ways->words) self->splits = true;
    }
}

/* A transport that registers the heap's first chunk needs memory in all of it, and keeps it. */
static expar_status start_heap(sym *self)
{
    expar_status status = EXPAR_OK;
    for (int32_t t = 0; t < self->num_transports; t++)
        if (self->transports[t]->ops->grow) self->keeps_pages = true;
    if (self->keeps_pages) status = mem_region_commit(&self->heap, &self->budget, 0, self->heap.open_bytes);
    return status == EXPAR_OK ? sym_grow(self, self->heap.open_bytes) : status;
}

/* ---- making and end ---------------------------------------------------------------------------------------------- */

expar_status sym_reach_open(sym *self, const mem_region *const *peer_heaps)
{
    const char *asked_for = env_string("EXPAR_TRANSPORTS");
    char list[BOOT_FIELD_TEXT];
    self->site = (transport_site){
        .boot = self->boot,
        .segments[TRANSPORT_HOST] = {.region = &self->heap,
                                     .after = self->backing ? &self->backing->region : NULL,
                                     .peers = peer_heaps},
        .nodes = self->nodes,
        .timeout_ms = self->timeout_ms,
        .crowded = self->crowded,
        .cores_each = sym_cores_each(self),
        .check = site_check,
        .explain = site_explain,
        .told = site_told,
        .arrived = site_arrived,
        .patience = site_patience,
        .context = self,
    };
    snprintf(list, sizeof list, "%s", asked_for ? asked_for : transport_names());
    expar_status status = agree_on_start(self, list);
    if (status == EXPAR_OK) status = sym_proxy_open(self);
    if (status == EXPAR_OK) status = open_listed(self, list, asked_for != NULL);
    if (status == EXPAR_OK) status = exchange_matrix(self);
    if (status != EXPAR_OK) return status;
    select_all(self);
    return start_heap(self);
}

void sym_reach_close(sym *self)
{
    sym_proxy_stop(self);
    for (int32_t t = self->num_transports - 1; t >= 0; t--)
        self->transports[t]->ops->close(self->transports[t]);
    self->num_transports = 0;
    self->driven.count = self->reaped.count = 0;
    sym_proxy_close(self);
    free(self->matrix);
    free(self->unreached);
}

/* ---- another kind of memory -------------------------------------------------------------------------------------- */

/* Each rank tells all others how it reaches their memory of this kind, or why it cannot take part. */
static expar_status exchange_reach(sym *self, const char *what, transport_memory memory, expar_status own, uint8_t *all)
{
    const size_t row = (size_t)self->size * (size_t)self->num_transports;
    uint8_t *mine = all + row * (size_t)self->size;
    for (size_t i = 0; i < row; i++) {
        const transport *via = self->transports[i % (size_t)self->num_transports];
        mine[i] = (uint8_t)via->ops->reach(via, (int32_t)(i / (size_t)self->num_transports), memory);
    }
    const boot_matter matter = {.what = what,
                                .rejected = "cannot reach memory of its node",
                                .common = EXPAR_ERR_MEMORY,
                                .lacks = "has no memory for it",
                                .mine = mine,
                                .all = all,
                                .bytes = row};
    return sym_agree(self, &matter, own);
}

/* Readers of other kinds look at other bytes of the matrix, and at other ways. */
static void select_kind(sym *self, transport_memory memory, const uint8_t *all)
{
    const size_t cells = (size_t)self->size * (size_t)self->size * (size_t)self->num_transports;
    for (size_t i = 0; i < cells; i++)
        self->matrix[i * TRANSPORT_MEMORIES + memory] = all[i];
    for (int32_t pe = 0; pe < self->size; pe++)
        self->ways[memory * self->size + pe] = find_ways(self, pe, memory);
}

expar_status sym_reach_add(sym *self, const char *what, transport_memory memory, const transport_segment *segment)
{
    const size_t size = (size_t)self->size;
    uint8_t *all = calloc((size + 1) * size, (size_t)self->num_transports + 1);
    if (!all) return sym_out_of_step(self, what, error_set(EXPAR_ERR_MEMORY, "no memory"));
    self->site.segments[memory] = *segment;
    expar_status status = EXPAR_OK;
    for (int32_t t = 0; t < self->num_transports && status == EXPAR_OK; t++)
        if (self->transports[t]->ops->add) status = self->transports[t]->ops->add(self->transports[t], memory);
    status = exchange_reach(self, what, memory, status, all);
    if (status == EXPAR_OK)
        select_kind(self, memory, all);
    else
        self->site.segments[memory] = (transport_segment){0};
    free(all);
    return status;
}

/* ---- growth and order -------------------------------------------------------------------------------------------- */

uint64_t sym_next_border(uint64_t grown, uint64_t end, uint64_t limit)
{
    const uint64_t most = (uint64_t)knob(KNOB_HEAP_CHUNK_BYTES);
    uint64_t chunk = grown < most ? grown : most;
    if (end <= grown) return grown;
    uint64_t border = align_up(end - grown > chunk ? end : grown + chunk, CHUNK_MIN);
    return border < limit ? border : limit;
}

uint64_t sym_border(const sym *self, uint64_t end)
{
    return sym_next_border(atomic_load_explicit(&self->grown_bytes, memory_order_relaxed), end, self->heap.bytes);
}

expar_status sym_reach_grow(sym *self, transport_memory memory, uint64_t border, uint64_t reached[TRANSPORT_MOST])
{
    expar_status status = EXPAR_OK;
    for (int32_t t = 0; t < self->num_transports && status == EXPAR_OK; t++) {
        transport *via = self->transports[t];
        const bool reaches = memory == TRANSPORT_HOST || sym_reach(self, self->rank, self->rank, memory, t);
        if (via->ops->grow && reaches && reached[t] < border)
            status = via->ops->grow(via, memory, reached[t], border - reached[t]);
        if (status == EXPAR_OK) reached[t] = border;
    }
    return status;
}

expar_status sym_grow(sym *self, uint64_t end)
{
    uint64_t border = sym_border(self, end);
    expar_status status = sym_reach_grow(self, TRANSPORT_HOST, border, self->reached_bytes);
    if (status != EXPAR_OK || border == atomic_load_explicit(&self->grown_bytes, memory_order_relaxed)) return status;
    atomic_fetch_add_explicit(&self->chunks, 1, memory_order_relaxed);
    atomic_store_explicit(&self->grown_bytes, border, memory_order_release);
    return status;
}

expar_status sym_order_before(sym *self, expar_status ordered, int32_t pe)
{
    if (ordered == EXPAR_OK || sym_check_pe(self, pe, "an operation before") != EXPAR_OK) return ordered;
    pthread_mutex_lock(&self->lock);
    error_keep(&self->owed, ordered);
    atomic_store_explicit(&self->owes_failure, true, memory_order_relaxed);
    pthread_mutex_unlock(&self->lock);
    return EXPAR_OK;
}

static expar_status tell_owed(sym *self, expar_status status)
{
    /* The plain load saves a locked instruction in every quiet. */
    if (!atomic_load_explicit(&self->owes_failure, memory_order_relaxed) ||
        !atomic_exchange_explicit(&self->owes_failure, false, memory_order_relaxed) || status != EXPAR_OK)
        return status;
    status = sym_check(self, "an earlier operation");
    if (status != EXPAR_OK) return status;
    pthread_mutex_lock(&self->lock);
    error_restore(&self->owed);
    pthread_mutex_unlock(&self->lock);
    error_prefix(EXPAR_ERR_PEER, "an earlier operation failed");
    return EXPAR_ERR_PEER;
}

/* A proxy does not know of operations that bypass its ring, so its ring is completed first. A failure of one transport
   does not keep the operations of others from being completed. A transport's fence does not order another transport's
   operations. Device memory has one of its own. */
expar_status sym_fence(sym *self)
{
    const bool apart = self->splits || atomic_load_explicit(&self->copies, memory_order_relaxed);
    expar_status status = sym_proxy_quiet(self, "fence");
    for (int32_t t = 0; t < self->num_transports; t++) {
        transport *via = self->transports[t];
        expar_status one = apart ? via->ops->quiet(via) : via->ops->fence(via);
        if (one != EXPAR_OK) status = one;
    }
    expar_status copied = copies_quiet(self);
    return tell_owed(self, copied == EXPAR_OK ? status : copied);
}

expar_status sym_quiet(sym *self)
{
    expar_status status = sym_proxy_quiet(self, "quiet");
    for (int32_t t = 0; t < self->num_transports; t++) {
        expar_status one = self->transports[t]->ops->quiet(self->transports[t]);
        if (one != EXPAR_OK) status = one;
    }
    expar_status copied = copies_quiet(self);
    return tell_owed(self, copied == EXPAR_OK ? status : copied);
}

expar_status sym_settle(sym *self, transport_batch *batch)
{
    expar_status status = EXPAR_OK;
    for (int32_t t = 0; t < self->num_transports; t++) {
        transport *via = self->transports[t];
        expar_status one = via->ops->settle ? via->ops->settle(via, batch) : via->ops->quiet(via);
        if (one != EXPAR_OK) status = one;
    }
    return status;
}

expar_status sym_word_set(sym *self, int32_t pe, uint64_t offset, uint64_t value)
{
    _Atomic uint64_t *word = sym_at(self, pe, offset);
    if (word) {
        atomic_store_explicit(word, value, memory_order_release);
        sym_ring(self, pe);
        return EXPAR_OK;
    }
    transport *via = sym_ways(self, TRANSPORT_HOST, pe)->words;
    const transport_request set = {.kind = TRANSPORT_KIND_ATOMIC,
                                   .pe = pe,
                                   .offset = offset,
                                   .bytes = sizeof value,
                                   .op = TRANSPORT_SET,
                                   .operand = value};
    if (!via) return error_set(EXPAR_ERR_UNSUPPORTED, "no transport reaches rank %d", pe);
    expar_status status = sym_order_before(self, via->ops->fence(via), pe);
    return status == EXPAR_OK ? via->ops->run(via, &set) : status;
}
