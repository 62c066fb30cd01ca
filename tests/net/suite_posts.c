/* SPDX-License-Identifier: Apache-2.0 */
/* Part of the suite for transports: operations that are started and not waited for, until their batch is complete. */
#include "suite.h"

#include <stdlib.h>
#include <string.h>

bool suite_await_word(expar_group *group, const _Atomic uint64_t *word, uint64_t least)
{
    sym_rest rest = sym_rest_begin(group->sym, "await_word");
    expar_status status = EXPAR_OK;
    while (atomic_load_explicit(word, memory_order_acquire) < least && (status = sym_rest_turn(&rest)) == EXPAR_OK) {
    }
    sym_rest_end(&rest);
    return CHECK_OK(status);
}

static void settle(const stage *s, transport_batch *batch)
{
    if (s->via->ops->settle) CHECK_OK(s->via->ops->settle(s->via, batch));
    CHECK(atomic_load(&batch->left) == 0, "%u operations are not through", batch->left);
}

#define POSTS 64

/* Puts, gets and atomics that are started and not waited for, until their batch is through; sources stay as they are
   meanwhile. */
void suite_posts(expar_group *group, void *shared)
{
    stage s;
    if (!stage_open(&s, group, shared, 2 * POSTS * 8 + 4096)) return;
    int32_t next = (group->rank + 1) % group->size;
    uint64_t sent[POSTS], back[POSTS] = {0}, old[POSTS], seen = 0;
    transport_batch batch = {0};
    memset(own(&s, s.area), 0, 2 * POSTS * 8 + 4096);
    CHECK_OK(sym_barrier(group->sym));
    for (uint64_t i = 0; i < POSTS; i++) {
        sent[i] = i * 3 + (uint64_t)group->rank;
        transport_request put = {
            .kind = TRANSPORT_KIND_PUT, .pe = next, .offset = s.area + 8 * i, .source = &sent[i], .bytes = 8};
        CHECK_OK(transport_post(s.via, &group->sym->site, &put, &batch));
        transport_request add = {.kind = TRANSPORT_KIND_ATOMIC,
                                 .pe = next,
                                 .offset = s.area + 8 * POSTS,
                                 .dest = &old[i],
                                 .bytes = 8,
                                 .op = TRANSPORT_ADD,
                                 .operand = 1};
        CHECK_OK(transport_post(s.via, &group->sym->site, &add, NULL));
    }
    settle(&s, &batch);
    CHECK_OK(s.via->ops->quiet(s.via));
    for (uint64_t i = 0; i < POSTS; i++)
        seen |= old[i] < POSTS ? UINT64_C(1) << old[i] : 0;
    CHECK(seen == UINT64_MAX, "the adds saw the set %llx", (unsigned long long)seen);
    transport_request get = {
        .kind = TRANSPORT_KIND_GET, .pe = next, .offset = s.area, .dest = back, .bytes = sizeof back};
    CHECK_OK(transport_post(s.via, &group->sym->site, &get, NULL));
    CHECK_OK(s.via->ops->quiet(s.via));
    CHECK(memcmp(sent, back, sizeof sent) == 0, "what came back differs");
    CHECK_OK(sym_barrier(group->sym));
    stage_close(&s);
}

/* Puts with a signal after them: a rank that sees the signal sees the data. The bytes of a round are those of its
   number. Some rounds' sources are free again when they have been posted, the others' when they are complete. */
void suite_signalled_puts(expar_group *group, void *shared)
{
    static const size_t bytes[] = {8, 1000, 4096, 4104, ((size_t)1 << 20) + 8, 0};
    enum { ROUNDS = 60, SPACE = ((size_t)1 << 20) + 4096 };
    stage s;
    if (!stage_open(&s, group, shared, SPACE)) return;
    int32_t next = (group->rank + 1) % group->size;
    uint64_t data = s.area + 64;
    uint8_t *source = calloc(1, SPACE);
    transport_batch batch = {0};
    memset(own(&s, s.area), 0, SPACE);
    CHECK_OK(sym_barrier(group->sym));
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        size_t count = bytes[round % ARRAY_LENGTH(bytes)];
        bool copies = round / ARRAY_LENGTH(bytes) % 2;
        memset(source, (int)round, count);
        transport_request put = {.kind = TRANSPORT_KIND_PUT,
                                 .pe = next,
                                 .offset = data,
                                 .source = source,
                                 .bytes = count,
                                 .copies = copies,
                                 .signals = true,
                                 .signal_offset = s.area,
                                 .op = round % 2 ? TRANSPORT_ADD : TRANSPORT_SET,
                                 .operand = round % 2 ? 1 : round};
        CHECK_OK(transport_post(s.via, &group->sym->site, &put, &batch));
        if (copies) memset(source, 0xff, count);
        if (!suite_await_word(group, (const _Atomic uint64_t *)(void *)own(&s, s.area), round)) break;
        for (size_t i = 0; i < count; i++)
            if (own(&s, data)[i] != (uint8_t)round && !CHECK(false, "%zu bytes: byte %zu", count, i)) break;
        settle(&s, &batch);
        CHECK_OK(sym_barrier(group->sym)); /* read before the next round overwrites */
    }
    settle(&s, &batch);
    free(source);
    CHECK_OK(sym_barrier(group->sym));
    stage_close(&s);
}

/* Puts that end with their flag, at one place in all rounds: a rank that sees its upper half sees all before it. */
void suite_flagged_puts(expar_group *group, void *shared)
{
    static const size_t bytes[] = {8, 16, 1000, 4096, 4104, ((size_t)1 << 20) + 8, ((size_t)4 << 20) + 8};
    enum { ROUNDS = 21, SPACE = ((size_t)4 << 20) + 4096 };
    stage s;
    if (!stage_open(&s, group, shared, SPACE)) return;
    int32_t next = (group->rank + 1) % group->size;
    uint64_t end = s.area + SPACE, wrong = 0;
    uint8_t *source = calloc(1, SPACE);
    transport_batch batch = {0};
    memset(own(&s, s.area), 0, SPACE);
    CHECK_OK(sym_barrier(group->sym));
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        const size_t count = bytes[round % ARRAY_LENGTH(bytes)], before = count - sizeof(uint64_t);
        const uint64_t flag = round << 32 | (uint32_t)~round;
        const transport_request put = {.kind = TRANSPORT_KIND_PUT,
                                       .pe = next,
                                       .offset = end - count,
                                       .source = source,
                                       .bytes = count,
                                       .copies = round / ARRAY_LENGTH(bytes) % 2,
                                       .flagged = true};
        memset(source, (int)round, before);
        memcpy(source + before, &flag, sizeof flag);
        CHECK_OK(transport_post(s.via, &group->sym->site, &put, &batch));
        if (put.copies) memset(source, 0xff, count);
        if (!suite_await_word(group, (const _Atomic uint64_t *)(void *)own(&s, end - sizeof flag), round << 32)) break;
        if (s.via->ops->behold) s.via->ops->behold(s.via);
        wrong += memcmp(own(&s, end - sizeof flag), &flag, sizeof flag) != 0;
        for (size_t i = 0; i < before; i++)
            wrong += own(&s, end - count)[i] != (uint8_t)round;
        settle(&s, &batch);
        CHECK_OK(sym_barrier(group->sym)); /* read before the next round overwrites */
    }
    CHECK(wrong == 0, "%llu bytes and flags are wrong", (unsigned long long)wrong);
    settle(&s, &batch);
    free(source);
    CHECK_OK(sym_barrier(group->sym));
    stage_close(&s);
}

#define LEADING       30 /* puts, and one after them that does not lead */
#define LEADING_BYTES 9216

/* Lengths in bytes: some leave by the stage, some from where they are. */
static size_t leading_words(uint64_t number)
{
    static const size_t bytes[] = {8, 200, 9000, 64, 8};
    return bytes[number % ARRAY_LENGTH(bytes)] / sizeof(uint64_t);
}

static uint64_t leading_at(const stage *s, uint64_t number)
{
    return s->area + number * LEADING_BYTES;
}

/* Each is complete before the next one is posted; the last one is when it is there. */
static void post_leading(stage *s, int32_t pe, uint64_t round, uint64_t *source)
{
    transport_batch batch = {0};
    for (uint64_t i = 0; i <= LEADING; i++) {
        const transport_request put = {.kind = TRANSPORT_KIND_PUT,
                                       .pe = pe,
                                       .offset = leading_at(s, i),
                                       .source = source,
                                       .bytes = leading_words(i) * sizeof *source,
                                       .flagged = true,
                                       .leads = i < LEADING};
        for (size_t w = 0; w < leading_words(i); w++)
            source[w] = round << 32 | i;
        CHECK_OK(transport_post(s->via, &s->group->sym->site, &put, &batch));
        settle(s, &batch);
        memset(source, 0xff, LEADING_BYTES);
    }
}

/* The last one that leads has come. How many words of all are wrong. */
static uint64_t check_leading(const stage *s, uint64_t round)
{
    uint64_t wrong = 0;
    if (s->via->ops->behold) s->via->ops->behold(s->via);
    for (uint64_t i = 0; i < LEADING; i++) {
        const uint64_t *came = (const uint64_t *)(const void *)own(s, leading_at(s, i));
        for (size_t w = 0; w < leading_words(i); w++)
            wrong += came[w] != (round << 32 | i);
    }
    return wrong;
}

/* Puts that lead. A rank that sees one has all that were complete before it was posted. All are there once a later one
   is complete that does not lead, so that their poster gets them back. */
void suite_leading_puts(expar_group *group, void *shared)
{
    enum { ROUNDS = 5 };
    stage s;
    if (!stage_open(&s, group, shared, (LEADING + 1) * LEADING_BYTES)) return;
    int32_t next = (group->rank + 1) % group->size;
    uint64_t wrong = 0, *source = calloc(1, LEADING_BYTES);
    const uint64_t flag = leading_at(&s, LEADING - 1) + (leading_words(LEADING - 1) - 1) * sizeof *source;
    memset(own(&s, s.area), 0, (LEADING + 1) * LEADING_BYTES);
    CHECK_OK(sym_barrier(group->sym));
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        post_leading(&s, next, round, source);
        for (uint64_t i = 0; i < LEADING; i++) {
            CHECK_OK(stage_get(&s, next, source, leading_at(&s, i), sizeof *source));
            wrong += source[0] != (round << 32 | i);
        }
        if (!suite_await_word(group, (const _Atomic uint64_t *)(void *)own(&s, flag), round << 32)) break;
        wrong += check_leading(&s, round);
        CHECK_OK(sym_barrier(group->sym)); /* read before the next round overwrites */
    }
    CHECK(wrong == 0, "%llu words are wrong", (unsigned long long)wrong);
    free(source);
    CHECK_OK(sym_barrier(group->sym));
    stage_close(&s);
}

/* A word, a block, and data after both, each in a place of its own, the last word of each its flag. */
enum { JOINED_PARTS = 3, JOINED_BYTES = 65536 };

static size_t joined_words(uint64_t round, int part)
{
    static const size_t bytes[][JOINED_PARTS] = {{8, 40, 8}, {8, 1000, 3000}, {16, 8, 9000}, {8, 1096, 64000}};
    return bytes[round % ARRAY_LENGTH(bytes)][part] / sizeof(uint64_t);
}

static uint64_t joined_at(const stage *s, int part)
{
    return s->area + (uint64_t)part * JOINED_BYTES;
}

/* Whether the transport joins them; what goes ahead is other bytes as soon as it has been posted. */
static bool post_joined(stage *s, int32_t pe, uint64_t round, uint64_t *sources, transport_batch *batch)
{
    transport_ahead parts[JOINED_PARTS];
    for (int i = 0; i < JOINED_PARTS; i++) {
        uint64_t *source = sources + (size_t)i * JOINED_BYTES / sizeof *sources;
        parts[i] = (transport_ahead){.offset = joined_at(s, i), .source = source, .bytes = 8 * joined_words(round, i)};
        for (size_t w = 0; w < joined_words(round, i); w++)
            source[w] = round << 32 | (uint64_t)i;
    }
    const transport_request put = {.kind = TRANSPORT_KIND_PUT,
                                   .pe = pe,
                                   .offset = parts[JOINED_PARTS - 1].offset,
                                   .source = parts[JOINED_PARTS - 1].source,
                                   .bytes = parts[JOINED_PARTS - 1].bytes,
                                   .flagged = true,
                                   .leads = true,
                                   .ahead = parts,
                                   .num_ahead = JOINED_PARTS - 1};
    if (!s->via->ops->joins || !s->via->ops->joins(s->via, &put)) return false;
    CHECK_OK(transport_post(s->via, &s->group->sym->site, &put, batch));
    memset(sources, 0xff, (size_t)(JOINED_PARTS - 1) * JOINED_BYTES);
    return true;
}

static uint64_t check_joined(const stage *s, uint64_t round)
{
    uint64_t wrong = 0;
    if (s->via->ops->behold) s->via->ops->behold(s->via);
    for (int i = 0; i < JOINED_PARTS; i++) {
        const uint64_t *came = (const uint64_t *)(const void *)own(s, joined_at(s, i));
        for (size_t w = 0; w < joined_words(round, i); w++)
            wrong += came[w] != (round << 32 | (uint64_t)i);
    }
    return wrong;
}

/* Data that goes ahead of a put in its message is there before the put is. */
void suite_joined_puts(expar_group *group, void *shared)
{
    enum { ROUNDS = 24, LAST = JOINED_PARTS - 1 };
    stage s;
    if (!stage_open(&s, group, shared, (uint64_t)JOINED_PARTS * JOINED_BYTES)) return;
    int32_t next = (group->rank + 1) % group->size;
    uint64_t wrong = 0, *sources = calloc(JOINED_PARTS, JOINED_BYTES);
    transport_batch batch = {0};
    memset(own(&s, s.area), 0, (size_t)JOINED_PARTS * JOINED_BYTES);
    CHECK_OK(sym_barrier(group->sym));
    for (uint64_t round = 1; round <= ROUNDS && post_joined(&s, next, round, sources, &batch); round++) {
        const uint64_t flag = joined_at(&s, LAST) + (joined_words(round, LAST) - 1) * sizeof *sources;
        if (!suite_await_word(group, (const _Atomic uint64_t *)(void *)own(&s, flag), round << 32)) break;
        wrong += check_joined(&s, round);
        settle(&s, &batch);
        CHECK_OK(sym_barrier(group->sym)); /* read before the next round overwrites */
    }
    CHECK(wrong == 0, "%llu words are wrong", (unsigned long long)wrong);
    settle(&s, &batch);
    free(sources);
    CHECK_OK(sym_barrier(group->sym));
    stage_close(&s);
}

#define MANY 3000

/* More than any queue holds, none of them waited for: progress frees places. */
void suite_full_queue(expar_group *group, void *shared)
{
    stage s;
    if (!stage_open(&s, group, shared, MANY * 8)) return;
    int32_t next = (group->rank + 1) % group->size;
    uint64_t *sent = malloc(MANY * sizeof *sent), wrong = 0;
    transport_batch batch = {0};
    for (uint64_t i = 0; i < MANY; i++) {
        sent[i] = i * 5 + 1;
        transport_request put = {
            .kind = TRANSPORT_KIND_PUT, .pe = next, .offset = s.area + 8 * i, .source = &sent[i], .bytes = 8};
        CHECK_OK(transport_post(s.via, &group->sym->site, &put, i % 2 ? &batch : NULL));
    }
    settle(&s, &batch);
    CHECK_OK(s.via->ops->quiet(s.via));
    CHECK_OK(sym_barrier(group->sym));
    for (uint64_t i = 0; i < MANY; i++)
        wrong += ((const uint64_t *)(const void *)own(&s, s.area))[i] != i * 5 + 1;
    CHECK(wrong == 0, "%llu words are wrong", (unsigned long long)wrong);
    free(sent);
    CHECK_OK(sym_barrier(group->sym));
    stage_close(&s);
}
