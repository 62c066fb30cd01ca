/* SPDX-License-Identifier: Apache-2.0 */
/* colour: what a terminal may be sent besides text. */
#ifndef EXPAR_TOOL_COLOUR_H
#define EXPAR_TOOL_COLOUR_H

#include <stdbool.h>

/* `fd` is a terminal that takes escape sequences. */
bool terminal_steered(int fd);
/* For people alone: such a terminal, and nobody has asked for none (NO_COLOR set and not empty, as
   no-color.org has it). */
bool colour_wanted(int fd);

#endif
