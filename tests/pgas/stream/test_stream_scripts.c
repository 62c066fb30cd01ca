/* SPDX-License-Identifier: Apache-2.0 */
/* Random scripts of calls on streams and of the host, on memory of all kinds. Each rank has two lanes, one on a stream
 * and one of the host, and each lane writes its own part of every block. Each rank computes from all scripts what its
 * memory must hold. Ranks are threads or processes, also of several simulated nodes (argument mix). */
#include "pgas/stream/streams.h"

/* A lane's part of a block. Half of it is changed by puts and gets, and the rest by single elements. */
#define PART_BYTES 40000
#define HALF_BYTES (PART_BYTES / 2)
#define LANES      2
#define WORDS      4
#define ROUNDS     3
#define STEPS      12

enum { ON_STREAM, ON_HOST };

/* A rank's memory. Blocks are [size][LANES][PART_BYTES], and words are [WORDS]. */
typedef struct memories {
    uint8_t *blocks[KINDS];
    uint64_t *words[KINDS];
    uint8_t *outside; /* other memory of the GPU, [PART_BYTES] */
    uint8_t *ordinary;
} memories;

typedef struct model {
    size_t block_bytes;
    uint8_t *blocks;                 /* [size][KINDS][block_bytes] */
    uint64_t (*words)[KINDS][WORDS]; /* [size] */
} model;

typedef enum step_kind {
    PUT,
    PUT_CTX,
    PUT_OUTSIDE,
    PUT_ORDINARY,
    GET,
    P8,
    P16,
    P32,
    P64,
    PUT_ADD,
    ADD,
    STEP_KINDS
} step_kind;

typedef struct step {
    step_kind what;
    int32_t pe;
    expar_memory_kind kind, own_kind;
    size_t at, own_at, bytes;
    uint64_t value;
    int word;
} step;

static uint32_t draw(uint64_t *random, uint32_t below)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*random >> 33) % below;
}

static step step_draw(uint64_t *random, int32_t size)
{
    static const size_t sizes[] = {1, 3, 8, 64, 1000, 4096, 9001};
    step s = {.what = (step_kind)draw(random, STEP_KINDS),
              .pe = (int32_t)draw(random, (uint32_t)size),
              .kind = (expar_memory_kind)draw(random, KINDS),
              .own_kind = (expar_memory_kind)draw(random, KINDS)};
    s.bytes = sizes[draw(random, ARRAY_LENGTH(sizes))];
    s.at = draw(random, (uint32_t)(HALF_BYTES - s.bytes));
    s.own_at = draw(random, (uint32_t)(HALF_BYTES - s.bytes));
    s.value = (uint64_t)draw(random, 1u << 30) << 32 | draw(random, 1u << 30);
    s.word = (int)draw(random, WORDS);
    /* A copy within one block must not overlap. */
    if (s.kind == s.own_kind) s.own_kind = (expar_memory_kind)((s.own_kind + 1) % KINDS);
    return s;
}

/* A lane's part of a block. */
static size_t part_at(int32_t rank, int lane)
{
    return ((size_t)rank * LANES + (size_t)lane) * PART_BYTES;
}

/* Elements lie in the second half, each at a multiple of its size. */
static size_t element_at(const step *s)
{
    return HALF_BYTES + s->at / 16 * 8;
}

static size_t element_bytes(const step *s)
{
    return s->what == P8 ? 1 : s->what == P16 ? 2 : s->what == P32 ? 4 : 8;
}

/* ---- what must be there ------------------------------------------------------------------------------------------ */

static uint8_t *model_part(const model *m, int32_t pe, expar_memory_kind kind, int32_t rank, int lane)
{
    return m->blocks + ((size_t)pe * KINDS + (size_t)kind) * m->block_bytes + part_at(rank, lane);
}

static void model_step(const model *m, int32_t rank, int lane, const step *s)
{
    uint8_t *to = model_part(m, s->pe, s->kind, rank, lane), *own = model_part(m, rank, s->own_kind, rank, lane);
    switch (s->what) {
    case PUT:
    case PUT_CTX:
    case PUT_ADD:
        memcpy(to + s->at, own + s->own_at, s->bytes);
        if (s->what == PUT_ADD) m->words[s->pe][s->kind][s->word] += s->value;
        return;
    case PUT_OUTSIDE:
    case PUT_ORDINARY:
        for (size_t i = 0; i < s->bytes; i++)
            to[s->at + i] = pattern((uint32_t)rank, s->own_at + i);
        return;
    case GET:
        memcpy(own + s->own_at, to + s->at, s->bytes);
        return;
    case P8:
    case P16:
    case P32:
    case P64:
        memcpy(to + element_at(s), &s->value, element_bytes(s));
        return;
    case ADD:
    case STEP_KINDS:
        m->words[s->pe][s->kind][s->word] += s->value;
    }
}

static bool model_make(int32_t size, model *m)
{
    m->block_bytes = (size_t)size * LANES * PART_BYTES;
    m->blocks = calloc((size_t)size * KINDS, m->block_bytes);
    m->words = calloc((size_t)size, sizeof *m->words);
    return CHECK(m->blocks && m->words, "no memory");
}

/* ---- carrying a step out ----------------------------------------------------------------------------------------- */

static expar_status p_of(expar_group *group, void *stream, const step *s, uint8_t *at)
{
    void *to = at + element_at(s);
    switch (s->what) {
    case P8:
        return stream ? expar_p_u8_on_stream(group, to, (uint8_t)s->value, s->pe, stream)
                      : expar_p_u8(group, to, (uint8_t)s->value, s->pe);
    case P16:
        return stream ? expar_p_u16_on_stream(group, to, (uint16_t)s->value, s->pe, stream)
                      : expar_p_u16(group, to, (uint16_t)s->value, s->pe);
    case P32:
        return stream ? expar_p_u32_on_stream(group, to, (uint32_t)s->value, s->pe, stream)
                      : expar_p_u32(group, to, (uint32_t)s->value, s->pe);
    default:
        return stream ? expar_p_u64_on_stream(group, to, s->value, s->pe, stream)
                      : expar_p_u64(group, to, s->value, s->pe);
    }
}

static expar_status put_of(expar_group *group, expar_ctx *ctx, void *stream, const step *s, void *dest,
                           const void *source)
{
    if (!stream) return expar_put(group, dest, source, s->bytes, s->pe);
    return s->what == PUT_CTX ? expar_ctx_put_on_stream(ctx, dest, source, s->bytes, s->pe, stream)
                              : expar_put_on_stream(group, dest, source, s->bytes, s->pe, stream);
}

/* stream NULL: the host's lane. */
static expar_status do_step(expar_group *group, expar_ctx *ctx, const memories *m, void *stream, const step *s)
{
    const int lane = stream ? ON_STREAM : ON_HOST;
    uint8_t *to = m->blocks[s->kind] + part_at(group->rank, lane), *dest = to + s->at;
    uint8_t *own = m->blocks[s->own_kind] + part_at(group->rank, lane) + s->own_at;
    uint64_t *word = &m->words[s->kind][s->word];
    switch (s->what) {
    case PUT:
    case PUT_CTX:
        return put_of(group, ctx, stream, s, dest, own);
    case PUT_OUTSIDE:
        return put_of(group, ctx, stream, s, dest, m->outside + s->own_at);
    case PUT_ORDINARY:
        return put_of(group, ctx, stream, s, dest, m->ordinary + s->own_at);
    case GET:
        return stream ? expar_get_on_stream(group, own, dest, s->bytes, s->pe, stream)
                      : expar_get(group, own, dest, s->bytes, s->pe);
    case PUT_ADD:
        return stream ? expar_put_signal_on_stream(group, dest, own, s->bytes, word, s->value, EXPAR_SIGNAL_ADD, s->pe,
                                                   stream)
                      : expar_put_signal(group, dest, own, s->bytes, word, s->value, EXPAR_SIGNAL_ADD, s->pe);
    case ADD:
        return stream ? expar_signal_op_on_stream(group, word, s->value, EXPAR_SIGNAL_ADD, s->pe, stream)
                      : expar_atomic_add_u64(group, word, s->value, s->pe);
    default:
        return p_of(group, stream, s, to);
    }
}

/* ---- rounds ------------------------------------------------------------------------------------------------------ */

/* Both lanes of all ranks draw their steps anew from this. */
static uint64_t seed_of(int32_t rank, int lane, int round)
{
    return 7919 * (uint64_t)(rank + 1) + 104729 * (uint64_t)lane + 1299709 * (uint64_t)(round + 1);
}

static void run_round(expar_group *group, expar_ctx *ctx, const memories *m, void *stream, int round)
{
    uint64_t on_stream = seed_of(group->rank, ON_STREAM, round), on_host = seed_of(group->rank, ON_HOST, round);
    for (int i = 0; i < STEPS; i++) {
        const step first = step_draw(&on_stream, group->size), second = step_draw(&on_host, group->size);
        CHECK_OK(do_step(group, ctx, m, stream, &first));
        CHECK_OK(do_step(group, ctx, m, NULL, &second));
        /* The host's next step may read what this one has put. */
        CHECK_OK(expar_quiet(group));
    }
    CHECK_OK(expar_ctx_quiet_on_stream(ctx, stream));
    CHECK_OK(expar_quiet_on_stream(group, stream));
    CHECK_OK(expar_barrier_all_on_stream(group, stream));
}

static void model_round(const model *m, int32_t size, int round)
{
    for (int32_t rank = 0; rank < size; rank++)
        for (int lane = 0; lane < LANES; lane++) {
            uint64_t random = seed_of(rank, lane, round);
            for (int i = 0; i < STEPS; i++) {
                const step s = step_draw(&random, size);
                model_step(m, rank, lane, &s);
            }
        }
}

static void check_memory(const expar_group *group, const memories *m, const model *all)
{
    uint8_t *seen = malloc(all->block_bytes);
    uint64_t words[WORDS];
    for (int k = 0; k < KINDS; k++) {
        const expar_memory_kind kind = (expar_memory_kind)k;
        const uint8_t *wanted = model_part(all, group->rank, kind, 0, 0);
        size_t wrong = 0, first = 0;
        read_from(group, kind, m->blocks[k], seen, all->block_bytes);
        for (size_t i = all->block_bytes; i-- > 0;)
            if (seen[i] != wanted[i]) wrong++, first = i;
        CHECK(wrong == 0, "%zu bytes of %s memory are wrong, the first at %zu: lane %zu of rank %zu", wrong,
              kind_names[k], first, first / PART_BYTES % LANES, first / PART_BYTES / LANES);
        read_from(group, kind, m->words[k], words, sizeof words);
        CHECK(memcmp(words, all->words[group->rank][k], sizeof words) == 0, "words of %s memory are wrong",
              kind_names[k]);
    }
    free(seen);
}

static bool memories_take(expar_group *group, memories *m, size_t block_bytes)
{
    for (int k = 0; k < KINDS; k++) {
        m->blocks[k] = take_zeros(group, (expar_memory_kind)k, block_bytes);
        m->words[k] = take_zeros(group, (expar_memory_kind)k, WORDS * sizeof(uint64_t));
        if (!m->blocks[k] || !m->words[k]) return false;
    }
    m->outside = take_outside(group, PART_BYTES);
    m->ordinary = malloc(PART_BYTES);
    if (!m->outside || !m->ordinary) return false;
    fill_block(group, EXPAR_MEMORY_DEVICE, m->outside, PART_BYTES, (uint32_t)group->rank);
    fill_block(group, EXPAR_MEMORY_HOST, m->ordinary, PART_BYTES, (uint32_t)group->rank);
    return true;
}

static void scripts(expar_group *group, void *shared)
{
    (void)shared;
    memories m;
    model all;
    test_stream s;
    expar_team *world;
    expar_ctx *ctx;
    if (!model_make(group->size, &all) || !memories_take(group, &m, all.block_bytes)) return;
    CHECK_OK(expar_team_get_world(group, &world));
    CHECK_OK(expar_ctx_create(world, NULL, &ctx));
    if (!stream_open(group, &s)) return;
    CHECK_OK(expar_barrier_all(group));
    for (int round = 0; round < ROUNDS; round++) {
        run_round(group, ctx, &m, s.stream, round);
        stream_await(&s);
        CHECK_OK(expar_barrier_all(group));
        model_round(&all, group->size, round);
        check_memory(group, &m, &all);
        CHECK_OK(expar_barrier_all(group));
    }
    CHECK_OK(expar_group_query(group));
    CHECK_OK(expar_ctx_query(ctx));
    stream_close(&s);
    give_outside(group, m.outside);
    free(m.ordinary);
    free(all.blocks);
    free(all.words);
}

static void test_scripts(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, scripts);
    kind_run((ranks_plan){0}, 4, scripts);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_scripts)};
    kind_read(argc, argv);
    stream_queues();
    num_gpus = gpus_count(1);
    if (num_gpus < 1) return GPUS_SKIP;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
