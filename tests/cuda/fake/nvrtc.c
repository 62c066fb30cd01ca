/* SPDX-License-Identifier: Apache-2.0 */
/* A run-time compiler for the simulated driver (fake.c). It takes every source but those whose names hold the word in
 * FAKE_REJECTS. Its output is no code, but for the delays that are asked of kernels (CODE_DELAYS). A test may hold some
 * (controls.h). */
#include "cuda/nvrtc.h"
#include "controls.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* By the build, which makes more than one. */
#ifndef FAKE_MAJOR
#define FAKE_MAJOR 12
#endif

enum { COMPILATION_FAILED = 6 };

static const char log_text[] = "fake error: this is refused\n";

struct _nvrtcProgram {
    bool rejected, held;
    char code[32];
};

static fake_compiler_controls controls;

fake_compiler_controls *fake_compiler_controls_of(void)
{
    return &controls;
}

const char *nvrtcGetErrorString(nvrtc_result result)
{
    return result ? "FAKE_ERROR" : "FAKE_SUCCESS";
}
nvrtc_result nvrtcVersion(int *major, int *minor)
{
    *major = FAKE_MAJOR;
    *minor = 99;
    return 0;
}
nvrtc_result nvrtcGetNumSupportedArchs(int *count)
{
    *count = 1;
    return 0;
}
nvrtc_result nvrtcGetSupportedArchs(int *archs)
{
    *archs = 90;
    return 0;
}
nvrtc_result nvrtcCreateProgram(nvrtc_program *program, const char *source, const char *name, int num_headers,
                                const char *const *headers, const char *const *names)
{
    (void)source, (void)num_headers, (void)headers, (void)names;
    *program = calloc(1, sizeof **program);
    const char *word = getenv("FAKE_REJECTS");
    (*program)->rejected = word && *word && strstr(name, word);
    (*program)->held = strstr(name, "held") != NULL;
    return 0;
}
/* False after a generous deadline. */
static bool meet_others(void)
{
    int left_ms = 60000;
    while (atomic_load(&controls.begun) < atomic_load(&controls.meet) && left_ms-- > 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return left_ms >= 0;
}

nvrtc_result nvrtcCompileProgram(nvrtc_program program, int num_options, const char *const *options)
{
    strcpy(program->code, "no code");
    for (int i = 0; i < num_options; i++) {
        const char *delays = strstr(options[i], CODE_DELAYS);
        if (delays) snprintf(program->code, sizeof program->code, "%s", delays);
    }
    atomic_fetch_add(&controls.begun, 1);
    while (program->held && atomic_load(&controls.hold))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return program->rejected || !meet_others() ? COMPILATION_FAILED : 0;
}
nvrtc_result nvrtcGetProgramLogSize(nvrtc_program program, size_t *bytes)
{
    *bytes = program->rejected ? sizeof log_text : 1;
    return 0;
}
nvrtc_result nvrtcGetProgramLog(nvrtc_program program, char *log)
{
    memcpy(log, program->rejected ? log_text : "", program->rejected ? sizeof log_text : 1);
    return 0;
}
nvrtc_result nvrtcGetCUBINSize(nvrtc_program program, size_t *bytes)
{
    *bytes = strlen(program->code) + 1;
    return 0;
}
nvrtc_result nvrtcGetCUBIN(nvrtc_program program, char *cubin)
{
    strcpy(cubin, program->code);
    return 0;
}
nvrtc_result nvrtcDestroyProgram(nvrtc_program *program)
{
    free(*program);
    return 0;
}
