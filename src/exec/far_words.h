/* SPDX-License-Identifier: Apache-2.0 */
/* Words about masks and cleans of a low-latency buffer, for ranks that are not mapped. Both executors send them.
 *
 * Near ranks get such words at once, by stores. A far rank must be told the words that shall stand in its memory: this
 * rank's masker, and the words that it says in a clean. This rank's own memory has the originals. They go after
 * everything that was sent to the rank before, and one after the other. A rank that is stopped may take nothing for
 * long. In the end it gets the values of that time, and never all those between.
 *
 * So it sees what a slow reader of mapped memory might see. A block of words goes by one put, with its voucher after
 * it, and readers trust only words with a voucher. Before words are overwritten that a reader may be looking at, the
 * voucher is taken back (LL_CLEAN_DECIDED 0, step 0 of LL_CLEAN_STAGE). The next view needs none of that, since views
 * of even and of odd steps lie apart. A decision goes before later words: a rank that finds another one in an attempt
 * knows its earlier decisions. */
#ifndef EXPAR_EXEC_FAR_WORDS_H
#define EXPAR_EXEC_FAR_WORDS_H

#include "link/link.h"
#include "proto/low_latency.h"

/* The state of one far rank. One thread at a time uses it. */
typedef struct far_words {
    /* for the words of cleans, and for the masker, which may be in another kind of memory */
    const link_peer *cleans, *maskers;
    link_batch batch;
    /* this rank's masker there: its new value, and the value that was sent last */
    uint64_t masker, told_masker;
    /* LL_CLEAN_STAGE, LL_CLEAN_DECIDED, as they were sent last */
    uint64_t told_stage, told_decided;
    /* [clean_bytes / 8] words of a clean that are being sent */
    uint64_t *block;
    /* something could not be sent: nothing more will be */
    bool cut_off;
} far_words;

/* Where the words lie. The same for all far ranks of a buffer. */
typedef struct far_words_place {
    sym *sym;
    int32_t ranks;
    /* offsets at the far rank: of this rank's masker, and of the words of cleans that this rank says */
    uint64_t masker, cleans;
    /* this rank's own copy of the latter */
    const uint8_t *said;
    /* Says whether everything that was sent to the rank before has arrived, or never will. */
    bool (*has_come)(const void *context, int32_t pe);
    /* Called between two operations, for tests; NULL: nothing is called. */
    void (*between)(const void *context);
    const void *context;
} far_words_place;

/* Says whether there is something that the rank has not been told. */
bool far_words_are_owed(const far_words_place *place, const far_words *words);
/* Sends the rank the next words that it has not been told, as far as they can go now. Never waits. The present error
   text stays. After a failure the rank is cut off. */
void far_words_spread(const far_words_place *place, far_words *words, int32_t pe);

#endif
