/* SPDX-License-Identifier: Apache-2.0 */
/* Calls in which ranks wait for each other. */
#include "group/calls.h"
#include "ep/harness/stage.h"

#include <expar/collective.h>

/* ---- rows -------------------------------------------------------------------------------------------------------- */

calls_rows calls_rows_make(void)
{
    static const int64_t num_tokens[CALLS_RANKS] = {9, 4, 7};
    random_source random = random_start(11);
    const traffic_plan plan = {.num_ranks = CALLS_RANKS,
                               .hidden = 64,
                               .topk = 3,
                               .num_experts = 2 * CALLS_RANKS,
                               .type = ORACLE_F32,
                               .num_tokens = num_tokens};
    const lowlat_plan few = {.num_ranks = CALLS_RANKS,
                             .max_tokens = 9,
                             .hidden = 64,
                             .topk = 3,
                             .num_experts = 2 * CALLS_RANKS,
                             .num_tokens = num_tokens};
    calls_rows rows = {.t = traffic_make(&plan, &random), .lowlat = lowlat_traffic_make(&few, &random)};
    rows.a = answers_make(rows.t, false, &random);
    rows.exact = lowlat_answers_make(rows.lowlat, ORACLE_BF16, EXPAR_LL_SUM_EXACT, &random);
    rows.reduced = lowlat_answers_make(rows.lowlat, ORACLE_BF16, EXPAR_LL_SUM_REDUCED, &random);
    return rows;
}

void calls_rows_free(calls_rows *rows)
{
    answers_free(rows->a);
    traffic_free(rows->t);
    lowlat_answers_free(rows->exact, rows->lowlat);
    lowlat_answers_free(rows->reduced, rows->lowlat);
    lowlat_traffic_free(rows->lowlat);
}

/* ---- a view ------------------------------------------------------------------------------------------------------ */

static const trial_choice plain = {0};

static expar_ep_config view_config(const calls_view *v)
{
    expar_ep_config config = stage_plan_for(v->rows->t, RANKS_THREADS).config;
    config.pool_limit_bytes = 1 << 20;
    return config;
}

static expar_ll_config view_ll_config(const calls_view *v)
{
    const llo_job *job = &v->rows->lowlat->job;
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    config.max_tokens = job->max_tokens;
    config.hidden = job->hidden;
    config.max_topk = job->topk;
    config.num_experts = job->num_experts;
    return config;
}

static bool open_ep(calls_view *v)
{
    const expar_ep_config config = view_config(v);
    return CHECK_OK(expar_ep_create(v->group, &config, &v->ep)) &&
           trial_dispatch(v->ep, v->rows->t, v->group->rank, &plain, NULL, NULL, &v->before);
}

static bool open_ll(calls_view *v)
{
    static const lowlat_choice plainly = {0};
    const expar_ll_config config = view_ll_config(v);
    if (!CHECK_OK(expar_ll_create(v->group, &config, &v->ll))) return false;
    lowlat_prepare_dispatch(&v->ll_before, v->ll, v->rows->lowlat, v->group->rank, &plainly);
    return lowlat_trial(&v->ll_before);
}

static void close_both(calls_view *v)
{
    trial_release(&v->before, true);
    lowlat_clean(&v->ll_before);
    CHECK_OK(expar_ep_destroy(v->ep));
    CHECK_OK(expar_ll_destroy(v->ll));
    v->ep = NULL;
    v->ll = NULL;
}

static bool open_buffers(calls_view *v)
{
    const expar_ep_config config = view_config(v);
    const expar_ll_config ll_config = view_ll_config(v);
    return open_ep(v) && CHECK_OK(expar_ep_create(v->group, &config, &v->last)) && open_ll(v) &&
           CHECK_OK(expar_ll_create(v->group, &ll_config, &v->ll_last));
}

bool calls_open(calls_view *v, expar_group *group, const calls_rows *rows)
{
    *v = (calls_view){.group = group, .rows = rows};
    if (!CHECK_OK(expar_calloc(group, 1, sizeof *v->b, (void **)&v->b)) ||
        !CHECK_OK(expar_malloc(group, 64, &v->spare)) || !CHECK_OK(expar_team_get_world(group, &v->world)))
        return false;
    for (size_t i = 0; i < ARRAY_LENGTH(v->b->source); i++)
        v->b->source[i] = 1000 * (uint64_t)group->rank + i;
    if (rows && !open_buffers(v)) return false;
    if (group->rank == CALLS_LATE && !CHECK_OK(expar_lock_set(group, &v->b->lock))) return false;
    return CHECK_OK(expar_barrier_all(group));
}

void calls_close(calls_view *v)
{
    if (!v->rows) return;
    CHECK_OK(expar_ep_destroy(v->last));
    CHECK_OK(expar_ll_destroy(v->ll_last));
    v->last = NULL;
    v->ll_last = NULL;
    close_both(v);
}

bool calls_replace(calls_view *v)
{
    close_both(v);
    return open_ep(v) && open_ll(v);
}

void calls_abandon(calls_view *v, const calls_call *call)
{
    const bool last = call->kind == CALLS_END;
    if (call->low_latency) {
        expar_ll **ll = last ? &v->ll_last : &v->ll;
        CHECK_OK(expar_ll_abandon(*ll));
        *ll = NULL;
    } else {
        expar_ep **ep = last ? &v->last : &v->ep;
        CHECK_OK(expar_ep_abandon(*ep));
        *ep = NULL;
    }
}

static bool is_late(const calls_view *v)
{
    return v->group->rank == CALLS_LATE;
}

/* ---- over control sockets ---------------------------------------------------------------------------------------- */

static expar_status call_group_barrier(calls_view *v)
{
    return expar_group_barrier(v->group);
}

static expar_status call_allgather(calls_view *v)
{
    int32_t all[CALLS_RANKS] = {0};
    expar_status status = expar_group_allgather(v->group, &v->group->rank, all, sizeof *all);
    for (int32_t r = 0; r < CALLS_RANKS && status == EXPAR_OK; r++)
        CHECK(all[r] == r, "%d came from rank %d", all[r], r);
    return status;
}

static expar_status call_group_broadcast(calls_view *v)
{
    uint64_t word = is_late(v) ? 77 : 0;
    expar_status status = expar_group_broadcast(v->group, &word, sizeof word, CALLS_LATE);
    if (status == EXPAR_OK) CHECK(word == 77, "%llu came", (unsigned long long)word);
    return status;
}

static expar_status call_malloc(calls_view *v)
{
    void *more;
    return expar_malloc(v->group, 64, &more);
}

static expar_status call_free(calls_view *v)
{
    return expar_free(v->group, v->spare);
}

/* ---- over the heaps ---------------------------------------------------------------------------------------------- */

static expar_status call_barrier_all(calls_view *v)
{
    return expar_barrier_all(v->group);
}

static expar_status call_sync(calls_view *v)
{
    return expar_team_sync(v->world);
}

static expar_status call_reduce(calls_view *v)
{
    const calls_block *b = v->b;
    expar_status status = expar_sum_reduce_u64(v->world, v->b->dest, b->source, CALLS_ITEMS);
    for (size_t i = 0; i < CALLS_ITEMS && status == EXPAR_OK; i++)
        CHECK(b->dest[i] == 3000 + 3 * i, "item %zu is %llu", i, (unsigned long long)b->dest[i]);
    return status;
}

static expar_status call_alltoall(calls_view *v)
{
    const calls_block *b = v->b;
    const size_t mine = (size_t)v->group->rank * CALLS_ITEMS;
    expar_status status = expar_alltoall(v->world, v->b->dest, b->source, CALLS_ITEMS * sizeof(uint64_t));
    for (size_t i = 0; i < ARRAY_LENGTH(b->dest) && status == EXPAR_OK; i++)
        CHECK(b->dest[i] == 1000 * (i / CALLS_ITEMS) + mine + i % CALLS_ITEMS, "item %zu is %llu", i,
              (unsigned long long)b->dest[i]);
    return status;
}

static expar_status call_broadcast(calls_view *v)
{
    expar_status status = expar_broadcast(v->world, v->b->dest, v->b->source, 2 * sizeof(uint64_t), CALLS_LATE);
    if (status == EXPAR_OK) CHECK(v->b->dest[1] == 2001, "%llu came", (unsigned long long)v->b->dest[1]);
    return status;
}

static expar_status call_fcollect(calls_view *v)
{
    const calls_block *b = v->b;
    expar_status status = expar_fcollect(v->world, v->b->dest, b->source, CALLS_ITEMS * sizeof(uint64_t));
    for (size_t i = 0; i < ARRAY_LENGTH(b->dest) && status == EXPAR_OK; i++)
        CHECK(b->dest[i] == 1000 * (i / CALLS_ITEMS) + i % CALLS_ITEMS, "item %zu is %llu", i,
              (unsigned long long)b->dest[i]);
    return status;
}

static expar_status call_split(calls_view *v)
{
    expar_team *part = NULL;
    expar_status status = expar_team_split_strided(v->world, 0, 1, 2, NULL, &part);
    if (status == EXPAR_OK) CHECK((part != NULL) == !is_late(v), "rank %d is in the team", v->group->rank);
    return status;
}

/* ---- for words --------------------------------------------------------------------------------------------------- */

/* The late one changes what the others wait for. */
static expar_status post(const calls_view *v, int32_t word)
{
    const uint64_t one = 1;
    expar_status status = EXPAR_OK;
    for (int32_t pe = 0; pe < CALLS_RANKS && status == EXPAR_OK; pe++)
        status = expar_put(v->group, &v->b->mail[word], &one, sizeof one, pe);
    return status == EXPAR_OK ? expar_quiet(v->group) : status;
}

static expar_status call_wait(calls_view *v)
{
    if (is_late(v)) return post(v, 0);
    return expar_wait_until_u64(v->group, &v->b->mail[0], EXPAR_CMP_EQ, 1, NULL);
}

static expar_status call_wait_any(calls_view *v)
{
    size_t index;
    if (is_late(v)) return post(v, 1);
    return expar_wait_until_any_u64(v->group, &v->b->mail[1], 1, NULL, EXPAR_CMP_NE, 0, &index);
}

static expar_status call_lock(calls_view *v)
{
    if (is_late(v)) return expar_lock_clear(v->group, &v->b->lock);
    expar_status status = expar_lock_set(v->group, &v->b->lock);
    return status == EXPAR_OK ? expar_lock_clear(v->group, &v->b->lock) : status;
}

/* ---- of a buffer ------------------------------------------------------------------------------------------------- */

static expar_status call_create(calls_view *v)
{
    const expar_ep_config config = view_config(v);
    expar_ep *more;
    expar_status status = expar_ep_create(v->group, &config, &more);
    if (status == EXPAR_OK) CHECK_OK(expar_ep_abandon(more));
    return status;
}

static expar_status call_destroy(calls_view *v)
{
    expar_status status = expar_ep_destroy(v->last);
    if (status == EXPAR_OK) v->last = NULL;
    return status;
}

static expar_status call_route(calls_view *v)
{
    const traffic *t = v->rows->t;
    const traffic_arrival *expected = &t->arrivals[v->group->rank];
    expar_ep_dispatch_args given = trial_dispatch_args(t, v->group->rank, &plain, NULL, NULL);
    expar_ep_route_args args = EXPAR_EP_ROUTE_ARGS_INIT;
    expar_ep_route_result result = EXPAR_EP_ROUTE_RESULT_INIT;
    args.topk_idx = given.topk_idx;
    args.num_experts = given.num_experts;
    expar_status status = expar_ep_route(v->ep, &args, &result);
    if (status == EXPAR_OK) CHECK(result.num_recv_tokens == expected->num_rows, "R is wrong");
    expar_ep_handle_release(result.handle);
    trial_dispatch_args_free(&given);
    return status;
}

static void look_at_rows(const calls_view *v, const expar_ep_dispatch_result *result)
{
    const traffic *t = v->rows->t;
    const traffic_arrival *expected = &t->arrivals[v->group->rank];
    CHECK(memcmp(result->recv_x.data, expected->x, (size_t)expected->num_rows * traffic_row_bytes(t)) == 0,
          "rows are wrong");
}

typedef enum dispatch_form { FRESH, CACHED, WORST, ASYNC, FORMS } dispatch_form;

static expar_status dispatch_as(calls_view *v, dispatch_form form)
{
    const traffic *t = v->rows->t;
    expar_ep_dispatch_args given = trial_dispatch_args(t, v->group->rank, &plain, NULL, NULL), args = given;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    if (form == WORST) args.num_worst_tokens = 32;
    if (form == ASYNC) args.async_finish = 1;
    if (form == CACHED) {
        args.handle = v->before.handle;
        args.topk_idx = EXPAR_TENSOR_NONE;
    }
    expar_status status = expar_ep_dispatch(v->ep, &args, &result);
    if (status == EXPAR_OK && form == ASYNC) status = expar_event_wait(result.event);
    if (status == EXPAR_OK) look_at_rows(v, &result);
    expar_event_release(result.event);
    expar_ep_output_release(result.output);
    expar_ep_handle_release(result.handle);
    trial_dispatch_args_free(&given);
    return status;
}

static expar_status call_dispatch(calls_view *v)
{
    return dispatch_as(v, FRESH);
}

static expar_status call_cached(calls_view *v)
{
    return dispatch_as(v, CACHED);
}

static expar_status call_worst(calls_view *v)
{
    return dispatch_as(v, WORST);
}

static expar_status call_async_dispatch(calls_view *v)
{
    return dispatch_as(v, ASYNC);
}

/* The rows lie in the output of an earlier dispatch. */
static expar_status combine_as(calls_view *v, bool async)
{
    const traffic *t = v->rows->t;
    const int32_t me = v->group->rank;
    const expar_tensor *x = &v->before.result.recv_x;
    const size_t bytes = (size_t)t->inputs[me].num_tokens * traffic_row_bytes(t);
    void *y = traffic_alloc(bytes, 1);
    expar_ep_combine_result done = EXPAR_EP_COMBINE_RESULT_INIT;
    expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
    memcpy(x->data, v->rows->a->x[me], (size_t)x->shape[0] * traffic_row_bytes(t));
    args.x = *x;
    args.handle = v->before.handle;
    args.out_y = expar_tensor_2d(y, x->dtype, t->inputs[me].num_tokens, x->shape[1]);
    args.async_finish = async;
    expar_status status = expar_ep_combine(v->ep, &args, &done);
    if (status == EXPAR_OK && async) status = expar_event_wait(done.event);
    if (status == EXPAR_OK) CHECK(memcmp(y, v->rows->a->y[me], bytes) == 0, "sums are wrong");
    expar_event_release(done.event);
    free(y);
    return status;
}

static expar_status call_combine(calls_view *v)
{
    return combine_as(v, false);
}

static expar_status call_async_combine(calls_view *v)
{
    return combine_as(v, true);
}

/* ---- of a low-latency buffer ------------------------------------------------------------------------------------- */

static expar_status call_ll_create(calls_view *v)
{
    const expar_ll_config config = view_ll_config(v);
    expar_ll *more;
    expar_status status = expar_ll_create(v->group, &config, &more);
    if (status == EXPAR_OK) CHECK_OK(expar_ll_abandon(more));
    return status;
}

static expar_status call_ll_destroy(calls_view *v)
{
    expar_status status = expar_ll_destroy(v->ll_last);
    if (status == EXPAR_OK) v->ll_last = NULL;
    return status;
}

/* With its hook, or until its event has happened. */
static expar_status carry_out(lowlat_call *call)
{
    expar_status status = lowlat_start(call);
    if (status == EXPAR_OK) status = lowlat_end(call);
    if (status == EXPAR_OK) CHECK(lowlat_is_right(call), "what came is wrong");
    lowlat_clean(call);
    return status;
}

static expar_status ll_dispatch_as(calls_view *v, lowlat_choice choice)
{
    lowlat_call call;
    lowlat_prepare_dispatch(&call, v->ll, v->rows->lowlat, v->group->rank, &choice);
    return carry_out(&call);
}

static expar_status ll_combine_as(calls_view *v, const lowlat_answers *a, lowlat_choice choice)
{
    lowlat_call call;
    lowlat_prepare_combine(&call, v->ll, v->rows->lowlat, a, v->group->rank, &choice, v->ll_before.there.handle);
    return carry_out(&call);
}

static expar_status call_ll_dispatch(calls_view *v)
{
    return ll_dispatch_as(v, (lowlat_choice){0});
}

static expar_status call_ll_dispatch_hook(calls_view *v)
{
    return ll_dispatch_as(v, (lowlat_choice){.hook = true});
}

static expar_status call_ll_async_dispatch(calls_view *v)
{
    return ll_dispatch_as(v, (lowlat_choice){.async = true});
}

static expar_status call_ll_combine(calls_view *v)
{
    return ll_combine_as(v, v->rows->exact, (lowlat_choice){0});
}

static expar_status call_ll_combine_hook(calls_view *v)
{
    return ll_combine_as(v, v->rows->exact, (lowlat_choice){.hook = true});
}

/* Weights go ahead: its send waits, too. */
static expar_status call_ll_reduced_combine(calls_view *v)
{
    return ll_combine_as(v, v->rows->reduced, (lowlat_choice){0});
}

static expar_status call_ll_async_combine(calls_view *v)
{
    return ll_combine_as(v, v->rows->exact, (lowlat_choice){.async = true});
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

const calls_call calls_all[] = {
    {"group_barrier", CALLS_CONTROL, call_group_barrier, "expar_group_barrier", false},
    {"group_allgather", CALLS_CONTROL, call_allgather, "expar_group_allgather", false},
    {"group_broadcast", CALLS_CONTROL, call_group_broadcast, "expar_group_broadcast", false},
    {"malloc", CALLS_CONTROL, call_malloc, "expar_malloc", false},
    {"free", CALLS_CONTROL, call_free, "expar_free", false},
    {"barrier_all", CALLS_HEAPS, call_barrier_all, "barrier", false},
    {"sync", CALLS_HEAPS, call_sync, "expar_team_sync", false},
    {"reduce", CALLS_HEAPS, call_reduce, "expar_sum_reduce_u64", false},
    {"alltoall", CALLS_HEAPS, call_alltoall, "expar_alltoall", false},
    {"broadcast", CALLS_HEAPS, call_broadcast, "expar_broadcast", false},
    {"fcollect", CALLS_HEAPS, call_fcollect, "expar_fcollect", false},
    {"team_split", CALLS_HEAPS, call_split, "expar_team_split_strided", false},
    {"wait", CALLS_OPEN, call_wait, "expar_wait_until_u64", false},
    {"wait_any", CALLS_OPEN, call_wait_any, "expar_wait_until_any_u64", false},
    {"lock", CALLS_OPEN, call_lock, "expar_lock_set", false},
    {"create", CALLS_CONTROL, call_create, "expar_ep_create", false},
    {"route", CALLS_BUFFER, call_route, "expar_ep_route", false},
    {"dispatch", CALLS_BUFFER, call_dispatch, "expar_ep_dispatch", false},
    {"cached dispatch", CALLS_BUFFER, call_cached, "expar_ep_dispatch", false},
    {"worst case", CALLS_BUFFER, call_worst, "expar_ep_dispatch", false},
    {"async dispatch", CALLS_EVENT, call_async_dispatch, "expar_ep_dispatch", false},
    {"combine", CALLS_BUFFER, call_combine, "expar_ep_combine", false},
    {"async combine", CALLS_EVENT, call_async_combine, "expar_ep_combine", false},
    {"destroy", CALLS_END, call_destroy, "expar_ep_destroy", false},
    {"ll create", CALLS_CONTROL, call_ll_create, "expar_ll_create", false},
    {"ll dispatch", CALLS_BUFFER, call_ll_dispatch, "expar_ll_dispatch", true},
    {"ll dispatch's hook", CALLS_BUFFER, call_ll_dispatch_hook, "expar_ll_hook_call", true},
    {"ll async dispatch", CALLS_EVENT, call_ll_async_dispatch, "expar_ll_dispatch", true},
    {"ll combine", CALLS_BUFFER, call_ll_combine, "expar_ll_combine", true},
    {"ll combine's hook", CALLS_BUFFER, call_ll_combine_hook, "expar_ll_hook_call", true},
    {"ll reduced combine", CALLS_BUFFER, call_ll_reduced_combine, "expar_ll_combine", true},
    {"ll async combine", CALLS_EVENT, call_ll_async_combine, "expar_ll_combine", true},
    {"ll destroy", CALLS_END, call_ll_destroy, "expar_ll_destroy", true},
};
const int32_t calls_count = (int32_t)ARRAY_LENGTH(calls_all);
const int32_t calls_count_without_rows = 15;

const calls_call *calls_find(const char *name)
{
    int32_t i = 0;
    while (i < calls_count && strcmp(calls_all[i].name, name) != 0)
        i++;
    if (i == calls_count) abort();
    return &calls_all[i];
}

bool calls_await_waiting(expar_group *group, int32_t count, int64_t waited_ns)
{
    static const boot_topic any = {.kind = BOOT_KIND_ALL};
    return kind_await_waiting(group, &any, count, waited_ns);
}
