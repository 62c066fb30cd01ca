/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that go to peers, and the flags after them. Rows of large calls bypass the cache, which would have to read each
 * line before it is overwritten. Such stores need a fence before the flag, and the fence waits for all of them. So
 * flags of a few rows are held back and follow one fence together. */
#include "base/knobs.h"
#include "exec/cpu/low_latency/cpu.h"

#include <string.h>

bool ll_streams(const ll_cpu *self, uint64_t rows, size_t row_bytes)
{
    return rows * row_bytes * (uint64_t)self->shape.ranks > self->stream_bytes;
}

/* ---- pace -------------------------------------------------------------------------------------------------------- */

static bool pace_probes(const ll_pace *pace)
{
    return pace->sends % knob_count(KNOB_CPU_PACE_PROBE) == 0;
}

bool ll_pace_streams(const ll_pace *pace)
{
    return pace->slow == knob_count(KNOB_CPU_PACE_SLOW) && !pace_probes(pace);
}

bool ll_pace_times(const ll_pace *pace)
{
    return pace->slow > 0 ? !ll_pace_streams(pace) : pace->sends % knob_count(KNOB_CPU_PACE_TIMED) == 0;
}

/* Cores of one socket copy 15 to 20 bytes in a nanosecond, those of two sockets 2 (measured:
   docs/internals/measurements/low-latency-cpu.md). A few bytes tell nothing. */
void ll_pace_note(ll_pace *pace, uint64_t bytes, int64_t ns)
{
    pace->sends++;
    if (ns == 0 || bytes < (uint64_t)knob(KNOB_CPU_PACE_LEAST_BYTES)) return;
    if (bytes >= (uint64_t)ns * (uint64_t)knob(KNOB_CPU_PACE_SPEED))
        pace->slow = 0;
    else if (pace->slow < knob_count(KNOB_CPU_PACE_SLOW))
        pace->slow++;
}

/* ---- bursts ------------------------------------------------------------------------------------------------------ */

ll_burst ll_burst_begin(const ll_cpu *self, uint64_t epoch, bool streaming)
{
    return (ll_burst){.self = self, .epoch = epoch, .streaming = streaming};
}

void ll_burst_copy(const ll_burst *burst, void *dest, const void *source, size_t bytes)
{
    cpu_copy_row(dest, source, burst->streaming ? ep_round(bytes, 16) : bytes, burst->streaming);
}

void ll_burst_end(ll_burst *burst)
{
    if (burst->count == 0) return;
    cpu_copy_fence();
    for (int32_t i = 0; i < burst->count; i++)
        ll_store(burst->self, burst->pes[i], burst->flags[i], burst->words[i]);
    burst->count = 0;
}

void ll_burst_flag(ll_burst *burst, int32_t pe, uint64_t flag, uint32_t value)
{
    const uint64_t word = ll_word(burst->epoch, value);
    if (!burst->streaming) {
        ll_store(burst->self, pe, flag, word);
        return;
    }
    burst->pes[burst->count] = pe;
    burst->words[burst->count] = word;
    burst->flags[burst->count++] = flag;
    if (burst->count == LL_BURST_FLAGS) ll_burst_end(burst);
}
