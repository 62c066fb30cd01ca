/* SPDX-License-Identifier: Apache-2.0 */
/* Namespaces and the cables between them. */
#include "netns/netns.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static bool write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0) close(fd);
    return written;
}

/* Without root the process becomes root in a user namespace of its own, where there may be some. */
static bool become_root(void)
{
    char users[32], groups[32];
    snprintf(users, sizeof users, "0 %u 1", (unsigned)geteuid());
    snprintf(groups, sizeof groups, "0 %u 1", (unsigned)getegid());
    return unshare(CLONE_NEWUSER) == 0 && write_file("/proc/self/setgroups", "deny") &&
           write_file("/proc/self/uid_map", users) && write_file("/proc/self/gid_map", groups);
}

/* A new namespace, which this process moves to. */
static int make_host(void)
{
    if (unshare(CLONE_NEWNET) != 0) return -1;
    return open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
}

static bool make_hosts(netns *self)
{
    self->hosts[0] = make_host();
    if (self->hosts[0] < 0 && errno == EPERM && become_root()) self->hosts[0] = make_host();
    bool made = self->hosts[0] >= 0;
    for (int host = 1; host < self->count && made; host++) {
        self->hosts[host] = make_host();
        made = self->hosts[host] >= 0;
    }
    if (made && setns(self->hosts[0], CLONE_NEWNET) == 0) return true;
    fprintf(stderr, "network namespaces are not allowed here: %s\n", strerror(errno));
    return false;
}

static void path_of(const netns *self, int host, char path[32])
{
    snprintf(path, 32, "/proc/%d/fd/%d", (int)getpid(), self->hosts[host]);
}

static bool lay_two_cables(const netns *self)
{
    char other[32];
    path_of(self, 1, other);
    for (int cable = 0; cable < 2; cable++) {
        if (!netns_command(self, 0, "ip link add net%d type veth peer name net%d netns %s", cable, cable, other))
            return false;
        for (int host = 0; host < 2; host++)
            if (!netns_command(self, host, "ip addr add 198.18.%d.%d/24 dev net%d && ip link set net%d up", cable,
                               host + 1, cable, cable))
                return false;
    }
    return true;
}

/* From each host to the bridge. */
static bool lay_star(const netns *self)
{
    if (!netns_command(self, 0, "ip link add net0 type bridge && ip addr add 198.18.0.1/24 dev net0")) return false;
    for (int host = 1; host < self->count; host++) {
        char path[32];
        path_of(self, host, path);
        if (!netns_command(self, 0,
                           "ip link add to%d type veth peer name net0 netns %s && ip link set to%d master net0 up",
                           host, path, host) ||
            !netns_command(self, host, "ip addr add 198.18.0.%d/24 dev net0 && ip link set net0 up", host + 1))
            return false;
    }
    return netns_command(self, 0, "ip link set net0 up");
}

static bool lay_cables(const netns *self)
{
    if (!(self->count == 2 ? lay_two_cables(self) : lay_star(self))) return false;
    for (int host = 0; host < self->count; host++)
        if (!netns_command(self, host, "ip link set lo up")) return false;
    return true;
}

bool netns_make_hosts(netns *self, int count)
{
    char all[32 * NETNS_MOST];
    size_t length = 0;
    if (count < 2 || count > NETNS_MOST) return false;
    self->count = count;
    if (!make_hosts(self) || !lay_cables(self)) return false;
    for (int host = 0; host < count; host++) {
        char path[32];
        path_of(self, host, path);
        length += (size_t)snprintf(all + length, sizeof all - length, "%s%s", host ? ":" : "", path);
    }
    return setenv(NETNS_VARIABLE, all, 1) == 0 && setenv("EXPAR_BOOTSTRAP_INTERFACE", NETNS_INTERFACE, 1) == 0;
}

bool netns_make(netns *self)
{
    return netns_make_hosts(self, 2);
}

void netns_drop(netns *self)
{
    for (int host = 0; host < self->count; host++)
        close(self->hosts[host]);
    unsetenv(NETNS_VARIABLE);
}

int netns_skip(void)
{
    const char *required = getenv("EXPAR_REQUIRE_NETNS");
    bool must = required && strcmp(required, "1") == 0;
    fprintf(stderr, must ? "failed: EXPAR_REQUIRE_NETNS=1 asks for network namespaces\n"
                         : "SKIPPED: no network namespaces on this machine (see above)\n");
    return must ? EXIT_FAILURE : NETNS_SKIPPED;
}

static _Noreturn void command_main(const netns *self, int host, char *command)
{
    char *const words[] = {"sh", "-c", command, NULL};
    dup2(STDERR_FILENO, STDOUT_FILENO);
    if (setns(self->hosts[host], CLONE_NEWNET) == 0) execv("/bin/sh", words);
    perror(command);
    _exit(EXIT_FAILURE);
}

bool netns_command(const netns *self, int host, const char *format, ...)
{
    char command[512] = "PATH=$PATH:/usr/sbin:/sbin; ";
    size_t used = strlen(command);
    int status = -1;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(command + used, sizeof command - used, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= sizeof command - used) return false;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) command_main(self, host, command);
    bool ran = pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
    if (!ran) fprintf(stderr, "on host %d: `%s` failed\n", host, command + used);
    return ran;
}
