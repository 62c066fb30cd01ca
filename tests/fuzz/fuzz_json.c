/* SPDX-License-Identifier: Apache-2.0 */
/* config.json of the demo's model. */
#include "config.h"
#include "fuzz.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[] = "/tmp/expar-fuzz-XXXXXX";

static void remove_folder(void)
{
    char path[64];
    snprintf(path, sizeof path, "%s/config.json", folder);
    unlink(path);
    rmdir(folder);
}

static void write_config(const uint8_t *data, size_t bytes)
{
    static bool made;
    char path[64];
    if (!made) {
        made = mkdtemp(folder) != NULL;
        fuzz_must(made && atexit(remove_folder) == 0);
    }
    snprintf(path, sizeof path, "%s/config.json", folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    fuzz_must(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    close(fd);
}

static void check_config(const model_config *config)
{
    const model_sizes *sizes = &config->sizes;
    fuzz_must(sizes->vocab == 256 && sizes->hidden > 0 && sizes->heads > 0 && sizes->hidden % sizes->heads == 0);
    fuzz_must(sizes->top_k >= 1 && sizes->top_k <= MODEL_MAX_TOP_K && sizes->top_k <= sizes->experts);
    fuzz_must(sizes->rms_eps > 0 && sizes->rope_theta >= 1 && config->num_samples >= 1);
    for (int32_t i = 0; i < config->num_samples; i++) {
        const model_sample *sample = &config->samples[i];
        fuzz_must(sample->prompt_bytes > 0 && sample->greedy_bytes > 0);
        fuzz_must(sample->prompt_bytes + sample->greedy_bytes <= sizes->context);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    demo_error error = {.text = ""};
    model_config config;
    write_config(data, bytes);
    const int before = fuzz_count_descriptors();
    if (model_config_load(folder, &config, &error)) {
        check_config(&config);
        model_config_free(&config);
        fuzz_accept();
    } else {
        fuzz_must_be_shown(error.text);
    }
    fuzz_must(fuzz_count_descriptors() == before);
    return 0;
}

size_t fuzz_seed(unsigned number, uint8_t seed[FUZZ_SEED_BYTES])
{
    static const char *const format =
        "{\"vocab\":256,\"hidden\":%d,\"layers\":2,\"heads\":%d,\"experts\":64,\"top_k\":%d,\"expert_ffn\":128,"
        "\"context\":96,\"rms_eps\":1e-5,\"rope_theta\":10000.0,\"generations\":[{\"prompt\":\"Once \\u00e9\","
        "\"bytes\":[32,104,105]}%s]}";
    if (number > 1) return 0;
    return (size_t)snprintf((char *)seed, FUZZ_SEED_BYTES, format, number ? 256 : 128, number ? 2 : 1, number ? 8 : 2,
                            number ? ",{\"prompt\":\"The\",\"bytes\":[255,0]}" : "");
}
