/* SPDX-License-Identifier: Apache-2.0 */
/* expar_python_run: dispatches and combines of both modes for a program in Python. */
#include "base/base.h"
#include "base/dlpack.h"
#include "ep/low_latency/ll.h"
#include "ep/normal/normal.h"
#include <expar/python.h>

#include <stdatomic.h>
#include <string.h>

static const char run_name[] = "expar_python_run";
static const expar_python_functions *_Atomic used_functions;

/* ---- functions of Python's --------------------------------------------------------------------------------------- */

static const char *missing_of(const expar_python_functions *functions)
{
    const struct {
        const char *name;
        bool there;
    } members[] = {
        {"objects", functions->objects != NULL},
        {"view", functions->view != NULL},
        {"address", functions->address != NULL},
        {"number", functions->number != NULL},
        {"list_new", functions->list_new != NULL},
        {"retain", functions->retain != NULL},
        {"release", functions->release != NULL},
        {"error", functions->error != NULL},
        {"clear", functions->clear != NULL},
        {"unlock", functions->unlock != NULL},
        {"lock", functions->lock != NULL},
        {"none", functions->none != NULL},
        {"objects->tensor_new", functions->objects && functions->objects->tensor_new},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(members); i++)
        if (!members[i].there) return members[i].name;
    return NULL;
}

expar_status expar_python_use(const expar_python_functions *functions)
{
    static const char call[] = "expar_python_use";
    if (!functions) return call_ended(error_set(EXPAR_ERR_NULL, "%s: functions is NULL", call));
    const char *missing = missing_of(functions);
    if (missing) return call_ended(error_set(EXPAR_ERR_NULL, "%s: functions->%s is NULL", call, missing));
    atomic_store_explicit(&used_functions, functions, memory_order_release);
    return EXPAR_OK;
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */

typedef union arguments {
    expar_ep_dispatch_args dispatch;
    expar_ep_combine_args combine;
    expar_ll_dispatch_args ll_dispatch;
    expar_ll_combine_args ll_combine;
    expar_python_fresh fresh;
    expar_python_layout layout;
    unsigned char bytes[1];
} arguments;

static size_t arguments_bytes(expar_python_kind kind)
{
    switch (kind) {
    case EXPAR_PYTHON_DISPATCH:
        return sizeof(expar_ep_dispatch_args);
    case EXPAR_PYTHON_COMBINE:
        return sizeof(expar_ep_combine_args);
    case EXPAR_PYTHON_LL_DISPATCH:
        return sizeof(expar_ll_dispatch_args);
    case EXPAR_PYTHON_LL_COMBINE:
        return sizeof(expar_ll_combine_args);
    case EXPAR_PYTHON_FRESH:
        return sizeof(expar_python_fresh);
    case EXPAR_PYTHON_LAYOUT:
        return sizeof(expar_python_layout);
    }
    return 0;
}

/* False: the item is no tensor, or not as the one in the arguments of a form that is not open. */
static bool put_tensor(const expar_python_functions *python, bool open, void *item, expar_tensor *there)
{
    if (item == python->none) return open || (!there->data && there->ndim == 0);
    expar_tensor view = EXPAR_TENSOR_NONE;
    if (dlpack_view_object(run_name, python->view, item, &view) != EXPAR_OK) {
        python->clear();
        return false;
    }
    if (!open && !dlpack_look_alike(&view, there)) return false;
    *there = view;
    return true;
}

static bool fill(const expar_python_functions *python, const expar_python_form *form, void *const *items,
                 arguments *args, void **reader)
{
    memcpy(args->bytes, form->args, arguments_bytes(form->kind));
    for (int32_t i = 0; i < form->num_tensors; i++)
        if (!put_tensor(python, form->open, items[i], (void *)(args->bytes + form->tensor_offsets[i]))) return false;
    for (int32_t i = 0; i < form->num_words; i++) {
        void *word = python->address(items[form->num_tensors + i]);
        if (form->word_offsets[i] == EXPAR_PYTHON_READER)
            *reader = word;
        else
            memcpy(args->bytes + form->word_offsets[i], &word, sizeof word);
    }
    return true;
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

#define SUM_ALIGNMENT 128 /* of a combine's results in one piece of the pool */

/* The results of a call. */
typedef struct results {
    expar_ep_output *output;
    expar_ep_handle *routing;
    expar_ll_handle *handle;
    expar_ll_hook *hook;
    expar_event *event;
    const int32_t *tokens_per_expert;
    int64_t num_recv_tokens, num_dropped_tokens;
    int32_t num_local_experts;
    expar_ep_path path;
} results;

static void results_let_go(results *self)
{
    expar_ep_output_release(self->output);
    expar_ep_handle_release(self->routing);
    expar_ll_handle_release(self->handle);
    expar_ll_hook_release(self->hook);
    expar_event_release(self->event);
    *self = (results){0};
}

static results results_of(const expar_ep_dispatch_result *result)
{
    return (results){.output = result->output,
                     .routing = result->handle,
                     .event = result->event,
                     .tokens_per_expert = result->recv_tokens_per_expert,
                     .num_recv_tokens = result->num_recv_tokens,
                     .num_dropped_tokens = result->num_dropped_tokens,
                     .num_local_experts = result->num_local_experts,
                     .path = result->path};
}

static expar_status dispatch(const expar_python_form *form, const arguments *args, results *out)
{
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_status status =
        ep_ended(form->object, ep_dispatch_make(form->object, &args->dispatch, form->forget_event != 0, &result));
    if (status == EXPAR_OK) *out = results_of(&result);
    return status;
}

/* A dispatch that drops rows fails, and has results all the same. */
static expar_status fresh(const expar_python_form *form, expar_python_fresh *with, results *out)
{
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    with->args.recv_counts = with->counts.struct_size ? &with->counts : NULL;
    const expar_status status =
        ep_ended(form->object, ep_dispatch_make(form->object, &with->args, form->forget_event != 0, &result));
    *out = results_of(&result);
    if (status != EXPAR_OK) results_let_go(out);
    return status;
}

static expar_status layout(const expar_python_form *form, const expar_python_layout *args)
{
    return expar_ep_get_layout(form->object, &args->topk_idx, args->num_experts, &args->layout);
}

/* The bytes of y. If there is no such size, it is one that no pool has. */
static size_t sum_bytes(const expar_ep_combine_args *args, const expar_ep_handle_info *info)
{
    size_t bytes;
    const bool overflows = size_mul_overflows(info->num_tokens, args->x.shape[1], &bytes) ||
                           size_mul_overflows(bytes, expar_dtype_bytes(args->x.dtype), &bytes);
    return overflows || bytes > PTRDIFF_MAX ? PTRDIFF_MAX : bytes;
}

/* Allocates the sums for which the caller has no memory, as parts of one output. */
static expar_status allocate_sums(const expar_python_form *form, expar_ep_combine_args *args, results *out)
{
    const bool y = args->out_y.ndim == 0, weights = args->topk_weights.ndim && args->out_topk_weights.ndim == 0;
    if (!y && !weights) return EXPAR_OK;
    expar_ep_handle_info info = EXPAR_EP_HANDLE_INFO_INIT;
    expar_status status = expar_ep_handle_get_info(args->handle, &info);
    if (status != EXPAR_OK) return status;
    const size_t begin = y ? align_up(sum_bytes(args, &info), SUM_ALIGNMENT) : 0;
    const size_t bytes = begin + (weights ? (size_t)info.num_tokens * (size_t)info.num_topk * sizeof(float) : 0);
    status = expar_ep_alloc(form->object, bytes ? bytes : 1, &out->output);
    if (status != EXPAR_OK) return status;
    expar_tensor *parts = out->output->parts, memory = parts[EXPAR_EP_PART_X];
    unsigned char *data = memory.data;
    parts[EXPAR_EP_PART_X] = EXPAR_TENSOR_NONE;
    if (y)
        args->out_y = parts[EXPAR_EP_PART_X] =
            expar_tensor_2d_on(memory.device, data, args->x.dtype, info.num_tokens, args->x.shape[1]);
    if (weights)
        args->out_topk_weights = parts[EXPAR_EP_PART_TOPK_WEIGHTS] =
            expar_tensor_2d_on(memory.device, data + begin, EXPAR_F32, info.num_tokens, info.num_topk);
    return EXPAR_OK;
}

static expar_status combine(const expar_python_form *form, arguments *args, results *out)
{
    expar_ep_combine_result result = EXPAR_EP_COMBINE_RESULT_INIT;
    expar_status status = form->open ? allocate_sums(form, &args->combine, out) : EXPAR_OK;
    if (status == EXPAR_OK)
        status =
            ep_ended(form->object, ep_combine_make(form->object, &args->combine, form->forget_event != 0, &result));
    if (status == EXPAR_OK)
        out->event = result.event;
    else
        results_let_go(out);
    return status;
}

static expar_status ll_dispatch(const expar_python_form *form, const arguments *args, results *out)
{
    expar_ll_dispatch_result result = EXPAR_LL_DISPATCH_RESULT_INIT;
    expar_status status = expar_ll_dispatch(form->object, &args->ll_dispatch, &result);
    if (status == EXPAR_OK)
        *out = (results){.output = result.output, .handle = result.handle, .hook = result.hook, .event = result.event};
    return status;
}

static expar_status ll_combine(const expar_python_form *form, const arguments *args, results *out)
{
    expar_ll_combine_result result = EXPAR_LL_COMBINE_RESULT_INIT;
    expar_status status = expar_ll_combine(form->object, &args->ll_combine, &result);
    if (status == EXPAR_OK) *out = (results){.output = result.output, .hook = result.hook, .event = result.event};
    return status;
}

static expar_status call(const expar_python_form *form, arguments *args, results *out)
{
    switch (form->kind) {
    case EXPAR_PYTHON_DISPATCH:
        return dispatch(form, args, out);
    case EXPAR_PYTHON_COMBINE:
        return combine(form, args, out);
    case EXPAR_PYTHON_LL_DISPATCH:
        return ll_dispatch(form, args, out);
    case EXPAR_PYTHON_LL_COMBINE:
        return ll_combine(form, args, out);
    case EXPAR_PYTHON_FRESH:
        return fresh(form, &args->fresh, out);
    case EXPAR_PYTHON_LAYOUT:
        return layout(form, &args->layout);
    }
    return EXPAR_OK;
}

static expar_status ask_earlier(const expar_python_form *form)
{
    const bool low_latency = form->kind == EXPAR_PYTHON_LL_DISPATCH || form->kind == EXPAR_PYTHON_LL_COMBINE;
    return low_latency ? expar_ll_query(form->object) : expar_ep_query(form->object);
}

/* With what comes after it, and needs no lock of the interpreter. The tensors are Python objects that know their
   devices. A question to the driver for each of them would take longer than all other checks. */
static expar_status carry_out(const expar_python_form *form, arguments *args, void *reader, results *out)
{
    ep_vouch_for_places(true);
    expar_status status = call(form, args, out);
    ep_vouch_for_places(false);
    if (status != EXPAR_OK) return status;
    if (reader && out->output) status = expar_ep_output_read_on(out->output, reader);
    if (form->forget_event) {
        expar_event_release(out->event);
        out->event = NULL;
    }
    if (status == EXPAR_OK && form->query) status = ask_earlier(form);
    if (status != EXPAR_OK) results_let_go(out);
    return status;
}

/* ---- objects of results ------------------------------------------------------------------------------------------ */

enum { MOST_NUMBERS = 8 };

static void *number(int64_t value)
{
    return (void *)(intptr_t)value;
}

/* Items of a list that are numbers, up to its end. */
static int32_t numbers_of(expar_python_kind kind, const results *from, void *numbers[MOST_NUMBERS])
{
    switch (kind) {
    case EXPAR_PYTHON_DISPATCH:
    case EXPAR_PYTHON_COMBINE:
        numbers[0] = from->event;
        return 1;
    case EXPAR_PYTHON_LL_DISPATCH:
        numbers[0] = from->handle, numbers[1] = from->hook, numbers[2] = from->event;
        return 3;
    case EXPAR_PYTHON_LL_COMBINE:
        numbers[0] = from->hook, numbers[1] = from->event;
        return 2;
    case EXPAR_PYTHON_FRESH:
        numbers[0] = from->routing, numbers[1] = from->output, numbers[2] = from->event;
        numbers[3] = number(from->num_recv_tokens), numbers[4] = (void *)(uintptr_t)from->tokens_per_expert;
        return 5;
    case EXPAR_PYTHON_LAYOUT:
        return 0;
    }
    return 0;
}

/* Those that an open form has beside them. */
static int32_t more_numbers_of(expar_python_kind kind, const results *from, void **numbers)
{
    int32_t count = 0;
    if (kind != EXPAR_PYTHON_FRESH) numbers[count++] = from->output;
    if (kind == EXPAR_PYTHON_DISPATCH) numbers[count++] = number(from->num_recv_tokens);
    if (kind == EXPAR_PYTHON_DISPATCH || kind == EXPAR_PYTHON_FRESH) {
        numbers[count++] = number(from->num_dropped_tokens);
        numbers[count++] = number(from->path);
    }
    if (kind == EXPAR_PYTHON_FRESH) numbers[count++] = number(from->num_local_experts);
    return count;
}

static expar_status put_numbers(const expar_python_functions *python, void *list, int32_t first, void *const *numbers,
                                int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        void *item = python->number(numbers[i]);
        if (!item || python->objects->list_set_item(list, first + i, item) != 0)
            return error_set(EXPAR_ERR_MEMORY, "%s: Python has no number, or no item in its list", run_name);
    }
    return EXPAR_OK;
}

static bool has_part(const expar_ep_output *output, int32_t part)
{
    expar_tensor view;
    return output && expar_ep_output_get_tensor(output, (expar_ep_part)part, &view) == EXPAR_OK && view.ndim > 0;
}

/* The same as expar_python_put_output, with None for a part that the output does not have. */
static expar_status put_open_parts(const expar_python_functions *python, const expar_python_form *form,
                                   expar_ep_output *output, void *list)
{
    int32_t parts[EP_OUTPUT_PARTS];
    const int32_t count = form->num_parts < EP_OUTPUT_PARTS ? form->num_parts : EP_OUTPUT_PARTS;
    for (int32_t i = 0; i < count; i++) {
        parts[i] = has_part(output, form->parts[i]) ? form->parts[i] : -1;
        if (parts[i] >= 0) continue;
        python->retain(python->none);
        if (python->objects->list_set_item(list, i, python->none) != 0)
            return error_set(EXPAR_ERR_MEMORY, "%s: Python has no item in its list", run_name);
    }
    return expar_python_put_output(output, parts, count, python->objects, list);
}

static expar_status make_list(const expar_python_functions *python, const expar_python_form *form, results *from,
                              void **list)
{
    void *numbers[MOST_NUMBERS];
    int32_t count = numbers_of(form->kind, from, numbers);
    if (form->open) count += more_numbers_of(form->kind, from, numbers + count);
    const int32_t of_handle = from->handle && !form->open ? 2 : 0;
    *list = python->list_new(form->num_parts + of_handle + count);
    if (!*list) return error_set(EXPAR_ERR_MEMORY, "%s: Python has no list", run_name);
    expar_status status = EXPAR_OK;
    if (form->open)
        status = put_open_parts(python, form, from->output, *list);
    else if (form->num_parts)
        status = expar_python_put_output(from->output, form->parts, form->num_parts, python->objects, *list);
    if (status == EXPAR_OK && of_handle)
        status = ll_handle_put_in_list(run_name, from->handle, python->objects, *list, form->num_parts);
    if (status == EXPAR_OK) status = put_numbers(python, *list, form->num_parts + of_handle, numbers, count);
    return status;
}

static void *failure_object(const expar_python_functions *python, expar_status status)
{
    return python->error() ? NULL : python->number((void *)(intptr_t)status);
}

/* Tensors have references of their own; the other objects become the caller's by their numbers. */
static void *objects_of(const expar_python_functions *python, const expar_python_form *form, results *from)
{
    void *list;
    expar_status status = make_list(python, form, from, &list);
    if (status == EXPAR_OK) {
        if (form->kind != EXPAR_PYTHON_FRESH && !form->open) expar_ep_output_release(from->output);
        return list;
    }
    if (list) python->release(list);
    results_let_go(from);
    return failure_object(python, status);
}

void *expar_python_run(void *self, void *const *items, ptrdiff_t count)
{
    const expar_python_functions *python = atomic_load_explicit(&used_functions, memory_order_acquire);
    const expar_python_form *form = python->address(self);
    arguments args;
    void *reader = NULL;
    if (!python->objects->tensor_new || count != form->num_tensors + form->num_words ||
        !fill(python, form, items, &args, &reader)) {
        python->retain(python->none);
        return python->none;
    }
    results made = {0};
    void *thread = python->unlock();
    expar_status status = carry_out(form, &args, reader, &made);
    python->lock(thread);
    if (status != EXPAR_OK) return python->number((void *)(intptr_t)status);
    return objects_of(python, form, &made);
}
