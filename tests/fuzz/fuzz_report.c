/* SPDX-License-Identifier: Apache-2.0 */
/* Results of other machines, of which `expar bench --report` makes a page: the page has no markup but its own, and no
 * number that a browser cannot draw. */
#include "fuzz.h"
#include "report.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* The elements of the page; `th` and others whose ends HTML leaves out are among them. */
static const char elements[] =
    " !doctype b body br caption code div figcaption figure h1 h2 h3 html i line meta p path "
    "rect section small span style svg table td text th title tr ";

static bool is_element(const char *name, size_t length)
{
    char word[16];
    if (length == 0 || length + 3 > sizeof word) return false;
    word[0] = ' ';
    memcpy(word + 1, name, length);
    memcpy(word + 1 + length, " ", 2);
    return strstr(elements, word) != NULL;
}

/* Returns the end of the tag. */
static const char *check_tag(const char *tag)
{
    const char *name = tag + 1 + (tag[1] == '/');
    size_t length = *name == '!';
    while (isalnum((unsigned char)name[length]))
        length++;
    fuzz_must(is_element(name, length));
    const char *end = strchr(name, '>');
    fuzz_must(end != NULL);
    for (const char *at = name; at < end; at++) {
        fuzz_must(strncmp(at, "'nan", 4) != 0 && strncmp(at, "'-nan", 5) != 0);
        fuzz_must(strncmp(at, "'inf", 4) != 0 && strncmp(at, "'-inf", 5) != 0 && *at != '<');
    }
    return end;
}

static void check_page(const char *page, size_t bytes)
{
    fuzz_must(strlen(page) == bytes);
    for (const char *at = page; *at; at++) {
        fuzz_must((unsigned char)*at >= ' ' || *at == '\n' || *at == '\t');
        if (*at == '<') at = check_tag(at);
    }
}

static void write_page(const struct report_file *files, int count)
{
    char *page = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&page, &bytes);
    fuzz_must(out != NULL && report_write(files, count, out) && fclose(out) == 0);
    check_page(page, bytes);
    free(page);
}

/* The file by itself, then compared with itself. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char error[512] = "";
    struct report_file files[2];
    const int before = fuzz_count_descriptors();
    if (report_read(fuzz_file(data, bytes), &files[0], error, sizeof error)) {
        files[1] = files[0];
        write_page(files, 1);
        write_page(files, 2);
        json_decref(files[0].json);
        fuzz_accept();
    } else {
        fuzz_must_be_shown(error);
    }
    fuzz_file_close();
    fuzz_must(fuzz_count_descriptors() == before);
    return 0;
}

static const char head[] = "{\"date\":\"2026-11-29\",\"command\":\"expar bench <all>\",\"machine\":{\"cpu\":\"a & b\","
                           "\"cores\":2,\"load\":[3.5,1,0],\"gpus\":[{\"name\":\"GPU\"}]},\"config\":{\"hidden\":7168},"
                           "\"expert_load\":{\"tokens\":8,\"choices\":[1,2,0,5]},\"results\":[";

size_t fuzz_seed(unsigned number, uint8_t seed[FUZZ_SEED_BYTES])
{
    static const char *const results[] = {
        "",
        "{\"op\":\"dispatch\",\"mode\":\"normal\",\"dtype\":\"bf16\",\"path\":\"direct\",\"tokens\":64,\"threads\":1,"
        "\"median_us\":12.5,\"min_us\":11,\"p99_us\":20,\"copy_limit_us\":10,\"mpi_us\":40,\"bytes\":4096,\"gbps\":1.5,"
        "\"bus_gbps\":1,\"verified\":true,\"links\":[{\"class\":\"memory\",\"from\":0,\"to\":1,\"bytes\":100}]},"
        "{\"op\":\"dispatch\",\"mode\":\"normal\",\"dtype\":\"bf16\",\"path\":\"direct\",\"tokens\":128,\"threads\":1,"
        "\"median_us\":25,\"copy_limit_us\":18,\"verified\":false,\"cached\":true}",
        "{\"op\":\"put\",\"what\":\"latency\",\"metric\":\"us\",\"transport\":\"p2p\",\"bytes\":8,\"median_us\":0.5,"
        "\"baseline_us\":0.4},{\"op\":\"combine\",\"tokens\":1,\"median_us\":9,\"sms\":24,\"breakdown\":{\"open\":1,"
        "\"rows\":5},\"copy_limit_breakdown\":{\"rows\":4}}",
    };
    if (number >= sizeof results / sizeof *results) return 0;
    return (size_t)snprintf((char *)seed, FUZZ_SEED_BYTES, "%s%s]}", head, results[number]);
}
