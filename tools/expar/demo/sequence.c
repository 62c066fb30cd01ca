/* SPDX-License-Identifier: Apache-2.0 */
/* Creating and freeing sequences. */
#include "sequence.h"

#include <stdlib.h>
#include <string.h>

static bool sequence_allocate(sequence *s, demo_error *error)
{
    compute *c = s->compute;
    size_t capacity = (size_t)s->capacity;
    size_t cache_bytes = (size_t)c->sizes.layers * capacity * (size_t)c->sizes.hidden * sizeof(float);
    s->text = demo_calloc(error, capacity, 1);
    s->keys = c->ops->alloc(c, cache_bytes, error);
    s->values = c->ops->alloc(c, cache_bytes, error);
    s->gaps = demo_calloc(error, capacity, sizeof(float));
    return s->text && s->keys && s->values && s->gaps;
}

bool sequence_create(compute *c, const uint8_t *prompt, int32_t prompt_bytes, int32_t bytes, sequence **out,
                     demo_error *error)
{
    if (prompt_bytes < 1 || bytes < 0 || prompt_bytes > c->sizes.context - bytes)
        return demo_fail(error, "a prompt of %d bytes and %d more do not fit: the model's context is %d bytes",
                         prompt_bytes, bytes, c->sizes.context);
    sequence *s = demo_calloc(error, 1, sizeof *s);
    if (!s) return false;
    s->compute = c;
    s->prompt_bytes = s->length = prompt_bytes;
    s->capacity = prompt_bytes + bytes;
    if (!sequence_allocate(s, error)) {
        sequence_free(s);
        return false;
    }
    memcpy(s->text, prompt, (size_t)prompt_bytes);
    *out = s;
    return true;
}

void sequence_free(sequence *s)
{
    if (!s) return;
    free(s->text);
    s->compute->ops->release(s->compute, s->keys);
    s->compute->ops->release(s->compute, s->values);
    free(s->gaps);
    free(s);
}

void sequence_list_free(sequence_list *list)
{
    for (int32_t i = 0; i < list->count; i++)
        sequence_free(list->items[i]);
    free(list->items);
    *list = (sequence_list){0};
}
