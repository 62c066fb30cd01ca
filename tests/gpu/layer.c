/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of layer.h: memory, calls, comparison. */
#include "gpu/layer.h"
#include "cuda/find_controls.h"
#include <stdlib.h>
#include <string.h>

/* ---- the GPU ----------------------------------------------------------------------------------------------------- */

bool card_open(card *c, int32_t rank)
{
    int32_t count = 0;
    bool open = CHECK_OK(cuda_device_count(&count)) && CHECK_OK(cuda_device_open(rank % count, &c->device)) &&
                CHECK_OK(cuda_enter(c->device));
    for (int i = 0; open && i < CARD_STREAMS; i++)
        open = CHECK_OK(CUDA_CALL(StreamCreate, &c->streams[i], CU_STREAM_NON_BLOCKING));
    return open;
}

void card_close(card *c)
{
    for (int i = 0; i < CARD_STREAMS; i++)
        CHECK_OK(CUDA_CALL(StreamDestroy, c->streams[i]));
    cuda_leave();
    cuda_device_close(c->device);
    const fake_controls *controls = controls_find();
    CHECK(!controls || atomic_load(&controls->host_functions) == 0, "the library has put a host function on a stream");
}

expar_ep_config card_config(const card *c, const expar_ep_config *config)
{
    expar_ep_config on_gpu = *config;
    on_gpu.device = (expar_device){.type = EXPAR_CUDA, .index = c->device->index};
    return on_gpu;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static size_t tensor_bytes(const expar_tensor *t, int64_t rows)
{
    return (size_t)(rows * t->shape[1]) * expar_dtype_bytes(t->dtype);
}

bool card_take(const card *c, expar_tensor *out, expar_dtype dtype, int64_t rows, int64_t columns)
{
    cu_address at = 0;
    *out = expar_tensor_2d(NULL, dtype, rows, columns);
    if (!CHECK_OK(CUDA_CALL(MemAlloc, &at, tensor_bytes(out, rows + 1)))) return false;
    out->data = (void *)(uintptr_t)at;
    out->device = (expar_device){.type = EXPAR_CUDA, .index = c->device->index};
    return true;
}

void card_give(expar_tensor *tensor)
{
    if (tensor->data) CHECK_OK(CUDA_CALL(MemFree, (cu_address)(uintptr_t)tensor->data));
    tensor->data = NULL;
}

bool card_put(const expar_tensor *to, int64_t rows, const void *from, cu_stream stream)
{
    size_t bytes = tensor_bytes(to, rows);
    return bytes == 0 || CHECK_OK(CUDA_CALL(MemcpyHtoDAsync, (cu_address)(uintptr_t)to->data, from, bytes, stream));
}

void *card_fetch(const expar_tensor *from, cu_stream stream)
{
    size_t bytes = tensor_bytes(from, from->shape[0]);
    void *host = traffic_alloc(1, bytes + 1);
    if (bytes) CHECK_OK(CUDA_CALL(MemcpyDtoHAsync, host, (cu_address)(uintptr_t)from->data, bytes, stream));
    CHECK_OK(CUDA_CALL(StreamSynchronize, stream));
    return host;
}

bool layer_open(layer *p, const card *c, const traffic *t, int32_t rank)
{
    int64_t tokens = t->inputs[rank].num_tokens, hidden = t->job.hidden, topk = t->job.topk;
    *p = (layer){.card = c, .rank = rank};
    for (int32_t r = 0; r < t->job.num_ranks; r++)
        p->spare += t->inputs[r].num_tokens;
    return card_take(c, &p->x, traffic_dtype(t), tokens, hidden) && card_take(c, &p->idx, EXPAR_I64, tokens, topk) &&
           card_take(c, &p->weights, EXPAR_F32, tokens, topk) &&
           card_take(c, &p->y, traffic_dtype(t), tokens, hidden) && card_take(c, &p->summed, EXPAR_F32, tokens, topk) &&
           card_take(c, &p->back, traffic_dtype(t), p->spare, hidden) &&
           card_take(c, &p->back_weights, EXPAR_F32, p->spare, topk);
}

void layer_close(layer *p)
{
    expar_tensor *const all[] = {&p->x, &p->idx, &p->weights, &p->y, &p->summed, &p->back, &p->back_weights};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        card_give(all[i]);
}

/* A copy from ordinary memory may wait for the kernels ahead of it in the stream, and keep those of other ranks in this
   process from being launched meanwhile. So the stream is through first. */
bool layer_upload(const layer *p, const traffic *t, const answers *a, cu_stream stream)
{
    const oracle_input *input = &t->inputs[p->rank];
    int64_t rows = t->arrivals[p->rank].num_rows;
    return CHECK_OK(CUDA_CALL(StreamSynchronize, stream)) && card_put(&p->x, input->num_tokens, input->x, stream) &&
           card_put(&p->idx, input->num_tokens, input->topk_idx, stream) &&
           card_put(&p->weights, input->num_tokens, input->weights, stream) &&
           card_put(&p->back, rows, a->x[p->rank], stream) &&
           card_put(&p->back_weights, rows, a->weights[p->rank], stream);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static expar_tensor first_rows(const expar_tensor *t, int64_t rows)
{
    expar_tensor view = *t;
    view.shape[0] = rows;
    return view;
}

expar_status layer_dispatch(layer *p, expar_ep *ep, const traffic *t, cu_stream stream)
{
    expar_ep_dispatch_args there = EXPAR_EP_DISPATCH_ARGS_INIT;
    there.x = p->x;
    there.topk_idx = p->idx;
    there.topk_weights = p->weights;
    there.num_experts = t->job.num_experts;
    there.num_worst_tokens = p->worst;
    there.path = p->path;
    there.stream = stream;
    there.async_finish = p->wait != LAYER_WAITS;
    p->result = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    const expar_status status = expar_ep_dispatch(ep, &there, &p->result);
    expar_event_release(p->result.event);
    return status;
}

static expar_ep_combine_args combine_args_of(const layer *p, expar_ep_path path, cu_stream stream)
{
    expar_ep_combine_args back = EXPAR_EP_COMBINE_ARGS_INIT;
    int64_t rows = p->worst ? p->worst : p->result.num_recv_tokens;
    back.x = first_rows(&p->back, rows);
    back.topk_weights = first_rows(&p->back_weights, rows);
    back.handle = p->result.handle;
    back.path = path;
    back.out_y = p->y;
    back.out_topk_weights = p->summed;
    back.stream = stream;
    back.async_finish = p->wait != LAYER_WAITS;
    return back;
}

expar_status layer_combine_by(const layer *p, expar_ep *ep, expar_ep_path path, cu_stream stream)
{
    const expar_ep_combine_args back = combine_args_of(p, path, stream);
    expar_ep_combine_result result = EXPAR_EP_COMBINE_RESULT_INIT;
    const expar_status status = expar_ep_combine(ep, &back, &result);
    expar_event_release(result.event);
    return status;
}

expar_status layer_combine_async(const layer *p, expar_ep *ep, cu_stream stream, expar_event **event)
{
    expar_ep_combine_args back = combine_args_of(p, p->path, stream);
    expar_ep_combine_result result = EXPAR_EP_COMBINE_RESULT_INIT;
    back.async_finish = 1;
    const expar_status status = expar_ep_combine(ep, &back, &result);
    *event = result.event;
    return status;
}

/* The experts' output is the caller's memory, for which DIRECT is rejected. */
expar_status layer_combine(const layer *p, expar_ep *ep, cu_stream stream)
{
    return layer_combine_by(p, ep, p->path == EXPAR_EP_PATH_DIRECT ? EXPAR_EP_PATH_AUTO : p->path, stream);
}

bool layer_call(layer *p, expar_ep *ep, const traffic *t, cu_stream stream)
{
    return CHECK_OK(layer_dispatch(p, ep, t, stream)) && CHECK_OK(layer_combine(p, ep, stream));
}

void layer_release(layer *p)
{
    expar_ep_output_release(p->result.output);
    expar_ep_handle_release(p->result.handle);
    p->result.output = NULL;
    p->result.handle = NULL;
}

/* ---- comparison -------------------------------------------------------------------------------------------------- */

static bool same(const char *name, const expar_tensor *got, int64_t rows, const void *expected, cu_stream stream)
{
    void *host = card_fetch(got, stream);
    size_t bytes = tensor_bytes(got, rows);
    bool equal = bytes == 0 || memcmp(host, expected, bytes) == 0;
    free(host);
    return CHECK(equal, "%s differs", name);
}

/* Rows beyond those that came have no experts. */
static bool blank(const layer *p, int64_t came, cu_stream stream)
{
    const expar_tensor *idx = &p->result.recv_topk_idx;
    int64_t *host = card_fetch(idx, stream);
    bool all = true;
    for (int64_t i = came * idx->shape[1]; i < idx->shape[0] * idx->shape[1]; i++)
        all &= host[i] == -1;
    free(host);
    return CHECK(all, "recv_topk_idx behind the rows is not -1");
}

bool layer_verify(const layer *p, const traffic *t, const answers *a, cu_stream stream)
{
    const traffic_arrival *arrival = &t->arrivals[p->rank];
    int64_t tokens = t->inputs[p->rank].num_tokens, rows = arrival->num_rows;
    return CHECK_OK(CUDA_CALL(StreamSynchronize, stream)) &
           same("recv_x", &p->result.recv_x, rows, arrival->x, stream) &
           same("recv_topk_idx", &p->result.recv_topk_idx, rows, arrival->topk_idx, stream) &
           same("recv_topk_weights", &p->result.recv_topk_weights, rows, arrival->weights, stream) &
           blank(p, rows, stream) & same("y", &p->y, tokens, a->y[p->rank], stream) &
           same("out_topk_weights", &p->summed, tokens, a->summed[p->rank], stream);
}

/* ---- whole tests ------------------------------------------------------------------------------------------------- */

bool layer_go(layer *p, expar_ep *ep, const layer_inputs *in, cu_stream stream)
{
    layer_release(p);
    return layer_upload(p, in->t, in->a, stream) && layer_call(p, ep, in->t, stream) &&
           layer_verify(p, in->t, in->a, stream);
}

layer_inputs layers_make(const ranks_plan *plan, uint64_t seed)
{
    static const int64_t tokens[LAYER_RANKS] = {40, 21, 0, 33};
    const traffic_plan what = {.num_ranks = plan->size == 1 ? 1 : LAYER_RANKS,
                               .ranks_per_node = plan->ranks_per_node,
                               .hidden = 64,
                               .topk = 3,
                               .num_experts = 8,
                               .wide = true,
                               .with_weights = true,
                               .num_tokens = tokens};
    random_source random = random_start(seed);
    layer_inputs in = {.t = traffic_make(&what, &random)};
    in.a = answers_make(in.t, true, &random);
    return in;
}

void layers_free(layer_inputs *in)
{
    answers_free(in->a);
    traffic_free(in->t);
}

bool layers_run(const ranks_plan *plan, uint64_t seed, ranks_body body)
{
    layer_inputs in = layers_make(plan, seed);
    ranks_plan ranks = *plan;
    ranks.size = plan->size == 1 ? 1 : LAYER_RANKS;
    const bool passed = ranks_run(&ranks, body, &in);
    layers_free(&in);
    return passed;
}

bool layer_pair_open(layer_pair *pair, expar_group *group, const layer_inputs *in, const expar_ep_config *config)
{
    const int32_t rank = expar_group_rank(group);
    *pair = (layer_pair){.group = group, .in = in};
    if (!card_open(&pair->card, rank)) return false;
    const expar_ep_config on_gpu = card_config(&pair->card, config);
    if (!CHECK_OK(expar_ep_create(group, &on_gpu, &pair->ep))) return false;
    for (int32_t i = 0; i < 2; i++)
        if (!layer_open(&pair->layers[i], &pair->card, in->t, rank)) return false;
    return CHECK_OK(expar_barrier_all(group));
}

/* A caller's allocator may use the card's streams: so all has to be back before they go. */
void layer_pair_close(layer_pair *pair)
{
    for (int32_t i = 0; i < 2; i++) {
        layer_release(&pair->layers[i]);
        CHECK_OK(expar_barrier_all(pair->group));
        layer_close(&pair->layers[i]);
    }
    CHECK_OK(expar_ep_destroy(pair->ep));
    cuda_later_await();
    card_close(&pair->card);
}

bool layer_pair_go(layer_pair *pair, int32_t which)
{
    return layer_go(&pair->layers[which], pair->ep, pair->in, pair->card.streams[0]);
}
