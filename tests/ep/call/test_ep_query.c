/* SPDX-License-Identifier: Apache-2.0 */
/* Reports of expar_ep_query on CPUs: about calls whose events nobody has asked, and about nothing else. */
#include "shmem/kind.h"

#define RANKS  2
#define HIDDEN 16

typedef struct buffer {
    expar_group *group;
    expar_ep *ep;
    expar_ep_dispatch_result came;
} buffer;

/* Without tokens. */
static bool begin(buffer *b, expar_group *group)
{
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    *b = (buffer){.group = group};
    b->came = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    config.max_tokens = 4;
    config.max_row_bytes = HIDDEN * 4;
    config.max_topk = 1;
    config.max_experts = args.num_experts = group->size;
    args.x = expar_tensor_2d(NULL, EXPAR_F32, 0, HIDDEN);
    args.topk_idx = expar_tensor_2d(NULL, EXPAR_I32, 0, 1);
    return CHECK_OK(expar_ep_create(group, &config, &b->ep)) && CHECK_OK(expar_ep_dispatch(b->ep, &args, &b->came));
}

static void end(buffer *b)
{
    expar_ep_output_release(b->came.output);
    expar_ep_handle_release(b->came.handle);
    CHECK_OK(expar_ep_destroy(b->ep));
}

/* Rank 1's arguments are bad, and it returns that itself. */
static expar_event *combine(const buffer *b)
{
    expar_ep_combine_result done = EXPAR_EP_COMBINE_RESULT_INIT;
    expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
    bool odd = b->group->rank == 1;
    args.x = args.out_y = expar_tensor_2d(NULL, EXPAR_F32, 0, HIDDEN);
    if (odd) args.out_y = expar_tensor_2d(NULL, EXPAR_F32, 0, HIDDEN + 4);
    args.handle = b->came.handle;
    args.async_finish = 1;
    CHECK_STATUS(odd ? EXPAR_ERR_SHAPE : EXPAR_OK, expar_ep_combine(b->ep, &args, &done));
    return done.event;
}

static void await_end(expar_event *event)
{
    for (int done = 0; event && !done;)
        CHECK_OK(expar_event_query(event, &done));
}

static void trial(expar_group *group, void *shared)
{
    buffer b;
    (void)shared;
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ep_query(NULL));
    CHECK_TEXT("expar_ep_query", "ep is NULL");
    if (!begin(&b, group)) return;
    CHECK_OK(expar_ep_query(b.ep));
    expar_event *event = combine(&b);
    if (event) CHECK_STATUS(EXPAR_ERR_REMOTE, expar_event_wait(event));
    expar_event_release(event);
    CHECK_OK(expar_ep_query(b.ep));
    event = combine(&b);
    await_end(event);
    CHECK_OK(expar_ep_query(b.ep));
    expar_event_release(event);
    CHECK_STATUS(event ? EXPAR_ERR_REMOTE : EXPAR_OK, expar_ep_query(b.ep));
    if (event) CHECK_TEXT("expar_ep_combine on rank 0: rank 1 rejected its arguments");
    CHECK_OK(expar_ep_query(b.ep));
    /* An event may outlive the buffer. */
    event = combine(&b);
    await_end(event);
    end(&b);
    expar_event_release(event);
}

static void failures_that_nobody_heard(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, RANKS, trial);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(failures_that_nobody_heard)};
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
