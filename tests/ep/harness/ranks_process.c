/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as forked processes. Children end by _exit: what the parent had allocated is not theirs to free. */
#include "ep/harness/check.h"
#include "ep/harness/ranks_internal.h"
#include "netns/netns.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WAIT_STEP_NS 2000000

int64_t ranks_clock_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* libfabric takes 0.08 s of processor time to start, wherever it is first used. Ranks that will use it, or may, get it
   started from their parent. Not so where a test has another library before it, nor on hosts of its own, whose
   interfaces are not the parent's. */
void ranks_start_network(const ranks_plan *plan)
{
    static bool started = false;
    const char *transports = getenv("EXPAR_TRANSPORTS");
    bool wanted = plan->ranks_per_node > 0 || (transports && strstr(transports, "fabric"));
    if (started || !wanted || netns_on() || getenv("LD_LIBRARY_PATH")) return;
    started = true;
    setenv("FI_OFI_RXM_BUFFER_SIZE", "1024", 0); /* as the library does before it starts it */
    void *library = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL), *info = NULL;
    int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const void *, void **) = NULL;
    void (*freeinfo)(void *) = NULL;
    void *functions[] = {library ? dlsym(library, "fi_getinfo") : NULL, library ? dlsym(library, "fi_freeinfo") : NULL};
    if (!functions[0] || !functions[1]) return;
    memcpy(&getinfo, &functions[0], sizeof getinfo);
    memcpy(&freeinfo, &functions[1], sizeof freeinfo);
    const uint32_t version = 1 << 16 | 15;
    if (getinfo(version, NULL, NULL, 0, NULL, &info) == 0) freeinfo(info);
}

/* Writes the id to `out`, then serves it until the other end of `hold` is closed. */
static _Noreturn void host_main(int out, int hold)
{
    expar_unique_id id;
    char nothing;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    check_begin(-1);
    if (CHECK_OK(expar_unique_id_create(&id)) && write(out, &id, sizeof id) == sizeof id) {
        while (read(hold, &nothing, 1) > 0) {
        }
        CHECK_OK(expar_unique_id_retire(&id));
    }
    fflush(NULL);
    _exit(check_failures() ? EXIT_FAILURE : EXIT_SUCCESS);
}

bool ranks_host_start(ranks_host *host)
{
    int ids[2], hold[2];
    fflush(NULL);
    if (pipe2(ids, O_CLOEXEC) || pipe2(hold, O_CLOEXEC)) abort();
    host->pid = fork();
    if (host->pid == 0) {
        close(hold[1]);
        host_main(ids[1], hold[0]);
    }
    close(ids[1]);
    close(hold[0]);
    host->hold = hold[1];
    bool got = host->pid > 0 && read(ids[0], &host->id, sizeof host->id) == sizeof host->id;
    close(ids[0]);
    return CHECK(got, "no unique id came from its process") || (ranks_host_stop(host), false);
}

bool ranks_host_stop(ranks_host *host)
{
    close(host->hold);
    int status = host->pid > 0 ? ranks_wait(host->pid, ranks_clock_ms() + RANKS_TIMEOUT_MS, NULL) : -1;
    return CHECK(status == 0, "the process of the unique id ended with wait status %#x", (unsigned)status);
}

expar_status ranks_join(const ranks_plan *plan, const expar_unique_id *id, int32_t rank, expar_group **group)
{
    expar_group_options options = ranks_options(plan);
    options.id = id;
    options.rank = rank;
    return expar_group_create(&options, group);
}

static _Noreturn void child_main(const ranks_plan *plan, const expar_unique_id *id, int32_t rank, ranks_body body,
                                 void *shared)
{
    expar_group *group = NULL;
    bool passed = false;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that is itself killed leaves no rank behind */
    check_begin(rank);
    if (CHECK(netns_enter(rank, plan->size, plan->ranks_per_node), "no way to its host") &&
        CHECK_OK(ranks_join(plan, id, rank, &group)))
        passed = ranks_carry_out(plan, group, body, shared);
    fflush(NULL);
    _exit(passed ? EXIT_SUCCESS : EXIT_FAILURE);
}

pid_t ranks_fork(const ranks_plan *plan, const expar_unique_id *id, int32_t rank, ranks_body body, void *shared)
{
    ranks_start_network(plan);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) child_main(plan, id, rank, body, shared);
    return pid;
}

int ranks_wait(pid_t pid, int64_t deadline_ms, bool *late)
{
    const struct timespec step = {0, WAIT_STEP_NS};
    int status = 0;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (ranks_clock_ms() < deadline_ms) {
            nanosleep(&step, NULL);
            continue;
        }
        fprintf(stderr, "process %d did not end in time\n", (int)pid);
        if (late) *late = true;
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        break;
    }
    return status;
}

bool ranks_run_processes(const ranks_plan *plan, ranks_body body, void *shared)
{
    ranks_host host;
    bool passed = true;
    check_begin(-1);
    if (!ranks_host_start(&host)) return false;
    pid_t *pids = calloc((size_t)plan->size, sizeof *pids);
    if (!pids) abort();
    for (int32_t r = 0; r < plan->size; r++)
        pids[r] = ranks_fork(plan, &host.id, r, body, shared);
    /* A plan's own time-out may be short; making a group on a loaded machine takes its time all the same. */
    int64_t deadline_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS + 2 * ranks_options(plan).timeout_ms;
    for (int32_t r = 0; r < plan->size; r++) {
        int status = pids[r] > 0 ? ranks_wait(pids[r], deadline_ms, NULL) : -1;
        passed &= CHECK(status == 0, "the process of rank %d ended with wait status %#x", (int)r, (unsigned)status);
    }
    free(pids);
    return ranks_host_stop(&host) & passed;
}
