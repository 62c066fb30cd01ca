/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers that are destroyed after a call which failed on some ranks alone: the group is sound, all ranks come, and the
 * next buffer is as good as the first. And a rank that does not come. */
#include "ep/harness/stage.h"
#include "ep/normal/normal.h"
#include "oracle/unit.h"
#include "shmem/kind.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

/* The time-out of calls that are to time out, once their time runs. */
#define SHORT_MS 300
#define RANKS    3
#define AWAY     1

typedef struct scene {
    traffic *traffic;
    answers *answers;
    /* In memory that processes share. ended: ranks whose destroying has ended; written and read by them. waiting: 1
       once all others wait for the rank that stays away. That rank writes it. */
    atomic_int *ended, *waiting;
    stage_plan plan;
} scene;

static bool create(stage *s, const scene *c)
{
    return CHECK_OK(expar_ep_create(s->group, &c->plan.config, &s->ep));
}

static bool destroy(stage *s)
{
    expar_ep *ep = s->ep;
    s->ep = NULL;
    return CHECK_OK(expar_ep_destroy(ep));
}

static void trial_round(stage *s, const scene *c)
{
    stage_round_trip(s, c->traffic, c->answers, EXPAR_EP_PATH_AUTO);
}

/* ---- who is late ------------------------------------------------------------------------------------------------- */

static bool await_count(const atomic_int *counter, int count)
{
    const struct timespec step = {0, 500000};
    const int64_t deadline_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    while (atomic_load(counter) < count && ranks_clock_ms() < deadline_ms)
        nanosleep(&step, NULL);
    return atomic_load(counter) >= count;
}

/* For the rank that stays away: returns when the others wait in calls on its buffer, or for its end, and have looked
   there in vain. If one had not, the other would say that it waits for it. */
static void stay_away(const stage *s, const scene *c, boot_kind kind)
{
    const boot_topic topic = {.kind = kind, .object = s->ep->base.number, .number = UINT64_MAX};
    kind_await_waiting(s->group, &topic, RANKS - 1, 1);
    atomic_store(c->waiting, 1);
}

typedef struct limiter {
    pthread_t thread;
    expar_group *group;
    const scene *c;
} limiter;

/* Only once all wait for the rank that stays away is nobody else late. */
static void *set_limit(void *argument)
{
    const limiter *self = argument;
    await_count(self->c->waiting, 1);
    self->group->boot->late_limit_ms = SHORT_MS;
    return NULL;
}

static void limit_begin(limiter *self, expar_group *group, const scene *c)
{
    *self = (limiter){.group = group, .c = c};
    if (pthread_create(&self->thread, NULL, set_limit, self)) abort();
}

static void limit_end(const limiter *self)
{
    pthread_join(self->thread, NULL);
    self->group->boot->late_limit_ms = RANKS_TIMEOUT_MS;
}

/* ---- a rank that stays away from a call -------------------------------------------------------------------------- */

static void dispatch_in_vain(stage *s, const scene *c)
{
    const trial_choice plain = {0};
    expar_ep_dispatch_args args = trial_dispatch_args(c->traffic, s->rank, &plain, &s->area, NULL);
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    CHECK_STATUS(EXPAR_ERR_PEER, expar_ep_dispatch(s->ep, &args, &result));
    CHECK_TEXT("expar_ep_dispatch", "timed out after 300 ms", "rank 1");
    CHECK_STATUS(EXPAR_ERR_PEER, expar_ep_dispatch(s->ep, &args, &result));
    CHECK_TEXT("expar_ep_dispatch", "poisoned", "timed out after 300 ms");
    trial_dispatch_args_free(&args);
}

static void replace_after_a_dispatch(expar_group *group, void *shared)
{
    const scene *c = shared;
    stage s = {.group = group, .rank = expar_group_rank(group)};
    if (!create(&s, c)) return;
    trial_round(&s, c);
    if (!CHECK_OK(expar_group_barrier(group))) return;
    if (s.rank == AWAY) {
        stay_away(&s, c, BOOT_KIND_BUFFER);
    } else {
        limiter late;
        limit_begin(&late, group, c);
        dispatch_in_vain(&s, c);
        limit_end(&late);
    }
    if (!destroy(&s) || !create(&s, c)) return;
    trial_round(&s, c);
    destroy(&s);
}

/* Nobody looks at the event before the buffer is destroyed. */
static bool combine_in_vain(stage *s, const scene *c, trial_arrival *arrival)
{
    int64_t tokens = c->traffic->inputs[s->rank].num_tokens;
    expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
    expar_ep_combine_result done = EXPAR_EP_COMBINE_RESULT_INIT;
    args.x = arrival->result.recv_x;
    args.handle = arrival->handle;
    args.out_y = expar_tensor_2d(traffic_alloc((size_t)tokens, traffic_row_bytes(c->traffic)),
                                 traffic_dtype(c->traffic), tokens, c->traffic->job.hidden);
    args.async_finish = 1;
    limiter late;
    limit_begin(&late, s->group, c);
    bool ended = CHECK_OK(expar_ep_combine(s->ep, &args, &done)) && destroy(s);
    limit_end(&late);
    if (ended) CHECK_STATUS(EXPAR_ERR_PEER, expar_event_wait(done.event));
    if (ended) CHECK_TEXT("expar_ep_combine", "timed out after 300 ms", "rank 1");
    expar_event_release(done.event);
    free(args.out_y.data);
    return ended;
}

static void replace_after_a_combine(expar_group *group, void *shared)
{
    const scene *c = shared;
    const trial_choice plain = {0};
    stage s = {.group = group, .rank = expar_group_rank(group)};
    trial_arrival arrival;
    if (!create(&s, c) || !trial_dispatch(s.ep, c->traffic, s.rank, &plain, &s.area, NULL, &arrival)) return;
    if (!CHECK_OK(expar_group_barrier(group))) return; /* those who wait from here on do so in the combine */
    if (s.rank == AWAY) stay_away(&s, c, BOOT_KIND_BUFFER);
    bool ended = s.rank == AWAY ? destroy(&s) : combine_in_vain(&s, c, &arrival);
    trial_release(&arrival, true);
    if (!ended || !create(&s, c)) return;
    trial_round(&s, c);
    destroy(&s);
}

/* ---- a rank that does not come to destroy ------------------------------------------------------------------------ */

/* It is waited for as long as the late limit allows; the group has failed then. Nobody leaves before all have seen
   it. */
static void destroy_in_vain(expar_group *group, void *shared)
{
    const scene *c = shared;
    stage s = {.group = group, .rank = expar_group_rank(group)};
    if (!create(&s, c)) return;
    trial_round(&s, c);
    if (s.rank == AWAY) {
        stay_away(&s, c, BOOT_KIND_END);
    } else {
        limiter late;
        limit_begin(&late, group, c);
        destroy(&s);
        CHECK_TEXT("the buffer", "after 300 ms", "waiting for rank 1");
        limit_end(&late);
        CHECK_STATUS(EXPAR_ERR_PEER, expar_group_barrier(group));
        atomic_fetch_add(c->ended, 1);
    }
    CHECK(await_count(c->ended, RANKS - 1), "destroying did not end");
    if (s.rank == AWAY) destroy(&s);
}

/* ---- a rank whose group has failed for it alone ------------------------------------------------------------------ */

/* It has given up a collective of the group's for which others were late. It comes to the buffer's end no more, and the
   others learn of it there, while it stays. */
static void destroy_without_one(expar_group *group, void *shared)
{
    const scene *c = shared;
    stage s = {.group = group, .rank = expar_group_rank(group)};
    if (!create(&s, c)) return;
    trial_round(&s, c);
    if (!CHECK_OK(expar_group_barrier(group))) return;
    if (s.rank == AWAY) {
        group->boot->late_limit_ms = SHORT_MS;
        CHECK_STATUS(EXPAR_ERR_PEER, expar_barrier_all(group));
        CHECK_TEXT("timed out after 300 ms (the late limit)");
        group->boot->late_limit_ms = RANKS_TIMEOUT_MS;
        destroy(&s);
        atomic_store(c->waiting, 1);
    } else {
        CHECK(await_count(c->waiting, 1), "rank 1 has not destroyed its buffer");
        destroy(&s);
        CHECK_TEXT("the buffer's end: rank 1 comes no more: its group has failed");
        atomic_fetch_add(c->ended, 1);
    }
    CHECK(await_count(c->ended, RANKS - 1), "destroying did not end");
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static void run(ranks_body body)
{
    static const int64_t num_tokens[RANKS] = {9, 5, 7};
    traffic_plan plan = {.num_ranks = RANKS, .hidden = 64, .topk = 3, .num_experts = 6, .num_tokens = num_tokens};
    random_source random = random_start(9);
    scene c = {.traffic = traffic_make(&plan, &random)};
    c.answers = answers_make(c.traffic, false, &random);
    c.plan = stage_plan_for(c.traffic, kind_of_ranks);
    c.ended = mmap(NULL, 2 * sizeof *c.ended, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (c.ended == MAP_FAILED) abort();
    c.waiting = c.ended + 1;
    bool passed = ranks_run(&c.plan.ranks, body, &c);
    munmap(c.ended, 2 * sizeof *c.ended);
    answers_free(c.answers);
    traffic_free(c.traffic);
    assert_true(passed);
}

static void a_buffer_is_replaced_after_a_dispatch(void **state)
{
    (void)state;
    run(replace_after_a_dispatch);
}

static void a_buffer_is_replaced_after_a_combine(void **state)
{
    (void)state;
    run(replace_after_a_combine);
}

static void a_rank_that_does_not_come_is_given_up(void **state)
{
    (void)state;
    run(destroy_in_vain);
}

static void a_rank_whose_group_has_failed_says_so(void **state)
{
    (void)state;
    run(destroy_without_one);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_buffer_is_replaced_after_a_dispatch),
        cmocka_unit_test(a_buffer_is_replaced_after_a_combine),
        cmocka_unit_test(a_rank_that_does_not_come_is_given_up),
        cmocka_unit_test(a_rank_whose_group_has_failed_says_so),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
