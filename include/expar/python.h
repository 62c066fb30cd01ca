/* SPDX-License-Identifier: Apache-2.0 */
/* This file declares one function that a program in Python calls with its own objects.
 *
 * Through ctypes a call takes several steps of the interpreter: it looks at tensors, packs arguments, calls, and makes
 * objects of the results. expar_python_run does all of them in one step. The program makes a Python function of it with
 * PyCFunction_NewEx, from a PyMethodDef {name, expar_python_run, METH_FASTCALL}. The function's self is an integer, the
 * address of an expar_python_form. */
#ifndef EXPAR_PYTHON_H
#define EXPAR_PYTHON_H

#include <expar/dlpack.h>
#include <expar/status.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef void *(*expar_python_address_fn)(void *number);
typedef void *(*expar_python_number_fn)(void *address);
typedef void *(*expar_python_list_fn)(ptrdiff_t length);
typedef void (*expar_python_count_fn)(void *object);
typedef void *(*expar_python_error_fn)(void);
typedef void (*expar_python_clear_fn)(void);
typedef void *(*expar_python_unlock_fn)(void);
typedef void (*expar_python_lock_fn)(void *thread);

/* Functions of Python's stable ABI, which the program looks up. */
typedef struct expar_python_functions {
    const expar_python_objects *objects; /* its tensor_new is needed */
    expar_python_view_fn view;           /* as of expar_python_views */
    expar_python_address_fn address;     /* PyLong_AsVoidPtr */
    expar_python_number_fn number;       /* PyLong_FromVoidPtr */
    expar_python_list_fn list_new;       /* PyList_New */
    expar_python_count_fn retain;        /* Py_IncRef */
    expar_python_count_fn release;       /* Py_DecRef */
    expar_python_error_fn error;         /* PyErr_Occurred */
    expar_python_clear_fn clear;         /* PyErr_Clear */
    expar_python_unlock_fn unlock;       /* PyEval_SaveThread */
    expar_python_lock_fn lock;           /* PyEval_RestoreThread */
    void *none;                          /* Py_None */
} expar_python_functions;

/* Sets the functions for all later calls of expar_python_run in this process. `functions` must stay valid until the
   process ends. EXPAR_ERR_NULL: a member is null; the text names it. */
EXPAR_API expar_status expar_python_use(const expar_python_functions *functions);

/* The call that a form makes. Each line names what the result's list holds after the output's tensors. Objects of the
   library are integers there, and the caller owns them; 0 means that there is none. */
typedef enum expar_python_kind {
    EXPAR_PYTHON_DISPATCH = 0,    /* expar_ep_dispatch: event. With a handle */
    EXPAR_PYTHON_COMBINE = 1,     /* expar_ep_combine: event */
    EXPAR_PYTHON_LL_DISPATCH = 2, /* expar_ll_dispatch: src_info, range, handle, hook, event */
    EXPAR_PYTHON_LL_COMBINE = 3   /* expar_ll_combine: hook, event */
} expar_python_kind;

#define EXPAR_PYTHON_READER (-1)

/* A form holds everything that is equal in many calls. */
typedef struct expar_python_form {
    expar_python_kind kind;
    int32_t num_tensors;           /* the first items of a call: tensors, or None */
    int32_t num_words;             /* the items after them: whole numbers */
    int32_t num_parts;             /* of the output, which become tensors; not of COMBINE */
    const int32_t *tensor_offsets; /* [num_tensors] where in the arguments their views are, bytes */
    const int32_t *word_offsets; /* [num_words] where words of 8 bytes are; EXPAR_PYTHON_READER: the number is a stream
                                      that reads the output (expar_ep_output_read_on), or 0 */
    const int32_t *parts;        /* [num_parts] expar_ep_part */
    const void *args;            /* the arguments of such a call, of the kind's type; tensors' data is not looked at */
    void *object;                /* expar_ep, or expar_ll */
    int32_t forget_event;        /* 1: nobody wants the event */
    int32_t query;               /* 1: expar_ep_query or expar_ll_query comes after the call, and may fail it */
} expar_python_form;

/* Makes one call. `self` is an integer, the address of a form; `items` are what the form describes. The caller holds
   the interpreter's lock, which is released while the library's call runs. Returns a new object:
   - a list of the output's tensors, then of what the kind names;
   - None: the items do not fit the form, or a tensor differs from the form's in more than its data. Nothing was called;
   - an integer: the expar_status of a call that failed; expar_last_error has the text.
   Returns NULL, with an exception set, when Python has no memory for the results. The results are then released. */
EXPAR_API void *expar_python_run(void *self, void *const *items, ptrdiff_t count);

#ifdef __cplusplus
}
#endif
#endif
