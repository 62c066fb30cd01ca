/* SPDX-License-Identifier: Apache-2.0 */
/* Elements for tests: every row is of one mood, so that sums are worth comparing and special values still occur. */
#include "ep/harness/traffic.h"

typedef struct format {
    uint32_t sign, infinity, fraction_bits, fraction_mask, bias;
} format;

static const format formats[] = {
    [ORACLE_BF16] = {0x8000, 0x7f80, 7, 0x7f, 127},
    [ORACLE_F16] = {0x8000, 0x7c00, 10, 0x3ff, 15},
    [ORACLE_F32] = {0x80000000u, 0x7f800000u, 23, 0x7fffff, 127},
};

/* ±0, smallest and largest denormal, smallest normal, largest finite, infinity, quiet and signalling NaN. */
static uint32_t draw_special(random_source *random, const format *f)
{
    const uint32_t magnitudes[] = {0,
                                   1,
                                   f->fraction_mask,
                                   f->fraction_mask + 1,
                                   f->infinity - 1,
                                   f->infinity,
                                   f->infinity | (f->fraction_mask + 1) >> 1,
                                   f->infinity | 1};
    uint32_t sign = random_once_in(random, 2) ? f->sign : 0;
    return sign | magnitudes[random_between(random, 0, 7)];
}

/* An exponent up to 3 from `centre`, any fraction and sign; below exponent 1 a denormal. */
static uint32_t draw_near(random_source *random, const format *f, int64_t centre)
{
    int64_t top = f->infinity >> f->fraction_bits;
    int64_t exponent = centre + random_between(random, -3, 3);
    exponent = exponent < 0 ? 0 : exponent >= top ? top - 1 : exponent;
    uint64_t bits = random_bits(random);
    return (bits >> 63 ? f->sign : 0) | (uint32_t)exponent << f->fraction_bits | ((uint32_t)bits & f->fraction_mask);
}

typedef enum mood { MOOD_PLAIN, MOOD_TINY, MOOD_HUGE, MOOD_SPECIAL, MOOD_ANY } row_mood;

static row_mood draw_mood(random_source *random)
{
    return random_once_in(random, 2) ? MOOD_PLAIN : (row_mood)random_between(random, MOOD_PLAIN, MOOD_ANY);
}

static uint32_t draw_element(random_source *random, const format *f, row_mood mood)
{
    switch (mood) {
    case MOOD_TINY:
        return draw_near(random, f, 1);
    case MOOD_HUGE:
        return draw_near(random, f, f->infinity >> f->fraction_bits);
    case MOOD_SPECIAL:
        return random_once_in(random, 4) ? draw_special(random, f) : draw_near(random, f, f->bias);
    case MOOD_ANY:
        return (uint32_t)random_bits(random) & (f->sign | f->infinity | f->fraction_mask);
    default:
        return draw_near(random, f, f->bias);
    }
}

void traffic_fill_rows(random_source *random, oracle_type type, int64_t rows, int64_t width, void *array)
{
    for (int64_t row = 0; row < rows; row++) {
        row_mood mood = draw_mood(random);
        for (int64_t i = 0; i < width; i++)
            oracle_store(type, array, row * width + i, draw_element(random, &formats[type], mood));
    }
}
