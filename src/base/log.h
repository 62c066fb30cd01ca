/* SPDX-License-Identifier: Apache-2.0 */
/* log.h: a line on its way from where it is made (log.c) to where it goes (log_out.c, log_file.c). Private to base. */
#ifndef EXPAR_BASE_LOG_H
#define EXPAR_BASE_LOG_H

#include "base/base.h"

#define LOG_LINE_BYTES (ERROR_TEXT_BYTES + 256)

typedef struct log_line {
    log_level level;
    int32_t rank; /* -1: not known */
    const char *file;
    int number;
    char whole[LOG_LINE_BYTES]; /* "expar 12:34:56.789 … text\n", cleaned */
    size_t bytes;               /* of it, the newline included */
    size_t text_at;             /* where the text begins */
} log_line;

/* To the sink, or where log_out_plainly puts it. */
void log_out(log_line *line);
/* To the file that EXPAR_LOG_FILE names, or to stderr. */
void log_out_plainly(const log_line *line);

/* The descriptor of the file that lines of this rank go to; -1: there is none, which has been said on stderr, or none
   is asked for. */
int log_file_of(int32_t rank);
/* A line could not be written to it: says so once. */
void log_file_failed(int32_t rank);

#endif
