/* SPDX-License-Identifier: Apache-2.0 */
/* libibverbs and libmlx5 of a host that has what FAKE_VERBS says:
 *     none         no device
 *     other        a device of another maker
 *     locked       an mlx5 device that cannot be opened with devx
 *     open         an mlx5 device that can be used; `ports`: it has two ports
 *     infiniband   the same without Ethernet; `subnets`: and each open device is in a subnet of its own
 *     again        it is often busy; `busy`: it can be opened, and is always busy then; `one_page`: of doorbells
 *     routable     its port has a link-local GID of RoCE v2, and after it one of IPv4
 *     two          two of them; the port of the first one is down
 * and, with something that is missing: command, cqe_version, overrun, no_atomics, shallow, extended, sizes, port, down,
 * no_gid, roce_v1. The words of fake_objects.c are those of calls that fail. FAKE_OLD leaves a function out. */
#include "fake.h"
#include "net/gda/devx/command.h"
#include "net/gda/devx/verbs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct ibv_device {
    const char *name;
};

bool fake_is(const char *kind)
{
    const char *asked = getenv("FAKE_VERBS");
    return asked && strcmp(asked, kind) == 0;
}

bool fake_is_busy(void)
{
    static _Atomic uint32_t calls;
    return fake_is("busy") || (fake_is("again") && ++calls % 3 != 0);
}

bool fake_is_infiniband(void)
{
    return fake_is("infiniband") || fake_is("subnets");
}

uint32_t fake_ports(void)
{
    return fake_is("ports") ? 2 : 1;
}

/* The second port is slower. */
uint32_t fake_mtu(uint32_t port)
{
    return 6 - port;
}

uint16_t fake_lid(const fake_context *context, uint32_t port)
{
    return (uint16_t)(FAKE_PORT_LID + 4 * context->number + port);
}

void fake_gid(const fake_context *context, uint32_t port, uint8_t gid[16])
{
    const bool routable = fake_is("routable"); /* an address of IPv4 */
    memset(gid, 0, 16);
    gid[0] = routable ? 0 : 0xfe;
    gid[1] = routable ? 0 : 0x80;
    gid[7] = fake_is("subnets") ? (uint8_t)context->number : 0;
    gid[10] = routable ? 0xff : (uint8_t)context->number;
    gid[11] = routable ? 0xff : 0;
    gid[12] = routable ? 10 : 0;
    gid[14] = routable ? (uint8_t)context->number : 0;
    gid[15] = (uint8_t)port;
}

void fake_mac(const uint8_t gid[16], uint8_t mac[6])
{
    static const uint8_t maker[3] = {0xb8, 0x59, 0x9f};
    memcpy(mac, maker, sizeof maker);
    mac[3] = gid[10] ^ gid[14];
    mac[4] = 0x80;
    mac[5] = gid[15];
}

struct ibv_device **ibv_get_device_list(int *count)
{
    static struct ibv_device devices[] = {{"mlx5_7"}, {"mlx5_8"}};
    struct ibv_device **list = calloc(3, sizeof *list);
    if (!list) return NULL;
    *count = fake_is("none") ? 0 : fake_is("two") ? 2 : 1;
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
    fake_detach((fake_context *)context);
    free(context);
    return 0;
}

int ibv_query_port(struct ibv_context *opaque, uint8_t port, verbs_port *out)
{
    const fake_context *context = (const fake_context *)opaque;
    const struct ibv_device *on = context->device;
    if (port < 1 || port > fake_ports() || fake_is("port")) return EINVAL;
    memset(out, 0, sizeof *out);
    out->state = fake_is("down") || (fake_is("two") && strcmp(on->name, "mlx5_7") == 0) ? 1 : VERBS_PORT_ACTIVE;
    out->gids = 4;
    out->active_mtu = fake_mtu(port);
    out->lid = fake_lid(context, port);
    out->link_layer = fake_is_infiniband() ? 1 : VERBS_ETHERNET;
    return 0;
}

/* On Ethernet RoCE v1 at indices 0 and 2, RoCE v2 at 3, nothing at 1. */
int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, verbs_gid_entry *out, uint32_t flags,
                      size_t entry_bytes)
{
    if (port > fake_ports() || index > 3 || flags || entry_bytes != sizeof *out) return EINVAL;
    if (index == 1) return ENODATA;
    memset(out, 0, sizeof *out);
    if (!fake_is("no_gid")) fake_gid((const fake_context *)context, port, out->gid.raw);
    out->gid_index = index;
    out->gid_type = fake_is_infiniband() ? 0 : index == FAKE_GID_INDEX && !fake_is("roce_v1") ? VERBS_GID_ROCE_V2 : 1;
    if (fake_is("routable") && index == 0) {
        out->gid_type = VERBS_GID_ROCE_V2;
        memset(out->gid.raw, 0, sizeof out->gid.raw);
        memcpy(out->gid.raw, (const uint8_t[]){0xfe, 0x80}, 2);
        out->gid.raw[15] = 1;
    }
    return 0;
}

bool mlx5dv_is_supported(struct ibv_device *device)
{
    (void)device;
    return !fake_is("other");
}

#ifndef FAKE_OLD
struct ibv_context *mlx5dv_open_device(struct ibv_device *device, verbs_open *attributes)
{
    static _Atomic uint32_t opened;
    errno = EPERM;
    if (fake_is("locked") || attributes->flags != VERBS_OPEN_DEVX) return NULL;
    fake_context *context = calloc(1, sizeof *context);
    if (!context) abort();
    *context = (fake_context){.device = device, .number = ++opened};
    fake_attach();
    return (struct ibv_context *)context;
}
#endif

static void fill_general(uint8_t *out)
{
    command_set(out, CAPABILITIES_AT, CAPABILITY_LOG_QUEUE, fake_is("shallow") ? 9 : 15);
    command_set(out, CAPABILITIES_AT, CAPABILITY_LOG_CQ, 15);
    command_set(out, CAPABILITIES_AT, CAPABILITY_CQE_VERSION, !fake_is("cqe_version"));
    command_set(out, CAPABILITIES_AT, CAPABILITY_ATOMICS, !fake_is("no_atomics"));
    command_set(out, CAPABILITIES_AT, CAPABILITY_OVERRUN, !fake_is("overrun"));
    command_set(out, CAPABILITIES_AT, CAPABILITY_LOG_READS, FAKE_LOG_READS);
    command_set(out, CAPABILITIES_AT, CAPABILITY_LOG_SERVED, FAKE_LOG_SERVED);
    command_set(out, CAPABILITIES_AT, CAPABILITY_PORTS, fake_ports());
}

int mlx5dv_devx_general_cmd(struct ibv_context *context, const void *in, size_t in_bytes, void *out, size_t out_bytes)
{
    const uint64_t mode = command_get(in, 0, COMMAND_MODE);
    (void)context;
    if (fake_is("again") && fake_is_busy()) return EAGAIN;
    if (in_bytes != CAPABILITIES_IN_BYTES || out_bytes != CAPABILITIES_OUT_BYTES ||
        command_get(in, 0, COMMAND_OPCODE) != COMMAND_QUERY_CAPABILITIES)
        return EINVAL;
    command_set(out, 0, COMMAND_SYNDROME, fake_is("command") ? 0x1234 : 0);
    if (fake_is("command")) return EREMOTEIO;
    if (mode == CAPABILITIES_GENERAL) fill_general(out);
    if (mode == CAPABILITIES_ATOMIC) {
        command_set(out, CAPABILITIES_AT, CAPABILITY_OPERATIONS, fake_is("extended") ? 0x3 : 0xf);
        command_set(out, CAPABILITIES_AT, CAPABILITY_SIZES, fake_is("sizes") ? 0x8 : 0xc);
    }
    return 0;
}
