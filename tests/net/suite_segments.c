/* SPDX-License-Identifier: Apache-2.0 */
/* Part of the suite for transports: segments beside the heap. Data and signal go each to the memory that they name;
 * memory that a transport does not know is rejected by name. */
#include "suite.h"

#include <string.h>

#define PINNED_BYTES ((size_t)1 << 20)
#define DATA_BYTES   12000u /* more than a transport stages */
#define WORD_AT      65536u

/* A transport over a group's heap and a pinned segment, which here is host memory that nobody has pinned. */
typedef struct pinned_stage {
    stage base;
    transport_site site;
    mem_region region;
} pinned_stage;

/* Rank threads find each other's segments there, as they find heaps in the group. */
static const mem_region *regions[SUITE_MOST_RANKS];

/* added: the transport is opened without the segment, and gets it afterwards. */
static bool pinned_open(pinned_stage *p, expar_group *group, const subject *who, bool added)
{
    *p = (pinned_stage){.base.group = group, .site = group->sym->site};
    if (!CHECK_OK(mem_region_create(PINNED_BYTES, true, &p->region)) ||
        !CHECK_OK(mem_region_open(&p->region, PINNED_BYTES)))
        return false;
    memset(p->region.base, 0, PINNED_BYTES);
    regions[group->rank] = &p->region;
    const bool threads = p->site.segments[TRANSPORT_HOST].peers != NULL;
    const transport_segment segment = {.region = &p->region, .peers = threads ? regions : NULL};
    if (!added) p->site.segments[TRANSPORT_PINNED] = segment;
    if (!CHECK_OK(sym_barrier(group->sym))) return false;
    if (!stage_open_at(&p->base, group, who, &p->site, 4096)) return false;
    transport *via = p->base.via;
    if (added) CHECK(via->ops->reach(via, group->rank, TRANSPORT_PINNED) == 0, "a missing segment is reached");
    p->site.segments[TRANSPORT_PINNED] = segment;
    if (added && !CHECK_OK(via->ops->add(via, TRANSPORT_PINNED))) return false;
    return (!via->ops->grow || CHECK_OK(via->ops->grow(via, TRANSPORT_PINNED, 0, PINNED_BYTES))) &&
           CHECK_OK(sym_barrier(group->sym));
}

static void pinned_close(pinned_stage *p)
{
    CHECK_OK(sym_barrier(p->base.group->sym));
    stage_close(&p->base);
    CHECK_OK(sym_barrier(p->base.group->sym));
    mem_region_close(&p->region);
}

static void fill(uint8_t *at, int32_t from, int32_t to)
{
    for (size_t i = 0; i < DATA_BYTES; i++)
        at[i] = (uint8_t)(i * 7 + (size_t)from * 31 + (size_t)to * 13 + 1);
}

/* A put into pinned memory whose signal lies in the heap, or the other way round. */
static void signal_across(pinned_stage *p, transport_memory data, transport_memory signal, uint64_t word)
{
    const int32_t rank = p->base.group->rank, size = p->base.group->size;
    const int32_t next = (rank + 1) % size, before = (rank + size - 1) % size;
    const uint64_t places[] = {[TRANSPORT_HOST] = p->base.area, [TRANSPORT_PINNED] = WORD_AT};
    uint8_t *bases[] = {[TRANSPORT_HOST] = own(&p->base, 0), [TRANSPORT_PINNED] = p->region.base};
    static _Thread_local uint8_t sent[DATA_BYTES], expected[DATA_BYTES];
    transport_batch batch = {0};
    const size_t bytes = data == TRANSPORT_PINNED ? DATA_BYTES : 2048;
    fill(sent, rank, next);
    const transport_request put = {.kind = TRANSPORT_KIND_PUT,
                                   .pe = next,
                                   .memory = (uint8_t)data,
                                   .offset = data == TRANSPORT_PINNED ? 0 : places[data],
                                   .source = sent,
                                   .bytes = bytes,
                                   .signals = true,
                                   .signal_memory = (uint8_t)signal,
                                   .signal_offset = places[signal] + (signal == TRANSPORT_HOST ? 2048 : 0),
                                   .op = TRANSPORT_SET,
                                   .operand = word};
    CHECK_OK(transport_post(p->base.via, &p->site, &put, &batch));
    suite_await_word(p->base.group, (const _Atomic uint64_t *)(bases[signal] + put.signal_offset), word);
    fill(expected, before, rank);
    CHECK(memcmp(bases[data] + put.offset, expected, bytes) == 0, "data in %s memory is not there with its signal",
          transport_memory_name(data));
    if (p->base.via->ops->settle) CHECK_OK(p->base.via->ops->settle(p->base.via, &batch));
    CHECK_OK(sym_barrier(p->base.group->sym));
}

/* Runs an atomic, and a get of what it left. */
static void change_and_get(pinned_stage *p)
{
    const int32_t next = (p->base.group->rank + 1) % p->base.group->size;
    const uint64_t offset = PINNED_BYTES - sizeof(uint64_t);
    uint64_t old = 99, back = 0;
    transport_request request = {.kind = TRANSPORT_KIND_ATOMIC,
                                 .pe = next,
                                 .memory = TRANSPORT_PINNED,
                                 .offset = offset,
                                 .dest = &old,
                                 .bytes = sizeof old,
                                 .op = TRANSPORT_ADD,
                                 .operand = 41};
    CHECK_OK(p->base.via->ops->run(p->base.via, &request));
    request.kind = TRANSPORT_KIND_GET;
    request.dest = &back;
    CHECK_OK(p->base.via->ops->run(p->base.via, &request));
    CHECK(old == 0 && back == 41, "an atomic on pinned memory: %llu, then %llu", (unsigned long long)old,
          (unsigned long long)back);
}

/* No transport of this build knows memory of GPUs. */
static void reject_device(pinned_stage *p, bool grows)
{
    transport *via = p->base.via;
    uint64_t word = 1;
    const transport_request get = {.kind = TRANSPORT_KIND_GET,
                                   .pe = p->base.group->rank,
                                   .memory = TRANSPORT_DEVICE,
                                   .dest = &word,
                                   .bytes = sizeof word};
    CHECK(via->ops->reach(via, get.pe, TRANSPORT_DEVICE) == 0, "device memory is reached");
    if (grows) CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, via->ops->grow(via, TRANSPORT_DEVICE, 0, 4096));
    if (grows) CHECK_TEXT("kind device");
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, via->ops->run(via, &get));
    CHECK_TEXT("reaches no memory of kind device");
    CHECK(word == 1, "what was refused has written %llu", (unsigned long long)word);
}

static void segments_of(expar_group *group, const subject *who, bool added)
{
    pinned_stage p;
    if (!pinned_open(&p, group, who, added)) return;
    const uint64_t first = added ? 101 : 1; /* the heap's word may be left from the run before */
    for (uint64_t word = first; word < first + 20; word++) {
        signal_across(&p, TRANSPORT_PINNED, TRANSPORT_HOST, word);
        signal_across(&p, TRANSPORT_HOST, TRANSPORT_PINNED, word);
    }
    change_and_get(&p);
    reject_device(&p, who->ops->grow != NULL);
    pinned_close(&p);
}

void suite_segments(expar_group *group, void *shared)
{
    const subject *who = shared;
    segments_of(group, who, false);
    if (who->ops->add && !who->late) segments_of(group, who, true);
}
