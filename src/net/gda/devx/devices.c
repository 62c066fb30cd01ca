/* SPDX-License-Identifier: Apache-2.0 */
/* Devices of this host: each is opened with devx and asked for what gda needs. The reasons why devices cannot be used
 * are the text of the error, one after another. Of those that are fit, this rank takes one. */
#include "base/shown.h"
#include "net/gda/devx/command.h"
#include "net/gda/devx/devx.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_FIT 16 /* devices from which one is chosen; those after them are not looked at */

/* ---- capabilities ------------------------------------------------------------------------------------------------ */

static expar_status query(const devx *c, uint32_t mode, uint8_t out[CAPABILITIES_OUT_BYTES])
{
    uint8_t in[CAPABILITIES_IN_BYTES] = {0};
    memset(out, 0, CAPABILITIES_OUT_BYTES);
    command_set(in, 0, COMMAND_OPCODE, COMMAND_QUERY_CAPABILITIES);
    command_set(in, 0, COMMAND_MODE, mode);
    uint32_t tries = 0;
    int code;
    do {
        code = c->v->command(c->context, in, sizeof in, out, CAPABILITIES_OUT_BYTES);
    } while (devx_again(code, &tries));
    if (code == 0) return EXPAR_OK;
    return error_set(EXPAR_ERR_UNSUPPORTED,
                     "%s: mlx5dv_devx_general_cmd failed (%s, syndrome 0x%llx) when it was asked for its capabilities",
                     c->name, strerror(code), (unsigned long long)command_get(out, 0, COMMAND_SYNDROME));
}

static expar_status check_general(devx *c)
{
    const uint32_t depth = c->options.depth;
    uint8_t out[CAPABILITIES_OUT_BYTES];
    expar_status status = query(c, CAPABILITIES_GENERAL, out);
    if (status != EXPAR_OK) return status;
    const uint32_t version = (uint32_t)command_get(out, CAPABILITIES_AT, CAPABILITY_CQE_VERSION);
    const uint32_t log_queue = (uint32_t)command_get(out, CAPABILITIES_AT, CAPABILITY_LOG_QUEUE);
    const uint32_t log_cq = (uint32_t)command_get(out, CAPABILITIES_AT, CAPABILITY_LOG_CQ);
    if (version != 1)
        return error_set(EXPAR_ERR_UNSUPPORTED, "%s: cqe_version is %u, expected 1: its firmware is too old", c->name,
                         version);
    if (!command_get(out, CAPABILITIES_AT, CAPABILITY_OVERRUN))
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "%s: completion queues cannot ignore overruns (cq_oi): its firmware is too old", c->name);
    if (!command_get(out, CAPABILITIES_AT, CAPABILITY_ATOMICS))
        return error_set(EXPAR_ERR_UNSUPPORTED, "%s: it has no atomics", c->name);
    if (log_queue < 32 && log_cq < 32 && (depth > UINT32_C(1) << log_queue || depth > UINT32_C(1) << log_cq))
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "%s: queues have at most 2^%u blocks and 2^%u completions; EXPAR_GDA_QUEUE_DEPTH is %u",
                         c->name, log_queue, log_cq, depth);
    c->log_reads = (uint32_t)command_get(out, CAPABILITIES_AT, CAPABILITY_LOG_READS);
    c->log_served = (uint32_t)command_get(out, CAPABILITIES_AT, CAPABILITY_LOG_SERVED);
    c->num_ports = (uint32_t)command_get(out, CAPABILITIES_AT, CAPABILITY_PORTS);
    return EXPAR_OK;
}

static expar_status check_atomics(const devx *c)
{
    uint8_t out[CAPABILITIES_OUT_BYTES];
    expar_status status = query(c, CAPABILITIES_ATOMIC, out);
    if (status != EXPAR_OK) return status;
    const uint32_t operations = (uint32_t)command_get(out, CAPABILITIES_AT, CAPABILITY_OPERATIONS);
    const uint32_t sizes = (uint32_t)command_get(out, CAPABILITIES_AT, CAPABILITY_SIZES);
    if ((operations & 0xf) == 0xf && (sizes & 0xc) == 0xc) return EXPAR_OK;
    return error_set(EXPAR_ERR_UNSUPPORTED,
                     "%s: it has no masked atomics of 4 and 8 bytes (operations 0x%x, sizes 0x%x): its firmware has no "
                     "extended atomics, or they are off",
                     c->name, operations, sizes);
}

/* ---- ports ------------------------------------------------------------------------------------------------------- */

/* Returns whether the port has a GID there that gda can use: on Ethernet one of RoCE v2. */
static bool gid_is_fit(const devx *c, devx_port *port, int32_t gids, int32_t index)
{
    verbs_gid_entry entry = {0};
    if (index >= gids || c->v->query_gid(c->context, port->number, (uint32_t)index, &entry, 0, sizeof entry) != 0)
        return false;
    if (!(entry.gid.words[0] | entry.gid.words[1])) return false;
    if (port->link_layer == VERBS_ETHERNET && entry.gid_type != VERBS_GID_ROCE_V2) return false;
    port->gid_index = (uint8_t)index;
    port->gid = entry.gid;
    return true;
}

/* On Ethernet the address may be one that routers do not know: a link-local one of IPv6. */
static bool gid_is_local(const devx_port *port)
{
    return port->link_layer == VERBS_ETHERNET && port->gid.raw[0] == 0xfe && (port->gid.raw[1] & 0xc0) == 0x80;
}

/* Takes the first that routers know, else the first that is fit. */
static bool find_gid(const devx *c, devx_port *port, int32_t gids)
{
    devx_port local = {0};
    for (int32_t i = 0; i < gids && i <= UINT8_MAX; i++) {
        if (!gid_is_fit(c, port, gids, i)) continue;
        if (!gid_is_local(port)) return true;
        if (!local.number) local = *port;
    }
    if (local.number) *port = local;
    return local.number != 0;
}

static expar_status check_gid(const devx *c, devx_port *port, int32_t gids)
{
    const char *kind = port->link_layer == VERBS_ETHERNET ? "a GID of RoCE v2" : "a GID";
    const int32_t index = c->options.gid_index;
    if (index < 0 ? find_gid(c, port, gids) : gid_is_fit(c, port, gids, index)) return EXPAR_OK;
    if (index < 0)
        return error_set(EXPAR_ERR_UNSUPPORTED, "%s: port %u has not %s among its %d", c->name, port->number, kind,
                         gids);
    return error_set(EXPAR_ERR_UNSUPPORTED, "%s: port %u has not %s at index %d (EXPAR_GDA_GID_INDEX)", c->name,
                     port->number, kind, index);
}

static expar_status check_port(const devx *c, uint8_t number, devx_port *port)
{
    verbs_port has = {0};
    const int code = c->v->query_port(c->context, number, &has);
    if (code != 0)
        return error_set(EXPAR_ERR_UNSUPPORTED, "%s: ibv_query_port failed for port %u (%s)", c->name, number,
                         strerror(code));
    if (has.state != VERBS_PORT_ACTIVE)
        return error_set(EXPAR_ERR_UNSUPPORTED, "%s: port %u is down (state %u, expected 4, active)", c->name, number,
                         has.state);
    *port = (devx_port){.number = number, .link_layer = has.link_layer, .mtu = (uint8_t)has.active_mtu, .lid = has.lid};
    return check_gid(c, port, has.gids);
}

/* Keeps the ports that can be used. Fails if there is none, with the reason of the first one. */
static expar_status check_ports(devx *c)
{
    const uint32_t count = c->num_ports ? c->num_ports : 1;
    expar_status first = EXPAR_OK;
    error_kept kept;
    c->num_ports = 0;
    for (uint32_t i = 1; i <= count && c->num_ports < DEVX_MOST_PORTS; i++) {
        expar_status status = check_port(c, (uint8_t)i, &c->ports[c->num_ports]);
        if (status == EXPAR_OK) {
            c->num_ports++;
        } else if (first == EXPAR_OK) {
            first = status;
            error_save(&kept);
        }
    }
    if (c->num_ports) return EXPAR_OK;
    error_put_back(&kept);
    return first;
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

/* Opens the device with devx and looks at it. It stays open if it is fit. Else the error starts with its name. */
static expar_status try_device(devx *c, struct ibv_device *device)
{
    verbs_open attributes = {.flags = VERBS_OPEN_DEVX};
    snprintf(c->name, sizeof c->name, "%.*s", (int)sizeof c->name - 1, SHOWN(c->v->get_device_name(device)));
    errno = 0;
    c->context = c->v->open_device(device, &attributes);
    if (!c->context)
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "%s: it cannot be opened with devx (%s); the kernel's mlx5 driver needs devx, and the user "
                         "needs the right to it",
                         c->name, strerror(errno));
    expar_status status = check_general(c);
    if (status == EXPAR_OK) status = check_atomics(c);
    if (status == EXPAR_OK) status = check_ports(c);
    if (status == EXPAR_OK && !c->options.device)
        status = error_set(EXPAR_ERR_UNSUPPORTED,
                           "%s: it is fit, and EXPAR_GDA_NIC=device uses it; that has not run on a real device yet",
                           c->name);
    if (status != EXPAR_OK) c->v->close_device(c->context);
    return status;
}

/* Returns whether the option allows the device. */
static bool device_is_named(const char *list, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = list; at && *at;) {
        const size_t stop = strcspn(at, ",");
        if (stop == length && memcmp(at, name, stop) == 0) return true;
        at += stop + (at[stop] == ',');
    }
    return !list;
}

/* Adds one reason to the text, after "; ". */
static void add_reason(char *text, size_t text_bytes, const char *reason)
{
    const size_t used = strlen(text);
    snprintf(text + used, text_bytes - used, "%s%s", used ? "; " : "", reason);
}

/* The search counts and keeps what it has seen of the host's devices. */
typedef struct search {
    int others, unwanted;
    devx fit[MOST_FIT];
    size_t num_fit;
    char reasons[ERROR_TEXT_BYTES / 2];
} search;

static void look_at_device(search *s, const devx *plain, struct ibv_device *device)
{
    if (!plain->v->is_supported(device)) {
        s->others++;
    } else if (!device_is_named(plain->options.devices, plain->v->get_device_name(device))) {
        s->unwanted++;
    } else if (s->num_fit < MOST_FIT) {
        devx *c = &s->fit[s->num_fit];
        *c = *plain;
        if (try_device(c, device) == EXPAR_OK)
            s->num_fit++;
        else
            add_reason(s->reasons, sizeof s->reasons, expar_last_error());
    }
}

static expar_status nothing_fits(const search *s, const char *devices)
{
    if (*s->reasons) return error_set(EXPAR_ERR_UNSUPPORTED, "gda: %s", s->reasons);
    if (s->unwanted)
        return error_set(EXPAR_ERR_UNSUPPORTED, "gda: EXPAR_GDA_DEVICES=%s names none of the %d mlx5 devices here",
                         SHOWN(devices), s->unwanted);
    if (s->others)
        return error_set(EXPAR_ERR_UNSUPPORTED, "gda: none of %d RDMA devices is an mlx5 device (ConnectX, BlueField)",
                         s->others);
    return error_set(EXPAR_ERR_UNSUPPORTED, "gda: this host has no RDMA device; EXPAR_GDA_NIC=software runs gda on a "
                                            "software NIC");
}

/* Keeps one of the devices that are fit, and closes the others. */
static void keep_one(search *s, devx *d)
{
    int32_t nearness[MOST_FIT];
    for (size_t i = 0; i < s->num_fit; i++)
        nearness[i] = devx_nearness("/sys", s->fit[i].name, &d->place);
    const size_t kept = devx_pick(nearness, s->num_fit, d->place.turn);
    for (size_t i = 0; i < s->num_fit; i++)
        if (i != kept) d->v->close_device(s->fit[i].context);
    *d = s->fit[kept];
}

expar_status devx_choose(devx *d)
{
    int count = 0;
    search *s = calloc(1, sizeof *s);
    if (!s) return error_set(EXPAR_ERR_MEMORY, "gda: no memory for a list of devices");
    struct ibv_device **list = d->v->get_device_list(&count);
    for (int i = 0; list && i < count; i++)
        look_at_device(s, d, list[i]);
    expar_status status = s->num_fit ? EXPAR_OK : nothing_fits(s, d->options.devices);
    if (status == EXPAR_OK) keep_one(s, d);
    if (list) d->v->free_device_list(list);
    free(s);
    return status;
}
