/* SPDX-License-Identifier: Apache-2.0 */
/* The work of each rank of a fault test. */
#include "ep/harness/trial.h"
#include "exec/cpu/create.h"
#include "exec/cpu/nodes/carrier.h"
#include "faults/fault.h"
#include "shmem/kind.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

typedef struct fault_worker {
    fault_mailbox *mailbox;
    const fault_plan *plan;
    fault_report *report;
    int32_t rank;
    expar_group *group;
    expar_ep *ep;
    void *load; /* of the plan's load */
    /* For a victim of a plan with `inside`, in its call. By any of its threads. */
    uint32_t epoch;
    atomic_bool began, over; /* `inside` was 0; it has struck itself */
} fault_worker;

static void nap(void)
{
    const struct timespec step = {0, 500000};
    nanosleep(&step, NULL);
}

/* Before the call in which it meets the victim, or misses it. */
static bool waits_for_strike(const fault_worker *w)
{
    if (w->plan->inside) return false;
    return w->rank == w->plan->held_back || (w->plan->timeout_ms > 0 && w->rank != w->plan->victim);
}

static void strike_itself(const void *worker)
{
    const fault_worker *w = worker;
    w->mailbox->struck_ms = ranks_clock_ms();
    raise(w->plan->signal);
}

static void look_inside(void *context)
{
    fault_worker *w = context;
    const int64_t done = w->plan->inside(carrier_of(w->ep), w->epoch);
    if (done == 0) atomic_store(&w->began, true);
    if (done > 0 && atomic_load(&w->began) && !atomic_exchange(&w->over, true)) strike_itself(w);
}

/* The victim and the rank that is to meet it do what the plan says, before the call of this place. */
static void reach(fault_worker *w, fault_place place, int64_t round)
{
    const fault_plan *plan = w->plan;
    atomic_store(&w->report->round, round);
    atomic_store(&w->report->place, place);
    if (place != plan->place || round < plan->round || (round > plan->round && !plan->any_round)) return;
    if (w->rank == plan->victim && plan->by_itself) {
        atomic_store(&w->began, false);
        w->epoch = plan->inside ? (uint32_t)w->ep->base.calls + 1 : 0;
        if (plan->inside)
            executor_cpu_delay(&carrier_of(w->ep)->base, look_inside, w);
        else
            strike_itself(w);
    }
    while (waits_for_strike(w) && !atomic_load(&w->mailbox->struck))
        nap();
    if (plan->timeout_ms > 0 && w->rank != plan->victim) kind_set_silence(w->group, plan->timeout_ms);
}

/* Memory of the group must have no name in the file system. */
static bool no_named_memory(void)
{
    char line[4096];
    bool none = true;
    FILE *maps = fopen("/proc/self/maps", "r");
    if (!maps) return CHECK(false, "no /proc/self/maps");
    while (fgets(line, sizeof line, maps))
        none &= CHECK(!strstr(line, "/dev/shm/"), "shared memory has a name: %s", line);
    fclose(maps);
    return none;
}

static _Noreturn void end_process(void)
{
    fflush(NULL);
    _exit(check_failures() ? EXIT_FAILURE : EXIT_SUCCESS);
}

/* True while all is well; else keeps what the failing call said. */
static bool note(fault_worker *w, expar_status status)
{
    if (status == EXPAR_OK) return true;
    w->report->failed_ms = ranks_clock_ms();
    w->report->status = status;
    snprintf(w->report->text, sizeof w->report->text, "%s", expar_last_error());
    if (w->plan->ends_at_once) end_process();
    return false;
}

static expar_status dispatch(fault_worker *w, trial_arrival *arrival)
{
    const trial_choice choice = {.path = w->plan->path};
    const trial_area none = {0};
    *arrival = (trial_arrival){.traffic = w->mailbox->traffic, .result = EXPAR_EP_DISPATCH_RESULT_INIT};
    expar_ep_dispatch_args args = trial_dispatch_args(w->mailbox->traffic, w->rank, &choice, &none, NULL);
    expar_status status = expar_ep_dispatch(w->ep, &args, &arrival->result);
    trial_dispatch_args_free(&args);
    if (status == EXPAR_OK) CHECK(trial_check_arrival(arrival, w->rank), "wrong rows arrived");
    return status;
}

static expar_status combine(fault_worker *w, trial_arrival *arrival)
{
    const traffic *t = w->mailbox->traffic;
    int64_t num_tokens = t->inputs[w->rank].num_tokens;
    expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
    args.x = arrival->result.recv_x;
    args.handle = arrival->result.handle;
    args.path = w->plan->path == EXPAR_EP_PATH_QUEUE ? EXPAR_EP_PATH_QUEUE : EXPAR_EP_PATH_AUTO;
    args.nodes_sum = w->plan->nodes;
    args.out_y = expar_tensor_2d(traffic_alloc((size_t)num_tokens, traffic_row_bytes(t)), traffic_dtype(t), num_tokens,
                                 t->job.hidden);
    expar_status status = expar_ep_combine(w->ep, &args, NULL);
    free(args.out_y.data);
    return status;
}

static bool work_a_round(fault_worker *w, int64_t round)
{
    trial_arrival arrival;
    reach(w, FAULT_DISPATCHES, round);
    if (w->load) return note(w, w->plan->load->trial(w->load, w->plan->path));
    if (!note(w, dispatch(w, &arrival))) return false;
    reach(w, FAULT_COMBINES, round);
    bool right = note(w, combine(w, &arrival));
    expar_ep_handle_release(arrival.result.handle);
    expar_ep_output_release(arrival.result.output);
    return right;
}

/* A poisoned buffer says the same again, without waiting. */
static void try_again(fault_worker *w)
{
    trial_arrival arrival;
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    w->report->again = dispatch(w, &arrival);
    clock_gettime(CLOCK_MONOTONIC, &after);
    w->report->again_us = (after.tv_sec - before.tv_sec) * 1000000 + (after.tv_nsec - before.tv_nsec) / 1000;
    snprintf(w->report->again_text, sizeof w->report->again_text, "%s", expar_last_error());
}

static void work(fault_worker *w)
{
    const fault_plan *plan = w->plan;
    const int64_t most = plan->place == FAULT_LEAVES ? plan->round : plan->late ? plan->round + 2 : INT64_MAX;
    bool well = true;
    for (int64_t round = 0; well && round < most; round++)
        well = work_a_round(w, round);
    if (!well) try_again(w);
    if (!well && w->load) plan->load->look(w->load, w->group);
}

static bool join(fault_worker *w)
{
    expar_group_options options = EXPAR_GROUP_OPTIONS_INIT;
    options.id = &w->mailbox->id;
    options.rank = w->rank;
    options.size = w->plan->size;
    options.ranks_per_node = w->plan->ranks_per_node;
    options.heap_bytes = RANKS_HEAP_BYTES;
    options.timeout_ms = w->plan->group_timeout_ms;
    /* Where the victim may not join, nobody will. */
    const bool all_join = w->plan->by_itself && w->plan->place != FAULT_STARTED;
    options.bootstrap_timeout_ms = all_join ? FAULT_DEADLINE_MS / 2 : 3000;
    if (w->plan->bootstrap_timeout_ms > 0) options.bootstrap_timeout_ms = w->plan->bootstrap_timeout_ms;
    return note(w, expar_group_create(&options, &w->group));
}

static bool create(fault_worker *w)
{
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = w->plan->load ? w->plan->load->num_tokens : 64;
    config.max_row_bytes = (int64_t)traffic_row_bytes(w->mailbox->traffic);
    config.max_topk = w->mailbox->traffic->job.topk;
    config.max_experts = w->mailbox->traffic->job.num_experts;
    config.ring_slots = 4;
    return note(w, expar_ep_create(w->group, &config, &w->ep)) && no_named_memory();
}

_Noreturn void fault_rank(fault_mailbox *mailbox, int32_t rank)
{
    fault_worker w = {.mailbox = mailbox, .plan = mailbox->plan, .report = &mailbox->reports[rank], .rank = rank};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    check_begin(rank);
    reach(&w, FAULT_STARTED, 0);
    if (w.plan->forming && rank == w.plan->victim) w.plan->forming(strike_itself, &w);
    bool in_group = join(&w);
    if (in_group) reach(&w, FAULT_JOINED, 0);
    if (in_group && create(&w)) {
        reach(&w, FAULT_CREATED, 0);
        if (w.plan->load) w.load = w.plan->load->open(w.ep, mailbox->traffic, rank);
        work(&w);
    }
    reach(&w, FAULT_LEAVES, mailbox->plan->round);
    CHECK_OK(expar_ep_destroy(w.ep));
    CHECK_OK(expar_group_destroy(w.group));
    atomic_store(&w.report->place, FAULT_ENDED);
    end_process();
}
