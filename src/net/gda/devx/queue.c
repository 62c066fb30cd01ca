/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a queue: memory of its own for blocks, completions and records, which the device learns as one umem, then a
 * completion queue and a queue pair in it. The layout of the memory is
 *
 *     blocks       depth of 64 bytes
 *     completions  cq_entries of 64 bytes; a collapsed queue uses the first one
 *     records      64 bytes: that of the queue pair, and after 32 bytes that of the completion queue
 */
#include "net/gda/devx/command.h"
#include "net/gda/devx/devx.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_BYTES = 4096, RECORDS_BYTES = 64, CQ_RECORD_AT = 32 };

/* Offsets in a queue's memory. */
typedef struct queue_layout {
    size_t cqes, records, bytes;
} queue_layout;

static queue_layout queue_lay_out(const gda_plan *plan)
{
    queue_layout at = {.cqes = (size_t)plan->depth * GDA_BLOCK_BYTES};
    at.records = at.cqes + (size_t)plan->cq_entries * GDA_CQE_WORDS * sizeof(uint32_t);
    at.bytes = align_up(at.records + RECORDS_BYTES, PAGE_BYTES);
    return at;
}

static uint32_t log_of(uint32_t power)
{
    return (uint32_t)__builtin_ctz(power);
}

const devx_port *devx_port_of(const devx *d, uint32_t number, int32_t pe)
{
    const uint32_t among = number % d->options.queues_per_peer;
    return &d->ports[(among + (uint32_t)(d->place.rank + pe)) % d->num_ports];
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static expar_status queue_make_memory(devx *d, devx_queue *q, const gda_plan *plan, const char *purpose)
{
    const queue_layout at = queue_lay_out(plan);
    const size_t results_bytes = align_up((plan->num_results + (size_t)1) * sizeof *q->results, PAGE_BYTES);
    q->memory = aligned_alloc(PAGE_BYTES, at.bytes);
    q->results = aligned_alloc(PAGE_BYTES, results_bytes);
    if (!q->memory || !q->results) return error_set(EXPAR_ERR_MEMORY, "gda: no memory for %s", purpose);
    memset(q->memory, 0, at.bytes);
    memset(q->results, 0, results_bytes);
    uint32_t tries = 0;
    do {
        errno = 0;
        q->umem = d->v->umem_reg(d->context, q->memory, at.bytes, VERBS_LOCAL_WRITE);
    } while (!q->umem && devx_again(errno, &tries));
    if (!q->umem) return devx_failed(d, "mlx5dv_devx_umem_reg", purpose, errno ? errno : EIO);
    q->results_mr = devx_register(d, q->results, results_bytes, VERBS_LOCAL_WRITE);
    if (!q->results_mr) return devx_failed(d, "ibv_reg_mr", purpose, errno ? errno : EIO);
    return EXPAR_OK;
}

static void fill_parts(const devx_queue *q, const gda_plan *plan, const verbs_uar *uar, gda_parts *parts)
{
    const queue_layout at = queue_lay_out(plan);
    uint8_t *memory = q->memory;
    *parts = (gda_parts){.blocks = (gda_block *)(void *)memory,
                         .record = (_Atomic uint32_t *)(void *)(memory + at.records),
                         .doorbell = (_Atomic uint64_t *)uar->reg_addr,
                         .cqes = (_Atomic uint32_t *)(void *)(memory + at.cqes),
                         .cq_record = (_Atomic uint32_t *)(void *)(memory + at.records + CQ_RECORD_AT),
                         .results = q->results,
                         .results_address = (uintptr_t)q->results,
                         .results_lkey = gda_be32(q->results_mr->lkey)};
}

/* ---- objects ----------------------------------------------------------------------------------------------------- */

/* Creates an object. *number is set on success. */
static expar_status create(const devx *d, const char *command, const char *purpose, const uint8_t *in, size_t in_bytes,
                           struct mlx5dv_devx_obj **object, uint32_t *number)
{
    uint8_t out[COMMAND_OUT_BYTES] = {0};
    uint32_t tries = 0;
    int code;
    do {
        errno = 0;
        *object = d->v->obj_create(d->context, in, in_bytes, out, sizeof out);
        code = errno ? errno : EIO;
    } while (!*object && devx_again(devx_code(code, out), &tries));
    if (!*object) return devx_rejected(d, command, purpose, code, out);
    *number = (uint32_t)command_get(out, 0, COMMAND_NUMBER);
    return EXPAR_OK;
}

static expar_status create_cq(const devx *d, devx_queue *q, const gda_plan *plan, const verbs_uar *uar,
                              const char *purpose)
{
    const queue_layout at = queue_lay_out(plan);
    uint8_t in[CQ_IN_BYTES] = {0};
    command_set(in, 0, COMMAND_OPCODE, COMMAND_CREATE_CQ);
    command_set(in, CQ_CONTEXT_AT, CQ_RECORD_IN_UMEM, 1);
    command_set(in, CQ_CONTEXT_AT, CQ_RECORD_UMEM, q->umem->umem_id);
    command_set(in, CQ_CONTEXT_AT, CQ_RECORD_OFFSET, at.records + CQ_RECORD_AT);
    command_set(in, CQ_CONTEXT_AT, CQ_COLLAPSED, plan->collapsed);
    command_set(in, CQ_CONTEXT_AT, CQ_OVERRUN, plan->collapsed);
    command_set(in, CQ_CONTEXT_AT, CQ_LOG_ENTRIES, log_of(plan->cq_entries));
    command_set(in, CQ_CONTEXT_AT, CQ_UAR, uar->page_id);
    command_set(in, CQ_CONTEXT_AT, CQ_EVENT_QUEUE, d->eqn);
    command_set(in, 0, CQ_IN_UMEM, 1);
    command_set(in, 0, CQ_UMEM, q->umem->umem_id);
    command_set(in, 0, CQ_UMEM_OFFSET, at.cqes);
    return create(d, "CREATE_CQ", purpose, in, sizeof in, &q->cq, &q->cqn);
}

/* A reliable connection that sends, and has no receive requests. */
static expar_status create_qp(const devx *d, devx_queue *q, const gda_plan *plan, const verbs_uar *uar,
                              const char *purpose)
{
    const queue_layout at = queue_lay_out(plan);
    uint8_t in[QP_IN_BYTES] = {0};
    command_set(in, 0, COMMAND_OPCODE, COMMAND_CREATE_QP);
    command_set(in, QP_CONTEXT_AT, QP_MIGRATION, QP_MIGRATED);
    command_set(in, QP_CONTEXT_AT, QP_PD, d->pdn);
    command_set(in, QP_CONTEXT_AT, QP_LOG_BLOCKS, log_of(plan->depth));
    command_set(in, QP_CONTEXT_AT, QP_UAR, uar->page_id);
    command_set(in, QP_CONTEXT_AT, QP_CQ, q->cqn);
    command_set(in, QP_CONTEXT_AT, QP_RECEIVE_CQ, q->cqn);
    command_set(in, QP_CONTEXT_AT, QP_RECEIVE_KIND, QP_NO_RECEIVES);
    command_set(in, QP_CONTEXT_AT, QP_RECORD_IN_UMEM, 1);
    command_set(in, QP_CONTEXT_AT, QP_RECORD_UMEM, q->umem->umem_id);
    command_set(in, QP_CONTEXT_AT, QP_RECORD_OFFSET, at.records);
    command_set(in, 0, QP_IN_UMEM, 1);
    command_set(in, 0, QP_UMEM, q->umem->umem_id);
    return create(d, "CREATE_QP", purpose, in, sizeof in, &q->qp, &q->qpn);
}

/* ---- queues ------------------------------------------------------------------------------------------------------ */

expar_status devx_add_queue(gda_device *self, const gda_plan *plan, uint32_t number, int32_t pe, gda_parts *parts,
                            gda_address *address)
{
    devx *d = (devx *)self;
    devx_queue *q = &d->queues[number];
    const verbs_uar *uar = d->uars[number % d->num_uars];
    const devx_port *port = devx_port_of(d, number, pe);
    char purpose[64];
    snprintf(purpose, sizeof purpose, "queue %u, to PE %d", number, pe);
    expar_status status = queue_make_memory(d, q, plan, purpose);
    if (status != EXPAR_OK) return status;
    fill_parts(q, plan, uar, parts);
    gda_cqes_clear(plan, parts->cqes);
    status = create_cq(d, q, plan, uar, purpose);
    if (status == EXPAR_OK) status = create_qp(d, q, plan, uar, purpose);
    if (status != EXPAR_OK) return status;
    *address = (gda_address){.qpn = q->qpn, .lid = port->lid, .mtu = port->mtu, .link_layer = port->link_layer};
    memcpy(address->gid, port->gid.raw, sizeof address->gid);
    return EXPAR_OK;
}

void devx_close_queue(devx *d, devx_queue *q)
{
    if (q->qp) d->v->obj_destroy(q->qp);
    if (q->cq) d->v->obj_destroy(q->cq);
    if (q->results_mr) d->v->dereg_mr(q->results_mr);
    if (q->umem) d->v->umem_dereg(q->umem);
    free(q->results);
    free(q->memory);
    *q = (devx_queue){0};
}
