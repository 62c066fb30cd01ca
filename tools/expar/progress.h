/* SPDX-License-Identifier: Apache-2.0 */
/* progress: shows a waiting user on one line of stderr what is being done. */
#ifndef EXPAR_TOOL_PROGRESS_H
#define EXPAR_TOOL_PROGRESS_H

/* Shows a line in place of the one before. It does nothing if stderr is no terminal that can erase lines. */
void progress_say(const char *what);
/* Erases the line, if there is one. Call this before anything else is printed. Calls must not overlap. */
void progress_clear(void);

#endif
