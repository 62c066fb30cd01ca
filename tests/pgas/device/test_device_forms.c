/* SPDX-License-Identifier: Apache-2.0 */
/* Each form of expar/device.h that the litmus suite and the scripts do not use: by mapped memory, by commands, and by
 * requests where EXPAR_GDA_QUEUE_MEMORY is set. The target is the CPU, or a simulated GPU. Ranks are as in
 * test_device_calls.c. */
#include "pgas/device/setting.h"

static bool by_requests;

/* Queues serve the host's memory on CPUs, and pinned memory on GPUs. */
static expar_memory_kind kind_of_words(void)
{
    return by_requests && runner_target() == EXPAR_DEVICE_GPU ? EXPAR_MEMORY_PINNED : runner_kind();
}

static handles_call forms_open(expar_group *group, expar_memory_kind kind)
{
    return (handles_call){.test = HANDLES_FORMS,
                          .rounds = 2,
                          .words = take(group, kind, WORDS * sizeof(uint64_t)),
                          .data = take(group, kind, (size_t)group->size * BYTES),
                          .bytes = BYTES,
                          .own = take(group, kind, HANDLES_OWN_BYTES(group->size, BYTES))};
}

static void run_forms(setting *s, expar_group *group, handles_forms family, expar_memory_kind kind)
{
    const int last = family == HANDLES_FORMS_ATOMICS ? EXPAR_DEV_THREAD : EXPAR_DEV_BLOCK;
    for (int scope = EXPAR_DEV_THREAD; scope <= last; scope++) {
        handles_call call = forms_open(group, kind);
        call.with = family;
        call.scope = scope;
        run_well(s, group, &s->handle, &call);
        CHECK_OK(expar_free(group, call.own));
        CHECK_OK(expar_free(group, call.data));
        CHECK_OK(expar_free(group, call.words));
    }
}

/* Ranks of other nodes are reached by what this program tests. */
static void check_way(const expar_group *group, const expar_device_handle *handle)
{
    const int32_t far = 1 - group->rank;
    const expar_memory_kind kind = kind_of_words();
    const expar_dev_entry entry = entry_of(handle,
                                           kind == EXPAR_MEMORY_HOST     ? EXPAR_DEV_HOST
                                           : kind == EXPAR_MEMORY_PINNED ? EXPAR_DEV_PINNED
                                                                         : EXPAR_DEV_DEVICE,
                                           far);
    const uint32_t expected = by_requests ? EXPAR_DEV_WAY_GDA : EXPAR_DEV_WAY_PROXY;
    if (group->sym->nodes[far] == group->sym->nodes[group->rank]) return;
    CHECK(entry.way == expected && entry.atomics == expected, "rank %d is reached by ways %u and %u, expected %u", far,
          entry.way, entry.atomics, expected);
}

static void forms(expar_group *group, void *shared)
{
    setting s;
    (void)shared;
    if (!setting_open(&s, group, 3)) return;
    for (int family = 0; family < HANDLES_FORMS_FAMILIES; family++)
        run_forms(&s, group, (handles_forms)family, kind_of_words());
    check_way(group, &s.handle);
    /* Pinned words are looked at by other code. */
    if (runner_target() == EXPAR_DEVICE_GPU) run_forms(&s, group, HANDLES_FORMS_SETS, EXPAR_MEMORY_PINNED);
    setting_close(&s, group);
}

static void test_each_form_does_what_it_says(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, forms);
}

static void test_each_form_reaches_other_nodes(void **state)
{
    (void)state;
    if (kind_is_mix) skip();
    seed = 1;
    kind_run((ranks_plan){.ranks_per_node = 1}, 2, forms);
    seed = 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_form_does_what_it_says),
        cmocka_unit_test(test_each_form_reaches_other_nodes),
    };
    kind_read(argc, argv);
    by_requests = getenv("EXPAR_GDA_QUEUE_MEMORY") != NULL;
    if (!runner_is_able()) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
