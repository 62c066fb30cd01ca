/* SPDX-License-Identifier: Apache-2.0 */
/* Queues for kernels, while kernels use them. The host rings where kernels cannot. It ends their waits when a PE is out
 * of reach or the device stands still. It logs failures, and waits for what kernels have left. */
#include "base/interrupt.h"
#include "net/gda/kernels.h"

#include <time.h>

enum {
    LOOK_NS = 100000000, /* between two looks at the progress of the device */
    SETTLE_NS = 20000    /* likewise, for a thread that waits for the end of requests */
};

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

/* Reads a word of the completion entry. */
static expar_status read_entry(const gda_kernels *k, int32_t i, int word, uint32_t *out)
{
    const PORTABLE_SHARED(uint32_t) *entry = (const PORTABLE_SHARED(uint32_t) *)k->queues[i].entry;
    const mem_side from = {.at = (void *)(uintptr_t)(entry - GDA_CQE_LAST + word), .kind = MEM_DEVICE};
    if (k->plan.place == GDA_PLACE_HOST) {
        *out = gda_load_32(entry - GDA_CQE_LAST + word);
        return EXPAR_OK;
    }
    return mem_copier_copy(k->copier, (mem_side){.at = out, .kind = MEM_PAGEABLE}, from, sizeof *out);
}

/* Reads the last word of the completion entry, and then how far the device was told to go. */
static expar_status read_progress(const gda *g, const gda_kernels *k, int32_t i, uint64_t *end, uint32_t *last)
{
    const uint64_t at = gda_kernels_lay_out(g).queues + (uint64_t)i * sizeof(gda_queue);
    expar_status status = read_entry(k, i, GDA_CQE_LAST, last);
    if (status != EXPAR_OK) return status;
    if (k->plan.place != GDA_PLACE_HOST) return gda_space_read(&k->state, at + offsetof(gda_queue, prod_idx), end, 8);
    *end = gda_load(&((const gda_queue *)(const void *)(k->state.host + at))->prod_idx);
    return EXPAR_OK;
}

/* Returns the failure that the completion entry tells; 0: it tells none. A kernel sees it when it next looks at the
   entry, which it need not do. */
static uint64_t failure_in_entry(const gda_kernels *k, int32_t i)
{
    uint32_t last = 0, again = 0, word = 0;
    if (read_entry(k, i, GDA_CQE_LAST, &last) != EXPAR_OK || !gda_is_error(last)) return 0;
    if (read_entry(k, i, GDA_CQE_SYNDROME, &word) != EXPAR_OK) return 0;
    if (read_entry(k, i, GDA_CQE_LAST, &again) != EXPAR_OK || again != last) return 0;
    return gda_failure(GDA_FAILED_BY_DEVICE, gda_cqe_syndrome_of(word), gda_cqe_vendor_of(word),
                       gda_cqe_counter_of(last));
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
        kernel_words *words = gda_kernel_words_of(k, i);
        const uint64_t failure = gda_load_system(&words->told);
        if (failure && !q->is_reported) report_failure(q, failure);
        if (failure || gda_load_system(&words->stop)) continue;
        uint64_t found = looks ? failure_in_entry(k, i) : 0;
        if (!found && (is_out_of_reach(g, q->seen.pe) || (looks && is_stuck(g, k, i))))
            found = gda_failure(GDA_FAILED_BY_HOST, 0, 0, 0);
        if (!found) continue;
        gda_store_system(&words->stop, found);
        if (g->device->ops->stop) g->device->ops->stop(g->device, (uint32_t)(g->num_lanes + i));
    }
}

static uint64_t read_counter(const gda *g, const gda_kernels *k, int32_t i, size_t member)
{
    uint64_t value = 0;
    const uint64_t at = gda_kernels_lay_out(g).queues + (uint64_t)i * sizeof(gda_queue) + member;
    if (k->plan.place == GDA_PLACE_HOST) return gda_load((const _Atomic uint64_t *)(const void *)(k->state.host + at));
    return gda_space_read(&k->state, at, &value, sizeof value) == EXPAR_OK ? value : 0;
}

void gda_kernels_count(const gda *g, transport_traffic *sum)
{
    const gda_kernels *k = atomic_load_explicit(&g->kernels, memory_order_acquire);
    for (int32_t i = 0; k && i < k->num_queues; i++) {
        const uint64_t blocks = read_counter(g, k, i, offsetof(gda_queue, ready_head));
        sum->requests.operations += blocks;
        sum->requests.bytes += blocks * GDA_BLOCK_BYTES;
        sum->doorbells += read_counter(g, k, i, offsetof(gda_queue, rings)) + gda_load(&k->queues[i].seen.rings);
    }
}

/* ---- a queue, for the host --------------------------------------------------------------------------------------- */

/* Returns the end of the completed blocks. At most a whole queue is in flight, so 16 bits of the entry's counter are
   enough. */
static uint64_t completed_before(uint64_t told, uint32_t last)
{
    return told - ((told - (gda_cqe_counter_of(last) + 1)) & GDA_INDEX_MASK);
}

bool gda_kernels_have_ended(const gda *g, int32_t pe, uint64_t end)
{
    const gda_kernels *k = atomic_load_explicit(&g->kernels, memory_order_acquire);
    const int32_t i = pe * (int32_t)g->options.queues_per_peer;
    uint64_t told;
    uint32_t last;
    if (!k || end == 0) return true;
    const kernel_words *words = gda_kernel_words_of(k, i);
    if (gda_load_system(&words->told) || gda_load_system(&words->stop)) return true;
    if (read_progress(g, k, i, &told, &last) != EXPAR_OK || gda_is_error(last)) return true;
    return gda_has_reached(completed_before(told, last), end);
}

/* Returns the failure of requests; 0: none has failed. The host may have given up a queue that nobody uses any more. */
static uint64_t failure_of_requests(const gda *g, const gda_kernels *k, int32_t i)
{
    const kernel_words *words = gda_kernel_words_of(k, i);
    const uint64_t failure = gda_load_system(&words->told), stop = gda_load_system(&words->stop);
    uint64_t told = 0;
    uint32_t last = 0;
    if (failure || !stop) return failure;
    if (read_progress(g, k, i, &told, &last) != EXPAR_OK) return stop;
    return gda_is_error(last) || completed_before(told, last) != told ? stop : 0;
}

expar_status gda_kernels_error(const gda *g, int32_t pe)
{
    const gda_kernels *k = atomic_load_explicit(&g->kernels, memory_order_acquire);
    char text[ERROR_TEXT_BYTES];
    const uint64_t failure = k ? failure_of_requests(g, k, pe * (int32_t)g->options.queues_per_peer) : 0;
    if (!failure) return EXPAR_OK;
    expar_status status = g->site->check(g->site->context, pe, "gda");
    if (status != EXPAR_OK) return status;
    gda_failure_text(failure, pe, text, sizeof text);
    return error_set(EXPAR_ERR_PEER, "gda: %s", text);
}

/* ---- the end of what kernels have started ------------------------------------------------------------------------ */

/* Says whether the blocks before `end` have ended. A kernel that has ended has rung for all that it had committed. The
   counter in the entry is older within the distance of a whole queue. */
static bool requests_have_ended(const gda *g, const gda_kernels *k, int32_t i, uint64_t end)
{
    const kernel_words *words = gda_kernel_words_of(k, i);
    uint64_t told;
    uint32_t last;
    if (gda_load_system(&words->told) || gda_load_system(&words->stop)) return true;
    if (read_progress(g, k, i, &told, &last) != EXPAR_OK || gda_is_error(last)) return true;
    return (((uint32_t)end - gda_cqe_counter_of(last) - 2) & GDA_INDEX_MASK) >= k->plan.cq_entries;
}

expar_status gda_kernels_settle(gda *g)
{
    const gda_kernels *k = atomic_load_explicit(&g->kernels, memory_order_acquire);
    int64_t asked_ns = 0;
    expar_status status = EXPAR_OK;
    for (int32_t i = 0; k && i < k->num_queues && status == EXPAR_OK; i++) {
        uint64_t end = 0;
        uint32_t last;
        if (read_progress(g, k, i, &end, &last) != EXPAR_OK) continue; /* the GPU has failed; others say so */
        while (status == EXPAR_OK && !requests_have_ended(g, k, i, end)) {
            nanosleep(&(struct timespec){.tv_nsec = SETTLE_NS}, NULL);
            status = interrupt_look(&asked_ns, "waiting for requests of kernels");
        }
    }
    return status;
}
