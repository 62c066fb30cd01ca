/* SPDX-License-Identifier: Apache-2.0 */
/* The log: lines that the library writes about its work, and their destination. */
#ifndef EXPAR_LOG_H
#define EXPAR_LOG_H

#include <stdint.h>

#include <expar/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The importance of a line. EXPAR_LOG says up to which level lines are written, also to a sink; "warn" by default. A
 * public call that fails is logged once, at info, with the place where the error arose. */
typedef enum expar_log_level {
    EXPAR_LOG_ERROR = 0,
    EXPAR_LOG_WARN = 1,
    EXPAR_LOG_INFO = 2,
    EXPAR_LOG_DEBUG = 3,
    EXPAR_LOG_TRACE = 4
} expar_log_level;

/* Takes one line. `rank` is the rank that it is about; -1 if none is known. `place` is file and line of the sources,
   "src/boot/meet/mesh.c:81". `text` has no level, rank or place, no control characters and no newline. Both last until
   the sink returns.

   Any thread of the process calls the sink, also threads of the library, and several at once. The logging operation
   continues only when the sink has returned. So the sink must wait neither for another rank nor for a thread that is in
   a call of expar. It must not end by longjmp or an exception. It may make calls that do not communicate. Lines that
   such calls log go to the file or to stderr, as without a sink. The error text of the logging thread is kept. */
typedef void (*expar_log_fn)(void *context, expar_log_level level, int32_t rank, const char *place, const char *text);

/* Sends all lines from now on to the sink, each by one call of fn(context, …). With fn NULL they go to the file that
   EXPAR_LOG_FILE names, or to stderr, as at first. When this returns, the earlier sink is not running any more and will
   not be called again, so its context may be freed. If a sink calls this, it does not wait for sinks that other threads
   are in. A process has one sink. Any thread. */
EXPAR_API void expar_log_set(expar_log_fn fn, void *context);

#ifdef __cplusplus
}
#endif
#endif
