/* SPDX-License-Identifier: Apache-2.0 */
/* Preparing a run: finding the model, and checking that the task is possible. */
#include "task.h"

#include "model.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool has_model(const char *directory)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/config.json", directory);
    return access(path, R_OK) == 0;
}

/* Returns <prefix>/share/expar/moe-lm if this program is <prefix>/bin/expar. */
static bool installed_directory(char *directory, size_t size)
{
    char program[4096];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0) return false;
    program[length] = '\0';
    for (int i = 0; i < 2; i++) {
        char *slash = strrchr(program, '/');
        if (!slash) return false;
        *slash = '\0';
    }
    return snprintf(directory, size, "%s/share/expar/moe-lm", program) < (int)size;
}

static bool find_model(demo_task *task, const char *given, demo_error *error)
{
    const size_t size = sizeof task->directory;
    if (given) {
        if (snprintf(task->directory, size, "%s", given) >= (int)size)
            return demo_reject(error, "--model: the path is too long");
        return has_model(given) || demo_reject(error, "--model %s: there is no config.json to read", given);
    }
    snprintf(task->directory, size, "%s", EXPAR_DEMO_SOURCE_DATA);
    if (has_model(task->directory)) return true;
    if (installed_directory(task->directory, size) && has_model(task->directory)) return true;
    return demo_fail(error, "the model is neither in %s nor in %s; --model names its folder", EXPAR_DEMO_SOURCE_DATA,
                     task->directory);
}

static bool check_ranks(const demo_task *task, demo_error *error)
{
    int32_t experts = task->config.sizes.experts;
    if (task->ranks >= 1 && task->ranks % task->nodes)
        return demo_reject(error, "--nodes %d: the %d ranks are shared out evenly, so it must divide %d", task->nodes,
                           task->ranks, task->ranks);
    if (task->ranks >= 1 && experts % task->ranks == 0) return true;
    return demo_reject(error,
                       "-n %d: the model's %d experts are shared out evenly, so the number of ranks must divide %d",
                       task->ranks, experts, experts);
}

bool demo_task_prepare(demo_task *task, const char *directory, demo_error *error)
{
    if (task->nodes == 0) task->nodes = 1;
    if (!find_model(task, directory, error) || !model_config_load(task->directory, &task->config, error) ||
        !check_ranks(task, error))
        return false;
    if (task->prompts.count == 0 && !prompt_list_add_shipped(&task->prompts, &task->config, error)) return false;
    return prompt_list_check(&task->prompts, task->bytes, &task->config.sizes, error) &&
           model_check(task->directory, &task->config.sizes, error);
}

void demo_task_free(demo_task *task)
{
    model_config_free(&task->config);
    prompt_list_free(&task->prompts);
}

int32_t demo_task_texts_of(const demo_task *task, int32_t rank)
{
    return (task->prompts.count - rank + task->ranks - 1) / task->ranks;
}

bool demo_task_sequences(const demo_task *task, compute *c, int32_t first, int32_t step, sequence_list *out,
                         demo_error *error)
{
    sequence_list list = {0};
    list.items = demo_calloc(error, (size_t)task->prompts.count, sizeof(sequence *));
    bool ok = list.items != NULL;
    for (int32_t i = first; ok && i < task->prompts.count; i += step) {
        const prompt *p = &task->prompts.items[i];
        ok = sequence_create(c, p->bytes, p->count, task->bytes, &list.items[list.count], error);
        list.count += ok;
    }
    if (!ok) {
        sequence_list_free(&list);
        return false;
    }
    *out = list;
    return true;
}
