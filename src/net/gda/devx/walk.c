/* SPDX-License-Identifier: Apache-2.0 */
/* A queue pair goes from reset to init, then to ready-to-receive with the address of its peer, then to ready-to-send.
 * The values are those that are known to work (docs/internals/gda.md); options change some of them. */
#include "net/gda/devx/command.h"
#include "net/gda/devx/devx.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* The way to a peer's port, as the queue pair stores it. */
typedef struct devx_path {
    const devx_port *port;
    const gda_address *peer;
    uint8_t mac[6];
    uint16_t udp_port;
    bool is_ethernet, is_global;
    uint8_t mtu;
} devx_path;

static uint64_t read_be(const uint8_t *bytes, size_t count)
{
    uint64_t value = 0;
    for (size_t i = 0; i < count; i++)
        value = value << 8 | bytes[i];
    return value;
}

/* ---- the path ---------------------------------------------------------------------------------------------------- */

/* On Ethernet the kernel knows the next hop's address: it is read from an address handle. */
static expar_status find_next_hop(const devx *d, devx_path *path, const char *purpose)
{
    verbs_way way = {.grh.sgid_index = path->port->gid_index,
                     .grh.hop_limit = d->options.hop_limit,
                     .grh.traffic_class = d->options.traffic_class,
                     .sl = d->options.service_level,
                     .is_global = 1,
                     .port_num = path->port->number};
    memcpy(way.grh.dgid.raw, path->peer->gid, sizeof way.grh.dgid.raw);
    uint32_t tries = 0;
    struct ibv_ah *ah;
    do {
        errno = 0;
        ah = d->v->create_ah(d->pd, &way);
    } while (!ah && devx_again(errno, &tries));
    if (!ah) return devx_failed(d, "ibv_create_ah", purpose, errno ? errno : EIO);
    verbs_ah_out out = {0};
    verbs_objects objects = {.ah = {.in = ah, .out = &out}};
    const int code = d->v->init_obj(&objects, VERBS_OBJECT_AH);
    if (code == 0) {
        memcpy(path->mac, out.av->rmac, sizeof path->mac);
        path->udp_port = be16toh(out.av->rlid);
    }
    d->v->destroy_ah(ah);
    return code ? devx_failed(d, "mlx5dv_init_obj", purpose, code) : EXPAR_OK;
}

static expar_status find_path(const devx *d, uint32_t number, int32_t pe, const gda_address *peer, devx_path *path,
                              const char *purpose)
{
    const devx_port *port = devx_port_of(d, number, pe);
    *path = (devx_path){.port = port, .peer = peer, .is_ethernet = port->link_layer == VERBS_ETHERNET};
    if (peer->link_layer != port->link_layer)
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "gda: %s: port %u has link layer %u, that of PE %d has %u, expected one", d->name,
                         port->number, port->link_layer, pe, peer->link_layer);
    path->mtu = peer->mtu < port->mtu ? peer->mtu : port->mtu;
    if (d->options.mtu && d->options.mtu < path->mtu) path->mtu = d->options.mtu;
    /* Within a subnet of InfiniBand the LID is enough. */
    path->is_global = path->is_ethernet || !peer->lid || memcmp(peer->gid, port->gid.raw, 8) != 0;
    return path->is_ethernet ? find_next_hop(d, path, purpose) : EXPAR_OK;
}

static void set_path(const devx *d, const devx_path *path, uint8_t *in)
{
    const gda_options *o = &d->options;
    command_set(in, QP_PATH_AT, PATH_PORT, path->port->number);
    if (path->is_global) {
        command_set(in, QP_PATH_AT, PATH_GID_INDEX, path->port->gid_index);
        command_set(in, QP_PATH_AT, PATH_HOP_LIMIT, o->hop_limit);
        command_set(in, QP_PATH_AT, PATH_TRAFFIC_CLASS, o->traffic_class);
        command_set(in, QP_PATH_AT, PATH_GID_HIGH, read_be(path->peer->gid, 8));
        command_set(in, QP_PATH_AT, PATH_GID_LOW, read_be(path->peer->gid + 8, 8));
    }
    if (path->is_ethernet) {
        command_set(in, QP_PATH_AT, PATH_MAC, read_be(path->mac, sizeof path->mac));
        command_set(in, QP_PATH_AT, PATH_UDP_PORT, path->udp_port);
        command_set(in, QP_PATH_AT, PATH_PRIORITY, o->service_level & 7);
        command_set(in, QP_PATH_AT, PATH_DSCP, o->traffic_class >> 2);
    } else {
        command_set(in, QP_PATH_AT, PATH_GRH, path->is_global);
        command_set(in, QP_PATH_AT, PATH_LID, path->peer->lid);
        command_set(in, QP_PATH_AT, PATH_SERVICE_LEVEL, o->service_level);
    }
}

/* ---- the steps --------------------------------------------------------------------------------------------------- */

static expar_status walk_step(const devx *d, const devx_queue *q, uint8_t *in, command_opcode opcode, const char *name,
                              const char *purpose)
{
    uint8_t out[COMMAND_OUT_BYTES] = {0};
    const size_t in_bytes = opcode == COMMAND_TO_ERROR ? QP_ERROR_IN_BYTES : QP_IN_BYTES;
    command_set(in, 0, COMMAND_OPCODE, opcode);
    command_set(in, 0, COMMAND_NUMBER, q->qpn);
    uint32_t tries = 0;
    int code;
    do {
        code = d->v->obj_modify(q->qp, in, in_bytes, out, sizeof out);
    } while (devx_again(devx_code(code, out), &tries));
    return code ? devx_rejected(d, name, purpose, code, out) : EXPAR_OK;
}

static expar_status to_init(const devx *d, const devx_queue *q, const devx_path *path, const char *purpose)
{
    uint8_t in[QP_IN_BYTES] = {0};
    command_set(in, QP_CONTEXT_AT, QP_MIGRATION, QP_MIGRATED);
    command_set(in, QP_CONTEXT_AT, QP_REMOTE_READ, 1);
    command_set(in, QP_CONTEXT_AT, QP_REMOTE_WRITE, 1);
    command_set(in, QP_CONTEXT_AT, QP_REMOTE_ATOMIC, 1);
    command_set(in, QP_CONTEXT_AT, QP_ATOMIC_MODE, QP_ATOMICS);
    command_set(in, QP_PATH_AT, PATH_PORT, path->port->number);
    return walk_step(d, q, in, COMMAND_RESET_TO_INIT, "RST2INIT_QP", purpose);
}

/* Returns the number of requests in flight as a power of two, as far as the device goes. */
static uint32_t log_in_flight(const devx *d, uint32_t most)
{
    const uint32_t wanted = (uint32_t)__builtin_ctz(d->options.reads);
    return wanted < most ? wanted : most;
}

static expar_status to_receive(const devx *d, const devx_queue *q, const devx_path *path, const char *purpose)
{
    uint8_t in[QP_IN_BYTES] = {0};
    command_set(in, QP_CONTEXT_AT, QP_MTU, path->mtu);
    command_set(in, QP_CONTEXT_AT, QP_LOG_MESSAGE, QP_LOG_MOST_BYTES);
    command_set(in, QP_CONTEXT_AT, QP_PEER, path->peer->qpn);
    command_set(in, QP_CONTEXT_AT, QP_LOG_SERVED, log_in_flight(d, d->log_served));
    command_set(in, QP_CONTEXT_AT, QP_RNR_TIMER, d->options.rnr_timer);
    command_set(in, QP_CONTEXT_AT, QP_REMOTE_READ, 1);
    command_set(in, QP_CONTEXT_AT, QP_REMOTE_WRITE, 1);
    command_set(in, QP_CONTEXT_AT, QP_REMOTE_ATOMIC, 1);
    command_set(in, QP_CONTEXT_AT, QP_ATOMIC_MODE, QP_ATOMICS);
    set_path(d, path, in);
    return walk_step(d, q, in, COMMAND_INIT_TO_RTR, "INIT2RTR_QP", purpose);
}

static expar_status to_send(const devx *d, const devx_queue *q, const char *purpose)
{
    uint8_t in[QP_IN_BYTES] = {0};
    command_set(in, QP_CONTEXT_AT, QP_LOG_READS, log_in_flight(d, d->log_reads));
    command_set(in, QP_CONTEXT_AT, QP_RETRIES, d->options.retries);
    command_set(in, QP_CONTEXT_AT, QP_RNR_RETRIES, d->options.rnr_retries);
    command_set(in, QP_PATH_AT, PATH_ACK_TIMEOUT, d->options.ack_timeout);
    return walk_step(d, q, in, COMMAND_RTR_TO_RTS, "RTR2RTS_QP", purpose);
}

expar_status devx_connect(gda_device *self, uint32_t number, int32_t pe, const gda_address *peer)
{
    const devx *d = (const devx *)self;
    const devx_queue *q = &d->queues[number];
    devx_path path;
    char purpose[64];
    snprintf(purpose, sizeof purpose, "queue %u, to PE %d", number, pe);
    expar_status status = find_path(d, number, pe, peer, &path, purpose);
    if (status == EXPAR_OK) status = to_init(d, q, &path, purpose);
    if (status == EXPAR_OK) status = to_receive(d, q, &path, purpose);
    return status == EXPAR_OK ? to_send(d, q, purpose) : status;
}

/* An error is of no use to the caller: it gives the queue up because something has failed already. */
void devx_stop(gda_device *self, uint32_t number)
{
    const devx *d = (const devx *)self;
    uint8_t in[QP_ERROR_IN_BYTES] = {0};
    error_kept kept;
    error_save(&kept);
    if (d->queues[number].qp)
        (void)walk_step(d, &d->queues[number], in, COMMAND_TO_ERROR, "2ERR_QP", "a stopped queue");
    error_put_back(&kept);
}
