/* SPDX-License-Identifier: Apache-2.0 */
/* unique_id: what the 128 bytes of an expar_unique_id hold. */
#ifndef EXPAR_BOOT_UNIQUE_ID_H
#define EXPAR_BOOT_UNIQUE_ID_H

#include "boot/address.h"
#include "boot/auth.h"
#include <expar/group.h>

typedef struct unique_id_parts {
    unsigned char secret[AUTH_SECRET_BYTES];
    address_ip ip; /* family 0 for an id that only carries a secret (a meeting has its own address) */
} unique_id_parts;

void unique_id_pack(const unique_id_parts *parts, expar_unique_id *id);
/* EXPAR_ERR_ARGUMENT when the bytes are not an id: other start, or a wrong checksum. */
expar_status unique_id_unpack(const expar_unique_id *id, unique_id_parts *parts);

#endif
