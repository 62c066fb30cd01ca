/* SPDX-License-Identifier: Apache-2.0 */
/* How long to wait for a PE that is silent while operations to it are in progress: late is not dead. */
#include "base/knobs.h"
#include "net/transport.h"

static int64_t first_span_ns(const transport_site *site, int64_t timeout_ns)
{
    if (!site->patience) return timeout_ns;
    const int64_t most_ns = knob(KNOB_NET_FIRST_ASK_NS);
    return timeout_ns / 4 < most_ns ? timeout_ns / 4 : most_ns;
}

bool transport_waits_on(const transport_site *site, transport_patience *wait, int32_t pe, int64_t now_ns)
{
    if (wait->since_ns == 0)
        *wait = (transport_patience){.since_ns = now_ns,
                                     .end_ns = now_ns + first_span_ns(site, site->timeout_ms * 1000000)};
    if (now_ns <= wait->end_ns) return true;
    const int64_t span_ns = site->patience ? site->patience(site->context, pe, now_ns - wait->since_ns) : 0;
    wait->end_ns = clock_ns() + span_ns;
    return span_ns > 0;
}
