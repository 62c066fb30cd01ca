/* SPDX-License-Identifier: Apache-2.0 */
/* The vocabulary of expar/device.h on the simulated GPU, with loads that are counted by their size. */
#ifndef TESTS_PGAS_DEVICE_COUNTING_PORT_H
#define TESTS_PGAS_DEVICE_COUNTING_PORT_H

/* Loads of 1 << i bytes by which the remote side was read. */
static uint64_t loads[5];

#define expar_dev_load_8    plain_load_8
#define expar_dev_load_16   plain_load_16
#define expar_dev_load_32   plain_load_32
#define expar_dev_load_64   plain_load_64
#define expar_dev_load_unit plain_load_unit
#include "cuda/simt/device_port.h"
#undef expar_dev_load_8
#undef expar_dev_load_16
#undef expar_dev_load_32
#undef expar_dev_load_64
#undef expar_dev_load_unit

#define COUNTING_LOAD(name, place, T)                                                                                  \
    EXPAR_DEV_FUNC T expar_dev_load_##name(const T *at)                                                                \
    {                                                                                                                  \
        loads[place]++;                                                                                                \
        assert((uintptr_t)at % sizeof(T) == 0);                                                                        \
        return plain_load_##name(at);                                                                                  \
    }
COUNTING_LOAD(8, 0, expar_uint8)
COUNTING_LOAD(16, 1, expar_uint16)
COUNTING_LOAD(32, 2, expar_dev_u32)
COUNTING_LOAD(64, 3, expar_dev_u64)
COUNTING_LOAD(unit, 4, expar_dev_unit)

#endif
