/* SPDX-License-Identifier: Apache-2.0 */
/* The copy of expar/device.h for threads of a GPU: it moves each byte once, by the largest words that both sides allow.
 * Threads run one after the other, as the copy lets none wait for another. */
#include "link/device/ptx.h"
#undef EXPAR_DEVICE_PORT
#define EXPAR_DEVICE_PORT "pgas/device/counting_port.h"
#include <expar/device.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { MOST = 2400, GUARD = 0xee };

static _Alignas(16) uint8_t source[MOST], dest[MOST];

/* A number of threads copies this. */
typedef struct copying {
    size_t to, from, bytes;
    uint32_t threads;
} copying;

/* Returns how many threads have loaded anything. */
static uint32_t copy(const copying *c)
{
    uint32_t busy = 0;
    memset(loads, 0, sizeof loads);
    memset(dest, GUARD, sizeof dest);
    for (uint32_t i = 0; i < c->threads; i++) {
        const uint64_t before = loads[0] + loads[1] + loads[2] + loads[3] + loads[4];
        const expar_dev_place place = {i, c->threads};
        expar_dev_copy(dest + c->to, source + c->from, c->bytes, place, 1);
        busy += before != loads[0] + loads[1] + loads[2] + loads[3] + loads[4];
    }
    return busy;
}

/* Returns the largest word to which both sides are aligned alike. */
static size_t common_word(const copying *c)
{
    size_t word = 16;
    while ((c->to ^ c->from) % word != 0)
        word /= 2;
    return word;
}

static void check(const copying *c)
{
    const size_t word = common_word(c);
    uint64_t bytes = 0;
    const uint32_t busy = copy(c);
    for (size_t i = 0; i < sizeof dest; i++) {
        const bool inside = i >= c->to && i < c->to + c->bytes;
        if (dest[i] != (inside ? source[c->from + i - c->to] : GUARD))
            fail_msg("%zu bytes from %zu to %zu by %u threads: byte %zu", c->bytes, c->from, c->to, c->threads, i);
    }
    for (size_t i = 0; i < 5; i++) {
        const size_t width = (size_t)1 << i;
        bytes += loads[i] * width;
        if (width > word) assert_int_equal(loads[i], 0);
        /* Smaller words are at the ends alone. Where no large one fits, one middle word may be smaller, too. */
        if (width < word && loads[i] > (c->bytes < 2 * word ? 3 : 2))
            fail_msg("%zu bytes from %zu to %zu: %llu loads of %zu bytes", c->bytes, c->from, c->to,
                     (unsigned long long)loads[i], width);
    }
    assert_int_equal(bytes, c->bytes);
    const bool is_one = c->bytes <= word && (c->bytes & (c->bytes - 1)) == 0 && c->to % c->bytes == 0;
    if (is_one) assert_int_equal(busy, 1);
}

static void every_alignment_and_size(void **state)
{
    (void)state;
    static const uint32_t threads[] = {1, 3, 32};
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++)
        for (size_t to = 0; to < 16; to++)
            for (size_t from = 0; from < 16; from++)
                for (size_t bytes = 1; bytes < 50; bytes++)
                    check(&(copying){to, from, bytes, threads[i]});
}

static void large_data(void **state)
{
    (void)state;
    for (size_t to = 0; to < 16; to++)
        for (size_t bytes = 2040; bytes < 2080; bytes++) {
            check(&(copying){to, to, bytes, 8});
            check(&(copying){to, 8 - to % 8, bytes, 3});
        }
}

/* A flag's word goes by one load, as do the others that are as large as a register. */
static void words_go_whole(void **state)
{
    (void)state;
    for (size_t i = 0; i < 5; i++) {
        const size_t width = (size_t)1 << i;
        check(&(copying){width, 3 * width, width, 32});
        assert_int_equal(loads[i], 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_alignment_and_size),
        cmocka_unit_test(large_data),
        cmocka_unit_test(words_go_whole),
    };
    for (size_t i = 0; i < sizeof source; i++)
        source[i] = (uint8_t)(i * 7 + i / 256 + 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
