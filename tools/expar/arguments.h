/* SPDX-License-Identifier: Apache-2.0 */
/* arguments: how every subcommand, and expar-bench-mpi, has its arguments read: by argp, and with what MPI's users
 * type. */
#ifndef EXPAR_TOOL_ARGUMENTS_H
#define EXPAR_TOOL_ARGUMENTS_H

#include <argp.h>

/* argp_parse, which takes `-np N` as `-n N`, as MPI's launchers do. Wrong usage ends the process with 64 (EX_USAGE). */
error_t arguments_parse(const struct argp *argp, unsigned flags, int argc, char **argv, void *input);

#endif
