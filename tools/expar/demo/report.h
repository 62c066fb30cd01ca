/* SPDX-License-Identifier: Apache-2.0 */
/* Output of rank 0: text as it comes, then the figures and the result of the comparison; or one JSON object. */
#ifndef EXPAR_DEMO_REPORT_H
#define EXPAR_DEMO_REPORT_H

#include "generate.h"
#include "results.h"
#include <stdio.h>

typedef struct demo_printer {
    FILE *out;
    bool colour;
    const demo_task *task;
    bool started; /* printing of the first text has begun */
} demo_printer;

/* Makes a printer that uses colours only on a terminal. */
demo_printer demo_printer_for(FILE *out, const demo_task *task);

/* A generate_listener whose context is a demo_printer. It prints the bytes of text 0 as they come, and before them a
   head line and the prompt. */
void demo_report_byte(void *printer, int32_t number, uint8_t byte);
/* Ends the line in the middle of a text. */
void demo_report_break(const demo_printer *printer);
/* The texts after the first. */
void demo_report_texts(const demo_printer *printer, const demo_results *results);
/* Tokens per second, load bars, bytes moved, and whether the texts equal the reference. */
void demo_report_figures(const demo_printer *printer, const demo_results *results);

/* "auto", "direct", "queue" */
const char *demo_path_name(expar_ep_path path);
/* Returns the symmetric heap that decode's buffer takes on each rank; 0 in normal mode, where it uses prefill's
   buffer. */
size_t demo_decode_bytes(const demo_task *task);

/* Prints one JSON object with everything; false if it could not be written. */
bool demo_report_json(FILE *out, const demo_task *task, const demo_results *results);

#endif
