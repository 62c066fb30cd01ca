/* SPDX-License-Identifier: Apache-2.0 */
/* The owner's side of device memory: a thread that carries out the requests of other ranks. It never waits for a rank:
 * if an answer cannot leave yet, it serves the others meanwhile. It sleeps on the rank's doorbell, as waits do. */
#include "base/knobs.h"
#include "net/p2p/access.h"
#include "shmem/copies/parts.h"
#include "shmem/doorbell.h"

#include <sched.h>
#include <signal.h>
#include <string.h>

/* ---- carrying out ------------------------------------------------------------------------------------------------ */

/* Reads the word, computes its new value, and writes it. The owner's lock is held. */
static expar_status change_word(copies *self, uint64_t offset, uint64_t bytes, const transport_request *change,
                                uint64_t *former)
{
    uint64_t unused;
    mem_lane *lane = mem_copier_own_lane(self->copier);
    const mem_side word = copies_own(self, offset), piece = mem_lane_piece(lane, 0, &unused);
    const bool only_sets = change->op == TRANSPORT_SET && !former;
    _Alignas(8) uint64_t value = 0;
    expar_status status = only_sets ? EXPAR_OK : mem_lane_copy(lane, piece, word, bytes);
    if (status != EXPAR_OK) return status;
    if (!only_sets) memcpy(&value, piece.at, bytes);
    const uint64_t before = p2p_change_word(&value, bytes, change->op, change->operand, change->compare);
    if (change->op != TRANSPORT_FETCH) {
        memcpy(piece.at, &value, bytes);
        status = mem_lane_copy(lane, word, piece, bytes);
    }
    if (status == EXPAR_OK && former) *former = before;
    return status;
}

expar_status owner_change(copies *self, uint64_t offset, uint64_t bytes, const transport_request *change,
                          uint64_t *former)
{
    pthread_mutex_lock(&self->owner_lock);
    expar_status status = change_word(self, offset, bytes, change, former);
    pthread_mutex_unlock(&self->owner_lock);
    return status;
}

static expar_status copy_data(copies *self, mem_side dest, mem_side source, uint64_t bytes)
{
    pthread_mutex_lock(&self->owner_lock);
    expar_status status = mem_lane_copy(mem_copier_own_lane(self->copier), dest, source, bytes);
    pthread_mutex_unlock(&self->owner_lock);
    return status;
}

/* Checks what a request says: nothing else protects this rank's memory from a peer that has gone wrong. */
static bool is_sound_request(const copies *self, const mail_head *head)
{
    const bool word = head->kind == MAIL_CHANGE;
    if (word && ((head->bytes != 4 && head->bytes != 8) || head->offset % head->bytes != 0 || head->op > TRANSPORT_XOR))
        return false;
    return head->kind >= MAIL_PUT && head->kind <= MAIL_CHANGE && head->bytes <= mail_most(self) &&
           device_heap_serves(self->device, head->offset, head->bytes);
}

static expar_status serve_change(copies *self, const mail_head *request, mail_head *answer)
{
    const transport_request change = {
        .op = (transport_atomic_op)request->op, .operand = request->operand, .compare = request->compare};
    return owner_change(self, request->offset, request->bytes, &change, &answer->operand);
}

/* Carries out a request, and writes all of its answer but the flag. */
static void owner_carry_out(copies *self, mail_head *request, mail_head *answer)
{
    expar_status status = EXPAR_ERR_ADDRESS;
    *answer = (mail_head){.kind = request->kind, .bytes = request->bytes};
    if (is_sound_request(self, request)) {
        const mem_side place = copies_own(self, request->offset);
        if (request->kind == MAIL_PUT)
            status = copy_data(self, place, mail_data(request, request->bytes), request->bytes);
        else if (request->kind == MAIL_GET)
            status = copy_data(self, mail_data(answer, request->bytes), place, request->bytes);
        else
            status = serve_change(self, request, answer);
        if (status != EXPAR_OK) LOG(LOG_WARN, "a request for device memory failed: %s", expar_last_error());
    } else {
        answer->bytes = 0;
    }
    answer->status = (int32_t)status;
    if (status == EXPAR_OK && request->kind != MAIL_GET) sym_ring(self->sym, self->sym->rank);
}

/* ---- answering --------------------------------------------------------------------------------------------------- */

static bool is_gone(const copies *self, int32_t rank)
{
    return atomic_load_explicit(&self->sym->gone[rank], memory_order_acquire) != 0;
}

/* Returns false if the network has no space now. */
static bool send_answer(copies *self, int32_t rank, uint64_t number)
{
    transport *via = mail_carrier(self, rank);
    const transport_request message = mail_message(self, rank, MAIL_OWN_ANSWERS, MAIL_ANSWERS, number);
    expar_status status = via->ops->post(via, &message, &self->clients[rank].batches[number % MAIL_SLOTS]);
    if (status == EXPAR_ERR_BUSY) return false;
    if (status == EXPAR_OK) sym_ring(self->sym, rank);
    return true;
}

/* Sends answers again that the network has lost: the rank waits for them. */
static void repair_answers(copies *self, int32_t rank)
{
    mail_client *client = &self->clients[rank];
    for (uint64_t back = 0; back < MAIL_SLOTS && back < client->answered; back++) {
        const uint64_t number = client->answered - back;
        transport_batch *batch = &client->batches[number % MAIL_SLOTS];
        if (atomic_load_explicit(&batch->left, memory_order_acquire) > 0 ||
            atomic_load_explicit(&batch->status, memory_order_relaxed) == EXPAR_OK)
            continue;
        atomic_store_explicit(&batch->status, EXPAR_OK, memory_order_relaxed);
        send_answer(self, rank, number);
    }
}

static bool answer_next(copies *self, int32_t rank)
{
    mail_client *client = &self->clients[rank];
    if (!send_answer(self, rank, client->answered + 1)) return false;
    client->answered++;
    return true;
}

/* Returns whether it did something. */
static bool serve_rank(copies *self, int32_t rank)
{
    mail_client *client = &self->clients[rank];
    const uint64_t number = client->served + 1;
    if (client->served > client->answered) return answer_next(self, rank);
    repair_answers(self, rank);
    /* The image of the answer before last may still be read. */
    if (atomic_load_explicit(&client->batches[number % MAIL_SLOTS].left, memory_order_acquire) > 0) return false;
    const uint64_t slot = mail_slot(self, rank, MAIL_REQUESTS, number);
    if (!mail_arrived(self, slot, number)) return false;
    mail_head *answer = mail_head_at(self, mail_slot(self, rank, MAIL_OWN_ANSWERS, number));
    owner_carry_out(self, mail_head_at(self, slot), answer);
    atomic_store_explicit(&answer->flag, number << 32, memory_order_relaxed);
    client->served = number;
    answer_next(self, rank);
    return true;
}

static bool serve_all(copies *self)
{
    bool served = false;
    for (int32_t rank = 0; rank < self->sym->size; rank++)
        if (rank != self->sym->rank && mail_carrier(self, rank) && !is_gone(self, rank))
            served |= serve_rank(self, rank);
    return served;
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

static sym_doorbell *owner_doorbell(const copies *self)
{
    return &((sym_control *)self->sym->heap.base)->doorbell;
}

static bool owner_stops(const copies *self)
{
    return atomic_load_explicit(&self->stops, memory_order_acquire);
}

/* Requests ring. Those that a waiting thread brings by the network may not, so sleeps have limits. */
static void owner_sleep(copies *self, uint32_t sleeps)
{
    uint32_t rings;
    const int64_t most_ns = knob(KNOB_WAIT_MOST_SLEEP_NS);
    const int64_t limit_ns = sleeps < 6 ? knob(KNOB_WAIT_SLEEP_NS) << sleeps : most_ns;
    doorbell_arm(owner_doorbell(self), doorbell_range(0, 1), &rings);
    if (!owner_stops(self) && !serve_all(self))
        doorbell_sleep(owner_doorbell(self), rings, limit_ns < most_ns ? limit_ns : most_ns, self->sym->by_threads);
}

/* A rank that got an answer often has the next request at once, and waking up takes longer than looking. Returns
   whether something came. */
static bool owner_lingers(copies *self)
{
    const int64_t end_ns = clock_ns() + (self->sym->crowded ? 0 : self->sym->spin_ns);
    do {
        if (serve_all(self)) return true;
        sched_yield();
    } while (!owner_stops(self) && clock_ns() < end_ns);
    return false;
}

static void *owner_run(void *argument)
{
    copies *self = argument;
    log_set_rank(self->sym->rank);
    for (uint32_t sleeps = 0; !owner_stops(self); sleeps++) {
        if (serve_all(self)) {
            while (!owner_stops(self) && owner_lingers(self)) {
            }
            sleeps = 0;
        }
        owner_sleep(self, sleeps);
    }
    return NULL;
}

expar_status owner_start(copies *self)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    self->owner_runs = pthread_create(&self->owner, NULL, owner_run, self) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return self->owner_runs ? EXPAR_OK : error_set(EXPAR_ERR_SYSTEM, "the thread for device memory cannot be started");
}

void copies_wake(sym *symmetric)
{
    if (!atomic_load_explicit(&symmetric->copies, memory_order_relaxed)) return;
    doorbell_ring(&((sym_control *)symmetric->heap.base)->doorbell, symmetric->by_threads);
}

void owner_stop(copies *self)
{
    atomic_store_explicit(&self->stops, true, memory_order_release);
    doorbell_ring(owner_doorbell(self), self->sym->by_threads);
    if (self->owner_runs) pthread_join(self->owner, NULL);
    self->owner_runs = false;
}
