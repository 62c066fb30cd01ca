/* SPDX-License-Identifier: Apache-2.0 */
/* libibverbs and libmlx5 of a host that has what FAKE_VERBS says:
 *     none         no device
 *     other        a device of another maker
 *     locked       an mlx5 device that cannot be opened with devx
 *     open         an mlx5 device that can be used
 *     two          two of them; the port of the first one is down
 * and, with something that is missing: command, cqe_version, overrun, no_atomics, shallow, extended, sizes, port, down,
 * no_gid, roce_v1; infiniband has no Ethernet. Built twice, once for each of the two names; FAKE_OLD leaves a function
 * out. */
#include "net/gda/command.h"
#include "net/gda/verbs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct ibv_device {
    const char *name;
};
struct ibv_context {
    const struct ibv_device *device;
};

static bool is(const char *kind)
{
    const char *asked = getenv("FAKE_VERBS");
    return asked && strcmp(asked, kind) == 0;
}

struct ibv_device **ibv_get_device_list(int *count)
{
    static struct ibv_device devices[] = {{"mlx5_7"}, {"mlx5_8"}};
    struct ibv_device **list = calloc(3, sizeof *list);
    if (!list) return NULL;
    *count = is("none") ? 0 : is("two") ? 2 : 1;
    for (int i = 0; i < *count; i++)
        list[i] = &devices[i];
    return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
    free(list);
}

const char *ibv_get_device_name(struct ibv_device *device)
{
    return device->name;
}

int ibv_close_device(struct ibv_context *context)
{
    free(context);
    return 0;
}

int ibv_query_port(struct ibv_context *context, uint8_t port, verbs_port *out)
{
    if (port != 1 || is("port")) return EINVAL;
    memset(out, 0, sizeof *out);
    out->state = is("down") || (is("two") && strcmp(context->device->name, "mlx5_7") == 0) ? 1 : VERBS_PORT_ACTIVE;
    out->gids = 4;
    out->link_layer = is("infiniband") ? 1 : VERBS_ETHERNET;
    return 0;
}

/* RoCE v1 at indices 0 and 2, RoCE v2 at 3, nothing at 1. */
int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, verbs_gid_entry *out, uint32_t flags,
                      size_t entry_bytes)
{
    (void)context;
    if (port != 1 || index > 3 || flags || entry_bytes != sizeof *out) return EINVAL;
    if (index == 1) return ENODATA;
    memset(out, 0, sizeof *out);
    out->gid.raw[15] = is("no_gid") ? 0 : 1;
    out->gid_index = index;
    out->gid_type = is("infiniband") ? 0 : index == 3 && !is("roce_v1") ? VERBS_GID_ROCE_V2 : 1;
    return 0;
}

bool mlx5dv_is_supported(struct ibv_device *device)
{
    (void)device;
    return !is("other");
}

#ifndef FAKE_OLD
struct ibv_context *mlx5dv_open_device(struct ibv_device *device, verbs_open *attributes)
{
    struct ibv_context *context = NULL;
    if (!is("locked") && attributes->flags == VERBS_OPEN_DEVX) context = calloc(1, sizeof *context);
    if (context)
        context->device = device;
    else
        errno = EPERM;
    return context;
}
#endif

static void fill_general(uint8_t *out)
{
    command_set(out, CAPABILITIES_AT, CAPABILITY_LOG_QUEUE, is("shallow") ? 9 : 15);
    command_set(out, CAPABILITIES_AT, CAPABILITY_LOG_CQ, 15);
    command_set(out, CAPABILITIES_AT, CAPABILITY_CQE_VERSION, !is("cqe_version"));
    command_set(out, CAPABILITIES_AT, CAPABILITY_ATOMICS, !is("no_atomics"));
    command_set(out, CAPABILITIES_AT, CAPABILITY_OVERRUN, !is("overrun"));
}

int mlx5dv_devx_general_cmd(struct ibv_context *context, const void *in, size_t in_bytes, void *out, size_t out_bytes)
{
    const uint64_t mode = command_get(in, 0, COMMAND_MODE);
    (void)context;
    if (in_bytes != CAPABILITIES_IN_BYTES || out_bytes != CAPABILITIES_OUT_BYTES ||
        command_get(in, 0, COMMAND_OPCODE) != COMMAND_QUERY_CAPABILITIES)
        return EINVAL;
    command_set(out, 0, COMMAND_SYNDROME, is("command") ? 0x1234 : 0);
    if (is("command")) return EREMOTEIO;
    if (mode == CAPABILITIES_GENERAL) fill_general(out);
    if (mode == CAPABILITIES_ATOMIC) {
        command_set(out, CAPABILITIES_AT, CAPABILITY_OPERATIONS, is("extended") ? 0x3 : 0xf);
        command_set(out, CAPABILITIES_AT, CAPABILITY_SIZES, is("sizes") ? 0x8 : 0xc);
    }
    return 0;
}
