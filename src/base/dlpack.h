/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors for other libraries, from calls of other names than expar_tensor_to_dlpack's. */
#ifndef EXPAR_BASE_DLPACK_H
#define EXPAR_BASE_DLPACK_H

#include <expar/python.h>
#include <stdbool.h>

/* As expar_tensor_to_dlpack; texts of errors begin with `call`. */
expar_status dlpack_make(const char *call, const expar_tensor *tensor, uint32_t version, void (*release)(void *context),
                         void *context, void **managed);

/* Likewise, as item `index` of a list of Python's. release(context) is called on failure, too, but where Python's
   library has failed to make a tensor, which keeps it or has let it go. */
expar_status dlpack_put_in_list(const char *call, const expar_tensor *tensor, void (*release)(void *context),
                                void *context, const expar_python_objects *python, void *list, int32_t index);
/* A view of one of Python's tensors, with the strides of its shape where it is contiguous. Errors as
   expar_python_view_tensors has them for an item; Python may have an exception then. */
expar_status dlpack_view_object(const char *call, expar_python_view_fn view, void *object, expar_tensor *out);
/* Whether two views say the same, beside their data. */
bool dlpack_look_alike(const expar_tensor *a, const expar_tensor *b);
/* EXPAR_ERR_NULL */
expar_status dlpack_check_python(const char *call, const expar_python_objects *python, const void *list);

#endif
