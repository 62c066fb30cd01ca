/* SPDX-License-Identifier: Apache-2.0 */
/* How calls end on the GPU: their results, and waits that were given up. */
#include "base/interrupt.h"
#include "base/knobs.h"
#include "exec/cuda/core/gpu.h"

#include <sched.h>
#include <stdio.h>

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* Makes kernels leave their waits: they read the word while they wait. The thread that learns of a failure calls it. */
static void leave_waits(gpu_core *self)
{
    __atomic_fetch_or(&self->report->orders, GPU_ABORT, __ATOMIC_RELEASE);
}

/* Ends waits when the group fails. A buffer that goes on without lost ranks does so only if this rank itself cannot go
   on. */
static void group_failed(void *context)
{
    gpu_core *self = context;
    if (!self->lose || sym_check_self(self->sym, "low latency") != EXPAR_OK) leave_waits(self);
}

bool gpu_group_failed(const gpu_core *self)
{
    return (__atomic_load_n(&self->report->orders, __ATOMIC_ACQUIRE) & GPU_ABORT) != 0;
}

void gpu_end_waits(gpu_core *self, expar_status status)
{
    bool first = false;
    gpu_segments_freeze(self->segments);
    if (atomic_compare_exchange_strong_explicit(&self->ending, &first, true, memory_order_acq_rel,
                                                memory_order_acquire)) {
        error_keep(&self->reason, status);
        atomic_store_explicit(&self->has_reason, true, memory_order_release);
    }
    leave_waits(self);
}

/* Says why waits end, once the abort word is set: the group has failed, or only this buffer is lost. */
static expar_status why_waits_end(const gpu_core *self, const char *what)
{
    if (atomic_load_explicit(&self->has_reason, memory_order_acquire)) return error_restore(&self->reason);
    expar_status status = sym_check(self->sym, what);
    return status == EXPAR_OK ? error_set(EXPAR_ERR_PEER, "%s: the wait was ended", what) : status;
}

void gpu_listen(gpu_core *self)
{
    self->listener = (sym_listener){.failed = group_failed, .context = self};
    sym_listen(self->sym, &self->listener);
}

void gpu_halt(executor *base)
{
    atomic_store_explicit(&gpu_core_of(base)->halted, true, memory_order_relaxed);
}

/* Does nothing: kernels open calls, so a rank that leaves has none to wait for. */
void gpu_retire(executor *base, uint32_t epoch, const ep_rejection *rejection)
{
    (void)base, (void)epoch, (void)rejection;
}

static const char *const waits[] = {
    "nothing", "header",  "advertisement",  "end of rows", "free slot", "row",     "message header", "free slot",
    "row",     "weights", "message header", "free slot",   "row",       "weights", "signal"};

/* Names for the waits of low-latency kernels. */
static const char *const due_names[GPU_LL_WAITS] = {"message headers", "acknowledgements", "rows", "weights"};

/* Adds "; rows of rank 3: 12 of 40" for each rank that kernels miss, as many as fit. */
static expar_status tell_progress(const gpu_core *self, expar_status status)
{
    const int32_t wait = self->report->wait - GPU_WAIT_MESSAGE_HEADER;
    char text[512] = "";
    size_t length = 0;
    if (!self->progress || wait < 0) return status;
    for (int32_t r = 0; r < self->sym->size; r++) {
        const uint64_t due = __atomic_load_n(&self->progress[r], __ATOMIC_RELAXED);
        const size_t spare = sizeof text - length;
        if (!due) continue;
        const int more = snprintf(text + length, spare, "; %s of rank %d: %u of %u", due_names[wait % GPU_LL_WAITS], r,
                                  (unsigned)(due >> 32), (unsigned)due);
        if (more < 0 || (size_t)more >= spare) break;
        length += (size_t)more;
    }
    text[length] = '\0';
    return error_set(status, "%s%s", expar_last_error(), text);
}

static expar_status failure(const gpu_core *self, const char *what)
{
    const gpu_report *r = self->report;
    const unsigned long long seen = r->seen, expected = r->expected;
    if (r->was_abort == GPU_NO_REGION)
        return error_set(EXPAR_ERR_PEER,
                         "%s: no %s from rank %d, which cannot be masked: masked ranks that are alive or "
                         "silent may still write to all regions of this buffer",
                         what, waits[r->wait], r->peer);
    if (r->was_abort == GPU_LATE_SIGNAL)
        return error_set(EXPAR_ERR_STATE,
                         "%s: signals of local expert %d: word %d is %d at the time-out; expected %d, which says that "
                         "its rows of x are written",
                         what, r->peer, (int32_t)(seen >> 32), (int32_t)(uint32_t)seen, (int32_t)(uint32_t)expected);
    if (r->was_abort == GPU_NO_RING)
        return error_set(EXPAR_ERR_PEER,
                         "%s: no %s from rank %d: the proxy that sends to it delivers nothing any more: %s", what,
                         waits[r->wait], r->peer, expar_status_text((expar_status)proxy_failure_status(seen)));
    if (r->was_abort)
        return error_prefix(why_waits_end(self, what), "no %s from rank %d (seen %#llx, expected %#llx)",
                            waits[r->wait], r->peer, seen, expected);
    return error_set(
        EXPAR_ERR_PEER,
        "%s: no %s from rank %d (seen %#llx, expected %#llx), and this rank's process did not run for %.1f s", what,
        waits[r->wait], r->peer, seen, expected, (double)self->place.orphan_ns / 1e9);
}

expar_status gpu_check(executor *base, const char *what)
{
    gpu_core *self = gpu_core_of(base);
    gpu_endings_reap(self, false);
    if (!__atomic_load_n(&self->report->failed, __ATOMIC_ACQUIRE)) return EXPAR_OK;
    return tell_progress(self, failure(self, what));
}

/* ---- tickets ----------------------------------------------------------------------------------------------------- */

/* Gives the call a ticket only if somebody will ask how it ended. */
void gpu_ticket_take(gpu_core *self, exec_call *call)
{
    call->ticket = call->asked && !call->captured ? ++self->tickets : 0;
}

/* Says whether all work on the stream has run. A kernel that crashed is an error. The question is asked outside of
   captures, since another thread may be capturing in a mode that forbids it. */
static expar_status query_stream(const gpu_core *self, const exec_call *call, bool *idle)
{
    int mode;
    expar_status status = gpu_enter(self, call);
    if (status != EXPAR_OK) return status;
    status = gpu_leave_captures(&mode);
    if (status == EXPAR_OK) {
        cu_result result = cuda_driver()->StreamQuery(call->stream);
        gpu_return_to_captures(mode);
        *idle = result == CU_OK;
        if (result != CU_OK && result != CU_ERROR_NOT_READY)
            status = cuda_status(result, __FILE__, __LINE__, "cuStreamQuery");
    }
    gpu_leave(call);
    return status;
}

/* Checks a wait for a word. A kernel that has run has set the word. On an idle stream nothing would set it later, so
   waiting on is an error. */
static expar_status look_at_stream(const gpu_core *self, const exec_call *call, const uint64_t *word, const char *what)
{
    bool idle = false;
    expar_status status = query_stream(self, call, &idle);
    if (status != EXPAR_OK || !idle) return status;
    if (__atomic_load_n(word, __ATOMIC_ACQUIRE) >= call->ticket) return EXPAR_OK;
    return error_set(EXPAR_ERR_CUDA, "%s: the stream is idle, but its kernel did not say how call %llu goes", what,
                     (unsigned long long)call->ticket);
}

/* Gives running kernels some time first: they see the abort word and report within milliseconds what they waited
   for. */
expar_status gpu_look_at_group(const gpu_core *self, int64_t *seen_ns, const char *what)
{
    const int64_t timeout_ns = self->sym->timeout_ms * 1000000, grace_ns = knob(KNOB_CUDA_ABORT_GRACE_NS);
    if (atomic_load_explicit(&self->halted, memory_order_relaxed))
        return error_set(EXPAR_ERR_ABORTED, "%s: the buffer has been abandoned on this rank", what);
    if (!gpu_group_failed(self)) return EXPAR_OK;
    if (*seen_ns == 0) *seen_ns = clock_ns();
    if (clock_ns() - *seen_ns < (timeout_ns < grace_ns ? timeout_ns : grace_ns)) return EXPAR_OK;
    return error_prefix(why_waits_end(self, what), "the stream has not reached the call");
}

/* A poll that spins reads the clock, which takes some 25 ns. */
enum { POLL_NS = 25 };

/* Spins for some 50 us, if the ranks have a core each, and then yields the core. Looks come late: one takes longer than
 * most kernels need for their word.
 *
 * Once a kernel runs, the guard asks about the ranks that it awaits. Before that the caller's work may occupy the
 * stream for any time, so no time-out ends this wait. A failed group ends it: the stream may then never reach the call,
 * for instance because earlier work there waits for a dead rank.
 *
 * In that case the kernels may still run at any later time, with the abort word set. All memory that they touch stays
 * valid. The status poisons the buffer, so no other call gets the blocks that this call returns to the pool. The thread
 * that destroys the buffer waits for the stream first (gpu_order_await). The caller must keep its tensors
 * (expar/ep.h). */
static expar_status await_word(gpu_core *self, const exec_call *call, const uint64_t *word, const char *what)
{
    const uint32_t look = knob_count(KNOB_CUDA_POLLS_A_LOOK);
    const int64_t spin_ns = self->sym->crowded ? 0 : knob(KNOB_CUDA_POLLS) * POLL_NS;
    const int64_t spin_end_ns = clock_ns() + spin_ns;
    int64_t seen_ns = 0, asked_ns = 0;
    uint32_t yields = 0;
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) < call->ticket) {
        if (yields == 0 && clock_ns() < spin_end_ns) continue;
        if (++yields % look == 0) {
            expar_status status = look_at_stream(self, call, word, what);
            if (status == EXPAR_OK) status = gpu_look_at_group(self, &seen_ns, what);
            if (status == EXPAR_OK) status = interrupt_look(&asked_ns, what);
            if (status != EXPAR_OK) return status;
        }
        sched_yield();
    }
    return gpu_check(&self->base, what);
}

expar_status gpu_ticket_await(gpu_core *self, const exec_call *call, const uint64_t *word, const char *what)
{
    expar_status status = await_word(self, call, word, what);
    /* The call has begun and is lost, so later waits of its kernels must end, too. */
    if (status == EXPAR_ERR_INTERRUPTED) gpu_end_waits(self, status);
    return status;
}

/* ---- results of votes -------------------------------------------------------------------------------------------- */

/* Copies the result from the report. Returns the number of dropped rows if nothing else went wrong. */
static int32_t take_vote(const gpu_vote *slot, ep_vote *vote)
{
    vote->rank = slot->rank;
    if (slot->rank < 0) return slot->dropped;
    /* Different parameters are not a rejection: there is no text. */
    if (slot->reason.status == EXPAR_OK) {
        ep_vote_differ(vote, slot->rank, &slot->form, &slot->form0, sizeof slot->form);
        return 0;
    }
    vote->reason = slot->reason;
    /* The text of a broken peer may lack its terminating zero. */
    vote->reason.text[EP_REJECTION_TEXT - 1] = '\0';
    return 0;
}

static gpu_vote *find_vote(const gpu_core *self, uint64_t ticket)
{
    for (uint64_t i = 0; ticket && i < GPU_VOTES; i++) {
        gpu_vote *slot = &self->report->votes[(ticket + i) % GPU_VOTES];
        if (__atomic_load_n(&slot->ticket, __ATOMIC_ACQUIRE) == ticket) return slot;
    }
    return NULL;
}

int32_t gpu_vote_read(const gpu_core *self, uint64_t ticket, ep_vote *vote)
{
    gpu_vote *slot = find_vote(self, ticket);
    *vote = (ep_vote){.rank = -1};
    if (!slot) return 0;
    const int32_t dropped = take_vote(slot, vote);
    __atomic_store_n(&slot->ticket, 0, __ATOMIC_RELEASE);
    return dropped;
}

bool gpu_has_told(const gpu_core *self)
{
    bool told = __atomic_load_n(&self->report->failed, __ATOMIC_ACQUIRE) != 0;
    for (int i = 0; i < GPU_VOTES && !told; i++)
        told = __atomic_load_n(&self->report->votes[i].ticket, __ATOMIC_RELAXED) != 0;
    return told;
}

/* Says how the call ended. If it had ended before a later call gave up a wait, it ended well. */
static expar_status check_ticket(gpu_core *self, uint64_t ticket)
{
    const bool failed = __atomic_load_n(&self->report->failed, __ATOMIC_ACQUIRE) != 0;
    if (!failed || ticket <= self->report->failed_after) return EXPAR_OK;
    return tell_progress(self, failure(self, "on the GPU"));
}

static expar_status check_lost(const gpu_core *self, uint64_t ticket)
{
    const uint64_t to = __atomic_load_n(&self->report->lost_to, __ATOMIC_ACQUIRE);
    if (ticket > to || ticket < self->report->lost_from) return EXPAR_OK;
    return error_set(EXPAR_ERR_LIMIT,
                     "how the call ended is not known: %d calls before it had failed, and no result of theirs was read",
                     GPU_VOTES);
}

expar_status gpu_ending_read(gpu_core *self, uint64_t ticket, ep_vote *vote, int32_t *dropped)
{
    *dropped = gpu_vote_read(self, ticket, vote);
    if (vote->rank >= 0 || *dropped) return EXPAR_OK;
    expar_status status = check_ticket(self, ticket);
    return status == EXPAR_OK ? check_lost(self, ticket) : status;
}

bool gpu_untold(executor *base, ep_vote *vote, int64_t *dropped)
{
    gpu_vote *slot = &gpu_core_of(base)->report->untold;
    *vote = (ep_vote){.rank = -1};
    if (!__atomic_load_n(&slot->ticket, __ATOMIC_ACQUIRE)) return false;
    *dropped = take_vote(slot, vote);
    __atomic_store_n(&slot->ticket, 0, __ATOMIC_RELEASE);
    return true;
}
