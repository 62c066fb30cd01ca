/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds of memory as callers name them. Private to pgas. */
#ifndef EXPAR_PGAS_MEMORY_H
#define EXPAR_PGAS_MEMORY_H

#include "shmem/sym.h"
#include <expar/memory.h>

/* Gives the memory of that kind. EXPAR_ERR_ARGUMENT: the value names none; `name` is the argument's. */
expar_status memory_find_kind(const char *what, const char *name, int kind, transport_memory *out);

#endif
