/* SPDX-License-Identifier: Apache-2.0 */
/* gda-nic: the process of a software NIC, which the transport gda starts with EXPAR_GDA_NIC=process. People do not
 * start it.
 * usage: gda-nic SOCKET PARENT */
#include "net/gda/nic/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { USAGE = 64 };

/* Descriptors that the rank has left open for other programs, as pipes, are not kept open here. */
static void close_others(int after)
{
#ifdef SYS_close_range
    syscall(SYS_close_range, (unsigned)after + 1, ~0u, 0u);
#else
    (void)after;
#endif
}

/* Returns -1 where the kernel has no such descriptors; then only the end of the connection counts. */
static int watch_process(long pid)
{
#ifdef SYS_pidfd_open
    return (int)syscall(SYS_pidfd_open, pid, 0);
#else
    (void)pid;
    return -1;
#endif
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: gda-nic SOCKET PARENT\nThe library starts this program for EXPAR_GDA_NIC=process.\n");
        return USAGE;
    }
    const int socket = (int)strtol(argv[1], NULL, 10);
    const long pid = strtol(argv[2], NULL, 10);
    close_others(socket);
    const int parent = watch_process(pid);
    if (getppid() != pid) return EXIT_SUCCESS; /* the rank is gone already */
    if (nic_serve(socket, parent) == EXPAR_OK) return EXIT_SUCCESS;
    fprintf(stderr, "expar: %s\n", expar_last_error());
    return EXIT_FAILURE;
}
