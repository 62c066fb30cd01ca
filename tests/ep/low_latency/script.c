/* SPDX-License-Identifier: Apache-2.0 */
/* Draws scripts of low-latency mode. */
#include "ep/low_latency/script.h"
#include "ep/low_latency/reach.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_TOKENS 24
#define MAX_LOCALS 16
/* The most that one rank receives, to keep the oracle quick. */
#define RECEIVED_ELEMENTS ((int64_t)48 << 10)
#define MAX_HIDDEN_UNITS  96 /* of 16 bytes */
#define MAX_GROUPS        5
#define NORMAL_TOKENS     12
#define MAX_STEPS_PER_OP  8

/* 1 … high, small numbers as likely as large ones. */
static int64_t draw_log(random_source *random, int64_t high)
{
    int64_t value = (int64_t)exp(random_unit(random) * log((double)high + 1));
    return value < 1 ? 1 : value > high ? high : value;
}

/* ---- the buffer -------------------------------------------------------------------------------------------------- */

static expar_ll_config draw_config(random_source *random, int32_t ranks)
{
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    int64_t locals = draw_log(random, MAX_LOCALS);
    config.num_experts = (int32_t)(locals * ranks);
    config.max_topk = (int32_t)(random_once_in(random, 4) ? 32 : random_between(random, 1, 10));
    const int64_t element_bytes = random_once_in(random, 3) ? 0 : random_once_in(random, 2) ? 2 : 4;
    config.sums = (int32_t)random_between(random, 0, 3);
    config.max_tokens = (int32_t)draw_log(random, MAX_TOKENS);
    int64_t most = RECEIVED_ELEMENTS / (locals * ranks * config.max_tokens);
    if (most >= LLO_GROUP && !random_once_in(random, 4)) {
        most = most / LLO_GROUP > MAX_GROUPS ? MAX_GROUPS : most / LLO_GROUP;
        config.hidden = (int32_t)(LLO_GROUP * random_between(random, 1, most));
    } else {
        config.hidden = (int32_t)(8 * draw_log(random, most / 8 > MAX_HIDDEN_UNITS ? MAX_HIDDEN_UNITS : most / 8 + 1));
    }
    config.max_row_bytes = config.hidden * element_bytes;
    return config;
}

static oracle_type draw_type(random_source *random, const expar_ll_config *config)
{
    return (oracle_type)random_between(random, ORACLE_BF16,
                                       config->max_row_bytes == 4 * (int64_t)config->hidden ? ORACLE_F32 : ORACLE_F16);
}

static bool takes_sum(const expar_ll_config *config, expar_ll_sum sum)
{
    return config->sums == 0 || (config->sums >> sum & 1);
}

/* ---- what a call carries ----------------------------------------------------------------------------------------- */

static lowlat_traffic *draw_traffic(random_source *random, const lowlat_script *s)
{
    const expar_ll_config *config = &s->config;
    int32_t n = s->ranks.size;
    int64_t *num_tokens = traffic_alloc((size_t)n, sizeof *num_tokens);
    bool full = random_once_in(random, 4), idle = random_once_in(random, 4);
    for (int32_t r = 0; r < n; r++) {
        num_tokens[r] = full ? config->max_tokens : random_between(random, 0, config->max_tokens);
        if (idle && random_once_in(random, 2)) num_tokens[r] = 0;
    }
    lowlat_plan plan = {
        .num_ranks = n,
        .max_tokens = config->max_tokens,
        .hidden = config->hidden,
        .topk = (int32_t)(random_once_in(random, 2) ? config->max_topk : random_between(random, 1, config->max_topk)),
        .num_experts = config->num_experts,
        .type = draw_type(random, config),
        .format = LLO_PLAIN,
        .wide = random_once_in(random, 2),
        .with_weights = random_once_in(random, 2),
        .routing = (routing_kind)random_between(random, 0, ROUTING_KINDS - 1),
        .disturb = random_once_in(random, 2) ? random_between(random, 2, 10) : 0,
        .num_tokens = num_tokens};
    if (config->hidden % LLO_GROUP == 0) plan.format = (llo_format)random_between(random, LLO_PLAIN, LLO_NVFP4);
    lowlat_traffic *made = lowlat_traffic_make(&plan, random);
    free(num_tokens);
    return made;
}

static traffic *draw_normal(random_source *random, int32_t n)
{
    int64_t num_tokens[64];
    for (int32_t r = 0; r < n; r++)
        num_tokens[r] = random_between(random, 0, NORMAL_TOKENS);
    traffic_plan plan = {.num_ranks = n,
                         .hidden = 16,
                         .topk = 2,
                         .num_experts = 2 * n,
                         .wide = true,
                         .with_weights = true,
                         .num_tokens = num_tokens};
    return traffic_make(&plan, random);
}

static lowlat_choice draw_choice(random_source *random)
{
    lowlat_choice choice = {.own_x = random_once_in(random, 2),
                            .own_scales = random_once_in(random, 2),
                            .own_count = random_once_in(random, 2),
                            .stats = random_once_in(random, 2),
                            .waits = random_once_in(random, 2),
                            .late = random_once_in(random, 6),
                            .null_if_empty = random_once_in(random, 2),
                            .pad = random_once_in(random, 2) ? (int32_t)random_between(random, 1, 4) : 0,
                            .threads = random_once_in(random, 3) ? (int32_t)random_between(random, 1, 3) : 0};
    choice.hook = random_once_in(random, 2);
    choice.async = !choice.hook && random_once_in(random, 3);
    return choice;
}

static lowlat_choice draw_combine_choice(random_source *random, const lowlat_op *op)
{
    lowlat_choice choice = draw_choice(random);
    choice.zero_copy = !choice.async && random_once_in(random, 4) && !op->answers->logfmt;
    if (op->answers->sum == EXPAR_LL_SUM_REDUCED && !op->traffic->with_weights) choice.hook = false;
    return choice;
}

/* ---- drawing one call after the other ---------------------------------------------------------------------------- */

/* The state of the script. */
typedef struct draft {
    lowlat_script *script;
    random_source *random;
    int32_t epochs[2];           /* of each kind */
    int32_t (*open)[2][2];       /* [N] by kind and half: the op that is open there, or -1 */
    int32_t slots[LOWLAT_SLOTS]; /* the dispatch whose handle is alive, or -1 */
} draft;

static void add_step(const draft *d, int32_t rank, lowlat_deed deed, int32_t op)
{
    lowlat_script *s = d->script;
    s->steps[rank][s->num_steps[rank]++] = (lowlat_step){deed, op};
}

static bool end_if_open(draft *d, int32_t rank, int32_t op)
{
    for (int i = 0; i < 4; i++) {
        int32_t *place = &d->open[rank][i / 2][i % 2];
        if (*place != op) continue;
        add_step(d, rank, LOWLAT_END, op);
        *place = -1;
        return true;
    }
    return false;
}

/* One in `chances` of what is open on a rank is ended; in either order. */
static void end_some(draft *d, int32_t rank, int64_t chances)
{
    int first = (int)random_between(d->random, 0, 3);
    for (int i = 0; i < 4; i++) {
        int32_t op = d->open[rank][(first + i) % 4 / 2][(first + i) % 2];
        if (op >= 0 && random_once_in(d->random, chances)) end_if_open(d, rank, op);
    }
}

static lowlat_kind draw_kind(draft *d, int32_t *slot)
{
    *slot = (int32_t)random_between(d->random, 0, LOWLAT_SLOTS - 1);
    if (d->script->with_normal && random_once_in(d->random, 10)) return LOWLAT_NORMAL;
    return d->slots[*slot] >= 0 && random_once_in(d->random, 2) ? LOWLAT_COMBINE : LOWLAT_DISPATCH;
}

static void draw_dispatch(draft *d, lowlat_op *op)
{
    const lowlat_script *s = d->script;
    op->traffic = draw_traffic(d->random, s);
    for (int32_t r = 0; r < s->ranks.size; r++)
        op->choices[r] = draw_choice(d->random);
}

static void draw_combine(draft *d, lowlat_op *op)
{
    const lowlat_script *s = d->script;
    expar_ll_sum sum = random_once_in(d->random, 2) ? EXPAR_LL_SUM_EXACT : EXPAR_LL_SUM_REDUCED;
    if (!takes_sum(&s->config, sum)) sum = sum == EXPAR_LL_SUM_EXACT ? EXPAR_LL_SUM_REDUCED : EXPAR_LL_SUM_EXACT;
    op->source = d->slots[op->slot];
    op->traffic = s->ops[op->source].traffic;
    op->answers = lowlat_answers_make(op->traffic, draw_type(d->random, &s->config), sum, d->random);
    if (sum == EXPAR_LL_SUM_EXACT && s->config.hidden % LLO_GROUP == 0 && random_once_in(d->random, 3))
        lowlat_answers_code(op->answers, op->traffic);
    for (int32_t r = 0; r < s->ranks.size; r++)
        op->choices[r] = draw_combine_choice(d->random, op);
}

/* Ranks whose half is still held get STATE, if the script is of that mind; else what holds it is ended. */
static bool make_space(draft *d, const lowlat_op *op, bool pending)
{
    bool held = false;
    int32_t half = (d->epochs[op->kind] + 1) & 1;
    for (int32_t r = 0; r < d->script->ranks.size; r++) {
        int32_t older = d->open[r][op->kind][half];
        if (older < 0) continue;
        if (pending && d->script->ops[older].choices[r].hook)
            held = true;
        else
            end_if_open(d, r, older);
    }
    return held;
}

/* Whether a rank can have another form that the buffer takes. */
static bool can_differ(const lowlat_script *s, const lowlat_op *op)
{
    bool both_sums = s->config.sums % 3 == 0;
    return s->ranks.size > 1 && (op->kind == LOWLAT_DISPATCH || op->answers->job.type != ORACLE_F32 || both_sums);
}

static lowlat_trouble draw_trouble(draft *d, const lowlat_op *op)
{
    if (!d->script->with_trouble || !random_once_in(d->random, 4)) return LOWLAT_WELL;
    lowlat_trouble trouble = (lowlat_trouble)random_between(d->random, LOWLAT_REJECTED, LOWLAT_MISMATCH);
    if (trouble == LOWLAT_WRONG && (op->kind == LOWLAT_COMBINE || op->traffic->inputs[op->culprit].num_tokens == 0))
        trouble = LOWLAT_REJECTED;
    if (trouble == LOWLAT_MISMATCH && !can_differ(d->script, op)) trouble = LOWLAT_REJECTED;
    return trouble;
}

/* How a rank's call ends. */
static expar_status status_of(const draft *d, const lowlat_op *op, int32_t rank)
{
    bool culprit = rank == op->culprit;
    switch (op->trouble) {
    case LOWLAT_REJECTED:
        return culprit ? EXPAR_ERR_ARGUMENT : EXPAR_ERR_REMOTE;
    case LOWLAT_WRONG:
        return culprit ? EXPAR_ERR_INDEX : EXPAR_ERR_REMOTE;
    case LOWLAT_MISMATCH:
        return EXPAR_ERR_MISMATCH;
    case LOWLAT_PENDING:
        return d->open[rank][op->kind][d->epochs[op->kind] & 1] >= 0 ? EXPAR_ERR_STATE : EXPAR_ERR_REMOTE;
    default:
        return EXPAR_OK;
    }
}

/* Whether the call leaves a hook or an event. */
static bool stays_open(const lowlat_op *op, int32_t rank)
{
    bool at_once = op->statuses[rank] == EXPAR_ERR_STATE || op->statuses[rank] == EXPAR_ERR_ARGUMENT;
    return !at_once && (op->choices[rank].hook || op->choices[rank].async);
}

static void forget_slot(draft *d, int32_t slot)
{
    int32_t old = d->slots[slot];
    for (int32_t r = 0; old >= 0 && r < d->script->ranks.size; r++) {
        end_if_open(d, r, old);
        add_step(d, r, LOWLAT_FORGET, old);
    }
    d->slots[slot] = -1;
}

static void begin_op(draft *d, lowlat_op *op)
{
    const lowlat_script *s = d->script;
    size_t n = (size_t)s->ranks.size;
    *op = (lowlat_op){.choices = traffic_alloc(n, sizeof *op->choices),
                      .statuses = traffic_alloc(n, sizeof *op->statuses),
                      .culprit = (int32_t)random_between(d->random, 0, s->ranks.size - 1),
                      .manner = (int32_t)random_between(d->random, 0, 3)};
    op->kind = draw_kind(d, &op->slot);
}

/* A culprit with another form, or without one: its results are the library's. */
static void plain_culprit(lowlat_op *op)
{
    lowlat_choice *choice = &op->choices[op->culprit];
    choice->own_x = choice->own_scales = false;
    choice->late = false;
    if (op->trouble == LOWLAT_MISMATCH && op->kind == LOWLAT_COMBINE) choice->hook = false;
}

static void draw_op(draft *d, int32_t number)
{
    lowlat_script *s = d->script;
    lowlat_op *op = &s->ops[number];
    begin_op(d, op);
    for (int32_t r = 0; r < s->ranks.size; r++)
        end_some(d, r, 3);
    if (op->kind == LOWLAT_NORMAL) {
        op->normal = draw_normal(d->random, s->ranks.size);
        op->normal_answers = answers_make(op->normal, true, d->random);
        for (int32_t r = 0; r < s->ranks.size; r++)
            add_step(d, r, LOWLAT_START, number);
        return;
    }
    if (op->kind == LOWLAT_DISPATCH)
        draw_dispatch(d, op);
    else
        draw_combine(d, op);
    for (int32_t r = 0; op->kind == LOWLAT_COMBINE && r < s->ranks.size; r++)
        end_if_open(d, r, op->source);
    bool held = make_space(d, op, s->with_trouble && random_once_in(d->random, 3));
    op->trouble = held ? LOWLAT_PENDING : draw_trouble(d, op);
    if (op->trouble != LOWLAT_WELL && !held) plain_culprit(op);
    d->epochs[op->kind]++;
    for (int32_t r = 0; r < s->ranks.size; r++) {
        op->statuses[r] = status_of(d, op, r);
        /* Such a call is over when it returns. */
        if (op->statuses[r] == EXPAR_ERR_STATE) op->choices[r].async = op->choices[r].late = false;
        add_step(d, r, LOWLAT_START, number);
    }
    for (int32_t r = 0; r < s->ranks.size; r++)
        if (stays_open(op, r)) d->open[r][op->kind][d->epochs[op->kind] & 1] = number;
    if (op->kind == LOWLAT_COMBINE || op->trouble != LOWLAT_WELL) return;
    forget_slot(d, op->slot);
    d->slots[op->slot] = number;
}

/* Hooks that are left are never called, or only after the buffer's end. */
static void draw_end(draft *d)
{
    lowlat_script *s = d->script;
    s->leaves_hooks = random_once_in(d->random, 4);
    for (int32_t r = 0; r < s->ranks.size; r++) {
        for (int i = 0; i < 4; i++) {
            int32_t op = d->open[r][i / 2][i % 2];
            if (op >= 0 && s->leaves_hooks && s->ops[op].choices[r].hook && random_once_in(d->random, 2))
                d->open[r][i / 2][i % 2] = -1;
        }
        end_some(d, r, 2);
        end_some(d, r, 1);
    }
}

static size_t heap_bytes(const lowlat_script *s)
{
    size_t bytes = 0;
    if (expar_ll_get_buffer_size(&s->config, s->ranks.size, &bytes) != EXPAR_OK) {
        fprintf(stderr, "%s\n", expar_last_error());
        abort();
    }
    return bytes + ((size_t)32 << 20);
}

lowlat_script *lowlat_script_make(uint64_t seed, const lowlat_script_plan *plan)
{
    random_source random = random_start(seed);
    lowlat_script *s = traffic_alloc(1, sizeof *s);
    draft d = {.script = s, .random = &random, .slots = {-1, -1, -1}};
    s->seed = seed;
    s->ranks = (ranks_plan){.kind = plan->kind,
                            .size = plan->num_ranks ? plan->num_ranks : (int32_t)random_between(&random, 1, 8)};
    s->config = draw_config(&random, s->ranks.size);
    s->config.unmapped = reach_unmapped();
    s->ranks.ranks_per_node = reach_ranks_per_node(s->ranks.size);
    s->config.num_threads = seed % 8 < 2 ? (int32_t)(2 + seed % 3 % 2) : 1; /* they slow a host of few cores down */
    s->ranks.heap_bytes = heap_bytes(s);
    s->with_trouble = plan->with_trouble;
    s->with_normal = plan->with_normal && reach_is_mapped();
    s->num_ops = plan->num_ops;
    size_t n = (size_t)s->ranks.size;
    s->ops = traffic_alloc((size_t)s->num_ops, sizeof *s->ops);
    s->steps = traffic_alloc(n, sizeof *s->steps);
    s->num_steps = traffic_alloc(n, sizeof *s->num_steps);
    d.open = traffic_alloc(n, sizeof *d.open);
    for (size_t r = 0; r < n; r++) {
        s->steps[r] = traffic_alloc((size_t)s->num_ops * MAX_STEPS_PER_OP, sizeof **s->steps);
        for (int i = 0; i < 4; i++)
            d.open[r][i / 2][i % 2] = -1;
    }
    for (int32_t i = 0; i < s->num_ops; i++)
        draw_op(&d, i);
    draw_end(&d);
    free(d.open);
    return s;
}

void lowlat_script_free(lowlat_script *s)
{
    for (int32_t i = 0; i < s->num_ops; i++)
        if (s->ops[i].answers) lowlat_answers_free(s->ops[i].answers, s->ops[i].traffic);
    for (int32_t i = 0; i < s->num_ops; i++) {
        lowlat_op *op = &s->ops[i];
        if (op->kind == LOWLAT_DISPATCH) lowlat_traffic_free(op->traffic);
        if (op->kind == LOWLAT_NORMAL) {
            answers_free(op->normal_answers);
            traffic_free(op->normal);
        }
        free(op->choices);
        free(op->statuses);
    }
    for (int32_t r = 0; r < s->ranks.size; r++)
        free(s->steps[r]);
    free(s->steps);
    free(s->num_steps);
    free(s->ops);
    free(s);
}

/* ---- telling ----------------------------------------------------------------------------------------------------- */

static void print_op(const lowlat_op *op, int32_t number)
{
    static const char *const kinds[] = {"dispatch", "combine", "normal"};
    static const char *const troubles[] = {"", ", refused", ", wrong index", ", mismatch", ", pending"};
    static const char *const formats[] = {"plain", "fp8", "fp8 rounded", "ue8m0", "int8", "nvfp4"};
    fprintf(stderr, "  %d: %s, slot %d%s (rank %d, manner %d)", (int)number, kinds[op->kind], (int)op->slot,
            troubles[op->trouble], (int)op->culprit, (int)op->manner);
    if (op->kind == LOWLAT_DISPATCH)
        fprintf(stderr, "; type %d, %s, K %d%s", (int)op->traffic->job.type, formats[op->traffic->job.format],
                (int)op->traffic->job.topk, op->traffic->with_weights ? ", weights" : "");
    if (op->kind == LOWLAT_COMBINE)
        fprintf(stderr, "; type %d%s, %s, of op %d", (int)op->answers->job.type, op->answers->logfmt ? ", LogFMT" : "",
                op->answers->sum == EXPAR_LL_SUM_EXACT ? "exact" : "reduced", (int)op->source);
    fputc('\n', stderr);
}

void lowlat_script_print(const lowlat_script *s)
{
    const expar_ll_config *c = &s->config;
    fprintf(stderr, "script %" PRIu64 ": %d ranks, B %d, H %d, K %d, E %d, elements of %d bytes, sums %d\n", s->seed,
            (int)s->ranks.size, (int)c->max_tokens, (int)c->hidden, (int)c->max_topk, (int)c->num_experts,
            (int)c->max_row_bytes, (int)c->sums);
    for (int32_t i = 0; i < s->num_ops; i++)
        print_op(&s->ops[i], i);
    for (int32_t r = 0; r < s->ranks.size; r++) {
        fprintf(stderr, "  rank %d:", (int)r);
        for (int32_t i = 0; i < s->num_steps[r]; i++)
            fprintf(stderr, " %c%d", "seF"[s->steps[r][i].deed], (int)s -> steps[r][i].op);
        fputc('\n', stderr);
    }
}
