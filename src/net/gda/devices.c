/* SPDX-License-Identifier: Apache-2.0 */
/* Devices of this host: each is opened with devx and asked for what gda needs. The reasons why devices cannot be used
 * are the text of the error, one after another. */
#include "base/shown.h"
#include "net/gda/command.h"
#include "net/gda/parts.h"
#include "net/gda/verbs.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* A device while it is looked at. */
typedef struct candidate {
    const verbs *v;
    struct ibv_context *context;
    const char *name;
} candidate;

/* ---- capabilities ------------------------------------------------------------------------------------------------ */

static expar_status query(const candidate *c, uint32_t mode, uint8_t out[CAPABILITIES_OUT_BYTES])
{
    uint8_t in[CAPABILITIES_IN_BYTES] = {0};
    memset(out, 0, CAPABILITIES_OUT_BYTES);
    command_set(in, 0, COMMAND_OPCODE, COMMAND_QUERY_CAPABILITIES);
    command_set(in, 0, COMMAND_MODE, mode);
    const int code = c->v->command(c->context, in, sizeof in, out, CAPABILITIES_OUT_BYTES);
    if (code == 0) return EXPAR_OK;
    return error_set(EXPAR_ERR_UNSUPPORTED,
                     "%s: mlx5dv_devx_general_cmd failed (%s, syndrome 0x%llx) when it was asked for its capabilities",
                     c->name, strerror(code), (unsigned long long)command_get(out, 0, COMMAND_SYNDROME));
}

static expar_status check_general(const candidate *c, uint32_t depth)
{
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
    return EXPAR_OK;
}

static expar_status check_atomics(const candidate *c)
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

/* ---- the port ---------------------------------------------------------------------------------------------------- */

/* Returns whether the port has a GID there that gda can use: on Ethernet one of RoCE v2. */
static bool gid_is_fit(const candidate *c, uint32_t port, const verbs_port *has, int32_t index)
{
    verbs_gid_entry entry = {0};
    if (index >= has->gids || c->v->query_gid(c->context, port, (uint32_t)index, &entry, 0, sizeof entry) != 0)
        return false;
    return (entry.gid.words[0] | entry.gid.words[1]) &&
           (has->link_layer != VERBS_ETHERNET || entry.gid_type == VERBS_GID_ROCE_V2);
}

/* `index` -1: any one. */
static expar_status check_gid(const candidate *c, uint32_t port, const verbs_port *has, int32_t index)
{
    const char *kind = has->link_layer == VERBS_ETHERNET ? "a GID of RoCE v2" : "a GID";
    for (int32_t i = index < 0 ? 0 : index; i < (index < 0 ? has->gids : index + 1); i++)
        if (gid_is_fit(c, port, has, i)) return EXPAR_OK;
    if (index < 0)
        return error_set(EXPAR_ERR_UNSUPPORTED, "%s: port %u has not %s among its %d", c->name, port, kind, has->gids);
    return error_set(EXPAR_ERR_UNSUPPORTED, "%s: port %u has not %s at index %d (EXPAR_GDA_GID_INDEX)", c->name, port,
                     kind, index);
}

static expar_status check_port(const candidate *c, uint32_t port, int32_t gid_index)
{
    verbs_port has = {0};
    const int code = c->v->query_port(c->context, (uint8_t)port, &has);
    if (code != 0)
        return error_set(EXPAR_ERR_UNSUPPORTED, "%s: ibv_query_port failed for port %u (%s)", c->name, port,
                         strerror(code));
    if (has.state != VERBS_PORT_ACTIVE)
        return error_set(EXPAR_ERR_UNSUPPORTED, "%s: port %u is down (state %u, expected 4, active)", c->name, port,
                         has.state);
    return check_gid(c, port, &has, gid_index);
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

/* Opens the device with devx, looks at it, and closes it. Returns an error, with the device's name. */
static expar_status try_device(const verbs *v, struct ibv_device *device, const gda_options *options)
{
    verbs_open attributes = {.flags = VERBS_OPEN_DEVX};
    candidate c = {.v = v, .name = SHOWN(v->get_device_name(device))};
    errno = 0;
    c.context = v->open_device(device, &attributes);
    if (!c.context)
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "%s: it cannot be opened with devx (%s); the kernel's mlx5 driver needs devx, and the user "
                         "needs the right to it",
                         c.name, strerror(errno));
    expar_status status = check_general(&c, options->depth);
    if (status == EXPAR_OK) status = check_atomics(&c);
    if (status == EXPAR_OK) status = check_port(&c, 1, options->gid_index);
    v->close_device(c.context);
    if (status != EXPAR_OK) return status;
    return error_set(EXPAR_ERR_UNSUPPORTED, "%s: it is fit, but this version sets up no queues on devices", c.name);
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

static expar_status look_at_devices(const verbs *v, const gda_options *options)
{
    char reasons[ERROR_TEXT_BYTES / 2] = "";
    int count = 0, others = 0, unwanted = 0;
    struct ibv_device **list = v->get_device_list(&count);
    for (int i = 0; list && i < count; i++) {
        others += !v->is_supported(list[i]);
        if (!v->is_supported(list[i])) continue;
        if (!device_is_named(options->devices, v->get_device_name(list[i]))) {
            unwanted++;
            continue;
        }
        (void)try_device(v, list[i], options);
        add_reason(reasons, sizeof reasons, expar_last_error());
    }
    if (list) v->free_device_list(list);
    if (*reasons) return error_set(EXPAR_ERR_UNSUPPORTED, "gda: %s", reasons);
    if (unwanted)
        return error_set(EXPAR_ERR_UNSUPPORTED, "gda: EXPAR_GDA_DEVICES=%s names none of the %d mlx5 devices here",
                         SHOWN(options->devices), unwanted);
    if (others)
        return error_set(EXPAR_ERR_UNSUPPORTED, "gda: none of %d RDMA devices is an mlx5 device (ConnectX, BlueField)",
                         others);
    return error_set(EXPAR_ERR_UNSUPPORTED, "gda: this host has no RDMA device; EXPAR_GDA_NIC=software runs gda on a "
                                            "software NIC");
}

expar_status gda_devices_reject(const gda_options *options)
{
    const verbs *v;
    expar_status status = verbs_load(&v);
    return status == EXPAR_OK ? look_at_devices(v, options) : status;
}
