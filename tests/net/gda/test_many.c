/* SPDX-License-Identifier: Apache-2.0 */
/* Many requests through one queue: indices wrap hundreds of times, and memory stays as it is.
 * usage: test_gda_many [REQUESTS] */
#include "oracle/random.h"
#include "world.h"

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#define REQUESTS 300000
#define THREADS  2
#define AT_ONCE  8

static int64_t num_requests = REQUESTS;

static long resident_pages(void)
{
    long total = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%ld %ld", &total, &resident), 2);
    fclose(file);
    return resident;
}

typedef struct poster {
    pthread_t thread;
    world *world;
    int64_t count;
    bool failed;
} poster;

/* Submissions of eight atomic adds; the last one reports. */
static void *post_all(void *context)
{
    poster *p = context;
    gda_queue *queue = &p->world->ranks[0].queues[1].queue;
    gda_request add = {.form = GDA_ADD_64, .operand = 1};
    world_aim(p->world, &add, 1, 0);
    gda_to_sink(queue, &add);
    for (int64_t i = 0; i < p->count && !p->failed; i += AT_ONCE) {
        uint64_t base = 0;
        p->failed = !gda_reserve(queue, AT_ONCE, &base);
        for (uint32_t k = 0; k < AT_ONCE && !p->failed; k++) {
            add.flags = k + 1 == AT_ONCE ? GDA_REPORT : 0;
            gda_write(queue, base + k, &add);
        }
        p->failed = p->failed || !gda_commit(queue, base, AT_ONCE);
    }
    return NULL;
}

static void post_by_threads(world *w, int64_t count)
{
    poster posters[THREADS];
    for (int i = 0; i < THREADS; i++) {
        posters[i] = (poster){.world = w, .count = count / THREADS / AT_ONCE * AT_ONCE};
        assert_int_equal(pthread_create(&posters[i].thread, NULL, post_all, &posters[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(posters[i].thread, NULL);
        assert_false(posters[i].failed);
    }
    assert_true(gda_quiet(&w->ranks[0].queues[1].queue));
}

static void run_many(bool collapsed)
{
    static const nic_faults none = {0};
    gda_plan plan = made_small;
    world w;
    plan.depth = plan.cq_entries = 256;
    plan.batch = 16;
    plan.collapsed = collapsed;
    world_begin(&w, &plan, &none, WORLD_ACCESS);
    assert_int_equal(nic_start(w.nic, 0), EXPAR_OK);
    post_by_threads(&w, num_requests / 10);
    const long before = resident_pages();
    post_by_threads(&w, num_requests);
    const long after = resident_pages();
    const uint64_t posted = atomic_load(&w.ranks[0].queues[1].queue.cons_idx) - plan.first;
    assert_true(posted >= (uint64_t)num_requests);
    assert_true(*(uint64_t *)(void *)w.ranks[1].heap == posted);
    assert_true(nic_counted(w.nic).requests == posted);
    printf("%llu requests; resident pages: %ld before, %ld after\n", (unsigned long long)posted, before, after);
#ifndef __SANITIZE_THREAD__ /* its shadow memory grows */
    assert_true(after <= before + 64);
#endif
    world_end(&w);
}

static void test_collapsed(void **state)
{
    (void)state;
    run_many(true);
}

static void test_entries(void **state)
{
    (void)state;
    run_many(false);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collapsed),
        cmocka_unit_test(test_entries),
    };
    if (argc > 1) num_requests = random_count("REQUESTS", argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
