/* SPDX-License-Identifier: Apache-2.0 */
/* The proxy with producers that make no system calls and wake nobody, as kernels are (net/proxy/waits.h). Threads of
 * the CPU stand for warps. Messages arrive whole, in small rings, with delays at random. Waits end when the ring ends,
 * when a number was never published, and when the proxy's process has stopped. Of idle rings one thread watches all. */
#include "oracle/random.h"

static void hold_back(void);
#define PROXY_BETWEEN_STEPS(port) ((void)(port), hold_back())
#define PROXY_BETWEEN_POLLS()     hold_back()
#include "net/proxy/waits.h"

#include "base/knobs.h"
#include "net/copying.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#define DEADLINE_NS INT64_C(60000000000)
#define NS_PER_MS   INT64_C(1000000)

static _Thread_local random_source of_this_thread;

static void hold_back(void)
{
    const int64_t choice = random_between(&of_this_thread, 0, 255);
    if (choice < 200) return;
    if (choice < 253)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = (long)random_between(&of_this_thread, 1000, 60000)}, NULL);
}

static void doze(int64_t since_ns)
{
    if (clock_ns() - since_ns > DEADLINE_NS) fail_msg("what was waited for did not come");
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

/* A proxy, and a port with copies of the PEs' counters as a GPU has it. */
typedef struct scene {
    copying rank;
    proxy *proxy;
    _Atomic uint64_t done_to[COPYING_PES];
    proxy_port port;
} scene;

static void scene_port(scene *s, const proxy_plan *plan)
{
    const proxy_port *own = proxy_port_of(s->proxy);
    s->port = proxy_port_start(own->ring, own->num_slots, plan->first);
    s->port.done_to = s->done_to;
    s->port.size = COPYING_PES;
    for (int32_t pe = 0; pe < COPYING_PES; pe++)
        atomic_store(&s->done_to[pe], proxy_end(plan->first, 0));
}

static scene *scene_open(uint64_t bytes, const proxy_plan *changes)
{
    scene *s = aligned_alloc(64, (sizeof *s + 63) / 64 * 64);
    assert_non_null(s);
    memset(s, 0, sizeof *s);
    copying_open(&s->rank, bytes);
    proxy_plan plan = copying_plan(&s->rank, changes->num_slots);
    plan.first = changes->first;
    plan.orphan_ns = changes->orphan_ns;
    plan.crew = changes->crew;
    assert_int_equal(proxy_open(&plan, &s->proxy), EXPAR_OK);
    scene_port(s, &plan);
    return s;
}

static void scene_close(scene *s)
{
    proxy_close(s->proxy);
    copying_close(&s->rank);
    free(s);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

#define PRODUCERS 4
#define WORDS     8
#define PIECES    2 /* commands of a message, which one claim takes */

/* One producer's place in each PE's memory. */
typedef struct box {
    uint64_t words[WORDS];
    _Alignas(64) _Atomic uint64_t signal; /* the message's number; the proxy sets it */
    _Atomic uint64_t counts[PIECES];      /* raised with each message */
} box;

typedef struct producer {
    pthread_t thread;
    scene *scene;
    int32_t number, messages;
    uint64_t seed, wrong, ended;
} producer;

static box *box_of(const scene *s, int32_t pe, int32_t number)
{
    return (box *)(void *)s->rank.memory[pe] + number;
}

/* A put with its signal, and an atomic: both by one claim, as a warp does. */
static uint64_t send_message(producer *p, int32_t pe, uint64_t message, const uint64_t *words, uint64_t *last)
{
    proxy_port *port = &p->scene->port;
    const uint64_t at = (uint64_t)p->number * sizeof(box);
    const proxy_command commands[PIECES] = {{.kind = PROXY_PUT_SIGNAL,
                                             .pe = pe,
                                             .offset = at + offsetof(box, words),
                                             .local = (uintptr_t)words,
                                             .bytes = WORDS * sizeof *words,
                                             .signal = at + offsetof(box, signal),
                                             .operand = message,
                                             .op = TRANSPORT_SET},
                                            {.kind = PROXY_ATOMIC,
                                             .pe = pe,
                                             .offset = at + offsetof(box, counts),
                                             .bytes = 8,
                                             .operand = 1,
                                             .op = TRANSPORT_ADD}};
    uint64_t first = 0;
    const uint64_t ended = proxy_await_slots(port, PIECES, &first);
    if (ended) return ended;
    for (uint64_t i = 0; i < PIECES; i++)
        proxy_publish(port, first + i, &commands[i]);
    *last = first + PIECES;
    return 0;
}

static void check_message(producer *p, int32_t pe, uint64_t message)
{
    const box *seen = box_of(p->scene, pe, p->number);
    if (atomic_load_explicit(&seen->signal, memory_order_acquire) != message) p->wrong++;
    for (uint64_t i = 0; i < WORDS; i++)
        if (seen->words[i] != message * 100 + i) p->wrong++;
}

/* After its PE's counter has passed the message, its source is free and the message is there. */
static void *produce(void *argument)
{
    producer *p = argument;
    uint64_t words[WORDS], last = 0;
    of_this_thread = random_start(p->seed);
    for (uint64_t message = 1; message <= (uint64_t)p->messages && !p->ended; message++) {
        const int32_t pe = (int32_t)random_between(&of_this_thread, 0, COPYING_PES - 1);
        for (uint64_t i = 0; i < WORDS; i++)
            words[i] = message * 100 + i;
        p->ended = send_message(p, pe, message, words, &last);
        if (p->ended) break;
        const bool by_peer = random_once_in(&of_this_thread, 2);
        p->ended = by_peer ? proxy_await_done_to(&p->scene->port, pe, last) : proxy_await_done(&p->scene->port, last);
        if (!p->ended) check_message(p, pe, message);
    }
    return NULL;
}

static uint64_t count_messages(const scene *s)
{
    uint64_t messages = 0;
    for (int32_t pe = 0; pe < COPYING_PES; pe++)
        for (int32_t i = 0; i < PRODUCERS; i++)
            messages += atomic_load(&box_of(s, pe, i)->counts[0]);
    return messages;
}

static void send_round(uint64_t seed)
{
    static const uint64_t firsts[] = {0, UINT32_MAX - 20, UINT64_MAX - 20};
    random_source random = random_start(seed);
    const proxy_plan changes = {.num_slots = UINT32_C(2) << random_between(&random, 0, 3),
                                .first = firsts[random_between(&random, 0, ARRAY_LENGTH(firsts) - 1)]};
    scene *s = scene_open(PRODUCERS * sizeof(box), &changes);
    producer producers[PRODUCERS];
    proxy_expect(s->proxy);
    for (int32_t i = 0; i < PRODUCERS; i++) {
        producers[i] = (producer){.scene = s, .number = i, .messages = 60, .seed = seed * 31 + (uint64_t)i};
        assert_int_equal(pthread_create(&producers[i].thread, NULL, produce, &producers[i]), 0);
    }
    for (int32_t i = 0; i < PRODUCERS; i++) {
        pthread_join(producers[i].thread, NULL);
        assert_int_equal(producers[i].ended, 0);
        assert_int_equal(producers[i].wrong, 0);
    }
    assert_int_equal(count_messages(s), PRODUCERS * 60);
    assert_int_equal(proxy_load(&s->port.watched_ns), 0); /* the last one has left the watch */
    scene_close(s);
}

static void test_messages_arrive_whole(void **state)
{
    (void)state;
    uint64_t seed = random_test_seed("waits");
    for (int64_t left = random_test_rounds(6); left > 0; left--, seed++)
        send_round(seed);
}

/* ---- claims ------------------------------------------------------------------------------------------------------ */

static const proxy_command nothing = {.kind = PROXY_PUT, .pe = 1};

/* A ring that nobody reads. */
static proxy_port *quiet_port(uint64_t num_slots)
{
    const size_t bytes = sizeof(proxy_ring) + num_slots * sizeof(proxy_slot) + COPYING_PES * sizeof(uint64_t);
    proxy_ring *ring = aligned_alloc(64, (bytes + 63) / 64 * 64);
    proxy_port *port = malloc(sizeof *port);
    assert_true(ring && port);
    memset(ring, 0, bytes);
    *port = proxy_port_start(ring, num_slots, 0);
    return port;
}

static void quiet_free(proxy_port *port)
{
    free(port->ring);
    free(port);
}

static void test_claims_leave_no_gap(void **state)
{
    (void)state;
    proxy_port *port = quiet_port(8);
    uint64_t first = 77;
    assert_int_equal(proxy_claim(port, 5, &first), 1);
    assert_int_equal(first, 0);
    assert_int_equal(proxy_claim(port, 4, &first), 0); /* all or none */
    assert_int_equal(proxy_head(port), 5);
    assert_int_equal(proxy_claim(port, 3, &first), 1);
    assert_int_equal(first, 5);
    proxy_store(&port->ring->consumed, 2);
    assert_int_equal(proxy_claim(port, 3, &first), 0);
    assert_int_equal(proxy_claim(port, 2, &first), 1);
    assert_int_equal(proxy_head(port), 10);
    quiet_free(port);
}

/* ---- slots ------------------------------------------------------------------------------------------------------- */

static proxy_command random_command(random_source *random)
{
    proxy_command command = {0};
    uint8_t *bytes = (uint8_t *)&command;
    for (size_t i = 0; i < sizeof command; i++)
        bytes[i] = (uint8_t)random_bits(random);
    return command;
}

/* Each bit of a command arrives, in each turn of a slot. */
static void test_commands_arrive_whole(void **state)
{
    (void)state;
    random_source random = random_start(random_test_seed("commands"));
    proxy_port *port = quiet_port(4);
    uint64_t words[PROXY_SLOT_WORDS];
    for (uint64_t number = UINT64_MAX - 300; number != 300; number++) {
        const proxy_command command = random_command(&random);
        proxy_publish(port, number, &command);
        assert_int_equal(proxy_slot_holds(proxy_slot_of(port->ring, 4, number), proxy_turn(4, number), words), 1);
        const proxy_command seen = proxy_command_of(words);
        assert_memory_equal(&seen, &command, sizeof seen);
        assert_int_equal(proxy_slot_holds(proxy_slot_of(port->ring, 4, number), proxy_turn(4, number + 4), words), 0);
    }
    quiet_free(port);
}

/* Words may arrive in any order: the command is there with the last one, whichever it is. */
static void test_parts_of_a_command_are_none(void **state)
{
    (void)state;
    random_source random = random_start(random_test_seed("parts"));
    uint64_t whole[PROXY_SLOT_WORDS], words[PROXY_SLOT_WORDS];
    proxy_port *port = quiet_port(2);
    proxy_slot *slot = proxy_slot_of(port->ring, 2, 1);
    for (uint64_t number = 1; number < 200; number += 2) {
        const proxy_command command = random_command(&random), before = random_command(&random);
        proxy_publish(port, number, &command);
        assert_int_equal(proxy_slot_holds(slot, proxy_turn(2, number), whole), 1);
        proxy_publish(port, number - 2, &before);
        for (uint32_t missing = 255; missing;) {
            const int64_t place = random_between(&random, 0, PROXY_SLOT_WORDS - 1);
            assert_int_equal(proxy_slot_holds(slot, proxy_turn(2, number), words), 0);
            proxy_store(&slot->words[place], whole[place]);
            missing &= ~(1u << place);
        }
        assert_int_equal(proxy_slot_holds(slot, proxy_turn(2, number), words), 1);
        assert_memory_equal(words, whole, sizeof words);
    }
    quiet_free(port);
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

typedef enum wait_for { FOR_SLOTS, FOR_DONE, FOR_PEER } wait_for;
typedef struct waiter {
    pthread_t thread;
    proxy_port *port;
    wait_for what;
    uint64_t number, ended;
} waiter;

static void *wait_in_vain(void *argument)
{
    waiter *w = argument;
    uint64_t first = 0;
    of_this_thread = random_start(1);
    if (w->what == FOR_SLOTS) w->ended = proxy_await_slots(w->port, w->port->num_slots, &first);
    if (w->what == FOR_DONE) w->ended = proxy_await_done(w->port, w->number);
    if (w->what == FOR_PEER) w->ended = proxy_await_done_to(w->port, 1, w->number);
    return NULL;
}

static void start_waiters(waiter w[3], proxy_port *port, uint64_t number)
{
    for (int32_t i = 0; i < 3; i++) {
        w[i] = (waiter){.port = port, .what = (wait_for)i, .number = number};
        assert_int_equal(pthread_create(&w[i].thread, NULL, wait_in_vain, &w[i]), 0);
    }
}

static void expect_ends(waiter w[3], int32_t status)
{
    for (int32_t i = 0; i < 3; i++) {
        pthread_join(w[i].thread, NULL);
        assert_int_equal(proxy_failure_status(w[i].ended), status);
    }
}

/* A number that is never published: no command after it can end. */
static void claim_in_vain(scene *s)
{
    uint64_t number = 0;
    assert_int_equal(proxy_claim(&s->port, 1, &number), 1);
}

static void test_poison_ends_waits(void **state)
{
    (void)state;
    waiter w[3];
    scene *s = scene_open(0, &(proxy_plan){.num_slots = 4});
    claim_in_vain(s);
    start_waiters(w, &s->port, 1);
    proxy_poison(s->proxy, EXPAR_ERR_PEER);
    proxy_poison(s->proxy, EXPAR_ERR_CUDA); /* the first counts */
    expect_ends(w, EXPAR_ERR_PEER);
    const proxy_command put = nothing;
    assert_int_equal(proxy_issue(s->proxy, "issue", &put), EXPAR_ERR_PEER);
    scene_close(s);
}

static void test_stopping_ends_waits(void **state)
{
    (void)state;
    waiter w[3];
    scene *s = scene_open(0, &(proxy_plan){.num_slots = 4});
    claim_in_vain(s);
    start_waiters(w, &s->port, 1);
    proxy_stop(s->proxy);
    expect_ends(w, EXPAR_ERR_ABORTED);
    scene_close(s);
}

/* Shown by the waits alone, and by a command after it. */
static void test_unpublished_numbers_end_the_ring(void **state)
{
    (void)state;
    for (int32_t round = 0; round < 2; round++) {
        waiter w[3];
        scene *s = scene_open(0, &(proxy_plan){.num_slots = 8, .orphan_ns = 20 * NS_PER_MS});
        claim_in_vain(s);
        if (round == 1) {
            assert_int_equal(proxy_try_issue(&s->port, &nothing), 1);
            for (int64_t since_ns = clock_ns(); !proxy_load(&proxy_port_of(s->proxy)->ring->ended);)
                doze(since_ns);
        }
        start_waiters(w, &s->port, 1);
        expect_ends(w, EXPAR_ERR_CUDA);
        scene_close(s);
    }
}

/* A producer that is only late, by less than the orphan time-out, ends nothing. */
static void test_late_numbers_are_waited_for(void **state)
{
    (void)state;
    uint64_t late = 0;
    scene *s = scene_open(0, &(proxy_plan){.num_slots = 8, .orphan_ns = 60000 * NS_PER_MS});
    assert_int_equal(proxy_claim(&s->port, 1, &late), 1);
    assert_int_equal(proxy_try_issue(&s->port, &nothing), 1);
    nanosleep(&(struct timespec){.tv_nsec = 50 * NS_PER_MS}, NULL);
    proxy_publish(&s->port, late, &nothing);
    assert_int_equal(proxy_await_done(&s->port, 2), 0);
    scene_close(s);
}

static void test_a_stopped_process_ends_waits(void **state)
{
    (void)state;
    waiter w[3];
    proxy_port *port = quiet_port(4);
    _Atomic uint64_t done_to[COPYING_PES] = {0};
    port->orphan_ns = 20 * NS_PER_MS;
    port->done_to = done_to;
    port->size = COPYING_PES;
    assert_int_equal(proxy_try_issue(port, &nothing), 1);
    start_waiters(w, port, 1);
    expect_ends(w, PROXY_ORPHANED);
    quiet_free(port);
}

/* ---- idle rings -------------------------------------------------------------------------------------------------- */

#define CREW 4

/* Each command is found although its thread sleeps, and only one thread looks meanwhile, at most once a nap. */
static void test_one_thread_watches_idle_rings(void **state)
{
    (void)state;
    proxy_crew *crew;
    scene *scenes[CREW];
    assert_int_equal(proxy_crew_open(CREW, &crew), EXPAR_OK);
    for (int32_t i = 0; i < CREW; i++)
        scenes[i] = scene_open(0, &(proxy_plan){.num_slots = 8, .crew = crew});
    for (int32_t round = 0; round < 2; round++) {
        const uint64_t before = proxy_crew_looks(crew);
        for (int64_t since_ns = clock_ns(); proxy_crew_looks(crew) < before + 20;)
            doze(since_ns);
        for (int32_t i = 0; i < CREW; i++) {
            assert_int_equal(proxy_try_issue(&scenes[i]->port, &nothing), 1);
            assert_int_equal(proxy_await_done(&scenes[i]->port, proxy_head(&scenes[i]->port)), 0);
        }
    }
    const int64_t since_ns = clock_ns();
    const uint64_t before = proxy_crew_looks(crew);
    nanosleep(&(struct timespec){.tv_sec = 2}, NULL);
    const uint64_t most = (uint64_t)((clock_ns() - since_ns) / knob(KNOB_PROXY_REST_NAP_NS));
    assert_true(proxy_crew_looks(crew) - before <= most + 20); /* the first naps are shorter */
    for (int32_t i = 0; i < CREW; i++)
        scene_close(scenes[i]);
    proxy_crew_close(crew);
}

/* An announced call finds its ring's thread awake, and its last command lets it nap again. */
static void test_calls_keep_their_ring_awake(void **state)
{
    (void)state;
    scene *s = scene_open(0, &(proxy_plan){.num_slots = 8});
    for (int32_t round = 0; round < 20; round++) {
        proxy_expect(s->proxy);
        assert_int_equal(proxy_try_issue(&s->port, &nothing), 1);
        assert_int_equal(proxy_try_issue(&s->port, &(proxy_command){.kind = PROXY_REST}), 1);
        assert_int_equal(proxy_await_done(&s->port, proxy_head(&s->port)), 0);
    }
    /* A replay says only that it has ended. */
    assert_int_equal(proxy_try_issue(&s->port, &(proxy_command){.kind = PROXY_REST}), 1);
    assert_int_equal(proxy_await_done(&s->port, proxy_head(&s->port)), 0);
    scene_close(s);
}

/* ---- a network --------------------------------------------------------------------------------------------------- */

/* A network that moves only when it is driven, and whose puts end when they are reaped. */
typedef struct network {
    transport base; /* first */
    copying rank;
    transport_list reaped;
    _Atomic uint64_t turns, wrong_turns;
    _Atomic int32_t attendants;
    _Atomic bool moves;      /* what others do moves in each turn */
    transport_batch *posted; /* only the proxy's thread uses it, and `posts` until it has ended */
    uint64_t posts;
} network;

static bool network_progress(transport *self)
{
    network *n = (network *)self;
    atomic_fetch_add(&n->turns, 1);
    if (atomic_load(&n->attendants) <= 0) atomic_fetch_add(&n->wrong_turns, 1);
    return atomic_load(&n->moves);
}

static void network_attend(transport *self, int change)
{
    atomic_fetch_add(&((network *)self)->attendants, change);
}

static expar_status network_post(transport *self, const transport_request *request, transport_batch *batch)
{
    (void)request;
    network *n = (network *)self;
    if (n->posted) return EXPAR_ERR_BUSY;
    atomic_store(&batch->left, 1);
    n->posted = batch;
    n->posts++;
    return EXPAR_OK;
}

static void network_reap(transport *self)
{
    network *n = (network *)self;
    if (!n->posted) return;
    atomic_fetch_sub(&n->posted->left, 1);
    n->posted = NULL;
}

static const transport_ops driven_ops = {.name = "driven", .progress = network_progress, .attend = network_attend};
static const transport_ops reaped_ops = {
    .name = "reaped", .post = network_post, .drop = copying_drop, .reap = network_reap};

/* A ring whose threads have cores of their own. */
static scene *network_open(network *n, const transport_ops *ops, int64_t spin_ns)
{
    scene *s = aligned_alloc(64, (sizeof *s + 63) / 64 * 64);
    assert_non_null(s);
    memset(s, 0, sizeof *s);
    memset(n, 0, sizeof *n);
    n->base.ops = ops;
    copying_open(&s->rank, 0);
    if (ops->progress) s->rank.driven = (transport_list){.list[0] = &n->base, .count = 1};
    if (ops->reap) n->reaped = (transport_list){.list[0] = &n->base, .count = 1};
    for (int32_t i = 0; i < TRANSPORT_MEMORIES * COPYING_PES && ops->post; i++)
        s->rank.ways[i] = (transport_ways){.data = &n->base, .words = &n->base};
    proxy_plan plan = copying_plan(&s->rank, 8);
    plan.yields = false;
    plan.spin_ns = spin_ns;
    plan.reaped = &n->reaped;
    assert_int_equal(proxy_open(&plan, &s->proxy), EXPAR_OK);
    scene_port(s, &plan);
    return s;
}

static void await_turns(network *n, uint64_t more)
{
    const uint64_t before = atomic_load(&n->turns);
    for (int64_t since_ns = clock_ns(); atomic_load(&n->turns) < before + more;)
        doze(since_ns);
}

static void await_rest(network *n)
{
    for (int64_t since_ns = clock_ns(); atomic_load(&n->attendants) != 0;)
        doze(since_ns);
}

/* A kernel may wait for what a peer sends when its own commands have ended, or before there are any. */
static void test_a_thread_that_spins_drives_the_network(void **state)
{
    (void)state;
    network n;
    scene *s = network_open(&n, &driven_ops, NS_PER_MS);
    for (int32_t round = 0; round < 20; round++) {
        await_rest(&n);
        atomic_store(&n.moves, round % 2 == 1); /* it is no work of this thread, and does not keep it awake */
        const uint64_t before = atomic_load(&n.turns);
        proxy_rouse(s->proxy);
        for (int64_t since_ns = clock_ns(); atomic_load(&n.turns) == before;)
            doze(since_ns);
    }
    proxy_expect(s->proxy); /* for as long as the call runs */
    await_turns(&n, 10000);
    assert_int_equal(proxy_try_issue(&s->port, &nothing), 1);
    assert_int_equal(proxy_await_done(&s->port, proxy_head(&s->port)), 0);
    await_turns(&n, 10000);
    assert_int_equal(proxy_try_issue(&s->port, &(proxy_command){.kind = PROXY_REST}), 1);
    await_rest(&n);
    assert_int_equal(atomic_load(&n.wrong_turns), 0);
    scene_close(s);
}

static void test_operations_are_reaped(void **state)
{
    (void)state;
    enum { ROUNDS = 200 };
    network n;
    const uint64_t word = 1;
    const proxy_command put = {.kind = PROXY_PUT, .pe = 1, .local = (uint64_t)(uintptr_t)&word, .bytes = sizeof word};
    scene *s = network_open(&n, &reaped_ops, 0);
    for (int32_t i = 0; i < ROUNDS; i++) {
        assert_int_equal(proxy_try_issue(&s->port, &put), 1);
        assert_int_equal(proxy_try_issue(&s->port, &put), 1);
        assert_int_equal(proxy_await_done(&s->port, proxy_head(&s->port)), 0);
    }
    scene_close(s);
    assert_int_equal(n.posts, 2 * ROUNDS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_arrive_whole),
        cmocka_unit_test(test_claims_leave_no_gap),
        cmocka_unit_test(test_commands_arrive_whole),
        cmocka_unit_test(test_parts_of_a_command_are_none),
        cmocka_unit_test(test_poison_ends_waits),
        cmocka_unit_test(test_stopping_ends_waits),
        cmocka_unit_test(test_unpublished_numbers_end_the_ring),
        cmocka_unit_test(test_late_numbers_are_waited_for),
        cmocka_unit_test(test_a_stopped_process_ends_waits),
        cmocka_unit_test(test_one_thread_watches_idle_rings),
        cmocka_unit_test(test_calls_keep_their_ring_awake),
        cmocka_unit_test(test_a_thread_that_spins_drives_the_network),
        cmocka_unit_test(test_operations_are_reaped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
