/* SPDX-License-Identifier: Apache-2.0 */
/* A program of somebody else: makes a group of one rank and says what it runs on. */
#include <expar/expar.h>
#include <stdio.h>
#include <string.h>

#if EXPAR_VERSION_CODE < 100 || EXPAR_VERSION_CODE / 10000 != EXPAR_VERSION_MAJOR
#error "EXPAR_VERSION_CODE is no number for the preprocessor"
#endif

/* The library that runs is of the version that this program was built with. */
static int version_fits(void)
{
    char built[32];
    snprintf(built, sizeof built, "%d.%d.%d", EXPAR_VERSION_MAJOR, EXPAR_VERSION_MINOR, EXPAR_VERSION_PATCH);
    return strcmp(built, expar_version()) == 0 &&
           EXPAR_VERSION_CODE == EXPAR_VERSION_MAJOR * 10000 + EXPAR_VERSION_MINOR * 100 + EXPAR_VERSION_PATCH;
}

int main(void)
{
    if (!version_fits()) return 2;
    expar_group *group = NULL;
    expar_status status = expar_group_create(NULL, &group);
    if (status != EXPAR_OK) {
        fprintf(stderr, "%s: %s\n", expar_status_string(status), expar_last_error());
        return 1;
    }
    printf("expar %s, rank %d of %d\n", expar_version(), expar_group_rank(group), expar_group_size(group));
    return expar_group_destroy(group) != EXPAR_OK;
}
