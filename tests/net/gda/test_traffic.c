/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that post, and the software NIC in a thread of its own, under all faults that a device may have.
 *
 * Every thread is delayed at random between any two steps of a queue: not at all, for a yield, for some microseconds.
 * Two threads of each rank share each queue, and indices begin near the end of 16 bits.
 *
 * Programs: each thread runs random puts, gets and atomics on memory of its own at both ranks, and compares with a
 * model in its own memory. Messages: data, then a signal; a rank that sees the signal must see the data. */
#include "oracle/random.h"

static void hold_back(void);
#define GDA_BETWEEN_STEPS(queue) ((void)(queue), hold_back())
#include "window.h"
#include "world.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>

#define THREADS      2 /* of each rank */
#define AREA_BYTES   12000
#define SOURCE_BYTES 8000
#define OPERATIONS   1500
#define MESSAGES     500
#define WORDS        24

/* ---- delays ------------------------------------------------------------------------------------------------------ */

static _Thread_local random_source of_this_thread;
static _Atomic uint64_t delays;

static void hold_back(void)
{
    int64_t choice = random_between(&of_this_thread, 0, 255);
    atomic_fetch_add_explicit(&delays, 1, memory_order_relaxed);
    if (choice < 190) return;
    if (choice < 252)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = (long)random_between(&of_this_thread, 1000, 20000)}, NULL);
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

typedef struct trial {
    world world;
    _Atomic uint64_t failures, adds;
} trial;

typedef struct poster {
    pthread_t thread;
    trial *trial;
    int32_t rank, number;
    uint64_t seed;
    random_source random;
    /* the model of its areas at each rank, and of its source */
    uint8_t model[WORLD_RANKS][AREA_BYTES];
    uint64_t end; /* of its last request to each rank */
    uint64_t adds;
} poster;

static bool check(poster *p, bool good, const char *what, uint64_t number)
{
    if (good) return true;
    atomic_fetch_add(&p->trial->failures, 1);
    printf("rank %d, thread %d: %s (%llu)\n", p->rank, p->number, what, (unsigned long long)number);
    return false;
}

static world_rank *own_rank(poster *p)
{
    return &p->trial->world.ranks[p->rank];
}
static gda_queue *queue_of(poster *p, int32_t pe)
{
    return &own_rank(p)->queues[pe].queue;
}
/* Offsets in heaps: what a thread may write at a rank, its source, and where it gets to. */
static uint64_t area_of(const poster *p)
{
    return 64 + (uint64_t)(p->rank * THREADS + p->number) * AREA_BYTES;
}
static uint64_t source_of(const poster *p)
{
    return 64 + 2 * THREADS * AREA_BYTES + (uint64_t)p->number * SOURCE_BYTES;
}

/* ---- programs ---------------------------------------------------------------------------------------------------- */

static void do_put(poster *p, int32_t pe)
{
    uint8_t *source = own_rank(p)->heap + source_of(p);
    const uint64_t bytes = (uint64_t)random_between(&p->random, 1, SOURCE_BYTES / 2);
    const uint64_t at = (uint64_t)random_between(&p->random, 0, (int64_t)(AREA_BYTES - bytes));
    const uint64_t from = (uint64_t)random_between(&p->random, 0, (int64_t)(SOURCE_BYTES / 2 - bytes));
    for (uint64_t i = 0; i < bytes; i++)
        source[from + i] = p->model[pe][at + i] = (uint8_t)random_bits(&p->random);
    check(p,
          gda_transfer(queue_of(p, pe), &own_rank(p)->keys, GDA_WRITE, area_of(p) + at, (uintptr_t)source + from, bytes,
                       NULL, &p->end) &&
              gda_poll(queue_of(p, pe), p->end),
          "put", bytes);
}

static void do_inline(poster *p, int32_t pe)
{
    gda_request r = {.form = GDA_WRITE_INLINE, .bytes = (uint32_t)random_between(&p->random, 1, GDA_MOST_INLINE)};
    const uint64_t at = (uint64_t)random_between(&p->random, 0, AREA_BYTES - GDA_MOST_INLINE);
    gda_piece piece = {0};
    uint64_t left = 0;
    if (!gda_find_remote(&own_rank(p)->keys, pe, area_of(p) + at, &piece, &left) || left < r.bytes) return;
    r.remote = piece.remote;
    r.rkey = piece.rkey;
    for (uint32_t i = 0; i < r.bytes; i++)
        ((uint8_t *)r.data)[i] = p->model[pe][at + i] = (uint8_t)random_bits(&p->random);
    check(p, gda_post(queue_of(p, pe), &r, &p->end), "inline put", r.bytes);
}

static void do_get(poster *p, int32_t pe)
{
    uint8_t *dest = own_rank(p)->heap + source_of(p) + SOURCE_BYTES / 2;
    const uint64_t bytes = (uint64_t)random_between(&p->random, 1, SOURCE_BYTES / 2);
    const uint64_t at = (uint64_t)random_between(&p->random, 0, (int64_t)(AREA_BYTES - bytes));
    if (!check(p,
               gda_transfer(queue_of(p, pe), &own_rank(p)->keys, GDA_READ, area_of(p) + at, (uintptr_t)dest, bytes,
                            NULL, &p->end) &&
                   gda_poll(queue_of(p, pe), p->end),
               "get", bytes))
        return;
    check(p, memcmp(dest, p->model[pe] + at, bytes) == 0, "a get's bytes differ", bytes);
}

static uint64_t model_change(const gda_request *r, uint64_t old)
{
    switch (r->form) {
    case GDA_ADD_64:
        return old + r->operand;
    case GDA_ADD_MASKED_32:
    case GDA_ADD_MASKED_64:
        return r->compare_mask ? old ^ r->operand : old + r->operand;
    case GDA_COMPARE_SWAP_64:
        return old == r->compare ? r->operand : old;
    default:
        if ((old & r->compare_mask) != (r->compare & r->compare_mask)) return old;
        return (old & ~r->swap_mask) | (r->operand & r->swap_mask);
    }
}

static void do_atomic(poster *p, int32_t pe)
{
    static const gda_form forms[] = {GDA_ADD_64,        GDA_COMPARE_SWAP_64, GDA_ADD_MASKED_32,
                                     GDA_ADD_MASKED_64, GDA_SWAP_MASKED_32,  GDA_SWAP_MASKED_64};
    gda_request r = {.form = forms[random_between(&p->random, 0, 5)], .operand = random_bits(&p->random)};
    const uint32_t bytes = gda_word_bytes(r.form);
    const uint64_t at = (uint64_t)random_between(&p->random, 0, AREA_BYTES / 8 - 2) * 8;
    uint64_t model = 0, old = 0, left = 0;
    gda_piece piece = {0};
    memcpy(&model, p->model[pe] + at, bytes);
    r.compare = random_bits(&p->random) & 1 ? model : random_bits(&p->random);
    r.swap_mask = random_bits(&p->random);
    r.compare_mask = random_bits(&p->random) & 1 ? UINT64_MAX : 0;
    if (!check(p, gda_find_remote(&own_rank(p)->keys, pe, area_of(p) + at, &piece, &left), "a key", at)) return;
    r.remote = piece.remote;
    r.rkey = piece.rkey;
    if (!check(p, gda_fetch(queue_of(p, pe), &r, &old), "atomic", (uint64_t)r.form)) return;
    check(p, old == model, "an atomic's old word differs", (uint64_t)r.form);
    model = model_change(&r, model);
    memcpy(p->model[pe] + at, &model, bytes);
}

/* All threads add to one word of rank 0. */
static void do_shared_add(poster *p)
{
    gda_request r = {.form = GDA_ADD_64, .operand = (uint64_t)random_between(&p->random, 1, 9)};
    gda_piece piece = {0};
    uint64_t left = 0;
    if (!check(p, gda_find_remote(&own_rank(p)->keys, 0, 0, &piece, &left), "a key", 0)) return;
    r.remote = piece.remote;
    r.rkey = piece.rkey;
    gda_to_sink(queue_of(p, 0), &r);
    if (check(p, gda_post(queue_of(p, 0), &r, &p->end), "add", 0)) p->adds += r.operand;
}

static void *run_program(void *context)
{
    poster *p = context;
    of_this_thread = random_start(p->seed);
    for (int64_t i = 0; i < random_test_rounds(OPERATIONS) && atomic_load(&p->trial->failures) == 0; i++) {
        const int32_t pe = (int32_t)random_between(&p->random, 0, WORLD_RANKS - 1);
        switch (random_between(&p->random, 0, 4)) {
        case 0:
            do_put(p, pe);
            break;
        case 1:
            do_inline(p, pe);
            break;
        case 2:
            do_get(p, pe);
            break;
        case 3:
            do_atomic(p, pe);
            break;
        default:
            do_shared_add(p);
        }
    }
    for (int32_t pe = 0; pe < WORLD_RANKS; pe++)
        check(p, gda_quiet(queue_of(p, pe)), "quiet", (uint64_t)pe);
    atomic_fetch_add(&p->trial->adds, p->adds);
    return NULL;
}

static void run_threads(trial *t, void *(*body)(void *), random_source *random)
{
    poster *posters = calloc(WORLD_RANKS * THREADS, sizeof *posters);
    assert_non_null(posters);
    for (int i = 0; i < WORLD_RANKS * THREADS; i++) {
        posters[i].trial = t;
        posters[i].rank = i / THREADS;
        posters[i].number = i % THREADS;
        posters[i].seed = random_bits(random);
        posters[i].random = random_start(random_bits(random));
        assert_int_equal(pthread_create(&posters[i].thread, NULL, body, &posters[i]), 0);
    }
    for (int i = 0; i < WORLD_RANKS * THREADS; i++)
        pthread_join(posters[i].thread, NULL);
    for (int i = 0; i < WORLD_RANKS * THREADS && body == run_program; i++)
        for (int32_t pe = 0; pe < WORLD_RANKS; pe++)
            if (memcmp(t->world.ranks[pe].heap + area_of(&posters[i]), posters[i].model[pe], AREA_BYTES) != 0)
                check(&posters[i], false, "its area at a rank differs in the end", (uint64_t)pe);
    free(posters);
}

static const nic_faults harmless = {.delay_turns = 3,
                                    .drop_one_in = 9,
                                    .lose_answer_one_in = 5,
                                    .coalesce_one_in = 3,
                                    .shuffle_one_in = 3,
                                    .late_reads_one_in = 3,
                                    .rnr_retries = 3};

/* Returns the number of failures. */
static uint64_t run_trial(void *(*body)(void *), const gda_plan *plan, const nic_faults *faults, random_source *random)
{
    trial *t = calloc(1, sizeof *t);
    nic_faults seeded = *faults;
    assert_non_null(t);
    seeded.seed = random_bits(random);
    world_begin(&t->world, plan, &seeded, WORLD_ACCESS);
    assert_int_equal(nic_start(t->world.nic, 0), EXPAR_OK);
    run_threads(t, body, random);
    const nic_counts counts = nic_counted(t->world.nic);
    uint64_t failures = atomic_load(&t->failures);
    if (body == run_program && *(uint64_t *)(void *)t->world.ranks[0].heap != atomic_load(&t->adds)) {
        printf("adds: %llu, not %llu\n", (unsigned long long)*(uint64_t *)(void *)t->world.ranks[0].heap,
               (unsigned long long)atomic_load(&t->adds));
        failures++;
    }
    if (failures == 0) assert_true(counts.errors == 0 && counts.bad_rings == 0 && counts.overruns == 0);
    assert_true(counts.requests > 0);
    world_end(&t->world);
    free(t);
    return failures;
}

static gda_plan any_plan(random_source *random, bool collapsed)
{
    gda_plan plan = made_small;
    plan.depth = 16u << random_between(random, 0, 2);
    plan.cq_entries = plan.depth << random_between(random, 0, 1);
    plan.batch = 1u << random_between(random, 0, 3);
    plan.most = (uint32_t)random_between(random, 3, 8);
    plan.num_results = 1u << random_between(random, 0, 2);
    plan.first = (uint64_t)random_between(random, 0xff80, 0x10010);
    plan.flushes = random_bits(random) & 1;
    plan.collapsed = collapsed;
    return plan;
}

static void programs(bool collapsed)
{
    random_source random = random_start(random_test_seed("programs"));
    for (int round = 0; round < 3; round++) {
        const gda_plan plan = any_plan(&random, collapsed);
        assert_true(run_trial(run_program, &plan, &harmless, &random) == 0);
    }
    assert_true(atomic_load(&delays) > 0);
}

static void test_programs(void **state)
{
    (void)state;
    programs(true);
}

static void test_programs_entries(void **state)
{
    (void)state;
    programs(false);
}

/* A device that carries an atomic out twice is noticed. */
static void test_atomics_twice(void **state)
{
    (void)state;
    random_source random = random_start(17);
    nic_faults broken = harmless;
    broken.lose_answer_one_in = 2;
    broken.atomics_twice = true;
    assert_true(run_trial(run_program, &made_small, &broken, &random) > 0);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* Thread k of a rank sends to thread k of the other, and receives from it. */
typedef struct message_box {
    uint64_t words[WORDS];
    _Alignas(64) _Atomic uint64_t signal, credit;
    _Alignas(64) uint64_t sent[WORDS];
} message_box;

static message_box *box_of(poster *p)
{
    return (message_box *)(void *)(own_rank(p)->heap + 4096 + (size_t)p->number * 20480);
}

static uint64_t box_offset(const poster *p, const void *place)
{
    return (uint64_t)((const uint8_t *)place - p->trial->world.ranks[p->rank].heap);
}

static bool await(poster *p, const _Atomic uint64_t *word, uint64_t least)
{
    while (atomic_load_explicit(word, memory_order_acquire) < least) {
        if (atomic_load(&p->trial->failures)) return false;
        sched_yield();
    }
    return true;
}

/* A signal is an inline write or an atomic add, in turns; both reach a word that nothing else changes. */
static void fill_signal(poster *p, gda_request *r, int32_t pe, const void *word, uint64_t number)
{
    gda_piece piece = {0};
    uint64_t left = 0;
    *r = (gda_request){.form = number % 2 ? GDA_WRITE_INLINE : GDA_ADD_64, .bytes = 8, .operand = 1};
    check(p, gda_find_remote(&own_rank(p)->keys, pe, box_offset(p, word), &piece, &left), "a key", number);
    r->remote = piece.remote;
    r->rkey = piece.rkey;
    memcpy(r->data, &number, sizeof number);
    gda_to_sink(queue_of(p, pe), r);
}

static void *run_messages(void *context)
{
    poster *p = context;
    message_box *box = box_of(p);
    const int32_t pe = 1 - p->rank;
    gda_request signal;
    uint64_t end = 0;
    of_this_thread = random_start(p->seed);
    for (uint64_t number = 1; number <= (uint64_t)random_test_rounds(MESSAGES); number++) {
        for (size_t i = 0; i < WORDS; i++)
            box->sent[i] = number * 100 + i;
        fill_signal(p, &signal, pe, &box->signal, number);
        if (!check(p,
                   gda_transfer(queue_of(p, pe), &own_rank(p)->keys, GDA_WRITE, box_offset(p, box->words),
                                (uintptr_t)box->sent, sizeof box->sent, &signal, &end),
                   "message", number) ||
            !await(p, &box->signal, number))
            return NULL;
        for (size_t i = 0; i < WORDS; i++)
            if (!check(p, box->words[i] == number * 100 + i, "a signal came before its data", number)) return NULL;
        fill_signal(p, &signal, pe, &box->credit, number);
        if (!check(p, gda_post(queue_of(p, pe), &signal, &end), "credit", number) || !await(p, &box->credit, number))
            return NULL;
        check(p, gda_poll(queue_of(p, pe), end), "poll", number);
    }
    return NULL;
}

static void messages(const char *name)
{
    random_source random = random_start(random_test_seed(name));
    for (int round = 0; round < 3; round++) {
        const gda_plan plan = any_plan(&random, round != 1);
        assert_true(run_trial(run_messages, &plan, &harmless, &random) == 0);
    }
}

static void test_messages(void **state)
{
    (void)state;
    messages("messages");
}

/* The device reaches queues and heaps by a window alone. */
static void test_window(void **state)
{
    (void)state;
    nic_window window = {.read = window_read, .write = window_write};
    world_window = &window;
    programs(true);
    programs(false);
    messages("messages by a window");
    world_window = NULL;
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* Posts to one rank until its queue fails. Every thread that shares the queue comes to its end. */
static void *run_until_failure(void *context)
{
    poster *p = context;
    const int32_t pe = 1 - p->rank;
    uint64_t end = 0, old = 0;
    gda_request add = {.form = GDA_ADD_64, .operand = 1};
    of_this_thread = random_start(p->seed);
    world_aim(&p->trial->world, &add, pe, 8 * (uint64_t)p->number);
    for (int i = 0; gda_fetch(queue_of(p, pe), &add, &old); i++) {
        gda_to_sink(queue_of(p, pe), &add);
        if (!gda_post(queue_of(p, pe), &add, &end)) break;
    }
    const uint64_t failure = gda_error(queue_of(p, pe));
    check(p, failure && !gda_post(queue_of(p, pe), &add, &end) && !gda_quiet(queue_of(p, pe)), "no failure", failure);
    check(p, gda_failure_syndrome(failure) == GDA_SYNDROME_REMOTE_OPERATION || gda_cause_is_unseen(failure),
          "another cause", failure);
    return NULL;
}

static void test_failures(void **state)
{
    (void)state;
    random_source random = random_start(random_test_seed("failures"));
    for (int round = 0; round < 6; round++) {
        const gda_plan plan = any_plan(&random, round % 2);
        nic_faults failing = harmless;
        failing.fail_one_in = 40;
        trial *t = calloc(1, sizeof *t);
        assert_non_null(t);
        failing.seed = random_bits(&random);
        world_begin(&t->world, &plan, &failing, WORLD_ACCESS);
        assert_int_equal(nic_start(t->world.nic, 0), EXPAR_OK);
        run_threads(t, run_until_failure, &random);
        assert_true(atomic_load(&t->failures) == 0);
        assert_true(nic_counted(t->world.nic).errors == WORLD_RANKS);
        for (int rank = 0; rank < WORLD_RANKS; rank++) {
            made *m = &t->world.ranks[rank].queues[1 - rank];
            assert_true(atomic_load(&m->told) == gda_error(&m->queue)); /* the last thread to tell has told */
        }
        world_end(&t->world);
        free(t);
    }
}

/* ---- the host rings ---------------------------------------------------------------------------------------------- */

typedef struct ringer {
    world *world;
    _Atomic bool ends;
} ringer;

static void *ring_for_all(void *context)
{
    ringer *r = context;
    uint64_t rung[WORLD_RANKS][WORLD_RANKS];
    of_this_thread = random_start(3);
    for (int from = 0; from < WORLD_RANKS; from++)
        for (int to = 0; to < WORLD_RANKS; to++)
            rung[from][to] = r->world->ranks[from].queues[to].plan.first;
    while (!atomic_load(&r->ends)) {
        for (int from = 0; from < WORLD_RANKS; from++)
            for (int to = 0; to < WORLD_RANKS; to++)
                gda_ring_for(&r->world->ranks[from].queues[to].queue, &rung[from][to]);
        sched_yield();
    }
    return NULL;
}

static void test_host_rings(void **state)
{
    (void)state;
    random_source random = random_start(random_test_seed("host rings"));
    gda_plan plan = any_plan(&random, true);
    pthread_t thread;
    trial *t = calloc(1, sizeof *t);
    assert_non_null(t);
    plan.ringer = GDA_RINGER_CPU;
    world_begin(&t->world, &plan, &harmless, WORLD_ACCESS);
    ringer r = {.world = &t->world};
    assert_int_equal(nic_start(t->world.nic, 0), EXPAR_OK);
    assert_int_equal(pthread_create(&thread, NULL, ring_for_all, &r), 0);
    run_threads(t, run_program, &random);
    atomic_store(&r.ends, true);
    pthread_join(thread, NULL);
    assert_true(atomic_load(&t->failures) == 0);
    world_end(&t->world);
    free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_programs), cmocka_unit_test(test_programs_entries), cmocka_unit_test(test_atomics_twice),
        cmocka_unit_test(test_messages), cmocka_unit_test(test_failures),         cmocka_unit_test(test_host_rings),
        cmocka_unit_test(test_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
