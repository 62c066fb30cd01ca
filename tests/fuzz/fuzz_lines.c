/* SPDX-License-Identifier: Apache-2.0 */
/* Records on the lines of monitors: questions, answers, deaths, blame and good-byes of two peers. The first half comes
 * before this rank asks, the rest while it waits for the answers. */
#include "boot/sockets/ask.h"
#include "boot/wire/wire.h"
#include "fuzz.h"
#include "stream.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#define SIZE 3

typedef struct scene {
    asker *asker;
    boot_registry registry;
    int lines[SIZE], ends[SIZE];
    stream rest;
    bool heard[SIZE]; /* there may be more */
} scene;

static scene self;

static void take(const piece *one)
{
    const int32_t peer = 1 + one->peer % (SIZE - 1);
    stream_send(&self.ends[peer], one);
    if (self.heard[peer]) self.heard[peer] = ask_hear(self.asker, peer);
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *lock, const struct timespec *end);

/* The rank waits for answers. What comes meanwhile comes now, in this thread, so each input always does the same. */
int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *lock, const struct timespec *end)
{
    piece one;
    (void)condition;
    (void)end;
    if (!stream_next(&self.rest, &one)) return ETIMEDOUT;
    pthread_mutex_unlock(lock);
    take(&one);
    pthread_mutex_lock(lock);
    return 0;
}

static void check_answer(const boot_answer *answer)
{
    if (!answer->came) return;
    fuzz_must(answer->asked && answer->rank >= -1 && answer->rank < SIZE && answer->blamed >= -1);
    fuzz_must(answer->blamed < SIZE && answer->waited_ns >= 0 && answer->topic.kind < BOOT_KINDS);
    if (answer->doing[0]) fuzz_must_be_shown(answer->doing);
    if (answer->reason[0]) fuzz_must_be_shown(answer->reason);
    fuzz_accept();
}

/* Peers accept all records that this rank has sent. */
static void check_sent(int32_t peer)
{
    ask_record record;
    size_t got = 0;
    while (self.ends[peer] >= 0 && wire_pull(self.ends[peer], &record, sizeof record, &got) == WIRE_DONE) {
        fuzz_must(ask_record_check(&record, SIZE));
        got = 0;
    }
    fuzz_must(got == 0 || self.ends[peer] < 0);
}

static void scene_open(boot *base)
{
    const boot_topic topic = {.kind = BOOT_KIND_BUFFER, .object = 1, .number = 7};
    memset(&self, 0, sizeof self);
    registry_init(&self.registry);
    *base = (boot){.size = SIZE, .registry = &self.registry, .timeout_ms = 1000};
    for (int32_t peer = 0; peer < SIZE; peer++) {
        int pair[2] = {-1, -1};
        if (peer > 0) stream_connect(pair);
        self.ends[peer] = pair[0];
        self.lines[peer] = pair[1];
        self.heard[peer] = true;
    }
    fuzz_must(ask_open(base, self.lines, &self.asker) == EXPAR_OK);
    boot_note_call(base, &topic, "expar_ep_combine");
    boot_note_ended(base, &(boot_topic){.kind = BOOT_KIND_TEAM, .object = 2, .number = 3}, EXPAR_ERR_PEER, "rank 1");
}

static void scene_close(void)
{
    ask_close(self.asker);
    registry_destroy(&self.registry);
    for (int32_t peer = 0; peer < SIZE; peer++) {
        wire_close(&self.ends[peer]);
        wire_close(&self.lines[peer]);
    }
}

static void talk(const uint8_t *data, size_t bytes)
{
    const boot_topic topic = {.kind = BOOT_KIND_BUFFER, .object = 1, .number = 8};
    boot_answer answers[SIZE] = {{0}, {.asked = true}, {.asked = true}};
    stream first = {.data = data, .bytes = bytes / 2};
    piece one;
    while (stream_next(&first, &one))
        take(&one);
    self.rest = (stream){.data = data + bytes / 2, .bytes = bytes - bytes / 2};
    ask_peers(self.asker, &topic, answers, 1000);
    for (int32_t peer = 1; peer < SIZE; peer++) {
        check_answer(&answers[peer]);
        fuzz_must(ask_first_death(self.asker) < SIZE && ask_blame_of(self.asker, peer) < SIZE);
        fuzz_must(ask_blame_of(self.asker, peer) != peer);
        check_sent(peer);
    }
    fuzz_must(ask_first_death(self.asker) != 0); /* a rank that was told of its own death lives */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    boot base;
    if (bytes > 1 << 14) return 0;
    const int before = fuzz_count_descriptors();
    scene_open(&base);
    talk(data, bytes);
    scene_close();
    fuzz_must(fuzz_count_descriptors() == before);
    return 0;
}

/* ---- seeds ------------------------------------------------------------------------------------------------------- */

/* A record of some kind, then the answer that the rank awaits. Both take as many bytes, so each is in its part. */
size_t fuzz_seed(unsigned number, uint8_t seed[FUZZ_SEED_BYTES])
{
    static const ask_record records[] = {
        {.mark = ASK_MARK | ASK_QUESTION, .serial = 4, .topic = {.kind = BOOT_KIND_TEAM, .object = 2, .number = 3}},
        {.mark = ASK_MARK | ASK_DEATH, .rank = 2, .blamed = -1},
        {.mark = ASK_MARK | ASK_BLAME, .rank = 2, .blamed = -1},
        {.mark = ASK_MARK | ASK_BYE, .rank = -1, .blamed = -1},
        {.mark = ASK_MARK | ASK_QUESTION, .serial = 5, .topic = {.kind = BOOT_KIND_BUFFER, .object = 1, .number = 7}},
    };
    static const ask_record answer = {.mark = ASK_MARK | ASK_ANSWER,
                                      .serial = 1,
                                      .topic = {.kind = BOOT_KIND_BARRIER, .number = 2},
                                      .waits = 1,
                                      .rank = 2,
                                      .blamed = -1,
                                      .waited_ns = 5,
                                      .doing = "in expar_barrier_all (call 2)",
                                      .reason = "rank 2 died"};
    size_t used = 0;
    if (number >= sizeof records / sizeof *records) return 0;
    stream_add(seed, &used, (uint8_t)(number % 2), 0, &records[number], sizeof records[number]);
    stream_add(seed, &used, 1, 0, &answer, sizeof answer);
    return used;
}
