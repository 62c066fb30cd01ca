/* SPDX-License-Identifier: Apache-2.0 */
/* What rank 0 shows: text as it comes, then the figures and the verdict; or one JSON object. */
#ifndef EXPAR_DEMO_REPORT_H
#define EXPAR_DEMO_REPORT_H

#include "generate.h"
#include "results.h"
#include <stdio.h>

typedef struct demo_printer {
    FILE *out;
    bool colour;
} demo_printer;

demo_printer demo_printer_for(FILE *out);

/* The head line and the first prompt; its continuation follows by the listener. */
void demo_report_start(const demo_printer *printer, const demo_task *task);
/* A generate_listener whose context is a demo_printer: prints the bytes of text 0 as they come. */
void demo_report_byte(void *printer, int32_t number, uint8_t byte);
/* The texts after the first. */
void demo_report_texts(const demo_printer *printer, const demo_results *results);
/* Tokens per second, load bars, bytes moved, and whether the texts equal the reference. */
void demo_report_figures(const demo_printer *printer, const demo_task *task, const demo_results *results);

/* One JSON object for all of it; false when it could not be written. */
bool demo_report_json(FILE *out, const demo_task *task, const demo_results *results);

#endif
