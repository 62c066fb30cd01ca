/* SPDX-License-Identifier: Apache-2.0 */
/* Outputs: the memory of a dispatch's results, or of rows that a caller will write, with its references. */
#include "base/dlpack.h"
#include "ep/call/call.h"

#include <pthread.h>
#include <stdlib.h>

static const life_kind outputs = {EP_OUTPUT_MAGIC, "output", "held"};
static life_spent spent = LIFE_SPENT_NONE;

/* If nothing can be enqueued on the stream any more, the memory is freed at once: all work there has ended. */
static void hold_for_readers(const expar_ep_output *output)
{
    mem_block *const blocks[] = {output->block, output->arrival};
    const ep_origin *origin = &output->origin;
    for (int32_t i = 0; i < output->num_readers; i++) {
        expar_status status =
            origin->kind->hold_until(origin->device, output->readers[i], blocks, ARRAY_LENGTH(blocks));
        if (status != EXPAR_OK)
            LOG(LOG_DEBUG, "output %p: not ordered after stream %p, which reads it: %s", (const void *)output,
                output->readers[i], expar_last_error());
    }
}

static void output_end(void *object)
{
    expar_ep_output *output = object;
    hold_for_readers(output);
    mem_block_release(output->arrival);
    mem_block_release(output->block);
    free(output->tokens_per_expert);
    life_keep(&spent, output);
}

expar_ep_output *ep_output_make(const ep_buffer *buffer)
{
    expar_ep_output *output = life_renew(&spent, sizeof *output);
    if (!output) return NULL;
    output->life = life_begin(outputs.magic, output_end);
    output->origin = ep_origin_of(buffer);
    return output;
}

expar_ep_output *ep_output_hold(expar_ep_output *output)
{
    life_hold(&output->life);
    return output;
}

/* ---- holding ----------------------------------------------------------------------------------------------------- */

expar_status expar_ep_output_retain(expar_ep_output *output)
{
    return call_ended(life_retain(&outputs, "expar_ep_output_retain", output));
}

void expar_ep_output_release(expar_ep_output *output)
{
    life_release(&outputs, "expar_ep_output_release", output);
}

expar_status expar_ep_output_release_after(expar_ep_output *output, void *stream)
{
    static const char call[] = "expar_ep_output_release_after";
    if (!output) return EXPAR_OK;
    expar_status status = life_check(&outputs, call, output);
    if (status != EXPAR_OK) return call_ended(status);
    mem_block *const blocks[] = {output->block, output->arrival};
    const ep_origin *origin = &output->origin;
    status = origin->kind->hold_until(origin->device, stream, blocks, ARRAY_LENGTH(blocks));
    if (status != EXPAR_OK) return call_ended(error_prefix(status, "%s", call));
    expar_ep_output_release(output);
    return EXPAR_OK;
}

/* One lock for all outputs: a stream is recorded seldom, and quickly. */
static pthread_mutex_t readers_lock = PTHREAD_MUTEX_INITIALIZER;

static bool note_reader(expar_ep_output *output, void *stream)
{
    pthread_mutex_lock(&readers_lock);
    int32_t place = 0;
    while (place < output->num_readers && output->readers[place] != stream)
        place++;
    bool noted = place < EP_OUTPUT_READERS;
    if (noted) output->readers[place] = stream;
    if (place == output->num_readers && noted) output->num_readers++;
    pthread_mutex_unlock(&readers_lock);
    return noted;
}

expar_status expar_ep_output_read_on(expar_ep_output *output, void *stream)
{
    static const char call[] = "expar_ep_output_read_on";
    expar_status status = life_check(&outputs, call, output);
    if (status == EXPAR_OK && !note_reader(output, stream))
        status = error_set(EXPAR_ERR_LIMIT, "%s: %d other streams read the output; expected at most %d", call,
                           EP_OUTPUT_READERS, EP_OUTPUT_READERS);
    return call_ended(status);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static expar_status part_find(const char *call, const expar_ep_output *output, expar_ep_part part, expar_tensor *out)
{
    expar_status status = life_check(&outputs, call, output);
    if (status != EXPAR_OK) return status;
    if ((int)part < 0 || (int)part >= EP_OUTPUT_PARTS)
        return error_set(EXPAR_ERR_ARGUMENT, "%s: part is %d; expected 0 to %d", call, (int)part, EP_OUTPUT_PARTS - 1);
    *out = output->parts[part];
    return EXPAR_OK;
}

expar_status expar_ep_output_get_tensor(const expar_ep_output *output, expar_ep_part part, expar_tensor *tensor)
{
    static const char call[] = "expar_ep_output_get_tensor";
    if (!tensor) return call_ended(error_set(EXPAR_ERR_NULL, "%s: tensor is NULL", call));
    return call_ended(part_find(call, output, part, tensor));
}

/* Releases an exported tensor: any thread, any time. */
static void output_let_go(void *context)
{
    expar_ep_output_release(context);
}

/* Exports that part, which exists, with a reference for the consumer. */
static expar_status part_hold(const char *call, expar_ep_output *output, expar_ep_part part, expar_tensor *out)
{
    expar_status status = part_find(call, output, part, out);
    if (status != EXPAR_OK) return status;
    if (out->ndim == 0)
        return error_set(EXPAR_ERR_ARGUMENT, "%s: the output has no tensor of part %s", call,
                         ep_tell(&ep_names_part, part).text);
    return life_hold(&output->life) ? EXPAR_OK : life_check(&outputs, call, output);
}

expar_status expar_ep_output_to_dlpack(expar_ep_output *output, expar_ep_part part, uint32_t version, void **managed)
{
    static const char call[] = "expar_ep_output_to_dlpack";
    expar_tensor tensor;
    if (!managed) return call_ended(error_set(EXPAR_ERR_NULL, "%s: managed is NULL", call));
    expar_status status = part_hold(call, output, part, &tensor);
    if (status != EXPAR_OK) return call_ended(status);
    status = dlpack_make(call, &tensor, version, output_let_go, output, managed);
    if (status != EXPAR_OK) expar_ep_output_release(output);
    return call_ended(status);
}

expar_status expar_python_put_output(expar_ep_output *output, const int32_t *parts, int32_t count,
                                     const expar_python_objects *python, void *list)
{
    static const char call[] = "expar_python_put_output";
    expar_status status = dlpack_check_python(call, python, list);
    if (status == EXPAR_OK && count > 0 && !parts) status = error_set(EXPAR_ERR_NULL, "%s: parts is NULL", call);
    for (int32_t i = 0; i < count && status == EXPAR_OK; i++) {
        expar_tensor tensor;
        if (parts[i] < 0) continue;
        status = part_hold(call, output, (expar_ep_part)parts[i], &tensor);
        if (status != EXPAR_OK) break;
        status = dlpack_put_in_list(call, &tensor, output_let_go, output, python, list, i);
    }
    return call_ended(status);
}
