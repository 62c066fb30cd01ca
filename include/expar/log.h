/* SPDX-License-Identifier: Apache-2.0 */
/* The log: what the library says of itself, and where it goes. */
#ifndef EXPAR_LOG_H
#define EXPAR_LOG_H

#include <stdint.h>

#include <expar/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How much a line matters. EXPAR_LOG says up to which level lines are written, also to a sink; "warn" by default. A
 * public call that fails is logged once, at info, with the place where the error arose. */
typedef enum expar_log_level {
    EXPAR_LOG_ERROR = 0,
    EXPAR_LOG_WARN = 1,
    EXPAR_LOG_INFO = 2,
    EXPAR_LOG_DEBUG = 3,
    EXPAR_LOG_TRACE = 4
} expar_log_level;

/* Takes one line. rank: the rank that it is about; -1 where none is known. place: file and line of the sources,
   "src/boot/meet/mesh.c:81". text: without level, rank or place, without control characters and without a newline. Both
   last until the sink returns. Called from any thread of the process, those of the library included, and by several at
   once. Whatever logs goes on when it has returned, so it must neither wait for another rank nor for a thread that is
   in a call of expar; it must not end by longjmp or an exception. It may call what does not communicate; what such
   calls log goes to the file or to stderr, as without a sink, and the error text of the thread that logs is kept. */
typedef void (*expar_log_fn)(void *context, expar_log_level level, int32_t rank, const char *place, const char *text);

/* All lines from now on go to the sink, each by one call of fn(context, …); fn NULL: to the file that EXPAR_LOG_FILE
   names, or to stderr, as at first. When this returns, the sink that was there before is not running any more and will
   not be called again, so that its context may be freed; called by a sink it does not wait for those that other threads
   are in. One sink a process. Any thread. */
EXPAR_API void expar_log_set(expar_log_fn fn, void *context);

#ifdef __cplusplus
}
#endif
#endif
