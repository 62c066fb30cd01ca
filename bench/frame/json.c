/* SPDX-License-Identifier: Apache-2.0 */
/* Values of JSON: lists of what was asked for, and numbers that may be absent. */
#include "bench/frame/json.h"

json_t *bench_json_one_or_list(json_t *list)
{
    if (json_array_size(list) != 1) return list;
    json_t *only = json_incref(json_array_get(list, 0));
    json_decref(list);
    return only;
}

json_t *bench_json_tokens(const struct bench_options *options)
{
    json_t *list = json_array();
    for (int i = 0; i < options->num_tokens; i++)
        json_array_append_new(list, json_integer(options->tokens[i]));
    return bench_json_one_or_list(list);
}

json_t *bench_json_dtypes(const struct bench_options *options)
{
    json_t *list = json_array();
    for (int i = 0; i < options->num_dtypes; i++)
        json_array_append_new(list, json_string(expar_dtype_string(options->dtypes[i])));
    return bench_json_one_or_list(list);
}

json_t *bench_json_real_or_null(bool there, double value)
{
    return there ? json_real(value) : json_null();
}
