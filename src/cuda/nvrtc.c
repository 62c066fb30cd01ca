/* SPDX-License-Identifier: Apache-2.0 */
/* Compiling a kernel source, with its macros, for one GPU. */
#include "cuda/nvrtc.h"
#include "cuda/parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const cuda_source *cuda_source_find(const char *kernel)
{
    static const char folder[] = "exec/cuda/kernels/";
    for (size_t i = 0; i < cuda_num_sources; i++) {
        const char *name = cuda_sources[i].name;
        if (strncmp(name, folder, sizeof folder - 1) == 0 && strcmp(name + sizeof folder - 1, kernel) == 0)
            return &cuda_sources[i];
    }
    return NULL;
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

/* No contraction of a · b + c: sums must have the bytes that the CPU computes. */
static const char *const fixed_options[] = {"--std=c++17", "--fmad=false", "--generate-line-info"};

static bool add_option(cuda_options *options, const char *format, const char *name, long long value)
{
    char text[256];
    int length = snprintf(text, sizeof text, format, name, value);
    if (length < 0 || length >= (int)sizeof text) return false;
    options->items[options->count] = strdup(text);
    return options->items[options->count] && ++options->count;
}

expar_status cuda_options_make(int32_t arch, const cuda_macro *macros, size_t num_macros, cuda_options *out)
{
    cuda_options made = {.items = calloc(num_macros + ARRAY_LENGTH(fixed_options) + 1, sizeof *made.items)};
    bool ok = made.items && add_option(&made, "%ssm_%lld", "--gpu-architecture=", arch);
    for (size_t i = 0; ok && i < ARRAY_LENGTH(fixed_options); i++)
        ok = add_option(&made, "%s", fixed_options[i], 0);
    for (size_t i = 0; ok && i < num_macros; i++)
        ok = add_option(&made, "-D%s=%lld", macros[i].name, (long long)macros[i].value);
    if (ok) {
        *out = made;
        return EXPAR_OK;
    }
    cuda_options_free(&made);
    return error_set(EXPAR_ERR_MEMORY, "no memory for the options of a compilation");
}

void cuda_options_free(cuda_options *options)
{
    for (int i = 0; i < options->count; i++)
        free(options->items[i]);
    free(options->items);
    *options = (cuda_options){0};
}

/* ---- compiling --------------------------------------------------------------------------------------------------- */

static expar_status nvrtc_check(const nvrtc_functions *nvrtc, nvrtc_result result, const char *call)
{
    if (result == 0) return EXPAR_OK;
    return error_set(EXPAR_ERR_CUDA, "%s: %s", call, nvrtc->GetErrorString(result));
}

/* Collects all that a source may include: the files that the library embeds, and its own table. */
static size_t collect_headers(const cuda_source *source, const char **names, const char **texts)
{
    size_t count = 0;
    for (size_t i = 0; i < cuda_num_sources; i++, count++) {
        names[count] = cuda_sources[i].name;
        texts[count] = cuda_sources[i].text;
    }
    for (size_t i = 0; source->table != cuda_sources && i < source->table_count; i++, count++) {
        names[count] = source->table[i].name;
        texts[count] = source->table[i].text;
    }
    return count;
}

static expar_status nvrtc_create(const nvrtc_functions *nvrtc, const cuda_source *source, nvrtc_program *out)
{
    size_t most = cuda_num_sources + source->table_count;
    const char **texts = calloc(2 * most + 1, sizeof *texts);
    if (!texts) return error_set(EXPAR_ERR_MEMORY, "no memory");
    const char **names = texts + most;
    size_t count = collect_headers(source, names, texts);
    nvrtc_result result = nvrtc->CreateProgram(out, source->text, source->name, (int)count, texts, names);
    free(texts);
    return nvrtc_check(nvrtc, result, "nvrtcCreateProgram");
}

/* Returns NULL if there is no memory for it. */
static char *take_log(const nvrtc_functions *nvrtc, nvrtc_program program)
{
    size_t bytes = 0;
    if (nvrtc->GetProgramLogSize(program, &bytes) != 0) bytes = 0;
    char *log = calloc(bytes + 1, 1);
    if (log && bytes > 1 && nvrtc->GetProgramLog(program, log) != 0) log[0] = 0;
    return log;
}

static expar_status take_cubin(const nvrtc_functions *nvrtc, nvrtc_program program, void **cubin, size_t *bytes)
{
    expar_status status = nvrtc_check(nvrtc, nvrtc->GetCUBINSize(program, bytes), "nvrtcGetCUBINSize");
    if (status != EXPAR_OK) return status;
    char *data = malloc(*bytes + 1);
    if (!data) return error_set(EXPAR_ERR_MEMORY, "no memory for a kernel of %zu bytes", *bytes);
    status = nvrtc_check(nvrtc, nvrtc->GetCUBIN(program, data), "nvrtcGetCUBIN");
    if (status == EXPAR_OK)
        *cubin = data;
    else
        free(data);
    return status;
}

expar_status cuda_source_compile(const cuda_source *source, const cuda_options *options, void **cubin,
                                 size_t *cubin_bytes, char **log)
{
    const nvrtc_functions *nvrtc;
    nvrtc_program program = NULL;
    expar_status status = nvrtc_open(&nvrtc);
    if (log) *log = NULL;
    if (status == EXPAR_OK) status = nvrtc_create(nvrtc, source, &program);
    if (status != EXPAR_OK) return status;
    nvrtc_result result = nvrtc->CompileProgram(program, options->count, (const char *const *)options->items);
    char *messages = take_log(nvrtc, program);
    status = nvrtc_check(nvrtc, result, "nvrtcCompileProgram");
    if (status == EXPAR_OK) status = take_cubin(nvrtc, program, cubin, cubin_bytes);
    if (log)
        *log = messages;
    else
        free(messages);
    nvrtc->DestroyProgram(&program);
    return status == EXPAR_OK ? status : error_prefix(status, "%s", source->name);
}

expar_status cuda_compile(const char *kernel, const cuda_macro *macros, size_t num_macros, int32_t arch, void **cubin,
                          size_t *cubin_bytes, char **log)
{
    const cuda_source *source = cuda_source_find(kernel);
    cuda_options options;
    if (log) *log = NULL;
    if (!source) return error_set(EXPAR_ERR_ARGUMENT, "there is no kernel source %s", kernel);
    expar_status status = cuda_options_make(arch, macros, num_macros, &options);
    if (status != EXPAR_OK) return status;
    status = cuda_source_compile(source, &options, cubin, cubin_bytes, log);
    cuda_options_free(&options);
    return status;
}
