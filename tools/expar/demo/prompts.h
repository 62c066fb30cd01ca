/* SPDX-License-Identifier: Apache-2.0 */
/* The prompts of a run: given as text, taken from the end of a file, or the ones that the model was shipped with. */
#ifndef EXPAR_DEMO_PROMPTS_H
#define EXPAR_DEMO_PROMPTS_H

#include "config.h"

/* The number of bytes that are taken from the end of a file. */
#define PROMPT_FILE_BYTES 256
/* The largest number of prompts of one run. The ranks' reports to rank 0 then fit into one exchange. */
#define PROMPTS_MAX 256

typedef struct prompt {
    uint8_t *bytes;
    int32_t count;
} prompt;

typedef struct prompt_list {
    prompt *items;
    int32_t count;
} prompt_list;

bool prompt_list_add_text(prompt_list *list, const char *text, demo_error *error);
bool prompt_list_add_file(prompt_list *list, const char *path, demo_error *error);
bool prompt_list_add_shipped(prompt_list *list, const model_config *config, demo_error *error);
void prompt_list_free(prompt_list *list);

/* True if the model's context has `bytes` free places after every prompt. */
bool prompt_list_check(const prompt_list *list, int32_t bytes, const model_sizes *sizes, demo_error *error);

/* The shipped sample with this prompt and at least `bytes` bytes of continuation; NULL when there is none. */
const model_sample *prompt_find_shipped(const prompt *p, int32_t bytes, const model_config *config);

#endif
