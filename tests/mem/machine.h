/* SPDX-License-Identifier: Apache-2.0 */
/* For tests that ask for too much memory: what other programs take and give while a test runs must not decide it. */
#ifndef TESTS_MEM_MACHINE_H
#define TESTS_MEM_MACHINE_H

#include <stddef.h>
#include <sys/sysinfo.h>

/* All memory and swap of this machine, in bytes; 0 when it does not say. */
static inline size_t machine_memory_bytes(void)
{
    struct sysinfo facts;
    return sysinfo(&facts) == 0 ? ((size_t)facts.totalram + facts.totalswap) * facts.mem_unit : 0;
}

#endif
