/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency calls from their arguments to their end. */
#include "ep/low_latency/trial.h"
#include "ep/harness/pitched.h"
#include "ep/low_latency/hold.h"
#include <stdlib.h>
#include <string.h>

/* Where no row goes, and where x was. */
#define SPARE_BYTE   0x5a
#define GARBAGE_BYTE 0xc3

/* The counters before a call. */
#define FIRST_WAIT(rank) (1000 + (rank))

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static expar_tensor cube(void *data, expar_dtype dtype, int64_t experts, int64_t rows, int64_t width)
{
    return (expar_tensor){.data = data,
                          .dtype = dtype,
                          .ndim = 3,
                          .shape = {experts, rows, width},
                          .strides = {rows * width, width, 1},
                          .device = {.type = EXPAR_CPU}};
}

static expar_tensor row_of_numbers(void *data, expar_dtype dtype, int64_t count)
{
    return (expar_tensor){
        .data = data, .dtype = dtype, .ndim = 1, .shape = {count}, .strides = {1}, .device = {.type = EXPAR_CPU}};
}

static void *spare_memory(size_t bytes)
{
    return memset(traffic_alloc(bytes, 1), SPARE_BYTE, bytes);
}

static int64_t row_gap(const lowlat_choice *choice, oracle_type type)
{
    return choice->pad * 16 / (int64_t)oracle_element_bytes(type);
}

static expar_tensor make_waits(lowlat_call *call)
{
    int32_t n = call->traffic->job.num_ranks;
    if (!call->choice.waits) return EXPAR_TENSOR_NONE;
    call->waits = traffic_alloc((size_t)n, sizeof *call->waits);
    for (int32_t r = 0; r < n; r++)
        call->waits[r] = FIRST_WAIT(r);
    return row_of_numbers(call->waits, EXPAR_I64, n);
}

static expar_tensor make_stats(lowlat_call *call)
{
    int32_t locals = lowlat_locals(&call->traffic->job);
    if (!call->choice.stats) return EXPAR_TENSOR_NONE;
    call->stats = traffic_alloc((size_t)locals, sizeof *call->stats);
    for (int32_t e = 0; e < locals; e++)
        call->stats[e] = lowlat_first_stat(e);
    return row_of_numbers(call->stats, EXPAR_I32, locals);
}

static expar_event *make_wait_event(lowlat_call *call)
{
    const lowlat_choice *choice = &call->choice;
    if (!choice->late) return NULL;
    CHECK_OK(expar_event_create(&call->wait_event));
    /* A GPU's call waits in the caller's thread for an event that is no stream's. */
    if (!choice->async || hold_finds_late()) CHECK_OK(expar_event_signal(call->wait_event));
    return call->wait_event;
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */

static expar_dtype received_dtype(const llo_job *job)
{
    switch (job->format) {
    case LLO_PLAIN:
        return lowlat_dtype(job->type);
    case LLO_INT8:
        return EXPAR_I8;
    case LLO_NVFP4:
        return EXPAR_U8;
    default:
        return EXPAR_F8E4M3;
    }
}

/* Two elements of NVFP4 are in a byte. */
static int64_t received_columns(const llo_job *job)
{
    return job->format == LLO_NVFP4 ? job->hidden / 2 : job->hidden;
}

/* NVFP4 has tiles of 128 rows, and 512 bytes of a tile for each word of a row. */
static int64_t tiles_of(const llo_job *job)
{
    return (lowlat_places(job) + 127) / 128;
}

/* Words of the scales of all rows. */
static size_t scale_words(const llo_job *job)
{
    const int64_t rows = job->format == LLO_NVFP4 ? 128 * tiles_of(job) : lowlat_places(job);
    return (size_t)(lowlat_locals(job) * rows * llo_num_scales(job));
}

/* The place of word w of row i of all experts' rows. */
static int64_t scale_place(const llo_job *job, int64_t i, int64_t w)
{
    const int64_t places = lowlat_places(job), words = llo_num_scales(job), expert = i / places, row = i % places;
    if (job->format != LLO_NVFP4) return (expert * words + w) * places + row;
    const int64_t tile = expert * tiles_of(job) + row / 128, within = row % 128;
    return (tile * words + w) * 128 + within % 32 * 4 + within / 32;
}

static expar_tensor tiled_scales_like(const llo_job *job, void *data)
{
    const int64_t words = llo_num_scales(job), tiles = tiles_of(job);
    return (expar_tensor){.data = data,
                          .dtype = EXPAR_F8E4M3,
                          .ndim = 4,
                          .shape = {lowlat_locals(job), tiles, words, 512},
                          .strides = {tiles * words * 512, words * 512, 512, 1},
                          .device = {.type = EXPAR_CPU}};
}

/* Scales of one row stand N*B words apart. */
static expar_tensor scales_like(const llo_job *job, void *data)
{
    int64_t places = lowlat_places(job), words = llo_num_scales(job);
    if (job->format == LLO_NVFP4) return tiled_scales_like(job, data);
    expar_tensor scales =
        cube(data, job->format == LLO_FP8_UE8M0 ? EXPAR_I32 : EXPAR_F32, lowlat_locals(job), places, words);
    scales.strides[1] = 1;
    scales.strides[2] = places;
    return scales;
}

void lowlat_prepare_dispatch(lowlat_call *call, expar_ll *ll, const lowlat_traffic *t, int32_t rank,
                             const lowlat_choice *choice)
{
    const llo_job *job = &t->job;
    const oracle_input *input = &t->inputs[rank];
    *call = (lowlat_call){.ll = ll, .traffic = t, .rank = rank, .choice = *choice};
    call->there_args = (expar_ll_dispatch_args)EXPAR_LL_DISPATCH_ARGS_INIT;
    call->there = (expar_ll_dispatch_result)EXPAR_LL_DISPATCH_RESULT_INIT;
    expar_ll_dispatch_args *args = &call->there_args;
    int64_t locals = lowlat_locals(job), places = lowlat_places(job);
    size_t rows = (size_t)(locals * places);
    args->x = pitched_make_filled(input->x, lowlat_dtype(job->type), input->num_tokens, job->hidden,
                                  row_gap(choice, job->type), choice->null_if_empty);
    args->topk_idx =
        pitched_make_idx(input->topk_idx, t->wide, input->num_tokens, job->topk, choice->pad, choice->null_if_empty);
    if (t->with_weights)
        args->topk_weights = pitched_make_filled(input->weights, EXPAR_F32, input->num_tokens, job->topk, choice->pad,
                                                 choice->null_if_empty);
    args->format = lowlat_format(job->format);
    if (choice->own_x)
        args->out_x =
            cube(spare_memory(rows * llo_row_bytes(job)), received_dtype(job), locals, places, received_columns(job));
    if (choice->own_scales && llo_num_scales(job))
        args->out_scales = scales_like(job, spare_memory(scale_words(job) * 4));
    call->global_scale = job->global_scale;
    if (job->format == LLO_NVFP4) args->global_scale = row_of_numbers(&call->global_scale, EXPAR_F32, 1);
    if (choice->own_count) args->out_count = row_of_numbers(spare_memory((size_t)locals * 4), EXPAR_I32, locals);
    args->expert_recv_stats = make_stats(call);
    args->wait_ns = make_waits(call);
    args->wait_event = make_wait_event(call);
    args->hook = choice->hook;
    args->async_finish = choice->async;
    args->num_sms = choice->threads;
}

/* Rows of a combine: memory of their own, with gaps after rows and experts, or the buffer's. */
static expar_tensor make_answers(const lowlat_call *call, const expar_ll_handle *handle)
{
    const lowlat_answers *a = call->answers;
    const llo_job *job = &a->job;
    int64_t locals = lowlat_locals(job), places = lowlat_places(job), gap = row_gap(&call->choice, job->type);
    size_t element_bytes = oracle_element_bytes(job->type), row_bytes = (size_t)job->hidden * element_bytes;
    expar_tensor x = cube(NULL, lowlat_dtype(job->type), locals, places, job->hidden);
    if (call->choice.zero_copy) {
        if (!CHECK_OK(expar_ll_get_combine_buffer(call->ll, handle, lowlat_dtype(job->type), &x))) return x;
    } else {
        x.strides[1] += gap;
        x.strides[0] = places * x.strides[1] + gap;
        x.data = spare_memory((size_t)(locals * x.strides[0]) * element_bytes);
    }
    for (int64_t i = 0; i < locals * places; i++)
        memcpy((char *)x.data + (size_t)(i / places * x.strides[0] + i % places * x.strides[1]) * element_bytes,
               (const char *)a->x[call->rank] + (size_t)i * row_bytes, row_bytes);
    return x;
}

void lowlat_prepare_combine(lowlat_call *call, expar_ll *ll, const lowlat_traffic *t, const lowlat_answers *a,
                            int32_t rank, const lowlat_choice *choice, const expar_ll_handle *handle)
{
    const llo_job *job = &a->job;
    const oracle_input *input = &a->inputs[rank];
    *call = (lowlat_call){.ll = ll, .traffic = t, .answers = a, .rank = rank, .choice = *choice};
    call->back_args = (expar_ll_combine_args)EXPAR_LL_COMBINE_ARGS_INIT;
    call->back = (expar_ll_combine_result)EXPAR_LL_COMBINE_RESULT_INIT;
    expar_ll_combine_args *args = &call->back_args;
    args->x = make_answers(call, handle);
    args->topk_idx =
        pitched_make_idx(input->topk_idx, t->wide, input->num_tokens, job->topk, choice->pad, choice->null_if_empty);
    args->topk_weights = pitched_make_filled(input->weights, EXPAR_F32, input->num_tokens, job->topk, choice->pad,
                                             choice->null_if_empty);
    args->handle = handle;
    args->sum = a->sum;
    if (a->logfmt) args->format = EXPAR_LL_FORMAT_LOGFMT;
    if (choice->own_x)
        args->out_y = pitched_make(lowlat_dtype(job->type), input->num_tokens, job->hidden, row_gap(choice, job->type),
                                   choice->null_if_empty);
    args->wait_ns = make_waits(call);
    args->wait_event = make_wait_event(call);
    args->hook = choice->hook;
    args->async_finish = choice->async;
    args->num_sms = choice->threads;
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

static void overwrite(const expar_tensor *x)
{
    if (x->data && x->shape[0] > 0)
        memset(x->data, GARBAGE_BYTE, (size_t)(x->shape[0] * x->strides[0]) * expar_dtype_bytes(x->dtype));
}

expar_status lowlat_start(lowlat_call *call)
{
    expar_status status = call->answers ? expar_ll_combine(call->ll, &call->back_args, &call->back)
                                        : expar_ll_dispatch(call->ll, &call->there_args, &call->there);
    if (call->choice.late && call->choice.async && !hold_finds_late()) CHECK_OK(expar_event_signal(call->wait_event));
    if (status != EXPAR_OK) return status;
    call->wants_finish = call->choice.hook || call->choice.async;
    if (call->choice.hook && !call->choice.zero_copy)
        overwrite(call->answers ? &call->back_args.x : &call->there_args.x);
    if (call->choice.hook) call->global_scale = 0; /* read with x */
    return status;
}

expar_status lowlat_end(lowlat_call *call)
{
    expar_ll_hook *hook = call->answers ? call->back.hook : call->there.hook;
    expar_event *event = call->answers ? call->back.event : call->there.event;
    if (!call->wants_finish) return EXPAR_OK;
    call->wants_finish = false;
    return call->choice.hook ? expar_ll_hook_call(hook, NULL) : expar_event_wait(event);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static bool has_form(const expar_tensor *got, const expar_tensor *wanted, const char *name)
{
    bool right = CHECK(got->dtype == wanted->dtype && got->ndim == wanted->ndim, "%s is %s of %d dimensions", name,
                       expar_dtype_string(got->dtype), (int)got->ndim) &&
                 CHECK(got->device.type == EXPAR_CPU, "%s is not on the CPU", name) &&
                 CHECK(!wanted->data || got->data == wanted->data, "%s is not where the caller wants it", name);
    bool any = true;
    for (int32_t d = 0; right && d < wanted->ndim; d++) {
        right = CHECK(got->shape[d] == wanted->shape[d], "%s has %lld in dimension %d, expected %lld", name,
                      (long long)got->shape[d], (int)d, (long long)wanted->shape[d]);
        any &= wanted->shape[d] > 0;
    }
    for (int32_t d = 0; right && any && d < wanted->ndim; d++)
        right = CHECK(got->strides[d] == wanted->strides[d], "%s has stride %lld in dimension %d, expected %lld", name,
                      (long long)got->strides[d], (int)d, (long long)wanted->strides[d]);
    return right && CHECK(!any || got->data, "%s has no data", name);
}

static bool all_spare(const void *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (((const unsigned char *)bytes)[i] != SPARE_BYTE) return false;
    return true;
}

/* Rows up to the count are the oracle's; later ones, in memory of the caller's, were left alone. */
static bool check_recv_x(const lowlat_call *call)
{
    const llo_job *job = &call->traffic->job;
    const lowlat_arrival *expected = &call->traffic->arrivals[call->rank];
    const expar_tensor *x = &call->there.recv_x;
    int64_t places = lowlat_places(job);
    expar_tensor wanted =
        cube(call->there_args.out_x.data, received_dtype(job), lowlat_locals(job), places, received_columns(job));
    if (!has_form(x, &wanted, "recv_x")) return false;
    size_t row_bytes = llo_row_bytes(job);
    for (int64_t i = 0; i < lowlat_locals(job) * places; i++) {
        const char *row = (const char *)x->data + (size_t)i * row_bytes;
        if (i % places >= expected->count[i / places]) {
            if (!CHECK(!call->choice.own_x || all_spare(row, row_bytes), "recv_x[%lld][%lld] was written to",
                       (long long)(i / places), (long long)(i % places)))
                return false;
        } else if (!CHECK(memcmp(row, (const char *)expected->x + (size_t)i * row_bytes, row_bytes) == 0,
                          "recv_x[%lld][%lld] of %d rows differs", (long long)(i / places), (long long)(i % places),
                          (int)expected->count[i / places])) {
            return false;
        }
    }
    return true;
}

static bool check_recv_scales(const lowlat_call *call)
{
    const llo_job *job = &call->traffic->job;
    const lowlat_arrival *expected = &call->traffic->arrivals[call->rank];
    const expar_tensor *scales = &call->there.recv_scales;
    int64_t places = lowlat_places(job), words = llo_num_scales(job);
    if (words == 0) return CHECK(!scales->data && scales->ndim == 0, "recv_scales is given, expected none");
    expar_tensor wanted = scales_like(job, call->there_args.out_scales.data);
    if (!has_form(scales, &wanted, "recv_scales")) return false;
    for (int64_t i = 0; i < lowlat_locals(job) * places; i++)
        for (int64_t w = 0; w < words; w++) {
            uint32_t got = ((const uint32_t *)scales->data)[scale_place(job, i, w)];
            bool there = i % places < expected->count[i / places];
            if (there ? got == expected->scales[i * words + w]
                      : !call->choice.own_scales || all_spare(&got, sizeof got))
                continue;
            return CHECK(false, "recv_scales[%lld][%lld][%lld] is %#x, expected %#x", (long long)(i / places),
                         (long long)(i % places), (long long)w, (unsigned)got,
                         there ? (unsigned)expected->scales[i * words + w] : 0x5a5a5a5au);
        }
    return true;
}

static bool check_counts(const lowlat_call *call)
{
    const llo_job *job = &call->traffic->job;
    const lowlat_arrival *expected = &call->traffic->arrivals[call->rank];
    const expar_tensor *count = &call->there.recv_count;
    expar_tensor wanted = row_of_numbers(call->there_args.out_count.data, EXPAR_I32, lowlat_locals(job));
    if (!has_form(count, &wanted, "recv_count")) return false;
    for (int32_t e = 0; e < lowlat_locals(job); e++) {
        int32_t got = ((const int32_t *)count->data)[e];
        if (!CHECK(got == expected->count[e], "recv_count[%d] is %d, expected %d", (int)e, (int)got,
                   (int)expected->count[e]))
            return false;
        if (call->stats &&
            !CHECK(call->stats[e] == lowlat_first_stat(e) + expected->count[e], "stats[%d] is %d, expected %d", (int)e,
                   (int)call->stats[e], (int)(lowlat_first_stat(e) + expected->count[e])))
            return false;
    }
    return true;
}

static bool check_handle(const lowlat_call *call)
{
    const llo_job *job = &call->traffic->job;
    const lowlat_arrival *expected = &call->traffic->arrivals[call->rank];
    expar_ll_handle_info info = EXPAR_LL_HANDLE_INFO_INIT;
    int64_t places = lowlat_places(job), locals = lowlat_locals(job), n = job->num_ranks;
    if (!CHECK_OK(expar_ll_handle_get_info(call->there.handle, &info))) return false;
    expar_tensor src_info = expar_tensor_2d(NULL, EXPAR_I32, locals, places);
    expar_tensor range = expar_tensor_2d(NULL, EXPAR_I64, locals, n);
    if (!has_form(&info.src_info, &src_info, "src_info") || !has_form(&info.range, &range, "range")) return false;
    for (int64_t i = 0; i < locals * places; i++) {
        int32_t got = ((const int32_t *)info.src_info.data)[i];
        if (i % places < expected->count[i / places] &&
            !CHECK(got == expected->src_info[i], "src_info[%lld][%lld] is %d, expected %d", (long long)(i / places),
                   (long long)(i % places), (int)got, (int)expected->src_info[i]))
            return false;
    }
    for (int64_t i = 0; i < locals * n; i++) {
        int64_t got = ((const int64_t *)info.range.data)[i];
        if (!CHECK(got == expected->range[i], "range[%lld][%lld] is %#llx, expected %#llx", (long long)(i / n),
                   (long long)(i % n), (unsigned long long)got, (unsigned long long)expected->range[i]))
            return false;
    }
    return CHECK(info.num_tokens == call->traffic->inputs[call->rank].num_tokens &&
                     info.max_tokens == job->max_tokens && info.hidden == job->hidden && info.num_topk >= job->topk &&
                     info.num_experts == job->num_experts,
                 "the handle has T %d, B %d, H %d, K %d, E %d", (int)info.num_tokens, (int)info.max_tokens,
                 (int)info.hidden, (int)info.num_topk, (int)info.num_experts);
}

/* Ends that are one are just these bits; in between numbers count. */
static bool is_between(oracle_type type, const void *row, const void *least, const void *most, int64_t i)
{
    const uint32_t got = oracle_load(type, row, i), low = oracle_load(type, least, i),
                   high = oracle_load(type, most, i);
    const float value = oracle_widen(type, got);
    return low == high ? got == low : value >= oracle_widen(type, low) && value <= oracle_widen(type, high);
}

/* Row t of y; of coded rows each element is one of an interval. */
static bool is_row_of_y(const lowlat_answers *a, int32_t rank, int64_t t, const void *row)
{
    const size_t at = (size_t)t * (size_t)a->job.hidden * oracle_element_bytes(a->job.type);
    const char *least = (const char *)a->y[rank] + at;
    bool right = true;
    if (!a->most) return memcmp(row, least, (size_t)a->job.hidden * oracle_element_bytes(a->job.type)) == 0;
    for (int32_t i = 0; right && i < a->job.hidden; i++)
        right = CHECK(is_between(a->job.type, row, least, (const char *)a->most[rank] + at, i), "element %d", (int)i);
    return right;
}

static bool check_y(const lowlat_call *call)
{
    const lowlat_answers *a = call->answers;
    const expar_tensor *y = &call->back.y, *out = &call->back_args.out_y;
    int64_t tokens = a->inputs[call->rank].num_tokens;
    expar_tensor wanted = out->ndim ? *out : expar_tensor_2d(NULL, lowlat_dtype(a->job.type), tokens, a->job.hidden);
    if (!has_form(y, &wanted, "y")) return false;
    for (int64_t t = 0; t < tokens; t++) {
        const char *row = (const char *)y->data + (size_t)(t * y->strides[0]) * oracle_element_bytes(a->job.type);
        if (!CHECK(is_row_of_y(a, call->rank, t, row), "y[%lld] of %lld tokens differs", (long long)t,
                   (long long)tokens))
            return false;
    }
    return !call->choice.own_x || CHECK(pitched_gaps_intact(out), "something was written between the rows of y");
}

static bool check_waits(const lowlat_call *call)
{
    for (int32_t r = 0; call->waits && r < call->traffic->job.num_ranks; r++)
        if (!CHECK(call->waits[r] >= FIRST_WAIT(r) && call->waits[r] < FIRST_WAIT(r) + INT64_C(600000000000),
                   "wait_ns[%d] is %lld", (int)r, (long long)call->waits[r]))
            return false;
    return true;
}

bool lowlat_is_right(const lowlat_call *call)
{
    bool right = call->answers
                     ? check_y(call)
                     : check_counts(call) && check_handle(call) && check_recv_x(call) && check_recv_scales(call);
    return right && check_waits(call);
}

void lowlat_clean(lowlat_call *call)
{
    if (call->answers) {
        expar_ll_hook_release(call->back.hook);
        expar_event_release(call->back.event);
        expar_ep_output_release(call->back.output);
        if (!call->choice.zero_copy) free(call->back_args.x.data);
        pitched_free(&call->back_args.topk_idx);
        pitched_free(&call->back_args.topk_weights);
        pitched_free(&call->back_args.out_y);
    } else {
        expar_ll_hook_release(call->there.hook);
        expar_event_release(call->there.event);
        expar_ep_output_release(call->there.output);
        expar_ll_handle_release(call->there.handle);
        pitched_free(&call->there_args.x);
        pitched_free(&call->there_args.topk_idx);
        pitched_free(&call->there_args.topk_weights);
        free(call->there_args.out_x.data);
        free(call->there_args.out_scales.data);
        free(call->there_args.out_count.data);
    }
    expar_event_release(call->wait_event);
    free(call->waits);
    free(call->stats);
    *call = (lowlat_call){0};
}

/* ---- whole calls ------------------------------------------------------------------------------------------------- */

bool lowlat_trial(lowlat_call *call)
{
    return CHECK_OK(lowlat_start(call)) && CHECK_OK(lowlat_end(call)) && lowlat_is_right(call);
}

bool lowlat_round_trip(expar_ll *ll, const lowlat_traffic *t, lowlat_answers *const *back, int32_t num_back,
                       int32_t rank, const lowlat_choice *choice)
{
    lowlat_call there, answer;
    lowlat_prepare_dispatch(&there, ll, t, rank, choice);
    bool right = lowlat_trial(&there);
    for (int32_t i = 0; right && i < num_back; i++) {
        lowlat_prepare_combine(&answer, ll, t, back[i], rank, choice, there.there.handle);
        right = lowlat_trial(&answer) && lowlat_is_right(&there);
        lowlat_clean(&answer);
    }
    lowlat_clean(&there);
    return right;
}
