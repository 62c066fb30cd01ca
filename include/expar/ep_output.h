/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a dispatch's results. */
#ifndef EXPAR_EXPAR_EP_OUTPUT_H
#define EXPAR_EXPAR_EP_OUTPUT_H

#include <expar/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct expar_ep_output expar_ep_output; /* the memory of one dispatch's results */

/* Gives the results' memory back; the tensors of the dispatch must not be used after. A dispatch in flight keeps it
   until it has ended. Not collective; any thread. NULL is allowed. */
EXPAR_API void expar_ep_output_release(expar_ep_output *output);

#ifdef __cplusplus
}
#endif
#endif
