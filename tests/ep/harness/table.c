/* SPDX-License-Identifier: Apache-2.0 */
/* Setting the table, and the round of all paths. */
#include "ep/harness/table.h"
#include "exec/event.h"

#include <stdlib.h>

#define MAX_SCALES 8
#define POOL_BYTES ((int64_t)32 << 20)
#define AREA_BYTES ((size_t)1 << 20)
#define HEAP_SLACK ((size_t)8 << 20)

table_case table_case_make(void)
{
    static const int64_t num_tokens[TABLE_MAX_RANKS] = {5, 5, 5, 5, 5, 5, 5, 5};
    return (table_case){
        .plan = {.num_ranks = 3, .topk = 3, .num_experts = 6, .with_weights = true, .num_tokens = num_tokens},
        .there = {.type = ORACLE_BF16, .hidden = 16},
        .back = {.type = ORACLE_BF16, .hidden = 16, .with_weights = true},
        .pool_bytes = POOL_BYTES};
}

void table_add(table_cases *list, const table_case *what)
{
    if (list->count == TABLE_MOST_CASES) abort();
    list->cases[list->count++] = *what;
}

static expar_ep_config config_for(const table_case *what)
{
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    for (int32_t r = 0; r < what->plan.num_ranks; r++)
        if (what->plan.num_tokens[r] > config.max_tokens) config.max_tokens = what->plan.num_tokens[r];
    config.max_row_bytes = 64;
    config.max_topk = what->plan.topk ? what->plan.topk : 1;
    config.max_experts = what->plan.num_experts;
    config.max_scales = MAX_SCALES;
    config.num_channels = what->num_channels;
    config.ring_slots = what->ring_slots;
    config.pool_limit_bytes = what->pool_bytes;
    config.ranks_per_node = what->plan.ranks_per_node;
    return config;
}

typedef struct setting {
    const table_case *cases;
    size_t count;
    table_body body;
    void *shared;
} setting;

static void trial_case(expar_group *group, const setting *s, const table_case *what)
{
    expar_ep_config config = config_for(what);
    table t = {.group = group, .rank = expar_group_rank(group), .what = what, .shared = s->shared};
    if (!CHECK_OK(expar_ep_create(group, &config, &t.ep))) return;
    if (trial_area_take(group, AREA_BYTES, &t.area)) s->body(&t);
    if (check_failures())
        expar_group_abort(group);
    else
        trial_area_give(group, &t.area);
    CHECK_OK(expar_ep_destroy(t.ep));
}

static void sit_down(expar_group *group, void *shared)
{
    const setting *s = shared;
    for (size_t i = 0; i < s->count && !check_failures(); i++) {
        trial_case(group, s, &s->cases[i]);
        CHECK(!check_failures(), "in case %d of %d", (int)i + 1, (int)s->count);
    }
}

bool table_run_all(const table_case *cases, size_t count, ranks_kind kind, table_body body, void *shared)
{
    setting s = {cases, count, body, shared};
    size_t most = 0;
    check_begin(-1);
    for (size_t i = 0; i < count; i++) {
        expar_ep_config config = config_for(&cases[i]);
        size_t bytes = 0;
        if (!CHECK_OK(expar_ep_get_buffer_size(&config, cases[i].plan.num_ranks, &bytes))) return false;
        if (bytes > most) most = bytes;
    }
    ranks_plan ranks = {.kind = kind,
                        .size = cases[0].plan.num_ranks,
                        .ranks_per_node = cases[0].plan.ranks_per_node,
                        .heap_bytes = 3 * most + 2 * AREA_BYTES + HEAP_SLACK};
    return ranks_run(&ranks, sit_down, &s);
}

bool table_run(const table_case *what, ranks_kind kind, table_body body, void *shared)
{
    return table_run_all(what, 1, kind, body, shared);
}

static void spread(const table *t, const deal_choice *choice, bool dispatch, deal_choice *choices)
{
    for (int32_t r = 0; r < t->what->plan.num_ranks; r++) {
        choices[r] = *choice;
        if (!dispatch || !t->what->vary) continue;
        t->what->vary(&choices[r], r);
        if (choices[r].place == PLACE_PRIVATE && !choices[r].expert_major) choices[r].path = EXPAR_EP_PATH_AUTO;
    }
}

deal *table_deal(const table *t, const deal_choice *choice, random_source *random)
{
    deal_choice choices[TABLE_MAX_RANKS];
    deal_plan plan = t->what->plan;
    spread(t, choice, true, choices);
    plan.choices = choices;
    deal *d = deal_make(&plan, random);
    if (t->what->shape) t->what->shape(d);
    return d;
}

deal_move *table_move(const table *t, const deal *d, move_kind kind, const deal_choice *choice, random_source *random)
{
    deal_choice choices[TABLE_MAX_RANKS];
    move_form form = kind == MOVE_COMBINE ? t->what->back : t->what->there;
    form.kind = kind;
    form.routed &= kind == MOVE_DISPATCH;
    spread(t, choice, kind != MOVE_COMBINE, choices);
    return move_make(d, &form, choices, random);
}

bool table_trial_move(table *t, const deal *d, move_kind kind, const deal_choice *choice, random_source *random,
                      expar_ep_handle **handle)
{
    deal_move *m = table_move(t, d, kind, choice, random);
    deal_call call;
    bool right = deal_call_make(&call, t->ep, m, t->rank, &t->area, *handle);
    if (kind == MOVE_DISPATCH) *handle = call.result.handle;
    move_free(m);
    return right;
}

static bool trial_path(table *t, deal_choice there, deal_choice back, random_source *random)
{
    deal *d = table_deal(t, &there, random);
    expar_ep_handle *handle = NULL;
    bool right = table_trial_move(t, d, MOVE_DISPATCH, &there, random, &handle) &&
                 table_trial_move(t, d, MOVE_COMBINE, &back, random, &handle) &&
                 table_trial_move(t, d, MOVE_REPEAT, &there, random, &handle) &&
                 table_trial_move(t, d, MOVE_COMBINE, &back, random, &handle);
    expar_ep_handle_release(handle);
    deal_free(d);
    return right;
}

void table_trial_all_paths(table *t)
{
    static const trial_place places[] = {PLACE_LIBRARY, PLACE_SYMMETRIC, PLACE_PRIVATE};
    random_source random = random_start(7);
    for (expar_ep_path path = EXPAR_EP_PATH_AUTO; path <= EXPAR_EP_PATH_QUEUE; path++)
        for (int i = 0; i < 6; i++) {
            deal_choice there = t->what->choice, back = t->what->back_choice;
            there.place = back.place = places[i % 3];
            there.async = back.async = i >= 3;
            if (path != EXPAR_EP_PATH_DIRECT || there.place != PLACE_PRIVATE || there.expert_major) there.path = path;
            if (path != EXPAR_EP_PATH_DIRECT || back.place == PLACE_SYMMETRIC) back.path = path;
            if (!CHECK(trial_path(t, there, back, &random), "path %d, place %d, %s", (int)path, (int)there.place,
                       there.async ? "async" : "sync"))
                return;
        }
}

expar_event *table_failed_event(void)
{
    expar_event *event = NULL;
    CHECK_OK(event_create_for_call(&event));
    error_set(EXPAR_ERR_DROPPED, "three of five");
    event_finish(event, EXPAR_ERR_DROPPED);
    return event;
}
