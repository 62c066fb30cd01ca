/* SPDX-License-Identifier: Apache-2.0 */
/* Devices of this host, found by rdma-core's libraries, which are opened at run time. The declarations are our own, so
 * that this file compiles everywhere.
 *
 * Queues of a device are not set up yet. So this file only says why no device can be used: the first thing that is
 * missing, and how to get it. */
#include "base/shown.h"
#include "net/gda/parts.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

/* Only functions of rdma-core look inside. */
struct ibv_device;
struct ibv_context;
/* The beginning of rdma-core's struct of this name; the rest is 0. */
typedef struct device_attributes {
    uint32_t flags; /* 1: devx */
    uint32_t unused;
    uint64_t comp_mask;
    uint64_t more[6];
} device_attributes;
#define OPEN_WITH_DEVX 1u

typedef struct verbs {
    void *ibverbs, *mlx5;
    struct ibv_device **(*get_device_list)(int *count);
    void (*free_device_list)(struct ibv_device **list);
    const char *(*get_device_name)(struct ibv_device *device);
    int (*close_device)(struct ibv_context *context);
    bool (*is_supported)(struct ibv_device *device);
    struct ibv_context *(*open_device)(struct ibv_device *device, device_attributes *attributes);
} verbs;

static bool find(void *handle, const char *name, void *function)
{
    void *address = dlsym(handle, name);
    /* ISO C has no cast from an object's pointer to a function's; POSIX promises that this works. */
    if (address) memcpy(function, &address, sizeof address);
    return address != NULL;
}

static expar_status open_library(const char *name, void **handle)
{
    if (!*handle) *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (*handle) return EXPAR_OK;
    const char *why = dlerror();
    return error_set(EXPAR_ERR_UNSUPPORTED,
                     "gda: cannot open %s (%s); install rdma-core's libraries, or set "
                     "EXPAR_GDA_NIC=software",
                     name, why ? SHOWN(why) : "no reason is given");
}

static expar_status lacks(const char *library, const char *function)
{
    return error_set(EXPAR_ERR_UNSUPPORTED, "gda: %s has no %s; rdma-core 27 or later is expected", library, function);
}

static expar_status verbs_find_functions(verbs *v)
{
    if (!find(v->ibverbs, "ibv_get_device_list", &v->get_device_list))
        return lacks("libibverbs", "ibv_get_device_list");
    if (!find(v->ibverbs, "ibv_free_device_list", &v->free_device_list))
        return lacks("libibverbs", "ibv_free_device_list");
    if (!find(v->ibverbs, "ibv_get_device_name", &v->get_device_name))
        return lacks("libibverbs", "ibv_get_device_name");
    if (!find(v->ibverbs, "ibv_close_device", &v->close_device)) return lacks("libibverbs", "ibv_close_device");
    if (!find(v->mlx5, "mlx5dv_is_supported", &v->is_supported)) return lacks("libmlx5", "mlx5dv_is_supported");
    if (!find(v->mlx5, "mlx5dv_open_device", &v->open_device)) return lacks("libmlx5", "mlx5dv_open_device");
    return EXPAR_OK;
}

/* Opens the device with devx, and closes it. */
static expar_status try_device(const verbs *v, struct ibv_device *device)
{
    device_attributes attributes = {.flags = OPEN_WITH_DEVX};
    const char *name = v->get_device_name(device);
    errno = 0;
    struct ibv_context *context = v->open_device(device, &attributes);
    if (!context)
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "gda: device %s cannot be opened with devx (%s); the kernel's mlx5 "
                         "driver needs devx, and the user needs the right to it",
                         SHOWN(name), strerror(errno));
    v->close_device(context);
    return error_set(EXPAR_ERR_UNSUPPORTED,
                     "gda: device %s is there, but this version sets up no queues on devices; "
                     "EXPAR_GDA_NIC=software runs gda on a software NIC",
                     SHOWN(name));
}

static expar_status look_at_devices(const verbs *v)
{
    int count = 0, others = 0;
    expar_status status = EXPAR_OK;
    struct ibv_device **list = v->get_device_list(&count);
    for (int i = 0; list && i < count && status == EXPAR_OK; i++) {
        if (v->is_supported(list[i]))
            status = try_device(v, list[i]);
        else
            others++;
    }
    if (list) v->free_device_list(list);
    if (status != EXPAR_OK) return status;
    if (others)
        return error_set(EXPAR_ERR_UNSUPPORTED, "gda: none of %d RDMA devices is an mlx5 device (ConnectX, BlueField)",
                         others);
    return error_set(EXPAR_ERR_UNSUPPORTED, "gda: this host has no RDMA device; EXPAR_GDA_NIC=software runs gda on a "
                                            "software NIC");
}

/* The libraries stay open: what they have allocated would be lost with them. */
expar_status gda_devices_reject(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static verbs v; /* guarded by the lock */
    pthread_mutex_lock(&lock);
    expar_status status = open_library("libibverbs.so.1", &v.ibverbs);
    if (status == EXPAR_OK) status = open_library("libmlx5.so.1", &v.mlx5);
    if (status == EXPAR_OK) status = verbs_find_functions(&v);
    if (status == EXPAR_OK) status = look_at_devices(&v);
    pthread_mutex_unlock(&lock);
    return status;
}
