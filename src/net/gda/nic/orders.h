/* SPDX-License-Identifier: Apache-2.0 */
/* The messages between a rank and the process of its software NIC. Each order gets one answer, before the next order.
 */
#ifndef EXPAR_NET_GDA_NIC_ORDERS_H
#define EXPAR_NET_GDA_NIC_ORDERS_H

#include "net/gda/nic/process.h"

#include <sys/types.h>

typedef enum nic_order_kind {
    ORDER_START, /* the first order: makes the device, with these faults */
    ORDER_REGION,
    ORDER_MEMORY,
    ORDER_MEMORY_REMOVAL,
    ORDER_QUEUE,
    ORDER_QUEUE_REMOVAL,
    ORDER_COUNT
} nic_order_kind;

typedef struct nic_order {
    nic_order_kind kind;
    uint32_t region;
    uint64_t offset, bytes;
    nic_memory memory;
    nic_queue queue; /* removal: port and qpn */
    nic_places places;
    nic_faults faults;
    int64_t spin_ns; /* start */
} nic_order;

typedef struct nic_answer {
    expar_status status;
    uint32_t region;
    nic_counts counts;
    char text[ERROR_TEXT_BYTES];
} nic_answer;

/* Sends a message, with a descriptor; `fd` -1: without one. */
bool nic_letter_send(int socket, const void *data, size_t bytes, int fd);
/* Returns the bytes of the message, which may differ from `bytes`. Returns 0 at the end of the connection, and -1 for
   an error in errno. *fd is -1 if no descriptor came. */
ssize_t nic_letter_receive(int socket, void *data, size_t bytes, int *fd);

#endif
