/* SPDX-License-Identifier: Apache-2.0 */
/* Definitions that the files of this folder share. Private to cuda (and its tests). */
#ifndef EXPAR_CUDA_PARTS_H
#define EXPAR_CUDA_PARTS_H

#include "cuda/cuda.h"

#define CUDA_DRIVER_LIBRARY "libcuda.so.1"

/* Puts the address of a library's function into *function, a function pointer. False: it does not exist (driver.c). */
bool cuda_symbol_find(void *library, const char *symbol, void *function);

/* ---- sources (made by cmake/embed_kernels.cmake) ----------------------------------------------------------------- */

/* The lowest compute capability of a GPU, without its minor part, that has the instructions of the kernels. */
#define CUDA_LEAST_MAJOR 8

/* Architecture of the generic variants: sm_90, which GPUs of compute capability 9.x run. */
#define CUDA_READY_ARCH 90

/* The library's own sources. */
extern const cuda_source cuda_sources[];
extern const size_t cuda_num_sources;

/* Returns the source of a kernel file ("normal/dispatch.cu"), or NULL. */
const cuda_source *cuda_source_find(const char *kernel);

/* ---- compiling (nvrtc.c) ----------------------------------------------------------------------------------------- */

/* The compiler's options for one compilation, as text; they are also part of the cache's key. */
typedef struct cuda_options {
    char **items;
    int count;
} cuda_options;
/* arch: 90 for sm_90. */
expar_status cuda_options_make(int32_t arch, const cuda_macro *macros, size_t num_macros, cuda_options *out);
void cuda_options_free(cuda_options *options);

/* Compiles with all embedded sources as headers. log as in cuda_compile. */
expar_status cuda_source_compile(const cuda_source *source, const cuda_options *options, void **cubin,
                                 size_t *cubin_bytes, char **log);

/* ---- places (pointer.c) ------------------------------------------------------------------------------------------ */

/* Call this when a driver has just been loaded: cuda_place_of asks it from now on. */
void cuda_place_distrust(void);

/* ---- the disk (cache.c) ------------------------------------------------------------------------------------------ */

#define CUDA_KEY_BYTES 32
typedef struct cuda_key {
    unsigned char bytes[CUDA_KEY_BYTES];
} cuda_key;
/* Hashes everything on which the result depends. */
expar_status cuda_key_make(const cuda_source *source, const cuda_options *options, int32_t nvrtc_version,
                           int32_t driver_version, cuda_key *out);
/* False: the file does not exist, is broken, or other users may write to it. The caller frees *data. */
bool cuda_cache_load(const cuda_key *key, void **data, size_t *bytes);
/* A cache that cannot be written is no error. */
void cuda_cache_store(const cuda_key *key, const void *data, size_t bytes);

#endif
