/* SPDX-License-Identifier: Apache-2.0 */
/* Offsets between the clocks of hosts. Each rank stamps its clock before it joins a gather. A rank leaves a gather
 * after all ranks have joined it, so its next stamp is later than all stamps of this one. That bounds each offset
 * from both sides, whatever the network's delays are. */
#include "check.h"
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#define ROUNDS         16
#define MOST_OFFSET_NS 10000000
#define NS_FOR_EACH_MS 1e6

static int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void check_clock_bounds(const int64_t *stamps, int32_t rounds, int32_t ranks, int64_t *low, int64_t *high)
{
    for (int32_t rank = 0; rank < ranks; rank++) {
        low[rank] = INT64_MIN;
        high[rank] = INT64_MAX;
        for (int32_t k = 0; k + 1 < rounds; k++) {
            const int64_t *now = stamps + (size_t)k * (size_t)ranks, *next = now + ranks;
            if (now[rank] - next[0] > low[rank]) low[rank] = now[rank] - next[0];
            if (next[rank] - now[0] < high[rank]) high[rank] = next[rank] - now[0];
        }
    }
}

void check_judge_clocks(const struct check_host *hosts, int32_t ranks, const int64_t *low, const int64_t *high,
                        json_t *rows)
{
    struct check_text text = {0};
    double worst_ms = 0, error_ms = 0;
    for (int32_t rank = 0; rank < ranks; rank++) {
        if (hosts->first[hosts->of[rank]] != rank) continue;
        const double middle = ((double)low[rank] + (double)high[rank]) / 2 / NS_FOR_EACH_MS;
        const double width = ((double)high[rank] - (double)low[rank]) / 2 / NS_FOR_EACH_MS;
        if (width > error_ms) error_ms = width;
        if (middle > worst_ms || -middle > worst_ms) worst_ms = middle < 0 ? -middle : middle;
        if (low[rank] > MOST_OFFSET_NS || high[rank] < -MOST_OFFSET_NS)
            check_text_add(&text, "%s%s %+.1f ms", text.used ? ", " : "", hosts->names[rank], middle);
    }
    struct check_row row = {"group", "clocks", text.used ? CHECK_WARNING : CHECK_OK,
                            "offsets of at most 10 ms, so that logs and traces fit",
                            "sudo chronyc makestep   (or: sudo systemctl restart systemd-timesyncd)"};
    if (text.used)
        check_add(rows, &row, "off rank 0's clock: %s (all +-%.1f ms)", text.text, error_ms);
    else
        check_add(rows, &row, "at most %.1f ms (+-%.1f ms)", worst_ms, error_ms);
}

expar_status check_clocks(expar_group *group, const struct check_host *hosts, json_t *rows)
{
    const int32_t ranks = expar_group_size(group);
    int64_t *stamps = calloc((size_t)ROUNDS * (size_t)ranks, sizeof *stamps);
    int64_t *bounds = calloc(2 * (size_t)ranks, sizeof *bounds);
    expar_status status = stamps && bounds ? EXPAR_OK : EXPAR_ERR_MEMORY;
    for (int32_t k = 0; k < ROUNDS && status == EXPAR_OK; k++) {
        const int64_t mine = clock_ns();
        status = expar_group_allgather(group, &mine, stamps + (size_t)k * (size_t)ranks, sizeof mine);
    }
    if (status == EXPAR_OK && expar_group_rank(group) == 0) {
        check_clock_bounds(stamps, ROUNDS, ranks, bounds, bounds + ranks);
        check_judge_clocks(hosts, ranks, bounds, bounds + ranks, rows);
    }
    free(bounds);
    free(stamps);
    return status;
}
