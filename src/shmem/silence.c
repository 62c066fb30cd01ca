/* SPDX-License-Identifier: Apache-2.0 */
/* Silence: which ranks are gone because a wait has failed. boot_wait finds the ranks to blame: it asks all that could
 * be at fault, and their monitors answer whatever else they do. A rank that gives no answer is silent, and gone for
 * this rank from then on. A rank that answers but is not waited for any more is gone only if this rank is out of step
 * with it. */
#include "base/interrupt.h"
#include "base/knobs.h"
#include "boot/ranks.h"
#include "shmem/parts.h"

#include <stdlib.h>
#include <time.h>

static void blame(sym *self, int32_t rank, const error_kept *why)
{
    pthread_mutex_lock(&self->lock);
    if (self->given_up.status == EXPAR_OK) self->given_up = *why;
    pthread_mutex_unlock(&self->lock);
    sym_fail(self, SYM_PEER_SILENT, rank);
    sym_tell(self, rank);
}

expar_status sym_wait_look(sym *self, boot_wait *wait)
{
    expar_status status = boot_wait_look(wait);
    if (status == EXPAR_OK || wait->verdict != BOOT_SILENT) return status;
    error_kept kept;
    error_keep(&kept, status);
    for (int32_t r = 0; r < self->size; r++)
        if (wait->silent[r]) blame(self, r, &kept);
    return error_restore(&kept);
}

expar_status sym_rest_blame(const sym_rest *rest, expar_status status)
{
    sym *self = rest->sym;
    error_kept kept;
    error_keep(&kept, status);
    boot_note_ended(self->boot, &rest->wait.topic, status, kept.text);
    if (status == EXPAR_ERR_INTERRUPTED) sym_lose_step(self, status);
    if (rest->timed_out && rest->wait.verdict != BOOT_SILENT && rest->wait.culprit >= 0)
        blame(self, rest->wait.culprit, &kept);
    return error_restore(&kept);
}

/* ---- who is silent now ------------------------------------------------------------------------------------------- */

#define ROUND_NS (INTERRUPT_NS)

static int64_t silence_limit_ns(const sym *self)
{
    const int64_t usual_ns = boot_silence_ns(self->boot), most_ns = knob(KNOB_SILENCE_MOST_NS);
    return usual_ns < most_ns ? usual_ns : most_ns;
}

/* Returns false for ranks that died or left: they will not answer, and are known already. */
static bool can_be_asked(const sym *self, int32_t rank)
{
    uint8_t gone = atomic_load_explicit(&self->gone[rank], memory_order_acquire);
    return rank != self->rank && gone != SYM_PEER_DIED && gone != SYM_PEER_LEFT;
}

/* Asks again. Returns how many of the ranks asked may still answer before they have been silent for limit_ns. round:
   [size], scratch. */
static int32_t ask_again(sym *self, boot_answer *answers, boot_answer *round, int64_t limit_ns)
{
    static const boot_topic nothing = {.kind = BOOT_KIND_NONE};
    int32_t left = 0;
    for (int32_t r = 0; r < self->size; r++)
        round[r].asked = answers[r].asked = can_be_asked(self, r) && !answers[r].came;
    self->boot->ops->ask(self->boot, &nothing, round, ROUND_NS);
    for (int32_t r = 0; r < self->size; r++) {
        if (round[r].asked) answers[r] = round[r];
        left += round[r].asked && !round[r].came && round[r].silent_ns > 0 && round[r].silent_ns < limit_ns;
    }
    return left;
}

static void find_silent(sym *self, bool *silent)
{
    const int64_t limit_ns = silence_limit_ns(self);
    int64_t asked_ns = 0;
    boot_answer *answers = calloc(2 * (size_t)self->size, sizeof *answers);
    if (!answers) return;
    while (ask_again(self, answers, answers + self->size, limit_ns) > 0 &&
           interrupt_look(&asked_ns, "silence") == EXPAR_OK) {
    }
    for (int32_t r = 0; r < self->size; r++)
        silent[r] = answers[r].asked && !answers[r].came && answers[r].silent_ns >= limit_ns && can_be_asked(self, r);
    free(answers);
}

bool sym_blame_silent(sym *self, expar_status status)
{
    char text[256];
    bool found = false;
    error_kept kept;
    error_keep(&kept, status);
    bool *silent = calloc((size_t)self->size, sizeof *silent);
    if (!silent) return false;
    find_silent(self, silent);
    for (int32_t r = 0; r < self->size; r++) {
        if (!silent[r]) continue;
        blame(self, r, &kept);
        found = true;
    }
    error_restore(&kept);
    if (found) {
        ranks_format(silent, true, self->size, text, sizeof text);
        error_set(status, "%s; silent: rank %s", kept.text, text);
    }
    free(silent);
    return found;
}

/* ---- patience with the network ----------------------------------------------------------------------------------- */

/* Each log line comes after twice the time of the one before. */
static bool is_time_to_log(int64_t waited_ns)
{
    int64_t at_ns = knob(KNOB_SILENCE_LOG_NS);
    while (at_ns <= waited_ns - knob(KNOB_SILENCE_ASK_AGAIN_NS))
        at_ns *= 2;
    return waited_ns >= at_ns;
}

static int64_t judge_peer(const boot *ctl, int32_t pe, const boot_answer *answer, int64_t waited_ns)
{
    const int64_t limit_ns = ctl->late_limit_ms * 1000000;
    if (limit_ns > 0 && waited_ns >= limit_ns) return 0;
    if (!answer->came) return answer->silent_ns < boot_silence_ns(ctl) ? knob(KNOB_SILENCE_ASK_SOON_NS) : 0;
    if (is_time_to_log(waited_ns))
        LOG(LOG_WARN, "for %lld s nothing has come over the network from rank %d, which is alive: it is %s; %s",
            (long long)(waited_ns / 1000000000), pe, answer->doing, boot_limit_text(ctl));
    return knob(KNOB_SILENCE_ASK_AGAIN_NS);
}

/* Asks pe on its line for one round, and gives its answer. Returns false if it cannot be asked. */
static bool ask_peer(sym *self, int32_t pe, boot_answer *answer)
{
    static const boot_topic nothing = {.kind = BOOT_KIND_NONE};
    boot_answer *answers = calloc((size_t)self->size, sizeof *answers);
    if (!answers) return false;
    answers[pe].asked = true;
    pthread_mutex_lock(&self->monitor_lock);
    const bool asked = !self->unmonitored;
    if (asked) self->boot->ops->ask(self->boot, &nothing, answers, ROUND_NS);
    pthread_mutex_unlock(&self->monitor_lock);
    *answer = answers[pe];
    free(answers);
    return asked;
}

/* For a PE that has died or left, the check of the site reports it. */
int64_t sym_wait_on(sym *self, int32_t pe, int64_t waited_ns)
{
    boot_answer answer;
    if (!ask_peer(self, pe, &answer))
        return waited_ns < self->site.timeout_ms * 1000000 ? knob(KNOB_SILENCE_ASK_SOON_NS) : 0;
    return judge_peer(self->boot, pe, &answer, waited_ns);
}

void sym_give_up(sym *self, int32_t pe)
{
    sym_tell(self, pe);
    pthread_mutex_lock(&self->monitor_lock);
    if (!self->unmonitored) boot_note_blamed(self->boot, pe);
    pthread_mutex_unlock(&self->monitor_lock);
}

/* ---- what a network notices first -------------------------------------------------------------------------------- */

/* A rank that leaves first tells the death for which it leaves on its line, then closes the line, and closes its
   network last. So an answer shows that it has not left. After a closed line this rank's monitor, which may be late,
   will report the loss. */
expar_status sym_explain(sym *self, int32_t pe, const char *what)
{
    const int64_t limit_ns = silence_limit_ns(self);
    const int64_t end_ns = clock_ns() + limit_ns;
    int64_t looked_ns = 0;
    boot_answer answer;
    expar_status status;
    while ((status = sym_check_pe(self, pe, what)) == EXPAR_OK && clock_ns() < end_ns) {
        if (interrupt_look(&looked_ns, what) != EXPAR_OK || !ask_peer(self, pe, &answer)) return EXPAR_OK;
        if (answer.came || answer.silent_ns >= limit_ns) return EXPAR_OK;
        if (answer.silent_ns == 0) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return status;
}
