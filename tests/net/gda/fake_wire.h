/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated devices of several processes (FAKE_WIRE=1). A device reaches memory that another process has registered, if
 * a file descriptor of that process has it: symmetric memory is a memfd. A list of such memory lies in a file that all
 * ranks share; ranks are children of one process. A process that registers memory waits until all devices know it. */
#ifndef TESTS_NET_GDA_FAKE_WIRE_H
#define TESTS_NET_GDA_FAKE_WIRE_H

#include "net/gda/nic/nic.h"

/* Returns whether FAKE_WIRE is set. */
bool fake_wire_is_on(void);
/* This process takes part, and runs the device by a thread of its own; or it ends that. */
void fake_wire_join(nic *device);
void fake_wire_leave(void);
/* Returns numbers that no other process gets. */
uint32_t fake_wire_number(void);
/* Tells the others of memory of this process, and that it is gone. */
void fake_wire_publish(const nic_memory *memory);
void fake_wire_withdraw(uint32_t key);

#endif
