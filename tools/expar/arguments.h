/* SPDX-License-Identifier: Apache-2.0 */
/* arguments: reads the arguments of every subcommand and of expar-bench-mpi, by argp, with the `-np` that users of MPI
 * type. */
#ifndef EXPAR_TOOL_ARGUMENTS_H
#define EXPAR_TOOL_ARGUMENTS_H

#include <argp.h>

/* Calls argp_parse, with `-np N` read as `-n N`, as in MPI's launchers. Wrong usage ends the process with 64
   (EX_USAGE). */
error_t arguments_parse(const struct argp *argp, unsigned flags, int argc, char **argv, void *input);

#endif
