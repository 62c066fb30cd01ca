/* SPDX-License-Identifier: Apache-2.0 */
/* The report for people. */
#include "report.h"
#include "colour.h"

#include <inttypes.h>

static const char BOLD[] = "\033[1m", GREEN[] = "\033[32m", RED[] = "\033[31m", PLAIN[] = "\033[0m";

demo_printer demo_printer_for(FILE *out, const demo_task *task)
{
    return (demo_printer){.out = out, .colour = colour_wanted(fileno(out)), .task = task};
}

static const char *style(const demo_printer *printer, const char *code)
{
    return printer->colour ? code : "";
}

/* Prints a byte. Control characters, which could confuse a terminal, become '?'. */
static void put_byte(FILE *out, uint8_t byte)
{
    bool control = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f;
    fputc(control ? '?' : byte, out);
}

static void put_bytes(FILE *out, const uint8_t *bytes, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        put_byte(out, bytes[i]);
}

static void put_prompt(const demo_printer *printer, const uint8_t *bytes, int32_t count)
{
    fputs(style(printer, BOLD), printer->out);
    put_bytes(printer->out, bytes, count);
    fputs(style(printer, PLAIN), printer->out);
}

const char *demo_path_name(expar_ep_path path)
{
    return path == EXPAR_EP_PATH_DIRECT ? "direct" : path == EXPAR_EP_PATH_QUEUE ? "queue" : "auto";
}

size_t demo_decode_bytes(const demo_task *task)
{
    if (!task->low_latency) return 0;
    return moe_low_latency_bytes(&task->config.sizes, task->ranks, demo_task_texts_of(task, 0));
}

static void put_modes(const demo_printer *printer)
{
    const demo_task *task = printer->task;
    if (task->low_latency)
        fprintf(printer->out, "prefill in normal mode, decode in low-latency mode (its buffer: %.2f MB a rank)\n",
                (double)demo_decode_bytes(task) / 1e6);
    else
        fprintf(printer->out, "prefill and decode in normal mode\n");
}

static void start(demo_printer *printer)
{
    const demo_task *task = printer->task;
    const model_sizes *s = &task->config.sizes;
    printer->started = true;
    if (task->nodes > 1) fprintf(printer->out, "%d nodes, ", task->nodes);
    fprintf(printer->out, "%d rank%s %s, %d experts (%d a rank), %d prompt%s, %d bytes each\n", task->ranks,
            task->ranks == 1 ? "" : "s", task->kind->where, s->experts, s->experts / task->ranks, task->prompts.count,
            task->prompts.count == 1 ? "" : "s", task->bytes);
    put_modes(printer);
    fputc('\n', printer->out);
    put_prompt(printer, task->prompts.items[0].bytes, task->prompts.items[0].count);
}

void demo_report_byte(void *printer, int32_t number, uint8_t byte)
{
    demo_printer *p = printer;
    if (number != 0) return;
    if (!p->started) start(p);
    put_byte(p->out, byte);
    fflush(p->out);
}

void demo_report_break(const demo_printer *printer)
{
    fputc('\n', printer->out);
    fflush(printer->out);
}

void demo_report_texts(const demo_printer *printer, const demo_results *results)
{
    fputc('\n', printer->out);
    for (int32_t i = 1; i < results->num_texts; i++) {
        const demo_text *text = &results->texts[i];
        fputc('\n', printer->out);
        put_prompt(printer, text->bytes, text->prompt_bytes);
        put_bytes(printer->out, text->bytes + text->prompt_bytes, text->count - text->prompt_bytes);
        fputc('\n', printer->out);
    }
    fflush(printer->out);
}

static void put_load(const demo_printer *printer, const demo_results *results)
{
    static const char bar[] = "########################################";
    int32_t share = results->num_experts / printer->task->ranks;
    int64_t most = 1;
    for (int32_t e = 0; e < results->num_experts; e++)
        most = results->expert_load[e] > most ? results->expert_load[e] : most;
    fprintf(printer->out, "\nload of the experts, all layers:\n");
    for (int32_t e = 0; e < results->num_experts; e++) {
        int64_t load = results->expert_load[e];
        int length = (int)(load * (int64_t)(sizeof bar - 1) / most);
        fprintf(printer->out, "  rank %-3d expert %-4d %-*.*s %" PRId64 "\n", e / share, e, (int)sizeof bar - 1, length,
                bar, load);
    }
}

static void put_difference(const demo_printer *printer, int32_t number, const demo_text *text)
{
    fprintf(printer->out, "prompt %d: byte %d is 0x%02x, the reference's 0x%02x; there its best logit led by %g\n",
            number + 1, text->differs_at, text->bytes[text->differs_at], text->reference_byte,
            (double)text->reference_gap);
}

static void put_verdict(const demo_printer *printer, const char *what, int32_t equal, int32_t of)
{
    bool all = equal == of;
    fprintf(printer->out, "%s: %s%s%s (%d of %d texts)\n", what, style(printer, all ? GREEN : RED), all ? "yes" : "NO",
            style(printer, PLAIN), equal, of);
}

static void put_verdicts(const demo_printer *printer, const demo_results *results)
{
    demo_verdict verdict = demo_results_judge(results);
    for (int32_t i = 0; i < results->num_texts; i++)
        if (results->texts[i].differs_at >= 0) put_difference(printer, i, &results->texts[i]);
    put_verdict(printer, "equals the single-rank reference", verdict.equal, results->num_texts);
    if (verdict.shipped > 0)
        put_verdict(printer, "equals the continuation that came with the model", verdict.equal_shipped,
                    verdict.shipped);
}

/* Prints the numbers of one mode, mean over calls of all ranks. */
static void put_traffic(const demo_printer *printer, const char *mode, const moe_traffic *t)
{
    if (t->layers == 0) return;
    fprintf(printer->out, "to other nodes, a layer and rank in %s mode: %.1f KB in %.1f messages\n", mode,
            (double)t->bytes / (double)t->layers / 1e3, (double)t->messages / (double)t->layers);
}

void demo_report_figures(const demo_printer *printer, const demo_results *results)
{
    int64_t tokens = (int64_t)results->num_texts * printer->task->bytes;
    put_load(printer, results);
    fprintf(printer->out, "\n%" PRId64 " tokens in %.2f s: %.0f tokens/s\n", tokens, results->seconds,
            (double)tokens / results->seconds);
    fprintf(
        printer->out, "%.1f MB moved by dispatch and combine, %.1f MB of it between ranks, path in normal mode: %s\n",
        (double)results->bytes_moved / 1e6, (double)results->bytes_between_ranks / 1e6, demo_path_name(results->path));
    if (printer->task->nodes > 1) {
        put_traffic(printer, "normal", &results->prefill);
        put_traffic(printer, "low-latency", &results->decode);
        fprintf(printer->out, "%.1f MB crossed the network between %d nodes\n",
                (double)(results->prefill.bytes + results->decode.bytes) / 1e6, printer->task->nodes);
    }
    put_verdicts(printer, results);
}
