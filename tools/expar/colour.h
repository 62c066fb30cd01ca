/* SPDX-License-Identifier: Apache-2.0 */
/* colour: whether what is written may be coloured. */
#ifndef EXPAR_TOOL_COLOUR_H
#define EXPAR_TOOL_COLOUR_H

#include <stdbool.h>

/* For people alone: `fd` is a terminal that knows how, and nobody has asked for none (NO_COLOR set and not empty, as
   no-color.org has it). */
bool colour_wanted(int fd);

#endif
