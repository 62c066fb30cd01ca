/* SPDX-License-Identifier: Apache-2.0 */
/* A libfabric for tests: the real one, with all that is asked of it noted, under another name where that is wanted, and
 * with faults. It is a libfabric.so.1 that comes first on the library path.
 *
 *   FAKE_PROVIDER=cxi   what is really tcp;ofi_rxm goes by that name, and no other provider is there
 *
 * The rest is ordered by a test whose ranks are threads of its own process. */
#ifndef TESTS_NET_FAKE_FAKE_H
#define TESTS_NET_FAKE_FAKE_H

#include <stdatomic.h>
#include <stdint.h>

/* The provider's answer to a traffic class. */
typedef enum fake_classes {
    FAKE_CLASSES_REAL,    /* as the real one does */
    FAKE_CLASSES_TAKEN,   /* endpoints have it */
    FAKE_CLASSES_DOMAIN,  /* the domain has it */
    FAKE_CLASSES_IGNORED, /* it is gone from the answer */
    FAKE_CLASSES_REJECTED /* who asks for one gets no answer */
} fake_classes;

typedef enum fake_fault {
    FAKE_NO_FAULT,
    FAKE_LOSE_PUT,  /* it completes, and nothing was written */
    FAKE_WRONG_ADD, /* one too much is added */
    FAKE_EARLY_PUT  /* it completes before it has been delivered */
} fake_fault;

/* Written by the test between groups; the counts by the fake as well. */
typedef struct fake_controls {
    _Atomic int32_t classes;      /* fake_classes */
    _Atomic int32_t fault;        /* fake_fault */
    _Atomic int32_t faults;       /* how many more operations shall have it */
    _Atomic int32_t one_endpoint; /* 1: memory is registered for one endpoint alone (FI_MR_ENDPOINT) */
    _Atomic int32_t local_memory; /* 1: the caller's memory must be registered, too (FI_MR_LOCAL) */
    _Atomic int32_t key_bytes;    /* of keys of memory; 0: as the real one has them; -1: the provider chooses them */
    _Atomic uint64_t key;         /* asked for when memory was registered last */
    _Atomic int32_t locks; /* 1: memory is locked as it is registered, as far as the process may (RLIMIT_MEMLOCK) */
    _Atomic uint32_t endpoint_class, domain_class;              /* with which the last ones were opened */
    _Atomic uint64_t puts, put_bytes, gets, get_bytes, atomics; /* that were posted with success */
} fake_controls;

/* The controls of the library that has been opened; by dlsym. */
typedef fake_controls *fake_controls_function(void);

#endif
