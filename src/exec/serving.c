/* SPDX-License-Identifier: Apache-2.0 */
/* A serving as text. */
#include "exec/executor.h"

#include <string.h>

/* By ep_order. */
static const char *const orders[] = {"ascending", "rotated", "own_first", "spread"};

/* "/NUMBER", from low to high; *text is moved behind it. Where nothing is left the number stays as it is. */
static bool serving_number(const char **text, int32_t low, int32_t high, int32_t *number)
{
    int64_t value = 0;
    if (!**text) return true;
    if (*(*text)++ != '/' || !**text) return false;
    for (; **text >= '0' && **text <= '9' && value <= high; (*text)++)
        value = 10 * value + (**text - '0');
    *number = (int32_t)value;
    return value >= low && value <= high && (!**text || **text == '/');
}

bool exec_serving_read(const char *text, ep_serving *out)
{
    const size_t length = strcspn(text, "/");
    ep_serving serving = {0};
    for (; serving.order < (int32_t)ARRAY_LENGTH(orders); serving.order++)
        if (strlen(orders[serving.order]) == length && !strncmp(text, orders[serving.order], length)) break;
    text += length;
    if (serving.order == (int32_t)ARRAY_LENGTH(orders) || !serving_number(&text, 0, 1 << 20, &serving.rows) ||
        !serving_number(&text, 0, 31, &serving.own_warps) || *text)
        return false;
    *out = serving;
    return true;
}
