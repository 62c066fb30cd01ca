/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of a program in Python, with its objects.
 *
 * By ctypes a call takes several steps of the interpreter: it looks at tensors, packs arguments, calls, and makes
 * objects of the results. expar_python_run does all of them in one. Python calls it as a function of its own, which
 * PyCFunction_NewEx makes of a PyMethodDef {name, expar_python_run, METH_FASTCALL}. The function's self is a whole
 * number, the address of an expar_python_form. */
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
    const expar_python *objects;     /* its tensor_new is needed */
    expar_python_view_fn view;       /* as of expar_python_views */
    expar_python_address_fn address; /* PyLong_AsVoidPtr */
    expar_python_number_fn number;   /* PyLong_FromVoidPtr */
    expar_python_list_fn list_new;   /* PyList_New */
    expar_python_count_fn retain;    /* Py_IncRef */
    expar_python_count_fn release;   /* Py_DecRef */
    expar_python_error_fn error;     /* PyErr_Occurred */
    expar_python_clear_fn clear;     /* PyErr_Clear */
    expar_python_unlock_fn unlock;   /* PyEval_SaveThread */
    expar_python_lock_fn lock;       /* PyEval_RestoreThread */
    void *none;                      /* Py_None */
} expar_python_functions;

/* For all later expar_python_run of this process. The functions stay where they are until it ends. EXPAR_ERR_NULL: it
   names the member. */
EXPAR_API expar_status expar_python_use(const expar_python_functions *functions);

/* Which call is made, and what its list has after the output's tensors. Objects of the library's are numbers there, and
   become the caller's; 0 is none. */
typedef enum expar_python_kind {
    EXPAR_PYTHON_DISPATCH = 0,    /* expar_dispatch: event. With a handle */
    EXPAR_PYTHON_COMBINE = 1,     /* expar_combine: event */
    EXPAR_PYTHON_LL_DISPATCH = 2, /* expar_ll_dispatch: src_info, range, handle, hook, event */
    EXPAR_PYTHON_LL_COMBINE = 3   /* expar_ll_combine: hook, event */
} expar_python_kind;

#define EXPAR_PYTHON_READER (-1)

/* What calls of one form have alike. */
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

/* One call: `self` is the number of a form, items are as the form says. The interpreter's lock is held, but not while
   the library's call runs. A new object:
   - a list of the output's tensors and of what the kind has;
   - None: the form has other items, or a tensor says something else than the one in the form's arguments, beside its
     data. Nothing has been called;
   - a whole number, the expar_status of a call that has failed; expar_last_error has the text.
   NULL, and Python has an exception: it has no memory for the results, which are given back. */
EXPAR_API void *expar_python_run(void *self, void *const *items, ptrdiff_t count);

#ifdef __cplusplus
}
#endif
#endif
