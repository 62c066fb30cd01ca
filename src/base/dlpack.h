/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors for other libraries, for calls that have other names than expar_tensor_to_dlpack. */
#ifndef EXPAR_BASE_DLPACK_H
#define EXPAR_BASE_DLPACK_H

#include <expar/python.h>
#include <stdbool.h>

/* As expar_tensor_to_dlpack; texts of errors begin with `call`. */
expar_status dlpack_make(const char *call, const expar_tensor *tensor, uint32_t version, void (*release)(void *context),
                         void *context, void **managed);

/* The same as item `index` of a Python list. release(context) is called on failure, too. One case is different: if
   Python's library has failed to make a tensor, it keeps the memory or has released it already. */
expar_status dlpack_put_in_list(const char *call, const expar_tensor *tensor, void (*release)(void *context),
                                void *context, const expar_python_objects *python, void *list, int32_t index);
/* Makes a view of a Python tensor, with the strides of its shape if it is contiguous. Errors are those of
   expar_python_view_tensors for an item; Python may have an exception then. */
expar_status dlpack_view_object(const char *call, expar_python_view_fn view, void *object, expar_tensor *out);
/* Returns whether two views are equal except for their data. */
bool dlpack_look_alike(const expar_tensor *a, const expar_tensor *b);
/* EXPAR_ERR_NULL */
expar_status dlpack_check_python(const char *call, const expar_python_objects *python, const void *list);

#endif
