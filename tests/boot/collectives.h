/* SPDX-License-Identifier: Apache-2.0 */
/* collectives: what every boot must do, run alike over sockets and threads. Each returns EXPAR_OK or says what was
 * wrong. */
#ifndef EXPAR_TESTS_BOOT_COLLECTIVES_H
#define EXPAR_TESTS_BOOT_COLLECTIVES_H

#include "boot/boot.h"

/* All operations with one record size. */
expar_status collectives_check_size(boot *self, size_t bytes);
/* The same with sizes from 0 to the limit, several times over. */
expar_status collectives_check_all(boot *self);
/* Wrong sizes and roots, of one rank and between ranks; the boot must work afterwards. */
expar_status collectives_check_errors(boot *self);

#endif
