/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that are threads of one process, without a launcher or sockets. One thread makes the group of all.
 *
 *     threads [RANKS]
 *
 * Every rank sends each of its tokens to the next two ranks, with one expert on each rank, and gets twice the token
 * back. */
#include <expar/expar.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 32, HIDDEN = 256, TOPK = 2 };

typedef struct rank_thread {
    pthread_t thread;
    expar_group *group;
    int64_t wrong; /* numbers of y, -1: a call failed */
} rank_thread;

/* Prints the error and the rank. */
static expar_status tell(const expar_group *group, expar_status status)
{
    if (status != EXPAR_OK)
        fprintf(stderr, "rank %d: %s: %s\n", expar_group_rank(group), expar_status_string(status), expar_last_error());
    return status;
}

static expar_status exchange(expar_ep *ep, int32_t num_ranks, float *x, int32_t *topk_idx, float *y)
{
    expar_ep_dispatch_args dispatch = EXPAR_EP_DISPATCH_ARGS_INIT;
    dispatch.x = expar_tensor_2d(x, EXPAR_F32, TOKENS, HIDDEN);
    dispatch.topk_idx = expar_tensor_2d(topk_idx, EXPAR_I32, TOKENS, TOPK);
    dispatch.num_experts = num_ranks;
    expar_ep_dispatch_result rows = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_status status = expar_ep_dispatch(ep, &dispatch, &rows);
    if (status != EXPAR_OK) return status;

    expar_ep_combine_args combine = EXPAR_EP_COMBINE_ARGS_INIT;
    combine.x = rows.recv_x; /* this expert returns its input */
    combine.handle = rows.handle;
    combine.out_y = expar_tensor_2d(y, EXPAR_F32, TOKENS, HIDDEN);
    status = expar_ep_combine(ep, &combine, NULL);
    expar_ep_output_release(rows.output);
    expar_ep_handle_release(rows.handle);
    return status;
}

static int64_t run_layer(expar_group *group, expar_ep *ep)
{
    static _Thread_local _Alignas(16) float x[TOKENS][HIDDEN], y[TOKENS][HIDDEN];
    int32_t topk_idx[TOKENS][TOPK], rank = expar_group_rank(group), size = expar_group_size(group);
    int64_t wrong = 0;
    for (int t = 0; t < TOKENS; t++) {
        for (int k = 0; k < TOPK; k++)
            topk_idx[t][k] = k < size ? (rank + k + 1) % size : -1;
        for (int h = 0; h < HIDDEN; h++)
            x[t][h] = (float)(rank * TOKENS + t + h);
    }
    if (tell(group, exchange(ep, size, x[0], topk_idx[0], y[0])) != EXPAR_OK) return -1;
    for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < HIDDEN; h++)
            wrong += y[t][h] != x[t][h] * (float)(size < TOPK ? size : TOPK);
    return wrong;
}

static void *rank_main(void *argument)
{
    rank_thread *self = argument;
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = TOKENS;
    config.max_row_bytes = HIDDEN * sizeof(float);
    config.max_topk = TOPK;
    config.max_experts = expar_group_size(self->group);
    expar_ep *ep = NULL;
    self->wrong = -1;
    if (tell(self->group, expar_ep_create(self->group, &config, &ep)) == EXPAR_OK)
        self->wrong = run_layer(self->group, ep);
    if (tell(self->group, expar_ep_destroy(ep)) != EXPAR_OK) self->wrong = -1;
    if (tell(NULL, expar_group_destroy(self->group)) != EXPAR_OK) self->wrong = -1;
    return NULL;
}

int main(int argc, char **argv)
{
    int32_t size = argc > 1 ? atoi(argv[1]) : 4;
    int32_t failed = 0;
    if (size < 1 || size > 64) return fprintf(stderr, "usage: threads [RANKS]      1 to 64\n"), 64;
    expar_group *groups[64];
    rank_thread ranks[64];
    if (tell(NULL, expar_group_create_threads(size, NULL, groups)) != EXPAR_OK) return 1;
    for (int32_t r = 0; r < size; r++) {
        ranks[r].group = groups[r];
        if (pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]) != 0) return perror("pthread_create"), 1;
    }
    for (int32_t r = 0; r < size; r++) {
        if (pthread_join(ranks[r].thread, NULL) != 0) return 1;
        failed += ranks[r].wrong != 0;
    }
    printf("%d ranks in one process: %s\n", size, failed ? "WRONG" : "all sums right");
    return failed != 0;
}
