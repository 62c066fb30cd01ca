/* SPDX-License-Identifier: Apache-2.0 */
/* Collecting prompts. */
#include "prompts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool add(prompt_list *list, const uint8_t *bytes, size_t count, demo_error *error)
{
    if (count > 1 << 20) return demo_reject(error, "a prompt of %zu bytes is too long", count);
    if (list->count == PROMPTS_MAX) return demo_reject(error, "more than %d prompts", PROMPTS_MAX);
    prompt *items = realloc(list->items, ((size_t)list->count + 1) * sizeof *items);
    if (!items) return demo_fail(error, "out of memory");
    list->items = items;
    uint8_t *copy = demo_alloc(error, count);
    if (!copy) return false;
    memcpy(copy, bytes, count);
    items[list->count++] = (prompt){copy, (int32_t)count};
    return true;
}

bool prompt_list_add_text(prompt_list *list, const char *text, demo_error *error)
{
    if (!*text) return demo_reject(error, "--prompt '': an empty prompt has nothing to continue");
    return add(list, (const uint8_t *)text, strlen(text), error);
}

/* Reads the last PROMPT_FILE_BYTES bytes of a file, or the whole file if it is shorter. */
static bool read_end(const char *path, uint8_t bytes[PROMPT_FILE_BYTES], size_t *count, demo_error *error)
{
    FILE *file = fopen(path, "rb");
    if (!file) return demo_reject(error, "--file %s: %s", path, strerror(errno));
    bool ok = fseek(file, 0, SEEK_END) == 0;
    long size = ok ? ftell(file) : -1;
    ok = size >= 0 && fseek(file, size > PROMPT_FILE_BYTES ? size - PROMPT_FILE_BYTES : 0, SEEK_SET) == 0;
    *count = ok ? fread(bytes, 1, PROMPT_FILE_BYTES, file) : 0;
    ok = ok && !ferror(file);
    int trouble = errno;
    fclose(file);
    if (!ok) return demo_reject(error, "--file %s: cannot read its end: %s", path, strerror(trouble));
    if (*count == 0) return demo_reject(error, "--file %s: an empty file has nothing to continue", path);
    return true;
}

/* Returns the number of bytes at the start that belong to a cut UTF-8 character. */
static size_t cut_character(const uint8_t *bytes, size_t count)
{
    size_t cut = 0;
    while (cut < 3 && cut + 1 < count && (bytes[cut] & 0xc0) == 0x80)
        cut++;
    return cut;
}

bool prompt_list_add_file(prompt_list *list, const char *path, demo_error *error)
{
    uint8_t bytes[PROMPT_FILE_BYTES];
    size_t count = 0;
    if (!read_end(path, bytes, &count, error)) return false;
    size_t cut = cut_character(bytes, count);
    return add(list, bytes + cut, count - cut, error);
}

bool prompt_list_add_shipped(prompt_list *list, const model_config *config, demo_error *error)
{
    for (int32_t i = 0; i < config->num_samples; i++)
        if (!add(list, config->samples[i].prompt, (size_t)config->samples[i].prompt_bytes, error)) return false;
    return true;
}

void prompt_list_free(prompt_list *list)
{
    for (int32_t i = 0; i < list->count; i++)
        free(list->items[i].bytes);
    free(list->items);
    *list = (prompt_list){0};
}

bool prompt_list_check(const prompt_list *list, int32_t bytes, const model_sizes *sizes, demo_error *error)
{
    for (int32_t i = 0; i < list->count; i++)
        if (list->items[i].count > sizes->context - bytes)
            return demo_reject(
                error,
                "prompt %d has %d bytes, and %d more are to come: together they must fit into the model's "
                "context of %d; shorten it or ask for less with --bytes",
                i + 1, list->items[i].count, bytes, sizes->context);
    return true;
}

const model_sample *prompt_find_shipped(const prompt *p, int32_t bytes, const model_config *config)
{
    for (int32_t i = 0; i < config->num_samples; i++) {
        const model_sample *sample = &config->samples[i];
        if (sample->prompt_bytes == p->count && sample->greedy_bytes >= bytes &&
            memcmp(sample->prompt, p->bytes, (size_t)p->count) == 0)
            return sample;
    }
    return NULL;
}
