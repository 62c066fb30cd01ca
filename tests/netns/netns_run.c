/* SPDX-License-Identifier: Apache-2.0 */
/* netns_run COMMAND…: runs a test program on host 0 of a network of its own (netns.h); its ranks go to their hosts by
 * themselves. netns_run --hosts N COMMAND…: of so many hosts. netns_run --rank COMMAND…: is a rank that `expar run`
 * has started: goes to its host and becomes COMMAND. */
#include "netns/netns.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static int become(char **command)
{
    execvp(command[0], command);
    perror(command[0]);
    return EXIT_FAILURE;
}

static int32_t number_of(const char *variable)
{
    const char *text = getenv(variable);
    return text ? (int32_t)strtol(text, NULL, 10) : 0;
}

static int be_rank(char **command)
{
    int32_t rank = number_of("EXPAR_RANK"), size = number_of("EXPAR_SIZE");
    if (size < 1 || !netns_enter(rank, size, number_of("EXPAR_RANKS_PER_NODE"))) return EXIT_FAILURE;
    return become(command);
}

/* libfabric's verbs looks through all names of the kernel's wherever it starts, for 0.1 s of the processor's time;
 * ranks on hosts of their own start it one by one. Here they find none. Where that cannot be, it takes its time. */
static void hide_kernel_names(void)
{
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) return;
    (void)mount("/dev/null", "/proc/kallsyms", NULL, MS_BIND, NULL);
}

/* The command runs in a child, since the namespaces are found by this process' descriptors. */
static int run(int hosts, char **command)
{
    netns net;
    int status;
    if (!netns_make_hosts(&net, hosts)) return netns_skip();
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        hide_kernel_names();
        _exit(become(command));
    }
    while (waitpid(pid, &status, 0) != pid)
        if (errno != EINTR) return EXIT_FAILURE;
    return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    bool rank = argc > 2 && strcmp(argv[1], "--rank") == 0, counted = argc > 3 && strcmp(argv[1], "--hosts") == 0;
    if (argc < 2) {
        fprintf(stderr, "usage: netns_run [--rank | --hosts N] COMMAND…\n");
        return EXIT_FAILURE;
    }
    if (rank) return be_rank(argv + 2);
    return counted ? run((int)strtol(argv[2], NULL, 10), argv + 3) : run(2, argv + 1);
}
