/* SPDX-License-Identifier: Apache-2.0 */
/* The host's part of a queue: its numbers are checked, its words are set, its failure is put into words. */
#include "net/gda/gda.h"

#include <stdio.h>

static expar_status plan_reject(const char *name, uint32_t value, const char *expected)
{
    return error_set(EXPAR_ERR_ARGUMENT, "gda queue: %s is %u, expected %s", name, value, expected);
}

static bool is_power(uint32_t value)
{
    return value && !(value & (value - 1));
}

expar_status gda_plan_check(const gda_plan *plan)
{
    char expected[64];
    if (!is_power(plan->depth) || plan->depth > GDA_MOST_BLOCKS)
        return plan_reject("depth", plan->depth, "a power of two up to 32768");
    if (!is_power(plan->cq_entries) || plan->cq_entries < plan->depth || plan->cq_entries > GDA_MOST_BLOCKS) {
        snprintf(expected, sizeof expected, "a power of two from the depth, %u, up to 32768", plan->depth);
        return plan_reject("cq_entries", plan->cq_entries, expected);
    }
    if (!is_power(plan->batch)) return plan_reject("batch", plan->batch, "a power of two");
    if (plan->most < GDA_REQUEST_BLOCKS)
        return plan_reject("most", plan->most, "at least 3, the blocks of one request");
    if ((uint64_t)plan->batch + plan->most > plan->depth) {
        snprintf(expected, sizeof expected, "at least batch + most, %u + %u", plan->batch, plan->most);
        return plan_reject("depth", plan->depth, expected);
    }
    if (!is_power(plan->num_results)) return plan_reject("num_results", plan->num_results, "a power of two");
    return EXPAR_OK;
}

static void queue_set_words(gda_queue *queue, uint64_t first)
{
    atomic_store_explicit(&queue->resv_head, first, memory_order_relaxed);
    atomic_store_explicit(&queue->ready_head, first, memory_order_relaxed);
    atomic_store_explicit(&queue->prod_idx, first, memory_order_relaxed);
    atomic_store_explicit(&queue->cons_idx, first, memory_order_relaxed);
    atomic_store_explicit(&queue->get_head, first, memory_order_relaxed);
    atomic_store_explicit(&queue->get_tail, first, memory_order_relaxed);
    atomic_store_explicit(&queue->lock, 0, memory_order_relaxed);
    atomic_store_explicit(&queue->rings, 0, memory_order_relaxed);
    atomic_store_explicit(&queue->cq_lock, 0, memory_order_relaxed);
    atomic_store_explicit(&queue->cq_head, 0, memory_order_relaxed);
    atomic_store_explicit(&queue->result_head, 0, memory_order_relaxed);
    atomic_store_explicit(&queue->result_tail, 0, memory_order_relaxed);
    atomic_store_explicit(&queue->error, 0, memory_order_release);
}

void gda_queue_start(gda_queue *queue, const gda_plan *plan, const gda_parts *parts, uint32_t qpn, int32_t pe)
{
    queue->blocks = parts->blocks;
    queue->record = parts->record;
    queue->doorbell = parts->doorbell;
    queue->cqes = parts->cqes;
    queue->cq_record = parts->cq_record;
    queue->stop = parts->stop;
    queue->told = parts->told;
    queue->wanted = parts->wanted;
    queue->results = parts->results;
    queue->results_address = parts->results_address;
    queue->results_lkey = parts->results_lkey;
    queue->num_results = plan->num_results;
    queue->depth = plan->depth;
    queue->cq_entries = plan->cq_entries;
    queue->batch = plan->batch;
    queue->most = plan->most;
    queue->qpn = qpn;
    queue->pe = pe;
    queue->scope = (uint8_t)plan->scope;
    queue->ringer = (uint8_t)plan->ringer;
    queue->collapsed = plan->collapsed;
    queue->never_full = plan->never_full;
    queue->flushes = plan->flushes;
    queue_set_words(queue, plan->first);
}

void gda_record_clear(const gda_plan *plan, PORTABLE_SHARED(uint32_t) * record)
{
    gda_store_32(&record[GDA_RECORD_SEND], gda_record_word(plan->first));
}

void gda_cqes_clear(const gda_plan *plan, PORTABLE_SHARED(uint32_t) * cqes)
{
    const uint32_t entries = plan->collapsed ? 1 : plan->cq_entries;
    const uint32_t counter = (uint32_t)(plan->first - 1) & GDA_INDEX_MASK;
    for (size_t i = 0; i < (size_t)entries * GDA_CQE_WORDS; i++)
        atomic_store_explicit(&cqes[i], UINT32_MAX, memory_order_relaxed);
    for (size_t i = 0; i < entries; i++)
        atomic_store_explicit(&cqes[i * GDA_CQE_WORDS + GDA_CQE_LAST],
                              0xffff0000 | (counter & 0xff) << 8 | counter >> 8, memory_order_release);
}

static const char *meaning(uint32_t syndrome)
{
    switch ((gda_syndrome)syndrome) {
    case GDA_SYNDROME_LOCAL_LENGTH:
        return "the length is wrong";
    case GDA_SYNDROME_LOCAL_OPERATION:
        return "the request is malformed";
    case GDA_SYNDROME_LOCAL_PROTECTION:
        return "its own memory is not registered there";
    case GDA_SYNDROME_FLUSHED:
        return "it was flushed, cause not seen";
    case GDA_SYNDROME_REMOTE_INVALID:
        return "the peer cannot carry it out";
    case GDA_SYNDROME_REMOTE_ACCESS:
        return "the peer's memory is not registered there";
    case GDA_SYNDROME_REMOTE_OPERATION:
        return "the peer failed";
    case GDA_SYNDROME_RETRIES:
        return "the peer does not answer";
    case GDA_SYNDROME_RECEIVER:
        return "the peer has no receive request";
    case GDA_SYNDROME_ABORTED:
        return "the peer gave up";
    }
    return "unknown";
}

void gda_failure_text(uint64_t failure, int32_t pe, char *text, size_t text_bytes)
{
    const uint32_t syndrome = gda_failure_syndrome(failure);
    if (gda_failure_by(failure) == GDA_FAILED_BY_HOST)
        snprintf(text, text_bytes, "requests to PE %d were given up: %s (no completion from request %u on)", pe,
                 syndrome == GDA_DEVICE_IS_GONE ? "the device stopped answering"
                                                : "the device or the peer does not answer",
                 gda_failure_index(failure));
    else
        snprintf(text, text_bytes, "request %u to PE %d failed with syndrome 0x%02x, vendor 0x%02x: %s",
                 gda_failure_index(failure), pe, syndrome, gda_failure_vendor(failure), meaning(syndrome));
}
