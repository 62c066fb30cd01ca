/* SPDX-License-Identifier: Apache-2.0 */
/* Computing the reference, and comparing. */
#include "reference.h"

#include "generate.h"
#include <string.h>

static void compare(demo_text *text, const sequence *reference)
{
    text->differs_at = -1;
    for (int32_t i = text->count - 1; i >= 0; i--)
        if (text->bytes[i] != reference->text[i]) text->differs_at = i;
    if (text->differs_at >= 0) {
        text->reference_byte = reference->text[text->differs_at];
        text->reference_gap = reference->gaps[text->differs_at];
    }
}

static void compare_shipped(demo_text *text, const model_sample *shipped)
{
    int32_t grown = text->count - text->prompt_bytes;
    text->has_shipped = shipped != NULL;
    text->equals_shipped = shipped && memcmp(text->bytes + text->prompt_bytes, shipped->greedy, (size_t)grown) == 0;
}

/* Makes the experts of prefill and decode. Prefill sums by node. Decode does so, too, except in low-latency mode, which
   has no sums by node. */
static bool create_experts(const demo_task *task, const model *m, moe *experts[2], demo_error *error)
{
    const int32_t decode_nodes = task->low_latency ? 1 : task->nodes;
    return moe_local_create(m, task->ranks, task->nodes, &experts[0], error) &&
           moe_local_create(m, task->ranks, decode_nodes, &experts[1], error);
}

/* Generates with these experts of prefill and decode, on this rank alone. */
static bool generate_all(const demo_task *task, const model *m, moe *const experts[2], const sequence_list *texts,
                         demo_error *error)
{
    forward *f = NULL;
    const generate_plan plan = {.texts = texts,
                                .prefill = experts[0],
                                .decode = experts[1],
                                .prefill_rounds = texts->count,
                                .bytes = task->bytes};
    if (!forward_create(m, generate_max_rows(texts), &f, error)) return false;
    bool ok = generate_run(f, &plan, error);
    forward_free(f);
    return ok;
}

bool demo_reference_compare(const demo_task *task, demo_results *results, demo_error *error)
{
    const model_sizes *sizes = &task->config.sizes;
    compute *c = NULL;
    model *m = NULL;
    moe *experts[2] = {NULL};
    sequence_list texts = {0};
    bool ok = compute_cpu.create(sizes, 0, 1, &c, error) &&
              model_load(task->directory, c, 0, sizes->experts, &m, error) && create_experts(task, m, experts, error) &&
              demo_task_sequences(task, c, 0, 1, &texts, error) && generate_all(task, m, experts, &texts, error);
    for (int32_t i = 0; ok && i < results->num_texts; i++) {
        compare(&results->texts[i], texts.items[i]);
        compare_shipped(&results->texts[i], prompt_find_shipped(&task->prompts.items[i], task->bytes, &task->config));
    }
    sequence_list_free(&texts);
    for (int i = 0; i < 2; i++)
        if (experts[i]) experts[i]->free(experts[i]);
    model_free(m);
    compute_free(c);
    return ok;
}
