/* SPDX-License-Identifier: Apache-2.0 */
/* Prefill and decode. */
#include "generate.h"

#include <stdlib.h>

int64_t generate_max_rows(const sequence_list *texts)
{
    int64_t rows = texts->count > 1 ? texts->count : 1;
    for (int32_t i = 0; i < texts->count; i++)
        rows = texts->items[i]->prompt_bytes > rows ? texts->items[i]->prompt_bytes : rows;
    return rows;
}

/* Appends the byte with the largest logit; of equal ones, the lower byte. */
static uint8_t append_best(sequence *text, const float *logits, int32_t vocab)
{
    int32_t best = 0;
    float second = -__builtin_inff();
    for (int32_t i = 1; i < vocab; i++) {
        if (logits[i] > logits[best]) {
            second = logits[best];
            best = i;
        } else if (logits[i] > second) {
            second = logits[i];
        }
    }
    text->gaps[text->length] = logits[best] - second;
    text->text[text->length++] = (uint8_t)best;
    return (uint8_t)best;
}

/* The working memory of a run. */
typedef struct generate_state {
    forward *f;
    const generate_plan *plan;
    batch_row *rows; /* [generate_max_rows] */
    float *logits;   /* [V] */
    int32_t vocab;
} generate_state;

static bool grow(generate_state *s, int32_t number, int64_t row, demo_error *error)
{
    if (!forward_logits(s->f, row, s->logits, error)) return false;
    uint8_t byte = append_best(s->plan->texts->items[number], s->logits, s->vocab);
    if (s->plan->listener) s->plan->listener(s->plan->context, number, byte);
    return true;
}

static bool prefill(generate_state *s, int32_t round, demo_error *error)
{
    if (round >= s->plan->texts->count) return forward_run(s->f, s->plan->prefill, s->rows, 0, error);
    sequence *text = s->plan->texts->items[round];
    for (int32_t position = 0; position < text->prompt_bytes; position++)
        s->rows[position] = (batch_row){text, position};
    return forward_run(s->f, s->plan->prefill, s->rows, text->prompt_bytes, error) &&
           grow(s, round, text->prompt_bytes - 1, error);
}

static bool decode(generate_state *s, demo_error *error)
{
    for (int32_t i = 0; i < s->plan->texts->count; i++)
        s->rows[i] = (batch_row){s->plan->texts->items[i], s->plan->texts->items[i]->length - 1};
    if (!forward_run(s->f, s->plan->decode, s->rows, s->plan->texts->count, error)) return false;
    for (int32_t i = 0; i < s->plan->texts->count; i++)
        if (!grow(s, i, i, error)) return false;
    return true;
}

bool generate_run(forward *f, const generate_plan *plan, demo_error *error)
{
    generate_state s = {.f = f, .plan = plan, .vocab = forward_vocab(f)};
    int64_t max_rows = generate_max_rows(plan->texts);
    s.rows = demo_calloc(error, (size_t)max_rows, sizeof *s.rows);
    s.logits = demo_calloc(error, (size_t)s.vocab, sizeof *s.logits);
    bool ok = s.rows && s.logits;
    for (int32_t round = 0; ok && round < plan->prefill_rounds; round++)
        ok = prefill(&s, round, error);
    for (int32_t pass = 1; ok && pass < plan->bytes; pass++)
        ok = decode(&s, error);
    free(s.rows);
    free(s.logits);
    return ok;
}
