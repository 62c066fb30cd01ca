/* SPDX-License-Identifier: Apache-2.0 */
/* The process of a software NIC, for test_process.c. usage: nic_process SOCKET */
#include "net/gda/nic/process.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    const nic_faults faults = {.seed = 9, .delay_turns = 1, .coalesce_one_in = 3, .rnr_retries = 3};
    if (argc != 2) return 64;
    if (nic_serve((int)strtol(argv[1], NULL, 10), &faults) == EXPAR_OK) return 0;
    fprintf(stderr, "%s\n", expar_last_error());
    return 1;
}
