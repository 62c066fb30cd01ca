/* SPDX-License-Identifier: Apache-2.0 */
/* The flags of ranks whose errors follow from another rank, in a file in memory. Ranks open it by its path in /proc.
 * Inherited descriptors would get lost in programs between the launcher and the rank. */
#include "base/job_flags.h"
#include "job.h"
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

void job_flags_open(struct job_flags *flags, int num_ranks)
{
    *flags = (struct job_flags){.file = memfd_create(JOB_FLAGS_NAME, MFD_CLOEXEC)};
    if (flags->file < 0) return;
    if (ftruncate(flags->file, num_ranks) == 0)
        snprintf(flags->path, sizeof flags->path, "/proc/%d/fd/%d", (int)getpid(), flags->file);
}

bool job_flags_read(const struct job_flags *flags, int rank)
{
    char set = 0;
    return flags->file >= 0 && pread(flags->file, &set, 1, rank) == 1 && set;
}

void job_flags_close(struct job_flags *flags)
{
    if (flags->file >= 0) close(flags->file);
    flags->file = -1;
}
