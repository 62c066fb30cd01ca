/* SPDX-License-Identifier: Apache-2.0 */
/* stop: how Ctrl-C ends a subcommand whose process is a rank, or has ranks as threads. */
#ifndef EXPAR_TOOL_STOP_H
#define EXPAR_TOOL_STOP_H

/* From now on the first SIGINT or SIGTERM ends this process's waits in the library, so that it leaves its group by
   itself. It ends 100 ms later in any case, and at once with a second such signal. Call this before any thread is
   started. */
void stop_listen(void);
/* The exit code of the process: 128 + the signal once one has come, else `code`. */
int stop_exit_code(int code);

#endif
