/* SPDX-License-Identifier: Apache-2.0 */
/* The results' memory, and the comparison with the reference. */
#include "results.h"

#include <stdlib.h>
#include <string.h>

bool demo_results_create(const demo_task *task, demo_results *results, demo_error *error)
{
    demo_results r = {.num_experts = task->config.sizes.experts};
    r.texts = demo_calloc(error, (size_t)task->prompts.count, sizeof *r.texts);
    r.expert_load = demo_calloc(error, (size_t)r.num_experts, sizeof *r.expert_load);
    bool ok = r.texts && r.expert_load;
    for (int32_t i = 0; ok && i < task->prompts.count; i++) {
        const prompt *p = &task->prompts.items[i];
        demo_text *text = &r.texts[i];
        text->prompt_bytes = p->count;
        text->count = p->count + task->bytes;
        text->bytes = demo_calloc(error, (size_t)text->count, 1);
        r.num_texts += (ok = text->bytes != NULL);
    }
    if (!ok) {
        demo_results_free(&r);
        return false;
    }
    *results = r;
    return true;
}

void demo_results_free(demo_results *results)
{
    for (int32_t i = 0; i < results->num_texts; i++)
        free(results->texts[i].bytes);
    free(results->texts);
    free(results->expert_load);
    *results = (demo_results){0};
}

demo_verdict demo_results_judge(const demo_results *results)
{
    demo_verdict verdict = {0};
    for (int32_t i = 0; i < results->num_texts; i++) {
        verdict.equal += results->texts[i].differs_at < 0;
        verdict.shipped += results->texts[i].has_shipped;
        verdict.equal_shipped += results->texts[i].equals_shipped;
    }
    return verdict;
}

bool demo_results_match(const demo_results *results)
{
    demo_verdict verdict = demo_results_judge(results);
    return verdict.equal == results->num_texts && verdict.equal_shipped == verdict.shipped;
}
