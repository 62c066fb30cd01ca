/* SPDX-License-Identifier: Apache-2.0 */
/* Operations leave: they are cut into pieces that lie in one extent, and passed to libfabric. */
#include "base/knobs.h"
#include "net/fabric/fabric.h"

#include <string.h>

/* One piece, ready to be posted. */
typedef struct piece {
    const transport_request *request;
    uint64_t done; /* bytes of the request before this piece */
    uint64_t bytes;
    bool staged;
} piece;

/* The places of a piece's bytes here and at the peer. Bytes sent ahead and staged bytes are one local place. */
typedef struct piece_places {
    struct iovec local[2];
    void *descriptors[2];
    struct fi_rma_iov remote[TRANSPORT_MOST_AHEAD + 1];
    size_t num_local, num_remote;
} piece_places;

static uint64_t remote_address(const fabric_extent *e, int32_t pe, uint64_t offset)
{
    return e->peers[pe].address + (offset - e->offset);
}

static size_t bytes_ahead(const transport_request *r)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < r->num_ahead; i++)
        bytes += r->ahead[i].bytes;
    return bytes;
}

/* Cuts the next piece of a put or get. A PE counts as silent if none of its pieces comes back within the time-out. So a
   piece is no larger than a slow network can move in that time. False: the heap has not grown there. */
static bool cut(const fabric *f, const transport_request *r, uint64_t done, piece *out)
{
    void *descriptor;
    const fabric_extent *e = fabric_extent_find(f, r->memory, r->offset + done);
    if (!e) return false;
    const uint64_t most = (uint64_t)knob(KNOB_FABRIC_PIECE_BYTES);
    uint64_t bytes = r->bytes - done, spare = e->bytes - (r->offset + done - e->offset);
    const uint8_t *local = r->kind == TRANSPORT_KIND_PUT ? r->source : r->dest;
    if (bytes > spare) bytes = spare;
    if (bytes > most) bytes = most;
    if (bytes > f->info->ep_attr->max_msg_size) bytes = f->info->ep_attr->max_msg_size;
    const size_t stage = FABRIC_STAGE_BYTES - bytes_ahead(r);
    bool staged = r->bytes <= stage || !fabric_descriptor(f, local + done, bytes, &descriptor);
    if (staged && bytes > stage) bytes = stage;
    *out = (piece){.request = r, .done = done, .bytes = bytes, .staged = staged};
    return true;
}

bool fabric_comes_in_order(const fabric *f, const transport_request *put)
{
    piece whole;
    return f->ascends && cut(f, put, 0, &whole) && whole.bytes == put->bytes;
}

static bool is_whole_there(const fabric *f, transport_memory memory, const transport_ahead *part)
{
    const fabric_extent *e = fabric_extent_find(f, memory, part->offset);
    return e && part->offset + part->bytes <= e->offset + e->bytes;
}

bool fabric_joins(const fabric *f, const transport_request *put)
{
    const struct fi_tx_attr *limits = f->info->tx_attr;
    const size_t ahead = bytes_ahead(put);
    bool joins = f->ascends && limits->iov_limit >= 2 && limits->rma_iov_limit > put->num_ahead;
    joins = joins && put->num_ahead <= TRANSPORT_MOST_AHEAD && ahead <= FABRIC_STAGE_BYTES / 2;
    for (uint32_t i = 0; i < put->num_ahead; i++)
        joins = joins && is_whole_there(f, put->memory, &put->ahead[i]);
    joins = joins && (!put->copies || put->bytes + ahead <= FABRIC_STAGE_BYTES);
    return joins && fabric_comes_in_order(f, put);
}

static void *staging_descriptor(const fabric_channel *c)
{
    return c->staging_mr ? fi_mr_desc(c->staging_mr) : NULL;
}

/* Counts an operation that libfabric has accepted. */
static ssize_t counted(ssize_t code, transport_count *count, uint64_t bytes)
{
    if (code != 0) return code;
    count->operations++;
    count->bytes += bytes;
    return code;
}

/* Such a put need not come back from the peer: operations that are posted after it also arrive after it. */
static bool put_leads(const fabric *f, const transport_request *r)
{
    return r->leads && !r->signals && f->ascends;
}

static void add_remote(const fabric *f, const transport_request *r, uint64_t offset, size_t bytes, piece_places *out)
{
    const fabric_extent *e = fabric_extent_find(f, r->memory, offset);
    out->remote[out->num_remote++] =
        (struct fi_rma_iov){.addr = remote_address(e, r->pe, offset), .len = bytes, .key = e->peers[r->pe].key};
}

/* Adds bytes of the stage; returns where they are. */
static uint8_t *add_staged(const fabric_channel *c, fabric_op *op, size_t bytes, piece_places *out)
{
    if (out->num_local == 0) {
        out->local[0] = (struct iovec){.iov_base = op->stage};
        out->descriptors[0] = staging_descriptor(c);
        out->num_local = 1;
    }
    uint8_t *at = op->stage + out->local[0].iov_len;
    out->local[0].iov_len += bytes;
    return at;
}

static void add_ahead(const fabric *f, const fabric_channel *c, fabric_op *op, const transport_request *r,
                      piece_places *out)
{
    for (uint32_t i = 0; i < r->num_ahead; i++) {
        memcpy(add_staged(c, op, r->ahead[i].bytes, out), r->ahead[i].source, r->ahead[i].bytes);
        add_remote(f, r, r->ahead[i].offset, r->ahead[i].bytes, out);
    }
}

static void add_piece(const fabric *f, const fabric_channel *c, fabric_op *op, const piece *p, piece_places *out)
{
    const transport_request *r = p->request;
    bool is_put = r->kind == TRANSPORT_KIND_PUT;
    union {
        const void *source;
        void *any; /* an iovec has no const */
    } local = {.source = (is_put ? (const uint8_t *)r->source : (const uint8_t *)r->dest) + p->done};
    add_remote(f, r, r->offset + p->done, p->bytes, out);
    if (p->staged) {
        uint8_t *stage = add_staged(c, op, p->bytes, out);
        if (is_put) memcpy(stage, local.source, p->bytes);
        if (!is_put) op->dest = local.any;
        op->bytes = p->bytes;
        return;
    }
    fabric_descriptor(f, local.source, p->bytes, &out->descriptors[out->num_local]);
    out->local[out->num_local++] = (struct iovec){.iov_base = local.any, .iov_len = p->bytes};
}

static ssize_t move(fabric *f, fabric_channel *c, fabric_op *op, const piece *p)
{
    const transport_request *r = p->request;
    bool is_put = r->kind == TRANSPORT_KIND_PUT;
    piece_places places = {0};
    add_ahead(f, c, op, r, &places);
    add_piece(f, c, op, p, &places);
    struct fi_msg_rma message = {.msg_iov = places.local,
                                 .desc = places.descriptors,
                                 .iov_count = places.num_local,
                                 .addr = c->addresses[r->pe],
                                 .rma_iov = places.remote,
                                 .rma_iov_count = places.num_remote,
                                 .context = &op->context};
    const uint64_t bytes = p->bytes + bytes_ahead(r);
    /* libfabric's tcp has its peer confirm even operations that are complete when transmitted. Small operations are not
       injected, although they would need no record then. Up to libfabric 1.17, rxm follows the context of operations
       that fail because a peer is gone, and injected ones have none. */
    const uint64_t when = op->leads ? FI_INJECT_COMPLETE : FI_DELIVERY_COMPLETE;
    return is_put ? counted(fi_writemsg(c->ep, &message, when | FI_COMPLETION), &c->traffic.puts, bytes)
                  : counted(fi_readmsg(c->ep, &message, FI_COMPLETION), &c->traffic.gets, bytes);
}

static const enum fi_op atomic_ops[] = {
    [TRANSPORT_FETCH] = FI_ATOMIC_READ,
    [TRANSPORT_SET] = FI_ATOMIC_WRITE,
    [TRANSPORT_SWAP] = FI_ATOMIC_WRITE,
    [TRANSPORT_COMPARE_SWAP] = FI_CSWAP,
    [TRANSPORT_ADD] = FI_SUM,
    [TRANSPORT_AND] = FI_BAND,
    [TRANSPORT_OR] = FI_BOR,
    [TRANSPORT_XOR] = FI_BXOR,
};

/* Places in the stage of an atomic. */
enum { OPERAND_AT = 0, COMPARE_AT = 16, RESULT_AT = 32 };

static void put_word(uint8_t *at, uint64_t value, size_t bytes)
{
    uint32_t low = (uint32_t)value;
    memcpy(at, bytes == 8 ? (const void *)&value : (const void *)&low, bytes);
}

/* A read of written bytes shows that they are delivered, because it does not pass the writes before it. */
static ssize_t confirm(fabric *f, fabric_channel *c, fabric_op *op)
{
    const fabric_extent *e = fabric_extent_find(f, op->last_memory, op->last_at);
    ssize_t code = fi_read(c->ep, op->stage, op->bytes, staging_descriptor(c), c->addresses[op->pe],
                           remote_address(e, op->pe, op->last_at), e->peers[op->pe].key, &op->context);
    return counted(code, &c->traffic.gets, op->bytes);
}

static void add_confirmation(fabric_op *op, const piece *p)
{
    op->confirms = true;
    op->bytes = p->bytes < sizeof(uint64_t) ? p->bytes : sizeof(uint64_t);
    op->last_memory = p->request->memory;
    op->last_at = p->request->offset + p->done + p->bytes - op->bytes;
}

/* All atomics fetch, because then their completion says that the target has performed them. */
static ssize_t change(fabric *f, fabric_channel *c, fabric_op *op, const transport_request *r)
{
    const fabric_extent *e = fabric_extent_find(f, r->memory, r->offset);
    enum fi_datatype type = r->bytes == 8 ? FI_UINT64 : FI_UINT32;
    uint64_t at = remote_address(e, r->pe, r->offset), key = e->peers[r->pe].key;
    void *descriptor = staging_descriptor(c);
    put_word(op->stage + OPERAND_AT, r->operand, r->bytes);
    put_word(op->stage + COMPARE_AT, r->compare, r->bytes);
    op->dest = r->dest;
    op->bytes = r->bytes;
    ssize_t code;
    if (r->op == TRANSPORT_COMPARE_SWAP)
        code = fi_compare_atomic(c->ep, op->stage + OPERAND_AT, 1, descriptor, op->stage + COMPARE_AT, descriptor,
                                 op->stage + RESULT_AT, descriptor, c->addresses[r->pe], at, key, type, FI_CSWAP,
                                 &op->context);
    else
        code = fi_fetch_atomic(c->ep, op->stage + OPERAND_AT, 1, descriptor, op->stage + RESULT_AT, descriptor,
                               c->addresses[r->pe], at, key, type, atomic_ops[r->op], &op->context);
    return counted(code, &c->traffic.atomics, r->bytes);
}

transport_request fabric_signal_of(const transport_request *put)
{
    return (transport_request){.kind = TRANSPORT_KIND_ATOMIC,
                               .pe = put->pe,
                               .memory = put->signal_memory,
                               .offset = put->signal_offset,
                               .bytes = sizeof(uint64_t),
                               .op = put->op,
                               .operand = put->operand};
}

static bool has_space(const fabric *f, const fabric_channel *c, int32_t pe)
{
    return c->unused && c->in_flight[pe] < f->most_in_flight;
}

static fabric_op *take_op(const fabric *f, fabric_channel *c, const transport_request *r, transport_batch *batch)
{
    fabric_op *op = c->unused;
    c->unused = op->next;
    c->in_flight[r->pe]++;
    op->pe = r->pe;
    op->batch = batch;
    op->dest = NULL;
    op->result_at = 0;
    op->late = false;
    op->leads = put_leads(f, r);
    op->confirms = false;
    op->signals = false;
    op->after = NULL;
    op->next = NULL;
    op->previous = c->newest;
    if (c->newest)
        c->newest->next = op;
    else
        c->oldest = op;
    c->newest = op;
    op->number = ++c->posted;
    atomic_fetch_add_explicit(&batch->left, 1, memory_order_relaxed);
    return op;
}

static void add_signal(fabric_op *op, const transport_request *put)
{
    op->signals = true;
    op->signal = fabric_signal_of(put);
}

/* Takes the record of the signal that follows a put in several pieces. False: there is no free record. */
static bool take_signal(const fabric *f, fabric_channel *c, fabric_sending *sending, transport_batch *batch)
{
    const transport_request *put = sending->request;
    if (!has_space(f, c, put->pe)) return false;
    sending->after = take_op(f, c, put, batch);
    add_signal(sending->after, put);
    sending->after->references = 1; /* held back by `sending` */
    sending->after->status = EXPAR_OK;
    return true;
}

static expar_status post_piece(fabric *f, fabric_channel *c, const piece *p, fabric_sending *sending,
                               transport_batch *batch)
{
    const transport_request *r = p->request;
    bool whole = p->bytes == r->bytes;
    if (r->signals && !whole && !sending->after && !take_signal(f, c, sending, batch)) return EXPAR_ERR_BUSY;
    if (!has_space(f, c, r->pe)) return EXPAR_ERR_BUSY;
    fabric_op *op = take_op(f, c, r, batch);
    if (r->signals && whole) add_signal(op, r);
    bool is_atomic = r->kind == TRANSPORT_KIND_ATOMIC;
    op->result_at = is_atomic ? RESULT_AT : 0;
    ssize_t code = is_atomic ? change(f, c, op, r) : move(f, c, op, p);
    if (code == 0) {
        if (r->kind == TRANSPORT_KIND_PUT && f->quirks->early) add_confirmation(op, p);
        op->after = sending->after;
        if (op->after) op->after->references++;
        return EXPAR_OK;
    }
    fabric_op_unlink(c, op);
    atomic_fetch_sub_explicit(&batch->left, 1, memory_order_relaxed);
    if (code == -FI_EAGAIN) return EXPAR_ERR_BUSY;
    sending->rejection = code;
    return EXPAR_ERR_PEER;
}

void fabric_sending_end(fabric *f, fabric_sending *sending, expar_status status)
{
    fabric_channel *c = fabric_channel_of(f, sending->request->pe);
    if (!sending->after) return;
    pthread_mutex_lock(&c->lock);
    /* The caller gets this failure here, so the batch does not get it as well. */
    if (status != EXPAR_OK) sending->after->signals = false;
    fabric_op_release(f, c, sending->after, EXPAR_OK);
    pthread_mutex_unlock(&c->lock);
    sending->after = NULL;
}

ssize_t fabric_post_rest(fabric *f, fabric_channel *c, fabric_op *op)
{
    bool confirms = op->confirms;
    if (!confirms) op->result_at = RESULT_AT;
    ssize_t code = confirms ? confirm(f, c, op) : change(f, c, op, &op->signal);
    if (code == 0 && confirms) op->confirms = false;
    if (code == 0 && !confirms) op->signals = false;
    return code;
}

int32_t fabric_full_of(fabric *f, int32_t pe)
{
    fabric_channel *c = fabric_channel_of(f, pe);
    pthread_mutex_lock(&c->lock);
    const fabric_op *op = c->unused || c->in_flight[pe] >= f->most_in_flight ? NULL : c->oldest;
    while (op && !op->batch)
        op = op->next;
    int32_t full_of = op ? op->pe : pe;
    pthread_mutex_unlock(&c->lock);
    return full_of;
}

/* code: libfabric's; 0: an earlier operation found out. */
static expar_status unreachable(fabric *f, const transport_request *r, ssize_t code)
{
    static const char *const names[] = {
        [TRANSPORT_KIND_PUT] = "put", [TRANSPORT_KIND_GET] = "get", [TRANSPORT_KIND_ATOMIC] = "atomic"};
    char where[FABRIC_ADDRESS_TEXT];
    expar_status status = fabric_explain(f, r->pe, names[r->kind]);
    if (status != EXPAR_OK) return status;
    if (code == 0)
        return fabric_peer_error(f, r->pe, "rank %d cannot be reached: an earlier operation to it failed", r->pe);
    fabric_address_text(f, r->pe, where);
    return fabric_peer_error(f, r->pe, "rank %d cannot be reached at %s: %s", r->pe, where,
                             f->library->strerror((int)-code));
}

expar_status fabric_post(fabric *f, fabric_sending *sending, transport_batch *batch)
{
    const transport_request *r = sending->request;
    fabric_channel *c = fabric_channel_of(f, r->pe);
    expar_status status = EXPAR_OK;
    if (!batch) batch = &f->plain;
    if (atomic_load_explicit(&f->lost[r->pe], memory_order_relaxed)) return unreachable(f, r, 0);
    pthread_mutex_lock(&c->lock);
    while (sending->done < r->bytes && status == EXPAR_OK) {
        piece p;
        if (!cut(f, r, sending->done, &p)) {
            status = fabric_serves(f, r->memory)
                         ? error_set(EXPAR_ERR_ADDRESS, "offset %llu of the symmetric heap has not been allocated",
                                     (unsigned long long)(r->offset + sending->done))
                         : transport_reject(&f->base, r->memory);
            break;
        }
        status = post_piece(f, c, &p, sending, batch);
        if (status == EXPAR_OK) sending->done += p.bytes;
    }
    pthread_mutex_unlock(&c->lock);
    if (status != EXPAR_ERR_PEER) return status;
    atomic_store_explicit(&f->lost[r->pe], true, memory_order_relaxed);
    return unreachable(f, r, sending->rejection);
}
