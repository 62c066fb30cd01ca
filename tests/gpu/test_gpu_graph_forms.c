/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of all forms inside CUDA graphs: dispatches with a handle and their combines, expert-major ones, rows with
 * scales, and biases. Also the caller's own output, numbers at the source, experts' global numbers. Each is captured
 * once and replayed with other inputs. The results, and the counts on the device, are compared with the oracle, byte
 * for byte.
 *
 * A graph holds a dispatch with its combine, and another dispatch with the handle of the first with its own combine. Or
 * it holds the latter two only: the first dispatch was made before, so that the host knows how many rows come. */
#include "ep/harness/deal.h"
#include "ep/harness/pitched.h"
#include "ep/harness/ranks.h"
#include "ep/low_latency/reach.h"
#include "ep/normal/normal.h"
#include "gpu/layer.h"
#include "oracle/unit.h"
#include <stdlib.h>
#include <string.h>

#define RANKS     4
#define REPLAYS   3
#define TOPK      3
#define EXPERTS   8
#define ROW_BYTES 144
#define SPACE     74 /* all tokens of all ranks */

static const int64_t num_tokens[RANKS] = {40, 1, 0, 33};

/* Common to all calls of one graph; paths and kinds are filled in. */
typedef struct form {
    const char *name;
    move_form there, back;
    deal_choice choice, back_choice;
} form;

static const form forms[] = {
    {.name = "rows, with biases and weights",
     .there = {.type = ORACLE_BF16, .hidden = 72},
     .back = {.type = ORACLE_BF16, .hidden = 72, .with_weights = true},
     .back_choice = {.biases = 3}},
    {.name = "expert-major rows",
     .there = {.type = ORACLE_BF16, .hidden = 72},
     .back = {.type = ORACLE_BF16, .hidden = 72, .with_weights = true},
     .choice = {.expert_major = true, .zero_padding = true, .alignment = 4},
     .back_choice = {.expert_major = true, .expert_weights = true}},
    {.name = "FP8 rows with scales",
     .there = {.type = ORACLE_F8E4M3, .hidden = 144, .num_scales = 5},
     .back = {.type = ORACLE_BF16, .hidden = 72}},
    {.name = "expert-major I8 rows with packed scales",
     .there = {.type = ORACLE_I8, .hidden = 144, .num_scales = 3, .packed = true},
     .back = {.type = ORACLE_F16, .hidden = 72},
     .choice = {.expert_major = true, .zero_padding = true, .alignment = 8},
     .back_choice = {.expert_major = true, .biases = 1}},
    {.name = "rows to the caller's own memory",
     .there = {.type = ORACLE_F32, .hidden = 36},
     .back = {.type = ORACLE_F32, .hidden = 36},
     .choice = {.place = PLACE_PRIVATE},
     .back_choice = {.biases = 1}},
    {.name = "expert-major rows to the caller's own memory",
     .there = {.type = ORACLE_F16, .hidden = 72},
     .back = {.type = ORACLE_F16, .hidden = 72},
     .choice = {.place = PLACE_PRIVATE, .expert_major = true, .zero_padding = true},
     .back_choice = {.expert_major = true}},
    {.name = "rows with their numbers at the source and experts' global numbers",
     .there = {.type = ORACLE_BF16, .hidden = 72, .src_tokens = true, .global_experts = true},
     .back = {.type = ORACLE_BF16, .hidden = 72}},
};

/* One graph of the test. */
typedef struct scene {
    const form *form;
    bool made_first; /* the first dispatch is made before, and no part of the graph */
    int mode;        /* of the capture */
    uint64_t seed;
} scene;

/* expar_ep_recv_counts, as memory of the GPU. */
typedef struct leg_counts {
    expar_tensor tokens_per_expert, expert_prefix, rank_prefix, num_recv_tokens, expert_ends;
} leg_counts;

/* Options of the first dispatch (0), and of the one that has its handle (1). */
typedef struct leg {
    deal_move *there, *back;                               /* of this round */
    expar_tensor x, scales, out;                           /* of the dispatch */
    expar_tensor rows, weights, expert_weights, biases[2]; /* given to the combine */
    expar_tensor y, summed;
    leg_counts counts;
    expar_ep_dispatch_result result;
} leg;

typedef struct actor {
    expar_group *group;
    int32_t rank;
    card card;
    cu_stream stream;
    expar_ep *ep;
    const scene *scene;
    deal *deal;
    expar_tensor idx, topk_weights; /* of the first dispatch */
    leg legs[2];
} actor;

/* ---- what is drawn, the same by all ranks ------------------------------------------------------------------------ */

static void choose_paths(deal_choice *choices, const deal_choice *one, bool swap)
{
    for (int32_t r = 0; r < RANKS; r++) {
        choices[r] = *one;
        choices[r].path = (r % 2 != 0) != swap ? EXPAR_EP_PATH_QUEUE : EXPAR_EP_PATH_AUTO;
    }
}

/* Another routing each round, but where the handle is made once. */
static void draw_deal(actor *one, int round)
{
    deal_choice choices[RANKS];
    random_source random = random_start(one->scene->seed + (one->scene->made_first ? 0 : (uint64_t)round));
    choose_paths(choices, &one->scene->form->choice, false);
    const deal_plan plan = {.num_ranks = RANKS,
                            .ranks_per_node = reach_oracle_ranks(RANKS),
                            .topk = TOPK,
                            .num_experts = EXPERTS,
                            .wide = true,
                            .with_weights = true,
                            .disturb = 6,
                            .num_tokens = num_tokens,
                            .choices = choices};
    one->deal = deal_make(&plan, &random);
    for (int32_t r = 0; !one->scene->made_first && r < RANKS; r++)
        one->deal->inputs[r].num_worst_tokens = SPACE;
}

static deal_move *draw_move(const actor *one, move_form what, move_kind kind, const deal_choice *choice, bool swap,
                            random_source *random)
{
    deal_choice choices[RANKS];
    what.kind = kind;
    choose_paths(choices, choice, swap);
    for (int32_t r = 0; r < RANKS; r++)
        choices[r].counts = kind != MOVE_COMBINE;
    return move_make(one->deal, &what, choices, random);
}

static void draw(actor *one, int round)
{
    const form *f = one->scene->form;
    random_source random = random_start(one->scene->seed * 1000 + (uint64_t)round);
    draw_deal(one, round);
    for (int i = 0; i < 2; i++) {
        move_kind kind = i ? MOVE_REPEAT : MOVE_DISPATCH;
        one->legs[i].there = draw_move(one, f->there, kind, &f->choice, false, &random);
        one->legs[i].back = draw_move(one, f->back, MOVE_COMBINE, &f->back_choice, i == 0, &random);
    }
}

static void drop(actor *one)
{
    for (int i = 0; i < 2; i++) {
        move_free(one->legs[i].there);
        move_free(one->legs[i].back);
    }
    deal_free(one->deal);
}

/* ---- memory: taken before the capture, of the size that every round has ------------------------------------------ */

static bool take_if(const actor *one, bool wanted, expar_tensor *out, expar_dtype dtype, int64_t rows, int64_t columns)
{
    return !wanted || card_take(&one->card, out, dtype, rows, columns);
}

static bool take_counts(const actor *one, leg_counts *c)
{
    const int64_t locals = EXPERTS / RANKS;
    return card_take(&one->card, &c->tokens_per_expert, EXPAR_I32, 1, locals) &&
           card_take(&one->card, &c->expert_prefix, EXPAR_I32, 1, locals + 1) &&
           card_take(&one->card, &c->rank_prefix, EXPAR_I32, 1, RANKS) &&
           card_take(&one->card, &c->num_recv_tokens, EXPAR_I64, 1, 1) &&
           card_take(&one->card, &c->expert_ends, EXPAR_I32, 1, locals);
}

static bool take_leg(const actor *one, leg *l)
{
    const form *f = one->scene->form;
    int64_t tokens = num_tokens[one->rank], x_rows = move_num_x_rows(l->there, one->rank);
    int64_t rows = oracle_num_rows(&l->there->job, one->rank);
    expar_dtype there = deal_dtype(f->there.type), back = deal_dtype(f->back.type);
    bool weighted = f->back.with_weights, good = true;
    good &= take_if(one, true, &l->x, there, tokens, f->there.hidden);
    good &= take_if(one, f->there.num_scales, &l->scales, f->there.packed ? EXPAR_I32 : EXPAR_F32, tokens,
                    f->there.num_scales);
    good &= take_if(one, f->choice.place == PLACE_PRIVATE, &l->out, there, x_rows + DEAL_SPARE_ROWS, f->there.hidden);
    good &= take_if(one, true, &l->rows, back, x_rows, f->back.hidden);
    good &= take_if(one, weighted, &l->weights, EXPAR_F32, rows, TOPK);
    good &= take_if(one, weighted, &l->summed, EXPAR_F32, tokens, TOPK);
    good &= take_if(one, f->back_choice.expert_weights, &l->expert_weights, EXPAR_F32, rows, TOPK);
    good &= take_if(one, true, &l->y, back, tokens, f->back.hidden);
    for (int i = 0; i < 2; i++)
        good &= take_if(one, f->back_choice.biases & 1 << i, &l->biases[i], back, tokens, f->back.hidden);
    return good && take_counts(one, &l->counts);
}

static bool take_memory(actor *one)
{
    int64_t tokens = num_tokens[one->rank];
    memset(one->legs, 0, sizeof one->legs);
    draw(one, 0);
    bool good = card_take(&one->card, &one->idx, EXPAR_I64, tokens, TOPK) &&
                card_take(&one->card, &one->topk_weights, EXPAR_F32, tokens, TOPK) && take_leg(one, &one->legs[0]) &&
                take_leg(one, &one->legs[1]);
    drop(one);
    return good;
}

static void give_memory(actor *one)
{
    card_give(&one->idx);
    card_give(&one->topk_weights);
    for (int i = 0; i < 2; i++) {
        leg *l = &one->legs[i];
        leg_counts *c = &l->counts;
        expar_tensor *const all[] = {
            &l->x,           &l->scales,          &l->out,        &l->rows,   &l->weights,           &l->expert_weights,
            &l->biases[0],   &l->biases[1],       &l->y,          &l->summed, &c->tokens_per_expert, &c->expert_prefix,
            &c->rank_prefix, &c->num_recv_tokens, &c->expert_ends};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            card_give(all[k]);
    }
}

/* ---- inputs of a round ------------------------------------------------------------------------------------------- */

static bool put_if(const actor *one, const expar_tensor *to, const void *from)
{
    return !to->data || !from || card_put(to, to->shape[0], from, one->stream);
}

/* Bytes that no kernel writes are not those that the round before left there. */
static bool spoil(const actor *one, const expar_tensor *tensor, unsigned char byte)
{
    const int64_t columns = tensor->ndim == 2 ? tensor->shape[1] : 1;
    size_t bytes = (size_t)(tensor->shape[0] * columns) * expar_dtype_bytes(tensor->dtype);
    if (!tensor->data || tensor->ndim == 0 || !bytes) return true;
    return CHECK_OK(CUDA_CALL(MemsetD8Async, (cu_address)(uintptr_t)tensor->data, byte, bytes, one->stream));
}

static bool spoil_results(const actor *one, const leg *l)
{
    const expar_ep_dispatch_result *r = &l->result;
    bool own = l->out.data != NULL;
    return spoil(one, &l->out, DEAL_SPARE_BYTE) && (own || spoil(one, &r->recv_x, 0x33)) &&
           spoil(one, &r->recv_scales, 0x33) && spoil(one, &r->recv_topk_idx, 0x33) &&
           spoil(one, &r->recv_topk_weights, 0x33) && spoil(one, &r->recv_row_map, 0x33) &&
           spoil(one, &r->recv_src_token, 0x33) && spoil(one, &l->y, 0x33) && spoil(one, &l->summed, 0x33) &&
           spoil(one, &l->counts.tokens_per_expert, 0x33) && spoil(one, &l->counts.expert_prefix, 0x33) &&
           spoil(one, &l->counts.rank_prefix, 0x33) && spoil(one, &l->counts.num_recv_tokens, 0x33) &&
           spoil(one, &l->counts.expert_ends, 0x33);
}

static bool upload(const actor *one)
{
    const oracle_input *input = &one->deal->inputs[one->rank];
    bool good = CHECK_OK(CUDA_CALL(StreamSynchronize, one->stream)) && put_if(one, &one->idx, input->topk_idx) &&
                put_if(one, &one->topk_weights, input->weights);
    for (int i = 0; i < 2 && good; i++) {
        const leg *l = &one->legs[i];
        int32_t r = one->rank;
        good = put_if(one, &l->x, l->there->inputs[r].x) && put_if(one, &l->scales, l->there->inputs[r].scales) &&
               put_if(one, &l->rows, l->back->x[r]) && put_if(one, &l->weights, l->back->weights[r]) &&
               put_if(one, &l->expert_weights, l->back->expert_weights[r]) &&
               put_if(one, &l->biases[0], l->back->bias[0][r]) && put_if(one, &l->biases[1], l->back->bias[1][r]) &&
               spoil_results(one, l);
    }
    return good;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static bool dispatch(actor *one, int i)
{
    leg *l = &one->legs[i];
    const deal_choice *choice = &l->there->choices[one->rank];
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    args.x = l->x;
    args.x_scales = l->scales;
    args.out_x = l->out;
    args.path = choice->path;
    args.expert_major = choice->expert_major;
    args.zero_padding = choice->zero_padding;
    args.src_tokens = l->there->form.src_tokens;
    args.global_experts = l->there->form.global_experts;
    args.stream = one->stream;
    expar_ep_recv_counts counts = EXPAR_EP_RECV_COUNTS_INIT;
    counts.tokens_per_expert = l->counts.tokens_per_expert.data;
    counts.expert_prefix = l->counts.expert_prefix.data;
    counts.rank_prefix = l->counts.rank_prefix.data;
    counts.num_recv_tokens = l->counts.num_recv_tokens.data;
    counts.expert_ends = l->counts.expert_ends.data;
    args.recv_counts = &counts;
    if (i == 0) {
        args.topk_idx = one->idx;
        args.topk_weights = one->topk_weights;
        args.num_experts = EXPERTS;
        args.expert_alignment = choice->alignment;
        args.num_worst_tokens = one->deal->inputs[one->rank].num_worst_tokens;
    } else {
        args.handle = one->legs[0].result.handle;
    }
    l->result = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    return CHECK_OK(expar_ep_dispatch(one->ep, &args, &l->result));
}

static bool combine(actor *one, int i)
{
    const leg *l = &one->legs[i];
    const deal_choice *choice = &l->back->choices[one->rank];
    expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
    args.x = l->rows;
    args.topk_weights = l->weights;
    args.handle = one->legs[0].result.handle;
    args.path = choice->path;
    args.out_y = l->y;
    args.out_topk_weights = l->summed;
    args.bias[0] = l->biases[0];
    args.bias[1] = l->biases[1];
    args.expert_major = choice->expert_major;
    args.expert_weights = l->expert_weights;
    args.stream = one->stream;
    return CHECK_OK(expar_ep_combine(one->ep, &args, NULL));
}

/* All ranks begin and end it together: in mode GLOBAL nothing that a capture forbids may happen in the process. */
static cu_graph_exec capture(actor *one)
{
    cu_graph graph = NULL;
    cu_graph_exec exec = NULL;
    CHECK_OK(expar_barrier_all(one->group));
    bool good = CHECK_OK(CUDA_CALL(StreamBeginCapture, one->stream, one->scene->mode));
    for (int i = one->scene->made_first; good && i < 2; i++)
        good = dispatch(one, i) && combine(one, i);
    good = CHECK_OK(CUDA_CALL(StreamEndCapture, one->stream, &graph)) && good;
    CHECK_OK(expar_barrier_all(one->group));
    if (good && CHECK_OK(CUDA_CALL(GraphInstantiate, &exec, graph, 0))) {
        CHECK_OK(CUDA_CALL(GraphUpload, exec, one->stream));
        CHECK_OK(CUDA_CALL(StreamSynchronize, one->stream));
    }
    if (graph) CHECK_OK(CUDA_CALL(GraphDestroy, graph));
    CHECK_OK(expar_barrier_all(one->group));
    return exec;
}

/* ---- what came out ----------------------------------------------------------------------------------------------- */

/* Host memory in place of the GPU's. */
static void bring(const actor *one, expar_tensor *tensor)
{
    expar_tensor flat = *tensor;
    if (flat.ndim == 1) flat.shape[1] = 1;
    if (tensor->ndim) tensor->data = card_fetch(&flat, one->stream);
}

/* Counts where the tensors lie; of the first dispatch, whose size the host may not know, in its place, too. */
static void bring_counts(const actor *one, int i, deal_call *call)
{
    const leg *l = &one->legs[i];
    expar_ep_dispatch_result *result = &call->result;
    const int32_t unit = one->scene->form->choice.alignment > 1 ? one->scene->form->choice.alignment : 1;
    call->counts = (expar_ep_recv_counts)EXPAR_EP_RECV_COUNTS_INIT;
    call->counts.tokens_per_expert = card_fetch(&l->counts.tokens_per_expert, one->stream);
    call->counts.expert_prefix = card_fetch(&l->counts.expert_prefix, one->stream);
    call->counts.rank_prefix = card_fetch(&l->counts.rank_prefix, one->stream);
    call->counts.num_recv_tokens = card_fetch(&l->counts.num_recv_tokens, one->stream);
    call->counts.expert_ends = card_fetch(&l->counts.expert_ends, one->stream);
    call->told = true;
    if (result->num_recv_tokens >= 0) return;
    result->num_recv_tokens = *call->counts.num_recv_tokens;
    result->num_dropped_tokens = call->counts.rank_prefix[RANKS - 1] - *call->counts.num_recv_tokens;
    if (i > 0) return;
    int32_t *rounded = traffic_alloc(EXPERTS / RANKS, sizeof *rounded);
    for (int32_t e = 0; e < EXPERTS / RANKS; e++)
        rounded[e] = (call->counts.tokens_per_expert[e] + unit - 1) / unit * unit;
    result->recv_tokens_per_expert = rounded;
}

static void drop_counts(const leg *l, deal_call *call)
{
    if (call->result.recv_tokens_per_expert != l->result.recv_tokens_per_expert)
        free((void *)(uintptr_t)call->result.recv_tokens_per_expert);
    free(call->counts.tokens_per_expert);
    free(call->counts.expert_prefix);
    free(call->counts.rank_prefix);
    free(call->counts.num_recv_tokens);
    free(call->counts.expert_ends);
}

static bool check_there(const actor *one, int i)
{
    const leg *l = &one->legs[i];
    deal_call call = {.move = l->there, .rank = one->rank, .result = l->result};
    expar_ep_dispatch_result *r = &call.result;
    bring_counts(one, i, &call);
    call.args.x = l->x;
    call.args.out_x = l->out;
    expar_tensor *const all[] = {&call.args.x,          &call.args.out_x, &r->recv_scales,   &r->recv_topk_idx,
                                 &r->recv_topk_weights, &r->recv_row_map, &r->recv_src_token};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        bring(one, all[k]);
    if (l->out.data)
        r->recv_x.data = call.args.out_x.data;
    else
        bring(one, &r->recv_x);
    bool right = deal_dispatch_check(&call);
    if (!l->out.data) free(r->recv_x.data);
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        if (all[k]->ndim) free(all[k]->data);
    drop_counts(l, &call);
    return right;
}

/* As deal_combine_check wants it, in memory with known bytes around it. */
static expar_tensor bring_pitched(const actor *one, const expar_tensor *on)
{
    if (!on->ndim) return *on;
    expar_tensor host = pitched_make(on->dtype, on->shape[0], on->shape[1], 0, false);
    void *bytes = card_fetch(on, one->stream);
    pitched_fill(&host, bytes);
    free(bytes);
    return host;
}

static bool check_back(const actor *one, const leg *l)
{
    deal_call call = {.move = l->back, .rank = one->rank};
    call.back.out_y = bring_pitched(one, &l->y);
    call.back.out_topk_weights = bring_pitched(one, &l->summed);
    call.back.x = bring_pitched(one, &l->rows);
    bool right = deal_combine_check(&call);
    pitched_free(&call.back.out_y);
    if (l->summed.ndim) pitched_free(&call.back.out_topk_weights);
    pitched_free(&call.back.x);
    return right;
}

static bool check(const actor *one, int round)
{
    static const char *const names[] = {"the dispatch", "the dispatch with a handle"};
    const char *form_name = one->scene->form->name,
               *how = one->scene->made_first ? "a handle made before" : "all in it";
    bool right = CHECK_OK(CUDA_CALL(StreamSynchronize, one->stream));
    for (int i = one->scene->made_first; right && i < 2; i++)
        right = CHECK(check_there(one, i), "%s, %s: %s, in launch %d", form_name, how, names[i], round) &&
                CHECK(check_back(one, &one->legs[i]), "%s, %s: the combine of %s, in launch %d", form_name, how,
                      names[i], round);
    return right;
}

/* ---- one graph --------------------------------------------------------------------------------------------------- */

static bool replay(actor *one, cu_graph_exec exec, int round)
{
    draw(one, round);
    bool good = upload(one) && CHECK_OK(CUDA_CALL(GraphLaunch, exec, one->stream)) && check(one, round);
    drop(one);
    return good;
}

static bool prepare(actor *one)
{
    bool good = take_memory(one) && CHECK_OK(expar_barrier_all(one->group));
    draw(one, 0);
    if (good && one->scene->made_first) good = upload(one) && dispatch(one, 0);
    return CHECK_OK(CUDA_CALL(StreamSynchronize, one->stream)) && good;
}

static void trial_graph(actor *one, const scene *what)
{
    one->scene = what;
    bool good = prepare(one);
    cu_graph_exec exec = good ? capture(one) : NULL;
    drop(one);
    for (int round = 0; exec && round < REPLAYS; round++)
        if (!replay(one, exec, round)) break;
    if (check_failures() || !CHECK_OK(expar_barrier_all(one->group))) return;
    if (exec) CHECK_OK(CUDA_CALL(GraphExecDestroy, exec));
    for (int i = 0; i < 2; i++)
        expar_ep_output_release(one->legs[i].result.output);
    expar_ep_handle_release(one->legs[0].result.handle);
    give_memory(one);
}

static expar_ep *make_buffer(const actor *one)
{
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    expar_ep *ep = NULL;
    config.max_tokens = 40;
    config.max_row_bytes = ROW_BYTES;
    config.max_topk = TOPK;
    config.max_experts = EXPERTS;
    config.max_scales = 5;
    config.ring_slots = 3;
    config.num_channels = 3;
    config.pool_bytes = (int64_t)16 << 20;
    config = card_config(&one->card, &config);
    CHECK_OK(expar_ep_create(one->group, &config, &ep));
    return ep;
}

/* Streams that are new to the driver, and first calls in graphs: docs/internals/measurements/gpu-shared.md says why
   copies go first. */
static bool warm_up(const actor *one)
{
    const int64_t zeros[64] = {0};
    expar_tensor some;
    bool good = card_take(&one->card, &some, EXPAR_I64, 1, 64);
    for (int i = 0; i < 4 && good; i++)
        good = card_put(&some, 1, zeros, one->stream) && CHECK_OK(CUDA_CALL(StreamSynchronize, one->stream));
    card_give(&some);
    return good && CHECK_OK(expar_barrier_all(one->group));
}

typedef struct scenes {
    const scene *all;
    size_t count;
} scenes;

static void trial(expar_group *group, void *shared)
{
    const scenes *what = shared;
    actor one = {.group = group, .rank = expar_group_rank(group)};
    if (!card_open(&one.card, one.rank)) return;
    one.stream = one.card.streams[0];
    if (warm_up(&one)) one.ep = make_buffer(&one);
    for (size_t i = 0; one.ep && i < what->count && !check_failures(); i++)
        trial_graph(&one, &what->all[i]);
    if (check_failures()) expar_group_abort(group);
    CHECK_OK(expar_ep_destroy(one.ep));
    card_close(&one.card);
}

static void run(const scene *all, size_t count)
{
    scenes what = {all, count};
    ranks_plan plan = {.kind = RANKS_THREADS, .size = RANKS, .ranks_per_node = reach_ranks_per_node(RANKS)};
    assert_true(ranks_run(&plan, trial, &what));
}

#define FORMS (sizeof forms / sizeof *forms)

static void run_some(size_t first, size_t count, bool made_first, int mode)
{
    scene all[FORMS];
    uint64_t seed = random_test_seed("graphs of all forms");
    for (size_t i = 0; i < count; i++)
        all[i] = (scene){.form = &forms[first + i], .made_first = made_first, .mode = mode, .seed = seed + 100 * i};
    run(all, count);
}

static void run_forms(size_t count, bool made_first, int mode)
{
    run_some(0, count, made_first, mode);
}

/* The last form alone, for where kernels are simulated, which takes long. */
static void test_one_form(void **state)
{
    (void)state;
    run_some(FORMS - 1, 1, false, CU_CAPTURE_THREAD_LOCAL);
}

static void test_handles_made_before(void **state)
{
    (void)state;
    run_forms(FORMS, true, CU_CAPTURE_THREAD_LOCAL);
}

static void test_dispatches_of_unknown_size(void **state)
{
    (void)state;
    run_forms(FORMS, false, CU_CAPTURE_THREAD_LOCAL);
}

/* The library's work beside a capture is nothing that this mode forbids any thread. */
static void test_captures_in_mode_global(void **state)
{
    (void)state;
    run_forms(2, true, CU_CAPTURE_GLOBAL);
    run_forms(2, false, CU_CAPTURE_GLOBAL);
}

/* An argument chooses among the tests. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_form),
        cmocka_unit_test(test_handles_made_before),
        cmocka_unit_test(test_dispatches_of_unknown_size),
        cmocka_unit_test(test_captures_in_mode_global),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
