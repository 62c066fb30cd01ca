/* SPDX-License-Identifier: Apache-2.0 */
/* A program of somebody else: makes a group of one rank and says what it runs on. */
#include <expar/expar.h>
#include <stdio.h>

int main(void)
{
    expar_group *group = NULL;
    expar_status status = expar_group_create(NULL, &group);
    if (status != EXPAR_OK) {
        fprintf(stderr, "%s: %s\n", expar_status_string(status), expar_last_error());
        return 1;
    }
    printf("expar %s, rank %d of %d\n", expar_version(), expar_group_rank(group), expar_group_size(group));
    return expar_group_destroy(group) != EXPAR_OK;
}
