/* SPDX-License-Identifier: Apache-2.0 */
/* bench_topics: the help of `expar bench`, by operation. */
#ifndef EXPAR_TOOL_BENCH_TOPICS_H
#define EXPAR_TOOL_BENCH_TOPICS_H

#include "command.h"

extern const struct command_topic bench_topics[];
/* The words of the options. */
extern const struct command_choice bench_choices[];

#endif
