/* SPDX-License-Identifier: Apache-2.0 */
/* Objects of a simulated device, and the software NIC on which its queue pairs run. */
#include "fake.h"
#include "fake_wire.h"
#include "net/gda/devx/verbs.h"
#include "net/gda/nic/nic.h"

#include <endian.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_OBJECTS 1024

struct ibv_pd {
    fake_context *context;
    uint32_t pdn, uses;
};
struct ibv_ah {
    verbs_way way;
};
typedef struct fake_umem {
    verbs_umem seen; /* first: what users see */
    fake_context *context;
    uint8_t *address;
    size_t bytes;
    uint32_t uses;
} fake_umem;
typedef struct fake_uar {
    verbs_uar seen; /* first */
    fake_context *context;
    uint32_t queues; /* the NIC sees a ring of one only, so others may share the page but not ring */
} fake_uar;
typedef enum fake_state { RESET, INIT, RECEIVES, SENDS, FAILED } fake_state;
struct mlx5dv_devx_obj {
    fake_context *context;
    bool is_cq;
    uint32_t number;
    fake_umem *umem;
    fake_umem *records; /* of a queue pair */
    fake_uar *uar;
    uint32_t uses; /* a completion queue's queue pairs */
    /* of a completion queue */
    fake_cq_command cq_as;
    /* of a queue pair */
    struct mlx5dv_devx_obj *cq;
    struct ibv_pd *pd;
    fake_qp_command qp_as;
    fake_state state;
    uint32_t peer, port;
};

/* Guards all below. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t last_number = 0x10, users;
static nic *device;
static struct ibv_pd *pds[MOST_OBJECTS];
static fake_umem *umems[MOST_OBJECTS];
static fake_uar *uars[MOST_OBJECTS];
static struct mlx5dv_devx_obj *objects[MOST_OBJECTS];

static void die(const char *why)
{
    fprintf(stderr, "simulated mlx5: %s\n", why);
    abort();
}

int fake_reject(const char *command, const char *why)
{
    if (getenv("FAKE_SAYS_WHY")) fprintf(stderr, "simulated mlx5: %s: %s is wrong\n", command, why);
    return EREMOTEIO;
}

/* By the holder of the lock. */
static uint32_t new_number(void)
{
    return fake_wire_is_on() ? fake_wire_number() : ++last_number;
}

static void *checked(void *memory)
{
    if (!memory) die("no memory");
    return memory;
}

static size_t place_of(void *const *list, const void *element)
{
    for (size_t i = 0; i < MOST_OBJECTS; i++)
        if (list[i] == element) return i;
    die(element ? "an object that does not exist was used" : "too many objects");
    return 0;
}

/* ---- the NIC ----------------------------------------------------------------------------------------------------- */

void fake_attach(void)
{
    const nic_faults faults = {.seed = 3, .coalesce_one_in = 5, .late_reads_one_in = 7, .rnr_retries = 7};
    pthread_mutex_lock(&lock);
    if (!users && nic_open(&faults, &device) != EXPAR_OK) die("no NIC");
    if (!users && fake_wire_is_on())
        fake_wire_join(device);
    else if (!users && nic_start(device, 0) != EXPAR_OK)
        die("no NIC");
    users++;
    pthread_mutex_unlock(&lock);
}

void fake_detach(const fake_context *context)
{
    if (context->objects) die("a device was closed with objects that were not destroyed");
    pthread_mutex_lock(&lock);
    if (!--users) {
        if (fake_wire_is_on()) fake_wire_leave();
        nic_close(device);
    }
    pthread_mutex_unlock(&lock);
}

static void start_queue(struct mlx5dv_devx_obj *qp)
{
    const fake_qp_command *as = &qp->qp_as;
    const fake_cq_command *cq_as = &qp->cq->cq_as;
    uint8_t *memory = qp->umem->address, *cq_memory = qp->cq->umem->address;
    const nic_queue queue = {.qpn = qp->number,
                             .peer_qpn = qp->peer,
                             .depth = UINT32_C(1) << as->log_blocks,
                             .blocks = memory + as->offset,
                             .record =
                                 (const _Atomic uint32_t *)(const void *)(qp->records->address + as->record_offset),
                             .doorbell = (_Atomic uint64_t *)qp->uar->seen.reg_addr,
                             .collapsed = cq_as->collapsed,
                             .cq_entries = UINT32_C(1) << cq_as->log_entries,
                             .cqes = (_Atomic uint32_t *)(void *)(cq_memory + cq_as->offset),
                             .cq_record = (const _Atomic uint32_t *)(const void *)(cq_memory + cq_as->record_offset)};
    if (nic_add_queue(device, &queue) != EXPAR_OK) die(expar_last_error());
}

/* ---- protection domains and ways --------------------------------------------------------------------------------- */

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    errno = ENOSPC;
    if (fake_is("alloc_pd")) return NULL;
    struct ibv_pd *pd = checked(calloc(1, sizeof *pd));
    *pd = (struct ibv_pd){.context = (fake_context *)context};
    pthread_mutex_lock(&lock);
    pd->pdn = new_number();
    pds[place_of((void *const *)pds, NULL)] = pd;
    pd->context->objects++;
    pthread_mutex_unlock(&lock);
    return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
    pthread_mutex_lock(&lock);
    if (pd->uses) die("a protection domain was freed that is in use");
    pds[place_of((void *const *)pds, pd)] = NULL;
    pd->context->objects--;
    pthread_mutex_unlock(&lock);
    free(pd);
    return 0;
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, verbs_way *way)
{
    errno = EAGAIN;
    if (fake_is_busy()) return NULL;
    errno = ENETUNREACH;
    if (fake_is("create_ah") || !pd || !way->is_global || way->grh.sgid_index != FAKE_GID_INDEX) return NULL;
    struct ibv_ah *ah = checked(calloc(1, sizeof *ah));
    ah->way = *way;
    return ah;
}

int ibv_destroy_ah(struct ibv_ah *ah)
{
    free(ah);
    return 0;
}

int mlx5dv_init_obj(verbs_objects *out, uint64_t kinds)
{
    static _Thread_local verbs_av av;
    if (fake_is("init_obj") || (fake_is("init_ah") && kinds == VERBS_OBJECT_AH)) return EINVAL;
    if (kinds == VERBS_OBJECT_PD) {
        out->pd.out->pdn = out->pd.in->pdn;
    } else if (kinds == VERBS_OBJECT_AH) {
        av = (verbs_av){.rlid = htobe16(FAKE_UDP_PORT)};
        fake_mac(out->ah.in->way.grh.dgid.raw, av.rmac);
        out->ah.out->av = &av;
    } else {
        return EINVAL;
    }
    return 0;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Keys of a device are such for both sides. */
static verbs_mr *register_memory(struct ibv_pd *pd, void *base, uint64_t address, size_t bytes, int access)
{
    verbs_mr *mr = checked(calloc(1, sizeof *mr));
    pthread_mutex_lock(&lock);
    const uint32_t key = new_number() << 8;
    *mr = (verbs_mr){.context = (struct ibv_context *)pd->context,
                     .pd = pd,
                     .addr = base,
                     .length = bytes,
                     .lkey = key,
                     .rkey = key};
    const unsigned rights =
        (access & VERBS_LOCAL_WRITE ? NIC_LOCAL_WRITE : 0u) | (access & VERBS_REMOTE_READ ? NIC_REMOTE_READ : 0u) |
        (access & VERBS_REMOTE_WRITE ? NIC_REMOTE_WRITE : 0u) | (access & VERBS_REMOTE_ATOMIC ? NIC_REMOTE_ATOMIC : 0u);
    const nic_memory m = {.key = key, .address = address, .bytes = bytes, .base = base, .access = rights};
    pd->uses++;
    pd->context->objects++;
    if (access & ~15) die("memory was registered with rights that are not known");
    if (nic_add_memory(device, &m) != EXPAR_OK) die(expar_last_error());
    pthread_mutex_unlock(&lock);
    if (fake_wire_is_on() && access & VERBS_REMOTE_WRITE) fake_wire_publish(&m);
    return mr;
}

verbs_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t bytes, int access)
{
    errno = EAGAIN;
    if (fake_is_busy()) return NULL;
    errno = fake_is("memlock") ? ENOMEM : EFAULT;
    if (fake_is("reg_mr") || fake_is("memlock") || fake_is("no_way")) return NULL;
    return register_memory(pd, address, (uintptr_t)address, bytes, access);
}

verbs_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t address, int fd, int access)
{
    errno = EAGAIN;
    if (fake_is_busy()) return NULL;
    errno = EOPNOTSUPP;
    if (fake_is("no_dmabuf") || fake_is("no_way") || fd != 77 || offset != 4096) return NULL;
    return register_memory(pd, (void *)(uintptr_t)address, address, bytes, access);
}

int ibv_dereg_mr(verbs_mr *mr)
{
    if (fake_wire_is_on()) fake_wire_withdraw(mr->lkey);
    pthread_mutex_lock(&lock);
    nic_remove_memory(device, 0, mr->lkey);
    mr->pd->uses--;
    mr->pd->context->objects--;
    pthread_mutex_unlock(&lock);
    free(mr);
    return 0;
}

verbs_umem *mlx5dv_devx_umem_reg(struct ibv_context *context, void *address, size_t bytes, uint32_t access)
{
    errno = EAGAIN;
    if (fake_is_busy()) return NULL;
    errno = ENOMEM;
    if (fake_is("umem_reg") || access != VERBS_LOCAL_WRITE || (uintptr_t)address % 4096) return NULL;
    fake_umem *u = checked(calloc(1, sizeof *u));
    pthread_mutex_lock(&lock);
    *u = (fake_umem){
        .seen.umem_id = new_number(), .context = (fake_context *)context, .address = address, .bytes = bytes};
    umems[place_of((void *const *)umems, NULL)] = u;
    u->context->objects++;
    pthread_mutex_unlock(&lock);
    return &u->seen;
}

int mlx5dv_devx_umem_dereg(verbs_umem *seen)
{
    fake_umem *u = (fake_umem *)seen;
    pthread_mutex_lock(&lock);
    if (u->uses) die("memory of a queue was taken away while the queue exists");
    umems[place_of((void *const *)umems, u)] = NULL;
    u->context->objects--;
    pthread_mutex_unlock(&lock);
    free(u);
    return 0;
}

/* ---- event queues and doorbells ---------------------------------------------------------------------------------- */

int mlx5dv_devx_query_eqn(struct ibv_context *context, uint32_t vector, uint32_t *eqn)
{
    *eqn = FAKE_EQN;
    return fake_is("query_eqn") || !context || vector ? ENODEV : 0;
}

verbs_uar *mlx5dv_devx_alloc_uar(struct ibv_context *context, uint32_t flags)
{
    errno = EAGAIN;
    if (fake_is_busy()) return NULL;
    errno = fake_is("alloc_uar") ? EOPNOTSUPP : EINVAL;
    const fake_context *c = (const fake_context *)context;
    if (fake_is("one_page") && c->pages) errno = ENOMEM;
    if (fake_is("one_page") && c->pages) return NULL;
    if (fake_is("alloc_uar") || flags != VERBS_UAR_UNCACHED) return NULL;
    fake_uar *u = checked(calloc(1, sizeof *u));
    pthread_mutex_lock(&lock);
    u->context = (fake_context *)context;
    u->seen.base_addr = checked(aligned_alloc(4096, 4096));
    memset(u->seen.base_addr, 0, 4096);
    u->seen.reg_addr = (uint8_t *)u->seen.base_addr + 0x800;
    u->seen.page_id = new_number();
    u->context->pages++;
    uars[place_of((void *const *)uars, NULL)] = u;
    u->context->objects++;
    pthread_mutex_unlock(&lock);
    return &u->seen;
}

void mlx5dv_devx_free_uar(verbs_uar *seen)
{
    fake_uar *u = (fake_uar *)seen;
    pthread_mutex_lock(&lock);
    if (u->queues) die("doorbells were freed that a queue uses");
    uars[place_of((void *const *)uars, u)] = NULL;
    u->context->objects--;
    pthread_mutex_unlock(&lock);
    free(u->seen.base_addr);
    free(u);
}

/* ---- what commands name ------------------------------------------------------------------------------------------ */

static struct ibv_pd *find_pd(const fake_context *c, uint32_t pdn)
{
    for (size_t i = 0; i < MOST_OBJECTS; i++)
        if (pds[i] && pds[i]->context == c && pds[i]->pdn == pdn) return pds[i];
    return NULL;
}

static fake_umem *find_umem(const fake_context *c, uint32_t id)
{
    for (size_t i = 0; i < MOST_OBJECTS; i++)
        if (umems[i] && umems[i]->context == c && umems[i]->seen.umem_id == id) return umems[i];
    return NULL;
}

static fake_uar *find_uar(const fake_context *c, uint32_t id)
{
    for (size_t i = 0; i < MOST_OBJECTS; i++)
        if (uars[i] && uars[i]->context == c && uars[i]->seen.page_id == id) return uars[i];
    return NULL;
}

static struct mlx5dv_devx_obj *find_object(bool is_cq, uint32_t number)
{
    for (size_t i = 0; i < MOST_OBJECTS; i++)
        if (objects[i] && objects[i]->is_cq == is_cq && objects[i]->number == number) return objects[i];
    return NULL;
}

/* Returns whether the range lies in the umem, and is aligned so. */
static bool lies_in(const fake_umem *umem, uint64_t offset, uint64_t bytes, uint64_t alignment)
{
    return offset % alignment == 0 && offset <= umem->bytes && bytes <= umem->bytes - offset;
}

/* ---- creation ---------------------------------------------------------------------------------------------------- */

static const char *make_cq(struct mlx5dv_devx_obj *o)
{
    const fake_cq_command *as = &o->cq_as;
    o->is_cq = true;
    o->umem = find_umem(o->context, as->umem);
    o->uar = find_uar(o->context, as->uar);
    if (!o->umem) return "umem";
    if (as->record_umem != as->umem) return "record_umem";
    if (!o->uar) return "uar";
    const uint64_t bytes = UINT64_C(64) << as->log_entries;
    if (!lies_in(o->umem, as->offset, bytes, 64)) return "umem_offset";
    /* as gda lays out its queues */
    if (as->record_offset != as->offset + bytes + 32 || !lies_in(o->umem, as->record_offset, 8, 8))
        return "record_offset";
    for (uint64_t i = 0; i < (as->collapsed ? 1 : bytes / 64); i++)
        if (o->umem->address[as->offset + i * 64 + 63] >> 4 != 15) return "an entry, which is not marked as invalid";
    o->umem->uses++;
    return NULL;
}

static const char *make_qp(struct mlx5dv_devx_obj *o)
{
    const fake_qp_command *as = &o->qp_as;
    o->umem = find_umem(o->context, as->umem);
    o->uar = find_uar(o->context, as->uar);
    o->cq = find_object(true, as->cqn);
    o->pd = find_pd(o->context, as->pd);
    if (!o->pd) return "pd";
    if (!o->umem) return "umem";
    o->records = find_umem(o->context, as->record_umem);
    if (!o->records) return "record_umem";
    if (!o->uar || (o->uar->queues && !fake_is("one_page"))) return "uar";
    if (!o->cq || o->cq->context != o->context) return "cqn";
    if (as->receive_cqn != as->cqn) return "receive_cqn";
    const uint64_t bytes = UINT64_C(64) << as->log_blocks;
    if (as->offset != 0 || as->offset + bytes != o->cq->cq_as.offset) return "umem_offset";
    /* a record may be in memory of its own, as where the host rings and the queue is in a GPU's memory */
    const uint64_t record = o->records == o->umem ? o->cq->cq_as.record_offset - 32 : 0;
    if (as->record_offset != record || !lies_in(o->records, record, 8, 8)) return "record_offset";
    return NULL;
}

/* With `firmware_busy` every second command is rejected, with a status that says so. */
static bool is_busy_inside(void)
{
    static _Atomic uint32_t commands;
    return fake_is("firmware_busy") && ++commands % 2 != 0;
}

static const char *make_object(struct mlx5dv_devx_obj *o, const void *in, size_t bytes)
{
    const char *wrong = NULL;
    if (fake_opcode(in) == 0x400) {
        wrong = fake_read_cq(in, bytes, &o->cq_as);
        if (!wrong && fake_is("create_cq")) wrong = "everything";
        return wrong ? wrong : make_cq(o);
    }
    wrong = fake_read_qp(in, bytes, &o->qp_as);
    if (!wrong) wrong = make_qp(o);
    if (!wrong && (fake_is("create_qp") || fake_is("exhausted") || is_busy_inside())) wrong = "everything";
    if (!wrong) {
        o->uar->queues++;
        o->cq->uses++;
        o->umem->uses++;
        o->pd->uses++;
    }
    return wrong;
}

/* Changes one bit of a command, if the test asks for that: FAKE_FLIP is the opcode and the bit, as "500:43". */
static void copy_command(uint8_t *to, const void *in, size_t bytes)
{
    const char *flip = getenv("FAKE_FLIP");
    memcpy(to, in, bytes);
    if (!flip || strtoul(flip, NULL, 16) != fake_opcode(in)) return;
    const size_t bit = strtoul(strchr(flip, ':') + 1, NULL, 10);
    if (bit < bytes * 8) to[bit / 8] ^= (uint8_t)(0x80 >> bit % 8);
}

struct mlx5dv_devx_obj *mlx5dv_devx_obj_create(struct ibv_context *context, const void *in, size_t in_bytes, void *out,
                                               size_t out_bytes)
{
    uint8_t command[512];
    if (in_bytes > sizeof command || out_bytes != 16) die("a command of another size");
    errno = EAGAIN;
    if (fake_is_busy()) return NULL;
    copy_command(command, in, in_bytes);
    struct mlx5dv_devx_obj *o = checked(calloc(1, sizeof *o));
    o->context = (fake_context *)context;
    pthread_mutex_lock(&lock);
    const char *wrong = make_object(o, command, in_bytes);
    if (wrong) {
        errno = fake_reject(fake_opcode(in) == 0x400 ? "CREATE_CQ" : "CREATE_QP", wrong);
        fake_answer(out, out_bytes, 0x5678, 0);
        free(o);
        o = NULL;
    } else {
        o->number = new_number();
        objects[place_of((void *const *)objects, NULL)] = o;
        o->context->objects++;
        fake_answer(out, out_bytes, 0, o->number);
    }
    pthread_mutex_unlock(&lock);
    return o;
}

int mlx5dv_devx_obj_destroy(struct mlx5dv_devx_obj *o)
{
    pthread_mutex_lock(&lock);
    objects[place_of((void *const *)objects, o)] = NULL;
    if (o->is_cq) {
        if (o->uses) die("a completion queue was destroyed while its queue pair exists");
    } else {
        nic_remove_queue(device, 0, o->number);
        o->cq->uses--;
        o->pd->uses--;
        o->uar->queues--;
    }
    o->umem->uses--;
    o->context->objects--;
    pthread_mutex_unlock(&lock);
    free(o);
    return 0;
}

/* ---- steps of a queue pair --------------------------------------------------------------------------------------- */

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* The address must be that of a port of the peer's device; the peer's own port, if that is known already. */
static const char *check_address(const struct mlx5dv_devx_obj *o, const struct mlx5dv_devx_obj *peer,
                                 const fake_step_command *step)
{
    const bool ethernet = !fake_is_infiniband();
    uint8_t own[16], gid[16], mac[6];
    uint32_t port = peer->port ? peer->port : o->port;
    fake_gid(peer->context, port, gid);
    fake_gid(o->context, o->port, own);
    if (step->has_grh != (ethernet || memcmp(gid, own, 8) != 0)) return "grh";
    if (step->has_grh && memcmp(gid, step->gid, sizeof gid) != 0) return "gid";
    if (step->has_grh && step->gid_index != (ethernet ? FAKE_GID_INDEX : 0)) return "gid_index";
    fake_mac(gid, mac);
    if (ethernet && memcmp(mac, step->mac, sizeof mac) != 0) return "mac";
    if (!ethernet && step->lid != fake_lid(peer->context, port)) return "lid";
    const char *most = getenv("EXPAR_GDA_MTU");
    const uint32_t limit = most ? (uint32_t)__builtin_ctz((unsigned)strtoul(most, NULL, 10)) - 7 : 5;
    return step->mtu != smaller(limit, smaller(fake_mtu(port), fake_mtu(o->port))) ? "mtu" : NULL;
}

static const char *take_step(struct mlx5dv_devx_obj *o, const fake_step_command *step)
{
    struct mlx5dv_devx_obj *peer = find_object(false, step->opcode == 0x503 ? step->peer : o->peer);
    if (step->qpn != o->number) return "qpn";
    switch (step->opcode) {
    case 0x502:
        if (o->state != RESET || step->port < 1 || step->port > fake_ports()) return "port";
        o->port = step->port;
        o->state = INIT;
        return NULL;
    case 0x503:
        if (o->state != INIT) return "state";
        if (step->port != o->port) return "port";
        if (!peer && !fake_wire_is_on()) return "peer";
        o->peer = step->peer;
        o->state = RECEIVES;
        return !peer ? NULL : check_address(o, peer, step);
    case 0x504:
        if (o->state != RECEIVES) return "state";
        if (peer && peer->state >= RECEIVES && peer->peer != o->number) return "peer";
        o->state = SENDS;
        start_queue(o);
        return NULL;
    default:
        nic_remove_queue(device, 0, o->number);
        o->state = FAILED;
        return NULL;
    }
}

static bool step_fails(uint32_t opcode)
{
    return (opcode == 0x502 && fake_is("rst2init")) || (opcode == 0x503 && fake_is("init2rtr")) ||
           (opcode == 0x504 && fake_is("rtr2rts"));
}

int mlx5dv_devx_obj_modify(struct mlx5dv_devx_obj *o, const void *in, size_t in_bytes, void *out, size_t out_bytes)
{
    uint8_t command[512];
    fake_step_command step = {0};
    if (in_bytes > sizeof command || out_bytes != 16) die("a command of another size");
    if (fake_is_busy()) return EAGAIN;
    copy_command(command, in, in_bytes);
    pthread_mutex_lock(&lock);
    const char *wrong = fake_read_step(command, in_bytes, !fake_is_infiniband(), &step);
    if (!wrong && (step_fails(step.opcode) || is_busy_inside())) wrong = "everything";
    if (!wrong) wrong = take_step(o, &step);
    fake_answer(out, out_bytes, wrong ? 0x5678 : 0, 0);
    pthread_mutex_unlock(&lock);
    return wrong ? fake_reject("a change of a queue pair", wrong) : 0;
}
