/* SPDX-License-Identifier: Apache-2.0 */
/* Memory outside the heap, which the program registers. */
#include "openshmem/nvshmem/nv.h"

#include <stdlib.h>

/* Addresses that are registered, once for each registration; the lock guards them. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void **addresses;
static size_t num_addresses, max_addresses;

/* Mistakes in the program's arguments are its own to deal with; anything else ends the job. */
static int registered_result(expar_status status)
{
    const bool is_own = status == EXPAR_ERR_NULL || status == EXPAR_ERR_ARGUMENT || status == EXPAR_ERR_ADDRESS ||
                        status == EXPAR_ERR_UNSUPPORTED || status == EXPAR_ERR_LIMIT || status == EXPAR_ERR_REMOTE ||
                        status == EXPAR_ERR_BUSY;
    if (!is_own) exit_must(status);
    if (status == EXPAR_OK) return NVSHMEMX_SUCCESS;
    return expar_nvshmem_rejects(expar_last_error(), NVSHMEMX_ERROR_INVALID_VALUE);
}

/* False: there is no memory for it. */
static bool reserve_address(void)
{
    if (num_addresses < max_addresses) return true;
    const size_t wanted = max_addresses ? 2 * max_addresses : 16;
    void **larger = realloc(addresses, wanted * sizeof *larger);
    if (!larger) return false;
    addresses = larger;
    max_addresses = wanted;
    return true;
}

int nvshmemx_buffer_register(void *addr, size_t length)
{
    pthread_mutex_lock(&lock);
    if (!reserve_address()) exit_fail("nvshmemx_buffer_register: no memory");
    const expar_status status = expar_register(nv.group, addr, length);
    if (status == EXPAR_OK) addresses[num_addresses++] = addr;
    pthread_mutex_unlock(&lock);
    return registered_result(status);
}

/* The caller has the lock. */
static expar_status unregister_at(size_t index)
{
    const expar_status status = expar_unregister(nv.group, addresses[index]);
    if (status == EXPAR_OK) addresses[index] = addresses[--num_addresses];
    return status;
}

int nvshmemx_buffer_unregister(void *addr)
{
    expar_status status = EXPAR_ERR_ADDRESS;
    size_t index = 0;
    pthread_mutex_lock(&lock);
    while (index < num_addresses && addresses[index] != addr)
        index++;
    if (index < num_addresses) status = unregister_at(index);
    pthread_mutex_unlock(&lock);
    if (index < num_addresses || status != EXPAR_ERR_ADDRESS) return registered_result(status);
    return expar_nvshmem_rejects("nvshmemx_buffer_unregister: the address is not registered",
                                 NVSHMEMX_ERROR_INVALID_VALUE);
}

void nvshmemx_buffer_unregister_all(void)
{
    expar_status status = EXPAR_OK;
    pthread_mutex_lock(&lock);
    while (num_addresses > 0 && status == EXPAR_OK)
        status = unregister_at(num_addresses - 1);
    pthread_mutex_unlock(&lock);
    exit_must(status);
}

void nv_registered_end(void)
{
    pthread_mutex_lock(&lock);
    free(addresses);
    addresses = NULL;
    num_addresses = max_addresses = 0;
    pthread_mutex_unlock(&lock);
}

void *nvshmemx_buffer_register_symmetric(void *buf_ptr, size_t size, int flags)
{
    void *symmetric = NULL;
    (void)flags;
    nv_prepare();
    const int status = registered_result(expar_register_symmetric(nv.group, buf_ptr, size, &symmetric));
    return status == NVSHMEMX_SUCCESS ? symmetric : NULL;
}

int nvshmemx_buffer_unregister_symmetric(void *mmap_ptr, size_t size)
{
    (void)size;
    return registered_result(expar_unregister_symmetric(nv.group, mmap_ptr));
}
