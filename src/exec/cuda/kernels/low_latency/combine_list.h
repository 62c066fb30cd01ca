/* SPDX-License-Identifier: Apache-2.0 */
/* The rows that each block sends in an exact combine with coded rows. A message brings from none to K rows. So rows are
 * numbered through, message after message, and all blocks get equal numbers of rows. Each block finds its rows by
 * itself, from the headers that all see, and lists them in its shared memory. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_COMBINE_LIST_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_COMBINE_LIST_H

#include "exec/cuda/kernels/low_latency/combine_messages.h"

/* Returns the header of the message, or NULL if there is no such message. */
GPU_FUNC const ll_header *ll_listed_header(const ll_combine_args *a, const ll_shared *s, int32_t message)
{
    const int32_t source = ll_source_of(&a->call, message), number = message / LL_RANKS(&a->call);
    if (number >= ll_owed(s, source)) return NULL;
    const ll_header *header = ll_header_of(a, source, number);
    return ll_header_fits(a, s, source, header) ? header : NULL;
}
/* Returns the slots of the message that have a row here. */
GPU_FUNC uint32_t ll_listed_slots(const ll_combine_args *a, const ll_shared *s, int32_t message)
{
    const ll_header *header = ll_listed_header(a, s, message);
    uint32_t slots = 0;
    LL_UNROLL_SLOTS
    for (int32_t k = 0; k < LL_BUFFER_TOPK(&a->call); k++)
        if (header && k < a->routing.topk && ll_row_there(a, header, k)) slots |= 1u << k;
    return slots;
}

GPU_FUNC uint32_t ll_listed_entry(int32_t message, int32_t slot)
{
    return (uint32_t)message << 5 | (uint32_t)slot;
}

/* ---- a block's rows ---------------------------------------------------------------------------------------------- */

/* The rows that a block sends, as each of its threads knows them. */
typedef struct ll_list {
    int32_t first, end;     /* the block's rows, by number */
    int32_t message, after; /* this thread has looked at messages [message, after), and lists them */
    uint32_t slots;         /* slots of the first of them */
    int32_t before, rows;   /* the number of rows in all messages before them, and in them */
    /* [LL_GPU_LISTED] in shared memory, of ll_listed_entry. The thread that has looked at a message writes its entries.
       All threads read them after a meeting. */
    uint32_t *entries;
} ll_list;

/* Sums the numbers of all threads of a block: those before this thread, and all. sums: [warps] in shared memory. */
GPU_FUNC int32_t ll_sum_before(int32_t own, int32_t *sums, int32_t *all)
{
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int32_t sum = own, before = 0;
    for (int32_t by = 1; by < 32; by *= 2) {
        const int32_t below = __shfl_up_sync(GPU_ALL, sum, by);
        if (lane >= by) sum += below;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    *all = 0;
#pragma unroll
    for (int32_t w = 0; w < LL_BLOCK_WARPS; w++) {
        if (w == warp) before = *all;
        *all += sums[w];
    }
    return before + sum - own;
}

/* All threads of all blocks call it. *sending: only that many blocks, the first ones, have a row. */
GPU_FUNC ll_list ll_list_of(const ll_combine_args *a, const ll_shared *s, int32_t *sending)
{
    const int32_t messages = ll_all_messages(&a->call, s), blocks = (int32_t)gridDim.x;
    const int32_t each = (messages + LL_GPU_THREADS - 1) / LL_GPU_THREADS;
    int32_t all;
    ll_list list;
    list.entries = (uint32_t *)s->rest + LL_BLOCK_WARPS;
    list.message = min((int32_t)threadIdx.x * each, messages);
    list.after = min(list.message + each, messages);
    list.slots = list.message < list.after ? ll_listed_slots(a, s, list.message) : 0;
    list.rows = __popc(list.slots);
    for (int32_t m = list.message + 1; m < list.after; m++)
        list.rows += __popc(ll_listed_slots(a, s, m));
    list.before = ll_sum_before(list.rows, s->rest, &all);
    *sending = min(all, blocks);
    list.first = all < blocks ? min((int32_t)blockIdx.x, all) : (int32_t)((int64_t)all * blockIdx.x / blocks);
    list.end = all < blocks ? min(list.first + 1, all) : (int32_t)((int64_t)all * (blockIdx.x + 1) / blocks);
    return list;
}

/* Lists the rows from number `first` on, LL_GPU_LISTED of them or all that are left. All threads call it, and meet
   afterwards. */
GPU_FUNC void ll_list_entries(const ll_combine_args *a, const ll_shared *s, const ll_list *list, int32_t first)
{
    const int32_t count = min(list->end - first, LL_GPU_LISTED);
    int32_t number = list->before;
    if (number < first + count && number + list->rows > first)
        for (int32_t m = list->message; m < list->after; m++) {
            uint32_t slots = m == list->message ? list->slots : ll_listed_slots(a, s, m);
            for (; slots; slots &= slots - 1, number++)
                if ((uint32_t)(number - first) < (uint32_t)count)
                    list->entries[number - first] = ll_listed_entry(m, __ffs((int)slots) - 1);
        }
    __syncthreads();
}

/* ---- a row ------------------------------------------------------------------------------------------------------- */

/* A lane's row. */
typedef struct ll_listed {
    const uint8_t *row; /* NULL: the lane or the slot has none, or it may not be sent */
    uint8_t *place;
    uint64_t number; /* of the place */
    int32_t to;
} ll_listed;

/* Returns the row of an entry. A broken peer may cause an entry that no thread has written. It then names no row, or an
   existing one. */
GPU_FUNC ll_listed ll_listed_row(const ll_combine_args *a, const ll_shared *s, const ll_now *now, uint32_t entry)
{
    const ll_gpu_call *c = &a->call;
    const int32_t message = (int32_t)(entry >> 5), k = (int32_t)(entry & 31);
    const ll_header *header = ll_listed_header(a, s, message);
    ll_listed listed = {NULL, NULL, 0, ll_source_of(c, message)};
    if (!header || k >= a->routing.topk || !s->credits[listed.to]) return listed;
    listed.row = ll_row_there(a, header, k);
    listed.place = ll_place_there(a, s, now, listed.to, header->token, k);
    listed.number = ll_number_of(c, now->epoch, ll_region_there(s, listed.to), header->token, k);
    return listed;
}

#endif
