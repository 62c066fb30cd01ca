/* SPDX-License-Identifier: Apache-2.0 */
/* rdma-core's libraries are opened, and their functions found by name. */
#include "net/gda/devx/verbs.h"

#include "base/shown.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

typedef struct verbs_symbol {
    const char *name;
    size_t place; /* in struct verbs */
} verbs_symbol;

static const verbs_symbol ibverbs_symbols[] = {
    {"ibv_get_device_list", offsetof(verbs, get_device_list)},
    {"ibv_free_device_list", offsetof(verbs, free_device_list)},
    {"ibv_get_device_name", offsetof(verbs, get_device_name)},
    {"ibv_close_device", offsetof(verbs, close_device)},
    {"ibv_query_port", offsetof(verbs, query_port)},
    {"_ibv_query_gid_ex", offsetof(verbs, query_gid)},
    {"ibv_alloc_pd", offsetof(verbs, alloc_pd)},
    {"ibv_dealloc_pd", offsetof(verbs, dealloc_pd)},
    {"ibv_reg_mr", offsetof(verbs, reg_mr)},
    {"ibv_dereg_mr", offsetof(verbs, dereg_mr)},
    {"ibv_create_ah", offsetof(verbs, create_ah)},
    {"ibv_destroy_ah", offsetof(verbs, destroy_ah)},
};
static const verbs_symbol mlx5_symbols[] = {
    {"mlx5dv_is_supported", offsetof(verbs, is_supported)},  {"mlx5dv_open_device", offsetof(verbs, open_device)},
    {"mlx5dv_devx_general_cmd", offsetof(verbs, command)},   {"mlx5dv_init_obj", offsetof(verbs, init_obj)},
    {"mlx5dv_devx_query_eqn", offsetof(verbs, query_eqn)},   {"mlx5dv_devx_alloc_uar", offsetof(verbs, alloc_uar)},
    {"mlx5dv_devx_free_uar", offsetof(verbs, free_uar)},     {"mlx5dv_devx_umem_reg", offsetof(verbs, umem_reg)},
    {"mlx5dv_devx_umem_dereg", offsetof(verbs, umem_dereg)}, {"mlx5dv_devx_obj_create", offsetof(verbs, obj_create)},
    {"mlx5dv_devx_obj_modify", offsetof(verbs, obj_modify)}, {"mlx5dv_devx_obj_destroy", offsetof(verbs, obj_destroy)},
};

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

static expar_status find_all(verbs *v, void *handle, const char *library, const verbs_symbol *symbols, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        void *address = dlsym(handle, symbols[i].name);
        if (!address)
            return error_set(EXPAR_ERR_UNSUPPORTED, "gda: %s has no %s; rdma-core 34 or later is expected", library,
                             symbols[i].name);
        /* ISO C has no cast from an object's pointer to a function's; POSIX promises that this works. */
        memcpy((char *)v + symbols[i].place, &address, sizeof address);
    }
    return EXPAR_OK;
}

/* Older libraries lack it, and memory of GPUs is then registered in another way. */
static void find_optional(verbs *v)
{
    void *address = dlsym(v->ibverbs, "ibv_reg_dmabuf_mr");
    memcpy((void *)&v->reg_dmabuf_mr, &address, sizeof address);
}

static expar_status find_libraries(verbs *v)
{
    expar_status status = open_library("libibverbs.so.1", &v->ibverbs);
    if (status == EXPAR_OK) status = open_library("libmlx5.so.1", &v->mlx5);
    if (status == EXPAR_OK)
        status = find_all(v, v->ibverbs, "libibverbs", ibverbs_symbols, ARRAY_LENGTH(ibverbs_symbols));
    if (status == EXPAR_OK) status = find_all(v, v->mlx5, "libmlx5", mlx5_symbols, ARRAY_LENGTH(mlx5_symbols));
    if (status == EXPAR_OK) find_optional(v);
    return status;
}

/* The libraries stay open: what they have allocated would be lost with them. */
expar_status verbs_load(const verbs **out)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static verbs v; /* guarded by the lock until it is complete; nobody writes it after that */
    static bool complete;
    pthread_mutex_lock(&lock);
    expar_status status = complete ? EXPAR_OK : find_libraries(&v);
    complete = status == EXPAR_OK;
    pthread_mutex_unlock(&lock);
    if (status == EXPAR_OK) *out = &v;
    return status;
}
