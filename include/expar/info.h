/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about the library itself, for tools that show them. */
#ifndef EXPAR_INFO_H
#define EXPAR_INFO_H

#include <expar/status.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The environment variable number `index` (0, 1, …): its name, the values it takes, what holds when it is unset, and
   what it means. False when there are no more; nothing is written then. Any of the pointers may be NULL (not wanted).
   Static storage. Any thread. */
EXPAR_API bool expar_env_describe(size_t index, const char **name, const char **values, const char **fallback,
                                  const char **meaning);

#ifdef __cplusplus
}
#endif
#endif
