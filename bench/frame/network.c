/* SPDX-License-Identifier: Apache-2.0 */
/* Bare puts to other nodes. */
#include "bench/frame/network.h"
#include <stdlib.h>
#include <string.h>

struct network_limit {
    const struct bench_world *world;
    size_t *bytes;         /* [N][N] from each rank to each other one */
    unsigned char *memory; /* symmetric: what comes, sources ascending; then what goes, from `own` on */
    size_t own, total;
    size_t row; /* bytes of a row that is put by itself, with a signal; 0: bytes go by puts alone */
    /* For rows: the symmetric counter that the others' puts raise, how many come in a turn, and in all turns so far. */
    uint64_t *came, comes, awaited;
};

static size_t bytes_between(const struct network_limit *self, int source, int target)
{
    return self->bytes[(size_t)source * (size_t)self->world->size + (size_t)target];
}

/* Returns the place of the source's bytes at the target. */
static size_t place_of(const struct network_limit *self, int source, int target)
{
    size_t place = 0;
    for (int rank = 0; rank < source; rank++)
        place += bytes_between(self, rank, target);
    return place;
}

/* ---- turns ------------------------------------------------------------------------------------------------------- */

static bool put_to(const struct network_limit *self, int target, const unsigned char *source, size_t piece)
{
    const struct bench_world *world = self->world;
    const size_t bytes = bytes_between(self, world->rank, target), place = place_of(self, world->rank, target);
    bool good = true;
    for (size_t at = 0; at < bytes && good; at += piece) {
        const size_t now = bytes - at < piece ? bytes - at : piece;
        good = bench_good(world,
                          expar_put_nbi(world->group, self->memory + place + at, source + at, now, (int32_t)target));
    }
    return good;
}

/* Puts to all ranks in turn, starting with the next one. */
static bool put_all(const struct network_limit *self, size_t piece)
{
    const struct bench_world *world = self->world;
    const unsigned char *source = self->memory + self->own;
    bool good = true;
    for (int i = 1; i < world->size && good; i++) {
        const int target = (world->rank + i) % world->size;
        good = put_to(self, target, source, piece);
        source += bytes_between(self, world->rank, target);
    }
    return good && bench_good(world, expar_quiet(world->group));
}

static bool put_whole(void *self)
{
    return put_all(self, SIZE_MAX / 2);
}

static bool put_pieces(void *self)
{
    return put_all(self, NETWORK_PIECE);
}

/* ---- turns of rows ----------------------------------------------------------------------------------------------- */

static bool put_rows_to(const struct network_limit *self, int target, const unsigned char *source)
{
    const struct bench_world *world = self->world;
    const size_t bytes = bytes_between(self, world->rank, target), place = place_of(self, world->rank, target);
    bool good = true;
    for (size_t at = 0; at < bytes && good; at += self->row)
        good = bench_good(world, expar_put_signal_nbi(world->group, self->memory + place + at, source + at, self->row,
                                                      self->came, 1, EXPAR_SIGNAL_ADD, (int32_t)target));
    return good;
}

/* Each row is a put with a signal. A turn ends when all rows of the others have come. */
static bool put_rows(void *limit)
{
    struct network_limit *self = limit;
    const struct bench_world *world = self->world;
    const unsigned char *source = self->memory + self->own;
    bool good = true;
    for (int i = 1; i < world->size && good; i++) {
        const int target = (world->rank + i) % world->size;
        good = put_rows_to(self, target, source);
        source += bytes_between(self, world->rank, target);
    }
    self->awaited += self->comes;
    return good &&
           bench_good(world, expar_signal_wait_until(world->group, self->came, EXPAR_CMP_GE, self->awaited, NULL));
}

/* The rank's own rows may still be on their way. */
static bool put_rows_after(void *limit, bool check)
{
    const struct bench_world *world = ((struct network_limit *)limit)->world;
    (void)check;
    return bench_good(world, expar_quiet(world->group));
}

int network_limit_contenders(struct network_limit *limit, struct contender *contenders)
{
    if (limit->row) {
        contenders[0] = (struct contender){.run = put_rows, .after = put_rows_after, .context = limit};
        return 1;
    }
    contenders[NETWORK_WHOLE] = (struct contender){.run = put_whole, .context = limit};
    contenders[NETWORK_PIECES] = (struct contender){.run = put_pieces, .context = limit};
    return NETWORK_WAYS;
}

/* ---- contents ---------------------------------------------------------------------------------------------------- */

static unsigned char content_of(int source)
{
    return (unsigned char)(source + 1);
}

bool network_limit_verify(const struct network_limit *self)
{
    const struct bench_world *world = self->world;
    const unsigned char *byte = self->memory;
    for (int source = 0; source < world->size; source++)
        for (size_t i = 0; i < bytes_between(self, source, world->rank); i++)
            if (*byte++ != content_of(source)) return bench_complain(world, "a bare put has not come whole");
    return true;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* Plans the memory, large enough for the rank that has the most of both. */
static void plan(struct network_limit *self)
{
    const int size = self->world->size;
    size_t out = 0;
    for (int rank = 0; rank < size; rank++) {
        size_t comes = place_of(self, size, rank), goes = 0;
        for (int target = 0; target < size; target++)
            goes += bytes_between(self, rank, target);
        if (comes > self->own) self->own = comes;
        if (goes > out) out = goes;
    }
    self->own = (self->own + 4095) / 4096 * 4096;
    self->total = (self->own + out + 1 + 63) / 64 * 64;
    self->comes = self->row ? place_of(self, size, self->world->rank) / self->row : 0;
}

struct network_limit *network_limit_create(const struct bench_world *world, const size_t *bytes, size_t row)
{
    const size_t size = (size_t)world->size;
    struct network_limit *self = calloc(1, sizeof *self);
    void *memory = NULL;
    bool good = self && (self->bytes = calloc(size * size, sizeof *bytes));
    good = bench_all_true(world, good || bench_complain(world, "out of memory for bare puts"));
    good = good && bench_good(world, expar_group_allgather(world->group, bytes, self->bytes, size * sizeof *bytes));
    if (good) {
        self->world = world;
        self->row = row;
        plan(self);
        good = bench_good(world, expar_malloc(world->group, self->total + sizeof *self->came, &memory));
    }
    if (!bench_all_true(world, good)) {
        network_limit_free(self, false);
        return NULL;
    }
    self->memory = memory;
    self->came = (uint64_t *)(void *)(self->memory + self->total);
    *self->came = 0;
    memset(self->memory, 0, self->own);
    memset(self->memory + self->own, content_of(world->rank), self->total - self->own);
    return self;
}

void network_limit_free(struct network_limit *limit, bool sound)
{
    if (!limit) return;
    if (sound && limit->memory) bench_good(limit->world, expar_free(limit->world->group, limit->memory));
    free(limit->bytes);
    free(limit);
}
