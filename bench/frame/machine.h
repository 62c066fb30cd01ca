/* SPDX-License-Identifier: Apache-2.0 */
/* machine: where the numbers were measured. */
#ifndef EXPAR_BENCH_FRAME_MACHINE_H
#define EXPAR_BENCH_FRAME_MACHINE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* {cpu, cores, memory_bytes, kernel, expar}; with cuda {gpus, cuda_driver, nvrtc} too. NULL: no memory. */
json_t *bench_machine(bool cuda);
/* How TCP paces what it sends here ("cubic", "bbr"): large messages over loopback depend on it. "unknown" at worst. */
void bench_tcp_congestion_control(char *name, size_t bytes);

#endif
