/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of expar_launch that have not ended. Kernels wake nobody, so the threads of the rings spin as long as such a
 * kernel runs. A launch is announced to the rings, and the guard says when its kernel has ended. Launches in captures
 * are not announced, since nobody sees their replays. */
#include "pgas/device/parts.h"

#include <stdlib.h>

/* A launch whose kernel may run, or a place for a later one. */
struct launched {
    launched *next;
    cu_event event;
};

static const sym_rings *launched_rings(const handles *all)
{
    return sym_rings_of(all->group->sym, SYM_RINGS_HANDLES_GPU);
}

/* The lock is held. */
static launched *launched_take(handles *all)
{
    launched *place = all->unused;
    if (place) {
        all->unused = place->next;
        return place;
    }
    place = calloc(1, sizeof *place);
    if (place && CUDA_CALL(EventCreate, &place->event, CU_EVENT_NO_TIMING) == EXPAR_OK) return place;
    free(place);
    return NULL;
}

bool launched_begin(handles *all, void *stream)
{
    unsigned long long capture = 0;
    if (!all || !launched_rings(all)) return false;
    if (cuda_stream_capture(stream, &capture) != EXPAR_OK || capture) return false;
    sym_rings_expect(launched_rings(all));
    return true;
}

/* Without an event the guard could not tell the end, so the threads nap at once. */
void launched_end(handles *all, void *stream, expar_status status)
{
    error_kept kept;
    error_keep(&kept, status);
    pthread_mutex_lock(&all->lock);
    launched *place = status == EXPAR_OK ? launched_take(all) : NULL;
    const bool recorded = place && CUDA_CALL(EventRecord, place->event, stream) == EXPAR_OK;
    if (place) {
        launched **list = recorded ? &all->launches : &all->unused;
        place->next = *list;
        *list = place;
    }
    pthread_mutex_unlock(&all->lock);
    if (!recorded) sym_rings_release(launched_rings(all));
    (void)error_restore(&kept);
}

/* The device is entered. */
static void launched_look_at(handles *all)
{
    launched **place = &all->launches;
    while (*place) {
        launched *one = *place;
        if (cuda_driver()->EventQuery(one->event) == CU_ERROR_NOT_READY) {
            place = &one->next;
            continue;
        }
        *place = one->next;
        one->next = all->unused;
        all->unused = one;
        sym_rings_release(launched_rings(all));
    }
}

/* The thread is in no capture, so no capture of the program's forbids the calls. */
void launched_look(handles *all)
{
    int mode = CU_CAPTURE_RELAXED;
    if (!all->launches || cuda_enter(launched_rings(all)->device) != EXPAR_OK) return;
    if (CUDA_CALL(ThreadExchangeStreamCaptureMode, &mode) == EXPAR_OK) {
        launched_look_at(all);
        cuda_driver()->ThreadExchangeStreamCaptureMode(&mode);
    }
    cuda_leave();
}

static void free_list(launched *list)
{
    while (list) {
        launched *next = list->next;
        cuda_driver()->EventDestroy(list->event);
        free(list);
        list = next;
    }
}

void launched_free(handles *all)
{
    if ((!all->launches && !all->unused) || cuda_enter(launched_rings(all)->device) != EXPAR_OK) return;
    free_list(all->launches);
    free_list(all->unused);
    all->launches = all->unused = NULL;
    cuda_leave();
}
