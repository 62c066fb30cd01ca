/* SPDX-License-Identifier: Apache-2.0 */
/* job_flags: tells the launcher of this job that an error of this rank follows from another rank. So the launcher can
 * name the rank that failed first, although the others may have exited earlier. The tool includes this header. */
#ifndef EXPAR_BASE_JOB_FLAGS_H
#define EXPAR_BASE_JOB_FLAGS_H

/* The launcher sets this variable to the path of its flags: a file in memory with one byte for each rank, zero at
   first. A rank stores 1 in its byte before the failing call returns. The launcher reads the byte after the rank has
   exited, so nothing else orders the two. */
#define JOB_FLAGS_VARIABLE "EXPAR_JOB_FLAGS"
/* The name of the file in memory. A rank writes to no other file, for example if a process of a container has the
   launcher's number. */
#define JOB_FLAGS_NAME "expar-job-flags"

/* Sets this rank's flag: a call of this process has failed because of another rank. It does nothing without a launcher.
   If it fails, the launcher goes by the order of the exits. errno stays as it is. */
void job_flag_set(void);

#endif
