/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of graphs. A capture puts a launch of the mover into the graph, and keeps a record of the call. When a stream
 * comes to that launch, the mover says in pinned memory that it has begun, and for which record. A thread of the buffer
 * looks at that word, carries the call out, and ends the mover's run.
 *
 * A rank's calls on a GPU follow each other, also those of graphs (core/order.c). So one run of a graph goes on at a
 * time. A call outside of graphs whose mover has begun comes after all replays before it. It opens only then.
 *
 * The graph keeps the record. The driver tells when the graph has gone, in a thread of its own. This thread then frees
 * what the call has held. */
#include "base/interrupt.h"
#include "exec/cuda/hosted/hosted.h"
#include "shmem/rings.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

/* A call of a graph. */
typedef struct graph_call {
    hosted_replays *list;
    /* Guarded by list->lock: */
    uint64_t number; /* what the mover says when a stream comes to the call; not used again: call_place */
    bool recorded;   /* the capture has succeeded */
    bool held;       /* the driver calls graph_has_gone some time */
    bool given_up;   /* it has done so */
    /* NULL: it has been dropped, or is not this object's any more. The capture's thread writes it, when no stream can
       come to the call. Later the list's thread alone does, and the one that has joined that. They hold list->lock, and
       so do readers in other threads. The list's thread reads it without. */
    exec_replay *replay;
    /* The capture's thread fills these before the call has a number. Then only the list's thread uses them. */
    exec_call call;  /* what a replay needs of it */
    hosted_call own; /* of the replay that goes on */
    hosted_places places;
} graph_call;

struct hosted_replays {
    atomic_int references; /* one of the executor, one of each record whose graph lives (acq_rel) */
    hosted_executor *self; /* as long as the thread runs */
    hosted_parts *parts;   /* what launches of the graphs use, also after the buffer's end */
    pthread_t thread;
    /* Held by the thread while it carries a call out, and by hosted_replays_settle. */
    pthread_mutex_t serving;
    pthread_mutex_t lock; /* guards the members below, and those of records that say so */
    pthread_cond_t change;
    graph_call **all;  /* by place; NULL: the place is free */
    uint64_t space;    /* places in `all` */
    uint64_t numbered; /* calls that have got a number */
    uint64_t living;   /* records in `all` */
    uint64_t dying;    /* of these, those whose graph has gone */
    /* The thread is to end. Set with the lock held, and read without it (relaxed: the thread is joined then). */
    atomic_bool ends;
    int64_t nap_ns; /* its longest nap, by the program's choice; set before it runs */
    /* Only the thread uses these: */
    uint64_t last;     /* run that it has carried out */
    int64_t active_ns; /* when it last had something to do */
};

static void replays_drop(hosted_replays *all)
{
    if (atomic_fetch_sub_explicit(&all->references, 1, memory_order_acq_rel) > 1) return;
    pthread_cond_destroy(&all->change);
    pthread_mutex_destroy(&all->lock);
    pthread_mutex_destroy(&all->serving);
    hosted_parts_drop(all->parts, true);
    free(all->all);
    free(all);
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

/* The lower half of a number is the call's place in the list. The upper half is how many calls had got a number then.
   So a launch that stayed in a graph although its capture has failed names no other call. */
static uint64_t call_place(uint64_t number)
{
    return number & UINT32_MAX;
}

static graph_call *find_call(hosted_replays *all, uint64_t number)
{
    const uint64_t place = call_place(number);
    pthread_mutex_lock(&all->lock);
    graph_call *found = place < all->space ? all->all[place] : NULL;
    if (found && found->number != number) found = NULL;
    pthread_mutex_unlock(&all->lock);
    return found;
}

/* Carries out the call whose run has begun. */
static void carry_out_replay(hosted_replays *all, const hosted_run *run, uint64_t number)
{
    graph_call *one = find_call(all, number);
    hosted_run lost = *run;
    pthread_mutex_lock(&all->serving);
    if (one) {
        exec_call call = one->call;
        one->own = (hosted_call){.of_graph = true, .places = &one->places, .departed = true, .run = *run};
        call.own = &one->own;
        one->replay->run(one->replay, &call);
    } else {
        LOG(LOG_ERROR, "a graph has come to call %llu, which is not known", (unsigned long long)number);
        hosted_run_end(all->self, &lost);
    }
    pthread_mutex_unlock(&all->serving);
}

/* Takes the records whose graphs have gone, or all, out of the list. Returns one of them; NULL: there is none left. */
static exec_replay *take_dropped(hosted_replays *all, bool any)
{
    exec_replay *found = NULL;
    pthread_mutex_lock(&all->lock);
    for (uint64_t i = 0; i < all->space && !found && (any ? all->living : all->dying) > 0; i++) {
        graph_call *one = all->all[i];
        if (!one || !one->recorded || (!any && !one->given_up)) continue;
        found = one->replay;
        one->replay = NULL;
        all->all[i] = NULL;
        all->living--;
        all->dying -= one->given_up;
        if (one->given_up) free(one);
    }
    pthread_mutex_unlock(&all->lock);
    return found;
}

static void drop_calls(hosted_replays *all, bool any)
{
    exec_replay *replay;
    while ((replay = take_dropped(all, any)))
        replay->drop(replay);
}

/* Returns how long to nap, as threads with rings of kernels do (net/proxy); 0: not at all. */
static int64_t nap_length(const hosted_replays *all)
{
    const int64_t idle_ns = clock_ns() - all->active_ns, rest_ns = knob(KNOB_PROXY_REST_NAP_NS);
    const bool spins = idle_ns < knob(KNOB_PROXY_SPIN_NS) && !sym_outnumbers(all->self->core.sym, 2);
    if (spins || all->nap_ns == 0) return 0;
    return idle_ns < knob(KNOB_PROXY_REST_NS) || all->nap_ns > rest_ns ? all->nap_ns : rest_ns;
}

static bool is_to_end(const hosted_replays *all)
{
    return atomic_load_explicit(&all->ends, memory_order_relaxed);
}

/* Sleeps while no graph lives. A kernel wakes no thread, so the thread naps between two looks. */
static void replays_rest(hosted_replays *all)
{
    const int64_t nap_ns = nap_length(all), end_ns = clock_ns() + nap_ns;
    const struct timespec end = {.tv_sec = end_ns / 1000000000, .tv_nsec = end_ns % 1000000000};
    pthread_mutex_lock(&all->lock);
    while (all->living == 0 && !is_to_end(all))
        pthread_cond_wait(&all->change, &all->lock);
    if (nap_ns > 0 && all->dying == 0 && !is_to_end(all)) pthread_cond_timedwait(&all->change, &all->lock, &end);
    pthread_mutex_unlock(&all->lock);
    if (nap_ns == 0) sched_yield();
}

static void *replays_main(void *argument)
{
    hosted_replays *all = argument;
    hosted_run run;
    uint64_t number;
    log_set_rank(all->self->core.sym->rank);
    all->active_ns = clock_ns();
    while (!is_to_end(all)) {
        if (!hosted_run_of_graph(all->self, all->last, &run, &number)) {
            drop_calls(all, false);
            replays_rest(all);
            continue;
        }
        all->last = run.number;
        carry_out_replay(all, &run, number);
        all->active_ns = clock_ns();
    }
    return NULL;
}

static expar_status replays_start(hosted_replays *all)
{
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    const bool runs = pthread_create(&all->thread, NULL, replays_main, all) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return runs ? EXPAR_OK : error_set(EXPAR_ERR_SYSTEM, "the thread for calls of graphs cannot be started");
}

/* The first capture starts the thread. */
static expar_status replays_make(hosted_executor *self)
{
    if (self->replays) return EXPAR_OK;
    hosted_replays *all = calloc(1, sizeof *all);
    if (!all) return error_set(EXPAR_ERR_MEMORY, "no memory for calls of graphs");
    atomic_init(&all->references, 1);
    all->self = self;
    all->parts = hosted_parts_hold(self->mover.parts);
    pthread_mutex_init(&all->serving, NULL);
    pthread_mutex_init(&all->lock, NULL);
    interrupt_cond_init(&all->change);
    expar_status status = sym_rings_read_nap(&all->nap_ns);
    if (status == EXPAR_OK) status = replays_start(all);
    if (status != EXPAR_OK) {
        replays_drop(all);
        return status;
    }
    self->replays = all;
    self->core.base.in_turns = true;
    return EXPAR_OK;
}

/* ---- captures ---------------------------------------------------------------------------------------------------- */

/* The driver calls it from a thread of its own. The buffer may have gone, and have dropped the call. */
static void graph_has_gone(void *object)
{
    graph_call *one = object;
    hosted_replays *all = one->list;
    pthread_mutex_lock(&all->lock);
    const bool dropped = !one->replay;
    one->given_up = true;
    if (!dropped) all->dying++;
    if (!dropped) pthread_cond_signal(&all->change);
    pthread_mutex_unlock(&all->lock);
    if (dropped) free(one);
    replays_drop(all);
}

/* Gives the record a number; 0: there is no memory. The caller holds the lock. */
static uint64_t number_call(hosted_replays *all, graph_call *one)
{
    uint64_t at = 0;
    while (at < all->space && all->all[at])
        at++;
    if (at == all->space) {
        const uint64_t space = all->space ? 2 * all->space : 16;
        graph_call **more = realloc(all->all, (size_t)space * sizeof(graph_call *));
        if (!more) return 0;
        for (uint64_t i = all->space; i < space; i++)
            more[i] = NULL;
        all->all = more;
        all->space = space;
    }
    all->all[at] = one;
    all->living++;
    one->number = ++all->numbered << 32 | at;
    return one->number;
}

static expar_status add_call(hosted_replays *all, const exec_call *call, exec_replay *replay, graph_call **out,
                             uint64_t *number)
{
    graph_call *one = calloc(1, sizeof *one);
    if (!one) return error_set(EXPAR_ERR_MEMORY, "no memory for a call of a graph");
    one->list = all;
    one->replay = replay;
    hosted_places_fill(&one->places, replay);
    one->call = (exec_call){.num_sms = call->num_sms, .stream = call->stream};
    pthread_mutex_lock(&all->lock);
    *number = number_call(all, one);
    pthread_cond_signal(&all->change);
    pthread_mutex_unlock(&all->lock);
    if (!*number) free(one);
    *out = one;
    return *number ? EXPAR_OK : error_set(EXPAR_ERR_MEMORY, "no memory for a call of a graph");
}

/* The call is in the graph; or it is not, and its caller keeps what is to be replayed. */
static void settle_call(hosted_replays *all, graph_call *one, uint64_t number, bool recorded)
{
    pthread_mutex_lock(&all->lock);
    const bool stays = recorded || (one->held && !one->given_up);
    one->recorded = recorded;
    if (!recorded) {
        one->replay = NULL;
        all->all[call_place(number)] = NULL;
        all->living--;
        all->dying -= one->given_up;
    }
    pthread_mutex_unlock(&all->lock);
    if (!stays) free(one);
}

/* Memory that replays copy through is taken now. A capture does not forbid it on other streams. */
static expar_status prepare_replays(hosted_executor *self)
{
    int mode;
    expar_status status = gpu_leave_captures(&mode);
    if (status != EXPAR_OK) return status;
    hosted_stage_grow(self);
    gpu_return_to_captures(mode);
    return EXPAR_OK;
}

static expar_status put_into_graph(hosted_executor *self, const exec_call *call, expar_event *event, graph_call *one,
                                   uint64_t number)
{
    expar_status status = cuda_enter(self->device);
    if (status != EXPAR_OK) return status;
    status = prepare_replays(self);
    if (status == EXPAR_OK && event) status = expar_event_stream_wait(event, call->stream);
    if (status == EXPAR_OK) {
        one->held = true;
        atomic_fetch_add_explicit(&one->list->references, 1, memory_order_relaxed);
        status = gpu_give_to_graph(call->stream, one, graph_has_gone);
    }
    if (status == EXPAR_OK) status = hosted_run_record(self, call, number);
    cuda_leave();
    return status;
}

expar_status hosted_record(executor *base, const exec_call *call, expar_event *event, exec_replay *replay)
{
    hosted_executor *self = hosted_of(base);
    graph_call *one;
    uint64_t number;
    expar_status status = replays_make(self);
    if (status == EXPAR_OK) status = add_call(self->replays, call, replay, &one, &number);
    if (status != EXPAR_OK) return status;
    status = put_into_graph(self, call, event, one, number);
    settle_call(self->replays, one, number, status == EXPAR_OK);
    return status;
}

/* ---- for other threads ------------------------------------------------------------------------------------------- */

void hosted_replays_settle(hosted_executor *self)
{
    if (!self->replays) return;
    pthread_mutex_lock(&self->replays->serving);
    pthread_mutex_unlock(&self->replays->serving);
}

bool hosted_replays_stop(hosted_executor *self, int64_t wait_ns)
{
    hosted_replays *all = self->replays;
    if (!all) return true;
    const bool ended = gpu_order_has_ended(&self->core, wait_ns);
    if (!ended) self->core.base.ops->halt(&self->core.base);
    pthread_mutex_lock(&all->lock);
    atomic_store_explicit(&all->ends, true, memory_order_relaxed);
    pthread_cond_signal(&all->change);
    pthread_mutex_unlock(&all->lock);
    pthread_join(all->thread, NULL);
    hosted_graph_ring_close(self);
    drop_calls(all, true);
    self->replays = NULL;
    replays_drop(all);
    self->late_replays = !ended && !gpu_order_has_ended(&self->core, wait_ns);
    return ended;
}
