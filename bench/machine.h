/* SPDX-License-Identifier: Apache-2.0 */
/* machine: where the numbers were measured. */
#ifndef EXPAR_BENCH_MACHINE_H
#define EXPAR_BENCH_MACHINE_H

#include <jansson.h>

/* {cpu, cores, memory_bytes, kernel, expar}; NULL: no memory. */
json_t *bench_machine(void);

#endif
