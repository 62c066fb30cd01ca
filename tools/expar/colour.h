/* SPDX-License-Identifier: Apache-2.0 */
/* colour: decides whether escape sequences may be sent to a terminal. */
#ifndef EXPAR_TOOL_COLOUR_H
#define EXPAR_TOOL_COLOUR_H

#include <stdbool.h>

/* True if `fd` is a terminal that understands escape sequences. */
bool terminal_steered(int fd);
/* True if `fd` is such a terminal and the user has not turned colour off (NO_COLOR is set and not empty, see
   no-color.org). */
bool colour_wanted(int fd);

#endif
