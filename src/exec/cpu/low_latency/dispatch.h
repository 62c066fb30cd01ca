/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that the files of a dispatch share. dispatch.c has the call: messages to mapped peers, rows to experts.
 * The places of rows are in ranges.c, and messages to and from ranks that are not mapped in far/dispatch.c. Private to
 * low_latency. */
#ifndef EXPAR_EXEC_CPU_LOW_LATENCY_DISPATCH_H
#define EXPAR_EXEC_CPU_LOW_LATENCY_DISPATCH_H

#include "exec/cpu/low_latency/cpu.h"

/* One dispatch in one of its phases. */
typedef struct ll_dispatch {
    ll_cpu *self;
    ll_dispatch_step *step;
    ll_record *record;
    int32_t codec;    /* codec_format of the payload */
    size_t row_bytes; /* bytes of a row's payload */
    int32_t scales;   /* words of a row's scales, which follow it in a message */
    bool streaming;   /* rows of the results bypass the cache */
    bool sends_past;  /* messages bypass it, too */
} ll_dispatch;

/* The state of each peer in a send (ll_cpu.progress). */
enum { SEND_WAITS = 0, SEND_NOW = 1, SEND_DONE = 2 };

/* ---- dispatch.c -------------------------------------------------------------------------------------------------- */

/* The first opens the call, and sends if it goes on. The second comes once all headers are known and match. */
expar_status ll_dispatch_send(ll_cpu *self, ll_dispatch_step *step);
expar_status ll_dispatch_receive(ll_cpu *self, ll_dispatch_step *step);
void ll_dispatch_header(const ll_dispatch *d, ll_header *header, int32_t token, const ll_target *target);
/* Returns a token's payload, followed by its scales: x's own row, or one that is made for it and lasts until the next
   one. */
const void *ll_dispatch_payload(const ll_dispatch *d, int32_t token, const ll_scratch *scratch);

/* ---- ranges.c ---------------------------------------------------------------------------------------------------- */

/* Fills the routing's ranges and the counts, once all headers are known. Rows beyond an expert's places are left out,
   and call.verdict says so, unless it says something else already. */
void ll_ranges_place(ll_dispatch *d);
/* Finds row `row` of a source's rows for an expert: its number in [L][N*B]. Returns false if there is no such row, even
   if its source claims one. */
bool ll_range_row(const ll_dispatch *d, int32_t source, int32_t local, int32_t row, int64_t *out);

#endif
