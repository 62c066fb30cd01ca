/* SPDX-License-Identifier: Apache-2.0 */
/* The way of a network without the library: libfabric's calls on one endpoint a rank, with the library's provider,
 * interface and completion. Writes are complete when they are delivered, atomics are fetching ones. A waiting rank
 * polls. */
#include "bench/rma/rma.h"
#include <arpa/inet.h>
#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 64, NAME_BYTES = 64, ENTRIES = 16 };

struct library {
    int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
    struct fi_info *(*dupinfo)(const struct fi_info *);
    void (*freeinfo)(struct fi_info *);
    int (*fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
    const char *(*strerror)(int);
};

/* The memory of a pending operation: an operand, and a place for a result. */
struct slot {
    struct fi_context2 context; /* first: libfabric gives it back */
    struct slot *next;          /* of the unused ones */
    uint64_t *operand, *result; /* in the registered page */
};

struct fabric_way {
    struct rma_way base;
    struct library library;
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_cq *cq;
    struct fid_av *av;
    struct fid_ep *ep;
    struct fid_mr *mr, *page_mr;
    uint64_t *page; /* operands, then results */
    struct slot slots[WINDOW];
    struct slot *unused;
    int in_flight;
    uint64_t tokens;
    fi_addr_t *addresses;     /* [size] */
    uint64_t *keys, *remotes; /* [size] of the peers' memory, and what its first byte is called there */
};

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

static bool find(void *handle, const char *name, void *function, size_t bytes)
{
    void *address = dlsym(handle, name);
    if (address) memcpy(function, &address, bytes);
    return address != NULL;
}

static bool load(struct library *library)
{
    void *handle = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
    return handle && find(handle, "fi_getinfo", &library->getinfo, sizeof library->getinfo) &&
           find(handle, "fi_dupinfo", &library->dupinfo, sizeof library->dupinfo) &&
           find(handle, "fi_freeinfo", &library->freeinfo, sizeof library->freeinfo) &&
           find(handle, "fi_fabric", &library->fabric, sizeof library->fabric) &&
           find(handle, "fi_strerror", &library->strerror, sizeof library->strerror);
}

static const char *interface(void)
{
    const char *named = getenv("EXPAR_FABRIC_INTERFACE");
    if (!named || !*named) named = getenv("EXPAR_BOOTSTRAP_INTERFACE");
    return named && *named ? named : "127.0.0.1";
}

static struct fi_info *ask(const struct library *library, const char *provider)
{
    unsigned char bytes[16];
    const char *from = interface();
    bool address = inet_pton(AF_INET, from, bytes) == 1 || inet_pton(AF_INET6, from, bytes) == 1;
    bool by_address = strstr(provider, "rxm") != NULL;
    struct fi_info *found = NULL, *hints = library->dupinfo(NULL);
    if (!hints) return NULL;
    hints->caps = FI_RMA | FI_ATOMIC;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    hints->domain_attr->av_type = FI_AV_TABLE;
    hints->fabric_attr->prov_name = strdup(provider);
    if (by_address && !address) hints->domain_attr->name = strdup(from);
    bool by_source = by_address && address;
    int code =
        library->getinfo(FI_VERSION(1, 15), by_source ? from : NULL, NULL, by_source ? FI_SOURCE : 0, hints, &found);
    library->freeinfo(hints);
    return code == 0 ? found : NULL;
}

/* Chooses a provider in the library's order of preference. */
static struct fi_info *choose(const struct library *library)
{
    static const char *const known[] = {"cxi", "efa", "verbs;ofi_rxm", "tcp;ofi_rxm"};
    const char *named = getenv("EXPAR_FABRIC_PROVIDER");
    struct fi_info *info = NULL;
    if (named && *named) return ask(library, named);
    for (size_t i = 0; i < sizeof known / sizeof *known && !info; i++)
        info = ask(library, known[i]);
    return info;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static void close_fid(struct fid *fid)
{
    if (fid) fi_close(fid);
}

static void close_way(struct rma_way *way)
{
    struct fabric_way *f = (struct fabric_way *)way;
    close_fid(f->ep ? &f->ep->fid : NULL);
    close_fid(f->page_mr ? &f->page_mr->fid : NULL);
    close_fid(f->mr ? &f->mr->fid : NULL);
    close_fid(f->av ? &f->av->fid : NULL);
    close_fid(f->cq ? &f->cq->fid : NULL);
    close_fid(f->domain ? &f->domain->fid : NULL);
    close_fid(f->fabric ? &f->fabric->fid : NULL);
    if (f->info) f->library.freeinfo(f->info);
    free(f->page);
    free(f->addresses);
    free(f->keys);
    free(f->remotes);
    free(f);
}

static bool make_slots(struct fabric_way *f)
{
    f->page = aligned_alloc(4096, 4096);
    if (!f->page) return false;
    memset(f->page, 0, 4096);
    for (int i = 0; i < WINDOW; i++) {
        f->slots[i] = (struct slot){.next = f->unused, .operand = f->page + i, .result = f->page + WINDOW + i};
        f->unused = &f->slots[i];
    }
    return true;
}

/* Opens the endpoint. Returns 0 or libfabric's negative code. */
static int open_endpoint(struct fabric_way *f)
{
    struct fi_cq_attr cq = {.size = 2 * WINDOW, .format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_NONE};
    struct fi_av_attr av = {.type = FI_AV_TABLE, .count = (size_t)f->base.memory->size};
    int code = f->library.fabric(f->info->fabric_attr, &f->fabric, NULL);
    if (code == 0) code = fi_domain(f->fabric, f->info, &f->domain, NULL);
    if (code == 0) code = fi_cq_open(f->domain, &cq, &f->cq, NULL);
    if (code == 0) code = fi_av_open(f->domain, &av, &f->av, NULL);
    if (code == 0) code = fi_endpoint(f->domain, f->info, &f->ep, NULL);
    if (code == 0) code = fi_ep_bind(f->ep, &f->av->fid, 0);
    if (code == 0) code = fi_ep_bind(f->ep, &f->cq->fid, FI_TRANSMIT | FI_RECV);
    return code == 0 ? fi_enable(f->ep) : code;
}

static int register_memory(struct fabric_way *f)
{
    const struct rma_memory *memory = f->base.memory;
    int code = fi_mr_reg(f->domain, memory->base, memory->layout.bytes,
                         FI_REMOTE_READ | FI_REMOTE_WRITE | FI_READ | FI_WRITE, 0, 1, 0, &f->mr, NULL);
    if (code == 0) code = fi_mr_reg(f->domain, f->page, 4096, FI_READ | FI_WRITE, 0, 2, 0, &f->page_mr, NULL);
    return code;
}

/* The facts that each rank sends to the others. */
struct card {
    int32_t ready;
    uint64_t key, address;
    unsigned char name[NAME_BYTES];
};

static bool open_locally(struct fabric_way *f, struct card *mine, char *missing, size_t missing_bytes)
{
    size_t name_bytes = NAME_BYTES;
    snprintf(missing, missing_bytes, "libfabric or its provider is not there");
    if (!load(&f->library) || !(f->info = choose(&f->library))) return false;
    snprintf(missing, missing_bytes, "out of memory");
    if (!f->addresses || !f->keys || !f->remotes || !make_slots(f)) return false;
    int code = open_endpoint(f);
    if (code == 0) code = register_memory(f);
    if (code == 0) code = fi_getname(&f->ep->fid, mine->name, &name_bytes);
    snprintf(missing, missing_bytes, "bare libfabric: %s", f->library.strerror(-code));
    if (code != 0) return false;
    mine->ready = 1;
    mine->key = fi_mr_key(f->mr);
    if (f->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) mine->address = (uint64_t)(uintptr_t)f->base.memory->base;
    return true;
}

static bool connect_all(struct fabric_way *f, const struct card *mine, char *missing, size_t missing_bytes)
{
    const struct rma_memory *memory = f->base.memory;
    struct card *all = calloc((size_t)memory->size, sizeof *all);
    bool good = all && expar_group_allgather(memory->group, mine, all, sizeof *mine) == EXPAR_OK;
    for (int pe = 0; pe < memory->size && good; pe++) {
        if (!all[pe].ready && mine->ready) snprintf(missing, missing_bytes, "rank %d has no bare libfabric", pe);
        good = all[pe].ready && fi_av_insert(f->av, all[pe].name, 1, &f->addresses[pe], 0, NULL) == 1;
        f->keys[pe] = all[pe].key;
        f->remotes[pe] = all[pe].address;
    }
    free(all);
    return good;
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static bool failed(const struct fabric_way *f, const char *what, ssize_t code)
{
    fprintf(stderr, "expar bench: rank %d: bare libfabric: %s: %s\n", f->base.memory->rank, what,
            f->library.strerror((int)-code));
    return false;
}

static bool operation_failed(struct fabric_way *f)
{
    struct fi_cq_err_entry entry = {0};
    return fi_cq_readerr(f->cq, &entry, 0) == 1 ? failed(f, "an operation", -entry.err) : true;
}

/* Takes completions from the queue. */
static bool progress(struct fabric_way *f)
{
    struct fi_cq_entry entries[ENTRIES];
    ssize_t count = fi_cq_read(f->cq, entries, ENTRIES);
    if (count == -FI_EAGAIN) return true;
    if (count == -FI_EAVAIL) return operation_failed(f);
    if (count < 0) return failed(f, "completions", count);
    for (ssize_t i = 0; i < count; i++) {
        struct slot *slot = entries[i].op_context;
        slot->next = f->unused;
        f->unused = slot;
        f->in_flight--;
    }
    return true;
}

static bool wait_until_below(struct fabric_way *f, int in_flight)
{
    for (unsigned turn = 0; f->in_flight >= in_flight; turn++) {
        if (!progress(f)) return false;
        rma_pause(turn);
    }
    return true;
}

static bool quiet(struct rma_way *way)
{
    return wait_until_below((struct fabric_way *)way, 1);
}

/* Returns an unused slot; NULL after a failure. */
static struct slot *take_slot(struct fabric_way *f)
{
    if (!wait_until_below(f, WINDOW)) return NULL;
    struct slot *slot = f->unused;
    f->unused = slot->next;
    f->in_flight++;
    return slot;
}

static bool move(struct fabric_way *f, int pe, size_t remote, void *local, struct fid_mr *mr, size_t bytes, bool is_put)
{
    struct slot *slot = take_slot(f);
    if (!slot) return false;
    void *descriptor = fi_mr_desc(mr);
    struct iovec vector = {.iov_base = local, .iov_len = bytes};
    struct fi_rma_iov target = {.addr = f->remotes[pe] + remote, .len = bytes, .key = f->keys[pe]};
    struct fi_msg_rma message = {.msg_iov = &vector,
                                 .desc = &descriptor,
                                 .iov_count = 1,
                                 .addr = f->addresses[pe],
                                 .rma_iov = &target,
                                 .rma_iov_count = 1,
                                 .context = &slot->context};
    ssize_t code;
    do {
        code = is_put ? fi_writemsg(f->ep, &message, FI_DELIVERY_COMPLETE | FI_COMPLETION)
                      : fi_readmsg(f->ep, &message, FI_COMPLETION);
    } while (code == -FI_EAGAIN && progress(f));
    return code == 0 || failed(f, is_put ? "write" : "read", code);
}

static bool put_nbi(struct rma_way *way, int pe, size_t dest, size_t source, size_t bytes)
{
    struct fabric_way *f = (struct fabric_way *)way;
    return move(f, pe, dest, way->memory->base + source, f->mr, bytes, true);
}

static bool get_nbi(struct rma_way *way, int pe, size_t dest, size_t source, size_t bytes)
{
    struct fabric_way *f = (struct fabric_way *)way;
    return move(f, pe, source, way->memory->base + dest, f->mr, bytes, false);
}

static bool get(struct rma_way *way, int pe, size_t dest, size_t source, size_t bytes)
{
    return get_nbi(way, pe, dest, source, bytes) && quiet(way);
}

static size_t word_at(const struct rma_way *way, int number)
{
    return rma_word_at(&way->memory->layout, way->first_word + number);
}

static bool change(struct rma_way *way, int pe, int number, uint64_t value, enum fi_op op, struct slot **used)
{
    struct fabric_way *f = (struct fabric_way *)way;
    struct slot *slot = *used = take_slot(f);
    if (!slot) return false;
    void *descriptor = fi_mr_desc(f->page_mr);
    *slot->operand = value;
    ssize_t code;
    do {
        code = fi_fetch_atomic(f->ep, slot->operand, 1, descriptor, slot->result, descriptor, f->addresses[pe],
                               f->remotes[pe] + word_at(way, number), f->keys[pe], FI_UINT64, op, &slot->context);
    } while (code == -FI_EAGAIN && progress(f));
    return code == 0 || failed(f, "atomic", code);
}

static bool add(struct rma_way *way, int pe, int number, uint64_t value)
{
    struct slot *slot;
    return change(way, pe, number, value, FI_SUM, &slot);
}

static bool fetch_add(struct rma_way *way, int pe, int number, uint64_t value, uint64_t *old)
{
    struct slot *slot;
    if (!change(way, pe, number, value, FI_SUM, &slot) || !quiet(way)) return false;
    *old = *slot->result;
    return true;
}

static bool put_signal(struct rma_way *way, int pe, size_t dest, size_t source, size_t bytes, int number,
                       uint64_t value)
{
    struct slot *slot;
    return put_nbi(way, pe, dest, source, bytes) && quiet(way) &&
           change(way, pe, number, value, FI_ATOMIC_WRITE, &slot);
}

static bool wait(struct rma_way *way, int number, uint64_t value)
{
    _Atomic uint64_t *word = (void *)(way->memory->base + word_at(way, number));
    for (unsigned turn = 0; atomic_load_explicit(word, memory_order_acquire) < value; turn++) {
        if (!progress((struct fabric_way *)way)) return false;
        rma_pause(turn);
    }
    return true;
}

static bool pass_token(struct rma_way *way, uint64_t n)
{
    struct slot *slot;
    return change(way, (way->memory->rank + 1) % way->memory->size, RMA_WORD_TOKEN, n, FI_ATOMIC_WRITE, &slot) &&
           quiet(way);
}

static bool barrier(struct rma_way *way)
{
    uint64_t n = ++((struct fabric_way *)way)->tokens;
    if (way->memory->rank == 0) return pass_token(way, n) && wait(way, RMA_WORD_TOKEN, n);
    return wait(way, RMA_WORD_TOKEN, n) && pass_token(way, n);
}

static const struct rma_way_ops ops = {
    .name = "libfabric",
    .put = put_nbi,
    .put_nbi = put_nbi,
    .get = get,
    .get_nbi = get_nbi,
    .quiet = quiet,
    .fetch_add = fetch_add,
    .add = add,
    .put_signal = put_signal,
    .wait = wait,
    .barrier = barrier,
    .close = close_way,
};

struct rma_way *rma_way_fabric(const struct rma_memory *memory, char *missing, size_t missing_bytes)
{
    struct card mine = {0};
    struct fabric_way *f = calloc(1, sizeof *f);
    snprintf(missing, missing_bytes, "out of memory");
    if (!f) return NULL;
    f->base = (struct rma_way){.ops = &ops, .memory = memory, .first_word = 3 * RMA_WAY_WORDS};
    f->addresses = calloc((size_t)memory->size, sizeof *f->addresses);
    f->keys = calloc((size_t)memory->size, sizeof *f->keys);
    f->remotes = calloc((size_t)memory->size, sizeof *f->remotes);
    open_locally(f, &mine, missing, missing_bytes);
    if (connect_all(f, &mine, missing, missing_bytes)) return &f->base;
    close_way(&f->base);
    return NULL;
}

const char *rma_way_fabric_provider(const struct rma_way *way)
{
    return ((const struct fabric_way *)way)->info->fabric_attr->prov_name;
}
