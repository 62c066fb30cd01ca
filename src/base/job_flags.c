/* SPDX-License-Identifier: Apache-2.0 */
/* The flag that tells the launcher that an error of this rank follows from another rank. */
#include "base/job_flags.h"
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* True if the path is a link to the flags of a launcher. */
static bool is_job_flags(const char *path)
{
    static const char name[] = "/memfd:" JOB_FLAGS_NAME;
    char target[sizeof name + 1];
    const ssize_t length = readlink(path, target, sizeof target);
    return length >= (ssize_t)(sizeof name - 1) && memcmp(target, name, sizeof name - 1) == 0;
}

void job_flag_set(void)
{
    const int number = errno;
    const char *path = env_string(JOB_FLAGS_VARIABLE), *rank_text = env_string("EXPAR_RANK");
    const long rank = rank_text ? strtol(rank_text, NULL, 10) : -1;
    if (path && rank >= 0 && is_job_flags(path)) {
        struct stat status;
        const int file = open(path, O_WRONLY | O_CLOEXEC);
        if (file >= 0 && fstat(file, &status) == 0 && rank < status.st_size) {
            const ssize_t written = pwrite(file, "\1", 1, rank);
            (void)written;
        }
        if (file >= 0) close(file);
    }
    errno = number;
}
