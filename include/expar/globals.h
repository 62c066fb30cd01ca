/* SPDX-License-Identifier: Apache-2.0 */
/* Symmetric global and static variables. */
#ifndef EXPAR_GLOBALS_H
#define EXPAR_GLOBALS_H

#include <expar/group.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Makes the global and static variables of the program itself (not of its shared libraries) symmetric: moves the pages
   of its data and bss segments, with what they hold, onto pages of the symmetric heap, at the addresses that they have.
   From then on such variables may stand wherever a symmetric address is asked for. They stay what they are when the
   group ends, but are symmetric no longer. A child made by fork shares them with its parent from then on.
   Collective; all ranks run the same program; no other thread of the program writes to variables meanwhile. Once a
   process (EXPAR_ERR_STATE). EXPAR_ERR_MISMATCH: the programs differ. EXPAR_ERR_UNSUPPORTED for thread ranks, and on a
   heap of huge pages. EXPAR_ERR_MEMORY, EXPAR_ERR_SYSTEM, EXPAR_ERR_PEER. */
EXPAR_API expar_status expar_globals_share(expar_group *group);

#ifdef __cplusplus
}
#endif
#endif
