/* SPDX-License-Identifier: Apache-2.0 */
/* arguments: reads the arguments of every subcommand and of expar-bench-mpi, by argp, with the `-np` that users of MPI
 * type. */
#ifndef EXPAR_TOOL_ARGUMENTS_H
#define EXPAR_TOOL_ARGUMENTS_H

#include <argp.h>

/* Options of every subcommand, for --help, the man pages and completion; ends with {0}. */
extern const struct argp_option arguments_common[];

/* Calls argp_parse, with the common options, and with `-np N` read as `-n N`, as in MPI's launchers. Wrong usage ends
   the process with 64 (EX_USAGE). */
error_t arguments_parse(const struct argp *argp, unsigned flags, int argc, char **argv, void *input);

#endif
