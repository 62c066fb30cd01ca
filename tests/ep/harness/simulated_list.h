/* SPDX-License-Identifier: Apache-2.0 */
/* A simulated list of Python's, and capsules: a capsule is the managed tensor itself. */
#ifndef EXPAR_TESTS_EP_SIMULATED_LIST_H
#define EXPAR_TESTS_EP_SIMULATED_LIST_H

#include <expar/python.h>
#include <string.h>

typedef struct simulated_list {
    int32_t length; /* of those that fit */
    expar_dl_managed *items[4];
} simulated_list;

/* Takes no other name, and no destructor. */
static inline void *simulated_capsule_new(void *pointer, const char *name, void (*destructor)(void *capsule))
{
    return strcmp(name, "dltensor") == 0 && !destructor ? pointer : NULL;
}

static inline void *simulated_no_capsule(void *pointer, const char *name, void (*destructor)(void *capsule))
{
    (void)pointer, (void)name, (void)destructor;
    return NULL;
}

static inline int simulated_list_set_item(void *list, ptrdiff_t index, void *item)
{
    simulated_list *of = list;
    if (index < 0 || index >= of->length) return -1;
    of->items[index] = item;
    return 0;
}

/* A tensor of a library's is the managed one, too. */
static inline int simulated_tensor_new(expar_dl_versioned *managed, void **object)
{
    *object = managed;
    return 0;
}

/* Has let it go by then. */
static inline int simulated_no_tensor(expar_dl_versioned *managed, void **object)
{
    (void)object;
    managed->deleter(managed);
    return -1;
}

static const expar_python_objects simulated_python = {simulated_capsule_new, simulated_list_set_item, NULL},
                                  simulated_python_without_memory = {simulated_no_capsule, simulated_list_set_item,
                                                                     NULL};

static inline void simulated_delete(expar_dl_managed *item)
{
    item->deleter(item);
}

#endif
