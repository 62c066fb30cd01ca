/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch against the oracle. */
#include "ep/harness/pitched.h"
#include "ep/harness/trial.h"
#include <stdlib.h>
#include <string.h>

/* The content of out_x where no row goes. */
#define SPARE_BYTE 0x5a

bool trial_area_take(expar_group *group, size_t bytes, trial_area *area)
{
    *area = (trial_area){.bytes = bytes};
    return CHECK_OK(expar_malloc(group, bytes, &area->out)) && CHECK_OK(expar_malloc(group, bytes, &area->in));
}

void trial_area_give(expar_group *group, trial_area *area)
{
    CHECK_OK(expar_free(group, area->in));
    CHECK_OK(expar_free(group, area->out));
    *area = (trial_area){0};
}

/* The caller's own output, R and some rows long. */
static expar_tensor make_out_x(const traffic *t, int32_t rank, const trial_choice *choice, const trial_area *area,
                               void **own_out)
{
    int64_t rows = t->arrivals[rank].num_rows + choice->spare_rows;
    size_t bytes = (size_t)rows * traffic_row_bytes(t);
    void *data = choice->place == PLACE_SYMMETRIC ? area->out : NULL;
    if (choice->place == PLACE_LIBRARY) return EXPAR_TENSOR_NONE;
    if (choice->place == PLACE_PRIVATE)
        data = *own_out = rows || !choice->null_if_empty ? traffic_alloc(bytes, 1) : NULL;
    else if (!CHECK(bytes <= area->bytes, "the test's symmetric area is too small"))
        abort();
    if (data) memset(data, SPARE_BYTE, bytes);
    return expar_tensor_2d(data, traffic_dtype(t), rows, t->job.hidden);
}

expar_ep_dispatch_args trial_dispatch_args(const traffic *t, int32_t rank, const trial_choice *choice,
                                           const trial_area *area, void **own_out)
{
    const oracle_input *input = &t->inputs[rank];
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    int64_t gap = choice->pad * 16 / (int64_t)oracle_element_bytes(t->job.type);
    args.x =
        pitched_make_filled(input->x, traffic_dtype(t), input->num_tokens, t->job.hidden, gap, choice->null_if_empty);
    args.topk_idx =
        pitched_make_idx(input->topk_idx, t->wide, input->num_tokens, t->job.topk, choice->pad, choice->null_if_empty);
    if (t->with_weights)
        args.topk_weights = pitched_make_filled(input->weights, EXPAR_F32, input->num_tokens, t->job.topk, choice->pad,
                                                choice->null_if_empty);
    args.num_experts = t->job.num_experts;
    args.expert_alignment = t->job.expert_alignment;
    args.path = choice->path;
    args.out_x = make_out_x(t, rank, choice, area, own_out);
    return args;
}

void trial_dispatch_args_free(expar_ep_dispatch_args *args)
{
    pitched_free(&args->x);
    pitched_free(&args->topk_idx);
    pitched_free(&args->topk_weights);
}

static bool check_matrix(const expar_tensor *tensor, expar_dtype dtype, int64_t rows, int64_t columns, const char *name)
{
    return CHECK(tensor->ndim == 2 && tensor->dtype == dtype && tensor->shape[0] == rows && tensor->shape[1] == columns,
                 "%s is %s of %d dimensions [%lld][%lld], expected %s [%lld][%lld]", name,
                 expar_dtype_string(tensor->dtype), (int)tensor->ndim, (long long)tensor->shape[0],
                 (long long)tensor->shape[1], expar_dtype_string(dtype), (long long)rows, (long long)columns) &&
           CHECK(tensor->device.type == EXPAR_CPU, "%s is not on the CPU", name) &&
           CHECK(rows == 0 || (tensor->strides[0] == columns && tensor->strides[1] == 1), "%s is not contiguous",
                 name) &&
           CHECK(rows == 0 || tensor->data, "%s has no data", name);
}

static bool check_none(const expar_tensor *tensor, const char *name)
{
    return CHECK(!tensor->data && tensor->ndim == 0, "%s is given, expected none", name);
}

static bool check_recv_x(const trial_arrival *arrival, int32_t rank)
{
    const traffic *t = arrival->traffic;
    const traffic_arrival *expected = &t->arrivals[rank];
    const expar_tensor *x = &arrival->result.recv_x;
    if (!check_matrix(x, traffic_dtype(t), expected->num_rows, t->job.hidden, "recv_x")) return false;
    for (int64_t row = 0; row < expected->num_rows; row++) {
        size_t bytes = traffic_row_bytes(t), at = (size_t)row * bytes;
        if (!CHECK(memcmp((char *)x->data + at, (char *)expected->x + at, bytes) == 0,
                   "recv_x differs in row %lld of %lld", (long long)row, (long long)expected->num_rows))
            return false;
    }
    return true;
}

static bool check_recv_idx(const trial_arrival *arrival, int32_t rank)
{
    const traffic *t = arrival->traffic;
    const traffic_arrival *expected = &t->arrivals[rank];
    const expar_tensor *idx = &arrival->result.recv_topk_idx;
    if (!check_matrix(idx, t->wide ? EXPAR_I64 : EXPAR_I32, expected->num_rows, t->job.topk, "recv_topk_idx"))
        return false;
    for (int64_t i = 0; i < expected->num_rows * t->job.topk; i++) {
        int64_t got = t->wide ? ((int64_t *)idx->data)[i] : ((int32_t *)idx->data)[i];
        if (!CHECK(got == expected->topk_idx[i], "recv_topk_idx[%lld][%lld] is %lld, expected %lld",
                   (long long)(i / t->job.topk), (long long)(i % t->job.topk), (long long)got,
                   (long long)expected->topk_idx[i]))
            return false;
    }
    return true;
}

static bool check_recv_weights(const trial_arrival *arrival, int32_t rank)
{
    const traffic *t = arrival->traffic;
    const traffic_arrival *expected = &t->arrivals[rank];
    const expar_tensor *weights = &arrival->result.recv_topk_weights;
    if (!t->with_weights) return check_none(weights, "recv_topk_weights");
    return check_matrix(weights, EXPAR_F32, expected->num_rows, t->job.topk, "recv_topk_weights") &&
           CHECK(pitched_equals(weights, expected->weights), "recv_topk_weights differ");
}

static bool check_per_expert(const trial_arrival *arrival, int32_t rank)
{
    const traffic *t = arrival->traffic;
    const int32_t *got = arrival->result.recv_tokens_per_expert, *expected = t->arrivals[rank].per_expert;
    if (!CHECK(got, "recv_tokens_per_expert is NULL")) return false;
    for (int32_t e = 0; e < traffic_local_experts(t); e++)
        if (!CHECK(got[e] == expected[e], "recv_tokens_per_expert[%d] is %d, expected %d", (int)e, (int)got[e],
                   (int)expected[e]))
            return false;
    return true;
}

static bool check_handle(const traffic *t, const expar_ep_handle *handle, int32_t rank)
{
    const traffic_arrival *expected = &t->arrivals[rank];
    size_t n = (size_t)t->job.num_ranks;
    expar_ep_handle_info info = EXPAR_EP_HANDLE_INFO_INIT;
    if (!CHECK_OK(expar_ep_handle_get_info(handle, &info))) return false;
    bool sizes = CHECK(info.num_tokens == t->inputs[rank].num_tokens && info.num_recv_tokens == expected->num_rows,
                       "the handle says T %lld, R %lld", (long long)info.num_tokens, (long long)info.num_recv_tokens) &
                 CHECK(info.num_experts == t->job.num_experts && info.num_topk == t->job.topk,
                       "the handle says E %d, K %d", (int)info.num_experts, (int)info.num_topk) &
                 CHECK(info.num_channels >= 1, "the handle says C %d", (int)info.num_channels);
    if (!sizes) return false;
    size_t bytes = n * (size_t)info.num_channels * sizeof(int32_t);
    int32_t *channels = traffic_alloc(bytes, 1);
    oracle_channel_prefix(&t->job, rank, info.num_channels, channels);
    bool right =
        CHECK(memcmp(info.channel_prefix, channels, bytes) == 0, "channel_prefix differs") &
        CHECK(memcmp(info.rank_prefix, expected->rank_prefix, n * sizeof(int32_t)) == 0, "rank_prefix differs");
    free(channels);
    return right;
}

static bool check_arrival(const trial_arrival *arrival, int32_t rank, bool cached)
{
    const expar_ep_dispatch_result *result = &arrival->result;
    const traffic *t = arrival->traffic;
    bool right = CHECK(result->num_recv_tokens == t->arrivals[rank].num_rows, "R is %lld, expected %lld",
                       (long long)result->num_recv_tokens, (long long)t->arrivals[rank].num_rows) &
                 CHECK(result->num_local_experts == traffic_local_experts(t), "L is %d, expected %d",
                       (int)result->num_local_experts, (int)traffic_local_experts(t)) &
                 CHECK(result->output, "there is no output");
    if (!arrival->overwritten) right &= check_recv_x(arrival, rank);
    if (cached)
        return right & check_none(&result->recv_topk_idx, "recv_topk_idx") &
               check_none(&result->recv_topk_weights, "recv_topk_weights") &
               CHECK(!result->recv_tokens_per_expert && !result->handle, "a cached dispatch gave counts or a handle");
    return right & check_recv_idx(arrival, rank) & check_recv_weights(arrival, rank) & check_per_expert(arrival, rank);
}

bool trial_check_arrival(const trial_arrival *arrival, int32_t rank)
{
    return check_arrival(arrival, rank, !arrival->result.recv_topk_idx.ndim);
}

/* The way that the rows took, where the choice leaves no doubt. */
static bool check_path(const trial_choice *choice, expar_ep_path path, int64_t num_rows)
{
    expar_ep_path expected = choice->path;
    if (num_rows == 0) return true;
    if (expected == EXPAR_EP_PATH_AUTO)
        expected = choice->place == PLACE_PRIVATE ? EXPAR_EP_PATH_QUEUE
                   : choice->sure_of_pool         ? EXPAR_EP_PATH_DIRECT
                                                  : EXPAR_EP_PATH_AUTO;
    if (expected == EXPAR_EP_PATH_AUTO)
        return CHECK(path == EXPAR_EP_PATH_DIRECT || path == EXPAR_EP_PATH_QUEUE, "path is %d", (int)path);
    return CHECK(path == expected, "path is %d, expected %d", (int)path, (int)expected);
}

/* recv_x is the caller's memory, and the rows after R are as they were. */
static bool check_own_out(const expar_ep_dispatch_args *args, const trial_arrival *arrival, const trial_choice *choice)
{
    const traffic *t = arrival->traffic;
    const unsigned char *data = args->out_x.data;
    if (choice->place == PLACE_LIBRARY || !data) return true;
    if (!CHECK(arrival->result.recv_x.data == data, "recv_x is not out_x")) return false;
    size_t used = (size_t)arrival->result.num_recv_tokens * traffic_row_bytes(t);
    for (size_t i = used; i < (size_t)args->out_x.shape[0] * traffic_row_bytes(t); i++)
        if (!CHECK(data[i] == SPARE_BYTE, "byte %zu of out_x, behind the rows, was written", i)) return false;
    return true;
}

bool trial_dispatch(expar_ep *ep, const traffic *t, int32_t rank, const trial_choice *choice, const trial_area *area,
                    const expar_ep_handle *handle, trial_arrival *arrival)
{
    *arrival = (trial_arrival){.traffic = t, .result = EXPAR_EP_DISPATCH_RESULT_INIT};
    expar_ep_dispatch_args args = trial_dispatch_args(t, rank, choice, area, &arrival->own_out);
    expar_ep_dispatch_args given = args;
    if (handle) {
        args.handle = handle;
        args.topk_idx = args.topk_weights = EXPAR_TENSOR_NONE;
    }
    bool right = CHECK_OK(expar_ep_dispatch(ep, &args, &arrival->result));
    if (right) {
        arrival->handle = arrival->result.handle;
        right = check_arrival(arrival, rank, handle != NULL) &
                check_path(choice, arrival->result.path, arrival->result.num_recv_tokens) &
                check_own_out(&args, arrival, choice) & check_handle(t, handle ? handle : arrival->handle, rank) &
                CHECK(pitched_equals(&args.x, t->inputs[rank].x), "the dispatch changed its input");
    }
    trial_dispatch_args_free(&given);
    return right;
}

void trial_release(trial_arrival *arrival, bool handle_first)
{
    if (handle_first) expar_ep_handle_release(arrival->handle);
    expar_ep_output_release(arrival->result.output);
    if (!handle_first) expar_ep_handle_release(arrival->handle);
    free(arrival->own_out);
    *arrival = (trial_arrival){0};
}
