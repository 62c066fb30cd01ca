/* SPDX-License-Identifier: Apache-2.0 */
#include <expar/expar.h>
#include <stdio.h>

/* Lines with a prefix of the program's own. */
static void to_stream(void *context, expar_log_level level, int32_t rank, const char *place, const char *text)
{
    if (level <= EXPAR_LOG_WARN) fprintf(context, "comm[%d]: %s (%s)\n", (int)rank, text, place);
}

void log_to(FILE *stream)
{
    expar_log_set(to_stream, stream);
}
