/* SPDX-License-Identifier: Apache-2.0 */
/* Enumerations of arguments by the names of their values: the tables, and the texts that are made of them. */
#include "ep/call/names.h"
#include "base/base.h"

#include <expar/ep.h>
#include <expar/low_latency.h>
#include <stdio.h>
#include <string.h>

#define NAMES(name, ...)                                                                                               \
    static const char *const name##_words[] = {__VA_ARGS__};                                                           \
    const ep_names ep_names_##name = {name##_words, (int32_t)ARRAY_LENGTH(name##_words)}

NAMES(path, [EXPAR_EP_PATH_AUTO] = "AUTO", [EXPAR_EP_PATH_DIRECT] = "DIRECT", [EXPAR_EP_PATH_QUEUE] = "QUEUE");
NAMES(sum_order, [EXPAR_EP_SUM_ORDER_BY_RANK] = "BY_RANK", [EXPAR_EP_SUM_ORDER_BY_SLOT] = "BY_SLOT",
      [EXPAR_EP_SUM_ORDER_EACH_SLOT] = "EACH_SLOT");
NAMES(weights_of, [EXPAR_EP_WEIGHTS_OF_ALL] = "ALL", [EXPAR_EP_WEIGHTS_OF_OWNER] = "OWNER");
NAMES(nodes_sum, [EXPAR_EP_NODES_SUM_ROUNDED] = "ROUNDED", [EXPAR_EP_NODES_SUM_EXACT] = "EXACT",
      [EXPAR_EP_NODES_SUM_ONE_ORDER] = "ONE_ORDER", [EXPAR_EP_NODES_SUM_OWN_FIRST] = "OWN_FIRST");
NAMES(format, [EXPAR_LL_FORMAT_PLAIN] = "PLAIN", [EXPAR_LL_FORMAT_FP8] = "FP8",
      [EXPAR_LL_FORMAT_FP8_ROUND] = "FP8_ROUND", [EXPAR_LL_FORMAT_FP8_UE8M0] = "FP8_UE8M0",
      [EXPAR_LL_FORMAT_INT8] = "INT8", [EXPAR_LL_FORMAT_LOGFMT] = "LOGFMT", [EXPAR_LL_FORMAT_NVFP4] = "NVFP4");
NAMES(sum, [EXPAR_LL_SUM_EXACT] = "EXACT", [EXPAR_LL_SUM_REDUCED] = "REDUCED");
/* Sets of sums, as bits. */
NAMES(sums, "none", "EXACT", "REDUCED", "EXACT | REDUCED");
NAMES(part, [EXPAR_EP_PART_X] = "X", [EXPAR_EP_PART_SCALES] = "SCALES", [EXPAR_EP_PART_TOPK_IDX] = "TOPK_IDX",
      [EXPAR_EP_PART_TOPK_WEIGHTS] = "TOPK_WEIGHTS", [EXPAR_EP_PART_ROW_MAP] = "ROW_MAP",
      [EXPAR_EP_PART_SRC_TOKEN] = "SRC_TOKEN", [EXPAR_EP_PART_COUNT] = "COUNT",
      [EXPAR_EP_PART_ROW_WEIGHTS] = "ROW_WEIGHTS", [EXPAR_EP_PART_SRC_METADATA] = "SRC_METADATA");
NAMES(device, [EXPAR_CPU] = "CPU", [EXPAR_CUDA] = "CUDA");
NAMES(given, "absent", "given");

ep_name_text ep_tell(const ep_names *names, int64_t value)
{
    ep_name_text told;
    /* Compilers make enumerations without negative values unsigned: -1 comes as 2^32 - 1. */
    const int64_t number = names ? (int32_t)value : value;
    const char *name = names && number >= 0 && number < names->count ? names->names[number] : NULL;
    if (name)
        snprintf(told.text, sizeof told.text, "%s", name);
    else
        snprintf(told.text, sizeof told.text, "%lld", (long long)number);
    return told;
}

expar_status ep_check_named(const char *member, const ep_names *names, int64_t value, int32_t first, int32_t last)
{
    char expected[128];
    size_t used = 0;
    if (value >= first && value <= last) return EXPAR_OK;
    for (int32_t i = first; i <= last; i++)
        used += (size_t)snprintf(expected + used, sizeof expected - used, "%s%s",
                                 i == first  ? ""
                                 : i == last ? " or "
                                             : ", ",
                                 names->names[i]);
    return error_set(EXPAR_ERR_ARGUMENT, "%s is %s; expected %s", member, ep_tell(names, value).text, expected);
}

expar_status ep_check_agreed(const ep_agreed *members, size_t count, int32_t rank_of_a, int32_t rank_of_b)
{
    for (const ep_agreed *one = members; one < members + count; one++)
        if (one->a != one->b)
            return error_set(EXPAR_ERR_MISMATCH, "%s is %s on rank %d and %s on rank %d; expected the same",
                             one->member, ep_tell(one->names, one->a).text, rank_of_a, ep_tell(one->names, one->b).text,
                             rank_of_b);
    return EXPAR_OK;
}
