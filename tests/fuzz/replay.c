/* SPDX-License-Identifier: Apache-2.0 */
/* Reads seeds and kept inputs once, without a fuzzer: the test of a target, and the maker of its seeds.
 * usage: the test's program with FOLDER, or with --seeds FOLDER
 * FOLDER: its files are inputs, after the seeds, which must be accepted. --seeds: writes the seeds as files there. */
#include "fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Each input is on the heap and of exact size, so that a sanitizer sees a read beyond. */
static void replay(const uint8_t *data, size_t bytes)
{
    uint8_t *exact = malloc(bytes ? bytes : 1);
    fuzz_must(exact != NULL);
    memcpy(exact, data, bytes);
    fuzz_must(LLVMFuzzerTestOneInput(exact, bytes) == 0);
    free(exact);
}

static unsigned replay_seeds(void)
{
    static uint8_t seed[FUZZ_SEED_BYTES];
    unsigned count = 0;
    for (size_t bytes; (bytes = fuzz_seed(count, seed)) > 0; count++) {
        (void)fuzz_was_accepted();
        replay(seed, bytes);
        if (!fuzz_was_accepted()) {
            printf("seed %u was not accepted\n", count);
            exit(1);
        }
    }
    return count;
}

static void replay_file(const char *folder, const char *name)
{
    static uint8_t data[1 << 20];
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rbe");
    fuzz_must(file != NULL);
    size_t bytes = fread(data, 1, sizeof data, file);
    fuzz_must(!ferror(file) && bytes < sizeof data);
    fclose(file);
    printf("%s\n", name);
    fflush(stdout); /* names the input that ends the process */
    replay(data, bytes);
}

static unsigned replay_folder(const char *folder)
{
    unsigned count = 0;
    DIR *entries = opendir(folder);
    fuzz_must(entries != NULL);
    for (const struct dirent *entry; (entry = readdir(entries));) {
        if (entry->d_name[0] == '.') continue;
        replay_file(folder, entry->d_name);
        count++;
    }
    closedir(entries);
    return count;
}

static void write_seeds(const char *folder)
{
    static uint8_t seed[FUZZ_SEED_BYTES];
    size_t bytes;
    for (unsigned number = 0; (bytes = fuzz_seed(number, seed)) > 0; number++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/seed-%u", folder, number);
        FILE *file = fopen(path, "wbe");
        fuzz_must(file != NULL && fwrite(seed, 1, bytes, file) == bytes);
        fuzz_must(fclose(file) == 0);
    }
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--seeds") == 0) {
        write_seeds(argv[2]);
        return 0;
    }
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER | --seeds FOLDER\n", argv[0]);
        return 2;
    }
    LLVMFuzzerInitialize(&argc, &argv);
    unsigned seeds = replay_seeds(), files = replay_folder(argv[1]);
    printf("%u seeds and %u kept inputs\n", seeds, files);
    return seeds > 0 && files > 0 ? 0 : 1;
}
