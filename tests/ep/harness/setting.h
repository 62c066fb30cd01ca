/* SPDX-License-Identifier: Apache-2.0 */
/* One member of a call's arguments and the value that a case of bad input gives it: a row of a table. */
#ifndef TESTS_EP_HARNESS_SETTING_H
#define TESTS_EP_HARNESS_SETTING_H

#include <stddef.h>
#include <string.h>

typedef struct arg_setting {
    size_t offset, bytes; /* of the member in the arguments; 0 bytes: nothing is set */
    const void *value;
} arg_setting;

/* For tables at file scope: `value` is constant, and 0 for a tensor that is not given. */
#define SETTING(args, member, ...)                                                                                     \
    {                                                                                                                  \
        offsetof(args, member), sizeof(((args *)0)->member), &(const __typeof__(((args *)0)->member))                  \
        {                                                                                                              \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    }

static inline void setting_apply(const arg_setting *one, void *args)
{
    if (one->bytes) memcpy((char *)args + one->offset, one->value, one->bytes);
}

#endif
