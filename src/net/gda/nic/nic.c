/* SPDX-License-Identifier: Apache-2.0 */
/* The queues of the software NIC: doorbells are looked at, requests are carried out in order, completions are written.
   */
#include "net/gda/nic/parts.h"

#include <endian.h>
#include <infiniband/mlx5dv.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_BLOCKS    32768
#define IDLE_TURNS     32                           /* turns without an event before the thread sleeps between them */
#define IDLE_NS        20000                        /* how long it sleeps the first time; then longer */
#define REGISTER_ZEROS UINT64_C(0xff000000ff0000ff) /* bytes of the register that are 0 */
#define REQUESTS_TURN  16                           /* of one queue, before others have their turn */

struct nic {
    /* Held by a turn of the device, and by those who add or remove memory and queues. */
    pthread_mutex_t lock;
    nic_table table;
    nic_pair *pairs;
    size_t num_pairs, space;
    nic_counts counts;
    pthread_t thread;
    bool has_thread;
    int64_t spin_ns;
    /* Set by nic_close, read by the thread; it orders nothing. */
    _Atomic bool ends;
    /* Set by nic_hold, read by turns. */
    _Atomic bool held;
};

/* ---- completions ------------------------------------------------------------------------------------------------- */

typedef union entry {
    struct mlx5_cqe64 cqe;
    struct mlx5_err_cqe error;
    uint32_t words[NIC_CQE_WORDS];
} entry;

/* Reads a word of a queue. Returns false: it is out of reach. */
static bool word_read(nic_window *window, const _Atomic uint32_t *at, uint32_t *word)
{
    if (window) return window->read(window, word, (const void *)at, sizeof *word);
    *word = atomic_load_explicit(at, memory_order_acquire);
    return true;
}

/* Stores the last word after the others: it says that the entry is valid. Nobody learns of an entry out of reach. */
static void entry_publish(nic_window *window, _Atomic uint32_t *cqe, const entry *e)
{
    const size_t before = sizeof e->words - sizeof *e->words;
    if (window) {
        if (window->write(window, (void *)cqe, e->words, before))
            window->write(window, (void *)&cqe[NIC_CQE_WORDS - 1], &e->words[NIC_CQE_WORDS - 1], sizeof *e->words);
        return;
    }
    for (int i = 0; i < NIC_CQE_WORDS - 1; i++)
        atomic_store_explicit(&cqe[i], e->words[i], memory_order_relaxed);
    atomic_store_explicit(&cqe[NIC_CQE_WORDS - 1], e->words[NIC_CQE_WORDS - 1], memory_order_release);
}

/* Returns where the next completion goes; NULL where the queue of completions is full. */
static _Atomic uint32_t *next_entry(nic *n, nic_pair *pair, uint8_t *owner)
{
    const nic_queue *q = &pair->plan;
    *owner = 0;
    uint32_t read;
    if (q->collapsed) return q->cqes;
    if (!word_read(q->window, q->cq_record, &read) ||
        (((uint32_t)pair->cq_count - be32toh(read)) & 0xffffff) >= q->cq_entries) {
        n->counts.overruns++;
        return NULL;
    }
    *owner = pair->cq_count / q->cq_entries & 1;
    return q->cqes + (pair->cq_count & (q->cq_entries - 1)) * NIC_CQE_WORDS;
}

static void write_entry(nic *n, nic_pair *pair, uint64_t index, uint8_t cqe_opcode, nic_verdict verdict, uint8_t opcode)
{
    uint8_t owner;
    _Atomic uint32_t *to = next_entry(n, pair, &owner);
    entry e = {0};
    nic_deliver(&pair->reads);
    nic_deliver(&pair->rerouted);
    if (!to) {
        pair->failed = true;
        return;
    }
    e.cqe.sop_drop_qpn = htobe32((uint32_t)opcode << 24 | pair->plan.qpn);
    e.cqe.wqe_counter = htobe16((uint16_t)index);
    e.cqe.op_own = (uint8_t)(cqe_opcode << 4 | owner);
    if (verdict.syndrome) {
        e.error.syndrome = verdict.syndrome;
        e.error.vendor_err_synd = verdict.vendor;
    } else {
        e.cqe.timestamp = htobe64(pair->cq_count + 1);
    }
    entry_publish(pair->plan.window, to, &e);
    pair->cq_count++;
    n->counts.completions++;
    n->counts.busy_ns += (uint64_t)(clock_ns() - pair->rung_ns);
}

static void release_held(nic *n, nic_pair *pair)
{
    if (!pair->holds) return;
    pair->holds = false;
    write_entry(n, pair, pair->held_index, MLX5_CQE_REQ, (nic_verdict){0}, pair->held_opcode);
}

/* Reports a request that has succeeded, now, or by the CQE of a later one. */
static void pair_report(nic *n, nic_pair *pair, uint64_t index, uint8_t opcode)
{
    pair->holds = true;
    pair->held_index = index;
    pair->held_opcode = opcode;
    if (!nic_chance(&n->table, n->table.faults.coalesce_one_in)) release_held(n, pair);
}

/* The queue has failed. Requests that come later are flushed. */
static void fail_pair(nic *n, nic_pair *pair, nic_verdict verdict, uint8_t opcode)
{
    release_held(n, pair);
    pair->failed = true;
    write_entry(n, pair, pair->next, MLX5_CQE_REQ_ERR, verdict, opcode);
    n->counts.errors++;
}

/* ---- receives ---------------------------------------------------------------------------------------------------- */

static nic_pair *find_pair(nic *n, uint32_t port, uint32_t qpn)
{
    for (size_t i = 0; i < n->num_pairs; i++)
        if (n->pairs[i].plan.port == port && n->pairs[i].plan.qpn == qpn) return &n->pairs[i];
    return NULL;
}

static bool has_receive(nic_pair *pair)
{
    const nic_queue *q = &pair->plan;
    uint32_t posted;
    if (!q->num_receives || !word_read(q->record_window, &q->record[0], &posted)) return false;
    return ((be32toh(posted) - (uint32_t)pair->receives_taken) & 0xffff) != 0;
}

/* A write with immediate takes a receive request of the peer, and tells it the immediate and the length. */
static void take_receive(nic_pair *pair, const nic_request *r)
{
    const nic_queue *q = &pair->plan;
    entry e = {0};
    e.cqe.imm_inval_pkey = r->immediate;
    e.cqe.byte_cnt = htobe32(r->bytes);
    e.cqe.sop_drop_qpn = htobe32(q->qpn);
    e.cqe.wqe_counter = htobe16((uint16_t)pair->receives_taken);
    e.cqe.op_own = (uint8_t)(MLX5_CQE_RESP_WR_IMM << 4 | (pair->receive_cq_count / q->receive_cq_entries & 1));
    entry_publish(NULL, q->receive_cqes + (pair->receive_cq_count & (q->receive_cq_entries - 1)) * NIC_CQE_WORDS, &e);
    pair->receives_taken++;
    pair->receive_cq_count++;
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

/* Returns true if the request at `next` is not to be carried out in this turn: it is delayed, lost, or answered in
   vain. */
static bool is_put_off(nic *n, nic_pair *pair)
{
    const nic_faults *f = &n->table.faults;
    if (!pair->is_waiting && f->delay_turns) {
        pair->is_waiting = true;
        pair->wait_turns = nic_random(&n->table, f->delay_turns + 1);
    }
    if (pair->wait_turns) {
        pair->wait_turns--;
        return true;
    }
    if (!nic_chance(&n->table, f->drop_one_in)) return false;
    n->counts.retries++;
    return true;
}

static void move_on(nic_pair *pair, uint32_t blocks)
{
    pair->next += blocks;
    pair->is_waiting = false;
    pair->attempts = 0;
    pair->answered = false;
}

/* Carries out one request that was decoded. Returns false if it has to be tried again. */
static bool pair_carry_out(nic *n, nic_pair *pair, const nic_request *r)
{
    const bool immediate = r->opcode == MLX5_OPCODE_RDMA_WRITE_IMM;
    nic_pair *peer = immediate ? find_pair(n, pair->plan.peer_port, pair->plan.peer_qpn) : NULL;
    if (immediate && (!peer || !has_receive(peer))) {
        n->counts.retries++;
        if (pair->attempts++ < n->table.faults.rnr_retries) return false;
        fail_pair(n, pair, (nic_verdict){MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR, NIC_NO_RECEIVE}, r->opcode);
    } else {
        const nic_verdict verdict = nic_perform(&n->table, pair, r);
        if (!verdict.syndrome && r->opcode != MLX5_OPCODE_RDMA_WRITE && !immediate &&
            nic_chance(&n->table, n->table.faults.lose_answer_one_in)) {
            n->counts.retries++; /* a write that comes twice is known by its number, and only answered again */
            return false;
        }
        if (verdict.syndrome)
            fail_pair(n, pair, verdict, r->opcode);
        else if (immediate)
            take_receive(peer, r);
        if (!verdict.syndrome && nic_reports(r)) pair_report(n, pair, pair->next, r->opcode);
    }
    n->counts.requests++;
    move_on(pair, r->blocks);
    return true;
}

/* Returns true if a request came to its end. */
static bool do_request(nic *n, nic_pair *pair)
{
    nic_request r;
    if (pair->failed) {
        write_entry(n, pair, pair->next, MLX5_CQE_REQ_ERR, (nic_verdict){MLX5_CQE_SYNDROME_WR_FLUSH_ERR, 0},
                    MLX5_OPCODE_NOP);
        n->counts.flushed++;
        move_on(pair, 1);
        return true;
    }
    if (is_put_off(n, pair)) return false;
    const nic_verdict verdict = nic_decode(&pair->plan, pair->next, pair->end, &r);
    if (!verdict.syndrome) return pair_carry_out(n, pair, &r);
    fail_pair(n, pair, verdict, r.opcode);
    move_on(pair, 1);
    return true;
}

/* ---- doorbells --------------------------------------------------------------------------------------------------- */

/* Reads how far requests go, if the register was written. */
static void look_at_doorbell(nic *n, nic_pair *pair)
{
    const nic_queue *q = &pair->plan;
    const uint64_t rung = atomic_exchange_explicit(q->doorbell, 0, memory_order_acq_rel);
    if (!rung) return;
    n->counts.rings++;
    if (pair->next == pair->end) pair->rung_ns = clock_ns();
    if (be32toh((uint32_t)(rung >> 32)) >> 8 != q->qpn || rung & REGISTER_ZEROS) {
        n->counts.bad_rings++;
        return;
    }
    uint32_t word;
    const uint32_t record = word_read(q->record_window, &q->record[1], &word) ? be32toh(word) : UINT32_MAX;
    const uint64_t end = pair->next + ((record - (uint32_t)pair->next) & 0xffff);
    if (record > 0xffff || end - pair->next > q->depth) {
        n->counts.bad_rings++;
        if (!pair->failed)
            fail_pair(n, pair, (nic_verdict){MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, NIC_WRONG_RECORD}, MLX5_OPCODE_NOP);
        return;
    }
    pair->end = end;
}

static bool pair_serve(nic *n, nic_pair *pair)
{
    const uint64_t before = pair->next, known = pair->end;
    bool busy = pair->writes != NULL || pair->rerouted != NULL;
    if (pair->next == pair->end) { /* they were late by a turn at least */
        nic_deliver(&pair->writes);
        nic_deliver(&pair->rerouted);
    }
    look_at_doorbell(n, pair);
    for (int i = 0; i < REQUESTS_TURN && pair->next != pair->end; i++)
        if (!do_request(n, pair)) break;
    busy |= pair->next != before || pair->end != known || pair->next != pair->end;
    if (pair->next == pair->end && (pair->holds || pair->reads)) {
        release_held(n, pair);
        nic_deliver(&pair->reads);
        busy = true;
    }
    return busy;
}

bool nic_turn(nic *n)
{
    bool busy = false;
    if (atomic_load_explicit(&n->held, memory_order_relaxed)) return false;
    pthread_mutex_lock(&n->lock);
    const size_t first = n->num_pairs ? nic_random(&n->table, (uint32_t)n->num_pairs) : 0;
    for (size_t i = 0; i < n->num_pairs; i++)
        busy |= pair_serve(n, &n->pairs[(first + i) % n->num_pairs]);
    pthread_mutex_unlock(&n->lock);
    return busy;
}

/* ---- the device -------------------------------------------------------------------------------------------------- */

static bool nic_spins(const nic *n, uint32_t idle, int64_t *idle_since_ns)
{
    if (idle == 1) *idle_since_ns = clock_ns();
    return idle <= IDLE_TURNS || clock_ns() - *idle_since_ns < n->spin_ns;
}

static void *nic_run(void *context)
{
    enum { MOST_NAPS = 16 }; /* after which a sleep is no longer than the one before */
    nic *n = context;
    uint32_t idle = 0, naps = 0;
    int64_t idle_since_ns = 0;
    while (!atomic_load_explicit(&n->ends, memory_order_relaxed)) {
        idle = nic_turn(n) ? 0 : idle + 1;
        if (idle == 0 || nic_spins(n, idle, &idle_since_ns)) {
            naps = 0;
            sched_yield();
        } else {
            naps += naps < MOST_NAPS;
            nanosleep(&(struct timespec){.tv_nsec = IDLE_NS * (long)naps}, NULL);
        }
    }
    return NULL;
}

expar_status nic_open(const nic_faults *faults, nic **out)
{
    nic *n = calloc(1, sizeof *n);
    if (!n) return error_set(EXPAR_ERR_MEMORY, "software NIC: no memory");
    n->table.faults = *faults;
    n->table.random = faults->seed;
    pthread_mutex_init(&n->lock, NULL);
    *out = n;
    return EXPAR_OK;
}

expar_status nic_start(nic *n, int64_t spin_ns)
{
    n->spin_ns = spin_ns;
    if (pthread_create(&n->thread, NULL, nic_run, n) != 0) return error_errno("software NIC: no thread");
    n->has_thread = true;
    return EXPAR_OK;
}

void nic_close(nic *n)
{
    atomic_store_explicit(&n->ends, true, memory_order_relaxed);
    if (n->has_thread) pthread_join(n->thread, NULL);
    for (size_t i = 0; i < n->num_pairs; i++) {
        nic_deliver(&n->pairs[i].reads);
        nic_deliver(&n->pairs[i].writes);
        nic_deliver(&n->pairs[i].rerouted);
    }
    pthread_mutex_destroy(&n->lock);
    free(n->table.list);
    free(n->table.lost);
    free(n->pairs);
    free(n);
}

/* Makes space for one more element. Returns the array, or NULL where there is no memory; then the old one stays. */
static void *grown(void *array, size_t count, size_t *space, size_t bytes)
{
    if (count < *space) return array;
    const size_t wanted = *space ? 2 * *space : 8;
    void *larger = realloc(array, wanted * bytes);
    if (larger) *space = wanted;
    return larger;
}

static expar_status nic_no_memory(const char *what)
{
    return error_set(EXPAR_ERR_MEMORY, "software NIC: no memory for %s", what);
}

static expar_status check_memory(nic *n, const nic_memory *memory)
{
    uint8_t fault;
    unsigned has;
    if (!memory->base || !memory->bytes || memory->address + memory->bytes < memory->address)
        return error_set(EXPAR_ERR_ARGUMENT, "software NIC: memory of %llu bytes at %p, expected some",
                         (unsigned long long)memory->bytes, memory->base);
    nic_find(&n->table, memory->port, memory->key, memory->address, 0, 0, &fault, &has);
    if (fault == NIC_WRONG_KEY) return EXPAR_OK;
    return error_set(EXPAR_ERR_ARGUMENT, "software NIC: key 0x%x of port %u is taken", memory->key, memory->port);
}

expar_status nic_add_memory(nic *n, const nic_memory *memory)
{
    pthread_mutex_lock(&n->lock);
    expar_status status = check_memory(n, memory);
    nic_memory *list = NULL;
    if (status == EXPAR_OK) {
        list = grown(n->table.list, n->table.count, &n->table.space, sizeof *list);
        if (!list) status = nic_no_memory("memory");
    }
    if (list) {
        n->table.list = list;
        list[n->table.count++] = *memory;
    }
    pthread_mutex_unlock(&n->lock);
    return status;
}

void nic_remove_memory(nic *n, uint32_t port, uint32_t key)
{
    pthread_mutex_lock(&n->lock);
    for (size_t i = 0; i < n->table.count; i++)
        if (n->table.list[i].port == port && n->table.list[i].key == key)
            n->table.list[i--] = n->table.list[--n->table.count];
    pthread_mutex_unlock(&n->lock);
}

static bool nic_is_power(uint32_t value)
{
    return value && !(value & (value - 1));
}

static expar_status check_queue(nic *n, const nic_queue *q)
{
    if (!nic_is_power(q->depth) || q->depth > MOST_BLOCKS)
        return error_set(EXPAR_ERR_ARGUMENT, "software NIC: depth %u, expected a power of two up to %d", q->depth,
                         MOST_BLOCKS);
    if (!nic_is_power(q->cq_entries) || q->cq_entries > MOST_BLOCKS)
        return error_set(EXPAR_ERR_ARGUMENT, "software NIC: %u completion entries, expected a power of two up to %d",
                         q->cq_entries, MOST_BLOCKS);
    if (q->num_receives && (!nic_is_power(q->num_receives) || !nic_is_power(q->receive_cq_entries)))
        return error_set(EXPAR_ERR_ARGUMENT, "software NIC: %u receives with %u entries, expected powers of two",
                         q->num_receives, q->receive_cq_entries);
    if (!q->qpn || q->qpn >> 24 || find_pair(n, q->port, q->qpn))
        return error_set(EXPAR_ERR_ARGUMENT, "software NIC: queue 0x%x of port %u, expected a new one of 24 bits",
                         q->qpn, q->port);
    if (!q->blocks || !q->record || !q->doorbell || !q->cqes || (!q->collapsed && !q->cq_record))
        return error_set(EXPAR_ERR_NULL, "software NIC: queue 0x%x lacks an address", q->qpn);
    return EXPAR_OK;
}

expar_status nic_add_queue(nic *n, const nic_queue *queue)
{
    pthread_mutex_lock(&n->lock);
    expar_status status = check_queue(n, queue);
    nic_pair *pairs = NULL;
    if (status == EXPAR_OK) {
        pairs = grown(n->pairs, n->num_pairs, &n->space, sizeof *pairs);
        if (!pairs) status = nic_no_memory("a queue");
    }
    if (pairs) {
        n->pairs = pairs;
        pairs[n->num_pairs++] = (nic_pair){.plan = *queue, .next = queue->first, .end = queue->first};
    }
    pthread_mutex_unlock(&n->lock);
    return status;
}

void nic_remove_queue(nic *n, uint32_t port, uint32_t qpn)
{
    pthread_mutex_lock(&n->lock);
    nic_pair *pair = find_pair(n, port, qpn);
    if (pair) {
        nic_drop(&pair->reads);
        nic_drop(&pair->writes);
        nic_drop(&pair->rerouted);
        *pair = n->pairs[--n->num_pairs];
    }
    pthread_mutex_unlock(&n->lock);
}

void nic_lose_port(nic *n, uint32_t port)
{
    pthread_mutex_lock(&n->lock);
    uint32_t *lost = realloc(n->table.lost, (n->table.num_lost + 1) * sizeof *lost);
    if (lost) {
        n->table.lost = lost;
        lost[n->table.num_lost++] = port;
    }
    pthread_mutex_unlock(&n->lock);
}

void nic_hold(nic *n, bool held)
{
    atomic_store_explicit(&n->held, held, memory_order_relaxed);
}

nic_counts nic_counted(nic *n)
{
    pthread_mutex_lock(&n->lock);
    const nic_counts counts = n->counts;
    pthread_mutex_unlock(&n->lock);
    return counts;
}
