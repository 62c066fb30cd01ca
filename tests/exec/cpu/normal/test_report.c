/* SPDX-License-Identifier: Apache-2.0 */
/* The reports to survivors when one rank stops between two steps of a call, wherever that is: the phase, the rank, the
   word awaited from it and for how long. Nothing decides by time but the group's own time-out, which is short in that
   call alone. */
#include "oracle/unit.h"

#include "ep/normal/normal.h"
#include "exec/cpu/create.h"
#include "shmem/kind.h"
#include <expar/expar.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Steps between two stops: some are left out to save time-outs. */
enum { STRIDE_DIRECT = 6, STRIDE_QUEUE = 67 };
enum { AT_ONCE = 6 }; /* stops tried side by side, each by ranks of its own: they mostly wait */
enum { RANKS = 3, TOKENS = 24, HIDDEN = 64, TOPK = 3, EXPERTS = 6, SILENT = 2 };
enum { SHORT_MS = 1000, LONG_MS = 60000 };

typedef struct scene {
    expar_group *groups[RANKS];
    expar_ep_path path;
    bool combine;       /* stop in the combine, else in the dispatch */
    int32_t stop_after; /* steps that the silent rank still takes */
    pthread_barrier_t here;
    pthread_mutex_t lock; /* guards taken, open and ended */
    pthread_cond_t change;
    int32_t taken;
    bool open;     /* the silent rank may go on */
    int32_t ended; /* survivors whose call has ended */
    expar_status status[RANKS];
    char text[RANKS][ERROR_TEXT_BYTES];
} scene;

typedef struct seat {
    scene *scene;
    int32_t rank;
} seat;

/* For the silent rank: stops at its step until all survivors have given up. */
static void stop_here(void *context)
{
    scene *s = context;
    pthread_mutex_lock(&s->lock);
    if (s->taken++ >= s->stop_after)
        while (!s->open)
            pthread_cond_wait(&s->change, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

/* Survivors stay until all of them have been told, so that none hears of another's leaving instead. The last one ends
   the silent rank's call and lets it go on. */
static void survivor_ended(scene *s)
{
    pthread_mutex_lock(&s->lock);
    if (++s->ended == RANKS - 1) {
        expar_group_abort(s->groups[SILENT]);
        s->open = true;
    }
    pthread_cond_broadcast(&s->change);
    while (!s->open)
        pthread_cond_wait(&s->change, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

/* All have come to the call in which one falls silent. */
static void meet(scene *s, int32_t rank)
{
    pthread_barrier_wait(&s->here);
    kind_set_timeout(s->groups[rank], SHORT_MS);
}

static expar_status run_calls(scene *s, int32_t rank, expar_ep *ep)
{
    _Alignas(16) static float x[RANKS][TOKENS][HIDDEN]; /* never written */
    _Alignas(16) float y[TOKENS][HIDDEN];
    int32_t idx[TOKENS][TOPK];
    for (int t = 0; t < TOKENS; t++)
        for (int k = 0; k < TOPK; k++)
            idx[t][k] = k * 2; /* one expert on each rank */
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    args.x = expar_tensor_2d(x[rank], EXPAR_F32, TOKENS, HIDDEN);
    args.topk_idx = expar_tensor_2d(idx, EXPAR_I32, TOKENS, TOPK);
    args.num_experts = EXPERTS;
    args.path = s->path;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    if (rank == SILENT && !s->combine) executor_cpu_delay(ep->base.exec, stop_here, s);
    if (!s->combine) meet(s, rank);
    expar_status status = expar_ep_dispatch(ep, &args, &result);
    if (s->combine) meet(s, rank);
    if (status != EXPAR_OK || !s->combine) goto out;
    if (rank == SILENT) executor_cpu_delay(ep->base.exec, stop_here, s);
    expar_ep_combine_args combine = EXPAR_EP_COMBINE_ARGS_INIT;
    combine.x = result.recv_x;
    combine.handle = result.handle;
    combine.out_y = expar_tensor_2d(y, EXPAR_F32, TOKENS, HIDDEN);
    combine.path = s->path;
    status = expar_ep_combine(ep, &combine, NULL);
out:
    expar_ep_output_release(result.output);
    expar_ep_handle_release(result.handle);
    return status;
}

static void *perform(void *argument)
{
    const seat *me = argument;
    scene *s = me->scene;
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = TOKENS;
    config.max_row_bytes = HIDDEN * sizeof(float);
    config.max_topk = TOPK;
    config.max_experts = EXPERTS;
    config.ring_slots = 2;
    config.num_channels = 2;
    config.num_threads = 1;
    expar_ep *ep;
    s->status[me->rank] = expar_ep_create(s->groups[me->rank], &config, &ep);
    if (s->status[me->rank] != EXPAR_OK) abort();
    s->status[me->rank] = run_calls(s, me->rank, ep);
    strcpy(s->text[me->rank], expar_last_error());
    if (me->rank != SILENT) survivor_ended(s);
    expar_ep_destroy(ep);
    expar_group_destroy(s->groups[me->rank]);
    return NULL;
}

/* Runs one scene; true when the silent rank was stopped at all, false when it took fewer steps. */
static bool run_scene(expar_ep_path path, bool combine, int32_t stop_after, scene *s)
{
    *s = (scene){.path = path, .combine = combine, .stop_after = stop_after};
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->change, NULL);
    pthread_barrier_init(&s->here, NULL, RANKS);
    expar_group_options options = EXPAR_GROUP_OPTIONS_INIT;
    options.timeout_ms = LONG_MS;
    options.heap_bytes = 16 << 20;
    if (expar_group_create_threads(RANKS, &options, s->groups) != EXPAR_OK) abort();
    pthread_t threads[RANKS];
    seat seats[RANKS];
    for (int32_t r = 0; r < RANKS; r++) {
        seats[r] = (seat){.scene = s, .rank = r};
        if (pthread_create(&threads[r], NULL, perform, &seats[r]) != 0) abort();
    }
    for (int32_t r = 0; r < RANKS; r++)
        pthread_join(threads[r], NULL);
    pthread_barrier_destroy(&s->here);
    pthread_cond_destroy(&s->change);
    pthread_mutex_destroy(&s->lock);
    return s->taken > stop_after;
}

/* True when the text names the silent rank; it may name a survivor alone that was slow itself. */
static bool assert_told(const scene *s, int32_t rank, const char *call, const char *const *phases)
{
    const char *text = s->text[rank];
    assert_int_equal(s->status[rank], EXPAR_ERR_PEER);
    bool known = false;
    for (int i = 0; phases[i]; i++)
        known |= strstr(text, phases[i]) != NULL;
    if (!known || !strstr(text, call) || !strstr(text, "rank ") || !strstr(text, "timed out after 1000 ms"))
        fail_msg("stopped after %d steps, rank %d was told: %s", s->stop_after, rank, text);
    return strstr(text, "rank 2") != NULL;
}

/* One stop, acted by a thread. */
typedef struct trial {
    pthread_t thread;
    expar_ep_path path;
    bool combine, stopped;
    int32_t stop_after;
    scene scene;
} trial;

static void *trial_trial(void *argument)
{
    trial *self = argument;
    self->stopped = run_scene(self->path, self->combine, self->stop_after, &self->scene);
    return NULL;
}

/* Stops after step first, first + stride, … of a call. */
static void trial_trials(trial *trials, expar_ep_path path, bool combine, int32_t first, int32_t stride)
{
    for (int32_t i = 0; i < AT_ONCE; i++) {
        trials[i] = (trial){.path = path, .combine = combine, .stop_after = first + i * stride};
        if (pthread_create(&trials[i].thread, NULL, trial_trial, &trials[i]) != 0) abort();
    }
    for (int32_t i = 0; i < AT_ONCE; i++)
        pthread_join(trials[i].thread, NULL);
}

/* Returns whether the silent rank was named. */
static bool check_trial(const trial *self, const char *call, const char *const *phases)
{
    bool ended_well = true, named = false;
    for (int32_t r = 0; r < RANKS; r++) {
        /* A rank whose last record had come before the stop has nothing to wait for. */
        if (r == SILENT || self->scene.status[r] == EXPAR_OK) continue;
        ended_well = false;
        named |= assert_told(&self->scene, r, call, phases);
    }
    assert_true(ended_well || named);
    return named;
}

/* Steps are stopped until the call has no more of them, some apart to save time-outs. */
static void stop_everywhere(expar_ep_path path, bool combine, const char *call, const char *const *phases,
                            int32_t stride)
{
    trial *trials = malloc(AT_ONCE * sizeof *trials);
    int32_t stops = 0, named_stops = 0;
    bool more = true;
    for (int32_t first = 0; more; first += AT_ONCE * stride) {
        trial_trials(trials, path, combine, first, stride);
        for (int32_t i = 0; i < AT_ONCE && more; i++) {
            more = trials[i].stopped;
            if (!more) break;
            named_stops += check_trial(&trials[i], call, phases);
            stops++;
        }
    }
    free(trials);
    assert_true(stops > 2 && named_stops > 1);
}

static void dispatch_direct(void **state)
{
    (void)state;
    const char *const phases[] = {"notify", "dispatch: advertisements", "dispatch: rows", NULL};
    stop_everywhere(EXPAR_EP_PATH_DIRECT, false, "expar_ep_dispatch", phases, STRIDE_DIRECT);
}

static void dispatch_queue(void **state)
{
    (void)state;
    const char *const phases[] = {"notify", "dispatch: advertisements", "dispatch: rows", NULL};
    stop_everywhere(EXPAR_EP_PATH_QUEUE, false, "expar_ep_dispatch", phases, STRIDE_QUEUE);
}

static void combine_direct(void **state)
{
    (void)state;
    const char *const phases[] = {"combine: advertisements", "combine: rows", NULL};
    stop_everywhere(EXPAR_EP_PATH_DIRECT, true, "expar_ep_combine", phases, STRIDE_DIRECT);
}

static void combine_queue(void **state)
{
    (void)state;
    const char *const phases[] = {"combine: advertisements", "combine: rows", NULL};
    stop_everywhere(EXPAR_EP_PATH_QUEUE, true, "expar_ep_combine", phases, STRIDE_QUEUE);
}

/* In the middle of the rows the report counts what came from the silent rank, of what was to come. */
static void rows_are_counted(void **state)
{
    (void)state;
    scene *s = malloc(sizeof *s);
    bool counted = false;
    for (int32_t step = 30; !counted && run_scene(EXPAR_EP_PATH_QUEUE, false, step, s); step += 20)
        counted = strstr(s->text[0], "rows from rank 2: ") != NULL && strstr(s->text[0], " of 12") == NULL &&
                  strstr(s->text[0], " of 24") != NULL;
    free(s);
    assert_true(counted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dispatch_direct), cmocka_unit_test(dispatch_queue),   cmocka_unit_test(combine_direct),
        cmocka_unit_test(combine_queue),   cmocka_unit_test(rows_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
