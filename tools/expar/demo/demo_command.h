/* SPDX-License-Identifier: Apache-2.0 */
/* demo: a real MoE language model, spread over the ranks of a group, continues prompts.
 *
 * demo_command.c reads the options and starts the ranks. task.c knows the work; ranks.c is one rank of the run.
 * generate.c is its prefill and decode, forward.c the model's layers. The experts through dispatch and combine are in
 * moe_normal.c for prefill, in moe_low_latency.c for decode. The file reference.c does the same with moe_local.c, on
 * one rank without dispatch; report.c shows it. model.c, config.c and safetensors.c read the files. The demo calls the
 * library's public interface only. */
#ifndef EXPAR_DEMO_COMMAND_H
#define EXPAR_DEMO_COMMAND_H

#include "command.h"

extern const struct command command_demo;

#endif
