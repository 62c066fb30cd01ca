/* SPDX-License-Identifier: Apache-2.0 */
/* The report for programs. */
#include "report.h"
#include "utf8.h"

#include <jansson.h>
#include <stdlib.h>

/* Returns a new string, or NULL without memory. */
static json_t *text_json(const demo_text *text)
{
    char *clean = malloc((size_t)text->count * UTF8_REPLACEMENT_BYTES);
    if (!clean) return NULL;
    size_t bytes = utf8_clean(text->bytes, (size_t)text->count, clean);
    json_t *string = json_stringn(clean, bytes);
    free(clean);
    return string;
}

static json_t *texts_json(const demo_results *results)
{
    json_t *list = json_array();
    for (int32_t i = 0; list && i < results->num_texts; i++) {
        if (json_array_append_new(list, text_json(&results->texts[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *load_json(const demo_results *results)
{
    json_t *list = json_array();
    for (int32_t e = 0; list && e < results->num_experts; e++) {
        if (json_array_append_new(list, json_integer(results->expert_load[e])) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* true, false, or null where no text has a shipped continuation */
static json_t *shipped_json(const demo_verdict *verdict)
{
    return verdict->shipped ? json_boolean(verdict->equal_shipped == verdict->shipped) : json_null();
}

/* Returns the place where the first differing text departs from the reference, and how close the choice was there.
   Without a difference it is null. */
static json_t *difference_json(const demo_results *results)
{
    int32_t i = 0;
    while (i < results->num_texts && results->texts[i].differs_at < 0)
        i++;
    if (i == results->num_texts) return json_null();
    const demo_text *text = &results->texts[i];
    return json_pack("{si si si si sf}", "prompt", i + 1, "byte", text->differs_at, "is",
                     (int)text->bytes[text->differs_at], "expected", (int)text->reference_byte, "logit_gap",
                     (double)text->reference_gap);
}

static json_t *traffic_json(const moe_traffic *t)
{
    return json_pack("{sI sI sI}", "layers", (json_int_t)t->layers, "messages", (json_int_t)t->messages, "bytes",
                     (json_int_t)t->bytes);
}

static json_t *network_json(const demo_results *results)
{
    return json_pack("{so so}", "normal", traffic_json(&results->prefill), "low_latency",
                     traffic_json(&results->decode));
}

bool demo_report_json(FILE *out, const demo_task *task, const demo_results *results)
{
    double tokens = (double)results->num_texts * task->bytes;
    demo_verdict verdict = demo_results_judge(results);
    json_t *texts = texts_json(results), *load = load_json(results), *report = NULL;
    if (texts && load)
        report =
            json_pack("{sO sO sf sf sb so so ss ss ss ss sI si si sI sI sO}", "text", json_array_get(texts, 0), "texts",
                      texts, "tokens_per_second", tokens / results->seconds, "seconds", results->seconds,
                      "matches_reference", verdict.equal == results->num_texts, "first_difference",
                      difference_json(results), "matches_shipped", shipped_json(&verdict), "device", task->kind->name,
                      "prefill", "normal", "decode", task->low_latency ? "low_latency" : "normal", "path",
                      demo_path_name(results->path), "decode_heap_bytes", (json_int_t)demo_decode_bytes(task), "ranks",
                      task->ranks, "nodes", task->nodes, "bytes_moved", (json_int_t)results->bytes_moved,
                      "bytes_between_ranks", (json_int_t)results->bytes_between_ranks, "expert_load", load);
    if (report && task->nodes > 1) json_object_set_new(report, "network", network_json(results));
    bool ok = report && json_dumpf(report, out, JSON_INDENT(2)) == 0 && fputc('\n', out) != EOF;
    json_decref(report);
    json_decref(texts);
    json_decref(load);
    return ok;
}
