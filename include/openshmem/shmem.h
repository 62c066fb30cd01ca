/* SPDX-License-Identifier: Apache-2.0 */
/* The name that OpenSHMEM programs include; lies in a folder of its own, so that no other header of expar gets in the
 * way of the system's. */
#include <expar/shmem.h>
