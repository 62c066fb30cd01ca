/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the kernel that changes words for the host, for an assembler. */
#include "shmem/changer.h"

#include <stdio.h>

int main(void)
{
    return fputs(changer_text, stdout) < 0;
}
