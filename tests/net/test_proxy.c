/* SPDX-License-Identifier: Apache-2.0 */
/* Litmus: the proxy is right by its order alone.
 *
 * Several producers on every rank issue commands to random ranks. Every producer and every proxy's thread is delayed at
 * random between any two steps: not at all, for a yield, for some microseconds. Rings have 1 to 8 slots, and numbers
 * begin near the ends of 32 and of 64 bits. A message is data, a fence, and data with a signal. A rank that sees the
 * signal must see all of the data, and answers. A producer's quiet brings its own commands to their ends while the
 * others go on. Nothing is lost and nothing is done twice: a counter is raised with each message. */
#include "oracle/random.h"

static void hold_back(void);
#define PROXY_BETWEEN_STEPS(port) ((void)(port), hold_back())
#include "net/proxy/proxy.h"

#include "stage.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define RANKS         3
#define MAX_PRODUCERS 4
#define WORDS         16 /* of a message */
#define DEADLINE_NS   INT64_C(80000000000)

static ranks_kind kind = RANKS_THREADS;

/* ---- delays ------------------------------------------------------------------------------------------------------ */

static _Atomic uint64_t delays; /* of all threads: that the hook is there */

static void hold_back_by(random_source *source)
{
    int64_t choice = random_between(source, 0, 255);
    atomic_fetch_add_explicit(&delays, 1, memory_order_relaxed);
    if (choice < 160) return;
    if (choice < 250)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = (long)random_between(source, 1000, 60000)}, NULL);
}

static _Thread_local random_source of_this_thread;

static void hold_back(void)
{
    hold_back_by(&of_this_thread);
}

/* ---- what lies where --------------------------------------------------------------------------------------------- */

/* One producer's of one rank, in every rank's area; a rank's own copies of `answer` are what its producers read. */
typedef struct box {
    uint64_t words[WORDS];
    _Alignas(64) _Atomic uint64_t signal; /* number of the message; set by the producer's rank, read by the owner */
    _Alignas(64) _Atomic uint64_t answer; /* number of the producer's message that its receiver has checked */
} box;

typedef struct area {
    box boxes[RANKS][MAX_PRODUCERS];
    _Alignas(64) _Atomic uint64_t messages; /* that came here; raised by their producers' ranks */
    _Alignas(64) _Atomic uint64_t finished; /* producers of all ranks that have no more to send */
} area;

typedef struct round {
    const subject *who;
    uint64_t seed, first;
    uint32_t num_slots;
    int32_t producers, messages; /* of each producer */
} round_plan;

/* One rank's part. */
typedef struct player {
    const round_plan *plan;
    stage stage;
    transport_ways ways[RANKS]; /* of host memory */
    transport_list driven;
    random_source random; /* of the proxy's thread */
    proxy *proxy;
    uint64_t sent[RANKS][MAX_PRODUCERS]; /* messages, by receiver and producer; written by the producers */
} player;

typedef struct producer {
    pthread_t thread;
    player *player;
    int32_t number;
    random_source random;
    int64_t failures;
} producer;

static area *area_of(const player *p)
{
    return (area *)(void *)own(&p->stage, p->stage.area);
}

static uint64_t offset_in_area(const player *p, const void *place)
{
    return p->stage.area + (uint64_t)((const uint8_t *)place - (const uint8_t *)area_of(p));
}

static bool is_late(int64_t since_ns, const char *what)
{
    return !CHECK(clock_ns() - since_ns < DEADLINE_NS, "%s: nothing came", what);
}

/* ---- producers --------------------------------------------------------------------------------------------------- */

/* By this file's copy of the producers' side, with its delays. */
static void issue(const player *p, proxy_command command)
{
    int64_t since_ns = clock_ns();
    while (!proxy_try_issue(proxy_port_of(p->proxy), &command) && !is_late(since_ns, "a free slot"))
        sched_yield();
    proxy_wake(p->proxy);
}

static void issue_message(const player *p, const box *at, int32_t pe, const uint64_t *words, uint64_t number,
                          size_t after)
{
    const proxy_command first = {.kind = PROXY_PUT,
                                 .pe = pe,
                                 .offset = offset_in_area(p, at->words),
                                 .local = (uintptr_t)words,
                                 .bytes = (WORDS - after) * sizeof *words};
    const proxy_command second = {.kind = PROXY_PUT_SIGNAL,
                                  .pe = pe,
                                  .offset = offset_in_area(p, &at->words[WORDS - after]),
                                  .local = (uintptr_t)&words[WORDS - after],
                                  .bytes = after * sizeof *words,
                                  .signal = offset_in_area(p, &at->signal),
                                  .operand = number,
                                  .op = TRANSPORT_SET};
    const proxy_command count = {.kind = PROXY_ATOMIC,
                                 .pe = pe,
                                 .offset = offset_in_area(p, &area_of(p)->messages),
                                 .bytes = 8,
                                 .operand = 1,
                                 .op = TRANSPORT_ADD};
    issue(p, count);
    issue(p, first);
    issue(p, (proxy_command){.kind = PROXY_FENCE});
    issue(p, second);
}

static void await_answer(const box *mine, uint64_t number)
{
    for (int64_t since_ns = clock_ns();
         atomic_load_explicit(&mine->answer, memory_order_acquire) < number && !is_late(since_ns, "an answer");)
        sched_yield();
}

/* Own commands are through, whatever other producers do meanwhile: the message can be got back from where it went. */
static void look_after_quiet(const player *p, const box *at, int32_t pe, const uint64_t *words)
{
    uint64_t back[WORDS] = {0};
    CHECK_OK(proxy_quiet(p->proxy, "litmus"));
    issue(p, (proxy_command){.kind = PROXY_GET,
                             .pe = pe,
                             .offset = offset_in_area(p, at->words),
                             .local = (uintptr_t)back,
                             .bytes = sizeof back});
    CHECK_OK(proxy_quiet(p->proxy, "litmus"));
    CHECK(memcmp(back, words, sizeof back) == 0, "after quiet: word 0 is %llu, sent %llu", (unsigned long long)back[0],
          (unsigned long long)words[0]);
}

static void *produce(void *argument)
{
    producer *self = argument;
    player *p = self->player;
    uint64_t words[WORDS];
    int32_t rank = p->stage.group->rank;
    const box *at = &area_of(p)->boxes[rank][self->number];
    check_begin(rank);
    of_this_thread = self->random;
    for (uint64_t number = 1; number <= (uint64_t)p->plan->messages && check_failures() == 0; number++) {
        int32_t pe = (int32_t)random_between(&self->random, 0, RANKS - 1);
        for (size_t i = 0; i < WORDS; i++)
            words[i] = number * 1000 + i;
        issue_message(p, at, pe, words, number, (size_t)random_between(&self->random, 0, WORDS));
        p->sent[pe][self->number]++;
        if (random_once_in(&self->random, 4)) look_after_quiet(p, at, pe, words);
        await_answer(at, number);
    }
    CHECK_OK(proxy_quiet(p->proxy, "litmus"));
    for (int32_t pe = 0; pe < RANKS; pe++)
        issue(p, (proxy_command){.kind = PROXY_ATOMIC,
                                 .pe = pe,
                                 .bytes = 8,
                                 .operand = 1,
                                 .op = TRANSPORT_ADD,
                                 .offset = offset_in_area(p, &area_of(p)->finished)});
    CHECK_OK(proxy_quiet(p->proxy, "litmus"));
    self->failures = check_failures();
    return NULL;
}

/* ---- the receiver: the rank's own thread ------------------------------------------------------------------------- */

static void receive_from(player *p, int32_t from, int32_t number, uint64_t *seen)
{
    const box *at = &area_of(p)->boxes[from][number];
    uint64_t signal = atomic_load_explicit(&at->signal, memory_order_acquire), stale = 0;
    if (signal == *seen) return;
    *seen = signal;
    for (size_t i = 0; i < WORDS; i++)
        stale += at->words[i] != signal * 1000 + i;
    CHECK(stale == 0, "%llu words were not those of message %llu from rank %d", (unsigned long long)stale,
          (unsigned long long)signal, from);
    CHECK_OK(
        sym_word_set(p->stage.group->sym, from, offset_in_area(p, &area_of(p)->boxes[from][number].answer), signal));
}

static void receive_all(player *p)
{
    uint64_t seen[RANKS][MAX_PRODUCERS] = {{0}}, all = (uint64_t)(RANKS * p->plan->producers);
    for (int64_t since_ns = clock_ns();
         atomic_load_explicit(&area_of(p)->finished, memory_order_acquire) < all && !is_late(since_ns, "the end");) {
        for (int32_t from = 0; from < RANKS; from++)
            for (int32_t number = 0; number < p->plan->producers; number++)
                receive_from(p, from, number, &seen[from][number]);
        sched_yield();
    }
}

/* ---- a round ----------------------------------------------------------------------------------------------------- */

static void hold_back_proxy(void *context)
{
    hold_back_by(&((player *)context)->random);
}

static void note_delivery(void *context, int32_t pe)
{
    (void)context;
    (void)pe;
}

static bool player_open(player *p, expar_group *group, const round_plan *plan)
{
    *p = (player){.plan = plan, .random = random_start(plan->seed * 31 + (uint64_t)group->rank)};
    if (!stage_open(&p->stage, group, plan->who, sizeof(area))) return false;
    memset(own(&p->stage, p->stage.area), 0, sizeof(area));
    for (int32_t pe = 0; pe < RANKS; pe++)
        p->ways[pe] = (transport_ways){.data = p->stage.via, .words = p->stage.via};
    if (p->stage.via->ops->attend) p->driven.list[p->driven.count++] = p->stage.via;
    proxy_plan wanted = {.site = &group->sym->site,
                         .ways = p->ways,
                         .driven = &p->driven,
                         .bounds[TRANSPORT_HOST] = {SYM_CONTROL_BYTES, &group->sym->grown_bytes},
                         .num_slots = plan->num_slots,
                         .first = plan->first,
                         .nap_ns = 20000000,
                         .delivered = note_delivery,
                         .between_steps = hold_back_proxy,
                         .context = p};
    return CHECK_OK(proxy_open(&wanted, &p->proxy)) && CHECK_OK(sym_barrier(group->sym));
}

/* As many messages came as were sent. */
static void check_counts(player *p)
{
    expar_group *group = p->stage.group;
    uint64_t sent[RANKS] = {0}, all[RANKS][RANKS], expected = 0;
    for (int32_t pe = 0; pe < RANKS; pe++)
        for (int32_t number = 0; number < p->plan->producers; number++)
            sent[pe] += p->sent[pe][number];
    CHECK_OK(expar_group_allgather(group, sent, all, sizeof sent));
    for (int32_t r = 0; r < RANKS; r++)
        expected += all[r][group->rank];
    uint64_t came = atomic_load(&area_of(p)->messages);
    CHECK(came == expected, "%llu messages came, %llu were sent", (unsigned long long)came,
          (unsigned long long)expected);
}

static void litmus(expar_group *group, void *shared)
{
    player *p = aligned_alloc(64, (sizeof *p + 63) / 64 * 64);
    const round_plan *plan = shared;
    producer producers[MAX_PRODUCERS];
    if (!player_open(p, group, plan)) return;
    for (int32_t i = 0; i < plan->producers; i++) {
        uint64_t seed = plan->seed * 977 + (uint64_t)(group->rank * MAX_PRODUCERS + i);
        producers[i] = (producer){.player = p, .number = i, .random = random_start(seed)};
        if (pthread_create(&producers[i].thread, NULL, produce, &producers[i])) abort();
    }
    receive_all(p);
    for (int32_t i = 0; i < plan->producers; i++) {
        pthread_join(producers[i].thread, NULL);
        CHECK(producers[i].failures == 0, "producer %d has failed", i);
    }
    check_counts(p);
    proxy_close(p->proxy);
    CHECK_OK(sym_barrier(group->sym));
    stage_close(&p->stage);
    free(p);
}

static void trial(const subject *who, uint64_t seed)
{
    static const uint64_t firsts[] = {0, UINT32_MAX - 20, UINT64_MAX - 20, UINT64_MAX - 5};
    random_source random = random_start(seed);
    round_plan plan = {.who = who,
                       .seed = seed,
                       .first = firsts[random_between(&random, 0, ARRAY_LENGTH(firsts) - 1)],
                       .num_slots = UINT32_C(1) << random_between(&random, 0, 3),
                       .producers = (int32_t)random_between(&random, 1, MAX_PRODUCERS),
                       .messages = who->late || !who->ops->node_local ? 15 : 40};
    print_message("%s%s, seed %llu: %d producers, %u slots, from %llx\n", who->ops->name, who->late ? ", late" : "",
                  (unsigned long long)seed, plan.producers, plan.num_slots, (unsigned long long)plan.first);
    assert_true(ranks_run(&(ranks_plan){.kind = kind, .size = RANKS}, litmus, &plan));
}

/* ThreadSanitizer does not see how libfabric, which is not built with it, orders the data that one thread of it passes
   to another. */
static bool can_be_judged(const subject *who)
{
#ifdef __SANITIZE_THREAD__
    return who->ops->node_local || kind == RANKS_PROCESSES;
#else
    return who->ops != NULL;
#endif
}

/* A round that fails prints its seed: EXPAR_TEST_SEED=… EXPAR_TEST_ROUNDS=1 repeats it alone. */
static void test_delays_change_nothing(void **state)
{
    (void)state;
    uint64_t seed = random_test_seed("proxy");
    int64_t rounds = random_test_rounds(8);
    for (int64_t round = 0; round < rounds; round++, seed++)
        for (size_t i = 0; i < num_subjects; i++)
            if (can_be_judged(&subjects[i])) trial(&subjects[i], seed);
    assert_true(kind == RANKS_PROCESSES || atomic_load(&delays) > 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_delays_change_nothing)};
    if (argc > 1 && strcmp(argv[1], "processes") == 0) kind = RANKS_PROCESSES;
    return cmocka_run_group_tests(tests, stage_find_subjects, NULL);
}
