/* SPDX-License-Identifier: Apache-2.0 */
/* Operations in progress: each lane has a ring of them, in the order of their requests. The thread that holds the lock
 * ends those that are complete. */
#include "base/interrupt.h"
#include "base/knobs.h"
#include "net/gda/parts.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- the queues -------------------------------------------------------------------------------------------------- */

gda_plan gda_lane_plan(const gda *g)
{
    return (gda_plan){.depth = g->options.depth,
                      .cq_entries = g->options.depth,
                      .batch = g->options.batch,
                      .most = GDA_MOST,
                      .num_results = GDA_FLIGHTS,
                      .scope = GDA_SCOPE_SYSTEM,
                      .ringer = g->options.ringer,
                      .collapsed = true};
}

gda_lane *gda_lane_of(gda *g, int32_t pe, uint32_t number)
{
    return &g->lanes[(size_t)pe * g->options.queues_per_peer + number];
}

static expar_status gda_open_lane(gda *g, gda_lane *lane, const gda_plan *plan)
{
    gda_parts parts;
    lane->flights = calloc(GDA_FLIGHTS, sizeof *lane->flights);
    if (!lane->flights) return error_set(EXPAR_ERR_MEMORY, "gda: no memory for a queue to rank %d", lane->pe);
    expar_status status =
        g->device->ops->add_queue(g->device, plan, (uint32_t)(lane - g->lanes), lane->pe, &parts, &lane->address);
    if (status != EXPAR_OK) return status;
    parts.stop = &lane->stop;
    gda_queue_start(&lane->queue, plan, &parts, lane->address.qpn, lane->pe);
    return EXPAR_OK;
}

expar_status gda_lanes_open(gda *g)
{
    const gda_plan plan = gda_lane_plan(g);
    const uint32_t queues = g->options.queues_per_peer;
    expar_status status = gda_plan_check(&plan);
    g->num_lanes = g->size * (int32_t)queues;
    const size_t bytes = (size_t)g->num_lanes * sizeof *g->lanes;
    g->lanes = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!g->lanes)
        return error_set(EXPAR_ERR_MEMORY, "gda: no memory for %u queues to each of %d ranks", queues, g->size);
    memset(g->lanes, 0, bytes);
    for (int32_t i = 0; i < g->num_lanes && status == EXPAR_OK; i++) {
        g->lanes[i].pe = i / (int32_t)queues;
        status = gda_open_lane(g, &g->lanes[i], &plan);
    }
    return status;
}

/* Queue i of this rank to a peer and queue i of the peer to this rank are the ends of one connection. */
static expar_status connect_to(gda *g, expar_status own, const gda_address *mine, gda_address *theirs, uint32_t first)
{
    boot *ctl = g->site->boot;
    const boot_matter ready = {.what = "gda", .rejected = "cannot exchange addresses of queues"};
    expar_status status = boot_agree(ctl, &ready, own, NULL);
    if (status == EXPAR_OK) status = ctl->ops->alltoall(ctl, mine, theirs, g->options.queues_per_peer * sizeof *mine);
    if (status != EXPAR_OK) return status;
    for (int32_t i = 0; status == EXPAR_OK && i < g->num_lanes; i++)
        status = g->device->ops->connect(g->device, first + (uint32_t)i, g->lanes[i].pe, &theirs[i]);
    /* A peer's requests fail if this end is not connected. */
    const boot_matter connected = {.what = "gda", .rejected = "cannot connect its queues"};
    return boot_agree(ctl, &connected, status, NULL);
}

expar_status gda_connect_all(gda *g, const gda_address *(*address_of)(const void *of, int32_t i), const void *of,
                             uint32_t first)
{
    const size_t count = (size_t)g->num_lanes;
    gda_address *mine = calloc(count, sizeof *mine), *theirs = calloc(count, sizeof *theirs);
    expar_status status =
        mine && theirs ? EXPAR_OK : error_set(EXPAR_ERR_MEMORY, "gda: no memory for %zu addresses of queues", count);
    for (int32_t i = 0; status == EXPAR_OK && i < g->num_lanes; i++)
        mine[i] = *address_of(of, i);
    status = connect_to(g, status, mine, theirs, first);
    free(mine);
    free(theirs);
    return status;
}

static const gda_address *lane_address(const void *of, int32_t i)
{
    return &((const gda *)of)->lanes[i].address;
}

expar_status gda_lanes_connect(gda *g)
{
    return gda_connect_all(g, lane_address, g, 0);
}

void gda_lanes_close(gda *g)
{
    for (int32_t i = 0; g->lanes && i < g->num_lanes; i++) {
        gda_lane *lane = &g->lanes[i];
        for (; lane->ended != lane->begun; lane->ended++) {
            gda_flight *f = &lane->flights[lane->ended % GDA_FLIGHTS];
            g->device->ops->remove_memory(g->device, &f->memory);
        }
        free(lane->flights);
    }
    free(g->lanes);
}

/* ---- ends of operations ------------------------------------------------------------------------------------------ */

/* Says with a failure of the queue why the device is gone. */
static expar_status lane_add_reason(gda *g, uint64_t failure, const char *text)
{
    const bool is_gone = gda_failure_by(failure) == GDA_FAILED_BY_HOST &&
                         gda_failure_syndrome(failure) == GDA_DEVICE_IS_GONE && g->device->ops->check;
    expar_status status = is_gone ? g->device->ops->check(g->device) : EXPAR_OK;
    return status == EXPAR_OK ? error_set(EXPAR_ERR_PEER, "gda: %s", text) : error_prefix(status, "gda: %s", text);
}

expar_status gda_lane_error(gda *g, gda_lane *lane)
{
    char text[ERROR_TEXT_BYTES];
    const uint64_t failure = gda_error(&lane->queue);
    if (!failure) return EXPAR_OK;
    expar_status status = g->site->check(g->site->context, lane->pe, "gda");
    if (status != EXPAR_OK) return status;
    gda_failure_text(failure, lane->pe, text, sizeof text);
    return lane_add_reason(g, failure, text);
}

/* A request may fail because the peer has left, since another rank is lost. So the site looks for the cause, once for a
   PE: afterwards the site knows that the PE is out of reach. */
expar_status gda_explain(gda *g, int32_t pe, expar_status status)
{
    error_kept kept;
    gda_lane *first = gda_lane_of(g, pe, 0);
    pthread_mutex_lock(&g->lock);
    const bool is_known = first->is_failed;
    first->is_failed = true;
    pthread_mutex_unlock(&g->lock);
    if (is_known) return status;
    error_save(&kept);
    const expar_status cause = g->site->explain(g->site->context, pe, "gda");
    if (cause != EXPAR_OK) return cause;
    error_put_back(&kept);
    g->site->told(g->site->context, pe);
    return status;
}

static void store_result(gda_lane *lane, const gda_flight *f)
{
    const uint64_t old = gda_result(&lane->queue, f->result, f->result_bytes);
    if (f->dest && f->result_bytes == 8) *(uint64_t *)f->dest = old;
    if (f->dest && f->result_bytes == 4) *(uint32_t *)f->dest = (uint32_t)old;
    gda_give_results(&lane->queue, f->result, 1);
}

static void end_flight(gda *g, gda_lane *lane, bool failed)
{
    gda_flight *f = &lane->flights[lane->ended++ % GDA_FLIGHTS];
    /* The device must not touch the caller's memory any more. */
    g->device->ops->remove_memory(g->device, &f->memory);
    if (f->result_bytes && !failed) store_result(lane, f);
    if (f->back_bytes && !failed) memcpy(f->back, f->staged, f->back_bytes);
    gda_stage_give(g, f);
    if (failed) {
        atomic_store_explicit(&f->batch->pe, lane->pe, memory_order_relaxed);
        atomic_store_explicit(&f->batch->status, EXPAR_ERR_PEER, memory_order_relaxed);
    }
    atomic_fetch_sub_explicit(&f->batch->left, 1, memory_order_release);
}

static bool reap_lane(gda *g, gda_lane *lane)
{
    const uint64_t before = lane->ended;
    gda_state state = GDA_COMPLETE;
    while (lane->ended != lane->begun && state == GDA_COMPLETE) {
        state = gda_look(&lane->queue, lane->flights[lane->ended % GDA_FLIGHTS].end);
        if (state == GDA_COMPLETE) end_flight(g, lane, false);
    }
    while (state == GDA_FAILED && lane->ended != lane->begun)
        end_flight(g, lane, true);
    if (lane->ended != before || lane->ended == lane->begun) lane->patience = (transport_patience){0};
    return lane->ended != before;
}

bool gda_reap(gda *g)
{
    bool some = false;
    for (int32_t i = 0; i < g->num_lanes; i++)
        some |= reap_lane(g, &g->lanes[i]);
    return some;
}

/* ---- waits ------------------------------------------------------------------------------------------------------- */

/* Gives up the queue: its requests fail, and those who wait for them end. */
static void lane_give_up(gda *g, gda_lane *lane, uint32_t why)
{
    const uint64_t failure = gda_failure(GDA_FAILED_BY_HOST, why, 0, (uint32_t)gda_load(&lane->queue.cons_idx));
    gda_store_system(&lane->stop, failure);
    gda_remember(&lane->queue, failure);
    if (g->device->ops->stop && why != GDA_DEVICE_IS_GONE) g->device->ops->stop(g->device, (uint32_t)(lane - g->lanes));
}

void gda_watch_device(gda *g)
{
    error_kept kept;
    if (!g->device->ops->check) return;
    error_save(&kept);
    const bool is_gone = g->device->ops->check(g->device) != EXPAR_OK;
    if (is_gone && !g->device_is_gone) LOG(LOG_WARN, "gda: the device stopped answering: %s", expar_last_error());
    g->device_is_gone = is_gone;
    error_put_back(&kept);
    for (int32_t i = 0; is_gone && i < g->num_lanes; i++)
        if (g->lanes[i].begun != g->lanes[i].ended && !gda_error(&g->lanes[i].queue))
            lane_give_up(g, &g->lanes[i], GDA_DEVICE_IS_GONE);
}

/* Looks at peers for which something is in progress. */
static void look_at_peers(gda *g)
{
    gda_watch_device(g);
    for (int32_t i = 0; i < g->num_lanes; i++) {
        gda_lane *lane = &g->lanes[i];
        const int32_t pe = lane->pe;
        if (lane->begun == lane->ended || gda_error(&lane->queue)) continue;
        error_kept kept;
        error_save(&kept);
        if (g->site->check(g->site->context, pe, "gda") == EXPAR_ERR_PEER ||
            !transport_waits_on(g->site, &lane->patience, pe, clock_ns()))
            lane_give_up(g, lane, GDA_NO_ANSWER);
        error_put_back(&kept);
    }
}

/* Gives the core to others. idle: turns in which nothing ended. After some of them this thread sleeps, then longer. */
static void leave_core(uint32_t idle)
{
    enum { STEPS = 64 };
    const uint32_t yields = knob_count(KNOB_NET_POST_YIELDS), slept = idle - yields;
    if (idle < yields) {
        sched_yield();
        return;
    }
    const int64_t most_ns = knob(KNOB_NET_POST_SLEEP_NS);
    nanosleep(&(struct timespec){.tv_nsec = slept < STEPS ? most_ns / STEPS * (slept + 1) : most_ns}, NULL);
}

expar_status gda_wait(gda *g, bool (*is_met)(gda *g, const void *of), const void *of, const char *what)
{
    enum { TURNS_PER_LOOK = 64 };
    int64_t asked_ns = 0;
    uint32_t idle = 0;
    expar_status status = EXPAR_OK;
    for (uint32_t turn = 1; status == EXPAR_OK; turn++) {
        idle = gda_reap(g) ? 0 : idle + 1;
        if (is_met(g, of)) return EXPAR_OK;
        if (turn % TURNS_PER_LOOK == 0) look_at_peers(g);
        pthread_mutex_unlock(&g->lock);
        leave_core(idle);
        if (turn % TURNS_PER_LOOK == 0) status = interrupt_look(&asked_ns, what);
        pthread_mutex_lock(&g->lock);
    }
    return status;
}

static bool batch_is_settled(gda *g, const void *of)
{
    (void)g;
    return atomic_load_explicit(&((const transport_batch *)of)->left, memory_order_acquire) == 0;
}

/* Returns the error of the queue to the PE that has failed. */
static expar_status pe_error(gda *g, int32_t pe)
{
    expar_status status = EXPAR_OK;
    for (uint32_t i = 0; i < g->options.queues_per_peer && status == EXPAR_OK; i++)
        status = gda_lane_error(g, gda_lane_of(g, pe, i));
    return status;
}

expar_status gda_settle_batch(gda *g, transport_batch *batch)
{
    pthread_mutex_lock(&g->lock);
    expar_status status = gda_wait(g, batch_is_settled, batch, "waiting for operations");
    const int32_t pe = atomic_load(&batch->pe);
    if (status == EXPAR_OK && atomic_exchange(&batch->status, EXPAR_OK) != EXPAR_OK) status = pe_error(g, pe);
    pthread_mutex_unlock(&g->lock);
    return status == EXPAR_ERR_PEER ? gda_explain(g, pe, status) : status;
}
