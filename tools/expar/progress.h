/* SPDX-License-Identifier: Apache-2.0 */
/* progress: one line on stderr that says what is being done, for a person who waits. */
#ifndef EXPAR_TOOL_PROGRESS_H
#define EXPAR_TOOL_PROGRESS_H

/* In place of the line before. Nothing where stderr is no terminal that can erase lines. */
void progress_say(const char *what);
/* Erases the line, where there is one: before anything else is printed. Both by one thread. */
void progress_clear(void);

#endif
