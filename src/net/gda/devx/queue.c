/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a queue: memory of its own for blocks, completions and records, which the device learns as one umem, then a
 * completion queue and a queue pair in it. The memory is that of gda_lay_out; the results of atomics are registered by
 * themselves. */
#include "net/gda/devx/command.h"
#include "net/gda/devx/devx.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Memory of a GPU is known by its address, if the kernel has peer memory. */
static void *address_of(const gda_space *space, uint64_t offset)
{
    return (void *)(uintptr_t)((space->host ? (uintptr_t)space->host : space->address) + offset);
}

static expar_status register_umem(const devx *d, const gda_space *space, uint64_t bytes, const char *purpose,
                                  verbs_umem **out)
{
    uint32_t tries = 0;
    do {
        errno = 0;
        *out = d->v->umem_reg(d->context, address_of(space, 0), bytes, VERBS_LOCAL_WRITE);
    } while (!*out && devx_again(errno, &tries));
    if (*out) return EXPAR_OK;
    const int code = devx_errno();
    if (space->place == GDA_PLACE_DEVICE)
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "gda: %s: mlx5dv_devx_umem_reg failed for %s in a GPU's memory (%s), which needs the module "
                         "nvidia-peermem; or set EXPAR_GDA_QUEUE_MEMORY=pinned",
                         d->name, purpose, strerror(code));
    return devx_failed(d, "mlx5dv_devx_umem_reg", purpose, code);
}

static expar_status queue_make_memory(const devx *d, devx_queue *q, const gda_plan *plan, const char *purpose)
{
    const gda_layout at = gda_lay_out(plan);
    expar_status status = gda_queue_memory_open(plan, &q->memory);
    if (status != EXPAR_OK) return error_prefix(status, "%s", purpose);
    status = register_umem(d, &q->memory.main, at.results, purpose, &q->umem);
    if (status == EXPAR_OK && q->memory.records.bytes)
        status = register_umem(d, &q->memory.records, q->memory.records.bytes, purpose, &q->records_umem);
    if (status != EXPAR_OK) return status;
    q->results_mr = devx_register(d, address_of(&q->memory.main, at.results), at.bytes - at.results, VERBS_LOCAL_WRITE);
    return q->results_mr ? EXPAR_OK : devx_failed(d, "ibv_reg_mr", purpose, devx_errno());
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
    const gda_layout at = gda_lay_out(plan);
    uint8_t in[CQ_IN_BYTES] = {0};
    command_set(in, 0, COMMAND_OPCODE, COMMAND_CREATE_CQ);
    command_set(in, CQ_CONTEXT_AT, CQ_RECORD_IN_UMEM, 1);
    command_set(in, CQ_CONTEXT_AT, CQ_RECORD_UMEM, q->umem->umem_id);
    command_set(in, CQ_CONTEXT_AT, CQ_RECORD_OFFSET, at.records + GDA_CQ_RECORD_AT);
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
    const gda_layout at = gda_lay_out(plan);
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
    command_set(in, QP_CONTEXT_AT, QP_RECORD_UMEM, (q->records_umem ? q->records_umem : q->umem)->umem_id);
    command_set(in, QP_CONTEXT_AT, QP_RECORD_OFFSET, q->records_umem ? 0 : at.records);
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
    gda_queue_memory_parts(plan, &q->memory, parts);
    devx_set_doorbell(d, plan, number, parts);
    parts->results_lkey = gda_be32(q->results_mr->lkey);
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
    if (q->records_umem) d->v->umem_dereg(q->records_umem);
    gda_queue_memory_close(&q->memory);
    *q = (devx_queue){0};
}
