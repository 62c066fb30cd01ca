/* SPDX-License-Identifier: Apache-2.0 */
/* The parent's part of a fault test: starts the ranks, strikes the victim, reads the reports. */
#include "faults/fault.h"
#include "base/rank_list.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* How long the victim is given to be well inside the call that it waits in. Too short a time makes the test weaker, not
   wrong. */
#define INSIDE_MS 20
/* How long one that is late stands still: longer than looks at it, and far shorter than the time-out. */
#define LATE_MS 400

const char *fault_place_name(fault_place place)
{
    static const char *const names[] = {"started", "joined", "created", "dispatches", "combines", "leaves", "ended"};
    return names[place];
}

traffic *fault_traffic(const fault_plan *plan)
{
    int64_t num_tokens[FAULT_MAX_RANKS];
    random_source random = random_start((uint64_t)plan->size);
    for (int32_t r = 0; r < plan->size; r++)
        num_tokens[r] = plan->load ? plan->load->num_tokens : 30 + r;
    traffic_plan rows = {.num_ranks = plan->size,
                         .ranks_per_node = plan->ranks_per_node,
                         .hidden = plan->load ? plan->load->hidden : 512,
                         .topk = 4,
                         .num_experts = 4 * plan->size,
                         .wide = true,
                         .with_weights = true,
                         .num_tokens = num_tokens};
    return traffic_make(&rows, &random);
}

static void pause_us(int64_t microseconds)
{
    const struct timespec span = {microseconds / 1000000, microseconds % 1000000 * 1000};
    nanosleep(&span, NULL);
}

static void start(fault_mailbox *mailbox, pid_t *pids)
{
    for (int32_t r = 0; r < mailbox->plan->size; r++) {
        fflush(NULL);
        pids[r] = fork();
        if (pids[r] == 0) fault_rank(mailbox, r);
        if (pids[r] < 0) abort();
    }
}

/* Until the victim is dead or stopped; its monitor may answer until then. */
static void await_struck(pid_t victim)
{
    siginfo_t info = {0};
    int64_t deadline_ms = ranks_clock_ms() + FAULT_DEADLINE_MS;
    while (waitid(P_PID, (id_t)victim, &info, WEXITED | WSTOPPED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0 &&
           ranks_clock_ms() < deadline_ms)
        pause_us(500);
}

/* The parent strikes at its time, or when the victim is inside the call that the held-back rank keeps it in, or
   somewhere in its round. */
static void strike(fault_mailbox *mailbox, pid_t victim)
{
    const fault_plan *plan = mailbox->plan;
    const fault_report *report = &mailbox->reports[plan->victim];
    int64_t deadline_ms = ranks_clock_ms() + FAULT_DEADLINE_MS;
    if (plan->by_itself) return;
    if (plan->held_back >= 0 || plan->in_passing) {
        while ((atomic_load(&report->place) < (int32_t)plan->place || atomic_load(&report->round) < plan->round) &&
               ranks_clock_ms() < deadline_ms)
            pause_us(500);
        pause_us(plan->in_passing ? plan->delay_us : INSIDE_MS * 1000);
    } else {
        pause_us(plan->delay_us);
    }
    mailbox->struck_ms = ranks_clock_ms();
    kill(victim, plan->signal);
}

static bool wait_for_survivors(const fault_mailbox *mailbox, const pid_t *pids)
{
    bool passed = true, late = false;
    int64_t deadline_ms = ranks_clock_ms() + FAULT_DEADLINE_MS;
    for (int32_t r = 0; r < mailbox->plan->size; r++) {
        if (r == mailbox->plan->victim) continue;
        int status = ranks_wait(pids[r], deadline_ms, &late);
        passed &=
            CHECK(status == 0, "rank %d ended with wait status %#x in place %s (%s)", (int)r, (unsigned)status,
                  fault_place_name((fault_place)atomic_load(&mailbox->reports[r].place)), mailbox->reports[r].text);
    }
    return CHECK(!late, "a survivor hung") & passed;
}

/* A killed one is dead; a stopped one is killed now, or woken and must end with an error of its own. */
static bool wait_for_victim(const fault_mailbox *mailbox, pid_t pid)
{
    const fault_plan *plan = mailbox->plan;
    bool wake = plan->signal == SIGSTOP && plan->wake;
    if (plan->late) {
        int ended = ranks_wait(pid, ranks_clock_ms() + FAULT_DEADLINE_MS, NULL);
        return CHECK(mailbox->struck_ms > 0, "it has never stood still") &
               CHECK(ended == 0, "who was late ended with wait status %#x (%s)", (unsigned)ended,
                     mailbox->reports[plan->victim].text);
    }
    if (plan->signal == SIGSTOP) kill(pid, wake ? SIGCONT : SIGKILL);
    int status = ranks_wait(pid, ranks_clock_ms() + FAULT_DEADLINE_MS, NULL);
    if (!wake)
        return CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "the victim ended with wait status %#x",
                     (unsigned)status);
    return CHECK(status == 0, "the victim woke and ended with wait status %#x", (unsigned)status) &
           CHECK(mailbox->reports[plan->victim].status == EXPAR_ERR_PEER, "the victim woke and got %s (%s)",
                 expar_status_string(mailbox->reports[plan->victim].status), mailbox->reports[plan->victim].text);
}

/* While a group forms, the error may also be that of its forming. */
static bool status_fits(const fault_report *report)
{
    bool forming = strstr(report->text, "expar_group_create") != NULL;
    return report->status == EXPAR_ERR_PEER || (forming && report->status == EXPAR_ERR_BOOTSTRAP);
}

/* "rank 3", or, of ranks that never came, "missing: 3", with others that have come late. */
static bool names(const char *text, int32_t rank)
{
    char name[16];
    snprintf(name, sizeof name, "rank %d", (int)rank);
    return strstr(text, name) || rank_list_has(text, "missing: ", rank);
}

static bool check_survivor(const fault_mailbox *mailbox, int32_t rank)
{
    const fault_report *report = &mailbox->reports[rank];
    const fault_plan *plan = mailbox->plan;
    if (plan->late)
        return CHECK(report->status == EXPAR_OK, "rank %d got %s (%s)", (int)rank, expar_status_string(report->status),
                     report->text);
    if (plan->place == FAULT_LEAVES && report->status == EXPAR_OK)
        return true; /* the work was done; destroying never fails */
    bool right = CHECK(status_fits(report), "rank %d got %s (%s)", (int)rank, expar_status_string(report->status),
                       report->text) &
                 CHECK(names(report->text, plan->victim), "rank %d does not name rank %d: %s", (int)rank,
                       (int)plan->victim, report->text);
    if (plan->ends_at_once) return right;
    if (strstr(report->text, "expar_ep_dispatch") || strstr(report->text, "expar_ep_combine"))
        right &=
            CHECK(report->again == EXPAR_ERR_PEER && names(report->again_text, plan->victim),
                  "rank %d was then told %s (%s)", (int)rank, expar_status_string(report->again), report->again_text);
    return right;
}

static bool check_reports(const fault_mailbox *mailbox)
{
    bool passed = true;
    int64_t slowest_ms = 0, again_us = 0;
    for (int32_t r = 0; r < mailbox->plan->size; r++) {
        const fault_report *report = &mailbox->reports[r];
        if (r == mailbox->plan->victim) continue;
        passed &= check_survivor(mailbox, r);
        if (report->status != EXPAR_OK && report->failed_ms - mailbox->struck_ms > slowest_ms)
            slowest_ms = report->failed_ms - mailbox->struck_ms;
        again_us = report->again_us > again_us ? report->again_us : again_us;
    }
    if (mailbox->plan->forming)
        passed &= CHECK(atomic_load(&mailbox->reports[mailbox->plan->victim].place) == FAULT_STARTED,
                        "the victim's group has formed before it was struck");
    printf("rank %d of %d, %s%s, round %lld: known after %lld ms; the next call failed after %lld us\n",
           (int)mailbox->plan->victim, (int)mailbox->plan->size,
           mailbox->plan->by_itself || mailbox->plan->held_back >= 0 ? "" : "at any moment, ",
           fault_place_name((fault_place)atomic_load(&mailbox->reports[mailbox->plan->victim].place)),
           (long long)atomic_load(&mailbox->reports[mailbox->plan->victim].round), (long long)slowest_ms,
           (long long)again_us);
    return passed;
}

static fault_mailbox *make_mailbox(const fault_plan *plan, const traffic *t, const expar_unique_id *id)
{
    fault_mailbox *mailbox = mmap(NULL, sizeof *mailbox, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (mailbox == MAP_FAILED) abort();
    mailbox->plan = plan;
    mailbox->traffic = t;
    mailbox->id = *id;
    return mailbox;
}

/* One plan that is under way. */
typedef struct performance {
    ranks_host host;
    traffic *traffic;
    fault_mailbox *mailbox;
    pid_t pids[FAULT_MAX_RANKS];
} performance;

/* Until the victim has been struck. */
static bool begin(performance *p, const fault_plan *plan)
{
    const ranks_plan ranks = {.ranks_per_node = plan->ranks_per_node};
    ranks_start_network(&ranks);
    if (!ranks_host_start(&p->host)) return false;
    p->traffic = fault_traffic(plan);
    p->mailbox = make_mailbox(plan, p->traffic, &p->host.id);
    start(p->mailbox, p->pids);
    strike(p->mailbox, p->pids[plan->victim]);
    await_struck(p->pids[plan->victim]);
    atomic_store(&p->mailbox->struck, 1);
    if (plan->late) {
        pause_us(LATE_MS * 1000);
        kill(p->pids[plan->victim], SIGCONT);
    }
    return true;
}

/* Until all ranks have ended. */
static bool see_through(const performance *p)
{
    bool passed =
        wait_for_survivors(p->mailbox, p->pids) & wait_for_victim(p->mailbox, p->pids[p->mailbox->plan->victim]);
    return passed && check_reports(p->mailbox);
}

static bool end(performance *p)
{
    bool passed = ranks_host_stop(&p->host);
    munmap(p->mailbox, sizeof *p->mailbox);
    traffic_free(p->traffic);
    return passed;
}

bool fault_run_all(const fault_plan *plans, int32_t count)
{
    performance simulated[FAULT_MOST_AT_ONCE];
    int32_t begun = 0;
    check_begin(-1);
    while (begun < count && begin(&simulated[begun], &plans[begun]))
        begun++;
    bool passed = begun == count;
    for (int32_t i = 0; i < begun; i++)
        passed &= see_through(&simulated[i]);
    /* The last one first: later hosts and ranks have inherited what holds the earlier hosts. */
    while (begun > 0)
        passed &= end(&simulated[--begun]);
    return passed;
}

bool fault_run(const fault_plan *plan)
{
    return fault_run_all(plan, 1);
}
