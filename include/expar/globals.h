/* SPDX-License-Identifier: Apache-2.0 */
/* Symmetric global and static variables. */
#ifndef EXPAR_GLOBALS_H
#define EXPAR_GLOBALS_H

#include <expar/group.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Makes the global and static variables of the program itself (not of its shared libraries) symmetric. It moves the
   pages of its data and bss segments, with their contents, onto pages of the symmetric heap, at the same addresses.
   From then on such variables may be used as symmetric addresses. When the group ends they keep their values, but are
   no longer symmetric. A child made by fork shares them with its parent from then on. Collective; all ranks run the
   same program. No other thread of the program may write to variables meanwhile. A process calls this once
   (EXPAR_ERR_STATE). EXPAR_ERR_MISMATCH: the programs differ. EXPAR_ERR_UNSUPPORTED for thread ranks, and on a heap of
   huge pages. EXPAR_ERR_MEMORY, EXPAR_ERR_SYSTEM, EXPAR_ERR_PEER. */
EXPAR_API expar_status expar_globals_share(expar_group *group);

#ifdef __cplusplus
}
#endif
#endif
