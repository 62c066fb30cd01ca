/* SPDX-License-Identifier: Apache-2.0 */
#include <expar/expar.h>
#include <expar/python.h>
#include <stddef.h>

/* Combines of one shape: a call has x and y, then the handle's and the stream's address. They return the event. */
static const int32_t tensors[] = {offsetof(expar_ep_combine_args, x), offsetof(expar_ep_combine_args, out_y)};
static const int32_t words[] = {offsetof(expar_ep_combine_args, handle), offsetof(expar_ep_combine_args, stream)};

/* `first` has the arguments of a call that was made before. It must live as long as the form. */
expar_python_form combine_form(expar_ep *ep, const expar_ep_combine_args *first)
{
    return (expar_python_form){.kind = EXPAR_PYTHON_COMBINE,
                               .num_tensors = 2,
                               .num_words = 2,
                               .tensor_offsets = tensors,
                               .word_offsets = words,
                               .args = first,
                               .object = ep};
}

/* The body of a function of Python's: `self` is the integer that has the form's address. */
void *combine(void *self, void *const *items, ptrdiff_t count)
{
    return expar_python_run(self, items, count);
}
