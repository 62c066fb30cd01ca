/* SPDX-License-Identifier: Apache-2.0 */
/* json: what the results of all operations have alike in their JSON. */
#ifndef EXPAR_BENCH_FRAME_JSON_H
#define EXPAR_BENCH_FRAME_JSON_H

#include "bench/frame/options.h"
#include <jansson.h>

/* One value by itself, several as a list. Takes the list over. */
json_t *bench_json_one_or_list(json_t *list);
/* What was asked for. */
json_t *bench_json_tokens(const struct bench_options *options);
json_t *bench_json_dtypes(const struct bench_options *options);
json_t *bench_json_real_or_null(bool there, double value);

#endif
