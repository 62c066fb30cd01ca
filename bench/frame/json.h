/* SPDX-License-Identifier: Apache-2.0 */
/* json: the parts that the JSON of all results has. */
#ifndef EXPAR_BENCH_FRAME_JSON_H
#define EXPAR_BENCH_FRAME_JSON_H

#include <jansson.h>
#include <stdbool.h>

/* Returns the value of a list with one, else the list. Takes ownership of the list. */
json_t *bench_json_one_or_list(json_t *list);
/* Prints the object of a run. It includes the machine, and its GPUs if cuda. Takes ownership of config and results. */
void bench_json_print(bool cuda, json_t *config, json_t *results);

#endif
