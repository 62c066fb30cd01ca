/* SPDX-License-Identifier: Apache-2.0 */
/* log.h: a log line between its creation (log.c) and its output (log_out.c, log_file.c). Private to base. */
#ifndef EXPAR_BASE_LOG_H
#define EXPAR_BASE_LOG_H

#include "base/base.h"

#define LOG_LINE_BYTES (ERROR_TEXT_BYTES + 256)

typedef struct log_line {
    log_level level;
    /* -1: not known */
    int32_t rank;
    const char *file;
    int number;
    /* "expar 12:34:56.789 … text\n", cleaned */
    char whole[LOG_LINE_BYTES];
    /* length of it, the newline included */
    size_t bytes;
    /* where the text begins */
    size_t text_at;
} log_line;

/* Writes to the sink, or else as log_out_plainly does. */
void log_out(log_line *line);
/* Writes to the file that EXPAR_LOG_FILE names, or to stderr. */
void log_out_plainly(const log_line *line);

/* Returns the descriptor of the file for lines of this rank. -1: no file is asked for, or there is none, which has been
   reported on stderr. */
int log_file_of(int32_t rank);
/* A line could not be written to the file; this is reported once. */
void log_file_failed(int32_t rank);

#endif
