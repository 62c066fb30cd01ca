/* SPDX-License-Identifier: Apache-2.0 */
/* Places on streams that a rank's calls come after.
 *
 * A rank's calls on one GPU follow each other. So once a call has taken its place on a stream, all later calls come
 * after the work that the stream held then, on any stream. They also come after the call's wait_event. Memory that a
 * stream still uses may serve later calls at once if its last use came before such a place (mem_covers_fn). */
#include "exec/cuda/core/gpu.h"

#include <pthread.h>
#include <stdlib.h>

/* If there are more streams than these, the oldest place is forgotten. Memory then waits until the driver says that it
   is free. */
#define STREAMS 16

typedef struct known_place {
    unsigned long long stream; /* the driver's number */
    /* Marks of the stream that were made before this moment come before all later calls. */
    uint64_t until;
} known_place;

struct gpu_places {
    /* One of the order of calls, one of each store that asks. Dropping the last one (acq_rel) frees the object. */
    atomic_int holders;
    pthread_mutex_t lock;
    /* Guarded by lock. The place that was renewed last comes first; until 0: none. */
    known_place known[STREAMS];
};

gpu_places *gpu_places_make(void)
{
    gpu_places *places = calloc(1, sizeof *places);
    if (!places) return NULL;
    atomic_init(&places->holders, 1);
    pthread_mutex_init(&places->lock, NULL);
    return places;
}

gpu_places *gpu_places_hold(gpu_places *places)
{
    atomic_fetch_add_explicit(&places->holders, 1, memory_order_relaxed);
    return places;
}

void gpu_places_drop(gpu_places *places)
{
    if (!places || atomic_fetch_sub_explicit(&places->holders, 1, memory_order_acq_rel) > 1) return;
    pthread_mutex_destroy(&places->lock);
    free(places);
}

void gpu_places_note(gpu_places *places, unsigned long long stream, uint64_t until)
{
    known_place note = {.stream = stream, .until = until};
    pthread_mutex_lock(&places->lock);
    for (int i = 0; i < STREAMS; i++) {
        const known_place here = places->known[i];
        places->known[i] = note;
        if (!here.until || here.stream == stream) {
            if (here.until > until) places->known[0].until = here.until;
            break;
        }
        note = here;
    }
    pthread_mutex_unlock(&places->lock);
}

bool gpu_places_cover(void *context, const cuda_mark *mark)
{
    gpu_places *places = context;
    const cuda_mark_place at = cuda_mark_place_of(mark);
    bool covered = false;
    pthread_mutex_lock(&places->lock);
    for (int i = 0; i < STREAMS && places->known[i].until; i++)
        if (places->known[i].stream == at.stream) covered = at.made < places->known[i].until;
    pthread_mutex_unlock(&places->lock);
    return covered;
}
