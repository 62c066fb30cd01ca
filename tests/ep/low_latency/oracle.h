/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle of low-latency mode: what dispatch and combine must give, computed in one process from the definitions.
 *
 * It shares nothing with the library, not even a header, and knows neither slots nor messages. It walks over all ranks,
 * tokens and slots in the plainest order. Elements and weights are bits. Letters in shapes: N ranks, B tokens of a rank
 * at most, T of a rank in this call, H hidden, K top-k. E experts, L = E/N, S words of scales a row. */
#ifndef TESTS_EP_LOW_LATENCY_ORACLE_H
#define TESTS_EP_LOW_LATENCY_ORACLE_H

#include "oracle/oracle.h"

typedef enum llo_format { LLO_PLAIN, LLO_FP8, LLO_FP8_ROUND, LLO_FP8_UE8M0, LLO_INT8, LLO_NVFP4 } llo_format;

/* Elements of a row that share a scale. */
#define LLO_GROUP 128
/* The same in NVFP4. */
#define LLO_BLOCK 16

typedef struct llo_job {
    int32_t num_ranks, max_tokens, hidden, topk, num_experts; /* N, B, H, K, E */
    oracle_type type;                                         /* of x: bf16, f16 or f32 */
    llo_format format;
    float global_scale;         /* of NVFP4 */
    const uint8_t *masked;      /* [N]: 1 for ranks that nobody sends to or hears; NULL: none */
    const oracle_input *inputs; /* [N]: num_tokens, x, topk_idx and weights count here */
} llo_job;

/* ---- formats (oracle_format.c) ----------------------------------------------------------------------------------- */

/* Bits of E4M3: the nearest of its finite values, of two equally near ones the even code; beyond 448 it is 448. NaN:
   0x7f. And back. */
uint8_t llo_e4m3_round(float value);
float llo_e4m3_widen(uint8_t bits);
/* Bits of E2M1: the nearest of its values, of two equally near ones the even code; beyond 6 it is 6. NaN: 0. And
   back. */
uint8_t llo_e2m1_round(float value);
float llo_e2m1_widen(uint8_t bits);
/* For a row on its way: its bytes without scales, and words of scales (S). */
size_t llo_row_bytes(const llo_job *job);
int32_t llo_num_scales(const llo_job *job);
/* x: [H] elements of the job's type. q: [H] elements of the format; scales: [S] words, bits of FP32 or four exponents
   each; not used for LLO_PLAIN. A group that holds infinity or NaN is NaN: its scale, 255 as an exponent, and its
   elements, 0 in INT8 and NVFP4. NVFP4 has blocks instead of groups, and four scales in a word. */
void llo_quantise(const llo_job *job, const void *x, void *q, uint32_t *scales);

/* LogFMT (oracle_log.c). x: [hidden] elements of the type, groups of LLO_GROUP. low and high: their bounds after
   arrival, of the type again. Libm's logarithms and powers are not the library's, so each element has an interval. It
   has the two neighbouring codes where its logarithm lies so near the middle between two steps that either may be
   meant. It also has the error of a decoded number (docs/reference/low-latency-formats.md), rounded to the type.
   Returns how many elements have two ends that differ: few in BF16 and FP16, most in FP32. A group whose magnitudes
   differ, but by less than logarithms tell, is no case for a test: it aborts. */
int64_t llo_log_row(oracle_type type, int32_t hidden, const void *x, void *low, void *high);

/* ---- rows (oracle_rows.c) ---------------------------------------------------------------------------------------- */

/* Whether a token has an index out of range: it goes nowhere. */
bool llo_token_is_wrong(const llo_job *job, int32_t source, int64_t t);
/* [N][B][K]: the row that slot k of a source's token t has at the slot's expert, or -1. In an expert's rows sources
   ascend, in a source's its tokens, and in a token's its slots. The caller frees it. */
int32_t *llo_map_make(const llo_job *job);
/* Tokens of `rank` times the ranks that each goes to, this one included. */
int64_t llo_messages(const llo_job *job, int32_t rank);

/* For `rank`: count [L]; src_info [L][N*B], token numbers, -1 beyond the count; range [L][N], begin << 32 | count. */
void llo_places(const llo_job *job, const int32_t *map, int32_t rank, int32_t *count, int32_t *src_info,
                int64_t *range);
/* For `rank`: x [L][N*B][H] in the format, scales [L][N*B][S]; rows beyond the counts are left alone. */
void llo_dispatch(const llo_job *job, const int32_t *map, int32_t rank, void *x, uint32_t *scales);

/* ---- sums (oracle_sums.c) ---------------------------------------------------------------------------------------- */

/* expert_x[r]: [L][N*B][H] of the job's type, what rank r gives back. y: [T][H]. Sums are FP32 and begin with +0; slots
   of -1 and of masked ranks add nothing. */

/* Slots ascending: product, then sum, each rounded; at the end rounded to the type. */
void llo_combine_exact(const llo_job *job, const int32_t *map, int32_t rank, const void *const *expert_x, void *y);
/* Each rank so over its own slots, rounded to the type; these sums, ranks ascending, rounded again. */
void llo_combine_reduced(const llo_job *job, const int32_t *map, int32_t rank, const void *const *expert_x, void *y);

#endif
