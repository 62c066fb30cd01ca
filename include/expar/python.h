/* SPDX-License-Identifier: Apache-2.0 */
/* Calls for programs in Python that use the library through ctypes: tensors come in and go out as Python's objects.
 *
 * The library does not link an interpreter: the program looks up functions of Python's stable ABI, and passes their
 * addresses. All calls here but expar_python_use hold the interpreter's lock (ctypes.PyDLL).
 *
 * Through ctypes a call takes several steps of the interpreter: it looks at tensors, packs arguments, calls, and makes
 * objects of the results. expar_python_run does all of them in one step. The program makes a Python function of it with
 * PyCFunction_NewEx, from a PyMethodDef {name, expar_python_run, METH_FASTCALL}. The function's self is an integer, the
 * address of an expar_python_form. */
#ifndef EXPAR_PYTHON_H
#define EXPAR_PYTHON_H

#include <expar/dlpack.h>
#include <expar/ep_dispatch.h>
#include <expar/ep_output.h>
#include <expar/ep_routing.h>
#include <expar/low_latency.h>
#include <expar/status.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

typedef void *(*expar_python_capsule_new_fn)(void *pointer, const char *name, void (*destructor)(void *capsule));
typedef int (*expar_python_list_set_item_fn)(void *list, ptrdiff_t index, void *item);
typedef int (*expar_python_tensor_fn)(expar_dl_versioned *managed, void **object);

/* These functions make Python's objects of tensors. Calls with them wait for nothing, and put capsules "dltensor" of
   version 0 into a list of the program's. Where tensor_new is given they put tensors of the Python library instead
   whose DLPackExchangeAPI (version 1.x) has it, of version 1.1. When Python has no memory, or the list is too short,
   they return EXPAR_ERR_MEMORY, and Python has an exception. */
typedef struct expar_python_objects {
    /* PyCapsule_New */
    expar_python_capsule_new_fn capsule_new;
    /* PyList_SetItem */
    expar_python_list_set_item_fn list_set_item;
    /* managed_tensor_to_py_object_no_sync; NULL: capsules are wanted */
    expar_python_tensor_fn tensor_new;
} expar_python_objects;

/* Exports several parts of an output at once: item i of `list` becomes parts[i], with a reference of its own. Where
   parts[i] is negative the item is unchanged. Objects that were made before a failure stay in the list. Errors:
   EXPAR_ERR_NULL, EXPAR_ERR_MEMORY, and those of expar_ep_output_to_dlpack. */
EXPAR_API expar_status expar_python_put_output(expar_ep_output *output, const int32_t *parts, int32_t count,
                                               const expar_python_objects *python, void *list);
/* Puts src_info and range of a handle into `list` as items 0 and 1, each with a reference to the handle. Objects that
   were made before a failure stay in the list. Local; any thread. EXPAR_ERR_NULL, EXPAR_ERR_HANDLE,
   EXPAR_ERR_MEMORY. */
EXPAR_API expar_status expar_python_put_ll_handle(expar_ll_handle *handle, const expar_python_objects *python,
                                                  void *list);

#define EXPAR_PYTHON_MAX_VIEWS 8

typedef void *(*expar_python_tuple_get_item_fn)(void *tuple, ptrdiff_t index);
typedef int (*expar_python_view_fn)(void *object, expar_dl_tensor *view);

/* The first members show tensors of a Python library to C. The others say where arguments of a call have them. */
typedef struct expar_python_views {
    /* PyTuple_GetItem */
    expar_python_tuple_get_item_fn tuple_get_item;
    /* dltensor_from_py_object_no_sync of that library's DLPackExchangeAPI */
    expar_python_view_fn view;
    /* Py_None */
    const void *none;
    /* [count] where in the arguments the views are, bytes */
    const int32_t *offsets;
    /* of items in the tuple */
    int32_t count;
    /* where in the arguments an int32_t is */
    int32_t differing_offset;
} expar_python_views;

/* Puts views of the tensors in a tuple where the arguments of a call want them: of item i an expar_tensor at
   offsets[i]; None leaves what is there. A contiguous tensor gets the strides that its shape says. The number at
   differing_offset becomes the count of views that differ from the earlier ones in more than their data. If it is 0,
   a program that has checked the earlier ones need not check again. Errors, and nothing has been put then:
   EXPAR_ERR_NULL, EXPAR_ERR_LIMIT (more than EXPAR_PYTHON_MAX_VIEWS items), EXPAR_ERR_ARGUMENT (an item that is no
   tensor; Python has an exception), EXPAR_ERR_DTYPE, EXPAR_ERR_SHAPE, EXPAR_ERR_DEVICE as expar_tensor_from_dlpack. */
EXPAR_API expar_status expar_python_view_tensors(const expar_python_views *python, void *tuple, void *args);

/* ---- whole calls ------------------------------------------------------------------------------------------------- */

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
    /* its tensor_new is needed */
    const expar_python_objects *objects;
    /* as of expar_python_views */
    expar_python_view_fn view;
    /* PyLong_AsVoidPtr */
    expar_python_address_fn address;
    /* PyLong_FromVoidPtr */
    expar_python_number_fn number;
    /* PyList_New */
    expar_python_list_fn list_new;
    /* Py_IncRef */
    expar_python_count_fn retain;
    /* Py_DecRef */
    expar_python_count_fn release;
    /* PyErr_Occurred */
    expar_python_error_fn error;
    /* PyErr_Clear */
    expar_python_clear_fn clear;
    /* PyEval_SaveThread */
    expar_python_unlock_fn unlock;
    /* PyEval_RestoreThread */
    expar_python_lock_fn lock;
    /* Py_None */
    void *none;
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
    EXPAR_PYTHON_LL_COMBINE = 3,  /* expar_ll_combine: hook, event */
    EXPAR_PYTHON_FRESH = 4,       /* expar_ep_dispatch without a handle: handle, output, event, then two numbers that
                                     need no release: num_recv_tokens, and the address of recv_tokens_per_expert */
    EXPAR_PYTHON_LAYOUT = 5       /* expar_ep_get_layout: nothing */
} expar_python_kind;

#define EXPAR_PYTHON_READER (-1)

/* The arguments of FRESH. */
typedef struct expar_python_fresh {
    /* its recv_counts is ignored */
    expar_ep_dispatch_args args;
    /* wanted by the call where struct_size is not 0 */
    expar_ep_recv_counts counts;
    /* the caller's counts; only compared, as tensors are */
    expar_tensor tokens_per_expert;
} expar_python_fresh;

/* The arguments of LAYOUT. */
typedef struct expar_python_layout {
    expar_tensor topk_idx;
    int32_t num_experts;
    expar_ep_layout layout;
} expar_python_layout;

/* A form holds everything that is equal in many calls. */
typedef struct expar_python_form {
    expar_python_kind kind;
    /* the first items of a call: tensors, or None */
    int32_t num_tensors;
    /* the items after them: whole numbers */
    int32_t num_words;
    /* of the output, which become tensors; not of LAYOUT, and of COMBINE only in open forms */
    int32_t num_parts;
    /* [num_tensors] where in the arguments their views are, bytes */
    const int32_t *tensor_offsets;
    /* [num_words] where words of 8 bytes are; EXPAR_PYTHON_READER: the number is a stream that reads the output
       (expar_ep_output_read_on), or 0 */
    const int32_t *word_offsets;
    /* [num_parts] expar_ep_part */
    const int32_t *parts;
    /* the arguments of such a call, of the kind's type; tensors' data is not looked at */
    const void *args;
    /* expar_ep, expar_ll, or of LAYOUT an expar_group */
    void *object;
    /* 1: the program does not want the event */
    int32_t forget_event;
    /* 1: expar_ep_query or expar_ll_query comes after the call, and may fail it; not of LAYOUT */
    int32_t query;
    /* 1: the form is open. Tensors need not look like those in args, because the library's call checks them. See
       expar_python_run; not of LAYOUT */
    int32_t open;
} expar_python_form;

/* Makes one call. `self` is an integer, the address of a form; `items` are what the form describes. The caller holds
   the interpreter's lock, which is released while the library's call runs. Returns a new object:
   - a list of the output's tensors, then of what the kind names;
   - None: nothing was called. The items do not fit the form, or one is no tensor that the library knows. Or a tensor
     differs from the form's in more than its data, and the form is not open;
   - an integer: the expar_status of a call that failed; expar_last_error has the text.
   Returns NULL, with an exception set, when Python has no memory for the results. The results are then released.

   Calls of an open form. A tensor that the items do not give stays as it is in args. The list is another one:
   - A part that the output does not have is None.
   - There are no src_info and range.
   - The last numbers are the output, which the caller then owns, and of dispatches in normal mode num_recv_tokens,
     num_dropped_tokens and path. Of FRESH num_local_experts comes after these. Negative numbers are their two's
     complement.
   A COMBINE allocates out_y and out_topk_weights from the pool if the call needs them and has none. The output has them
   as its parts X and TOPK_WEIGHTS. */
EXPAR_API void *expar_python_run(void *self, void *const *items, ptrdiff_t count);

#ifdef __cplusplus
}
#endif
#endif
