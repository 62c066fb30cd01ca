/* SPDX-License-Identifier: Apache-2.0 */
/* A program ends waits of the library: rank 0 does, in each kind of call that waits, while the last rank has not come.
 * It can make the call again where that changes nothing; else the others learn that it comes no more, and why. */
#include "group/calls.h"

#include <expar/interrupt.h>

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Between ranks; in memory that processes share. Each word counts ranks, raised by each once. */
typedef struct scene {
    const calls_rows *rows;
    const calls_call *call;
    _Atomic int32_t interrupted, ended;
} scene;

/* Ranks may be threads: whose waits are to end is a matter of the thread. */
static _Thread_local bool stops;

static int stop(void *context)
{
    (void)context;
    return stops;
}

static void await_count(const _Atomic int32_t *counter, int32_t count)
{
    const int64_t until_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    while (atomic_load(counter) < count && ranks_clock_ms() < until_ms)
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

/* Nobody is to hear that another one has left. */
static void stay(const expar_group *group, scene *s)
{
    atomic_fetch_add(&s->ended, 1);
    await_count(&s->ended, group->size);
}

static void run_scene(ranks_body body, const scene *given)
{
    scene *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ranks_plan plan = {.kind = kind_of_ranks, .size = CALLS_RANKS, .heap_bytes = CALLS_HEAP_BYTES};
    plan.ranks_per_node = kind_ranks_per_node(&plan);
    assert_true(s != MAP_FAILED);
    *s = (scene){.rows = given->rows, .call = given->call};
    const bool passed = ranks_run(&plan, body, s);
    munmap(s, sizeof *s);
    if (!passed && given->call) print_message("in %s\n", given->call->name);
    assert_true(passed);
}

/* ---- each kind of call ------------------------------------------------------------------------------------------- */

/* It says so at the first question. Collective calls wait first for what this rank has under way over a network:
   interrupted there they have not begun, and are made again. */
static expar_status call_interrupted(calls_view *v, const calls_call *call)
{
    stops = true;
    expar_status status = call->make(v);
    while (call->kind != CALLS_OPEN && strstr(expar_last_error(), "quiet: interrupted") &&
           sym_check(v->group->sym, "test") == EXPAR_OK)
        status = call->make(v);
    stops = false;
    return status;
}

static void be_interrupted(calls_view *v, scene *s)
{
    const calls_call *call = s->call;
    CHECK_STATUS(call->kind == CALLS_END ? EXPAR_OK : EXPAR_ERR_INTERRUPTED, call_interrupted(v, call));
    if (call->kind != CALLS_END) CHECK_TEXT(call->said, "interrupted");
    atomic_fetch_add(&s->interrupted, 1);
    if (call->kind == CALLS_OPEN) {
        CHECK_OK(call->make(v));
    } else if (call->kind == CALLS_BUFFER) {
        CHECK_STATUS(EXPAR_ERR_INTERRUPTED, call->make(v));
        CHECK_TEXT("poisoned", "interrupted");
    } else {
        CHECK(expar_group_barrier(v->group) != EXPAR_OK, "the group goes on");
    }
}

static expar_status await_all(calls_view *v, const calls_call *call)
{
    if (call->kind == CALLS_BUFFER) return call->make(v);
    return call->kind == CALLS_HEAPS ? expar_barrier_all(v->group) : expar_group_barrier(v->group);
}

/* Others may have had from rank 0 what they needed in that call: then they miss it in the next one. */
static void learn(calls_view *v, scene *s)
{
    const calls_call *call = s->call;
    if (v->group->rank == CALLS_LATE) await_count(&s->interrupted, 1);
    expar_status status = call->make(v);
    const bool had_all = status == EXPAR_OK;
    if (had_all && call->kind != CALLS_OPEN) status = await_all(v, call);
    if (call->kind == CALLS_OPEN) {
        CHECK(status == EXPAR_OK, "%s", expar_last_error());
        return;
    }
    CHECK_STATUS(EXPAR_ERR_PEER, status);
    /* A destroy has told its reason to the log. */
    if (call->kind != CALLS_END) CHECK_TEXT("rank 0", "does not come any more", "EXPAR_ERR_INTERRUPTED");
    /* One that had all may be in the next call by now, and waits there for this rank, which is alive. */
    if (!had_all && (call->kind == CALLS_HEAPS || call->kind == CALLS_CONTROL))
        CHECK_STATUS(EXPAR_ERR_PEER, await_all(v, call));
}

static void interrupt(expar_group *group, void *shared)
{
    scene *s = shared;
    calls_view v;
    if (!calls_open(&v, group, s->rows)) return;
    if (group->rank == 0)
        be_interrupted(&v, s);
    else
        learn(&v, s);
    stay(group, s);
    if (s->call->kind == CALLS_BUFFER) {
        CHECK_OK(expar_group_barrier(group));
        if (calls_replace(&v)) CHECK_OK(s->call->make(&v));
    }
    if (s->call->kind == CALLS_OPEN) CHECK_OK(expar_barrier_all(group));
    calls_close(&v);
}

static void test_each_call(void **state)
{
    (void)state;
    calls_rows rows = calls_rows_make();
    const bool have_rows = calls_have_rows();
    for (int32_t i = 0; i < (have_rows ? calls_count : calls_count_without_rows); i++)
        if (calls_all[i].kind != CALLS_EVENT && calls_is_of_today(i))
            run_scene(interrupt, &(scene){.rows = have_rows ? &rows : NULL, .call = &calls_all[i]});
    calls_rows_free(&rows);
}

/* ---- who has learnt it elsewhere --------------------------------------------------------------------------------- */

/* Rank 0 is interrupted in a call that the late one does not belong to. Rank 1 learns it there, gives rank 0 up, and so
   comes to no later call of all ranks. The late one waits for it in such a call, and learns that, and why. */
static void learn_elsewhere(calls_view *v, scene *s, expar_team *pair)
{
    expar_status status = EXPAR_OK;
    if (v->group->rank == 1) {
        await_count(&s->interrupted, 1);
        /* The first one may have all that it needs of rank 0. */
        for (int32_t i = 0; i < 2 && status == EXPAR_OK; i++)
            status = expar_team_sync(pair);
        CHECK_STATUS(EXPAR_ERR_PEER, status);
        CHECK_TEXT("rank 0 does not come any more", "EXPAR_ERR_INTERRUPTED");
    }
    CHECK_STATUS(EXPAR_ERR_PEER, s->call->make(v));
    if (v->group->rank == CALLS_LATE) CHECK_TEXT("rank 1 does not come any more", "rank 0");
    if (v->group->rank == CALLS_LATE && s->call == calls_find("barrier_all")) CHECK_TEXT("EXPAR_ERR_INTERRUPTED");
}

static void interrupt_elsewhere(expar_group *group, void *shared)
{
    scene *s = shared;
    calls_view v;
    expar_team *pair = NULL;
    if (!calls_open(&v, group, NULL) || !CHECK_OK(expar_team_split_strided(v.world, 0, 1, 2, NULL, &pair))) return;
    if (group->rank == 0) {
        stops = true;
        CHECK_STATUS(EXPAR_ERR_INTERRUPTED, expar_team_sync(pair));
        stops = false;
        atomic_fetch_add(&s->interrupted, 1);
    } else {
        learn_elsewhere(&v, s, pair);
    }
    stay(group, s);
}

static void test_who_gave_up_is_missed(void **state)
{
    static const char *const calls[] = {"barrier_all", "sync"};
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(calls); i++)
        run_scene(interrupt_elsewhere, &(scene){.call = calls_find(calls[i])});
}

/* ---- what can be called again ------------------------------------------------------------------------------------ */

typedef struct combine_out {
    expar_ep_combine_args args;
    expar_event *event;
    void *y;
    size_t bytes;
} combine_out;

static expar_status make_combine(const calls_view *v, combine_out *out, bool async)
{
    const traffic *t = v->rows->t;
    const int32_t me = v->group->rank;
    const expar_tensor *x = &v->before.result.recv_x;
    *out = (combine_out){.args = EXPAR_EP_COMBINE_ARGS_INIT};
    out->bytes = (size_t)t->inputs[me].num_tokens * traffic_row_bytes(t);
    out->y = traffic_alloc(out->bytes, 1);
    memcpy(x->data, v->rows->a->x[me], (size_t)x->shape[0] * traffic_row_bytes(t));
    out->args.x = *x;
    out->args.handle = v->before.handle;
    out->args.out_y = expar_tensor_2d(out->y, x->dtype, t->inputs[me].num_tokens, x->shape[1]);
    out->args.async_finish = async;
    expar_ep_combine_result done = EXPAR_EP_COMBINE_RESULT_INIT;
    expar_status status = expar_ep_combine(v->ep, &out->args, &done);
    out->event = done.event;
    return status;
}

static expar_status start_combine(const calls_view *v, combine_out *out)
{
    return make_combine(v, out, true);
}

static void finish_combine(const calls_view *v, combine_out *out)
{
    CHECK_OK(expar_event_wait(out->event));
    CHECK(memcmp(out->y, v->rows->a->y[v->group->rank], out->bytes) == 0, "sums are wrong");
    expar_event_release(out->event);
    free(out->y);
}

/* All that waits here waits for this rank's own calls: it changes nothing, and the calls go on. */
static void wait_again(calls_view *v, scene *s, const combine_out *one)
{
    combine_out more;
    stops = true;
    CHECK_STATUS(EXPAR_ERR_INTERRUPTED, expar_event_wait(one->event));
    CHECK_TEXT("expar_event_wait", "interrupted");
    CHECK_STATUS(EXPAR_ERR_INTERRUPTED, make_combine(v, &more, false));
    CHECK_TEXT("expar_ep_combine", "the call before: interrupted");
    CHECK_STATUS(EXPAR_ERR_INTERRUPTED, calls_find("dispatch")->make(v));
    CHECK_TEXT("expar_ep_dispatch", "the call before: interrupted");
    CHECK_STATUS(EXPAR_ERR_INTERRUPTED, expar_ep_destroy(v->ep));
    CHECK_TEXT("expar_ep_destroy", "the call before: interrupted");
    stops = false;
    free(more.y);
    atomic_fetch_add(&s->interrupted, 1);
}

static void wait_for_own_calls(expar_group *group, void *shared)
{
    scene *s = shared;
    calls_view v;
    combine_out first, second;
    if (!calls_open(&v, group, s->rows)) return;
    if (group->rank == CALLS_LATE) await_count(&s->interrupted, 1);
    CHECK_OK(start_combine(&v, &first));
    CHECK_OK(start_combine(&v, &second));
    if (group->rank == 0) wait_again(&v, s, &first);
    finish_combine(&v, &first);
    finish_combine(&v, &second);
    CHECK_OK(calls_find("dispatch")->make(&v));
    calls_close(&v);
}

/* Calls of low-latency mode: a dispatch whose hook is still to be called, and two combines on the buffer's thread. */
typedef struct ll_own_calls {
    lowlat_call hooked, first, second;
    lowlat_call third, plain; /* that rank 0 tries to make after these */
} ll_own_calls;

static void ll_start_calls(const calls_view *v, ll_own_calls *own)
{
    static const lowlat_choice hooks = {.hook = true}, async = {.async = true}, plainly = {0};
    const lowlat_traffic *t = v->rows->lowlat;
    const int32_t me = v->group->rank;
    const expar_ll_handle *handle = v->ll_before.there.handle;
    lowlat_prepare_dispatch(&own->hooked, v->ll, t, me, &hooks);
    lowlat_prepare_combine(&own->first, v->ll, t, v->rows->exact, me, &async, handle);
    lowlat_prepare_combine(&own->second, v->ll, t, v->rows->reduced, me, &async, handle);
    lowlat_prepare_combine(&own->third, v->ll, t, v->rows->exact, me, &plainly, handle);
    lowlat_prepare_dispatch(&own->plain, v->ll, t, me, &plainly);
    CHECK_OK(lowlat_start(&own->hooked));
    CHECK_OK(lowlat_start(&own->first));
    CHECK_OK(lowlat_start(&own->second));
}

static void ll_wait_again(const calls_view *v, scene *s, ll_own_calls *own)
{
    stops = true;
    CHECK_STATUS(EXPAR_ERR_INTERRUPTED, expar_event_wait(own->first.back.event));
    CHECK_TEXT("expar_event_wait", "interrupted");
    CHECK_STATUS(EXPAR_ERR_INTERRUPTED, lowlat_start(&own->third));
    CHECK_TEXT("expar_ll_combine", "the call before: interrupted");
    CHECK_STATUS(EXPAR_ERR_INTERRUPTED, lowlat_start(&own->plain));
    CHECK_TEXT("expar_ll_dispatch", "the call before: interrupted");
    CHECK_STATUS(EXPAR_ERR_INTERRUPTED, expar_ll_hook_call(own->hooked.there.hook, NULL));
    CHECK_TEXT("expar_ll_hook_call", "the call before: interrupted");
    CHECK_STATUS(EXPAR_ERR_INTERRUPTED, expar_ll_destroy(v->ll));
    CHECK_TEXT("expar_ll_destroy", "the call before: interrupted");
    stops = false;
    atomic_fetch_add(&s->interrupted, 1);
}

/* One after two: its own wait differs from that of one after one. */
static void ll_wait_after_one(const calls_view *v, scene *s)
{
    lowlat_call first, plain;
    static const lowlat_choice async = {.async = true}, plainly = {0};
    lowlat_prepare_dispatch(&first, v->ll, v->rows->lowlat, v->group->rank, &async);
    lowlat_prepare_dispatch(&plain, v->ll, v->rows->lowlat, v->group->rank, &plainly);
    if (v->group->rank == CALLS_LATE) await_count(&s->interrupted, 2);
    CHECK_OK(lowlat_start(&first));
    if (v->group->rank == 0) {
        stops = true;
        CHECK_STATUS(EXPAR_ERR_INTERRUPTED, lowlat_start(&plain));
        CHECK_TEXT("expar_ll_dispatch", "the call before: interrupted");
        stops = false;
        atomic_fetch_add(&s->interrupted, 1);
    }
    lowlat_trial(&plain);
    CHECK_OK(lowlat_end(&first));
    CHECK(lowlat_is_right(&first), "what came is wrong");
    lowlat_clean(&first);
    lowlat_clean(&plain);
}

static void ll_wait_for_own_calls(expar_group *group, void *shared)
{
    scene *s = shared;
    calls_view v;
    ll_own_calls own;
    if (!calls_open(&v, group, s->rows)) return;
    if (group->rank == CALLS_LATE) await_count(&s->interrupted, 1);
    ll_start_calls(&v, &own);
    if (group->rank == 0) ll_wait_again(&v, s, &own);
    lowlat_call *const all[] = {&own.third, &own.plain, &own.first, &own.second, &own.hooked};
    CHECK_OK(lowlat_start(&own.third));
    CHECK_OK(lowlat_start(&own.plain));
    for (size_t i = 0; i < ARRAY_LENGTH(all); i++) {
        CHECK_OK(lowlat_end(all[i]));
        CHECK(lowlat_is_right(all[i]), "what came of call %zu is wrong", i);
        lowlat_clean(all[i]);
    }
    ll_wait_after_one(&v, s);
    calls_close(&v);
}

static void test_own_calls_are_waited_for_again(void **state)
{
    (void)state;
    if (!calls_have_rows()) skip();
    calls_rows rows = calls_rows_make();
    run_scene(wait_for_own_calls, &(scene){.rows = &rows});
    run_scene(ll_wait_for_own_calls, &(scene){.rows = &rows});
    calls_rows_free(&rows);
}

/* ---- other waits of low-latency calls ---------------------------------------------------------------------------- */

static expar_status dispatch_interrupted(lowlat_call *call)
{
    stops = true;
    expar_status status = lowlat_start(call);
    stops = false;
    return status;
}

/* The late rank has not read its two open calls: rank 0's third one says that it is there, and waits for their half. */
static void wait_for_half(expar_group *group, void *shared)
{
    static const lowlat_choice hooks = {.hook = true};
    scene *s = shared;
    calls_view v;
    lowlat_call calls[3];
    if (!calls_open(&v, group, s->rows)) return;
    for (int32_t i = 0; i < 3; i++)
        lowlat_prepare_dispatch(&calls[i], v.ll, s->rows->lowlat, group->rank, &hooks);
    CHECK_OK(lowlat_start(&calls[0]));
    CHECK_OK(lowlat_start(&calls[1]));
    if (group->rank == CALLS_LATE) await_count(&s->interrupted, 1);
    for (int32_t i = 0; i < 2; i++)
        CHECK(lowlat_end(&calls[i]) == EXPAR_OK && lowlat_is_right(&calls[i]), "call %d: %s", i, expar_last_error());
    if (group->rank == 0) {
        CHECK_STATUS(EXPAR_ERR_INTERRUPTED, dispatch_interrupted(&calls[2]));
        CHECK_TEXT("expar_ll_dispatch", "acknowledgements of earlier rows: interrupted");
        atomic_fetch_add(&s->interrupted, 1);
    } else {
        expar_status status = lowlat_start(&calls[2]);
        if (status == EXPAR_OK) status = lowlat_end(&calls[2]);
        /* Rank 1's half was free: it has all of that call, and misses rank 0 in the next one. */
        if (group->rank == 1 && status == EXPAR_OK) status = calls_find("ll dispatch")->make(&v);
        CHECK_STATUS(EXPAR_ERR_PEER, status);
        CHECK_TEXT("rank 0", "does not come any more", "EXPAR_ERR_INTERRUPTED");
    }
    stay(group, s);
    for (int32_t i = 0; i < 3; i++)
        lowlat_clean(&calls[i]);
    if (calls_replace(&v)) CHECK_OK(calls_find("ll dispatch")->make(&v));
    calls_close(&v);
}

/* Rank 0 waits for an event of its own before it tells anybody anything: the call is refused, and the buffer stays. */
static void wait_for_event(expar_group *group, void *shared)
{
    static const lowlat_choice plainly = {0};
    scene *s = shared;
    calls_view v;
    lowlat_call call;
    expar_event *never = NULL;
    if (!calls_open(&v, group, s->rows)) return;
    CHECK_OK(expar_event_create(&never));
    lowlat_prepare_dispatch(&call, v.ll, s->rows->lowlat, group->rank, &plainly);
    if (group->rank == 0) {
        call.there_args.wait_event = never;
        CHECK_STATUS(EXPAR_ERR_INTERRUPTED, dispatch_interrupted(&call));
        CHECK_TEXT("expar_ll_dispatch", "interrupted");
    } else {
        CHECK_STATUS(EXPAR_ERR_REMOTE, lowlat_start(&call));
        CHECK_TEXT("rank 0 rejected", "EXPAR_ERR_INTERRUPTED");
    }
    lowlat_clean(&call);
    expar_event_release(never);
    CHECK_OK(calls_find("ll dispatch")->make(&v));
    CHECK_OK(calls_find("ll combine")->make(&v));
    calls_close(&v);
}

static void test_other_waits_of_low_latency(void **state)
{
    (void)state;
    if (!calls_have_rows()) skip();
    calls_rows rows = calls_rows_make();
    run_scene(wait_for_half, &(scene){.rows = &rows});
    run_scene(wait_for_event, &(scene){.rows = &rows});
    calls_rows_free(&rows);
}

/* ---- the buffer's own thread ------------------------------------------------------------------------------------- */

/* Asked by it for rank 0. */
static int stop_library_threads(void *context)
{
    return *(const pid_t *)context != gettid();
}

static void lose_combine(const calls_view *v)
{
    combine_out one;
    CHECK_OK(start_combine(v, &one));
    CHECK_STATUS(EXPAR_ERR_INTERRUPTED, expar_event_wait(one.event));
    CHECK_TEXT("expar_ep_combine", "interrupted");
    expar_event_release(one.event);
    free(one.y);
}

static void lose_ll_combine(const calls_view *v)
{
    static const lowlat_choice async = {.async = true};
    lowlat_call one;
    lowlat_prepare_combine(&one, v->ll, v->rows->lowlat, v->rows->exact, v->group->rank, &async,
                           v->ll_before.there.handle);
    CHECK_OK(lowlat_start(&one));
    CHECK_STATUS(EXPAR_ERR_INTERRUPTED, lowlat_end(&one));
    CHECK_TEXT("expar_ll_combine", "interrupted");
    lowlat_clean(&one);
}

/* The call is lost, as one of this thread would be. */
static void interrupt_own_thread(expar_group *group, void *shared)
{
    scene *s = shared;
    calls_view v;
    const pid_t self = gettid();
    if (!calls_open(&v, group, s->rows)) return;
    if (group->rank == 0) {
        CHECK_OK(expar_interrupt_set(stop_library_threads, (void *)(uintptr_t)&self));
        if (s->call->low_latency)
            lose_ll_combine(&v);
        else
            lose_combine(&v);
        CHECK_OK(expar_interrupt_set(stop, NULL));
        atomic_fetch_add(&s->interrupted, 1);
    } else {
        learn(&v, s);
    }
    stay(group, s);
    if (calls_replace(&v)) CHECK_OK(s->call->make(&v));
    calls_close(&v);
}

static void test_own_thread(void **state)
{
    (void)state;
    if (!calls_have_rows() || kind_of_ranks == RANKS_THREADS) skip(); /* where other ranks' threads are asked, too */
    calls_rows rows = calls_rows_make();
    run_scene(interrupt_own_thread, &(scene){.rows = &rows, .call = calls_find("combine")});
    run_scene(interrupt_own_thread, &(scene){.rows = &rows, .call = calls_find("ll combine")});
    calls_rows_free(&rows);
}

/* ---- over the network -------------------------------------------------------------------------------------------- */

#define MANY ((size_t)1 << 17)

/* By the letter of its state. */
static bool is_stopped(int32_t pid)
{
    char path[64], text[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (!file) return false;
    const size_t bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    const char *name_end = bytes > 0 ? strrchr(text, ')') : NULL;
    return name_end && name_end[1] == ' ' && name_end[2] == 'T';
}

static void await_stopped(int32_t pid)
{
    const int64_t until_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    while (!is_stopped(pid) && ranks_clock_ms() < until_ms)
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

/* Moves between this rank and one that is stopped; the network may carry them out until the group ends. */
static void move_interrupted(expar_group *group, uint64_t *words, uint64_t *own)
{
    stops = true;
    CHECK_STATUS(EXPAR_ERR_INTERRUPTED, expar_get(group, own, words, MANY * sizeof *words, CALLS_LATE));
    CHECK_TEXT("interrupted");
    expar_status status = expar_put_nbi(group, words, own, MANY * sizeof *words, CALLS_LATE);
    if (status == EXPAR_OK) status = expar_quiet(group);
    CHECK_STATUS(EXPAR_ERR_INTERRUPTED, status);
    CHECK_TEXT("interrupted");
    stops = false;
}

/* Once the rank goes on. */
static void move_more(expar_group *group, uint64_t *words, uint64_t *own)
{
    for (size_t i = 0; i < MANY; i++)
        own[i] = 3 * i;
    CHECK_OK(expar_put(group, words, own, MANY * sizeof *words, CALLS_LATE));
    CHECK_OK(expar_quiet(group));
    memset(own, 0, MANY * sizeof *own);
    CHECK_OK(expar_get(group, own, words, MANY * sizeof *words, CALLS_LATE));
    for (size_t i = 0; i < MANY; i++)
        if (!CHECK(own[i] == 3 * i, "word %zu is %llu", i, (unsigned long long)own[i])) break;
}

static void reach_stopped(expar_group *group, void *shared)
{
    uint64_t *words;
    (void)shared;
    CHECK_OK(expar_calloc(group, 2 * MANY, sizeof *words, (void **)&words));
    const int32_t pid = group->boot->places[CALLS_LATE].pid;
    if (group->rank == CALLS_LATE) raise(SIGSTOP);
    if (group->rank == 0) {
        static uint64_t for_ever[MANY];
        uint64_t *own = traffic_alloc(MANY, sizeof *own);
        await_stopped(pid);
        move_interrupted(group, words + MANY, for_ever);
        CHECK(kill(pid, SIGCONT) == 0, "it does not go on");
        move_more(group, words, own);
        free(own);
    }
    CHECK_OK(expar_barrier_all(group));
}

static void test_moves_over_the_network(void **state)
{
    (void)state;
    if (calls_have_rows()) skip(); /* nothing goes over a network */
    run_scene(reach_stopped, &(scene){0});
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_call),
        cmocka_unit_test(test_who_gave_up_is_missed),
        cmocka_unit_test(test_own_calls_are_waited_for_again),
        cmocka_unit_test(test_other_waits_of_low_latency),
        cmocka_unit_test(test_own_thread),
        cmocka_unit_test(test_moves_over_the_network),
    };
    kind_read(argc, argv);
    expar_interrupt_set(stop, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
