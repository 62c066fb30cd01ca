/* SPDX-License-Identifier: Apache-2.0 */
/* json: the parts that the JSON of all results has. */
#ifndef EXPAR_BENCH_FRAME_JSON_H
#define EXPAR_BENCH_FRAME_JSON_H

#include "bench/frame/options.h"
#include <jansson.h>
#include <stdbool.h>

/* Returns the value of a list with one, else the list. Takes ownership of the list. */
json_t *bench_json_one_or_list(json_t *list);
/* The version of the form. It grows when a member changes its meaning or goes; new members leave it as it is. */
#define BENCH_JSON_SCHEMA 1
/* Returns the object of a run: version of the form, date, command, machine with its load, config and results. Takes
   ownership of config and results. NULL: memory ran out. */
json_t *bench_json_object(const struct bench_options *options, json_t *config, json_t *results);

#endif
