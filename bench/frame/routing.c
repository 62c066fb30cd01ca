/* SPDX-License-Identifier: Apache-2.0 */
/* Generators of routings. Every token has its own random stream (from seed, rank and token), so a token's experts do
 * not depend on how many tokens there are. */
#include "bench/frame/routing.h"
#include "bench/frame/npy.h"
#include "bench/frame/splitmix.h"
#include "text.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUM_GROUPS    8
#define PICKED_GROUPS 4

/* ---- random numbers ---------------------------------------------------------------------------------------------- */

/* Returns a number in 0 … bound-1, bound < 2^32. */
static int next_below(uint64_t *stream, int bound)
{
    return (int)(((splitmix_next(stream) >> 32) * (uint64_t)bound) >> 32);
}

/* Returns a number in (0, 1]. */
static double next_unit(uint64_t *stream)
{
    return (double)((splitmix_next(stream) >> 11) + 1) * 0x1p-53;
}

/* Returns the start of a token's stream. */
static uint64_t stream_of(uint64_t seed, uint64_t rank, uint64_t token)
{
    uint64_t stream = splitmix_of(seed) ^ (rank << 40 | token);
    splitmix_next(&stream);
    return stream;
}

/* ---- generators: the experts of one token ------------------------------------------------------------------------ */

struct generator {
    struct routing_shape shape;
    uint64_t seed;
    double first, second; /* numbers after the name */
    int *order;           /* [experts] scratch, or for zipf and incast the experts by popularity */
    double *keys;         /* [experts] scratch of zipf */
    int *rest;            /* [experts] scratch of incast and skew */
};

/* Writes the first `picks` of a shuffled 0 … count-1. */
static void shuffle_some(uint64_t *stream, int *order, int count, int picks)
{
    for (int i = 0; i < count; i++)
        order[i] = i;
    for (int i = 0; i < picks; i++) {
        int other = i + next_below(stream, count - i), kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
}

static void pick_uniform(struct generator *generator, uint64_t *stream, int32_t *experts)
{
    shuffle_some(stream, generator->order, generator->shape.experts, generator->shape.topk);
    for (int k = 0; k < generator->shape.topk; k++)
        experts[k] = generator->order[k];
}

/* Weighted sampling without replacement: the K least of exponential variates with the weights as rates
   (Efraimidis, Spirakis, 2006). */
static void pick_zipf(struct generator *generator, uint64_t *stream, int32_t *experts)
{
    int count = generator->shape.experts;
    for (int i = 0; i < count; i++)
        generator->keys[i] = -log(next_unit(stream)) * pow(i + 1, generator->first);
    for (int k = 0; k < generator->shape.topk; k++) {
        int least = 0;
        for (int i = 1; i < count; i++)
            if (generator->keys[i] < generator->keys[least]) least = i;
        experts[k] = generator->order[least];
        generator->keys[least] = HUGE_VAL;
    }
}

static void pick_grouped(struct generator *generator, uint64_t *stream, int32_t *experts)
{
    int groups[NUM_GROUPS], size = generator->shape.experts / NUM_GROUPS;
    shuffle_some(stream, groups, NUM_GROUPS, PICKED_GROUPS);
    shuffle_some(stream, generator->order, PICKED_GROUPS * size, generator->shape.topk);
    for (int k = 0; k < generator->shape.topk; k++)
        experts[k] = groups[generator->order[k] / size] * size + generator->order[k] % size;
}

/* Picks K distinct experts. Each is one of the `hot` first of `order` with a probability, and else one of the others,
   as far as there are any left. Shuffles both parts. */
static void pick_two_parts(struct generator *generator, uint64_t *stream, int hot, double probability, int *order,
                           int32_t *experts)
{
    int taken = 0, others = 0;
    const int topk = generator->shape.topk, rest = generator->shape.experts - hot;
    for (int k = 0; k < topk; k++) {
        const bool wants_hot = next_unit(stream) <= probability;
        const bool is_hot = wants_hot ? taken < hot : others == rest;
        const int first = is_hot ? taken : hot + others;
        const int other = first + next_below(stream, is_hot ? hot - taken : rest - others), kept = order[first];
        order[first] = order[other];
        order[other] = kept;
        experts[k] = order[first];
        taken += is_hot;
        others += !is_hot;
    }
}

static void pick_incast(struct generator *generator, uint64_t *stream, int32_t *experts)
{
    memcpy(generator->rest, generator->order, (size_t)generator->shape.experts * sizeof *generator->rest);
    pick_two_parts(generator, stream, (int)generator->first, generator->second, generator->rest, experts);
}

static void pick_skew(struct generator *generator, uint64_t *stream, int32_t *experts)
{
    const struct routing_shape *shape = &generator->shape;
    const int each = shape->experts / shape->num_ranks;
    const int first = (int)(generator->seed % (uint64_t)shape->num_ranks) * each;
    for (int i = 0; i < shape->experts; i++)
        generator->rest[i] = (first + i) % shape->experts;
    pick_two_parts(generator, stream, each, generator->first / (generator->first + shape->num_ranks - 1),
                   generator->rest, experts);
}

static void pick_onehot(struct generator *generator, uint64_t *stream, int32_t *experts)
{
    (void)stream;
    experts[0] = (int32_t)(generator->seed % (uint64_t)generator->shape.experts);
    for (int k = 1; k < generator->shape.topk; k++)
        experts[k] = -1;
}

/* A generator, and the numbers after its name: how many there may be, how many there must be. */
static const struct known {
    const char *name;
    void (*pick)(struct generator *generator, uint64_t *stream, int32_t *experts);
    int most_numbers, least_numbers;
    double least[2], most[2];
} generators[] = {{"uniform", pick_uniform, 0, 0, {0}, {0}},
                  {"zipf", pick_zipf, 1, 0, {0}, {16}},
                  {"grouped", pick_grouped, 0, 0, {0}, {0}},
                  {"onehot", pick_onehot, 0, 0, {0}, {0}},
                  {"incast", pick_incast, 2, 0, {1, 0}, {ROUTING_MAX_EXPERTS, 1}},
                  {"skew", pick_skew, 1, 1, {0, 0}, {1e6}}};

/* Reads the numbers after a name, which commas divide. Returns how many there are; -1: they are wrong. */
static int read_numbers(const struct known *known, const char *text, double numbers[2])
{
    char copy[64], *rest = copy, *entry;
    int count = 0;
    if (strlen(text) >= sizeof copy) return -1;
    snprintf(copy, sizeof copy, "%s", text);
    while ((entry = strsep(&rest, ","))) {
        if (count == known->most_numbers ||
            !text_to_real(entry, known->least[count], known->most[count], &numbers[count]))
            return -1;
        count++;
    }
    return count;
}

/* Finds the generator of a name, and the numbers after it; NULL: it is unknown, or a number is out of range. *count:
   how many numbers there are. */
static const struct known *find(const char *name, double numbers[2], int *count)
{
    const size_t length = strcspn(name, ":");
    for (size_t i = 0; i < sizeof generators / sizeof *generators; i++) {
        const struct known *known = &generators[i];
        if (strlen(known->name) != length || strncmp(known->name, name, length) != 0) continue;
        *count = name[length] ? read_numbers(known, name + length + 1, numbers) : 0;
        return *count < known->least_numbers ? NULL : known;
    }
    return NULL;
}

/* Sets the numbers of a generator. Those that were not given have their defaults. */
static const struct known *set_numbers(const char *name, struct generator *generator)
{
    double numbers[2];
    int count;
    const struct known *known = find(name, numbers, &count);
    const int eighth = generator->shape.experts / 8;
    const bool incast = known && known->pick == pick_incast;
    generator->first = known && count > 0 ? numbers[0] : incast ? (eighth ? eighth : 1) : 1;
    generator->second = known && count > 1 ? numbers[1] : 0.9;
    return known;
}

static int32_t *generate(const char *name, const struct routing_shape *shape, uint64_t seed)
{
    struct generator generator = {.shape = *shape, .seed = seed};
    size_t count = (size_t)shape->num_ranks * (size_t)shape->tokens;
    int32_t *routing = calloc(count * (size_t)shape->topk + 1, sizeof *routing);
    generator.order = calloc((size_t)shape->experts, sizeof *generator.order);
    generator.keys = calloc((size_t)shape->experts, sizeof *generator.keys);
    generator.rest = calloc((size_t)shape->experts, sizeof *generator.rest);
    const struct known *known = set_numbers(name, &generator);
    bool made = routing && generator.order && generator.keys && generator.rest && known;
    if (made) {
        uint64_t popularity = stream_of(seed, UINT64_C(1) << 23, 0);
        shuffle_some(&popularity, generator.order, shape->experts, shape->experts);
    }
    for (size_t i = 0; made && i < count; i++) {
        size_t tokens = (size_t)shape->tokens;
        uint64_t stream = stream_of(seed, i / tokens, i % tokens);
        known->pick(&generator, &stream, routing + i * (size_t)shape->topk);
    }
    free(generator.order);
    free(generator.keys);
    free(generator.rest);
    if (!made) free(routing);
    return made ? routing : NULL;
}

/* ---- recorded routings ------------------------------------------------------------------------------------------- */

/* Reads the file and its meaning: rows of K experts. */
static bool read_file(const char *path, struct npy *array, int *topk, char *error, size_t error_bytes)
{
    if (!npy_read(path, array, error, error_bytes)) return false;
    int64_t last = array->num_dims > 0 ? array->shape[array->num_dims - 1] : 0;
    bool dims = array->num_dims == 2 || array->num_dims == 3;
    if (dims && last >= 1 && last <= ROUTING_MAX_TOPK && array->count > 0) {
        *topk = (int)last;
        return true;
    }
    snprintf(error, error_bytes, "%s: a shape of [layer][token][k] or [token][k] with 1 to %d for k is expected", path,
             ROUTING_MAX_TOPK);
    npy_free(array);
    return false;
}

static bool check_values(const char *path, const struct npy *array, int experts, char *error, size_t error_bytes)
{
    for (int64_t i = 0; i < array->count; i++)
        if (array->values[i] < -1 || array->values[i] >= experts) {
            snprintf(error, error_bytes, "%s: element %lld is %d, which is no expert of %d", path, (long long)i,
                     (int)array->values[i], experts);
            return false;
        }
    return true;
}

static bool check_file(const char *path, struct routing_shape *shape, char *error, size_t error_bytes)
{
    struct npy array;
    int topk;
    if (!read_file(path, &array, &topk, error, error_bytes)) return false;
    int32_t largest = 0;
    for (int64_t i = 0; i < array.count; i++)
        if (array.values[i] > largest) largest = array.values[i];
    bool good = shape->topk == 0 || shape->topk == topk;
    if (!good) snprintf(error, error_bytes, "%s: it has %d experts a token; --topk says %d", path, topk, shape->topk);
    shape->topk = topk;
    if (shape->experts == 0 && largest < ROUTING_MAX_EXPERTS)
        shape->experts = (largest / shape->num_ranks + 1) * shape->num_ranks;
    good = good && check_values(path, &array, shape->experts, error, error_bytes);
    npy_free(&array);
    return good;
}

static int32_t *from_file(const char *path, const struct routing_shape *shape, char *error, size_t error_bytes)
{
    struct npy array;
    int topk;
    if (!read_file(path, &array, &topk, error, error_bytes)) return NULL;
    size_t count = (size_t)shape->num_ranks * (size_t)shape->tokens * (size_t)topk;
    int32_t *routing = NULL;
    bool good = topk == shape->topk && check_values(path, &array, shape->experts, error, error_bytes);
    if (good) routing = calloc(count + 1, sizeof *routing);
    for (size_t i = 0; routing && i < count; i++)
        routing[i] = array.values[i % (size_t)array.count];
    npy_free(&array);
    return routing;
}

/* ---- by name ----------------------------------------------------------------------------------------------------- */

bool routing_is_file(const char *name)
{
    size_t length = strlen(name);
    return length > 4 && !strcmp(name + length - 4, ".npy");
}

bool routing_is_known(const char *name)
{
    double numbers[2];
    int count;
    return find(name, numbers, &count) != NULL;
}

/* Says in `error` why the groups cannot serve a shape. */
static bool check_grouped(const struct routing_shape *shape, char *error, size_t error_bytes)
{
    if (shape->experts % NUM_GROUPS) {
        snprintf(error, error_bytes, "--routing grouped needs a multiple of %d experts; --experts is %d", NUM_GROUPS,
                 shape->experts);
        return false;
    }
    if (shape->topk > PICKED_GROUPS * (shape->experts / NUM_GROUPS)) {
        snprintf(error, error_bytes, "--routing grouped takes its experts from %d of %d groups; --topk %d is too many",
                 PICKED_GROUPS, NUM_GROUPS, shape->topk);
        return false;
    }
    return true;
}

/* The same of the numbers after a name. */
static bool check_numbers(const char *name, const struct routing_shape *shape, char *error, size_t error_bytes)
{
    struct generator generator = {.shape = *shape};
    const struct known *known = set_numbers(name, &generator);
    if (known && known->pick == pick_skew && shape->num_ranks < 2) {
        snprintf(error, error_bytes, "--routing %s needs 2 ranks or more", name);
        return false;
    }
    const bool whole = generator.first <= shape->experts && generator.first == floor(generator.first);
    if (!known || known->pick != pick_incast || whole) return true;
    snprintf(error, error_bytes, "--routing %s: a number of experts from 1 to --experts %d is expected", name,
             shape->experts);
    return false;
}

bool routing_check(const char *name, struct routing_shape *shape, char *error, size_t error_bytes)
{
    if (routing_is_file(name)) return check_file(name, shape, error, error_bytes);
    if (shape->topk > shape->experts) {
        snprintf(error, error_bytes, "--topk %d is more than --experts %d", shape->topk, shape->experts);
        return false;
    }
    if (!strcmp(name, "grouped") && !check_grouped(shape, error, error_bytes)) return false;
    return check_numbers(name, shape, error, error_bytes);
}

int32_t *routing_make(const char *name, const struct routing_shape *shape, uint64_t seed, char *error,
                      size_t error_bytes)
{
    snprintf(error, error_bytes, "out of memory for the routing");
    return routing_is_file(name) ? from_file(name, shape, error, error_bytes) : generate(name, shape, seed);
}
