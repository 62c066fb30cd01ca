/* SPDX-License-Identifier: Apache-2.0 */
/* Queues for kernels, as the host keeps them. Private to kernels.c and watch.c. */
#ifndef EXPAR_NET_GDA_KERNELS_H
#define EXPAR_NET_GDA_KERNELS_H

#include "net/gda/parts.h"
#include "net/gda/space.h"
#include "net/gda/view.h"

/* Words of a queue that kernels and the host share. */
typedef struct kernel_words {
    /* gda_queue has their meaning: stop is the host's, told and wanted are the kernels'. */
    _Alignas(64) _Atomic uint64_t stop;
    _Atomic uint64_t told, wanted;
} kernel_words;

typedef struct kernel_queue {
    gda_address address;
    gda_queue seen; /* the queue with addresses of the host, for the host's ringer */
    uint64_t rung;
    bool is_reported;
    /* The last word of its completion entry, for kernels; what the reaper saw there last, and since when. */
    const void *entry;
    uint32_t last;
    transport_patience patience;
} kernel_queue;

struct gda_kernels {
    const cuda_device *gpu;
    gda_plan plan;
    kernel_queue *queues; /* [num_queues] */
    int32_t num_queues;
    gda_space words; /* kernel_words [num_queues] */
    gda_space state;
    mem_copier *copier;
    int64_t looked_ns; /* when the reaper last looked at the device's progress */
};

/* Places in `state`. */
typedef struct kernels_layout {
    uint64_t keys, known, queues, tables, table_bytes, bytes;
    uint64_t ends, lkeys, rkeys; /* in a table, after `remotes` */
} kernels_layout;
kernels_layout gda_kernels_lay_out(const gda *g);

static inline kernel_words *gda_kernel_words_of(const gda_kernels *k, int32_t queue)
{
    return (kernel_words *)(void *)k->words.host + queue;
}

#endif
