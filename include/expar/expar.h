/* SPDX-License-Identifier: Apache-2.0 */
/* All of expar's public interface. */
#ifndef EXPAR_EXPAR_H
#define EXPAR_EXPAR_H

#include <expar/atomics.h>
#include <expar/collective.h>
#include <expar/dlpack.h>
#include <expar/ep.h>
#include <expar/event.h>
#include <expar/globals.h>
#include <expar/group.h>
#include <expar/info.h>
#include <expar/interrupt.h>
#include <expar/lock.h>
#include <expar/log.h>
#include <expar/low_latency.h>
#include <expar/memory.h>
#include <expar/python.h>
#include <expar/rma.h>
#include <expar/status.h>
#include <expar/team.h>
#include <expar/tensor.h>
#include <expar/types.h>
#include <expar/wait.h>

#endif
