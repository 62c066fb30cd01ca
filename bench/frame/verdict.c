/* SPDX-License-Identifier: Apache-2.0 */
/* Sentences that judge results by the limit, the baseline and the bytes, and say whether times can be trusted. */
#include "bench/frame/report.h"
#include "bench/frame/session.h"
#include "colour.h"
#include "text.h"
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MOST_OPERATIONS 32
#define AT_THE_LIMIT    0.9 /* a share from which on an operation is as fast as bare copies */
#define NEAR_THE_LIMIT  0.75
#define FEWEST_ITERS    10  /* of fewer iterations a spread means nothing */
#define BUSY_LOAD       0.5 /* processes for each core */

/* ---- shares ------------------------------------------------------------------------------------------------------ */

struct range {
    double least, most; /* NAN: none */
};

/* All results of one operation. */
struct judged {
    char operation[64];
    struct range share, faster;
    int64_t least_tokens; /* where the share is least */
};

static bool extend(struct range *range, double number)
{
    const bool lower = !isnan(number) && !(number >= range->least);
    if (isnan(number)) return false;
    if (lower) range->least = number;
    if (!(number <= range->most)) range->most = number;
    return lower;
}

static struct judged *judged_named(struct judged *all, int *count, const char *operation)
{
    for (int i = 0; i < *count; i++)
        if (!strcmp(all[i].operation, operation)) return &all[i];
    if (*count == MOST_OPERATIONS) return NULL;
    struct judged *new = &all[(*count)++];
    *new = (struct judged){.share = {NAN, NAN}, .faster = {NAN, NAN}};
    snprintf(new->operation, sizeof new->operation, "%s", operation);
    return new;
}

static int gather(const struct bench_world *world, const struct bench_options *options, const struct bench_mode *mode,
                  const struct bench_results *results, struct judged *all)
{
    int count = 0;
    for (int i = 0; i < results->count; i++) {
        struct bench_view view;
        bench_view_of(world, options, mode, &results->items[i], &view);
        const double *n = view.numbers;
        struct judged *judged = judged_named(all, &count, view.words[WORD_OPERATION]);
        if (!judged) continue;
        if (extend(&judged->share, isnan(n[AT_COPY_FRACTION]) ? n[AT_NETWORK_FRACTION] : n[AT_COPY_FRACTION]))
            judged->least_tokens = view.result->tokens;
        extend(&judged->faster, n[AT_SPEEDUP]);
    }
    return count;
}

static const char *judgement_of(double share)
{
    return share >= AT_THE_LIMIT ? "at" : share >= NEAR_THE_LIMIT ? "near" : "below";
}

/* Writes "0.95", or "0.81 to 1.05". */
static void write_range(const struct range *range, int decimals, char *text, size_t bytes)
{
    const int used = snprintf(text, bytes, "%.*f", decimals, range->least);
    char most[32];
    snprintf(most, sizeof most, "%.*f", decimals, range->most);
    if (strcmp(text, most) != 0) snprintf(text + used, bytes - (size_t)used, " to %s", most);
}

static void judge(const struct judged *judged, const char *limit, int columns)
{
    char share[64], faster[64], sentence[512];
    const bool several = judged->share.most > judged->share.least;
    write_range(&judged->share, 2, share, sizeof share);
    int used = snprintf(sentence, sizeof sentence, "%s is %s the %s limit: %s of it", judged->operation,
                        judgement_of(judged->share.least), limit, share);
    if (several)
        used += snprintf(sentence + used, sizeof sentence - (size_t)used, ", least at %lld tokens",
                         (long long)judged->least_tokens);
    if (!isnan(judged->faster.least)) {
        write_range(&judged->faster, 1, faster, sizeof faster);
        used += snprintf(sentence + used, sizeof sentence - (size_t)used, ", and %s times as fast as MPI", faster);
    }
    snprintf(sentence + used, sizeof sentence - (size_t)used, ".");
    text_wrap(stdout, sentence, 0, columns);
}

void bench_verdict_bytes(int num_wrong, int count)
{
    if (count == 0) return;
    if (num_wrong == 0)
        printf("All bytes were verified.\n");
    else
        printf("%sWRONG BYTES in %d of %d results: stderr says which.%s\n", colour_of(STDOUT_FILENO, COLOUR_ALARM),
               num_wrong, count, colour_of(STDOUT_FILENO, COLOUR_OFF));
}

void bench_verdict(const struct bench_world *world, const struct bench_options *options, const struct bench_mode *mode,
                   const struct bench_results *results)
{
    struct judged all[MOST_OPERATIONS];
    const int columns = terminal_columns(STDOUT_FILENO), count = gather(world, options, mode, results, all);
    int num_wrong = 0;
    printf("\n");
    for (int i = 0; i < count; i++)
        if (!isnan(all[i].share.least))
            judge(&all[i], world->nodes > 1 ? "network" : "copy", columns ? columns : INT_MAX);
    for (int i = 0; i < results->count; i++)
        num_wrong += !results->items[i].verified;
    bench_verdict_bytes(num_wrong, results->count);
}

/* ---- noise ------------------------------------------------------------------------------------------------------- */

void bench_warn_of_noise(const struct bench_options *options, double spread, const char *operation)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const bool busy = options->load[0] > BUSY_LOAD * (double)cores;
    const bool wide = spread > BENCH_WIDE_SPREAD && options->iters >= FEWEST_ITERS;
    char load[96] = "", times[192] = "";
    if (!busy && !wide) return;
    if (busy) snprintf(load, sizeof load, "the load was %.1f on %ld cores before the start", options->load[0], cores);
    if (wide) snprintf(times, sizeof times, "the times of %s spread by %.0f %%", operation, 100 * spread);
    fprintf(stderr,
            "%sexpar bench: this machine is busy: %s%s%s. Compare times of this run only, or measure on an idle "
            "machine.%s\n",
            colour_of(STDERR_FILENO, COLOUR_WARN), load, busy && wide ? ", and " : "", times,
            colour_of(STDERR_FILENO, COLOUR_OFF));
}
