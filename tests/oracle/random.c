/* SPDX-License-Identifier: Apache-2.0 */
/* A 64-bit counter, mixed: each output is a bijective scramble of the state (the "splitmix" construction of Steele, Lea
   and Flood, OOPSLA 2014). */
#include "random.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

random_source random_start(uint64_t seed)
{
    return (random_source){seed};
}

uint64_t random_bits(random_source *source)
{
    uint64_t z = source->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

int64_t random_between(random_source *source, int64_t low, int64_t high)
{
    return low + (int64_t)(random_bits(source) % (uint64_t)(high - low + 1));
}

bool random_once_in(random_source *source, int64_t chances)
{
    return random_between(source, 1, chances) == 1;
}

double random_unit(random_source *source)
{
    return (double)(random_bits(source) >> 11) * 0x1p-53;
}

uint64_t random_test_seed(const char *test)
{
    struct timespec now;
    const char *text = getenv("EXPAR_TEST_SEED");
    clock_gettime(CLOCK_REALTIME, &now);
    random_source source = random_start((uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec);
    uint64_t seed = text ? strtoull(text, NULL, 0) : random_bits(&source) >> 32;
    printf("%s: EXPAR_TEST_SEED=%" PRIu64 "\n", test, seed);
    fflush(stdout);
    return seed;
}

/* Under a sanitizer a round takes ten times as long, and every run draws others. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SHARE 4
#else
#define SHARE 1
#endif

int64_t random_test_rounds(int64_t fallback)
{
    const char *text = getenv("EXPAR_TEST_ROUNDS");
    return text ? random_count("EXPAR_TEST_ROUNDS", text) : (fallback + SHARE - 1) / SHARE;
}

int64_t random_count(const char *what, const char *text)
{
    char *end;
    errno = 0;
    int64_t count = strtoll(text, &end, 0);
    if (end != text && *end == 0 && count >= 0 && errno == 0) return count;
    fprintf(stderr, "%s is '%s'; expected a whole number, 0 or more\n", what, text);
    exit(EXIT_FAILURE);
}
