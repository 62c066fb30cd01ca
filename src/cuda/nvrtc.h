/* SPDX-License-Identifier: Apache-2.0 */
/* The part of NVRTC, the run-time compiler, that expar uses. Private to cuda. */
#ifndef EXPAR_CUDA_NVRTC_H
#define EXPAR_CUDA_NVRTC_H

#include "base/base.h"

typedef int nvrtc_result; /* 0: success */
typedef struct _nvrtcProgram *nvrtc_program;

#define NVRTC_TABLE(X)                                                                                                 \
    X(GetErrorString, const char *, (nvrtc_result result))                                                             \
    X(Version, nvrtc_result, (int *major, int *minor))                                                                 \
    X(GetNumSupportedArchs, nvrtc_result, (int *count))                                                                \
    X(GetSupportedArchs, nvrtc_result, (int *archs))                                                                   \
    X(CreateProgram, nvrtc_result,                                                                                     \
      (nvrtc_program * program, const char *source, const char *name, int num_headers, const char *const *headers,     \
       const char *const *names))                                                                                      \
    X(CompileProgram, nvrtc_result, (nvrtc_program program, int num_options, const char *const *options))              \
    X(GetProgramLogSize, nvrtc_result, (nvrtc_program program, size_t * bytes))                                        \
    X(GetProgramLog, nvrtc_result, (nvrtc_program program, char *log))                                                 \
    X(GetCUBINSize, nvrtc_result, (nvrtc_program program, size_t * bytes))                                             \
    X(GetCUBIN, nvrtc_result, (nvrtc_program program, char *cubin))                                                    \
    X(DestroyProgram, nvrtc_result, (nvrtc_program * program))

typedef struct nvrtc_functions {
#define NVRTC_MEMBER(member, type, parameters) type(*member) parameters;
    NVRTC_TABLE(NVRTC_MEMBER)
#undef NVRTC_MEMBER
    char path[4096]; /* of the library */
    int32_t version; /* 13000 for 13.0 */
} nvrtc_functions;

/* Finds and opens a compiler whose code the driver loads, or the one that EXPAR_NVRTC names. The first call does so,
 * later ones give the same answer. EXPAR_ERR_UNSUPPORTED. */
expar_status nvrtc_open(const nvrtc_functions **out);
/* Returns whether the compiler has a later major version than the driver, which then cannot load its code. Only
   EXPAR_NVRTC may name such a compiler. */
bool nvrtc_is_newer(const nvrtc_functions *nvrtc);
/* Writes that it is too new, and which version is expected. */
void nvrtc_describe_newer(const nvrtc_functions *nvrtc, char *text, size_t bytes);

#endif
