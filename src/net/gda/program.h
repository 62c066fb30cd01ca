/* SPDX-License-Identifier: Apache-2.0 */
/* Where the program gda-nic lies, the process of a software NIC. */
#ifndef EXPAR_NET_GDA_PROGRAM_H
#define EXPAR_NET_GDA_PROGRAM_H

#include "base/base.h"

#include <limits.h>

/* Gives the program that EXPAR_GDA_NIC_PROGRAM names, or else one near the file of the library or the program that this
   code is part of. EXPAR_ERR_UNSUPPORTED: there is none; the text says where it was looked for. */
expar_status gda_find_program(char path[PATH_MAX]);

#endif
