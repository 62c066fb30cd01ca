/* SPDX-License-Identifier: Apache-2.0 */
/* base: what every layer stands on: errors with text, log, clock, environment, checked sizes, small helpers.
 *
 * Called by all layers; calls nothing but libc. Everything here is private to the library. */
#ifndef EXPAR_BASE_BASE_H
#define EXPAR_BASE_BASE_H

#include <expar/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- errors (error.c) -------------------------------------------------------------------------------------------- */

/* Sets this thread's last error text and gives `status`: `return error_set(EXPAR_ERR_NULL, "expar_put: dest is NULL");`
   Log once, where it arises: the text goes to the log at level debug, with the place of the call. */
#define error_set(status, ...) error_is((error_text(__FILE__, __LINE__, __VA_ARGS__), (status)))
/* error_set with ": strerror(errno)" behind the text and EXPAR_ERR_SYSTEM as the status. */
#define error_errno(...) error_is((error_text_errno(__FILE__, __LINE__, __VA_ARGS__), EXPAR_ERR_SYSTEM))
/* Puts "prefix: " before the text that is there; returns status. For context added on the way up. Of EXPAR_OK there is
   no text, and none changes. */
expar_status error_prefix(expar_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Behind the macros, which are macros so that static checks see which status comes back. */
void error_text(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
void error_text_errno(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
static inline expar_status error_is(expar_status status)
{
    return status;
}
/* The bytes that one error text holds, its end included; longer ones are cut. */
#define ERROR_TEXT_BYTES 1024

/* Where an error arose: a file of the sources, static storage, and a line. */
typedef struct error_place {
    const char *file; /* NULL: not known */
    int line;
} error_place;

/* A status with the last error's text beside it: what keeps an error while something else may fail, for later calls, or
   for another thread (whoever shares one orders the accesses). Zero: no error. */
typedef struct error_kept {
    expar_status status;
    char text[ERROR_TEXT_BYTES]; /* "" when status is EXPAR_OK */
    error_place place;
    bool told; /* by error_tell */
} error_kept;
/* Keeps `status` and this thread's last error. */
void error_keep(error_kept *kept, expar_status status);
/* Makes the kept text this thread's last error again, without logging it a second time; returns the kept status.
   EXPAR_OK leaves the last error alone. */
expar_status error_restore(const error_kept *kept);
/* Around what may fail without the thread's being told: its last error, whatever it is, as if nothing had come between.
   They leave the status alone. */
void error_save(error_kept *kept);
void error_put_back(const error_kept *kept);

/* Every public call returns by one of these: `return call_ended(status)`, or, where the group is known, group_ended and
   what the layers above have of the kind. A call that fails is logged then, at info, once: with the place where the
   error arose, and this rank. So an error that a caller inside the library handles is not, and one that is handed up
   through several calls is not logged twice. */
expar_status error_tell(int32_t rank, expar_status status); /* behind them; rank -1: the thread's. Returns status */
static inline expar_status call_ended(expar_status status)
{
    return status == EXPAR_OK ? status : error_tell(-1, status);
}

/* ---- log (log.c, log_out.c, log_file.c) -------------------------------------------------------------------------- */

/* To the sink of expar_log_set, the file of EXPAR_LOG_FILE or stderr, one write a line:
   "expar 12:34:56.789 [rank 3] warn  src/boot/meet/mesh.c:81 text". Level from EXPAR_LOG: error, warn (default), info,
   debug, trace. A sink is the caller's code: lines are best written where no lock is held. */
typedef enum log_level { LOG_ERROR = 0, LOG_WARN, LOG_INFO, LOG_DEBUG, LOG_TRACE } log_level;
bool log_wants(log_level level);
void log_write(log_level level, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
#define LOG(level, ...)                                                                                                \
    do {                                                                                                               \
        if (log_wants(level)) log_write(level, __FILE__, __LINE__, __VA_ARGS__);                                       \
    } while (0)
/* The same of a rank that is known; -1: the thread's. */
void log_write_as(int32_t rank, log_level level, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* The rank that this thread logs as; -1 (at first): the process's. */
void log_set_rank(int32_t rank);
/* The same for this thread and all that have none; -1 (at first) prints none. */
void log_set_process_rank(int32_t rank);

/* ---- clock (clock.c) --------------------------------------------------------------------------------------------- */

/* CLOCK_MONOTONIC in nanoseconds: one clock for all processes of a host. */
int64_t clock_ns(void);
/* The same as of the system's last tick, 1 to 10 ms ago at most, for a third of what the clock itself takes. */
int64_t clock_coarse_ns(void);

/* ---- environment (env.c, env_table.h, env_unknown.c) ------------------------------------------------------------- */

/* One table of all EXPAR_* variables: name, what values it takes, default, meaning. `expar info --env`, the man page
   and the lookups below all use it; asking for a name that is not in it is an assertion failure. */
typedef struct env_entry {
    const char *name, *values, *fallback, *meaning;
} env_entry;
const env_entry *env_table(size_t *count);

/* NULL when unset or empty. */
const char *env_string(const char *name);
/* The same of a variable of other programs, which is not in the table. */
const char *env_foreign(const char *name);
/* Warns of EXPAR_… variables that the table has not, with the nearest name that it has: once a process, by whoever
   forms a group. */
void env_warn_unknown(void);
/* The name of the table that takes the fewest letters to make of this one; words behind a name that is whole count
   as three. */
const char *env_nearest(const char *name);
/* Around what sets variables, also in the depths of other libraries, while other threads may look some up. */
void env_change_begin(void);
void env_change_end(void);
/* Whole numbers; *value is untouched when unset. EXPAR_ERR_ARGUMENT names variable, text and the allowed range. */
expar_status env_int(const char *name, int64_t low, int64_t high, int64_t *value);
/* The same of a variable of other programs. */
expar_status env_foreign_int(const char *name, int64_t low, int64_t high, int64_t *value);
/* Bytes with an optional suffix K, M, G, T (powers of 1024). */
expar_status env_bytes(const char *name, uint64_t low, uint64_t high, uint64_t *value);
/* Seconds, fractions allowed ("0.5"), returned in milliseconds, ≥ 1. */
expar_status env_seconds_ms(const char *name, int64_t *milliseconds);

/* ---- public structs that begin with their size (give.c) ---------------------------------------------------------- */

/* Fills as much of *out, the call's argument `name`, as its struct_size says that there is. EXPAR_ERR_NULL;
   EXPAR_ERR_ARGUMENT: the size was not set by the macro that `init` names. */
expar_status struct_give(const char *call, const char *name, const char *init, const void *full, size_t full_bytes,
                         void *out);

/* ---- sizes and small helpers ------------------------------------------------------------------------------------- */

/* True on overflow, like the builtins. */
#define size_add_overflows(a, b, out) __builtin_add_overflow(a, b, out)
#define size_mul_overflows(a, b, out) __builtin_mul_overflow(a, b, out)

/* Rounds up to a power of two multiple; the caller has checked for overflow. */
static inline uint64_t align_up(uint64_t value, uint64_t alignment)
{
    return (value + alignment - 1) & ~(alignment - 1);
}

#define ARRAY_LENGTH(a) (sizeof(a) / sizeof((a)[0]))

#endif
