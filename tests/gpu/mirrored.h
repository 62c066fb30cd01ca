/* SPDX-License-Identifier: Apache-2.0 */
/* One mirrored call on its way: its memory on the GPU, and the data to fetch when it is done. */
#ifndef TESTS_GPU_MIRRORED_H
#define TESTS_GPU_MIRRORED_H

#include "gpu/worker.h"
#include <stdbool.h>

#define MIRRORED_FETCHES 24

typedef struct mirrored {
    buffer *buffer;
    worker *worker;
    const void *key; /* event or hook of a call that is open, by which it is found */
    bool partly;     /* what a call has written that failed is fetched, too */
    struct {
        expar_tensor from;
        void *to;
    } fetches[MIRRORED_FETCHES];
    int num_fetches;
    int64_t noted_ms; /* ranks_clock_ms() at the last mirrored_note */
    struct mirrored *next;
} mirrored;

/* Whether calls are made without an event where the test asks for none (EXPAR_TEST_PLAIN=1). */
bool mirrored_is_plain(void);
/* Whether that holds for dispatches with num_worst_tokens, too (EXPAR_TEST_PLAIN=2). */
bool mirrored_is_plainest(void);
/* By the thread that makes the call. */
mirrored *mirrored_begin(buffer *b);
/* A host matrix as the call is to see it: a copy on the GPU, in the device heap where the host's lies in symmetric
   memory. A tensor that says it lies on a GPU is wrong for the CPU; the mirror says CPU, which is as wrong for a GPU. A
   tensor whose extents make no sense gets memory, but no copy. */
expar_tensor mirrored_give(mirrored *t, const expar_tensor *host);
/* When the call is done, the tensor's memory is copied to the host's. */
void mirrored_fetch(mirrored *t, const expar_tensor *from, void *to);
/* Counts that the call is to write, as it is to see them; they are fetched with the rest. NULL: none are wanted.
   experts: E of the call. */
const expar_ep_recv_counts *mirrored_give_counts(mirrored *t, const expar_ep_recv_counts *host, int32_t experts,
                                                 expar_ep_recv_counts *spare);
/* Numbers of tokens for each expert: on odd ranks as they would lie on the GPU, on the others as they are. */
const int32_t *mirrored_give_numbers(mirrored *t, const int32_t *host, int32_t experts);
/* Fills counts, [L], with the rows that came for each local expert, and returns how many came in all: from the handle's
   memory, on the device or on the host. */
int32_t mirror_fetch_counts(const worker *h, const expar_ep_handle *handle, int32_t *counts);
/* A step of it is done. Prints how long that took when it was so long that a driver held up is likelier than work; what
   a test finds does not depend on it. */
void mirrored_note(mirrored *t, const char *step);
/* From the first to the last byte; 0 for one without elements or sense. */
size_t mirrored_span_bytes(const expar_tensor *tensor);

/* Ends it here: fetches (if `arrived`), waits for that, frees. */
void mirrored_end(mirrored *t, bool arrived);
/* Keeps it until its event is waited for, or its hook called. */
void mirrored_park(mirrored *t, const void *key);
/* The call with this event or hook has ended with this status. If there is no such call, nothing happens. */
void mirrored_land(const void *key, expar_status status);
/* Likewise: it is given up. */
void mirrored_lose(const void *key);
/* The call with this event or hook; NULL: there is no such call. */
const mirrored *mirrored_find(const void *key);
/* That host memory goes. */
void mirrored_forget(const void *to);
/* The buffer goes, and with it whatever is still parked. */
void mirrored_drop(const buffer *b);

#endif
