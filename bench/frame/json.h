/* SPDX-License-Identifier: Apache-2.0 */
/* json: what all results have alike in their JSON. */
#ifndef EXPAR_BENCH_FRAME_JSON_H
#define EXPAR_BENCH_FRAME_JSON_H

#include <jansson.h>
#include <stdbool.h>

/* One value by itself, several as a list. Takes the list over. */
json_t *bench_json_one_or_list(json_t *list);
/* The object that a run prints: the machine, with its GPUs if cuda, and what it takes over. */
void bench_json_print(bool cuda, json_t *config, json_t *results);

#endif
