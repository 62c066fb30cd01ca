/* SPDX-License-Identifier: Apache-2.0 */
/* expar_ll_create and expar_ll_get_buffer_size: wrong configs, configs that differ between ranks, what this version
 * does not build, and the bytes, by the formula and of the heap. */
#include "ep/harness/check.h"
#include "ep/harness/ranks.h"
#include "ep/low_latency/case.h"
#include "ep/low_latency/ll.h"
#include "exec/cpu/low_latency/cpu.h"
#include "oracle/unit.h"

#include <string.h>

enum { RANKS = 3, BAD = 1 };

#define GOOD .struct_size = sizeof(expar_ll_config), .max_tokens = 8, .hidden = 128, .max_topk = 4, .num_experts = 12

static const expar_ll_config good = {GOOD};

/* The case of these configs, to see that a buffer works. */
static const ll_case sound = {
    .ranks = RANKS, .max_tokens = 8, .hidden = 128, .topk = 4, .experts = 12, .tokens = {8, 0, 5}, .seed = 4};

static void run_on(int32_t size, int32_t ranks_per_node, ranks_body body)
{
    const ranks_plan plan = {.kind = RANKS_THREADS, .size = size, .ranks_per_node = ranks_per_node};
    assert_true(ranks_run(&plan, body, NULL));
}

static void works(expar_group *group)
{
    const expar_ll_config config = case_config(&sound);
    expar_ll *ll = NULL;
    if (CHECK_OK(expar_ll_create(group, &config, &ll)) && round_trial(&sound, expar_group_rank(group), ll, 1))
        CHECK_OK(expar_ll_destroy(ll));
}

/* ---- wrong configs ----------------------------------------------------------------------------------------------- */

/* One member of the config with a value that does not do. */
typedef struct wrong_member {
    const char *words[5]; /* NULL after the last */
    expar_ll_config config;
} wrong_member;

#define WRONG(member, value, ...)                                                                                      \
    {                                                                                                                  \
        .words = {"config." #member, __VA_ARGS__}, .config = { GOOD, .member = value }                                 \
    }

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverride-init" /* each entry is the good config but for one member */
static const wrong_member wrong_members[] = {
    WRONG(struct_size, 0, "0"),
    WRONG(struct_size, sizeof(expar_ll_config) + 8, "_INIT"),
    WRONG(max_tokens, 0, "is 0", "1 to 65535"),
    WRONG(max_tokens, -1, "is -1"),
    WRONG(max_tokens, 65536, "is 65536", "1 to 65535"),
    WRONG(hidden, 0, "is 0"),
    WRONG(hidden, -8, "is -8"),
    WRONG(hidden, 12, "is 12", "multiple of 8", "16 bytes"),
    {.words = {"config.hidden", "is 1006", "multiple of 4", "4 bytes"},
     .config = {GOOD, .hidden = 1006, .max_row_bytes = 4024}},
    {.words = {"config.hidden", "is 1004", "multiple of 8", "2 bytes"}, .config = {GOOD, .hidden = 1004}},
    WRONG(hidden, (1 << 24) + 8, "is 16777224"),
    WRONG(max_topk, 0, "is 0", "1 to 32"),
    WRONG(max_topk, -1, "is -1"),
    WRONG(max_topk, 33, "is 33", "1 to 32"),
    WRONG(num_experts, 0, "is 0"),
    WRONG(num_experts, -3, "is -3"),
    WRONG(num_experts, 13, "is 13", "multiple of the 3 ranks"),
    WRONG(num_experts, INT32_MAX, "is 2147483647"),
    WRONG(max_row_bytes, -1, "is -1"),
    WRONG(max_row_bytes, 128, "is 128", "expected 256 (bf16, f16)", "512 (f32, too)"),
    WRONG(max_row_bytes, 384, "is 384"),
    WRONG(max_row_bytes, 1024, "is 1024"),
    WRONG(max_row_bytes, INT64_MAX, "is 9223372036854775807"),
    WRONG(sums, -1, "is -1"),
    WRONG(sums, 4, "is 4", "0 to 3"),
    WRONG(device.type, (expar_device_type)99, "is 99"),
    WRONG(device.index, -1, "is -1"),
    WRONG(num_threads, -1, "is -1"),
    WRONG(num_threads, 1025, "is 1025", "0 to 1024"),
    WRONG(num_sms, -1, "is -1"),
    WRONG(masking, 2, "is 2", "0 to 1"),
    WRONG(masking, -1, "is -1"),
    WRONG(unmapped, 2, "is 2", "0 to 1"),
};
#pragma GCC diagnostic pop

static void test_buffer_size_rejects(void **state)
{
    (void)state;
    size_t bytes = 77;
    check_begin(0);
    for (size_t i = 0; i < sizeof wrong_members / sizeof *wrong_members; i++) {
        CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ll_get_buffer_size(&wrong_members[i].config, RANKS, &bytes));
        CHECK_TEXT("expar_ll_get_buffer_size");
        check_text(__FILE__, __LINE__, wrong_members[i].words);
    }
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ll_get_buffer_size(NULL, RANKS, &bytes));
    CHECK_TEXT("expar_ll_get_buffer_size", "config");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ll_get_buffer_size(&good, RANKS, NULL));
    CHECK_TEXT("expar_ll_get_buffer_size", "bytes");
    const int32_t sizes[] = {0, -1, 65537, INT32_MIN};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ll_get_buffer_size(&good, sizes[i], &bytes));
        CHECK_TEXT("expar_ll_get_buffer_size", "num_ranks");
    }
    CHECK(bytes == 77, "the size was written");
    assert_int_equal(check_failures(), 0);
}

/* Members that are in their bounds: what they make together is refused, or counted, and never wraps. */
static void test_buffer_size_overflow(void **state)
{
    (void)state;
    expar_ll_config config = good;
    size_t bytes = 77;
    check_begin(0);
    config.max_tokens = 65535;
    config.num_experts = 65536;
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ll_get_buffer_size(&config, 65536, &bytes));
    CHECK_TEXT("config.max_tokens is 65535", "65536 ranks");
    config.hidden = 1 << 24;
    config.num_experts = 1 << 22;
    config.max_row_bytes = (int64_t)4 << 24;
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ll_get_buffer_size(&config, 16, &bytes));
    CHECK_TEXT("more than 2^62 bytes");
    CHECK(bytes == 77, "the size was written");
    config.num_experts = 32;
    config.max_topk = 32;
    config.masking = 1;
    CHECK_OK(expar_ll_get_buffer_size(&config, 32, &bytes));
    CHECK(bytes > (size_t)2 * 65535 * (32 + 4 * 32) * ((size_t)4 << 24), "%zu bytes cannot hold the halves", bytes);
    assert_int_equal(check_failures(), 0);
}

static void create_wrong(expar_group *group, void *shared)
{
    const int32_t rank = expar_group_rank(group);
    (void)shared;
    for (size_t i = 0; i < sizeof wrong_members / sizeof *wrong_members; i++) {
        expar_ll *ll = NULL;
        CHECK_STATUS(rank == BAD ? EXPAR_ERR_ARGUMENT : EXPAR_ERR_REMOTE,
                     expar_ll_create(group, rank == BAD ? &wrong_members[i].config : &good, &ll));
        CHECK_TEXT("expar_ll_create");
        check_text(__FILE__, __LINE__, wrong_members[i].words);
        if (rank != BAD) CHECK_TEXT("rank 1", "EXPAR_ERR_ARGUMENT");
        CHECK(!ll, "a buffer that was refused was given");
    }
    works(group);
}

static void test_create_rejects(void **state)
{
    (void)state;
    run_on(RANKS, 0, create_wrong);
}

/* One rank without a pointer is refused; the others learn of it. */
static void create_without(expar_group *group, void *shared)
{
    const bool bad = expar_group_rank(group) == BAD;
    expar_ll *ll = NULL;
    (void)shared;
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ll_create(NULL, &good, &ll));
    CHECK_TEXT("expar_ll_create", "group is NULL");
    CHECK_STATUS(bad ? EXPAR_ERR_NULL : EXPAR_ERR_REMOTE, expar_ll_create(group, bad ? NULL : &good, &ll));
    CHECK_TEXT("expar_ll_create", "config");
    CHECK_STATUS(bad ? EXPAR_ERR_NULL : EXPAR_ERR_REMOTE, expar_ll_create(group, &good, bad ? NULL : &ll));
    CHECK_TEXT("expar_ll_create", "ll is NULL");
    CHECK(!ll, "a buffer that was refused was given");
    works(group);
}

static void test_create_without_pointers(void **state)
{
    (void)state;
    run_on(RANKS, 0, create_without);
}

/* ---- configs that differ ----------------------------------------------------------------------------------------- */

static void create_different(expar_group *group, void *shared)
{
    const bool other = expar_group_rank(group) == 2;
    (void)shared;
    struct {
        const char *words[3];
        expar_ll_config config;
    } others[] = {{{"config.max_tokens", "9", "8"}, good},
                  {{"config.hidden", "256", "128"}, good},
                  {{"config.max_topk", "3", "4"}, good},
                  {{"config.num_experts", "15", "12"}, good},
                  {{"config.max_row_bytes", "512"}, good},
                  {{"config.sums is EXACT on rank 2", "EXACT | REDUCED on rank 0"}, good},
                  {{"config.masking", "1"}, good}};
    others[0].config.max_tokens = 9;
    others[1].config.hidden = 256;
    others[2].config.max_topk = 3;
    others[3].config.num_experts = 15;
    others[4].config.max_row_bytes = 512;
    others[5].config.sums = 1 << EXPAR_LL_SUM_EXACT;
    others[6].config.masking = 1;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        expar_ll *ll = NULL;
        CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_ll_create(group, other ? &others[i].config : &good, &ll));
        CHECK_TEXT("expar_ll_create", others[i].words[0], others[i].words[1], "rank 2", "rank 0");
        if (others[i].words[2]) CHECK_TEXT(others[i].words[2]);
        CHECK(!ll, "a buffer that was refused was given");
    }
    works(group);
}

static void test_create_with_different_configs(void **state)
{
    (void)state;
    run_on(RANKS, 0, create_different);
}

/* A member that is left out equals its default. */
static void create_by_defaults(expar_group *group, void *shared)
{
    expar_ll_config config = good;
    expar_ll *ll = NULL;
    (void)shared;
    if (expar_group_rank(group) == 1) {
        config.sums = 1 << EXPAR_LL_SUM_EXACT | 1 << EXPAR_LL_SUM_REDUCED;
        config.device.type = EXPAR_CPU;
        config.max_row_bytes = 2 * (int64_t)config.hidden;
    }
    if (CHECK_OK(expar_ll_create(group, &config, &ll))) CHECK_OK(expar_ll_destroy(ll));
}

static void test_create_by_defaults(void **state)
{
    (void)state;
    run_on(RANKS, 0, create_by_defaults);
}

/* Threads and SMs are each rank's own. */
static void create_with_own_members(expar_group *group, void *shared)
{
    const int32_t rank = expar_group_rank(group);
    expar_ll_config config = case_config(&sound);
    expar_ll *ll = NULL;
    (void)shared;
    config.num_threads = 1 + rank;
    config.num_sms = 5 * rank;
    if (CHECK_OK(expar_ll_create(group, &config, &ll)) && round_trial(&sound, rank, ll, 2))
        CHECK_OK(expar_ll_destroy(ll));
}

static void test_own_members_may_differ(void **state)
{
    (void)state;
    run_on(RANKS, 0, create_with_own_members);
}

/* ---- ranks that are not mapped ----------------------------------------------------------------------------------- */

static void create_with_masks(expar_group *group, int32_t unmapped)
{
    expar_ll_config config = good;
    expar_ll *ll = NULL;
    config.unmapped = unmapped;
    config.masking = 1;
    if (CHECK_OK(expar_ll_create(group, &config, &ll))) CHECK_OK(expar_ll_destroy(ll));
}

static void create_unmapped(expar_group *group, void *shared)
{
    (void)shared;
    create_with_masks(group, 1);
    works(group);
}

static void create_across_nodes(expar_group *group, void *shared)
{
    (void)shared;
    if (!group->sym->all_reached) return;
    create_with_masks(group, 0);
    works(group);
}

static void test_not_mapped(void **state)
{
    (void)state;
    const ranks_plan nodes = {.kind = RANKS_PROCESSES, .size = RANKS, .ranks_per_node = 1};
    run_on(RANKS, 0, create_unmapped);
    assert_true(ranks_run(&nodes, create_across_nodes, NULL));
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static uint64_t used_bytes(expar_group *group)
{
    expar_heap_stats stats = EXPAR_HEAP_STATS_INIT;
    CHECK_OK(expar_heap_get_stats(group, &stats));
    return stats.used_bytes;
}

/* The heap rounds each of a buffer's two blocks up. */
#define ROUNDING 256

/* The formula's size is what the heap gives, what the buffer says of itself, and what comes back. */
static void compare_bytes(expar_group *group, void *shared)
{
    expar_ll_config config = good;
    (void)shared;
    for (int i = 0; i < 8; i++) {
        expar_ll_stats stats = EXPAR_LL_STATS_INIT;
        expar_ll *ll = NULL;
        size_t bytes = 0;
        config.masking = i & 1;
        config.sums = i & 2;
        config.max_row_bytes = i & 4 ? 4 * good.hidden : 0;
        config.unmapped = i & 4 ? 1 : 0;
        const uint64_t before = used_bytes(group);
        CHECK_OK(expar_ll_get_buffer_size(&config, RANKS, &bytes));
        if (!CHECK_OK(expar_ll_create(group, &config, &ll))) return;
        CHECK_OK(expar_ll_get_stats(ll, &stats));
        const uint64_t taken = used_bytes(group) - before;
        CHECK(stats.heap_bytes == bytes && taken >= bytes && taken < bytes + ROUNDING,
              "%zu bytes by the formula, %llu by the buffer, %llu taken", bytes, (unsigned long long)stats.heap_bytes,
              (unsigned long long)taken);
        CHECK_OK(expar_ll_destroy(ll));
        CHECK(used_bytes(group) == before, "%lld bytes stay", (long long)(used_bytes(group) - before));
    }
}

static void test_bytes_are_the_heaps(void **state)
{
    (void)state;
    run_on(RANKS, 0, compare_bytes);
}

/* Small blocks, whose memory the heap keeps as it was when they come back. */
static bool use_memory(expar_group *group)
{
    enum { BLOCKS = 64, BLOCK_BYTES = 4000 };
    void *blocks[BLOCKS] = {0};
    bool used = true;
    for (int i = 0; i < BLOCKS && used; i++) {
        used = CHECK_OK(expar_malloc(group, BLOCK_BYTES, &blocks[i]));
        if (used) memset(blocks[i], 0xff, BLOCK_BYTES);
    }
    for (int i = 0; i < BLOCKS && used; i++)
        used = CHECK_OK(expar_free(group, blocks[i]));
    return used;
}

/* The flag of a piece is cleared, what stands before it is not. */
static void check_piece(const ll_cpu *cpu, uint64_t flag, const char *what)
{
    const uint8_t *at = ll_here(cpu, flag);
    uint64_t word;
    memcpy(&word, at, sizeof word);
    CHECK(word == 0, "a flag of %s is %llx", what, (unsigned long long)word);
    CHECK(at[-1] == 0xff, "%s were cleared, or the memory has not been used", what);
}

static void check_pieces(const ll_cpu *cpu)
{
    const ll_space *space = &cpu->space;
    const ll_shape *shape = &cpu->shape;
    for (int32_t half = 0; half < LL_SLOTS; half++) {
        for (int32_t r = 0; r < RANKS; r++)
            for (int32_t piece = 0; ll_is_far(cpu, r) && piece < ll_pieces(shape->tokens); piece++)
                check_piece(cpu, ll_message_piece_flag_at(space, shape, r, half, piece), "messages");
        for (uint64_t piece = 0; piece < space->return_pieces; piece++)
            check_piece(cpu, ll_return_flag_at(space, (uint64_t)half, 0, (int32_t)piece), "rows back");
    }
}

/* Memory of the heap may have served others: all words are zero before anybody can write one, and no more than those
   are cleared. */
static void create_in_used_memory(expar_group *group, void *shared)
{
    const int32_t rank = expar_group_rank(group);
    expar_ll_config config = case_config(&sound);
    expar_ll *ll = NULL;
    config.unmapped = *(const bool *)shared;
    if (!use_memory(group) || !CHECK_OK(expar_ll_create(group, &config, &ll))) return;
    const ll_cpu *cpu = ll_cpu_of(ll->base.exec);
    const uint8_t *memory = ll_here(cpu, 0);
    for (uint64_t i = 0; i < cpu->space.words_bytes; i++)
        if (!CHECK(memory[i] == 0, "byte %llu of the words is %d", (unsigned long long)i, memory[i])) break;
    CHECK(memory[cpu->space.messages] == 0xff, "messages were cleared, or the memory has not been used");
    check_pieces(cpu);
    CHECK_OK(expar_group_barrier(group));
    if (round_trial(&sound, rank, ll, 1) && round_trial(&sound, rank, ll, 2)) CHECK_OK(expar_ll_destroy(ll));
}

static void test_used_memory_is_cleared(void **state)
{
    (void)state;
    for (int unmapped = 0; unmapped < 2; unmapped++) {
        bool shared = unmapped;
        const ranks_plan plan = {.kind = RANKS_THREADS, .size = RANKS};
        assert_true(ranks_run(&plan, create_in_used_memory, &shared));
    }
}

/* A heap that is too small gives nothing, and takes a smaller buffer as before. */
static void create_too_large(expar_group *group, void *shared)
{
    expar_ll_config config = good;
    expar_ll *ll = NULL;
    const uint64_t before = used_bytes(group);
    (void)shared;
    config.hidden = 1 << 20;
    config.max_tokens = 1024;
    CHECK_STATUS(EXPAR_ERR_MEMORY, expar_ll_create(group, &config, &ll));
    CHECK_TEXT("expar_ll_create");
    CHECK(!ll && used_bytes(group) == before, "%lld bytes stay", (long long)(used_bytes(group) - before));
    works(group);
}

static void test_create_without_space(void **state)
{
    (void)state;
    run_on(RANKS, 0, create_too_large);
}

static size_t bytes_of(const expar_ll_config *config, int32_t ranks)
{
    size_t bytes = 0;
    assert_int_equal(expar_ll_get_buffer_size(config, ranks, &bytes), EXPAR_OK);
    return bytes;
}

/* Two slots of N·B messages and of B·K rows, or with reduced sums alone of B·min(K, N), and little beside them. */
static void check_formula(const expar_ll_config *config, int32_t ranks)
{
    const size_t n = (size_t)ranks, tokens = (size_t)config->max_tokens, topk = (size_t)config->max_topk;
    const size_t places = config->sums == 1 << EXPAR_LL_SUM_REDUCED && topk > n ? n : topk;
    const size_t row = (size_t)config->hidden * (config->max_row_bytes == 4 * (int64_t)config->hidden ? 4 : 2);
    const size_t rows = 2 * tokens * (n + places), bytes = bytes_of(config, ranks);
    /* A message has its header, and every row space for scales; a row has its flag, which for messages comes twice. */
    const size_t each = row + row / 16 + 12 * topk + 256;
    const size_t counts = n * 4 * 8 * (size_t)config->num_experts / n;
    assert_true(bytes > rows * row);
    assert_true(bytes < rows * each + counts + n * 8192 + 65536);
}

static void test_formula(void **state)
{
    (void)state;
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    const int32_t sums[] = {0, 1 << EXPAR_LL_SUM_EXACT, 1 << EXPAR_LL_SUM_REDUCED, 3};
    config.max_tokens = 128;
    config.hidden = 7168;
    config.max_topk = 8;
    config.num_experts = 256;
    assert_true(bytes_of(&config, 8) < 100000000);
    config.num_experts = 8;
    const size_t few = bytes_of(&config, 8);
    config.num_experts = 512;
    assert_true(bytes_of(&config, 8) - few < 512 * 8 * 4 + 8192);
    for (int i = 0; i < 4; i++)
        for (int32_t ranks = 1; ranks <= 64; ranks *= 2)
            for (int32_t topk = 1; topk <= 32; topk += 31)
                for (int32_t tokens = 1; tokens <= 1024; tokens *= 32) {
                    config.sums = sums[i];
                    config.max_topk = topk;
                    config.max_tokens = tokens;
                    config.max_row_bytes = config.hidden * (int64_t)(ranks % 4 ? 2 : 4);
                    check_formula(&config, ranks);
                }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buffer_size_rejects),    cmocka_unit_test(test_buffer_size_overflow),
        cmocka_unit_test(test_create_rejects),         cmocka_unit_test(test_create_without_pointers),
        cmocka_unit_test(test_create_by_defaults),     cmocka_unit_test(test_create_with_different_configs),
        cmocka_unit_test(test_own_members_may_differ), cmocka_unit_test(test_not_mapped),
        cmocka_unit_test(test_bytes_are_the_heaps),    cmocka_unit_test(test_used_memory_is_cleared),
        cmocka_unit_test(test_create_without_space),   cmocka_unit_test(test_formula),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
