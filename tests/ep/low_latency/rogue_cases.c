/* SPDX-License-Identifier: Apache-2.0 */
#include "ep/low_latency/rogue.h"

#include <limits.h>

/* A message as it should be, but for what a case is about. */
#define SOUND .messages = 1, .counts = {1, 0}, .experts = {0, -1}, .placed = true
#define STRAY .messages = 1, .counts = {1, 0}
/* Words of a small batch. On CPUs, and with masks, there are none: there they are more messages than there can be. */
#define IN_WORDS .marks = LL_HEADER_IN_WORDS
#define FEW      .marks = LL_HEADER_MARKS

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverride-init" /* each entry is a sound message but for some members */
const rogue_case rogue_cases[] = {
    {"too many messages", STRAY, .messages = ROGUE_TOKENS + 1, .status = EXPAR_ERR_PEER,
     .text = "has told what cannot be: 21 messages, of 20 at most"},
    {"messages below 0", STRAY, .messages = -1, .status = EXPAR_ERR_PEER, .text = "-1 messages, of 20"},
    {"too many rows", STRAY, .counts = {1, ROGUE_TOKENS *ROGUE_TOPK + 1}, .status = EXPAR_ERR_PEER,
     .text = "has told what cannot be: 41 rows for expert 1 of rank 0, of 40 at most"},
    {"rows without end", STRAY, .counts = {INT_MAX, INT_MAX}, .status = EXPAR_ERR_PEER,
     .text = "2147483647 rows for expert 0 of rank 0"},
    {"rows below 0", STRAY, .counts = {INT_MIN, 0}, .status = EXPAR_ERR_PEER, .text = "-2147483648 rows for expert 0"},
    {"rows back behind the last piece", STRAY, .far = true, .returns = ROGUE_RETURNS, .status = EXPAR_ERR_PEER,
     .text = "rows back from piece 7 on, of 7 in all"},
    {"rows back without end", STRAY, .far = true, .returns = INT_MAX, .status = EXPAR_ERR_PEER,
     .text = "rows back from piece 2147483647 on"},
    {"rows back before the first piece", STRAY, .far = true, .returns = -1, .status = EXPAR_ERR_PEER,
     .text = "rows back from piece -1 on"},
    {"rows back to the last piece", SOUND, .far = true, .returns = ROGUE_RETURNS - 1},
    {"no status", STRAY, .header_status = 77, .status = EXPAR_ERR_REMOTE,
     .text = "rejected its arguments: EXPAR_ERR_?"},
    {"a status below 0", STRAY, .header_status = UINT32_MAX, .status = EXPAR_ERR_REMOTE,
     .text = "rejected its arguments: EXPAR_ERR_?"},
    {"a text without end", STRAY, .header_status = EXPAR_ERR_MEMORY, .status = EXPAR_ERR_REMOTE,
     .text = "rejected its arguments: EXPAR_ERR_MEMORY: rank 1 xxx"},
    {"one that has left", STRAY, .header_status = EXPAR_ERR_PEER, .status = EXPAR_ERR_PEER, .text = "rank 1 xxx"},
    {"one that has left, and counts", STRAY, .messages = -1, .header_status = EXPAR_ERR_PEER, .status = EXPAR_ERR_PEER},
    {"another form", STRAY, .tag = 0x7fff0000, .status = EXPAR_ERR_MISMATCH,
     .text = "top-k is 32769 on rank 1 and 2 on rank 0"},
    {"no type", STRAY, .tag = 0x770, .status = EXPAR_ERR_MISMATCH, .text = "dtype of x is ? on rank 1"},
    {"another call's stamp", STRAY, .stamp = LL_HEADER_COPIES, .status = EXPAR_ERR_PEER,
     .text = "message headers of rank 1: 0 of 1"},
    {"a masker", STRAY, .stamp = LL_HEADER_COPIES, .masker = UINT64_MAX, .status = EXPAR_ERR_PEER, .text = "0 of 1"},
    {"no status on the way back", SOUND, .back_header_status = UINT32_MAX, .back = EXPAR_ERR_REMOTE},
    {"one that leaves on the way back", SOUND, .back_header_status = EXPAR_ERR_PEER, .back = EXPAR_ERR_PEER},
    {"another handle", SOUND, .route = 7, .back = EXPAR_ERR_MISMATCH},
    {"a message as it should be", SOUND, .token = 3},
    {"no bank", SOUND, .token = 3, .bank = UINT32_MAX},
    {"no region", SOUND, .token = 3, .region = UINT32_MAX},
    {"a region behind the last", SOUND, .token = 3, .region = ROGUE_RANKS},
    {"an expert that is none", STRAY, .experts = {ROGUE_LOCALS, INT_MAX}},
    {"an expert below -1", STRAY, .experts = {-2, INT_MIN}},
    {"a row behind the last", STRAY, .experts = {0, -1}, .rows = {1, 0}},
    {"a row without end", STRAY, .experts = {0, 1}, .rows = {INT_MAX, 0}},
    {"a row below 0", STRAY, .experts = {0, -1}, .rows = {INT_MIN, 0}},
    {"a token behind the last", SOUND, .token = ROGUE_TOKENS},
    {"a token without end", SOUND, .token = INT_MAX},
    {"a token below 0", SOUND, .token = INT_MIN},
    {"a place behind the last", SOUND, .place = ROGUE_TOPK},
    {"a place without end", SOUND, .place = INT_MAX},
    {"a place below 0", SOUND, .place = INT_MIN},
    {"a message in words", SOUND, IN_WORDS, .token = 3},
    {"rows back in words", SOUND, FEW, .token = 3},
    {"words of an expert that is none", STRAY, FEW, .experts = {ROGUE_LOCALS, INT_MIN}},
    {"words of a row behind the last", STRAY, FEW, .experts = {0, -1}, .rows = {1, 0}},
    {"sums in words behind the last token", SOUND, IN_WORDS, .token = LL_WORD_TOKENS},
    {"rows in words behind the last token", SOUND, FEW, .token = LL_WORD_TOKENS},
    {"rows in words for a token without end", SOUND, FEW, .token = INT_MAX},
    {"rows in words at a place behind the last", SOUND, FEW, .place = ROGUE_TOPK},
    {"too many messages in words", STRAY, IN_WORDS, .messages = LL_WORD_TOKENS + 1, .status = EXPAR_ERR_PEER,
     .text = "messages, of 16 at most"},
    {"rows in words, and no message", STRAY, .marks = LL_HEADER_FEW, .status = EXPAR_ERR_PEER,
     .text = "messages, of 20 at most"},
};
#pragma GCC diagnostic pop
const size_t rogue_count = sizeof rogue_cases / sizeof *rogue_cases;

#define ATTEMPT ((uint64_t)1 << 32)
#define BOTH    (ATTEMPT | 1)
const rogue_clean rogue_cleans[] = {
    {"views that are the same", .stage = ATTEMPT | 2, .view = BOTH, .in = true},
    {"a decision", .stage = ATTEMPT | 2, .decided = 1, .view = BOTH, .in = true},
    {"no attempt", .stage = 2, .view = BOTH, .late = true},
    {"no attempt of mine", .stage = ATTEMPT | 2, .view = ATTEMPT | 7, .late = true},
    {"a step without end", .stage = ATTEMPT | UINT32_MAX, .view = ATTEMPT | 7},
    {"calls without end", .stage = ATTEMPT | 2, .view = BOTH, .calls = UINT64_MAX},
    {"epochs without end", .stage = ATTEMPT | 2, .view = BOTH, .epoch = UINT64_MAX},
    {"a decision of no attempt", .stage = ATTEMPT | 2, .decided = ATTEMPT, .view = BOTH},
    {"decided epochs without end", .stage = ATTEMPT | 2, .decided = 1, .view = BOTH, .epoch = UINT64_MAX - 1},
    {"a refusal of nobody", .stage = ATTEMPT | 2, .decided = 1, .view = BOTH,
     .rejection = (uint64_t)ROGUE_RANKS << 32 | 2},
    {"a refusal of rank -1", .stage = ATTEMPT | 2, .decided = 1, .view = BOTH, .rejection = UINT64_MAX},
};
const size_t rogue_clean_count = sizeof rogue_cleans / sizeof *rogue_cleans;
