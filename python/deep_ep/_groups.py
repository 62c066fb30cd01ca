# SPDX-License-Identifier: Apache-2.0
"""The expar groups of PyTorch process groups and mpi4py communicators.

There is one for each, so that handles of one buffer work on later buffers, too.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

import expar

_by_group: weakref.WeakKeyDictionary[Any, expar.Group] = weakref.WeakKeyDictionary()
# Groups of communicators that do not support weak references. These entries are never removed.
_by_comm: dict[int, tuple[Any, expar.Group]] = {}

# The time that a rank may be silent, unless EXPAR_TIMEOUT gives another one.
_TIMEOUT_MS = 100_000


def group_of(group: Any, comm: Any, timeout_ms: int = _TIMEOUT_MS, late_ms: int = 0) -> expar.Group:
    """Returns the expar group of a process group or communicator. Collective if it must be created.

    timeout_ms: how long a rank may be silent. late_ms: how long to wait for a rank that answers; 0: as long as it
    answers. EXPAR_TIMEOUT and EXPAR_LATE_LIMIT override them, and a group that exists keeps its limits. ValueError
    without group and comm."""
    if group is None and comm is None:
        raise ValueError(
            "neither group nor comm is given: expected a process group of torch.distributed, or an mpi4py communicator"
        )
    key = group if group is not None else comm
    try:
        found = _by_group.get(key)
    except TypeError:
        found = _by_comm.get(id(key), (None, None))[1]
    if found is not None and not found.closed:
        return found
    options: dict[str, Any] = {} if os.environ.get("EXPAR_TIMEOUT") else {"timeout_ms": timeout_ms}
    if late_ms and not os.environ.get("EXPAR_LATE_LIMIT"):
        options["late_limit_ms"] = late_ms
    made = expar.Group.from_torch(group, **options) if group is not None else expar.Group.from_mpi4py(comm, **options)
    try:
        _by_group[key] = made
    except TypeError:
        _by_comm[id(key)] = (key, made)
    return made
