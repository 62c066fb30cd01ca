/* SPDX-License-Identifier: Apache-2.0 */
/* Words about masks and cleans for ranks that are not mapped (exec/far_words.h). Kernels make masks and leave the words
 * in pinned memory (ll_gpu_masker). The host sends them by links, and not by the rings. A stopped rank must find its
 * masker when it wakes up, and the proxy has given up commands to it by then. The words go after all parcels that
 * kernels have sent to the rank before.
 *
 * The guard sends what can go at each of its beats. So does the thread that makes calls, which also waits where the
 * rank must have been told. During a clean only that thread sends, since it writes the words of the clean meanwhile. */
#include "base/knobs.h"
#include "exec/cuda/low_latency/ll_gpu.h"
#include "exec/far_words.h"

#include <stdlib.h>
#include <time.h>

struct ll_gpu_words {
    far_words_place place;
    far_words *ranks;            /* [N] guarded by lock */
    link_peer *cleans, *maskers; /* [N] links to far ranks */
    uint64_t *blocks;            /* far_words.block of all ranks */
    pthread_mutex_t lock;
    bool cleaning; /* guarded by lock: a clean is going on */
};

/* ---- sending ----------------------------------------------------------------------------------------------------- */

/* far_words_place.has_come, for parcels of kernels. */
static bool parcels_have_ended(const void *context, int32_t pe)
{
    const ll_gpu *self = context;
    const uint64_t after = __atomic_load_n(&self->maskers_told[pe].after, __ATOMIC_ACQUIRE);
    if (ll_gpu_posts_to(self, pe)) return sym_queues_have_ended_to(self->core.sym, pe, after);
    return !self->reach.rings || sym_rings_have_ended_to(self->reach.rings, pe, after);
}

static void spread(ll_gpu *self)
{
    ll_gpu_words *words = self->reach.words;
    for (int32_t r = 0; r < self->shape.ranks; r++) {
        if (!ll_gpu_is_far(self, r)) continue;
        words->ranks[r].masker = __atomic_load_n(&self->maskers_told[r].word, __ATOMIC_ACQUIRE);
        far_words_spread(&words->place, &words->ranks[r], r);
    }
}

void ll_gpu_words_spread(ll_gpu *self)
{
    ll_gpu_words *words = self->reach.words;
    if (!words) return;
    pthread_mutex_lock(&words->lock);
    if (!words->cleaning) spread(self);
    pthread_mutex_unlock(&words->lock);
}

/* group_members.spread. */
static void spread_clean(void *context)
{
    ll_gpu *self = context;
    ll_gpu_words *words = self->reach.words;
    pthread_mutex_lock(&words->lock);
    spread(self);
    for (int32_t r = 0; r < self->shape.ranks; r++)
        if (words->ranks[r].cut_off) self->cleaner->cut_off[r] = true;
    pthread_mutex_unlock(&words->lock);
}

void ll_gpu_words_clean(ll_gpu *self, bool begins)
{
    ll_gpu_words *words = self->reach.words;
    if (!words) return;
    pthread_mutex_lock(&words->lock);
    words->cleaning = begins;
    pthread_mutex_unlock(&words->lock);
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

/* Returns whether the rank has been told everything, or never will be. */
static bool has_all_words(ll_gpu *self, int32_t rank)
{
    ll_gpu_words *words = self->reach.words;
    pthread_mutex_lock(&words->lock);
    spread(self);
    const far_words *to = &words->ranks[rank];
    const bool told = to->cut_off || (!far_words_are_owed(&words->place, to) && link_is_quiet(&to->batch));
    pthread_mutex_unlock(&words->lock);
    return told;
}

void ll_gpu_words_linger(ll_gpu *self, int32_t rank)
{
    const int64_t end_ns = clock_ns() + knob(KNOB_LINK_LINGER_NS);
    while (ll_gpu_is_far(self, rank) && !has_all_words(self, rank) && clock_ns() < end_ns)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

typedef struct words_wait {
    ll_gpu *self;
    int32_t rank;
} words_wait;

static bool words_misses(const void *context, int32_t rank)
{
    const words_wait *wait = context;
    return rank == wait->rank && !has_all_words(wait->self, rank);
}

expar_status ll_gpu_words_await(ll_gpu *self, int32_t rank)
{
    static const boot_topic nothing = {.kind = BOOT_KIND_NONE};
    const words_wait wait = {self, rank};
    expar_status status = EXPAR_OK;
    if (!ll_gpu_is_far(self, rank) || has_all_words(self, rank)) return EXPAR_OK;
    sym_rest rest = sym_rest_begin(self->core.sym, "low latency: words about masks");
    rest.halt = &self->core.halted;
    sym_rest_expect_all(&rest, &nothing, words_misses, &wait);
    sym_rest_tolerate(&rest);
    rest.wait.late_limit_ms = self->core.late_limit_ms;
    while (status == EXPAR_OK && words_misses(&wait, rank))
        status = sym_rest_turn(&rest);
    sym_rest_end(&rest);
    return status == EXPAR_ERR_PEER ? EXPAR_OK : status;
}

/* ---- making, and the end ----------------------------------------------------------------------------------------- */

static expar_status open_both_links(ll_gpu *self, int32_t rank)
{
    ll_gpu_words *words = self->reach.words;
    link_peer *cleans = &words->cleans[rank], *maskers = &words->maskers[rank];
    const uint64_t each = self->space.clean_bytes / sizeof(uint64_t);
    expar_status status = link_open(self->core.sym, rank, self->reach.unmapped, NULL, cleans);
    if (status != EXPAR_OK) return status;
    *maskers = *cleans;
    words->ranks[rank] =
        (far_words){.cleans = cleans, .maskers = maskers, .block = words->blocks + (uint64_t)rank * each};
    return link_aim_words(maskers, TRANSPORT_PINNED);
}

static bool make_word_arrays(ll_gpu *self)
{
    const size_t ranks = (size_t)self->shape.ranks;
    ll_gpu_words *words = self->reach.words;
    words->ranks = calloc(ranks, sizeof *words->ranks);
    words->cleans = calloc(ranks, sizeof *words->cleans);
    words->maskers = calloc(ranks, sizeof *words->maskers);
    words->blocks = calloc(ranks, (size_t)self->space.clean_bytes);
    return words->ranks && words->cleans && words->maskers && words->blocks;
}

expar_status ll_gpu_words_open(ll_gpu *self)
{
    const int32_t own = self->core.sym->rank;
    ll_gpu_words *words = self->reach.words = calloc(1, sizeof *words);
    expar_status status = EXPAR_OK;
    if (!words) return error_set(EXPAR_ERR_MEMORY, "no memory for masks");
    pthread_mutex_init(&words->lock, NULL);
    if (!make_word_arrays(self)) return error_set(EXPAR_ERR_MEMORY, "no memory for masks");
    words->place = (far_words_place){.sym = self->core.sym,
                                     .ranks = self->shape.ranks,
                                     .masker = self->reach.block.offset + ll_masker_at(&self->space, own),
                                     .cleans = self->clean_words + (uint64_t)own * self->space.clean_bytes,
                                     .said = self->cleaner->words[own] + (uint64_t)own * self->space.clean_bytes,
                                     .has_come = parcels_have_ended,
                                     .context = self};
    for (int32_t r = 0; r < self->shape.ranks && status == EXPAR_OK; r++)
        if (ll_gpu_is_far(self, r)) status = open_both_links(self, r);
    self->cleaner->spread = spread_clean;
    self->cleaner->spread_context = self;
    return status;
}

/* A rank that is masked may be stopped, and then never gets its last word. */
void ll_gpu_words_close(ll_gpu *self)
{
    ll_gpu_words *words = self->reach.words;
    if (!words) return;
    for (int32_t r = 0; words->ranks && r < self->shape.ranks; r++) {
        far_words *to = &words->ranks[r];
        if (!to->cleans) continue;
        if (self->maskers_told) ll_gpu_words_linger(self, r);
        if (!link_is_quiet(&to->batch)) link_drop(to->cleans, &to->batch);
        if (!link_is_quiet(&to->batch)) link_drop(to->maskers, &to->batch);
    }
    pthread_mutex_destroy(&words->lock);
    free(words->ranks);
    free(words->cleans);
    free(words->maskers);
    free(words->blocks);
    free(words);
    self->reach.words = NULL;
}
