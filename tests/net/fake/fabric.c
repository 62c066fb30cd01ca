/* SPDX-License-Identifier: Apache-2.0 */
/* See fake.h. The tables of operations of what the real library opens are replaced by copies with some entries of this
 * file's, which end in the real ones. All objects of one kind are of one provider and share one table. */
#include "fake.h"

#include <dlfcn.h>
#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define PROVIDER "tcp;ofi_rxm"

static struct {
    int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
    void (*freeinfo)(struct fi_info *);
    struct fi_info *(*dupinfo)(const struct fi_info *);
    int (*fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
    const char *(*strerror)(int);
} real;

static fake_controls controls;

fake_controls *fake_controls_of(void)
{
    return &controls;
}

static void find(void *handle, const char *name, void *function, size_t bytes)
{
    void *address = dlsym(handle, name);
    if (!address) abort();
    memcpy(function, &address, bytes);
}

__attribute__((constructor)) static void open_real(void)
{
    void *handle = dlopen(FAKE_REAL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!handle) abort();
    find(handle, "fi_getinfo", &real.getinfo, sizeof real.getinfo);
    find(handle, "fi_freeinfo", &real.freeinfo, sizeof real.freeinfo);
    find(handle, "fi_dupinfo", &real.dupinfo, sizeof real.dupinfo);
    find(handle, "fi_fabric", &real.fabric, sizeof real.fabric);
    find(handle, "fi_strerror", &real.strerror, sizeof real.strerror);
}

/* ---- what is asked for ------------------------------------------------------------------------------------------- */

static void rename_provider(struct fi_info *info, const char *name)
{
    free(info->fabric_attr->prov_name);
    info->fabric_attr->prov_name = strdup(name);
}

/* As the real library knows it; to be freed. */
static struct fi_info *real_info(const struct fi_info *info)
{
    struct fi_info *copy = real.dupinfo(info);
    if (!copy) abort();
    if (getenv("FAKE_PROVIDER")) rename_provider(copy, PROVIDER);
    if (atomic_load(&controls.one_endpoint)) copy->domain_attr->mr_mode &= ~FI_MR_ENDPOINT;
    if (atomic_load(&controls.local_memory)) copy->domain_attr->mr_mode &= ~FI_MR_LOCAL;
    if (atomic_load(&controls.key_bytes) < 0) copy->domain_attr->mr_mode &= ~FI_MR_PROV_KEY;
    return copy;
}

static void set_classes(struct fi_info *info, uint32_t wanted)
{
    int32_t classes = atomic_load(&controls.classes);
    if (classes == FAKE_CLASSES_REAL) return;
    info->tx_attr->tclass = classes == FAKE_CLASSES_TAKEN ? wanted : FI_TC_UNSPEC;
    info->domain_attr->tclass = classes == FAKE_CLASSES_DOMAIN ? wanted : FI_TC_UNSPEC;
}

static int ask(uint32_t version, const char *node, uint64_t flags, const struct fi_info *hints, struct fi_info **info)
{
    const char *name = getenv("FAKE_PROVIDER");
    uint32_t wanted = hints->tx_attr->tclass;
    const int32_t key_bytes = atomic_load(&controls.key_bytes);
    if (name && strcmp(name, hints->fabric_attr->prov_name) != 0) return -FI_ENODATA;
    if (wanted != FI_TC_UNSPEC && atomic_load(&controls.classes) == FAKE_CLASSES_REJECTED) return -FI_ENODATA;
    struct fi_info *asked = real_info(hints);
    int code = real.getinfo(version, node ? node : "127.0.0.1", NULL, flags | FI_SOURCE, asked, info);
    real.freeinfo(asked);
    for (struct fi_info *one = *info; code == 0 && one; one = one->next) {
        if (name) rename_provider(one, name);
        if (atomic_load(&controls.one_endpoint)) one->domain_attr->mr_mode |= FI_MR_ENDPOINT;
        if (atomic_load(&controls.local_memory)) one->domain_attr->mr_mode |= FI_MR_LOCAL;
        if (key_bytes > 0) one->domain_attr->mr_key_size = (size_t)key_bytes;
        if (key_bytes < 0) one->domain_attr->mr_mode |= FI_MR_PROV_KEY;
        set_classes(one, wanted);
    }
    return code;
}

int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
               struct fi_info **info)
{
    bool by_name = hints && hints->fabric_attr && hints->fabric_attr->prov_name;
    return by_name ? ask(version, node, flags, hints, info) : real.getinfo(version, node, service, flags, hints, info);
}

void fi_freeinfo(struct fi_info *info)
{
    real.freeinfo(info);
}

struct fi_info *fi_dupinfo(const struct fi_info *info)
{
    return real.dupinfo(info);
}

const char *fi_strerror(int code)
{
    return real.strerror(code);
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static struct fi_ops_rma real_rma, own_rma;
static struct fi_ops_atomic real_atomic, own_atomic;

static bool takes_fault(fake_fault fault)
{
    int32_t left = atomic_load(&controls.faults);
    if (atomic_load(&controls.fault) != (int32_t)fault) return false;
    while (left > 0 && !atomic_compare_exchange_weak(&controls.faults, &left, left - 1)) {
    }
    return left > 0;
}

/* Rejected operations had no fault. */
static ssize_t with_fault(ssize_t code)
{
    if (code != 0) atomic_fetch_add(&controls.faults, 1);
    return code;
}

static ssize_t count(ssize_t code, _Atomic uint64_t *operations, _Atomic uint64_t *bytes, size_t length)
{
    if (code != 0) return code;
    atomic_fetch_add(operations, 1);
    if (bytes) atomic_fetch_add(bytes, length);
    return code;
}

/* Reads where it should write, into memory that nobody looks at. */
static ssize_t lose(struct fid_ep *ep, const struct fi_msg_rma *message)
{
    static uint8_t nowhere[1 << 16];
    struct iovec vector = {.iov_base = nowhere, .iov_len = message->msg_iov->iov_len};
    struct fi_msg_rma instead = *message;
    instead.msg_iov = &vector;
    if (vector.iov_len > sizeof nowhere) abort();
    return with_fault(real_rma.readmsg(ep, &instead, FI_COMPLETION));
}

static ssize_t write_message(struct fid_ep *ep, const struct fi_msg_rma *message, uint64_t flags)
{
    size_t length = message->msg_iov->iov_len;
    if (takes_fault(FAKE_LOSE_PUT)) return lose(ep, message);
    bool early = takes_fault(FAKE_EARLY_PUT);
    ssize_t code = real_rma.writemsg(ep, message, early ? flags & ~FI_DELIVERY_COMPLETE : flags);
    return count(early ? with_fault(code) : code, &controls.puts, &controls.put_bytes, length);
}

static ssize_t read_message(struct fid_ep *ep, const struct fi_msg_rma *message, uint64_t flags)
{
    return count(real_rma.readmsg(ep, message, flags), &controls.gets, &controls.get_bytes, message->msg_iov->iov_len);
}

static ssize_t read_bytes(struct fid_ep *ep, void *buffer, size_t length, void *descriptor, fi_addr_t from,
                          uint64_t address, uint64_t key, void *context)
{
    return count(real_rma.read(ep, buffer, length, descriptor, from, address, key, context), &controls.gets,
                 &controls.get_bytes, length);
}

static ssize_t fetch_atomic(struct fid_ep *ep, const void *buffer, size_t words, void *descriptor, void *result,
                            void *result_descriptor, fi_addr_t to, uint64_t address, uint64_t key,
                            enum fi_datatype type, enum fi_op op, void *context)
{
    uint64_t operand = 0;
    memcpy(&operand, buffer, type == FI_UINT64 ? 8 : 4);
    bool wrong = op == FI_SUM && takes_fault(FAKE_WRONG_ADD);
    if (wrong) operand++;
    ssize_t code = real_atomic.readwrite(ep, &operand, words, descriptor, result, result_descriptor, to, address, key,
                                         type, op, context);
    return count(wrong ? with_fault(code) : code, &controls.atomics, NULL, 0);
}

static ssize_t compare_atomic(struct fid_ep *ep, const void *buffer, size_t words, void *descriptor,
                              const void *compare, void *compare_descriptor, void *result, void *result_descriptor,
                              fi_addr_t to, uint64_t address, uint64_t key, enum fi_datatype type, enum fi_op op,
                              void *context)
{
    return count(real_atomic.compwrite(ep, buffer, words, descriptor, compare, compare_descriptor, result,
                                       result_descriptor, to, address, key, type, op, context),
                 &controls.atomics, NULL, 0);
}

/* ---- objects ----------------------------------------------------------------------------------------------------- */

static pthread_mutex_t tables = PTHREAD_MUTEX_INITIALIZER; /* guards their making */
static struct fi_ops_fabric real_fabric, own_fabric;
static struct fi_ops_domain real_domain, own_domain;
static struct fi_ops_mr real_mr, own_mr;
static struct fi_ops own_memory;

static int open_endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context)
{
    struct fi_info *asked = real_info(info);
    int code = real_domain.endpoint(domain, asked, ep, context);
    real.freeinfo(asked);
    if (code != 0) return code;
    atomic_store(&controls.endpoint_class, info->tx_attr->tclass);
    pthread_mutex_lock(&tables);
    if (!own_rma.writemsg) {
        real_rma = own_rma = *(*ep)->rma;
        own_rma.writemsg = write_message;
        own_rma.readmsg = read_message;
        own_rma.read = read_bytes;
        real_atomic = own_atomic = *(*ep)->atomic;
        own_atomic.readwrite = fetch_atomic;
        own_atomic.compwrite = compare_atomic;
    }
    pthread_mutex_unlock(&tables);
    (*ep)->rma = &own_rma;
    (*ep)->atomic = &own_atomic;
    return 0;
}

static int bind_memory(struct fid *memory, struct fid *endpoint, uint64_t flags)
{
    (void)memory;
    (void)endpoint;
    (void)flags;
    return 0;
}

static int control_memory(struct fid *memory, int command, void *argument)
{
    (void)memory;
    (void)argument;
    return command == FI_ENABLE ? 0 : -FI_ENOSYS;
}

static int register_memory(struct fid *domain, const void *base, size_t bytes, uint64_t access, uint64_t offset,
                           uint64_t key, uint64_t flags, struct fid_mr **memory, void *context)
{
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
    if (atomic_load(&controls.locks)) getrlimit(RLIMIT_MEMLOCK, &limit);
    if (bytes > limit.rlim_cur) return -FI_ENOMEM;
    atomic_store(&controls.key, key);
    int code = real_mr.reg(domain, base, bytes, access, offset, key, flags, memory, context);
    if (code != 0 || !atomic_load(&controls.one_endpoint)) return code;
    pthread_mutex_lock(&tables);
    if (!own_memory.bind) {
        own_memory = *(*memory)->fid.ops;
        own_memory.bind = bind_memory;
        own_memory.control = control_memory;
    }
    pthread_mutex_unlock(&tables);
    (*memory)->fid.ops = &own_memory;
    return 0;
}

static int open_domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain, void *context)
{
    struct fi_info *asked = real_info(info);
    int code = real_fabric.domain(fabric, asked, domain, context);
    real.freeinfo(asked);
    if (code != 0) return code;
    atomic_store(&controls.domain_class, info->domain_attr->tclass);
    pthread_mutex_lock(&tables);
    if (!own_domain.endpoint) {
        real_domain = own_domain = *(*domain)->ops;
        own_domain.endpoint = open_endpoint;
        real_mr = own_mr = *(*domain)->mr;
        own_mr.reg = register_memory;
    }
    pthread_mutex_unlock(&tables);
    (*domain)->ops = &own_domain;
    (*domain)->mr = &own_mr;
    return 0;
}

int fi_fabric(struct fi_fabric_attr *attributes, struct fid_fabric **fabric, void *context)
{
    static char name[] = PROVIDER;
    struct fi_fabric_attr asked = *attributes;
    if (getenv("FAKE_PROVIDER")) asked.prov_name = name;
    int code = real.fabric(&asked, fabric, context);
    if (code != 0) return code;
    pthread_mutex_lock(&tables);
    if (!own_fabric.domain) {
        real_fabric = own_fabric = *(*fabric)->ops;
        own_fabric.domain = open_domain;
    }
    pthread_mutex_unlock(&tables);
    (*fabric)->ops = &own_fabric;
    return 0;
}
