/* SPDX-License-Identifier: Apache-2.0 */
/* libibverbs and libmlx5 of a host that has what FAKE_VERBS says:
 *     none      no device
 *     other     a device of another maker
 *     locked    an mlx5 device that cannot be opened with devx
 *     open      an mlx5 device that opens
 * Built twice, once for each of the two names; FAKE_OLD leaves a function out. */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct ibv_device {
    const char *name;
};
struct ibv_context {
    int opened;
};

static bool is(const char *kind)
{
    const char *asked = getenv("FAKE_VERBS");
    return asked && strcmp(asked, kind) == 0;
}

struct ibv_device **ibv_get_device_list(int *count)
{
    static struct ibv_device device = {"mlx5_7"};
    struct ibv_device **list = calloc(2, sizeof *list);
    if (list && !is("none")) list[0] = &device;
    *count = list && list[0] ? 1 : 0;
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

bool mlx5dv_is_supported(struct ibv_device *device)
{
    (void)device;
    return !is("other");
}

#ifndef FAKE_OLD
struct ibv_context *mlx5dv_open_device(struct ibv_device *device, const uint32_t *attributes)
{
    (void)device;
    if (is("open") && attributes[0] == 1) return calloc(1, sizeof(struct ibv_context));
    errno = EPERM;
    return NULL;
}
#endif
