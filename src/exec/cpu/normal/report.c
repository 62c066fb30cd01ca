/* SPDX-License-Identifier: Apache-2.0 */
/* Texts about data that a failed wait was waiting for: for each peer, how much of them had come. */
#include "exec/cpu/normal/cpu.h"

#include <stdio.h>

expar_status cpu_word_spoilt(int32_t rank, const char *what, uint64_t word, uint32_t epoch)
{
    return error_set(EXPAR_ERR_PEER, "%s of rank %d holds 0x%016llx in call %u: its memory has been overwritten", what,
                     rank, (unsigned long long)word, epoch);
}

void cpu_report_add(cpu_report *report, int32_t peer, const char *what, uint64_t came, uint64_t all)
{
    if (came >= all) return;
    size_t spare = sizeof report->text - report->length;
    int length = snprintf(report->text + report->length, spare, "; %s rank %d: %llu of %llu", what, peer,
                          (unsigned long long)came, (unsigned long long)all);
    /* A line that does not fit is left out completely. */
    if (length > 0 && (size_t)length < spare) report->length += (size_t)length;
    report->text[report->length] = '\0';
}

expar_status cpu_report_finish(const cpu_report *report, expar_status status)
{
    return report->length == 0 ? status : error_set(status, "%s%s", expar_last_error(), report->text);
}
