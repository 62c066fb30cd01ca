/* SPDX-License-Identifier: Apache-2.0 */
/* group_attachment: a group ends the objects of higher layers, the last that came first, once no rank can touch it. */
#include "group/group.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define MOST 64

/* The events at a group's end, in order. */
typedef struct diary {
    const void *ended[MOST];
    int32_t num_ended;
    int32_t closed_before; /* transports that were closed before the first object ended */
} diary;

typedef struct tenant {
    group_attachment attachment; /* first: the object is found by its address */
    diary *diary;
} tenant;

static int32_t num_closed;
static const transport_ops *closed_by;

static void note_close(transport *t)
{
    num_closed++;
    t->ops = closed_by;
    closed_by->close(t);
}

static void write_down(group_attachment *self)
{
    diary *d = ((tenant *)self)->diary;
    if (d->num_ended == 0) d->closed_before = num_closed;
    d->ended[d->num_ended++] = self;
}

/* Two kinds: the function of an object tells which it is. */
static void end_of_one_kind(group_attachment *self)
{
    write_down(self);
}

static void end_of_another(group_attachment *self)
{
    write_down(self);
}

static expar_group *make_group(void)
{
    expar_group *group;
    expar_group_options options = EXPAR_GROUP_OPTIONS_INIT;
    options.heap_bytes = (size_t)4 << 20;
    assert_int_equal(expar_group_create_threads(1, &options, &group), EXPAR_OK);
    return group;
}

static void test_found_by_kind(void **state)
{
    (void)state;
    diary d = {.num_ended = 0};
    tenant first = {.attachment.end = end_of_one_kind, .diary = &d},
           second = {.attachment.end = end_of_another, .diary = &d};
    expar_group *group = make_group();
    assert_null(group_kept(group, end_of_one_kind));
    group_keep(group, &first.attachment);
    assert_ptr_equal(group_kept(group, end_of_one_kind), &first.attachment);
    assert_null(group_kept(group, end_of_another));
    group_keep(group, &second.attachment);
    assert_ptr_equal(group_kept(group, end_of_one_kind), &first.attachment);
    assert_ptr_equal(group_kept(group, end_of_another), &second.attachment);
    assert_int_equal(d.num_ended, 0);
    assert_int_equal(expar_group_destroy(group), EXPAR_OK);
    assert_int_equal(d.num_ended, 2);
    assert_ptr_equal(d.ended[0], &second);
    assert_ptr_equal(d.ended[1], &first);
}

/* A transport may complete operations on the batches of an object until it is closed. */
static void test_end_after_the_transports(void **state)
{
    (void)state;
    diary d = {.num_ended = 0};
    tenant only = {.attachment.end = end_of_one_kind, .diary = &d};
    expar_group *group = make_group();
    transport *t = group->sym->transports[0];
    transport_ops noted = *t->ops;
    closed_by = t->ops;
    noted.close = note_close;
    t->ops = &noted;
    num_closed = 0;
    group_keep(group, &only.attachment);
    assert_int_equal(expar_group_destroy(group), EXPAR_OK);
    assert_int_equal(d.num_ended, 1);
    assert_int_equal(d.closed_before, 1);
}

typedef struct keeper {
    pthread_t thread;
    expar_group *group;
    tenant *tenants;
    int32_t count;
} keeper;

static void *keep_some(void *argument)
{
    const keeper *self = argument;
    for (int32_t i = 0; i < self->count; i++)
        group_keep(self->group, &self->tenants[i].attachment);
    return NULL;
}

/* Several threads leave theirs at once: none is lost, and each thread's own end in reverse order. */
static void test_many_at_once(void **state)
{
    (void)state;
    enum { THREADS = 4, EACH = MOST / THREADS };
    diary d = {.num_ended = 0};
    tenant tenants[MOST];
    keeper keepers[THREADS];
    expar_group *group = make_group();
    for (int32_t i = 0; i < MOST; i++)
        tenants[i] = (tenant){.attachment.end = end_of_one_kind, .diary = &d};
    for (int32_t k = 0; k < THREADS; k++) {
        keepers[k] = (keeper){.group = group, .tenants = &tenants[k * EACH], .count = EACH};
        assert_int_equal(pthread_create(&keepers[k].thread, NULL, keep_some, &keepers[k]), 0);
    }
    for (int32_t k = 0; k < THREADS; k++)
        pthread_join(keepers[k].thread, NULL);
    assert_int_equal(expar_group_destroy(group), EXPAR_OK);
    assert_int_equal(d.num_ended, MOST);
    int32_t next[THREADS] = {EACH, EACH, EACH, EACH};
    for (int32_t i = 0; i < MOST; i++) {
        const int32_t number = (int32_t)((const tenant *)d.ended[i] - tenants);
        assert_int_equal(number % EACH, --next[number / EACH]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_found_by_kind),
        cmocka_unit_test(test_end_after_the_transports),
        cmocka_unit_test(test_many_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
