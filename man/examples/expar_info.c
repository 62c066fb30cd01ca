/* SPDX-License-Identifier: Apache-2.0 */
#include <expar/expar.h>
#include <stdio.h>

/* All environment variables of the library. */
void list_variables(void)
{
    const char *name, *meaning;
    for (size_t i = 0; expar_env_describe(i, &name, NULL, NULL, &meaning); i++)
        printf("%s: %s\n", name, meaning);
}
