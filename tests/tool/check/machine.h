/* SPDX-License-Identifier: Apache-2.0 */
/* machine: a folder with small files in place of /proc and /sys, and what a check says about it. */
#ifndef TESTS_TOOL_CHECK_MACHINE_H
#define TESTS_TOOL_CHECK_MACHINE_H

#include "check/check.h"

/* Makes an empty machine in a new folder, and removes it; cmocka set-up and tear-down. *state is a struct machine. */
int machine_setup(void **state);
int machine_teardown(void **state);

struct machine {
    char folder[64], proc[80], sys[80], shm[80];
    struct check_site site;
    json_t *rows;
};

/* Writes a file, and the folders that lead to it, at a path below the machine's folder: "proc/self/status". */
void machine_put(const struct machine *machine, const char *path, const char *text);
/* Makes a symbolic link. */
void machine_link(const struct machine *machine, const char *path, const char *target);
/* A host with two CPUs, one NUMA node, generous limits and nothing wrong. */
void machine_put_sound(const struct machine *machine);
/* Drops the rows so far. */
void machine_forget(struct machine *machine);

/* Asserts that a row has this status, and that its value and remedy contain these texts; NULL: any. A row that is not
   ok must have an expectation, and a warning or failure a remedy. */
void row_assert(const json_t *rows, const char *name, enum check_status status, const char *value, const char *remedy);

#endif
