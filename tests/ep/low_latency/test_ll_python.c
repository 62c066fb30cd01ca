/* SPDX-License-Identifier: Apache-2.0 */
/* expar_python_run with a simulated interpreter: the result of a form's call is the oracle's, and a call whose tensors
 * look otherwise is not made. The buffer and its traffic are those of wrong.h. */
#include "ep/low_latency/hold.h"
#include "ep/low_latency/wrong.h"
#include <expar/python.h>

#include <stdlib.h>
#include <string.h>

/* ---- an interpreter ---------------------------------------------------------------------------------------------- */

enum { MOST_ITEMS = 8 };

/* A number, a tensor that comes in, one that the library has given, or a list. */
typedef struct object {
    int references;
    void *address;
    expar_tensor tensor;
    expar_dl_versioned *managed;
    ptrdiff_t length;
    struct object *items[MOST_ITEMS];
} object;

static object none = {.references = 1};
static _Thread_local bool unlocked, without_memory;
static _Thread_local int errors_cleared;

static object *object_new(void)
{
    object *made = calloc(1, sizeof *made);
    assert_non_null(made);
    made->references = 1;
    return made;
}

static void *address_of(void *number)
{
    return ((object *)number)->address;
}

static void *number_new(void *address)
{
    object *made = object_new();
    made->address = address;
    return made;
}

static void *list_new(ptrdiff_t length)
{
    object *made = object_new();
    made->length = length;
    return made;
}

static void retain(void *of)
{
    if (of != &none) ((object *)of)->references++;
}

static void release(void *of)
{
    object *self = of;
    if (!self || self == &none || --self->references > 0) return;
    for (ptrdiff_t i = 0; i < self->length; i++)
        release(self->items[i]);
    if (self->managed) self->managed->deleter(self->managed);
    free(self);
}

static int list_set_item(void *list, ptrdiff_t index, void *item)
{
    object *of = list;
    if (index < 0 || index >= of->length) return -1;
    of->items[index] = item;
    return 0;
}

static void *no_capsule(void *pointer, const char *name, void (*destructor)(void *capsule))
{
    (void)pointer, (void)name, (void)destructor;
    return NULL;
}

static int tensor_new(expar_dl_versioned *managed, void **out)
{
    if (without_memory) {
        managed->deleter(managed);
        return -1;
    }
    object *made = object_new();
    made->managed = managed;
    *out = made;
    return 0;
}

static int view(void *of, expar_dl_tensor *out)
{
    object *self = of;
    if (!self->tensor.data) return -1;
    *out = (expar_dl_tensor){.data = self->tensor.data,
                             .device = {.device_type = EXPAR_DL_CPU},
                             .ndim = self->tensor.ndim,
                             .shape = self->tensor.shape,
                             .strides = self->tensor.strides};
    out->dtype = self->tensor.dtype == EXPAR_BF16  ? (expar_dl_dtype){EXPAR_DL_BFLOAT, 16, 1}
                 : self->tensor.dtype == EXPAR_F32 ? (expar_dl_dtype){EXPAR_DL_FLOAT, 32, 1}
                 : self->tensor.dtype == EXPAR_I32 ? (expar_dl_dtype){EXPAR_DL_INT, 32, 1}
                                                   : (expar_dl_dtype){EXPAR_DL_INT, 64, 1};
    return 0;
}

static void *no_error(void)
{
    return NULL;
}

static void clear(void)
{
    errors_cleared++;
}

static void *unlock(void)
{
    CHECK(!unlocked, "the lock was not held");
    unlocked = true;
    return &none;
}

static void lock(void *thread)
{
    CHECK(unlocked && thread == &none, "the lock was held, or is of another thread");
    unlocked = false;
}

static const expar_python_objects objects = {no_capsule, list_set_item, tensor_new};
static expar_python_functions functions = {&objects, view,     address_of, number_new, list_new, retain,
                                           release,  no_error, clear,      unlock,     lock,     &none};

/* ---- calls ------------------------------------------------------------------------------------------------------- */

#define OF_DISPATCH(member) ((int32_t)offsetof(expar_ll_dispatch_args, member))
#define OF_COMBINE(member)  ((int32_t)offsetof(expar_ll_combine_args, member))

static const int32_t there_tensors[] = {OF_DISPATCH(x), OF_DISPATCH(topk_idx), OF_DISPATCH(topk_weights),
                                        OF_DISPATCH(expert_recv_stats)};
static const int32_t back_tensors[] = {OF_COMBINE(x), OF_COMBINE(topk_idx), OF_COMBINE(topk_weights)};
static const int32_t there_words[] = {OF_DISPATCH(stream)};
static const int32_t back_words[] = {OF_COMBINE(handle), OF_COMBINE(stream)};
static const int32_t parts_of_back[] = {EXPAR_EP_PART_X};

static object tensor_item(const expar_tensor *of)
{
    return (object){.references = 1, .tensor = *of};
}

/* The result of a call with these tensors and words. */
static object *run_form(const expar_python_form *form, object *tensors, void *const *words)
{
    object self = {.references = 1, .address = (void *)form}, numbers[2] = {{0}, {0}};
    void *items[MOST_ITEMS];
    int32_t count = 0;
    for (int32_t i = 0; i < form->num_tensors; i++)
        items[count++] = tensors[i].tensor.ndim ? &tensors[i] : &none;
    for (int32_t i = 0; i < form->num_words; i++) {
        numbers[i].address = words[i];
        items[count++] = &numbers[i];
    }
    return expar_python_run(&self, items, count);
}

/* None, and nothing was called: with another number of items, for what is no tensor or of another look, and where there
 * is one more tensor than the form has. */
static void reject_others(const expar_python_form *form, const object *tensors, void *const *words)
{
    object wrong[MOST_ITEMS];
    const expar_tensor more = tensors[1].tensor;
    void *items[] = {&none};
    object self = {.references = 1, .address = (void *)form};
    CHECK(expar_python_run(&self, items, 1) == &none, "a call of one item is of the form");
    for (int32_t i = 0; i < 4; i++) {
        memcpy(wrong, tensors, sizeof *tensors * (size_t)form->num_tensors);
        if (i == 0) wrong[0].tensor.data = NULL;
        if (i == 1) wrong[0].tensor.shape[0]++;
        if (i == 2) wrong[2].tensor = EXPAR_TENSOR_NONE;
        if (i == 3) wrong[form->num_tensors - 1].tensor = form->num_tensors == 4 ? more : EXPAR_TENSOR_NONE;
        CHECK(run_form(form, wrong, words) == &none, "tensors of another look, %d, are of the form", i);
    }
    CHECK(errors_cleared == 1, "an exception was not cleared");
}

static expar_python_form dispatch_form(const lowlat_call *call)
{
    return (expar_python_form){.kind = EXPAR_PYTHON_LL_DISPATCH,
                               .num_tensors = 4,
                               .num_words = 1,
                               .tensor_offsets = there_tensors,
                               .word_offsets = there_words,
                               .args = &call->there_args,
                               .object = call->ll};
}

/* The dispatch of a prepared call, whose results are its own memory. */
static void dispatch_by_form(lowlat_call *call)
{
    const expar_python_form form = dispatch_form(call);
    object tensors[4] = {tensor_item(&call->there_args.x), tensor_item(&call->there_args.topk_idx),
                         tensor_item(&call->there_args.topk_weights), tensor_item(&(expar_tensor){0})};
    void *words[] = {NULL};
    errors_cleared = 0;
    reject_others(&form, tensors, words);
    object *list = run_form(&form, tensors, words);
    if (!CHECK(list->length == 5, "a dispatch has a list of %d", (int)list->length)) return;
    expar_ll_handle_info info = EXPAR_LL_HANDLE_INFO_INIT;
    call->there.handle = address_of(list->items[2]);
    call->there.hook = address_of(list->items[3]);
    call->there.recv_x = call->there_args.out_x;
    call->there.recv_count = call->there_args.out_count;
    call->wants_finish = call->choice.hook;
    CHECK(!call->choice.hook == !call->there.hook && !address_of(list->items[4]), "there is a wrong hook or event");
    CHECK_OK(expar_ll_handle_get_info(call->there.handle, &info));
    CHECK(list->items[0]->managed->tensor.data == info.src_info.data, "item 0 is not src_info");
    CHECK(list->items[1]->managed->tensor.data == info.range.data, "item 1 is not the range");
    release(list);
    CHECK_OK(lowlat_end(call));
    CHECK(lowlat_is_right(call), "a dispatch by a form");
}

/* And a combine, whose result is the library's; without memory for its tensor it is told so. An open form has no
   tensors, and its list ends with the output. */
static void combine_by_form(lowlat_call *call, bool memory, bool open)
{
    static const int32_t parts_of_open[] = {EXPAR_EP_PART_SCALES, EXPAR_EP_PART_X};
    expar_ll_combine_args without = call->back_args;
    without.x = without.topk_idx = without.topk_weights = EXPAR_TENSOR_NONE;
    const int32_t first = open ? 1 : 0, length = open ? 5 : 3;
    const expar_python_form form = {.kind = EXPAR_PYTHON_LL_COMBINE,
                                    .num_tensors = 3,
                                    .num_words = 2,
                                    .num_parts = 1 + first,
                                    .tensor_offsets = back_tensors,
                                    .word_offsets = back_words,
                                    .parts = open ? parts_of_open : parts_of_back,
                                    .args = open ? &without : &call->back_args,
                                    .object = call->ll,
                                    .open = open};
    object tensors[3] = {tensor_item(&call->back_args.x), tensor_item(&call->back_args.topk_idx),
                         tensor_item(&call->back_args.topk_weights)};
    void *words[] = {(void *)call->back_args.handle, NULL};
    without_memory = !memory;
    object *list = run_form(&form, tensors, words);
    without_memory = false;
    if (!memory) {
        CHECK((intptr_t)address_of(list) == EXPAR_ERR_MEMORY && list->length == 0, "there is memory");
        release(list);
        return;
    }
    if (!CHECK(list->length == length, "a combine has a list of %d", (int)list->length)) return;
    CHECK(!open || list->items[0] == &none, "there are scales of a combine");
    const expar_dl_tensor *dl = &list->items[first]->managed->tensor;
    call->back.y = (expar_tensor){.data = dl->data, .dtype = call->back_args.x.dtype, .ndim = 2};
    call->back.y.device.type = EXPAR_CPU;
    memcpy(call->back.y.shape, dl->shape, sizeof *dl->shape * 2);
    memcpy(call->back.y.strides, dl->strides, sizeof *dl->strides * 2);
    CHECK(!address_of(list->items[first + 1]) && !address_of(list->items[first + 2]), "there is a hook or an event");
    CHECK(lowlat_is_right(call), "a combine by a form");
    if (open) {
        expar_ep_output *output = address_of(list->items[4]);
        expar_tensor y;
        CHECK_OK(expar_ep_output_get_tensor(output, EXPAR_EP_PART_X, &y));
        CHECK(y.data == dl->data, "the output is another one");
        expar_ep_output_release(output);
    }
    release(list);
}

typedef struct hall {
    lowlat_traffic *traffic;
    lowlat_answers *back;
} hall;

static void trial_rank(expar_group *group, void *shared)
{
    const hall *h = shared;
    const expar_ll_config config = wrong_config();
    const int32_t rank = expar_group_rank(group);
    expar_ll *ll = NULL;
    if (!CHECK_OK(expar_ll_create(group, &config, &ll))) return;
    for (int32_t round = 0; round < 4; round++) {
        const lowlat_choice own = {.own_x = true, .own_count = true, .hook = round % 2 == 1}, plain = {0};
        lowlat_call there, back;
        lowlat_prepare_dispatch(&there, ll, h->traffic, rank, &own);
        dispatch_by_form(&there);
        lowlat_prepare_combine(&back, ll, h->traffic, h->back, rank, &plain, there.there.handle);
        combine_by_form(&back, round < 3, round == 2);
        lowlat_clean(&back);
        lowlat_clean(&there);
    }
    if (check_failures()) expar_group_abort(group);
    CHECK_OK(expar_ll_destroy(ll));
}

static void test_calls_of_forms(void **state)
{
    (void)state;
    random_source random = random_start(22);
    const ranks_plan ranks = {.kind = RANKS_THREADS, .size = WRONG_RANKS, .heap_bytes = (size_t)32 << 20};
    hall h = {.traffic = wrong_traffic(true, &random)};
    h.back = lowlat_answers_make(h.traffic, ORACLE_BF16, EXPAR_LL_SUM_EXACT, &random);
    assert_int_equal(expar_python_use(&functions), EXPAR_OK);
    const bool passed = ranks_run(&ranks, trial_rank, &h);
    lowlat_answers_free(h.back, h.traffic);
    lowlat_traffic_free(h.traffic);
    assert_true(passed);
}

static void test_functions_that_are_missing(void **state)
{
    (void)state;
    expar_python_functions lacking = functions;
    lacking.lock = NULL;
    CHECK_STATUS(EXPAR_ERR_NULL, expar_python_use(&lacking));
    CHECK_TEXT("expar_python_use", "functions->lock is NULL");
    const expar_python_objects without_tensors = {no_capsule, list_set_item, NULL};
    lacking = functions;
    lacking.objects = &without_tensors;
    CHECK_STATUS(EXPAR_ERR_NULL, expar_python_use(&lacking));
    CHECK_TEXT("expar_python_use", "functions->objects->tensor_new is NULL");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_python_use(NULL));
    assert_int_equal(check_failures(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_functions_that_are_missing),
        cmocka_unit_test(test_calls_of_forms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
