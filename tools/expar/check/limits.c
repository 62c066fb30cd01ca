/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of this process, and whether processes of one user may take descriptors of each other. */
#include "check.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* A rank holds a socket to each other rank, and some descriptors for memory of each rank of its host. */
#define FILES_EACH_RANK 4
#define FILES_BESIDE    64

/* A rank's heap may grow to this, unless EXPAR_HEAP_SIZE says otherwise; NICs register what it has grown to. */
#define LEAST_MEMLOCK (INT64_C(1) << 30)

/* Reads the soft and hard limit of a line of /proc/self/limits; INT64_MAX: unlimited. False when there is none. */
static bool limit_read(const struct check_site *site, const char *name, int64_t *soft, int64_t *hard)
{
    char path[PATH_MAX], text[128], first[32], second[32];
    snprintf(path, sizeof path, "%s/self/limits", site->proc);
    if (!check_read_field(path, name, text, sizeof text) || sscanf(text, "%31s %31s", first, second) != 2) return false;
    *soft = strcmp(first, "unlimited") == 0 ? INT64_MAX : atoll(first);
    *hard = strcmp(second, "unlimited") == 0 ? INT64_MAX : atoll(second);
    return true;
}

static void add_memlock(const struct check_site *site, json_t *rows)
{
    const size_t devices = check_count_rdma(site);
    int64_t soft, hard;
    struct check_row row = {"host", "memlock", CHECK_OK, "unlimited where an RDMA device registers memory",
                            "ulimit -l unlimited   (for good: memlock in /etc/security/limits.conf)"};
    if (!limit_read(site, "Max locked memory", &soft, &hard)) {
        row.status = CHECK_SKIPPED;
        check_add(rows, &row, "the kernel does not tell the limit");
        return;
    }
    if (devices > 0 && soft != INT64_MAX) row.status = soft < LEAST_MEMLOCK ? CHECK_FAILURE : CHECK_WARNING;
    if (soft == INT64_MAX)
        check_add(rows, &row, "unlimited");
    else
        check_add(rows, &row, "%" PRId64 " KiB%s", soft >> 10, devices ? "" : ", and no RDMA device");
}

static void add_open_files(const struct check_site *site, json_t *rows)
{
    const int64_t needed = FILES_BESIDE + (int64_t)FILES_EACH_RANK * site->ranks;
    int64_t soft, hard;
    char expected[96], remedy[96];
    snprintf(expected, sizeof expected, "%" PRId64 " for %d ranks (%d, and %d for each)", needed, site->ranks,
             FILES_BESIDE, FILES_EACH_RANK);
    struct check_row row = {"host", "open_files", CHECK_OK, expected, remedy};
    if (!limit_read(site, "Max open files", &soft, &hard)) {
        row.status = CHECK_SKIPPED;
        row.remedy = NULL;
        check_add(rows, &row, "the kernel does not tell the limit");
        return;
    }
    if (hard < needed)
        snprintf(remedy, sizeof remedy, "nofile %" PRId64 " in /etc/security/limits.conf   (needs root)", needed);
    else
        snprintf(remedy, sizeof remedy, "ulimit -n %" PRId64, needed);
    if (soft < needed) row.status = CHECK_FAILURE;
    if (soft == INT64_MAX)
        check_add(rows, &row, "unlimited");
    else
        check_add(rows, &row, "%" PRId64, soft);
}

/* ---- descriptors of other processes ------------------------------------------------------------------------------ */

/* The child waits until the parent closes its end. */
static pid_t child_start(int ends[2])
{
    if (pipe(ends) != 0) return -1;
    const pid_t pid = fork();
    if (pid == 0) {
        char none;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ends[1]);
        _exit(read(ends[0], &none, 1) == 0 ? 0 : 1);
    }
    return pid;
}

int check_pidfd_getfd(void)
{
    int ends[2] = {-1, -1}, cause = 0;
    const pid_t pid = child_start(ends);
    if (pid < 0) return errno;
    const int handle = (int)syscall(SYS_pidfd_open, pid, 0);
    const int taken = handle >= 0 ? (int)syscall(SYS_pidfd_getfd, handle, ends[0], 0) : -1;
    if (taken < 0) cause = errno;
    if (taken >= 0) close(taken);
    if (handle >= 0) close(handle);
    close(ends[1]);
    close(ends[0]);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
    return cause;
}

static void add_pidfd(json_t *rows)
{
    const int cause = check_pidfd_getfd();
    check_add(rows,
              &(struct check_row){"host", "pidfd_getfd", cause ? CHECK_WARNING : CHECK_OK,
                                  "allowed: libraries beside expar share GPU memory by it",
                                  cause == ENOSYS ? "uname -r   (the call needs Linux 5.6)"
                                                  : "docker run --cap-add=SYS_PTRACE ...   (or a seccomp profile that "
                                                    "allows pidfd_getfd)"},
              "%s", cause ? strerror(cause) : "allowed");
}

static void add_ptrace_scope(const struct check_site *site, json_t *rows)
{
    static const char *const meanings[] = {"any process of the user", "children only", "root only", "nobody"};
    int64_t scope = 0;
    struct check_row row = {"host", "ptrace_scope", CHECK_OK, "0 or 1: debuggers see stacks of ranks they start",
                            "sudo sysctl kernel.yama.ptrace_scope=1"};
    if (!check_read_number(&scope, "%s/sys/kernel/yama/ptrace_scope", site->proc)) {
        check_add(rows, &row, "not restricted: the kernel has no Yama");
        return;
    }
    if (scope >= 2) row.status = CHECK_WARNING;
    if (scope >= 3) row.remedy = "kernel.yama.ptrace_scope=1 in /etc/sysctl.d, and a reboot: 3 is final";
    check_add(rows, &row, "%" PRId64 ": %s", scope, scope >= 0 && scope <= 3 ? meanings[scope] : "not known");
}

void check_limits(const struct check_site *site, json_t *rows)
{
    add_memlock(site, rows);
    add_open_files(site, rows);
    add_pidfd(rows);
    add_ptrace_scope(site, rows);
}
