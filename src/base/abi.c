/* SPDX-License-Identifier: Apache-2.0 */
/* The table of public structs and enumerations, which the build makes (tools/abi). */
#include <expar/info.h>

static const char table[] = {
#include "abi_text.h" /* made by cmake/abi.cmake */
    0};

const char *expar_abi(void)
{
    return table;
}
