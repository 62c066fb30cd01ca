/* SPDX-License-Identifier: Apache-2.0 */
/* Reading config.json. Every member is checked against what the kernels and buffers can hold. */
#include "config.h"

#include "base/shown.h"

#include "kernels.h"
#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct int_member {
    const char *name;
    size_t offset;
    int32_t low, high, multiple;
} int_member;

static const int_member int_members[] = {
    {"vocab", offsetof(model_sizes, vocab), 256, 256, 1},
    {"hidden", offsetof(model_sizes, hidden), KERNEL_COLUMN_BLOCK, 8192, KERNEL_COLUMN_BLOCK},
    {"layers", offsetof(model_sizes, layers), 1, 128, 1},
    {"heads", offsetof(model_sizes, heads), 1, 128, 1},
    {"experts", offsetof(model_sizes, experts), KERNEL_COLUMN_BLOCK, 1024, KERNEL_COLUMN_BLOCK},
    {"top_k", offsetof(model_sizes, top_k), 1, MODEL_MAX_TOP_K, 1},
    {"expert_ffn", offsetof(model_sizes, expert_ffn), KERNEL_COLUMN_BLOCK, 32768, KERNEL_COLUMN_BLOCK},
    {"context", offsetof(model_sizes, context), 2, 65536, 1},
};

static bool parse_int(const char *path, const json_t *root, const int_member *member, model_sizes *sizes,
                      demo_error *error)
{
    const json_t *value = json_object_get(root, member->name);
    json_int_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < member->low || number > member->high || number % member->multiple)
        return demo_fail(error, "%s: '%s' must be a whole number from %d to %d, a multiple of %d", path, member->name,
                         member->low, member->high, member->multiple);
    int32_t narrow = (int32_t)number;
    memcpy((char *)sizes + member->offset, &narrow, sizeof narrow);
    return true;
}

static bool parse_real(const char *path, const json_t *root, const char *name, double low, double high, float *out,
                       demo_error *error)
{
    const json_t *value = json_object_get(root, name);
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= low && number <= high))
        return demo_fail(error, "%s: '%s' must be a number from %g to %g", path, name, low, high);
    *out = (float)number;
    return true;
}

static bool parse_sizes(const char *path, const json_t *root, model_sizes *sizes, demo_error *error)
{
    for (size_t i = 0; i < sizeof int_members / sizeof int_members[0]; i++)
        if (!parse_int(path, root, &int_members[i], sizes, error)) return false;
    if (!parse_real(path, root, "rms_eps", 1e-12, 1e-1, &sizes->rms_eps, error) ||
        !parse_real(path, root, "rope_theta", 1.0, 1e9, &sizes->rope_theta, error))
        return false;
    if (sizes->hidden % sizes->heads || sizes->hidden / sizes->heads % KERNEL_COLUMN_BLOCK)
        return demo_fail(error, "%s: 'hidden' %d over 'heads' %d must give heads of a multiple of %d", path,
                         sizes->hidden, sizes->heads, KERNEL_COLUMN_BLOCK);
    if (sizes->top_k > sizes->experts)
        return demo_fail(error, "%s: 'top_k' %d is more than 'experts' %d", path, sizes->top_k, sizes->experts);
    return true;
}

static bool copy_bytes(const json_t *list, uint8_t *bytes)
{
    size_t index;
    const json_t *value;
    json_array_foreach(list, index, value)
    {
        json_int_t number = json_integer_value(value);
        if (!json_is_integer(value) || number < 0 || number > 255) return false;
        bytes[index] = (uint8_t)number;
    }
    return true;
}

static bool parse_sample(const char *path, size_t number, const json_t *entry, int32_t context, model_sample *sample,
                         demo_error *error)
{
    const json_t *prompt = json_object_get(entry, "prompt");
    const json_t *greedy = json_object_get(entry, "bytes");
    size_t prompt_bytes = json_string_length(prompt), greedy_bytes = json_array_size(greedy);
    if (prompt_bytes == 0 || greedy_bytes == 0 || prompt_bytes + greedy_bytes > (size_t)context)
        return demo_fail(error, "%s: generations[%zu] needs 'prompt' and 'bytes', together at most %d bytes", path,
                         number, context);
    sample->prompt = demo_alloc(error, prompt_bytes);
    sample->greedy = demo_alloc(error, greedy_bytes);
    if (!sample->prompt || !sample->greedy) return false;
    memcpy(sample->prompt, json_string_value(prompt), prompt_bytes);
    if (!copy_bytes(greedy, sample->greedy))
        return demo_fail(error, "%s: generations[%zu].bytes must be numbers from 0 to 255", path, number);
    sample->prompt_bytes = (int32_t)prompt_bytes;
    sample->greedy_bytes = (int32_t)greedy_bytes;
    return true;
}

static bool parse_samples(const char *path, const json_t *root, model_config *config, demo_error *error)
{
    const json_t *list = json_object_get(root, "generations");
    size_t count = json_array_size(list);
    if (count == 0 || count > 64) return demo_fail(error, "%s: 'generations' must be a list of 1 to 64 prompts", path);
    config->samples = demo_calloc(error, count, sizeof *config->samples);
    if (!config->samples) return false;
    for (size_t i = 0; i < count; i++) {
        config->num_samples = (int32_t)i + 1;
        if (!parse_sample(path, i, json_array_get(list, i), config->sizes.context, &config->samples[i], error))
            return false;
    }
    return true;
}

bool model_config_load(const char *directory, model_config *config, demo_error *error)
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s/config.json", directory) >= (int)sizeof path)
        return demo_fail(error, "the path of the model is too long: %.64s...", directory);
    json_error_t trouble;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &trouble);
    if (!root) return demo_fail(error, "%s: line %d: %s", path, trouble.line, SHOWN(trouble.text));
    model_config parsed = {0};
    bool ok = parse_sizes(path, root, &parsed.sizes, error) && parse_samples(path, root, &parsed, error);
    json_decref(root);
    if (!ok) {
        model_config_free(&parsed);
        return false;
    }
    *config = parsed;
    return true;
}

void model_config_free(model_config *config)
{
    for (int32_t i = 0; i < config->num_samples; i++) {
        free(config->samples[i].prompt);
        free(config->samples[i].greedy);
    }
    free(config->samples);
    *config = (model_config){0};
}
