/* SPDX-License-Identifier: Apache-2.0 */
/* Broken weights files: each is refused, with a message that names the tensor and what is wrong with it. */
#include "cmocka_headers.h"
#include "model.h"
#include "safetensors_header.h"
#include "shipped.h"
#include "weights_file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const tensor_spec SPEC_A = {.name = "a", .dtype = "BF16", .ndim = 2, .shape = {2, 3}};
static const tensor_spec SPEC_B = {.name = "b", .dtype = "F32", .ndim = 1, .shape = {2}};

#define ENTRY_A "\"a\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]}"
#define ENTRY_B "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[12,20]}"
#define GOOD    "{\"__metadata__\":{\"format\":\"pt\"}," ENTRY_B "," ENTRY_A "}"

static void assert_says(const demo_error *error, const char *part)
{
    if (!strstr(error->text, part)) fail_msg("\"%s\" does not say \"%s\"", error->text, part);
}

static void test_good_file(void **state)
{
    (void)state;
    demo_error error = {.text = ""};
    safetensors *file = NULL;
    weights_write("good", strlen(GOOD), GOOD, 20);
    if (!safetensors_open(scratch_path("good"), &file, &error)) fail_msg("%s", error.text);
    float all[6], part[2];
    assert_true(safetensors_check(file, &SPEC_A, &error));
    assert_true(safetensors_read(file, &SPEC_A, 0, 6, all, &error));
    for (uint32_t i = 0; i < 6; i++) {
        uint32_t bits = (0x3f00u | 2 * i) << 16;
        assert_memory_equal(&all[i], &bits, sizeof bits);
    }
    assert_true(safetensors_read(file, &SPEC_A, 3, 2, part, &error));
    assert_memory_equal(part, all + 3, sizeof part);
    assert_true(safetensors_read(file, &SPEC_B, 0, 2, part, &error));
    const uint32_t second = 0x3f123f10;
    assert_memory_equal(&part[1], &second, sizeof second);
    assert_false(safetensors_read(file, &SPEC_B, 1, 2, part, &error));
    assert_says(&error, "'b' has 2 elements");
    safetensors_close(file);
}

/* A header, the content of the file after it, and the expected message. */
struct broken {
    const char *header;
    size_t data_bytes;
    const char *says[2];
};

static const struct broken BROKEN[] = {
    {GOOD, 19, {"'b'", "truncated"}},
    {GOOD, 11, {"'b'", "truncated"}},
    {GOOD, 0, {"'b'", "truncated"}},
    {GOOD, 21, {"'b'", "1 bytes after"}},
    {"{" ENTRY_A ",\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[11,19]}}",
     19,
     {"'b'", "overlaps tensor 'a'"}},
    {"{" ENTRY_A ",\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
     12,
     {"'a'", "overlaps tensor 'b'"}},
    {"{" ENTRY_A ",\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[13,21]}}", 21, {"'b'", "1 bytes before"}},
    {"{" ENTRY_A ",\"b\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[12,20]}}", 20, {"'b'", "12 by its shape"}},
    {"{" ENTRY_A ",\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[20,12]}}", 20, {"'b'", "data_offsets"}},
    {"{" ENTRY_A ",\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[12]}}", 20, {"'b'", "data_offsets"}},
    {"{" ENTRY_A ",\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[12,20.0]}}", 20, {"'b'", "data_offsets"}},
    {"{" ENTRY_A ",\"b\":{\"dtype\":\"F32\",\"shape\":[2]}}", 20, {"'b'", "data_offsets"}},
    {"{" ENTRY_A ",\"b\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[12,20]}}", 20, {"'b'", "extent 0"}},
    {"{" ENTRY_A ",\"b\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[12,20]}}", 20, {"'b'", "shape"}},
    {"{" ENTRY_A ",\"b\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[12,20]}}",
     20,
     {"'b'", "at most 8"}},
    {"{" ENTRY_A ",\"b\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[12,20]}}",
     20,
     {"'b'", "overflows"}},
    {"{" ENTRY_A ",\"b\":{\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[12,20]}}", 20, {"'b'", "F33"}},
    {"{" ENTRY_A ",\"b\":7}", 20, {"'b'", "dtype"}},
    {"{" ENTRY_A "," ENTRY_A "}", 12, {"JSON", "uplicate"}},
    {"[1, 2]", 20, {"no JSON object", ""}},
    {"{\"a\":", 20, {"not JSON", ""}},
    {"", 20, {"not JSON", ""}},
};

static void test_broken_headers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof BROKEN / sizeof BROKEN[0]; i++) {
        const struct broken *b = &BROKEN[i];
        demo_error error = {.text = ""};
        safetensors *file = NULL;
        weights_write("broken", strlen(b->header), b->header, b->data_bytes);
        if (safetensors_open(scratch_path("broken"), &file, &error))
            fail_msg("accepted: %s with %zu bytes", b->header, b->data_bytes);
        assert_null(file);
        assert_says(&error, b->says[0]);
        assert_says(&error, b->says[1]);
    }
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Whatever is accepted covers its data without gap or overlap, each tensor in the size that its shape says. */
static void check_table(const safetensors_table *table, uint64_t data_bytes)
{
    uint64_t covered = 0;
    for (size_t i = 0; i < table->count; i++) {
        const safetensors_entry *entry = &table->entries[i];
        uint64_t bytes = entry->dtype->bytes;
        for (int32_t d = 0; d < entry->ndim; d++)
            bytes *= (uint64_t)entry->shape[d];
        assert_int_equal(entry->begin, covered);
        assert_int_equal(entry->end - entry->begin, bytes);
        covered = entry->end;
    }
    assert_int_equal(covered, data_bytes);
}

/* Headers with a few bytes replaced, or cut short. */
static void test_mutated_headers(void **state)
{
    (void)state;
    static const char letters[] = "0123456789-.,:[]{}\"abF\\ \xff";
    const uint64_t seed = 20240607;
    uint64_t random = seed;
    int accepted = 0, rejected = 0;
    for (int round = 0; round < 50000; round++) {
        char header[] = GOOD;
        size_t bytes = next_random(&random) % 8 ? sizeof GOOD - 1 : next_random(&random) % sizeof GOOD;
        for (uint32_t edits = next_random(&random) % 4; edits > 0; edits--)
            header[next_random(&random) % (sizeof GOOD - 1)] = letters[next_random(&random) % (sizeof letters - 1)];
        demo_error error = {.text = ""};
        safetensors_table table = {0};
        if (safetensors_table_parse("mutated", header, bytes, 20, &table, &error)) {
            check_table(&table, 20);
            accepted++;
        } else {
            assert_int_equal(strncmp(error.text, "mutated: ", 9), 0);
            rejected++;
        }
        safetensors_table_free(&table);
    }
    print_message("seed %llu: %d accepted, %d refused\n", (unsigned long long)seed, accepted, rejected);
    assert_true(accepted > 1000 && rejected > 1000);
}

static void test_header_length(void **state)
{
    (void)state;
    const uint64_t lengths[] = {strlen(GOOD) + 21, 1u << 24, (1u << 24) + 1, UINT32_MAX, UINT64_MAX, UINT64_MAX - 7};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        demo_error error = {.text = ""};
        safetensors *file = NULL;
        weights_write("length", lengths[i], GOOD, 20);
        assert_false(safetensors_open(scratch_path("length"), &file, &error));
        assert_says(&error, "header length");
    }
}

static void test_wrong_tensor(void **state)
{
    (void)state;
    demo_error error = {.text = ""};
    safetensors *file = NULL;
    weights_write("good", strlen(GOOD), GOOD, 20);
    assert_true(safetensors_open(scratch_path("good"), &file, &error));
    tensor_spec spec = SPEC_A;
    spec.dtype = "F32";
    assert_false(safetensors_check(file, &spec, &error));
    assert_says(&error, "'a' is BF16 [2, 3]: expected F32 [2, 3]");
    spec = SPEC_A;
    spec.shape[1] = 4;
    assert_false(safetensors_check(file, &spec, &error));
    assert_says(&error, "'a' is BF16 [2, 3]: expected BF16 [2, 4]");
    spec.ndim = 1;
    assert_false(safetensors_check(file, &spec, &error));
    assert_says(&error, "expected BF16 [2]");
    spec.name = "c";
    assert_false(safetensors_check(file, &spec, &error));
    assert_says(&error, "'c' is missing");
    safetensors_close(file);
}

static void test_not_finite(void **state)
{
    (void)state;
    static const char header[] = "{\"a\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]}}";
    uint8_t bytes[8 + sizeof header - 1 + 12] = {sizeof header - 1};
    memcpy(bytes + 8, header, sizeof header - 1);
    memcpy(bytes + sizeof bytes - 2, "\x80\x7f", 2); /* +infinity */
    scratch_write("infinite", bytes, sizeof bytes);
    demo_error error = {.text = ""};
    safetensors *file = NULL;
    float values[6];
    assert_true(safetensors_open(scratch_path("infinite"), &file, &error));
    assert_true(safetensors_read(file, &SPEC_A, 0, 5, values, &error));
    assert_false(safetensors_read(file, &SPEC_A, 0, 6, values, &error));
    assert_says(&error, "'a' has a value that is not finite at element 5");
    safetensors_close(file);
}

static void test_no_file(void **state)
{
    (void)state;
    demo_error error = {.text = ""};
    safetensors *file = NULL;
    assert_false(safetensors_open(scratch_path("absent"), &file, &error));
    assert_says(&error, "cannot open");
    assert_false(safetensors_open("/dev/null", &file, &error));
    assert_says(&error, "not a regular file");
}

/* A file that shrinks after it was opened. */
static void test_shrinking_file(void **state)
{
    (void)state;
    demo_error error = {.text = ""};
    safetensors *file = NULL;
    float values[6];
    weights_write("shrinks", strlen(GOOD), GOOD, 20);
    assert_true(safetensors_open(scratch_path("shrinks"), &file, &error));
    assert_int_equal(truncate(scratch_path("shrinks"), (off_t)(8 + strlen(GOOD) + 5)), 0);
    assert_false(safetensors_read(file, &SPEC_A, 0, 6, values, &error));
    assert_says(&error, "too early");
    assert_says(&error, "'a'");
    safetensors_close(file);
}

/* ---- the shipped model, damaged ---------------------------------------------------------------------------------- */

static model_sizes shipped_sizes(void)
{
    demo_error error = {.text = ""};
    model_config config;
    if (!model_config_load(MOE_LM_DIR, &config, &error)) fail_msg("%s", error.text);
    model_sizes sizes = config.sizes;
    model_config_free(&config);
    return sizes;
}

static const char *scratch_folder(void)
{
    static char folder[2048];
    snprintf(folder, sizeof folder, "%s", scratch_path(""));
    return folder;
}

static void test_truncated_model(void **state)
{
    (void)state;
    enum { HEADER_END = 8 + 3744 };
    size_t count;
    char *bytes = shipped_read("model.safetensors", &count);
    const model_sizes sizes = shipped_sizes();
    scratch_write("model.safetensors", bytes, count);
    demo_error error = {.text = ""};
    if (!model_check(scratch_folder(), &sizes, &error)) fail_msg("%s", error.text);
    for (size_t cut = count - 1;; cut = cut > HEADER_END ? HEADER_END + (cut - HEADER_END) * 9 / 10 : cut * 3 / 4) {
        assert_int_equal(truncate(scratch_path("model.safetensors"), (off_t)cut), 0);
        assert_false(model_check(scratch_folder(), &sizes, &error));
        assert_says(&error, cut >= HEADER_END ? "tensor '" : cut >= 8 ? "header length" : "no safetensors file");
        if (cut == 0) break;
    }
    free(bytes);
}

/* Puts `replacement` in place of an equally long text of the shipped header. */
static void check_edited(const char *original, const char *replacement, const char *says)
{
    size_t count;
    char *bytes = shipped_read("model.safetensors", &count);
    const model_sizes sizes = shipped_sizes();
    char *place = memmem(bytes, 4096, original, strlen(original));
    assert_non_null(place);
    assert_int_equal(strlen(original), strlen(replacement));
    memcpy(place, replacement, strlen(replacement));
    scratch_write("model.safetensors", bytes, count);
    free(bytes);
    demo_error error = {.text = ""};
    compute *c = NULL;
    model *m = NULL;
    assert_false(model_check(scratch_folder(), &sizes, &error));
    assert_says(&error, says);
    assert_true(compute_cpu.create(&sizes, 0, 1, &c, &error));
    assert_false(model_load(scratch_folder(), c, 0, 4, &m, &error));
    assert_null(m);
    assert_says(&error, says);
    compute_free(c);
}

static void test_edited_model(void **state)
{
    (void)state;
    check_edited("blocks.2.w3", "blocks.2.wX", "tensor 'blocks.2.w3' is missing: expected BF16 [32, 64, 256]");
    check_edited("\"blocks.1.g1\":{\"dtype\":\"BF16\"", "\"blocks.1.g1\":{\"dtype\":\"F16\" ",
                 "tensor 'blocks.1.g1' is F16 [256]: expected BF16 [256]");
    check_edited("\"emb\":{\"dtype\":\"BF16\",\"shape\":[256,256]", "\"emb\":{\"dtype\":\"BF16\",\"shape\":[128,512]",
                 "tensor 'emb' is BF16 [128, 512]: expected BF16 [256, 256]");
    check_edited("[132608,1181184]", "[132600,1181176]", "tensor 'blocks.0.w1' overlaps tensor 'blocks.0.g2'");
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */

static void test_config(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"\"experts\": 32", "\"experts\": 33", "'experts'"},  {"\"vocab\": 256", "\"vocab\": 255", "'vocab'"},
        {"\"hidden\": 256", "\"hidden\": -56", "'hidden'"},   {"\"heads\": 4", "\"heads\": 3", "'heads'"},
        {"\"top_k\": 4", "\"top_k\": 0", "'top_k'"},          {"\"context\": 512", "\"context\": 100", "generations["},
        {"\"layers\": 4", "\"layers\": []", "'layers'"},      {"1e-05", "\"x\"  ", "'rms_eps'"},
        {"\"prompt\"", "\"prompx\"", "generations[0]"},       {"73,", "256,", "generations[0].bytes"},
        {"\"generations\"", "\"generation\"", "generations"}, {"{", "[", "config.json: line"},
    };
    size_t count;
    char *shipped = shipped_read("config.json", &count);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *place = memmem(shipped, count, cases[i][0], strlen(cases[i][0]));
        assert_non_null(place);
        size_t before = (size_t)(place - shipped), old = strlen(cases[i][0]), new = strlen(cases[i][1]);
        char *edited = malloc(count + new);
        assert_non_null(edited);
        memcpy(edited, shipped, before);
        memcpy(edited + before, cases[i][1], new);
        memcpy(edited + before + new, place + old, count - before - old);
        scratch_write("config.json", edited, count - old + new);
        free(edited);
        demo_error error = {.text = ""};
        model_config config = {0};
        if (model_config_load(scratch_folder(), &config, &error)) fail_msg("accepted %s", cases[i][1]);
        assert_says(&error, cases[i][2]);
        assert_null(config.samples);
    }
    free(shipped);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_file),       cmocka_unit_test(test_broken_headers),
        cmocka_unit_test(test_mutated_headers), cmocka_unit_test(test_header_length),
        cmocka_unit_test(test_wrong_tensor),    cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_no_file),         cmocka_unit_test(test_shrinking_file),
        cmocka_unit_test(test_truncated_model), cmocka_unit_test(test_edited_model),
        cmocka_unit_test(test_config),
    };
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}
