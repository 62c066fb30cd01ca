/* SPDX-License-Identifier: Apache-2.0 */
/* base: the foundation of every layer: errors with text, log, clock, environment, checked sizes, small helpers.
 *
 * Called by all layers; calls only libc. Everything here is private to the library. */
#ifndef EXPAR_BASE_BASE_H
#define EXPAR_BASE_BASE_H

#include <expar/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- errors (error.c) -------------------------------------------------------------------------------------------- */

/* Sets this thread's last error text, and gives `status`:
 *     return error_set(EXPAR_ERR_NULL, "expar_put: dest is NULL");
 * Log an error once, where it arises. The text goes to the log at level debug, with the place of the call. */
#define error_set(status, ...) error_is((error_text(__FILE__, __LINE__, __VA_ARGS__), (status)))
/* error_set with ": strerror(errno)" at the end of the text and EXPAR_ERR_SYSTEM as the status. */
#define error_errno(...) error_is((error_text_errno(__FILE__, __LINE__, __VA_ARGS__), EXPAR_ERR_SYSTEM))
/* Puts "prefix: " before the present text, to add context on the way up; returns status. With EXPAR_OK it changes
   nothing. */
expar_status error_prefix(expar_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The functions of the macros above. Those are macros so that static checks see which status comes back. */
void error_text(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
void error_text_errno(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
static inline expar_status error_is(expar_status status)
{
    return status;
}
/* Size of an error text, its end included; longer ones are cut. */
#define ERROR_TEXT_BYTES 1024

/* The place where an error arose: a source file, in static storage, and a line. */
typedef struct error_place {
    const char *file; /* NULL: not known */
    int line;
} error_place;

/* A status and the text of its error. It keeps an error while something else may fail, for later calls, or for another
   thread; threads that share one must order their accesses. Zero: no error. */
typedef struct error_kept {
    expar_status status;
    /* "" when status is EXPAR_OK */
    char text[ERROR_TEXT_BYTES];
    error_place place;
    /* error_tell has logged it */
    bool told;
} error_kept;
/* Stores `status` and this thread's last error. */
void error_keep(error_kept *kept, expar_status status);
/* Makes the kept text this thread's last error again, without logging it a second time; returns the kept status.
   EXPAR_OK leaves the last error alone. */
expar_status error_restore(const error_kept *kept);
/* Around operations whose errors this thread shall not see: its last error is afterwards as it was before. They leave
   the status alone. */
void error_save(error_kept *kept);
void error_put_back(const error_kept *kept);

/* Every public call returns by one of these: `return call_ended(status)`, or, if the group is known, by group_ended and
   similar functions of the layers above. A failing call is then logged once, at info, with the place where the error
   arose, and this rank. So an error that a caller inside the library handles is not logged. One that is returned
   through several calls is not logged twice. */
expar_status error_tell(int32_t rank, expar_status status); /* rank -1: that of the thread. Returns status */
static inline expar_status call_ended(expar_status status)
{
    return status == EXPAR_OK ? status : error_tell(-1, status);
}

/* ---- log (log.c, log_out.c, log_file.c) -------------------------------------------------------------------------- */

/* Log lines go to the sink of expar_log_set, the file of EXPAR_LOG_FILE or stderr, one write for each line:
 *     expar 12:34:56.789 [rank 3] warn  src/boot/meet/mesh.c:81 text
 * EXPAR_LOG sets the level: error, warn (default), info, debug, trace. A sink is the caller's code, so do not log while
 * holding a lock. */
typedef enum log_level { LOG_ERROR = 0, LOG_WARN, LOG_INFO, LOG_DEBUG, LOG_TRACE } log_level;
bool log_wants(log_level level);
void log_write(log_level level, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
#define LOG(level, ...)                                                                                                \
    do {                                                                                                               \
        if (log_wants(level)) log_write(level, __FILE__, __LINE__, __VA_ARGS__);                                       \
    } while (0)
/* The same for a known rank; -1: that of the thread. */
void log_write_as(int32_t rank, log_level level, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* Sets the rank with which this thread logs; -1 (at first): the process's. */
void log_set_rank(int32_t rank);
/* Sets the rank for this thread and all threads that have none; -1 (at first) prints none. */
void log_set_process_rank(int32_t rank);

/* ---- clock (clock.c) --------------------------------------------------------------------------------------------- */

/* Returns CLOCK_MONOTONIC in nanoseconds: one clock for all processes of a host. */
int64_t clock_ns(void);
/* Returns the same clock at the system's last tick, 1 to 10 ms ago at most. It takes a third of the time of
   clock_ns. */
int64_t clock_coarse_ns(void);

/* ---- environment (env.c, env_table.h, env_unknown.c) ------------------------------------------------------------- */

/* One table of all EXPAR_* variables: name, allowed values, default, meaning. `expar info --env`, the man page and the
   lookups below all use it; asking for a name that is not in it is an assertion failure. */
typedef struct env_entry {
    const char *name, *values, *fallback, *meaning;
} env_entry;
const env_entry *env_table(size_t *count);

/* Returns NULL if the variable is unset or empty. */
const char *env_string(const char *name);
/* The same for a variable of other programs, which is not in the table. */
const char *env_foreign(const char *name);
/* Warns about unknown EXPAR_… variables and suggests the nearest known name, once per process, when a group forms. */
void env_warn_unknown(void);
/* Returns the name of the table that needs the fewest changed letters to become this one. Words after a whole name
   count as three letters. */
const char *env_nearest(const char *name);
/* Put these around code that sets variables, also deep in other libraries, while other threads may look some up. */
void env_change_begin(void);
void env_change_end(void);
/* Reads a whole number; *value is untouched if the variable is unset. EXPAR_ERR_ARGUMENT names variable, text and the
   allowed range. */
expar_status env_int(const char *name, int64_t low, int64_t high, int64_t *value);
/* The same for a variable of other programs. */
expar_status env_foreign_int(const char *name, int64_t low, int64_t high, int64_t *value);
/* Reads bytes with an optional suffix K, M, G, T (powers of 1024). */
expar_status env_bytes(const char *name, uint64_t low, uint64_t high, uint64_t *value);
/* Reads seconds, fractions allowed ("0.5"), and returns milliseconds, ≥ 1. */
expar_status env_seconds_ms(const char *name, int64_t *milliseconds);

/* ---- public structs that begin with their size (give.c) ---------------------------------------------------------- */

/* Fills as much of *out, the call's argument `name`, as its struct_size says that there is. EXPAR_ERR_NULL;
   EXPAR_ERR_ARGUMENT: the size was not set by the macro that `init` names. */
expar_status struct_give(const char *call, const char *name, const char *init, const void *full, size_t full_bytes,
                         void *out);

/* ---- sizes and small helpers ------------------------------------------------------------------------------------- */

/* Returns true on overflow, like the builtins. */
#define size_add_overflows(a, b, out) __builtin_add_overflow(a, b, out)
#define size_mul_overflows(a, b, out) __builtin_mul_overflow(a, b, out)

/* Rounds up to a power of two multiple; the caller has checked for overflow. */
static inline uint64_t align_up(uint64_t value, uint64_t alignment)
{
    return (value + alignment - 1) & ~(alignment - 1);
}

#define ARRAY_LENGTH(a) (sizeof(a) / sizeof((a)[0]))

#endif
