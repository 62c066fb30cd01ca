/* SPDX-License-Identifier: Apache-2.0 */
/* Late ranks: what an inquiry says of them, and whether the limit of the wait ends it (wait.c). */
#include "boot/inquiry.h"
#include "boot/registry.h"

#include <stdio.h>
#include <stdlib.h>

#define LATE_TEXT 640 /* bytes: enough for three ranks with long texts */

/* Writes what the others are told of one rank; returns the length as snprintf does. */
static int describe_rank(const inquiry *q, int32_t rank, char *text, size_t bytes)
{
    if (!q->answers[rank].came) return snprintf(text, bytes, "rank %d has not answered yet", rank);
    return snprintf(text, bytes, "rank %d is %s", rank, q->answers[rank].doing);
}

/* It is not known which rank will change a word: any of those that were asked may. Ranks that do not fit into the text
   are counted. */
static void describe_all(const inquiry *q, char *text, size_t bytes)
{
    char one[BOOT_DOING_TEXT + 32];
    size_t length = (size_t)snprintf(text, bytes, "no rank is silent");
    int32_t left = 0, told = 0;
    for (int32_t r = 0; r < q->wait->boot->size; r++) {
        if (!q->answers[r].asked) continue;
        const size_t more = (size_t)describe_rank(q, r, one, sizeof one) + 2;
        if (left > 0 || length + more + sizeof "; and 2147483647 more" > bytes)
            left++;
        else
            length += (size_t)snprintf(text + length, bytes - length, "%s%s", told++ ? "; " : ": ", one);
    }
    if (left > 0) snprintf(text + length, bytes - length, "; and %d more", left);
}

/* Writes "rank 2 is alive but has not come to this call: it is in …". */
static void describe_late(const inquiry *q, char *text, size_t bytes)
{
    const boot_wait *wait = q->wait;
    const int32_t rank = q->end >= 0 ? q->end : atomic_load_explicit(&wait->awaited, memory_order_relaxed);
    if (rank < 0)
        describe_all(q, text, bytes);
    else if (!q->answers[rank].came)
        snprintf(text, bytes, "rank %d has not come, and not answered yet", rank);
    else if (q->answers[rank].waits && boot_same_topic(&q->answers[rank].topic, &wait->topic))
        snprintf(text, bytes, "rank %d is late: it is %s", rank, q->answers[rank].doing);
    else
        snprintf(text, bytes, "rank %d is alive but has not come to this call: it is %s", rank, q->answers[rank].doing);
}

/* A rank that owes an answer may turn out to be silent, not late. */
static bool somebody_owes(const inquiry *q)
{
    for (int32_t r = 0; r < q->wait->boot->size; r++)
        if (q->answers[r].asked && !q->answers[r].came && q->answers[r].silent_ns > 0) return true;
    return false;
}

/* Returns 0 if there is no limit. */
int64_t boot_wait_late_limit_ms(const boot_wait *wait)
{
    const int64_t limit_ms = wait->boot->late_limit_ms;
    const bool own = wait->late_limit_ms > 0 && (limit_ms == 0 || wait->late_limit_ms < limit_ms);
    return own ? wait->late_limit_ms : limit_ms;
}

/* A missed rank that waits for no other delays the others. If the wait has a limit of its own, the caller goes on
   without the late ranks, so they must be known. One such rank is late. Several may have waited, until this very limit,
   for a rank that does not come, and may be on their way now. Their waits have limits, too. So they all get half the
   limit more, and until then this returns false. wait->silent has the late ranks. */
static bool find_late(const inquiry *q, int64_t limit_ns)
{
    boot_wait *wait = q->wait;
    int32_t count = 0;
    if (wait->late_limit_ms == 0 || !wait->misses) return true;
    bool *late = calloc((size_t)wait->boot->size, sizeof *late);
    for (int32_t r = 0; late && r < wait->boot->size; r++) {
        const boot_answer *answer = &q->answers[r];
        late[r] = answer->asked && answer->came && !answer->waits && inquiry_misses(wait, r);
        count += late[r];
    }
    if (count != 1 && q->waited_ns < limit_ns + limit_ns / 2) {
        free(late);
        return false;
    }
    wait->silent = late;
    return true;
}

void inquiry_judge_lateness(inquiry *q)
{
    boot_wait *wait = q->wait;
    const int64_t limit_ms = boot_wait_late_limit_ms(wait);
    const int32_t awaited = atomic_load_explicit(&wait->awaited, memory_order_relaxed);
    char text[LATE_TEXT], whom[48] = "";
    if (limit_ms == 0 || q->waited_ns < limit_ms * NS_PER_MS || somebody_owes(q)) return;
    if (!find_late(q, limit_ms * NS_PER_MS)) return;
    if (awaited >= 0) snprintf(whom, sizeof whom, " waiting for rank %d", awaited);
    describe_late(q, text, sizeof text);
    inquiry_fail(q, BOOT_LATE, q->end >= 0 ? q->end : awaited,
                 error_set(EXPAR_ERR_PEER, "%s: timed out after %lld ms (the late limit)%s; %s", wait->what,
                           (long long)limit_ms, whom, text));
}

const char *boot_limit_text(const boot *self)
{
    return self->late_limit_ms > 0
               ? "the late limit (EXPAR_LATE_LIMIT, late_limit_ms) ends it"
               : "no limit ends it (EXPAR_LATE_LIMIT in seconds or the group's late_limit_ms sets one)";
}

void inquiry_log(inquiry *q)
{
    boot_wait *wait = q->wait;
    char own[BOOT_DOING_TEXT], text[LATE_TEXT];
    if (q->now_ns < wait->log_ns) return;
    wait->log_pause_ns *= 2;
    wait->log_ns = q->now_ns + wait->log_pause_ns;
    registry_describe(wait->boot->registry, wait, own, sizeof own);
    describe_late(q, text, sizeof text);
    const int64_t waited_ns = q->now_ns - atomic_load_explicit(&wait->since_ns, memory_order_relaxed);
    LOG(LOG_WARN, "for %lld s %s; %s; %s", (long long)(waited_ns / (1000 * NS_PER_MS)), own, text,
        boot_limit_text(wait->boot));
}
