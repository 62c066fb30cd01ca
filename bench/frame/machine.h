/* SPDX-License-Identifier: Apache-2.0 */
/* machine: describes the machine of a measurement. */
#ifndef EXPAR_BENCH_FRAME_MACHINE_H
#define EXPAR_BENCH_FRAME_MACHINE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Returns {cpu, cores, memory_bytes, kernel, expar}; with cuda also {gpus, cuda_driver, nvrtc}. NULL: no memory. */
json_t *bench_machine(bool cuda);
/* Writes the name of TCP's congestion control ("cubic", "bbr"), or "unknown". Large messages over loopback depend on
   it. */
void bench_tcp_congestion_control(char *name, size_t bytes);

#endif
