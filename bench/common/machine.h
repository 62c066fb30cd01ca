/* SPDX-License-Identifier: Apache-2.0 */
/* machine: where the numbers were measured. */
#ifndef EXPAR_BENCH_COMMON_MACHINE_H
#define EXPAR_BENCH_COMMON_MACHINE_H

#include <jansson.h>
#include <stddef.h>

/* {cpu, cores, memory_bytes, kernel, expar}; NULL: no memory. */
json_t *bench_machine(void);
/* How TCP paces what it sends here ("cubic", "bbr"): large messages over loopback depend on it. "unknown" at worst. */
void bench_tcp_congestion_control(char *name, size_t bytes);

#endif
